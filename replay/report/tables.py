"""The tables of the report, for a terminal and for HTML."""

from collections.abc import Iterable, Sequence
from typing import Final

from replay.report.model import CooperativeReport, CooperativeRow, FloorsReport, Report, stream_bytes
from replay.report.rows import (
    ReportRow,
    broker_rows,
    client_rows,
    connection_rows,
    passed_rows,
    to_do_rows,
    topic_rows,
    total_row,
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
    ReportColumn,
    ReportLine,
    ReportTable,
    SavedBytes,
)
from replay.report.wording import POLICY, SHARES, meaning, number, percent, shown

_CLIENT: Final = (
    ReportColumn(title="Client id"),
    ReportColumn(title="Software"),
    ReportColumn(title="Fetch"),
)


def to_do(report: Report, limit: int) -> ReportTable:
    """Return the table of advice for each client."""
    lines = [ReportLine(values=(*names, sentence)) for names, sentence in to_do_rows(report, limit)]
    return ReportTable(title="What to do", columns=(*_CLIENT, ReportColumn(title="What to do")), lines=lines)


def to_do_in_short(report: Report, limit: int) -> ReportTable:
    """Return the table of advice without the Fetch version, which only engineers need."""
    lines = [
        ReportLine(values=(client_id, software, sentence))
        for (client_id, software, _), sentence in to_do_rows(report, limit)
    ]
    columns = (*_CLIENT[:2], ReportColumn(title="What to do"))
    return ReportTable(title="What to do", columns=columns, lines=lines)


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
    return _breakdown("By client", _CLIENT, client_rows(report, limit), "Fetches")


def by_topic(report: Report, limit: int) -> ReportTable:
    """Return the table of the bytes of each topic in fetches."""
    return _breakdown("By topic", [ReportColumn(title="Topic")], topic_rows(report, limit), "Entries")


def by_broker(report: Report, limit: int) -> ReportTable:
    """Return the table of fetches by broker. Its last row has all fetches."""
    rows = [*broker_rows(report, limit), total_row(report)]
    return _breakdown("By broker", [ReportColumn(title="Broker")], rows, "Fetches")


def connections(report: Report, limit: int) -> ReportTable:
    """Return the table of connections with the most fetch bytes."""
    names = [ReportColumn(title="Connection"), ReportColumn(title="Client id")]
    return _breakdown("Largest connections", names, connection_rows(report, limit), "Fetches")


def _breakdown(
    title: str, names: Sequence[ReportColumn], rows: Iterable[ReportRow], counted: str
) -> ReportTable:
    columns = (
        *names,
        ReportColumn(title=counted, unit=COUNT),
        ReportColumn(title="Captured", unit=BYTES),
        ReportColumn(title="Eligible", unit=BYTES, wide=True),
        ReportColumn(title="Predicted", unit=BYTES),
        ReportColumn(title="Saved", unit=SAVING),
    )
    return ReportTable(title=title, columns=columns, lines=[_line(row) for row in rows])


def _line(row: ReportRow) -> ReportLine:
    saving = SavedBytes(row.saved, row.ratio)
    return ReportLine(
        values=(*row.names, row.count, row.actual, row.eligible, row.predicted, saving),
        note=row.why,
        total=row.total,
        bar=(row.actual, row.predicted),
    )


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
        saving = SavedBytes(row["saved_bytes"], row["saved_ratio"])
        lines.append(
            ReportLine(
                values=(f"{name}{here}", POLICY[name], row["predicted_bytes"], row["saved_bytes"], saving)
            )
        )
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
    """Return the table of the reasons why each client's fetches are forwarded unchanged."""
    return ReportTable(
        title="Why fetches stay as captured",
        columns=(
            *_CLIENT,
            ReportColumn(title="Reason"),
            ReportColumn(title="What it means", wide=True),
            ReportColumn(title="Fetches", unit=COUNT),
            ReportColumn(title="Bytes", unit=BYTES),
        ),
        lines=[
            ReportLine(
                values=(*names, shown(reason, empty=""), meaning(reason), row["exchanges"], row["bytes"])
            )
            for names, reason, row in passed_rows(report, limit)
        ],
    )


