"""Finds some fields of a message by its layout, which is one line of text. Sans-IO.

A layout has the types of a message's fields in wire order, as Kafka's own definitions have them
(clients/src/main/resources/common/message in Kafka's source), up to the last field that is searched for:

    int32@2+ error [string string error]@3+

Read: an int32 from version 2 on, an error code, and from version 3 on an array of structs with two strings
and an error code each. `@0-7` are the versions 0 to 7, `@1` is version 1 alone. `int32[]` is an array of
numbers, `(...)` a struct, `?(...)` a struct that can be null. In flexible versions each struct ends with tags
(KIP-482); they are skipped. A field that is searched for has a word of its own instead of a type, see `Mark`.
"""

import re
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from proxy.protocol.api import is_flexible
from proxy.protocol.primitives import (
    UUID_BYTES,
    Truncated,
    read_compact_count,
    read_compact_string,
    read_count,
    read_int32,
    read_string,
    read_uvarint,
    skip_tags,
)

_SIZES: Final = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "int64": 8,
    "uuid": UUID_BYTES,
    "error": 2,
    "partition": 4,
}
_MARKS: Final = frozenset({"error", "topic", "partition", "group", "transaction"})
_TOKEN: Final = re.compile(r"\s*(?P<word>\?\(|[(\[)\]]|\w+(?:\[\])?)(?:@(?P<since>\d+)(?P<until>\+|-\d+)?)?")
_LATEST: Final = 0x7FFF


class Mark(NamedTuple):
    """A field that was searched for."""

    word: str
    """`error`: an error code; `topic`: a topic's name; `partition`: its number in its topic; `group`: a group
    id; `transaction`: a transactional id. Error codes and partitions are numbers, the others strings."""
    depth: int
    """0: a field of the message itself; more: one of a struct within it."""
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Field:
    word: str
    """A type, a mark, or the bracket that opens a struct."""
    size: int = 0
    """Bytes of a field of fixed size, or of several without a mark; 0: it is none."""
    fields: "tuple[_Field, ...]" = ()


@cache
def at_version(layout: str, version: int) -> tuple[_Field, ...]:
    """Return the fields of a layout that a version has; neighbours of fixed size become one.

    Raises:
        ValueError: it is not a layout.
    """
    levels: list[list[_Field]] = [[]]
    opened: list[str] = []
    at = 0
    while at < len(layout):
        token = _TOKEN.match(layout, at)
        if token is None:
            raise ValueError(f"not a layout from {at} on: {layout}")
        at, word = token.end(), token["word"]
        if word in {"[", "(", "?("}:
            levels.append([])
            opened.append(word)
            continue
        field = _Field(opened.pop(), fields=tuple(levels.pop())) if word in {"]", ")"} else _field(word)
        since = int(token["since"] or 0)
        until = {None: since if token["since"] else _LATEST, "+": _LATEST}.get(token["until"])
        if since <= version <= (int(token["until"][1:]) if until is None else until):
            _append(levels[-1], field)
    return tuple(levels[0])


def _field(word: str) -> _Field:
    return _Field(word, _SIZES.get(word, 0))


def _append(fields: list[_Field], field: _Field) -> None:
    """Add a field; one of fixed size joins the one before."""
    plain = field.size and field.word not in _MARKS
    if plain and fields and fields[-1].size and fields[-1].word not in _MARKS:
        fields[-1] = _Field("fixed", fields[-1].size + field.size)
    else:
        fields.append(field)


def find(layout: str, api_key: int, version: int, body: bytes, start: int) -> list[Mark]:
    """Find the marked fields of a message.

    Args:
        layout: of the message.
        api_key: its key.
        version: its version.
        body: the message.
        start: where its first field stands, after the header.

    Raises:
        ProtocolError: the message ends before its last field of the layout, or is not such a message.
    """
    walk = _Walk(body, flexible=bool(is_flexible(api_key, version)))
    walk.fields(at_version(layout, version), start, 0)
    return walk.found


class _Walk:
    """A walk over one message."""

    def __init__(self, body: bytes, *, flexible: bool) -> None:
        self._body = body
        self._flexible = flexible
        self._count = read_compact_count if flexible else read_count
        self._string = read_compact_string if flexible else read_string
        self.found: list[Mark] = []

    def fields(self, fields: tuple[_Field, ...], at: int, depth: int) -> int:
        """Walk fields; return where they end."""
        for field in fields:
            end = self._field(field, at, depth)
            if field.word in _MARKS:
                self.found.append(Mark(field.word, depth, at, end))
            at = end
        return at

    def _field(self, field: _Field, at: int, depth: int) -> int:
        if field.size:
            return self._skip(at, field.size)
        match field.word:
            case "string" | "topic" | "group" | "transaction":
                return self._string(self._body, at)[1]
            case "bytes" | "records":
                return self._bytes(at)
            case "[":
                count, at = self._count(self._body, at)
                for _ in range(count or 0):
                    at = self._struct(field, at, depth + 1)
                return at
            case "(":
                return self._struct(field, at, depth + 1)
            case "?(":  # an int8: -1 is null
                null = self._body[at : at + 1] == b"\xff"
                at = self._skip(at, 1)
                return at if null else self._struct(field, at, depth + 1)
        return self._array(field.word.removesuffix("[]"), at, depth)

    def _struct(self, field: _Field, at: int, depth: int) -> int:
        at = self.fields(field.fields, at, depth)
        return skip_tags(self._body, at)[1] if self._flexible else at

    def _array(self, word: str, at: int, depth: int) -> int:
        """Walk an array of numbers or strings."""
        count, at = self._count(self._body, at)
        size = _SIZES.get(word, 0)
        if size and word not in _MARKS:
            return self._skip(at, size * (count or 0))
        for _ in range(count or 0):
            end = self._skip(at, size) if size else self._string(self._body, at)[1]
            if word in _MARKS:
                self.found.append(Mark(word, depth + 1, at, end))
            at = end
        return at

    def _bytes(self, at: int) -> int:
        if self._flexible:
            size, start = read_uvarint(self._body, at)
            size -= 1
        else:
            size, start = read_int32(self._body, at)
        return self._skip(start, max(size, 0))

    def _skip(self, at: int, size: int) -> int:
        if at + size > len(self._body):
            raise Truncated("field", at)
        return at + size
