"""The model broker gives the required responses in cases 14 to 49 of fetch sessions."""

from dataclasses import replace

import pytest

from tests.frames import SESSION_VERSIONS
from tests.model.asker import Session, entries, errors, sizes, summary
from tests.model.wire import diverging_epoch_tag
from tests.model.world import fresh

EVERY_LAYOUT = pytest.mark.parametrize("version", SESSION_VERSIONS)


# Metadata combinations


@EVERY_LAYOUT
def test_sessionless_and_close(version: int) -> None:
    """Case 14: a fetch without a session creates no session. A fetch with epoch -1 closes its session."""
    broker, asker = fresh(version)

    assert summary(asker.fetch(("foo", 0), session=(0, -1))) == (0, 0, 1)
    assert summary(asker.fetch(("foo", 0), session=(-1, -1))) == (0, 0, 1)
    made = asker.fetch(("foo", 0), session=(0, 0)).session_id
    assert summary(asker.fetch(session=(made, -1))) == (0, 0, 0)
    assert not broker.cache.sessions


@EVERY_LAYOUT
def test_epoch_0_makes_a_session(version: int) -> None:
    """Case 15: epoch 0 creates a session and closes the session that the fetch names."""
    broker, asker = fresh(version)

    first = asker.fetch(("foo", 0), session=(0, 0)).session_id
    second = asker.fetch(("foo", 0), session=(first, 0)).session_id
    third = asker.fetch(("foo", 0), session=(77, 0)).session_id

    assert len({0, first, second, third}) == 4
    assert set(broker.cache.sessions) == {second, third}


@EVERY_LAYOUT
def test_wrong_epochs_and_ids(version: int) -> None:
    """Case 16: a wrong epoch gets error 71, and an unknown session id error 70."""
    _, asker = fresh(version)
    made = asker.fetch(("foo", 0), session=(0, 0)).session_id

    assert summary(asker.fetch(session=(made, 2))) == (71, 0, 0)
    assert summary(asker.fetch(session=(made, -5))) == (71, 0, 0)
    assert summary(asker.fetch(session=(made, 1))) == (0, made, 0)
    assert summary(asker.fetch(session=(made + 1, 1))) == (70, 0, 0)
    assert summary(asker.fetch(session=(0, 1))) == (70, 0, 0)


def test_epochs_begin_at_1_and_wrap_to_1() -> None:
    """Case 17: the epoch after 2^31-1 is 1."""
    broker, asker = fresh()
    made = asker.fetch(("foo", 0), session=(0, 0)).session_id
    broker.cache.sessions[made].epoch = 2**31 - 1

    assert summary(asker.fetch(session=(made, 2**31 - 1))) == (0, made, 0)
    assert summary(asker.fetch(session=(made, 1))) == (0, made, 0)
    assert summary(asker.fetch(session=(made, 2))) == (0, made, 0)


def test_an_epoch_is_good_once() -> None:
    """Case 18: each epoch of a session can be used only once. A second fetch with it gets error 71."""
    _, asker = fresh()
    made = asker.fetch(("foo", 0), session=(0, 0)).session_id

    assert summary(asker.fetch(session=(made, 1))) == (0, made, 0)
    assert summary(asker.fetch(session=(made, 1))) == (71, 0, 0)


@pytest.mark.parametrize(("before", "after"), [(12, 13), (13, 12), (7, 18), (18, 7)])
def test_names_and_ids_do_not_mix(before: int, after: int) -> None:
    """Case 19: a session of topic names refuses a fetch with topic ids (error 106).

    A session of topic ids refuses a fetch with names. The session remains.
    """
    _, asker = fresh(before)
    made = asker.fetch(("foo", 0), session=(0, 0)).session_id

    asker.version = after
    assert summary(asker.fetch(session=(made, 1))) == (106, 0, 0)
    asker.version = before
    assert summary(asker.fetch(session=(made, 1))) == (0, made, 0)


def test_versions_may_change_within_names_or_ids() -> None:
    """Case 20: the version may change within a session, if both versions use names or both use ids."""
    _, asker = fresh(16)
    made = asker.fetch(("foo", 0), session=(0, 0)).session_id

    for epoch, version in enumerate((17, 13, 18), start=1):
        asker.version = version
        assert summary(asker.fetch(session=(made, epoch))) == (0, made, 0)


# Inclusion


ALL_FOO = (("foo", 0), ("foo", 1), ("foo", 2))


@EVERY_LAYOUT
def test_no_change_no_entries(version: int) -> None:
    """Case 21: without changes, the response has no entries."""
    _, asker = fresh(version)
    session = Session(asker, *ALL_FOO)

    assert session.id > 0
    assert asker.names(session.first) == [*ALL_FOO]
    assert summary(session.fetch()) == (0, session.id, 0)


