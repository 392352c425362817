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
from replay.report.decision import why
from replay.report.model import (
    Actual,
    BrokerRow,
    ClientRow,
    ConnectionRow,
    Eligible,
    FetchReport,
    Net,
    Report,
    SessionsReport,
    ToDo,
    TopicRow,
    predicted_bytes,
)
from replay.report.zones_model import ByZone, ZonedBytes, ZonesReport

NAMES: Final = (
    "by",
    "client_id",
    "software",
    "fetch_version",
    "topic",
    "broker",
    "client",
    "connection",
    "connections",
)
"""The columns with the names that identify a row. A row of the kind `topic` without a topic has the bytes of
frames that belong to no topic."""
FIELDS: Final = tuple(
    (group, field)
    for group, fields in (("actual", Actual), ("eligible", Eligible), ("sessions", SessionsReport))
    for field in fields.__annotations__
)
FIGURES: Final = (
    *(f"{group}_{field}" for group, field in FIELDS),
    "predicted_bytes",
    "saved_bytes",
    "saved_ratio",
)
"""The columns with figures. `predicted_bytes` is sessions + (actual - eligible), for both directions
together. A `saved_ratio` of 0.5 means that half of the bytes are saved."""
_FORMULA: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The characters with which a formula can begin, in plain and in full-width form."""
MORE: Final = (
    "captured_seconds",
    "saved_bytes_per_day",
    "money_per_month",
    "to_do",
    "reason",
    "passed_exchanges",
    "passed_bytes",
    "net_per_month",
    "net_between_zones_per_month",
    "advice_saves_bytes_per_day",
    "advice_saves_money_per_month",
)
"""The last columns. Only the row `total` has `captured_seconds` and the net sums. The rows `total` and
`client` have the two columns after `captured_seconds`: the saving of sessions. The rows `client` also have
`to_do`, and what this advice saves, in the last two columns. `reason` says
why nothing is saved; in a row `passed`, why its fetches did not use a session. Only rows `passed` have
`passed_exchanges` and `passed_bytes`."""
COLUMNS: Final = (*NAMES, *FIGURES, *MORE)
ZONE_KINDS: Final = tuple(ZonedBytes.__annotations__)
ZONE_COLUMNS: Final = (
    *(f"{kind}_{zone}_zone" for kind in ZONE_KINDS for zone in ByZone.__annotations__),
    "client_rack_bytes",
    "rack_clients_bytes",
    "from_rack",
    "to_rack",
    "zone_bytes",
)
"""The columns that come after the others if a rack is known. Rows of the kinds `zones` (all), `zone client`,
`zone topic` and `zone pair` have them. An empty rack is not known."""


def render(report: Report) -> str:
    """Return the report as CSV text.

    Write it as UTF-8 without translation of line ends. Numbers are not rounded, so that programs can use
    them. Names from clients and brokers are printable. If a spreadsheet would take a name for a formula, an
    apostrophe is put before the name.
    """
    zones = report.get("zones")
    columns = COLUMNS if zones is None else (*COLUMNS, *ZONE_COLUMNS)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, extrasaction="ignore")
    writer.writeheader()
    for row in (*_rows(report), *(_zone_rows(zones) if zones is not None else ())):
        writer.writerow({name: _plain(value) for name, value in row.items()})
    return text.getvalue()


def _plain(value: object) -> object:
    """Return a value in a form that a spreadsheet does not take for a formula (OWASP: CSV injection)."""
    if not isinstance(value, str):
        return value
    return "'" + printable(value) if value.startswith(_FORMULA) else printable(value)


def _rows(report: Report) -> Iterator[Mapping[str, object]]:
    # What a row of the report has and no column is named for is left out.
    decision = report["decision"]
    yield {
        **decision,
        "by": "total",
        "connections": report["input"]["connections"],
        **_figures(report["fetch"]),
        "to_do": None,
        **_net(report["modelled"]["net"]),
    }
    to_do = {_client_key(row): row for row in decision["to_do"]}
    for client in report["by_client"]:
        advice = to_do[_client_key(client)]
        yield {**advice, **_of("client", client), "to_do": advice["sentence"], **_why(client)}
        for reason, passed in client["passed"].items():
            yield {
                "by": "passed",
                "client_id": client["client_id"],
                "software": client["software"],
                "fetch_version": client["fetch_version"],
                "reason": reason,
                "passed_exchanges": passed["exchanges"],
                "passed_bytes": passed["bytes"],
            }
    for topic in report["by_topic"]:
        yield _of("topic", topic)
    for broker in report["by_broker"]:
        yield {**_of("broker", broker), **_why(broker)}
    for connection in report["connections"]:
        yield {**_of("connection", connection), **_why(connection)}


def _zone_rows(zones: ZonesReport) -> Iterator[Mapping[str, object]]:
    moved = {f"{way}_bytes": zones[way]["moved_bytes"] for way in ("client_rack", "rack_clients")}
    yield {"by": "zones", **_by_zone(zones), **moved}
    for client in zones["by_client"]:
        yield {**client, "by": "zone client", **_by_zone(client)}
    for topic in zones["by_topic"]:
        yield {**topic, "by": "zone topic", **_by_zone(topic)}
    for pair in zones["pairs"]:
        yield {
            "by": "zone pair",
            "from_rack": pair["from"],
            "to_rack": pair["to"],
            "zone_bytes": pair["bytes"],
        }


def _by_zone(row: Mapping[str, Any]) -> dict[str, int]:
    return {
        f"{kind}_{zone}_zone": count
        for kind in ZONE_KINDS
        if kind in row
        for zone, count in row[kind].items()
    }


def _of(kind: str, row: ClientRow | TopicRow | BrokerRow | ConnectionRow) -> dict[str, object]:
    return {**row, "by": kind, **_figures(row["fetch"])}


def _why(row: ClientRow | BrokerRow | ConnectionRow) -> dict[str, str]:
    return {"reason": why(row["fetch"], row["passed"])}


def _client_key(row: ClientRow | ToDo) -> tuple[str, str, int]:
    return row["client_id"], row["software"], row["fetch_version"]


def _net(net: Net | None) -> dict[str, float]:
    if net is None:
        return {}
    between = net["between_zones"]
    return {"net_per_month": net["services"][0]["net_per_month"]} | (
        {"net_between_zones_per_month": between["net_per_month"]} if between else {}
    )


def _figures(fetch: FetchReport) -> dict[str, int | float]:
    groups: Mapping[str, Mapping[str, int]] = {
        "actual": fetch["actual"],  # type: ignore[dict-item] # a TypedDict of int fields
        "eligible": fetch["eligible"],  # type: ignore[dict-item] # the same
        "sessions": fetch["sessions"],  # type: ignore[dict-item] # the same
    }
    figures: dict[str, int | float] = {f"{group}_{field}": groups[group][field] for group, field in FIELDS}
    return figures | {
        "predicted_bytes": predicted_bytes(fetch),
        "saved_bytes": fetch["saved_bytes"],
        "saved_ratio": fetch["saved_ratio"],
    }
