"""The chaos run of groups finds the faults of members in their output."""

from collections.abc import Sequence

import pytest

from tools.soak.groups.history import MemberLife, read
from tools.soak.groups.judge import (
    BEYOND,
    EXCUSED,
    FENCED,
    IN_HAND,
    LOST,
    PROBLEMS,
    REFUSED,
    TWICE,
    TWICE_COMMITTED,
    UNORDERED,
    WRONG,
    GroupsVerdict,
    judge,
)

LOG = {(0, offset): "k" for offset in range(4)}


def life(name: str, *lines: str, killed_at: int = 0) -> MemberLife:
    did, errors = read(lines)
    return MemberLife(name, did, errors, killed_at)


def judged(*lives: MemberLife, gateway_down: Sequence[tuple[int, int]] = ()) -> dict[str, int]:
    """Return the counts of findings. Counts that every run has are left out."""
    verdict = GroupsVerdict()
    judge(LOG, lives, {0: gateway_down}, verdict)
    assert bool(verdict.problems) == any(verdict.counts[each] for each in PROBLEMS)
    return {
        name: verdict.counts[name]
        for name in (*PROBLEMS, EXCUSED, FENCED, REFUSED, IN_HAND)
        if verdict.counts[name]
    }


def records(first: int, *offsets: int) -> list[str]:
    return [f"record {first + at} 0 {offset} k" for at, offset in enumerate(offsets)]


def test_one_member_after_the_other() -> None:
    one = life("a", "assigned 1 0", *records(2, 0, 1), "committed 8 0 2", "revoked 9 0", "left 10")
    assert judged(one, life("b", "assigned 11 0", *records(12, 2, 3))) == {}


def test_what_came_twice_is_told_with_what_the_group_went_through() -> None:
    one = life(
        "a", "assigned 1 0", *records(2, 0), "committed 3 0 1", "assigned 5 0", *records(6, 0, 1, 2, 3)
    )
    verdict = GroupsVerdict()
    judge(LOG, [one], {0: [(4, 5)]}, verdict)
    story = "offset 0 of partition 0: 0.000 a assigned -1 -1; 0.000 a committed 0 1; "
    story += "0.000 gateway 0 gone until 0.000; 0.000 a assigned -1 -1"
    assert verdict.problems[-1] == story


def test_what_nobody_processed_is_lost() -> None:
    assert judged(life("a", "assigned 1 0", *records(2, 0, 1, 3))) == {LOST: 1}


def test_a_key_that_goes_to_and_fro_went_to_a_wrong_member() -> None:
    one = life("a", "assigned 1 0", *records(2, 0), *records(6, 2, 3))
    assert judged(one, life("b", "assigned 1 0", *records(4, 1))) == {WRONG: 1}


def test_a_key_that_comes_back_with_an_assignment_did_not() -> None:
    one = life("a", "assigned 1 0", *records(2, 0), "committed 3 0 1", "revoked 4 0", "assigned 8 0")
    two = life("b", "assigned 5 0", *records(6, 1), "committed 7 0 2", "revoked 8 0")
    one.did += read(records(9, 2, 3))[0]
    assert judged(one, two) == {}


def test_a_record_behind_a_later_one_is_out_of_order() -> None:
    one = life("a", "assigned 1 0", *records(2, 0, 2), "committed 5 0 3", "revoked 6 0")
    assert judged(one, life("b", "assigned 7 0", *records(8, 1, 3))) == {UNORDERED: 1}
    assert judged(life("a", "assigned 1 0", *records(2, 0, 2, 1, 3))) == {UNORDERED: 2}


@pytest.mark.parametrize("killed", [0, 5])
def test_what_was_committed_does_not_come_again(killed: int) -> None:
    one = life("a", "assigned 1 0", *records(2, 0, 1), "committed 4 0 2", killed_at=killed)
    assert judged(one, life("b", "assigned 6 0", *records(7, 1, 2, 3))) == {TWICE_COMMITTED: 1}


