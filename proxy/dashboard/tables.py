"""Draws the tables of clients and of brokers. Pure functions.

All columns have a fixed width, so each line is drawn alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from proxy.dashboard.figures import NOTHING, fitting, moment, scaled, span, sparkline, volume
from proxy.dashboard.rates import Rates, TrafficRate
from proxy.dashboard.rows import ClientFigures
from proxy.dashboard.screen import BAD, LABEL, WARNING, cell
from proxy.dashboard.snapshot import BOOTSTRAP, BrokerFigures

WIDE: Final = 160
"""The least width for all columns of the table of brokers."""
_BARS: Final = 24
_MAX_BARS: Final = 31
"""As many bars as `Rates` has data for."""
_ADDRESS: Final = 17
"""The lowest width of brokers' addresses."""
_NAME: Final = 25
"""The lowest width of client names."""
_NAME_FROM_100: Final = 32
"""The same on screens with 100 columns or more."""
_MORE_SOFTWARE: Final = 15
"""By how much the column of software may grow for long names, if no other column needs the room."""
_OF_NAME: Final = 5
"""The column of client names gets at least 1/5 of the screen's width."""
_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class _Column(Generic[_Row]):
    width: int
    draw: Callable[[_Row, int], tuple[str, str]] | None
    """Returns the text for a row and a width, and its style. None draws bars of what was saved lately."""
    left: bool = False
    shortest: int = 0
    """The lowest width. 0 if the column may not shrink."""


def _plain(
    width: int, draw: Callable[[_Row, int], str], *, left: bool = False, shortest: int = 0
) -> _Column[_Row]:
    return _Column(width, lambda row, size: (draw(row, size), ""), left, shortest)


def _saved(value: float) -> tuple[str, str]:
    return volume(value), ("green" if value > 0 else BAD if value < 0 else "")


def _why_not(row: ClientFigures, width: int) -> str:
    return row.why if len(row.why) <= width else row.why.replace("waits for broker", "waits for")


def _software(text: str, width: int) -> str:
    # The version stays. That of a library may follow, as in ``confluent-kafka-python
    # 2.16.1-rdkafka-2.16.0``: it is cut first.
    name, space, version = text.rpartition(" ")
    if cell_len(text) <= width or not space:
        return text
    version = version.partition("-")[0]
    room = width - 1 - cell_len(version)
    if cell_len(name) > room:
        name = f"{set_cell_size(name, max(room - 1, 0))}~"
    return f"{name} {version}"


def _other_zone(rate: TrafficRate) -> str:
    if not rate.records:
        return NOTHING
    return f"{volume(rate.other_zone)} {int(100 * rate.other_zone / rate.records)} %"


def _bad_if(bad: object) -> str:
    return BAD if bad else ""


