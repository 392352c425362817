"""Finding where the addresses of a response stand, by the tables of `schemas`; what holds none is skipped."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from proxy.protocol.primitives import (
    Malformed,
    Span,
    TagSpan,
    Truncated,
    read_compact_count,
    read_compact_string,
    read_count,
    read_string,
    read_uvarint,
    skip_tags,
)
from proxy.protocol.schemas import Field, Kind, Struct

_UINT16_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class Array:
    """An array whose elements are addresses."""

    count: int
    count_span: Span
    flexible: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressSpan:
    """One broker as a response tells it."""

    node_id: int
    host: str
    port: int
    spans: Mapping[str, Span]
    """Where the fields of its struct stand, by name."""
    struct: Span
    array: Array | None
    """The array that its struct is an element of."""
    flexible: bool


def decode(text: bytes | None) -> str:
    """Read a host's bytes; null is "", which is no address either.

    Raises:
        Malformed: they are no UTF-8.
    """
    try:
        return (text or b"").decode()
    except UnicodeDecodeError:
        raise Malformed(f"{text!r} is no UTF-8") from None


class AddressWalk:
    """One pass over one body; `addresses` and `endpoints` are in the order in which they stand."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.addresses: list[AddressSpan] = []
        self.endpoints: list[TagSpan] = []
        """Payloads of node_endpoints tags; in place of the tag, where the payload's size stands."""

    def struct(self, struct: Struct, at: int, array: Array | None = None, node: Span | None = None) -> int:
        """Walk a struct that holds addresses; returns where it ends.

        Args:
            struct: what it looks like.
            at: where it starts.
            array: what it is an element of.
            node: where the struct around it tells a node id.

        Raises:
            ProtocolError: it is not what `struct` says.
        """
        start = at
        spans: dict[str, Span] = {} if node is None else {"node_id": node}
        for field in struct.fields:
            end = self.field(field, at, flexible=struct.flexible, node=spans.get("node_id"))
            spans[field.name] = at, end
            at = end
        if struct.flexible and not struct.partial:
            at = self._tags(struct, at)
        if "host" in spans:
            self.addresses.append(self._address(spans, (start, at), array, flexible=struct.flexible))
        return at

    def field(self, field: Field, at: int, *, flexible: bool, node: Span | None = None) -> int:
        """Walk a field; returns where it ends.

        Raises:
            ProtocolError: it is not what `field` says.
        """
        if field.struct is None or not field.struct.addressed:
            return _skip_field(field, self._body, at, flexible=flexible)
        count, start = (read_compact_count if flexible else read_count)(self._body, at)
        array = Array(count or 0, (at, start), flexible)
        for _ in range(array.count):
            start = self.struct(field.struct, start, array, node)
        return start

    def _tags(self, struct: Struct, at: int) -> int:
        count, at = read_uvarint(self._body, at)
        for _ in range(count):
            tag, size_at = read_uvarint(self._body, at)
            size, start = read_uvarint(self._body, size_at)
            at = start + size
            if at > len(self._body):
                raise Truncated("tag", start)
            if tag == struct.endpoints_tag:
                self.endpoints.append((size_at, start, at))
        return at

    def _address(
        self, spans: dict[str, Span], struct: Span, array: Array | None, *, flexible: bool
    ) -> AddressSpan:
        host, _ = (read_compact_string if flexible else read_string)(self._body, spans["host"][0])
        return AddressSpan(
            node_id=self._int(spans["node_id"]),
            host=decode(host),
            port=self._int(spans["port"]),
            spans=spans,
            struct=struct,
            array=array,
            flexible=flexible,
        )

    def _int(self, span: Span) -> int:
        start, end = span
        # The port in DescribeQuorum is a uint16, the others are int32: -1 where there is none.
        return int.from_bytes(self._body[start:end], signed=end - start != _UINT16_BYTES)


def skip(struct: Struct, buffer: bytes, at: int) -> int:
    """Go over a struct that holds no address; returns where it ends.

    Raises:
        ProtocolError: it is not what `struct` says.
    """
    flexible = struct.flexible
    for field in struct.fields:
        at = _skip_field(field, buffer, at, flexible=flexible)
    return skip_tags(buffer, at)[1] if flexible else at


def _skip_field(field: Field, buffer: bytes, at: int, *, flexible: bool) -> int:
    kind = field.kind
    if kind is Kind.FIXED:
        end = at + field.size
        if end > len(buffer):
            raise Truncated(field.name, at)
        return end
    if kind is Kind.STRING:
        return (read_compact_string if flexible else read_string)(buffer, at)[1]
    if kind is Kind.RECORDS:
        return _skip_records(field, buffer, at)
    count: int | None = 1
    if kind is Kind.ARRAY:
        count, at = (read_compact_count if flexible else read_count)(buffer, at)
    for _ in range(count or 0):
        at = skip(_struct_of(field), buffer, at)
    return at


def _skip_records(field: Field, buffer: bytes, at: int) -> int:
    size, start = read_uvarint(buffer, at)
    end = start + max(size - 1, 0)
    if end > len(buffer):
        raise Truncated(field.name, at)
    return end


def _struct_of(field: Field) -> Struct:
    assert field.struct is not None, field  # noqa: S101 - the tables give every array and struct one
    return field.struct
