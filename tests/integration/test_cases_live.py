"""Conformance cases of fetch sessions on a real broker, through the connection core.

The client has its own sessions, so the core forwards them unchanged. The tests show that the core hides and
changes nothing, and that the real broker behaves like the model broker. Cases that a single broker can't
reach (a high watermark that goes back, divergence) are in test_model.py.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.integration.lockstep import SansIO
from tests.integration.mirror import LIVE_PROPERTIES, Live
from tests.model.asker import Requests, Want, entries, errors, sizes, summary
from tests.model.wire import ZERO_ID, FetchRequest, FetchResponse, decode_response, encode_request
from tools.kafka import Broker

pytestmark = pytest.mark.integration

RATE = 50_000
"""The broker's quota in bytes a second. The broker averages over ten seconds, so a batch of 520 kB slightly
exceeds the quota and waits for 0.4 s."""


@dataclass
class LiveAsker(Requests):
    """A client that fetches from a real broker through the connection core.

    Tests use short topic names. The client adds a random suffix to each.
    """

    live: Live = field(kw_only=True)
    through: SansIO = field(kw_only=True)
    suffix: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    def full(self, name: str) -> str:
        return f"{name}-{self.suffix}"

    def create(self, name: str, partitions: int) -> None:
        self.live.create_topic(self.full(name), partitions)
        self.ids[name] = self.live.topic_id(self.full(name)) if self.version >= 13 else ZERO_ID

    def key(self, name: str) -> dict[str, Any]:
        return {"topic": self.full(name)} if self.version <= 12 else {"topic_id": self.ids[name]}

    def produce(self, name: str, partition: int, size: int = 10) -> None:
        self.live.producer.produce(self.full(name), partition, [bytes(size)])

    def send(self, request: FetchRequest) -> FetchResponse:
        response = decode_response(self.through.exchange(encode_request(request)), request.version)
        assert response.correlation_id == request.correlation_id
        return response

    def names(self, response: FetchResponse) -> list[tuple[str, int]]:
        return [(name.removesuffix(f"-{self.suffix}"), index) for name, index in super().names(response)]

    def session(self, *wants: Want, **options: Any) -> "Session":
        return Session(self, *wants, **options)


class Session:
    """A session of a test client. Each call of `fetch` sends the next incremental fetch."""

    def __init__(self, asker: LiveAsker, *wants: Want, **options: Any) -> None:
        self.asker = asker
        self.options = options
        self.first = asker.fetch(*wants, session=(0, 0), **options)
        self.id = self.first.session_id
        self.epoch = 0

    def fetch(self, *wants: Want, **options: Any) -> FetchResponse:
        self.epoch += 1
        return self.asker.fetch(*wants, session=(self.id, self.epoch), **(self.options | options))

    def names(self, *wants: Want, **options: Any) -> list[tuple[str, int]]:
        return self.asker.names(self.fetch(*wants, **options))


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Broker(properties=LIVE_PROPERTIES) as broker, Live(broker) as connected:
        yield connected


@pytest.fixture(params=[7, 11, 12, 16, 18])
def asker(request: pytest.FixtureRequest, live: Live) -> Iterator[LiveAsker]:
    through = SansIO(live.broker.host, live.broker.port)
    asker = LiveAsker(version=request.param, live=live, through=through)
    asker.create("foo", 3)
    asker.create("bar", 2)
    yield asker
    through.close()


ALL_FOO = (("foo", 0), ("foo", 1), ("foo", 2))


def test_sessionless_and_close(asker: LiveAsker) -> None:
    """Case 14: fetches with id 0 or -1 and epoch -1 use no session.

    With a known id, epoch -1 ends this session.
    """
    assert summary(asker.fetch(("foo", 0), session=(0, -1))) == (0, 0, 1)
    assert summary(asker.fetch(("foo", 0), session=(-1, -1))) == (0, 0, 1)
    made = asker.fetch(("foo", 0), session=(0, 0)).session_id
    assert summary(asker.fetch(session=(made, -1))) == (0, 0, 0)
    assert summary(asker.fetch(session=(made, 1))) == (70, 0, 0)


def test_epoch_0_makes_a_session(asker: LiveAsker) -> None:
    """Case 15: a fetch with epoch 0 creates a session, and ends the session whose id it has.

    If the id is unknown, this is no error.
    """
    first = asker.fetch(("foo", 0), session=(0, 0)).session_id
    second = asker.fetch(("foo", 0), session=(first, 0)).session_id
    third = asker.fetch(("foo", 0), session=(77, 0)).session_id

    assert len({0, first, second, third}) == 4
    assert summary(asker.fetch(session=(first, 1))) == (70, 0, 0)
    assert summary(asker.fetch(session=(second, 1))) == (0, second, 0)


def test_wrong_epochs_and_ids(asker: LiveAsker) -> None:
    """Case 16: a wrong epoch gets error 71, and the right epoch still works. An unknown id gets error 70."""
    made = asker.fetch(("foo", 0), session=(0, 0)).session_id

    assert summary(asker.fetch(session=(made, 2))) == (71, 0, 0)
    assert summary(asker.fetch(session=(made, -5))) == (71, 0, 0)
    assert summary(asker.fetch(session=(made, 1))) == (0, made, 0)
    assert summary(asker.fetch(session=(made ^ 1, 1))) == (70, 0, 0)
    assert summary(asker.fetch(session=(0, 1))) == (70, 0, 0)


def test_the_first_incremental_epoch_is_1(asker: LiveAsker) -> None:
    """Case 17: the first incremental fetch of a session must have epoch 1. Epoch 2 gets error 71."""
    session = asker.session(("foo", 0))

    assert summary(asker.fetch(session=(session.id, 2))) == (71, 0, 0)
    assert summary(asker.fetch(session=(session.id, 1))) == (0, session.id, 0)
    assert summary(asker.fetch(session=(session.id, 2))) == (0, session.id, 0)


def test_an_epoch_is_good_once(asker: LiveAsker) -> None:
    """Case 18: each epoch can be used once. A second fetch with the same epoch gets error 71."""
    session = asker.session(("foo", 0))

    assert summary(asker.fetch(session=(session.id, 1))) == (0, session.id, 0)
    assert summary(asker.fetch(session=(session.id, 1))) == (71, 0, 0)


def test_names_and_ids_do_not_mix(asker: LiveAsker) -> None:
    """Case 19: in a session with topic names, a fetch with topic ids gets error 106.

    The reverse is also true.
    """
    session = asker.session(("foo", 0))
    version = asker.version

    asker.version = 13 if version <= 12 else 12
    assert summary(asker.fetch(session=(session.id, 1))) == (106, 0, 0)
    asker.version = version
    assert summary(asker.fetch(session=(session.id, 1))) == (0, session.id, 0)


def test_versions_may_change_within_names_or_ids(asker: LiveAsker) -> None:
    """Case 20: a session continues if the Fetch version changes.

    It must not change between versions with topic names and versions with topic ids.
    """
    session = asker.session(("foo", 0))

    for version in (7, 12, 9) if asker.version <= 12 else (17, 13, 18):
        asker.version = version
        assert summary(session.fetch()) == (0, session.id, 0)


def test_no_change_no_entries(asker: LiveAsker) -> None:
    """Case 21: if nothing changed, an incremental fetch gets no entries, and the same session id."""
    session = asker.session(*ALL_FOO)

    assert asker.names(session.first) == [*ALL_FOO]
    assert summary(session.fetch()) == (0, session.id, 0)


def test_each_change_alone_includes_the_entry(asker: LiveAsker) -> None:
    """Case 22: one change (high watermark, records, log start) is enough to include a partition's entry."""
    session = asker.session(("foo", 0), ("foo", 1), isolation_level=1)
    transaction = asker.live.producer.begin(asker.full("foo"))
    asker.live.producer.join(transaction, asker.full("foo"), 1)
    asker.live.producer.produce(asker.full("foo"), 1, [b"open"], transaction)

    moved = session.fetch()
    assert (asker.names(moved), sizes(moved), entries(moved)[0].high_watermark) == ([("foo", 1)], [0], 1)
    assert session.names() == []
    asker.live.end_transaction(transaction, asker.full("foo"), 1, commit=True)
    data = session.fetch()
    assert (asker.names(data), entries(data)[0].last_stable_offset, sizes(data) > [0]) == (
        [("foo", 1)],
        2,
        True,
    )
    assert session.names(("foo", 1, 2)) == []
    asker.live.admin.delete_records(asker.full("foo"), {1: 1})
    assert [entry.log_start_offset for entry in entries(session.fetch())] == [1]
    assert session.names() == []


