"""Each reason for which a fetch does not use the session, tested on one connection."""

from typing import Any

import pytest

from proxy.core.eligibility import Eligibility, SessionLimits
from proxy.core.savings import PLAIN_PER_LOST
from proxy.protocol.api_versions import Features
from proxy.protocol.fetch_request import FetchRequest
from proxy.session.decision import FOR_GOOD, Reason
from proxy.session.handler import FetchSessionHandler
from proxy.session.state import SessionState
from tests.frames import fetch, parsed

NEW = Features(fetch_max=18, offset_fetch_max=10, find_coordinator_max=6)
OF_2_4 = Features(fetch_max=11, offset_fetch_max=6, find_coordinator_max=3)
OF_1_0 = Features(fetch_max=6, offset_fetch_max=3, find_coordinator_max=1)


def plain(version: int = 16, session: tuple[int, int] = (0, -1), **fields: Any) -> FetchRequest:
    return parsed(fetch(version, ("t", 0), ("t", 1), session=session, **fields))


def record(features: Features | None = NEW, **switch: Any) -> Eligibility:
    found = Eligibility(SessionLimits(max_sessions=5, **switch))
    found.features = features
    return found


def against(
    found: Eligibility,
    request: FetchRequest,
    handler: FetchSessionHandler | None = None,
    *,
    busy: bool = False,
) -> Reason | None:
    handler = handler or FetchSessionHandler()
    if busy:
        handler.state = SessionState.FETCHING
    found.observe(request)
    return found.against(request, "c", handler)


def test_a_plain_fetch_may() -> None:
    assert against(record(), plain()) is None
    assert against(record(), plain(session=(-1, -1))) is None
    assert against(record(OF_2_4), plain(11)) is None


@pytest.mark.parametrize("session", [(5, 1), (5, -1), (5, 0), (0, 1), (0, -2), (-5, 0), (-1, 3)])
def test_native_once_is_native_for_good(session: tuple[int, int]) -> None:
    found = record()
    assert against(found, plain(session=session)) is Reason.NATIVE
    assert against(found, plain()) is Reason.NATIVE


def test_0_0_is_native_until_a_session_goes_unused() -> None:
    found, flood = record(), plain(session=(0, 0))
    for _ in range(2):
        assert not found.observe(flood)
        assert found.against(flood, "c", FetchSessionHandler()) is Reason.NATIVE
    found.given = 31
    assert found.observe(flood)
    assert found.against(flood, "c", FetchSessionHandler()) is None
    assert (found.floods, found.observe(flood)) == (True, False)


def test_asking_what_speaks_against_a_fetch_changes_nothing() -> None:
    found, handler = record(), FetchSessionHandler()
    found.given = 31
    for request in (plain(session=(0, 0)), plain(session=(5, 1)), plain()):
        found.against(request, "c", handler)
        assert (found.floods, handler.session_id, handler.state) == (False, 0, SessionState.NONE)
    assert found.against(plain(), "c", handler) is None


def test_the_switch_for_all_for_one_and_for_good() -> None:
    for found in (record(on=False), record(off_for=frozenset({"c"}))):
        assert against(found, plain()) is Reason.SESSIONS_OFF
        assert against(found, plain(session=(5, 1))) is Reason.NATIVE
    found = record()
    found.never = Reason.UNCACHED_ERRORS
    assert against(found, plain()) is Reason.UNCACHED_ERRORS
    assert set(FOR_GOOD) == {Reason.SESSIONS_OFF, Reason.UNCACHED_ERRORS, Reason.LEFT_OUT}


def test_each_way_not_to_be_a_plain_fetch_is_a_reason() -> None:
    views = [
        parsed(fetch(11, ("t", 0), replica_id=1)),
        parsed(fetch(16, ("t", 0), tags=((1, bytes(13)),))),
        parsed(fetch(16, ("t", 0), forget=[("u", 1)])),
    ]
    assert [Reason(view.unsupported_reason) for view in views] == [
        Reason.NOT_A_CONSUMER,
        Reason.TAGS,
        Reason.FORGETS,
    ]


def test_more_than_a_consumers_fetch() -> None:
    assert against(record(), plain(11, replica_id=1)) is Reason.NOT_A_CONSUMER
    assert against(record(), plain(16, tags=((1, bytes(13)),))) is Reason.TAGS


def test_one_partition_only_beside_a_session() -> None:
    found, handler = record(), FetchSessionHandler()
    one = parsed(fetch(16, ("t", 0)))
    assert against(found, one) is Reason.ONE_PARTITION
    handler.session_id, handler.epoch = 5, 1
    assert against(found, one, handler) is None
    assert against(found, parsed(fetch(16)), handler) is Reason.ONE_PARTITION


def test_what_the_broker_lacks() -> None:
    assert against(record(None), plain()) is None  # not known yet: asked when a session would be
    handler = FetchSessionHandler()
    handler.session_id, handler.epoch = 5, 1
    assert against(record(None), plain(), handler) is Reason.BROKER_NOT_KNOWN
    assert against(record(OF_1_0), plain(6)) is Reason.NO_SESSIONS
    fenced: dict[str, Any] = {"values": {"current_leader_epoch": 0}}
    assert against(record(OF_2_4), plain(10, **fenced)) is Reason.LEADER_EPOCHS
    assert against(record(NEW), plain(10, **fenced)) is None
    assert against(record(OF_2_4), plain(8)) is None


def test_not_now() -> None:
    found = record()
    assert against(found, plain(), busy=True) is Reason.BUSY
    found.large = True
    assert against(found, plain()) is Reason.CATCHING_UP
    found.large = False
    found.savings.settle(-1)
    assert against(found, plain()) is Reason.RESTING
    found.savings.passed(PLAIN_PER_LOST, 0)
    assert against(found, plain()) is None


def test_slots_are_bounded() -> None:
    """Trap 22: the number of sessions is limited, because the broker's session slots are shared."""
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
