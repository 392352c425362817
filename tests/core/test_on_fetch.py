"""A stage may change a fetch in any way. The fast path repeats the change only if the stage allows it."""

from typing import Any

from proxy.core.connection_state import ConnectionState
from proxy.core.eligibility import SessionLimits
from proxy.core.stage import Stage
from proxy.protocol.fetch_request import FetchRequest
from tests.frames import Want, fetch, fetch_response
from tests.playbook import SESSION_ID, Playbook, asks, full

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


def test_another_limit_changes_the_fetches_of_a_session_at_once() -> None:
    sessions = SessionLimits(max_sessions=10, max_fetch_bytes={"": 1_000})
    play = Playbook(sessions).knows()
    wants: list[Want] = [("t", at) for at in range(8)]
    due: list[dict[str, Any]] = [{"max_bytes": 1_000}] * 30
    assert plays(play, wants, due) > 10
    for limit in (2_000, 3_000):
        sessions.max_fetch_bytes = {"": limit}
        for number in range(3):
            wants = [*wants[1:], wants[0]]
            asked = play.client(fetch(VERSION, *wants, correlation=number)).takes_broker()
            assert limit.to_bytes(4) in asked
            play.broker(fetch_response(VERSION, session_id=SESSION_ID, correlation_id=number)).takes_client()
