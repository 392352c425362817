"""Measures one exchange of a request and a response inside the gateway, without a network.

The measured time begins with reading the client's socket and ends with writing to it. `tools.bench.inside`
replaces the sockets. The client rotates its list of partitions with each fetch, like librdkafka. The broker's
response has no records, or the records of one partition.

In a tight loop, code and data stay in the caches of the processor. A live gateway waits between exchanges,
and then its caches hold other data. So the second table sleeps and touches 32 MB before each exchange.
"""

import random
import tracemalloc
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from tools.bench.figures import FLOOR, GATEWAY, FigureRow, FigureTable
from tools.bench.inside import Inside, cool
from tools.bench.stage import BenchStage
from tools.bench.traffic import Traffic, fetches, heartbeats, listing, produces

_SHAPES: Final = (
    (1, 100, 40.0),
    (1, 1_000, 60.0),
    (1, 10_000, 400.0),
    (1_000, 1, 1_000.0),
)
"""Topics, partitions of each, and the time limit in microseconds."""
COLD: Final[Mapping[str, Traffic]] = {
    "unchanged fetch of 1,000 partitions": fetches(1, 1_000),
    "fetch of 1,000 partitions, records in one": fetches(1, 1_000, busy=True),
    "unchanged fetch of 100 partitions": fetches(1, 100),
    "fetch of one partition": fetches(1, 1),
    "produce": produces(),
    "heartbeat": heartbeats(),
}
COLD_LIMIT: Final = 100.0
ENTRIES: Final = 1_000_000
"""The maximum number of entries in frames that are built in advance. The frames must fit into memory."""


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure all shapes in a tight loop. Then measure the exchanges of `COLD` with cold caches."""
    stage.report("micro: exchanges inside the gateway ...")
    rounds = 60 if stage.quick else 400
    rows = []
    for topics, partitions, limit in _SHAPES:
        name = (
            f"{partitions:,} partitions of one topic"
            if topics == 1
            else f"{topics:,} topics of one partition"
        )
        for busy in (False, True):
            fitting = min(rounds, ENTRIES // (topics * partitions))
            took = exchange(fetches(topics, partitions, busy=busy), rounds=fitting)
            label = f"{name}, records in one" if busy else name
            rows.append(FigureRow(label, "µs", {GATEWAY: took}, limit=None if busy else limit))
    notes = [
        "Medians; the list rotated by one on every fetch, Fetch v16, response without records unless said.",
        "From the read of a socket to the write to the other one, without the event loop and the kernel.",
    ]
    title = "One fetch inside the gateway, request and response"
    return [FigureTable(title, rows, notes), _cold(stage)]


def _cold(stage: BenchStage) -> FigureTable:
    stage.report("micro: cold exchanges ...")
    rounds = 30 if stage.quick else 200
    first = next(iter(COLD))
    rows = [
        FigureRow(
            name,
            "µs",
            {
                FLOOR: exchange(traffic, rounds=rounds, cold=True, gateway=False),
                GATEWAY: exchange(traffic, rounds=rounds, cold=True),
            },
            limit=COLD_LIMIT if name == first else None,
        )
        for name, traffic in COLD.items()
    ]
    notes = [
        "Medians; before each, a pause of 5 ms, and 32 MB are touched. Without event loop and kernel.",
        "The floor's is its own Python code. haproxy has none that could be measured in this way.",
    ]
    title = "One cold exchange inside the gateway, request and response"
    return FigureTable(title, rows, notes)


def exchange(traffic: Traffic, *, rounds: int, cold: bool = False, gateway: bool = True) -> float:
    """Return the median microseconds of an exchange. Fail if more is sent than `traffic` allows."""
    frames = [traffic.frames(number) for number in range(1, rounds + 1)]
    with Inside(gateway=gateway) as inside:
        if gateway:
            inside.begin(traffic.listed, session=traffic.session)
        return median(_taken(inside, traffic, frames, cold=cold, gateway=gateway)) * 1e6


def _taken(
    inside: Inside, traffic: Traffic, frames: Sequence[tuple[bytes, bytes]], *, cold: bool, gateway: bool
) -> list[float]:
    taken = []
    for request, response in frames:
        if cold:
            cool()
        took, sent, _ = inside.exchange(request, response)
        if sent > (traffic.most if gateway else len(request)):
            raise RuntimeError("a fetch that changed at most one partition was not sent as a small delta")
        taken.append(took)
    return taken


def partition_bytes(partitions: int) -> float:
    """Return the bytes that an idle session needs for each partition of one topic."""
    chance = random.Random(partitions)  # noqa: S311 - not a secret
    exchange(fetches(1, 10), rounds=1)  # warm up once
    traffic = fetches(1, partitions)
    with Inside(gateway=True) as inside:
        request, response = traffic.frames(chance.randrange(partitions))
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            inside.begin(listing(1, partitions), session=True)
            inside.exchange(request, response)
            return (tracemalloc.get_traced_memory()[0] - before) / partitions
        finally:
            tracemalloc.stop()
