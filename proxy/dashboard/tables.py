"""The tables of clients and of brokers. Pure.

Each line is drawn by itself: columns stand still whatever is in them, and a broker's problem has the room of
the figures that it makes meaningless.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from proxy.dashboard.figures import NOTHING, moment, scaled, span, sparkline, volume
from proxy.dashboard.rates import Rates
from proxy.dashboard.rows import Row
from proxy.dashboard.snapshot import BOOTSTRAP, BrokerFigures

WIDE: Final = 160
"""At this width or more, tables have all columns."""
_MIDDLE: Final = 110
_LABEL: Final = "bold"
_BAD: Final = "red"
_BARS: Final = 24

_CLIENT_WIDTHS: Final = {
    "software": 26,
    "conns": 5,
    "v": 2,
    "parts": 6,
    "incr": 5,
    "fetch/s": 7,
    "bytes/s": 7,
    "to broker": 9,
    "saved/s": 8,
    "saved": 8,
    "lately": _BARS,
    "why not": 14,
    "error": 20,
}
_NARROW: Final = ("conns", "parts", "fetch/s", "bytes/s", "saved/s", "why not")
_MORE: Final = (
    "software",
    "conns",
    "parts",
    "fetch/s",
    "bytes/s",
    "to broker",
    "saved/s",
    "saved",
    "why not",
)
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
_NARROW_BROKER: Final = ("conns", "due", "sessions", "refused", "evicted", "fetch", "other")


def _client_columns(width: int) -> tuple[str, ...]:
    return tuple(_CLIENT_WIDTHS) if width >= WIDE else _MORE if width >= _MIDDLE else _NARROW


def clients_head(width: int, sort: str) -> Text:
    """Draw the names of the columns."""
    columns = _client_columns(width)
    line = Text(" " + "client".ljust(_rest(width, columns, _CLIENT_WIDTHS)), no_wrap=True, style=_LABEL)
    if sort == "client":
        line.stylize("underline", 1, 7)
    for name in columns:
        line.append(" ")
        line.append(_cell(name, name, _CLIENT_WIDTHS), style="underline" if name == sort else "")
    return line


def clients(rows: Sequence[Row], marked: str, rates: Rates, width: int, *, plain: bool) -> Iterator[Text]:
    """Draw rows of clients.

    Args:
        rows: those that fit.
        marked: the key of the one that is marked; empty: none.
        rates: for the bars of a wide table.
        width: of the screen.
        plain: only ASCII characters.
    """
    columns = _client_columns(width)
    room = _rest(width, columns, _CLIENT_WIDTHS)
    for row in rows:
        line = Text(">" if row.key == marked else " ", no_wrap=True)
        line.append(set_cell_size(_name(row), room))
        for name in columns:
            line.append(" ")
            text, style = _client_cell(row, name, rates, plain=plain)
            line.append(_cell(name, text, _CLIENT_WIDTHS), style=style)
        if row.key == marked:
            line.stylize("bold")
        yield line


def _name(row: Row) -> str:
    if not row.single:
        return row.name or NOTHING
    client = row.connections[0]
    at = "" if client.broker == BOOTSTRAP else f" @{client.broker}"
    return f"  {client.address}{at}"


def _client_cell(row: Row, name: str, rates: Rates, *, plain: bool) -> tuple[str, str]:
    rate = row.rate
    if name == "lately":
        return sparkline(rates.saved(row.connections), _BARS, plain=plain), "green"
    if name == "error":
        return row.error, _BAD
    if name in {"saved/s", "saved"}:
        value = rate.saved if name == "saved/s" else row.saved
        return volume(value), ("green" if value > 0 else _BAD if value < 0 else "")
    text = {
        "software": row.software or NOTHING,
        "conns": str(len(row.connections)),
        "v": str(row.version) if row.version >= 0 else NOTHING,
        "parts": scaled(row.partitions) if row.partitions else NOTHING,
        "incr": f"{int(100 * row.incremental)} %" if row.fetches else NOTHING,
        "fetch/s": per_second(rate.fetches),
        "bytes/s": volume(rate.client),
        "to broker": volume(rate.broker),
        "why not": row.why,
    }
    return text[name], ""


def per_second(value: float) -> str:
    """Format a rate, small ones with one decimal."""
    tenths = round(value, 1)
    return scaled(tenths) if abs(tenths) >= 10 or tenths == int(tenths) else str(tenths)


def broker_key(broker: BrokerFigures) -> str:
    """Return the key of a broker's row."""
    return f"broker {broker.name}"


