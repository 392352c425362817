"""The bytes with brokers by zone, and the racks of brokers: what is counted and told."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from proxy.core.events import Tally, fetch_bytes
from proxy.features.feature import Reports
from proxy.features.racks.options import RackOptions
from proxy.features.racks.racks import RETURNS, Zone, zone_of
from proxy.prometheus.figure import COUNTER, GAUGE, Figure, named, one_label

WHAT: Final = ("records", "listing", "produce", "other")
"""The kinds of bytes on the broker's side. Each byte is of exactly one: records of fetch responses, the rest
of fetch requests and responses, Produce requests and responses, and everything else."""


def kinds_of(tally: Tally, arriving: tuple[int, int] = (0, 0)) -> tuple[int, int, int, int]:
    """Return the bytes that a connection has exchanged with its broker, in the order of `WHAT`.

    Bytes that are `arriving` (see `ConnectionState`) are left out: it is not known yet what they are.
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
    """What `RackLeaders` has counted."""

    named: int = 0
    held: int = 0
    returns: Counter[str] = field(default_factory=Counter)
    """The keys are `RETURNS`."""


@dataclass(slots=True, kw_only=True)
class Zones:
    """The bytes that a process has counted by zone, and the racks that it knows."""

    byte_counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The bytes on the broker's side, by zone and by one of `WHAT`."""
    racks: dict[str, str] = field(default_factory=dict)
    """The rack of each broker that responses have named, "" if it has none. The key is the node id in
    decimal. In transparent mode it is the address in the response."""
    racks_of_known: dict[int, str] = field(default_factory=dict)
    """The rack of each broker in `Status.brokers`, by the id there."""
    rack: str = ""
    """The rack of the gateway."""
    reads: ReplicaFigures | None = None
    """The figures of ``--rack-clients``. None without it."""

    def brokers(self) -> dict[str, int]:
        """Return the number of brokers in each zone, seen from the gateway."""
        counts = Counter(zone_of(each, self.rack) for each in self.racks.values())
        return {zone.value: counts[zone] for zone in Zone}


FIGURES: Final[tuple[Figure[Zones], ...]] = (
    Figure(
        COUNTER,
        "zone_bytes",
        "All bytes to and from brokers, by the zone of the broker (same, other, unknown) and by kind.",
        lambda it: [((zone.value, what), it.byte_counts[zone, what]) for zone in Zone for what in WHAT],
        ("zone", "what"),
        {
            "records": "records of fetch responses: those of other zones could be read in the own zone",
            "listing": "the rest of fetches",
            "produce": "Produce requests and responses",
            "other": "all else",
        },
    ),
    Figure(
        GAUGE,
        "zone_brokers",
        "Brokers in responses so far, by zone (same, other, unknown).",
        lambda it: one_label(it.brokers()),
        ("zone",),
    ),
    # with --rack-clients
    Figure(
        COUNTER,
        "rack_leaders_named",
        "--rack-clients: partitions in Metadata responses with a replica in the rack named as leader.",
        lambda it: None if it.reads is None else it.reads.named,
    ),
    Figure(
        COUNTER,
        "rack_empty_held",
        "--rack-clients: empty responses of replicas that were held back for up to 50 ms.",
        lambda it: None if it.reads is None else it.reads.held,
    ),
    Figure(
        COUNTER,
        "rack_returns",
        "--rack-clients: how often clients were sent back to leaders for some time.",
        lambda it: None if it.reads is None else named(it.reads.returns, RETURNS),
        ("reason",),
        RETURNS,
    ),
)


def _state(options: RackOptions, zones: Zones | None) -> dict[str, Any]:
    if zones is None:
        return {}
    bytes_ = {zone.value: {what: zones.byte_counts[zone, what] for what in WHAT} for zone in Zone}
    return {
        "rack": options.rack,
        "zones": {
            "bytes": bytes_,
            "brokers": zones.brokers(),
            **({} if zones.reads is None else {"reads": _reads(zones.reads)}),
        },
    }


def _reads(reads: ReplicaFigures) -> dict[str, Any]:
    return {
        "leaders_named": reads.named,
        "empty_held": reads.held,
        "returns": {how: reads.returns[how] for how in RETURNS},
    }


def _state_of_broker(zones: Zones, node_id: int) -> dict[str, str | None]:
    return {"rack": zones.racks_of_known.get(node_id) or None}


REPORTS: Final = Reports(kind=Zones, figures=FIGURES, state=_state, state_of_broker=_state_of_broker)
