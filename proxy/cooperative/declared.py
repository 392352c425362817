"""Key ranges in a client.id, the only field that every library sends in each request.

    billing.kr-00000000-3fffffff                      the first quarter, on every partition that it fetches
    billing.kr-0-3fffffff-80000000-bfffffff           two ranges
    billing.lane-blue                                 a lane of the gateway's options file

The broker gets the client's own id, without the suffix, because quotas and logs use it.
"""

import re
from typing import Final, NamedTuple

from proxy.cooperative.named import NAME
from proxy.cooperative.ranges import KeyRanges, RangeError, check_ranges

MAX_RANGES: Final = 64
"""How many ranges a client may declare. Each is compared with the ranges of others, and may be a step of a
map."""
MAX_SHOWN: Final = 256
_SUFFIX: Final = re.compile(rb"\.(kr|lane)-([A-Za-z0-9._-]*)$")
_RANGES: Final = re.compile(rb"[0-9a-f]{1,8}-[0-9a-f]{1,8}(-[0-9a-f]{1,8}-[0-9a-f]{1,8})*")
_NAME: Final = re.compile(NAME.encode())


class Declared(NamedTuple):
    """The declaration in a client.id."""

    own_id: bytes
    """The client.id without the suffix."""
    ranges: KeyRanges = ()
    lane: str = ""
    """The name of the lane, or "" if ranges are declared."""


def declared(client_id: bytes) -> Declared | None:
    """Read the declaration in a client.id. Return None if there is none.

    Raises:
        RangeError: it has such a suffix, but no valid ranges or name. Such a client must not get all records.
    """
    found = _SUFFIX.search(client_id)
    if found is None:
        return None
    own_id, text = client_id[: found.start()], found[2]
    if found[1] == b"lane":
        if not _NAME.fullmatch(text):
            raise RangeError(f"{shown(client_id)}: the name of a lane has 1 to 64 characters A-Z a-z 0-9 _ -")
        return Declared(own_id, lane=text.decode())
    if not _RANGES.fullmatch(text):
        raise RangeError(f"{shown(client_id)}: ranges are .kr-LOW-HIGH, hexadecimal digits in lower case")
    if text.count(b"-") >= 2 * MAX_RANGES:
        raise RangeError(f"{shown(client_id)}: more than {MAX_RANGES} ranges")
    bounds = [int(bound, 16) for bound in text.split(b"-")]
    ranges = tuple(sorted(zip(bounds[::2], bounds[1::2], strict=True)))
    try:
        check_ranges(ranges)
    except RangeError as error:
        raise RangeError(f"{shown(client_id)}: {error}") from None
    return Declared(own_id, ranges)


def suffix(ranges: KeyRanges) -> str:
    """Return the suffix that declares ranges."""
    return ".kr-" + "-".join(f"{bound:08x}" for pair in ranges for bound in pair)


def shown(client_id: bytes) -> str:
    """Return a client's name for a message, with at most `MAX_SHOWN` characters.

    Its client.id may have 32 KiB.
    """
    text = client_id.decode(errors="replace")
    return f"client.id {text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + '...'}"
