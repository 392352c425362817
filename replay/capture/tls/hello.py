"""Reads the first messages of a TLS connection: ClientHello and ServerHello."""

from dataclasses import dataclass
from typing import Final

from proxy.protocol.primitives import Buffer

HEADER: Final = 5
"""The size of the header of a TLS record in bytes: type, version, length (RFC 8446, 5.1)."""
MOST_BODY: Final = (1 << 14) + 2048
"""The maximum number of bytes after the header of a TLS record (RFC 5246, 6.2.3; less in TLS 1.3)."""
CHANGE_CIPHER_SPEC: Final = 20
ALERT: Final = 21
HANDSHAKE: Final = 22
APPLICATION_DATA: Final = 23
_TYPES: Final = frozenset({CHANGE_CIPHER_SPEC, ALERT, HANDSHAKE, APPLICATION_DATA})
_CLIENT_HELLO: Final = 1
_SERVER_HELLO: Final = 2
_MESSAGE_HEADER: Final = 4
_RANDOM: Final = slice(_MESSAGE_HEADER + 2, _MESSAGE_HEADER + 34)
_SUPPORTED_VERSIONS: Final = 43
TLS_1_2: Final = 0x0303
TLS_1_3: Final = 0x0304
_RETRY: Final = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""The random bytes that mark a ServerHello as a HelloRetryRequest (RFC 8446, 4.1.3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHello:
    """The TLS version and the cipher that the server chose, and its random bytes."""

    version: int
    cipher: int
    random: bytes


def record_size(view: Buffer, at: int) -> int:
    """Return the size of the record at an offset, whose header must be whole. 0 if there is no TLS record."""
    body = view[at + 3] << 8 | view[at + 4]
    if view[at] not in _TYPES or view[at + 1] != 3 or view[at + 2] > 4 or not 0 < body <= MOST_BODY:
        return 0
    return HEADER + body


def begins_with_client_hello(view: memoryview) -> bool:
    """Return whether bytes are a ClientHello. A Kafka request never begins so: it would have 369 MB."""
    if len(view) < HEADER + _MESSAGE_HEADER + 2 or view[0] != HANDSHAKE or not record_size(view, 0):
        return False
    return view[HEADER] == _CLIENT_HELLO and view[HEADER + _MESSAGE_HEADER] == 3


def client_random(message: bytes) -> bytes | None:
    """Return the client random of a ClientHello. None if the message has another type or is incomplete."""
    found = message[_RANDOM]
    return found if message[:1] == bytes([_CLIENT_HELLO]) and len(found) == 32 else None


def server_hello(message: bytes) -> ServerHello | None:
    """Read a ServerHello. Return None for an incomplete or other message, or a HelloRetryRequest."""
    random = message[_RANDOM]
    if message[:1] != bytes([_SERVER_HELLO]) or random == _RETRY:
        return None
    session = _RANDOM.stop
    if len(message) <= session or len(message) < session + 1 + message[session] + 3:
        return None
    cipher = session + 1 + message[session]
    return ServerHello(
        version=_version(message, cipher + 3) or int.from_bytes(message[_MESSAGE_HEADER : _RANDOM.start]),
        cipher=int.from_bytes(message[cipher : cipher + 2]),
        random=random,
    )


def _version(message: bytes, at: int) -> int:
    """Return the TLS version in the extensions of a ServerHello (RFC 8446, 4.2.1), 0 if there is none."""
    at += 2
    while at + 4 <= len(message):
        kind, size = int.from_bytes(message[at : at + 2]), int.from_bytes(message[at + 2 : at + 4])
        if kind == _SUPPORTED_VERSIONS:
            return int.from_bytes(message[at + 4 : at + 6])
        at += 4 + size
    return 0
