"""With `--keep-order`, the same partitions get records under a response limit as without a session.

The order of the fetch decides which partitions get records.
"""

import random
from typing import Any

import pytest

from proxy.core.connection import Connection
from proxy.core.eligibility import SessionLimits
from proxy.core.events import FetchKind
from proxy.session.decision import Reason
from tests.core.test_expanded_equals_direct import API_VERSIONS
from tests.frames import Want, entry, fetch, fetch_response
from tests.model.asker import entries
from tests.model.broker import ModelBroker
from tests.model.compare import BIG, in_request_order
from tests.model.gate import Gate
from tests.model.wire import FetchPartition, FetchRequest, FetchTopic, decode_response, encode_request
from tests.playbook import SESSION_ID, Playbook, asks, full

LIMIT = 1000
LIMITS: dict[str, Any] = {"max_bytes": LIMIT}


def established(version: int = 16, *, keep_order: bool = True) -> Playbook:
    """Return a connection with a session of two partitions at offset 0. Every high watermark is 5."""
    sessions = SessionLimits(max_sessions=10, keep_order=keep_order)
    return Playbook(sessions).established(version, [("t", 0, 5), ("t", 1, 5)])


def told(version: int, *parts: tuple[int, int, int], **fields: Any) -> bytes:
    """Build a response.

    Each of `parts` is a partition, its high watermark, and the size of its records in bytes.
    """
    data = [entry(index, hw, records=b"r" * size) for index, hw, size in parts]
    return fetch_response(version, *((("t", data),) if data else ()), **fields)


@pytest.mark.parametrize("version", [7, 9, 11, 12, 16])
def test_a_response_that_starves_who_is_listed_first_is_had_again_without_the_session(version: int) -> None:
    """The gateway drops a session response that has no records for the first partition of the fetch.

    It sends the fetch again without the session. In this test the session read partition 1 first, and reached
    the limit.
    """
    play = established(version)
    wants: list[Want] = [("t", 0, 5), ("t", 1, 5)]
    asked = fetch(version, *wants, correlation=9, **LIMITS)
    play.client(asked).to_broker(asks(version, [], (SESSION_ID, 1), correlation=9, **LIMITS))
    play.broker(told(version, (1, 9, 700), (0, 9, 0), session_id=SESSION_ID, correlation_id=9))
    play.to_broker(asked)
    direct = told(version, (0, 9, 900), (1, 9, 0), correlation_id=9)
    play.broker(direct).to_client(direct)
    assert play.connection.tally.passthrough[Reason.KEEP_ORDER] == 1
    # As long as responses are full, fetches go without.
    wants = [("t", 0, 7), ("t", 1, 5)]
    following = fetch(version, *wants, correlation=10, **LIMITS)
    play.exchange(following, told(version, (0, 9, 400), (1, 9, 0), correlation_id=10))
    # The first response with room lets the session go on, when its loss has been made up for.
    after = fetch(version, *wants, correlation=11, **LIMITS)
    while (sent := play.client(after).takes_broker()) == after:
        play.broker(told(version, (0, 9, 400), (1, 9, 0), correlation_id=11)).takes_client()
    assert sent == asks(version, wants[:1], (SESSION_ID, 2), correlation=11, **LIMITS)
    assert play.connection.tally.passthrough[Reason.KEEP_ORDER] == 2


def test_off_the_sessions_order_stays() -> None:
    play = established(keep_order=False)
    wants: list[Want] = [("t", 0, 5), ("t", 1, 5)]
    play.client(fetch(16, *wants, correlation=9, **LIMITS))
    play.to_broker(asks(16, [], (SESSION_ID, 1), correlation=9, **LIMITS))
    play.broker(told(16, (1, 9, 800), (0, 9, 0), session_id=SESSION_ID, correlation_id=9))
    play.to_client(told(16, (0, 9, 0), (1, 9, 800), correlation_id=9))


@pytest.mark.parametrize(
    ("parts", "again"),
    [
        ([(0, 9, 800), (1, 9, 0)], False),  # who is listed last waits, as without a session
        ([(0, 9, 500), (1, 9, 500)], False),  # the limit cut who would have been cut
        ([(1, 9, 300), (0, 9, 300)], False),  # room for both
        ([(1, 9, 500), (0, 9, 500)], True),  # 0 was cut; without a session 1 would have been
        ([(1, 9, 1200)], False),  # nobody else had any
        ([(1, 9, 1200), (0, 9, 0)], True),  # a first batch over the limit
        ([(0, 9, 0), (1, 5, 0)], False),  # nobody got any: news of a high watermark
    ],
)
def test_what_a_session_may_serve(parts: list[tuple[int, int, int]], again: bool) -> None:
    play = established()
    asked = fetch(16, ("t", 0, 5), ("t", 1, 5), correlation=9, **LIMITS)
    play.client(asked).takes_broker()
    play.broker(told(16, *parts, session_id=SESSION_ID, correlation_id=9))
    assert (play.takes_broker() == asked) is again
    assert bool(play.takes_client()) is not again


