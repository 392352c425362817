"""The gateway replaces older leaders in Metadata responses by newer ones (KIP-951).

The tests compare the bytes of the responses. The last ones play several connections: what one connection
learns, all use.
"""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId

from proxy.core.leaders import KEEP_SECONDS, MAX_BYTES, Leaders
from proxy.protocol import metadata
from proxy.protocol.api import ApiKey
from proxy.protocol.metadata import LeaderHint
from tests.core.metadata import BROKERS, ORDERS, OTHERS, Told, body, message, moved, partition, topic
from tests.examples import examples
from tests.frames import entry, fetch, fetch_response, topic_id
from tests.model.wire import NodeEndpoint, current_leader_tag, node_endpoints_tag
from tests.playbook import Playbook, request, response
from tests.protocol.kio_messages import UNKNOWN_TAGS, encode, kio_decode, message_class

VERSIONS: Final = range(10, 14)
OLD: Final = {0: (1, 4), 1: (2, 7)}
NEW: Final = {0: (2, 5), 1: (2, 7)}

versions = pytest.mark.parametrize("version", VERSIONS)


def knows(told: Told = NEW, *, topic_id: UUID = ORDERS, now: float = 0.0) -> Leaders:
    """Return a table that has learned the leaders in `told` from a Metadata response."""
    leaders = Leaders()
    said = body(12, told, topic_id=topic_id)
    assert leaders.bring_up_to_date(said, 12, now) is said
    return leaders


@versions
def test_an_older_response_gets_the_newer_leader_and_epoch(version: int) -> None:
    assert knows().bring_up_to_date(body(version, OLD), version, 1.0) == body(version, NEW)


@versions
def test_what_one_version_taught_holds_for_the_others_and_tags_stay(version: int) -> None:
    after = knows().bring_up_to_date(body(version, OLD, tags=UNKNOWN_TAGS), version, 1.0)
    assert after == body(version, NEW, tags=UNKNOWN_TAGS)


@versions
def test_what_is_as_new_as_what_is_known_stays(version: int) -> None:
    """Case 67: a known leader is replaced only by a leader with a greater epoch."""
    leaders = knows()
    for told in (NEW, {0: (3, 5), 1: (2, 7)}, {0: (3, 6), 1: (1, 8)}, {0: (3, 6), 1: (1, 8), 2: (1, 0)}):
        said = body(version, told)
        assert leaders.bring_up_to_date(said, version, 1.0) is said
    assert leaders.updated == 0


@pytest.mark.parametrize("version", [0, 9])
def test_below_v10_nothing_is_learned_or_changed(version: int) -> None:
    """In Metadata below v10, no leader is learned or changed, because topics have no id there.

    An older epoch may belong to a topic that was deleted and made again (KAFKA-12257).
    """
    leaders = knows()
    said = encode(message(12, topic(12, ORDERS, [partition(12, 0, 1, 4)])))
    assert leaders.bring_up_to_date(said, version, 1.0) is said


@versions
def test_a_topic_that_was_made_again_begins_anew(version: int) -> None:
    leaders = knows()
    said = body(version, {0: (1, 0), 1: (3, 0)}, topic_id=OTHERS)
    assert leaders.bring_up_to_date(said, version, 1.0) is said
    assert leaders.bring_up_to_date(body(version, OLD), version, 1.0) == body(version, NEW)


@pytest.mark.parametrize("topic_id", [None, UUID(int=0)])
def test_a_topic_without_id_is_left_alone(topic_id: UUID | None) -> None:
    leaders = Leaders()
    for told in (NEW, OLD):
        said = body(12, told, topic_id=topic_id)
        assert leaders.bring_up_to_date(said, 12, 0.0) is said
    assert leaders.buffered == 0


def test_nobody_is_led_to_a_broker_that_the_response_does_not_list() -> None:
    leaders = knows()
    said = body(12, OLD, brokers=(1, 3))
    assert leaders.bring_up_to_date(said, 12, 1.0) is said
    assert leaders.bring_up_to_date(body(12, OLD), 12, 1.0) == body(12, NEW)


