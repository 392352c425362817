"""The tables of the report, for a terminal and for HTML."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from proxy.text.printable import printable
from replay.report.decision import why
from replay.report.model import (
    CooperativeReport,
    CooperativeRow,
    FetchesRow,
    FetchReport,
    FloorsReport,
    Report,
    actual_bytes,
    eligible_bytes,
    predicted_bytes,
    stream_bytes,
)
from replay.report.table import (
    BYTES,
    COUNT,
    FIGURE,
    LIMIT,
    NAME,
    RATIO,
    SAVING,
    SECONDS,
    VERSION,
    ReportColumn,
    ReportLine,
    ReportTable,
    SavedBytes,
    of_rows,
    with_rest,
)
from replay.report.wording import POLICY, REST, SHARES, meaning, number, percent, plural, shown

_CLIENT: Final = (
    ReportColumn(title="Client id"),
    ReportColumn(title="Software"),
    ReportColumn(title="Fetch"),
)
_OF_CLIENT: Final = (
    ReportColumn(title="Client id", key="client_id", unit=NAME),
    ReportColumn(title="Fetch", key="fetch_version", unit=VERSION),
)


def to_do(report: Report, limit: int) -> ReportTable:
    """Return the table of advice for each client."""
    rows = report["decision"]["to_do"]
    lines = [ReportLine(values=(*_names(row), printable(row["sentence"]))) for row in rows[:limit]]
    if more := len(rows[limit:]):
        words = f"The JSON and the CSV have {plural(more, 'more client')}."
        lines.append(ReportLine(values=("others", "", "", words)))
    return ReportTable(title="What to do", columns=(*_CLIENT, ReportColumn(title="What to do")), lines=lines)


def to_do_in_short(report: Report, limit: int) -> ReportTable:
    """Return the table of advice without the Fetch version, which only engineers need."""
    whole = to_do(report, limit)
    lines = [replace(line, values=(*line.values[:2], line.values[3])) for line in whole.lines]
    return replace(whole, columns=(*whole.columns[:2], whole.columns[3]), lines=lines)


def where(report: Report) -> ReportTable:
    """Return the table that shows which parts of requests and responses the bytes are in."""
    actual, predicted = report["where"]["actual"], report["where"]["predicted"]
    return ReportTable(
        title="Where the bytes go",
        columns=(
            ReportColumn(title="Part", short=""),
            ReportColumn(title="What it is", short="", soft=True),
            ReportColumn(title="Captured", unit=BYTES),
            ReportColumn(title="Predicted", unit=BYTES),
        ),
        lines=[
            ReportLine(values=(name, what, actual[key], predicted[key]), key=key)
            for key, (name, what) in SHARES.items()
        ],
    )


def by_client(report: Report, limit: int) -> ReportTable:
    """Return the table of fetches by client id, software and Fetch version."""
    lines = [_fetches(_names(row), row) for row in report["by_client"]]
    return _breakdown("By client", _CLIENT, _ranked(lines, limit, len(_CLIENT), "client"))


def by_topic(report: Report, limit: int) -> ReportTable:
    """Return the table of the bytes of each topic in fetches. The last row has those of no topic."""
    sessions = report["fetch"]["sessions"]
    with_sessions = sessions["full"] + sessions["incremental"] > 0
    lines, rest = [], []
    for row in report["by_topic"]:
        fetch = row["fetch"]
        if row["topic"] is None:
            rest.append(_line([REST], fetch, _why(fetch, "sessions only leave out entries")))
            continue
        # Reasons are not counted by topic.
        new = with_sessions and eligible_bytes(fetch)
        reason = "all entries had something new" if new else "its fetches stay as captured"
        count = fetch["actual"]["partitions_answered"]
        lines.append(_line([shown(row["topic"])], fetch, _why(fetch, reason), count=count))
    found = [*_ranked(lines, limit, 1, "topic"), *rest]
    return _breakdown("By topic", [ReportColumn(title="Topic")], found, "Entries")


def by_broker(report: Report, limit: int) -> ReportTable:
    """Return the table of fetches by broker. Its last row has all fetches."""
    lines = [_fetches([shown(row["broker"])], row) for row in report["by_broker"]]
    whole = replace(_fetches(["all"], report), total=True)
    found = [*_ranked(lines, limit, 1, "broker"), whole]
    return _breakdown("By broker", [ReportColumn(title="Broker")], found)


def connections(report: Report, limit: int) -> ReportTable:
    """Return the table of connections with the most fetch bytes. The report does not have the rest."""
    names = [ReportColumn(title="Connection"), ReportColumn(title="Client id")]
    lines = [
        _fetches([shown(row["connection"]), shown(row["client_id"])], row) for row in report["connections"]
    ]
    lines.sort(key=lambda line: (-line.values[len(names) + 1], line.values[: len(names)]))
    return _breakdown("Largest connections", names, lines[:limit])


def _breakdown(
    title: str, names: Sequence[ReportColumn], lines: Sequence[ReportLine], counted: str = "Fetches"
) -> ReportTable:
    columns = (
        *names,
        ReportColumn(title=counted, unit=COUNT),
        ReportColumn(title="Captured", unit=BYTES),
        ReportColumn(title="Eligible", unit=BYTES, wide=True),
        ReportColumn(title="Predicted", unit=BYTES),
        ReportColumn(title="Saved", unit=SAVING),
    )
    return ReportTable(title=title, columns=columns, lines=[_with_bar(line) for line in lines])


def _fetches(names: Sequence[str], row: FetchesRow) -> ReportLine:
    return _line(names, row["fetch"], why(row["fetch"], row["passed"]))


def _line(names: Sequence[str], fetch: FetchReport, reason: str, *, count: int | None = None) -> ReportLine:
    """Return the line of fetches: its bytes are of both directions. `reason` says why nothing is saved."""
    fetches = fetch["actual"]["requests"] if count is None else count
    whole = actual_bytes(fetch)
    saving = SavedBytes(fetch["saved_bytes"], whole)
    values = (*names, fetches, whole, eligible_bytes(fetch), predicted_bytes(fetch), saving)
    return ReportLine(values=values, note=shown(reason, empty=""))


def _with_bar(line: ReportLine) -> ReportLine:
    *_, whole, _, predicted, _ = line.values
    return replace(line, bar=(whole, predicted))


def _why(fetch: FetchReport, reason: str) -> str:
    return "" if fetch["saved_bytes"] > 0 or not actual_bytes(fetch) else reason


def _names(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the values of `_CLIENT`."""
    return (
        shown(row["client_id"]),
        shown(row["software"], empty="unknown"),
        VERSION.write(row["fetch_version"]),
    )


