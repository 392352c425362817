"""What both directions share, and what it says: how long a client waits, what a broker owes, the session."""

import gc
import weakref

import pytest

from proxy.core.budget import RequestBudget
from proxy.core.connection import Connection
from proxy.core.connection_state import ConnectionState, RequestFramer
from proxy.core.eligibility import SessionLimits
from proxy.core.histograms import Measured
from proxy.core.in_flight import FORWARD, UNREAD_SECONDS, InFlight
from proxy.core.own import OwnFetch
from proxy.core.requests import GROUP_SECONDS
from proxy.protocol.api import ApiKey
from proxy.protocol.produce import READ_WITHIN
from tests.frames import Want, fetch, fetch_response
from tests.playbook import SESSION_ID, Playbook, T, full, join_group, passes, produce, request, response
from tests.twin import Twin

PRODUCE, FETCH, JOIN, HEARTBEAT, SYNC, SHARE_FETCH = 0, 1, 11, 12, 14, 78


class Line:
    """A client and its broker, connected through two cores, with and without the fast path."""

    def __init__(self) -> None:
        self.twin = Twin(sessions=SessionLimits(max_sessions=10), resolve=None)

    def client(self, frame: bytes, now: float) -> None:
        self.twin.receive_client(frame, now)

    def broker(self, frame: bytes, now: float) -> None:
        for core in self.twin.cores:
            assert core.fast_path.join(frame, now) == frame
        self.twin.receive_broker(frame, now)

    def owes(self) -> tuple[int, float | None]:
        """Return the number of outstanding responses, and when the first one is due."""
        return owes(self.twin)


def owes(twin: Twin) -> tuple[int, float | None]:
    """Return the number of outstanding responses, and when the first one is due.

    Check that both are the same with and without the fast path.
    """
    one, other = ((core.state.outstanding, core.due_at) for core in twin.cores)
    assert one == other
    return one


def test_nothing_is_owed_before_the_first_request_and_after_its_response() -> None:
    line = Line()
    assert line.owes() == (0, None)
    line.client(request(HEARTBEAT, 0, 1), 5.0)
    assert line.owes() == (1, 5.0)
    line.broker(response(1, b"\0\0"), 5.5)
    assert line.owes() == (0, None)


def test_the_first_one_counts_and_the_next_one_begins_when_it_is_answered() -> None:
    line = Line()
    for correlation in range(1, 4):  # the second and third may pass by the fast path
        line.client(request(HEARTBEAT, 0, correlation), 5.0 + correlation)
    assert line.owes() == (3, 6.0)
    line.broker(response(1, b"\0\0"), 20.0)
    assert line.owes() == (2, 20.0)
    line.client(request(HEARTBEAT, 0, 4), 21.0)
    assert line.owes() == (3, 20.0)
    line.broker(response(2, b"\0\0") + response(3, b"\0\0"), 22.0)
    assert line.owes() == (1, 22.0)


def test_bytes_of_a_response_show_that_the_broker_works() -> None:
    line = Line()
    line.client(request(HEARTBEAT, 0, 1), 5.0)
    line.broker(response(1, bytes(1 << 15))[:100], 9.0)
    assert line.owes() == (1, 9.0)


def test_a_fetch_is_due_when_it_has_waited_as_long_as_it_asks() -> None:
    line = Line()
    for at in range(5):  # the later ones pass by the fast path
        line.client(fetch(11, T[0], correlation=at, max_wait_ms=30_000), at)
        assert line.owes() == (1, at + 30.0)
        line.broker(full(11, T[:1], correlation_id=at), at + 0.5)
    assert line.twin.passed


def test_so_is_a_fetch_of_a_session() -> None:
    wants: list[Want] = [("t", 0), ("t", 1), ("t", 2)]
    play = Playbook().established(11, wants)
    passed = play.connection.passed
    for at in range(10, 20):
        play.now = at
        turned = wants[at % 3 :] + wants[: at % 3]
        play.client(fetch(11, *turned, correlation=at)).takes_broker()
        assert owes(play.connection) == (1, at + 0.5)
        play.broker(fetch_response(11, correlation_id=at, session_id=SESSION_ID)).takes_client()
    assert play.connection.passed > passed


def test_a_fetch_that_is_not_read_may_wait_as_long_as_any() -> None:
    line = Line()
    line.client(request(FETCH, 3, 1, bytes(24)), 1.0)
    assert line.owes() == (1, 1.0 + UNREAD_SECONDS)
    assert OwnFetch.wait == 0, "the gateway's own fetch closes a session"


