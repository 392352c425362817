"""Parses complete frames of group messages by their schemas.

A frame that does not match its schema, or has tagged fields that would be lost, raises ProtocolError.
"""

from typing import Final, NamedTuple

from proxy.protocol import schemas
from proxy.protocol.api import LENGTH_BYTES, ApiKey, request_header, response_header
from proxy.protocol.messages import Struct, read, structs
from proxy.protocol.primitives import NO_TAGS, Malformed

_REQUESTS: Final = {
    int(ApiKey.JOIN_GROUP): schemas.JOIN_GROUP_REQUEST,
    int(ApiKey.SYNC_GROUP): schemas.SYNC_GROUP_REQUEST,
    int(ApiKey.HEARTBEAT): schemas.HEARTBEAT_REQUEST,
    int(ApiKey.OFFSET_COMMIT): schemas.OFFSET_COMMIT_REQUEST,
    int(ApiKey.TXN_OFFSET_COMMIT): schemas.TXN_OFFSET_COMMIT_REQUEST,
    int(ApiKey.OFFSET_FETCH): schemas.OFFSET_FETCH_REQUEST,
}


class Request(NamedTuple):
    """A request whose header and fields are parsed."""

    api_key: int
    version: int
    message: Struct


def read_request(frame: bytes) -> Request:
    """Read a request that concerns a group."""
    api_key, version, _, _, at = request_header(frame, LENGTH_BYTES)
    message = _checked(read(_REQUESTS[api_key], api_key, version, frame, at))
    return Request(api_key, version, message)


def read_response(schema: str, frame: bytes, api_key: int, version: int) -> Struct:
    """Read a response that concerns a group."""
    _, at = response_header(frame, LENGTH_BYTES, api_key, version)
    return _checked(read(schema, api_key, version, frame, at))


def string(fields: Struct, name: str) -> bytes:
    """Return the value of a string field. Null raises Malformed."""
    value: bytes | None = fields[name]
    if value is None:
        raise Malformed(f"{name} is null")
    return value


def _checked(message: Struct) -> Struct:
    # Elements of arrays are encoded again, and their tagged fields would be lost. The supported versions
    # define none.
    if any(struct.tags != NO_TAGS for struct, depth in structs(message) if depth):
        raise Malformed("an element with tags")
    return message
