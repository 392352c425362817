"""Conformance cases 14 to 49 as scripts. A script sends each fetch to two servers, whose responses must be
equal.

The assertions in a script check that the described event really happens.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import pytest

from tests.features.client_sessions.script import Script, summary
from tests.model.asker import entries, errors, sizes

Case: TypeAlias = Callable[[Script], None]

FOO: Final = (("foo", 0), ("foo", 1), ("foo", 2))
UNKNOWN: Final = 77
"""A session id that does not exist."""


def sessionless_and_close(script: Script) -> None:
    """Case 14: fetches without a session get responses without a session.

    A closed session is unknown from then on. The fetch that closes it still gets a response.
    """
    assert summary(script.fetch(("foo", 0), session=(0, -1))) == (0, 0, 1)
    assert summary(script.fetch(("foo", 0), session=(-1, -1))) == (0, 0, 1)
    made = script.session(("foo", 0))
    assert summary(script.fetch(session=(made, -1))) == (0, 0, 0)
    assert summary(script.fetch(session=(made, 1))) == (70, 0, 0)
    other = script.session(("foo", 0))
    assert summary(script.fetch(("foo", 1), session=(other, -1))) == (0, 0, 1)
    assert summary(script.fetch(session=(other, 1))) == (70, 0, 0)


def epoch_0_makes_a_session(script: Script) -> None:
    """Case 15: epoch 0 creates a session, and closes the session that the fetch names."""
    first = script.session(("foo", 0))
    second = script.session(("foo", 0), of=first)
    third = script.session(("foo", 0), of=UNKNOWN)

    assert len({first.number, second.number, third.number}) == 3
    assert summary(script.fetch(session=(first, 1))) == (70, 0, 0)
    assert summary(second.fetch()) == (0, second.number, 0)
    assert summary(third.fetch()) == (0, third.number, 0)


def wrong_epochs_and_ids(script: Script) -> None:
    """Case 16: wrong epochs and unknown ids get an error."""
    made = script.session(("foo", 0))

    assert summary(script.fetch(session=(made, 2))) == (71, 0, 0)
    assert summary(script.fetch(session=(made, -5))) == (71, 0, 0)
    assert summary(made.fetch()) == (0, made.number, 0)
    assert summary(script.fetch(session=(UNKNOWN, 1))) == (70, 0, 0)
    assert summary(script.fetch(session=(0, 1))) == (70, 0, 0)


def the_first_incremental_epoch_is_1(script: Script) -> None:
    """Case 17: the first incremental fetch has epoch 1."""
    made = script.session(("foo", 0))

    assert summary(script.fetch(session=(made, 2))) == (71, 0, 0)
    assert summary(made.fetch()) == (0, made.number, 0)
    assert summary(made.fetch()) == (0, made.number, 0)


def an_epoch_is_good_once(script: Script) -> None:
    """Case 18: an epoch can be used only once. A second fetch with this epoch gets an error."""
    made = script.session(("foo", 0))

    assert summary(made.fetch()) == (0, made.number, 0)
    assert summary(script.fetch(session=(made, 1))) == (71, 0, 0)
    assert summary(made.fetch()) == (0, made.number, 0)


def names_and_ids_do_not_mix(script: Script) -> None:
    """Case 19: a session of topic names refuses topic ids, and a session of topic ids refuses names."""
    version = script.version
    made = script.session(("foo", 0))

    script.at(13 if version <= 12 else 12)
    assert summary(script.fetch(session=(made, 1))) == (106, 0, 0)
    script.at(version)
    assert summary(made.fetch()) == (0, made.number, 0)


def versions_may_change_within_names_or_ids(script: Script) -> None:
    """Case 20: the version may change within a session, if both versions use names or both use ids."""
    made = script.session(*FOO)
    script.world.produce("foo", 1)

    for version in (7, 12, 9, 11) if script.version <= 12 else (17, 13, 18, 16):
        script.at(version)
        assert sizes(made.fetch()) > [0]
    assert made.names(("foo", 1, 1)) == []


def no_change_no_entries(script: Script) -> None:
    """Case 21: without changes, the response has no entries."""
    made = script.session(*FOO)

    assert script.names(made.first) == [*FOO]
    assert summary(made.fetch()) == (0, made.number, 0)
    assert summary(made.fetch()) == (0, made.number, 0)


def each_change_alone_includes_the_entry(script: Script) -> None:
    """Case 22: one change in a partition is enough to put its entry into the response.

    Each kind of change is tested alone. `test_manager` tests a change of the preferred replica, and
    divergence.
    """
    made = script.session(("foo", 0), ("foo", 1), isolation_level=1)

    with script.world.hold("foo", 1):
        moved = made.fetch()
        assert (script.names(moved), sizes(moved), entries(moved)[0].high_watermark) == ([("foo", 1)], [0], 1)
        assert made.names() == []
    data = made.fetch()
    assert (script.names(data), sizes(data) > [0]) == ([("foo", 1)], True)
    assert made.names(("foo", 1, 2)) == []
    script.world.delete_records("foo", 1, 1)
    assert [entry.log_start_offset for entry in entries(made.fetch())] == [1]
    assert made.names() == []


def what_is_not_compared(script: Script) -> None:
    """Case 23: a new last stable offset, or new values in the fetch, do not put the entry into the response.
    The new values are used for the read.
    """
    script.world.produce("foo", 0)
    script.world.produce("foo", 0)
    made = script.session(("foo", 0, 2))

    assert made.names(("foo", 0, 2, 1000)) == []
    assert sizes(made.fetch(("foo", 0, 1))) > [0]
    assert made.names(("foo", 0, 2)) == []
    script.world.produce("foo", 0)
    assert made.names() == [("foo", 0)]


def an_error_while_it_lasts(script: Script) -> None:
    """Cases 24 and 25: an error is sent with every response while it lasts.

    The partition is sent once more after the error, with the high watermark from before.
    """
    made = script.session(("foo", 0), ("bar", 9))
    assert errors(made.first) == [0, 3]
    assert errors(made.fetch()) == [3]
    assert errors(made.fetch(("foo", 0, 5))) == [1, 3]
    assert errors(made.fetch()) == [1, 3]

    again = made.fetch(("foo", 0, 0))
    assert (script.names(again), errors(again)) == ([("foo", 0), ("bar", 9)], [0, 3])
    assert entries(again)[0].high_watermark == 0
    assert errors(made.fetch()) == [3]


def an_added_partition_is_told_once(script: Script) -> None:
    """Case 26: an added partition is in the next response only."""
    made = script.session(("foo", 0))

    assert made.names(("bar", 0)) == [("bar", 0)]
    assert made.names() == []


def what_was_throttled_comes_next(script: Script) -> None:
    """Cases 27 and 30: a change that a throttled response left out is in the next response."""
    made = script.session(("foo", 0))

    with script.world.throttled("foo", 0):
        throttled = made.fetch(("bar", 0))
        assert (throttled.throttle_time_ms, summary(throttled)) == (1, (0, made.number, 0))
    assert made.names() == [("foo", 0), ("bar", 0)]


def order_of_the_request_then_of_the_session(script: Script) -> None:
    """Case 31: a full response has the order of the request. Later responses have the session's order.

    Errors that the broker found before reading are last.
    """
    made = script.session(("bar", 1), ("foo", 9), ("foo", 0), ("foo", 1), ("bar", 9))
    first = [("bar", 1), ("foo", 0), ("foo", 1), ("foo", 9), ("bar", 9)]

    assert script.names(made.first) == first
    for name, index in (("foo", 1), ("bar", 1), ("foo", 0)):
        script.world.produce(name, index)
    assert made.names() == first


def records_go_last_and_other_changes_stay(script: Script) -> None:
    """Case 32: a partition with records moves to the end of the order. A partition with other changes keeps
    its place.
    """
    made = script.session(*FOO, isolation_level=1)

    with script.world.hold("foo", 0):
        script.world.produce("foo", 1)
        assert made.names() == [("foo", 0), ("foo", 1)]
        # foo-0, foo-2, foo-1
        script.world.produce("foo", 2)
        assert made.names() == [("foo", 2), ("foo", 1)]
    assert made.names() == [("foo", 0), ("foo", 2), ("foo", 1)]


def two_with_records_keep_their_order(script: Script) -> None:
    """Case 33: two partitions with records move to the end, and keep their order."""
    made = script.session(("foo", 2), ("foo", 1), ("foo", 0))
    for index in (1, 2):
        script.world.produce("foo", index)

    assert made.names() == [("foo", 2), ("foo", 1)]
    script.world.produce("foo", 0)
    assert made.names() == [("foo", 0), ("foo", 2), ("foo", 1)]
    # A limit for one: whoever was served goes last, so that each has its turn.
    turns = [script.names(made.fetch(max_bytes=1))[0] for _ in range(4)]
    assert turns == [("foo", 0), ("foo", 2), ("foo", 1), ("foo", 0)]


def new_values_keep_the_place_forgetting_loses_it(script: Script) -> None:
    """Case 34: a partition with new values keeps its place.

    A partition that is forgotten and added again moves to the end.
    """
    for index in range(3):
        script.world.produce("foo", index)
    made = script.session(*((name, index, 1) for name, index in FOO))

    assert made.names(("foo", 0, 1, 77)) == []
    assert made.names(forget=[("foo", 0)]) == []
    assert made.names(("foo", 0, 1)) == [("foo", 0)]
    script.world.produce("foo", 0)
    script.world.produce("foo", 1)
    assert made.names() == [("foo", 1), ("foo", 0)]


def added_and_forgotten_at_once_and_listed_twice(script: Script) -> None:
    """Case 35: a partition that is added and forgotten in one fetch is not in the session.

    A partition that is listed twice keeps its first position, and gets its last values.
    """
    script.world.produce("bar", 1)
    made = script.session(("foo", 0))

    assert made.names(("bar", 0), ("foo", 0), forget=[("bar", 0)]) == []
    assert sizes(made.fetch(("bar", 1, 0), ("bar", 0), ("bar", 1, 1))) == [0, 0]
    assert made.names() == []
    twice = script.session(("bar", 1, 1), ("foo", 0), ("bar", 1, 0))
    assert (script.names(twice.first), sizes(twice.first)[0] > 0) == ([("bar", 1), ("foo", 0)], True)


def only_neighbours_share_an_element(script: Script) -> None:
    """Case 36: only consecutive partitions of a topic share a topic element, in lists and in responses."""
    made = script.session(("foo", 0), ("bar", 0), ("foo", 1), ("foo", 2))
    assert [len(topic.partitions) for topic in made.first.topics] == [1, 1, 2]

    for index in range(3):
        script.world.produce("foo", index)
    assert [len(topic.partitions) for topic in made.fetch().topics] == [3]


def one_goes_one_comes(script: Script) -> None:
    """Case 37: one fetch removes a partition and adds another one. The removed one is not sent any more."""
    made = script.session(("foo", 0), ("foo", 1))

    assert made.names(("bar", 0), forget=[("foo", 0)]) == [("bar", 0)]
    for name, index in (("foo", 0), ("bar", 0), ("foo", 1)):
        script.world.produce(name, index)
    assert made.names() == [("foo", 1), ("bar", 0)]


def forgetting_everything_closes(script: Script) -> None:
    """Case 38: forgetting all partitions closes the session. A partition added and forgotten in the same
    fetch is sent once.
    """
    made = script.session(*FOO)
    assert summary(made.fetch(forget=FOO)) == (0, 0, 0)
    assert summary(made.fetch()) == (70, 0, 0)

    other = script.session(("foo", 0))
    last = other.fetch(("bar", 0), forget=[("foo", 0), ("bar", 0)])
    assert (summary(last), script.names(last)) == ((0, 0, 1), [("bar", 0)])
    assert summary(other.fetch()) == (70, 0, 0)


def all_but_the_added_one(script: Script) -> None:
    """Case 39: one fetch adds a partition and forgets all others. The response has only the added one."""
    made = script.session(*FOO)

    response = made.fetch(("bar", 0), forget=FOO)
    assert (summary(response), script.names(response)) == ((0, made.number, 1), [("bar", 0)])
    assert summary(made.fetch()) == (0, made.number, 0)


def an_empty_session(script: Script) -> None:
    """Case 40: a session without partitions ends with its next fetch, unless this fetch adds a partition."""
    made = script.session()
    assert summary(made.fetch()) == (0, 0, 0)
    assert summary(made.fetch()) == (70, 0, 0)

    other = script.session()
    assert other.names(("foo", 0)) == [("foo", 0)]
    assert summary(other.fetch()) == (0, other.number, 0)


def closed_while_parked(script: Script) -> None:
    """Case 41: a session is closed while its fetch waits at the broker. This fetch still gets its records.

    The next fetch of the session gets error 70.
    """
    made = script.session(("foo", 0))

    finish = script.begin(session=(made, 1), max_wait_ms=20_000)
    script.world.parked()
    assert summary(script.fetch(session=(made, -1))) == (0, 0, 0)
    script.world.produce("foo", 0)
    response = finish()
    assert (summary(response), sizes(response) > [0]) == ((0, made.number, 1), True)
    assert summary(script.fetch(session=(made, 2))) == (70, 0, 0)


def overtaken_while_parked(script: Script) -> None:
    """Case 42: another fetch advances the epoch while a fetch waits at the broker.

    The waiting fetch then gets error 71.
    """
    made = script.session(("foo", 0))

    finish = script.begin(session=(made, 1), max_wait_ms=20_000)
    script.world.parked()
    assert summary(script.fetch(session=(made, 2))) == (0, made.number, 0)
    script.world.produce("foo", 0)
    assert summary(finish()) == (71, made.number, 0)
    told = script.fetch(session=(made, 3))
    assert [data.high_watermark for data in entries(told)] == [1]


def a_deleted_topic_by_name(script: Script) -> None:
    """Cases 24, 25 and 46: a topic is deleted and created again, with topic names. While the topic is gone,
    its partition has an error. The partition is sent once when the topic is back.
    """
    made = script.session(("foo", 0), ("bar", 0))
    script.world.delete("bar")

    assert errors(made.fetch()) == [3]
    assert errors(made.fetch()) == [3]
    script.create("bar", 1)
    back = made.fetch()
    assert (errors(back), entries(back)[0].high_watermark) == ([0], 0)
    assert made.names() == []


def an_unknown_id(script: Script) -> None:
    """Cases 43, 45 and 47: a partition with an unknown topic id is still in the session.

    The partition can be forgotten by its topic id.
    """
    script.ids["never"] = bytes(range(16))
    made = script.session(("foo", 0), ("never", 0), ("bar", 0))
    assert (errors(made.first), script.names(made.first)[2]) == ([0, 0, 100], ("never", 0))

    assert errors(made.fetch()) == [100]
    assert errors(made.fetch(("never", 0, 7))) == [100]
    assert errors(made.fetch(forget=[("never", 0)])) == []
    script.world.produce("foo", 0)
    assert made.names() == [("foo", 0)]


def a_topic_made_anew_by_id(script: Script) -> None:
    """Cases 45 and 46: a topic is deleted and created again, with topic ids. One fetch forgets the old id and
    adds the new one.
    """
    made = script.session(("foo", 0), ("bar", 0))
    script.ids["old"] = script.ids["bar"]
    script.world.delete("bar")
    script.create("bar", 1)

    again = made.fetch(("bar", 0), forget=[("old", 0)])
    assert (script.names(again), errors(again)) == ([("bar", 0)], [0])
    assert made.names() == []


def a_throttled_full_fetch_makes_nothing(script: Script) -> None:
    """Case 48: a throttled full fetch creates no session."""
    made = script.session(("foo", 0))

    with script.world.throttled("foo", 0):
        full = script.fetch(("foo", 0), session=(made, 0))
        assert (full.throttle_time_ms, summary(full)) == (1, (0, 0, 0))
    assert summary(script.fetch(session=(made, 1))) == (70, 0, 0)


BY_NAME: Final = (7, 11, 12)
BY_ID: Final = (13, 16, 18)

CASES: Final[dict[Case, tuple[int, ...]]] = {
    sessionless_and_close: (*BY_NAME, *BY_ID),
    epoch_0_makes_a_session: (*BY_NAME, *BY_ID),
    wrong_epochs_and_ids: (*BY_NAME, *BY_ID),
    the_first_incremental_epoch_is_1: (*BY_NAME, *BY_ID),
    an_epoch_is_good_once: (*BY_NAME, *BY_ID),
    names_and_ids_do_not_mix: (*BY_NAME, *BY_ID),
    versions_may_change_within_names_or_ids: (*BY_NAME, *BY_ID),
    no_change_no_entries: (*BY_NAME, *BY_ID),
    each_change_alone_includes_the_entry: (*BY_NAME, *BY_ID),
    what_is_not_compared: (*BY_NAME, *BY_ID),
    an_error_while_it_lasts: (*BY_NAME, *BY_ID),
    an_added_partition_is_told_once: (*BY_NAME, *BY_ID),
    what_was_throttled_comes_next: (*BY_NAME, *BY_ID),
    order_of_the_request_then_of_the_session: (*BY_NAME, *BY_ID),
    records_go_last_and_other_changes_stay: (*BY_NAME, *BY_ID),
    two_with_records_keep_their_order: (*BY_NAME, *BY_ID),
    new_values_keep_the_place_forgetting_loses_it: (*BY_NAME, *BY_ID),
    added_and_forgotten_at_once_and_listed_twice: (*BY_NAME, *BY_ID),
    only_neighbours_share_an_element: (*BY_NAME, *BY_ID),
    one_goes_one_comes: (*BY_NAME, *BY_ID),
    forgetting_everything_closes: (*BY_NAME, *BY_ID),
    all_but_the_added_one: (*BY_NAME, *BY_ID),
    an_empty_session: (*BY_NAME, *BY_ID),
    closed_while_parked: (*BY_NAME, *BY_ID),
    overtaken_while_parked: (*BY_NAME, *BY_ID),
    a_deleted_topic_by_name: BY_NAME,
    an_unknown_id: BY_ID,
    a_topic_made_anew_by_id: BY_ID,
    a_throttled_full_fetch_makes_nothing: (*BY_NAME, *BY_ID),
}
"""The cases, each with the Fetch versions to run it with.

Other cases, and intended differences, are in `test_manager`: 28 and 29 (not possible with a live broker), 44
(a resolved name is kept), 49 (a throttled response hides session errors).
"""


def every_case(*versions: int, nightly: tuple[int, ...] = ()) -> pytest.MarkDecorator:
    """Run a test once for each case and each of its versions. With `versions`, run only these versions.

    Args:
        nightly: the versions that only `make test-all` runs.
    """
    runs = [(case, version) for case, own in CASES.items() for version in own if version in (versions or own)]
    return pytest.mark.parametrize(
        ("case", "version"),
        [
            pytest.param(
                case,
                version,
                marks=pytest.mark.nightly if version in nightly else (),
                id=f"{case.__name__}-{version}",
            )
            for case, version in runs
        ],
    )
