"""Measures the sessions that the gateway gives to clients.

It measures one unchanged incremental fetch, the memory for many sessions, and an eviction. Only the code of
these sessions runs, without a network: it turns a client's incremental fetch into a full one, and the full
response into an incremental one. For comparison, the CPU time of a real broker for such a fetch in its own
session is measured. This time includes sockets and reading each partition.
"""

import random
import time
import tracemalloc
from collections.abc import Sequence
from statistics import median
from typing import Final

from proxy.features.client_sessions.cache import DEFAULT_SLOTS, FetchSessionCache
from proxy.features.client_sessions.contexts import FullFetchContext, IncrementalFetchContext
from proxy.features.client_sessions.manager import FetchManager
from proxy.protocol.api import LENGTH_BYTES, request_header
from proxy.protocol.fetch_request import parse_fetch_request
from tools.bench.figures import DIRECT, GATEWAY, FigureRow, FigureTable
from tools.bench.frames import VERSION, Key, Topics, fetch_request, fetch_response
from tools.bench.stage import BenchStage
from tools.kafka.admin import Admin
from tools.kafka.raw import RawConnection

SHAPES: Final = ((1, 100, 40.0), (1, 1_000, 60.0), (1, 10_000, 400.0), (100, 100, None))
"""Topics, partitions of each, and the time limit in microseconds."""
PARTITIONS: Final = 100
QUICK_SESSIONS: Final = 100
BYTES_LIMIT, EVICTION_LIMIT = 150.0, 50.0
"""The limits of memory for one partition in bytes, and of time for one eviction in microseconds."""
_SESSION_ID: Final = slice(15, 19)
_AGED_MS: Final = 130_000
_ANY: Final = 1 << 31
"""A limit of partitions that is never reached: only slots are rare here."""
_SERVED: Final = (100, 1_000)


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure the gateway's sessions, and for the sizes in `_SERVED` also a broker's own sessions."""
    stage.report("sessions: incremental fetches toward clients ...")
    rounds = 50 if stage.quick else 500
    rows = []
    for topics, partitions, limit in SHAPES:
        values = {GATEWAY: unchanged(listed(topics, partitions), rounds) * 1e6}
        if topics == 1 and partitions in _SERVED:
            values[DIRECT] = _by_a_broker(stage, partitions, rounds) * 1e6
        name = (
            f"{partitions:,} partitions" if topics == 1 else f"{topics:,} topics of {partitions:,} partitions"
        )
        rows.append(FigureRow(f"unchanged fetch of {name}", "µs", values, limit=limit))
    sessions = QUICK_SESSIONS if stage.quick else DEFAULT_SLOTS
    stage.report(f"sessions: {sessions:,} in memory ...")
    rows += [
        FigureRow(
            "a partition in a session", "bytes", {GATEWAY: partition_bytes(sessions)}, limit=BYTES_LIMIT
        ),
        FigureRow("an eviction", "µs", {GATEWAY: eviction(sessions) * 1e6}, limit=EVICTION_LIMIT),
    ]
    notes = [
        f"Medians, Fetch v{VERSION}. Direct: a broker's CPU for such a fetch, with sockets and reads in it.",
        f"Bytes: {sessions:,} idle sessions of {PARTITIONS} partitions, by tracemalloc.",
        f"Eviction: a newcomer of {PARTITIONS + 1} partitions, when all slots are taken.",
    ]
    return [FigureTable("Sessions toward clients", rows, notes)]


def listed(topics: int, partitions: int) -> Topics:
    """Return the topics and the partition numbers that a client fetches."""
    chance = random.Random(topics)  # noqa: S311 - not a secret
    return [(chance.randbytes(16), range(partitions)) for _ in range(topics)]


class SessionServer:
    """The gateway's session server, used without a network."""

    def __init__(self, slots: int = 1) -> None:
        new_id = random.Random(0).randint  # noqa: S311 - not a secret
        self.cache = FetchSessionCache(new_id, slots=slots, max_partitions=_ANY)
        self._manager = FetchManager(self.cache)

    def exchange(self, request: bytes, response: bytes, now_ms: int) -> bytes:
        """Process a client's fetch and the broker's full response. Return the response for the client."""
        _, version, _, _, body = request_header(request, LENGTH_BYTES)
        context = self._manager.context(parse_fetch_request(request, version, body), now_ms)
        if not isinstance(context, FullFetchContext | IncrementalFetchContext):
            raise RuntimeError(f"{context!r} is not what is measured")  # noqa: TRY004 - not an argument
        return b"".join(context.receive(response, now_ms, last=True))

    def session(self, request: bytes, response: bytes, now_ms: int = 0) -> int:
        """Create a session. Return its id, or 0 if no slot was free."""
        return int.from_bytes(self.exchange(request, response, now_ms)[_SESSION_ID])


