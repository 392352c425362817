"""Kafka's messages by schema: read some fields, replace some; every other byte stays as it came. Sans-IO.

A schema is one line of text. It has a message's fields in wire order, with names and types as Kafka's own
definitions have them (clients/src/main/resources/common/message in Kafka's source):

    throttle_time_ms:int32@1+ error_code:int16 members:[member_id:string metadata:bytes]@0-3 #0 rack:string

Read: an int32 from version 1 on, an error code, in the versions 0 to 3 an array of structs, and a tagged
field, with tag 0. `@1` is version 1 alone. Types:

    bool int8 int16 uint16 int32 uint32 int64 uuid   of fixed size; a uuid is 16 bytes, a bool is 0 or 1
    string bytes                                     bytes or None, undecoded
    int32[]                                          an array of any of these
    [...] (...) ?(...)                               an array of structs, a struct, a struct that can be null

A field without a name is skipped. An array or a struct without a name that has fields with names is called by
its place: "0", "1". In flexible versions strings and arrays are compact, and each struct ends with tags
(KIP-482). A tag that the schema does not have is skipped, and stays where it is when fields are replaced.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from operator import itemgetter
from typing import Any, Final, TypeAlias

from proxy.protocol.api import LENGTH_BYTES, REQUEST_HEADER, is_flexible
from proxy.protocol.primitives import (
    NO_TAGS,
    UUID_BYTES,
    Malformed,
    Span,
    Truncated,
    encode_compact_count,
    encode_compact_string,
    encode_count,
    encode_string,
    read_compact_count,
    read_compact_string,
    read_count,
    read_int32,
    read_string,
    read_tags,
    read_uvarint,
    skip_tags,
)

Edit: TypeAlias = tuple[int, int, bytes]
"""The start and end of some bytes, and the bytes that replace them."""

_SIZES: Final = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uuid": UUID_BYTES,
}
_UNSIGNED: Final = frozenset({"bool", "uint16", "uint32"})
_TOKEN: Final = re.compile(
    r"\s*(?:#(?P<tag>\d+)\s+)?(?:(?P<name>\w+):)?"
    r"(?P<type>\?\(|[(\[)\]]|\w+(?:\[\])?)(?:@(?P<since>\d+)(?P<until>\+|-\d+)?)?"
)
_LATEST: Final = 0x7FFF


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a schema, in the versions `since` to `until`."""

    name: str
    """Empty: it is skipped."""
    kind: str
    """A type, or the bracket that opens a struct or an array of structs."""
    size: int = 0
    """Bytes of a field of fixed size, or of several that are skipped; 0: it is none."""
    fields: "tuple[Field, ...]" = ()
    tag: int | None = None
    since: int = 0
    until: int = _LATEST


class Struct(dict[str, Any]):
    """The named fields of a message, or of a struct within it.

    A name that the version does not have is missing. Arrays are lists, structs are `Struct`.
    """

    __slots__ = ("counts", "fields", "flexible", "span", "spans", "tagged", "tags")

    def __init__(self, fields: tuple[Field, ...], *, flexible: bool) -> None:
        super().__init__()
        self.fields = fields
        self.flexible = flexible
        self.span: Span = (0, 0)
        self.tags = NO_TAGS
        """The tags at its end as they came, those of named fields too."""
        self.spans: dict[str, Span] = {}
        """Where each named field stands in the frame, a tagged one without its tag and size."""
        self.tagged: dict[str, Span] = {}
        """Where each named tagged field stands, with its size."""
        self.counts: dict[str, Span] = {}
        """Where the number of elements of each named array stands."""

    def edits(self, **values: Any) -> Iterator[Edit]:
        """Yield what makes its fields have other values, for `splice`.

        Args:
            values: by name, none of a tagged field. A name that the version does not have is left out.
        """
        for field in self.fields:
            if field.name in values:
                yield *self.spans[field.name], encode(field, values[field.name], flexible=self.flexible)

    def without(self, name: str, left_out: Iterable["Struct"]) -> Iterator[Edit]:
        """Yield what removes elements of an array, for `splice`."""
        spans = [one.span for one in left_out]
        if spans:
            count = (encode_compact_count if self.flexible else encode_count)(len(self[name]) - len(spans))
            yield *self.counts[name], count
            yield from ((*span, b"") for span in spans)


