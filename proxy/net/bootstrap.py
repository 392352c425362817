"""Asks a cluster for its brokers, on a separate connection: ApiVersions, then Metadata.

With the answer, the gateway opens its listeners before a client asks for the brokers. If the cluster requires
authentication, the gateway can't ask. In this case it learns the brokers from the responses to its clients.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from proxy.addresses import Address, can_be_reached
from proxy.net.listen import check_not_own
from proxy.net.resolve import Resolver, try_each
from proxy.net.tls import BrokerTls
from proxy.protocol.api import ApiKey
from proxy.protocol.brokers import read_brokers
from proxy.protocol.messages import read, request
from proxy.protocol.primitives import ProtocolError
from proxy.protocol.schemas import API_VERSIONS, API_VERSIONS_REQUEST, METADATA_REQUEST
from proxy.text.error_text import reason_of

ASK_SECONDS: Final = 10.0
"""The time limit to connect to one address and to get all responses from it."""
_MAX_ANSWER: Final = 16_777_216
_CLIENT_ID: Final = b"fetchgate"
_TLS_ALERT: Final = b"\x15\x03"
_METADATA_VERSIONS: Final = (1, 8)
"""The lowest and highest version of Metadata to use. v0 can't ask for brokers without topics, and v9 is
flexible. Every broker from 1.0 to 4.3 supports at least one of these versions."""


class BootstrapError(Exception):
    """A bootstrap address can't be reached, or did not respond like Kafka. The text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapResponse:
    """The response of a bootstrap address."""

    address: Address
    brokers: dict[int, Address] | None
    """By node id. None if the broker did not answer the Metadata request, usually because the cluster
    requires authentication first, or if it supports no usable version of Metadata."""
    racks: dict[int, str] = field(default_factory=dict)
    """The rack of each broker that has one, by node id."""


async def ask(
    address: Address,
    resolver: Resolver,
    tls: BrokerTls | None = None,
    listeners: Collection[Address] = (),
    plain: Collection[Address] = (),
) -> BootstrapResponse:
    """Ask one bootstrap address for the brokers of the cluster.

    `listeners` are the gateway's own, which are not asked. The addresses in `plain` are known to speak plain
    text.

    Raises:
        BootstrapError: the address can't be reached, or does not speak Kafka.
    """
    secured = tls.connect_args(address.host) if tls is not None else {}
    hint = "" if secured or address in plain else " (does it speak TLS? Then give --broker-tls on)"
    checks = "does its name resolve, is there a route to it" + (", does it speak TLS" if secured else "")
    late = f"not connected in {ASK_SECONDS:.0f} s ({checks}?)"
    loop = asyncio.get_running_loop()
    end = loop.time() + ASK_SECONDS
    try:
        async with asyncio.timeout(ASK_SECONDS):
            ips = await resolver.ips(address.host)
            check_not_own(ips, address.port, listeners)
            reader, writer = await try_each(
                ips,
                end - loop.time(),
                lambda ip: asyncio.open_connection(ip, address.port, **secured),
            )
            silent = f"no response in {ASK_SECONDS:.0f} s"
            late = f"{silent}{hint}"
            try:
                version = await _ask_versions(reader, writer)
                late = silent  # it has responded in plain text
                response = await _ask_brokers(reader, writer, version)
            finally:
                writer.close()
        if version is None or response is None:
            return BootstrapResponse(address=address, brokers=None)
        brokers, racks = brokers_of(response, version)
        return BootstrapResponse(address=address, brokers=brokers, racks=racks)
    except TimeoutError:
        raise BootstrapError(f"{address}: {late}") from None
    except asyncio.IncompleteReadError:
        raise BootstrapError(f"{address}: closed without a response{hint}") from None
    except ProtocolError as error:
        raise BootstrapError(f"{address}: does not respond as Kafka does: {error}") from None
    except (OSError, ValueError) as error:
        raise BootstrapError(f"{address}: {reason_of(error)}") from None


async def ask_any(
    addresses: tuple[Address, ...],
    resolver: Resolver,
    tls: BrokerTls | None = None,
    listeners: Collection[Address] = (),
    plain: Collection[Address] = (),
) -> BootstrapResponse:
    """Ask addresses in turn until one responds. See `ask`.

    Raises:
        BootstrapError: no address responded. The text gives the reason for each address.
    """
    reasons: list[str] = []
    for address in addresses:
        try:
            return await ask(address, resolver, tls, listeners, plain)
        except BootstrapError as error:
            reasons.append(str(error))
    raise BootstrapError("; ".join(reasons))


async def _ask_versions(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int | None:
    """Return the version of Metadata to use, or None if no version is common."""
    writer.write(request(API_VERSIONS_REQUEST, ApiKey.API_VERSIONS, 0, 1, _CLIENT_ID))
    return metadata_version(await _response(reader))


async def _ask_brokers(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int | None
) -> bytes | None:
    if version is None:
        return None
    writer.write(metadata_request(version))
    try:
        return await _response(reader)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None  # before SASL, a broker closes a connection that asks for anything but ApiVersions


async def _response(reader: asyncio.StreamReader) -> bytes:
    # The response is returned without its length and correlation id (response header v0).
    head = await reader.readexactly(4)
    if head[:2] == _TLS_ALERT:
        raise ProtocolError("it speaks TLS: give --broker-tls on")
    size = int.from_bytes(head, signed=True)
    if not 4 <= size <= _MAX_ANSWER:
        raise ProtocolError(f"a response of {size} bytes")
    return (await reader.readexactly(size))[4:]


def metadata_version(response: bytes) -> int | None:
    """Return the version of Metadata to use, from an ApiVersions v0 response. None if none is common."""
    found = read(API_VERSIONS, ApiKey.API_VERSIONS, 0, response, 0, whole=False)
    if error := found["error_code"]:
        raise ProtocolError(f"error {error} in response to ApiVersions")
    for offer in found["api_keys"] or ():
        if offer["api_key"] == ApiKey.METADATA:
            version = max(offer["min_version"], _METADATA_VERSIONS[0])
            return version if version <= min(offer["max_version"], _METADATA_VERSIONS[1]) else None
    return None


def metadata_request(version: int) -> bytes:
    """Return a complete Metadata request (v1 to v8) that asks for brokers and no topics."""
    return request(
        METADATA_REQUEST,
        ApiKey.METADATA,
        version,
        1,
        _CLIENT_ID,
        topics=[],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def brokers_of(response: bytes, version: int) -> tuple[dict[int, Address], dict[int, str]]:
    """Read a Metadata response (v1 to v8): the brokers that can be reached, and the racks, by node id."""
    found, _ = read_brokers(ApiKey.METADATA, version, response)
    brokers = {
        broker.node_id: Address(broker.host, broker.port)
        for broker in found
        if can_be_reached(broker.node_id, broker.host, broker.port)
    }
    return brokers, {broker.node_id: broker.rack for broker in found if broker.rack}