def test_a_group_waits_for_its_members() -> None:
    line = Line()
    line.client(request(SYNC, 0, 1), 1.0)
    assert line.owes() == (1, 1.0 + GROUP_SECONDS), "the client has not said how long"
    line.broker(response(1), 2.0)
    line.client(join_group(2, 2, 10_000, 60_000), 3.0)
    assert line.owes() == (1, 63.0)
    line.broker(response(2), 4.0)
    for correlation in (3, 4):
        line.client(request(SYNC, 0, correlation), 5.0)
        assert line.owes() == (1, (5.0 if correlation == 3 else 6.0) + 60.0)
        line.broker(response(correlation), 6.0)


def test_a_client_that_sends_no_more_waits_as_long_as_any_of_its_requests_may() -> None:
    """A client that has half-closed may wait as long as the slowest of its requests allows.

    The broker answers a JoinGroup only when all members have joined, which may take minutes.
    """
    line = Line()
    line.client(join_group(1, 2, 10_000, 60_000), 1.0)
    line.client(fetch(11, T[0], correlation=2, max_wait_ms=500), 1.0)
    assert longest_waits(line) == {60.0}
    line.broker(response(1), 2.0)
    assert longest_waits(line) == {0.5}
    line.broker(full(11, T[:1], correlation_id=2), 2.5)
    assert longest_waits(line) == {0.0}
    for at in range(3, 8):  # the later ones pass by the fast path
        line.client(fetch(11, T[0], correlation=at, max_wait_ms=40_000), at)
        assert longest_waits(line) == {40.0}
        line.broker(full(11, T[:1], correlation_id=at), at + 0.5)
    line.client(request(SYNC, 0, 8), 9.0)
    assert longest_waits(line) == {60.0}


def test_each_share_fetch_may_wait_as_long_as_it_says() -> None:
    """Each ShareFetch may wait as long as its own max_wait_ms says (KIP-932), not only the first one."""
    line = Line()
    line.client(request(HEARTBEAT, 0, 0), 0.5)
    line.broker(response(0, b"\0\0"), 0.6)
    for at, wait_ms in enumerate((0, 30_000, 500), start=1):
        line.client(request(SHARE_FETCH, 1, at, b"\0\2g\2m" + bytes(4) + wait_ms.to_bytes(4) + bytes(20)), at)
        assert longest_waits(line) == {wait_ms / 1e3}
        assert line.owes() == (1, at + wait_ms / 1e3)
        line.broker(response(at, bytes(20)), at + 0.5)


def longest_waits(line: Line) -> set[float]:
    """Return for how many seconds the client's requests may wait at the broker, in both cores.

    The result has one value if both cores agree.
    """
    return {core.state.longest_wait for core in line.twin.cores}


def test_a_produce_without_acks_is_never_outstanding() -> None:
    line = Line()
    for correlation in range(1, 4):
        line.client(request(PRODUCE, 2, correlation, b"\0\0" + bytes(8)), 1.0)
    assert line.owes() == (0, None)
    line.client(request(PRODUCE, 2, 4, b"\xff\xff" + (30_000).to_bytes(4) + bytes(4)), 2.0)
    assert line.owes() == (1, 2.0), "its timeout is no wait that it asks for"


def test_a_request_that_has_not_come_whole_waits_for_the_client() -> None:
    core = Connection(sessions=SessionLimits(max_sessions=0), resolve=None)
    frame = request(PRODUCE, 2, 1, b"\0\1" + bytes(1000))
    core.receive_client(frame[:100], 1.0)
    assert core.state.outstanding == 1
    assert core.state.awaits_client
    core.receive_client(frame[100:], 7.0)
    assert core.due_at == 7.0
    awaits: bool = core.state.awaits_client
    assert not awaits


HALVES = {
    "fetch": fetch(11, *T, correlation=2),
    "metadata": request(ApiKey.METADATA, 9, 2, bytes(100)),
    "produce": produce(2, -1),
    "unanswered produce": produce(2, 0),
    "old handshake": request(ApiKey.SASL_HANDSHAKE, 0, 2, b"\x00\x05PLAIN"),
    "GSSAPI": b"\x00\x00\x02\x5c" + b"\x60\x82" + bytes(602),
}


