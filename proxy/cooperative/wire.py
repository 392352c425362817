"""Whole frames of group messages, read by their schema."""

from proxy.protocol.api import LENGTH_BYTES, request_header, response_header
from proxy.protocol.messages import Struct, read, structs
from proxy.protocol.primitives import NO_TAGS, Malformed


def read_request(schema: str, frame: bytes) -> Struct:
    """Read a request.

    Raises:
        ProtocolError: it does not fit the schema, or has tags that would be lost.
    """
    api_key, version, _, _, at = request_header(frame, LENGTH_BYTES)
    return _checked(read(schema, api_key, version, frame, at))


def read_response(schema: str, frame: bytes, api_key: int, version: int) -> Struct:
    """Read a response; see `read_request`."""
    _, at = response_header(frame, LENGTH_BYTES, api_key, version)
    return _checked(read(schema, api_key, version, frame, at))


def string(fields: Struct, name: str) -> bytes:
    """Return a string that must not be null.

    Raises:
        Malformed: it is.
    """
    value: bytes | None = fields[name]
    if value is None:
        raise Malformed(f"{name} is null")
    return value


def _checked(message: Struct) -> Struct:
    """Refuse tags within arrays: elements are written anew, and no version here has tags there."""
    if any(struct.tags != NO_TAGS for struct, depth in structs(message) if depth):
        raise Malformed("an element with tags")
    return message
