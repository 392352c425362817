"""Conformance cases 14 to 48: compares fetchgate's session server with a real broker's own sessions.

The session server sends the broker full fetches without a session. The same script goes to both, and the
responses are equal to the byte, except session ids and throttle times.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import pytest

from tests.features.client_sessions.cases import Case, every_case
from tests.features.client_sessions.script import Script, Server
from tests.features.client_sessions.serving import Finish, Serving
from tests.integration.mirror import LIVE_PROPERTIES, Live
from tools.kafka import Broker
from tools.kafka.raw import RawConnection, frame

pytestmark = pytest.mark.integration

RATE = 50_000
"""The broker's quota in bytes a second. The broker averages over ten seconds, so a batch of 520 kB slightly
exceeds the quota and waits for 0.4 s."""
_ARRIVES = 1.0
"""The time after which a request on another connection has surely arrived at the broker, in seconds. Also a
thread of a broker on a busy machine runs within this time."""


@dataclass
class Connections:
    """Connections to one address. Each request uses an idle connection, or a new one."""

    host: str
    port: int
    idle: list[RawConnection] = field(default_factory=list)

    def begin(self, message: bytes) -> Finish:
        connection = self.idle.pop() if self.idle else RawConnection(self.host, self.port)
        connection.socket.sendall(frame(message))

        def finish() -> bytes:
            response = connection.receive()
            self.idle.append(connection)
            return response

        return finish

    def close(self) -> None:
        for connection in self.idle:
            connection.close()


@dataclass
class LiveWorld:
    """The topics of a script on a real broker. Each script gets new topics."""

    live: Live
    clients: tuple[str, ...]
    suffix: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    def full(self, name: str) -> str:
        return f"{name}-{self.suffix}"

    def create(self, name: str, partitions: int) -> bytes:
        self.live.create_topic(self.full(name), partitions)
        return self.live.topic_id(self.full(name))

    def delete(self, name: str) -> None:
        self.live.delete_topic(self.full(name))

    def produce(self, name: str, partition: int, size: int = 10) -> None:
        self.live.producer.produce(self.full(name), partition, [bytes(size)])

    @contextmanager
    def hold(self, name: str, partition: int) -> Iterator[None]:
        producer, topic = self.live.producer, self.full(name)
        transaction = producer.begin(topic)
        producer.join(transaction, topic, partition)
        producer.produce(topic, partition, [b"open"], transaction)
        yield
        self.live.end_transaction(transaction, topic, partition, commit=True)

    def delete_records(self, name: str, partition: int, before: int) -> None:
        self.live.admin.delete_records(self.full(name), {partition: before})

    def parked(self) -> None:
        time.sleep(_ARRIVES)

    @contextmanager
    def throttled(self, name: str, partition: int) -> Iterator[None]:
        for client in self.clients:
            self.live.admin.set_quota(client, {"consumer_byte_rate": RATE})
        self.produce(name, partition, 520_000)
        yield
        for client in self.clients:
            self.live.admin.set_quota(client, {"consumer_byte_rate": None})


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Broker(properties=LIVE_PROPERTIES) as broker, Live(broker) as connected:
        yield connected


@contextmanager
def live_script(live: Live, version: int, ours: Callable[[bytes], Finish]) -> Iterator[Script]:
    """Return a script that sends the same requests to the broker and to another server.

    It uses new topics and new connections.
    """
    marks = [f"{side}-{uuid.uuid4().hex[:8]}" for side in ("native", "ours")]
    with closing(Connections(live.broker.host, live.broker.port)) as connections:
        yield Script(
            version=version,
            world=LiveWorld(live, tuple(marks)),
            expected=Server(connections.begin, marks[0]),
            ours=Server(ours, marks[1]),
        ).with_topics()


@every_case(nightly=(7, 11, 13, 16))
def test_responses_are_those_of_the_brokers_own_sessions(live: Live, case: Case, version: int) -> None:
    """Cases 14 to 27, 30 to 43, and 45 to 48: the session server responds like the broker's own sessions."""
    with closing(Connections(live.broker.host, live.broker.port)) as connections:
        ours = Serving(connections.begin)
        with live_script(live, version, ours.arrive) as script:
            case(script)

    assert ours.asked
