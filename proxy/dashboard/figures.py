"""Short formats of numbers. Sans-IO."""

from collections.abc import Sequence
from math import floor
from typing import Final

_UNITS: Final = ("", "k", "M", "G", "T", "P")
_BARS: Final = "▁▂▃▄▅▆▇█"
_PLAIN_BARS: Final = "_.-~=+*#"
_WHOLE: Final = 99_999.5
_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86_400
NOTHING: Final = "-"


def scaled(value: float, unit: str = "") -> str:
    """Format a number with three digits and a decimal prefix, as `3.31 MB`. 0 to 999 have no prefix.

    Without a unit, numbers up to 99,999 are written in full: `1.13 k` is longer than `1,130`.
    """
    size = abs(value)
    if not unit and 999.5 <= size < _WHOLE:
        return f"{value:,.0f}"
    power = 0
    while size >= 999.5 and power < len(_UNITS) - 1:
        size /= 1000
        power += 1
    whole = size >= 99.95 or (not power and value == int(value))
    digits = 0 if whole else 1 if size >= 9.995 else 2
    text = f"{'-' if value < 0 else ''}{size:.{digits}f} {_UNITS[power]}{unit}"
    return text.rstrip()


def fitting(value: float, width: int) -> str:
    """Format a number for a column. If the column is narrow, use fewer digits, but never cut the text."""
    text = scaled(value)
    if len(text) <= width:
        return text
    plain = f"{value:.0f}"
    if abs(value) < _WHOLE and len(plain) <= width:
        return plain
    size, power = float(value), 0
    while abs(size) >= 999.5 and power < len(_UNITS) - 1:
        size, power = size / 1000, power + 1
    return next(
        (found for digits in (2, 1) if len(found := f"{size:.{digits}f}{_UNITS[power]}") <= width),
        f"{size:.0f}{_UNITS[power]}",
    )


def volume(value: float) -> str:
    """Format a number of bytes."""
    return scaled(value, "B")


def share(part: float, whole: float) -> str:
    """Format a share in per cent, rounded down, so that 100 % means all."""
    if not whole:
        return NOTHING
    percent = 100 * part / whole
    digits = 1 if percent < 99.9 else 2
    return f"{floor(percent * 10**digits) / 10**digits:.{digits}f} %" if percent != 100 else "100 %"


def span(seconds: float) -> str:
    """Format a duration with its two largest units."""
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"


def moment(seconds: float | None) -> str:
    """Format a short duration, or a dash for None."""
    if seconds is None:
        return NOTHING
    if seconds >= 0.9995:
        return f"{seconds:.1f} s"
    thousandths = 1000 * seconds
    return f"{thousandths:.0f} ms" if thousandths >= 9.95 else f"{thousandths:.2g} ms"


def sparkline(values: Sequence[float], width: int, *, plain: bool = False) -> str:
    """Draw the last `width` values as bars from 0 to the highest value. Negative values count as 0."""
    bars = _PLAIN_BARS if plain else _BARS
    shown = [max(0.0, value) for value in values[-width:]] if width > 0 else []
    highest = max(shown, default=0.0) or 1.0
    return "".join(bars[min(len(bars) - 1, int(value / highest * len(bars)))] for value in shown)
