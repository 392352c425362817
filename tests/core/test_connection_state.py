"""Tests of `ConnectionState`, which the parts of a connection share."""

import gc
import weakref

from proxy.core.budget import RequestBudget
from proxy.core.connection import Connection
from proxy.core.connection_state import ConnectionState, RequestFramer
from proxy.core.eligibility import SessionLimits
from proxy.core.histograms import Measured
from proxy.core.in_flight import FORWARD, InFlight


def state() -> ConnectionState:
    return ConnectionState(SessionLimits(max_sessions=1), Measured(), foreign=False, request_budget=None)


def test_the_beginning_of_a_request_reserves_until_it_is_handed_over() -> None:
    budget = RequestBudget(10)
    first, second = RequestFramer(budget), RequestFramer(budget)
    assert first.reserve(8)
    first.keep(b"begun")

    assert not second.reserve(3)
    assert (second.need, budget.total) == (1, 8)
    assert (first.rest(), first.rest(), budget.total) == (b"begun", b"", 0)
    assert second.reserve(3)


def test_a_request_waits_for_the_end_of_the_one_that_is_being_forwarded() -> None:
    ours = InFlight(18, 0, b"\0\0\0\1", FORWARD)
    shared = state()
    shared.from_client.left = 1

    shared.send(ours, b"frame")
    assert (shared.delayed, shared.to_broker, list(shared.queue.expected)) == ([(ours, b"frame")], [], [])

    shared.from_client.left, shared.now = 0, 2.0
    shared.send(ours, b"frame")
    assert (shared.to_broker, list(shared.queue.expected), ours.sent_at) == ([b"frame"], [ours], 2.0)


class Tracked(Connection):
    """A connection that allows weak references."""


def test_a_connection_goes_as_soon_as_nobody_needs_it() -> None:
    """A connection is freed at its last reference. It is not part of a reference cycle, so its memory does
    not wait for the garbage collector.
    """
    connection = Tracked(sessions=SessionLimits(max_sessions=1), resolve=None)
    gone = weakref.ref(connection)
    gc.disable()
    try:
        del connection
        assert gone() is None
    finally:
        gc.enable()
