"""The tables of the report, for a terminal and for HTML."""

from collections.abc import Iterable, Sequence
from typing import Final

from replay.report.model import CooperativeReport, CooperativeRow, Report
from replay.report.rows import (
    Row,
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
    Column,
    Line,
    Saving,
    Table,
)
from replay.report.wording import POLICY, SHARES, meaning, number, percent, shown

_CLIENT: Final = (Column(title="Client id"), Column(title="Software"), Column(title="Fetch"))


def to_do(report: Report, limit: int) -> Table:
    """What to do for each client."""
    lines = [Line(values=(*names, sentence)) for names, sentence in to_do_rows(report, limit)]
    return Table(title="What to do", columns=(*_CLIENT, Column(title="What to do")), lines=lines)


def where(report: Report) -> Table:
    """Where the bytes go."""
    actual, predicted = report["where"]["actual"], report["where"]["predicted"]
    return Table(
        title="Where the bytes go",
        columns=(
            Column(title="Part", short=""),
            Column(title="What it is", short="", soft=True),
            Column(title="Captured", unit=BYTES),
            Column(title="Predicted", unit=BYTES),
        ),
        lines=[
            Line(values=(name, what, actual[key], predicted[key]), key=key)
            for key, (name, what) in SHARES.items()
        ],
    )


def by_client(report: Report, limit: int) -> Table:
    """Fetches by client id, software and Fetch version."""
    return _breakdown("By client", _CLIENT, client_rows(report, limit), "Fetches")


def by_topic(report: Report, limit: int) -> Table:
    """Entries of fetches by topic."""
    return _breakdown("By topic", [Column(title="Topic")], topic_rows(report, limit), "Entries")


def by_broker(report: Report, limit: int) -> Table:
    """Fetches by broker, and all of them."""
    rows = [*broker_rows(report, limit), total_row(report)]
    return _breakdown("By broker", [Column(title="Broker")], rows, "Fetches")


def connections(report: Report, limit: int) -> Table:
    """The connections with the most fetch bytes."""
    names = [Column(title="Connection"), Column(title="Client id")]
    return _breakdown("Largest connections", names, connection_rows(report, limit), "Fetches")


def _breakdown(title: str, names: Sequence[Column], rows: Iterable[Row], counted: str) -> Table:
    columns = (
        *names,
        Column(title=counted, unit=COUNT),
        Column(title="Captured", unit=BYTES),
        Column(title="Eligible", unit=BYTES, wide=True),
        Column(title="Predicted", unit=BYTES),
        Column(title="Saved", unit=SAVING),
    )
    return Table(title=title, columns=columns, lines=[_line(row) for row in rows])


def _line(row: Row) -> Line:
    saving = Saving(row.saved, row.ratio)
    return Line(
        values=(*row.names, row.count, row.actual, row.eligible, row.predicted, saving),
        note=row.why,
        total=row.total,
        bar=(row.actual, row.predicted),
    )


def sessions(report: Report) -> Table:
    """From captured to predicted bytes, step by step."""
    fetch = report["fetch"]
    actual, eligible, cost = fetch["actual"], fetch["eligible"], fetch["sessions"]
    through = cost["full"] + cost["incremental"] + cost["sessionless"]
    before = (actual["requests"], actual["request_bytes"], actual["response_bytes"])
    replaced = (eligible["exchanges"], eligible["request_bytes"], eligible["response_bytes"])
    instead = (through, cost["request_bytes"], cost["response_bytes"])
    after = tuple(
        first - second + third for first, second, third in zip(before, replaced, instead, strict=True)
    )
    return Table(
        title="From captured to predicted",
        columns=(
            Column(title=""),
            Column(title="Fetches", unit=COUNT),
            Column(title="Request bytes", unit=BYTES),
            Column(title="Response bytes", unit=BYTES),
        ),
        lines=[
            Line(values=("Captured", *before)),
            Line(values=("- eligible of these", *replaced)),
            Line(values=("+ the eligible through sessions", *instead)),
            Line(values=("= predicted broker side", *after)),
        ],
    )


def policies(report: Report) -> Table:
    """What both policies save."""
    lines = []
    for name, row in report["policies"].items():
        here = " (this report)" if name == report["policy"] else ""
        saving = Saving(row["saved_bytes"], row["saved_ratio"])
        lines.append(
            Line(values=(f"{name}{here}", POLICY[name], row["predicted_bytes"], row["saved_bytes"], saving))
        )
    return Table(
        title="Both policies",
        columns=(
            Column(title="Policy"),
            Column(title="What it is", wide=True),
            Column(title="Predicted", unit=BYTES),
            Column(title="Saved", unit=BYTES),
            Column(title="Part", unit=SAVING, short=""),
        ),
        lines=lines,
    )


