"""The options ``--max-fetch-bytes``, ``--fetch-min-bytes`` and ``--fetch-max-wait``."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from proxy.text.options import Section, option
from proxy.text.units import seconds, size
from proxy.text.values import by_client

MAX_MIN_BYTES: Final = 2**31 - 1
"""The largest min_bytes of a fetch: it is an int32 (FetchRequest.json)."""
MAX_WAIT: Final = 5.0
"""The longest time in seconds for which ``--fetch-max-wait`` makes a fetch wait."""


def _min_bytes(text: str) -> int:
    if (found := size(text)) > MAX_MIN_BYTES:
        raise ValueError(f"{text!r} is too large: min_bytes of a fetch is at most {MAX_MIN_BYTES}")
    return found


def _max_wait(text: str) -> float:
    if (found := seconds(text)) > MAX_WAIT:
        raise ValueError(
            f"{text!r} is too long: give at most {MAX_WAIT:g} s, since clients give up slow requests; "
            "a number without a unit is in seconds"
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions(Section):
    """In each, the key "" is for all other clients, and 0 means that fetches are not changed."""

    max_fetch_bytes: Mapping[str, int] = option(
        metavar="SIZE[,ID=SIZE]",
        parse=partial(by_client, read=size),
        default="0",
        help="lower max_bytes of fetches to this, so that a response has at most so many bytes of records, "
        "or one batch if it is larger; other values for client ids follow after commas (10m,billing=50m); "
        "Fetch v2 has no max_bytes and is sent as v3; 0: max_bytes stays as clients send it",
        live=True,
    )
    """The largest `max_bytes` of fetches, by client id."""
    fetch_min_bytes: Mapping[str, int] = option(
        metavar="SIZE[,ID=SIZE]",
        parse=partial(by_client, read=_min_bytes),
        default="0",
        help="raise min_bytes of fetches to this, so that the broker gathers records until it has so many "
        "bytes or max_wait_ms is over: fewer fetches, later records; other values for client ids follow "
        "after commas (64KiB,billing=0); min_bytes never exceeds the fetch's max_bytes or its smallest "
        "partition_max_bytes; 0: min_bytes stays as clients send it",
        live=True,
    )
    """The smallest `min_bytes` of fetches, by client id."""
    fetch_max_wait: Mapping[str, float] = option(
        metavar="TIME[,ID=TIME]",
        parse=partial(by_client, read=_max_wait, metavar="TIME"),
        default="0",
        help="raise max_wait_ms of fetches to this (at most 5s), if the client's software is known to wait "
        "for a response at least three times this long (docs/users/fetch-floors.md lists it); name other "
        "clients by client id (1s,billing=5s); 0: max_wait_ms stays as clients send it",
        live=True,
    )
    """The smallest `max_wait_ms` of fetches, in seconds, by client id."""
