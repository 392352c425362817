"""Connections that fetch: `python -m tools.bench.connections ADDRESS TOPIC_ID COUNT WAIT_MS [PARTITIONS]`.

Each connection fetches the first PARTITIONS partitions of a topic (default 1), and fetches again after each
response. If there are no new records, the broker responds after WAIT_MS: 500 connections that wait 500 ms
send at most 1,000 fetches a second. Each fetch rotates its list of partitions, like librdkafka. If PARTITIONS
is `metadata`, the connections request Metadata for the topic instead.

The program prints `ready` when all connections are open. They begin to fetch when a line arrives on stdin,
and pause at the next line. Then the program prints the figures since the fetches began. This repeats. When
stdin is closed, the program prints the totals, like `tools.bench.load`.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final, TypeAlias, cast

import uvloop

from tools.bench.frames import fetch_request, metadata_request, rotated
from tools.bench.passthrough import address

METADATA: Final = "metadata"
TURNS: Final = 16
"""The number of different orders of the list of partitions. They are used in turn."""

Counts: TypeAlias = dict[str, float]


class FetchingConnection(asyncio.Protocol):
    """A connection that sends a fetch, waits for its response, and sends the next fetch.

    Args:
        requests: complete frames to send in turn. Only their correlation ids change.
    """

    def __init__(self, requests: Sequence[bytes]) -> None:
        self.responses = self.bytes = 0
        self.paused = True
        """Whether the connection is paused: after the current response, it sends no further fetch."""
        self.answered = asyncio.Event()
        """Set while the connection has no fetch in flight."""
        self.answered.set()
        self.cut = False
        """Whether the connection ended in the middle of a response."""
        self._requests = requests
        self._begun = b""
        self._missing = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport of the new connection."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Note whether the connection ended in the middle of a response."""
        self.cut = bool(self._missing or self._begun)
        self.answered.set()
        self._transport = None

    def fetch(self) -> None:
        """Send the next fetch, unless the connection is paused."""
        if self._transport is not None and not self.paused:
            self.answered.clear()
            request = self._requests[self.responses % len(self._requests)]
            self._transport.write(request[:8] + self.responses.to_bytes(4) + request[12:])

    def data_received(self, data: bytes) -> None:
        """Count each complete response, and then send the next fetch. At most one fetch is in flight."""
        self.bytes += len(data)
        if self._missing:
            self._missing -= len(data)
        else:
            self._begun += data
            if len(self._begun) < 4:
                return
            self._missing = 4 + int.from_bytes(self._begun[:4]) - len(self._begun)
            self._begun = b""
        if not self._missing:
            self.responses += 1
            self.answered.set()
            self.fetch()


async def run(where: tuple[str, int], requests: Sequence[bytes], count: int, wait_ms: int) -> Counts:
    """Open the connections. Each line on stdin starts or pauses the fetches, until stdin is closed.

    Args:
        where: the host and port of the gateway or broker.
        requests: the fetch requests that each connection sends in turn.
        count: the number of connections.
        wait_ms: the longest wait of a fetch at the broker, in milliseconds.

    Returns:
        The totals of ``responses`` and ``bytes``, and the number of connections that were ``cut`` in the
        middle of a response.
    """
    loop = asyncio.get_running_loop()
    clients = [FetchingConnection(requests) for _ in range(count)]
    for client in clients:
        await loop.create_connection(partial(_same, client), *where)
    print("ready", flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        before, began = _done(clients), loop.time()
        for number, client in enumerate(clients):
            client.paused = False
            loop.call_later(
                wait_ms / 1000 * number / count, client.fetch
            )  # evenly over the time that they wait
        if not await loop.run_in_executor(None, sys.stdin.readline):
            break
        done = await _pause(clients)
        counts = {what: done[what] - before[what] for what in done}
        print(json.dumps(counts | {"seconds": loop.time() - began}), flush=True)
    return _done(clients) | {"cut": sum(client.cut for client in clients)}


async def _pause(clients: Sequence[FetchingConnection]) -> Counts:
    """Pause all connections, wait for their last responses, and return their totals so far."""
    for client in clients:
        client.paused = True
    for client in clients:
        await client.answered.wait()
    return _done(clients)


def _done(clients: Sequence[FetchingConnection]) -> Counts:
    return {
        "responses": sum(client.responses for client in clients),
        "bytes": sum(client.bytes for client in clients),
    }


def fetches(topic: bytes, partitions: int, wait_ms: int) -> list[bytes]:
    """Return the fetch requests that each connection sends in turn. Their lists of partitions are rotated."""
    offsets = {(topic, number): 0 for number in range(partitions)}
    turns = [rotated([(topic, range(partitions))], turn) for turn in range(min(partitions, TURNS))]
    return [fetch_request(0, topics, offsets=offsets, wait_ms=wait_ms) for topics in turns]


def _same(client: FetchingConnection) -> FetchingConnection:
    return client


if __name__ == "__main__":
    target, topic_id, connections, wait, *more = sys.argv[1:]
    topic_of = bytes.fromhex(topic_id)
    if more == [METADATA]:
        listed = [metadata_request(0, topic_of)]
    else:
        listed = fetches(topic_of, int(more[0]) if more else 1, int(wait))
    counted = uvloop.run(run(address(target), listed, int(connections), int(wait)))
    print(json.dumps(counted), flush=True)
