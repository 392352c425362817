"""Relays between the brokers, so that what a follower copies can be held back while the follower lives.

Kafka's own throttle (`follower.replication.throttled.rate`) does not do that. It spares replicas that are in
sync, so that none leaves the in-sync replicas because of it.
"""

import asyncio
import contextlib
import threading
from typing import Final, Self

from tools.kafka.ports import free_ports
from tools.kafka.settings import HOST

STEP_SECONDS: Final = 0.02
CHUNK: Final = 65_536


class Replication:
    """A relay before the replication listener of each broker. All relays are in one thread.

    Args:
        nodes: the number of brokers, with the ids from 1 on.
    """

    def __init__(self, nodes: int) -> None:
        first = free_ports(nodes)
        self._ports = {node_id: first + node_id - 1 for node_id in range(1, nodes + 1)}
        self._targets: dict[int, int] = {}
        self._held = 0
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def address(self, node_id: int) -> tuple[str, int]:
        """Return the address that a broker advertises to other brokers."""
        return HOST, self._ports[node_id]

    def relay(self, node_id: int, port: int) -> None:
        """Begin to relay to the port of a broker's replication listener."""
        self._targets[node_id] = port
        asyncio.run_coroutine_threadsafe(self._listen(node_id), self._loop).result()

    def hold(self, node_id: int) -> None:
        """Hold back what a broker fetches from the others, until `hold(0)`."""
        self._held = node_id

    async def _listen(self, node_id: int) -> None:
        async def serve(near: asyncio.StreamReader, near_writer: asyncio.StreamWriter) -> None:
            await self._serve(node_id, near, near_writer)

        self._servers.append(await asyncio.start_server(serve, *self.address(node_id)))

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(
        self, node_id: int, near: asyncio.StreamReader, near_writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError), contextlib.closing(near_writer):
            far, far_writer = await asyncio.open_connection(HOST, self._targets[node_id])
            with contextlib.closing(far_writer):
                first = await near.read(CHUNK)
                fetches = {node for node in self._ports if b"broker-%d-fetcher" % node in first}
                far_writer.write(first)
                await asyncio.gather(
                    self._pump(near, far_writer, fetches), self._pump(far, near_writer, fetches)
                )

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, fetches: set[int]
    ) -> None:
        """Relay one direction.

        Args:
            source: where the bytes come from.
            sink: where they go.
            fetches: the id of the broker that fetches over this connection. Empty if none does.
        """
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK):
                while self._held in fetches:  # noqa: ASYNC110 - set by another thread
                    await asyncio.sleep(STEP_SECONDS)
                sink.write(data)
                await sink.drain()
        sink.close()
