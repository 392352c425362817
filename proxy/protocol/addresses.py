"""Rewriting where responses tell brokers to be, so that clients stay on the gateway's listeners.

The bytes of host and port are replaced, and the counts and sizes that depend on them; all else stays as it
came, tags that nobody here knows included. What `schemas` does not describe is not guessed at.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Final, TypeAlias

from proxy.protocol.address_walk import AddressSpan, AddressWalk, Array
from proxy.protocol.api import ErrorCode
from proxy.protocol.primitives import (
    Malformed,
    encode_compact_count,
    encode_compact_string,
    encode_count,
    encode_string,
    encode_uvarint,
)
from proxy.protocol.schemas import ENDPOINTS, REWRITTEN, layout

__all__ = ["REWRITTEN", "Resolve", "rewrite", "rewrite_endpoints"]

Resolve: TypeAlias = Callable[[int, str, int], tuple[str, int] | None]
"""(node id, host, port) -> (host, port) that the client is told; None: that broker is left out."""

_Edit: TypeAlias = tuple[int, int, bytes]
"""The bytes from, to, and what stands there instead."""

_NOBODY: Final = -1
"""Kafka's node id and port where there is no broker to tell."""


def rewrite(api_key: int, version: int, body: bytes, resolve: Resolve) -> bytes:
    """Put what `resolve` says in place of each host and port in a response.

    A broker that `resolve` leaves out is taken out of its array. A coordinator can't be: there is one for
    each key that was asked for. It becomes error 15 COORDINATOR_NOT_AVAILABLE, and the client asks again.
    An address that is none (host "", port or node id -1) is left as it is.

    DescribeQuorum names controllers. In combined mode they share their node ids with brokers and have ports
    of their own: what `resolve` is told for that key is not where a broker is.

    Args:
        api_key: what it is the response to, one of `REWRITTEN`.
        version: the version of the request that it answers.
        body: the response without its header, whole.
        resolve: where the client is to find a broker.

    Returns:
        The new body; `body` itself if nothing changes.

    Raises:
        ProtocolError: the version is not known, or the body is not exactly what that version says;
            `resolve` has not been called then.
    """
    struct = layout(api_key, version)
    if struct is None:
        return body
    walk = AddressWalk(body)
    end = walk.struct(struct, 0)
    if not struct.partial:
        _check_end(body, end)
    edits = [*_edits(walk.addresses, resolve)]
    for size_at, start, end in walk.endpoints:
        payload = body[start:end]
        new = rewrite_endpoints(payload, resolve)
        if new is not payload:
            edits.append((size_at, end, encode_uvarint(len(new)) + new))
    return _splice(body, edits)


def rewrite_endpoints(payload: bytes, resolve: Resolve) -> bytes:
    """Do the same to the payload of the tag node_endpoints of Fetch (v16+) or Produce (v10+).

    Raises:
        ProtocolError: the payload is no array of endpoints, or more than that.
    """
    walk = AddressWalk(payload)
    _check_end(payload, walk.field(ENDPOINTS, 0, flexible=True))
    return _splice(payload, [*_edits(walk.addresses, resolve)])


def _edits(addresses: list[AddressSpan], resolve: Resolve) -> Iterator[_Edit]:
    left_out: Counter[Array] = Counter()
    for address in addresses:
        if not address.host or _NOBODY in (address.node_id, address.port):
            continue
        told = resolve(address.node_id, address.host, address.port)
        if told is None and address.array is not None and "error_code" not in address.spans:
            yield *address.struct, b""
            left_out[address.array] += 1
        elif told is None:
            yield from _unavailable(address)
        elif told != (address.host, address.port):
            yield from _place(address, *told)
    for array, count in left_out.items():
        encode = encode_compact_count if array.flexible else encode_count
        yield *array.count_span, encode(array.count - count)


def _place(address: AddressSpan, host: str, port: int) -> Iterator[_Edit]:
    encode = encode_compact_string if address.flexible else encode_string
    yield *address.spans["host"], encode(host.encode())
    start, end = address.spans["port"]
    yield start, end, port.to_bytes(end - start, signed=port < 0)


def _unavailable(address: AddressSpan) -> Iterator[_Edit]:
    yield *address.spans["error_code"], ErrorCode.COORDINATOR_NOT_AVAILABLE.to_bytes(2)
    yield *address.spans["node_id"], _NOBODY.to_bytes(4, signed=True)
    yield from _place(address, "", _NOBODY)


def _splice(body: bytes, edits: list[_Edit]) -> bytes:
    if not edits:
        return body
    kept = memoryview(body)
    pieces: list[bytes | memoryview] = []
    at = 0
    for start, end, new in sorted(edits, key=itemgetter(0)):
        pieces += (kept[at:start], new)
        at = end
    pieces.append(kept[at:])
    return b"".join(pieces)


def _check_end(body: bytes, at: int) -> None:
    if at != len(body):
        raise Malformed(f"{len(body) - at} bytes are left over")
