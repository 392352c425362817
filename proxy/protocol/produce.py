"""The one thing about Produce that decides what happens on a connection: whether a response will come."""

from typing import Final

from proxy.protocol.primitives import Buffer, Truncated, read_compact_string, read_int16, read_string

_FIRST_TRANSACTIONAL: Final = 3
_FIRST_FLEXIBLE: Final = 9


def acks(frame: Buffer, version: int, body_offset: int) -> int | None:
    """Read how many replicas a Produce request waits for; with 0 the broker sends no response at all.

    The field stands first in the body up to v2, and after the transactional id from v3 on.

    Args:
        frame: the first bytes of a request, as many as have come.
        version: its version.
        body_offset: where its body starts.

    Returns:
        -1 (all in sync), 0 or 1; None: more bytes are needed.

    Raises:
        ProtocolError: the transactional id is none.
    """
    at = body_offset
    try:
        if version >= _FIRST_FLEXIBLE:
            _, at = read_compact_string(frame, at)
        elif version >= _FIRST_TRANSACTIONAL:
            _, at = read_string(frame, at)
        return read_int16(frame, at)[0]
    except Truncated:
        return None
