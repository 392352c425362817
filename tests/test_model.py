"""The model broker passes the conformance cases of fetch sessions: 14-49. (1-13: slots; 58-65: reading.)"""

from dataclasses import replace
from typing import Any

import pytest

from tests.model.asker import Asker, entries, errors, sizes
from tests.model.broker import ConnectionClosedError, ModelBroker
from tests.model.wire import FetchResponse, NodeEndpoint, diverging_epoch_tag, find_tag, node_endpoints_tag

TOPICS = {"foo": 3, "bar": 2, "zar": 2}
NODE = NodeEndpoint(node_id=2, host="b2", port=9092)


def fresh(version: int = 11, release: str = "4.3", **options: Any) -> tuple[ModelBroker, Asker]:
    broker = ModelBroker(release=release, **options)
    for name, count in TOPICS.items():
        broker.create_topic(name, count)
    return broker, Asker(broker=broker, version=version).learn()


def summary(answer: FetchResponse) -> tuple[int, int, int]:
    """(error, session id, entries)."""
    return answer.error_code, answer.session_id, len(entries(answer))


EVERY_VERSION = pytest.mark.parametrize("version", range(7, 19))


# Metadata combinations


@EVERY_VERSION
def test_case_14_sessionless_and_close(version: int) -> None:
    broker, asker = fresh(version)

    assert summary(asker.fetch(("foo", 0), session=(0, -1))) == (0, 0, 1)
    assert summary(asker.fetch(("foo", 0), session=(-1, -1))) == (0, 0, 1)
    made = asker.fetch(("foo", 0), session=(0, 0)).session_id
    assert summary(asker.fetch(session=(made, -1))) == (0, 0, 0)
    assert not broker.cache.sessions


@EVERY_VERSION
def test_case_15_epoch_0_makes_a_session(version: int) -> None:
    broker, asker = fresh(version)

    first = asker.fetch(("foo", 0), session=(0, 0)).session_id
    second = asker.fetch(("foo", 0), session=(first, 0)).session_id
    third = asker.fetch(("foo", 0), session=(77, 0)).session_id

    assert len({0, first, second, third}) == 4
    assert set(broker.cache.sessions) == {second, third}


@EVERY_VERSION
def test_case_16_wrong_epochs_and_ids(version: int) -> None:
    _, asker = fresh(version)
    made = asker.fetch(("foo", 0), session=(0, 0)).session_id

    assert summary(asker.fetch(session=(made, 2))) == (71, 0, 0)
    assert summary(asker.fetch(session=(made, -5))) == (71, 0, 0)
    assert summary(asker.fetch(session=(made, 1))) == (0, made, 0)
    assert summary(asker.fetch(session=(made + 1, 1))) == (70, 0, 0)
    assert summary(asker.fetch(session=(0, 1))) == (70, 0, 0)


def test_case_17_epochs_begin_at_1_and_wrap_to_1() -> None:
    broker, asker = fresh()
    made = asker.fetch(("foo", 0), session=(0, 0)).session_id
    broker.cache.sessions[made].epoch = 2**31 - 1

    assert summary(asker.fetch(session=(made, 2**31 - 1))) == (0, made, 0)
    assert summary(asker.fetch(session=(made, 1))) == (0, made, 0)
    assert summary(asker.fetch(session=(made, 2))) == (0, made, 0)


def test_case_18_an_epoch_is_good_once() -> None:
    _, asker = fresh()
    made = asker.fetch(("foo", 0), session=(0, 0)).session_id

    assert summary(asker.fetch(session=(made, 1))) == (0, made, 0)
    assert summary(asker.fetch(session=(made, 1))) == (71, 0, 0)


@pytest.mark.parametrize(("before", "after"), [(12, 13), (13, 12), (7, 18), (18, 7)])
def test_case_19_names_and_ids_do_not_mix(before: int, after: int) -> None:
    _, asker = fresh(before)
    made = asker.fetch(("foo", 0), session=(0, 0)).session_id

    asker.version = after
    assert summary(asker.fetch(session=(made, 1))) == (106, 0, 0)
    asker.version = before
    assert summary(asker.fetch(session=(made, 1))) == (0, made, 0)


