"""Tests of the session server that can't be written as scripts for several servers.

They need states that a real broker can't reach, intended differences from a broker, faulty brokers, or
hostile clients.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from proxy.features.client_sessions.contexts import (
    STREAM_FROM,
    FinalContext,
    FullFetchContext,
    IncrementalFetchContext,
    SessionlessFetchContext,
)
from proxy.features.client_sessions.manager import FetchManager
from proxy.features.client_sessions.partitions import SessionPartitions
from proxy.features.client_sessions.requests import full_fetch
from proxy.features.client_sessions.session import FetchSession
from proxy.protocol.api import ErrorCode
from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_request import MAX_PARTITIONS
from tests.features.client_sessions.serving import Serving, parsed
from tests.frames import fetch as fetch_frame
from tests.frames import parsed as parsed_frame
from tests.model.asker import Requests, Want, entries, errors, sizes, summary
from tests.model.broker import ModelBroker
from tests.model.gate import framed, unframed
from tests.model.wire import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    TopicData,
    current_leader_tag,
    decode_request,
    decode_response,
    diverging_epoch_tag,
    encode_request,
    encode_response,
)

TOPICS = {"foo": 3, "bar": 2}
FOO = (("foo", 0), ("foo", 1), ("foo", 2))


class Client(Requests):
    """A client of the session server.

    The session server gets its answers from a model broker without session slots.
    """

    def __init__(self, version: int = 12, release: str = "4.3", **options: Any) -> None:
        super().__init__(version=version)
        self.broker = ModelBroker(release=release, slots=0)
        for name, count in TOPICS.items():
            self.ids[name] = self.broker.create_topic(name, count).topic_id
        self.altered: Callable[[FetchResponse], FetchResponse] = lambda response: response
        """A function that changes the responses of the broker behind the session server."""
        self.server = Serving(lambda message: lambda: self._asked(message), **options)

    def _asked(self, message: bytes) -> bytes:
        request = decode_request(message)
        return encode_response(self.altered(self.broker.fetch(request, self.server.now)))

    def send(self, request: FetchRequest) -> FetchResponse:
        return decode_response(self.server.exchange(encode_request(request)), request.version)

    def session(self, *wants: Want, **options: Any) -> int:
        """Create a session and return its id."""
        made = self.fetch(*wants, session=(0, 0), **options).session_id
        assert made > 0
        return made

    def held(self, session_id: int) -> FetchSession:
        session = self.server.cache.get(session_id)
        assert session is not None
        return session

    def asked(self) -> FetchRequest:
        """Return the last request to the broker."""
        return decode_request(self.server.asked[-1])


# What a live broker can't be brought to


def test_a_preferred_replica_is_told_each_time() -> None:
    """Case 22: each response has the partition's preferred read replica, also if it is the same as before."""
    client = Client()
    made = client.session(*FOO, rack_id="r")
    client.broker.partition("foo", 1).preferred["r"] = 2

    for epoch in (1, 2):
        told = client.fetch(session=(made, epoch), rack_id="r")
        assert [data.preferred_read_replica for data in entries(told)] == [2]
    assert entries(client.fetch(session=(made, 3))) == []


def test_a_high_watermark_that_goes_back_is_told() -> None:
    """Case 28: the client gets a partition's entry if its high watermark has decreased."""
    client = Client()
    client.broker.partition("foo").append(b"xyz")
    made = client.session(("foo", 0, 1))

    client.broker.partition("foo").high_watermark = 0
    assert [data.high_watermark for data in entries(client.fetch(session=(made, 1)))] == [0]
    assert entries(client.fetch(session=(made, 2))) == []


def test_divergence_is_told_each_time() -> None:
    """Cases 29 and 22: the diverging epoch of a partition is sent with every response."""
    client = Client()
    client.broker.partition("foo").append(b"xyz")
    client.broker.partition("foo").move_leader(1, 4)
    made = client.session(("foo", 0, 1), values={"last_fetched_epoch": 2})

    for epoch in (1, 2):
        (data,) = entries(client.fetch(session=(made, epoch)))
        assert data.tags == (diverging_epoch_tag(0, 1),)


