"""Reads and replaces fields of Kafka's messages by schema. All other bytes stay unchanged. Sans-IO.

A schema is one line of text. It has a message's fields in wire order, with the names and types of Kafka's own
definitions (clients/src/main/resources/common/message in Kafka's source):

    throttle_time_ms:int32@1+ error_code:int16 members:[member_id:string metadata:bytes]@0-3 #0 rack:string

This is an int32 from version 1 on, an error code, an array of structs in versions 0 to 3, and a field with
tag 0. `@1` is version 1 alone. Types:

    bool int8 int16 uint16 int32 uint32 int64 uuid   of fixed size; a uuid is 16 bytes, a bool is 0 or 1
    string bytes                                     bytes or None, undecoded
    int32[]                                          an array of any of these
    [...] (...) ?(...)                               an array of structs, a struct, a struct that can be null

A field without a name is skipped. An unnamed array or struct with named fields gets its position as name:
"0", "1". In flexible versions strings and arrays are compact, and each struct ends with tags (KIP-482). Tags
outside the schema are skipped, and kept when fields are replaced.
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
"""Start and end of a span of bytes, and the bytes that replace it."""

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
    """A field of a schema. Versions `since` to `until` of the message have this field."""

    name: str
    """Empty for a field that is skipped."""
    kind: str
    """A type, or the bracket that opens a struct or an array of structs."""
    size: int = 0
    """In bytes, also of several skipped fields together. 0 if the size is not fixed."""
    fields: "tuple[Field, ...]" = ()
    tag: int | None = None
    since: int = 0
    until: int = _LATEST


class Struct(dict[str, Any]):
    """The named fields of a message, or of a struct in it.

    Fields that the version does not have are missing, and so are tagged fields that were not sent. The value
    of an array is a list, the value of a struct is a `Struct`, and null is None.
    """

    __slots__ = ("counts", "fields", "flexible", "span", "spans", "tagged", "tags")

    def __init__(self, fields: tuple[Field, ...], *, flexible: bool) -> None:
        super().__init__()
        self.fields = fields
        self.flexible = flexible
        self.span: Span = (0, 0)
        self.tags = NO_TAGS
        """The received tags at the end of the struct, including those of named fields."""
        self.spans: dict[str, Span] = {}
        """The span of each named field in the frame. For a tagged field, that of its payload."""
        self.tagged: dict[str, Span] = {}
        """The span of each named tagged field, including its size field."""
        self.counts: dict[str, Span] = {}
        """The span of the element count of each named array."""

    def edits(self, **values: Any) -> Iterator[Edit]:
        """Yield the edits that set fields to new values, for `splice`.

        Tagged fields can't be set. Names that the version lacks are ignored.
        """
        for field in self.fields:
            if field.name in values:
                yield *self.spans[field.name], encode(field, values[field.name], flexible=self.flexible)

    def without(self, name: str, left_out: Iterable["Struct"]) -> Iterator[Edit]:
        """Yield the edits that remove elements of an array, for `splice`."""
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
    """Read a message, with or without its header, whose first field is at `at`.

    API key and version are those of the request, also for a response. Fields in `only` are read with all
    their content, such as ``brokers`` or ``topics.partitions.leader_id``. If the message is not to be read
    as a `whole`, reading stops after the last of them. `fixed` receives the spans of skipped fixed-size
    fields and of the elements of skipped arrays of these, except in tags.

    Raises:
        ProtocolError: the bytes do not match the schema, or continue after the end of the message.
    """
    fields = fields_at(schema, version, only)
    if not whole:
        fields = fields[: max((number for number, field in enumerate(fields, 1) if field.name), default=0)]
    found = read_fields(fields, api_key, version, frame, at, tagged=whole, fixed=fixed)
    if whole and found.span[1] != len(frame):
        raise Malformed(f"{len(frame) - found.span[1]} bytes are left over")
    return found


def read_fields(
    fields: tuple[Field, ...],
    api_key: int,
    version: int,
    frame: bytes,
    at: int,
    *,
    tagged: bool = False,
    fixed: list[Span] | None = None,
) -> Struct:
    """Read some adjacent fields of a message, from `fields_at`. The other arguments are those of `read`.

    With `tagged`, the message's own tags follow the fields.

    Raises:
        ProtocolError: the bytes do not match the fields.
    """
    reader = _Reader(frame, fixed, flexible=bool(is_flexible(api_key, version)))
    return reader.struct(fields, at, tagged=tagged)


def structs(found: Struct, depth: int = 0) -> Iterator[tuple[Struct, int]]:
    """Yield a message and all structs in it, outer before inner, with their depth from 0."""
    yield found, depth
    for value in found.values():
        if isinstance(value, Struct):
            yield from structs(value, depth + 1)
        elif isinstance(value, list) and value and isinstance(value[0], Struct):
            for item in value:
                yield from structs(item, depth + 1)


def splice(frame: bytes, edits: Iterable[Edit]) -> bytes:
    """Replace spans of bytes. Without edits, return `frame` itself."""
    kept = memoryview(frame)
    pieces: list[bytes | memoryview] = []
    at = 0
    for start, end, new in sorted(edits, key=itemgetter(0)):
        pieces += (kept[at:start], new)
        at = end
    return b"".join([*pieces, kept[at:]]) if pieces else frame


@cache
def fields_at(schema: str, version: int, only: frozenset[str] | None = None) -> tuple[Field, ...]:
    """Return the fields of one version of a message. Those not in `only` (see `read`) have an empty name.

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
        # Merge skipped neighbours of fixed size, to save steps.
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
                # Only the last byte of a uvarint is below 0x80; the size follows the tag number.
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
        if at >= len(self._frame):
            raise Truncated("struct", at)
        return self._frame[at] == 0xFF  # -1

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
    """Return the bytes of a field from `fields_at` that is not tagged, for a value as `read` returns it.

    Elements of an array of structs may be any mapping from names to values. A `Struct` keeps its own tags,
    all other structs get none.
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
    """Return the bytes of the fields of a message or a struct. See `encode`."""
    parts = [encode(field, values[field.name], flexible=flexible) for field in fields if field.tag is None]
    if flexible:
        parts.append(values.tags if isinstance(values, Struct) else NO_TAGS)
    return b"".join(parts)


def body(schema: str, api_key: int, version: int, **values: Any) -> bytes:
    """Return the bytes of a message without its header. All fields of the version must be given."""
    return encode_fields(fields_at(schema, version), values, flexible=bool(is_flexible(api_key, version)))


def request(
    schema: str, api_key: int, version: int, correlation_id: int, client_id: bytes | None, **values: Any
) -> bytes:
    """Return a complete request frame. The header (v1 or v2) has no tags."""
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
    """Return a complete response frame, with a header of v0 or v1. ApiVersions has another header."""
    tags = NO_TAGS if is_flexible(api_key, version) else b""
    return _framed(b"".join((correlation_id, tags, body(schema, api_key, version, **values))))


def with_fields(frame: bytes, message: Struct, **values: Any) -> bytes:
    """Return a complete frame with new values for some fields of its message."""
    return edited(frame, message.edits(**values))


def edited(frame: bytes, edits: Iterable[Edit]) -> bytes:
    """Return a complete frame with these edits."""
    return _framed(splice(frame, edits)[LENGTH_BYTES:])


def _framed(content: bytes) -> bytes:
    return len(content).to_bytes(LENGTH_BYTES) + content


def _encode_fixed(kind: str, size: int, value: Any) -> bytes:
    encoded: bytes = value if kind == "uuid" else int(value).to_bytes(size, signed=kind not in _UNSIGNED)
    return encoded


def _encode_string(value: bytes | None, *, flexible: bool) -> bytes:
    return (encode_compact_string if flexible else encode_string)(value)
