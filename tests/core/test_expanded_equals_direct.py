"""A response through the gateway equals that of a direct fetch without a session at the same moment: same
entries, same bytes, and no session errors. This holds for any sequence of fetches and any allowed broker
behaviour.

The broker is the model, which was checked against live brokers. Entries are in the order of the request, or
in the broker's order without a session. In the broker's order, errors found before reading are last.
"""

import os
import random
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from proxy.core.eligibility import SessionLimits
from tests.examples import examples
from tests.model.broker import ModelBroker
from tests.model.compare import BIG, DifferenceError, check
from tests.model.gate import Gate, framed
from tests.model.log import Partition
from tests.model.sessions import CachedPartition
from tests.model.wire import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    NodeEndpoint,
    decode_request,
    decode_response,
    encode_request,
)
from tests.twin import Twin

EXAMPLES = int(os.environ.get("LAW_EXAMPLES", "50"))
"""How many random histories are tried. A soak test sets a higher number."""
RELEASES = ("1.0.2", "1.1.1", "2.0.1", "2.4.1", "2.8.2", "3.7.2", "3.9.1", "4.3.0")
TOPICS = ("a", "b", "cc")
PARTITIONS = 4
METADATA = bytes.fromhex("00030001000000630001780000")
API_VERSIONS = bytes.fromhex("001200000000006200017800")[:11]
NODES = {n: NodeEndpoint(node_id=n, host=f"b{n}", port=9092) for n in (1, 2)}
BATCHES = (1, 20, 300)
"""Sizes of batches, in bytes. The size limit `BIG` never cuts records off."""