def test_epochs_go_on_with_1_after_the_last() -> None:
    """Case 17: in a session, epoch 2^31-1 is followed by epoch 1."""
    client = Client()
    made = client.session(("foo", 0))
    client.held(made).epoch = 2**31 - 1

    assert summary(client.fetch(session=(made, 2**31 - 1))) == (0, made, 0)
    assert summary(client.fetch(session=(made, 1))) == (0, made, 0)
    assert repr(client.held(made)) == f"<FetchSession {made} epoch=2 partitions=1>"


def test_evicted_while_parked() -> None:
    """Case 41: if a session is evicted while its fetch waits, the response to this fetch is normal.

    The next fetch of the session gets error 70.
    """
    client = Client()
    made = client.session(("foo", 0))
    finish = client.server.arrive(encode_request(client.request(session=(made, 1))))
    client.server.cache.remove(client.held(made))
    client.broker.partition("foo").append(b"data")

    told = decode_response(finish(), 12)
    assert (summary(told), sizes(told)) == ((0, made, 1), [4])
    assert summary(client.fetch(session=(made, 2))) == (70, 0, 0)


def test_emptied_while_parked() -> None:
    """Case 38: another connection removes all partitions of a session while a fetch waits. The fetch gets
    error 71, or an empty response if its epoch is still right.
    """
    client = Client()
    made = client.session(*FOO)
    finish = client.server.arrive(encode_request(client.request(session=(made, 1))))
    client.held(made).epoch = 1
    assert summary(client.fetch(session=(made, 1), forget=FOO)) == (0, 0, 0)
    client.broker.partition("foo").append(b"data")
    assert summary(decode_response(finish(), 12))[0] == 71

    made = client.session(*FOO)
    finish = client.server.arrive(encode_request(client.request(session=(made, 1))))
    held = client.held(made)
    held.epoch = 1
    client.fetch(session=(made, 1), forget=FOO)
    held.epoch = 2
    assert summary(decode_response(finish(), 12)) == (0, made, 0)


# What differs on purpose


def test_an_id_that_no_broker_gives_is_unknown() -> None:
    """Trap 38: a fetch with a session id outside all shards of a broker gets error 70.

    A broker fails with error -1 for this id (case 96), so its client would get error -1 forever.
    """
    client = Client()
    for outside in (2**31 - 1, 2_147_483_640, -5):
        assert summary(client.fetch(session=(outside, 1))) == (70, 0, 0)
        assert summary(client.fetch(("foo", 0), session=(outside, -1))) == (0, 0, 1)
        assert client.fetch(("foo", 0), session=(outside, 0)).session_id > 0


def test_a_deleted_topic_is_unknown_again() -> None:
    """Different from case 44: for a deleted topic, the client gets error 100 instead of 3 or 103.

    The session server sends full fetches, and for each one the broker looks up the topic id again. Clients
    handle error 100 better (trap 8).
    """
    client = Client(13)
    made = client.session(("bar", 0))
    client.broker.delete_topic("bar")
    assert errors(client.fetch(session=(made, 1))) == [100]
    client.broker.create_topic("bar", 1)
    assert errors(client.fetch(session=(made, 2))) == [100]


def test_a_session_error_does_not_go_to_the_broker() -> None:
    """Different from case 49: a fetch with a session error is answered without asking the broker.

    So this fetch is never throttled. The same is true for a fetch that closes a session (trap 42).
    """
    client = Client()
    made = client.session(("foo", 0))
    client.broker.throttle_ms = 30
    asked = len(client.server.asked)

    assert summary(client.fetch(session=(made, 9))) == (71, 0, 0)
    assert summary(client.fetch(session=(made ^ 1, 1))) == (70, 0, 0)
    assert summary(client.fetch(session=(made, -1))) == (0, 0, 0)
    assert len(client.server.asked) == asked


