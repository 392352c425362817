"""Draws one screen of the dashboard with rich, from a snapshot, a selection and a screen size.

Pure functions. The screen uses the sixteen colours of the terminal, which suit light and dark backgrounds.
Everything can also be understood without colours.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from proxy.dashboard import detail, groups, tables
from proxy.dashboard.choice import Listed, Selection, place_of
from proxy.dashboard.figures import moment, scaled, share, span, sparkline, volume
from proxy.dashboard.rates import Rates
from proxy.dashboard.rows import OF_CLIENT, ClientFigures, rows
from proxy.dashboard.screen import (
    LABEL,
    STATE_STYLES,
    WARNING,
    Size,
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
from proxy.dashboard.snapshot import Recent, Snapshot
from proxy.dashboard.tables import WIDE, broker_key, per_second

_MAX_REASONS: Final = 2
_MAX_EVENTS: Final = 10
_HEAD_LINES: Final = 4
"""For the title and the table of bytes."""
_TABLE_LINES: Final = 4
"""For the titles and column names of both tables."""
_MIN_ROWS: Final = 4
"""If fewer rows are left for both tables, the connections and the other figures get one line each. If this is
not enough, they are left out."""
_MIN_DETAILS: Final = 8
"""Details of the marked row are shown only if this many lines are free."""
_SPARKLINE_WIDTH: Final = 60
_SHORT: Final = {"incremental": "incr"}
_KEYS: Final = "Enter open  x connections  Tab brokers  s sort  / filter  h help  q quit"
_KEYS_OF_MANY: Final = "Esc gateways  Enter open  x connections  Tab brokers  s sort  h help  q quit"
_PAGE_KEYS: Final = "Esc back  Space next page  p pause  h help  q quit"
_HELP_KEYS: Final = "Esc back  Space next page  q quit"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayUnreachable:
    """The contents of the dashboard while the gateway can't be reached."""

    address: str
    reason: str
    seconds: float
    """For how long the gateway has not been reachable."""
    last: Snapshot | None


def frame(
    snapshot: Snapshot | GatewayUnreachable,
    choice: Selection,
    size: Size,
    rates: Rates,
    *,
    keys: bool = True,
    of_many: bool = False,
) -> RenderableType:
    """Draw one screen. `rates` must already include this snapshot.

    `keys`: whether the last line explains the keys. `of_many`: whether Esc goes back to the table of several
    gateways.
    """
    room = size.room(keys=keys)
    lines: list[RenderableType]
    if choice.help or (isinstance(snapshot, Snapshot) and choice.paged):
        lines = [*window(_page(snapshot, choice, size, rates), choice.first, room)]
    elif isinstance(snapshot, GatewayUnreachable):
        lines = [*_unreachable(snapshot)]
    else:
        lines = _screen(snapshot, choice, size, rates, room=room)
    if keys:
        lines.append(footer(_explained_keys(snapshot, choice, of_many=of_many), size))
    return drawn(lines, size)


