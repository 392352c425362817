"""Draws the table of several gateways. Pure functions."""

from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.console import RenderableType
from rich.text import Text

from proxy.dashboard.choice import Selection, place_of
from proxy.dashboard.figures import NOTHING, fitting, scaled, share, span, volume
from proxy.dashboard.fleet import UNREACHABLE, GatewayRow, chosen, states
from proxy.dashboard.screen import (
    LABEL,
    STATE_STYLES,
    WARNING,
    Size,
    cell,
    cut,
    drawn,
    explained,
    footer,
    line,
    packed,
    section,
    sorting,
    window,
)

_WIDTHS: Final = {"state": 8, "conns": 5, "saved/s": 8, "saved": 8, "share": 7, "CPU": 6, "memory": 7}
_NARROW: Final = ("state", "conns", "saved", "CPU", "memory")
_WIDE: Final = 100
"""The least width for all columns."""
_ALWAYS: Final = frozenset({"state", "conns"})
"""The columns that each row has, however long what is wrong is."""
_LEFT: Final = frozenset({"gateway", "state", "what is wrong"})
_SHORTEST_NAME: Final = 20
_WRONG: Final = 16
"""The lowest width of the last column, what is wrong."""
_HEAD_LINES: Final = 4
"""For the title, one line of sums, the title of the table and its column names."""
_DETAIL_LINES: Final = 4
"""For the marked gateway, below the table."""
_MIN_HEIGHT: Final = 14
"""If the screen has fewer lines than this, it has no lines for the marked gateway."""
_KEYS: Final = "Enter open  s sort  / filter  p pause  h help  q quit"
_PAGE_KEYS: Final = "Esc back  Space next page  q quit"


def frame(
    rows: Sequence[GatewayRow], choice: Selection, size: Size, *, without: int = 0, keys: bool = True
) -> RenderableType:
    """Draw one screen. `without` is the number of pods without a gateway."""
    room = size.room(keys=keys)
    if choice.paged:
        lines = [*window(page(rows, choice, size.width), choice.first, room)]
    else:
        lines = _screen(rows, choice, size, room=room, without=without)
    if keys:
        lines.append(footer(_explained_keys(choice), size))
    return drawn(lines, size)


def page(rows: Iterable[GatewayRow], choice: Selection, width: int) -> list[Text]:
    """Draw the open page: the help, or a gateway of which no more is known than its row."""
    if choice.help:
        return explained(_HELP)
    row = next((row for row in rows if row.name == choice.opened), None)
    if row is None:
        return [line("It has left.")]
    where = "Only its metrics can be read from here." if row.address else "It can't be asked from here."
    return [
        *_details(row, width),
        line(),
        line(f"{where} This command opens it within its pod:"),
        Text(row.command),
    ]


def _screen(
    rows: Sequence[GatewayRow], choice: Selection, size: Size, *, room: int | None, without: int
) -> list[Text]:
    found = chosen(rows, choice)
    keys = [row.name for row in found]
    place = place_of(choice, keys)
    sums = packed(_sums(rows), None if room is None else size.width)
    details: list[Text] = []
    fit = len(found)
    if room is not None:
        has_details = room >= _MIN_HEIGHT and len(found) > 0
        below = room - _HEAD_LINES + 1 - len(sums)
        fit = max(0, min(len(found), below - _DETAIL_LINES * has_details))
        if has_details:
            details = cut(_details(found[place], size.width), below - fit)
    first = max(0, place - fit + 1)
    shown = found[first : first + fit]
    names = max((cell_len(row.name) for row in found), default=0)
    columns = _columns(None if room is None else size.width, names)
    mark = keys[place] if room is not None and keys else ""
    return [
        _title(rows, choice, whole=room is None),
        *sums,
        _table_title(found, choice, len(shown), size, without=without),
        _table_head(columns, choice),
        *(_row(row, columns, marked=row.name == mark, whole=room is None, sort=choice.sort) for row in shown),
        *details,
    ]


