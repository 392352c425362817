"""Why a fetch does not go through the session: one reason after the other, on one connection's record."""

from typing import Any

import pytest

from proxy.core.eligibility import WINDOW_SECONDS, Eligibility, SessionLimits
from proxy.protocol.api_versions import Features
from proxy.protocol.fetch_request import FetchRequest
from proxy.session.handler import FetchSessionHandler
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


def unfit(found: Eligibility, request: FetchRequest, *, busy: bool = False, now: float = 0.0) -> str:
    return found.unfit(request, "c", FetchSessionHandler(), busy=busy, now=now)


def test_a_plain_fetch_may() -> None:
    assert unfit(record(), plain()) == ""
    assert unfit(record(), plain(session=(-1, -1))) == ""
    assert unfit(record(OF_2_4), plain(11)) == ""


@pytest.mark.parametrize("session", [(5, 1), (5, -1), (5, 0), (0, 1), (0, -2), (-5, 0), (-1, 3)])
def test_native_once_is_native_for_good(session: tuple[int, int]) -> None:
    found = record()
    assert unfit(found, plain(session=session)) == "native session"
    assert unfit(found, plain()) == "native session"


def test_0_0_is_native_until_a_session_goes_unused() -> None:
    found, handler = record(), FetchSessionHandler()
    for _ in range(2):
        assert found.unfit(plain(session=(0, 0)), "c", handler, busy=False, now=0.0) == "native session"
    found.given = 31
    assert found.unfit(plain(session=(0, 0)), "c", handler, busy=False, now=0.0) == ""
    assert (found.floods, handler.session_id) == (True, 31)


def test_the_switch_for_all_for_one_and_for_good() -> None:
    for found in (record(on=False), record(off_for=frozenset({"c"}))):
        assert (unfit(found, plain()), found.off) == ("sessions off", True)
        assert found.unfit(plain(session=(5, 1)), "c", FetchSessionHandler(), busy=False, now=0.0)
        assert not found.off
    found = record()
    found.never = "errors"
    assert (unfit(found, plain()), found.off) == ("errors", True)


def test_more_than_a_consumers_fetch() -> None:
    assert unfit(record(), plain(11, replica_id=1)) == "not a consumer"
    assert unfit(record(), plain(16, tags=((1, bytes(13)),))) == "tags"


def test_one_partition_only_beside_a_session() -> None:
    found, handler = record(), FetchSessionHandler()
    one = parsed(fetch(16, ("t", 0)))
    assert unfit(found, one) == "one partition"
    handler.session_id, handler.epoch = 5, 1
    assert found.unfit(one, "c", handler, busy=False, now=0.0) == ""
    assert found.unfit(parsed(fetch(16)), "c", handler, busy=False, now=0.0) == "one partition"


def test_what_the_broker_lacks() -> None:
    assert unfit(record(None), plain()) == "broker not known yet"
    assert unfit(record(OF_1_0), plain(6)) == "broker without sessions"
    fenced: dict[str, Any] = {"values": {"current_leader_epoch": 0}}
    assert unfit(record(OF_2_4), plain(10, **fenced)) == "leader epochs"
    assert unfit(record(NEW), plain(10, **fenced)) == ""
    assert unfit(record(OF_2_4), plain(8)) == ""


def test_not_now() -> None:
    found = record()
    assert unfit(found, plain(), busy=True) == "session busy"
    found.large = True
    assert unfit(found, plain()) == "catching up"
    found.large = False
    found.savings.settle(-1, 0.0)
    assert unfit(found, plain()) == "resting"
    assert unfit(found, plain(), now=WINDOW_SECONDS) == ""
