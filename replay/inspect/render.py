"""The tables that `fetchgate replay inspect` prints."""

import sys
from collections import Counter
from datetime import UTC, datetime
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from replay.inspect.counts import ConnectionCounts, Inspection, KeyCounts, name_of
from replay.report.wording import printable, shown

_WIDTH: Final = 160
"""Characters in a line if the output is not a terminal."""
_SHOWN: Final = 40
"""The table has at most so many connections. The JSON has all."""
_LINK_TYPES: Final = {
    0: "null", 1: "Ethernet", 12: "raw IP", 14: "raw IP", 101: "raw IP", 108: "loopback",
    113: "Linux SLL", 228: "IPv4", 229: "IPv6", 276: "Linux SLL2",
}  # fmt: skip


def show(inspection: Inspection, console: Console | None = None) -> None:
    """Print tables of the files, the requests and the connections."""
    out = console or Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    out.print(_files(inspection))
    kafka = inspection.kafka()
    if kafka:
        out.print(_keys(kafka))
        out.print(_connections(kafka))
        if len(kafka) > _SHOWN:
            out.print(f"and {len(kafka) - _SHOWN:,} more connections (all are in the JSON: --json)")
    else:
        out.print("No connection that speaks Kafka was found.")
        out.print(inspection.next_step())
    for line in _lines(inspection):
        out.print(Text(printable(line)))


def _files(inspection: Inspection) -> Table:
    table = _table("Files", "file", ">packets", ">bytes", "link types", "from (UTC)", ">seconds")
    for name, counts in inspection.files.items():
        seconds = (counts.last_time - counts.first_time) / 1e9
        table.add_row(
            Text(printable(name)),
            f"{counts.packets:,}",
            f"{counts.file_bytes:,}",
            ", ".join(_LINK_TYPES.get(link, str(link)) for link in counts.link_types),
            _moment(counts.first_time),
            f"{seconds:,.3f}",
        )
    return table


def _keys(kafka: list[ConnectionCounts]) -> Table:
    keys: dict[int, KeyCounts] = {}
    for connection in kafka:
        for api_key, counts in connection.keys.items():
            total = keys.setdefault(api_key, KeyCounts())
            total.requests += counts.requests
            total.responses += counts.responses
            total.request_bytes += counts.request_bytes
            total.response_bytes += counts.response_bytes
            total.versions.update(counts.versions)
    table = _table(
        "Requests", "API", "versions", ">requests", ">bytes", ">responses", ">bytes", ">without response"
    )
    for api_key, counts in sorted(keys.items()):
        unanswered = sum(one.keys[api_key].unanswered for one in kafka if api_key in one.keys)
        table.add_row(
            name_of(api_key),
            _listed(counts.versions),
            f"{counts.requests:,}",
            f"{counts.request_bytes:,}",
            f"{counts.responses:,}",
            f"{counts.response_bytes:,}",
            f"{unanswered:,}" if unanswered else "",
        )
    return table


def _connections(kafka: list[ConnectionCounts]) -> Table:
    table = _table(
        "Connections that speak Kafka",
        "client", "broker", "client id", "software", ">requests", ">bytes", "fetch", "partitions a fetch",
        "sessions", "not seen",
    )  # fmt: skip
    for counts in kafka[:_SHOWN]:
        end, fetch = counts.end, counts.fetch
        versions = counts.keys[1].versions if 1 in counts.keys else Counter()
        span = f"{fetch.least}" if fetch.least == fetch.most else f"{fetch.least}-{fetch.most}"
        table.add_row(
            Text(end.client),
            Text(end.broker),
            Text(shown(end.client_id, empty="")),
            Text(shown(end.software, empty="")),
            f"{sum(one.requests for one in counts.keys.values()):,}",
            f"{end.client_bytes + end.broker_bytes:,}",
            _listed(versions),
            span if fetch.kinds else "",
            counts.sessions,
            _unseen(counts),
        )
    return table


def _unseen(counts: ConnectionCounts) -> str:
    end = counts.end
    missing = [
        (end.gaps, f"{end.gaps:,} gaps ({end.gap_bytes:,} B)"),
        (end.unframed_bytes, f"{end.unframed_bytes:,} B not read"),
        (counts.unpaired_responses, f"{counts.unpaired_responses:,} requests"),
        (not end.client_bytes, "client's half"),
        (not end.broker_bytes, "broker's half"),
    ]
    return ", ".join(text for found, text in missing if found)


def _lines(inspection: Inspection) -> list[str]:
    found = inspection.as_json()
    lines = [f"Kafka on port {port}: {count:,} connections" for port, count in found["ports"].items()]
    for reason, other in found["others"].items():
        lines.append(f"{other['connections']:,} connections not read, {reason}: {other['bytes']:,} bytes")
    for counts in inspection.files.values():
        numbers = {
            "packets cut by the snap length": counts.cut_packets,
            "packets without IP": counts.not_ip,
            "packets without TCP": counts.not_tcp,
            "IP fragments, not reassembled": counts.fragments,
            "malformed packets": counts.malformed,
            "packets of link types that are not supported": counts.unknown_link,
            "bytes skipped in search of a record": counts.skipped_bytes,
        }
        lines += [f"{counts.file}: {number:,} {what}" for what, number in numbers.items() if number]
    lines += [f"{name}: {problem}" for name, problem in inspection.problems()]
    return lines


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        number = column.startswith(">")
        table.add_column(column.lstrip(">"), justify="right" if number else "left", no_wrap=number)
    return table


def _listed(versions: Counter[int]) -> str:
    return ", ".join(f"v{version}" for version in sorted(versions))


def _moment(nanoseconds: int) -> str:
    return f"{datetime.fromtimestamp(nanoseconds / 1e9, UTC):%Y-%m-%d %H:%M:%S}" if nanoseconds else ""
