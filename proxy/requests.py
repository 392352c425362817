"""What the first bytes of a request tell, before the rest has come. Sans-IO."""

from typing import Final

from proxy.protocol import produce
from proxy.protocol.api import request_header
from proxy.protocol.primitives import ProtocolError, Truncated

READ_WITHIN: Final = 1 << 17
"""What is looked for in a request other than a fetch lies within this many bytes."""
TLS_HANDSHAKE: Final = b"\x16\x03"


def wants_answer(data: bytes, size: int) -> bool | None:
    """Tell whether a Produce request will be answered; with acks=0 it is not.

    Args:
        data: its first bytes, as many as have come.
        size: its size.

    Returns:
        None if more bytes are needed to tell.
    """
    try:
        _, version, _, _, at = request_header(data, 4)
        acks = produce.acks(data, version, at)
    except Truncated:
        acks = None
    except ProtocolError:
        return True
    if acks is None:
        return None if len(data) < min(size, READ_WITHIN) else True
    return acks != 0


def describe_length(data: bytes, length: int, most: int) -> str:
    """Say what is wrong with a request of a length that no broker takes."""
    if data[:2] == TLS_HANDSHAKE:
        return "TLS on a plaintext listener"
    if length > most:
        return f"a request of {length} bytes; max_request_bytes is {most}"
    return f"a request of {length} bytes"
