"""Connections that fetch: `python -m tools.bench.connections ADDRESS TOPIC_ID COUNT WAIT_MS [PARTITIONS]`.

Each asks for the end of the first partitions of a topic, one if nothing else is said, and asks again when the
broker has answered. To a topic that nothing is produced to it does so after `max_wait_ms`: 500 connections
that wait 500 ms make 1,000 fetches a second at most. As librdkafka does, each fetch turns its list.
When it writes `ready` all are connected; they begin to fetch when a line comes on stdin. With the next line
they come to rest, and it tells what they did since; and so on. Told to end as the loads of `tools.bench.load`
are, it tells what was done in all.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final, TypeAlias, cast

import uvloop

from tools.bench.frames import fetch_request, rotated
from tools.bench.passthrough import address

TURNS: Final = 16
"""Orders of a list after which the first one comes again."""

Told: TypeAlias = dict[str, float]


class Client(asyncio.Protocol):
    """One connection.

    Args:
        requests: whole frames, sent in turn; only their correlation ids change.
    """

    def __init__(self, requests: Sequence[bytes]) -> None:
        self.responses = self.bytes = 0
        self.rests = True
        """It asks for nothing more."""
        self.answered = asyncio.Event()
        """Nothing that it asked for is under way."""
        self.answered.set()
        self.cut = False
        """It was closed inside a response."""
        self._requests = requests
        self._begun = b""
        self._missing = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the socket; fetch when told to."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Note where it ended."""
        self.cut = bool(self._missing or self._begun)
        self.answered.set()
        self._transport = None

    def fetch(self) -> None:
        """Send the next fetch."""
        if self._transport is not None and not self.rests:
            self.answered.clear()
            request = self._requests[self.responses % len(self._requests)]
            self._transport.write(request[:8] + self.responses.to_bytes(4) + request[12:])

    def data_received(self, data: bytes) -> None:
        """Count a whole response and ask again; until then none follows it."""
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


async def run(where: tuple[str, int], requests: Sequence[bytes], count: int, wait_ms: int) -> Told:
    """Connect; fetch and rest in turn with each line that comes, until stdin ends.

    Returns:
        ``responses`` and ``bytes`` in all, and how many connections were ``cut``.
    """
    loop = asyncio.get_running_loop()
    clients = [Client(requests) for _ in range(count)]
    for client in clients:
        await loop.create_connection(partial(_same, client), *where)
    print("ready", flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        before, began = _done(clients), loop.time()
        for number, client in enumerate(clients):
            client.rests = False
            loop.call_later(wait_ms / 1000 * number / count, client.fetch)  # spread over the time they wait
        if not await loop.run_in_executor(None, sys.stdin.readline):
            break
        done = await _rest(clients)
        told = {what: done[what] - before[what] for what in done}
        print(json.dumps(told | {"seconds": loop.time() - began}), flush=True)
    return _done(clients) | {"cut": sum(client.cut for client in clients)}


async def _rest(clients: Sequence[Client]) -> Told:
    """Have all come to rest; give what was done until then."""
    for client in clients:
        client.rests = True
    for client in clients:
        await client.answered.wait()
    return _done(clients)


def _done(clients: Sequence[Client]) -> Told:
    return {
        "answers": sum(client.responses for client in clients),
        "bytes": sum(client.bytes for client in clients),
    }


def asked(topic: bytes, partitions: int, wait_ms: int) -> list[bytes]:
    """Build the fetches of a client."""
    offsets = {(topic, number): 0 for number in range(partitions)}
    turns = [rotated([(topic, range(partitions))], turn) for turn in range(min(partitions, TURNS))]
    return [fetch_request(0, topics, offsets=offsets, wait_ms=wait_ms) for topics in turns]


def _same(client: Client) -> Client:
    return client


if __name__ == "__main__":
    target, topic_id, connections, wait, *more = sys.argv[1:]
    listed = asked(bytes.fromhex(topic_id), int(more[0]) if more else 1, int(wait))
    counted = uvloop.run(run(address(target), listed, int(connections), int(wait)))
    print(json.dumps(counted), flush=True)
