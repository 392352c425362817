"""Clients that send too much: `python -m tools.bench.flood ADDRESS KIND COUNT [TOPIC]`.

KIND is the behaviour of each of COUNT connections:

- ``answered``: ApiVersions of a version that no broker has. A gateway answers these requests by itself, so
  the clients are limited only by the gateway's speed. All connections together send `RATE` bytes a second,
  and read the responses.
- ``busy``: small Metadata requests without a pause. The responses are read.
- ``unread``: `UNREAD_BYTES` of small Metadata requests in one go. No response is read.
- ``parked``: one fetch that the broker delays by `WAIT_MS`, and behind it one request of `PARKED_BYTES`.
- ``queued``: one fetch that the broker delays by `WAIT_MS`, and after it, in one go, `READ_BYTES` of the
  smallest requests. None of these requests is answered before the fetch.
- ``remembered``: requests of some kinds, each with a header of 200 kB. Then the connection is idle. All
  memory that a gateway still keeps for these requests is kept for an idle connection.
- ``moved``: fetches of v11 from a broker that does not lead, each sent after the previous response. ADDRESS
  is the leader's address. The other broker has the port before it. Each client is connected to both brokers.
  The clients never refresh metadata, and all have the bystander's client id.

TOPIC is the topic's id in hex; for ``moved`` it is the topic's name.

The clients connect at a line on stdin, and leave at the next line, until stdin is closed. Each time they
leave, and at the end, the program prints the number of sent bytes. With ``moved`` it prints instead how many
clients have failed, and nothing at the end.
"""

import asyncio
import json
import struct
import sys
from typing import Final, cast

import uvloop

from proxy.protocol.api import ApiKey
from proxy.protocol.primitives import encode_uvarint
from tools.bench.bystander import CLIENT_ID, heartbeat
from tools.bench.frames import fetch_request
from tools.bench.passthrough import address
from tools.kafka.raw import array, frame, string

RATE: Final = 1_700_000
"""The highest rate of the flood in bytes a second, for all clients together."""
READ_BYTES: Final = 262_144
"""The number of bytes that a proxy reads at once."""
WAIT_MS: Final = 120_000
UNKNOWN: Final = 99
PIECE: Final = 17_000
TAG_BYTES: Final = 200_000
"""The size of one tagged field in a request header, in bytes. The protocol has no limit for this size."""
UNREAD_BYTES: Final = 42_000_000
PARKED_BYTES: Final = 16_000_000
ANSWERED, QUEUED, REMEMBERED, MOVED = "answered", "queued", "remembered", "moved"
BUSY, UNREAD, PARKED = "busy", "unread", "parked"
MOVED_WAIT_MS: Final = 500
BACK_OFF_SECONDS: Final = 0.1


class FloodConnection(asyncio.Protocol):
    """One connection, which discards its input."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)


def unknown_versions() -> bytes:
    """Build ApiVersions requests of a version that no broker has."""
    head = ApiKey.API_VERSIONS.to_bytes(2) + UNKNOWN.to_bytes(2) + bytes(4) + string("flood")
    one = frame(head)
    return one * (PIECE // len(one))


def metadata() -> bytes:
    """Build Metadata requests (v4) for no topics."""
    head = ApiKey.METADATA.to_bytes(2) + (4).to_bytes(2) + bytes(4) + string("flood")
    one = frame(head + bytes(4) + b"\0")
    return one * (PIECE // len(one))


def waiting(topic: bytes) -> bytes:
    """Build a fetch of a topic without records, which waits."""
    return fetch_request(1, [(topic, [0])], offsets={(topic, 0): 0}, wait_ms=WAIT_MS)


def parked(topic: bytes) -> bytes:
    """Build a fetch that waits, and a Produce request (v9), which its broker does not read meanwhile."""
    head = ApiKey.PRODUCE.to_bytes(2) + (9).to_bytes(2) + (2).to_bytes(4) + string("flood") + b"\0"
    return waiting(topic) + frame(head + bytes(PARKED_BYTES))


def queued(topic: bytes) -> bytes:
    """Build a fetch of a topic without records, which waits, and requests that wait behind it."""
    first = waiting(topic)
    small = frame(heartbeat(2, None)[4:14])  # its header; nobody reads further before its turn
    return first + small * ((READ_BYTES - len(first)) // len(small))


def remembered() -> bytes:
    """Build requests of several kinds with large headers. Each request gets a response."""
    kinds = {
        (ApiKey.LIST_GROUPS, 3): b"\0",
        (ApiKey.LIST_GROUPS, 4): b"\1\0",
        (ApiKey.LIST_GROUPS, 5): b"\1\1\0",
        (ApiKey.DESCRIBE_GROUPS, 5): b"\1\0\0",
        (ApiKey.DELETE_GROUPS, 2): b"\1\0",
        (ApiKey.LIST_TRANSACTIONS, 0): b"\1\1\0",
        (ApiKey.HEARTBEAT, 4): b"\2g" + bytes(4) + b"\2m\0\0",
    }
    tags = b"\1\5" + encode_uvarint(TAG_BYTES) + bytes(TAG_BYTES)
    return b"".join(
        frame(key.to_bytes(2) + version.to_bytes(2) + bytes(4) + string("idle") + tags + body)
        for (key, version), body in kinds.items()
    )


def moved(topic: str) -> bytes:
    """Build a fetch v11 of a topic's first partition, from its end, without an epoch."""
    entry = struct.pack(">iiqqi", 0, -1, 0, -1, 1 << 20)
    limits = struct.pack(">iiiibii", -1, MOVED_WAIT_MS, 1, 1 << 24, 0, 0, -1)
    body = limits + array([string(topic) + array([entry])]) + array([]) + string("")
    return frame(ApiKey.FETCH.to_bytes(2) + (11).to_bytes(2) + bytes(4) + string(CLIENT_ID) + body)


