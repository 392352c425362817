"""Builds the report as one HTML file. The file opens offline, sends no request and needs no script.

The templates are in ``page``. They escape all text. In addition, a Content-Security-Policy in the page
forbids all requests and scripts. So even a name that is not escaped could not cause a request or run a
script.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from replay.report import plots, tables, zone_tables
from replay.report.decision import conclusion, without_gateway
from replay.report.floors import saved_by_floors
from replay.report.markup import Markup, joined
from replay.report.model import Net, Report, actual_bytes, predicted_bytes, stream_bytes
from replay.report.net import net_explained, net_lines, net_table
from replay.report.wording import (
    COUNTED,
    ELIGIBLE,
    FORMULA,
    MODELLED,
    NOTHING_IN_STREAMS,
    POLICY,
    PRODUCT,
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
    estimated_amount,
    estimated_from,
    how_sure,
    in_30_days,
    left_out,
    limits,
    narrowed,
    number,
    on_loopback,
    per_gb,
    percent,
    plural,
    session_counts,
    shown,
    size,
    spread,
    unpaired,
    untold,
    warnings,
)
from replay.report.zone_wording import crossing, latencies, ways, zones_known
from replay.report.zone_wording import money as zone_money
from replay.report.zones_model import ZonesReport

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
    fetches = report["fetch"]["actual"]["requests"] > 0
    return (
        environment()
        .get_template("page.html")
        .render(
            report=report,
            product=PRODUCT,
            fetches=fetches,
            captured=captured(report),
            narrowed=narrowed(report["filters"]),
            problems=_problems(report),
            reading_words=_reading_words(report),
            readable=plots.share(report["readable"]["ratio"]) if stream_bytes(report["readable"]) else "",
            tables={
                "reading": tables.reading(report),
                "connections": tables.connections(report, ROWS),
                **(_tables(report) if fetches else {}),
            },
            **(_fetches(report) if fetches else {}),
        )
    )


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
    made.globals["pair"] = plots.pair
    return made


def _with_units(value: object) -> object:
    """Keep a figure and its unit or currency in one line of the page. Markup stays as it is."""
    return _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", value) if type(value) is str else value


def _tables(report: Report) -> dict[str, Any]:
    found, net = report.get("cooperative"), report["modelled"]["net"]
    return {
        "to_do": tables.to_do_in_short(report, ROWS),
        "where": tables.where(report),
        "by_client": tables.by_client(report, ROWS),
        "by_topic": tables.by_topic(report, ROWS),
        "by_broker": tables.by_broker(report, ROWS),
        "sessions": tables.sessions(report),
        "policies": tables.policies(report),
        "passed": tables.passed(report, ROWS),
        "slots": tables.slots(report),
        "limits": tables.limits(report, ROWS),
        "starved": tables.starved(report),
        "floors": tables.floors(report["floors"], ROWS) if "floors" in report else None,
        "evenness": tables.evenness(found, ROWS) if found else None,
        "modelled": tables.modelled(report),
        "net": net_table(net) if net and net["sidecars"] else None,
    } | (_zone_tables(report["zones"]) if "zones" in report else {})


def _zone_tables(found: ZonesReport) -> dict[str, Any]:
    return {
        "zones": zone_tables.zones(found),
        "zone_pairs": zone_tables.pairs(found, ROWS),
        "zone_clients": zone_tables.by_client(found, ROWS),
        "zone_topics": zone_tables.by_topic(found, ROWS),
        "zone_moves": zone_tables.moves(found),
        "zone_leaders": zone_tables.leaders(found, ROWS),
        "racks": zone_tables.racks(found, ROWS),
        "client_racks": zone_tables.clients(found, ROWS),
    }


def _fetches(report: Report) -> dict[str, Any]:
    stretches = report["time"]["stretches"]
    over_time = report["over_time"]
    return {
        "decided": decided(report),
        "apart": apart(report),
        "sure": how_sure(report),
        "on_loopback": on_loopback(report),
        "counted_twice": counted_twice(report),
        "warnings": warnings(report),
        "cards": _cards(report),
        "how_to_read": [f"{FORMULA} {SAVED}", POLICY[report["policy"]], COUNTED],
        "over_time": _drawn(partial(plots.over_time, over_time, stretches)) if over_time else "",
        "where": plots.where(report["where"]),
        "eligible": ELIGIBLE,
        "session_counts": session_counts(report),
        "slots_over_time": list(_slots_over_time(report)),
        "slots_in_short": _slots_in_short(report),
        "limits": limits(report),
        "limits_in_short": _limits_in_short(report),
        "floors_words": saved_by_floors(report["floors"]) if "floors" in report else "",
        "keys_words": _keys_words(report),
        "modelled": MODELLED,
        "money": _money(report),
        "net_in_short": net_lines(report),
        "without_gateway": without_gateway(report),
        "conclusion": conclusion(report),
        "net_words": net_explained(report),
        **_zone_words(report),
    }


def _zone_words(report: Report) -> dict[str, str]:
    if "zones" not in report:
        return {"zones_crossing": ""}
    found = report["zones"]
    return {
        "zones_crossing": crossing(
            found, report["modelled"]["money"], report["decision"]["captured_seconds"]
        ),
        "zones_known": zones_known(found),
        "zone_ways": ways(),
        "zone_latencies": latencies(),
        "zone_money": f"{MODELLED}: {zone_money(found)}" if found["money"] else "",
    }


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
    if untold(report):
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
    lines = [
        f"{shown(problem['file'])}: {shown(problem['problem'])}"
        if problem["file"]
        else shown(problem["problem"])
        for problem in problems[:PROBLEMS]
    ]
    if more := len(problems[PROBLEMS:]):
        lines.append(f"and {number(more)} more; the JSON has all")
    return lines


def _drawn(plot: Callable[[int], Markup]) -> Markup:
    """Draw a plot for wide screens, and the same plot for phones. The style sheet shows one of the two."""
    return joined(plot(width) for width in (plots.WIDE, plots.NARROW))


def _slots_over_time(report: Report) -> Iterator[tuple[str, Markup]]:
    brokers = sorted(report["slots"], key=lambda row: -row["requested_at_once"])[:SLOT_PLOTS]
    for row in brokers:
        if row["over_time"]:
            stretches = report["time"]["stretches"]
            yield (
                shown(row["broker"]),
                _drawn(partial(plots.slots, row["over_time"], row["slots"], stretches)),
            )


def _keys_words(report: Report) -> list[str]:
    found = report.get("cooperative")
    if found is None:
        return []
    more = len(found["groups"][ROWS:])
    return [*spread(found), *([f"And {plural(more, 'more group')}; the JSON has all."] if more else [])]


def _money(report: Report) -> str:
    money = report["modelled"]["money"]
    if not money:
        return ""
    currency, span = money["currency"], duration(report["time"]["captured_seconds"])
    return (
        f"At {per_gb(money['price_per_gb'], currency)} the saved bytes cost "
        f"{amount(money['saved'], currency)} in the {span} of the capture{in_30_days(report)}: "
        f"{money['how']}."
    )


def _reading_words(report: Report) -> list[str]:
    read, whole = report["input"], stream_bytes(report["readable"])
    halves = unpaired(report)
    found = (
        f"Incomplete: {halves}" if halves else "",
        left_out(report),
        copied(read["copied_connections"]),
        clocks(report),
        encrypted(read["decrypted_connections"], read["encrypted_connections"]),
        f"Packets not read: {by_protocol(read['unread_packets'])}" if read["unread_packets"] else "",
    )
    return [
        f"Of {size(whole)} in the captured TCP streams. All other figures leave out unreadable bytes."
        if whole
        else f"Readable: {NOTHING_IN_STREAMS}.",
        *(f"{line}." for line in found if line),
    ]
