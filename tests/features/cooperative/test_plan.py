"""How the partitions and key ranges of a group are divided among its members."""

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from proxy.features.cooperative.key_hash import SPACE
from proxy.features.cooperative.plan import Joined, Lanes, at_once, cut, plan
from proxy.features.cooperative.positions import TopicPartition
from proxy.features.cooperative.ranges import FULL

TOPIC = b"orders"
A, B, C, D = (Joined(name, frozenset({TOPIC})) for name in (b"a", b"b", b"c", b"d"))


def test_the_space_is_cut_into_equal_parts() -> None:
    assert cut(1) == list(FULL)
    assert cut(3) == [(0, 1431655764), (1431655765, 2863311529), (2863311530, SPACE - 1)]


def test_as_many_partitions_as_subscribers_stay_as_they_were_assigned() -> None:
    """Case C37: with at least as many partitions as members, the leader's assignment is not changed."""
    assigned: dict[bytes, list[TopicPartition]] = {b"a": [(TOPIC, 1)], b"b": [(TOPIC, 0), (TOPIC, 2)]}
    assert plan([A, B], assigned, shares=True) == {
        b"a": {(TOPIC, 1): FULL},
        b"b": {(TOPIC, 0): FULL, (TOPIC, 2): FULL},
    }


def test_more_subscribers_share() -> None:
    lanes = plan([A, B, C], {b"a": [(TOPIC, 0)], b"b": [(TOPIC, 1)], b"c": []}, shares=True)
    assert lanes == {
        b"a": {(TOPIC, 0): (cut(2)[0],)},
        b"b": {(TOPIC, 1): FULL},
        b"c": {(TOPIC, 0): (cut(2)[1],)},
    }


def test_in_doubt_nothing_is_shared() -> None:
    assigned: dict[bytes, list[TopicPartition]] = {b"a": [(TOPIC, 0)], b"b": []}
    assert plan([A, B], assigned, shares=False) == {b"a": {(TOPIC, 0): FULL}, b"b": {}}


def test_a_topic_that_few_subscribe_to_is_not_shared_with_others() -> None:
    other = Joined(b"z", frozenset({b"other"}))
    lanes = plan([A, B, other], {b"a": [(TOPIC, 0)], b"b": [], b"z": [(b"other", 0)]}, shares=True)
    assert lanes[b"z"] == {(b"other", 0): FULL}
    assert set(lanes[b"a"]) == set(lanes[b"b"]) == {(TOPIC, 0)}


def again(lanes: dict[bytes, Lanes], gone: set[bytes], come: list[bytes]) -> list[Joined]:
    stay = [
        Joined(name, frozenset({TOPIC}), {place: ranges[0][0] for place, ranges in mine.items()}, mine)
        for name, mine in lanes.items()
        if name not in gone
    ]
    return [*stay, *(Joined(name, frozenset({TOPIC})) for name in come)]


def assigned(members: list[Joined], partitions: int) -> dict[bytes, list[TopicPartition]]:
    found: dict[bytes, list[TopicPartition]] = {member.member_id: [] for member in members}
    for number in range(partitions):
        found[members[number % len(members)].member_id].append((TOPIC, number))
    return found


@given(
    partitions=st.integers(1, 5),
    first=st.integers(1, 12),
    changes=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=4),
)
def test_each_hash_has_one_owner_and_members_stay_where_they_were(
    partitions: int, first: int, changes: list[tuple[int, int]]
) -> None:
    names = [b"m%d" % number for number in range(100)]
    members = [Joined(names.pop(), frozenset({TOPIC})) for _ in range(first)]
    lanes = plan(members, assigned(members, partitions), shares=True)
    for leaving, coming in changes:
        gone = set(list(lanes)[:leaving])
        before = lanes
        members = again(lanes, gone, [names.pop() for _ in range(coming)])
        if not members:
            return
        lanes = plan(members, assigned(members, partitions), shares=True)
        check(lanes, partitions)
        if gone == set() and not coming and len(members) > partitions:
            assert lanes == before
            for member in members:
                assert at_once(member, lanes[member.member_id], members) == lanes[member.member_id]
    check(lanes, partitions)


