"""Where a member's connection to its coordinator is."""

from proxy.features.cooperative.presence import ABSENT_SECONDS, Presence


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
