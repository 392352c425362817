"""The report of a run: one object, and its forms for a terminal and as a table to compare runs."""

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from typing import Final, TypeAlias, TypedDict

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from proxy.protocol.api import ApiKey
from replay.drive.compare import CompareFigures, plain_table, render_comparison
from replay.drive.saving import SavingFigures
from replay.drive.script import LeftOut, Script
from replay.drive.tally import PERCENTILES, DriveTotals, RequestCounts, percentile
from replay.protocol.errors import error_name
from replay.protocol.names import name_of
from replay.report.wording import duration, number, percent, plural, shown, size

CAPTURE: Final = "capture"
ALL: Final = "all"
"""Stands in place of an API's name: all APIs together."""
FETCH: Final = "Fetch"


class ApiFigures(TypedDict):
    """One side's figures of one API, or of all APIs. Bytes are whole frames, including the 4-byte length."""

    side: str
    """"capture", "target" or "against"."""
    api: str
    """The API's name in Kafka, or "all"."""
    sent: int
    answered: int
    request_bytes: int
    response_bytes: int
    record_bytes: int
    partitions_answered: int
    failed: int
    """Responses with an error, of the whole response or of an entry."""
    errors: dict[str, int]
    """Responses by the error code of the whole response."""
    partition_errors: dict[str, int]
    unreadable: int
    latency_ms: dict[str, float]
    """p50, p90, p99 and max. In the side "capture", they were measured at the place of the capture."""


Cell: TypeAlias = Callable[[ApiFigures], str]


class LeftOutRow(TypedDict):
    """Requests that were not played for the same reason."""

    api: str
    reason: str
    requests: int


class Settings(TypedDict):
    """How the capture was played."""

    target: str
    against: str
    """The address of the second target, or "" without --against."""
    speed: str
    """The speed as a factor of the captured speed, or "max"."""
    rate: float | None
    connections: int
    loop: int
    offsets: str
    read_to: str
    max_wait_ms: int | None
    min_bytes: int | None


class DriveReport(TypedDict):
    """The report of a replay, as in its JSON."""

    version: str
    settings: Settings
    connections: int
    """How many captured connections have at least one played request."""
    captured_seconds: float
    """From the first to the last chosen request of the capture, even if the target can't get them. Waits are
    shortened by --longest-wait."""
    seconds: float
    planned: int
    sent: int
    lost: dict[str, int]
    """Requests without a response, by side."""
    interrupted: bool
    stopped_by: str
    """The signal that has ended the run, or ""."""
    stopped_at: float | None
    """The time in the capture, in seconds, of the first request that was not sent because the run was
    stopped; --from goes on there. None if the run was not stopped."""
    behind_seconds: float
    """The longest delay of a request after the time at which it was due."""
    left_out: list[LeftOutRow]
    left_out_ratio: float
    """The share of the captured requests, or of the fetches if it is higher, that could not be played. Writes
    that the user has not included do not count."""
    created_topics: dict[str, int]
    """With the number of partitions that they got."""
    missing_topics: dict[str, int]
    """Entries that were left out of distinct fetches, by topic, because the target does not have the topic or
    the partition."""
    led_elsewhere: dict[str, int]
    """The same, because another broker of the target leads the partition."""
    timed_out: bool
    connection_errors: dict[str, int]
    figures: list[ApiFigures]
    saving: SavingFigures | None
    """None without --against, or if a side has responded to no fetch."""
    compare: CompareFigures | None
    problems: list[str]


def figures(side: str, tally: DriveTotals) -> list[ApiFigures]:
    """Return the figures of one side: first those of all APIs together, then those of each API."""
    rows = [(ALL, tally.total())]
    rows += [(name_of(key), counts) for key, counts in sorted(tally.by_key.items())]
    return [_figures(side, api, counts) for api, counts in rows]


