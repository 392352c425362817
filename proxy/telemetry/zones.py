"""The bytes with brokers by zone, and the racks of brokers: ``--rack``. Sans-IO."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from proxy.core.events import Tally, fetch_bytes
from proxy.core.racks import RETURNS, Zone, zone_of

__all__ = ["RETURNS", "WHAT", "ReplicaFigures", "Zones", "kinds_of"]

WHAT: Final = ("records", "listing", "produce", "other")
"""The kinds of bytes on the broker's side. Each byte is of exactly one kind: records of fetch responses, the
rest of fetch requests and responses, Produce requests and responses, and everything else."""


def kinds_of(tally: Tally, arriving: tuple[int, int] = (0, 0)) -> tuple[int, int, int, int]:
    """Return the bytes that a connection has exchanged with its broker, in the order of `WHAT`.

    Args:
        tally: the counts of the connection.
        arriving: see `ConnectionStatus.arriving`. These bytes are left out, because it is not known yet what
            they are.
    """
    broker, (response, waiting) = tally.broker, arriving
    records, fetches = broker.fetch_record_bytes, fetch_bytes(broker) - response
    everything = broker.bytes_in + broker.bytes_out - response - waiting
    return (
        records,
        fetches - records,
        tally.produce_bytes,
        everything - fetches - tally.produce_bytes,
    )


@dataclass(slots=True, kw_only=True)
class ReplicaFigures:
    """What a process has counted of clients that read from the replica in its rack."""

    named: int = 0
    """See `RackLeaders.named`."""
    held: int = 0
    """See `RackLeaders.held`."""
    returns: Counter[str] = field(default_factory=Counter)
    """See `RackLeaders.returns`. The keys are `RETURNS`."""


@dataclass(slots=True, kw_only=True)
class Zones:
    """The bytes that a process has counted by zone, and the racks that it knows."""

    byte_counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The bytes on the broker's side, requests and responses, by zone and by one of `WHAT`."""
    racks: dict[str, str] = field(default_factory=dict)
    """The rack of each broker that responses have named, "" if it has none. The key is the node id in
    decimal. In transparent mode it is the address in the response."""
    racks_of_known: dict[int, str] = field(default_factory=dict)
    """The rack of each broker in `Status.brokers`, by the id there."""
    reads: ReplicaFigures | None = None
    """The figures of ``--rack-clients``. None without it."""

    def brokers(self, rack: str) -> dict[str, int]:
        """Return the number of brokers in each zone, seen from a gateway in the rack `rack`."""
        counts = Counter(zone_of(each, rack) for each in self.racks.values())
        return {zone.value: counts[zone] for zone in Zone}
