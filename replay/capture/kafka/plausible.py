"""Recognises Kafka frames among other bytes, by their first bytes."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import numpy as np

from proxy.protocol.api import (
    FIRST_FLEXIBLE,
    LENGTH_BYTES,
    REQUEST_START,
    REQUEST_START_BYTES,
    RESPONSE_START_BYTES,
    UNUSED_VERSION,
    ApiKey,
    request_header,
)
from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.protocol.primitives import (
    UUID_BYTES,
    Buffer,
    ProtocolError,
    Truncated,
    read_compact_count,
    read_count,
    read_string,
)
from replay.capture.files.window import Column

MAX_FRAME: Final = 1 << 30
HEAD: Final = 2048
"""The maximum size of a request's header, in bytes. Only an unlikely client id would make it larger."""
KEYS: Final = 1024
"""API keys and versions are below this number, at a place where a request is expected."""
_MAX_CLIENT_ID: Final = 1024
_MAX_TOKEN: Final = 1 << 20
"""The longest SASL token, with its length field. Brokers accept half of it (sasl.server.max.receive.size)."""
_MAX_CANDIDATES: Final = 4096
_LONGEST_KEY: Final = max(ApiKey)
_CLIENT_ID_LENGTH: Final = slice(REQUEST_START_BYTES, REQUEST_START_BYTES + 2)
_SMALLEST_REQUEST: Final = _CLIENT_ID_LENGTH.stop - LENGTH_BYTES

NO: Final = 0
MORE: Final = -1
"""The answer "more bytes are needed to decide"."""


def is_request_start(length: int, api_key: int, version: int) -> bool:
    """Return whether a request may begin with these values. API keys of later releases are allowed."""
    return 8 <= length <= MAX_FRAME and 0 <= api_key < KEYS and 0 <= version < KEYS


def is_response_start(length: int) -> bool:
    """Return whether a response may have this length, at a place where a response is expected."""
    return 4 <= length <= MAX_FRAME


def token_size(buffer: bytearray) -> int:
    """Return the size of a SASL token with its length. `MORE` if it is not complete, `NO` if it is none."""
    if len(buffer) < LENGTH_BYTES:
        return MORE
    size = LENGTH_BYTES + int.from_bytes(buffer[:LENGTH_BYTES], signed=True)
    if not LENGTH_BYTES <= size <= _MAX_TOKEN:
        return NO
    return size if len(buffer) >= size else MORE


def request_size(head: bytes, *, cut: bool) -> int:
    """Return the size of the request frame that begins with `head`, `NO`, or `MORE` (bytes are needed).

    `head` has `HEAD` bytes with the length, fewer if fewer are known. `cut`: no bytes after them were
    captured.
    """
    if len(head) < _CLIENT_ID_LENGTH.stop:
        return NO if cut else MORE
    length, api_key, version, correlation_id = REQUEST_START.unpack_from(head)
    if (
        not _SMALLEST_REQUEST <= length <= MAX_FRAME
        or api_key not in FIRST_FLEXIBLE
        or not 0 <= version < UNUSED_VERSION
        or correlation_id < 0
    ):
        return NO
    size: int = LENGTH_BYTES + length
    complete = cut or len(head) >= min(size, HEAD)
    try:
        return size if _is_header(head[:size]) else NO
    except Truncated:
        return NO if complete or int.from_bytes(head[_CLIENT_ID_LENGTH]) > _MAX_CLIENT_ID else MORE
    except ProtocolError:
        return NO


def _is_header(head: bytes) -> bool:
    client_id, _ = read_string(head, REQUEST_START_BYTES)
    if client_id and not _is_name(client_id):
        return False
    request_header(head, LENGTH_BYTES)
    return True


@lru_cache(maxsize=256)
def _is_name(client_id: bytes) -> bool:
    try:
        return client_id.decode().isprintable() and len(client_id) <= _MAX_CLIENT_ID
    except UnicodeDecodeError:
        return False