def _figures(side: str, api: str, counts: RequestCounts) -> ApiFigures:
    ordered = sorted(counts.seconds)
    latency = {f"p{percent}": round(percentile(ordered, percent) * 1e3, 3) for percent in PERCENTILES}
    latency["max"] = round(percentile(ordered, 100) * 1e3, 3)
    return {
        "side": side,
        "api": api,
        "sent": counts.sent,
        "answered": counts.answered,
        "request_bytes": counts.request_bytes,
        "response_bytes": counts.response_bytes,
        "record_bytes": counts.record_bytes,
        "partitions_answered": counts.partitions_answered,
        "failed": counts.failed,
        "errors": _by_code(counts.errors),
        "partition_errors": _by_code(counts.partition_errors),
        "unreadable": counts.unreadable,
        "latency_ms": latency,
    }


def _by_code(errors: Mapping[int, int]) -> dict[str, int]:
    return {str(code): count for code, count in sorted(errors.items())}


def left_out_ratio(script: Script, left_out: Mapping[LeftOut, int]) -> float:
    """Return the share of requests that could not be played, or of fetches if that is higher.

    `left_out` also has those that only the targets rule out.
    """
    gone: Counter[int] = Counter()
    whole = Counter(step.api_key for connection in script.connections for step in connection.steps)
    for each, count in left_out.items():
        if not each.wanted:
            gone[each.api_key] += count
    for each, number_of in script.left_out.items():
        if not each.wanted:
            whole[each.api_key] += number_of
    shares = (gone.total(), whole.total()), (gone[ApiKey.FETCH], whole[ApiKey.FETCH])
    return round(max(part / all_ if all_ else 0.0 for part, all_ in shares), 4)


def left_out_rows(left_out: Mapping[LeftOut, int]) -> list[LeftOutRow]:
    """Return the requests that were left out, by API and reason."""
    return [
        {"api": name_of(each.api_key), "reason": each.reason, "requests": count}
        for each, count in sorted(left_out.items())
    ]


_COLUMNS: Final = (
    *("side", "api", "sent", "answered", "request_bytes", "response_bytes", "record_bytes"),
    *("partitions_answered", "failed", "errors", "partition_errors", "unreadable"),
    *("latency_ms_p50", "latency_ms_p90", "latency_ms_p99", "latency_ms_max", "seconds"),
)


