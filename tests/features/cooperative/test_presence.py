"""Where a member's coordinator connection is, and how far its partitions were sent."""

from math import inf

from proxy.features.cooperative.presence import ABSENT_SECONDS, Presence, Progress

PLACE = b"orders", 0
ALONE, EARLIER, LATER = 100.0, 50.0, 150.0
"""The time from which on no other process serves the member, a time before it and one after it."""


def test_a_member_is_here_until_some_time_after_its_connection_has_ended() -> None:
    presence, connection = Presence(), object()
    assert not presence.is_here(0.0)
    presence.joins(connection, 10.0, 45.0)
    presence.ends(object(), 20.0)
    assert presence.is_here(1000.0)
    presence.ends(connection, 1000.0)
    assert presence.is_here(1000.0 + ABSENT_SECONDS)
    assert not presence.is_here(1000.1 + ABSENT_SECONDS)


def test_a_heartbeat_on_another_connection_takes_the_place_of_the_first_one() -> None:
    presence, first, second = Presence(), object(), object()
    presence.joins(first, 10.0, 45.0)
    presence.beats(second)
    presence.ends(first, 20.0)
    assert presence.is_here(1000.0)
    assert presence.since == 10.0
    presence.ends(second, 1000.0)
    assert not presence.is_here(2000.0)


def test_whoever_joins_on_another_connection_may_have_been_elsewhere() -> None:
    presence, first, second = Presence(), object(), object()
    presence.joins(first, 10.0, 45.0)
    presence.joins(first, 20.0, 45.0)
    assert presence.since == 10.0
    presence.joins(second, 30.0, 45.0)
    assert (presence.since, presence.alone_from) == (30.0, 75.0)
    presence.ends(second, 40.0)
    presence.joins(second, 50.0, 45.0)
    assert presence.since == 50.0


def begun(offset: int = 10, at: float = EARLIER) -> Progress:
    progress = Progress()
    progress.begin((), at, anywhere=False)
    progress.told(PLACE, offset)
    return progress


def test_commits_reach_as_far_as_records_were_sent() -> None:
    progress = begun()
    assert (progress.reaches(PLACE, 10), progress.reaches(PLACE, 11)) == (True, False)
    assert not progress.jumps(PLACE, 10, ALONE, EARLIER)
    progress.sends(PLACE, 20)
    progress.told(PLACE, 15)  # the application asks for what is committed
    assert (progress.reaches(PLACE, 20), progress.reaches(PLACE, 21)) == (True, False)
    progress.begin({PLACE}, EARLIER, anywhere=False)
    assert progress.reaches(PLACE, 20)
    progress.begin((), EARLIER, anywhere=False)
    assert not progress.reaches(PLACE, 0)


def test_whoever_is_told_nothing_jumps_unless_all_hashes_have_the_same_offset() -> None:
    progress = Progress()
    progress.begin((), EARLIER, anywhere=False)
    assert progress.jumps(PLACE, 0, ALONE, LATER)
    assert not progress.jumps(PLACE, 7, EARLIER, LATER)  # the application has set it
    assert progress.reaches(PLACE, 7)
    progress.begin((), EARLIER, anywhere=True)
    assert progress.reaches(PLACE, 7)
    assert not progress.jumps(PLACE, 5, ALONE, LATER)
    assert not progress.reaches(PLACE, 7)


def test_a_fetch_past_what_was_sent_is_a_jump() -> None:
    progress = begun()
    assert progress.jumps(PLACE, 11, ALONE, LATER)
    assert not progress.reaches(PLACE, 11)
    assert not progress.jumps(PLACE, 10, ALONE, EARLIER)
    assert progress.jumps(PLACE, 11, ALONE, LATER)


def test_a_first_fetch_from_before_the_committed_offset_is_a_jump() -> None:
    progress = begun()
    assert progress.jumps(PLACE, 5, ALONE, LATER)
    assert not progress.jumps(PLACE, 10, ALONE, EARLIER)
    assert not progress.jumps(PLACE, 5, ALONE, EARLIER)
    progress = begun(at=LATER)
    assert not progress.jumps(PLACE, 5, ALONE, LATER)


def test_an_application_that_seeks_while_no_other_process_serves_it_does_not_jump() -> None:
    progress = begun()
    assert not progress.jumps(PLACE, 10, ALONE, LATER)
    assert not progress.jumps(PLACE, 1000, ALONE, LATER)
    assert progress.reaches(PLACE, 1000)
    progress = begun(at=LATER)
    assert not progress.jumps(PLACE, 1000, ALONE, LATER)


def test_who_is_told_that_its_offset_is_out_of_range_begins_anywhere() -> None:
    progress = begun()
    progress.resets(PLACE)
    assert progress.reaches(PLACE, 10)
    assert not progress.jumps(PLACE, 1000, ALONE, EARLIER)
    assert progress.reaches(PLACE, 1000)
    assert progress.jumps(PLACE, 2000, ALONE, EARLIER)


def test_without_a_committed_offset_a_member_begins_anywhere() -> None:
    progress = begun(-1)
    assert progress.reaches(PLACE, 1000)
    assert not progress.jumps(PLACE, 500, inf, EARLIER)
    assert (progress.reaches(PLACE, 500), progress.reaches(PLACE, 501)) == (True, False)
    progress = begun(-1)
    progress.told(PLACE, 10)
    assert progress.jumps(PLACE, 500, ALONE, EARLIER)
