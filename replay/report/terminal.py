"""The report for a terminal: fits into 80 columns. It has no colours outside a terminal, or with NO_COLOR.

Names of clients and brokers are `Text`, never rich markup.
"""

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from replay.report.model import Report, actual_bytes, predicted_bytes
from replay.report.rows import (
    Row,
    broker_rows,
    client_rows,
    limit_rows,
    passed_rows,
    spread_rows,
    starved_rows,
    to_do_rows,
    topic_rows,
    total_row,
)
from replay.report.wording import (
    FORMULA,
    MODELLED,
    POLICY,
    SAVED,
    SHARES,
    captured,
    clocks,
    decided,
    encrypted,
    how_sure,
    left_out,
    limits,
    narrowed,
    number,
    percent,
    plural,
    price,
    session_counts,
    shown,
    size,
    spread,
    unpaired,
    untold,
    warnings,
)

ROWS: Final = 10
"""Most rows of a table by client, topic or broker. The last one adds up the rest."""
PROBLEMS: Final = 5
"""Most problems that are listed. The others are counted; the JSON has all."""


def render(report: Report) -> RenderableType:
    """Build the text that `measure` prints.

    Args:
        report: the report object.

    Returns:
        an object for `rich.console.Console.print`.
    """
    if not report["fetch"]["actual"]["requests"]:
        return Group(_headline(report), Text(), _reading(report))
    parts: list[RenderableType] = [
        _headline(report),
        _to_do(report),
        _where(report),
        *_breakdowns(report),
        Text(session_counts(report)),
        _policies(report),
        *_passed(report),
        *_slots(report),
        *_limits(report),
        *_cooperative(report),
        _reading(report),
        _modelled(report),
        Text(f"{FORMULA} {SAVED} {POLICY[report['policy']]}", style="dim"),
    ]
    return Group(*(line for part in parts[:-1] for line in (part, Text())), parts[-1])


def _headline(report: Report) -> Text:
    fetch, text = report["fetch"], Text()
    if fetch["actual"]["requests"]:
        text.append(decided(report) + "\n", style=_style(fetch["saved_bytes"]))
        if sure := how_sure(report):
            text.append(sure + "\n", style="" if report["decision"]["enough"] else "yellow")
        for warning in warnings(report):
            text.append(warning + "\n", style="yellow")
    text.append(captured(report) + "\n")
    if filters := narrowed(report["filters"]):
        text.append(filters + "\n")
    if not fetch["actual"]["requests"]:
        text.append("No fetch request was found.\n", style="bold")
        return text.append(report["decision"]["next_step"])
    if untold(report):
        return text.append(f"{size(actual_bytes(fetch))} of fetch bytes")
    text.append(f"{size(fetch['saved_bytes'])} of {size(actual_bytes(fetch))} fetch bytes saved: ")
    text.append(percent(fetch["saved_ratio"]), style=_style(fetch["saved_bytes"]))
    return text.append(f" ({size(predicted_bytes(fetch))} would go to and from the brokers)")


def _to_do(report: Report) -> Table:
    table = _table("What to do", "client id", "software", "fetch", "what to do", numbers=())
    for names, sentence in to_do_rows(report, ROWS):
        table.add_row(*map(Text, names), Text(sentence))
    return table


def _style(saved: int) -> str:
    return "bold green" if saved > 0 else "bold red" if saved < 0 else "bold"


def _table(title: str, *names: str, numbers: Sequence[str]) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="dim",
    )
    for name in names:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _where(report: Report) -> Table:
    table = _table("Where the bytes go", "", "", numbers=("captured", "predicted"))
    actual, predicted = report["where"]["actual"], report["where"]["predicted"]
    for key, (name, what) in SHARES.items():
        before, after = actual[key], predicted[key]
        table.add_row(name, Text(what, style="dim"), size(before), size(after))
    return table


def _breakdowns(report: Report) -> list[Table]:
    topics = topic_rows(report, ROWS)
    return [
        _by("By client", ("client id", "software", "fetch"), client_rows(report, ROWS), "fetches"),
        _by("By topic", ("topic",), topics, "entries"),
        _by("By broker", ("broker",), [*broker_rows(report, ROWS), total_row(report)], "fetches"),
    ]


def _by(title: str, names: tuple[str, ...], rows: list[Row], counted: str) -> Table:
    table = _table(title, *names, numbers=(counted, "captured", "predicted", "saved"))
    for row in rows:
        table.add_row(
            *(Text(name) for name in row.names),
            *("" for _ in names[len(row.names) :]),
            number(row.count),
            size(row.actual),
            size(row.predicted),
            Text(percent(row.ratio), style=_style(row.saved)),
        )
        if row.why:
            table.add_row(Text(f"  {row.why}", style="dim"))
    return table