def read(
    schema: str,
    api_key: int,
    version: int,
    frame: bytes,
    at: int,
    *,
    only: frozenset[str] | None = None,
    whole: bool = True,
    fixed: list[Span] | None = None,
) -> Struct:
    """Read a message.

    Args:
        schema: of the message.
        api_key: of the request, or of the request that a response answers.
        version: its version.
        frame: the message, with or without its header.
        at: where its first field stands.
        only: which fields are read, with all that is in them: ``brokers``, ``topics.partitions.leader_id``.
            The others are skipped. None: all are read.
        whole: walk to the last byte; else nothing behind the last field that is read is looked at.
        fixed: gets the spans of the fields of fixed size that are skipped, but for those in tags.

    Raises:
        ProtocolError: the bytes are not such a message, or go on after its end.
    """
    fields = fields_at(schema, version, only)
    if not whole:
        fields = fields[: max((number for number, field in enumerate(fields, 1) if field.name), default=0)]
    reader = _Reader(frame, fixed, flexible=bool(is_flexible(api_key, version)))
    found = reader.struct(fields, at, tagged=whole)
    if whole and found.span[1] != len(frame):
        raise Malformed(f"{len(frame) - found.span[1]} bytes are left over")
    return found


def structs(found: Struct, depth: int = 0) -> Iterator[tuple[Struct, int]]:
    """Yield a message and all structs within it, each before those within itself, with their depth from 0."""
    yield found, depth
    for value in found.values():
        if isinstance(value, Struct):
            yield from structs(value, depth + 1)
        elif isinstance(value, list) and value and isinstance(value[0], Struct):
            for item in value:
                yield from structs(item, depth + 1)


def splice(frame: bytes, edits: Iterable[Edit]) -> bytes:
    """Replace some bytes; return `frame` itself if there is nothing to replace."""
    kept = memoryview(frame)
    pieces: list[bytes | memoryview] = []
    at = 0
    for start, end, new in sorted(edits, key=itemgetter(0)):
        pieces += (kept[at:start], new)
        at = end
    return b"".join([*pieces, kept[at:]]) if pieces else frame


@cache
def fields_at(schema: str, version: int, only: frozenset[str] | None = None) -> tuple[Field, ...]:
    """Return the fields that a version of a message has; without a name those that are not read.

    Args:
        schema: of the message.
        version: its version.
        only: as in `read`.

    Raises:
        ValueError: the text is not a schema.
    """
    return _at_version(_parse(schema), version, only)


@cache
def _parse(schema: str) -> tuple[Field, ...]:
    levels: list[list[Field]] = [[]]
    opened: list[re.Match[str]] = []
    at = 0
    while at < len(schema):
        token = _TOKEN.match(schema, at)
        if token is None:
            raise ValueError(f"not a schema from {at} on: {schema}")
        at, kind = token.end(), token["type"]
        if kind in {"[", "(", "?("}:
            levels.append([])
            opened.append(token)
            continue
        fields: tuple[Field, ...] = ()
        since = token
        if kind in {"]", ")"}:
            fields, token = tuple(levels.pop()), opened.pop()
            kind = token["type"]
        tag = int(token["tag"]) if token["tag"] else None
        name = token["name"] or (str(len(levels[-1])) if any(field.name for field in fields) else "")
        levels[-1].append(Field(name, kind, _SIZES.get(kind, 0), fields, tag, *_versions(since)))
    return tuple(levels[0])


def _versions(token: re.Match[str]) -> tuple[int, int]:
    if token["since"] is None:
        return 0, _LATEST
    since, until = int(token["since"]), token["until"]
    return since, since if until is None else _LATEST if until == "+" else int(until[1:])


def _at_version(fields: Iterable[Field], version: int, only: frozenset[str] | None) -> tuple[Field, ...]:
    found: list[Field] = []
    for field in fields:
        if not field.since <= version <= field.until:
            continue
        deeper = None
        if only is not None and field.name not in only:
            deeper = frozenset(path.removeprefix(f"{field.name}.") for path in only)
            deeper = frozenset() if not field.name else deeper - only
        inner = _at_version(field.fields, version, deeper)
        kept = replace(field, name=field.name if deeper is None or deeper else "", fields=inner)
        # Neighbours of fixed size that nobody reads become one, for fewer steps.
        if found and _is_skipped(kept) and _is_skipped(found[-1]):
            kept = replace(kept, size=found.pop().size + kept.size)
        found.append(kept)
    return tuple(found)


def _is_skipped(field: Field) -> bool:
    return bool(field.size) and not field.name and field.tag is None


