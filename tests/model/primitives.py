"""Reads and writes Kafka's primitive types, plain and compact."""

import struct
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

NO_TAGS: "Tags" = ()

Tags: TypeAlias = tuple[tuple[int, bytes], ...]
"""Tagged fields in wire order: (tag, payload)."""

T = TypeVar("T")


class WireError(Exception):
    """The bytes do not match the schema."""


class Reader:
    """Reads values from the start of a buffer. `flexible` means the compact forms (KIP-482)."""

    def __init__(self, data: bytes, *, flexible: bool = False) -> None:
        self.data = data
        self.offset = 0
        self.flexible = flexible

    def take(self, size: int) -> bytes:
        if size < 0 or self.offset + size > len(self.data):
            raise WireError(f"{size} bytes wanted at {self.offset} of {len(self.data)}")
        self.offset += size
        return self.data[self.offset - size : self.offset]

    def number(self, code: str) -> int:
        (value,) = struct.unpack(">" + code, self.take(struct.calcsize(">" + code)))
        return int(value)

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
            shift += 7

    def length(self, code: str) -> int:
        return self.uvarint() - 1 if self.flexible else self.number(code)

    def string(self) -> str | None:
        size = self.length("h")
        return None if size == -1 else self.take(size).decode()

    def text(self) -> str:
        value = self.string()
        if value is None:
            raise WireError("null where a string must be")
        return value

    def blob(self) -> bytes | None:
        size = self.length("i")
        return None if size == -1 else self.take(size)

    def nullable_array(self, element: Callable[["Reader"], T]) -> tuple[T, ...] | None:
        count = self.length("i")
        return None if count == -1 else tuple(element(self) for _ in range(count))

    def array(self, element: Callable[["Reader"], T]) -> tuple[T, ...]:
        value = self.nullable_array(element)
        if value is None:
            raise WireError("null where an array must be")
        return value

    def tags(self) -> Tags:
        if not self.flexible:
            return NO_TAGS
        return tuple((self.uvarint(), self.take(self.uvarint())) for _ in range(self.uvarint()))

    def end(self) -> None:
        if self.offset != len(self.data):
            raise WireError(f"{len(self.data) - self.offset} bytes left over")


class Writer:
    """Writes values in the format that `Reader` reads. `data` has the bytes written so far."""

    def __init__(self, *, flexible: bool = False) -> None:
        self.data = bytearray()
        self.flexible = flexible

    def raw(self, data: bytes) -> None:
        self.data += data

    def number(self, code: str, value: int, *, when: bool = True) -> None:
        """Write an integer. `when` is False if this version does not have the field."""
        if when:
            self.data += struct.pack(">" + code, value)

    def uvarint(self, value: int) -> None:
        while value > 0x7F:
            self.data.append(value & 0x7F | 0x80)
            value >>= 7
        self.data.append(value)

    def length(self, code: str, value: int) -> None:
        if self.flexible:
            self.uvarint(value + 1)
        else:
            self.number(code, value)

    def string(self, value: str | None) -> None:
        encoded = b"" if value is None else value.encode()
        self.length("h", -1 if value is None else len(encoded))
        self.raw(encoded)

    def blob(self, value: bytes | None) -> None:
        self.length("i", -1 if value is None else len(value))
        self.raw(value or b"")

    def array(self, values: Sequence[T] | None, element: Callable[["Writer", T], None]) -> None:
        self.length("i", -1 if values is None else len(values))
        for value in values or ():
            element(self, value)

    def tags(self, tags: Tags) -> None:
        if not self.flexible:
            return
        self.uvarint(len(tags))
        for tag, payload in tags:
            self.uvarint(tag)
            self.uvarint(len(payload))
            self.raw(payload)
