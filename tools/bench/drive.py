"""Measures how many fetches per second `replay drive` sends to a stub broker that responds at once.

    python -m tools.bench.drive HOST:PORT

This command runs only the stub, which listens at HOST:PORT.
"""

import asyncio
import sys
from pathlib import Path
from struct import Struct
from typing import Final, cast

import uvloop

from proxy.addresses import Address
from proxy.protocol.api import ApiKey
from replay.drive.loading import Wanted, load
from replay.drive.report import DriveReport
from replay.drive.running import PlayOptions, drive
from tools.bench.figures import REPLAY, FigureRow, FigureTable
from tools.bench.frames import fetch_response
from tools.bench.processes import HOST, Proxy
from tools.bench.stage import BenchStage
from tools.kafka.ports import free_ports
from tools.kafka.raw import array, compact_array, compact_string, frame, string

CAPTURE: Final = Path(__file__).parents[2] / "captures" / "librdkafka-100p.pcap"
"""A capture of librdkafka's fetches of 100 partitions of one topic. Each fetch rotates the list."""
TOPIC: Final = "events"
PARTITIONS: Final = 100
COPIES: Final = 8
ROUNDS: Final = 10
LEAST: Final = 3_000.0
"""The minimum rate in fetches per second, with --max-wait 0."""

_TOPIC_ID: Final = b"fetchgate's stub"
_VERSIONS: Final = {0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 9: (1, 10), 10: (0, 6), 18: (0, 4)}
_HEADER: Final = Struct(">ihhi")
_NODE: Final = 1
_NO_LOG: Final = bytes(16)  # timestamp, offset


class DriveStub(asyncio.Protocol):
    """A stub broker that responds to every fetch with the same 100 entries without records.

    It gives minimal responses to all other requests.

    Args:
        address: the stub's own address, for its Metadata responses.
    """

    def __init__(self, address: Address) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = b""
        fetched = fetch_response(0, [(_TOPIC_ID, list(range(PARTITIONS)))])
        ranges = [b"".join(n.to_bytes(2) for n in (key, *span)) for key, span in _VERSIONS.items()]
        self._responses = {
            ApiKey.FETCH: fetched[8:],
            ApiKey.API_VERSIONS: b"\0\0" + array(ranges),
            ApiKey.METADATA: b"\0" + metadata(address),
            ApiKey.LIST_OFFSETS: array([string(TOPIC) + array([_offset(n) for n in range(PARTITIONS)])]),
        }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport of the new connection for the responses."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Respond to each request that is complete."""
        received = self._received + data
        while len(received) >= _HEADER.size:
            size, api_key, _, correlation_id = _HEADER.unpack_from(received)
            if len(received) < 4 + size:
                break
            received = received[4 + size :]
            response = self._responses.get(ApiKey(api_key), b"")
            if self._transport is not None:
                self._transport.write(frame(correlation_id.to_bytes(4) + response))
        self._received = received


def metadata(address: Address) -> bytes:
    """Build a Metadata response v12: one broker, and the topic of the capture."""
    broker = _NODE.to_bytes(4) + compact_string(address.host) + address.port.to_bytes(4) + b"\0\0"
    nodes = compact_array([_NODE.to_bytes(4)])
    led = _NODE.to_bytes(4) + bytes(4) + nodes + nodes + compact_array([]) + b"\0"
    partitions = compact_array([b"\0\0" + number.to_bytes(4) + led for number in range(PARTITIONS)])
    topic = b"\0\0" + compact_string(TOPIC) + _TOPIC_ID + b"\0" + partitions + bytes(4) + b"\0"
    cluster = compact_string("stub") + _NODE.to_bytes(4)
    return bytes(4) + compact_array([broker]) + cluster + compact_array([topic]) + b"\0"


def _offset(partition: int) -> bytes:
    return partition.to_bytes(4) + b"\0\0" + _NO_LOG


async def serve(address: Address) -> None:
    """Run the stub broker until the process is ended."""
    server = await asyncio.get_running_loop().create_server(
        lambda: DriveStub(address), address.host, address.port
    )
    await server.serve_forever()


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure how many captured fetches per second `drive` can send to a stub broker."""
    stage.report("drive: captured fetches of 100 partitions, at a stub ...")
    port = free_ports(1)
    rounds = 2 if stage.quick else ROUNDS
    with Proxy([sys.executable, "-m", "tools.bench.drive", f"{HOST}:{port}"], port):
        rate = fetches_per_second(Address(HOST, port), rounds=rounds)
    row = FigureRow(
        name=f"fetches of {PARTITIONS} partitions, --max-wait 0, {COPIES} connections",
        unit="1/s",
        values={REPLAY: rate},
        limit=LEAST,
        least=True,
    )
    notes = ("at a stub of the bench's own that responds at once; player and stub on the same machine",)
    return [
        FigureTable(
            part="drive", title="Playing a capture as fast as responses come", rows=[row], notes=notes
        )
    ]


def fetches_per_second(target: Address, *, rounds: int) -> float:
    """Send the fetches of the capture to a target. Return how many fetches per second the target answered."""
    script, _ = load([str(CAPTURE)], Wanted())
    options = PlayOptions(target=target, speed=None, connections=COPIES, loop=rounds, max_wait=0)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report: DriveReport = runner.run(drive(script, options, lambda _done, _all: None, []))
    (fetches,) = [row for row in report["figures"] if (row["side"], row["api"]) == ("target", "Fetch")]
    if (
        fetches["answered"] != fetches["sent"]
        or fetches["partitions_answered"] != fetches["sent"] * PARTITIONS
    ):
        raise RuntimeError(f"not every fetch of 100 partitions got its response: {fetches}")
    return fetches["sent"] / report["seconds"]


if __name__ == "__main__":
    uvloop.run(serve(Address.parse(sys.argv[1])))