def test_an_error_that_a_brokers_cache_does_not_see_is_told_each_time() -> None:
    """Different from trap 7: a partition with error 76 is in every response of the session server.

    A broker below 4.0 leaves this partition out of a session's responses after the high watermark was sent.
    """
    client = Client(9, "3.9.1")
    client.broker.topics["foo"].zstd = True
    made = client.session(("foo", 0), ("bar", 0))

    assert errors(client.fetch(session=(made, 1))) == [76]
    assert errors(client.fetch(session=(made, 2))) == [76]


# Toward the broker


def test_a_full_fetch_toward_the_broker_has_the_sessions_order() -> None:
    """Trap 39: full fetches to the broker list the partitions in the order of the session.

    In another order, some partitions would never get records when a response limit is reached.
    """
    client = Client()
    for index in range(3):
        client.broker.partition("foo", index).append(b"data")
    made = client.session(*FOO, max_bytes=1)
    assert (client.asked().session_id, client.asked().session_epoch) == (0, -1)

    turns = []
    for epoch in range(1, 5):
        told = client.fetch(session=(made, epoch), max_bytes=1)
        turns += [data.partition_index for data in entries(told) if data.records]
        assert (client.asked().session_id, client.asked().session_epoch) == (0, -1)
    assert turns == [0, 1, 2, 0]
    client.fetch(session=(made, 5))
    assert [part.partition for part in client.asked().topics[0].partitions] == [1, 2, 0]


def test_limits_rack_and_client_are_those_of_each_request() -> None:
    """Section 2.1: a session does not store limits, rack and client id. Each request has its own values."""
    client = Client(12)
    made = client.session(*FOO)
    client.fetch(
        ("foo", 1, 7),
        session=(made, 1),
        client_id="other",
        max_wait_ms=5,
        min_bytes=6,
        max_bytes=7,
        isolation_level=1,
        rack_id="r",
    )
    asked = client.asked()

    assert (asked.client_id, asked.rack_id, asked.isolation_level) == ("other", "r", 1)
    assert (asked.max_wait_ms, asked.min_bytes, asked.max_bytes, asked.forgotten) == (5, 6, 7, ())
    assert [part.fetch_offset for part in asked.topics[0].partitions] == [0, 7, 0]


@pytest.mark.parametrize("broker_max", [5, 6])
def test_v7_goes_on_as_what_the_broker_knows(broker_max: int) -> None:
    """Trap 4: the gateway sends a v7 fetch in the version that the broker supports.

    The request to the broker has no session fields. The response to the client has them.
    """
    client = Client(7, "1.0.2", broker_max=broker_max)
    client.broker.partition("foo").append(b"data")
    made = client.session(("foo", 0), ("foo", 1))
    assert client.asked() == replace(client.asked(), version=broker_max, session_id=0, session_epoch=-1)
    told = client.fetch(("foo", 0, 1), forget=[("foo", 1)], session=(made, 1))
    assert (summary(told), client.asked().topics[0].partitions[0].fetch_offset) == ((0, made, 0), 1)
    client.broker.partition("foo").append(b"more")
    assert sizes(client.fetch(session=(made, 2))) == [4]
    assert sizes(client.fetch(("foo", 0), forget=[("foo", 1)], session=(made, -1))) == [8]


def test_what_a_full_fetch_forgets_is_ignored() -> None:
    """Section 2.3: the list of forgotten topics in a full fetch is ignored."""
    client = Client()
    told = client.fetch(*FOO, forget=[("foo", 0)], session=(0, 0))

    assert (client.names(told), len(client.held(told.session_id).partitions)) == ([*FOO], 3)


# Sessions, brokers and connections


def context_of(client: Client, request: FetchRequest, broker: str = "", now_ms: int = 0) -> Any:
    return client.server.manager.context(parsed(encode_request(request)), now_ms, broker=broker)