def test_a_batch_over_a_partitions_own_limit_goes_to_the_first_alone() -> None:
    """Case 60: only the first partition of a fetch may get a batch above its own limit.

    If a session response has such a batch for another partition, the gateway repeats the fetch without the
    session.
    """
    play = Playbook(SessionLimits(max_sessions=10, keep_order=True)).knows()
    wants: list[Want] = [("t", 0, 5), ("t", 1, 5)]
    fields: dict[str, Any] = {"values": {"partition_max_bytes": 100}} | LIMITS
    for number in (1, 2, 3):
        play.client(fetch(16, *wants, correlation=number, **fields)).takes_broker()
        given = SESSION_ID * (number == 3)
        play.broker(full(16, wants, correlation_id=number, session_id=given)).takes_client()
    asked = fetch(16, *wants, correlation=9, **fields)
    play.client(asked).to_broker(asks(16, [], (SESSION_ID, 1), correlation=9, **fields))
    play.broker(told(16, (1, 9, 200), (0, 9, 90), session_id=SESSION_ID, correlation_id=9))
    play.to_broker(asked)


def test_who_is_led_elsewhere_does_not_wait() -> None:
    """KIP-392: a partition with a preferred read replica causes no repeated fetch.

    Such a partition has no records in the response, although its high watermark is above the fetch offset.
    """
    play = established()
    play.client(fetch(16, ("t", 0, 5), ("t", 1, 5), correlation=9, **LIMITS)).takes_broker()
    parts = [entry(0, 9, preferred_read_replica=2), entry(1, 9, records=b"r" * 800)]
    play.broker(fetch_response(16, ("t", parts), session_id=SESSION_ID, correlation_id=9))
    play.to_client(fetch_response(16, ("t", parts), correlation_id=9))


def test_what_it_costs_is_part_of_the_sum() -> None:
    """Law 6: the bytes of a response that the gateway drops because of --keep-order count as a loss.

    After enough losses, the connection uses no session for some time.
    """
    play = established()
    before = play.connection._fetches.eligibility.savings._credit
    play.client(fetch(16, ("t", 0, 5), ("t", 1, 5), correlation=9, **LIMITS)).takes_broker()
    play.broker(told(16, (1, 9, 800), (0, 9, 0), session_id=SESSION_ID, correlation_id=9))
    assert play.connection._fetches.eligibility.savings._credit < before


class Reader:
    """A consumer of six partitions under a response limit. It advances its offsets by complete batches."""

    def __init__(self, release: str, version: int, seed: int, *, keep_order: bool) -> None:
        self.chance = random.Random(seed)
        self.broker = ModelBroker(release=release)
        self.topic = self.broker.create_topic("t", 6)
        self.version = version
        self.offsets = dict.fromkeys(range(6), 0)
        self.isolation_level = self.chance.choice([0, 1])
        sessions = SessionLimits(max_sessions=10, keep_order=keep_order)
        self.gate = Gate(Connection(sessions=sessions, resolve=None), self.broker)
        self.gate.exchange([API_VERSIONS], 0.0)

    def request(self, number: int) -> FetchRequest:
        key = {"topic": "t"} if self.version < 13 else {"topic_id": self.topic.topic_id}
        size = self.chance.choice([BIG, BIG, 150])
        parts = tuple(
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=size)
            for index, offset in self.offsets.items()
        )
        return FetchRequest(
            version=self.version,
            correlation_id=number,
            isolation_level=self.isolation_level,
            max_bytes=self.chance.choice([120, 300, 300, 2000]),
            topics=(FetchTopic(**key, partitions=parts),),
        )

    def goes_on(self, index: int, size: int) -> None:
        for batch in self.topic.partitions[index].segments[0].batches:
            if batch.base_offset >= self.offsets[index] and size >= len(batch.data):
                size -= len(batch.data)
                self.offsets[index] = batch.last_offset + 1

    def differs(self, fetches: int) -> int:
        """Return the number of fetches whose records differ from those of a direct fetch, in any partition.

        A direct fetch has no session.
        """
        found = 0
        for number in range(fetches):
            for _ in range(self.chance.choice([0, 0, 0, 1, 4])):
                partition = self.topic.partitions[self.chance.randrange(6)]
                partition.append(b"r" * self.chance.choice([20, 100, 200]))
            request, now = self.request(number), 15.0 * number  # a rest is over
            frame = encode_request(request)
            direct = decode_response(self.broker.handle(frame, now), self.version)
            (through,) = self.gate.exchange([frame], now)
            got = decode_response(through, self.version)
            mine, theirs = (
                [data.records or b"" for data in entries(in_request_order(one, request))]
                for one in (got, direct)
            )
            found += mine != theirs
            for topic in got.topics:
                for data in topic.partitions:
                    self.goes_on(data.partition_index, len(data.records or b""))
        return found


@pytest.mark.parametrize(("release", "version"), [("2.8.2", 7), ("2.8.2", 11), ("3.9.1", 12), ("4.3.0", 16)])
def test_under_a_limit_everybody_gets_what_a_fetch_without_a_session_gets(release: str, version: int) -> None:
    """With --keep-order, a limited fetch returns the same records for each partition as without a session.

    Without the option the records differ, because a session of KIP-227 reads partitions in its own order
    (trap 25a).
    """
    differing = kept = incremental = 0
    for seed in range(2):
        differing += Reader(release, version, seed, keep_order=False).differs(150)
        reader = Reader(release, version, seed, keep_order=True)
        assert reader.differs(150) == 0
        tally = reader.gate.connection.tally
        kept += tally.passthrough[Reason.KEEP_ORDER]
        incremental += tally.broker.fetches[FetchKind.INCREMENTAL]
    assert min(differing, kept) > 10
    assert incremental > 30
