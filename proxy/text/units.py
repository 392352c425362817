"""Reads values that people type: sizes, times and switches (``256MiB``, ``30s``, ``true``). Sans-IO.

It also finds misspelt names. KB, MB and GB are powers of 1000. KiB, MiB and GiB are powers of 1024 (IEC
80000-13). The units k, m and g are also powers of 1024, as in the options of Kafka's JVM (``-Xmx256m``).
Upper and lower case mean the same.
"""

import re
from collections.abc import Iterable
from typing import Final

_SIZES: Final = {"b": 1} | {
    name: base**power
    for power, letter in enumerate("kmg", 1)
    for name, base in ((letter, 1024), (f"{letter}ib", 1024), (f"{letter}b", 1000))
}
_MILLISECONDS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_WITH_UNIT: Final = re.compile(r"0*([0-9]{1,18}(?:\.[0-9]{1,100})?) ?([a-z]+)")
"""A number has so few digits that `int` and `float` can hold what comes of it."""
_PLAIN: Final = re.compile(r"0*([0-9]{1,18})(?:\.0+)?")
"""A whole number, possibly with zeros after the decimal point: TOML writes 1.5e9 as 1500000000.0."""
_NO_CHOICE: Final = re.compile(r"argument \w+: invalid choice: '(.*)' \(choose from (.*)\)")
_SWITCHES: Final = dict.fromkeys(("on", "true", "yes", "1"), "on") | dict.fromkeys(
    ("off", "false", "no", "0"), "off"
)


def size(text: str, lowest: int = 0) -> int:
    """Read a size in bytes. A fraction of a byte, as in 1.3GiB, is cut off.

    Raises:
        ValueError: the text is not a size, or the size is below `lowest`. The message is for the operator.
    """
    if plain := _PLAIN.fullmatch(text.strip()):
        found = int(plain[1])
    else:
        number, divisor, unit = _parts(text)
        if unit not in _SIZES:
            raise ValueError(f"{text!r} is not a size; give bytes, or a unit as in 10m, 256MiB or 1.5GB")
        found = number * _SIZES[unit] // divisor
    if found < lowest:
        raise ValueError(f"{text!r} must be at least {lowest} byte{'s' * (lowest != 1)}")
    return found


def seconds(text: str) -> float:
    """Read a time in seconds. A number without a unit is in seconds.

    Raises:
        ValueError: the text is not a time. The message is for the operator.
    """
    try:
        found = float(text)
    except ValueError:
        number, divisor, unit = _parts(text)
        found = number * _MILLISECONDS[unit] / (divisor * 1000) if unit in _MILLISECONDS else -1.0
    if not 0 <= found < float("inf"):
        raise ValueError(f"{text!r} is not a time; give seconds, or a unit as in 500ms, 30s, 5m or 1h")
    return found


def milliseconds(text: str) -> int:
    """Read a time in milliseconds. A number without a unit is in milliseconds.

    Raises:
        ValueError: the text is not a time. The message is for the operator.
    """
    if plain := _PLAIN.fullmatch(text.strip()):
        return int(plain[1])
    number, divisor, unit = _parts(text)
    if unit not in _MILLISECONDS:
        raise ValueError(f"{text!r} is not a time; give milliseconds, or a unit as in 500ms, 30s, 5m or 1h")
    return number * _MILLISECONDS[unit] // divisor


def word(text: str) -> str:
    """Return ``on`` or ``off`` for a synonym of it. Return any other word in lower case."""
    lower = text.strip().lower()
    return _SWITCHES.get(lower, lower)


def switch(text: str) -> bool:
    """Read a switch: ``on``, ``true``, ``yes`` and ``1``, or ``off``, ``false``, ``no`` and ``0``.

    Raises:
        ValueError: the text is another word. The message is for the operator.
    """
    if (found := word(text)) not in {"on", "off"}:
        raise ValueError(f"{text!r} is not one of on, off")
    return found == "on"


def _parts(text: str) -> tuple[int, int, str]:
    # A number as a fraction of two integers, and its unit, or "". `fractions` would import `decimal`, which
    # no gateway needs.
    found = _WITH_UNIT.fullmatch(text.strip().lower())
    if not found:
        return 0, 1, ""
    whole, _, part = found[1].partition(".")
    return int(whole + part), 10 ** len(part), found[2]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?", where X is the most similar known name. Empty if none is similar.

    A name that was cut at a hyphen (`--price` of `--price-per-gb`) is more similar than any other.
    """
    from difflib import get_close_matches  # noqa: PLC0415 - only mistakes need it

    names = list(known)
    longer = [other for other in names if other.startswith(f"{name}-")]
    return "".join(f"; did you mean {close}?" for close in longer[:1] or get_close_matches(name, names, n=1))


def meant_choice(message: str) -> str:
    """Return what `did_you_mean` says of argparse's message about an invalid choice, else ""."""
    found = _NO_CHOICE.match(message)
    return did_you_mean(found[1], found[2].replace("'", "").split(", ")) if found else ""


def usage(program: str, text: str) -> str:
    """Return the line that is printed after wrong usage. It says where to find help."""
    return f"{program}: {text}{' See' if text.endswith('?') else '; see'} {program} --help\n"