_CLIENT: Final[dict[str, _Column[ClientFigures]]] = {
    "software": _plain(
        29, lambda row, width: _software(row.software, width) or NOTHING, left=True, shortest=16
    ),
    "conns": _plain(5, lambda row, width: fitting(len(row.connections), width)),
    "v": _plain(2, lambda row, _: str(row.version) if row.version >= 0 else NOTHING),
    "parts": _plain(6, lambda row, width: fitting(row.partitions, width) if row.partitions else NOTHING),
    "incr": _plain(5, lambda row, _: f"{int(100 * row.incremental)} %" if row.fetches else NOTHING),
    "fetch/s": _plain(7, lambda row, _: per_second(row.rate.fetches)),
    "bytes/s": _plain(7, lambda row, _: volume(row.rate.client)),
    "to broker": _plain(9, lambda row, _: volume(row.rate.broker)),
    "other zone": _plain(13, lambda row, _: _other_zone(row.rate)),
    "saved/s": _Column(8, lambda row, _: _saved(row.rate.saved)),
    "saved": _Column(8, lambda row, _: _saved(row.saved)),
    "lately": _Column(_BARS, None, left=True, shortest=10),
    "why not": _plain(14, _why_not, left=True),
    "error": _Column(20, lambda row, _: (row.error, BAD), left=True, shortest=10),
}
_NARROW: Final = ("fetch/s", "saved/s", "why not")
"""The columns that every screen has. With ``--rack``, "other zone" is one of them."""
_MORE: Final = ("bytes/s", "conns", "parts", "saved", "software", "to broker", "incr", "v")
"""The columns that are added if there is room, the most important first."""
_BROKER_NAME: Final = 9
_BROKER: Final[dict[str, _Column[BrokerFigures]]] = {
    "address": _plain(0, lambda broker, width: shortened(broker.address, width), left=True),
    "conns": _plain(5, lambda broker, width: fitting(broker.connections, width)),
    "due": _Column(4, lambda broker, width: (fitting(broker.outstanding, width), _bad_if(broker.is_late))),
    "sessions": _plain(8, lambda broker, width: fitting(broker.sessions, width)),
    "refused": _Column(7, lambda broker, width: (fitting(broker.refusals, width), _bad_if(broker.refusals))),
    "evicted": _Column(
        7, lambda broker, width: (fitting(broker.evictions, width), _bad_if(broker.evictions))
    ),
    "fetch": _plain(7, lambda broker, _: moment(broker.fetch_seconds)),
    "other": _plain(7, lambda broker, _: moment(broker.other_seconds)),
    "parts": _plain(8, lambda broker, width: fitting(broker.partitions, width)),
    "saved": _plain(8, lambda broker, _: volume(broker.saved)),
    "lately": _Column(_BARS, None, left=True, shortest=10),
}
_NARROW_BROKER: Final = ("conns", "due", "fetch", "sessions", "refused", "evicted", "other")
_WIDE_BROKER: Final = ("parts", "saved", "lately")
"""As `_MORE`."""