def test_each_change_alone_includes_the_entry() -> None:
    """Case 22: one change in a partition is enough to put its entry into the response."""
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


def test_what_the_broker_does_not_compare() -> None:
    """Case 23: a new last stable offset, or new values in the fetch, do not put the entry into the
    response.
    """
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


def test_an_error_is_told_while_it_lasts_and_once_after() -> None:
    """Case 24: an error is in every response while it lasts. After it, one more response has the entry."""
    broker, asker = fresh()
    session = Session(asker, ("foo", 0), ("bar", 0))
    broker.partition("bar").error = 56

    assert errors(session.fetch()) == [56]
    assert errors(session.fetch()) == [56]
    broker.partition("bar").error = 0
    assert errors(session.fetch()) == [0]
    assert session.names() == []


def test_recovered_at_the_same_high_watermark() -> None:
    """Case 25: a partition that recovers is in the response, even if its high watermark has not changed."""
    broker, asker = fresh()
    broker.denied.add("bar")
    session = Session(asker, ("foo", 0), ("bar", 0))
    assert [
        (name, data.error_code)
        for (name, _), data in zip(asker.names(session.first), entries(session.first), strict=True)
    ] == [("foo", 0), ("bar", 29)]

    broker.denied.clear()
    response = session.fetch()
    assert (asker.names(response), entries(response)[0].high_watermark) == ([("bar", 0)], 0)
    assert session.names() == []


def test_an_added_partition_is_told_once() -> None:
    """Case 26: an added partition is in the next response only."""
    _, asker = fresh()
    session = Session(asker, ("foo", 0))

    assert session.names(("bar", 0)) == [("bar", 0)]
    assert session.names() == []


def test_an_added_partition_throttled_at_first_is_told_next() -> None:
    """Case 27: if the response to an added partition is throttled, the entry is in the next response."""
    broker, asker = fresh()
    session = Session(asker, ("foo", 0))

    broker.throttle_ms = 40
    throttled = session.fetch(("bar", 0))
    assert (throttled.throttle_time_ms, summary(throttled)) == (40, (0, session.id, 0))
    broker.throttle_ms = 0
    assert session.names() == [("bar", 0)]


def test_a_high_watermark_that_goes_back_is_reported() -> None:
    """Case 28: if a partition's high watermark decreases, the response has the lower value."""
    broker, asker = fresh()
    broker.partition("foo").append(b"xyz")
    session = Session(asker, ("foo", 0, 1))

    broker.partition("foo").high_watermark = 0
    assert [data.high_watermark for data in entries(session.fetch())] == [0]


def test_divergence_is_reported_every_time() -> None:
    """Case 29: a diverging epoch is in every response, without error and without records."""
    broker, asker = fresh(12)
    broker.partition("foo").append(b"xyz")
    broker.partition("foo").move_leader(1, 4)
    session = Session(asker, ("foo", 0, 1), values={"last_fetched_epoch": 2})

    for _ in range(2):
        data = entries(session.fetch())[0]
        assert (data.error_code, data.records, data.high_watermark) == (0, b"", 1)
        assert data.tags == (diverging_epoch_tag(0, 1),)


def test_what_a_throttled_read_saw_is_still_news() -> None:
    """Case 30: a change that a throttled response left out is in the next response."""
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


@EVERY_LAYOUT
def test_request_order_then_session_order_and_unread_errors_last(version: int) -> None:
    """Case 31: entries have the order of the request at first, and later the order of the session.

    Entries with errors that the broker found before reading are last.
    """
    broker, asker = fresh(version)
    broker.denied.add("bar")
    wants = (("zar", 1), ("bar", 0), ("zar", 0), ("foo", 2))
    session = Session(asker, *wants)
    order = [("zar", 1), ("zar", 0), ("foo", 2), ("bar", 0)]

    assert asker.names(session.first) == order
    for name, index in wants:
        broker.partition(name, index).append(b"")
    assert session.names() == order


def test_records_go_last_and_news_stay() -> None:
    """Case 32: a partition with records moves to the end of the session. A partition with other changes
    stays.
    """
    broker, asker = fresh()
    broker.partition("foo").append(b"data", replicated=False)
    session = Session(asker, ("foo", 0, 1), ("foo", 1), ("foo", 2))
    broker.partition("foo").high_watermark = 1
    broker.partition("foo", 1).append(b"data")

    assert session.names() == [("foo", 0), ("foo", 1)]
    assert session.order == [("foo", 0), ("foo", 2), ("foo", 1)]


