"""Builds the report as one HTML file. The file opens offline, sends no request and needs no script.

The templates are in ``page``. They escape all text. In addition, a Content-Security-Policy in the page
forbids all requests and scripts. So even a name that is not escaped could not cause a request or run a
script.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from replay.report import plots, tables, wording, zone_tables, zone_wording
from replay.report.decision import first_lines
from replay.report.floors import saved_by_floors
from replay.report.markup import Markup, joined
from replay.report.model import Net, Report, actual_bytes, predicted_bytes, stream_bytes
from replay.report.net import net_explained, net_table
from replay.report.wording import (
    amount,
    duration,
    estimated_amount,
    estimated_from,
    number,
    percent,
    plural,
    shown,
    size,
)

if TYPE_CHECKING:
    from jinja2 import Environment

ROWS: Final = 50
"""The most rows in a table by client, topic, broker or connection, counted as in `terminal`. A table of
connections has no row that adds up the rest."""
PROBLEMS: Final = 20
_BEFORE_UNIT: Final = re.compile(r"(?<=\d) (?=(?:[kMGTP]?B|%|ms|s|min|h|d|[A-Z]{3})(?!\w))")
"""A space between a figure and its unit, or a currency such as USD."""
SLOT_PLOTS: Final = 1
"""The number of brokers with a plot of slots over time. The JSON report has all brokers."""


def render(report: Report) -> str:
    """Build the page, to be written as UTF-8."""
    return environment().get_template("page.html").render(report=report, rows=ROWS)


@cache
def environment() -> "Environment":
    """Return the Jinja environment that loads the templates of the page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - only --html needs it

    made = Environment(
        loader=PackageLoader("replay.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_with_units,
    )
    for module in (plots, tables, wording, zone_tables, zone_wording):
        made.globals[module.__name__.rpartition(".")[2]] = module
    for function in (
        _cards,
        _drawn,
        _limits_in_short,
        _money,
        _problems,
        _reading_words,
        _slots_in_short,
        _slots_over_time,
        first_lines,
        net_explained,
        net_table,
        saved_by_floors,
    ):
        made.globals[function.__name__.lstrip("_")] = function
    return made


def _with_units(value: object) -> object:
    """Keep a figure and its unit or currency in one line of the page. Markup stays as it is."""
    return _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", value) if type(value) is str else value


def _cards(report: Report) -> list[tuple[str, str]]:
    fetch = report["fetch"]
    saved, ratio = fetch["saved_bytes"], fetch["saved_ratio"]
    dearer, seconds = saved < 0, report["time"]["captured_seconds"]
    span = f" in {duration(seconds)}" if seconds else ""
    requests = plural(fetch["actual"]["requests"], "fetch request")
    cards = [
        (percent(abs(ratio)), f"{'more' if dearer else 'fewer'} fetch bytes to and from the brokers{span}"),
        (size(abs(saved)), f"{'added' if dearer else 'saved'}{span}, both directions"),
        (size(actual_bytes(fetch)), f"captured{span}: {requests} and their responses"),
        (size(predicted_bytes(fetch)), f"predicted{span}, with sessions"),
        (percent(report["readable"]["ratio"]), f"of what was captured{span} could be read"),
    ]
    if wording.untold(report):
        return [cards[2], cards[4]]  # a saving of 0 would be a guess
    return [*cards[:2], *_net_card(report["modelled"]["net"]), *cards[2:]]


def _net_card(net: Net | None) -> list[tuple[str, str]]:
    if net is None or not net["sidecars"]:
        return []
    between, seconds = net["between_zones"], net["captured_seconds"]
    left = (between or net["services"][0])["net_per_month"]
    cost = amount(net["services"][0]["cost_per_month"], net["currency"])
    priced = ", if only bytes between zones cost money" if between else ""
    words = f"net a month, less {cost} for {plural(net['sidecars'], 'sidecar')}{priced}"
    return [(estimated_amount(left, net["currency"], seconds), f"{words} ({estimated_from(seconds)})")]


def _slots_in_short(report: Report) -> str:
    """Say how few slots are needed; "" if a broker needs half of its slots, or had none for a session."""
    rows = report["slots"]
    if any(row["evictions"] or row["refused"] or 2 * row["requested_at_once"] > row["slots"] for row in rows):
        return ""
    most = max(rows, key=lambda row: row["requested_at_once"], default=None)
    return f"{number(most['requested_at_once'])} of {number(most['slots'])} needed" if most else ""


def _limits_in_short(report: Report) -> str:
    found = report["limits"]
    return "" if found["over_limit"] or found["starved"] else "no response above, no partition starved"


def _problems(report: Report) -> list[str]:
    problems = report["input"]["problems"]
    lines = [wording.problem(one) for one in problems[:PROBLEMS]]
    if more := len(problems[PROBLEMS:]):
        lines.append(f"and {number(more)} more; the JSON has all")
    return lines


def _drawn(plot: Callable[..., Markup], *given: Any) -> Markup:
    """Draw a plot for wide screens, and the same plot for phones. The style sheet shows one of the two."""
    return joined(plot(*given, width) for width in (plots.WIDE, plots.NARROW))


def _slots_over_time(report: Report) -> Iterator[tuple[str, Markup]]:
    brokers = sorted(report["slots"], key=lambda row: -row["requested_at_once"])[:SLOT_PLOTS]
    for row in brokers:
        if row["over_time"]:
            stretches = report["time"]["stretches"]
            yield shown(row["broker"]), _drawn(plots.slots, row["over_time"], row["slots"], stretches)


def _money(report: Report) -> str:
    money = report["modelled"]["money"]
    if not money:
        return ""
    currency, span = money["currency"], duration(report["time"]["captured_seconds"])
    return (
        f"At {wording.per_gb(money['price_per_gb'], currency)} the saved bytes cost "
        f"{amount(money['saved'], currency)} in the {span} of the capture{wording.in_30_days(report)}: "
        f"{money['how']}."
    )


def _reading_words(report: Report) -> list[str]:
    whole, halves = stream_bytes(report["readable"]), wording.unpaired(report)
    first = (
        f"Of {size(whole)} in the captured TCP streams. All other figures leave out unreadable bytes."
        if whole
        else f"Readable: {wording.NOTHING_IN_STREAMS}."
    )
    incomplete = [f"Incomplete: {halves}."] if halves else []
    return [first, *incomplete, *(f"{line}." for line in wording.about_reading(report))]
