"""Connections that fetch: `python -m tools.bench.connections ADDRESS TOPIC_ID COUNT WAIT_MS`.

Each connection fetches the first partition of a topic, and fetches again after each response. If there are
no new records, the broker responds after WAIT_MS: 500 connections that wait 500 ms send at most 1,000 fetches
a second.

The program prints `ready` when all connections are open. They begin to fetch when a line arrives on stdin,
and pause at the next line. Then the program prints the figures since the fetches began. This repeats. When
stdin is closed, the program prints the totals, like `tools.bench.load`.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import TypeAlias, cast

import uvloop

from tools.bench.frames import fetch_request
from tools.bench.passthrough import address

Counts: TypeAlias = dict[str, float]


class FetchingConnection(asyncio.Protocol):
    """Sends a fetch, waits for the response, and sends it again with the next correlation id."""

    def __init__(self, request: bytes) -> None:
        self.responses = 0
        self.paused = True
        self.answered = asyncio.Event()
        self.answered.set()
        self._request = request
        self._begun = b""
        self._missing = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport of the new connection."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Wait for no more responses."""
        self.answered.set()
        self._transport = None

    def fetch(self) -> None:
        """Send the next fetch, unless the connection is paused."""
        if self._transport is not None and not self.paused:
            self.answered.clear()
            self._transport.write(self._request[:8] + self.responses.to_bytes(4) + self._request[12:])

    def data_received(self, data: bytes) -> None:
        """Count each complete response, and then send the next fetch. At most one fetch is in flight."""
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


async def run(where: tuple[str, int], request: bytes, count: int, wait_ms: int) -> Counts:
    """Open the connections; each line on stdin starts or pauses them. Return all ``responses``."""
    loop = asyncio.get_running_loop()
    clients = [FetchingConnection(request) for _ in range(count)]
    for client in clients:
        await loop.create_connection(partial(_same, client), *where)
    print("ready", flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        before, began = _responses(clients), loop.time()
        for number, client in enumerate(clients):
            client.paused = False
            loop.call_later(
                wait_ms / 1000 * number / count, client.fetch
            )  # evenly over the time that they wait
        if not await loop.run_in_executor(None, sys.stdin.readline):
            break
        await _pause(clients)
        counts = {"responses": _responses(clients) - before, "seconds": loop.time() - began}
        print(json.dumps(counts), flush=True)
    return {"responses": _responses(clients)}


async def _pause(clients: Sequence[FetchingConnection]) -> None:
    for client in clients:
        client.paused = True
    for client in clients:
        await client.answered.wait()


def _responses(clients: Sequence[FetchingConnection]) -> int:
    return sum(client.responses for client in clients)


def _same(client: FetchingConnection) -> FetchingConnection:
    return client


if __name__ == "__main__":
    target, topic_id, connections, wait = sys.argv[1:]
    topic_of = bytes.fromhex(topic_id)
    listed = fetch_request(0, [(topic_of, [0])], offsets={(topic_of, 0): 0}, wait_ms=int(wait))
    counted = uvloop.run(run(address(target), listed, int(connections), int(wait)))
    print(json.dumps(counted), flush=True)