def seen(connection: Connection) -> tuple[bool, bool]:
    """Return whether the client has sent a first request, and whether the client waits for a response."""
    return connection.state.begun, connection.state.busy


@pytest.mark.parametrize("said", HALVES)
@pytest.mark.parametrize("size", [3, 4, 11, 12, 14])
def test_half_a_request_is_none_that_a_client_waits_for(said: str, size: int) -> None:
    connection = Playbook().connection
    connection.receive_client(HALVES[said][:size], 0.0)
    assert seen(connection) == (False, False)
    connection.receive_client(HALVES[said][size:], 0.0)
    assert seen(connection) == (True, said in {"fetch", "metadata", "produce", "old handshake"})


def test_half_a_request_behind_a_whole_one_leaves_the_client_waiting_for_that() -> None:
    play = Playbook()
    first, half = request(12, 0, 1), request(ApiKey.METADATA, 9, 2, bytes(100))[:50]
    play.client(first + half).to_broker(first + half)
    assert seen(play.connection) == (True, True)
    play.broker(response(1, b"one")).to_client(response(1, b"one"))
    assert seen(play.connection) == (True, False)


def test_half_a_request_that_is_answered_is_none_to_wait_for() -> None:
    play = Playbook()
    half = request(ApiKey.METADATA, 9, 2, bytes(100))[:50]
    play.client(half).to_broker(half)
    play.broker(response(2, b"no")).to_client(response(2, b"no"))
    assert seen(play.connection) == (False, False)


def test_of_a_large_first_request_a_part_will_do() -> None:
    """A large first Produce counts as received when a part of it has come, because it may take long on a slow
    line. A fetch counts only when it is complete.
    """
    play = Playbook()
    sent = produce(1, -1, 10_000_000)[: READ_WITHIN + 1]
    play.client(sent).to_broker(sent)
    assert seen(play.connection) == (True, False)
    collected = Playbook().connection
    collected.receive_client((1_000_000).to_bytes(4) + b"\0\1\0\x0b" + bytes(READ_WITHIN), 0.0)
    assert seen(collected) == (False, False)


def test_it_tells_how_it_is() -> None:
    play = Playbook().established(16, T)
    state = (play.connection.session_id, play.connection.session_epoch, play.connection.session_partitions)
    assert (*state, play.connection.fetch_version) == (SESSION_ID, 1, 3, 16)
    assert repr(play.connection) == (
        "<Connection 'c' in_flight=0 <FetchSessionHandler 77 epoch=1 partitions=3>>"
    )
    new = Playbook().connection
    assert (new.session_id, new.session_epoch, new.session_partitions, new.fetch_version) == (0, 0, 0, -1)


def test_a_connection_lacks_a_slot_until_a_later_fetch_finds_one() -> None:
    """A gateway that has just as many slots as its clients need has no problem."""
    limits = SessionLimits(max_sessions=0)
    play = Playbook(limits).knows()
    status = play.connection.state
    for number in (1, 2, 3):
        assert not status.lacks_slot
        passes(play, 16, T, number)
    assert status.lacks_slot
    limits.max_sessions = 1
    play.client(fetch(16, *T)).takes_broker()
    assert (play.connection.decided, status.lacks_slot) == (None, False)


def between_requests(connection: Connection) -> bool:
    return connection.state.between_requests


def test_a_connection_is_between_requests_unless_a_part_of_one_was_forwarded() -> None:
    connection = Connection(sessions=SessionLimits(max_sessions=10), resolve=None)
    assert between_requests(connection)
    large = produce(7, 1, 1 << 20)
    connection.receive_client(large[: 1 << 19], 1.0)
    assert not between_requests(connection)
    connection.receive_client(large[1 << 19 :], 2.0)
    assert between_requests(connection)
    connection.receive_client(request(HEARTBEAT, 0, 9)[:6], 3.0)
    assert between_requests(connection), "the broker has nothing of it"


def test_a_connection_whose_bytes_are_forwarded_unread_is_never_between_requests() -> None:
    connection = Connection(sessions=SessionLimits(max_sessions=10), resolve=None)
    connection.receive_client(b"\x00\x00\x02\x5c" + b"\x60\x82" + bytes(602), 1.0)
    assert not between_requests(connection)


def state() -> ConnectionState:
    return ConnectionState(SessionLimits(max_sessions=1), Measured(), foreign=False)


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
