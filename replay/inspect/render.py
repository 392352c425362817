"""The tables that `fetchgate replay inspect` prints."""

import sys
from collections import Counter
from datetime import UTC, datetime
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from proxy.text.printable import printable
from replay.capture.kafka.connection import NOT_KAFKA
from replay.capture.packets.links import LINK_TYPES
from replay.inspect.counts import ApiCounts, ConnectionCounts, Inspection, name_of
from replay.report.wording import both_sides, copied, plural, shown, size, unread_packets

_WIDTH: Final = 160
"""The line length if the output is not a terminal."""
_BROAD: Final = 140
"""In narrower terminals, each connection has several lines, and bytes are rounded."""
_SHOWN: Final = 40
"""How many connections are in the table. The JSON has all of them."""
_PORTS: Final = 5


def show(inspection: Inspection, console: Console | None = None, *, measure: str = "") -> None:
    """Print a verdict, tables of the files, the requests and the connections, and the next step.

    `measure` is the command that measures the same captures.
    """
    out = console or Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    broad = out.width >= _BROAD
    out.print(inspection.verdict())
    if logins := inspection.logins():
        out.print(logins, style="yellow")
    out.print(_files(inspection, broad=broad))
    kafka = inspection.kafka()
    if kafka:
        out.print(_keys(kafka, broad=broad))
        out.print(_connections(kafka) if broad else _connection_lines(kafka))
        if len(kafka) > _SHOWN:
            out.print(f"and {len(kafka) - _SHOWN:,} more connections (all are in the JSON: --json)")
    for line in _lines(inspection):
        out.print(Text(printable(line)))
    if step := inspection.next_step() or _again(inspection):
        out.print(Text(step))
    else:
        out.print(Text(f"Next: {printable(measure)}"), soft_wrap=True)  # a line to copy


def _again(inspection: Inspection) -> str:
    """Return advice if at least half of the fetches could not be read; "" otherwise."""
    cut, fetches = inspection.cut_fetches(), inspection.fetches()
    if 2 * cut < fetches:
        return ""
    return (
        f"Next: capture again with whole packets (-s 0): {cut:,} of {fetches:,} fetch requests are cut, and "
        "measure can't use them."
    )


def _files(inspection: Inspection, *, broad: bool) -> Table:
    columns = ("file", ">packets", ">bytes", "link types", "from (UTC)", ">seconds")
    table = _table("Files", *columns, broad=broad)
    for name, counts in inspection.files.items():
        seconds = (counts.last_time - counts.first_time) / 1e9
        table.add_row(
            Text(printable(name)),
            f"{counts.packets:,}",
            f"{counts.file_bytes:,}" if broad else size(counts.file_bytes),
            ", ".join(LINK_TYPES.get(link, str(link)) for link in counts.link_types),
            _moment(counts.first_time),
            f"{seconds:,.3f}",
        )
    return table


def _keys(kafka: list[ConnectionCounts], *, broad: bool) -> Table:
    keys: dict[int, ApiCounts] = {}
    for connection in kafka:
        for api_key, counts in connection.keys.items():
            keys.setdefault(api_key, ApiCounts()).add(counts)
    columns = ("API", "versions", ">requests", ">bytes", ">responses", ">bytes", ">without response")
    table = _table("Requests", *columns, broad=broad)
    table.columns[0].no_wrap = True
    shown_bytes = "{:,}".format if broad else size
    for api_key, counts in sorted(keys.items()):
        table.add_row(
            name_of(api_key),
            _listed(counts.versions),
            f"{counts.requests:,}",
            shown_bytes(counts.request_bytes),
            f"{counts.responses:,}",
            shown_bytes(counts.response_bytes),
            f"{counts.unanswered:,}" if counts.unanswered else "",
        )
    return table


def _connections(kafka: list[ConnectionCounts]) -> Table:
    table = _table(
        "Connections that speak Kafka",
        "client", "broker", "client id", "software", ">requests", ">bytes", "fetch", "partitions a fetch",
        "sessions", "not seen", broad=True,
    )  # fmt: skip
    for counts in kafka[:_SHOWN]:
        end = counts.end
        table.add_row(
            Text(end.client),
            Text(end.broker),
            Text(shown(end.client_id, empty="")),
            Text(shown(end.software, empty="")),
            f"{sum(one.requests for one in counts.keys.values()):,}",
            f"{end.client_bytes + end.broker_bytes:,}",
            _listed(counts.fetches.versions),
            _span(counts),
            counts.sessions,
            _unseen(counts),
        )
    return table