def test_case_20_versions_may_change_within_names_or_ids() -> None:
    _, asker = fresh(16)
    made = asker.fetch(("foo", 0), session=(0, 0)).session_id

    for epoch, version in enumerate((17, 13, 18), start=1):
        asker.version = version
        assert summary(asker.fetch(session=(made, epoch))) == (0, made, 0)


# Inclusion


class Session:
    """An asker with a session under way: each call is the next incremental fetch."""

    def __init__(self, asker: Asker, *wants: Any, **options: Any) -> None:
        self.asker = asker
        self.first = asker.fetch(*wants, session=(0, 0), **options)
        self.id = self.first.session_id
        self.epoch = 0
        self.options = options

    def fetch(self, *wants: Any, **options: Any) -> FetchResponse:
        self.epoch += 1
        return self.asker.fetch(*wants, session=(self.id, self.epoch), **(self.options | options))

    def names(self, *wants: Any, **options: Any) -> list[tuple[str, int]]:
        """Which partitions the next answer lists."""
        return self.asker.names(self.fetch(*wants, **options))

    @property
    def order(self) -> list[tuple[str, int]]:
        session = self.asker.broker.cache.sessions[self.id]
        return [(held.topic or "", held.entry.partition) for held in session.partitions.values()]


ALL_FOO = (("foo", 0), ("foo", 1), ("foo", 2))


@EVERY_VERSION
def test_case_21_no_change_no_entries(version: int) -> None:
    _, asker = fresh(version)
    session = Session(asker, *ALL_FOO)

    assert session.id > 0
    assert asker.names(session.first) == [*ALL_FOO]
    assert summary(session.fetch()) == (0, session.id, 0)


def test_case_22_each_change_alone_includes_the_entry() -> None:
    broker, asker = fresh(12)
    foo = broker.partition("foo", 1)
    foo.append(b"one", replicated=False)
    session = Session(asker, ("foo", 0), ("foo", 1, 1))
    foo.high_watermark = 1
    moved = session.fetch()
    assert (asker.names(moved), errors(moved), sizes(moved)) == ([("foo", 1)], [0], [0])

    foo.delete_records(1)
    assert entries(session.fetch())[0].log_start_offset == 1
    assert session.names() == []
    foo.append(b"two")
    assert sizes(session.fetch()) == [3]
    assert sizes(session.fetch()) == [3]
    assert session.names(("foo", 1, 2)) == []
    foo.preferred["r"] = 2
    assert [data.preferred_read_replica for data in entries(session.fetch(rack_id="r"))] == [2]
    assert session.names() == []
    broker.partition("foo", 1).move_leader(1, 3)
    diverged = session.fetch(("foo", 1, 2), values={"last_fetched_epoch": 2})
    assert entries(diverged)[0].tags == (diverging_epoch_tag(0, 2),)


def test_case_23_what_the_broker_does_not_compare() -> None:
    broker, asker = fresh()
    foo = broker.partition("foo")
    foo.append(b"open", producer=9)
    session = Session(asker, ("foo", 0), isolation_level=1)
    assert (entries(session.first)[0].last_stable_offset, sizes(session.first)) == (0, [0])

    foo.open.clear()
    foo.segments[0].batches.clear()
    assert foo.last_stable_offset == 1
    assert session.names(("foo", 0, 1)) == []
    assert session.names(("foo", 0, 1, 1000)) == []
    foo.append(b"more")
    read = session.fetch()
    assert (sizes(read), entries(read)[0].last_stable_offset) == ([4], 2)