def _policies(report: Report) -> Table:
    table = _table("Both policies", "policy", numbers=("predicted", "saved", ""))
    for name, row in report["policies"].items():
        ratio = Text(percent(row["saved_ratio"]), style=_style(row["saved_bytes"]))
        here = " (this report)" if name == report["policy"] else ""
        table.add_row(f"{name}{here}", size(row["predicted_bytes"]), size(row["saved_bytes"]), ratio)
    return table


def _passed(report: Report) -> list[Table]:
    rows = passed_rows(report, ROWS)
    if not rows:
        return []
    names = ("client id", "software", "fetch", "reason")
    table = _table("Why fetches pass as captured", *names, numbers=("fetches", "bytes"))
    for client, reason, row in rows:
        table.add_row(
            *map(Text, client), Text(shown(reason, empty="")), number(row["exchanges"]), size(row["bytes"])
        )
    return [table]


def _slots(report: Report) -> list[Table]:
    if not report["slots"]:
        return []
    table = _table(
        "Fetch session slots of the brokers, most at once",
        "broker",
        numbers=("used", "needed", "slots", "evictions", "refused"),
    )
    for row in report["slots"]:
        counts = (row["sessions_at_once"], row["requested_at_once"], row["slots"], row["evictions"])
        table.add_row(Text(shown(row["broker"])), *map(number, counts), number(row["refused"]))
    return [table]


def _limits(report: Report) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(limits(report))]
    if rows := limit_rows(report, ROWS):
        figures = ("max_bytes", "largest", "over", "by", "starved")
        table = _table("Response limits", "client id", "fetch", numbers=figures)
        for row in rows:
            table.add_row(*map(Text, row))
        parts.append(table)
    if starved := starved_rows(report):
        table = _table("Starved longest", "partition", "client id", numbers=("time", "responses", "behind"))
        for row in starved:
            table.add_row(*map(Text, row))
        parts.append(table)
    return parts


def _cooperative(report: Report) -> list[RenderableType]:
    if "cooperative" not in report:
        return []
    found = report["cooperative"]
    figures = ("records", "shared", "evenness", "hottest key", "at most")
    table = _table(f"Keys over {found['members']} members", "group", numbers=figures)
    for row in spread_rows(found, ROWS):
        table.add_row(Text(row.name), row.records, row.shared, row.evenness, row.hottest, row.bound)
    more = len(found["groups"][ROWS:])
    lines = [*spread(found), *([f"And {plural(more, 'more group')}; the JSON has all."] if more else [])]
    return [table, Text(" ".join(lines), style="dim")]


def _reading(report: Report) -> Text:
    readable, problems = report["readable"], report["input"]["problems"]
    text = Text(f"Readable: {percent(readable['ratio'])} of {size(_whole(report))} in the streams")
    reasons = sorted(readable["by_reason"].items(), key=lambda item: -item[1])
    if reasons:
        text.append("; not: " + ", ".join(f"{shown(reason)} {size(count)}" for reason, count in reasons))
    if halves := unpaired(report):
        text.append(f". {halves}")
    if records := left_out(report):
        text.append(f". {records}")
    if apart := clocks(report):
        text.append(f". {apart}")
    read = report["input"]
    if tls := encrypted(read["decrypted_connections"], read["encrypted_connections"]):
        text.append(f". {tls}")
    for problem in problems[:PROBLEMS]:
        where = f"{shown(problem['file'])}: " if problem["file"] else ""
        text.append(f"\n{where}{shown(problem['problem'])}", style="yellow")
    if more := len(problems[PROBLEMS:]):
        text.append(f"\nand {plural(more, 'more problem')}; the JSON has all", style="yellow")
    return text


def _whole(report: Report) -> int:
    return report["readable"]["readable_bytes"] + report["readable"]["unreadable_bytes"]


def _modelled(report: Report) -> Text:
    tcp_ip, money = report["modelled"]["tcp_ip"], report["modelled"]["money"]
    text = Text(f"{MODELLED}: TCP/IP headers {size(tcp_ip['bytes_actual'])} captured, ")
    text.append(f"{size(tcp_ip['bytes_predicted'])} predicted ({tcp_ip['how']})")
    if money:
        text.append(
            f"\n{MODELLED}: money saved {price(money['saved'])}, or {price(money['saved_per_month'])} in 30 "
            f"days of the same traffic, at {money['price_per_gb']:g} per GB ({money['how']})"
        )
    return text
