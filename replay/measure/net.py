"""Models what sidecars would cost, and what is left of the saving. Sans-IO.

A gateway runs beside a client. So each client address where sessions save bytes needs a sidecar. What this
sidecar needs follows from what `make bench` measured (BENCHMARKS.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from replay.measure.sums import FetchSums
from replay.report.decision import MONTH, DailyRate
from replay.report.model import Net, NetRow, SidecarNeed

PROCESS_BYTES: Final = 51_000_000
"""The memory of a gateway with one client: "Resident memory", "one client, after drains"."""
CONNECTION_BYTES: Final = 12_200
""""Resident memory", "an idle connection"."""
PARTITION_BYTES: Final = 110
""""Resident memory", "a partition in a session"."""
FETCH_SECONDS: Final = 90e-6
"""The CPU time of a fetch: "500 connections of one partition"."""
LISTED_SECONDS: Final = 0.25e-6
"""The CPU time of a partition in a fetch: what "Idle: 1,000 partitions" needs more than `FETCH_SECONDS`."""
RECORD_SECONDS: Final = 0.53e-9
"""The CPU time of a byte of records: "Bulk"."""
SERVICES: Final = (1, 20, 200)
"""For how many services alike the sum is shown."""
MONTHS: Final = 12
"""The months of a year. Such a year has 360 days, so that a year costs twelve times what a month costs."""
_GB: Final = 10**9
_MILLI: Final = 1_000


@dataclass(slots=True, kw_only=True)
class AddressSums:
    """The counted fetches of all connections from one client address."""

    connections: int = 0
    requests: int = 0
    partitions: int = 0
    """How many partitions fetches list on average, added up over the connections."""
    partitions_requested: int = 0
    record_bytes: int = 0
    saved_bytes: int = 0

    def add_connection(self, fetches: FetchSums) -> None:
        """Add the fetches of one connection."""
        fetch = fetches.fetch()
        actual = fetch["actual"]
        listed = actual["partitions_requested"]
        self.add(
            AddressSums(
                connections=1,
                requests=actual["requests"],
                partitions=-(-listed // actual["requests"]) if listed else 0,
                partitions_requested=listed,
                record_bytes=actual["record_bytes"],
                saved_bytes=fetch["saved_bytes"],
            )
        )

    def add(self, other: "AddressSums") -> None:
        """Add other connections from the same address."""
        self.connections += other.connections
        self.requests += other.requests
        self.partitions += other.partitions
        self.partitions_requested += other.partitions_requested
        self.record_bytes += other.record_bytes
        self.saved_bytes += other.saved_bytes


def net(addresses: Mapping[str, AddressSums], rate: DailyRate, cost: float) -> Net | None:
    """Return the saving, the cost of sidecars, and what is left.

    Args:
        addresses: the fetches by client address.
        rate: the captured time, and the price of 10^9 bytes.
        cost: the price of one sidecar in a month.

    Returns:
        None without a price of bytes, or if no time was captured.
    """
    saved = [one.saved_bytes for one in addresses.values() if one.saved_bytes > 0]
    month = rate.month(sum(saved))
    if month is None:
        return None
    saved_gb = sum(saved) / _GB / rate.seconds * MONTH
    needs = [need(one, rate.seconds) for one in addresses.values() if one.saved_bytes > 0]
    return Net(
        currency=rate.currency,
        sidecar_cost_per_month=cost,
        sidecars=len(saved),
        sidecars_that_pay=sum((rate.month(count) or 0.0) > cost for count in saved),
        break_even_price_per_gb=len(saved) * cost / saved_gb if saved else None,
        largest=max(needs, key=lambda one: (one["cpu_millicores"], one["memory_bytes"]), default=None),
        services=[_row(services, len(saved), month, cost) for services in SERVICES],
        captured_seconds=rate.seconds,
    )


def need(one: AddressSums, seconds: float) -> SidecarNeed:
    """Return what the sidecar of a client address needs for the fetches.

    Args:
        one: the fetches.
        seconds: the time in which they were captured, above 0.
    """
    cpu = (
        one.requests * FETCH_SECONDS
        + one.partitions_requested * LISTED_SECONDS
        + one.record_bytes * RECORD_SECONDS
    )
    return SidecarNeed(
        memory_bytes=PROCESS_BYTES + one.connections * CONNECTION_BYTES + one.partitions * PARTITION_BYTES,
        cpu_millicores=round(cpu / seconds * _MILLI, 3),
        connections=one.connections,
        partitions=one.partitions,
        fetches_per_second=one.requests / seconds,
        partitions_per_second=one.partitions_requested / seconds,
        record_bytes_per_second=one.record_bytes / seconds,
    )


def _row(services: int, sidecars: int, saved: float, cost: float) -> NetRow:
    """Return the sum for some services alike.

    Args:
        services: how many services there are.
        sidecars: the sidecars of one service.
        saved: what one service saves in a month.
        cost: the price of one sidecar in a month.
    """
    saved_per_month, cost_per_month = services * saved, services * sidecars * cost
    net_per_month = saved_per_month - cost_per_month
    return NetRow(
        services=services,
        sidecars=services * sidecars,
        saved_per_month=saved_per_month,
        cost_per_month=cost_per_month,
        net_per_month=net_per_month,
        saved_per_year=MONTHS * saved_per_month,
        cost_per_year=MONTHS * cost_per_month,
        net_per_year=MONTHS * net_per_month,
    )
