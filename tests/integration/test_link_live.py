"""Real clients of brokers without sessions: their records, and the bytes on the link.

Clients with sessions use one gateway, or two in a row. Clients without sessions use two. Their records are
compared with a run without a gateway. The bytes of an idle fetch are compared with a native session: the same
client, and a broker with sessions.
"""

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import pytest
from confluent_kafka import Producer

from tests.clients import dataset
from tests.clients.programs import franz_go
from tests.clients.python.program import FETCH_MAX_WAIT_MS
from tests.clients.runner import CONFLUENT, KAFKA_PYTHON, Line, Place, Run, assert_same_records
from tests.integration.console import Console
from tools.counting import CountedFetches
from tools.demo.link import BROKERS, Point
from tools.demo.link_report import MAX_ABOVE_NATIVE
from tools.gateway import GatewayProcess
from tools.kafka import LATEST, Broker
from tools.kafka.admin import Admin

pytestmark = pytest.mark.integration

PARTITIONS: Final = 20
RECORDS: Final = 30
"""The number of records that arrive before the clients start. As many records arrive again when the clients
have a session."""
IDLE: Final = 30
"""The number of idle fetches of each client that the test counts."""
PARKED: Final = 0.8 * FETCH_MAX_WAIT_MS / 1000
"""The shortest wait of each fetch at the broker, in seconds."""
JAVA: Final = {LATEST: LATEST, "1.0.2": "2.8.2"}
"""Java releases by the broker's release. Java 4.x supports no brokers before 2.1 (KIP-896)."""

log = logging.getLogger(__name__)

PYTHON: Final = {"kafka-python": KAFKA_PYTHON, "librdkafka": CONFLUENT}


class Client(Protocol):
    """A running consumer."""

    def wait_records(self, count: int) -> None: ...

    def records(self) -> dict[Place, list[Line]]: ...