def _connection_lines(kafka: list[ConnectionCounts]) -> Text:
    """Return the rows of `_connections` as plain lines, which are wrapped only between words."""
    text = Text("Connections that speak Kafka\n", style="")
    for counts in kafka[:_SHOWN]:
        end = counts.end
        text.append(f"{end.client} > {end.broker}\n", style="bold")
        requests = sum(one.requests for one in counts.keys.values())
        parts = [shown(end.client_id, empty=""), shown(end.software, empty="")]
        parts += [plural(requests, "request"), size(end.client_bytes + end.broker_bytes)]
        if counts.fetch.kinds:
            sessions = "sessions of its own" if counts.sessions == "yes" else "no sessions"
            partitions = "1 partition" if _span(counts) == "1" else f"{_span(counts)} partitions"
            parts += [f"fetch {_listed(counts.fetches.versions)}, {partitions} a fetch, {sessions}"]
        if unseen := _unseen(counts):
            parts.append(f"not seen: {unseen}")
        text.append(f"  {'; '.join(filter(None, parts))}\n")
    return text


def _span(counts: ConnectionCounts) -> str:
    fetch = counts.fetch
    span = f"{fetch.least}" if fetch.least == fetch.most else f"{fetch.least}-{fetch.most}"
    return span if fetch.kinds else ""


def _unseen(counts: ConnectionCounts) -> str:
    end = counts.end
    gaps = end.gaps - end.left_out_gaps
    missing = [
        (end.left_out_bytes, f"records left out ({end.left_out_bytes:,} B)"),
        (gaps, f"{plural(gaps, 'gap')} ({end.gap_bytes - end.left_out_bytes:,} B)"),
        (end.unframed_bytes, f"{end.unframed_bytes:,} B not read"),
        (end.reason, end.reason),
        (counts.unpaired_responses, plural(counts.unpaired_responses, "request")),
        (not end.client_bytes, "client's half"),
        (not end.broker_bytes, "broker's half"),
    ]
    return ", ".join(text for found, text in missing if found)


def _lines(inspection: Inspection) -> list[str]:
    found = inspection.as_json()
    lines = [f"Kafka on port {port}: {plural(count, 'connection')}" for port, count in found["ports"].items()]
    for reason, other in found["others"].items():
        lines.append(
            f"{plural(other['connections'], 'connection')} not read, {reason}: {other['bytes']:,} bytes"
        )
    others = inspection.others.get(NOT_KAFKA)
    if others and not unread_packets(inspection.unread(), inspection.packets()):
        ports = ", ".join(f"--port {port}" for port, _ in others.ports.most_common(_PORTS))
        lines.append(f"If brokers listen on one of these ports, name it: {ports}")
    if tls := inspection.encrypted():
        lines.append(tls)
    for counts in inspection.files.values():
        numbers = {
            "packets shorter than on the wire (snap length, or --capture-records no)": counts.cut_packets,
            "packets without IP": counts.not_ip,
            "packets without TCP": counts.not_tcp,
            "packets in tunnels, opened": counts.tunnelled,
            "IP fragments, not reassembled": counts.fragments,
            "malformed packets": counts.malformed,
            "bytes skipped to find the next packet": counts.skipped_bytes,
        }
        lines += [f"{counts.file}: {number:,} {what}" for what, number in numbers.items() if number]
        lines += [
            f"{counts.file}: {plural(number, 'packet')} of {name}, which is not read"
            for name, number in sorted(counts.unread.items())
        ]
    lines += [f"{name}: {problem}" for name, problem in inspection.problems()]
    if twice := copied(len(inspection.sides.copies())):
        lines.append(f"{twice} in the first line and in measure.")
    sides = inspection.sides
    return lines + both_sides(sides.found(), sides.fetched, twice="their fetches count twice")


def _table(title: str, *columns: str, broad: bool) -> Table:
    table = Table(title=title, title_justify="left")
    if not broad:
        table.box, table.padding, table.pad_edge, table.header_style = None, (0, 1, 0, 0), False, "dim"
    for column in columns:
        number = column.startswith(">")
        words = column.lstrip(">")
        # Headers may wrap, figures may not. Long words are folded, never cut.
        least = None if broad or not number else max(map(len, words.split()))
        table.add_column(
            words,
            justify="right" if number else "left",
            no_wrap=number and broad,
            min_width=least,
            overflow="fold",
        )
    return table


def _listed(versions: Counter[int]) -> str:
    return ", ".join(f"v{version}" for version in sorted(versions))


def _moment(nanoseconds: int) -> str:
    return f"{datetime.fromtimestamp(nanoseconds / 1e9, UTC):%Y-%m-%d %H:%M:%S}" if nanoseconds else ""