class _Reader:
    """Reads the fields of one message."""

    def __init__(self, frame: bytes, fixed: list[Span] | None, *, flexible: bool) -> None:
        self._frame = frame
        self._fixed_spans = fixed
        self._flexible = flexible
        self._count = read_compact_count if flexible else read_count
        self._string = read_compact_string if flexible else read_string

    def struct(self, fields: tuple[Field, ...], at: int, *, tagged: bool = True) -> Struct:
        """Read a struct; without its tags if they are not wanted."""
        found = Struct(fields, flexible=self._flexible)
        start = at
        for field in fields:
            if field.tag is not None:
                continue
            if field.name:
                value, end = self._value(field, at, found)
                found[field.name] = value
                found.spans[field.name] = at, end
                at = end
            else:
                at = self._skip(field, at)
        if self._flexible and tagged:
            at = self._tags(fields, at, found)
        found.span = start, at
        return found

    def _tags(self, fields: tuple[Field, ...], at: int, found: Struct) -> int:
        known = {field.tag: field for field in fields if field.tag is not None and field.name}
        tags, end = read_tags(self._frame, at)
        found.tags = self._frame[at:end]
        for tag, start, stop in tags:
            if (field := known.get(tag)) is not None:
                found[field.name], reached = self._value(field, start, found)
                if reached != stop:
                    raise Malformed(f"tag {tag} at {start} has {stop - start} bytes")
                found.spans[field.name] = start, stop
                # A uvarint's last byte is its only one below 0x80, and the size follows the tag's number.
                size_at = start - 1
                while self._frame[size_at - 1] >= 0x80:
                    size_at -= 1
                found.tagged[field.name] = size_at, stop
        return end

    def _value(self, field: Field, at: int, found: Struct) -> tuple[Any, int]:
        if field.size:
            return self._fixed(field.kind, field.size, at)
        match field.kind:
            case "string":
                return self._string(self._frame, at)
            case "bytes":
                return self._bytes(at)
            case "(":
                value = self.struct(field.fields, at)
                return value, value.span[1]
            case "?(":
                return self._nullable(field, at)
        count, start = self._count(self._frame, at)
        found.counts[field.name] = at, start
        return (None, start) if count is None else self._array(field, count, start)

    def _fixed(self, kind: str, size: int, at: int) -> tuple[Any, int]:
        end = at + size
        if end > len(self._frame):
            raise Truncated(kind, at)
        raw = self._frame[at:end]
        return (raw if kind == "uuid" else int.from_bytes(raw, signed=kind not in _UNSIGNED)), end

    def _bytes(self, at: int) -> tuple[bytes | None, int]:
        size, start = self._bytes_size(at)
        return (None, start) if size is None else (self._frame[start : start + size], start + size)

    def _bytes_size(self, at: int) -> tuple[int | None, int]:
        if self._flexible:
            size, start = read_uvarint(self._frame, at)
            size -= 1
        else:
            size, start = read_int32(self._frame, at)
        if size < -1:
            raise Malformed(f"bytes at {at} have length {size}")
        if start + size > len(self._frame):
            raise Truncated("bytes", at)
        return (None if size < 0 else size), start

    def _nullable(self, field: Field, at: int) -> tuple[Struct | None, int]:
        if self._is_null(at):
            return None, at + 1
        value = self.struct(field.fields, at + 1)
        return value, value.span[1]

    def _is_null(self, at: int) -> bool:
        """Read whether a struct is null: an int8, -1 if it is."""
        if at >= len(self._frame):
            raise Truncated("struct", at)
        return self._frame[at] == 0xFF

    def _array(self, field: Field, count: int, at: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        if field.kind == "[":
            for _ in range(count):
                item = self.struct(field.fields, at)
                items.append(item)
                at = item.span[1]
            return items, at
        kind = field.kind.removesuffix("[]")
        size = _SIZES.get(kind)
        for _ in range(count):
            value, at = self._fixed(kind, size, at) if size else self._string(self._frame, at)
            items.append(value)
        return items, at

    def _skip(self, field: Field, at: int) -> int:
        if field.size:
            return self._past(field.size, at)
        match field.kind:
            case "string":
                return self._string(self._frame, at)[1]
            case "bytes":
                size, start = self._bytes_size(at)
                return start + (size or 0)
            case "(":
                return self._skip_struct(field.fields, at)
            case "?(":
                return at + 1 if self._is_null(at) else self._skip_struct(field.fields, at + 1)
        count, at = self._count(self._frame, at)
        if field.kind == "[":
            for _ in range(count or 0):
                at = self._skip_struct(field.fields, at)
            return at
        if size := _SIZES.get(field.kind.removesuffix("[]")):
            return self._past(size * (count or 0), at)
        for _ in range(count or 0):
            at = self._string(self._frame, at)[1]
        return at

    def _skip_struct(self, fields: tuple[Field, ...], at: int) -> int:
        for field in fields:
            if field.tag is None:
                at = self._skip(field, at)
        return skip_tags(self._frame, at)[1] if self._flexible else at

    def _past(self, size: int, at: int) -> int:
        end = at + size
        if end > len(self._frame):
            raise Truncated("field", at)
        if self._fixed_spans is not None:
            self._fixed_spans.append((at, end))
        return end


def encode(field: Field, value: Any, *, flexible: bool) -> bytes:
    """Write a field that has no tag.

    Args:
        field: as `fields_at` gives it, so in one version.
        value: as `read` gives it; elements of an array of structs may be any mapping from names to values.
        flexible: strings and arrays are compact, and structs end with tags: with those that a `Struct` came
            with, else with none.
    """
    if field.size:
        return _encode_fixed(field.kind, field.size, value)
    match field.kind:
        case "string":
            return _encode_string(value, flexible=flexible)
        case "bytes":
            if flexible:
                return encode_compact_string(value)
            return encode_count(None if value is None else len(value)) + (value or b"")
        case "(":
            return encode_fields(field.fields, value, flexible=flexible)
        case "?(":
            if value is None:
                return b"\xff"
            return b"\x01" + encode_fields(field.fields, value, flexible=flexible)
    count = (encode_compact_count if flexible else encode_count)(None if value is None else len(value))
    if field.kind == "[":
        items = [encode_fields(field.fields, item, flexible=flexible) for item in value or ()]
    else:
        kind = field.kind.removesuffix("[]")
        size = _SIZES.get(kind)
        items = [
            _encode_fixed(kind, size, item) if size else _encode_string(item, flexible=flexible)
            for item in value or ()
        ]
    return count + b"".join(items)


def encode_fields(fields: Iterable[Field], values: dict[str, Any], *, flexible: bool) -> bytes:
    """Write the fields of a message or a struct; see `encode`."""
    parts = [encode(field, values[field.name], flexible=flexible) for field in fields if field.tag is None]
    if flexible:
        parts.append(values.tags if isinstance(values, Struct) else NO_TAGS)
    return b"".join(parts)


def body(schema: str, api_key: int, version: int, **values: Any) -> bytes:
    """Write a message without its header, of all the fields that its version has."""
    return encode_fields(fields_at(schema, version), values, flexible=bool(is_flexible(api_key, version)))


def request(
    schema: str, api_key: int, version: int, correlation_id: int, client_id: bytes | None, **values: Any
) -> bytes:
    """Write a request with its length and its header, which has no tags (request header v1 or v2)."""
    content = b"".join(
        (
            REQUEST_HEADER.pack(api_key, version, correlation_id),
            encode_string(client_id),
            NO_TAGS if is_flexible(api_key, version) else b"",
            body(schema, api_key, version, **values),
        )
    )
    return _framed(content)


def response(schema: str, api_key: int, version: int, correlation_id: bytes, **values: Any) -> bytes:
    """Write a response with its length and its header (v0 or v1). ApiVersions has another rule."""
    tags = NO_TAGS if is_flexible(api_key, version) else b""
    return _framed(b"".join((correlation_id, tags, body(schema, api_key, version, **values))))


def with_fields(frame: bytes, message: Struct, **values: Any) -> bytes:
    """Return a whole frame, with its length, in which some fields of its message have other values."""
    return edited(frame, message.edits(**values))


def edited(frame: bytes, edits: Iterable[Edit]) -> bytes:
    """Return a whole frame, with its length, in which some bytes are replaced."""
    return _framed(splice(frame, edits)[LENGTH_BYTES:])


def _framed(content: bytes) -> bytes:
    return len(content).to_bytes(LENGTH_BYTES) + content


def _encode_fixed(kind: str, size: int, value: Any) -> bytes:
    encoded: bytes = value if kind == "uuid" else int(value).to_bytes(size, signed=kind not in _UNSIGNED)
    return encoded


def _encode_string(value: bytes | None, *, flexible: bool) -> bytes:
    return (encode_compact_string if flexible else encode_string)(value)
