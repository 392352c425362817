"""One unchanged fetch inside the gateway: request and response through `proxy.core.connection`, no sockets.

The client's list is in another order each time, as librdkafka's is. The broker has nothing new, or records of
one partition.
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
"""As long as a record of 200 bytes on the wire."""
_RANGES: Final = ((1, 4, 18), (9, 1, 9), (10, 0, 6), (18, 0, 4))
"""The part of a 4.3 broker's ApiVersions that matters: key, lowest and highest version."""

_SHAPES: Final = (
    (1, 100, 40.0),
    (1, 1_000, 60.0),
    (1, 10_000, 400.0),
    (1_000, 1, 1_000.0),
)
"""Topics, partitions of each, limit in microseconds."""

Topics = list[tuple[bytes, list[int]]]


def run(stage: Stage) -> list[Table]:
    """Measure all shapes, idle and with records in one partition."""
    stage.report("micro: one fetch inside the gateway ...")
    rounds = 60 if stage.quick else 400
    rows = []
    for topics, partitions, limit in _SHAPES:
        name = (
            f"{partitions:,} partitions of one topic"
            if topics == 1
            else f"{topics:,} topics of one partition"
        )
        for busy in (False, True):
            # Frames are built first. A million entries fit into memory.
            fitting = min(rounds, 1_000_000 // (topics * partitions))
            took = exchange(topics, partitions, rounds=fitting, busy=busy)
            label = f"{name}, records in one" if busy else name
            rows.append(Row(name=label, unit="µs", values={GATEWAY: took}, limit=None if busy else limit))
    notes = ("medians; the list rotated on every fetch, Fetch v16, response without records unless said",)
    return [
        Table(
            part="micro", title="One fetch inside the gateway, request and response", rows=rows, notes=notes
        )
    ]


def exchange(topics: int, partitions: int, *, rounds: int, busy: bool) -> float:
    """Return the microseconds that a fetch and its response take in a session, as a median."""
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
    """Return the bytes of memory that an idle session needs for each partition of one topic."""
    in_session(listing(1, 10))  # loads and makes what is needed only once
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
    """Return topic ids, the same on every run, each with its partitions."""
    chance = random.Random(topics)  # noqa: S311 - not a secret
    return [(chance.randbytes(16), list(range(partitions))) for _ in range(topics)]


def in_session(listed: Topics) -> Connection:
    """Return a core that is in a session.

    Raises:
        RuntimeError: it requested no session within a few fetches.
    """
    core = Connection(sessions=SessionLimits(max_sessions=1), resolve=lambda _, host, port: (host, port))
    for number in range(1, 10):
        core.receive_client(fetch_request(number, rotated(listed, number)), 0.0)
        for sent in core.drain_broker():
            core.receive_broker(_response(bytes(sent), number, rotated(listed, number)), 0.0)
        core.drain_client()
        core.drain_events()
        if core.session_id:
            return core
    raise RuntimeError(f"no session for {len(listed)} topics: {core!r}")


def _response(request: bytes, number: int, listed: Topics) -> bytes:
    """Respond as a broker: to ApiVersions, or to a fetch with all partitions (and a session on request)."""
    if request[5] == ApiKey.API_VERSIONS:
        ranges = [b"".join(value.to_bytes(2) for value in each) for each in _RANGES]
        return frame(request[8:12] + b"\0\0" + array(ranges))
    wants = b"\0\0\0\0\0\0\0\0" in request[:60]  # session id 0, epoch 0
    return fetch_response(number, listed, session_id=SESSION_ID if wants else 0)


def _timed(core: Connection, request: bytes, response: bytes) -> float:
    """Send one exchange through the core as the gateway does. Return the seconds."""
    began = time.perf_counter()
    core.receive_client(request, 1.0)
    sent = core.drain_broker()
    core.drain_events()
    core.receive_broker(response, 1.0)
    core.drain_client()
    core.drain_events()
    took = time.perf_counter() - began
    if len(sent) != 1 or len(sent[0]) > 200:
        raise RuntimeError("a fetch that changed at most one partition was not sent as a small delta")
    return took
