"""With ``--follow-leader``, each request gets exactly one response, in the client's order."""

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final

import hypothesis.strategies as st
from hypothesis import given

from proxy.core.connection import Connection
from proxy.core.repeat import MAX_SECONDS
from proxy.core.siblings import Siblings
from proxy.protocol.api import ApiKey
from proxy.protocol.produce import read_idempotent, read_response
from tests.core.following import (
    OURS,
    TOPIC,
    epochs_response,
    metadata_response,
    play,
)
from tests.core.test_repeat_produce import batch, produce, produced
from tests.examples import examples
from tests.frames import entry, fetch, fetch_response
from tests.model import wire
from tests.playbook import Playbook, request, response, split

NODES: Final = (1, 2, 3)
ERRORS: Final = (0, 0, 0, 6, 6, 74, 1, 75)

Step = tuple[str, int, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(["fetch", "beat", "answer", "answer", "answer", "answer", "tick", "close", "lose"]),
        st.sampled_from([0, 1, 2]),
        st.integers(0, 63),
    ),
    max_size=60,
)


class Side:
    """One of the client's connections, together with the broker behind it."""

    def __init__(self, played: Playbook, node_id: int) -> None:
        self.played, self.node_id = played, node_id
        self.connection: Connection = played.connection
        self.asked: list[int] = []
        self.told: list[int] = []
        self.queue: deque[bytes] = deque()
        self.frames: deque[bytes] = deque()
        self.open = True
        self.closing = False

    def drain(self) -> None:
        self.queue.extend(split(self.played.takes_broker()))
        for frame in split(self.played.takes_client()):
            self.told.append(int.from_bytes(frame[4:8]))
            self.frames.append(frame)
        assert self.connection.fault is None

    def ask(self, frame: bytes, correlation: int, now: float) -> None:
        self.asked.append(correlation)
        self.connection.receive_client(frame, now)

    def answer(self, chance: int, now: float) -> None:
        """Send the response to the oldest request.

        The request is a fetch of v11, or a request that the gateway itself has sent.
        """
        frame = self.queue.popleft()
        key, correlation = int.from_bytes(frame[4:6]), int.from_bytes(frame[8:12])
        leader = NODES[chance % 3]
        if key == ApiKey.METADATA:
            told = metadata_response(False, dict.fromkeys(range(2), (leader, 5)))
        elif key == ApiKey.OFFSET_FOR_LEADER_EPOCH:
            told = epochs_response((0, 0, 4, 99), (0, 1, 4 - chance % 2, 99))
        elif key == ApiKey.FETCH:
            topics = wire.decode_request(frame[4:]).topics
            listed = [part.partition for each in topics for part in each.partitions]
            data = [entry(at, 9, error=ERRORS[(chance >> 3 * at) % 8]) for at in listed]
            told = fetch_response(11, (TOPIC, data), correlation_id=correlation)
        else:
            told = response(correlation, b"\0\0")
        self.connection.receive_broker(told, now)

    def leaves(self, what: str, chance: int, now: float, drain: Callable[[], None]) -> None:
        """Close the connection from the broker's or the client's side (`what`), if `chance` is below 8."""
        if what == "lose" and chance < 8:
            self.connection.broker_ended()
            drain()
            self.end()
        elif what == "close" and chance < 8:
            self.connection.close_session(now)
            self.closing = True

    def end(self) -> None:
        self.open = False
        self.connection.ended()


@examples(300)
@given(steps, st.sampled_from([-1, 4]))
def test_each_request_gets_one_response_in_the_clients_order(history: list[Step], epoch: int) -> None:
    siblings = Siblings()
    sides = [Side(play(siblings, node), node) for node in NODES]
    now, ids = 0.0, count(100)

    def drain() -> None:
        for each in sides:
            if each.open:
                each.drain()

    for what, at, chance in history:
        side, now = sides[at], now + 0.01
        if not side.open:
            continue
        if what in {"fetch", "beat"} and side.closing:
            continue
        correlation = next(ids)
        if what == "fetch":
            wants = [(TOPIC, 0, 40), (TOPIC, 1, 41)]
            values = {"current_leader_epoch": epoch}
            side.ask(fetch(11, *wants, correlation=correlation, values=values), correlation, now)
        elif what == "beat":
            side.ask(request(ApiKey.HEARTBEAT, 0, correlation), correlation, now)
        elif what == "answer" and side.queue:
            side.answer(chance, now)
        elif what == "tick" and side.connection.retry is not None:
            side.connection.retry.tick(now)
        else:
            side.leaves(what, chance, now, drain)
        drain()
        for each in sides:
            assert each.told == each.asked[: len(each.told)]

    for _ in range(200):
        for side in sides:
            if side.open and side.queue:
                side.answer(0, now)
            drain()
    for side in sides:
        if side.open and side.connection.retry is not None:
            side.connection.retry.tick(now + 2 * MAX_SECONDS)
        drain()
    for side in sides:
        if side.open:
            assert side.told == side.asked
            assert side.connection.buffered == 0


