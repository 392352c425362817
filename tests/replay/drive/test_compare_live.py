"""A session that the gateway captures is compared with what another real broker responds."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from proxy.protocol.api import ApiKey
from replay.cli import main
from tests.integration.bystander import until
from tools.gateway import GatewayProcess
from tools.kafka import Broker, raw
from tools.kafka.admin import Admin
from tools.kafka.raw import RawConnection

pytestmark = pytest.mark.integration

TOPICS = ("compared-a", "compared-b")
PARTITIONS = 2
RECORDS = 20
GROUP = "compared"
TIME = 1_700_000_000_000

Compare = Callable[..., tuple[int, dict[str, Any]]]


def fill(address: str) -> None:
    """Create the topics, with the same batches at every broker.

    Each batch has one record, with a given time.
    """
    with Admin(address) as admin:
        for topic in TOPICS:
            # The records are years old: from its first look on, retention would delete them.
            admin.create_topic(topic, partitions=PARTITIONS, config={"retention.ms": -1})
        admin.await_coordinator(GROUP)
    producer = Producer({"bootstrap.servers": address, "compression.type": "none"})
    for number in range(RECORDS):
        topic, partition = TOPICS[number % 2], number // 2 % PARTITIONS
        producer.produce(topic, value=b"%d" % number, partition=partition, timestamp=TIME + number)
        assert producer.flush(30) == 0


def reader(address: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,
        }
    )


def consume(address: str) -> None:
    """Read all records of both topics."""
    consumer = reader(address)
    places = [TopicPartition(topic, number, 0) for topic in TOPICS for number in range(PARTITIONS)]
    consumer.committed(places, timeout=30)
    consumer.assign(places)
    for _ in range(RECORDS):
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
    consumer.close()


def latest(topic: str, *, leader_epoch: int) -> bytes:
    """Return the body of a ListOffsets request (v4) for the end of a topic's first partition."""
    place = bytes(4) + leader_epoch.to_bytes(4) + (-1).to_bytes(8, signed=True)
    return (-1).to_bytes(4, signed=True) + b"\0" + raw.array([raw.string(topic) + raw.array([place])])


@pytest.fixture(scope="module")
def capture(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a capture of a client that reads the topics through a gateway."""
    folder = tmp_path_factory.mktemp("compared") / "own"
    fill(broker.address)
    with GatewayProcess(broker.address, "--capture", str(folder), "--capture-records", "yes") as gateway:
        consume(gateway.address)
        until(lambda: not gateway.state()["connections_open"], "all connections to be closed")
        assert gateway.stop() == 0
    return folder


@pytest.fixture(scope="module")
def other(broker: Broker) -> Iterator[Broker]:
    """Return a new broker with the same records."""
    with Broker(broker.version) as new:
        fill(new.address)
        yield new


@pytest.fixture
def compare(capture: Path, capsys: pytest.CaptureFixture[str]) -> Compare:
    """Return a function that compares a target with the capture. It returns exit code and comparison."""

    def comparing(target: str, captured: Path = capture) -> tuple[int, dict[str, Any]]:
        options = ("--target", target, "--compare", "--speed", "max", "--max-wait", "0", "--json")
        code = main(["drive", str(captured), *options])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)["compare"]
        return code, found

    return comparing


@pytest.mark.nightly
def test_nothing_differs_at_the_captured_broker(compare: Compare, broker: Broker) -> None:
    code, found = compare(broker.address)

    assert (code, [row for row in found["differences"] if not row["allowed"]]) == (0, [])
    apis = {row["api"]: row for row in found["apis"]}
    assert apis["Fetch"]["compared"] > 0
    assert apis["Fetch"]["same"] == apis["Fetch"]["compared"]
    assert {"Metadata", "ApiVersions", "FindCoordinator"} <= apis.keys()


@pytest.mark.nightly
def test_nothing_differs_after_a_restart_of_the_captured_broker(tmp_path: Path, compare: Compare) -> None:
    """A restart elects all leaders again: the captured leader epochs are then refused with error 74."""
    folder = tmp_path / "own"
    with Broker() as broker:
        fill(broker.address)
        with GatewayProcess(broker.address, "--capture", str(folder), "--capture-records", "yes") as gateway:
            consume(gateway.address)
            with RawConnection(gateway.host, gateway.port) as asking:
                asking.call(ApiKey.LIST_OFFSETS, 4, latest(TOPICS[0], leader_epoch=0))
            until(lambda: not gateway.state()["connections_open"], "all connections to be closed")
            assert gateway.stop() == 0
        broker.restart()

        code, found = compare(broker.address, folder)

    assert (code, [row for row in found["differences"] if not row["allowed"]]) == (0, [])
    (asked,) = [row for row in found["apis"] if row["api"] == "ListOffsets"]
    assert asked["same"] == asked["compared"] > 0


def test_nothing_differs_with_a_gateway_in_front(compare: Compare, gateway: GatewayProcess) -> None:
    code, found = compare(gateway.address)

    assert (code, [row for row in found["differences"] if not row["allowed"]]) == (0, [])
    (fetches,) = [row for row in found["apis"] if row["api"] == "Fetch"]
    assert fetches["same"] == fetches["compared"] > 0


@pytest.mark.nightly
def test_nothing_differs_at_a_new_broker_with_the_same_records(compare: Compare, other: Broker) -> None:
    code, found = compare(other.address)

    assert (code, [row for row in found["differences"] if not row["allowed"]]) == (0, [])
    (fetches,) = [row for row in found["apis"] if row["api"] == "Fetch"]
    assert fetches["same"] == fetches["compared"] > 0


@pytest.mark.nightly
def test_a_missing_topic_is_found(compare: Compare, other: Broker) -> None:
    with Admin(other.address) as admin:
        admin.delete_topic(TOPICS[1])

    code, found = compare(other.address)

    assert code == 5
    rows = {(row["api"], row["difference"]): row for row in found["differences"] if not row["allowed"]}
    missing = rows["Fetch", "missing"]
    assert {each["entry"].rpartition("-")[0] for each in missing["examples"]} == {TOPICS[1]}
    unknown = rows["Metadata", "another error"]["examples"][0]
    assert (unknown["entry"], unknown["now"]) == (TOPICS[1], "error 3 UNKNOWN_TOPIC_OR_PARTITION")
