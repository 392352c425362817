"""The report for a terminal with 80 columns. Names of clients and brokers are `Text`, never rich markup.

It has no colours if NO_COLOR is set, or if the output is not a terminal.
"""

from typing import Any, Final

import rich.table
from rich.console import Group, RenderableType
from rich.text import Text

from replay.report import tables, zone_tables
from replay.report.decision import conclusion, without_gateway
from replay.report.floors import saved_by_floors
from replay.report.model import Report, actual_bytes, predicted_bytes, stream_bytes
from replay.report.net import net_explained, net_lines, net_table
from replay.report.table import ReportColumn, ReportTable, neutral
from replay.report.wording import (
    FORMULA,
    MODELLED,
    NOTHING_IN_STREAMS,
    POLICY,
    SAVED,
    amount,
    apart,
    by_protocol,
    captured,
    clocks,
    copied,
    counted_twice,
    decided,
    duration,
    encrypted,
    how_sure,
    in_30_days,
    left_out,
    limits,
    narrowed,
    on_loopback,
    per_gb,
    percent,
    plural,
    session_counts,
    shown,
    size,
    spread,
    unpaired,
    unread,
    untold,
    warnings,
)
from replay.report.zone_wording import crossing, latencies, money, ways, zones_known
from replay.report.zones_model import ZonesReport

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
        Text(session_counts(report)),
        table(tables.policies(report)),
        *(table(one) for one in (tables.passed(report, ROWS), tables.slots(report)) if one.lines),
        *_limits(report),
        *_floors(report),
        *_cooperative(report),
        *_zones(report),
        _reading(report),
        _modelled(report),
        *_net(report),
        Text(f"{FORMULA} {SAVED} {POLICY[report['policy']]}", style="dim"),
    ]
    return Group(*(line for part in parts[:-1] for line in (part, Text())), parts[-1])


def _headline(report: Report) -> Text:
    fetch, text = report["fetch"], Text()
    if fetch["actual"]["requests"]:
        for warning in counted_twice(report):
            text.append(warning + "\n", style="yellow")
        text.append(decided(report) + "\n", style=_style(fetch["saved_bytes"]))
        lines = (conclusion(report), apart(report), *net_lines(report), without_gateway(report))
        for line in filter(None, lines):
            text.append(line + "\n")
        if sure := how_sure(report):
            text.append(sure + "\n", style="" if report["decision"]["enough"] else "yellow")
        if free := on_loopback(report):
            text.append(free + "\n")
        for warning in filter(None, [unread(report), *warnings(report)]):
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
    text.append(f" ({size(predicted_bytes(fetch))} would go to and from the brokers)")
    if "zones" in report:
        seconds = report["decision"]["captured_seconds"]
        if crosses := crossing(report["zones"], report["modelled"]["money"], seconds):
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


def _limits(report: Report) -> list[RenderableType]:
    found = (tables.limits(report, ROWS), tables.starved(report))
    return [Text(limits(report)), *(table(one) for one in found if one.lines)]


def _floors(report: Report) -> list[RenderableType]:
    if "floors" not in report:
        return []
    return [table(tables.floors(report["floors"], ROWS)), Text(saved_by_floors(report["floors"]))]


def _cooperative(report: Report) -> list[RenderableType]:
    if "cooperative" not in report:
        return []
    found = report["cooperative"]
    more = len(found["groups"][ROWS:])
    lines = [*spread(found), *([f"And {plural(more, 'more group')}; the JSON has all."] if more else [])]
    return [table(tables.evenness(found, ROWS)), Text(" ".join(lines), style="dim")]


def _zones(report: Report) -> list[RenderableType]:
    if "zones" not in report:
        return []
    found = report["zones"]
    return [
        table(zone_tables.zones(found)),
        table(zone_tables.pairs(found, ROWS)),
        table(zone_tables.by_client(found, ROWS)),
        table(zone_tables.by_topic(found, ROWS)),
        table(zone_tables.moves(found)),
        Text(ways(), style="dim"),
        *_leaders(found),
        table(zone_tables.racks(found, ROWS)),
        table(zone_tables.clients(found, ROWS)),
        Text(zones_known(found)),
        *([Text(f"{MODELLED}: {money(found)}")] if found["money"] else []),
    ]


def _leaders(found: ZonesReport) -> list[RenderableType]:
    if not found["leaders"]:
        return []
    return [table(zone_tables.leaders(found, ROWS)), Text(latencies(), style="dim")]


def _reading(report: Report) -> Text:
    readable, problems = report["readable"], report["input"]["problems"]
    whole = stream_bytes(readable)
    share = f"{percent(readable['ratio'])} of {size(whole)} in the streams" if whole else NOTHING_IN_STREAMS
    text = Text(f"Readable: {share}")
    reasons = sorted(readable["by_reason"].items(), key=lambda item: -item[1])
    if reasons:
        text.append("; not: " + ", ".join(f"{shown(reason)} {size(count)}" for reason, count in reasons))
    if halves := unpaired(report):
        text.append(f". {halves}")
    if records := left_out(report):
        text.append(f". {records}")
    if twice := copied(report["input"]["copied_connections"]):
        text.append(f". {twice}")
    if apart := clocks(report):
        text.append(f". {apart}")
    read = report["input"]
    if tls := encrypted(read["decrypted_connections"], read["encrypted_connections"]):
        text.append(f". {tls}")
    if not_read := read["unread_packets"]:
        text.append(f". Packets not read: {by_protocol(not_read)}")
    for problem in problems[:PROBLEMS]:
        where = f"{shown(problem['file'])}: " if problem["file"] else ""
        text.append(f"\n{where}{shown(problem['problem'])}", style="yellow")
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
            f"{duration(report['time']['captured_seconds'])}{in_30_days(report)}, at "
            f"{per_gb(money['price_per_gb'], money['currency'])} ({money['how']})"
        )
    return text


def _net(report: Report) -> list[RenderableType]:
    found = report["modelled"]["net"]
    if found is None or not found["sidecars"]:
        return []
    return [table(net_table(found)), Text(" ".join(net_explained(report)), style="dim")]
