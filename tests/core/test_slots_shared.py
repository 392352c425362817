"""Several gateways with more sessions than the broker has slots, for minutes of simulated time.

The broker is the model of `tests/model`. All gateways together request few sessions, and no connection costs
more bytes than law 6 allows.
"""

import random
from dataclasses import dataclass, field

import pytest

from proxy.core.eligibility import SessionLimits
from proxy.core.events import FetchKind, broker_bytes, fetch_bytes
from proxy.core.savings import CREDIT_EXCHANGES, PLAIN_PER_LOST
from tests.connections import connect
from tests.frames import Want, fetch
from tests.model.broker import ModelBroker
from tests.playbook import Playbook, T, api_versions, passes, split

SLOTS = 8
GATEWAYS = 4
CLIENTS = 4
"""The number of clients of each gateway. So there are twice as many clients as slots."""
MINUTES = 8


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


def test_a_connection_lacks_a_slot_until_a_later_fetch_finds_one() -> None:
    """A gateway that has just as many slots as its clients need has no problem."""
    limits = SessionLimits(max_sessions=0)
    play = Playbook(limits).knows()
    status = play.connection.status()
    for number in (1, 2, 3):
        assert not status.lacks_slot
        passes(play, 16, T, number)
    assert status.lacks_slot
    limits.max_sessions = 1
    play.client(fetch(16, *T)).takes_broker()
    assert (play.connection.decided, status.lacks_slot) == (None, False)


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