def test_the_contexts() -> None:
    """Section 2.2: session id and epoch of a fetch decide whether it is full or incremental."""
    client = Client()
    made = client.session(("foo", 0))
    kinds = {
        (0, 0): FullFetchContext,
        (0, -1): SessionlessFetchContext,
        (made, 2): FinalContext,
        (made, 1): IncrementalFetchContext,
        (made, -1): FinalContext,
    }
    for session, kind in kinds.items():
        context = context_of(client, client.request(session=session))
        assert type(context) is kind
        assert repr(context).startswith(f"<{kind.__name__}")
    assert repr(client.server.manager) == "<FetchManager <FetchSessionCache sessions=0 partitions=0>>"


def test_a_session_is_with_one_broker() -> None:
    """Trap 20: a session belongs to one broker. Any connection to this broker may continue it.

    At another broker, a fetch with the session's id gets error 70.
    """
    client = Client()
    made = client.session(("foo", 0))
    client.held(made).broker = "one"

    other = context_of(client, client.request(session=(made, 1)), broker="two")
    assert other.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    context_of(client, client.request(("foo", 0), session=(made, 0)), broker="two")
    own = context_of(client, client.request(session=(made, 1)), broker="one")
    assert type(own) is IncrementalFetchContext


def test_who_is_refused_is_served_without_a_session() -> None:
    """Case 12: a client gets no session if there is no slot. Its fetches are answered without a session."""
    client = Client(slots=0)

    assert summary(client.fetch(*FOO, session=(0, 0))) == (0, 0, 3)


def test_a_follower_is_left_alone() -> None:
    """Trap 2: a fetch of a follower (a broker that replicates) is forwarded unchanged."""
    client = Client(11)
    request = client.request(("foo", 0), session=(5, 3), replica_id=2)

    assert context_of(client, request) is None
    assert client.server.exchange(encode_request(request))


def test_a_fetch_with_tags_has_no_session() -> None:
    """Law 2: a fetch with unknown tags gets no session, because the meaning of the tags is unknown.

    If the fetch is in a session, the session ends (error 70).
    """
    client = Client(12)
    tags = ((0, b"\x02c"),)
    full = context_of(client, client.request(("foo", 0), session=(0, 0), tags=tags))
    assert type(full) is SessionlessFetchContext
    assert decode_request(unframed(full.request)[0]).session_epoch == -1

    made = client.session(("foo", 0))
    assert context_of(client, client.request(session=(made, 1), tags=tags)).error == 70
    assert client.server.cache.get(made) is None
    asking = FetchManager(client.server.cache, asks_broker=True)
    request = client.request(("foo", 0), session=(0, 0), tags=tags)
    assert asking.context(parsed(encode_request(request)), 0) is None


# What no broker should send


def test_an_unexpected_failure_has_the_clients_id() -> None:
    """Section 2.9, traps 12, 40 and 41: if the broker fails, the response has the client's session id.

    No session is created. If the epoch was already advanced, it stays advanced.
    """
    client = Client(12)
    client.broker.failure = -1
    assert summary(client.fetch(("foo", 0), session=(5, 0))) == (-1, 5, 1)
    client.broker.failure = 0
    made = client.session(("foo", 0))
    client.broker.failure = -1
    assert summary(client.fetch(session=(made, 1))) == (-1, made, 0)
    client.broker.failure = 0
    assert summary(client.fetch(session=(made, 1))) == (71, 0, 0)
    assert summary(client.fetch(session=(made, 2))) == (0, made, 0)


@pytest.mark.parametrize("version", [7, 12])
def test_who_answers_less_than_was_asked_gives_no_session(version: int) -> None:
    """If the broker's response has fewer partitions than the client's fetch, no session is kept.

    The client has already received a session id, so its next fetch gets error 70.
    """
    client = Client(version)
    client.altered = lambda told: replace(told, topics=told.topics[:1])
    made = client.fetch(("foo", 0), ("bar", 0), session=(0, 0)).session_id

    assert summary(client.fetch(session=(made, 1))) == (70, 0, 0)


def test_who_answers_nothing_gives_no_session() -> None:
    client = Client()
    client.altered = lambda told: replace(told, topics=())

    assert summary(client.fetch(("foo", 0), session=(0, 0))) == (0, 0, 0)


