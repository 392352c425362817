"""Rewriting where answers tell brokers to be, so that clients stay on the gateway's listeners.

The bytes of host and port are replaced, and the counts and sizes that depend on them; all else stays as it
came, tags that nobody here knows included. What `schemas` does not describe is not guessed at.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, TypeAlias

from proxy.protocol.api import ErrorCode
from proxy.protocol.primitives import (
    Malformed,
    Truncated,
    encode_compact_count,
    encode_compact_string,
    encode_count,
    encode_string,
    encode_uvarint,
    read_compact_count,
    read_compact_string,
    read_count,
    read_int32,
    read_string,
    read_uvarint,
    skip_tags,
)
from proxy.protocol.schemas import ENDPOINTS, REWRITTEN, Field, Kind, Struct, layout

__all__ = ["REWRITTEN", "Endpoint", "Resolve", "read_endpoints", "rewrite", "rewrite_endpoints"]

Resolve: TypeAlias = Callable[[int, str, int], tuple[str, int] | None]
"""(node id, host, port) -> (host, port) that the client is told; None: that broker is left out."""

_Span: TypeAlias = tuple[int, int]
_Edit: TypeAlias = tuple[int, int, bytes]
"""The bytes from, to, and what stands there instead."""

_NOBODY: Final = -1
"""Kafka's node id and port where there is no broker to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One element of node_endpoints (KIP-951)."""

    node_id: int
    host: str
    port: int
    rack: str | None


def rewrite(api_key: int, version: int, body: bytes, resolve: Resolve) -> bytes:
    """Put what `resolve` says in place of each host and port in an answer.

    A broker that `resolve` leaves out is taken out of its array. A coordinator can't be: there is one for
    each key that was asked for. It becomes error 15 COORDINATOR_NOT_AVAILABLE, and the client asks again.
    An address that is none (host "", port or node id -1) is left as it is.

    DescribeQuorum names controllers. In combined mode they share their node ids with brokers and have ports
    of their own: what `resolve` is told for that key is not where a broker is.

    Args:
        api_key: what the answer answers, one of `REWRITTEN`.
        version: the version of the request that it answers.
        body: the answer without its header, whole.
        resolve: where the client is to find a broker.

    Returns:
        The new body; `body` itself if nothing changes.

    Raises:
        ProtocolError: the version is not known, or the body is not exactly what that version says.
            `resolve` may have been called by then.
    """
    struct = layout(api_key, version)
    if struct is None:
        return body
    walk = _Walk(body, resolve)
    end, _ = walk.struct(struct, 0)
    if not struct.partial:
        _check_end(body, end)
    return _splice(body, walk.edits)


def rewrite_endpoints(payload: bytes, resolve: Resolve) -> bytes:
    """Do the same to the payload of the tag node_endpoints of Fetch (v16+) or Produce (v10+).

    Raises:
        ProtocolError: the payload is no array of endpoints, or more than that.
    """
    walk = _Walk(payload, resolve)
    _check_end(payload, walk.field(ENDPOINTS, 0, flexible=True))
    return _splice(payload, walk.edits)


def read_endpoints(payload: bytes) -> list[Endpoint]:
    """Read the payload of the tag node_endpoints.

    Raises:
        ProtocolError: as in `rewrite_endpoints`.
    """
    count, at = read_compact_count(payload, 0)
    endpoints = []
    for _ in range(count or 0):
        node_id, at = read_int32(payload, at)
        host, at = read_compact_string(payload, at)
        port, at = read_int32(payload, at)
        rack, at = read_compact_string(payload, at)
        _, at = skip_tags(payload, at)
        endpoints.append(
            Endpoint(
                node_id=node_id,
                host=_decode(host or b""),
                port=port,
                rack=None if rack is None else _decode(rack),
            )
        )
    _check_end(payload, at)
    return endpoints


def _splice(body: bytes, edits: list[_Edit]) -> bytes:
    if not edits:
        return body
    pieces: list[bytes] = []
    at = 0
    for start, end, new in sorted(edits, key=itemgetter(0)):
        pieces += (body[at:start], new)
        at = end
    pieces.append(body[at:])
    return b"".join(pieces)


def _check_end(body: bytes, at: int) -> None:
    if at != len(body):
        raise Malformed(f"{len(body) - at} bytes are left over")


