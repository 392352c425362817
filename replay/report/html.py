"""The report as one HTML file. It opens offline, sends no request and needs no script.

A Content-Security-Policy in the page forbids all requests and scripts. So even a name that was not escaped
could not start one.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from replay.report import plots
from replay.report.markup import Markup, element, joined
from replay.report.model import Report, actual_bytes, predicted_bytes
from replay.report.rows import (
    Row,
    broker_rows,
    client_rows,
    connection_rows,
    limit_rows,
    passed_rows,
    spread_rows,
    starved_rows,
    to_do_rows,
    topic_rows,
    total_row,
)
from replay.report.sheet import CSS
from replay.report.wording import (
    COUNTED,
    ELIGIBLE,
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
    meaning,
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

ROWS: Final = 50
"""Most rows of a table by client, topic, broker or connection. The last one adds up the rest."""
PROBLEMS: Final = 20
SLOT_PLOTS: Final = 1
"""Brokers of which a plot shows the slots over time; the JSON has those of all."""
_CONTENT_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_TITLE: Final = "What fetch sessions would save"


def render(report: Report) -> str:
    """Build the page.

    Args:
        report: the report object.

    Returns:
        the contents of the file, to be written as UTF-8.
    """
    fetches = report["fetch"]["actual"]["requests"]
    body = element(
        "main",
        _headline(report),
        _problems(report),
        _fetches(report) if fetches else Markup(),
        _reading(report),
        _connections(report),
        element("footer", f"fetchgate {report['version']}, fetchgate replay measure"),
    )
    return f"<!doctype html>\n{element('html', _head(), element('body', body), lang='en')}\n"


def _head() -> Markup:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_CONTENT_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("link", rel="icon", href="data:,"),
        element("title", f"{_TITLE} - fetchgate"),
        element("style", Markup(CSS)),
    )


def _headline(report: Report) -> Markup:
    filters = narrowed(report["filters"])
    return joined(
        (
            element("h1", _TITLE),
            _decision(report) if report["fetch"]["actual"]["requests"] else Markup(),
            element("p", f"{captured(report)}. {filters}", class_="soft"),
            _cards(report)
            if report["fetch"]["actual"]["requests"]
            else _section("No fetch", [], "No fetch request was found.", report["decision"]["next_step"]),
        )
    )


def _decision(report: Report) -> Markup:
    sure = how_sure(report)
    class_ = "soft" if report["decision"]["enough"] else "unsure"
    return joined(
        (
            element("p", decided(report), class_="decided"),
            element("p", sure, class_=class_) if sure else Markup(),
            joined(element("p", line, class_="unsure") for line in warnings(report)),
        )
    )


def _to_do(report: Report) -> Markup:
    rows = [(*names, sentence) for names, sentence in to_do_rows(report, ROWS)]
    return _section("What to do", [_table(("Client id", "Software", "Fetch", "What to do"), (), rows)])


def _cards(report: Report) -> Markup:
    fetch = report["fetch"]
    saved, ratio = fetch["saved_bytes"], fetch["saved_ratio"]
    dearer = saved < 0
    cards = [
        (percent(abs(ratio)), f"{'more' if dearer else 'fewer'} fetch bytes to and from the brokers"),
        (size(abs(saved)), "added, both directions" if dearer else "saved, both directions"),
        (size(actual_bytes(fetch)), f"captured, in {plural(fetch['actual']['requests'], 'fetch request')}"),
        (size(predicted_bytes(fetch)), "predicted, with sessions"),
        (percent(report["readable"]["ratio"]), "of the captured streams could be read"),
    ]
    if untold(report):
        cards = [cards[2], cards[4]]  # a saving of 0 would be a guess
    classes = [f"card lead{' dearer' if dearer else ''}", *["card"] * (len(cards) - 1)]
    boxes = [
        element("div", element("b", figure), element("span", words), class_=class_)
        for class_, (figure, words) in zip(classes, cards, strict=True)
    ]
    return element("div", boxes, class_="cards")


def _problems(report: Report) -> Markup:
    problems = report["input"]["problems"]
    if not problems:
        return Markup()
    lines = [
        f"{shown(problem['file'])}: {shown(problem['problem'])}"
        if problem["file"]
        else shown(problem["problem"])
        for problem in problems[:PROBLEMS]
    ]
    if more := len(problems[PROBLEMS:]):
        lines.append(f"and {number(more)} more; the JSON has all")
    return element(
        "div",
        element("b", "Parts of the input could not be read. They are not in the figures."),
        element("ul", [element("li", line) for line in lines]),
        class_="banner",
    )


def _fetches(report: Report) -> Markup:
    return joined(
        (
            _to_do(report),
            _section("How to read this", [], f"{FORMULA} {SAVED}", POLICY[report["policy"]], COUNTED),
            _over_time(report),
            _where(report),
            _breakdown("By client", ("Client id", "Software", "Fetch"), client_rows(report, ROWS), "Fetches"),
            _breakdown(
                "By topic",
                ("Topic",),
                topic_rows(report, ROWS),
                "Entries",
                "A topic's bytes are its entries in requests and responses, with the elements around them. "
                "The rest of each frame has its own row, so that the column adds up.",
            ),
            _breakdown("By broker", ("Broker",), [*broker_rows(report, ROWS), total_row(report)], "Fetches"),
            _sessions(report),
            _policies(report),
            _passed(report),
            _slots(report),
            _limits(report),
            _cooperative(report),
            _modelled(report),
        )
    )


def _section(title: str, content: Iterable[Markup], *words: str, class_: str = "") -> Markup:
    lines = [element("p", line, class_="soft") for line in words]
    return element("section", element("h2", title), lines, content, class_=class_)


def _legend() -> Markup:
    keys = [
        element("span", element("i", class_=f"swatch {name}"), words)
        for name, words in (("captured", "as captured"), ("predicted", "predicted, with sessions"))
    ]
    return element("div", keys, class_="legend")


def _drawn(plot: Callable[[int], Markup]) -> Markup:
    """Draw a plot for wide screens and for phones. The style sheet shows one of them."""
    return element("div", joined(plot(width) for width in (plots.WIDE, plots.NARROW)), class_="wide")


def _over_time(report: Report) -> Markup:
    if not report["over_time"]:
        return Markup()
    stretches = report["time"]["stretches"]
    plot = _drawn(partial(plots.over_time, report["over_time"], stretches))
    return _section(
        "Fetch bytes over time",
        [_legend(), plot],
        "Bytes a second, both directions; times are UTC. A narrow band stands for a time without a capture.",
    )


def _where(report: Report) -> Markup:
    split = report["where"]
    rows = [
        (
            joined((element("i", class_=f"swatch key {key}"), element("span", name))),
            element("span", what, class_="soft"),
            size(split["actual"][key]),
            size(split["predicted"][key]),
        )
        for key, (name, what) in SHARES.items()
    ]
    return _section(
        "Where the bytes go",
        [plots.where(split), _table(("Part", "What it is"), ("Captured", "Predicted"), rows)],
        "Sessions avoid listing and empty entries: partitions that are named again although nothing changed.",
    )


def _breakdown(title: str, names: Sequence[str], rows: Sequence[Row], counted: str, *words: str) -> Markup:
    most = max((max(row.actual, row.predicted) for row in rows), default=0)
    numbers = (counted, "Captured", "Eligible", "Predicted", "Saved")
    body = [_row(row, plots.pair(row.actual, row.predicted, most), numbers) for row in rows]
    table = element("table", _header(names, numbers, element("th", scope="col")), element("tbody", body))
    return _section(title, [_legend(), element("div", table, class_="wide")], *words, class_="long")


def _row(row: Row, bar: Markup, labels: Sequence[str]) -> Markup:
    """Build a row. On phones each figure stands under its label."""
    class_ = "n good" if row.saved > 0 else "n bad" if row.saved < 0 else "n"
    figures = (number(row.count), size(row.actual), size(row.eligible), size(row.predicted))
    return element(
        "tr",
        [_name(name, row.why if not place else "") for place, name in enumerate(row.names)],
        [
            element("td", figure, class_="n", data_label=label)
            for figure, label in zip(figures, labels, strict=False)
        ],
        element("td", percent(row.ratio), class_=class_, title=size(row.saved), data_label=labels[-1]),
        element("td", bar, class_="bar"),
        class_="total" if row.total else "",
    )


def _name(name: str, why: str) -> Markup:
    note = element("small", why, class_="soft") if why else Markup()
    return element("td", joined((element("span", name), note)) if why else name, class_="name")


def _header(names: Iterable[str], numbers: Iterable[str], *more: Markup) -> Markup:
    cells = [
        *(element("th", name, scope="col") for name in names),
        *(element("th", name, class_="n", scope="col") for name in numbers),
        *more,
    ]
    return element("thead", element("tr", cells))


def _table(names: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Build a table whose first columns are names and whose other columns are figures."""
    cells = [*(("name", "") for _ in names), *(("n", label) for label in numbers)]
    body = [
        element(
            "tr",
            [
                element("td", cell, class_=class_, data_label=label)
                for (class_, label), cell in zip(cells, row, strict=True)
            ],
        )
        for row in rows
    ]
    table = element("table", _header(names, numbers), element("tbody", body))
    return element("div", table, class_="wide")