class AnyClientAnyBroker(RuleBasedStateMachine):
    """Random steps change the state of broker and client.

    The step `fetch` checks that the client gets the same response with and without the gateway.
    """

    @initialize(
        release=st.sampled_from(RELEASES),
        slots=st.sampled_from([1000, 1000, 1000, 1000, 8, 0]),
        seed=st.integers(0, 2**16),
        cuts=st.booleans(),
        version=st.integers(4, 18),
        max_sessions=st.sampled_from([10, 10, 10, 10, 0]),
        asks=st.booleans(),
        leaves_midway=st.booleans(),
        topics=st.integers(1, 2),
        dialect=st.sampled_from(["", "", "", "", "null", "list"]),
        empties=st.sampled_from([True, True, True, False]),
    )
    def begin(
        self,
        release: str,
        slots: int,
        seed: int,
        cuts: bool,
        version: int,
        max_sessions: int,
        asks: bool,
        leaves_midway: bool,
        topics: int,
        dialect: str = "",
        empties: bool = True,
    ) -> None:
        self.broker = ModelBroker(release=release, slots=slots, seed=seed, dialect=dialect, empties=empties)
        self.broker.nodes = NODES
        self.ids: dict[str, bytes] = {}
        """Topic name -> topic id, as the client last learned it."""
        for name in TOPICS:
            self.create(name)
        self.sessions = SessionLimits(max_sessions=max_sessions)
        connection = Twin(sessions=self.sessions, resolve=None)
        self.gate = Gate(connection, self.broker, random.Random(seed) if cuts else None)
        self.leaves_midway = leaves_midway
        self.version = min(version, self.broker.quirks.fetch_versions[1])
        self.now = 1.0
        self.correlation = 0
        self.others: set[int] = set()
        """The ids of sessions that other clients have."""
        self.wanted: list[tuple[str, int]] = [
            (name, i) for name in TOPICS[:topics] for i in range(PARTITIONS)
        ]
        self.offsets: dict[tuple[str, int], int] = {}
        self.values: dict[str, Any] = {}
        self.fields: dict[str, Any] = {}
        self.holds = 0
        if asks:
            self.gate.exchange([API_VERSIONS], self.now)
        if not empties:  # it shows so in its first response
            self.throttle(40)
            self.ask([self.request()])
            self.throttle(0)
        self.seek_to_end()
        self.poll(3, follows=True)

    def teardown(self) -> None:
        if not hasattr(self, "gate"):
            return
        self.broker.throttle_ms = self.broker.failure = 0
        if self.leaves_midway:
            frames = [encode_request(self.request()) for _ in range(2)]
            self.gate.connection.receive_client(b"".join(map(framed, frames)), self.now)
        self.gate.close(self.now)
        assert set(self.broker.cache.sessions) <= self.others, "a session was left behind"
        assert self.sessions.used == 0
        if not self.leaves_midway:
            self.gate.check_tally()

    # The world

    def create(self, name: str) -> None:
        topic = self.broker.create_topic(name, PARTITIONS)
        self.ids.setdefault(name, topic.topic_id)

    def partition(self, name: str, index: int) -> Partition | None:
        topic = self.broker.topics.get(name)
        return None if topic is None else topic.partitions.get(index)

    names = st.sampled_from(TOPICS)
    indexes = st.integers(0, PARTITIONS - 1)

    @rule(
        name=names, index=indexes, size=st.sampled_from(BATCHES), count=st.integers(1, 3), held=st.booleans()
    )
    def produce(self, name: str, index: int, size: int, count: int, held: bool) -> None:
        if partition := self.partition(name, index):
            partition.append(bytes([self.correlation & 0xFF]) * size, count=count, replicated=not held)

    @rule(name=names, index=indexes)
    def replicate(self, name: str, index: int) -> None:
        if partition := self.partition(name, index):
            partition.high_watermark = partition.log_end

    @rule(name=names, index=indexes, producer=st.integers(1, 2))
    def begin_transaction(self, name: str, index: int, producer: int) -> None:
        if partition := self.partition(name, index):
            partition.append(b"in transaction", producer=producer)

    @rule(name=names, index=indexes, producer=st.integers(1, 2), commit=st.booleans())
    def end_transaction(self, name: str, index: int, producer: int, commit: bool) -> None:
        partition = self.partition(name, index)
        if partition is not None and producer in partition.open:
            partition.end_transaction(producer, commit=commit)

    @rule(name=names, index=indexes, back=st.integers(0, 3))
    def delete_records(self, name: str, index: int, back: int) -> None:
        if partition := self.partition(name, index):
            partition.delete_records(max(0, partition.high_watermark - back))

    @rule(name=names)
    def delete_topic(self, name: str) -> None:
        self.broker.topics.pop(name, None)
        self.broker.denied.discard(name)

    @rule(name=names)
    def recreate_topic(self, name: str) -> None:
        self.create(name)
        self.broker.denied.discard(name)

    @rule()
    def learn_ids(self) -> None:
        """Let the client learn the topic ids from Metadata."""
        self.ids |= {name: topic.topic_id for name, topic in self.broker.topics.items()}

    @rule(name=names)
    def deny_or_allow(self, name: str) -> None:
        """Withdraw the access to a topic, or restore it. Topics whose id has changed are left out.

        For such a topic a session gives error 29 by its old name, and a direct fetch gives 100. The gateway
        cannot see this difference.
        """
        topic = self.broker.topics.get(name)
        if topic is not None and topic.topic_id == self.ids[name]:
            self.broker.denied ^= {name}

    @rule(name=names, index=indexes, leader=st.sampled_from([-1, 1, 2, 3]), hosted=st.booleans())
    def move_leader(self, name: str, index: int, leader: int, hosted: bool) -> None:
        if partition := self.partition(name, index):
            partition.move_leader(leader, partition.leader_epoch + 1)
            partition.hosted = hosted or leader == self.broker.node_id

    @rule(name=names, index=indexes, error=st.sampled_from([56, 9, 78, 0, 0]))
    def break_or_mend(self, name: str, index: int, error: int) -> None:
        if partition := self.partition(name, index):
            partition.error = error

    @rule(name=names, index=indexes)
    def prefer_a_replica(self, name: str, index: int) -> None:
        if partition := self.partition(name, index):
            partition.preferred = {} if partition.preferred else {"r": 2}

    @rule(name=names)
    def compress(self, name: str) -> None:
        if topic := self.broker.topics.get(name):
            topic.zstd = not topic.zstd
            # A session is not told of a topic that turns to zstd under it (2.6): nobody could know.
            self.restart()

    @rule(ms=st.sampled_from([0, 0, 40]))
    def throttle(self, ms: int) -> None:
        """Set the throttle time of the broker, in ms.

        While fetches are throttled, the broker sends no leader endpoints: see
        `test_endpoints_that_a_throttle_keeps_back`.
        """
        self.broker.throttle_ms = ms
        self.broker.nodes = {} if ms else NODES

    @rule()
    def restart(self) -> None:
        """Let the broker lose all sessions. The connection stays open, because the next rules need it."""
        for session in list(self.broker.cache.sessions.values()):
            self.broker.cache.remove(session)

    @rule(epoch=st.integers(1, 9))
    def lose_count(self, epoch: int) -> None:
        for session in self.broker.cache.sessions.values():
            session.epoch = epoch

    @rule()
    def mistake_names_for_ids(self) -> None:
        for session in self.broker.cache.sessions.values():
            session.uses_ids = not session.uses_ids

    @rule(code=st.sampled_from([0, 0, -1, 2]))
    def fail(self, code: int) -> None:
        self.broker.failure = code
        self.gate.before = lambda _: None

    @rule(code=st.sampled_from([-1, 2]))
    def fail_once_in_a_session(self, code: int) -> None:
        """Let the next fetch in a session fail with this code. A fetch without a session would not fail."""

        def before(frame: bytes) -> None:
            inside = (
                frame[:2] == b"\0\x01"
                and frame[2:4] >= b"\0\x07"
                and decode_request(frame).session_epoch >= 0
            )
            self.broker.failure = code if inside else 0
            if inside:
                self.gate.before = lambda _: setattr(self.broker, "failure", 0)

        if not self.broker.failure:
            self.gate.before = before

    @rule(size=st.integers(1, 12))
    def others_take_slots(self, size: int) -> None:
        parts = [
            CachedPartition("x", bytes(16), FetchPartition(partition=i, fetch_offset=0)) for i in range(size)
        ]
        self.others |= {self.broker.cache.create(round(self.now * 1000), parts) for _ in range(8)}

    @rule(seconds=st.sampled_from([0.5, 11.0, 121.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    # The client

    @rule(version=st.integers(4, 18))
    def change_version(self, version: int) -> None:
        self.version = min(version, self.broker.quirks.fetch_versions[1])

    @rule(
        isolation_level=st.integers(0, 1),
        max_bytes=st.sampled_from([BIG, BIG, BIG, 400, 25, 0]),
        rack_id=st.sampled_from(["", "r"]),
        session_id=st.sampled_from([0, 0, -1]),
    )
    def change_settings(self, isolation_level: int, max_bytes: int, rack_id: str, session_id: int) -> None:
        self.values = {
            "isolation_level": isolation_level,
            "max_bytes": max_bytes,
            "rack_id": rack_id,
            "session_id": session_id,
        }

    @rule(wanted=st.lists(st.tuples(names, st.integers(0, PARTITIONS)), max_size=14))
    def choose(self, wanted: list[tuple[str, int]]) -> None:
        """Choose any list of partitions.

        It may be empty, have a topic in several parts, or have duplicate or invalid partitions.
        """
        self.wanted = wanted

    @rule(name=names)
    def assign_all(self, name: str) -> None:
        self.wanted = [*self.wanted, *((name, i) for i in range(PARTITIONS) if (name, i) not in self.wanted)]

    @rule(by=st.integers(0, 12))
    def rotate(self, by: int) -> None:
        at = by % max(len(self.wanted), 1)
        self.wanted = self.wanted[at:] + self.wanted[:at]

    @rule(name=names, index=indexes)
    def pause_or_resume(self, name: str, index: int) -> None:
        if (name, index) in self.wanted:
            self.wanted = [want for want in self.wanted if want != (name, index)]
        else:
            self.wanted = [*self.wanted, (name, index)]

    @rule(name=names, index=indexes, offset=st.integers(0, 6))
    def seek(self, name: str, index: int, offset: int) -> None:
        self.offsets[name, index] = offset

    @rule()
    def seek_to_end(self) -> None:
        for name, topic in self.broker.topics.items():
            for index, partition in topic.partitions.items():
                self.offsets[name, index] = partition.log_end

    def request(self) -> FetchRequest:
        version = self.version
        since = {"current_leader_epoch": 9, "last_fetched_epoch": 12}
        values = {name: value for name, value in self.fields.items() if version >= since.get(name, 4)}
        elements: list[tuple[str, list[FetchPartition]]] = []
        for name, index in self.wanted:
            part = FetchPartition(partition=index, fetch_offset=self.offsets.get((name, index), 0), **values)
            if elements and elements[-1][0] == name:
                elements[-1][1].append(part)
            else:
                elements.append((name, [part]))
        self.correlation += 1
        settings = dict(self.values)
        if version < 11:
            settings.pop("rack_id", None)
        if version < 7:
            settings.pop("session_id", None)
        return FetchRequest(
            version=version,
            correlation_id=self.correlation,
            topics=tuple(FetchTopic(**self.key(name), partitions=tuple(parts)) for name, parts in elements),
            **settings,
        )

    def key(self, name: str) -> dict[str, Any]:
        return {"topic": name} if self.version <= 12 else {"topic_id": self.ids[name]}

    epochs = st.sampled_from([-1, -1, -1, 0, 1])

    @rule(leader_epoch=epochs, last_epoch=epochs, size=st.sampled_from([BIG, BIG, BIG, 25, 0]))
    def change_fields(self, leader_epoch: int, last_epoch: int, size: int) -> None:
        self.fields = {
            "current_leader_epoch": leader_epoch,
            "last_fetched_epoch": last_epoch,
            "partition_max_bytes": size,
        }

    @rule(steps=st.integers(1, 4))
    def hold_back(self, steps: int) -> None:
        """Allow several rules to run before the next fetch."""
        self.holds = steps

    @rule(times=st.integers(1, 4), follows=st.booleans())
    def poll(self, times: int, follows: bool) -> None:
        """Fetch several times.

        If `follows` is True, each fetch begins after the records that were read before.
        """
        for _ in range(times):
            self.ask([self.request()])
            if follows:
                self.seek_to_end()

    @invariant()
    def fetch(self) -> None:
        """Send one fetch and compare the responses. This runs after each rule, unless `hold_back` delays
        it.
        """
        if not hasattr(self, "gate"):
            return
        self.holds -= 1
        if self.holds < 0:
            self.ask([self.request()])

    @rule(between=st.booleans())
    def fetch_without_waiting(self, between: bool) -> None:
        """Send two fetches without waiting for the first response.

        If `between` is True, another request is sent between the two fetches.
        """
        requests = [self.request(), self.request()]
        self.ask(requests, other=METADATA if between else None)

    def ask(self, requests: list[FetchRequest], other: bytes | None = None) -> None:
        frames = [encode_request(request) for request in requests]
        direct = [self.broker.handle(frame, self.now) for frame in frames]
        if other is not None:
            frames.insert(1, other)
        responses = self.gate.exchange(frames, self.now)
        assert len(responses) == len(frames), f"{len(responses)} responses to {len(frames)} requests"
        if other is not None:
            assert responses.pop(1) == self.broker.handle(other, self.now)
        for request, response, expected in zip(requests, responses, direct, strict=True):
            version = request.version
            check(request, decode_response(response, version), decode_response(expected, version))


TestAnyClientAnyBroker = AnyClientAnyBroker.TestCase
TestAnyClientAnyBroker.settings = examples(EXAMPLES, stateful_step_count=25)


def test_endpoints_that_a_throttle_keeps_back() -> None:
    """A throttled response without entries still names leader endpoints (v16 and later).

    There is one exception: a response that hides the loss of the session has no endpoints. The client needs
    none, because the response has no entries.
    """
    history = AnyClientAnyBroker()
    history.begin(
        release="3.7.2",
        slots=1000,
        seed=0,
        cuts=False,
        version=16,
        max_sessions=10,
        asks=False,
        leaves_midway=False,
        topics=1,
    )
    history.fetch()
    history.broker.throttle_ms = 40
    history.move_leader("a", 0, leader=2, hosted=False)
    history.fetch()
    history.restart()
    with pytest.raises(DifferenceError) as difference:
        history.fetch()
    direct, through = str(difference.value).splitlines()[1:]
    assert direct.startswith("- error=0 throttle=40 tags=((0, ")
    assert through == "+ error=0 throttle=40 tags=()"
    history.fetch()