def test_a_partition_with_an_error_stays_and_teaches_its_epoch() -> None:
    leaders = knows()
    gone = partition(12, 0, -1, 4, ErrorCode.leader_not_available)
    said = encode(message(12, topic(12, ORDERS, [gone, partition(12, 1, 2, 7)])))
    assert leaders.bring_up_to_date(said, 12, 1.0) is said
    newer = replace(gone, leader_epoch=6)
    said = encode(message(12, topic(12, ORDERS, [newer, partition(12, 1, 2, 7)])))
    assert leaders.bring_up_to_date(said, 12, 1.0) is said
    said = body(12, NEW)  # older than the epoch without a leader: nobody to name
    assert leaders.bring_up_to_date(said, 12, 1.0) is said
    said = body(12, {0: (3, 7), 1: (2, 7)})
    assert leaders.bring_up_to_date(said, 12, 1.0) is said
    assert leaders.bring_up_to_date(body(12, OLD), 12, 1.0) == said


def test_an_epoch_that_is_not_known_can_not_be_compared() -> None:
    leaders = knows()
    said = body(12, {0: (1, -1), 1: (1, -1)})
    assert leaders.bring_up_to_date(said, 12, 1.0) is said
    assert leaders.bring_up_to_date(body(12, OLD), 12, 1.0) == body(12, NEW)


def test_a_topic_with_an_error_is_left_alone() -> None:
    leaders = knows()
    denied = topic(12, ORDERS, [partition(12, 0, 1, 4)], error=ErrorCode.topic_authorization_failed)
    said = encode(message(12, denied))
    assert leaders.bring_up_to_date(said, 12, 1.0) is said


def test_a_response_from_before_partitions_were_added_takes_none_away() -> None:
    leaders = knows({0: (2, 5), 1: (2, 7), 2: (1, 3)})
    assert leaders.bring_up_to_date(body(12, {0: (1, 4), 1: (3, 8)}), 12, 1.0) == body(
        12, {0: (2, 5), 1: (3, 8)}
    )
    after = leaders.bring_up_to_date(body(12, {0: (1, 4), 1: (2, 7), 2: (2, 1)}), 12, 1.0)
    assert after == body(12, {0: (2, 5), 1: (3, 8), 2: (1, 3)})


@versions
def test_a_response_that_is_not_understood_stays_and_teaches_nothing(version: int) -> None:
    whole = body(version, {0: (3, 9), 1: (3, 9)}, tags=UNKNOWN_TAGS)
    leaders = knows()
    for size in range(len(whole)):
        cut = whole[:size]
        assert leaders.bring_up_to_date(cut, version, 1.0) is cut
    longer = whole + b"\0"
    assert leaders.bring_up_to_date(longer, version, 1.0) is longer
    assert leaders.bring_up_to_date(body(version, OLD), version, 1.0) == body(version, NEW)


# --- current_leader -------------------------------------------------------------------------------


def hint(partition: int, leader: int, epoch: int, topic_id: UUID = ORDERS) -> LeaderHint:
    return LeaderHint(topic_id.bytes, partition, leader, epoch)


def test_a_newer_leader_that_another_response_names_is_used() -> None:
    leaders = knows(OLD)
    leaders.learn([hint(0, 3, 5), hint(0, 2, 6), hint(0, 1, 5), hint(1, 3, 7)])
    assert leaders.bring_up_to_date(body(12, OLD), 12, 1.0) == body(12, {0: (2, 6), 1: (2, 7)})


@pytest.mark.parametrize(
    "told", [hint(0, -1, 9), hint(0, 1, -1), hint(9, 1, 9), hint(0, 3, 9, OTHERS), hint(0, 3, 4)]
)
def test_what_names_no_newer_leader_of_a_known_partition_teaches_nothing(told: LeaderHint) -> None:
    """Cases 65 and 67: a hint without a newer leader of a known partition changes nothing.

    Such a hint has an epoch that is not greater, or an unknown partition, or no leader. The broker sends (-1,
    epoch) when the leader is gone.
    """
    leaders = knows(OLD)
    leaders.learn([told])
    said = body(12, OLD)
    assert leaders.bring_up_to_date(said, 12, 1.0) is said


