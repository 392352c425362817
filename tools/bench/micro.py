"""One unchanged fetch inside the gateway, request and answer, without sockets: `proxy.core.connection` alone.

The client's list comes in another order each time, as librdkafka's does; the broker has nothing new, or
records of one partition.
"""

import random
import time
import tracemalloc
from statistics import median
from typing import Final

from proxy.core.connection import Connection
from proxy.core.eligibility import SessionLimits
from proxy.protocol.api import ApiKey
from tools.bench.figures import GATEWAY, Row, Table
from tools.bench.frames import OFFSET, Key, fetch_request, fetch_response, rotated
from tools.bench.stage import Stage
from tools.kafka.raw import array, frame

SESSION_ID: Final = 77
RECORDS: Final = bytes(290)
"""What one record of 200 bytes is on the wire."""
_RANGES: Final = ((1, 4, 18), (9, 1, 9), (10, 0, 6), (18, 0, 4))
"""What of a 4.3 broker's ApiVersions matters: key, lowest, highest version."""

_SHAPES: Final = (
    (1, 100, 40.0),
    (1, 1_000, 60.0),
    (1, 10_000, 400.0),
    (1_000, 1, 1_000.0),
)
"""Topics, partitions of each, target in microseconds."""

Topics = list[tuple[bytes, list[int]]]


def run(stage: Stage) -> list[Table]:
    """Measure all shapes, idle and with records in one partition."""
    stage.say("micro: one fetch inside the gateway ...")
    rounds = 60 if stage.quick else 400
    rows = []
    for topics, partitions, limit in _SHAPES:
        name = (
            f"{partitions:,} partitions of one topic"
            if topics == 1
            else f"{topics:,} topics of one partition"
        )
        for busy in (False, True):
            # Frames are made beforehand: a million entries fit into memory.
            fitting = min(rounds, 1_000_000 // (topics * partitions))
            took = exchange(topics, partitions, rounds=fitting, busy=busy)
            told = f"{name}, records in one" if busy else name
            rows.append(Row(name=told, unit="µs", values={GATEWAY: took}, limit=None if busy else limit))
    notes = ("medians; the list rotated on every fetch, Fetch v16, response without records unless said",)
    return [
        Table(part="micro", title="One fetch inside the gateway, request and answer", rows=rows, notes=notes)
    ]


def exchange(topics: int, partitions: int, *, rounds: int, busy: bool) -> float:
    """Return the median of microseconds that a fetch and its response take in an established session."""
    topic_list = listing(topics, partitions)
    core = in_session(topic_list)
    chance = random.Random(partitions)  # noqa: S311 - any order will do, the same on every run
    hot: Key = (topic_list[0][0], 0)
    frames = []
    for number in range(1, rounds + 1):
        listed = rotated(topic_list, chance.randrange(topics * partitions))
        offsets = {hot: OFFSET + number} if busy else {}
        request = fetch_request(number, listed, offsets=offsets)
        changed = [(hot[0], [hot[1]])] if busy else []
        response = fetch_response(number, changed, session_id=SESSION_ID, records={hot: RECORDS})
        frames.append((request, response))
    return median(_timed(core, request, response) for request, response in frames) * 1e6


def partition_bytes(partitions: int) -> float:
    """Return what a session holds in memory for each partition of one topic, in bytes, once it is at rest."""
    in_session(listing(1, 10))  # what is loaded or made once is there then
    listed = listing(1, partitions)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        core = in_session(listed)
        _timed(core, fetch_request(1, rotated(listed, 5)), fetch_response(1, [], session_id=SESSION_ID))
        return (tracemalloc.get_traced_memory()[0] - before) / partitions
    finally:
        tracemalloc.stop()


def listing(topics: int, partitions: int) -> Topics:
    """Make topic ids, the same on every run, each with its partitions."""
    chance = random.Random(topics)  # noqa: S311 - not a secret
    return [(chance.randbytes(16), list(range(partitions))) for _ in range(topics)]


def in_session(listed: Topics) -> Connection:
    """Bring a core to where it speaks incrementally.

    Raises:
        RuntimeError: it asked for no session within a few fetches.
    """
    core = Connection(sessions=SessionLimits(max_sessions=1), resolve=lambda _, host, port: (host, port))
    for number in range(1, 10):
        core.receive_client(fetch_request(number, rotated(listed, number)), 0.0)
        for asked in core.take_broker():
            core.receive_broker(_answered(bytes(asked), number, rotated(listed, number)), 0.0)
        core.take_client()
        core.take_events()
        if core.session_id:
            return core
    raise RuntimeError(f"no session for {len(listed)} topics: {core!r}")


def _answered(asked: bytes, number: int, listed: Topics) -> bytes:
    """Answer as a broker: what it can, or every partition, with a session where one was asked for."""
    if asked[5] == ApiKey.API_VERSIONS:
        ranges = [b"".join(value.to_bytes(2) for value in each) for each in _RANGES]
        return frame(asked[8:12] + b"\0\0" + array(ranges))
    wants = b"\0\0\0\0\0\0\0\0" in asked[:60]  # session id 0, epoch 0
    return fetch_response(number, listed, session_id=SESSION_ID if wants else 0)


def _timed(core: Connection, request: bytes, response: bytes) -> float:
    """Take one exchange through the core as the shell does; give its seconds."""
    began = time.perf_counter()
    core.receive_client(request, 1.0)
    sent = core.take_broker()
    core.take_events()
    core.receive_broker(response, 1.0)
    core.take_client()
    core.take_events()
    took = time.perf_counter() - began
    if len(sent) != 1 or len(sent[0]) > 200:
        raise RuntimeError("a fetch that changed one partition at most did not go as a small delta")
    return took
