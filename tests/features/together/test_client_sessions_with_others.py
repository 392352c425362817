"""Sessions that the gateway gives to clients, together with limits and with replicas."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

from proxy.core.connection import Connection, MakeStage
from proxy.core.eligibility import SessionLimits
from proxy.features.client_sessions.cache import FetchSessionCache
from proxy.features.client_sessions.manager import FetchManager
from proxy.features.client_sessions.stage import ClientSessions
from proxy.features.racks.rack_clients import MAX_HOLD_SECONDS
from tests.features.limits.test_fetch_floors import ASKED, RAISED, connected
from tests.features.racks.replica import Gateway
from tests.features.racks.test_raise_fetch import RECORDS, WANTS, connect
from tests.frames import entry, fetch, fetch_response
from tests.model import wire
from tests.playbook import T, full


def gives(chance: Callable[[int, int], int] | None = None) -> tuple[MakeStage, ...]:
    """Return what makes the stage of a gateway that gives all sessions itself."""
    cache = FetchSessionCache(chance or Random(0).randint, slots=10)
    return (partial(ClientSessions, FetchManager(cache, asks_broker=False)),)


def test_a_session_that_the_gateway_gives_is_raised() -> None:
    """The full fetches that stand for the fetches of this session are raised."""
    sessions = SessionLimits(max_sessions=0, on=False)
    play = connected(stages=gives(), name="b:1", core=Connection, sessions=sessions)
    play.client(fetch(12, *T, session=(0, 0), correlation=4, **ASKED))
    play.to_broker(fetch(12, *T, correlation=4, **RAISED))
    told = play.broker(full(12, T, correlation_id=4)).takes_client()
    session_id = int.from_bytes(told[15:19])
    assert session_id > 0
    for epoch in (1, 2, 3):
        play.client(fetch(12, session=(session_id, epoch), correlation=4, **ASKED))
        play.to_broker(fetch(12, *T, correlation=4, **RAISED))
        play.broker(full(12, T, correlation_id=4)).takes_client()


def test_the_clients_session_with_the_gateway_is_raised() -> None:
    """The gateway gives the session; the broker gets full fetches of v11."""
    play = connect(stages=gives(lambda _low, _high: 5), core=Connection)
    wants = WANTS[:3]
    play.client(fetch(10, *wants, session=(0, 0))).to_broker(fetch(11, *wants))
    play.broker(full(11, wants)).to_client(full(10, wants, session_id=5))
    told = ("t", [entry(0, 9, records=RECORDS), entry(1, 5), entry(2, 5)])
    play.client(fetch(10, session=(5, 1))).to_broker(fetch(11, *wants))
    play.broker(fetch_response(11, told)).to_client(
        fetch_response(10, ("t", [entry(0, 9, records=RECORDS)]), session_id=5)
    )


def test_rule_30_in_a_session_that_the_gateway_gives_to_the_client() -> None:
    gateway = Gateway()
    play = gateway.connect(stages=gives(), core=Connection)
    play.client(fetch(12, *T[:2], session=(0, 0), correlation=2)).to_broker(fetch(12, *T[:2], correlation=2))
    play.now += 0.5
    play.broker(full(12, T[:2], correlation_id=2))
    session_id = wire.decode_response(play.takes_client()[4:], 12).session_id
    play.client(fetch(12, session=(session_id, 1), correlation=3)).to_broker(fetch(12, *T[:2], correlation=3))
    play.broker(full(12, T[:2], correlation_id=3)).nothing()
    play.now += MAX_HOLD_SECONDS
    play.connection.tick(play.now)
    play.to_client(fetch_response(12, session_id=session_id, correlation_id=3))


def test_rule_27_in_a_session_that_the_gateway_gives_to_the_client() -> None:
    gateway = Gateway()
    play = gateway.connect(stages=gives(), core=Connection)
    play.client(fetch(12, *T[:2], session=(0, 0), correlation=2))
    play.to_broker(fetch(12, *T[:2], correlation=2))
    play.now += 0.5
    play.broker(full(12, T[:2], correlation_id=2))
    session_id = wire.decode_response(play.takes_client()[4:], 12).session_id
    play.client(fetch(12, session=(session_id, 1), correlation=3)).to_broker(fetch(12, *T[:2], correlation=3))
    wrong = fetch_response(12, ("t", [entry(0, error=1), entry(1, 5)]), correlation_id=3)
    given = fetch_response(12, ("t", [entry(0, error=6)]), session_id=session_id, correlation_id=3)
    play.broker(wrong).to_client(given)
    assert +gateway.shared[0].distrust.returns == Counter(out_of_range=1)