def test_up_to_2_8_news_go_last_too() -> None:
    """Up to Kafka 2.8, each partition in a response moves to the end of the session (KAFKA-12330)."""
    broker, asker = fresh(release="2.8")
    broker.partition("foo").append(b"data", replicated=False)
    session = Session(asker, ("foo", 0, 1), ("foo", 1), ("foo", 2))
    broker.partition("foo").high_watermark = 1
    broker.partition("foo", 1).append(b"data")

    assert session.names() == [("foo", 0), ("foo", 1)]
    assert session.order == [("foo", 2), ("foo", 0), ("foo", 1)]


def test_two_with_records_keep_their_order_at_the_tail() -> None:
    """Case 33: two partitions with records move to the end of the session, and keep their order."""
    broker, asker = fresh()
    session = Session(asker, ("foo", 2), ("foo", 1), ("foo", 0))
    for index in (1, 2):
        broker.partition("foo", index).append(b"data")

    assert session.names() == [("foo", 2), ("foo", 1)]
    assert session.order == [("foo", 0), ("foo", 2), ("foo", 1)]


def test_new_values_keep_the_place_forgetting_loses_it() -> None:
    """Case 34: a partition with new values keeps its place.

    A partition that is forgotten and added again is at the end.
    """
    _, asker = fresh()
    session = Session(asker, *ALL_FOO)

    assert session.names(("foo", 0, 0, 77)) == []
    assert session.order == [*ALL_FOO]
    assert session.names(forget=[("foo", 0)]) == []
    assert session.names(("foo", 0)) == [("foo", 0)]
    assert session.order == [("foo", 1), ("foo", 2), ("foo", 0)]


@EVERY_LAYOUT
def test_added_and_forgotten_at_once_and_twice_in_one_request(version: int) -> None:
    """Case 35: a partition added and forgotten in one request is not in the session. If a request lists a
    partition twice, the first place and the last values count.
    """
    broker, asker = fresh(version)
    session = Session(asker, ("foo", 0))

    assert session.names(("bar", 0), ("foo", 0), forget=[("bar", 0)]) == []
    assert session.order == [("foo", 0)]
    broker.partition("bar", 1).append(b"data")
    assert session.names(("bar", 1, 0), ("bar", 0), ("bar", 1, 1)) == [("bar", 1), ("bar", 0)]
    assert session.names() == []
    twice = asker.fetch(("bar", 1, 1), ("foo", 0), ("bar", 1, 0))
    assert (asker.names(twice), sizes(twice)) == ([("bar", 1), ("foo", 0)], [4, 0])


@EVERY_LAYOUT
def test_only_neighbours_share_a_topic_element(version: int) -> None:
    """Case 36: only consecutive partitions of a topic share a topic element of the response."""
    _, asker = fresh(version)

    response = asker.fetch(("foo", 0), ("bar", 0), ("foo", 1), ("foo", 2))

    assert [len(topic.partitions) for topic in response.topics] == [1, 1, 2]
    assert asker.names(response) == [("foo", 0), ("bar", 0), ("foo", 1), ("foo", 2)]


# Lifecycle


@EVERY_LAYOUT
def test_remove_one_add_one(version: int) -> None:
    """Case 37: one fetch can remove a partition and add another one."""
    _, asker = fresh(version)
    session = Session(asker, ("foo", 0), ("foo", 1))

    assert session.names(("bar", 0), forget=[("foo", 0)]) == [("bar", 0)]
    assert session.order == [("foo", 1), ("bar", 0)]


@EVERY_LAYOUT
def test_forgetting_everything_closes(version: int) -> None:
    """Case 38: a fetch that forgets all partitions closes the session."""
    broker, asker = fresh(version)
    session = Session(asker, *ALL_FOO)

    assert summary(session.fetch(forget=ALL_FOO)) == (0, 0, 0)
    assert not broker.cache.sessions
    assert summary(session.fetch()) == (70, 0, 0)


def test_what_is_added_and_forgotten_as_all_is_forgotten_is_answered_once() -> None:
    _, asker = fresh()
    session = Session(asker, ("foo", 0))

    response = session.fetch(("bar", 0), forget=[("foo", 0), ("bar", 0)])

    assert (response.session_id, asker.names(response)) == (0, [("bar", 0)])


def test_forget_all_but_the_added_one() -> None:
    """Case 39: a fetch forgets all partitions and adds a new one. The session continues with the new one."""
    _, asker = fresh()
    session = Session(asker, *ALL_FOO)

    response = session.fetch(("bar", 0), forget=ALL_FOO)

    assert (response.session_id, asker.names(response)) == (session.id, [("bar", 0)])
    assert session.order == [("bar", 0)]


