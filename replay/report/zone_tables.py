"""The tables of the report on zones, for a terminal and for HTML."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from replay.report.table import (
    BYTES,
    COUNT,
    FIGURE,
    NAME,
    ReportColumn,
    ReportLine,
    ReportTable,
    Unit,
    of_rows,
    summed,
    with_rest,
)
from replay.report.wording import plural, shown
from replay.report.zones_model import ZonesReport, values_of

KINDS: Final = {
    "record_bytes": ("records", "in fetch responses"),
    "listing_bytes": ("listing", "the rest of fetch requests and responses"),
    "produce_bytes": ("produce", "produce requests and responses"),
    "other_bytes": ("other", "all other requests and responses"),
}
"""The kinds of bytes by their key in the report: the name, and what it is."""
UNKNOWN: Final = "unknown"
PER_SECOND: Final = Unit(write=lambda rate: "" if rate is None else f"{rate:,.1f}")
MOVES: Final = "from another zone, with an in-sync replica in the client's zone"
REASONS: Final = {
    "broker in the zone": "they already come from the client's zone",
    "below v10": "Fetch v4 to v9: replicas serve only v11 and later (v10 is raised to v11)",
    "below v11": "Fetch v11 and later have a rack",
    "rack of its own": "the client names its rack itself",
    "not a consumer": "the client is a broker",
    "does not follow": "this client does not go to the named replica, or does not return from it",
    "client unknown": "the client's software is not known, or was not tested",
    "no replica in the zone": "no in-sync replica is in the client's zone",
    "produce": "only the leader takes them",
    "unknown": "a zone is not known, or no Metadata names the replicas",
}
"""The reasons why bytes stay, with what they mean."""
_ZONES: Final = (
    ReportColumn(title="Same zone", unit=BYTES, short="same"),
    ReportColumn(title="Other zone", unit=BYTES, short="other"),
    ReportColumn(title="Unknown", unit=BYTES),
)
_MOVED: Final = (
    ReportColumn(title="All bytes to other zones", unit=BYTES, wide=True),
    ReportColumn(title="A: moved with client.rack", unit=BYTES, short="A"),
    ReportColumn(title="B: moved with --rack-clients", unit=BYTES, short="B"),
)


def _rack(name: str | None) -> str:
    """Return a rack's name for people. "" is the place of a rack in a row that adds up others."""
    return UNKNOWN if name is None else shown(name, empty="")


_RACK: Final = Unit(write=_rack, number=False)
_NODE: Final = Unit(write=lambda node_id: "" if node_id is None else str(node_id), number=False)


def zones(found: ZonesReport) -> ReportTable:
    """Return the table of bytes by what they are, and by where they go."""
    rows = [(key, name, what) for key, (name, what) in KINDS.items()]
    lines = [ReportLine(values=(name, what, *values_of(found[key]))) for key, name, what in rows]  # type: ignore[literal-required]  # fields of ZonedBytes
    return ReportTable(
        title="Bytes by zone",
        columns=(
            ReportColumn(title="Bytes", short=""),
            ReportColumn(title="What it is", short="", soft=True, wide=True),
            *_ZONES,
        ),
        lines=[*lines, summed(("all", ""), lines, total=True)],
    )


def racks(found: ZonesReport, limit: int) -> ReportTable:
    """Return the table of the racks of brokers."""
    whole = of_rows(
        "Racks of brokers",
        found["brokers"],
        ReportColumn(title="Broker", key="broker", unit=NAME),
        ReportColumn(title="Node id", key="node_id", unit=_NODE),
        ReportColumn(title="Rack", key="rack", unit=_RACK),
    )
    return replace(whole, lines=_cut(whole.lines, limit, "broker", None, ""))


def _cut(lines: Sequence[ReportLine], limit: int, noun: str, *blank: str | None) -> list[ReportLine]:
    """Return at most `limit` lines, and one that says how many others there are."""
    if len(lines) <= limit:
        return [*lines]
    more = f"{plural(len(lines) - limit, f'other {noun}')}; the JSON has all"
    return [*lines[:limit], ReportLine(values=(more, *blank))]


def clients(found: ZonesReport, limit: int) -> ReportTable:
    """Return the table of the racks of clients."""
    columns = (
        ReportColumn(title="Rack", key="rack", unit=_RACK),
        ReportColumn(title="Connections", key="connections", unit=COUNT),
    )
    whole = of_rows("Racks of clients", found["clients"], *columns)
    return replace(whole, lines=with_rest(whole.lines, limit, names=1, noun="rack"))