def test_case_24_an_error_is_told_while_it_lasts_and_once_after() -> None:
    broker, asker = fresh()
    session = Session(asker, ("foo", 0), ("bar", 0))
    broker.partition("bar").error = 56

    assert errors(session.fetch()) == [56]
    assert errors(session.fetch()) == [56]
    broker.partition("bar").error = 0
    assert errors(session.fetch()) == [0]
    assert session.names() == []


def test_case_25_recovered_at_the_same_high_watermark() -> None:
    broker, asker = fresh()
    broker.denied.add("bar")
    session = Session(asker, ("foo", 0), ("bar", 0))
    assert [
        (name, data.error_code)
        for (name, _), data in zip(asker.names(session.first), entries(session.first), strict=True)
    ] == [("foo", 0), ("bar", 29)]

    broker.denied.clear()
    answer = session.fetch()
    assert (asker.names(answer), entries(answer)[0].high_watermark) == ([("bar", 0)], 0)
    assert session.names() == []


def test_case_26_an_added_partition_is_told_once() -> None:
    _, asker = fresh()
    session = Session(asker, ("foo", 0))

    assert session.names(("bar", 0)) == [("bar", 0)]
    assert session.names() == []


def test_case_27_an_added_partition_throttled_at_first_is_told_next() -> None:
    broker, asker = fresh()
    session = Session(asker, ("foo", 0))

    broker.throttle_ms = 40
    throttled = session.fetch(("bar", 0))
    assert (throttled.throttle_time_ms, summary(throttled)) == (40, (0, session.id, 0))
    broker.throttle_ms = 0
    assert session.names() == [("bar", 0)]


def test_case_28_a_high_watermark_that_goes_back_is_told() -> None:
    broker, asker = fresh()
    broker.partition("foo").append(b"xyz")
    session = Session(asker, ("foo", 0, 1))

    broker.partition("foo").high_watermark = 0
    assert [data.high_watermark for data in entries(session.fetch())] == [0]


def test_case_29_divergence_is_told_every_time() -> None:
    broker, asker = fresh(12)
    broker.partition("foo").append(b"xyz")
    broker.partition("foo").move_leader(1, 4)
    session = Session(asker, ("foo", 0, 1), values={"last_fetched_epoch": 2})

    for _ in range(2):
        data = entries(session.fetch())[0]
        assert (data.error_code, data.records, data.high_watermark) == (0, b"", 1)
        assert data.tags == (diverging_epoch_tag(0, 1),)


def test_case_30_what_a_throttled_read_saw_is_still_news() -> None:
    broker, asker = fresh()
    broker.partition("foo").append(b"x", replicated=False)
    session = Session(asker, ("foo", 0, 1))
    broker.partition("foo").high_watermark = 1

    broker.throttle_ms = 5
    assert session.names() == []
    broker.throttle_ms = 0
    assert session.names() == [("foo", 0)]
    assert session.names() == []


# Order


@EVERY_VERSION
def test_case_31_request_order_then_session_order_and_unread_errors_last(version: int) -> None:
    broker, asker = fresh(version)
    broker.denied.add("bar")
    wants = (("zar", 1), ("bar", 0), ("zar", 0), ("foo", 2))
    session = Session(asker, *wants)
    order = [("zar", 1), ("zar", 0), ("foo", 2), ("bar", 0)]

    assert asker.names(session.first) == order
    for name, index in wants:
        broker.partition(name, index).append(b"")
    assert session.names() == order


def test_case_32_records_go_last_and_news_stay() -> None:
    broker, asker = fresh()
    broker.partition("foo").append(b"data", replicated=False)
    session = Session(asker, ("foo", 0, 1), ("foo", 1), ("foo", 2))
    broker.partition("foo").high_watermark = 1
    broker.partition("foo", 1).append(b"data")

    assert session.names() == [("foo", 0), ("foo", 1)]
    assert session.order == [("foo", 0), ("foo", 2), ("foo", 1)]


