"""Tests of hostile clients with sessions, at a gateway before a broker with 0 slots.

The attackers' resources are limited. Meanwhile, a kafka-python consumer continues. Work is counted in fetches
and bytes toward the broker.
"""

import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import psutil
import pytest
from confluent_kafka import Producer

from proxy.features.client_sessions.cache import MAX_PARTITIONS
from proxy.protocol.fetch_request import MAX_NAME, MAX_TOPICS
from tests.integration.bystander import MAX_GROWTH
from tests.model.asker import Requests, Want, summary
from tests.model.primitives import Writer
from tests.model.wire import FetchRequest, FetchResponse, decode_response, encode_request
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin
from tools.kafka.raw import RawConnection, frame

pytestmark = pytest.mark.integration

SLOTS = 80
PARTITIONS = 20
VERSION = 12
ENTRY_BYTES = 37
"""The size in bytes of an entry without records, in a response of v12."""
LAST_ID = 8 * 268_435_455 - 1
"""The highest session id of a shard. For a higher id, a broker fails with an exception (case 96)."""
ROUNDS = 10
"""How many records the reader gets, one after the other. They show that the reader is not disturbed."""

READER = """
import sys
from kafka import KafkaConsumer, TopicPartition

bootstrap, topic, partitions = sys.argv[1], sys.argv[2], int(sys.argv[3])
consumer = KafkaConsumer(
    bootstrap_servers=bootstrap,
    client_id="reader",
    auto_offset_reset="earliest",
    fetch_max_wait_ms=50,
    metadata_max_age_ms=5000,
)
consumer.assign([TopicPartition(topic, partition) for partition in range(partitions)])
while True:
    for records in consumer.poll(timeout_ms=1000).values():
        for record in records:
            print(record.value.decode(), flush=True)
"""
"""Runs in its own process, because its import warns of deprecated functions."""