def test_who_answers_twice_gives_no_session() -> None:
    client = Client()
    client.altered = lambda told: replace(told, topics=told.topics * 2)
    made = client.fetch(("foo", 0), ("foo", 1), session=(0, 0)).session_id

    assert client.server.cache.get(made) is None


def test_who_answers_twice_in_a_session_is_understood() -> None:
    client = Client()
    made = client.session(("foo", 0), ("foo", 1))
    client.altered = lambda told: replace(told, topics=told.topics * 3)
    client.broker.partition("foo", 1).append(b"data")

    assert client.names(client.fetch(session=(made, 1)))[:1] == [("foo", 1)]
    client.altered = lambda told: told
    assert entries(client.fetch(("foo", 1, 1), session=(made, 2))) == []


def test_what_was_not_asked_for_is_not_told() -> None:
    """Trap 24: the client does not get partitions that it did not request, even if the broker sends them."""
    client = Client()
    made = client.session(("foo", 0), ("foo", 1))
    more = tuple(PartitionData(partition_index=index, high_watermark=3) for index in range(40, 48))
    one = PartitionData(partition_index=99, high_watermark=3, records=b"not asked for")
    client.altered = lambda told: replace(
        told, topics=(*told.topics, TopicData(topic="foo", partitions=(*more, one)))
    )

    assert entries(client.fetch(session=(made, 1))) == []


def test_another_order_than_was_asked_for_is_understood() -> None:
    client = Client()
    wants = [(name, index) for name, count in TOPICS.items() for index in range(count)]
    made = client.session(*wants)
    client.altered = lambda told: replace(
        told,
        topics=tuple(replace(topic, partitions=topic.partitions[::-1]) for topic in reversed(told.topics)),
    )
    assert entries(client.fetch(session=(made, 1))) == []

    client.broker.partition("foo", 1).append(b"data")
    client.broker.partition("bar", 0).append(b"data")
    assert client.names(client.fetch(session=(made, 2))) == [("bar", 0), ("foo", 1)]
    elements, _ = client.held(made).partitions.listed(LAYOUTS[12])
    assert sum(end - start for _, start, end in elements) == len(wants)


def test_runs_in_another_order_are_understood() -> None:
    client = Client()
    client.broker.create_topic("wide", 20)
    made = client.session(*(("wide", index) for index in range(20)))
    client.altered = lambda told: replace(
        told, topics=tuple(replace(topic, partitions=topic.partitions[::-1]) for topic in told.topics)
    )
    assert entries(client.fetch(session=(made, 1))) == []

    client.broker.partition("wide", 3).append(b"data")
    client.broker.partition("wide", 5).append(b"x", replicated=False)
    client.broker.partition("wide", 5).log_start = 0
    assert client.names(client.fetch(session=(made, 2))) == [("wide", 3)]


@pytest.mark.parametrize("version", [7, 12, 16])
def test_a_response_that_is_none_ends_the_session(version: int) -> None:
    client = Client(version)
    made = client.session(("foo", 0))
    server, broken = client.server, b""

    def begin(message: bytes) -> Callable[[], bytes]:
        whole = encode_response(client.broker.fetch(decode_request(message), 0.0))
        return lambda: whole[:-1] + broken

    server.begin = begin
    assert summary(client.fetch(session=(made, 1))) == (-1, made, 0)
    assert summary(client.fetch(session=(made, 2))) == (70, 0, 0)
    broken = b"\x05\x05"
    request = client.request(("foo", 0), session=(0, 0))
    told = server.exchange(encode_request(request))
    # It passed as it came.
    assert told.endswith(broken)
    assert len(server.cache) == 0


def test_half_a_head_goes_on_as_it_is() -> None:
    client = Client(7, "1.0.2", broker_max=6)
    for session in ((0, 0), (0, -1)):
        context = client.server.manager.context(
            parsed(encode_request(client.request(("foo", 0), session=session))), 0, version=6
        )
        assert not isinstance(context, FinalContext)
        assert context is not None
        assert b"".join(context.receive(framed(b"\0\0\0\1"), 0, last=True)) == framed(b"\0\0\0\1")


