"""The report for a terminal with 80 columns. Names of clients and brokers are `Text`, never rich markup.

It has no colours if NO_COLOR is set, or if the output is not a terminal.
"""

from typing import Any, Final

import rich.table
from rich.console import Group, RenderableType
from rich.text import Text

from replay.report import tables, wording, zone_tables, zone_wording
from replay.report.decision import first_lines
from replay.report.floors import saved_by_floors
from replay.report.model import Report, actual_bytes, predicted_bytes, stream_bytes
from replay.report.net import net_explained, net_table
from replay.report.table import ReportColumn, ReportTable, neutral
from replay.report.wording import MODELLED, amount, duration, percent, plural, shown, size

ROWS: Final = 10
"""The most rows in a table by client, topic or broker. The last of them adds up the rest. A row for all
fetches, or for the bytes that belong to no topic, is not counted here."""
PROBLEMS: Final = 5
"""The most problems in the list. Further problems are only counted; the JSON has all."""


def render(report: Report) -> RenderableType:
    """Build what `measure` prints, for `rich.console.Console.print`."""
    if not report["fetch"]["actual"]["requests"]:
        return Group(_headline(report), Text(), _reading(report))
    parts: list[RenderableType] = [
        _headline(report),
        table(tables.to_do(report, ROWS)),
        table(tables.where(report)),
        table(tables.by_client(report, ROWS)),
        table(tables.by_topic(report, ROWS)),
        table(tables.by_broker(report, ROWS)),
        Text(wording.session_counts(report)),
        table(tables.policies(report)),
        *_with_lines(tables.passed(report, ROWS), tables.slots(report)),
        Text(wording.limits(report)),
        *_with_lines(tables.limits(report, ROWS), tables.starved(report)),
        *_floors(report),
        *_cooperative(report),
        *_zones(report),
        _reading(report),
        _modelled(report),
        *_net(report),
        Text(f"{wording.FORMULA} {wording.SAVED} {wording.POLICY[report['policy']]}", style="dim"),
    ]
    return Group(*(line for part in parts[:-1] for line in (part, Text())), parts[-1])


def _headline(report: Report) -> Text:
    fetch, text = report["fetch"], Text()
    style = _style(fetch["saved_bytes"])
    if fetch["actual"]["requests"]:
        styles = {"decided": style, "unsure": "yellow"}
        for name, line in first_lines(report):
            text.append(line + "\n", style=styles.get(name, ""))
        for warning in filter(None, [wording.unread(report), *wording.warnings(report)]):
            text.append(warning + "\n", style="yellow")
    text.append(wording.captured(report) + "\n")
    if filters := wording.narrowed(report["filters"]):
        text.append(filters + "\n")
    if not fetch["actual"]["requests"]:
        text.append("No fetch request was found.\n", style="bold")
        return text.append(report["decision"]["next_step"])
    if wording.untold(report):
        return text.append(f"{size(actual_bytes(fetch))} of fetch bytes")
    text.append(f"{size(fetch['saved_bytes'])} of {size(actual_bytes(fetch))} fetch bytes saved: ")
    text.append(percent(fetch["saved_ratio"]), style=style)
    text.append(f" ({size(predicted_bytes(fetch))} would go to and from the brokers)")
    if crosses := zone_wording.crossing(report):
        text.append(f"\n{crosses}")
    return text


def _style(saved: int) -> str:
    return "bold green" if saved > 0 else "bold red" if saved < 0 else "bold"


def table(described: ReportTable) -> rich.table.Table:
    """Return a table in rich's form, without the columns that are only for wide output."""
    drawn = rich.table.Table(
        title=Text(described.title),
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="dim",
    )
    shown_at = [place for place, column in enumerate(described.columns) if not column.wide]
    columns = [described.columns[place] for place in shown_at]
    for column in columns:
        title = column.title.lower() if column.short is None else column.short
        if column.unit.number:
            drawn.add_column(title, justify="right", no_wrap=True)
        else:
            drawn.add_column(title, overflow="fold")
    for line in described.lines:
        drawn.add_row(*(_cell(described.columns[place], line.values[place]) for place in shown_at))
        if line.note:
            drawn.add_row(Text(f"  {line.note}", style="dim"))
    return drawn


def _cell(column: ReportColumn, value: Any) -> Text:
    unit = column.unit
    style = "dim" if column.soft else _style(unit.sign(value)) if unit.sign is not neutral else ""
    return Text(unit.write(value), style=style)


def _with_lines(*described: ReportTable) -> list[RenderableType]:
    return [table(one) for one in described if one.lines]


def _floors(report: Report) -> list[RenderableType]:
    if "floors" not in report:
        return []
    return [table(tables.floors(report["floors"], ROWS)), Text(saved_by_floors(report["floors"]))]


def _cooperative(report: Report) -> list[RenderableType]:
    if "cooperative" not in report:
        return []
    found = report["cooperative"]
    return [table(tables.evenness(found, ROWS)), Text(" ".join(wording.spread(found, ROWS)), style="dim")]


def _zones(report: Report) -> list[RenderableType]:
    if "zones" not in report:
        return []
    found = report["zones"]
    leaders = _with_lines(zone_tables.leaders(found, ROWS))
    return [
        table(zone_tables.zones(found)),
        table(zone_tables.pairs(found, ROWS)),
        table(zone_tables.by_client(found, ROWS)),
        table(zone_tables.by_topic(found, ROWS)),
        table(zone_tables.moves(found)),
        Text(zone_wording.WAYS, style="dim"),
        *leaders,
        *([Text(zone_wording.LATENCIES, style="dim")] if leaders else []),
        table(zone_tables.racks(found, ROWS)),
        table(zone_tables.clients(found, ROWS)),
        Text(zone_wording.zones_known(found)),
        *([Text(zone_wording.money(found))] if found["money"] else []),
    ]


def _reading(report: Report) -> Text:
    readable, problems = report["readable"], report["input"]["problems"]
    whole = stream_bytes(readable)
    share = f"{percent(readable['ratio'])} of {size(whole)} in the streams"
    text = Text(f"Readable: {share if whole else wording.NOTHING_IN_STREAMS}")
    reasons = sorted(readable["by_reason"].items(), key=lambda item: -item[1])
    if reasons:
        text.append("; not: " + ", ".join(f"{shown(reason)} {size(count)}" for reason, count in reasons))
    for line in filter(None, [wording.unpaired(report), *wording.about_reading(report)]):
        text.append(f". {line}")
    for problem in problems[:PROBLEMS]:
        text.append(f"\n{wording.problem(problem)}", style="yellow")
    if more := len(problems[PROBLEMS:]):
        text.append(f"\nand {plural(more, 'more problem')}; the JSON has all", style="yellow")
    return text


def _modelled(report: Report) -> Text:
    tcp_ip, money = report["modelled"]["tcp_ip"], report["modelled"]["money"]
    text = Text(f"{MODELLED}: TCP/IP headers {size(tcp_ip['bytes_actual'])} captured, ")
    text.append(f"{size(tcp_ip['bytes_predicted'])} predicted ({tcp_ip['how']})")
    if money:
        text.append(
            f"\n{MODELLED}: money saved {amount(money['saved'], money['currency'])} in "
            f"{duration(report['time']['captured_seconds'])}{wording.in_30_days(report)}, at "
            f"{wording.per_gb(money['price_per_gb'], money['currency'])} ({money['how']})"
        )
    return text


def _net(report: Report) -> list[RenderableType]:
    found = report["modelled"]["net"]
    if found is None or not found["sidecars"]:
        return []
    return [table(net_table(found)), Text(" ".join(net_explained(report)), style="dim")]