def passed(report: Report, limit: int) -> Table:
    """Why fetches of each client pass as captured."""
    return Table(
        title="Why fetches pass as captured",
        columns=(
            *_CLIENT,
            Column(title="Reason"),
            Column(title="What it means", wide=True),
            Column(title="Fetches", unit=COUNT),
            Column(title="Bytes", unit=BYTES),
        ),
        lines=[
            Line(values=(*names, shown(reason, empty=""), meaning(reason), row["exchanges"], row["bytes"]))
            for names, reason, row in passed_rows(report, limit)
        ],
    )


def slots(report: Report) -> Table:
    """How many slots for sessions each broker needs."""
    names = ("sessions_at_once", "requested_at_once", "slots", "evictions", "refused")
    return Table(
        title="Fetch session slots of the brokers, most at once",
        columns=(
            Column(title="Broker", unit=NAME),
            Column(title="Used", unit=COUNT),
            Column(title="Needed", unit=COUNT),
            Column(title="Slots", unit=COUNT),
            Column(title="Evictions", unit=COUNT),
            Column(title="Refused", unit=COUNT),
        ),
        lines=[
            Line(values=(row["broker"], *(row[name] for name in names)))  # type: ignore[literal-required]  # fields of SlotsRow
            for row in report["slots"]
        ],
    )


def limits(report: Report, limit: int) -> Table:
    """Who got more than a response limit, or had partitions that starved; those with the most first."""
    found = [row for row in report["limits"]["by_client"] if row["over_limit"] or row["starved"]]
    return Table(
        title="Response limits",
        columns=(
            Column(title="Client id", unit=NAME),
            Column(title="Fetch"),
            Column(title="max_bytes", unit=LIMIT),
            Column(title="Largest", unit=BYTES),
            Column(title="Over the limit", unit=COUNT, short="over"),
            Column(title="By", unit=BYTES),
            Column(title="Starved", unit=COUNT),
        ),
        lines=[
            Line(
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


def starved(report: Report) -> Table:
    """The partitions that starved longest."""
    return Table(
        title="Starved longest",
        columns=(
            Column(title="Starved longest", short="partition"),
            Column(title="Client id", unit=NAME),
            Column(title="Time", unit=SECONDS),
            Column(title="Responses", unit=COUNT),
            Column(title="Offsets behind", unit=COUNT, short="behind"),
        ),
        lines=[
            Line(
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


def evenness(found: CooperativeReport, limit: int) -> Table:
    """How evenly the records of the groups with the most bytes would spread over their members."""
    return Table(
        title=f"Keys over {found['members']} members",
        columns=(
            Column(title="Group"),
            Column(title="Share of each member", wide=True),
            Column(title="Records", unit=COUNT),
            Column(title="Bytes", unit=BYTES, wide=True),
            Column(title="Shared partitions", unit=FIGURE, short="shared"),
            Column(title="Evenness", unit=FIGURE),
            Column(title="Of bytes", unit=FIGURE, wide=True),
            Column(title="Hottest key", unit=FIGURE),
            Column(title="Of bytes", unit=FIGURE, wide=True),
            Column(title="At most", unit=FIGURE),
        ),
        lines=[_evenness_line(row) for row in found["groups"][:limit]],
    )


def _evenness_line(row: CooperativeRow) -> Line:
    name = f"{shown(row['client_id'] or '')} (client id)" if row["group"] is None else shown(row["group"])
    even, hottest = row["evenness"], row["hottest_key"]
    most = "" if hottest is None or hottest["exact"] else "<="
    return Line(
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


def modelled(report: Report) -> Table:
    """The headers of TCP and IP."""
    tcp_ip = report["modelled"]["tcp_ip"]
    return Table(
        title="",
        columns=(
            Column(title=""),
            Column(title="Captured", unit=BYTES),
            Column(title="Predicted", unit=BYTES),
            Column(title="How"),
        ),
        lines=[
            Line(values=("TCP/IP headers", tcp_ip["bytes_actual"], tcp_ip["bytes_predicted"], tcp_ip["how"]))
        ],
    )


def reading(report: Report) -> Table:
    """How much could be read, and why the rest could not."""
    readable = report["readable"]
    whole = max(readable["readable_bytes"] + readable["unreadable_bytes"], 1)
    ranked = sorted(readable["by_reason"].items(), key=lambda item: (-item[1], item[0]))
    parts = [("readable", readable["readable_bytes"], readable["ratio"])]
    parts += [(shown(reason), count, count / whole) for reason, count in ranked]
    return Table(
        title="How much could be read",
        columns=(Column(title="Part"), Column(title="Bytes", unit=BYTES), Column(title="Share", unit=RATIO)),
        lines=[Line(values=part) for part in parts],
    )
