"""A broker loses a partition of a session and reports no error. Without a check, the client would never get
the records of this partition.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from proxy.core.events import Passthrough, SessionLost, fetch_bytes, saved_bytes
from proxy.core.savings import CREDIT_EXCHANGES
from proxy.core.session_keeper import CHECK_PAID, CHECK_SECONDS, SUSPECT_SECONDS
from proxy.session.decision import Reason
from proxy.session.state import Loss
from tests.core.test_expanded_fetch import Client
from tests.examples import few, share
from tests.model.asker import Want, entries
from tests.model.broker import FETCH_SESSION_ID_NOT_FOUND, ModelBroker, Pending
from tests.model.wire import FetchRequest, FetchResponse, decode_request

WANTS: dict[str, list[Want]] = {
    "one topic": [("t", index) for index in range(8)],
    "two topics": [(name, index) for name in ("t", "u") for index in range(8)],
}
LOST = 3
"""The partition of topic t that the broker loses."""


class Reader(Client):
    """A client that sends one fetch each second, and advances its offsets after the records it got."""

    def __init__(self, version: int, wants: list[Want]) -> None:
        super().__init__(version, wants=wants)
        self.read = 0
        self.goes_back = False
        """Whether the client requests the same records again, so that there is always more to read."""
        self.limits: dict[str, int] = {}

    def send(self, request: FetchRequest) -> FetchResponse:
        """Send a fetch. The response is not checked, because the records of a lost partition arrive late."""
        return self.through(request)

    def fetch_on(self, isolation_level: int = 0) -> FetchResponse:
        self.now += 1.0
        told = self.poll(isolation_level, **self.limits)
        for name, data in zip(self.names(told), entries(told), strict=True):
            if data.records and not self.goes_back:
                self.offsets[name] = data.high_watermark
                self.read += name == ("t", LOST)
        return told

    def lose(self) -> None:
        """Remove the partition `LOST` from each session of the broker, as if it had never been added."""
        for session in self.broker.cache.sessions.values():
            for key in [key for key in session.partitions if key[1] == LOST]:
                if key[0] in ("t", self.ids["t"]):
                    del session.partitions[key]


@pytest.mark.slow
@pytest.mark.parametrize("version", few((4, 7, 12, 16), 4, 16))
@pytest.mark.parametrize("wants", WANTS.values(), ids=WANTS.keys())
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_a_partition_that_the_broker_has_lost_is_found_and_told(
    version: int, wants: list[Want], isolation_level: int
) -> None:
    client = Reader(version, wants)
    while not client.gate.connection.state.session_id:
        client.fetch_on(isolation_level)
    client.lose()
    client.broker.partition("t", LOST).append(b"data")
    for _ in range(int(CHECK_SECONDS) + 3):
        client.fetch_on(isolation_level)
    assert client.read == 1
    tally = client.gate.connection.tally
    assert tally.session_checks == 1
    assert tally.sessions_lost == {Loss.LEFT_OUT: 1}
    lost = [event for event in client.gate.connection.drain_events() if isinstance(event, SessionLost)]
    assert [event.error_code for event in lost] == [0]
    assert client.gate.connection.state.session_id  # a new one: that one may have been an accident


@pytest.mark.parametrize("version", few((4, 7, 12, 16), 4, 16))
@pytest.mark.parametrize("wants", WANTS.values(), ids=WANTS.keys())
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_a_partition_that_is_lost_while_its_client_has_more_to_read_is_found_soon(
    version: int, wants: list[Want], isolation_level: int
) -> None:
    """The gateway soon finds that the broker has lost a partition, while the client still reads records.

    The log of the partition does not change in this time.
    """
    client = Reader(version, wants)
    while not client.gate.connection.state.session_id:
        client.fetch_on(isolation_level)
    client.broker.partition("t", LOST).append(b"data")
    client.goes_back = True
    for _ in range(3):
        client.fetch_on(isolation_level)
    client.goes_back = False
    client.lose()
    lost_at = client.now
    while not client.read:
        client.fetch_on(isolation_level)
        assert client.now < lost_at + CHECK_PAID + 3 * SUSPECT_SECONDS
    tally = client.gate.connection.tally
    assert tally.session_checks == 1
    assert tally.sessions_lost == {Loss.LEFT_OUT: 1}


def test_a_broker_that_goes_on_to_lose_partitions_gets_no_sessions_any_more() -> None:
    client = Reader(12, WANTS["two topics"])
    for step in range(int(CHECK_SECONDS + 5 * SUSPECT_SECONDS)):
        client.fetch_on()
        client.lose()
        if step % 8 == 0:
            client.broker.partition("t", LOST).append(b"data")
    connection = client.gate.connection
    assert connection.tally.sessions_lost == {Loss.LEFT_OUT: 2}
    assert (connection.state.decided, connection.state.session_id) == (Reason.LEFT_OUT, 0)
    events = [event for event in connection.drain_events() if isinstance(event, Passthrough)]
    assert [event.reason for event in events] == [Reason.LEFT_OUT]
    read = client.read
    for _ in range(10):
        client.broker.partition("t", LOST).append(b"data")
        client.fetch_on()
    assert client.read == read + 10
    assert not client.broker.cache.sessions


def touches(broker: ModelBroker, chance: random.Random) -> None:
    """Let a random event happen at the broker: a write, an error, or deleted records."""
    partition = broker.partition(chance.choice("tu"), chance.randrange(8))
    event = chance.random()
    if event < 0.6:
        partition.append(b"data", replicated=event < 0.5)
    elif event < 0.7:
        partition.high_watermark = partition.log_end
    elif event < 0.8:
        partition.error = chance.choice([0, 0, 56])
    elif event < 0.85:
        partition.delete_records(partition.high_watermark)


def checked_often(release: str, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """Return a client whose session is checked with every third fetch."""
    monkeypatch.setattr("proxy.core.session_keeper.CHECK_SECONDS", 3.0)
    monkeypatch.setattr("proxy.core.session_keeper.CHECK_PAID", 0)
    client = Reader(7, WANTS["two topics"])
    client.broker.quirks = ModelBroker(release=release).quirks
    return client


@pytest.mark.slow
@pytest.mark.parametrize("release", ["1.1", "2.8", "4.3"])
@pytest.mark.parametrize("seed", range(share(3)))
def test_a_broker_that_keeps_its_sessions_is_never_suspected(
    release: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that keeps its sessions is never suspected of having lost a partition.

    Here writes, errors and throttling happen between a check and the next response.
    """
    chance, client = random.Random(seed), checked_often(release, monkeypatch)
    happen: Callable[[ModelBroker, random.Random], None] = touches
    for _ in range(400):
        for _ in range(chance.choice([0, 0, 1, 3])):
            happen(client.broker, chance)
        client.broker.throttle_ms = chance.choice([0, 0, 0, 0, 30])
        if chance.random() < 0.05:
            client.wants = client.wants[1:] if len(client.wants) > 12 else list(WANTS["two topics"])
        client.fetch_on()
    tally = client.gate.connection.tally
    assert tally.session_checks > 40
    assert not tally.sessions_lost