def test_what_the_broker_does_not_compare(asker: LiveAsker) -> None:
    """Case 23: if only the fetch offset, the limit or the last stable offset changes, there is no entry.

    The next read uses the new fetch offset and limit.
    """
    asker.produce("foo", 0)
    asker.produce("foo", 0)
    session = asker.session(("foo", 0, 2))

    assert session.names(("foo", 0, 2, 1000)) == []
    assert sizes(session.fetch(("foo", 0, 1))) > [0]
    assert session.names(("foo", 0, 2)) == []
    asker.produce("foo", 0)
    assert session.names() == [("foo", 0)]


@pytest.mark.parametrize("asker", [7, 12], indirect=True)
def test_an_error_while_it_lasts_and_once_after_at_the_same_high_watermark(
    asker: LiveAsker,
) -> None:
    """Cases 24 and 25: a partition with an error is in each response while the error lasts.

    When the error is over, the partition is in one more response, even with an unchanged high watermark.
    """
    session = asker.session(("foo", 0), ("bar", 0))
    asker.live.delete_topic(asker.full("bar"))

    assert errors(session.fetch()) == [3]
    assert errors(session.fetch()) == [3]
    asker.create("bar", 1)
    back = session.fetch()
    assert (errors(back), entries(back)[0].high_watermark) == ([0], 0)
    assert session.names() == []