def test_up_to_2_8_news_go_last_too() -> None:
    """KAFKA-12330."""
    broker, asker = fresh(release="2.8")
    broker.partition("foo").append(b"data", replicated=False)
    session = Session(asker, ("foo", 0, 1), ("foo", 1), ("foo", 2))
    broker.partition("foo").high_watermark = 1
    broker.partition("foo", 1).append(b"data")

    assert session.names() == [("foo", 0), ("foo", 1)]
    assert session.order == [("foo", 2), ("foo", 0), ("foo", 1)]


def test_case_33_two_with_records_keep_their_order_at_the_tail() -> None:
    broker, asker = fresh()
    session = Session(asker, ("foo", 2), ("foo", 1), ("foo", 0))
    for index in (1, 2):
        broker.partition("foo", index).append(b"data")

    assert session.names() == [("foo", 2), ("foo", 1)]
    assert session.order == [("foo", 0), ("foo", 2), ("foo", 1)]


def test_case_34_new_values_keep_the_place_forgetting_loses_it() -> None:
    _, asker = fresh()
    session = Session(asker, *ALL_FOO)

    assert session.names(("foo", 0, 0, 77)) == []
    assert session.order == [*ALL_FOO]
    assert session.names(forget=[("foo", 0)]) == []
    assert session.names(("foo", 0)) == [("foo", 0)]
    assert session.order == [("foo", 1), ("foo", 2), ("foo", 0)]


@EVERY_VERSION
def test_case_35_added_and_forgotten_at_once_and_twice_in_one_request(version: int) -> None:
    broker, asker = fresh(version)
    session = Session(asker, ("foo", 0))

    assert session.names(("bar", 0), ("foo", 0), forget=[("bar", 0)]) == []
    assert session.order == [("foo", 0)]
    broker.partition("bar", 1).append(b"data")
    assert session.names(("bar", 1, 0), ("bar", 0), ("bar", 1, 1)) == [("bar", 1), ("bar", 0)]
    assert session.names() == []
    twice = asker.fetch(("bar", 1, 1), ("foo", 0), ("bar", 1, 0))
    assert (asker.names(twice), sizes(twice)) == ([("bar", 1), ("foo", 0)], [4, 0])


@EVERY_VERSION
def test_case_36_only_neighbours_share_a_topic_element(version: int) -> None:
    _, asker = fresh(version)

    answer = asker.fetch(("foo", 0), ("bar", 0), ("foo", 1), ("foo", 2))

    assert [len(topic.partitions) for topic in answer.topics] == [1, 1, 2]
    assert asker.names(answer) == [("foo", 0), ("bar", 0), ("foo", 1), ("foo", 2)]


# Lifecycle


@EVERY_VERSION
def test_case_37_remove_one_add_one(version: int) -> None:
    _, asker = fresh(version)
    session = Session(asker, ("foo", 0), ("foo", 1))

    assert session.names(("bar", 0), forget=[("foo", 0)]) == [("bar", 0)]
    assert session.order == [("foo", 1), ("bar", 0)]


@EVERY_VERSION
def test_case_38_forgetting_everything_closes(version: int) -> None:
    broker, asker = fresh(version)
    session = Session(asker, *ALL_FOO)

    assert summary(session.fetch(forget=ALL_FOO)) == (0, 0, 0)
    assert not broker.cache.sessions
    assert summary(session.fetch()) == (70, 0, 0)


def test_what_is_added_and_forgotten_as_all_is_forgotten_is_answered_once() -> None:
    _, asker = fresh()
    session = Session(asker, ("foo", 0))

    answer = session.fetch(("bar", 0), forget=[("foo", 0), ("bar", 0)])

    assert (answer.session_id, asker.names(answer)) == (0, [("bar", 0)])


def test_case_39_forget_all_but_the_added_one() -> None:
    _, asker = fresh()
    session = Session(asker, *ALL_FOO)

    answer = session.fetch(("bar", 0), forget=ALL_FOO)

    assert (answer.session_id, asker.names(answer)) == (session.id, [("bar", 0)])
    assert session.order == [("bar", 0)]