@pytest.mark.slow
@pytest.mark.parametrize("release", ["1.1", "2.8", "4.3"])
@pytest.mark.parametrize("seed", range(max(2, share(4))))
def test_nor_is_one_whose_clients_have_more_to_read_than_there_is_room_for(
    release: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker is not suspected of having lost a partition if a size limit leaves out partitions.

    This holds even if clients read the same records again.
    """
    chance, client = random.Random(seed), checked_often(release, monkeypatch)
    for _ in range(400):
        for _ in range(chance.choice([0, 0, 1, 3])):
            touches(client.broker, chance)
        client.broker.throttle_ms = chance.choice([0, 0, 0, 0, 30])
        client.goes_back = chance.random() < 0.7
        client.limits = {"max_bytes": chance.choice([1, 10, 1 << 20])}
        client.fetch_on(seed % 2)
    tally = client.gate.connection.tally
    assert tally.session_checks > 20
    assert not tally.sessions_lost


def test_a_check_waits_until_the_session_has_paid_for_it() -> None:
    """Law 6: the session is checked only after it has saved enough, because a check costs as much as a full
    fetch. This client fetches every two minutes, so it saves little.
    """
    client = Reader(12, WANTS["two topics"])
    while not client.gate.connection.state.session_id:
        client.fetch_on()
    tally = client.gate.connection.tally
    for _ in range(20):
        client.now += 119.0
        client.fetch_on()
    assert tally.session_checks == 0
    while not tally.session_checks:
        client.now += 119.0
        client.fetch_on()
    assert saved_bytes(tally) > CHECK_PAID * 16 * 33


@pytest.mark.slow
def test_a_check_is_one_full_fetch_of_one_batch_in_five_minutes() -> None:
    """A check is one sessionless fetch of one batch, every five minutes. The client does not notice it, and
    the counts of both sides include it.
    """
    client = Reader(12, WANTS["two topics"])
    seen: list[FetchRequest] = []
    client.gate.before = lambda message: seen.append(decode_request(message))
    for index in range(8):
        client.broker.partition("u", index).append(bytes(500))
    for _ in range(1_000):
        client.fetch_on()
    tally = client.gate.connection.tally
    assert (tally.session_checks, tally.sessions_lost) == (3, {})
    checks = [each for each in seen if (each.max_wait_ms, each.min_bytes, each.max_bytes) == (0, 0, 1)]
    assert [(each.session_id, each.session_epoch) for each in checks] == [(0, -1)] * 3
    assert {len(each.topics[0].partitions) for each in checks} <= set(range(1, 9))
    client.gate.check_tally()


class Forgetful(ModelBroker):
    """A broker that drops every session after the fetch that created it. Later fetches get id 0 and no
    error.
    """

    def response(self, pending: Pending, now: float) -> FetchResponse:
        told = super().response(pending, now)
        for session in list(self.cache.sessions.values()):
            self.cache.remove(session)
        return replace(told, error_code=0) if told.error_code == FETCH_SESSION_ID_NOT_FOUND else told


@pytest.mark.slow
@pytest.mark.parametrize("version", [4, 12])
def test_a_broker_that_keeps_no_session_starves_nobody_and_is_asked_within_bounds(version: int) -> None:
    """If a broker keeps no session, clients still get all records, and the cost stays within its limit (law
    6). Tansu behaves like this after a restart.
    """
    client = Client(version, wants=WANTS["two topics"], model=Forgetful)
    for step in range(200):
        if step % 3 == 0:
            client.broker.partition("t", LOST).append(b"data")
        client.poll(0)
        client.read_to_the_end()
    tally = client.gate.connection.tally
    assert tally.sessions_lost[Loss.NO_ID]
    exchange = fetch_bytes(tally.client) / 200
    assert fetch_bytes(tally.broker) < fetch_bytes(tally.client) + (CREDIT_EXCHANGES + 1) * exchange
    client.gate.check_tally()
