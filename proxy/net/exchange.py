"""Sends one request to a broker on a connection of its own, and returns the response."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Final

from proxy.addresses import Address
from proxy.net.listen import check_not_own
from proxy.net.resolve import Resolver, try_each
from proxy.protocol.api import LENGTH_BYTES

MAX_RESPONSE: Final = 1 << 20


async def exchange(
    address: Address,
    frame: bytes,
    resolver: Resolver,
    secured: Mapping[str, Any],
    *,
    within: float,
    listeners: Collection[Address] = (),
) -> bytes:
    """Send a request to a broker, and return the whole frame of the response.

    `secured` are the arguments of TLS (`BrokerTls.connect_args`), empty for plain text. `within` is in
    seconds. `listeners` are the gateway's own, which are not asked.

    Raises:
        OSError: the broker can't be reached, or there is no response in time.
        ValueError: the host can't be a host name.
        asyncio.IncompleteReadError: the broker closed the connection.
    """
    async with asyncio.timeout(within):
        ips = await resolver.ips(address.host)
        check_not_own(ips, address.port, listeners)
        reader, writer = await try_each(
            ips, within, lambda ip: asyncio.open_connection(ip, address.port, **secured)
        )
        try:
            writer.write(frame)
            head = await reader.readexactly(LENGTH_BYTES)
            size = int.from_bytes(head)
            if size > MAX_RESPONSE:
                raise OSError(f"a response of {size} bytes")
            return head + await reader.readexactly(size)
        finally:
            writer.close()