def client_columns(width: int, *, bars: bool, errors: bool, zones: bool = False) -> dict[str, int]:
    """Return the table columns after the client name, with their widths. Leave room for long client names.

    `bars` and `errors` say whether there are some to draw, `zones` whether the gateway has a rack.
    """
    minimum = max(_NAME_FROM_100 if width >= 100 else _NAME, width // _OF_NAME)
    narrow = (*_NARROW, "other zone") if zones else _NARROW
    chosen = {name: _CLIENT[name].width for name in narrow}
    room = _rest(width, chosen) - minimum
    more = (*_MORE, *(["error"] if errors else ()), *(["lately"] if bars else ()))
    room = _add_columns(chosen, _CLIENT, more, room)
    if "software" in chosen:
        chosen["software"] += min(_MORE_SOFTWARE, max(room, 0))
    return {name: chosen[name] for name in _CLIENT if name in chosen}


def _add_columns(
    chosen: dict[str, int], columns: Mapping[str, _Column[_Row]], wanted: Iterable[str], room: int
) -> int:
    """Add the wanted columns for which there is room, the first ones first. Return the room that is left."""
    for name in wanted:
        column = columns[name]
        fits = min(column.width, room - 1)
        if fits >= (column.shortest or column.width):
            chosen[name] = fits
            room -= fits + 1
    return room


def clients_head(columns: dict[str, int], width: int, sort: str) -> Text:
    """Draw the header line of the table of clients."""
    line = Text(" " + "client".ljust(_rest(width, columns)), no_wrap=True, style=LABEL)
    if sort == "client":
        line.stylize("underline", 1, 7)
    for name, size in columns.items():
        line.append(" ")
        text = cell(name, size, left=_CLIENT[name].left)
        line.append(text, style="underline" if name == sort else "")
    return line


def clients(
    rows: Sequence[ClientFigures],
    columns: dict[str, int],
    marked: str,
    rates: Rates,
    width: int,
    *,
    plain: bool,
) -> Iterator[Text]:
    """Draw the table rows of clients. `marked` is the key of the marked row, or "" if no row is marked."""
    room = _rest(width, columns)
    for row in rows:
        line = Text(">" if row.key == marked else " ", no_wrap=True)
        line.append(set_cell_size(_name(row), room))
        for name, size in columns.items():
            bars = rates.saved(row.connections) if name == "lately" else ()
            _append(line, _CLIENT[name], row, size, bars, plain=plain)
        if row.key == marked:
            line.stylize("bold")
        yield line


def _name(row: ClientFigures) -> str:
    if not row.single:
        return row.name or NOTHING
    client = row.connections[0]
    at = "" if client.broker == BOOTSTRAP else f" @{client.broker}"
    return f"  {client.address}{at}"


def _append(
    line: Text, column: _Column[_Row], row: _Row, width: int, bars: Sequence[float], *, plain: bool
) -> None:
    text, style = column.draw(row, width) if column.draw else (sparkline(bars, width, plain=plain), "green")
    line.append(" ")
    line.append(cell(text, width, left=column.left), style=style)


def per_second(value: float) -> str:
    """Format a rate per second. Small rates have one decimal."""
    tenths = round(value, 1)
    return scaled(tenths) if abs(tenths) >= 10 or tenths == int(tenths) else str(tenths)


def broker_key(broker: BrokerFigures) -> str:
    """Return the key of a broker's row."""
    return f"broker {broker.name}"


def broker_columns(width: int, found: Iterable[BrokerFigures], *, bars: bool) -> dict[str, int]:
    """Return the columns of the table of brokers after the name, with their widths.

    If possible, the column of addresses is as wide as the longest address. The bars get the remaining width.
    """
    after_name = width - _BROKER_NAME - 1
    wanted = (*_NARROW_BROKER, *(_WIDE_BROKER if width >= WIDE else ()))
    chosen: dict[str, int] = {}
    room = _rest(after_name, chosen) - _ADDRESS
    _add_columns(chosen, _BROKER, (name for name in wanted if bars or name != "lately"), room)
    others = {name: chosen[name] for name in _BROKER if name in chosen}
    room = _rest(after_name, others)
    address = min(room, max([len("address"), *(cell_len(broker.address) for broker in found)]))
    if "lately" in others:
        others["lately"] = min(_MAX_BARS, others["lately"] + room - address)
    return {"address": address, **others}


def brokers_head(columns: dict[str, int]) -> Text:
    """Draw the header line of the table of brokers."""
    names = "".join(" " + cell(name, width, left=_BROKER[name].left) for name, width in columns.items())
    return Text(f" {'broker':<{_BROKER_NAME}}{names}", style=LABEL, no_wrap=True)


def brokers(
    found: Iterable[BrokerFigures], columns: dict[str, int], marked: str, rates: Rates, *, plain: bool
) -> Iterator[Text]:
    """Draw the table rows of brokers. A broker with a problem has it instead of its figures."""
    for broker in found:
        is_marked = broker_key(broker) == marked
        line = Text(">" if is_marked else " ", no_wrap=True, overflow="ellipsis")
        name = NOTHING if broker.name == broker.address else broker.name  # in transparent mode
        line.append(set_cell_size(name, _BROKER_NAME))
        shown = ["address"] if broker.problem else columns
        for name in shown:
            bars = rates.saved_by_broker(broker.name) if name == "lately" else ()
            _append(line, _BROKER[name], broker, columns[name], bars, plain=plain)
        if broker.problem:
            line.append(f" {problem_of(broker)}", style=WARNING)
        if is_marked:
            line.stylize("bold")
        yield line


def problem_of(broker: BrokerFigures) -> str:
    """Describe the problem of a broker, and how long the problem has lasted."""
    text = broker.problem.removeprefix(f"{broker.address}: ")
    seconds = broker.problem_seconds
    has_time = seconds is None or " for " in text  # the text of a hung broker has the time
    return text if has_time else f"{text}, for {span(seconds or 0)}"


def shortened(address: str, width: int) -> str:
    """Cut an address to `width`. The port of a single address stays complete if there is room for it."""
    if cell_len(address) <= width:
        return address
    host, colon, port = address.rpartition(":")
    room = width - len(port) - 2
    return f"{host[:room]}~{colon}{port}" if room > 0 and "," not in address else f"{address[: width - 1]}~"


def _rest(width: int, columns: dict[str, int]) -> int:
    """Return how much of the width is left for names, after the mark and the other columns."""
    return max(1, width - 1 - sum(1 + size for size in columns.values()))
