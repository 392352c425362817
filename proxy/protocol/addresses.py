"""Rewrites the addresses of brokers in responses, so that clients stay on the gateway's listeners.

`_edits` replaces hosts, ports, and the counts and sizes that depend on them; for a coordinator that is left
out, its node id and error code, too. All other bytes stay unchanged, even unknown tags. Only the responses in
`schemas.ADDRESSED` are rewritten, and the tag node_endpoints of Fetch (`rewrite_endpoints`).
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

from proxy.protocol.api import ApiKey, ErrorCode
from proxy.protocol.fetch_layout import MAX_VERSION
from proxy.protocol.messages import Edit, Struct, read, splice
from proxy.protocol.primitives import Malformed, Span, UnknownVersion, encode_uvarint
from proxy.protocol.schemas import ADDRESSED, NODE_ENDPOINTS, REWRITTEN, Addressed

__all__ = ["REWRITTEN", "Resolve", "changeable", "may_name", "rewrite", "rewrite_endpoints"]

Resolve: TypeAlias = Callable[[int, str, int], tuple[str, int] | None]
"""Takes node id, host and port. Returns host and port for the client, or None to leave out the broker."""

_NOBODY: Final = -1
"""Kafka's node id and port for "no broker"."""
_ENDPOINTS: Final = "node_endpoints"
_FLEXIBLE: Final = (int(ApiKey.FETCH), MAX_VERSION)
"""A flexible API key and version, to read the payloads of tags."""


def rewrite(api_key: int, version: int, body: bytes, resolve: Resolve) -> bytes:
    """Replace each host and port of a response, of one of `REWRITTEN`, without its header.

    If `resolve` returns None, the broker is removed from its array. A coordinator can't be removed, because
    there must be one for each requested key. It is replaced by error 15 COORDINATOR_NOT_AVAILABLE, and the
    client retries. An address without a host stays unchanged.

    All API keys: fetch-semantics 6.10. DescribeQuorum names the listeners of controllers since v2 (KIP-853).
    In combined mode, controllers have the same node ids as brokers, but other ports. So for this key,
    `resolve` must not return addresses of brokers.

    Returns:
        The new body, or `body` itself if nothing changes.

    Raises:
        ProtocolError: the version is unknown, or the body does not match the version. `resolve` is not called
        in this case.
    """
    message = _addressed(api_key, version)
    if version < message.first:
        return body
    # Metadata can have thousands of topics, all behind the brokers.
    whole = api_key != ApiKey.METADATA
    found = read(message.schema, api_key, version, body, 0, only=message.where, whole=whole)
    return splice(body, _edits(body, found, resolve))


def may_name(api_key: int, version: int) -> bool:
    """Return whether a response of this API and version can contain addresses.

    Versions older than the schema can. Those above `REWRITTEN` can't, and Fetch neither: its addresses are
    found elsewhere.
    """
    if not 0 <= version <= REWRITTEN.get(api_key, -1):
        return False
    message = ADDRESSED[api_key]
    return version >= message.first or version < message.oldest


def changeable(api_key: int, version: int, body: bytes) -> list[Span] | None:
    """Return the spans of a response in which no value can be the address of a broker.

    A response that differs only in these spans has no address of a broker either. Return None if the response
    contains a broker's address, for Metadata, and for versions without addresses.

    Raises:
        ProtocolError: as for `rewrite`.
    """
    message = _addressed(api_key, version)
    if version < message.first or api_key == ApiKey.METADATA:
        return None
    fixed: list[Span] = []
    found = read(message.schema, api_key, version, body, 0, only=message.where, fixed=fixed)
    return None if _names_broker(found) else fixed


def rewrite_endpoints(payload: bytes, resolve: Resolve) -> bytes:
    """Replace each host and port in the tag node_endpoints of Fetch (v16+) or Produce (v10+).

    KIP-951; fetch-semantics 5.

    Raises:
        ProtocolError: the payload is not exactly an array of endpoints.
    """
    found = read(NODE_ENDPOINTS, *_FLEXIBLE, payload, 0, whole=False)
    if (end := found.spans[_ENDPOINTS][1]) != len(payload):
        raise Malformed(f"{len(payload) - end} bytes are left over")
    return splice(payload, _edits(payload, found, resolve))


def _addressed(api_key: int, version: int) -> Addressed:
    message = ADDRESSED.get(api_key)
    if message is None or not message.oldest <= version <= message.last:
        raise UnknownVersion(api_key, version)
    return message


class _AddressFields(NamedTuple):
    """A struct that contains an address: host and port."""

    struct: Struct
    node_id: Struct
    """The struct with the node id of this address: the same struct, or an outer one."""
    host: str
    array: tuple[Struct, str] | None
    """The array that contains this struct: the outer struct and the array's name."""


def _addresses(
    struct: Struct, node_id: Struct, array: tuple[Struct, str] | None = None
) -> Iterator[_AddressFields]:
    """Yield the addresses in a struct, in order, without those in tags.

    Raises:
        Malformed: a host is not UTF-8.
    """
    if "node_id" in struct:
        node_id = struct
    # With an error, FindCoordinator has host "" and port -1 (fetch-semantics 6.10).
    if host := struct.get("host"):
        yield _AddressFields(struct, node_id, _decode(host), array)
    for name, value in struct.items():
        if isinstance(value, list) and name not in struct.tagged:
            for item in value:
                if isinstance(item, Struct):
                    yield from _addresses(item, node_id, (struct, name))


def _decode(host: bytes) -> str:
    try:
        return host.decode()
    except UnicodeDecodeError:
        raise Malformed(f"{host!r} is not UTF-8") from None


def _edits(body: bytes, found: Struct, resolve: Resolve) -> Iterator[Edit]:
    left_out: dict[tuple[int, str], tuple[Struct, list[Struct]]] = {}
    for struct, node, host, array in list(_addresses(found, found)):
        resolved = resolve(node["node_id"], host, struct["port"])
        if resolved is None and array is not None and "error_code" not in struct:
            around, name = array
            left_out.setdefault((around.span[0], name), (around, []))[1].append(struct)
        elif resolved is None:
            unavailable = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            yield from struct.edits(error_code=unavailable, node_id=_NOBODY, host=b"", port=_NOBODY)
        elif resolved != (host, struct["port"]):
            yield from struct.edits(host=resolved[0].encode(), port=resolved[1])
    for (_, name), (around, structs) in left_out.items():
        yield from around.without(name, structs)
    if (tag := found.tagged.get(_ENDPOINTS)) is not None:
        payload = body[slice(*found.spans[_ENDPOINTS])]
        new = rewrite_endpoints(payload, resolve)
        if new is not payload:
            yield *tag, encode_uvarint(len(new)) + new


def _names_broker(struct: Struct) -> bool:
    """Return whether a struct has a host, even an empty one, or node_endpoints in a tag."""
    if "host" in struct or struct.tagged:
        return True
    lists = [value for value in struct.values() if isinstance(value, list)]
    return any(_names_broker(item) for items in lists for item in items if isinstance(item, Struct))
