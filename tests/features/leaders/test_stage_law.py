"""With ``--follow-leader``, each request gets exactly one response, in the client's order."""

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final

import hypothesis.strategies as st
from hypothesis import given

from proxy.core.asking.siblings import Siblings
from proxy.features.leaders.fetch_repeat import HOLD_SECONDS
from proxy.protocol.api import ApiKey
from tests.connections import Asked
from tests.examples import examples
from tests.features.leaders.following import (
    TOPIC,
    epochs_response,
    metadata_response,
    play,
)
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
        self.connection: Asked = played.connection
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
        elif what == "tick" and side.connection.asker is not None:
            side.connection.asker.tick(now)
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
        if side.open and side.connection.asker is not None:
            side.connection.asker.tick(now + 2 * HOLD_SECONDS)
        drain()
    for side in sides:
        if side.open:
            assert side.told == side.asked
            assert side.connection.buffered == 0