def test_tags_that_nobody_knows_go_on_with_all_entries() -> None:
    """Law 2: a response with unknown tags is forwarded with all its entries, and the tags."""
    client = Client(12)
    made = client.session(*FOO)
    client.altered = lambda told: replace(told, header_tags=((9, b"?"),))
    client.broker.partition("foo", 1).append(b"data")

    told = client.fetch(session=(made, 1))
    assert (told.header_tags, summary(told), told.session_id) == (((9, b"?"),), (0, made, 3), made)
    assert client.asked().topics[0].partitions[1].partition == 1
    client.altered = lambda told: told
    client.fetch(("foo", 1, 1), session=(made, 2))
    assert [part.partition for part in client.asked().topics[0].partitions] == [0, 2, 1]


def test_endpoints_of_leaders_stay() -> None:
    """Trap 44: endpoints of leaders are kept, with or without an entry that names the leader."""
    client = Client(16)
    made = client.session(("foo", 0), ("foo", 1))
    tags = ((0, b"\x01"),)
    moved = PartitionData(partition_index=1, error_code=6, tags=(current_leader_tag(2, 5),))
    client.altered = lambda told: replace(told, tags=tags)
    assert client.fetch(session=(made, 1)).tags == tags
    client.altered = lambda told: replace(
        told, tags=tags, topics=(replace(told.topics[0], partitions=(told.topics[0].partitions[0], moved)),)
    )
    told = client.fetch(session=(made, 2))
    assert (told.tags, entries(told)) == (tags, [moved])


# Responses that had nothing to tell


def test_the_same_response_again_has_nothing_to_tell_either() -> None:
    """Case 21: if a response without news is repeated with the same bytes, it is again without news."""
    client = Client()
    made = client.session(*FOO)
    for epoch in range(1, 4):
        assert summary(client.fetch(session=(made, epoch))) == (0, made, 0)
        assert client.held(made).silent

    client.broker.partition("foo", 1).append(b"data")
    assert client.names(client.fetch(session=(made, 4))) == [("foo", 1)]
    assert not client.held(made).silent


@pytest.mark.parametrize("size", [1, 5, 8, 9, 40, 1000])
def test_a_response_that_begins_like_one_that_had_nothing_to_tell(size: int) -> None:
    client = Client()
    made = client.session(*FOO)
    client.fetch(session=(made, 1))
    client.broker.partition("foo", 2).append(b"data")

    context = context_of(client, client.request(session=(made, 2)))
    whole = framed(client._asked(unframed(context.request)[0]))
    out = b""
    for at in range(0, len(whole), size):
        out += b"".join(context.receive(whole[at : at + size], 0, last=at + size >= len(whole)))
    assert client.names(decode_response(unframed(out)[0], 12)) == [("foo", 2)]


def test_what_was_told_before_an_added_partition_is_not_repeated() -> None:
    """Section 2.3: a partition that was forgotten and added again is sent to the client again.

    This is so even if the response after the removal was an empty one.
    """
    client = Client()
    made = client.session(*FOO)
    client.fetch(session=(made, 1))
    assert client.held(made).silent

    client.broker.throttle_ms = 30
    client.fetch(session=(made, 2), forget=[("foo", 2)])
    client.broker.throttle_ms = 0
    assert client.names(client.fetch(("foo", 2), session=(made, 3))) == [("foo", 2)]


def test_an_overtaken_fetch_with_nothing_to_tell() -> None:
    """Case 42: a response without news becomes error 71 if a later fetch has already advanced the epoch."""
    client = Client()
    made = client.session(*FOO)
    client.fetch(session=(made, 1))
    finish = client.server.arrive(encode_request(client.request(session=(made, 2))))
    assert summary(client.fetch(session=(made, 3))) == (0, made, 0)

    assert summary(decode_response(finish(), 12)) == (71, made, 0)