def _ranked(lines: list[ReportLine], limit: int, names: int, noun: str) -> list[ReportLine]:
    """Sort the lines by what they save, and add up those beyond the limit."""
    lines.sort(key=lambda line: (-line.values[-1].saved_bytes, -line.values[names + 1], line.values[:names]))
    found = with_rest(lines, limit, names=names, noun=noun)
    if len(lines) > limit and found[-1].values[-1].saved_bytes <= 0:
        found[-1] = replace(found[-1], note=lines[limit - 1].note)
    return found


def sessions(report: Report) -> ReportTable:
    """Return the table that shows, step by step, how predicted bytes follow from captured bytes."""
    fetch = report["fetch"]
    actual, eligible, cost = fetch["actual"], fetch["eligible"], fetch["sessions"]
    through = cost["full"] + cost["incremental"] + cost["sessionless"]
    before = (actual["requests"], actual["request_bytes"], actual["response_bytes"])
    replaced = (eligible["exchanges"], eligible["request_bytes"], eligible["response_bytes"])
    instead = (through, cost["request_bytes"], cost["response_bytes"])
    after = tuple(
        first - second + third for first, second, third in zip(before, replaced, instead, strict=True)
    )
    return ReportTable(
        title="From captured to predicted",
        columns=(
            ReportColumn(title=""),
            ReportColumn(title="Fetches", unit=COUNT),
            ReportColumn(title="Request bytes", unit=BYTES),
            ReportColumn(title="Response bytes", unit=BYTES),
        ),
        lines=[
            ReportLine(values=("Captured", *before)),
            ReportLine(values=("- eligible fetches as captured", *replaced)),
            ReportLine(values=("+ eligible fetches with sessions", *instead)),
            ReportLine(values=("= predicted broker side", *after)),
        ],
    )