def listed(snapshot: Snapshot | GatewayUnreachable, choice: Selection, size: Size, rates: Rates) -> Listed:
    """Return the rows or lines through which the user can move with keys."""
    room = size.room(keys=True) or 1
    if choice.help or (isinstance(snapshot, Snapshot) and choice.paged):
        return Listed(lines=len(_page(snapshot, choice, size, rates)), page=room)
    if isinstance(snapshot, GatewayUnreachable):
        return Listed()
    if choice.brokers:
        return Listed(keys=[broker_key(broker) for broker in snapshot.brokers], page=max(room // 4, 1))
    return Listed(keys=[row.key for row in _rows(snapshot, choice, rates)], page=max(room // 2, 1))


def _page(snapshot: Snapshot | GatewayUnreachable, choice: Selection, size: Size, rates: Rates) -> list[Text]:
    if choice.help or not isinstance(snapshot, Snapshot):
        return explained(_HELP)
    title = [_title(snapshot, choice)]
    if choice.groups:
        return [*title, *_groups(snapshot, size)]
    for broker in snapshot.brokers:
        if broker_key(broker) == choice.opened:
            return [*title, *detail.broker(broker, snapshot.clients, snapshot.events)]
    every = {client.client_id: f"{OF_CLIENT}{client.client_id}" for client in snapshot.clients}
    for row in _rows(snapshot, replace(choice, filter="", expanded=frozenset(every.values())), rates):
        if row.key == choice.opened:
            return [*title, *detail.client(row, rates, snapshot.events)]
    return [*title, line("It has left.")]


def _rows(snapshot: Snapshot, choice: Selection, rates: Rates) -> list[ClientFigures]:
    return rows(
        snapshot.clients,
        rates,
        wanted=choice.filter,
        sort=choice.sort,
        descending=choice.descending,
        expanded=choice.expanded,
    )


def _screen(
    snapshot: Snapshot, choice: Selection, size: Size, rates: Rates, *, room: int | None
) -> list[RenderableType]:
    reasons = _reasons(snapshot, whole=room is None)
    found = _rows(snapshot, choice, rates)
    if room is not None:
        room -= _HEAD_LINES + len(reasons) + _TABLE_LINES
    more = _figures(snapshot, rates, size, None if room is None else room - _MIN_ROWS)
    fit = _share_out(None if room is None else room - len(more), snapshot, len(found))
    sick = sorted(
        snapshot.brokers, key=lambda broker: not broker.problem and fit.brokers < len(snapshot.brokers)
    )
    keys = [row.key for row in found], [broker_key(broker) for broker in sick]
    place = place_of(choice, keys[choice.brokers])
    mark = "" if room is None or not keys[choice.brokers] else keys[choice.brokers][place]
    first, first_broker = (
        (0, _first(place, fit.brokers)) if choice.brokers else (_first(place, fit.clients), 0)
    )
    clients = found[first : first + fit.clients]
    errors = any(row.error for row in found)
    columns = tables.client_columns(size.width, bars=rates.bars, errors=errors, zones=bool(snapshot.rack))
    broker_columns = tables.broker_columns(size.width, snapshot.brokers, bars=rates.bars)
    return [
        _title(snapshot, choice),
        *reasons,
        _bytes(snapshot, size),
        *more,
        _clients_title(snapshot, choice, found, len(clients), size),
        tables.clients_head(columns, size.width, choice.sort),
        *tables.clients(clients, columns, mark, rates, size.width, plain=size.plain),
        _brokers_title(snapshot, fit.brokers),
        tables.brokers_head(broker_columns),
        *tables.brokers(
            sick[first_broker : first_broker + fit.brokers], broker_columns, mark, rates, plain=size.plain
        ),
        *detail.past(snapshot.events)[: fit.events],
        *_details(snapshot, mark, found, rates, fit.details),
        *(_groups(snapshot, size) if room is None and snapshot.groups else ()),
    ]


def _details(
    snapshot: Snapshot, mark: str, found: Sequence[ClientFigures], rates: Rates, room: int
) -> list[Text]:
    # These lines are below everything else, as far as they fit.
    if room < _MIN_DETAILS:
        return []
    lines: list[Text] = []
    for row in found:
        if row.key == mark:
            lines = detail.client(row, rates, ())
    for broker in snapshot.brokers:
        if broker_key(broker) == mark:
            lines = detail.broker(broker, snapshot.clients, ())
    return cut([Text(), *lines], room) if lines else []


def _first(place: int, rows: int) -> int:
    # The first row such that the marked row is visible.
    return max(0, place - rows + 1)


def _groups(snapshot: Snapshot, size: Size) -> list[Text]:
    if not snapshot.groups:
        return [line("This gateway has no cooperative groups (--cooperative is not set).")]
    return groups.lines(snapshot, size.width, wide=size.width >= WIDE, plain=size.plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LineBudget:
    clients: int
    brokers: int
    events: int
    details: int


def _share_out(room: int | None, snapshot: Snapshot, clients: int) -> _LineBudget:
    # Brokers get up to a third of the lines, but two if possible. One line is for events, unless there are
    # few lines. Clients get the rest. If lines remain, first brokers get more, then events, then the details
    # of the marked row.
    if room is None:
        return _LineBudget(clients=clients, brokers=len(snapshot.brokers), events=_MAX_EVENTS, details=0)
    events = int(bool(snapshot.events) and room > _MIN_ROWS)
    brokers = min(len(snapshot.brokers), max((room - events) // 3, min(room // 2, 2)))
    rows = min(clients, max(room - events - brokers, 0))
    left = max(room - events - brokers - rows, 0)
    more = min(left, len(snapshot.brokers) - brokers)
    shown = min(events + left - more, _MAX_EVENTS, len(snapshot.events))
    return _LineBudget(
        clients=rows, brokers=brokers + more, events=shown, details=max(events + left - more - shown, 0)
    )


# -- the head ----------------------------------------------------------------------------------------------


def _title(snapshot: Snapshot, choice: Selection) -> Text:
    paused = ("  PAUSED, p continues ", "bold reverse") if choice.paused else ""
    return line(
        (f"fetchgate {snapshot.version}", LABEL),
        f" at {snapshot.listen}  ",
        (snapshot.state, STATE_STYLES.get(snapshot.state, WARNING)),
        f"  up {span(snapshot.uptime)}",
        "" if snapshot.sessions_on else ("  sessions are off: no saving", WARNING),
        paused,
    )


def _reasons(snapshot: Snapshot, *, whole: bool) -> list[Text]:
    if whole:  # a single screen may be kept or sent, so no reason is cut
        return [Text.assemble(("! ", WARNING), reason) for reason in snapshot.reasons]
    lines = [line(("! ", WARNING), reason) for reason in snapshot.reasons[:_MAX_REASONS]]
    if (more := len(snapshot.reasons) - _MAX_REASONS) > 0:
        lines[-1].append(f" (and {more} more)")
    return lines


def _bytes(snapshot: Snapshot, size: Size) -> Table:
    recent, client, broker = snapshot.recent, snapshot.client, snapshot.broker
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=True, header_style="")
    table.add_column("", width=11)
    for name in ("client side", "broker side", "saved", ""):
        table.add_column(name, justify="right", width=11 if name else 8, header_style=LABEL)
    table.add_column("saved, two minutes", ratio=1, header_style=LABEL, no_wrap=True)
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
    return "bold green" if saved >= 0 else WARNING


def _fetches(recent: Recent) -> Text:
    to_broker = sum(recent.now(column) for column in recent.broker_fetches.values())
    rates = f"{per_second(recent.now(recent.client_fetches)):>11} {per_second(to_broker):>11}"
    kinds = _kinds(recent)
    return line(f"{'fetches/s':<11} {rates}{': ' if kinds else ''}{kinds}")


def _kinds(recent: Recent) -> str:
    # The highest rate is first.
    rates = sorted(
        ((recent.now(column), kind) for kind, column in recent.broker_fetches.items()), key=lambda it: -it[0]
    )
    return " ".join(f"{per_second(rate)} {_SHORT.get(kind, kind)}" for rate, kind in rates if rate)


def _figures(snapshot: Snapshot, rates: Rates, size: Size, room: int | None) -> list[Text]:
    parts = _connections(snapshot, rates), _besides(snapshot)
    for width in (size.width, None):
        lines = [_fetches(snapshot.recent), *(line for each in parts for line in packed(each, width))]
        if room is None or len(lines) <= room:
            return lines
    return []


def _connections(snapshot: Snapshot, rates: Rates) -> list[Text]:
    """Draw how much of each limit is used, and the gateway's own figures, in parts for `packed`."""
    cpu, memory = rates.cpu(), snapshot.memory
    added = f"{moment(snapshot.added_request)} + {moment(snapshot.added_response)}"
    return [
        line(*_of(snapshot.connections, snapshot.connections_max), " connections"),
        line(*_of(snapshot.slots_used, snapshot.slots), " slots"),
        line((volume(snapshot.buffered_bytes), LABEL), " buffered"),
        line("adds ", (added, LABEL)),
        *(() if cpu is None else (line("CPU ", (f"{100 * cpu:.0f} %", LABEL)),)),
        *((line((volume(memory), LABEL)),) if memory else ()),
    ]


def _of(used: int, limit: int) -> list[tuple[str, str]]:
    # A limit of 0 is unknown.
    full = 0 < limit <= used
    text = f"{scaled(used)} of {scaled(limit)}" if limit else scaled(used)
    return [(text, WARNING if full else LABEL)]


def _besides(snapshot: Snapshot) -> list[Text]:
    """Return one text for each status figure that this gateway has, such as a stopped capture."""
    parts: list[Text] = []
    if late := [broker.late for broker in snapshot.brokers if broker.is_late]:
        parts.append(line((f"oldest request {span(max(late))} late", WARNING)))
    if snapshot.capture_stopped:
        parts.append(line(("capture stopped", WARNING)))
    held, slots = snapshot.client_sessions, snapshot.client_session_slots
    if held or snapshot.client_session_evictions:
        full = 0 < slots <= held
        slots_used = f"{scaled(held)} of {scaled(slots)}"
        parts.append(
            line(
                (slots_used, WARNING if full else LABEL),
                f" client sessions, {scaled(snapshot.client_session_partitions)} partitions, ",
                f"{scaled(snapshot.client_session_evictions)} evicted",
            )
        )
    if snapshot.leaders_updated:
        parts.append(line((scaled(snapshot.leaders_updated), LABEL), " newer leaders"))
    if snapshot.max_fetch_bytes:
        parts.append(line("limit ", (volume(snapshot.max_fetch_bytes), LABEL)))
    return parts


# -- the tables' titles ------------------------------------------------------------------------------------


def _clients_title(
    snapshot: Snapshot, choice: Selection, found: Sequence[ClientFigures], shown: int, size: Size
) -> Text:
    clients = sum(not row.single for row in found)
    some = f"{shown} of {len(found)} rows" if shown < len(found) else f"{clients}"
    why = Counter(row.why for row in found if row.why and not row.single)
    counts = ", ".join(f"{reason}: {count}" for reason, count in why.most_common())
    parts = sorting(some, choice, size)
    if (unlisted := snapshot.connections - len(snapshot.clients)) > 0:
        parts.append(f"  {unlisted} connections with the fewest bytes are not listed")
    if counts:
        parts.append(f"  {counts}")
    return section(" Clients ", *parts)


def _brokers_title(snapshot: Snapshot, shown: int) -> Text:
    more = f"{shown} of {len(snapshot.brokers)}  " if shown < len(snapshot.brokers) else ""
    return section(
        " Brokers ", f"{more}response time: mean of two minutes, with the wait that a fetch allows"
    )


# -- the rest ----------------------------------------------------------------------------------------------


def _unreachable(snapshot: GatewayUnreachable) -> Iterable[Text]:
    yield line(("fetchgate", LABEL), "  ", ("not reachable", WARNING), f"  for {span(snapshot.seconds)}")
    yield line("")
    yield Text.assemble((f"No response from {snapshot.address}: {snapshot.reason}.", LABEL))
    yield Text("fetchgate top asks again; the figures return when the gateway responds.")
    yield Text("Does `fetchgate proxy` run there, and is its --admin the same address?")
    if snapshot.last is not None:
        yield line("")
        yield line(
            f"The last state: {snapshot.last.state}, {snapshot.last.connections} connections,"
            f" {volume(snapshot.last.saved)} saved in {span(snapshot.last.uptime)}."
        )


def _explained_keys(snapshot: Snapshot | GatewayUnreachable, choice: Selection, *, of_many: bool) -> str:
    if choice.typing:
        return f"filter: {choice.filter}_   Enter keeps it, Esc clears it"
    if choice.paged:
        return _HELP_KEYS if choice.help else _PAGE_KEYS
    keys = _KEYS_OF_MANY if of_many else _KEYS
    return f"g groups  {keys}" if isinstance(snapshot, Snapshot) and snapshot.groups else keys


_HELP: Final = (
    ("Keys", ""),
    ("arrows  j  k", "move the mark, or a page; PgUp, PgDn, Home, End, the mouse wheel"),
    ("Space", "the next page of a text like this one; otherwise pause"),
    ("Enter", "open the marked client, connection or broker; Esc goes back"),
    ("x", "show the connections of the marked client, or hide them"),
    ("Tab", "go to the brokers, or back to the clients"),
    ("s  S  1-9", "sort clients by the next column, the previous one, or that column"),
    ("r", "reverse the order"),
    ("/", "only clients with this text in id, software, address or broker"),
    ("g", "cooperative groups: members, their keys (low to high), lag"),
    ("p", "pause: freezes the screen, not the gateway"),
    ("q", "quit"),
    ("Clients, a row for each client.id; rates are those of the last ten seconds", ""),
    ("conns", "its connections"),
    ("parts", "partitions in its fetch sessions at brokers"),
    ("bytes/s", "fetch bytes on the client's side; to broker: on the brokers' side"),
    ("other zone", "record bytes a second from other zones, and their share (--rack)"),
    ("saved", "bytes on the client's side minus those on the brokers' side"),
    ("why not", "what it waits for, or why it saves nothing (most frequent reason)"),
    ("incr", "share of its fetches that brokers got as incremental ones"),
    ("Brokers", ""),
    ("due", "requests without a response; red: the oldest one is late"),
    ("refused", "requests for a session that found no free slot"),
    ("evicted", "sessions evicted by the broker (error 70); clients notice nothing"),
    ("fetch, other", "mean time until responses began, over two minutes"),
    ("Groups (g)", ""),
    ("keys", "hashes of keys, low to high: full cells are the member's"),
    ("state", "frozen: no records until it rejoins; plain: shares no partition"),
    ("lag", "offsets from its commit to the end, other members' left out"),
    ("detached", "how often a member began to fetch alone"),
    ("Head", ""),
    ("N of M", "open now, and the limit"),
    ("buffered", "incomplete responses in memory (--max-inflight-bytes)"),
    ("adds", "mean time that the gateway adds to a request + to a response"),
    ("CPU", "share of a core in the last ten seconds; then the memory"),
    ("client sess.", "sessions of clients with the gateway itself (--client-sessions)"),
    ("newer leaders", "partitions in Metadata that got a newer leader"),
    ("limit", "the most bytes of records that fetches ask for (--max-fetch-bytes)"),
)