def to_csv(report: DriveReport) -> str:
    """Return the figures as a CSV table, one row for each side and API. All runs have the same columns."""
    out = StringIO()
    writer = csv.DictWriter(out, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in report["figures"]:
        seconds = report["captured_seconds"] if row["side"] == CAPTURE else report["seconds"]
        errors = {"errors": _coded(row["errors"]), "partition_errors": _coded(row["partition_errors"])}
        latency = {f"latency_ms_{name}": value for name, value in row["latency_ms"].items()}
        writer.writerow({**row, **errors, **latency, "seconds": round(seconds, 3)})
    return out.getvalue()


def _coded(errors: Mapping[str, int]) -> str:
    return " ".join(f"{code}:{count}" for code, count in errors.items())


def render(report: DriveReport) -> RenderableType:
    """Return the output of `fetchgate replay drive` for the terminal."""
    lines: list[RenderableType] = [_headline(report), *_failures(report), _sides(report)]
    if report["saving"] is not None:
        lines.append(_saving(report["saving"]))
    if report["compare"] is not None:
        lines.append(render_comparison(report["compare"]))
    lines += _notes(report)
    return Group(*lines)


def _headline(report: DriveReport) -> Text:
    settings = report["settings"]
    speed = "as fast as responses came" if settings["speed"] == "max" else f"{settings['speed']} x"
    where = " and ".join(filter(None, (settings["target"], settings["against"])))
    rate = report["sent"] / report["seconds"] if report["seconds"] else 0.0
    return Text(
        f"{number(report['sent'])} of {plural(report['planned'], 'request')} played at {where}, {speed}, "
        f"in {duration(report['seconds'])} ({rate:,.0f}/s; "
        f"captured in {duration(report['captured_seconds'])})"
    )


def _failures(report: DriveReport) -> list[Text]:
    lines = []
    for side in report["lost"]:
        rows = [row for row in report["figures"] if row["side"] == side and row["api"] != ALL]
        failed = [
            f"{number(row['failed'])} of {number(row['answered'])} {row['api']}"
            for row in sorted(rows, key=lambda row: -row["failed"])
            if row["failed"]
        ]
        if failed:
            lines.append(Text(f"Responses with errors at {side}: {', '.join(failed)}", style="yellow"))
    return lines


def _sides(report: DriveReport) -> Table:
    sides = list(dict.fromkeys(row["side"] for row in report["figures"]))
    rows = {(row["side"], row["api"]): row for row in report["figures"]}
    table = plain_table("", *sides)
    for api, title in ((ALL, "all requests"), (FETCH, "fetches")):
        found = [rows.get((side, api)) for side in sides]
        if any(found):
            table.add_row(Text(title, style="bold"))
        for name, value in _LINES:
            cells = ["" if row is None else value(row) for row in found]
            if any(cells):
                table.add_row(f"  {name}", *cells)
    _add_errors(table, "partitions with", [rows.get((side, FETCH)) for side in sides])
    for api in dict.fromkeys(row["api"] for row in report["figures"] if row["api"] not in {ALL, FETCH}):
        found = [rows.get((side, api)) for side in sides]
        if any(row["failed"] or row["unreadable"] for row in found if row):
            table.add_row(Text(api, style="bold"))
            for name, value in _COUNTS:
                table.add_row(f"  {name}", *("" if row is None else value(row) for row in found))
            _add_errors(table, "entries with", found)
    return table


def _add_errors(table: Table, entries: str, sides: Sequence[ApiFigures | None]) -> None:
    for what, all_ in (
        ("error", [row["errors"] if row else {} for row in sides]),
        (entries, [row["partition_errors"] if row else {} for row in sides]),
    ):
        for code in sorted({code for errors in all_ for code in errors}, key=int):
            cells = (number(errors.get(code, 0)) for errors in all_)
            table.add_row(f"  {what} {error_name(int(code))}", *cells)


def _latency(which: str) -> tuple[str, Cell]:
    return f"latency {which}, ms", lambda row: f"{row['latency_ms'][which]:,.2f}"


_LINES: Final[tuple[tuple[str, Cell], ...]] = (
    ("sent", lambda row: number(row["sent"])),
    ("answered", lambda row: number(row["answered"])),
    ("request bytes", lambda row: size(row["request_bytes"])),
    ("response bytes", lambda row: size(row["response_bytes"])),
    ("of them records", lambda row: size(row["record_bytes"]) if row["api"] == FETCH else ""),
    ("partitions answered", lambda row: number(row["partitions_answered"]) if row["api"] == FETCH else ""),
    *(_latency(f"p{percent}") for percent in PERCENTILES),
    _latency("max"),
    ("with errors", lambda row: number(row["failed"]) if row["failed"] else ""),
    ("unreadable", lambda row: number(row["unreadable"]) if row["unreadable"] else ""),
)
_COUNTS: Final[tuple[tuple[str, Cell], ...]] = (
    ("answered", lambda row: number(row["answered"])),
    ("with errors", lambda row: number(row["failed"])),
)


def _saving(saving: SavingFigures) -> Text:
    gateway = saving["gateway_request_bytes"] + saving["gateway_response_bytes"]
    direct = saving["direct_request_bytes"] + saving["direct_response_bytes"]
    records = saving["direct_record_bytes"]
    text = Text()
    text.append(f"\n{percent(saving['saved_ratio'])} of fetch bytes saved, as measured: ", style="bold")
    text.append(
        f"{size(gateway)} between gateway and broker (its own counters), "
        f"{size(direct)} directly, of which {size(records)} are records."
    )
    if saving["other_clients"]:
        text.append(
            "\nThe gateway served other clients during this run: its figures include their fetches.",
            style="yellow",
        )
    return text


def _more_records(report: DriveReport) -> list[str]:
    """Return a line for each side that has sent more record bytes than the captured brokers."""
    settings = report["settings"]
    times = settings["connections"] * settings["loop"]
    captured = sum(row["record_bytes"] for row in report["figures"] if _is_of(row, CAPTURE)) * times
    return [
        f"{row['side']} sent {row['record_bytes'] / captured:,.1f} times the captured record bytes: "
        f"{size(row['record_bytes'])} instead of {size(captured)}"
        for row in report["figures"]
        if captured and row["record_bytes"] > captured and _is_of(row, row["side"])
    ]


def _is_of(row: ApiFigures, side: str) -> bool:
    return (row["side"], row["api"]) == (side, FETCH)


def _notes(report: DriveReport) -> list[RenderableType]:
    lines = ["Interrupted."] if report["interrupted"] else []
    if report["stopped_at"] is not None:
        at = report["stopped_at"]
        lines.append(f"Stopped {duration(at)} into the capture: --from {at:.6f} goes on")
    lines += _more_records(report)
    if report["settings"]["against"] and report["planned"] and report["saving"] is None:
        lines.append("No fetch was played, so there is no saving to report.")
    if report["left_out"]:
        share = report["left_out_ratio"]
        lines.append(f"Left out ({percent(share)} of what could be played):" if share else "Left out:")
    lines += [_left_out(row) for row in report["left_out"]]
    if created := report["created_topics"]:
        names = ", ".join(f"{shown(name)} ({plural(count, 'partition')})" for name, count in created.items())
        lines.append(f"Topics created: {names}")
    if missing := report["missing_topics"]:
        names = ", ".join(shown(name) for name in missing)
        lines.append(f"Topics with partitions that the target does not have (left out of fetches): {names}")
    if elsewhere := report["led_elsewhere"]:
        names = ", ".join(shown(name) for name in elsewhere)
        lines.append(
            f"Topics with partitions that another broker of the target leads (left out of fetches): {names}"
        )
    lines += [
        f"{plural(count, 'time')}: {shown(error)}" for error, count in report["connection_errors"].items()
    ]
    lines += [f"Without a response at {side}: {number(n)}" for side, n in report["lost"].items() if n]
    if report["behind_seconds"] >= LATE_SECONDS:
        lines.append(
            f"Up to {duration(report['behind_seconds'])} behind the captured time: responses took longer "
            "than captured (--max-wait 0: fetches with nothing new don't wait), or this machine is too slow"
        )
    lines += [f"Not read: {shown(problem)}" for problem in report["problems"]]
    return [Text(f"\n{lines[0]}"), *(Text(line) for line in lines[1:])] if lines else []


MOST_LEFT_OUT: Final = 0.05
"""A run that left out a larger share of the captured requests is no success."""
LATE_SECONDS: Final = 0.1
"""The output for the terminal does not mention delays below this many seconds."""


def _left_out(row: LeftOutRow) -> str:
    return f"  {number(row['requests'])} {row['api']}: {row['reason']}"


def render_plan(report: DriveReport, versions: Mapping[tuple[str, int], tuple[int, int]]) -> RenderableType:
    """Render the output of `--dry-run`.

    `versions` has the requests of one copy of the capture, and their bytes, by API and version.
    """
    settings = report["settings"]
    table = plain_table("API", "version", "requests", "bytes")
    for (api, version), (count, sent) in sorted(versions.items()):
        table.add_row(api, str(version), number(count), size(sent))
    times = settings["connections"] * settings["loop"]
    text = Text(
        f"Would send {plural(report['planned'], 'request')}: "
        f"{plural(report['connections'], 'connection')}, captured in "
        f"{duration(report['captured_seconds'])}" + (f", {times} times" if times > 1 else "")
    )
    note = "Nothing was sent, and the target was not asked which versions and topics it has."
    return Group(text, table, *_notes(report), Text(f"\n{note}"))