def test_a_throttle_time_with_entries_is_not_a_response_with_nothing_to_tell() -> None:
    """Section 6.3: a throttled response of Kafka 1.1 has entries, and is processed like any other response.

    Kafka 1.1 delays a throttled response. Later releases send it at once, without entries.
    """
    client = Client(7, "1.1.1")
    made = client.session(*FOO)
    client.broker.throttle_ms = 30

    for epoch in (1, 2):
        told = client.fetch(session=(made, epoch))
        assert (told.throttle_time_ms, summary(told)) == (30, (0, made, 0))


# Large responses


@pytest.mark.parametrize(("version", "broker_max"), [(7, 18), (7, 6), (12, 18), (16, 18)])
@pytest.mark.parametrize("seed", [None, 1])
def test_many_records_are_forwarded_as_they_come(version: int, broker_max: int, seed: int | None) -> None:
    """A response with more than 1 MiB of records is forwarded while it arrives.

    Unchanged entries are left in it, because they are small compared to the records.
    """
    chance = random.Random(seed) if seed else None
    client = Client(version, broker_max=broker_max, chance=chance)
    made = client.session(*FOO)
    client.broker.partition("foo", 0).append(bytes(STREAM_FROM))
    client.broker.partition("foo", 2).append(b"x", replicated=False)
    client.broker.partition("foo", 2).high_watermark = 1

    told = client.fetch(session=(made, 1), max_bytes=1 << 21)
    assert (summary(told), sizes(told)) == ((0, made, 3), [STREAM_FROM, 0, 1])
    # What passed was noted: nothing is new, and who had records stands last.
    assert entries(client.fetch(("foo", 0, 1), ("foo", 2, 1), session=(made, 2))) == []
    assert [part.partition for part in client.asked().topics[0].partitions] == [1, 0, 2]


def test_a_large_response_to_an_overtaken_fetch_is_not_forwarded() -> None:
    """Case 42: a large response becomes error 71 if a later fetch has advanced the epoch meanwhile."""
    client = Client()
    made = client.session(("foo", 0))
    client.broker.partition("foo", 0).append(bytes(STREAM_FROM))
    finish = client.server.arrive(encode_request(client.request(session=(made, 1))))
    client.held(made).epoch = 3

    assert summary(decode_response(finish(), 12)) == (71, made, 0)


def test_a_large_response_that_breaks_ends_the_session() -> None:
    client = Client()
    made = client.session(("foo", 0))
    context = context_of(client, client.request(session=(made, 1)))
    client.broker.partition("foo", 0).append(bytes(STREAM_FROM))
    (request,) = unframed(context.request)
    whole = framed(client._asked(request))
    assert context.buffered == 0
    assert context.receive(whole[:20], 0, last=False) == []
    assert context.buffered == 20
    assert b"".join(context.receive(memoryview(whole)[20:-1], 0, last=False))[-1:]
    assert context.buffered == 0
    assert context.receive(b"\x05", 0, last=True) == [b"\x05"]
    assert client.server.cache.get(made) is None