def test_no_more_is_learned_than_a_topic_has_partitions() -> None:
    leaders = knows(OLD)
    leaders.learn(hint(partition, 3, 9) for partition in range(100, 1000))
    assert not any(leaders._hints.values())
    leaders.learn([hint(0, 3, 9)])
    assert leaders.bring_up_to_date(body(12, OLD), 12, 1.0) == body(12, {0: (3, 9), 1: (2, 7)})


# --- how long, and how much -----------------------------------------------------------------------


def test_what_nothing_confirms_any_more_is_forgotten() -> None:
    """The table forgets a leader that no response has confirmed for `KEEP_SECONDS`.

    Otherwise clients would not find their leaders in a cluster restored from a backup, because its leader
    epochs are lower.
    """
    leaders = knows()
    leaders.learn([hint(0, 3, 6)])
    assert leaders.bring_up_to_date(body(12, OLD), 12, KEEP_SECONDS) == body(12, {0: (3, 6), 1: (2, 7)})
    said = body(12, OLD)
    assert leaders.bring_up_to_date(said, 12, KEEP_SECONDS + 1) is said


def test_what_is_confirmed_is_kept() -> None:
    leaders = knows()
    for now in range(0, int(10 * KEEP_SECONDS), 200):
        assert leaders.bring_up_to_date(body(12, NEW), 12, float(now)) == body(12, NEW)
        assert leaders.bring_up_to_date(body(12, OLD), 12, float(now)) == body(12, NEW)


def test_topics_that_were_named_longest_ago_make_room() -> None:
    size = knows().buffered
    leaders = Leaders(max_bytes=3 * size)
    ids = [UUID(int=number) for number in range(1, 5)]
    for now, each in enumerate([*ids[:3], ids[0], ids[3]]):
        leaders.bring_up_to_date(body(12, NEW, topic_id=each), 12, float(now))
    assert leaders.buffered == 3 * size
    for each, found in zip(ids, (NEW, OLD, NEW, NEW), strict=True):
        # A table of its own for each: what is looked up must not make room here.
        after = _copy(leaders).bring_up_to_date(body(12, OLD, topic_id=each), 12, 5.0)
        assert after == body(12, found, topic_id=each)


def test_a_topic_beyond_the_limit_is_not_kept() -> None:
    leaders = Leaders(max_bytes=10)
    leaders.bring_up_to_date(body(12, NEW), 12, 0.0)
    assert leaders.buffered == 0
    assert MAX_BYTES > 10


def topics_body(count: int, each: int, *, epoch: int = 5, isr: Callable[[int], int] = lambda _: 2) -> bytes:
    """Build a v12 response with many topics. `isr` gives the number of in-sync replicas of a partition."""
    entries = [
        replace(partition(12, index, 1, epoch), isr_nodes=tuple(map(BrokerId, BROKERS[: isr(index)])))
        for index in range(each)
    ]
    topics = [topic(12, UUID(int=number), entries) for number in range(1, count + 1)]
    return encode(message(12, *topics))


def work(leaders: Leaders, data: bytes, now: float) -> int:
    """Return the number of function calls for a response. This number is the same on any machine, unlike a
    time.
    """
    found = Counter[str]()
    before = sys.getprofile()
    sys.setprofile(lambda _frame, event, _function: found.update((event,)))
    try:
        leaders.bring_up_to_date(data, 12, now)
    finally:
        sys.setprofile(before)
    return found["call"] + found["c_call"]


def test_the_work_for_a_topic_does_not_grow_with_its_partitions() -> None:
    """The work for a topic in a Metadata response does not grow with the number of its partitions.

    Before the fix, objects for 200,000 partitions took 0.14 s of CPU in the event loop.
    """
    few, many = (work(Leaders(), topics_body(1, each), 0.0) for each in (100, 3_000))
    assert few == many
    leaders, changed = Leaders(), Leaders()
    for each in (leaders, changed):
        work(each, topics_body(1, 3_000), 0.0)
    assert work(leaders, topics_body(1, 3_000), 1.0) <= few
    assert work(changed, topics_body(1, 3_000, epoch=6), 1.0) < 2 * few


