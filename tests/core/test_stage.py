"""Stages, played on one connection. The first one is an example: it lowers max_wait_ms for some clients.

A stage may change a fetch in any way. The fast path repeats the change only if the stage allows it.
"""

from functools import partial
from typing import Any

import pytest

from proxy.core.connection_state import ConnectionState
from proxy.core.eligibility import SessionLimits
from proxy.core.stage import Stage
from proxy.protocol.fetch_request import FetchRequest
from tests.frames import Want, fetch, fetch_response
from tests.playbook import SESSION_ID, Playbook, T, asks, full, request, response

ASKED: dict[str, Any] = {"max_wait_ms": 500}
LOWERED: dict[str, Any] = {"max_wait_ms": 20}
HEARTBEAT = 12


class MaxWait(Stage):
    """Lowers max_wait_ms in the fetches of some clients."""

    __slots__ = ("_limits", "_state")

    def __init__(self, limits: dict[str, int], state: ConnectionState) -> None:
        self._limits = limits
        self._state = state

    def on_fetch(self, fetch: FetchRequest) -> FetchRequest:
        """Lower max_wait_ms to the limit of the client, if it has one."""
        limit = self._limits.get(self._state.client_id, fetch.max_wait_ms)
        return fetch.with_limits(max_wait_ms=limit) if fetch.max_wait_ms > limit else fetch


class NewGeneration(Stage):
    """Changes each Heartbeat: its generation becomes 9."""

    def on_request(self, data: bytes, _size: int, api_key: int, _version: int) -> bytes | None:
        """Change a Heartbeat."""
        return data[:-4] + (9).to_bytes(4) if api_key == HEARTBEAT else data

    def repeats(self, api_key: int, _version: int, *, in_session: bool = False) -> bool:
        """Let no Heartbeat take the fast path."""
        return api_key != HEARTBEAT


def limited(client_id: str = "c") -> Playbook:
    """Return a connection of client "c" with the stage, which limits the client `client_id`."""
    return Playbook(stages=(partial(MaxWait, {client_id: 20}),)).knows()


@pytest.mark.parametrize(("client_id", "due"), [("c", LOWERED), ("other", ASKED)])
def test_a_forwarded_fetch_waits_less(client_id: str, due: dict[str, Any]) -> None:
    """max_wait_ms is lowered in fetches of one partition. From the second fetch on, the fast path does
    this.
    """
    play = limited(client_id)
    for number in range(10, 15):
        play.client(fetch(12, *T[:1], correlation=number, **ASKED))
        play.to_broker(fetch(12, *T[:1], correlation=number, **due))
        told = full(12, T[:1], correlation_id=number)
        play.broker(told).to_client(told)
    assert play.connection.passed > 5
    play.exchange(fetch(12, *T[:1], max_wait_ms=9), full(12, T[:1]))


def test_the_fetches_of_a_session_wait_less() -> None:
    """max_wait_ms is lowered in all fetches of a session.

    It is lowered in the full fetch, in incremental fetches (the client rotates its list), and in the full
    fetch that is sent again after an error (conformance case 71).
    """
    play = limited()
    wants: list[Want] = [("t", at) for at in range(8)]
    asked, forwarded = (fetch(12, *wants, correlation=3, **limits) for limits in (ASKED, LOWERED))
    while (sent := play.client(asked).takes_broker()) == forwarded:
        play.broker(full(12, wants, correlation_id=3)).takes_client()
    assert sent == asks(12, wants, (0, 0), correlation=3, **LOWERED)
    play.broker(full(12, wants, correlation_id=3, session_id=SESSION_ID)).takes_client()
    for epoch in range(1, 9):
        wants = [*wants[1:], wants[0]]
        play.client(fetch(12, *wants, correlation=epoch, **ASKED))
        play.to_broker(asks(12, [], (SESSION_ID, epoch), correlation=epoch, **LOWERED))
        play.broker(fetch_response(12, session_id=SESSION_ID, correlation_id=epoch))
        play.to_client(full(12, wants, correlation_id=epoch))
    assert play.connection.passed > 5
    play.client(fetch(12, *wants, correlation=30, **ASKED))
    play.to_broker(asks(12, [], (SESSION_ID, 9), correlation=30, **LOWERED))
    play.broker(fetch_response(12, error_code=70, correlation_id=30))
    play.to_broker(asks(12, wants, (0, 0), correlation=30, **LOWERED))