def unchanged(topics: Topics, rounds: int) -> float:
    """Return the median time of an unchanged fetch and its response, in seconds."""
    server = SessionServer()
    response = fetch_response(1, topics)
    session_id = server.session(fetch_request(1, topics, session=(0, 0)), response)
    server.exchange(fetch_request(1, [], session=(session_id, 1)), response, 1)
    took = []
    for epoch in range(2, rounds + 2):
        request = fetch_request(1, [], session=(session_id, epoch))
        began = time.perf_counter()
        server.exchange(request, response, epoch)
        took.append(time.perf_counter() - began)
    return median(took)


def partition_bytes(sessions: int) -> float:
    """Return the bytes that each partition needs with so many sessions, each used once."""
    topics = listed(1, PARTITIONS)
    request, response = fetch_request(1, topics, session=(0, 0)), fetch_response(1, topics)
    server = SessionServer(sessions)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(sessions):
            session_id = server.session(request, response)
            server.exchange(fetch_request(1, [], session=(session_id, 1)), response, 1)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    return (after - before) / sessions / PARTITIONS


def eviction(sessions: int) -> float:
    """Return the median of the seconds that an eviction adds to a full fetch."""
    topics, larger = listed(1, PARTITIONS), listed(1, PARTITIONS + 1)
    small = fetch_request(1, topics, session=(0, 0)), fetch_response(1, topics)
    large = fetch_request(1, larger, session=(0, 0)), fetch_response(1, larger)
    free, full = SessionServer(2 * sessions), SessionServer(sessions)
    for server in (free, full):
        made = [server.session(*small) for _ in range(sessions)]
        for session_id in made:  # in use, but old enough to be evicted by larger ones
            server.exchange(fetch_request(1, [], session=(session_id, 1)), small[1], _AGED_MS)
    rounds = min(sessions, 1000)
    took: list[list[float]] = [[], []]
    for _ in range(rounds):
        for each, server in zip(took, (free, full), strict=True):
            began = time.perf_counter()
            server.session(*large, _AGED_MS)
            each.append(time.perf_counter() - began)
    if (full.cache.evictions, free.cache.evictions) != (rounds, 0):
        raise RuntimeError("not each newcomer evicted another session")
    return median(took[1]) - median(took[0])


def _by_a_broker(stage: BenchStage, partitions: int, rounds: int) -> float:
    """Return the CPU time of a real broker for an unchanged fetch in the broker's own session, in seconds."""
    with stage.topic(partitions, name="native") as topic, Admin(stage.broker.address) as admin:
        topics = [(admin.topic_id(topic).bytes, range(partitions))]
        with RawConnection(stage.broker.host, stage.broker.port) as connection:
            offsets: dict[Key, int] = {(topics[0][0], partition): 0 for partition in range(partitions)}
            first = fetch_request(1, topics, session=(0, 0), offsets=offsets, wait_ms=0)
            session_id = int.from_bytes(_call(connection, first)[_SESSION_ID.start - LENGTH_BYTES :][:4])
            warm = 10 * rounds  # until Java has compiled the code
            _fetched(connection, session_id, range(1, warm + 1))
            before = stage.broker_meter.cpu
            _fetched(connection, session_id, range(warm + 1, warm + rounds + 1))
            return (stage.broker_meter.cpu - before) / rounds


def _fetched(connection: RawConnection, session_id: int, epochs: Sequence[int]) -> None:
    for epoch in epochs:
        response = _call(connection, fetch_request(1, [], session=(session_id, epoch), wait_ms=0))
        if int.from_bytes(response[9:11]):
            raise RuntimeError("the broker did not go on with its session")


def _call(connection: RawConnection, request: bytes) -> bytes:
    connection.socket.sendall(request)
    return connection.receive()
