"""What requests other than fetches tell: some of it before they are whole. Sans-IO."""

from typing import Final

from proxy.protocol import produce
from proxy.protocol.api import LENGTH_BYTES, request_header
from proxy.protocol.api_versions import ClientSoftware, read_client_software
from proxy.protocol.primitives import ProtocolError, Truncated

READ_WITHIN: Final = 1 << 17
"""What is looked for in a request other than a fetch lies within this many bytes."""
TLS_HANDSHAKE: Final = b"\x16\x03"
_MAX_NAME: Final = 256
"""What is kept of a name that a client gives itself."""


def wants_response(data: bytes, size: int) -> bool | None:
    """Tell whether a Produce request will be answered; with acks=0 it is not.

    Args:
        data: its first bytes, as many as have come.
        size: its size.

    Returns:
        None if more bytes are needed to tell.
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
    return acks != 0


def describe_length(data: bytes, length: int, most: int) -> str:
    """Say what is wrong with a request of a length that no broker takes."""
    if data[:2] == TLS_HANDSHAKE:
        return "TLS on a plaintext listener"
    if length > most:
        return f"a request of {length} bytes; max_request_bytes is {most}"
    return f"a request of {length} bytes"


def read_client_names(frame: bytes, version: int) -> tuple[str, ClientSoftware | None]:
    """Return the client id and, from v3 on, the software that an ApiVersions request names, `printable`.

    Raises:
        ProtocolError: it is not what that version says.
    """
    _, _, _, client_id, body = request_header(frame, LENGTH_BYTES)
    if version < 3:
        return printable(client_id), None
    software, _ = read_client_software(frame, body)
    name, of_version = printable(software.name.encode()), printable(software.version.encode())
    return printable(client_id), ClientSoftware(name=name, version=of_version)


def printable(name: bytes | None) -> str:
    """Return what a client calls itself, fit to be shown: a terminal may obey what is not printable."""
    text = (name or b"")[:_MAX_NAME].decode(errors="replace")
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)
