"""The broker refuses or evicts sessions, and the gateway waits before it requests another one.

Some tests have several gateways with more sessions than the broker has slots, for minutes of simulated time.
The broker is the model of `tests/model`. All gateways together request few sessions, and no connection costs
more bytes than law 6 allows.
"""

import random
from dataclasses import dataclass, field
from functools import partial

import pytest

from proxy.core.eligibility import SessionLimits
from proxy.core.events import FetchKind, SessionMade, SessionRefused, broker_bytes, fetch_bytes
from proxy.core.savings import CREDIT_EXCHANGES, PLAIN_PER_LOST
from proxy.session.decision import Reason
from tests.connections import connect
from tests.frames import Want, fetch, fetch_response
from tests.model.broker import ModelBroker
from tests.playbook import SESSION_ID, Playbook, T, api_versions, asks, full, passes, split

SLOTS = 8
GATEWAYS = 4
CLIENTS = 4
"""The number of clients of each gateway. So there are twice as many clients as slots."""
MINUTES = 6


@dataclass
class Client:
    """A client behind a gateway that sends one fetch every two seconds. All its partitions are idle."""

    broker: ModelBroker
    limits: SessionLimits
    partitions: int
    release: str
    wants: list[Want] = field(init=False)

    def __post_init__(self) -> None:
        self.gate = connect(sessions=self.limits)
        self.wants = [("t", index) for index in range(self.partitions)]
        asked, _ = api_versions(self.release)
        self.exchange(asked, 0.0)

    def exchange(self, frame: bytes, now: float) -> None:
        """Send a frame of the client, and let the broker respond until the client has its response."""
        gate = self.gate
        gate.receive_client(frame, now)
        while sent := split(b"".join(map(bytes, gate.drain_broker()))):
            for each in sent:
                told = self.broker.handle(each[4:], now)
                gate.receive_broker(len(told).to_bytes(4) + told, now)
        assert gate.drain_client()

    def poll(self, version: int, now: float, listed: int) -> None:
        """Send a fetch of the first `listed` partitions."""
        self.exchange(fetch(version, *self.wants[:listed]), now)

    @property
    def allowed(self) -> float:
        """The bytes that law 6 allows on the broker's side of the connection."""
        tally = self.gate.tally
        plain = fetch_bytes(tally.client)
        return plain * (1 + 1 / PLAIN_PER_LOST) + CREDIT_EXCHANGES * plain / sum(tally.client.fetches)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("release", "version", "sizes"),
    [
        # A consumer's session in use is evicted only for a larger one. The sizes change as in rebalances.
        ("4.3", 16, (8, 14)),
        # KAFKA-9137: two minutes after it was created, any session is evicted although it is in use.
        ("2.4", 11, (12, 12)),
        # Equal sessions in use do not evict each other: half of them is refused.
        ("3.7", 16, (12, 12)),
    ],
)
def test_gateways_that_share_too_few_slots(release: str, version: int, sizes: tuple[int, int]) -> None:
    """Trap 22: there are few full fetches a minute, and law 6 holds for each connection."""
    broker = ModelBroker(release, slots=SLOTS)
    broker.create_topic("t", max(sizes))
    drawn = random.Random(7)
    clients = []
    for _ in range(GATEWAYS):
        limits = SessionLimits(max_sessions=CLIENTS, chance=drawn.random)
        clients += [Client(broker, limits, max(sizes), release) for _ in range(CLIENTS)]
    listed = [drawn.randint(*sizes) for _ in clients]
    minutes: list[int] = []
    """The full fetches of each minute."""
    for second in range(0, 60 * MINUTES, 2):
        now = float(second)
        if second % 60 == 0:
            minutes.append(0)
            listed = [drawn.randint(*sizes) for _ in clients]
        before = sum(client.gate.tally.broker.fetches[FetchKind.FULL] for client in clients)
        for client, size in zip(clients, listed, strict=True):
            client.poll(version, now + drawn.random(), size)
        minutes[-1] += sum(client.gate.tally.broker.fetches[FetchKind.FULL] for client in clients) - before
    # Half of the clients have no session. If each of their fetches requested one, these were 240 a minute.
    assert max(minutes[1:]) <= 2 * len(clients)
    assert sum(minutes[5:]) <= len(clients) * (MINUTES - 5)
    assert len(broker.cache.sessions) == SLOTS
    for client in clients:
        assert broker_bytes(client.gate.tally) <= client.allowed


def at(play: Playbook, now: float, number: int, *, asks_session: bool, session_id: int = 0) -> None:
    """Play one fetch at `now` seconds, which requests a session or not. The broker gives `session_id`."""
    play.now = now
    session = (0, 0) if asks_session else (0, -1)
    play.client(fetch(16, *T, correlation=number)).to_broker(asks(16, T, session, correlation=number))
    told = full(16, T, correlation_id=number, session_id=session_id)
    play.broker(told).to_client(full(16, T, correlation_id=number))


