"""Produce: whether a response will come."""

from typing import Final

from proxy.protocol.primitives import Buffer, Truncated, read_compact_string, read_int16, read_string

_FIRST_TRANSACTIONAL: Final = 3
_FIRST_FLEXIBLE: Final = 9


def acks(frame: Buffer, version: int, body_offset: int) -> int | None:
    """Read acks of a Produce request: the replicas that it waits for. With 0 the broker sends no response.

    The field stands first in the body up to v2, and after the transactional id from v3 on.

    Args:
        frame: a request, or its first bytes.
        version: its version.
        body_offset: where its body starts.

    Returns:
        -1 (all in sync), 0 or 1; None: more bytes are needed.

    Raises:
        ProtocolError: these bytes are no transactional id.
    """
    at = body_offset
    try:
        # KIP-98: the transactional id stands first from v3 on (fetch-semantics, trap 32; case 86).
        if version >= _FIRST_FLEXIBLE:
            _, at = read_compact_string(frame, at)
        elif version >= _FIRST_TRANSACTIONAL:
            _, at = read_string(frame, at)
        return read_int16(frame, at)[0]
    except Truncated:
        return None