def test_case_40_an_empty_session() -> None:
    broker, asker = fresh()
    session = Session(asker)

    assert broker.cache.sessions[session.id].cached_size == 0
    assert summary(session.fetch()) == (0, 0, 0)
    assert not broker.cache.sessions


def test_case_41_evicted_while_parked() -> None:
    broker, asker = fresh()
    session = Session(asker, ("foo", 0))
    parked = broker.arrive(asker.request(session=(session.id, 1)), 0.0)
    broker.cache.remove(broker.cache.sessions[session.id])
    broker.partition("foo").append(b"data")

    answer = broker.answer(parked, 0.0)

    assert (answer.error_code, answer.session_id, asker.names(answer)) == (0, session.id, [("foo", 0)])
    assert summary(asker.fetch(session=(session.id, 2))) == (70, 0, 0)


def test_case_42_overtaken_while_parked() -> None:
    broker, asker = fresh()
    session = Session(asker, ("foo", 0))
    parked = broker.arrive(asker.request(session=(session.id, 1)), 0.0)
    session.epoch = 1
    assert session.names() == []
    broker.partition("foo").append(b"data")

    assert summary(broker.answer(parked, 0.0)) == (71, session.id, 0)
    assert [data.high_watermark for data in entries(session.fetch())] == [1]


# Topic ids


def test_case_43_an_unknown_id_becomes_known() -> None:
    broker, asker = fresh(13)
    topic = broker.topics.pop("bar")
    session = Session(asker, ("foo", 0), ("bar", 0))
    assert (errors(session.first), session.id > 0) == ([0, 100], True)

    assert errors(session.fetch()) == [100]
    broker.topics["bar"] = topic
    answer = session.fetch()
    assert (asker.names(answer), errors(answer)) == ([("bar", 0)], [0])


def test_case_44_a_resolved_name_sticks() -> None:
    broker, asker = fresh(13)
    session = Session(asker, ("bar", 0))

    broker.delete_topic("bar")
    assert errors(session.fetch()) == [3]
    assert errors(asker.fetch(("bar", 0))) == [100]
    broker.create_topic("bar", 1)
    assert errors(session.fetch()) == [103]
    assert errors(asker.fetch(("bar", 0))) == [100]


