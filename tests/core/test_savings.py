"""Law 6, window by window, and the slots that a process takes."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.eligibility import ALIKE_FETCHES, MAX_REST_WINDOWS, WINDOW_SECONDS, Savings, SessionLimits


def test_a_session_is_asked_for_after_fetches_that_were_worth_it() -> None:
    savings = Savings()
    assert [savings.promising(worth) for worth in (True, False, True, True, True)] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert ALIKE_FETCHES == 2


def test_what_saves_goes_on() -> None:
    savings = Savings()
    assert not any(savings.settle(100, float(now)) for now in range(50))
    assert not savings.resting(50.0)


def test_what_costs_rests_for_a_window() -> None:
    savings = Savings()
    assert not savings.settle(10, 0.0)
    assert not savings.settle(-10, 1.0)
    assert savings.settle(-1, 2.0)
    assert savings.resting(2.0)
    assert savings.resting(2.0 + WINDOW_SECONDS - 0.001)
    assert not savings.resting(2.0 + WINDOW_SECONDS)


def test_what_was_saved_in_an_earlier_window_pays_for_nothing() -> None:
    """Never dearer than the wire, over any minute: an hour of savings buys no dear minute."""
    savings = Savings()
    savings.settle(1_000_000, 0.0)
    assert savings.settle(-1, WINDOW_SECONDS)


def test_each_rest_in_a_row_is_twice_as_long() -> None:
    savings = Savings()
    now, rests = 0.0, []
    for _ in range(9):
        assert savings.settle(-1, now)
        rest = next(
            n for n in range(1, 2 * MAX_REST_WINDOWS) if not savings.resting(now + n * WINDOW_SECONDS)
        )
        rests.append(rest)
        now += rest * WINDOW_SECONDS
    assert rests == [1, 2, 4, 8, 16, 32, 64, 64, 64]


def test_a_window_that_saved_ends_the_row() -> None:
    savings = Savings()
    savings.settle(-1, 0.0)
    savings.settle(-1, 10.0)
    savings.settle(5, 30.0)
    savings.settle(5, 40.0)  # the window of before ended with something saved
    assert savings.settle(-6, 41.0)
    assert savings.resting(41.0)
    assert not savings.resting(51.0)
    assert repr(savings) == "<Savings balance=0 rest=2>"


@given(st.lists(st.tuples(st.integers(-500, 500), st.floats(0, 3)), max_size=60))
def test_within_a_window_no_more_is_lost_than_by_one_exchange(steps: list[tuple[int, float]]) -> None:
    """A response can't be judged before it comes: the loss is that of the one that tipped the sum."""
    savings, now, window, total = Savings(), 0.0, 0.0, 0
    for saved, later in steps:
        now += later
        if savings.resting(now):
            continue
        if now >= window:
            window, total = now + WINDOW_SECONDS, 0
        total += saved
        rests = savings.settle(saved, now)
        assert rests is (total < 0)
        assert total >= min(saved, 0)
        if rests:
            total = 0


def test_slots_are_bounded() -> None:
    """Trap 22: session slots are shared, so there is a limit."""
    sessions = SessionLimits(max_sessions=2)
    assert [sessions.reserve() for _ in range(3)] == [True, True, False]
    sessions.release()
    assert (sessions.used, sessions.reserve(), sessions.reserve()) == (1, True, False)
    assert repr(sessions) == "<SessionLimits used=2/2 on=True>"


def test_no_slots_is_no_sessions() -> None:
    assert not SessionLimits(max_sessions=0).reserve()


def test_the_switch_for_all_and_by_client_id() -> None:
    sessions = SessionLimits(max_sessions=1, off_for=frozenset({"old"}))
    assert (sessions.allowed("old"), sessions.allowed("new")) == (False, True)
    sessions.on = False
    assert not sessions.allowed("new")
    sessions.on, sessions.off_for = True, frozenset()
    assert sessions.allowed("old")
