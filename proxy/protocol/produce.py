"""Reads from Produce requests whether there will be a response."""

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
"""The fields of a forwarded request that the gateway reads, such as acks, must be within this many bytes."""

_FIRST_TRANSACTIONAL: Final = 3
_FIRST_FLEXIBLE: Final = 9


def acks(frame: Buffer, version: int, body_offset: int) -> int | None:
    """Read the field acks of a Produce request, or of its first bytes: -1 (all in sync), 0 or 1.

    Return None if more bytes are needed. With 0, the broker sends no response.

    Raises:
        ProtocolError: the transactional id is not valid.
    """
    try:
        return read_acks(frame, version, body_offset)[0]
    except Truncated:
        return None


def read_acks(frame: Buffer, version: int, body_offset: int) -> tuple[int, int]:
    """Read the field acks of a Produce request (see `acks`). Return its value, and the offset after it."""
    at = body_offset
    # KIP-98: from v3 on the transactional id is the first field (fetch-semantics, trap 32; case 86).
    if version >= _FIRST_FLEXIBLE:
        _, at = read_compact_string(frame, at)
    elif version >= _FIRST_TRANSACTIONAL:
        _, at = read_string(frame, at)
    return read_int16(frame, at)


def wants_response(data: Buffer, size: int) -> bool | None:
    """Return whether a broker responds to a Produce request of this size, given its first bytes.

    Return None if more bytes are needed. If acks can't be read, or is not within `READ_WITHIN`, return True.
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
