"""When sessions are worth it: the switch, the slots, and that they are never dearer than the wire."""

import pytest

from proxy.core.eligibility import WINDOW_SECONDS, SessionLimits
from proxy.core.events import SessionClosed
from proxy.core.fetches import STREAM_FROM
from tests.frames import Want, entry, fetch, fetch_response
from tests.playbook import HOT, SESSION_ID, Playbook, T, asks, full, passes

# --- the switch and the slots ---------------------------------------------------------------------


def test_sessions_off_from_the_beginning() -> None:
    play = Playbook(SessionLimits(max_sessions=10, on=False)).knows()
    for number in range(1, 7):
        passes(play, 16, T, number)
    assert play.connection.tally.passthrough["sessions off"] == 6


@pytest.mark.parametrize("by_client", [False, True])
def test_sessions_off_and_on_again_at_run_time(by_client: bool) -> None:
    play = Playbook().established(16, T)
    if by_client:
        play.sessions.off_for = frozenset({"c"})
    else:
        play.sessions.on = False
    asked = fetch(16, *T, correlation=10)
    play.client(asked).to_broker(asks(16, [], (SESSION_ID, -1), correlation=3), asked)
    play.broker(fetch_response(16, correlation_id=3)).nothing()
    play.broker(full(16, T, correlation_id=10)).to_client(full(16, T, correlation_id=10))
    assert play.sessions.used == 0
    assert play.events(SessionClosed) == [SessionClosed(session_id=SESSION_ID, reason="sessions off")]
    passes(play, 16, T, 11)
    play.sessions.on, play.sessions.off_for = True, frozenset()
    passes(play, 16, T, 12)
    passes(play, 16, T, 13)
    play.client(fetch(16, *T, correlation=14)).to_broker(asks(16, T, (0, 0), correlation=14))


def test_sessions_off_while_one_is_outstanding() -> None:
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=10)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=10))
    play.sessions.on = False
    second = fetch(16, *T, correlation=11)
    play.client(second).to_broker(second)
    play.broker(fetch_response(16, session_id=SESSION_ID, correlation_id=10)).to_client(
        full(16, T, correlation_id=10)
    )
    play.broker(full(16, T, correlation_id=11)).to_client(full(16, T, correlation_id=11))
    third = fetch(16, *T, correlation=12)
    play.client(third).to_broker(asks(16, [], (SESSION_ID, -1), correlation=3), third)


def test_another_client_id_is_not_switched_off() -> None:
    play = Playbook(SessionLimits(max_sessions=10, off_for=frozenset({"other"})))
    play.established(16, T)


def test_slots_are_shared_and_bounded() -> None:
    """Trap 22: session slots are shared, so there is a limit."""
    sessions = SessionLimits(max_sessions=1)
    first, second = Playbook(sessions).established(16, T), Playbook(sessions).knows()
    for number in range(1, 6):
        passes(second, 16, T, number)
    assert second.connection.tally.passthrough["no slot left"] >= 1
    first.close().takes_broker()
    assert sessions.used == 0
    second.client(fetch(16, *T, correlation=9)).to_broker(asks(16, T, (0, 0), correlation=9))


@pytest.mark.parametrize("code", [70, 71, 106])
def test_a_repaired_session_holds_one_slot(code: int) -> None:
    """Trap 22: session slots are shared, so there is a limit."""
    play = Playbook(SessionLimits(max_sessions=1)).established(16, T)
    for number in range(1, 4):
        play.client(fetch(16, *T, correlation=4)).takes_broker()
        play.broker(fetch_response(16, error_code=code, correlation_id=4)).takes_broker()
        play.broker(full(16, T, session_id=90 + number, correlation_id=4)).takes_client()
        assert play.sessions.used == 1
    play.connection.ended()
    assert play.sessions.used == 0


def test_no_slots_at_all() -> None:
    play = Playbook(SessionLimits(max_sessions=0)).knows()
    for number in range(1, 6):
        passes(play, 16, T, number)


# --- law 6 ----------------------------------------------------------------------------------------


def test_lists_that_churn_get_no_session() -> None:
    play = Playbook().knows()
    for number in range(1, 8):
        passes(play, 16, [(f"t{number}", 0), (f"u{number}", 1)], number)
    assert play.sessions.used == 0


def test_a_delta_not_smaller_than_the_fetch_goes_sessionless() -> None:
    """And leaves the session as it is."""
    play = Playbook().established(16, T)
    moved: list[Want] = [("x", 0), ("y", 1)]
    passes(play, 16, moved, 9)
    assert (play.connection.session_epoch, play.connection.session_partitions) == (1, 3)
    play.client(fetch(16, *T, correlation=10)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=10))