def pairs(found: ZonesReport, limit: int) -> ReportTable:
    """Return the table of bytes from one zone to another one. The last row adds up the rest."""
    whole = of_rows(
        "Zone to zone",
        found["pairs"],
        ReportColumn(title="From", key="from", unit=_RACK),
        ReportColumn(title="To", key="to", unit=_RACK),
        ReportColumn(title="Bytes", key="bytes", unit=BYTES),
    )
    return replace(whole, lines=with_rest(whole.lines, limit, names=2))


def by_client(found: ZonesReport, limit: int) -> ReportTable:
    """Return the table of bytes by client. The last row adds up the rest."""
    lines = [
        ReportLine(
            values=(
                shown(row["client_id"]),
                shown(row["software"], empty=UNKNOWN),
                *values_of(row["record_bytes"]),
                sum(row[key]["other"] for key in KINDS),  # type: ignore[literal-required]  # fields of ZonedBytes
                row["client_rack_bytes"],
                row["rack_clients_bytes"],
            )
        )
        for row in found["by_client"]
    ]
    return ReportTable(
        title="Records by zone, by client",
        columns=(ReportColumn(title="Client id"), ReportColumn(title="Software"), *_ZONES, *_MOVED),
        lines=with_rest(lines, limit, names=2, noun="client"),
    )


def by_topic(found: ZonesReport, limit: int) -> ReportTable:
    """Return the table of record bytes by topic. The last row adds up the rest."""
    lines = [
        ReportLine(
            values=(
                shown(row["topic"]),
                *values_of(row["record_bytes"]),
                row["record_bytes"]["other"] + row["listing_bytes"]["other"],
                row["client_rack_bytes"],
                row["rack_clients_bytes"],
            )
        )
        for row in found["by_topic"]
        if row["topic"] is not None
    ]
    return ReportTable(
        title="Records by zone, by topic",
        columns=(ReportColumn(title="Topic"), *_ZONES, *_MOVED),
        lines=with_rest(lines, limit, names=1, noun="topic"),
    )


def moves(found: ZonesReport) -> ReportTable:
    """Return the table of what could be read in the client's zone, and why the rest stays."""
    ways = found["client_rack"], found["rack_clients"]
    reasons = sorted({*ways[0]["stays"], *ways[1]["stays"]})
    lines = [ReportLine(values=("moves", MOVES, *(way["moved_bytes"] for way in ways)))]
    lines += [
        ReportLine(
            values=(shown(reason), REASONS.get(reason, ""), *(way["stays"].get(reason, 0) for way in ways))
        )
        for reason in reasons
    ]
    return ReportTable(
        title="Read in the client's zone",
        columns=(
            ReportColumn(title="Records", short=""),
            ReportColumn(title="What it means", soft=True, wide=True),
            ReportColumn(title="A: client.rack", unit=BYTES, short="A: client.rack"),
            ReportColumn(title="B: replica as leader", unit=BYTES, short="B: replica as leader"),
        ),
        lines=[*lines, summed(("all records and produce", ""), lines, total=True)],
    )


def leaders(found: ZonesReport, limit: int) -> ReportTable:
    """Return the table of topics by leader, with the latencies of the leader's rate."""
    lines = [
        ReportLine(
            values=(
                shown(row["topic"]),
                f"{row['leader']} ({_rack(row['rack'])})",
                row["records_per_second"],
                row["leader_records_per_second"],
                _latencies(row["latency"]["leader_p50_ms"], row["latency"]["leader_p99_ms"]),
                _latencies(row["latency"]["replica_p50_ms"], row["latency"]["replica_p99_ms"]),
            )
        )
        for row in found["leaders"]
    ]
    return ReportTable(
        title="Records a second by leader",
        columns=(
            ReportColumn(title="Topic"),
            ReportColumn(title="Leader"),
            ReportColumn(title="Records a second", unit=PER_SECOND, short="records/s"),
            ReportColumn(title="All topics of the leader", unit=PER_SECOND, short="all/s"),
            ReportColumn(title="Latency from the leader, p50 / p99", unit=FIGURE, short="leader ms"),
            ReportColumn(title="From a replica", unit=FIGURE, short="replica ms"),
        ),
        lines=_cut(lines, limit, "row", "", None, None, "", ""),
    )


def _latencies(half: int, most: int) -> str:
    return f"{half} / {most}"
