"""Relays that hold back what a follower copies. Kafka's own throttle spares replicas in sync."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from tools.kafka.settings import HOST
from tools.soak.network import CHUNK, STEP_SECONDS, NetworkRelay, Relays, Uncut


class Replication(Relays):
    """A relay before the replication listener of each broker. All relays are in one thread."""

    def __init__(self, nodes: int) -> None:
        self._held = 0
        super().__init__(nodes, lambda: _FetcherRelay(nodes, lambda: self._held))

    def address(self, node_id: int) -> tuple[str, int]:
        """Return the address that a broker advertises to other brokers."""
        return self.relays[node_id].listens

    def relay(self, node_id: int, port: int) -> None:
        """Relay to the port of a broker's replication listener."""
        self.relays[node_id].target = f"{HOST}:{port}"

    def hold(self, node_id: int) -> None:
        """Hold back what a broker fetches from the others, until `hold(0)`."""
        self._held = node_id


class _FetcherRelay(NetworkRelay):
    """Holds back the connections on which one broker, whose id `held` returns, fetches."""

    def __init__(self, nodes: int, held: Callable[[], int]) -> None:
        super().__init__()
        self._nodes, self._held = nodes, held

    async def _begin(self, near: asyncio.StreamReader, far: asyncio.StreamWriter) -> Uncut:
        """Read the first request of a connection: its client.id names the broker that fetches."""
        first = b""
        with suppress(OSError):
            first = await near.read(CHUNK)
            far.write(first)
        fetches = {node for node in range(1, self._nodes + 1) if b"broker-%d-fetcher" % node in first}

        async def uncut() -> None:
            while self._held() in fetches:  # noqa: ASYNC110 - set by another thread
                await asyncio.sleep(STEP_SECONDS)

        return uncut