def brokers_head(width: int) -> Text:
    """Draw the names of the columns."""
    columns = _broker_columns(width)
    line = f" {'broker':<{_BROKER_NAME}} {'address':<{_address_width(width)}}"
    line += "".join(" " + _cell(name, name, _BROKER_WIDTHS) for name in columns)
    return Text(line, style=_LABEL, no_wrap=True)


def brokers(
    found: Iterable[BrokerFigures], marked: str, rates: Rates, width: int, *, plain: bool
) -> Iterator[Text]:
    """Draw brokers. Where one has a problem, this stands in place of its figures.

    Args:
        found: those that fit.
        marked: the key of the one that is marked; empty: none.
        rates: for the bars of a wide table.
        width: of the screen.
        plain: only ASCII characters.
    """
    room = _address_width(width)
    for broker in found:
        is_marked = broker_key(broker) == marked
        line = Text(">" if is_marked else " ", no_wrap=True, overflow="ellipsis")
        line.append(set_cell_size(broker.name, _BROKER_NAME))
        line.append(" " + set_cell_size(shortened(broker.address, room), room))
        if broker.problem:
            line.append(f" {problem_of(broker)}", style="bold red")
        else:
            for name in _broker_columns(width):
                text, style = _broker_cell(broker, name, rates, plain=plain)
                line.append(" " + _cell(name, text, _BROKER_WIDTHS), style=style)
        if is_marked:
            line.stylize("bold")
        yield line


def problem_of(broker: BrokerFigures) -> str:
    """Return what is wrong with a broker, and for how long."""
    text = broker.problem.removeprefix(f"{broker.address}: ")
    seconds = broker.problem_seconds
    told = seconds is None or " for " in text  # a broker that hangs says it itself
    return text if told else f"{text}, for {span(seconds or 0)}"


def _broker_columns(width: int) -> tuple[str, ...]:
    return tuple(_BROKER_WIDTHS) if width >= WIDE else _NARROW_BROKER


def _address_width(width: int) -> int:
    return _rest(width - _BROKER_NAME - 1, _broker_columns(width), _BROKER_WIDTHS)


def _broker_cell(broker: BrokerFigures, name: str, rates: Rates, *, plain: bool) -> tuple[str, str]:
    if name == "lately":
        return sparkline(rates.saved_by_broker(broker.name), _BARS, plain=plain), "green"
    if name == "due":
        return scaled(broker.outstanding), (_BAD if broker.late else "")
    counts = {"refused": broker.refusals, "evicted": broker.evictions}
    if name in counts:
        return scaled(counts[name]), (_BAD if counts[name] else "")
    text = {
        "conns": scaled(broker.connections),
        "sessions": scaled(broker.sessions),
        "fetch": moment(broker.fetch_seconds),
        "other": moment(broker.other_seconds),
        "parts": scaled(broker.partitions),
        "saved": volume(broker.saved),
    }
    return text[name], ""


def shortened(address: str, width: int) -> str:
    """Shorten the host of an address, and keep its port."""
    if cell_len(address) <= width:
        return address
    host, colon, port = address.rpartition(":")
    room = width - len(port) - 2
    return f"{host[:room]}~{colon}{port}" if room > 0 and "," not in address else f"{address[: width - 1]}~"


def _cell(name: str, text: str, widths: dict[str, int]) -> str:
    width = widths[name]
    if cell_len(text) > width:
        return set_cell_size(text, width)
    return set_cell_size(text, width) if name in _LEFT else text.rjust(width)


def _rest(width: int, columns: Iterable[str], widths: dict[str, int]) -> int:
    """Return what is left for the names, behind the mark."""
    return max(1, width - 1 - sum(1 + widths[name] for name in columns))