def policies(report: Report) -> ReportTable:
    """Return the table of the savings of both policies."""
    lines = []
    for name, row in report["policies"].items():
        here = " (this report)" if name == report["policy"] else ""
        saved, predicted = row["saved_bytes"], row["predicted_bytes"]
        saving = SavedBytes(saved, saved + predicted)
        lines.append(ReportLine(values=(f"{name}{here}", POLICY[name], predicted, saved, saving)))
    return ReportTable(
        title="Both policies",
        columns=(
            ReportColumn(title="Policy"),
            ReportColumn(title="What it is", wide=True),
            ReportColumn(title="Predicted", unit=BYTES),
            ReportColumn(title="Saved", unit=BYTES),
            ReportColumn(title="Part", unit=SAVING, short=""),
        ),
        lines=lines,
    )


def passed(report: Report, limit: int) -> ReportTable:
    """Return the table of the reasons why each client's fetches are forwarded unchanged. Most bytes first."""
    rows = [
        (_names(client), reason, counts)
        for client in report["by_client"]
        for reason, counts in client["passed"].items()
    ]
    rows.sort(key=lambda row: (-row[2]["bytes"], row[0], row[1]))
    lines = [
        ReportLine(
            values=(*names, shown(reason, empty=""), meaning(reason), counts["exchanges"], counts["bytes"])
        )
        for names, reason, counts in rows
    ]
    columns = (
        *_CLIENT,
        ReportColumn(title="Reason"),
        ReportColumn(title="What it means", wide=True),
        ReportColumn(title="Fetches", unit=COUNT),
        ReportColumn(title="Bytes", unit=BYTES),
    )
    lines = with_rest(lines, limit, names=len(columns) - 2)
    return ReportTable(title="Why fetches stay as captured", columns=columns, lines=lines)


def slots(report: Report) -> ReportTable:
    """Return the table of session slots that each broker needs."""
    return of_rows(
        "Fetch session slots of the brokers, most at once",
        report["slots"],
        ReportColumn(title="Broker", key="broker", unit=NAME),
        ReportColumn(title="Used", key="sessions_at_once", unit=COUNT),
        ReportColumn(title="Needed", key="requested_at_once", unit=COUNT),
        ReportColumn(title="Slots", key="slots", unit=COUNT),
        ReportColumn(title="Evictions", key="evictions", unit=COUNT),
        ReportColumn(title="Refused", key="refused", unit=COUNT),
    )


def limits(report: Report, limit: int) -> ReportTable:
    """Return the table of clients with exceeded limits (most bytes first) or starved partitions."""
    found = [row for row in report["limits"]["by_client"] if row["over_limit"] or row["starved"]]
    return of_rows(
        "Response limits",
        found[:limit],
        *_OF_CLIENT,
        ReportColumn(title="max_bytes", key="max_bytes", unit=LIMIT),
        ReportColumn(title="Largest", key="largest_record_bytes", unit=BYTES),
        ReportColumn(title="Over the limit", key="over_limit", unit=COUNT, short="over"),
        ReportColumn(title="By", key="over_limit_bytes", unit=BYTES),
        ReportColumn(title="Starved", key="starved", unit=COUNT),
    )


def floors(found: FloorsReport, limit: int) -> ReportTable:
    """Return the table of what floors save, and how much later records come. Most bytes come first."""
    return of_rows(
        "Fetch floors",
        found["by_client"][:limit],
        *_OF_CLIENT,
        ReportColumn(title="Fetches", key="requests", unit=COUNT),
        ReportColumn(title="Fewer", key="fewer_requests", unit=COUNT),
        ReportColumn(title="Saved", key="saved_bytes", unit=BYTES),
        ReportColumn(title="Later on average", key="later_seconds", unit=SECONDS, short="later"),
        ReportColumn(title="At most", key="later_at_most_seconds", unit=SECONDS),
    )


