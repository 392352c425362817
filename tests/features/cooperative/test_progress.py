"""How far a member is in one partition."""

from math import inf
from typing import Final

from proxy.features.cooperative.assignment import ANY, Assignment
from proxy.features.cooperative.member import Member
from proxy.features.cooperative.plan import Lanes
from proxy.features.cooperative.positions import Positions
from proxy.features.cooperative.progress import Progress
from proxy.features.cooperative.tally import FilterTally
from proxy.protocol.fetch_request import MAX_PARTITIONS

ALONE, EARLIER, LATER = 100.0, 50.0, 150.0
"""The time from which on no other process serves the member, a time before it and one after it."""


def begun(offset: int = 10, at: float = EARLIER) -> Progress:
    progress = Progress(Assignment(anew_at=at))
    progress.told(offset)
    return progress


def test_commits_reach_as_far_as_records_were_sent() -> None:
    progress = begun()
    assert (progress.reaches(10), progress.reaches(11)) == (True, False)
    assert not progress.jumps(10, ALONE, EARLIER)
    progress.sends(20)
    progress.told(15)  # the application asks for what is committed
    assert (progress.reaches(20), progress.reaches(21)) == (True, False)
    assert progress.kept(Assignment()).reaches(20)
    assert progress.left(Assignment(), released=True).reaches(20)
    assert not Progress(Assignment()).reaches(0)


def test_whoever_is_told_nothing_jumps_unless_all_hashes_have_the_same_offset() -> None:
    progress = Progress(Assignment(anew_at=EARLIER))
    assert progress.jumps(0, ALONE, LATER)
    assert not progress.jumps(7, EARLIER, LATER)  # the application has set it
    assert progress.reaches(7)
    progress = Progress(Assignment(anew_at=EARLIER, untold=ANY))
    assert progress.reaches(7)
    assert not progress.jumps(5, ALONE, LATER)
    assert not progress.reaches(7)


def test_a_fetch_past_what_was_sent_is_a_jump() -> None:
    progress = begun()
    assert progress.jumps(11, ALONE, LATER)
    assert not progress.reaches(11)
    assert not progress.jumps(10, ALONE, EARLIER)
    assert progress.jumps(11, ALONE, LATER)


def test_a_first_fetch_from_before_the_committed_offset_is_a_jump() -> None:
    progress = begun()
    assert progress.jumps(5, ALONE, LATER)
    assert not progress.jumps(10, ALONE, EARLIER)
    assert not progress.jumps(5, ALONE, EARLIER)
    progress = begun(at=LATER)
    assert not progress.jumps(5, ALONE, LATER)


def test_an_application_that_seeks_while_no_other_process_serves_it_does_not_jump() -> None:
    progress = begun()
    assert not progress.jumps(10, ALONE, LATER)
    assert not progress.jumps(1000, ALONE, LATER)
    assert progress.reaches(1000)
    progress = begun(at=LATER)
    assert not progress.jumps(1000, ALONE, LATER)


def test_who_is_told_that_its_offset_is_out_of_range_begins_anywhere() -> None:
    progress = begun()
    progress.resets()
    assert progress.reaches(10)
    assert not progress.jumps(1000, ALONE, EARLIER)
    assert progress.reaches(1000)
    assert progress.jumps(2000, ALONE, EARLIER)


def test_without_a_committed_offset_a_member_begins_anywhere() -> None:
    progress = begun(-1)
    assert progress.reaches(1000)
    assert not progress.jumps(500, inf, EARLIER)
    assert (progress.reaches(500), progress.reaches(501)) == (True, False)
    progress = begun(-1)
    progress.told(10)
    assert progress.jumps(500, ALONE, EARLIER)


PLACE = (b"t", 0)
LANE: Final[Lanes] = {PLACE: ((0, 1 << 31),)}


def assigned() -> Member:
    member = Member(FilterTally())
    member.presence.session_seconds = 10.0
    member.presence.joins(object(), 0.0, 0.0)
    member.synced(Assignment(lanes=LANE, planned=LANE), 0.0)
    return member


def test_a_lane_that_comes_back_later_begins_where_the_client_is() -> None:
    """What others had processed when it got the lane for the first time does not count any more."""
    member = assigned()
    member.tracked(PLACE).start(Positions([0, 1 << 30], [10, 90]), member.ranges(PLACE))
    given: list[Lanes] = [{}, {}, LANE]
    for lanes in given:
        member.synced(Assignment(lanes=lanes, planned=lanes), 0.0, [PLACE])

    assert member.at(PLACE).started is None


def test_what_a_member_is_told_of_more_partitions_than_it_may_have_ends_no_connection() -> None:
    member = assigned()
    for number in range(MAX_PARTITIONS):
        member.tracked((b"old", number)).told(5)
    member.tracked(PLACE).told(5)

    member.fetches([(PLACE, 5)], 1.0)

    assert PLACE in member.progress


def test_the_end_of_a_partition_is_known_after_the_fetches_are_forgotten() -> None:
    member = assigned()
    progress = member.tracked(PLACE)
    progress.end, progress.delivered = 100, 50

    member.forget_fetches()

    assert (member.at(PLACE).end, member.at(PLACE).delivered) == (100, 50)