def test_an_added_partition_is_told_once(asker: LiveAsker) -> None:
    """Case 26: a partition that is added to a session is in the next response, even without news.

    It is not in the response after that one.
    """
    session = asker.session(("foo", 0))

    assert session.names(("bar", 0)) == [("bar", 0)]
    assert session.names() == []


def test_a_throttled_read_updates_nothing_and_its_news_come_next(asker: LiveAsker) -> None:
    """Cases 27, 30 and 48: a throttled incremental fetch has no entries, but the session continues.

    The next response has the entries that are new since then, and those of partitions added meanwhile.
    """
    client_id = f"throttled-{asker.suffix}"
    session = asker.session(("foo", 0), client_id=client_id)
    asker.live.admin.set_quota(client_id, {"consumer_byte_rate": RATE})
    asker.produce("foo", 0, 520_000)
    throttled = session.fetch(("bar", 0))
    asker.live.admin.set_quota(client_id, {"consumer_byte_rate": None})

    assert (throttled.throttle_time_ms > 0, summary(throttled)) == (True, (0, session.id, 0))
    assert session.names() == [("foo", 0), ("bar", 0)]


def test_records_go_last_and_unread_errors_behind_all(asker: LiveAsker) -> None:
    """Cases 31 to 33: if a response has records of a partition, the session moves this partition to the end.

    A partition that does not exist comes last in each response, because it is never read.
    """
    session = asker.session(("bar", 1), ("foo", 0), ("foo", 1), ("bar", 9))

    assert asker.names(session.first) == [("bar", 1), ("foo", 0), ("foo", 1), ("bar", 9)]
    for name in ("foo", "bar"):
        asker.produce(name, 1)
    assert session.names() == [("bar", 1), ("foo", 1), ("bar", 9)]
    asker.produce("foo", 0)
    assert session.names() == [("foo", 0), ("bar", 1), ("foo", 1), ("bar", 9)]
    assert session.names(("foo", 2)) == [("foo", 0), ("bar", 1), ("foo", 1), ("foo", 2), ("bar", 9)]


def test_forgotten_and_listed_twice(asker: LiveAsker) -> None:
    """Cases 34 and 35: a partition that was forgotten and is added again moves to the end of the session.

    A partition that is added and forgotten in one fetch is not in the session. A partition that is listed
    twice has one entry, with the last values.
    """
    for index in range(2):
        asker.produce("foo", index)
    session = asker.session(("foo", 0), ("foo", 1))

    assert session.names(forget=[("foo", 0)]) == [("foo", 1)]
    assert session.names(("foo", 0)) == [("foo", 1), ("foo", 0)]
    assert session.names(("bar", 0), forget=[("bar", 0), ("foo", 0), ("foo", 1)]) == [("bar", 0)]
    assert summary(session.fetch()) == (70, 0, 0)
    twice = asker.fetch(("foo", 0, 1), ("bar", 0), ("foo", 0, 0))
    assert (asker.names(twice), sizes(twice)[0] > 0) == ([("foo", 0), ("bar", 0)], True)


