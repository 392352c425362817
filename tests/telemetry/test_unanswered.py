"""The gateway finds since when a broker's responses are late, over all connections and processes."""

from proxy.telemetry.unanswered import HUNG_SECONDS, Owed, Unanswered

AT = 100.0
LATE = AT + HUNG_SECONDS + 1


def test_a_broker_is_in_trouble_when_it_is_late_by_more_than_it_may() -> None:
    known = Unanswered()
    known.look({1: Owed(outstanding=3, late_since=AT), 2: Owed(outstanding=1)}, LATE)
    assert known.hung(AT + HUNG_SECONDS) == {}
    assert known.hung(LATE) == {1: AT}
    assert (known.outstanding(1), known.outstanding(2), known.outstanding(7)) == (3, 1, 0)


def test_a_response_that_clients_no_longer_wait_for_stays_due() -> None:
    known = Unanswered()
    known.look({1: Owed(outstanding=1, late_since=AT)}, AT + 4)
    known.look({}, AT + 6)  # the client has given up
    known.look({1: Owed(outstanding=1, late_since=AT + 7)}, AT + 8)
    known.look({1: Owed(outstanding=1)}, AT + 10)
    assert known.hung(LATE) == {1: AT}
    known.look({1: Owed(responded_at=AT + 12)}, AT + 13)
    assert known.hung(LATE) == {}


def test_what_one_client_waits_for_is_late_although_others_get_theirs() -> None:
    known = Unanswered()
    known.look({1: Owed(outstanding=2, late_since=AT, responded_at=LATE)}, LATE)
    assert known.hung(LATE) == {1: AT}
    known.look({1: Owed(outstanding=1, responded_at=LATE)}, LATE + 1)
    assert known.hung(LATE + 1) == {}


def test_a_broker_that_nobody_asks_is_forgotten() -> None:
    known = Unanswered()
    known.look({1: Owed(outstanding=1, late_since=AT), 2: Owed(outstanding=1, late_since=AT)}, AT)
    known.look({2: Owed(outstanding=1, late_since=AT)}, AT + 50)
    known.forget(AT)
    assert set(known.hung(LATE)) == {1, 2}
    known.forget(AT + 1)
    assert set(known.hung(LATE)) == {2}
