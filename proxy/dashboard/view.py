"""One screen of the dashboard: a snapshot, a selection and a size in; what rich prints out. Pure.

It uses the sixteen colours of the terminal, which suit a light and a dark one. Colour alone never carries
information.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from proxy.dashboard import groups
from proxy.dashboard.choice import SORTS, Selection, picked
from proxy.dashboard.figures import NOTHING, moment, scaled, share, span, sparkline, volume
from proxy.dashboard.snapshot import BOOTSTRAP, BrokerFigures, Client, PastEvent, Recent, Snapshot

WIDE: Final = 160
"""At this width or more, tables have more columns."""
_MAX_REASONS: Final = 2
_MAX_EVENTS: Final = 10
_HEAD_LINES: Final = 6
"""The lines of the title, the table of bytes, the fetches and the connections."""
_SPARKLINE_WIDTH: Final = 60
_STATE_STYLES: Final = {"ready": "bold green", "starting": "bold cyan", "draining": "bold magenta"}
_SHORT: Final = {"incremental": "incr"}
_WARNING: Final = "bold red"
_LABEL: Final = "bold"
_KEYS: Final = "s sort  r reverse  / filter  p pause  h help  q quit"
_GROUP_KEYS: Final = "g clients and brokers  p pause  h help  q quit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of the screen."""

    width: int
    height: int | None = None
    """None: unlimited."""
    plain: bool = False
    """The terminal has only ASCII."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreachable:
    """The gateway is not reachable."""

    address: str
    reason: str
    seconds: float
    """For how long."""
    last: Snapshot | None
    """The last snapshot before that."""


def frame(
    snapshot: Snapshot | Unreachable, choice: Selection, size: Size, *, keys: bool = True
) -> RenderableType:
    """Draw one screen.

    Args:
        snapshot: what is shown.
        choice: how it is shown.
        size: the size of the screen.
        keys: show the line of keys.
    """
    if choice.help:
        lines: list[RenderableType] = [*_help()]
    elif isinstance(snapshot, Unreachable):
        lines = [*_unreachable(snapshot)]
    else:
        lines = _screen(snapshot, choice, size, room=_room(size, keys=keys))
    if keys:
        has_groups = isinstance(snapshot, Snapshot) and bool(snapshot.groups)
        lines.append(_footer(choice, size, has_groups=has_groups))
    return _Plain(Group(*lines)) if size.plain else Group(*lines)


class _Plain:
    """A drawing in ASCII: rich marks what it cuts off with a character that such a terminal lacks."""

    def __init__(self, drawn: RenderableType) -> None:
        self._drawn = drawn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._drawn, options):
            yield Segment(segment.text.replace("\u2026", "~"), segment.style, segment.control)


def _room(size: Size, *, keys: bool) -> int | None:
    return None if size.height is None else size.height - int(keys)


def _screen(snapshot: Snapshot, choice: Selection, size: Size, *, room: int | None) -> list[RenderableType]:
    reasons = _reasons(snapshot, whole=room is None)
    if choice.groups:
        return [
            _title(snapshot, choice),
            *reasons,
            *_groups(snapshot, size, room=room, above=1 + len(reasons)),
        ]
    clients = picked(snapshot.clients, choice)
    besides = _besides(snapshot)
    # Two tables have a title and their columns' names each.
    fixed = _HEAD_LINES + len(reasons) + len(besides) + 4
    rows = _share_out(None if room is None else room - fixed, snapshot, len(clients))
    brokers = sorted(
        snapshot.brokers, key=lambda broker: not broker.problem and rows.brokers < len(snapshot.brokers)
    )
    return [
        _title(snapshot, choice),
        *reasons,
        _bytes(snapshot, size),
        _fetches(snapshot.recent),
        _connections(snapshot),
        *besides,
        _clients_title(snapshot, choice, len(clients), min(rows.clients, len(clients)), size),
        _clients(clients[: rows.clients], choice, size),
        _brokers_title(snapshot, rows.brokers),
        _brokers(brokers[: rows.brokers], size),
        *_events(snapshot.events, rows.events),
        *(_groups(snapshot, size, room=None, above=0) if room is None and snapshot.groups else ()),
    ]


def _groups(snapshot: Snapshot, size: Size, *, room: int | None, above: int) -> list[Text]:
    if not snapshot.groups:
        return [_line("No member of a cooperative group is connected (--cooperative).")]
    lines = groups.lines(snapshot, size.width, wide=size.width >= WIDE, plain=size.plain)
    if room is None or len(lines) <= room - above:
        return lines
    shown = max(room - above - 1, 0)
    return [*lines[:shown], _line(f"and {len(lines) - shown} more lines; fetchgate top --once shows all")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    clients: int
    brokers: int
    events: int


def _share_out(room: int | None, snapshot: Snapshot, clients: int) -> _Rows:
    """Divide the lines: brokers get up to a third, events one and what is left over."""
    if room is None:
        return _Rows(clients=clients, brokers=len(snapshot.brokers), events=_MAX_EVENTS)
    events = int(bool(snapshot.events) and room > 0)
    brokers = min(len(snapshot.brokers), max(room - events, 0) // 3)
    rows = min(clients, max(room - events - brokers, 0))
    left = max(room - events - brokers - rows, 0)
    more = min(left, len(snapshot.brokers) - brokers)
    return _Rows(clients=rows, brokers=brokers + more, events=min(events + left - more, _MAX_EVENTS))


# -- the head ----------------------------------------------------------------------------------------------


def _line(*parts: str | tuple[str, str]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis", end="\n")


def _title(snapshot: Snapshot, choice: Selection) -> Text:
    paused = ("  PAUSED, p continues ", "bold reverse") if choice.paused else ""
    return _line(
        (f"fetchgate {snapshot.version}", _LABEL),
        f" at {snapshot.listen}  ",
        (snapshot.state, _STATE_STYLES.get(snapshot.state, _WARNING)),
        f"  up {span(snapshot.uptime)}",
        "" if snapshot.sessions_on else ("  sessions are off: a plain wire", _WARNING),
        paused,
    )


def _reasons(snapshot: Snapshot, *, whole: bool) -> list[Text]:
    if whole:  # one screen, to be kept or sent: each reason has as many lines as it needs
        return [Text.assemble(("! ", _WARNING), reason) for reason in snapshot.reasons]
    lines = [_line(("! ", _WARNING), reason) for reason in snapshot.reasons[:_MAX_REASONS]]
    if (more := len(snapshot.reasons) - _MAX_REASONS) > 0:
        lines[-1].append(f" (and {more} more)")
    return lines


def _bytes(snapshot: Snapshot, size: Size) -> Table:
    recent, client, broker = snapshot.recent, snapshot.client, snapshot.broker
    table = _table()
    table.add_column("", width=11)
    for name in ("client side", "broker side", "saved", ""):
        table.add_column(name, justify="right", width=11 if name else 8, header_style=_LABEL)
    table.add_column("saved, two minutes", ratio=1, header_style=_LABEL, no_wrap=True)
    now_client, now_broker = recent.now(recent.client_bytes), recent.now(recent.broker_bytes)
    width = min(size.width - 11 - 3 * 11 - 8 - 5 * 2, _SPARKLINE_WIDTH)
    table.add_row(
        ("now"),
        f"{volume(now_client)}/s",
        f"{volume(now_broker)}/s",
        Text(f"{volume(now_client - now_broker)}/s", style=_saved_style(now_client - now_broker)),
        share(now_client - now_broker, now_client),
        Text(sparkline(recent.saved, width, plain=size.plain), style="green"),
    )
    table.add_row(
        "since start",
        volume(client.fetch_bytes),
        volume(broker.fetch_bytes),
        Text(volume(snapshot.saved), style=_saved_style(snapshot.saved)),
        share(snapshot.saved, client.fetch_bytes),
        f"peak {volume(max(recent.saved, default=0.0))}/s",
    )
    return table


def _saved_style(saved: float) -> str:
    return "bold green" if saved >= 0 else _WARNING


def _fetches(recent: Recent) -> Text:
    """Draw the last line of the table of bytes, with the kinds of fetches in place of the other columns."""
    to_broker = sum(recent.now(column) for column in recent.broker_fetches.values())
    rates = f"{_rate(recent.now(recent.client_fetches)):>11} {_rate(to_broker):>11}"
    kinds = _kinds(recent)
    return _line(f"{'fetches/s':<11} {rates}{': ' if kinds else ''}{kinds}")


def _rate(value: float) -> str:
    tenths = round(value, 1)
    return scaled(tenths) if abs(tenths) >= 10 or tenths == int(tenths) else str(tenths)


def _kinds(recent: Recent) -> str:
    """Return the rates of the kinds of fetches to the broker, the most common first."""
    rates = sorted(
        ((recent.now(column), kind) for kind, column in recent.broker_fetches.items()), key=lambda it: -it[0]
    )
    return " ".join(f"{_rate(rate)} {_SHORT.get(kind, kind)}" for rate, kind in rates if rate)


def _connections(snapshot: Snapshot) -> Text:
    slots = f"{snapshot.slots_used} of {snapshot.slots}" if snapshot.slots else str(snapshot.slots_used)
    full = 0 < snapshot.slots <= snapshot.slots_used
    return _line(
        (str(snapshot.connections), _LABEL),
        f" connections of {scaled(snapshot.accepted)}  ",
        (slots, _WARNING if full else _LABEL),
        " slots  ",
        (volume(snapshot.buffered_bytes), _LABEL),
        " buffered  adds ",
        (f"{moment(snapshot.added_request)} + {moment(snapshot.added_response)}", _LABEL),
    )


def _besides(snapshot: Snapshot) -> list[Text]:
    """Draw one line of what only some gateways do; none if this one does nothing of it."""
    parts: list[str | tuple[str, str]] = []
    held, slots = snapshot.client_sessions, snapshot.client_session_slots
    if held or snapshot.client_session_evictions:
        full = 0 < slots <= held
        parts += [
            (f"{held} of {slots}", _WARNING if full else _LABEL),
            f" client sessions, {scaled(snapshot.client_session_partitions)} partitions, ",
            f"{scaled(snapshot.client_session_evictions)} evicted  ",
        ]
    if snapshot.leaders_updated:
        parts += [(scaled(snapshot.leaders_updated), _LABEL), " newer leaders  "]
    if snapshot.max_fetch_bytes:
        parts += ["limit ", (volume(snapshot.max_fetch_bytes), _LABEL)]
    return [_line(*parts)] if parts else []


# -- the tables --------------------------------------------------------------------------------------------


def _table() -> Table:
    return Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=True, header_style="")


def _section(name: str, *parts: str | tuple[str, str]) -> Text:
    return _line((name, "bold reverse"), "  ", *parts)


def _clients_title(snapshot: Snapshot, choice: Selection, found: int, shown: int, size: Size) -> Text:
    arrow = ("v" if choice.descending else "^") if size.plain else ("▼" if choice.descending else "▲")
    parts: list[str | tuple[str, str]] = [f"{shown} of {found}, by {choice.sort} {arrow}"]
    if choice.filter or choice.typing:
        parts.append((f"  filter: {choice.filter}{'_' if choice.typing else ''}", _LABEL))
    if (unlisted := snapshot.connections - len(snapshot.clients)) > 0:
        parts.append(f"  {unlisted} that moved least are not listed")
    return _section(" Clients ", *parts)


def _clients(clients: Sequence[Client], choice: Selection, size: Size) -> Table:
    wide = size.width >= WIDE
    errors = wide or choice.sort == "error" or any(client.last_error for client in clients)
    table = _table()
    for name in SORTS:
        style = "bold underline" if name == choice.sort else _LABEL
        if name == "error" and wide:
            _add(table, "broker", 9)
            _add(table, "fetches", 8)
            table.add_column("address", width=21, header_style=_LABEL, no_wrap=True)
        if name in _CLIENT_WIDTHS:
            _add(table, name, _CLIENT_WIDTHS[name], style)
        elif name != "error" or errors:
            width = _WIDE_NAMES.get(name) if wide else None
            ratio = 2 if name == "software" and not errors else 1
            table.add_column(
                name, width=width, ratio=None if width else ratio, header_style=style, no_wrap=True
            )
    for client in clients:
        cells = list(_client(client, wide=wide))
        table.add_row(*cells, *([Text(client.last_error, style="red")] if errors else []))
    return table


_CLIENT_WIDTHS: Final = {"v": 2, "parts": 6, "epoch": 6, "incr": 5, "left out": 8, "saved": 8}
_WIDE_NAMES: Final = {"client": 26, "software": 38}


def _add(table: Table, name: str, width: int, style: str = _LABEL) -> None:
    table.add_column(name, justify="right", width=width, header_style=style, no_wrap=True)


def _client(client: Client, *, wide: bool) -> Iterable[Text]:
    at = "" if wide or client.broker == BOOTSTRAP else f" @{client.broker}"
    cells = [
        f"{client.client_id or NOTHING}{at}",
        client.software or NOTHING,
        str(client.version) if client.version >= 0 else NOTHING,
        scaled(client.partitions) if client.epoch else NOTHING,
        scaled(client.epoch) if client.epoch else NOTHING,
        f"{int(100 * client.incremental)} %" if client.fetches else NOTHING,
        scaled(client.left_out),
    ]
    yield from (Text(cell) for cell in cells)
    yield Text(volume(client.saved), style=_saved_style(client.saved) if client.saved else "")
    if wide:
        yield from (Text(cell) for cell in (client.broker, scaled(client.fetches), client.address))


def _brokers_title(snapshot: Snapshot, shown: int) -> Text:
    more = f"{shown} of {len(snapshot.brokers)}  " if shown < len(snapshot.brokers) else ""
    return _section(" Brokers ", f"{more}response time: recent mean; includes a fetch's own wait")


def _brokers(brokers: Sequence[BrokerFigures], size: Size) -> Table:
    wide = size.width >= WIDE
    problems = wide or any(broker.problem for broker in brokers)
    table = _table()
    table.add_column("broker", width=9, header_style=_LABEL, no_wrap=True)
    address = 44 if wide else None
    table.add_column(
        "address", width=address, ratio=None if address else 1, header_style=_LABEL, no_wrap=True
    )
    for name, width in (
        ("conns", 5),
        ("sessions", 8),
        ("refused", 7),
        ("evicted", 7),
        ("fetch", 7),
        ("other", 7),
    ):
        _add(table, name, width)
    if wide:
        _add(table, "parts", 8)
        _add(table, "saved", 8)
    if problems:
        table.add_column("problem", ratio=1, header_style=_LABEL, no_wrap=True)
    for broker in brokers:
        table.add_row(*_broker(broker, wide=wide), *([Text(broker.problem, style="red")] if problems else []))
    return table


def _broker(broker: BrokerFigures, *, wide: bool) -> Iterable[Text]:
    yield Text(broker.name)
    yield Text(broker.address)
    yield Text(scaled(broker.connections))
    yield Text(scaled(broker.sessions))
    for count in (broker.refusals, broker.evictions):
        yield Text(scaled(count), style="red" if count else "")
    yield Text(moment(broker.fetch_seconds))
    yield Text(moment(broker.other_seconds))
    if wide:
        yield Text(scaled(broker.partitions))
        yield Text(volume(broker.saved))


def _events(events: Sequence[PastEvent], rows: int) -> list[Text]:
    """Draw the latest events, the newest first."""
    lines = []
    for event in list(reversed(events))[:rows]:
        times = f" ({event.count} times)" if event.count > 1 else ""
        style = "red" if event.warning else ""
        lines.append(_line(f"{span(event.ago):>12} ago  ", (f"{event.text}{times}", style)))
    return lines


# -- the rest ----------------------------------------------------------------------------------------------


def _unreachable(snapshot: Unreachable) -> Iterable[Text]:
    yield _line(("fetchgate", _LABEL), "  ", ("not reachable", _WARNING), f"  for {span(snapshot.seconds)}")
    yield _line("")
    yield Text.assemble((f"No response from {snapshot.address}: {snapshot.reason}.", _LABEL))
    yield Text("fetchgate top asks again; the figures return when the gateway responds.")
    yield Text("Does `fetchgate proxy` run there, and is its --admin the same address?")
    if snapshot.last is not None:
        yield _line("")
        yield _line(
            f"The last state: {snapshot.last.state}, {snapshot.last.connections} connections,"
            f" {volume(snapshot.last.saved)} saved in {span(snapshot.last.uptime)}."
        )


def _footer(choice: Selection, size: Size, *, has_groups: bool) -> Text:
    if choice.typing:
        text = f"filter: {choice.filter}_   Enter keeps it, Esc clears it"
    elif choice.help:
        text = "h back  q quit"
    elif choice.groups:
        text = _GROUP_KEYS
    else:
        text = f"{_KEYS}{'  g groups' * has_groups}"
    return Text(text.ljust(size.width)[: size.width], style="reverse", no_wrap=True, end="")


_HELP: Final = (
    ("Keys", ""),
    ("s  S  1-9", "sort clients by the next column, the previous one, or that column"),
    ("r", "reverse the order"),
    ("/", "only clients with this text in id, software, address or broker"),
    ("p", "pause: freezes the screen, not the gateway"),
    ("g", "cooperative groups: members, their keys (low to high), lag"),
    ("q", "quit"),
    ("Clients, a line for each connection", ""),
    ("v", "version of its last fetch"),
    ("parts, epoch", "partitions and next epoch of its fetch session at the broker"),
    ("incr", "share of its fetches that the broker got as incremental ones"),
    ("left out", "partition entries that were not sent to or by the broker"),
    ("saved", "bytes of fetches on the client's side less those on the broker's"),
    ("Brokers", ""),
    ("refused", "requests for a session for which there was no free slot"),
    ("evicted", "sessions evicted by the broker (error 70); clients notice nothing"),
    ("fetch, other", "mean time until responses began, over two minutes"),
    ("Head", ""),
    ("buffered", "incomplete responses in memory (--max-inflight-bytes)"),
    ("client sess.", "sessions of clients with the gateway itself (--client-sessions)"),
    ("newer leaders", "partitions of Metadata brought up to date"),
    ("limit", "the most bytes of records that fetches ask for (--max-fetch-bytes)"),
    ("adds", "mean time that the gateway adds to a request + to a response"),
)


def _help() -> Iterable[Text]:
    for word, meaning in _HELP:
        yield _line((f"{word:<14}", _LABEL), meaning) if meaning else _line((word, "bold underline"))
