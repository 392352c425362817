"""Finds the addresses in a response by the tables of `schemas`. Structs without addresses are skipped."""

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
    """One broker in a response."""

    node_id: int
    host: str
    port: int
    spans: Mapping[str, Span]
    """The spans of the fields of its struct, by name."""
    struct: Span
    array: Array | None
    """The array of which its struct is an element."""
    flexible: bool


def decode(text: bytes | None) -> str:
    """Decode a host; null becomes "", which is no address.

    Raises:
        Malformed: it is not UTF-8.
    """
    try:
        return (text or b"").decode()
    except UnicodeDecodeError:
        raise Malformed(f"{text!r} is no UTF-8") from None


class AddressWalk:
    """A walk over one body. `addresses` and `endpoints` are in its order.

    Args:
        body: of the response.
        fixed: gets the spans of the fields of fixed size that are in no address.
    """

    def __init__(self, body: bytes, fixed: list[Span] | None = None) -> None:
        self._body = body
        self._fixed = fixed
        self.addresses: list[AddressSpan] = []
        self.endpoints: list[TagSpan] = []
        """The node_endpoints tags: offset of the payload's size, and the span of the payload."""

    def struct(self, struct: Struct, at: int, array: Array | None = None, node: Span | None = None) -> int:
        """Walk a struct that holds addresses; return where it ends.

        Args:
            struct: its fields.
            at: where it starts.
            array: the array of which it is an element.
            node: the span of the node id in the struct around it.

        Raises:
            ProtocolError: the bytes are not such a struct.
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
        """Walk a field; return where it ends.

        Raises:
            ProtocolError: the bytes are not such a field.
        """
        if field.struct is None or not field.struct.addressed:
            return skip_field(field, self._body, at, flexible=flexible, fixed=self._fixed)
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
        # DescribeQuorum's port is a uint16 (KIP-853), others are int32, -1 for none (fetch-semantics 6.10).
        return int.from_bytes(self._body[start:end], signed=end - start != _UINT16_BYTES)


def skip(struct: Struct, buffer: bytes, at: int, fixed: list[Span] | None = None) -> int:
    """Skip a struct that holds no address; return where it ends.

    Args:
        struct: its fields.
        buffer: the body.
        at: where it starts.
        fixed: gets the spans of its fields of fixed size.

    Raises:
        ProtocolError: the bytes are not such a struct.
    """
    flexible = struct.flexible
    for field in struct.fields:
        at = skip_field(field, buffer, at, flexible=flexible, fixed=fixed)
    return skip_tags(buffer, at)[1] if flexible else at


def skip_field(
    field: Field, buffer: bytes, at: int, *, flexible: bool, fixed: list[Span] | None = None
) -> int:
    """Skip a field that holds no address; return where it ends. See `skip`."""
    kind = field.kind
    if kind is Kind.FIXED:
        end = at + field.size
        if end > len(buffer):
            raise Truncated(field.name, at)
        if fixed is not None:
            fixed.append((at, end))
        return end
    if kind is Kind.STRING:
        return (read_compact_string if flexible else read_string)(buffer, at)[1]
    if kind is Kind.RECORDS:
        return _skip_records(field, buffer, at)
    count: int | None = 1
    if kind is Kind.ARRAY:
        count, at = (read_compact_count if flexible else read_count)(buffer, at)
    for _ in range(count or 0):
        at = skip(_struct_of(field), buffer, at, fixed)
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