def test_what_was_not_committed_comes_again_after_a_kill_alone() -> None:
    lines = ("assigned 1 0", *records(2, 0, 1), "committed 4 0 1")
    two = life("b", "assigned 6 0", *records(7, 1, 2, 3))
    assert judged(life("a", *lines, killed_at=5), two) == {EXCUSED: 1}
    assert judged(life("a", *lines), two, gateway_down=[(5, 5)]) == {EXCUSED: 1}
    assert judged(life("a", *lines), two) == {TWICE: 1}
    assert judged(life("a", *lines, "fenced 5"), two) == {FENCED: 1}


def test_what_a_rebalance_kept_a_member_from_committing_may_come_again() -> None:
    lines = ("assigned 1 0", *records(2, 0, 1), "committed 4 0 1")
    two = life("b", "assigned 11 0", *records(12, 1, 2, 3))
    assert judged(life("a", *lines, "refused 5", "revoked 6 0", "refused 7", "left 8"), two) == {REFUSED: 1}
    # refused before the record, or in another assignment
    early = life("a", "assigned 1 0", "refused 2", *records(3, 0, 1), "committed 5 0 1", "left 8")
    assert judged(early, two) == {TWICE: 1}
    assert judged(life("a", *lines, "revoked 6 0", "assigned 7 0", "refused 8", "left 9"), two) == {TWICE: 1}
    # a later commit was accepted
    accepted = life("a", *lines, "refused 5", "committed 6 0 1", "left 8")
    assert judged(accepted, two) == {TWICE: 1}


def test_only_the_gateway_of_a_member_excuses_it() -> None:
    one = life("a", "assigned 1 0", *records(2, 0, 1), "committed 4 0 1")
    two = life("b", "assigned 6 0", *records(7, 1, 2, 3))
    one.gateway = 1
    for gateway, found in (0, TWICE), (1, EXCUSED):
        verdict = GroupsVerdict()
        judge(LOG, [one, two], {gateway: [(5, 5)]}, verdict)
        assert verdict.counts[found] == 1


def test_what_a_zombie_had_in_hand_is_its_own_concern() -> None:
    lines = ("assigned 1 0", *records(2, 0), "committed 3 0 1", *records(20, 1), "lost 22 0")
    one = life("a", *lines)
    one.stopped = [(4, 18, {0: 2})]
    two = life("b", "assigned 10 0", *records(11, 1, 2, 3))
    assert judged(one, two) == {IN_HAND: 1}
    one.did.insert(-1, read(records(21, 2))[0][0])
    assert judged(one, two) == {IN_HAND: 2, BEYOND: 1}


def test_what_is_processed_while_the_gateway_is_away_can_not_be_committed() -> None:
    one = life("a", "assigned 1 0", *records(12, 0), "assigned 20 0", *records(21, 0, 1, 2, 3))
    assert judged(one, gateway_down=[(10, 15)]) == {EXCUSED: 1}
    assert judged(one, gateway_down=[(5, 11)]) == {EXCUSED: 1}  # it has not joined again
    assert judged(one, gateway_down=[(22, 25)]) == {TWICE: 1}
    second = 10**9
    late = life("a", "assigned 1 0", *records(12 * second, 0), f"assigned {13 * second} 0")
    late.did += read(records(14 * second, 0, 1, 2, 3))[0]
    assert judged(late, gateway_down=[(second // 2, second)]) == {TWICE: 1}  # much later


def test_what_a_zombie_had_in_hand_when_it_was_told_to_leave_is_its_own_concern() -> None:
    lines = ("assigned 1 0", *records(2, 0), "committed 3 0 1", *records(20, 1))
    one, fenced = life("a", *lines, "left 22"), life("a", *lines, "fenced 21", "left 22")
    one.stopped = fenced.stopped = [(4, 18, {0: 2})]
    two = life("b", "assigned 10 0", *records(11, 1), "committed 12 0 2", *records(13, 2, 3))
    assert judged(fenced, two) == {IN_HAND: 1}
    assert judged(one, two)[WRONG] == 1


def test_a_stop_that_the_group_did_not_notice_excuses_nothing() -> None:
    lines = (*records(2, 0), "committed 3 0 1", *records(8, 1), *records(10, 3), "revoked 12 0")
    one = life("a", "assigned 1 0", *lines)
    one.stopped = [(4, 7, {0: 4})]
    assert judged(one, life("b", "assigned 1 0", *records(9, 2))) == {WRONG: 1}
