"""For any history of clients with sessions, the gateway responds like a broker with sessions.

Both servers draw session ids from the same seed, so ids, slots and evictions are equal. The broker's cache
has no shards, as up to Kafka 3.7. Intended differences do not occur in these histories; `test_manager` tests
them.
"""

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.features.client_sessions.cache import MAX_ID
from tests.examples import examples
from tests.features.client_sessions.serving import Serving
from tests.model.asker import Requests, lines
from tests.model.broker import ModelBroker
from tests.model.sessions import FetchSessionCache
from tests.model.wire import FetchRequest, FetchResponse, decode_response, encode_request, encode_response

TOPICS = {"a": 3, "b": 3, "c": 2}
SLOTS = 8


@dataclass
class Client:
    """The client's side of a session: version, id and epoch. They are equal for both servers."""

    version: int
    id: int = 0
    epoch: int = 0


@dataclass
class History(Requests):
    """A random history of requests.

    Each request is sent to both servers, and their responses are compared.
    """

    chance: random.Random = field(kw_only=True)
    counts: dict[str, int] = field(default_factory=dict)
    """The number of times that each kind of event occurred. It proves that the test covers all kinds."""

    def __post_init__(self) -> None:
        seed = self.chance.randrange(1000)
        self.native = ModelBroker(slots=SLOTS, seed=seed)
        self.native.cache = FetchSessionCache(slots=SLOTS, sharded=False, seed=seed)
        self.native.cache.shards[0].last_id = MAX_ID
        for name, count in TOPICS.items():
            self.ids[name] = self.native.create_topic(name, count).topic_id
        self.bare = ModelBroker(slots=0, topics=self.native.topics, denied=self.native.denied)
        self.ours = Serving(
            lambda message: lambda: self.bare.handle(message, self.now),
            slots=SLOTS,
            seed=seed,
            chance=random.Random(seed) if seed % 2 else None,
        )
        self.now = 0.0
        self.clients = [Client(version) for version in (7, 9, 12, 13, 16, 18)]

    # The world

    def change(self) -> None:
        name = self.chance.choice(list(TOPICS))
        partition = self.native.partition(name, self.chance.randrange(TOPICS[name]))
        roll = self.chance.random()
        if roll < 0.5:
            partition.append(self.chance.randbytes(self.chance.choice([1, 40, 900])))
        elif roll < 0.6:
            partition.delete_records(-1)
        elif roll < 0.7:
            partition.error = self.chance.choice([0, 6, 56, -1])
        elif roll < 0.75:
            self.native.denied.symmetric_difference_update({name})
        elif roll < 0.8:
            partition.preferred = {"r": 2} if not partition.preferred else {}
        elif roll < 0.85:
            partition.high_watermark = self.chance.randint(0, partition.log_end)
        elif roll < 0.9:
            partition.open.update({1: partition.log_end} if not partition.open else {})
        else:
            self.now += self.chance.choice([0.001, 1, 60, 120, 120.001])

    # Requests

    def step(self) -> None:
        client = self.chance.choice(self.clients)
        if self.chance.random() < 0.05:
            client.version = self.chance.randint(7, 18)
        self.version = client.version
        request, told = self._asked(client)
        self.counts[f"error {told.error_code}"] = self.counts.get(f"error {told.error_code}", 0) + 1
        if request.session_epoch > 0 and not told.error_code:
            kind = f"incremental of {sum(len(topic.partitions) for topic in told.topics)}"
            self.counts[kind] = self.counts.get(kind, 0) + 1
        if told.session_id:
            client.id = told.session_id
            client.epoch = request.session_epoch + 1 if request.session_epoch >= 0 else 0
        elif told.error_code != 106 or self.chance.random() < 0.5:
            client.epoch = 0

    def _asked(self, client: Client) -> tuple[FetchRequest, FetchResponse]:
        epoch = client.epoch
        roll = self.chance.random()
        if roll < 0.04:
            epoch += self.chance.choice([1, -1, -2])
        elif roll < 0.1:
            epoch = self.chance.choice([0, -1])
        session_id = client.id if self.chance.random() < 0.97 else self.chance.choice([0, 5, client.id ^ 1])
        throttled = self.chance.random() < 0.1 and self._is_known(session_id, epoch)
        self.native.throttle_ms = self.bare.throttle_ms = 30 if throttled else 0
        options: dict[str, Any] = {
            "session": (session_id, epoch),
            "isolation_level": self.chance.randint(0, 1),
            "max_bytes": self.chance.choice([1 << 20, 1 << 20, 1000, 1]),
            "rack_id": self.chance.choice(["", "r"]),
            "forget": [self._partition() for _ in range(self.chance.choice([0, 0, 0, 1, 3, 9]))],
        }
        wants = [
            (*self._partition(), self.chance.choice([0, 1, 2]), self.chance.choice([1 << 20, 100, 0]))
            for _ in range(self.chance.choice([0, 0, 0, 1, 2, 5]))
        ]
        request = self.request(*wants, **options)
        message = encode_request(request)
        self.ours.now = self.now
        asked = len(self.ours.asked)
        expected, told = self.native.handle(message, self.now), self.ours.exchange(message)
        if expected != told:
            native, ours = decode_response(expected, self.version), decode_response(told, self.version)
            if len(self.ours.asked) == asked:
                # What only closes a session is not forwarded, so nobody throttles it (trap 42).
                native = replace(native, throttle_time_ms=0)
                expected = encode_response(native)
            assert [native.session_id, *lines(native)] == [ours.session_id, *lines(ours)]
        assert expected == told
        return request, decode_response(told, self.version)

    def _is_known(self, session_id: int, epoch: int) -> bool:
        """Return whether a request matches a session, or needs no session.

        Otherwise the broker responds with a session error, but a throttled response could hide the error
        (case 49).
        """
        session = self.native.cache.sessions.get(session_id)
        fits = session is not None and session.epoch == epoch and session.uses_ids == (self.version >= 13)
        return epoch in (0, -1) or fits

    def _partition(self) -> tuple[str, int]:
        return self.chance.choice(list(TOPICS)), self.chance.randint(0, 3)

    def check(self) -> None:
        """Check that the gateway's cache and the model broker's cache hold the same sessions."""
        ours = {session.session_id: session for session in self.ours.cache}
        assert set(ours) == set(self.native.cache.sessions)
        assert self.ours.cache.partitions == self.native.cache.total_partitions
        for session_id, session in self.native.cache.sessions.items():
            held = ours[session_id].partitions
            assert ours[session_id].epoch == session.epoch
            assert len(held) == len(session.partitions)
            for row, cached in enumerate(session.partitions.values()):
                assert held.high_watermarks[row] == cached.high_watermark
                assert held.log_starts[row] == cached.log_start_offset


@given(seed=st.integers(0, 2**32))
@examples(200)
def test_any_history_is_that_of_a_broker_with_sessions(seed: int) -> None:
    """For cases 14 to 48 in any order, all responses equal the responses of a broker with sessions."""
    history = History(chance=random.Random(seed))
    for _ in range(40):
        if history.chance.random() < 0.5:
            history.change()
        history.step()
    history.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_long_history(seed: int) -> None:
    history = History(chance=random.Random(seed))
    for _ in range(1500):
        if history.chance.random() < 0.5:
            history.change()
        history.step()
    history.check()

    assert {"error 0", "error 70", "error 71", "error 106"} <= set(history.counts)
    assert sum(count for kind, count in history.counts.items() if kind.startswith("incremental")) > 300
    assert history.ours.cache.evictions > 0