def _title(rows: Sequence[GatewayRow], choice: Selection, *, whole: bool) -> Text:
    of_states: list[str | tuple[str, str]] = []
    for state, count in states(rows):
        of_states += [", " if of_states else ": ", (f"{count} {state}", STATE_STYLES.get(state, WARNING))]
    title = line(
        ("fetchgate top", LABEL),
        ("  PAUSED, p continues ", "bold reverse") if choice.paused else "",
        f"  {len(rows)} gateway{'' if len(rows) == 1 else 's'}",
        *of_states,
    )
    title.overflow = "ignore" if whole else title.overflow
    return title


def _sums(rows: Iterable[GatewayRow]) -> list[Text]:
    reports = [row.report for row in rows if row.report]
    client, saved = sum(one.client_bytes for one in reports), sum(one.saved for one in reports)
    now = [row.saved_now for row in rows if row.saved_now is not None]
    cpu = [row.cpu for row in rows if row.cpu is not None]
    return [
        line((volume(saved), LABEL), f" saved, {share(saved, client)}"),
        *((line((f"{volume(sum(now))}/s", LABEL), " now"),) if now else ()),
        line((scaled(sum(one.connections for one in reports)), LABEL), " connections"),
        *((line("CPU ", (_percent(sum(cpu)), LABEL)),) if cpu else ()),
        line((volume(sum(one.memory for one in reports)), LABEL)),
    ]


def _table_title(
    found: Sequence[GatewayRow], choice: Selection, shown: int, size: Size, *, without: int
) -> Text:
    some = f"{shown} of {len(found)}" if shown < len(found) else f"{len(found)}"
    parts = sorting(some, choice, size)
    if without:
        parts.append(f"  {without} pod{' has' if without == 1 else 's have'} no gateway")
    return section(" Gateways ", *parts)