class Reader:
    """A consumer with a session through the gateway, and a producer for its records."""

    def __init__(self, gateway: GatewayProcess, broker: Broker, topic: str) -> None:
        self._gateway = gateway
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})
        self._written = 0
        command = [sys.executable, "-W", "ignore", "-c", READER, gateway.address, topic, str(PARTITIONS)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def reads_on(self) -> None:
        """Write records, and check that the reader gets each of them, in order."""
        assert self._process.stdout is not None
        for _ in range(ROUNDS):
            self._producer.produce(self._topic, str(self._written), partition=self._written % 3)
            self._producer.flush()
            assert self._process.stdout.readline() == f"{self._written}\n"
            self._written += 1

    def fetches(self) -> dict[str, int]:
        """Return the number of the reader's fetches by kind."""
        links = [link for link in self._gateway.state()["connections"] if link["client_id"] == "reader"]
        return {
            kind: sum(link["client"]["fetches"][kind] for link in links) for kind in ("full", "incremental")
        }


@dataclass
class Client(Requests):
    """A client with its own connection to the gateway."""

    gateway: GatewayProcess = field(kw_only=True)

    def __post_init__(self) -> None:
        self.connection = RawConnection(self.gateway.host, self.gateway.port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def exchange(self, message: bytes) -> bytes:
        self.connection.socket.sendall(frame(message))
        return self.connection.receive()

    def send(self, request: FetchRequest) -> FetchResponse:
        return decode_response(self.exchange(encode_request(request)), self.version)

    def told(self, message: bytes) -> tuple[int, int, int]:
        """Send a request. Return the error, the session id, and an upper limit of the number of entries.

        The number is estimated from the size, because decoding the entries takes long.
        """
        response = self.exchange(message)
        error, session_id = struct.unpack_from(">hi", response, 9)
        return error, session_id, len(response) // ENTRY_BYTES

    def session(self, *wants: Want) -> int:
        """Create a session and use it once. Return its id, or 0 if the gateway had no slot for it."""
        made = self.fetch(*wants, session=(0, 0)).session_id
        if made:
            assert summary(self.fetch(session=(made, 1))) == (0, made, 0)
        return made


def listing(session: tuple[int, int], topics: list[str], partitions: int, *, forgotten: int = 0) -> bytes:
    """Build a fetch v12 with this many partitions of each topic.

    For a million partitions, the test client's own function would take too long.
    """
    out = Writer()
    for number in (-1, 0, 1, 1 << 20):
        out.number("i", number)
    out.number("b", 0)
    for number in session:
        out.number("i", number)
    out.uvarint(len(topics) + 1)
    tail = struct.pack(">iqiqib", -1, 0, -1, -1, 1 << 20, 0)
    listed = b"".join(index.to_bytes(4) + tail for index in range(partitions))
    for topic in topics:
        out.uvarint(len(topic) + 1)
        out.data += topic.encode()
        out.uvarint(partitions + 1)
        out.data += listed + b"\0"
    out.uvarint(2 if forgotten else 1)
    if forgotten:
        out.data += b"\5wide"
        out.uvarint(forgotten + 1)
        out.data += b"".join(index.to_bytes(4) for index in range(forgotten)) + b"\0"
    out.data += b"\1\0"
    return struct.pack(">hhih", 1, VERSION, 7, -1) + b"\0" + bytes(out.data)


@dataclass
class Stage:
    """A gateway that a test attacks, and a reader that must not be disturbed."""

    gateway: GatewayProcess
    reader: Reader

    def __post_init__(self) -> None:
        self.process = psutil.Process(self.gateway.pid)

    def connect(self) -> Client:
        return Client(VERSION, gateway=self.gateway)

    def held(self) -> tuple[int, int]:
        """Return the number of sessions that the gateway keeps for clients, and of all their partitions."""
        sessions = self.gateway.state()["client_sessions"]
        return sessions["held"], sessions["partitions"]

    def traffic(self, side: str) -> dict[str, Any]:
        """Return the sum of the traffic of all clients except the reader, on one side of the gateway."""
        state = self.gateway.state()
        total = dict(state["totals"][side])
        for link in state["connections"]:
            if link["client_id"] == "reader":
                kinds = {kind: total["fetches"][kind] - n for kind, n in link[side]["fetches"].items()}
                total |= {"fetches": kinds, "bytes_out": total["bytes_out"] - link[side]["bytes_out"]}
        return total

    def fetches(self, side: str) -> int:
        return sum(self.traffic(side)["fetches"].values())

    def unharmed(self, attack: Callable[[], object], *, growth: int = MAX_GROWTH) -> None:
        """Run an attack. Check that the reader is not disturbed.

        The reader keeps its session, and the gateway's memory grows by less than `growth` bytes.
        """
        self.reader.reads_on()
        before, memory = self.reader.fetches(), self.process.memory_info().rss
        attack()
        self.reader.reads_on()
        after = self.reader.fetches()
        assert (after["full"], after["incremental"] > before["incremental"]) == (before["full"], True)
        assert self.process.memory_info().rss - memory < growth
        log = self.gateway.log()
        assert "Traceback" not in log
        assert "defect" not in log


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Start a broker that creates no fetch sessions, because its session cache has no slots.

    Its heap is 2 GB, because a fetch of a million partitions takes half a gigabyte.
    """
    properties = {"max.incremental.fetch.session.cache.slots": 0}
    with Broker(properties=properties, heap="2g") as started, Admin(started.address) as admin:
        admin.create_topic("foo", partitions=3)
        yield started


@pytest.fixture
def stage(broker: Broker) -> Iterator[Stage]:
    topic = f"read-{random.randrange(1 << 30)}"
    with Admin(broker.address) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
    options = ("--max-incremental-fetch-session-cache-slots", str(SLOTS), "--log-level", "debug")
    with (
        GatewayProcess(broker.address, *options) as gateway,
        Reader(gateway, broker, topic) as reader,
    ):
        yield Stage(gateway, reader)


FOO: tuple[Want, ...] = (("foo", 0), ("foo", 1), ("foo", 2))


def test_sessions_made_in_a_loop(stage: Stage) -> None:
    """Section 2.7: clients that create sessions in a loop can't evict a session younger than two minutes.

    The reader keeps its session.
    """
    made: set[int] = set()

    def attack() -> None:
        for _ in range(40):
            with stage.connect() as client:
                made.update(client.session(*FOO) for _ in range(10))
        # Nor does one get slots that makes sessions and uses none.
        with stage.connect() as client:
            for _ in range(500):
                client.fetch(*FOO, session=(0, 0))

    stage.unharmed(attack)

    assert 0 in made
    assert stage.held() == (SLOTS, PARTITIONS + 3 * (SLOTS - 1))
    # Each session that was made was used once; no fetch went to the broker twice.
    assert stage.fetches("broker") == stage.fetches("client") == 400 + len(made) - 1 + 500


def test_ten_thousand_ids_and_wrong_epochs(stage: Stage) -> None:
    """Case 16: fetches with ten thousand wrong ids or epochs create no session.

    The reader's session continues.
    """
    chance = random.Random(1)
    with stage.connect() as victim, stage.connect() as client:
        made = victim.fetch(*FOO, session=(0, 0)).session_id

        def attack() -> None:
            for _ in range(100):
                sessions = [
                    (chance.randrange(1, 8 * 268_435_455), chance.randrange(1, 9)) for _ in range(100)
                ]
                messages = [encode_request(client.request(*FOO, session=session)) for session in sessions]
                client.connection.socket.sendall(b"".join(map(frame, messages)))
                for _ in sessions:
                    told = decode_response(client.connection.receive(), VERSION)
                    assert (told.error_code, told.session_id) == (70, 0)
            asked = stage.fetches("broker")
            for epoch in (2, 3, 2**31 - 1, -2, -(2**31)):
                assert summary(client.fetch(("foo", 2), session=(made, epoch))) == (71, 0, 0)
            assert stage.fetches("broker") == asked

        stage.unharmed(attack)

        assert summary(victim.fetch(session=(made, 1))) == (0, made, 0)
        assert stage.held() == (2, PARTITIONS + 3)


def test_a_session_that_somebody_else_ends(stage: Stage) -> None:
    """Section 2.1: anybody who knows a session's id and epoch may continue or end it, as at a broker."""
    with stage.connect() as victim, stage.connect() as client:
        made = victim.session(*FOO)
        stage.unharmed(lambda: client.fetch(session=(made, 2)))
        assert summary(victim.fetch(session=(made, 2))) == (71, 0, 0)

        client.fetch(session=(made, -1))
        assert summary(victim.fetch(session=(made, 3))) == (70, 0, 0)
        assert victim.session(*FOO) not in (0, made)


@pytest.mark.parametrize("count", [300_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_lists_of_very_many_partitions(count: int, stage: Stage) -> None:
    """A fetch with too many partitions is not read, and creates no session.

    If the fetch belongs to a session, the gateway ends that session, because it does not know the session's
    new partitions.
    """
    with stage.connect() as client:
        made = client.session(*FOO)

        def attack() -> None:
            for session in ((0, 0), (made, 2)):
                assert client.told(listing(session, ["wide"], count)) == (0, 0, count)
            assert client.told(listing((made, 2), [], 0, forgotten=count)) == (70, 0, 0)

        stage.unharmed(attack)

        assert stage.held() == (1, PARTITIONS)
        assert summary(client.fetch(session=(made, 2))) == (70, 0, 0)
        assert client.session(*FOO) not in (0, made)


def test_sessions_as_large_as_they_get(stage: Stage) -> None:
    """Memory is limited even if clients create the largest sessions.

    The sessions have a part of the cache's partitions, or 2,048 topics with the longest names.
    """
    partitions = MAX_PARTITIONS // 32

    def attack() -> None:
        for number in range(12):
            topics = [f"{number}-{topic}-".ljust(MAX_NAME, "x") for topic in range(MAX_TOPICS)]
            for names, count in (*[(["wide"], partitions)] * 3, (topics, 1)):
                with stage.connect() as client:
                    error, made, told = client.told(listing((0, 0), names, count))
                    assert (error, told >= len(names) * count) == (0, True)
                    if made:
                        again = client.told(encode_request(client.request(session=(made, 1))))
                        assert again == (0, made, told)

    stage.unharmed(attack, growth=256 << 20)

    # There is room for five times three large sessions and one with the longest names, which count as 13,271
    # partitions: names take memory, too.
    assert stage.held() == (1 + 5 * 4, PARTITIONS + 5 * (3 * partitions + MAX_TOPICS))
