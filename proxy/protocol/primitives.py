"""Readers and writers of single values of the Kafka protocol. Everything is big-endian.

Every reader has one contract, `(buffer, offset) -> (value, next_offset)`. It checks its bounds, and never
allocates memory by a number that it has read. A reader raises only:

    ValueError
      ProtocolError            the bytes do not match the protocol
        Truncated              the value continues after the end of the buffer
        Malformed              a value that Kafka never writes
        UnknownVersion         an unknown API key or version
        TooMany                more elements or bytes of tags than the limit
"""

import struct
from collections.abc import Callable
from typing import Final, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""The input of readers. No reader changes or keeps it."""

Span: TypeAlias = tuple[int, int]
"""The offset of the first byte, and the offset after the last byte."""

TagSpan: TypeAlias = tuple[int, int, int]
"""The tag of a tagged field, and the `Span` of its payload."""

MAX_UVARINT: Final = 0xFFFF_FFFF
MAX_UVARINT_BYTES: Final = 5
MAX_STRING: Final = 0x7FFF
MAX_TAGS: Final = 1024
"""The limit of tags in one tag buffer. Each tag costs time, and no schema has even ten tags."""
UUID_BYTES: Final = 16

NO_TAGS: Final = b"\x00"
"""A tag buffer without tags."""


class ProtocolError(ValueError):
    """The bytes do not match the protocol."""


class Truncated(ProtocolError):  # noqa: N818 - a state of the bytes; the root class has the word Error
    """The value continues after the end of the buffer."""

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(f"{what} at {offset} goes on after the end")


class Malformed(ProtocolError):  # noqa: N818 - as above
    """A value that Kafka never writes."""


class TooMany(ProtocolError):  # noqa: N818 - as above
    """More elements or bytes of tags than the limit. They cost time, and no client needs so many."""


class UnknownVersion(ProtocolError):  # noqa: N818 - as above
    """An unknown API key or version."""

    def __init__(self, api_key: int, version: int) -> None:
        super().__init__(f"api key {api_key} at version {version} is not known")


def _integer_reader(what: str, layout: str) -> Callable[[Buffer, int], tuple[int, int]]:
    integer = struct.Struct(layout)
    unpack_from, size = integer.unpack_from, integer.size

    def read(buffer: Buffer, offset: int) -> tuple[int, int]:
        end = offset + size
        if end > len(buffer):
            raise Truncated(what, offset)
        return unpack_from(buffer, offset)[0], end

    return read


read_int16 = _integer_reader("int16", ">h")
read_int32 = _integer_reader("int32", ">i")


def read_uvarint(buffer: Buffer, offset: int) -> tuple[int, int]:
    """Read an unsigned varint: 7 bits per byte, the low bits first, at most 32 bits.

    Raises:
        Malformed: the varint has more than five bytes, or more than 32 bits.
        Truncated: the last byte of the varint is missing.
    """
    size = len(buffer)
    if offset < size and (byte := buffer[offset]) < 0x80:
        return byte, offset + 1
    value = shift = 0
    for at in range(offset, offset + MAX_UVARINT_BYTES):
        if at >= size:
            raise Truncated("uvarint", offset)
        byte = buffer[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > MAX_UVARINT:
                raise Malformed(f"uvarint at {offset} is beyond 32 bits")
            return value, at + 1
        shift += 7
    raise Malformed(f"uvarint at {offset} has more than {MAX_UVARINT_BYTES} bytes")


_SHORT_UVARINTS: Final = [bytes((value,)) for value in range(0x80)]


def encode_uvarint(value: int) -> bytes:
    """Encode a value from 0 to 2^32-1 as a varint with as few bytes as possible."""
    if 0 <= value < 0x80:
        return _SHORT_UVARINTS[value]
    if not 0 <= value <= MAX_UVARINT:
        raise Malformed(f"{value} does not fit a uvarint")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_bytes(buffer: Buffer, offset: int, length: int, what: str) -> tuple[bytes, int]:
    end = offset + length
    if end > len(buffer):
        raise Truncated(what, offset)
    return bytes(buffer[offset:end]), end


def read_string(buffer: Buffer, offset: int) -> tuple[bytes | None, int]:
    """Read a string without decoding it. Its length is an int16, and the length -1 means null."""
    length, start = read_int16(buffer, offset)
    if length < 0:
        if length == -1:
            return None, start
        raise Malformed(f"string at {offset} has length {length}")
    return _read_bytes(buffer, start, length, "string")


def read_compact_string(buffer: Buffer, offset: int) -> tuple[bytes | None, int]:
    """Read a compact string without decoding it. Its uvarint length is 1 too large, and 0 means null."""
    length, start = read_uvarint(buffer, offset)
    if length == 0:
        return None, start
    return _read_bytes(buffer, start, length - 1, "compact string")


def encode_string(value: bytes | None) -> bytes:
    """Encode a string with an int16 length. None is encoded as null."""
    if value is None:
        return b"\xff\xff"
    if len(value) > MAX_STRING:
        raise Malformed(f"a string of {len(value)} bytes does not fit")
    return len(value).to_bytes(2) + value


def encode_compact_string(value: bytes | None) -> bytes:
    """Encode a string with a uvarint length. None is encoded as null."""
    return b"\x00" if value is None else encode_uvarint(len(value) + 1) + value


def read_count(buffer: Buffer, offset: int) -> tuple[int | None, int]:
    """Read the number of elements of an array, an int32. -1 (null) becomes None.

    Raises:
        Malformed: the number is below -1.
        Truncated: there are fewer bytes left than elements, and an element has at least one byte.
    """
    count, start = read_int32(buffer, offset)
    if count < 0:
        if count == -1:
            return None, start
        raise Malformed(f"array at {offset} has {count} elements")
    if count > len(buffer) - start:
        raise Truncated("array", offset)
    return count, start


def read_compact_count(buffer: Buffer, offset: int) -> tuple[int | None, int]:
    """Read the number of elements of a compact array. The number plus 1 is a uvarint. 0 (null) becomes None.

    Raises:
        Truncated: there are fewer bytes left than elements, and an element has at least one byte.
    """
    count, start = read_uvarint(buffer, offset)
    if count == 0:
        return None, start
    if count - 1 > len(buffer) - start:
        raise Truncated("compact array", offset)
    return count - 1, start


def encode_count(count: int | None) -> bytes:
    """Encode the number of elements of an array. None is encoded as null."""
    return b"\xff\xff\xff\xff" if count is None else count.to_bytes(4)


def encode_compact_count(count: int | None) -> bytes:
    """Encode the number of elements of a compact array. None is encoded as null."""
    return b"\x00" if count is None else encode_uvarint(count + 1)


def skip_tags(buffer: Buffer, offset: int) -> tuple[None, int]:
    """Skip a tag buffer. It raises what `read_tags` raises."""
    if buffer[offset : offset + 1] == NO_TAGS:  # as nearly always
        return None, offset + 1
    return None, read_tags(buffer, offset)[1]


def read_tags(buffer: Buffer, offset: int) -> tuple[list[TagSpan], int]:
    """Read the tag numbers and payload spans of a tag buffer, in order.

    Raises:
        Malformed: there are more than `MAX_TAGS` tags, or a varint is malformed.
        Truncated: the end of the tag buffer is missing.
    """
    count, at = read_uvarint(buffer, offset)
    if count > MAX_TAGS:
        raise Malformed(f"a buffer of {count} tags")
    spans: list[TagSpan] = []
    for _ in range(count):
        tag, at = read_uvarint(buffer, at)
        size, start = read_uvarint(buffer, at)
        at = start + size
        if at > len(buffer):
            raise Truncated("tag", start)
        spans.append((tag, start, at))
    return spans, at
