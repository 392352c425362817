"""Produce: whether a response will come."""

from typing import Final

from proxy.protocol.api import LENGTH_BYTES, request_header
from proxy.protocol.primitives import (
    Buffer,
    ProtocolError,
    Truncated,
    read_compact_string,
    read_int16,
    read_string,
)

READ_WITHIN: Final = 1 << 17
"""acks is within this many bytes of a request. So are the other fields that are read of a forwarded one."""

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
    try:
        return read_acks(frame, version, body_offset)[0]
    except Truncated:
        return None


def read_acks(frame: Buffer, version: int, body_offset: int) -> tuple[int, int]:
    """Read acks of a Produce request; return it and the offset after it. See `acks`."""
    at = body_offset
    # KIP-98: the transactional id stands first from v3 on (fetch-semantics, trap 32; case 86).
    if version >= _FIRST_FLEXIBLE:
        _, at = read_compact_string(frame, at)
    elif version >= _FIRST_TRANSACTIONAL:
        _, at = read_string(frame, at)
    return read_int16(frame, at)


def wants_response(data: Buffer, size: int) -> bool | None:
    """Return whether a broker responds to a Produce request; None if more bytes are needed.

    Args:
        data: the first bytes of the request, from its length on.
        size: its size.
    """
    try:
        _, version, _, _, at = request_header(data, LENGTH_BYTES)
        found = acks(data, version, at)
    except Truncated:
        found = None
    except ProtocolError:
        return True
    if found is None:
        return None if len(data) < min(size, READ_WITHIN) else True
    # With acks=0 a broker sends nothing, not even an error (fetch-semantics, trap 32; case 86).
    return found != 0
