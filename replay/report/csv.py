"""The report as one CSV table: a row for the total, and for each client, topic, broker and connection.

The column `by` has the kind of the row. A row of the kind passed has those fetches of a client that did not
use a session for a certain reason. Add up only rows of the same kind: the rows of each kind together have all
the bytes, except connection rows (only the largest) and passed rows. If a rack is known, rows on zones and
their columns come last (`ZONE_COLUMNS`).

The names of columns come from the fields of the report object: `actual_request_bytes` is
`fetch.actual.request_bytes`. A column that does not apply is empty. The format is RFC 4180: UTF-8, comma,
CRLF, names in the first row.
"""

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any, Final

from proxy.text.printable import printable
from replay.report.decision import client_key, of_client, why
from replay.report.model import PARTS, FetchReport, Net, Report, predicted_bytes
from replay.report.zones_model import ByZone, ZonedBytes, ZonesReport

NAMES: Final = {
    "by": "the kind of the row: total, client, topic, broker, connection (the 50 largest), or passed (those "
    "fetches of a client that used no session, for one reason); if a rack is known, also zones (all bytes), "
    "zone client, zone topic and zone pair",
    "client_id": "the client id",
    "software": "the name and version of the client's software",
    "fetch_version": "the version of its fetches",
    "topic": "a topic; empty in the topic row with the rest of each frame",
    "broker": "host:port",
    "client": "the address of the client",
    "connection": "client host:port > broker host:port #n",
    "connections": "the number of connections",
}
"""The columns with the names that identify a row, each with its meaning."""
SUMS: Final = {
    "predicted_bytes": "sessions + (actual - eligible), in both directions",
    "saved_bytes": "eligible - sessions, in both directions",
    "saved_ratio": "its share of the row's captured bytes",
}
FIGURES: Final = (
    *(f"{part}_{field}" for part, fields in PARTS.items() for field in fields.__annotations__),
    *SUMS,
)
"""The columns with figures."""
_FORMULA: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The characters with which a formula can begin, in plain and in full-width form."""
MORE: Final = {
    "captured_seconds": "total: the captured time",
    "saved_bytes_per_day": "total and client: saved_bytes of a day, at the rate of the captured time",
    "money_per_month": "total and client: the price of it in 30 days",
    "to_do": "client: the advice",
    "reason": "why nothing is saved; in a row passed, why its fetches used no session",
    "passed_exchanges": "passed: the number of these fetches",
    "passed_bytes": "passed: their bytes as captured, in both directions",
    "net_per_month": "total, with --sidecar-cost: the net sum of one service",
    "net_between_zones_per_month": "the same if only bytes between zones cost money",
    "advice_saves_bytes_per_day": "client: what the advice saves, with sessions or with fetch.min.bytes",
    "advice_saves_money_per_month": "client: the price of it in 30 days",
}
"""The last columns, each with the kinds of rows that have it and with its meaning."""
COLUMNS: Final = (*NAMES, *FIGURES, *MORE)
_ZONED: Final = {
    "record_bytes": "bytes of records",
    "listing_bytes": "other bytes of fetches",
    "produce_bytes": "bytes of Produce",
    "other_bytes": "all other bytes",
}
_WHERE: Final = {"same": "within one zone", "other": "between zones", "unknown": "where a zone is unknown"}
ZONE_COLUMNS: Final = {
    **{
        f"{kind}_{zone}_zone": f"{_ZONED[kind]} {_WHERE[zone]}"
        for kind in ZonedBytes.__annotations__
        for zone in ByZone.__annotations__
    },
    "client_rack_bytes": "the records that client.rack would move to the client's zone",
    "rack_clients_bytes": "the records that --rack-clients would move to the client's zone",
    "from_rack": "zone pair: the zone that sends; empty if it is unknown",
    "to_rack": "zone pair: the zone that receives; empty if it is unknown",
    "zone_bytes": "zone pair: bytes from one to the other",
}
"""The last columns if a rack is known, each with its meaning. Rows on zones have them."""
EXPLAINED: Final = {**NAMES, **SUMS, **MORE, **ZONE_COLUMNS}
"""The meanings of all columns but those of `PARTS`, whose names are paths in the report."""


def render(report: Report) -> str:
    """Return the report as CSV text.

    Write it as UTF-8 without translation of line ends. Numbers are not rounded, so that programs can use
    them. Names from clients and brokers are printable. If a spreadsheet would take a name for a formula, an
    apostrophe is put before the name.
    """
    columns, rows = COLUMNS, [*_rows(report)]
    if "zones" in report:
        columns = (*COLUMNS, *ZONE_COLUMNS)
        rows += _zone_rows(report["zones"])
    text = io.StringIO(newline="")
    # What a row of the report has and no column is named for is left out.
    writer = csv.DictWriter(text, columns, extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _plain(value) for name, value in row.items()})
    return text.getvalue()


def _plain(value: object) -> object:
    """Return a value in a form that a spreadsheet does not take for a formula (OWASP: CSV injection)."""
    if not isinstance(value, str):
        return value
    return "'" + printable(value) if value.startswith(_FORMULA) else printable(value)


def _rows(report: Report) -> Iterator[Mapping[str, Any]]:
    decision = report["decision"]
    whole = {"connections": report["input"]["connections"], **_net(report["modelled"]["net"])}
    yield {**decision, "by": "total", **_figures(report["fetch"]), **whole, "to_do": None}
    to_do = {client_key(row): row for row in decision["to_do"]}
    for client in report["by_client"]:
        advice = to_do[client_key(client)]
        yield {**advice, **_of("client", client), "to_do": advice["sentence"]}
        for reason, passed in client["passed"].items():
            counts = {f"passed_{name}": count for name, count in passed.items()}
            yield {"by": "passed", **of_client(client_key(client)), "reason": reason, **counts}
    for topic in report["by_topic"]:
        yield {**topic, "by": "topic", **_figures(topic["fetch"])}
    for broker in report["by_broker"]:
        yield _of("broker", broker)
    for connection in report["connections"]:
        yield _of("connection", connection)


def _zone_rows(zones: ZonesReport) -> Iterator[Mapping[str, Any]]:
    moved = {f"{way}_bytes": zones[way]["moved_bytes"] for way in ("client_rack", "rack_clients")}
    yield {"by": "zones", **_by_zone(zones), **moved}
    for client in zones["by_client"]:
        yield {**client, "by": "zone client", **_by_zone(client)}
    for topic in zones["by_topic"]:
        yield {**topic, "by": "zone topic", **_by_zone(topic)}
    for pair in zones["pairs"]:
        racks = {"from_rack": pair["from"], "to_rack": pair["to"]}
        yield {"by": "zone pair", **racks, "zone_bytes": pair["bytes"]}


def _by_zone(row: Mapping[str, Any]) -> dict[str, int]:
    kinds = [kind for kind in ZonedBytes.__annotations__ if kind in row]
    return {f"{kind}_{zone}_zone": count for kind in kinds for zone, count in row[kind].items()}


def _of(kind: str, row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "by": kind, **_figures(row["fetch"]), "reason": why(row["fetch"], row["passed"])}


def _net(net: Net | None) -> dict[str, float]:
    if net is None:
        return {}
    between = net["between_zones"]
    found = {"net_per_month": net["services"][0]["net_per_month"]}
    return found | ({"net_between_zones_per_month": between["net_per_month"]} if between else {})


def _figures(fetch: FetchReport) -> dict[str, int | float]:
    parts = {part: fetch[part] for part in PARTS}  # type: ignore[literal-required]  # they are its fields
    figures = {f"{part}_{name}": count for part, fields in parts.items() for name, count in fields.items()}
    saved = {name: fetch[name] for name in ("saved_bytes", "saved_ratio")}
    return {**figures, "predicted_bytes": predicted_bytes(fetch), **saved}