def _sessions(report: Report) -> Markup:
    fetch = report["fetch"]
    actual, eligible, sessions = fetch["actual"], fetch["eligible"], fetch["sessions"]
    through = sessions["full"] + sessions["incremental"] + sessions["sessionless"]
    before = (actual["requests"], actual["request_bytes"], actual["response_bytes"])
    replaced = (eligible["exchanges"], eligible["request_bytes"], eligible["response_bytes"])
    instead = (through, sessions["request_bytes"], sessions["response_bytes"])
    after = tuple(
        first - second + third for first, second, third in zip(before, replaced, instead, strict=True)
    )
    rows = [
        (name, number(fetches), size(requests), size(responses))
        for name, (fetches, requests, responses) in (
            ("Captured", before),
            ("- eligible of these", replaced),
            ("+ the eligible through sessions", instead),
            ("= predicted broker side", after),
        )
    ]
    return _section(
        "From captured to predicted",
        [_table(("",), ("Fetches", "Request bytes", "Response bytes"), rows)],
        ELIGIBLE,
        session_counts(report),
    )


def _policies(report: Report) -> Markup:
    rows = [
        (
            name,
            POLICY[name],
            size(row["predicted_bytes"]),
            size(row["saved_bytes"]),
            percent(row["saved_ratio"]),
        )
        for name, row in report["policies"].items()
    ]
    return _section(
        "Both policies",
        [_table(("Policy", "What it is"), ("Predicted", "Saved", "Part"), rows)],
        f"All other figures are of the policy {report['policy']}.",
    )


