"""Skips what a client and a proxy say before Kafka: SOCKS, HTTP CONNECT, and HAProxy's PROXY protocol.

Without this, the first bytes of a SOCKS5 server look like a request.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from replay.capture.kafka.plausible import MORE, NO

Size: TypeAlias = Callable[[bytes], int]
"""Returns the size of what comes before Kafka in one direction, from the first bytes. `MORE` if more bytes
are needed, `NO` if the bytes are something else."""

_LONGEST: Final = 1 << 14
_SOCKS_5: Final = 5
_SOCKS_4: Final = 4
_CONNECT: Final = 1
_PASSWORD: Final = 2
"""The method of SOCKS5 with a name and a password (RFC 1929)."""
_NAME: Final = 3
"""The type of an address that is a name. It begins with its length."""
_ADDRESS_BYTES: Final = {1: 4, 4: 16}
"""The sizes of other addresses, by type: IPv4 and IPv6."""
_HTTP_END: Final = b"\r\n\r\n"
_PROXY_2: Final = b"\r\n\r\n\0\r\nQUIT\n"
_PROXY_2_HEAD: Final = 16


class Preamble:
    """What one direction says before Kafka."""

    def __init__(self, size: Size) -> None:
        self._size = size
        self._seen = b""

    def rest(self, view: memoryview) -> memoryview | None:
        """Take the next bytes. Return those that come after the preamble. None if it is not at its end."""
        self._seen += view
        size = self._size(self._seen)
        if size == MORE and len(self._seen) < _LONGEST:
            return None
        return memoryview(self._seen)[max(size, 0) :]


def preambles(first: bytes) -> tuple[Size, Size] | None:
    """Return how to read the preambles of both directions, by the first bytes of the client."""
    if first.startswith(b"CONNECT "):
        return _http, _http
    if first.startswith(b"PROXY "):
        return _proxy_1, _nothing
    if first.startswith(_PROXY_2):
        return _proxy_2, _nothing
    if first[:1] == bytes([_SOCKS_5]) and len(first) > 1 and len(first) == 2 + first[1]:
        return _socks_5_client, _socks_5_server
    if first[:2] == bytes([_SOCKS_4, _CONNECT]) and first.endswith(b"\0"):
        return _socks_4_client, _socks_4_server
    return None


def _nothing(_: bytes) -> int:
    return 0


def _http(data: bytes) -> int:
    at = data.find(_HTTP_END)
    return at + len(_HTTP_END) if at >= 0 else MORE


def _proxy_1(data: bytes) -> int:
    at = data.find(b"\r\n")
    return at + 2 if at >= 0 else MORE


def _proxy_2(data: bytes) -> int:
    if len(data) < _PROXY_2_HEAD:
        return MORE
    size = _PROXY_2_HEAD + int.from_bytes(data[_PROXY_2_HEAD - 2 : _PROXY_2_HEAD])
    return size if len(data) >= size else MORE


def _socks_5_client(data: bytes) -> int:
    """RFC 1928: the methods; a name and a password if the server asks for them; a request."""
    at = 2 + data[1]
    if data[at : at + 1] == b"\1":
        try:
            at += 2 + data[at + 1]
            at += 1 + data[at]
        except IndexError:
            return MORE
    return _socks_5_address(data, at)


def _socks_5_server(data: bytes) -> int:
    return _socks_5_address(data, 4 if data[1:2] == bytes([_PASSWORD]) else 2)


def _socks_5_address(data: bytes, at: int) -> int:
    head = data[at : at + 5]
    if head and head[0] != _SOCKS_5:
        return NO
    if len(head) < 5:
        return MORE
    address = 1 + head[4] if head[3] == _NAME else _ADDRESS_BYTES.get(head[3], 0)
    end = at + 4 + address + 2
    return end if len(data) >= end else MORE


def _socks_4_client(data: bytes) -> int:
    """The request, the user's name, and in SOCKS 4a (address 0.0.0.x) the name of the host."""
    end = data.find(b"\0", 8)
    if end >= 0 and data[4:7] == bytes(3) and data[7]:
        end = data.find(b"\0", end + 1)
    return end + 1 if end >= 0 else MORE


def _socks_4_server(data: bytes) -> int:
    return 8 if len(data) >= 8 else MORE