@pytest.mark.parametrize("then", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_case_45_forgetting_by_id_needs_no_name(first: bool, then: bool) -> None:
    broker, asker = fresh(13)
    topic = broker.topics["bar"]
    if not first:
        broker.delete_topic("bar")
    session = Session(asker, ("foo", 0), ("bar", 0))
    broker.topics.pop("bar", None)
    if then:
        broker.topics["bar"] = topic

    assert session.names(forget=[("bar", 0)]) == []
    assert session.order == [("foo", 0)]


def test_case_46_a_recreated_topic_by_id_and_by_name() -> None:
    broker, asker = fresh(13)
    session = Session(asker, ("foo", 0), ("bar", 0))
    old = asker.ids["bar"]
    broker.delete_topic("bar")
    broker.create_topic("bar", 1)
    asker.learn()

    request = asker.request(("bar", 0), forget=[("bar", 0)], session=(session.id, 1))
    gone = tuple(replace(topic, topic_id=old) for topic in request.forgotten)
    answer = asker.send(replace(request, forgotten=gone))
    assert (asker.names(answer), errors(answer)) == ([("bar", 0)], [0])

    asker.version = 12
    named = Session(asker, ("foo", 0), ("bar", 0))
    broker.delete_topic("bar")
    assert errors(named.fetch()) == [3]
    broker.create_topic("bar", 1)
    recreated = named.fetch()
    assert (asker.names(recreated), errors(recreated)) == ([("bar", 0)], [0])
    assert named.names() == []


def test_case_47_keys_are_ids_or_else_names() -> None:
    broker, asker = fresh(13)
    topic = broker.topics.pop("bar")
    session = Session(asker, ("bar", 0))
    broker.topics["bar"] = topic

    answer = session.fetch(("bar", 0, 0, 5))
    assert (asker.names(answer), session.order) == ([("bar", 0)], [("bar", 0)])
    asker.version = 11
    by_name = Session(asker, ("bar", 0), ("foo", 0))
    assert by_name.names(("bar", 0, 0, 5)) == []


# Throttling


@EVERY_VERSION
def test_case_48_a_throttled_fetch_makes_nothing_and_advances_the_rest(version: int) -> None:
    broker, asker = fresh(version)
    session = Session(asker, ("foo", 0))
    broker.partition("foo").append(b"data")
    broker.throttle_ms = 30

    assert summary(session.fetch(("bar", 0))) == (0, session.id, 0)
    assert broker.cache.sessions[session.id].epoch == 2
    assert session.order == [("foo", 0), ("bar", 0)]
    full = asker.fetch(("foo", 0), session=(session.id, 0))
    assert (full.throttle_time_ms, summary(full)) == (30, (0, 0, 0))
    assert not broker.cache.sessions


@EVERY_VERSION
def test_case_49_a_session_error_hides_behind_a_throttle(version: int) -> None:
    broker, asker = fresh(version)
    session = Session(asker, ("foo", 0))
    broker.throttle_ms = 30

    assert summary(asker.fetch(session=(session.id, 9))) == (0, 0, 0)
    assert summary(asker.fetch(session=(session.id + 1, 1))) == (0, 0, 0)


def test_1_1_sends_all_and_late() -> None:
    _, asker = fresh(7, "1.1.1", throttle_ms=30)
    session = Session(asker, ("foo", 0))

    assert (session.first.throttle_time_ms, asker.names(session.first)) == (30, [("foo", 0)])
    assert session.id > 0
    assert summary(asker.fetch(session=(session.id, 9))) == (71, 0, 0)


# Unexpected failures and old brokers


@pytest.mark.parametrize(
    ("release", "version", "records", "aborted"),
    [("2.8", 12, b"", None), ("3.9", 12, None, ()), ("4.3", 12, b"", ()), ("3.9", 11, None, ())],
)
def test_an_unexpected_failure_lists_the_request(
    release: str, version: int, records: bytes | None, aborted: tuple[()] | None
) -> None:
    broker, asker = fresh(version, release)
    session = Session(asker, ("foo", 0), ("bar", 0))
    broker.failure = -1

    answer = session.fetch(("bar", 0, 7))

    assert (answer.error_code, answer.session_id, asker.names(answer)) == (-1, session.id, [("bar", 0)])
    assert [(data.error_code, data.records, data.aborted) for data in entries(answer)] == [
        (-1, records, aborted)
    ]


@pytest.mark.parametrize(("release", "error"), [("3.7", 70), ("3.8", -1), ("4.3", -1)])
def test_case_96_ids_that_no_shard_owns(release: str, error: int) -> None:
    _, asker = fresh(13, release)

    assert asker.fetch(session=(2_147_483_640, 1)).error_code == error
    full = asker.fetch(("foo", 0), session=(2_147_483_640, 0))
    assert (full.error_code, len(full.topics)) == ((0, 1) if error == 70 else (-1, 0))


@pytest.mark.parametrize(
    ("release", "error", "records"), [("2.8", 76, b""), ("3.9", 76, None), ("4.3", 0, b"data")]
)
def test_zstd_below_v10_is_an_error_that_the_session_never_hears_of(
    release: str, error: int, records: bytes | None
) -> None:
    broker, asker = fresh(9, release)
    broker.topics["foo"].zstd = True
    broker.partition("foo").append(b"data")
    session = Session(asker, ("foo", 0))

    data = entries(session.first)[0]
    assert (data.error_code, data.records) == (error, records)
    assert session.names(("foo", 0, 1)) == []
    assert errors(asker.fetch(("foo", 0, 1))) == [error]


@pytest.mark.parametrize(("version", "error"), [(4, 6), (5, 6), (6, 56), (11, 56)])
def test_a_storage_error_is_another_one_up_to_v5(version: int, error: int) -> None:
    broker, asker = fresh(version)
    broker.partition("foo").error = 56

    assert errors(asker.fetch(("foo", 0))) == [error]


@pytest.mark.parametrize(("release", "lso"), [("2.0", -1), ("2.4", 1), ("4.3", 1)])
def test_old_brokers_keep_the_last_stable_offset_to_themselves(release: str, lso: int) -> None:
    broker, asker = fresh(7, release)
    broker.partition("foo").append(b"data")

    assert entries(asker.fetch(("foo", 0)))[0].last_stable_offset == lso
    assert entries(asker.fetch(("foo", 0), isolation_level=1))[0].last_stable_offset == 1


def test_up_to_1_1_an_unknown_partition_is_answered_in_its_place() -> None:
    for release, order in (("1.1", [("foo", 9), ("bar", 0)]), ("2.0", [("bar", 0), ("foo", 9)])):
        _, asker = fresh(7, release)

        answer = asker.fetch(("foo", 9), ("bar", 0))

        assert (asker.names(answer), sorted(errors(answer))) == (order, [0, 3])


@pytest.mark.parametrize(("release", "error"), [("2.4", 0), ("2.5", 74)])
def test_case_68_old_brokers_forget_to_fence_in_sessions(release: str, error: int) -> None:
    broker, asker = fresh(11, release)
    broker.partition("foo").leader_epoch = 5
    session = Session(asker, ("foo", 0), values={"current_leader_epoch": 5})

    assert errors(session.fetch(("foo", 0, 0, 9), values={"current_leader_epoch": 4})) == (
        [error] if error else []
    )
    assert errors(asker.fetch(("foo", 0), values={"current_leader_epoch": 4})) == [74]
    assert errors(asker.fetch(("foo", 0), values={"current_leader_epoch": 6})) == [75]


def test_case_69_an_epoch_never_seen_is_out_of_range() -> None:
    _, asker = fresh(12)

    assert errors(asker.fetch(("foo", 0), values={"last_fetched_epoch": 7})) == [1]


@pytest.mark.parametrize(("release", "version"), [("4.3", 3), ("3.9", 18), ("1.0", 7), ("2.8", 13)])
def test_a_version_the_broker_lacks_closes_the_connection(release: str, version: int) -> None:
    _, asker = fresh(version, release)

    with pytest.raises(ConnectionClosedError):
        asker.fetch(("foo", 0))


def test_api_versions_at_an_unknown_version() -> None:
    request = bytes.fromhex("0012006300000007000473706563000261026200")
    vectors = {"2.8.2": "00000007002300000001001200000003", "4.3.0": "00000007002300000001001200000004"}

    assert {r: ModelBroker(release=r).handle(request, 0.0).hex() for r in vectors} == vectors
    assert ModelBroker(release="1.1.1").handle(request, 0.0).hex() == "00000007002300000000"


def test_throttled_answers_still_tell_where_the_leader_is() -> None:
    broker, asker = fresh(16, throttle_ms=5)
    broker.partition("foo").hosted = False
    broker.partition("foo").leader = 2

    assert asker.fetch(("foo", 0)).tags == ()
    broker.nodes = {2: NODE}
    answer = asker.fetch(("foo", 0))
    assert (answer.topics, find_tag(answer.tags, 0)) == ((), node_endpoints_tag([NODE])[1])


def test_unknown_ids_stand_before_other_errors_found_unread() -> None:
    """Seen on 4.3.0: ids are looked up for the whole fetch before anything else."""
    broker, asker = fresh(16)
    broker.delete_topic("bar")

    answer = asker.fetch(("foo", 9), ("bar", 0), ("zar", 0))

    assert list(zip(asker.names(answer), errors(answer), strict=True)) == [
        (("zar", 0), 0),
        (("bar", 0), 100),
        (("foo", 9), 3),
    ]