def request_candidates(
    buffer: bytearray, start: int, client_id: bytes | None, *, nameless: bool
) -> Iterator[int]:
    """Yield the offsets at which a request may begin, from `start` on.

    `client_id` is that of earlier requests of the connection. While it is unknown, `nameless` tells whether
    headers without a client id are accepted. A row of zeros also looks like such a header.
    """
    if client_id:
        pattern = len(client_id).to_bytes(2) + client_id
        at = buffer.find(pattern, start + REQUEST_START_BYTES)
        while at >= 0:
            yield at - REQUEST_START_BYTES
            at = buffer.find(pattern, at + 1)
        return
    if len(buffer) - start < _CLIENT_ID_LENGTH.stop:
        return
    bytes_ = np.frombuffer(bytes(buffer[start:]) + b"?", np.uint8)  # the byte to come may fit
    yield from (_starts(bytes_, nameless=nameless)[:_MAX_CANDIDATES] + start).tolist()


def named_starts(data: Column) -> Column:
    """Return the offsets at which a request with a client id may begin. Its first 15 bytes must be there."""
    return _starts(data, nameless=False)


def _starts(data: Column, *, nameless: bool) -> Column:
    places = max(len(data) - _CLIENT_ID_LENGTH.stop, 0)
    key, key_low, version, version_low = (data[place : places + place] for place in range(4, 8))
    found = np.flatnonzero((key_low <= _LONGEST_KEY) & (version_low < UNUSED_VERSION) & (key | version == 0))
    column = data[found[:, None] + np.arange(_CLIENT_ID_LENGTH.stop + 1)].T
    fits = ((column[0] | column[1] | column[2]) > 0) | (column[3] >= _SMALLEST_REQUEST)
    fits &= (column[0] <= MAX_FRAME >> 24) & (column[8] < 128)
    id_size = column[12].astype(np.int16) << 8 | column[13]
    named = (id_size > 0) & (id_size <= _MAX_CLIENT_ID) & (column[_CLIENT_ID_LENGTH.stop] >= ord(" "))
    fits &= named | (id_size == 0) | (id_size == -1) if nameless else named
    chosen: Column = found[fits]
    return chosen


def is_fetch_response(frame: Buffer, *, whole: bool, version: int, request: bytes, body: int) -> bool | None:
    """Judge by their contents whether bytes are the response to a certain fetch, or its start (not `whole`).

    `body` is where the fetch has its body.

    Returns:
        True if the first topic of the response is in the fetch. False if the bytes are no fetch response.
            None if the response has no topic, if its first topic is not in the fetch (the topic may be in the
            session), or if the version is not supported (v0 to v3).
    """
    layout = LAYOUTS.get(version)
    if layout is None:
        return None
    walk = FetchResponseWalk(layout, 0, keep=False)
    try:
        walk.feed(bytes(frame))
    except ProtocolError:
        return False
    if whole and not walk.done:
        return False
    key = first_topic(frame, version)
    return True if key is not None and request.find(key, body) >= 0 else None


def first_topic(frame: Buffer, version: int) -> bytes | None:
    """Return the first topic of a fetch response, with its encoded length. None if there is no topic."""
    layout = LAYOUTS[version]
    at = RESPONSE_START_BYTES + (1 if layout.flexible else 0) + layout.response_head
    try:
        count, at = (read_compact_count if layout.flexible else read_count)(frame, at)
        if not count:
            return None
        if layout.topic_ids:
            return bytes(frame[at : at + UUID_BYTES]) if len(frame) >= at + UUID_BYTES else None
        size = frame[at] if layout.flexible else 1 + int.from_bytes(frame[at : at + 2])
        end = at + size + (0 if layout.flexible else 1)
        return bytes(frame[at:end]) if at + 3 < end <= len(frame) else None
    except (ProtocolError, IndexError):
        return None