def test_records_are_not_copied() -> None:
    client = Client()
    made = client.session(("foo", 0), ("foo", 1))
    client.broker.partition("foo", 0).append(bytes(STREAM_FROM // 2))
    context = context_of(client, client.request(session=(made, 1)))
    whole = framed(client._asked(unframed(context.request)[0]))

    pieces = context.receive(whole, 0, last=True)
    assert any(isinstance(piece, memoryview) and piece.obj is whole for piece in pieces)
    told = decode_response(unframed(b"".join(pieces))[0], 12)
    assert (summary(told), sizes(told)) == ((0, made, 1), [STREAM_FROM // 2])


# Hostile clients


def wide(start: int, count: int) -> tuple[FetchTopic, ...]:
    entry = [FetchPartition(partition=index, fetch_offset=0) for index in range(start, start + count)]
    return (FetchTopic(topic="wide", partitions=tuple(entry)),)


def test_a_session_that_grows_for_ever_ends() -> None:
    """A session that grows without limit is ended, as if it were evicted.

    In this test, each fetch adds 17,000 partitions.
    """
    client = Client()
    made = client.session(("foo", 0))
    base = client.request(session=(made, 1))
    first = context_of(client, replace(base, topics=wide(0, 17_000)))
    assert type(first) is IncrementalFetchContext
    second = context_of(client, replace(base, session_epoch=2, topics=wide(17_000, 17_000)))

    assert second.error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(client.server.cache), client.server.cache.partitions) == (0, 0)


def test_sessions_made_in_a_loop_are_bounded() -> None:
    client = Client(slots=80)
    for _ in range(1000):
        client.fetch(*FOO, session=(0, 0))

    assert (len(client.server.cache), client.server.cache.partitions) == (80, 240)
    client.server.now = 121.0
    kept = {client.session(*FOO) for _ in range(8)}
    assert all(client.server.cache.get(session_id) for session_id in kept)


def test_ten_thousand_ids_and_wrong_epochs_make_nothing() -> None:
    client = Client()
    made = client.session(*FOO)
    asked = len(client.server.asked)
    chance = random.Random(5)
    for _ in range(10_000):
        session = (chance.randint(-(2**31), 2**31 - 1), chance.randint(1, 2**31 - 1))
        context = context_of(client, client.request(("foo", 0), session=session))
        assert type(context) is FinalContext
    for epoch in (0x7FFFFFFF, 2, -2, -(2**31)):
        assert summary(client.fetch(("bar", 0), session=(made, epoch))) == (71, 0, 0)

    assert (len(client.server.cache), len(client.server.asked)) == (1, asked)
    assert summary(client.fetch(session=(made, 1))) == (0, made, 0)


# Sessions that would cost much


@pytest.mark.parametrize("version", [7, 12, 16])
def test_mixed_topics_that_are_listed_one_after_the_other_are_served(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(version)
    made = client.session(("foo", 0), ("bar", 0), ("foo", 1), ("bar", 1), ("foo", 2))
    monkeypatch.setattr("proxy.features.client_sessions.partitions.MAX_TOPICS", 4)

    for epoch, (name, number) in enumerate([("foo", 1), ("bar", 0), ("foo", 2), ("foo", 0)]):
        client.broker.partition(name, number).append(b"data")
        assert client.names(client.fetch(session=(made, 2 * epoch + 1))) == [(name, number)]
        assert len(client.asked().topics) <= 4
        client.fetch((name, number, 1), session=(made, 2 * epoch + 2))
        assert sum(len(topic.partitions) for topic in client.asked().topics) == 5


def test_a_session_has_no_more_topics_than_a_fetch_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session with more topics than the gateway reads in one fetch is ended, as if it were evicted.

    The client creates a new session.
    """
    client = Client()
    monkeypatch.setattr("proxy.features.client_sessions.requests.MAX_TOPICS", 1)
    made = client.session(("foo", 0))

    assert summary(client.fetch(session=(made, 1))) == (0, made, 0)
    told = client.fetch(("bar", 0), session=(made, 2))
    assert told.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert client.server.cache.get(made) is None


def test_a_short_fetch_of_a_session_makes_no_request_of_megabytes() -> None:
    """A short fetch in a session never causes a request of megabytes to the broker.

    Before the fix, a fetch of 49 bytes became a request of 9.15 MB, because it listed partitions of many
    topics in turn, and the topics had the longest names.
    """
    names = [letter * 249 for letter in "ab"]
    partitions = SessionPartitions(LAYOUTS[12])
    for start in range(0, MAX_PARTITIONS // 2, 1000):
        wants = [(name, at) for at in range(start, min(start + 1000, MAX_PARTITIONS // 2)) for name in names]
        listing = parsed_frame(fetch_frame(12, *wants)).listing
        assert listing is not None
        partitions.update(listing)
    assert len(partitions) == MAX_PARTITIONS

    request = full_fetch(parsed_frame(fetch_frame(12, ("c", 0))), partitions, 12)
    assert request is not None
    assert len(request) < 35 * MAX_PARTITIONS