Start = Callable[[str, str], AbstractContextManager[Client]]
"""A function that starts a client, given the bootstrap address and the topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokers:
    """Two brokers: one of a release without sessions, and one with native sessions."""

    release: str
    sessionless: Broker
    native: Broker

    def create(self, topic: str) -> None:
        for broker in (self.sessionless, self.native):
            with Admin(broker.address) as admin:
                admin.create_topic(topic, partitions=PARTITIONS)

    def produce(self, topic: str, first: int) -> None:
        """Write `RECORDS` records to three partitions of both brokers, with and without keys and headers."""
        for broker in (self.sessionless, self.native):
            producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})
            for number in range(first, first + RECORDS):
                producer.produce(
                    topic,
                    f"value {number}".encode(),
                    None if number % 5 == 0 else f"key {number}".encode(),
                    partition=number % 3,
                    headers=dataset.HEADERS[number % len(dataset.HEADERS)],
                )
                producer.flush(30)  # one at a time, so that many fetches bring some


@pytest.fixture(scope="module", params=BROKERS)
def brokers(request: pytest.FixtureRequest) -> Iterator[Brokers]:
    release: str = request.param
    kind = BROKERS[release]
    with Broker(release, properties=kind.properties) as sessionless, Broker(kind.native) as native:
        yield Brokers(release=release, sessionless=sessionless, native=native)


@pytest.fixture
def start(request: pytest.FixtureRequest, brokers: Brokers, tmp_path: Path) -> Start:
    """Return a function that starts the client under test, given a bootstrap address and a topic."""
    name: str = request.param
    if name == "Java":
        return lambda bootstrap, topic: Console(JAVA[brokers.release], bootstrap, topic, tmp_path)
    program = franz_go() if name == "franz-go" else PYTHON[name]
    return lambda bootstrap, topic: Run(program, bootstrap, assign={topic: PARTITIONS})


def idle(places: Sequence[tuple[GatewayProcess, str]]) -> list[CountedFetches]:
    """Count idle fetches at several sides of gateways at the same time."""
    points = [Point(gateway=gateway, side=side, parked_seconds=PARKED) for gateway, side in places]
    earlier = [point.counted_at_a_fetch() for point in points]
    ends = [before.fetches + IDLE for before in earlier]
    while any(point.counted().fetches < end for point, end in zip(points, ends, strict=True)):
        time.sleep(0.2)
    return [point.counted_at_a_fetch() - before for point, before in zip(points, earlier, strict=True)]


@pytest.mark.parametrize(
    ("start", "gateways"),
    [("Java", 1), ("franz-go", 1), ("kafka-python", 1), ("Java", 2), ("librdkafka", 2)],
    indirect=["start"],
)
def test_records_are_the_same_and_the_link_takes_what_a_native_session_takes(
    brokers: Brokers, start: Start, gateways: int, start_gateway: Callable[..., GatewayProcess]
) -> None:
    topic = f"events-{uuid.uuid4().hex[:8]}"
    brokers.create(topic)
    brokers.produce(topic, 0)
    row = [start_gateway(brokers.sessionless.address)]
    for _ in range(gateways - 1):
        row.append(start_gateway(row[-1].address))
    far, near = row[0], row[-1]
    to_native = start_gateway(brokers.native.address)
    with ExitStack() as stack:
        addresses = (brokers.sessionless.address, near.address, to_native.address)
        direct, through, native = (stack.enter_context(start(address, topic)) for address in addresses)
        for client in (direct, through, native):
            client.wait_records(RECORDS)
        brokers.produce(topic, RECORDS)
        for client in (direct, through, native):
            client.wait_records(2 * RECORDS)
        places = [(far, "broker"), (far, "client"), (to_native, "broker")]
        if near is not far:
            places.append((near, "broker"))
        full, link, of_native, *other_end = idle(places)
        log.info("full %.1f, link %.1f, native %.1f bytes", full.whole, link.whole, of_native.whole)

        assert through.records() == direct.records()
        assert sum(map(len, through.records().values())) == 2 * RECORDS
        for counted in (link, of_native, *other_end):
            assert counted.records == 0
            assert counted.whole == pytest.approx(of_native.whole, rel=MAX_ABOVE_NATIVE)
        assert link.whole < full.whole / 10
        totals = far.state()["totals"]
        assert totals["client"]["fetches"]["incremental"] >= IDLE
        assert totals["broker"]["fetches"]["incremental"] == 0
        for client, in_session in ((direct, False), (through, True)):
            if isinstance(client, Console):
                responses = client.log().count("sent an incremental fetch response")
                assert responses >= IDLE if in_session else responses == 0, client.log()


@pytest.mark.parametrize("brokers", ["1.0.2"], indirect=True)
def test_topics_with_one_of_everything_are_read_the_same_through_two_gateways_in_a_row(
    brokers: Brokers, start_gateway: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    """Two gateways in a row do not change what librdkafka and Java read from topics with special contents.

    The contents are headers, gzip, nulls, transactions, holes, a log start above 0, and large records.
    """
    expected = dataset.fill(brokers.sessionless.address)
    far = start_gateway(brokers.sessionless.address)
    near = start_gateway(far.address)
    addresses = (brokers.sessionless.address, near.address)
    for isolation in ("read_uncommitted", "read_committed"):
        with ExitStack() as stack:
            direct, through = (
                stack.enter_context(Run(CONFLUENT, address, assign=dataset.PARTITIONS, isolation=isolation))
                for address in addresses
            )
            for run in (direct, through):
                run.wait_ends(expected.ends)
            assert_same_records(direct, through)
            assert (through.errors(), through.ends()) == ([], direct.ends())
    assert near.state()["totals"]["broker"]["fetches"]["incremental"] > 0

    committed = direct.records()
    for topic in (dataset.PLAIN, dataset.TRANSACTIONS, dataset.COMPACTED, dataset.TRIMMED):
        offsets = {
            place: [record["offset"] for record in records]
            for place, records in committed.items()
            if place[0] == topic
        }
        with ExitStack() as stack:
            consoles = [
                stack.enter_context(
                    Console(JAVA[brokers.release], address, topic, tmp_path, isolation="read_committed")
                )
                for address in addresses
            ]
            for console in consoles:
                console.wait_records(sum(map(len, offsets.values())))
            java_direct, java_through = (console.records() for console in consoles)
        assert java_through == java_direct
        found = {place: [line["offset"] for line in lines] for place, lines in java_through.items()}
        assert found == offsets
    assert far.state()["totals"]["broker"]["fetches"]["incremental"] == 0