def check(lanes: dict[bytes, Lanes], partitions: int) -> None:
    """Check that each hash of each partition has one owner, and that the numbers of members per partition
    differ by at most one.
    """
    ranges: dict[TopicPartition, list[tuple[int, int]]] = {}
    for mine in lanes.values():
        for place, some in mine.items():
            ranges.setdefault(place, []).extend(some)
    assert sorted(ranges) == [(TOPIC, number) for number in range(partitions)]
    for each in ranges.values():
        shared = sorted(each)
        assert (shared[0][0], shared[-1][1]) == (0, SPACE - 1)
        assert all(low[1] + 1 == high[0] for low, high in pairwise(shared))
    if len(lanes) > partitions:
        numbers = Counter(place for mine in lanes.values() for place in mine)
        assert all(len(mine) == 1 for mine in lanes.values())
        assert max(numbers.values()) - min(numbers.values()) <= 1


def test_ranges_that_are_new_to_a_member_come_after_it_has_given_up_its_position() -> None:
    place = (TOPIC, 0)
    low, high = cut(2)
    shrinks = Joined(b"a", frozenset({TOPIC}), held={place: FULL})
    assert at_once(shrinks, {place: (low,)}, [shrinks]) == {place: (low,)}
    grows = Joined(b"a", frozenset({TOPIC}), held={place: (low,)})
    assert at_once(grows, {place: FULL}, [grows]) == {}
    assert at_once(grows, {place: (high,)}, [grows]) == {}
    begins = Joined(b"a", frozenset({TOPIC}), held={(TOPIC, 1): FULL})
    assert at_once(begins, {place: (high,)}, [begins]) == {place: (high,)}
    unknown = Joined(b"a", frozenset({TOPIC}), unknown=True)
    assert at_once(unknown, {place: (high,)}, [unknown]) == {}


def test_who_goes_on_while_the_group_rebalances_gives_up_what_changes() -> None:
    """With incremental rebalancing, a member first gives up partitions whose key ranges change. Its client
    still has records of them that it has not committed.
    """
    place = (TOPIC, 0)
    low, high = cut(2)
    begins = Joined(b"b", frozenset({TOPIC}))
    has = Joined(b"a", frozenset({TOPIC}), held={place: FULL}, owned=frozenset({place}))
    assert at_once(has, {place: (low,)}, [has, begins]) == {}
    assert at_once(begins, {place: (high,)}, [has, begins]) == {}
    gave_up = Joined(b"a", frozenset({TOPIC}))
    assert at_once(gave_up, {place: (low,)}, [gave_up, begins]) == {place: (low,)}
    assert at_once(begins, {place: (high,)}, [gave_up, begins]) == {place: (high,)}
    keeps = Joined(b"a", frozenset({TOPIC}), held={place: (low,)}, owned=frozenset({place}))
    assert at_once(keeps, {place: (low,)}, [keeps, begins]) == {place: (low,)}
    assert at_once(begins, {place: (high,)}, [keeps, begins]) == {place: (high,)}


def test_a_partition_that_the_leader_leaves_out_until_it_is_given_up_is_shared_nevertheless() -> None:
    members = [Joined(b"a", frozenset({TOPIC}), owned=frozenset({(TOPIC, 0), (TOPIC, 1)})), B, C]
    lanes = plan(members, {b"a": [(TOPIC, 0)], b"b": [], b"c": []}, shares=True)
    check(lanes, 2)
    few = plan(members[:2], {b"a": [(TOPIC, 0)], b"b": []}, shares=True)
    assert few == {b"a": {(TOPIC, 0): FULL}, b"b": {}}


def test_who_had_all_of_a_partition_in_a_plain_group_still_has_it() -> None:
    place = (TOPIC, 0)
    low, high = cut(2)
    had = Joined(b"a", frozenset({TOPIC}), owned=frozenset({place}))
    begins = Joined(b"b", frozenset({TOPIC}))
    assert at_once(had, {place: (low,)}, [had, begins]) == {}
    assert at_once(begins, {place: (high,)}, [had, begins]) == {}