def starved(report: Report) -> ReportTable:
    """Return the table of the partitions that starved longest."""
    rows = report["limits"]["longest"]
    return of_rows(
        "Starved longest",
        [{**row, "name": f"{shown(row['topic'])}-{row['partition']}"} for row in rows],
        ReportColumn(title="Starved longest", key="name", short="partition"),
        ReportColumn(title="Client id", key="client_id", unit=NAME),
        ReportColumn(title="Time", key="seconds", unit=SECONDS),
        ReportColumn(title="Responses", key="responses", unit=COUNT),
        ReportColumn(title="Offsets behind", key="behind", unit=COUNT),
    )


def evenness(found: CooperativeReport, limit: int) -> ReportTable:
    """Return the table of how evenly records of the largest groups would spread over members."""
    return ReportTable(
        title=f"Keys over {found['members']} members",
        columns=(
            ReportColumn(title="Group"),
            ReportColumn(title="Share of each member", wide=True),
            ReportColumn(title="Records", unit=COUNT),
            ReportColumn(title="Bytes", unit=BYTES, wide=True),
            ReportColumn(title="Shared partitions", unit=FIGURE, short="shared"),
            ReportColumn(title="Evenness", unit=FIGURE),
            ReportColumn(title="Of bytes", unit=FIGURE, wide=True),
            ReportColumn(title="Hottest key", unit=FIGURE),
            ReportColumn(title="Of bytes", unit=FIGURE, wide=True),
            ReportColumn(title="At most", unit=FIGURE),
        ),
        lines=[_evenness_line(row) for row in found["groups"][:limit]],
    )


def _evenness_line(row: CooperativeRow) -> ReportLine:
    name = f"{shown(row['client_id'] or '')} (client id)" if row["group"] is None else shown(row["group"])
    even, hottest = row["evenness"], row["hottest_key"]
    most = "" if hottest is None or hottest["exact"] else "<="
    return ReportLine(
        values=(
            name,
            ", ".join(percent(share["records"]) for share in row["spread"]),
            row["records"],
            row["bytes"],
            f"{number(row['shared_partitions'])} of {number(row['partitions'])}",
            f"{even['records']:.2f}" if even else "",
            f"{even['bytes']:.2f}" if even else "",
            most + percent(hottest["records"]) if hottest else "",
            most + percent(hottest["bytes"]) if hottest else "",
            f"{row['bound']:,.1f} x" if row["bound"] else "",
        )
    )


def modelled(report: Report) -> ReportTable:
    """Return the table of the modelled bytes of TCP and IP headers."""
    return of_rows(
        "",
        [{"name": "TCP/IP headers", **report["modelled"]["tcp_ip"]}],
        ReportColumn(title="", key="name"),
        ReportColumn(title="Captured", key="bytes_actual", unit=BYTES),
        ReportColumn(title="Predicted", key="bytes_predicted", unit=BYTES),
        ReportColumn(title="How", key="how"),
    )


def reading(report: Report) -> ReportTable:
    """Return the table of what could be read, and why not the rest. It may have no lines."""
    readable = report["readable"]
    whole = stream_bytes(readable)
    ranked = sorted(readable["by_reason"].items(), key=lambda item: (-item[1], item[0]))
    parts = [("readable", readable["readable_bytes"], readable["ratio"])]
    parts += [(shown(reason), count, count / whole) for reason, count in ranked]
    return ReportTable(
        title="How much could be read",
        columns=(
            ReportColumn(title="Part"),
            ReportColumn(title="Bytes", unit=BYTES),
            ReportColumn(title="Share", unit=RATIO),
        ),
        lines=[ReportLine(values=part) for part in parts if whole],
    )
