"""Reads and writes fields of Kafka's messages one after the other, without using fetchgate's schemas."""

from proxy.protocol.api import LENGTH_BYTES, is_flexible
from proxy.protocol.primitives import (
    NO_TAGS,
    Malformed,
    encode_compact_count,
    encode_compact_string,
    encode_count,
    encode_string,
    read_compact_count,
    read_compact_string,
    read_count,
    read_int16,
    read_int32,
    read_string,
    read_tags,
)


class Reader:
    """Reads the fields of a message body, one after the other.

    Args:
        frame: the bytes of the message.
        at: the offset of the body.
        api_key: the API key. With the version, it decides whether lengths are compact and tags exist.
        version: the version of the body.
    """

    def __init__(self, frame: bytes, at: int, api_key: int, version: int) -> None:
        self.frame, self.at = frame, at
        self.flexible = bool(is_flexible(api_key, version))

    def int8(self) -> int:
        """Read an int8."""
        self.skip(1)
        return self.frame[self.at - 1]

    def int16(self) -> int:
        """Read an int16."""
        value, self.at = read_int16(self.frame, self.at)
        return value

    def int32(self) -> int:
        """Read an int32."""
        value, self.at = read_int32(self.frame, self.at)
        return value

    def int64(self) -> int:
        """Read an int64."""
        at = self.at
        self.skip(8)
        return int.from_bytes(self.frame[at : self.at], signed=True)

    def skip(self, size: int) -> None:
        """Skip some bytes."""
        self.at += size
        if self.at > len(self.frame):
            raise Malformed("the body goes on after the end")

    def nullable(self) -> bytes | None:
        """Read a string, or None if it is null."""
        value, self.at = (read_compact_string if self.flexible else read_string)(self.frame, self.at)
        return value

    def data(self) -> bytes | None:
        """Read bytes, or None if they are null."""
        if self.flexible:
            return self.nullable()
        size, at = read_count(self.frame, self.at)
        self.at = at
        self.skip(size or 0)
        return None if size is None else self.frame[at : self.at]

    def string(self) -> bytes:
        """Read a string that is not null."""
        value = self.nullable()
        if value is None:
            raise Malformed(f"the string before {self.at} is null")
        return value

    def count(self) -> int | None:
        """Read the number of elements of an array, or None if it is null."""
        value, self.at = (read_compact_count if self.flexible else read_count)(self.frame, self.at)
        return value

    def tags(self) -> None:
        """Skip a tag buffer, which must be empty. An unknown tag would be lost.

        Raises:
            Malformed: there are tags.
        """
        if self.flexible:
            tags, self.at = read_tags(self.frame, self.at)
            if tags:
                raise Malformed(f"tags before {self.at}")

    def end(self) -> None:
        """Check that no bytes are left."""
        if self.at != len(self.frame):
            raise Malformed(f"{len(self.frame) - self.at} bytes are left over")


class Writer:
    """Writes the fields of a message body, one after the other.

    Args:
        api_key: the API key. With the version, it decides whether lengths are compact and tags exist.
        version: the version of the body.
    """

    def __init__(self, api_key: int, version: int) -> None:
        self.api_key, self.version = api_key, version
        self.flexible = bool(is_flexible(api_key, version))
        self.content = bytearray()

    def number(self, value: int) -> None:
        """Write an int32."""
        self.content += value.to_bytes(4)

    def string(self, value: bytes | None) -> None:
        """Write a string. None is written as null."""
        self.content += (encode_compact_string if self.flexible else encode_string)(value)

    def data(self, value: bytes | None) -> None:
        """Write bytes. None is written as null."""
        if self.flexible:
            self.string(value)
        else:
            self.content += encode_count(None if value is None else len(value)) + (value or b"")

    def count(self, count: int) -> None:
        """Write the number of elements of an array."""
        self.content += (encode_compact_count if self.flexible else encode_count)(count)

    def tags(self) -> None:
        """Write an empty tag buffer, if the version has one."""
        if self.flexible:
            self.content += NO_TAGS


def framed(content: bytes | bytearray) -> bytes:
    """Return a message with its length prefix."""
    return len(content).to_bytes(LENGTH_BYTES) + content