def test_only_neighbours_share_a_topic_element(asker: LiveAsker) -> None:
    """Case 36: partitions share a topic element only if they are neighbours.

    For topics A, B, A, the response has three topic elements.
    """
    response = asker.fetch(("foo", 0), ("bar", 0), ("foo", 1), ("foo", 2))

    assert [len(topic.partitions) for topic in response.topics] == [1, 1, 2]


def test_forgetting_some_all_but_one_and_all(asker: LiveAsker) -> None:
    """Cases 37 to 39: a session can forget some of its partitions, or all but one.

    If it forgets all, it ends.
    """
    session = asker.session(("foo", 0), ("foo", 1))

    assert session.names(("bar", 0), forget=[("foo", 0)]) == [("bar", 0)]
    response = session.fetch(("bar", 1), forget=[("foo", 1), ("bar", 0)])
    assert (response.session_id, asker.names(response)) == (session.id, [("bar", 1)])
    assert summary(session.fetch(forget=[("bar", 1)])) == (0, 0, 0)
    assert summary(session.fetch()) == (70, 0, 0)


def test_an_empty_session(asker: LiveAsker) -> None:
    """Case 40: a full fetch without partitions creates a session.

    An incremental fetch without partitions ends it.
    """
    session = asker.session()

    assert session.id > 0
    assert summary(session.fetch()) == (0, 0, 0)
    assert summary(session.fetch()) == (70, 0, 0)


@pytest.mark.parametrize("asker", [16], indirect=True)
def test_topic_ids_that_are_unknown_deleted_and_made_anew(asker: LiveAsker) -> None:
    """Cases 43 to 46: an unknown topic id gets error 100, and the session is created all the same.

    For a deleted topic, a session that knew its id gets error 3. If the topic is created again, the old id
    gets error 103 until the client forgets it and adds the new id.
    """
    asker.ids["new"] = uuid.uuid4().bytes
    session = asker.session(("foo", 0), ("new", 0), ("bar", 0))
    assert (errors(session.first), session.id > 0) == ([0, 0, 100], True)
    assert errors(session.fetch()) == [100]
    assert errors(session.fetch(forget=[("new", 0)])) == []

    asker.live.delete_topic(asker.full("bar"))
    assert errors(session.fetch()) == [3]
    assert errors(asker.fetch(("bar", 0))) == [100]
    asker.live.create_topic(asker.full("bar"), 1)
    assert errors(session.fetch()) == [103]
    old = asker.ids["bar"]
    asker.ids |= {"old": old, "bar": asker.live.topic_id(asker.full("bar"))}
    again = session.fetch(("bar", 0), forget=[("old", 0)])
    assert (asker.names(again), errors(again)) == ([("bar", 0)], [0])


def test_limits_and_a_first_batch_that_comes_whole(asker: LiveAsker) -> None:
    """Cases 58 and 59: the first batch of a response comes whole, even if it is larger than a limit.

    Further batches come only if they fit into the limits of the fetch and of their partition.
    """
    for index in range(3):
        asker.produce("foo", index, 500)
    whole = sizes(asker.fetch(*ALL_FOO))

    assert min(whole) > 500
    assert sizes(asker.fetch(*(("foo", i, 0, 10) for i in range(3)))) == [whole[0], 0, 0]
    assert sizes(asker.fetch(*ALL_FOO, max_bytes=whole[0] + 10)) == [whole[0], 0, 0]
    assert sizes(asker.fetch(*ALL_FOO, max_bytes=sum(whole[:2]))) == [*whole[:2], 0]


def test_an_id_outside_the_shards(asker: LiveAsker) -> None:
    """Case 96: a session id above the ranges of all shards gets error -1.

    The response has the same session id.
    """
    response = asker.fetch(("foo", 0), session=(2_147_483_640, 0))

    assert (response.error_code, response.session_id) == (-1, 2_147_483_640)
    assert errors(response) == ([-1] if asker.version <= 12 else [])