def slots(report: Report) -> ReportTable:
    """Return the table of session slots that each broker needs."""
    names = ("sessions_at_once", "requested_at_once", "slots", "evictions", "refused")
    return ReportTable(
        title="Fetch session slots of the brokers, most at once",
        columns=(
            ReportColumn(title="Broker", unit=NAME),
            ReportColumn(title="Used", unit=COUNT),
            ReportColumn(title="Needed", unit=COUNT),
            ReportColumn(title="Slots", unit=COUNT),
            ReportColumn(title="Evictions", unit=COUNT),
            ReportColumn(title="Refused", unit=COUNT),
        ),
        lines=[
            ReportLine(values=(row["broker"], *(row[name] for name in names)))  # type: ignore[literal-required]  # fields of SlotsRow
            for row in report["slots"]
        ],
    )


def limits(report: Report, limit: int) -> ReportTable:
    """Return the table of clients with exceeded limits (most bytes first) or starved partitions."""
    found = [row for row in report["limits"]["by_client"] if row["over_limit"] or row["starved"]]
    return ReportTable(
        title="Response limits",
        columns=(
            ReportColumn(title="Client id", unit=NAME),
            ReportColumn(title="Fetch"),
            ReportColumn(title="max_bytes", unit=LIMIT),
            ReportColumn(title="Largest", unit=BYTES),
            ReportColumn(title="Over the limit", unit=COUNT, short="over"),
            ReportColumn(title="By", unit=BYTES),
            ReportColumn(title="Starved", unit=COUNT),
        ),
        lines=[
            ReportLine(
                values=(
                    row["client_id"],
                    f"v{row['fetch_version']}",
                    row["max_bytes"],
                    row["largest_record_bytes"],
                    row["over_limit"],
                    row["over_limit_bytes"],
                    row["starved"],
                )
            )
            for row in found[:limit]
        ],
    )


def floors(found: FloorsReport, limit: int) -> ReportTable:
    """Return the table of what floors save, and how much later records come. Most bytes come first."""
    return ReportTable(
        title="Fetch floors",
        columns=(
            ReportColumn(title="Client id", unit=NAME),
            ReportColumn(title="Fetch"),
            ReportColumn(title="Fetches", unit=COUNT),
            ReportColumn(title="Fewer", unit=COUNT),
            ReportColumn(title="Saved", unit=BYTES),
            ReportColumn(title="Later on average", unit=SECONDS, short="later"),
            ReportColumn(title="At most", unit=SECONDS),
        ),
        lines=[
            ReportLine(
                values=(
                    row["client_id"],
                    f"v{row['fetch_version']}",
                    row["requests"],
                    row["fewer_requests"],
                    row["saved_bytes"],
                    row["later_seconds"],
                    row["later_at_most_seconds"],
                )
            )
            for row in found["by_client"][:limit]
        ],
    )


def starved(report: Report) -> ReportTable:
    """Return the table of the partitions that starved longest."""
    return ReportTable(
        title="Starved longest",
        columns=(
            ReportColumn(title="Starved longest", short="partition"),
            ReportColumn(title="Client id", unit=NAME),
            ReportColumn(title="Time", unit=SECONDS),
            ReportColumn(title="Responses", unit=COUNT),
            ReportColumn(title="Offsets behind", unit=COUNT),
        ),
        lines=[
            ReportLine(
                values=(
                    f"{shown(row['topic'])}-{row['partition']}",
                    row["client_id"],
                    row["seconds"],
                    row["responses"],
                    row["behind"],
                )
            )
            for row in report["limits"]["longest"]
        ],
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
    tcp_ip = report["modelled"]["tcp_ip"]
    return ReportTable(
        title="",
        columns=(
            ReportColumn(title=""),
            ReportColumn(title="Captured", unit=BYTES),
            ReportColumn(title="Predicted", unit=BYTES),
            ReportColumn(title="How"),
        ),
        lines=[
            ReportLine(
                values=("TCP/IP headers", tcp_ip["bytes_actual"], tcp_ip["bytes_predicted"], tcp_ip["how"])
            )
        ],
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
