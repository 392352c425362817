"""Connections of one partition each: `python -m tools.bench.connections ADDRESS TOPIC_ID COUNT WAIT_MS`.

Each asks for the end of the first partition of a topic to which nothing is produced, and asks again when the
broker has answered after `max_wait_ms`: 500 connections that wait 500 ms make 1,000 fetches a second at most.
When it writes `ready` all are connected; they begin to fetch when a line comes on stdin. Told to end as the
loads of `tools.bench.load` are.
"""

import asyncio
import json
import sys
from functools import partial
from typing import cast

import uvloop

from tools.bench.frames import fetch_request
from tools.bench.passthrough import address


class Client(asyncio.Protocol):
    """One connection.

    Args:
        request: a whole frame; only its correlation id changes.
    """

    def __init__(self, request: bytes) -> None:
        self.answers = 0
        self.cut = False
        """It was closed inside an answer."""
        self._request = request
        self._left = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the socket; fetch when told to."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Note where it ended."""
        self.cut = bool(self._left)
        self._transport = None

    def fetch(self) -> None:
        """Send the next fetch."""
        if self._transport is not None:
            self._transport.write(self._request[:8] + self.answers.to_bytes(4) + self._request[12:])

    def data_received(self, data: bytes) -> None:
        """Count a whole answer and ask again."""
        data = self._left + data
        if len(data) >= 4 and len(data) >= 4 + int.from_bytes(data[:4]):
            self.answers += 1
            self._left = b""
            self.fetch()
        else:
            self._left = data


async def run(where: tuple[str, int], topic: bytes, count: int, wait_ms: int) -> dict[str, int]:
    """Connect, fetch once a line comes, until stdin ends; give the answers in all, and how many were cut."""
    loop = asyncio.get_running_loop()
    request = fetch_request(0, [(topic, [0])], offsets={(topic, 0): 0}, wait_ms=wait_ms)
    clients = [Client(request) for _ in range(count)]
    for client in clients:
        await loop.create_connection(partial(_same, client), *where)
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    for number, client in enumerate(clients):
        loop.call_later(wait_ms / 1000 * number / count, client.fetch)  # spread over the time they wait
    await loop.run_in_executor(None, sys.stdin.read)
    return {
        "answers": sum(client.answers for client in clients),
        "cut": sum(client.cut for client in clients),
    }


def _same(client: Client) -> Client:
    return client


if __name__ == "__main__":
    target, topic_id, connections, wait = sys.argv[1:]
    counted = uvloop.run(run(address(target), bytes.fromhex(topic_id), int(connections), int(wait)))
    print(json.dumps(counted), flush=True)
