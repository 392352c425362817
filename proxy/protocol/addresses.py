"""Rewrites the addresses of brokers in responses, so that clients stay on the gateway's listeners.

The bytes of host and port are replaced, with the counts and sizes that depend on them. All else stays as it
is, unknown tags too. A response that `schemas` does not describe is not rewritten.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Final, TypeAlias

from proxy.protocol.address_walk import AddressSpan, AddressWalk, Array
from proxy.protocol.api import ErrorCode
from proxy.protocol.primitives import (
    Malformed,
    Span,
    UnknownVersion,
    encode_compact_count,
    encode_compact_string,
    encode_count,
    encode_string,
    encode_uvarint,
)
from proxy.protocol.schemas import ENDPOINTS, REWRITTEN, layout

__all__ = ["REWRITTEN", "Resolve", "changeable", "may_name", "rewrite", "rewrite_endpoints"]

Resolve: TypeAlias = Callable[[int, str, int], tuple[str, int] | None]
"""(node id, host, port) -> the (host, port) for the client; None: the broker is left out."""

_Edit: TypeAlias = tuple[int, int, bytes]
"""The start and end of some bytes, and the bytes that replace them."""

_NOBODY: Final = -1
"""Kafka's node id and port if there is no broker."""


def rewrite(api_key: int, version: int, body: bytes, resolve: Resolve) -> bytes:
    """Replace each host and port of a response.

    A broker that `resolve` leaves out is removed from its array. A coordinator can't be removed: there is one
    for each requested key. It becomes error 15 COORDINATOR_NOT_AVAILABLE, and the client tries again. An
    address without a host stays as it is.

    KIP-853 brought DescribeQuorum's listeners (v2); all keys: fetch-semantics 6.10. DescribeQuorum names
    controllers. In combined mode they share their node ids with brokers and have ports of their own, so the
    addresses that `resolve` gets for that key are not those of brokers.

    Args:
        api_key: that of the request, one of `REWRITTEN`.
        version: that of the request.
        body: the response without its header, whole.
        resolve: returns the address at which the client finds a broker.

    Returns:
        The new body; `body` itself if nothing changes.

    Raises:
        ProtocolError: the version is unknown, or the body is not of that version. `resolve` was not called
            then.
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


def may_name(api_key: int, version: int) -> bool:
    """Whether a response may name brokers that `rewrite` knows to replace, or is not understood."""
    if not 0 <= version <= REWRITTEN.get(api_key, -1):
        return False
    try:
        return layout(api_key, version) is not None
    except UnknownVersion:
        return True


def changeable(api_key: int, version: int, body: bytes) -> list[Span] | None:
    """Return the spans of a response that names no broker which may change without naming one.

    Returns:
        None if it names a broker.

    Raises:
        ProtocolError: as `rewrite`.
    """
    struct, fixed = layout(api_key, version), list[Span]()
    if struct is None or struct.partial:
        return None
    walk = AddressWalk(body, fixed)
    _check_end(body, walk.struct(struct, 0))
    return None if walk.addresses or walk.endpoints else fixed


def rewrite_endpoints(payload: bytes, resolve: Resolve) -> bytes:
    """Replace each host and port in the tag node_endpoints of Fetch (v16+) or Produce (v10+).

    KIP-951; fetch-semantics 5.

    Raises:
        ProtocolError: the payload is not exactly an array of endpoints.
    """
    walk = AddressWalk(payload)
    _check_end(payload, walk.field(ENDPOINTS, 0, flexible=True))
    return _splice(payload, [*_edits(walk.addresses, resolve)])


def _edits(addresses: list[AddressSpan], resolve: Resolve) -> Iterator[_Edit]:
    left_out: Counter[Array] = Counter()
    for address in addresses:
        # FindCoordinator has host "" and port -1 with an error (fetch-semantics 6.10).
        if not address.host:
            continue
        resolved = resolve(address.node_id, address.host, address.port)
        if resolved is None and address.array is not None and "error_code" not in address.spans:
            yield *address.struct, b""
            left_out[address.array] += 1
        elif resolved is None:
            yield from _unavailable(address)
        elif resolved != (address.host, address.port):
            yield from _place(address, *resolved)
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