def _passed(report: Report) -> Markup:
    rows = [
        (*names, shown(reason, empty=""), meaning(reason), number(row["exchanges"]), size(row["bytes"]))
        for names, reason, row in passed_rows(report, ROWS)
    ]
    if not rows:
        return Markup()
    names = ("Client id", "Software", "Fetch", "Reason", "What it means")
    return _section(
        "Why fetches pass as captured",
        [_table(names, ("Fetches", "Bytes"), rows)],
        "These fetches went through no session: they are as captured in the predicted bytes too.",
    )


def _slots(report: Report) -> Markup:
    if not report["slots"]:
        return Markup()
    rows = [
        (
            shown(row["broker"]),
            number(row["requested_at_once"]),
            number(row["sessions_at_once"]),
            number(row["slots"]),
            number(row["evictions"]),
            number(row["refused"]),
        )
        for row in report["slots"]
    ]
    numbers = ("Needed at once", "Used at once", "Slots", "Evictions", "Refused")
    return _section(
        "Fetch session slots of the brokers",
        [_table(("Broker",), numbers, rows), *_slots_over_time(report)],
        "A broker has max.incremental.fetch.session.cache.slots slots for sessions (1,000 by default). When "
        "all are used, it evicts a session by Kafka's rules, or refuses the new one. Fetches without a "
        "session stay full and save nothing.",
    )