def refused(until: float = 0.0) -> Playbook:
    """Return a connection whose first request for a session was refused at 0 s, and whose later requests were
    refused, too, until `until` seconds.
    """
    play = Playbook().knows()
    for number in (1, 2):
        passes(play, 16, T, number)
    at(play, 0.0, 3, asks_session=True)
    wait, now = 0.0, 0.0
    while now < until:
        now += wait
        at(play, now, 4, asks_session=True)
        wait = min(2 * wait, 300.0) or 1.0
    play.events()
    return play


def test_a_refused_session_is_requested_less_and_less_often_and_reported_once() -> None:
    """Case 95, trap 22: after a refused session, the next fetch requests a session again, as in Java.

    After each further refusal, twice as much time has to pass, up to five minutes. The other fetches are
    forwarded unchanged. The refusal is reported only once.
    """
    play = Playbook().knows()
    for number in (1, 2):
        passes(play, 16, T, number)
    now = 0.0
    for wait in (0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0, 300.0):
        if wait:
            at(play, now + wait - 0.001, 4, asks_session=False)
        now += wait
        at(play, now, 3, asks_session=True)
        assert play.sessions.used == 0
    assert play.events(SessionRefused, SessionMade) == [SessionRefused()]
    tally = play.connection.tally
    assert (tally.refusals, tally.passthrough[Reason.NO_BROKER_SLOT]) == (13, 11)
    assert play.connection.decided is None
    at(play, now + 1, 4, asks_session=False)
    assert play.connection.decided is Reason.NO_BROKER_SLOT


def test_a_session_that_lasts_ends_the_waits() -> None:
    """After half an hour with a session, the next refusal or eviction counts as the first one."""
    for lasted, resent in ((1799.0, (0, -1)), (1800.0, (0, 0))):
        play = refused(until=10.0)
        at(play, 100.0, 5, asks_session=True, session_id=SESSION_ID)
        play.now = 100.0 + lasted
        play.client(fetch(16, *T, correlation=6)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=6))
        play.broker(fetch_response(16, error_code=70, correlation_id=6))
        play.to_broker(asks(16, T, resent, correlation=6))
        play.broker(full(16, T, correlation_id=6)).to_client(full(16, T, correlation_id=6))
        assert play.events(SessionRefused) == ([SessionRefused()] if resent == (0, 0) else [])


def test_a_session_made_anew_lasts_from_the_first_one() -> None:
    """A session that the gateway replaces (error 71, another list) lasts as long as both together."""
    play = refused(until=10.0)
    at(play, 100.0, 5, asks_session=True, session_id=SESSION_ID)
    for number, (now, code) in enumerate(((1000.0, 71), (1900.0, 70))):
        play.now = now
        session_id = SESSION_ID + number
        play.client(fetch(16, *T, correlation=6)).to_broker(asks(16, [], (session_id, 1), correlation=6))
        play.broker(fetch_response(16, error_code=code, correlation_id=6))
        play.to_broker(asks(16, T, (session_id if code == 71 else 0, 0), correlation=6))
        play.broker(full(16, T, correlation_id=6, session_id=session_id + 1))
        play.to_client(full(16, T, correlation_id=6))


def test_sessions_that_are_evicted_again_are_requested_later() -> None:
    """After the second eviction in a row, the fetch is resent without a session, and the next one waits.

    So gateways that have more sessions than the broker has slots do not evict each other's all the time.
    """
    play = Playbook().established(16, T)
    now = 0.0
    for number, wait in enumerate((0.0, 1.0, 2.0, 4.0)):
        play.now = now = now + 121.0
        session_id = SESSION_ID + number
        play.client(fetch(16, *T, correlation=6)).to_broker(asks(16, [], (session_id, 1), correlation=6))
        play.broker(fetch_response(16, error_code=70, correlation_id=6))
        play.to_broker(asks(16, T, (0, -1) if wait else (0, 0), correlation=6))
        given = 0 if wait else session_id + 1
        play.broker(full(16, T, correlation_id=6, session_id=given))
        play.to_client(full(16, T, correlation_id=6))
        if wait:
            at(play, now + wait - 0.001, 7, asks_session=False)
            now += wait
            at(play, now, 8, asks_session=True, session_id=session_id + 1)
    assert play.events(SessionRefused) == [SessionRefused()]
    assert play.connection.tally.session_errors == {70: 4}


def test_waits_differ_by_chance() -> None:
    """KIP-580: a wait is up to a fifth shorter or longer."""
    for drawn, wait in ((0.0, 0.8), (1.0, 1.2)):
        play = Playbook(SessionLimits(max_sessions=10, chance=partial(float, drawn))).knows()
        for number in (1, 2):
            passes(play, 16, T, number)
        at(play, 0.0, 3, asks_session=True)
        at(play, 0.0, 4, asks_session=True)
        at(play, wait - 0.001, 5, asks_session=False)
        at(play, wait + 0.001, 6, asks_session=True)
