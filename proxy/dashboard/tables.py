"""Draws the tables of clients and of brokers. Pure functions.

All columns have a fixed width, so each line is drawn alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

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
_SHORTEST: Final = {"software": 16, "error": 10, "lately": 10}
"""The lowest width of each column that may shrink."""
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

_CLIENT_WIDTHS: Final = {
    "software": 29,
    "conns": 5,
    "v": 2,
    "parts": 6,
    "incr": 5,
    "fetch/s": 7,
    "bytes/s": 7,
    "to broker": 9,
    "other zone": 13,
    "saved/s": 8,
    "saved": 8,
    "lately": _BARS,
    "why not": 14,
    "error": 20,
}
_NARROW: Final = ("fetch/s", "saved/s", "why not")
"""The columns that every screen has. With ``--rack``, "other zone" is one of them."""
_MORE: Final = ("bytes/s", "conns", "parts", "saved", "software", "to broker", "incr", "v")
"""The columns that are added if there is room, the most important first."""
_LEFT: Final = frozenset({"software", "lately", "why not", "error", "address"})
_BROKER_NAME: Final = 9
_BROKER_WIDTHS: Final = {
    "conns": 5,
    "due": 4,
    "sessions": 8,
    "refused": 7,
    "evicted": 7,
    "fetch": 7,
    "other": 7,
    "parts": 8,
    "saved": 8,
    "lately": _BARS,
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
    chosen = {name: _CLIENT_WIDTHS[name] for name in narrow}
    room = _rest(width, chosen) - minimum
    more = (*_MORE, *(["error"] if errors else ()), *(["lately"] if bars else ()))
    room = _add_columns(chosen, _CLIENT_WIDTHS, more, room)
    if "software" in chosen:
        chosen["software"] += min(_MORE_SOFTWARE, max(room, 0))
    return {name: chosen[name] for name in _CLIENT_WIDTHS if name in chosen}


def _add_columns(chosen: dict[str, int], widths: dict[str, int], wanted: Iterable[str], room: int) -> int:
    """Add the wanted columns for which there is room, the first ones first. Return the room that is left."""
    for name in wanted:
        size = widths[name]
        fits = min(size, room - 1)
        if fits >= _SHORTEST.get(name, size):
            chosen[name] = fits
            room -= fits + 1
    return room


def clients_head(columns: dict[str, int], width: int, sort: str) -> Text:
    """Draw the header line of the table of clients."""
    line = Text(" " + "client".ljust(_rest(width, columns)), no_wrap=True, style=LABEL)
    if sort == "client":
        line.stylize("underline", 1, 7)
    for name in columns:
        line.append(" ")
        line.append(_cell(name, name, columns), style="underline" if name == sort else "")
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
            line.append(" ")
            text, style = _client_cell(row, name, size, rates, plain=plain)
            line.append(_cell(name, text, columns), style=style)
        if row.key == marked:
            line.stylize("bold")
        yield line


def _name(row: ClientFigures) -> str:
    if not row.single:
        return row.name or NOTHING
    client = row.connections[0]
    at = "" if client.broker == BOOTSTRAP else f" @{client.broker}"
    return f"  {client.address}{at}"


def _client_cell(row: ClientFigures, name: str, width: int, rates: Rates, *, plain: bool) -> tuple[str, str]:
    rate = row.rate
    if name == "lately":
        return sparkline(rates.saved(row.connections), width, plain=plain), "green"
    if name == "error":
        return row.error, BAD
    if name in {"saved/s", "saved"}:
        value = rate.saved if name == "saved/s" else row.saved
        return volume(value), ("green" if value > 0 else BAD if value < 0 else "")
    text = {
        "software": _software(row.software, width) or NOTHING,
        "conns": fitting(len(row.connections), width),
        "v": str(row.version) if row.version >= 0 else NOTHING,
        "parts": fitting(row.partitions, width) if row.partitions else NOTHING,
        "incr": f"{int(100 * row.incremental)} %" if row.fetches else NOTHING,
        "fetch/s": per_second(rate.fetches),
        "bytes/s": volume(rate.client),
        "to broker": volume(rate.broker),
        "other zone": _other_zone(rate),
        "why not": row.why if len(row.why) <= width else row.why.replace("waits for broker", "waits for"),
    }
    return text[name], ""


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
    _add_columns(chosen, _BROKER_WIDTHS, (name for name in wanted if bars or name != "lately"), room)
    others = {name: chosen[name] for name in _BROKER_WIDTHS if name in chosen}
    room = _rest(after_name, others)
    address = min(room, max([len("address"), *(cell_len(broker.address) for broker in found)]))
    if "lately" in others:
        others["lately"] = min(_MAX_BARS, others["lately"] + room - address)
    return {"address": address, **others}


def brokers_head(columns: dict[str, int]) -> Text:
    """Draw the header line of the table of brokers."""
    names = "".join(" " + _cell(name, name, columns) for name in columns)
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
            text, style = _broker_cell(broker, name, columns[name], rates, plain=plain)
            line.append(" " + _cell(name, text, columns), style=style)
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


def _broker_cell(
    broker: BrokerFigures, name: str, width: int, rates: Rates, *, plain: bool
) -> tuple[str, str]:
    if name == "lately":
        return sparkline(rates.saved_by_broker(broker.name), width, plain=plain), "green"
    if name == "due":
        return fitting(broker.outstanding, width), (BAD if broker.is_late else "")
    counts = {"refused": broker.refusals, "evicted": broker.evictions}
    if name in counts:
        return fitting(counts[name], width), (BAD if counts[name] else "")
    text = {
        "address": shortened(broker.address, width),
        "conns": fitting(broker.connections, width),
        "sessions": fitting(broker.sessions, width),
        "fetch": moment(broker.fetch_seconds),
        "other": moment(broker.other_seconds),
        "parts": fitting(broker.partitions, width),
        "saved": volume(broker.saved),
    }
    return text[name], ""


def shortened(address: str, width: int) -> str:
    """Cut an address to `width`. The port of a single address stays complete if there is room for it."""
    if cell_len(address) <= width:
        return address
    host, colon, port = address.rpartition(":")
    room = width - len(port) - 2
    return f"{host[:room]}~{colon}{port}" if room > 0 and "," not in address else f"{address[: width - 1]}~"


def _cell(name: str, text: str, widths: dict[str, int]) -> str:
    return cell(text, widths[name], left=name in _LEFT)


def _rest(width: int, columns: dict[str, int]) -> int:
    """Return how much of the width is left for names, after the mark and the other columns."""
    return max(1, width - 1 - sum(1 + size for size in columns.values()))