produce_steps = st.lists(
    st.tuples(
        st.sampled_from([*["produce"] * 3, *["answer"] * 4, "tick", "close", "lose"]),
        st.sampled_from([0, 1, 2]),
        st.integers(0, 63),
    ),
    max_size=60,
)


class Log:
    """The batches of one producer that the brokers have accepted, by partition.

    The brokers accept batches in any order.
    """

    def __init__(self) -> None:
        self.accepted: dict[int, set[int]] = {0: set(), 1: set()}
        self.sent: dict[int, int] = {0: 0, 1: 0}
        self.failed: dict[int, list[int]] = {0: [], 1: []}

    def take(self, partition: int) -> int:
        """Return the next sequence number of the producer: that of the first failed batch, or a new one."""
        if self.failed[partition]:
            self.failed[partition].sort()
            return self.failed[partition].pop(0)
        self.sent[partition] += 1
        return self.sent[partition] - 1

    def answer(self, frame: bytes, chance: int) -> bytes:
        """Answer a Produce request with one batch.

        Check the order of repeated batches: the gateway may repeat a batch only after all earlier ones.
        """
        asked = read_idempotent(frame, 7)
        assert asked is not None
        (batch,) = asked.batches
        if frame[8:12] == OURS.to_bytes(4):
            earlier = set(range(batch.sequence))
            assert earlier <= self.accepted[batch.partition], (batch.partition, batch.sequence)
        error = (0, 6, 6, 3, 45)[chance % 5]
        if not error:
            self.accepted[batch.partition].add(batch.sequence)
        told = (batch.partition, error, batch.sequence)
        return produced(7, told, correlation=int.from_bytes(frame[8:12]))


@examples(300)
@given(produce_steps)
def test_no_batch_is_repeated_before_those_that_come_first(history: list[Step]) -> None:
    siblings = Siblings(produces=True)
    sides = [Side(play(siblings, node), node) for node in NODES]
    now, ids, log = 0.0, count(100), Log()

    def answer(side: Side, chance: int) -> None:
        frame = side.queue[0]
        if int.from_bytes(frame[4:6]) != ApiKey.PRODUCE:
            side.answer(chance, now)
        else:
            side.queue.popleft()
            side.connection.receive_broker(log.answer(frame, chance), now)

    batches: dict[int, tuple[int, int]] = {}

    def drain() -> None:
        for each in sides:
            if each.open:
                each.drain()
                assert each.told == each.asked[: len(each.told)]
            while each.frames:
                frame = each.frames.popleft()
                partition, sequence = batches[int.from_bytes(frame[4:8])]
                if any(entry.error_code for entry in read_response(frame, 7).values()):
                    log.failed[partition].append(sequence)

    for what, at, chance in history:
        side, now = sides[at], now + 0.01
        if not side.open:
            continue
        if what == "produce" and not side.closing:
            correlation, partition = next(ids), chance % 2
            sequence = log.take(partition)
            batches[correlation] = partition, sequence
            data = produce(7, (partition, batch(sequence, 1)), correlation=correlation)
            side.ask(data, correlation, now)
        elif what == "answer" and side.queue:
            answer(side, chance)
        elif what == "tick" and side.connection.retry is not None:
            now += chance / 32
            side.connection.retry.tick(now)
        else:
            side.leaves(what, chance, now, drain)
        drain()
    for _ in range(200):
        for side in sides:
            if side.open and side.queue:
                answer(side, 0)
            if side.open and side.connection.retry is not None:
                side.connection.retry.tick(now + 2 * MAX_SECONDS)
            drain()
    for side in sides:
        if side.open and not side.closing:
            assert side.told == side.asked
            assert side.connection.buffered == 0
    assert " in_flight=0>" in repr(siblings.order) or any(side.closing for side in sides)
