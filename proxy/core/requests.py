"""Reads requests other than fetches, some of them before they are whole. Sans-IO."""

from typing import Final

from proxy.protocol import produce
from proxy.protocol.api import LENGTH_BYTES, request_header
from proxy.protocol.api_versions import ClientSoftware, read_client_software
from proxy.protocol.primitives import ProtocolError, Truncated

READ_WITHIN: Final = 1 << 17
"""The fields that are read in such a request are within this many bytes."""
TLS_HANDSHAKE: Final = b"\x16\x03"
_MAX_NAME: Final = 256
"""Bytes that are kept of a client's name."""


def wants_response(data: bytes, size: int) -> bool | None:
    """Return whether a broker responds to a Produce request; None if more bytes are needed.

    Args:
        data: the first bytes of the request.
        size: its size.
    """
    try:
        _, version, _, _, at = request_header(data, LENGTH_BYTES)
        acks = produce.acks(data, version, at)
    except Truncated:
        acks = None
    except ProtocolError:
        return True
    if acks is None:
        return None if len(data) < min(size, READ_WITHIN) else True
    # With acks=0 a broker sends nothing, not even an error (fetch-semantics, trap 32; case 86).
    return acks != 0


def describe_length(data: bytes, length: int, most: int) -> str:
    """Describe what is wrong with the length of a request."""
    if data[:2] == TLS_HANDSHAKE:
        return "TLS on a plaintext listener"
    if length > most:
        return f"a request of {length} bytes; max_request_bytes is {most}"
    return f"a request of {length} bytes"


def read_client_names(frame: bytes, version: int) -> tuple[str, ClientSoftware | None]:
    """Return the client id and, from v3 on, the software of an ApiVersions request, both `printable`.

    Raises:
        ProtocolError: the frame is not of that version.
    """
    _, _, _, client_id, body = request_header(frame, LENGTH_BYTES)
    # KIP-511: software name and version, from v3 on.
    if version < 3:
        return printable(client_id), None
    software, _ = read_client_software(frame, body)
    name, of_version = printable(software.name.encode()), printable(software.version.encode())
    return printable(client_id), ClientSoftware(name=name, version=of_version)


def printable(name: bytes | None) -> str:
    """Return a client's name without control characters, which a terminal may obey."""
    text = (name or b"")[:_MAX_NAME].decode(errors="replace")
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)
