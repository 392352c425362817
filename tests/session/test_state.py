"""The tables of session states: each listed transition works, and any other event raises an error."""

from itertools import product

import pytest

from proxy.session.decision import Incremental
from proxy.session.handler import FetchSessionHandler
from proxy.session.state import (
    AFTER_FULL,
    AFTER_INCREMENTAL,
    TRANSITIONS,
    Action,
    NextPair,
    Says,
    SessionEvent,
    SessionState,
)
from tests.frames import fetch, parsed
from tests.session.handling import Kept, again, asked, established, give


def test_every_thing_that_a_response_says_has_a_row() -> None:
    assert set(AFTER_FULL) == set(AFTER_INCREMENTAL) == set(Says)


def test_no_state_is_left_without_a_way_and_all_but_one_can_be_lost() -> None:
    for state in SessionState:
        events = {event for of, event in TRANSITIONS if of is state}
        assert (SessionEvent.LOSE in events) == (state is not SessionState.CLOSED)


def test_a_full_fetch_that_failed_is_never_asked_for_a_session_again() -> None:
    """If a full fetch fails, the gateway repeats the fetch without a session.

    If the gateway requested a session again, it could repeat the fetch forever.
    """
    for says in (Says.ID_NOT_FOUND, Says.SESSION_ERROR, Says.OTHER_ERROR):
        assert AFTER_FULL[says] == (NextPair.NEW, Action.RESEND_SESSIONLESS)


@pytest.mark.parametrize(("state", "event"), list(product(SessionState, SessionEvent)))
def test_what_is_not_in_the_table_changes_nothing(state: SessionState, event: SessionEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert TRANSITIONS[state, event] in SessionState
    else:
        with pytest.raises(RuntimeError, match=f"{event.name} can't follow in state {state.name}"):
            TRANSITIONS[state, event]


def test_the_life_of_a_session() -> None:
    handler = asked()
    seen = [FetchSessionHandler().state, handler.state]
    handler = established()
    seen.append(handler.state)
    again(handler)
    seen.append(handler.state)
    give(handler, 16, session_id=77)
    seen.append(handler.state)
    again(handler)
    assert handler.close() == 77
    seen.append(handler.state)
    assert handler.table is not None, "the outstanding response is completed from it"
    give(handler, 16, session_id=77)
    seen.append(handler.state)
    handler.drop()
    seen.append(handler.state)
    assert [state.name for state in seen] == [
        "NONE",
        "REQUESTED",
        "ESTABLISHED",
        "FETCHING",
        "ESTABLISHED",
        "CLOSING",
        "CLOSED",
        "NONE",
    ]


def test_a_session_that_is_idle_is_gone_when_it_is_closed() -> None:
    handler = established()
    assert (handler.close(), handler.state, handler.pair, handler.table) == (
        77,
        SessionState.NONE,
        (0, 0),
        None,
    )


def test_a_second_fetch_is_not_asked_while_one_is_outstanding() -> None:
    """A session refuses a second fetch while the response to the first one is outstanding.

    The second fetch would have a wrong epoch (KIP-227).
    """
    handler = established()
    request = parsed(fetch(16, ("t", 0, 9), ("t", 1), ("u", 0)))
    assert request.listing is not None
    decision = handler.incremental(request, request.listing)
    assert isinstance(decision, Incremental)
    again(handler)
    kept = Kept.of(handler)
    with pytest.raises(RuntimeError):
        handler.ask(request, decision)
    with pytest.raises(RuntimeError):
        handler.ask_full()
    assert (handler.state, handler.pair, handler.outstanding) == (SessionState.FETCHING, (77, 1), True)
    assert Kept.of(handler) == kept