def _columns(width: int | None, names: int) -> dict[str, int]:
    # The names get what they need, but the last column, what is wrong, gets a third of the room of both, too.
    # Without a width, names are as long as they are.
    inner = _WIDTHS if width is None or width >= _WIDE else {name: _WIDTHS[name] for name in _NARROW}
    names = max(names, len("gateway"))
    if width is None:
        return {"gateway": names, **inner, "what is wrong": _WRONG}
    room = width - 2 - sum(1 + size for size in inner.values())
    name = min(names, max(_SHORTEST_NAME, min(room - _WRONG, room * 2 // 3)))
    return {"gateway": name, **inner, "what is wrong": max(0, room - name)}


def _table_head(columns: dict[str, int], choice: Selection) -> Text:
    head = Text("", no_wrap=True, style=LABEL)
    for name, width in columns.items():
        head.append(" ")
        text = cell("" if name == "share" else name, width, left=name in _LEFT)
        head.append(
            text.rstrip() if name == "what is wrong" else text,
            style="underline" if name == choice.sort else "",
        )
    return head


def _row(row: GatewayRow, columns: dict[str, int], *, marked: bool, whole: bool, sort: str) -> Text:
    """Draw a row. If the gateway is not reachable, its row has the reason instead of its figures.

    If what is wrong does not fit into its column, it takes those before it. The state, the connections and
    the figure by which the rows are sorted stay. With `whole`, it goes on beyond the end of the screen.
    """
    drawn_row = Text(
        ">" if marked else " ", no_wrap=True, overflow="ignore" if whole else "ellipsis", end="\n"
    )
    drawn_row.append(set_cell_size(_shortened(row.name, columns["gateway"]), columns["gateway"]))
    if row.report is None:
        style = WARNING if row.state == UNREACHABLE else ""
        drawn_row.append(f" {row.state}", style=style)
        drawn_row.append(f"  {row.wrong[0] if whole else _since(row)}" if row.wrong else "", style="red")
    else:
        more = f" (and {len(row.wrong) - 1} more)" if len(row.wrong) > 1 else ""
        wrong = "; ".join(row.wrong) if whole else f"{row.wrong[0]}{more}" if row.wrong else ""
        figures = [name for name in columns if name not in {"gateway", "what is wrong"}]
        room = columns["what is wrong"]
        while not whole and cell_len(wrong) > room and figures[-1] not in {*_ALWAYS, sort}:
            room += 1 + columns[figures.pop()]
        for name in figures:
            text, style = _figure(row, name, columns[name])
            drawn_row.append(" ")
            drawn_row.append(cell(text, columns[name], left=name in _LEFT), style=style)
        if wrong:
            drawn_row.append(f" {wrong}", style="red")
    if marked:
        drawn_row.stylize("bold")
    return drawn_row


def _figure(row: GatewayRow, name: str, width: int) -> tuple[str, str]:
    report = row.report
    if report is None:
        return "", ""
    if name == "state":
        return row.state, STATE_STYLES.get(row.state, WARNING)
    if name in {"saved/s", "saved"}:
        value = row.saved_now if name == "saved/s" else report.saved
        style = "" if not value else "green" if value > 0 else "red"
        return NOTHING if value is None else volume(value), style
    text = {
        "conns": fitting(report.connections, width),
        "share": share(report.saved, report.client_bytes),
        "CPU": NOTHING if row.cpu is None else _percent(row.cpu),
        "memory": volume(report.memory) if report.memory else NOTHING,
    }
    return text[name], ""


def _percent(part: float) -> str:
    percent = 100 * max(0.0, part)
    return f"{percent:.1f} %" if percent < 9.95 else f"{percent:.0f} %"


def _since(row: GatewayRow) -> str:
    seconds = row.seconds or 0.0
    return ", ".join((*row.wrong, *((f"for {span(seconds)}",) if seconds >= 1 else ())))


def _details(row: GatewayRow, width: int) -> list[Text]:
    report = row.report
    about = [] if row.address in {"", row.name} else [row.address]
    if report is not None:
        about.append(f"fetchgate {report.version}")
        about += [f"up {span(report.uptime)}"] if report.uptime is not None else []
    lines = packed([line((row.name, LABEL)), *(line(text) for text in about)], width)
    wrong = (_since(row),) if report is None and row.wrong else row.wrong
    for reason in wrong:
        first, *rest = wrap(reason, width - 2, break_on_hyphens=False) or [""]
        lines += [line(("! ", WARNING), first), *(line(f"  {text}") for text in rest)]
    return lines


def _shortened(name: str, width: int) -> str:
    # A name is cut in its middle: pods of one workload differ in their ends, addresses in their ports.
    if cell_len(name) <= width:
        return name
    end = max(0, min(11, width // 2))
    return f"{name[: width - end - 1]}~{name[len(name) - end :]}"


def _explained_keys(choice: Selection) -> str:
    if choice.typing:
        return f"filter: {choice.filter}_   Enter keeps it, Esc clears it"
    return _PAGE_KEYS if choice.paged else _KEYS


_HELP: Final = (
    ("Keys", ""),
    ("arrows  j  k", "move the mark, or a page; PgUp, PgDn, Home, End, the mouse wheel"),
    ("Enter", "open the marked gateway; Esc or Backspace goes back"),
    ("s  S  1-7", "sort by the next column, the previous one, or that column"),
    ("r", "reverse the order"),
    ("/", "only those with this text in name, address, state or problem"),
    ("p  Space", "pause: freezes the screen, not the gateways"),
    ("q", "quit"),
    ("Gateways, those with problems first", ""),
    ("ready", "it serves clients; it may still have a problem"),
    ("degraded", "it serves clients, but has a problem"),
    ("starting", "it does not serve clients yet"),
    ("draining", "it ends when the requests in flight have their responses"),
    ("unreachable", "it did not respond; the row says why, and for how long"),
    ("conns", "connections of clients"),
    ("saved/s", "bytes saved a second, over the last ten seconds"),
    ("saved", "bytes saved since the start, and their share of the clients' bytes"),
    ("CPU", "share of a core in the last ten seconds; at first, since the start"),
    ("memory", "resident memory"),
    ("First lines", "gateways by state; the sums of those that respond"),
    ("Last lines", "the marked gateway: its address, version and problems"),
)