def test_a_stage_sees_each_request_that_it_does_not_let_repeat() -> None:
    """A Heartbeat that a stage has to see does not take the fast path, even if it equals the last one."""
    play = Playbook(stages=(lambda _: NewGeneration(),)).knows()
    for number in range(3):
        play.client(request(HEARTBEAT, 0, number, (5).to_bytes(4)))
        play.to_broker(request(HEARTBEAT, 0, number, (9).to_bytes(4)))
        play.broker(response(number, b"\0\0")).to_client(response(number, b"\0\0"))
    play.exchange(request(99, 0, 7), response(7)).exchange(request(99, 0, 8), response(8))
    assert play.connection.passed > 0


VERSION = 12


class Rack(Stage):
    """A stage that adds a rack, which makes the frame longer."""

    def __init__(self, _state: ConnectionState) -> None:
        pass

    def on_fetch(self, fetch: FetchRequest) -> FetchRequest:
        frame = fetch.frame[: fetch.tail] + b"\x02r" + fetch.frame[fetch.tail + 1 :]
        return fetch.with_frame((len(frame) - 4).to_bytes(4) + frame[4:])


class Counting(Stage):
    """A stage that changes its limit at the 20th fetch.

    From then on, the fast path must not repeat the change that the stage made to earlier fetches.
    """

    def __init__(self, _state: ConnectionState) -> None:
        self.seen = 0

    def on_fetch(self, fetch: FetchRequest) -> FetchRequest:
        self.seen += 1
        return fetch.with_limits(max_bytes=1 if self.seen < 20 else 2)

    def repeats(self, _api_key: int, _version: int, *, in_session: bool = False) -> bool:
        return False


class Limiting(Stage):
    """A stage whose limit is an option."""

    limit = 1_000

    def __init__(self, _state: ConnectionState) -> None:
        pass

    def on_fetch(self, fetch: FetchRequest) -> FetchRequest:
        return fetch.with_limits(max_bytes=self.limit)


def plays(play: Playbook, wants: list[Want], due: list[dict[str, Any]]) -> int:
    """Play fetches with a rotating list.

    Return the number of fetches that used the session, including the one that requested it.
    """
    epoch = 0
    for number, changes in enumerate(due):
        fields = {"correlation": number} | changes
        sent = play.client(fetch(VERSION, *wants, correlation=number)).takes_broker()
        told = given = full(VERSION, wants, correlation_id=number)
        if epoch:
            assert sent == asks(VERSION, [], (SESSION_ID, epoch), **fields)
            told = fetch_response(VERSION, session_id=SESSION_ID, correlation_id=number)
            epoch += 1
        elif sent != fetch(VERSION, *wants, **fields):
            assert sent == asks(VERSION, wants, (0, 0), **fields)
            told, epoch = full(VERSION, wants, correlation_id=number, session_id=SESSION_ID), 1
        play.broker(told).to_client(given)
        wants = [*wants[1:], wants[0]]
    return epoch


def test_a_fetch_that_is_forwarded_may_grow() -> None:
    assert plays(Playbook(stages=(Rack,)).knows(), [("t", 0)], [{"rack_id": "r"}] * 20) == 0


def test_the_fetches_of_a_session_may_grow() -> None:
    play = Playbook(stages=(Rack,)).knows()
    assert plays(play, [("t", at) for at in range(8)], [{"rack_id": "r"}] * 30) > 10
    assert play.connection.passed > 20


def test_what_must_be_seen_each_time_never_takes_the_fast_path() -> None:
    play = Playbook(stages=(Counting,)).knows()
    due: list[dict[str, Any]] = [{"max_bytes": 1}] * 19 + [{"max_bytes": 2}] * 11
    assert plays(play, [("t", at) for at in range(8)], due) > 10


def test_another_limit_changes_the_fetches_of_a_session_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = SessionLimits(max_sessions=10)
    play = Playbook(sessions, stages=(Limiting,)).knows()
    wants: list[Want] = [("t", at) for at in range(8)]
    due: list[dict[str, Any]] = [{"max_bytes": 1_000}] * 30
    assert plays(play, wants, due) > 10
    for limit in (2_000, 3_000):
        monkeypatch.setattr(Limiting, "limit", limit)
        sessions.generation += 1
        for number in range(3):
            wants = [*wants[1:], wants[0]]
            asked = play.client(fetch(VERSION, *wants, correlation=number)).takes_broker()
            assert limit.to_bytes(4) in asked
            play.broker(fetch_response(VERSION, session_id=SESSION_ID, correlation_id=number)).takes_client()