def test_more_topics_than_there_is_room_for_do_not_push_out_each_other() -> None:
    """If there are more topics than fit into the table, new topics do not replace the stored ones.

    Otherwise each response that lists all topics would have to be read again completely.
    """
    data = topics_body(20, 10)
    leaders = Leaders(max_bytes=len(data) // 2)
    first = work(leaders, data, 0.0)
    kept = len(leaders._images)
    assert kept >= 8
    for now in (1.0, 2.0):
        assert set(leaders._images) == {UUID(int=number).bytes for number in range(1, kept + 1)}
        assert work(leaders, data, now) < first


@pytest.mark.parametrize("isr", [lambda _: 2, lambda index: 1 + index % 2], ids=["alike", "different"])
def test_a_large_response_is_read_in_part_and_further_the_next_time(
    isr: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a part of a large response is read at a time, so that other clients do not wait long. When the
    response comes again, the next part is read.
    """
    monkeypatch.setattr(metadata, "MAX_STEPS", 1_000, raising=False)
    leaders = Leaders()
    old, data = topics_body(100, 30, isr=isr, epoch=4), topics_body(100, 30, isr=isr)
    kept, counts = [0], list[int]()
    for now in range(8):
        counts.append(work(leaders, data, float(now)))
        kept.append(len(leaders._images))
    assert 20 <= kept[1] <= 1_000 // 16 + 1
    assert max(after - before for before, after in pairwise(kept)) <= 1_000 // 16 + 1
    assert kept[-1] == 100
    assert max(counts) < 20 * 1_000
    after = leaders.bring_up_to_date(old, 12, 9.0)
    assert 0 < leaders.updated < 1_000  # the first topics; the others stay as the broker wrote them
    at = len(old) // 100 * 6
    assert after[:at] == data[:at]
    assert after[-at:] == old[-at:]


def test_an_entry_that_only_looks_like_the_first_one_is_read_alone() -> None:
    """An entry with more replicas or tags than the first entry is longer."""
    for odd in range(12):
        for isr in (1, 3):
            old, data = (
                topics_body(2, 12, epoch=epoch, isr=lambda index: isr if index == odd else 2)  # noqa: B023 - called at once
                for epoch in (4, 5)
            )
            leaders = Leaders()
            assert leaders.bring_up_to_date(data, 12, 0.0) is data
            assert leaders.bring_up_to_date(old, 12, 0.0) == data
            assert leaders.updated == 24


def test_hints_are_bounded() -> None:
    leaders = Leaders()
    leaders.bring_up_to_date(topics_body(1, 60), 12, 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("proxy.core.leaders.MAX_HINTS", 10, raising=False)
        for epoch in (6, 7):
            leaders.learn(hint(index, 2, epoch, UUID(int=1)) for index in range(60))
    assert sum(map(len, leaders._hints.values())) == 10
    leaders.bring_up_to_date(topics_body(1, 60), 12, 0.0)
    assert leaders.updated == 10
    assert not leaders._hints


def _copy(leaders: Leaders) -> Leaders:
    copied = Leaders(leaders.max_bytes)
    copied._images, copied._seen, copied.buffered = (
        dict(leaders._images),
        dict(leaders._seen),
        leaders.buffered,
    )
    return copied


# --- the law --------------------------------------------------------------------------------------


def leader_of(index: int, epoch: int) -> int:
    """Return the leader of a partition in an epoch, or -1 if there is none.

    The same arguments always give the same leader.
    """
    return (-1, 1, 2, 3, 4)[(index * 7 + epoch * 3) % 5]


@st.composite
def responses(draw: st.DrawFn) -> tuple[int, list[Any], tuple[int, ...], list[LeaderHint]]:
    """Draw a Metadata response from a random moment in a cluster's life, and leader hints from before it."""
    version = draw(st.sampled_from(VERSIONS))
    topics = []
    for each_id in draw(st.lists(st.sampled_from([ORDERS, OTHERS, None]), unique=True, max_size=3)):
        entries = []
        for index, epoch in enumerate(draw(st.lists(st.integers(-1, 5), max_size=4))):
            leader = leader_of(index, epoch)
            error = ErrorCode.leader_not_available if leader < 0 else ErrorCode.none
            entries.append(partition(version, index, leader, epoch, error))
        error = draw(st.sampled_from([ErrorCode.none] * 4 + [ErrorCode.unknown_topic_or_partition]))
        topics.append(topic(version, each_id, entries, error=error))
    hints = [
        hint(index, leader_of(index, epoch), epoch, topic_id)
        for topic_id, index, epoch in draw(
            st.lists(
                st.tuples(st.sampled_from([ORDERS, OTHERS]), st.integers(0, 3), st.integers(-1, 6)),
                max_size=2,
            )
        )
    ]
    brokers = draw(st.sampled_from([BROKERS, (*BROKERS, 4), (1, 2)]))
    return version, topics, brokers, hints


@examples(200)
@given(st.lists(responses(), min_size=1, max_size=12))
def test_no_response_is_older_than_what_was_seen_and_nothing_else_changes(history: list[Any]) -> None:
    """An updated response is not changed again either."""
    leaders = Leaders()
    known: dict[UUID, dict[int, int]] = {}
    for version, topics, brokers, hints in history:
        for told in hints:
            epochs = known.get(UUID(bytes=told.topic_id), {})
            if told.leader_id >= 0 and told.leader_epoch > epochs.get(told.partition, 99):
                epochs[told.partition] = told.leader_epoch
        leaders.learn(hints)
        said = encode(message(version, *topics, brokers=brokers), UNKNOWN_TAGS)
        after = leaders.bring_up_to_date(said, version, 0.0)
        expected = []
        for each in topics:
            entries = []
            for told_entry in each.partitions:
                index, epoch = told_entry.partition_index, told_entry.leader_epoch
                newest = epoch
                if each.topic_id is not None and not each.error_code.value:
                    epochs = known.setdefault(each.topic_id, {})
                    newest = epochs[index] = max(epochs.get(index, -1), epoch)
                leader = leader_of(index, newest)
                older = newest > epoch >= 0 and leader in brokers and not told_entry.error_code.value
                entries.append(partition(version, index, leader, newest) if older else told_entry)
            expected.append(replace(each, partitions=tuple(entries)))
        assert after == encode(message(version, *expected, brokers=brokers), UNKNOWN_TAGS)
        assert len(after) == len(said)
        assert (after is said) == (expected == topics)
        assert leaders.bring_up_to_date(after, version, 0.0) is after


@examples(100)
@given(st.lists(responses(), min_size=1, max_size=5), st.integers(0, 4000))
def test_what_is_kept_is_bounded(history: list[Any], most: int) -> None:
    leaders = Leaders(most)
    for version, topics, brokers, hints in history:
        leaders.learn(hints)
        leaders.bring_up_to_date(encode(message(version, *topics, brokers=brokers)), version, 0.0)
        assert leaders.buffered <= most
        assert leaders.buffered == sum(map(len, leaders._images.values()))
        assert leaders._images.keys() == leaders._seen.keys()


def test_kio_reads_what_was_brought_up_to_date() -> None:
    after = kio_decode(message_class(3, 13), knows().bring_up_to_date(body(13, OLD), 13, 1.0))
    first = after.topics[0].partitions[0]
    assert (first.leader_id, first.leader_epoch) == (2, 5)


VERSION: Final = 12
TOPIC: Final = "orders"


def gateway(node_id: int, _host: str, _port: int) -> tuple[str, int]:
    """Map broker N to the address broker-N:9092, so that only leaders change."""
    return f"broker-{node_id}", 9092


def response_of(correlation: int, told: Told, *, brokers: tuple[int, ...] = (1, 2, 3)) -> bytes:
    """Build a Metadata response: header v1 and body."""
    said = body(VERSION, told, topic_id=UUID(bytes=topic_id(TOPIC)), brokers=brokers)
    return response(correlation, b"\0" + said)


def asked(play: Playbook, correlation: int, said: bytes, told: bytes) -> None:
    """Let the client ask for Metadata. The broker answers `said`. The client must get `told` in its place."""
    asks = request(ApiKey.METADATA, VERSION, correlation, b"\0...")
    play.client(asks).to_broker(asks).broker(said).to_client(told)


def test_older_metadata_of_another_broker_is_brought_up_to_date() -> None:
    leaders = Leaders()
    first, second = (Playbook(resolve=gateway, leaders=leaders) for _ in range(2))
    asked(first, 1, response_of(1, NEW), response_of(1, NEW))
    asked(second, 2, response_of(2, OLD), response_of(2, NEW))
    asked(first, 3, response_of(3, OLD), response_of(3, NEW))


def test_where_addresses_stay_as_they_are_leaders_do_as_well() -> None:
    """In transparent mode, where addresses are not changed, leaders are not changed either. Connections may
    even go to brokers of different clusters.
    """
    leaders = Leaders()
    first, second = (Playbook(resolve=None, leaders=leaders) for _ in range(2))
    asked(first, 1, response_of(1, NEW), response_of(1, NEW))
    asked(second, 2, response_of(2, OLD), response_of(2, OLD))


def test_nobody_is_led_to_a_broker_that_the_gateway_left_out() -> None:
    leaders = Leaders()
    first = Playbook(resolve=gateway, leaders=leaders)
    asked(first, 1, response_of(1, NEW), response_of(1, NEW))
    second = Playbook(
        resolve=lambda node, *_: None if node == 2 else (f"broker-{node}", 9092), leaders=leaders
    )
    asked(second, 2, response_of(2, OLD), response_of(2, OLD, brokers=(1, 3)))


@pytest.mark.parametrize("version", [16, 18])
@pytest.mark.parametrize("error", [6, 74])
@pytest.mark.parametrize("chunk", [7, 1 << 30])
def test_a_leader_in_the_error_of_a_fetch_is_used_in_metadata(version: int, error: int, chunk: int) -> None:
    """Cases 64 and 66: a leader in a fetch error reaches the client with its endpoint. Metadata for other
    clients then names this leader.
    """
    leaders = Leaders()
    first, second = (Playbook(resolve=gateway, leaders=leaders) for _ in range(2))
    asked(first, 1, response_of(1, OLD), response_of(1, OLD))
    asks = fetch(version, (TOPIC, 0), correlation=2)
    gone = entry(0, error=error, records=None, tags=(current_leader_tag(2, 5),))
    node = node_endpoints_tag([NodeEndpoint(node_id=2, host="broker-2", port=9092, rack=None)])
    told = fetch_response(version, (TOPIC, [gone]), correlation_id=2, tags=(node,))
    first.client(asks).to_broker(asks).broker(told, chunk=chunk).to_client(told)
    asked(second, 3, response_of(3, OLD), response_of(3, NEW))


def test_a_leader_in_a_response_of_the_session_is_used_in_metadata() -> None:
    leaders = Leaders()
    play = Playbook(resolve=gateway, leaders=leaders)
    wants = [(TOPIC, index) for index in range(20)]
    play.established(16, wants)
    asked(play, 60, response_of(60, OLD), response_of(60, OLD))
    asks = fetch(16, *wants, correlation=61)
    play.client(asks).takes_broker()
    gone = entry(0, error=6, records=None, tags=(current_leader_tag(2, 5),))
    play.broker(fetch_response(16, (TOPIC, [gone]), correlation_id=61, session_id=77)).takes_client()
    asked(play, 62, response_of(62, OLD), response_of(62, NEW))


@pytest.mark.parametrize(("key", "version"), [(0, 13), (78, 1), (79, 2)])
def test_a_leader_in_another_response_is_used_in_metadata(key: int, version: int) -> None:
    """Case 66: leaders named by Produce and by share groups are used in Metadata too."""
    leaders = Leaders()
    first, second = (Playbook(resolve=gateway, leaders=leaders) for _ in range(2))
    asked(first, 1, response_of(1, OLD), response_of(1, OLD))
    asks = request(key, version, 2, b"\0\0\xff\xff...")  # flexible: no tags, no transactional id, acks
    told = response(2, b"\0" + moved(key, UUID(bytes=topic_id(TOPIC)), (2, 5)))
    first.client(asks).to_broker(asks).broker(told).to_client(told)
    asked(second, 3, response_of(3, OLD), response_of(3, NEW))