async def _call(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], asked: bytes) -> bytes:
    reader, writer = connection
    writer.write(asked)
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4)))


async def follow(where: tuple[str, int], topic: str) -> None:
    """Fetch repeatedly from a broker that does not lead, until the task is cancelled."""
    host, port = where
    # correlation id, throttle time, error, session, topics, name, partitions, partition
    error_at = 4 + 4 + 2 + 4 + 4 + len(string(topic)) + 4 + 4
    at_leader = await asyncio.open_connection(host, port)
    elsewhere = await asyncio.open_connection(host, port - 1)
    try:
        for each in (at_leader, elsewhere):
            await _call(each, heartbeat(1))
        while True:
            response = await _call(elsewhere, moved(topic))
            if int.from_bytes(response[error_at : error_at + 2]):
                await asyncio.sleep(BACK_OFF_SECONDS)
    finally:
        for _, writer in (at_leader, elsewhere):
            writer.transport.abort()


async def run_moved(where: tuple[str, int], count: int, topic: str) -> None:
    """Let clients follow a topic in windows. A line on stdin begins a window, and the next line ends it."""
    loop = asyncio.get_running_loop()
    print("ready", flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        clients = [asyncio.create_task(follow(where, topic)) for _ in range(count)]
        await loop.run_in_executor(None, sys.stdin.readline)
        for each in clients:
            each.cancel()
        ended = await asyncio.gather(*clients, return_exceptions=True)
        failed = sum(not isinstance(each, asyncio.CancelledError) for each in ended)
        print(json.dumps({"failed": failed}), flush=True)


async def run(where: tuple[str, int], kind: str, count: int, topic: bytes) -> int:
    """Flood the address between a line on stdin and the next. Return the number of sent bytes."""
    loop = asyncio.get_running_loop()
    sent, asked_once = 0, remembered()
    print("ready", flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        ends = loop.run_in_executor(None, sys.stdin.readline)
        clients = [(await loop.create_connection(FloodConnection, *where))[1] for _ in range(count)]
        began, before = loop.time(), sent
        if kind == QUEUED:
            for client in clients:
                client.transport.write(queued(topic))
                sent += READ_BYTES
        if kind == PARKED:
            upload = parked(topic)
            for client in clients:
                client.transport.write(upload)
                sent += len(upload)
        if kind == UNREAD:
            for client in clients:
                client.transport.pause_reading()
                client.transport.write(metadata() * (UNREAD_BYTES // PIECE))
        if kind == REMEMBERED:
            for client in clients:
                client.transport.write(asked_once)
                sent += len(asked_once)
        piece = metadata() if kind == BUSY else unknown_versions()
        while not ends.done():
            if kind == BUSY or (kind == ANSWERED and sent - before < RATE * (loop.time() - began)):
                for client in clients:
                    if not client.transport.get_write_buffer_size():
                        client.transport.write(piece)
                        sent += len(piece)
            await asyncio.sleep(0.001)
        for client in clients:
            client.transport.abort()
        print(json.dumps({"sent": sent - before}), flush=True)
    return sent


if __name__ == "__main__":
    target, what, connections, *topic_id = sys.argv[1:]
    if what == MOVED:
        uvloop.run(run_moved(address(target), int(connections), topic_id[0]))
        sys.exit()
    asked = bytes.fromhex(topic_id[0]) if topic_id else bytes(16)
    total = uvloop.run(run(address(target), what, int(connections), asked))
    print(json.dumps({"sent": total}), flush=True)