def _decode(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise Malformed(f"{text!r} is no UTF-8") from None


class _Walk:
    """One pass over one body, gathering the edits that it takes."""

    def __init__(self, body: bytes, resolve: Resolve) -> None:
        self._body = body
        self._resolve = resolve
        self.edits: list[_Edit] = []

    def struct(self, struct: Struct, at: int, node: _Span | None = None) -> tuple[int, bool]:
        """Walk a struct; `node` is the node id that the struct around it told.

        Returns:
            Where it ends, and whether it stays in the answer.
        """
        spans: dict[str, _Span] = {} if node is None else {"node_id": node}
        for field in struct.fields:
            end = self.field(field, at, flexible=struct.flexible, node=spans.get("node_id"))
            spans[field.name] = at, end
            at = end
        if struct.flexible and not struct.partial:
            at = self._tags(struct, at)
        return at, "host" not in spans or self._place(spans, flexible=struct.flexible)

    def field(self, field: Field, at: int, *, flexible: bool, node: _Span | None = None) -> int:
        """Walk a field; returns where it ends."""
        if field.kind is Kind.FIXED:
            end = at + field.size
        elif field.kind is Kind.STRING:
            end = (read_compact_string if flexible else read_string)(self._body, at)[1]
        elif field.kind is Kind.RECORDS:
            size, start = read_uvarint(self._body, at)
            end = start + max(size - 1, 0)
        elif field.kind is Kind.ARRAY:
            return self._array(_struct_of(field), at, flexible=flexible, node=node)
        else:
            return self.struct(_struct_of(field), at)[0]
        if end > len(self._body):
            raise Truncated(field.name, at)
        return end

    def _array(self, struct: Struct, at: int, *, flexible: bool, node: _Span | None) -> int:
        count, first = (read_compact_count if flexible else read_count)(self._body, at)
        left_out = 0
        start = first
        for _ in range(count or 0):
            end, stays = self.struct(struct, start, node)
            if not stays:
                self.edits.append((start, end, b""))
                left_out += 1
            start = end
        if left_out and count:
            encode = encode_compact_count if flexible else encode_count
            self.edits.append((at, first, encode(count - left_out)))
        return start

    def _tags(self, struct: Struct, at: int) -> int:
        if struct.endpoints_tag is None:
            return skip_tags(self._body, at)[1]
        count, at = read_uvarint(self._body, at)
        for _ in range(count):
            tag, size_at = read_uvarint(self._body, at)
            size, start = read_uvarint(self._body, size_at)
            at = start + size
            if at > len(self._body):
                raise Truncated("tag", start)
            if tag == struct.endpoints_tag:
                payload = self._body[start:at]
                new = rewrite_endpoints(payload, self._resolve)
                if new != payload:
                    self.edits.append((size_at, at, encode_uvarint(len(new)) + new))
        return at

    def _int(self, span: _Span) -> int:
        # A port of DescribeQuorum is a uint16; the others are int32, negative where there is none.
        return int.from_bytes(self._body[slice(*span)], signed=span[1] - span[0] > 2)

    def _place(self, spans: dict[str, _Span], *, flexible: bool) -> bool:
        """Rewrite the one address of a struct; False: it is to be left out of the array that it stands in."""
        node_id, port = self._int(spans["node_id"]), self._int(spans["port"])
        read = read_compact_string if flexible else read_string
        encode = encode_compact_string if flexible else encode_string
        host = _decode(read(self._body, spans["host"][0])[0] or b"")
        if not host or _NOBODY in (node_id, port):
            return True
        told = self._resolve(node_id, host, port)
        if told is not None:
            if told != (host, port):
                self._edit(spans, host=encode(told[0].encode()), port=told[1])
            return True
        if "error_code" not in spans:
            return False
        self._edit(
            spans,
            error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE,
            node_id=_NOBODY,
            host=encode(b""),
            port=_NOBODY,
        )
        return True

    def _edit(self, spans: dict[str, _Span], **values: int | bytes) -> None:
        for name, value in values.items():
            start, end = spans[name]
            new = (
                value
                if isinstance(value, bytes)
                else value.to_bytes(end - start, signed=end - start > 2 or value < 0)
            )
            self.edits.append((start, end, new))


def _struct_of(field: Field) -> Struct:
    assert field.struct is not None, field  # noqa: S101 - the tables above give every array and struct one
    return field.struct