def test_an_empty_session() -> None:
    """Case 40: a session can be created without partitions. The next fetch closes it."""
    broker, asker = fresh()
    session = Session(asker)

    assert broker.cache.sessions[session.id].cached_size == 0
    assert summary(session.fetch()) == (0, 0, 0)
    assert not broker.cache.sessions


def test_evicted_while_parked() -> None:
    """Case 41: a session is evicted while its fetch waits. The response is normal, and the next fetch gets
    error 70.
    """
    broker, asker = fresh()
    session = Session(asker, ("foo", 0))
    parked = broker.arrive(asker.request(session=(session.id, 1)), 0.0)
    broker.cache.remove(broker.cache.sessions[session.id])
    broker.partition("foo").append(b"data")

    response = broker.response(parked, 0.0)

    assert (response.error_code, response.session_id, asker.names(response)) == (0, session.id, [("foo", 0)])
    assert summary(asker.fetch(session=(session.id, 2))) == (70, 0, 0)


def test_overtaken_while_parked() -> None:
    """Case 42: a second fetch is answered while the first fetch waits. The first fetch then gets error 71."""
    broker, asker = fresh()
    session = Session(asker, ("foo", 0))
    parked = broker.arrive(asker.request(session=(session.id, 1)), 0.0)
    session.epoch = 1
    assert session.names() == []
    broker.partition("foo").append(b"data")

    assert summary(broker.response(parked, 0.0)) == (71, session.id, 0)
    assert [data.high_watermark for data in entries(session.fetch())] == [1]


# Topic ids


def test_an_unknown_id_becomes_known() -> None:
    """Case 43: an unknown topic id gets error 100 until the topic exists. Then its entry has no error."""
    broker, asker = fresh(13)
    topic = broker.topics.pop("bar")
    session = Session(asker, ("foo", 0), ("bar", 0))
    assert (errors(session.first), session.id > 0) == ([0, 100], True)

    assert errors(session.fetch()) == [100]
    broker.topics["bar"] = topic
    response = session.fetch()
    assert (asker.names(response), errors(response)) == ([("bar", 0)], [0])


def test_a_resolved_name_sticks() -> None:
    """Case 44: a session keeps the name of a topic id, even after the topic is deleted.

    In the session, a deleted topic gets error 3, and a re-created topic gets error 103. A fetch without a
    session gets error 100 in both states.
    """
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
def test_forgetting_by_id_needs_no_name(first: bool, then: bool) -> None:
    """Case 45: a partition can be forgotten by its topic id, even if the broker does not know the topic."""
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


def test_a_recreated_topic_by_id_and_by_name() -> None:
    """Case 46: a topic is deleted and created again.

    A client that uses topic ids forgets the old id and adds the new one in one fetch, and gets no error. In a
    session of names, error 3 ends when the topic is created again.
    """
    broker, asker = fresh(13)
    session = Session(asker, ("foo", 0), ("bar", 0))
    old = asker.ids["bar"]
    broker.delete_topic("bar")
    broker.create_topic("bar", 1)
    asker.learn()

    request = asker.request(("bar", 0), forget=[("bar", 0)], session=(session.id, 1))
    gone = tuple(replace(topic, topic_id=old) for topic in request.forgotten)
    response = asker.send(replace(request, forgotten=gone))
    assert (asker.names(response), errors(response)) == ([("bar", 0)], [0])

    asker.version = 12
    named = Session(asker, ("foo", 0), ("bar", 0))
    broker.delete_topic("bar")
    assert errors(named.fetch()) == [3]
    broker.create_topic("bar", 1)
    recreated = named.fetch()
    assert (asker.names(recreated), errors(recreated)) == ([("bar", 0)], [0])
    assert named.names() == []


def test_keys_are_ids_or_else_names() -> None:
    """Case 47: a session finds its partitions by topic id, or below v13 by topic name.

    A fetch with new values for a partition does not add a second entry.
    """
    broker, asker = fresh(13)
    topic = broker.topics.pop("bar")
    session = Session(asker, ("bar", 0))
    broker.topics["bar"] = topic

    response = session.fetch(("bar", 0, 0, 5))
    assert (asker.names(response), session.order) == ([("bar", 0)], [("bar", 0)])
    asker.version = 11
    by_name = Session(asker, ("bar", 0), ("foo", 0))
    assert by_name.names(("bar", 0, 0, 5)) == []


# Throttling


@EVERY_LAYOUT
def test_a_throttled_fetch_makes_nothing_and_advances_the_rest(version: int) -> None:
    """Case 48: a throttled incremental fetch advances the epoch and updates the partitions. A throttled full
    fetch creates no session.
    """
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


@EVERY_LAYOUT
def test_a_session_error_hides_behind_a_throttle(version: int) -> None:
    """Case 49: if a fetch with a session error is throttled, the response does not show the error."""
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
