"""Models what sidecars would cost, and what is left of the saving. Sans-IO.

A gateway runs beside a client. So each client address where sessions save bytes needs a sidecar. What this
sidecar needs follows from what `make bench` measured (BENCHMARKS.md).
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from proxy.adding import Figures
from replay.measure.zone_places import Zone
from replay.report.decision import MONTH, ClientKey, DailyRate, OwnSidecars
from replay.report.model import Net, NetBetweenZones, NetPaying, NetRow, SidecarNeed
from replay.report.zones_model import ByZone

PROCESS_BYTES: Final = 51_000_000
"""The memory of a gateway with one client: "Resident memory", "one client, after drains"."""
CONNECTION_BYTES: Final = 12_200
""""Resident memory", "an idle connection"."""
PARTITION_BYTES: Final = 110
""""Resident memory", "a partition in a session"."""
FETCH_SECONDS: Final = 160e-6
"""The CPU time of a fetch: "500 connections of one partition"."""
LISTED_SECONDS: Final = 0.57e-6
"""The CPU time of a partition in a fetch: what "Idle: 1,000 partitions" needs more than `FETCH_SECONDS`."""
RECORD_SECONDS: Final = 1.8e-9
"""The CPU time of a byte of records: "Bulk"."""
SERVICES: Final = (1, 20, 200)
"""For how many services alike the sum is shown."""
MONTHS: Final = 12
"""The months of a year. Such a year has 360 days, so that a year costs twelve times what a month costs."""
_GB: Final = 10**9
_MILLI: Final = 1_000


@dataclass(slots=True, kw_only=True)
class AddressSums(Figures):
    """The counted fetches of all connections from one client address."""

    connections: int = 0
    requests: int = 0
    partitions: int = 0
    """How many partitions fetches list on average, added up over the connections."""
    partitions_requested: int = 0
    record_bytes: int = 0
    saved_bytes: int = 0
    saved_between: Counter[tuple[str, str]] = field(default_factory=Counter)
    """`saved_bytes` by the client's rack and the broker's address, whose rack is not known yet."""
    clients: set[int] = field(default_factory=set)
    """The clients on whose connections sessions save bytes, as `client_hash`. An address may have many."""


def client_hash(client: ClientKey) -> int:
    """Return a hash of 64 bits, the same in every process."""
    text = "\0".join(map(str, client)).encode(errors="surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), signed=True)


def net(
    addresses: Mapping[str, AddressSums],
    rate: DailyRate,
    cost: float,
    zone: Callable[[str, str], Zone] = lambda _client, _broker: "unknown",
) -> Net | None:
    """Return the saving, the cost of sidecars, and what is left.

    `cost` is the price of one sidecar in a month. `zone` tells whether a client of this rack and the broker
    at this address are in the same zone. None without a price of bytes, or if less than 5 s were captured.
    """
    savers = {address: one for address, one in addresses.items() if one.saved_bytes > 0}
    saved = {address: one.saved_bytes for address, one in savers.items()}
    month = rate.month(sum(saved.values()))
    if month is None:
        return None
    saved_gb = sum(saved.values()) / _GB / rate.seconds * MONTH
    needs = [need(one, rate.seconds) for one in savers.values()]
    paying = _paying(saved, rate, cost)
    return Net(
        currency=rate.currency,
        sidecar_cost_per_month=cost,
        sidecars=len(saved),
        sidecars_that_pay=len(paying["addresses"]),
        paying=paying,
        break_even_price_per_gb=len(saved) * cost / saved_gb if saved else None,
        largest=max(needs, key=lambda one: (one["cpu_millicores"], one["memory_bytes"]), default=None),
        services=[_row(services, len(saved), month, cost) for services in SERVICES],
        between_zones=_between_zones(savers, rate, cost, zone),
        captured_seconds=rate.seconds,
    )


def own_sidecars(
    waiting: Mapping[ClientKey, int],
    saved: Mapping[ClientKey, int],
    addresses: Mapping[str, AddressSums],
    rate: DailyRate,
    cost: float,
    zone: Callable[[str, str], Zone] = lambda _client, _broker: "unknown",
) -> dict[ClientKey, OwnSidecars]:
    """Return the sidecars of each client: one at each address where sessions save bytes of this client.

    If a zone is known, only bytes between zones have the price. If some clients at an address wait instead,
    its sidecar has to pay for the others alone.

    `waiting` has the bytes that `fetch.min.bytes` would save without a sidecar, 0 if it is not advised.
    `saved` has those that sessions save. `cost` and `zone` are as in `net`.
    """
    savers = {address: one for address, one in addresses.items() if one.saved_bytes > 0}
    zoned = {address: _zoned(one.saved_between, zone) for address, one in savers.items()}
    between = any(map(_known, zoned.values()))
    priced = {
        address: zoned[address]["other"] if between else one.saved_bytes for address, one in savers.items()
    }
    hashes = {client: client_hash(client) for client in waiting}
    by_hash = {hashes[client]: count for client, count in waiting.items()}
    whole: Counter[int] = Counter()
    at: Counter[int] = Counter()
    for one in savers.values():
        whole.update(dict.fromkeys(one.clients, one.saved_bytes))
        at.update(one.clients)
    # A client at several addresses counts at each of them alike.
    parts = {hashes[client]: max(count, 0) / (at[hashes[client]] or 1) for client, count in saved.items()}
    own = {key: _Own(may_wait=count > 0) for key, count in by_hash.items()}
    for address, one in savers.items():
        net = max((rate.month(priced[address]) or 0.0) - cost, 0.0)
        # A client at several addresses waits at each, by what sessions save there. The price is of all bytes
        # there, or of as large a part as of those that sessions save.
        waits = sum(by_hash.get(key, 0) / whole[key] for key in one.clients) * priced[address]
        waits = rate.month(round(waits)) or 0.0
        for key in one.clients & own.keys():
            own[key].left += net - waits
    for address, one in savers.items():
        left = priced[address]
        waiters = {key for key in one.clients if key in own and own[key].may_wait and own[key].left < 0}
        others_wait = 0 < len(waiters) < len(one.clients)
        if others_wait:
            together = sum(parts.get(key, 0.0) for key in one.clients)
            stay = sum(parts.get(key, 0.0) for key in one.clients - waiters)
            left = round(left * stay / together) if together else 0
        pays, pays_for_all = ((rate.month(count) or 0.0) > cost for count in (left, priced[address]))
        for key in one.clients & own.keys():
            own[key].number += 1
            own[key].pay += pays_for_all if key in waiters else pays
            own[key].others_wait |= others_wait and pays_for_all and key not in waiters
    return {
        client: OwnSidecars(
            number=own[key].number,
            pay=own[key].pay,
            between_zones=between,
            waiting_wins=own[key].left < 0,
            others_wait=own[key].others_wait,
        )
        for client, key in hashes.items()
    }


@dataclass(slots=True, kw_only=True)
class _Own:
    """Adds up the addresses at which a client would have a sidecar."""

    may_wait: bool
    number: int = 0
    pay: int = 0
    left: float = 0.0
    """What the sidecars leave in a month, for all clients that share them, less what `fetch.min.bytes` would
    save there. A loss of a sidecar counts as 0."""
    others_wait: bool = False


def _paying(saved: Mapping[str, int], rate: DailyRate, cost: float) -> NetPaying:
    """Return the sum of the sidecars alone that pay, from the saved bytes by address. Most bytes first."""
    order = sorted(saved.items(), key=lambda pair: (-pair[1], pair[0]))
    paying = {address: count for address, count in order if (rate.month(count) or 0.0) > cost}
    month, whole = rate.month(sum(paying.values())) or 0.0, len(paying) * cost
    return NetPaying(
        addresses=list(paying),
        saved_per_month=month,
        cost_per_month=whole,
        net_per_month=month - whole,
        net_per_year=MONTHS * (month - whole),
    )


def _between_zones(
    savers: Mapping[str, AddressSums], rate: DailyRate, cost: float, zone: Callable[[str, str], Zone]
) -> NetBetweenZones | None:
    """Return what is left if only bytes between zones have the price. None if no zone is known."""
    zoned = {address: _zoned(one.saved_between, zone) for address, one in savers.items()}
    saved = _added(zoned.values())
    if saved is None:
        return None
    month, whole = rate.month(saved["other"]) or 0.0, len(savers) * cost
    return NetBetweenZones(
        saved_bytes=saved,
        saved_per_month=month,
        net_per_month=month - whole,
        net_per_year=MONTHS * (month - whole),
        paying=_paying({address: one["other"] for address, one in zoned.items()}, rate, cost),
    )


def saved_by_zone(
    saved_between: Mapping[tuple[str, str], int], zone: Callable[[str, str], Zone]
) -> ByZone | None:
    """Return the bytes that sessions save between racks and brokers by zone. None if no zone is known."""
    return _added([_zoned({ends: count}, zone) for ends, count in saved_between.items()])


def _added(zoned: Collection[ByZone]) -> ByZone | None:
    if not any(map(_known, zoned)):
        return None
    return ByZone(
        same=sum(one["same"] for one in zoned),
        other=sum(one["other"] for one in zoned),
        unknown=sum(one["unknown"] for one in zoned),
    )


def _zoned(saved_between: Mapping[tuple[str, str], int], zone: Callable[[str, str], Zone]) -> ByZone:
    saved = ByZone(same=0, other=0, unknown=0)
    for ends, count in saved_between.items():
        saved[zone(*ends)] += count
    return saved


def _known(saved: ByZone) -> bool:
    return bool(saved["same"] or saved["other"])


def need(one: AddressSums, seconds: float) -> SidecarNeed:
    """Return what the sidecar of a client address needs for its fetches in `seconds`, above 0."""
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
    """Return the sum for some services alike. `sidecars` and `saved` (in a month) are those of one."""
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