def test_sessions_that_cost_more_rest_for_a_while() -> None:
    """Every entry is news, in as many elements as entries: the session's response is larger than a
    full one."""
    wants: list[Want] = [(name, index) for name in ("1" * 200, "2" * 200) for index in range(9)]
    play = Playbook().established(12, wants)
    mixed = [("1" * 200, [entry(index, 6)]) for index in range(9)]
    others = [("2" * 200, [entry(index, 6)]) for index in range(9)]
    torn = [element for pair in zip(mixed, others, strict=True) for element in pair]
    play.client(fetch(12, *wants, correlation=9)).to_broker(asks(12, [], (SESSION_ID, 1), correlation=9))
    play.broker(fetch_response(12, *torn, session_id=SESSION_ID, correlation_id=9))
    play.to_client(full(12, wants, hw=6, correlation_id=9))
    passes(play, 12, wants, 10)
    assert play.connection.tally.passthrough["resting"] == 1
    play.now += WINDOW_SECONDS
    play.client(fetch(12, *wants, correlation=11)).to_broker(asks(12, [], (SESSION_ID, 2), correlation=11))


def test_a_session_that_nothing_uses_any_more_is_closed() -> None:
    """Eight fetches in a row that had no use for it: others may need its slot."""
    play = Playbook().established(16, T)
    for number in range(10, 17):
        passes(play, 16, [], number)
    asked = fetch(16, correlation=17)
    play.client(asked).to_broker(asks(16, [], (SESSION_ID, -1), correlation=3), asked)
    play.broker(fetch_response(16, correlation_id=3), full(16, [], correlation_id=17))
    play.to_client(full(16, [], correlation_id=17))
    assert play.sessions.used == 0


def test_a_client_of_which_all_is_busy_does_not_make_and_close_sessions_over_and_over() -> None:
    """Each fetch moves every offset: now and then two in a row look alike, and a session would pay once."""
    play = Playbook().established(16, T)
    for number in range(10, 17):
        passes(play, 16, [(name, index, number) for name, index, *_ in T], number)
    asked = fetch(16, *((name, index, 17) for name, index, *_ in T), correlation=17)
    play.client(asked).to_broker(asks(16, [], (SESSION_ID, -1), correlation=3), asked)
    play.broker(fetch_response(16, correlation_id=3), full(16, T, correlation_id=17)).takes_client()
    assert play.sessions.used == 0
    for number in range(18, 30):
        passes(play, 16, T, number)
    assert play.connection.tally.passthrough["resting"] == 12
    play.now += WINDOW_SECONDS
    for number in range(30, 32):
        passes(play, 16, T, number)
    play.client(fetch(16, *T, correlation=32)).to_broker(asks(16, T, (0, 0), correlation=32))


def test_fetches_pass_while_the_process_holds_all_that_it_may() -> None:
    """Their responses stream; the session stays."""
    play = Playbook().established(16, T)
    play.sessions.crowded = True
    for number in range(10, 30):
        passes(play, 16, T, number)
    play.sessions.crowded = False
    play.client(fetch(16, *T, correlation=30)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=30))
    assert play.connection.tally.passthrough["memory"] == 20


def test_a_client_that_is_catching_up_goes_without_and_streams() -> None:
    """Case 91."""
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    big = entry(1, 9, records=bytes(STREAM_FROM))
    play.broker(fetch_response(16, ("t", [big]), session_id=SESSION_ID, correlation_id=4))
    play.to_client(fetch_response(16, ("t", [entry(0, 5), big]), ("u", [entry(0, 5)]), correlation_id=4))
    asked = fetch(16, *HOT, correlation=5)
    play.client(asked).to_broker(asked)
    told = fetch_response(16, ("t", [entry(0, 5), big]), ("u", [entry(0, 5)]), correlation_id=5)
    for at in range(0, len(told), 1 << 18):
        play.broker(told[at : at + (1 << 18)])
        assert play.connection.buffered < 1000
        play.to_client(told[at : at + (1 << 18)])
    assert play.connection.tally.passthrough["catching up"] == 1
    passes(play, 16, HOT, 6)
    play.client(fetch(16, *HOT, correlation=7)).to_broker(asks(16, [HOT[1]], (SESSION_ID, 2), correlation=7))


def test_an_expanded_response_is_held_until_it_is_whole() -> None:
    """Case 91."""
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    big = entry(1, 9, records=bytes(100_000))
    told = fetch_response(16, ("t", [big]), session_id=SESSION_ID, correlation_id=4)
    play.broker(told[:60_000]).nothing()
    assert play.connection.buffered == 60_000
    play.broker(told[60_000:-1]).nothing()
    play.broker(told[-1:])
    play.to_client(fetch_response(16, ("t", [entry(0, 5), big]), ("u", [entry(0, 5)]), correlation_id=4))
    assert play.connection.buffered == 0