def _slots_over_time(report: Report) -> Iterable[Markup]:
    """Draw the slots of the brokers that need most of them."""
    brokers = sorted(report["slots"], key=lambda row: -row["requested_at_once"])[:SLOT_PLOTS]
    for row in brokers:
        if row["over_time"]:
            yield element("p", f"Slots that {shown(row['broker'])} needs over time", class_="soft")
            stretches = report["time"]["stretches"]
            yield _drawn(partial(plots.slots, row["over_time"], row["slots"], stretches))


def _limits(report: Report) -> Markup:
    tables = []
    if rows := limit_rows(report, ROWS):
        figures = ("max_bytes", "Largest", "Over the limit", "By", "Starved")
        tables.append(_table(("Client id", "Fetch"), figures, rows))
    if starved := starved_rows(report):
        names = ("Starved longest", "Client id")
        tables.append(_table(names, ("Time", "Responses", "Offsets behind"), starved))
    return _section("Response limits", tables, limits(report))


def _cooperative(report: Report) -> Markup:
    if "cooperative" not in report:
        return Markup()
    found = report["cooperative"]
    rows = [
        (
            row.name,
            row.spread,
            row.records,
            row.size,
            row.shared,
            row.evenness,
            row.evenness_of_bytes,
            row.hottest,
            row.hottest_of_bytes,
            row.bound,
        )
        for row in spread_rows(found, ROWS)
    ]
    figures = (
        "Records",
        "Bytes",
        "Shared partitions",
        "Evenness",
        "Of bytes",
        "Hottest key",
        "Of bytes",
        "At most",
    )
    lines = spread(found)
    if more := len(found["groups"][ROWS:]):
        lines.append(f"And {plural(more, 'more group')}; the JSON has all.")
    return _section(
        f"Keys over {found['members']} members",
        [_table(("Group", "Share of each member"), figures, rows)],
        *lines,
    )


def _modelled(report: Report) -> Markup:
    tcp_ip, money = report["modelled"]["tcp_ip"], report["modelled"]["money"]
    rows = [("TCP/IP headers", size(tcp_ip["bytes_actual"]), size(tcp_ip["bytes_predicted"]), tcp_ip["how"])]
    table = _table(("", "Captured", "Predicted", "How"), (), rows)
    if not money:
        return _section(MODELLED, [table])
    saved = (
        f"At {money['price_per_gb']:g} per GB the saved bytes cost {price(money['saved'])} in the time of "
        f"the capture, or {price(money['saved_per_month'])} in 30 days of the same traffic: {money['how']}."
    )
    return _section(MODELLED, [table, element("p", saved)])


def _connections(report: Report) -> Markup:
    if not report["connections"]:
        return Markup()
    names, rows = ("Connection", "Client id"), connection_rows(report, ROWS)
    return _breakdown("Largest connections", names, rows, "Fetches")


def _reading(report: Report) -> Markup:
    readable = report["readable"]
    whole = readable["readable_bytes"] + readable["unreadable_bytes"]
    ranked = sorted(readable["by_reason"].items(), key=lambda item: (-item[1], item[0]))
    rows = [("readable", size(readable["readable_bytes"]), percent(readable["ratio"]))]
    rows += [(shown(reason), size(count), percent(count / max(whole, 1))) for reason, count in ranked]
    words = [
        f"Of {size(whole)} in the captured TCP streams. No other figure includes what could not be read."
    ]
    if halves := unpaired(report):
        words.append(f"Incomplete: {halves}.")
    if records := left_out(report):
        words.append(f"{records}.")
    if apart := clocks(report):
        words.append(f"{apart}.")
    read = report["input"]
    if tls := encrypted(read["decrypted_connections"], read["encrypted_connections"]):
        words.append(f"{tls}.")
    content = [plots.share(readable["ratio"]), _table(("Part",), ("Bytes", "Share"), rows)]
    return _section("How much could be read", content, *words)
