"""Kafka's protocol on a plain socket. It shares no code with the gateway: tests compare the two."""

import socket
import struct
from dataclasses import dataclass
from typing import Self

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS = 0, 1, 2, 3, 18

_NEVER = 1 << 15
FIRST_FLEXIBLE = (
    *(9, 12, 6, 9, 4, 2, 6, 3, 8, 6, 3, 6, 4, 4, 4, 5, 3, _NEVER, 3, 5, 4, 2, 2, 4, 3),
    *(3, 3, 1, 3, 2, 2, 2, 4, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 0, 0, _NEVER, 1, 1),
)
"""The first flexible version of each API key (KIP-482). Keys 50 and above are always flexible."""

TIMEOUT = 30.0


def is_flexible(api_key: int, version: int) -> bool:
    """Whether a message is flexible (KIP-482): compact lengths, and tags in body and header."""
    if api_key >= 50:
        return True
    return version >= FIRST_FLEXIBLE[api_key]


class RawConnection:
    """One connection. Requests are sent unchanged; responses are read frame by frame."""

    def __init__(self, host: str, port: int, *, timeout: float = TIMEOUT) -> None:
        self.socket = socket.create_connection((host, port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket. A request in flight gets no response."""
        self.socket.close()

    def send(
        self,
        api_key: int,
        version: int,
        body: bytes,
        client_id: str | None = "spec",
        correlation_id: int | None = None,
    ) -> int:
        """Send one request. Return its correlation id, which counts up if None is given."""
        if correlation_id is None:
            self._correlation_id += 1
            correlation_id = self._correlation_id
        self.socket.sendall(frame(request(api_key, version, body, client_id, correlation_id)))
        return correlation_id

    def receive(self) -> bytes:
        """Read one response: correlation id, header tags and body, without the length before them."""
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def call(self, api_key: int, version: int, body: bytes, client_id: str | None = "spec") -> bytes:
        """Return the body of a response. ConnectionError: there is none. ValueError: it is another's."""
        correlation_id = self.send(api_key, version, body, client_id)
        response = self.receive()
        (echoed,) = struct.unpack_from(">i", response)
        if echoed != correlation_id:
            raise ValueError(f"sent correlation id {correlation_id}, received {echoed}")
        return response[header_length(api_key, version) :]

    def versions(self) -> dict[int, tuple[int, int]]:
        """Return lowest and highest version by API key, from ApiVersions v0, which every broker knows."""
        reader = BodyReader(self.call(API_VERSIONS, 0, b""))
        if error := reader.int16():
            raise ValueError(f"ApiVersions: error {error}")
        return {reader.int16(): (reader.int16(), reader.int16()) for _ in range(reader.int32())}

    def _exactly(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            data = self.socket.recv(count - len(received))
            if not data:
                raise ConnectionError(f"closed by the peer, {count - len(received)} of {count} bytes missing")
            received += data
        return bytes(received)


def frame(message: bytes) -> bytes:
    """Put the length before a message."""
    return struct.pack(">i", len(message)) + message


def request(api_key: int, version: int, body: bytes, client_id: str | None, correlation_id: int) -> bytes:
    """Put header v1 or v2 before a body. In both, the client id has a length of two bytes."""
    header = struct.pack(">hhi", api_key, version, correlation_id) + string(client_id)
    return header + (b"\0" if is_flexible(api_key, version) else b"") + body


def header_length(api_key: int, version: int) -> int:
    """Return the bytes of a response's header. KIP-511: ApiVersions responses always have header v0."""
    return 5 if is_flexible(api_key, version) and api_key != API_VERSIONS else 4


def string(text: str | None) -> bytes:
    """Encode a (nullable) string: int16 length, -1 for null."""
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def blob(data: bytes | None) -> bytes:
    """Encode (nullable) bytes: int32 length, -1 for null."""
    return b"\xff\xff\xff\xff" if data is None else struct.pack(">i", len(data)) + data


def array(items: list[bytes]) -> bytes:
    """Encode an array of encoded items."""
    return struct.pack(">i", len(items)) + b"".join(items)


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint, seven bits a byte, lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def compact_string(text: str | None) -> bytes:
    """Encode a (nullable) string of a flexible message: unsigned varint of length plus one."""
    if text is None:
        return b"\0"
    data = text.encode()
    return uvarint(len(data) + 1) + data


def compact_array(items: list[bytes]) -> bytes:
    """Encode an array of a flexible message. `items` are the encoded elements."""
    return uvarint(len(items) + 1) + b"".join(items)


@dataclass(slots=True)
class BodyReader:
    """Reads a body. struct.error, IndexError or ValueError means that bytes are missing."""

    data: bytes
    offset: int = 0

    def int8(self) -> int:
        """Read an int8."""
        return self._unpack(">b", 1)

    def int16(self) -> int:
        """Read an int16."""
        return self._unpack(">h", 2)

    def int32(self) -> int:
        """Read an int32."""
        return self._unpack(">i", 4)

    def int64(self) -> int:
        """Read an int64."""
        return self._unpack(">q", 8)

    def uvarint(self) -> int:
        """Read an unsigned varint."""
        value = shift = 0
        while True:
            byte = self.data[self.offset]
            self.offset += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def read(self, count: int) -> bytes:
        """Return the next bytes as they are."""
        if self.left < count:
            raise ValueError(f"{count} bytes wanted, {self.left} left")
        self.offset += count
        return self.data[self.offset - count : self.offset]

    def string(self) -> str | None:
        """Read a (nullable) string with an int16 length."""
        length = self.int16()
        return None if length < 0 else self.read(length).decode()

    def blob(self) -> bytes | None:
        """Read (nullable) bytes with an int32 length."""
        length = self.int32()
        return None if length < 0 else self.read(length)

    def compact_string(self) -> str | None:
        """Read a (nullable) string of a flexible message."""
        length = self.uvarint()
        return None if length == 0 else self.read(length - 1).decode()

    def tags(self) -> dict[int, bytes]:
        """Read the tags at the end of a structure. Return them by number."""
        return {self.uvarint(): self.read(self.uvarint()) for _ in range(self.uvarint())}

    @property
    def left(self) -> int:
        """The number of bytes that are not read yet."""
        return len(self.data) - self.offset

    def _unpack(self, layout: str, size: int) -> int:
        (value,) = struct.unpack_from(layout, self.data, self.offset)
        self.offset += size
        return int(value)
