"""A capture of groups, transactions and three libraries is compared with equal and with different targets."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer  # type: ignore[import-untyped] # no types
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from proxy.protocol.api import ApiKey, request_header
from proxy.protocol.fetch_layout import LAYOUTS
from replay.cli import main
from tests.integration.bystander import until
from tools.gateway import GatewayProcess
from tools.kafka import LATEST, Broker
from tools.kafka.admin import Admin

pytestmark = [
    pytest.mark.integration,
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of kafka-python, when it is imported
]

TOPICS = {"orders": 3, "payments": 2, "copies": 1}
ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
WRITES = (
    "Produce,InitProducerId,AddPartitionsToTxn,AddOffsetsToTxn,TxnOffsetCommit,EndTxn,JoinGroup,SyncGroup,"
    "Heartbeat,LeaveGroup,OffsetCommit"
)
ROUNDS = 5
VALUE = b"x" * 500
ALLOW = AclPermissionType.ALLOW


def create_topics(address: str, topics: dict[str, int] = TOPICS) -> None:
    with Admin(address) as admin:
        for name, partitions in topics.items():
            admin.create_topic(name, partitions=partitions, config={"retention.ms": -1})


def write(address: str) -> None:
    """Write to all partitions, with each library."""
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 20})
    for number in range(60):
        producer.produce("orders", VALUE, partition=number % 3)
    assert producer.flush(30) == 0
    other = import_module("kafka").KafkaProducer(bootstrap_servers=address, linger_ms=20)
    for number in range(60):
        other.send("payments", VALUE, partition=number % 2)
    other.close(30)


async def copy(address: str) -> None:
    """Copy orders in transactions, of which each third is aborted. Each has its own batches."""
    producer = AIOKafkaProducer(bootstrap_servers=address, transactional_id="copier")
    await producer.start()
    for number in range(6):
        await producer.begin_transaction()
        await producer.send_and_wait("copies", VALUE, partition=0)
        if number % 3 == 2:
            await producer.abort_transaction()
        else:
            await producer.commit_transaction()
    await producer.stop()
    consumer = AIOKafkaConsumer(
        "copies",
        bootstrap_servers=address,
        group_id="auditors",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    await consumer.start()
    for _ in range(4):
        await asyncio.wait_for(consumer.getone(), 60)
    await consumer.commit()
    await consumer.stop()


def read(address: str) -> None:
    """Read orders and payments in groups."""
    settings = {"bootstrap.servers": address, "group.id": "billing", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe(["orders"])
    found = 0
    while found < 60:
        message = consumer.poll(60)
        assert message is not None
        found += message.error() is None
    consumer.commit(asynchronous=False)
    consumer.close()
    other = import_module("kafka").KafkaConsumer(
        "payments", bootstrap_servers=address, group_id="clerks", auto_offset_reset="earliest"
    )
    for _ in range(60):
        next(other)
    other.close()


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, list[str]]]:
    """Return the captured broker, and how the capture is named on the command line."""
    folder = tmp_path_factory.mktemp("cases") / "own"
    with Broker("3.9.1", properties=ACLS) as broker:
        create_topics(broker.address)
        with Admin(broker.address) as admin:
            admin.await_coordinator("billing")
        options = ("--sessions", "off", "--capture", str(folder), "--capture-records", "yes")
        with GatewayProcess(broker.address, *options) as gateway:
            for _ in range(ROUNDS):
                with ThreadPoolExecutor() as pool:
                    reading = pool.submit(read, gateway.address)
                    copying = pool.submit(asyncio.run, copy(gateway.address))
                    write(gateway.address)
                    reading.result()
                    copying.result()
            until(lambda: not gateway.state()["connections_open"], "all connections to be closed")
            ports = [f"--port={port}" for port in gateway.ports]
            assert gateway.stop() == 0
        yield broker, [str(folder), *ports]


Compare = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def compare(captured: tuple[Broker, list[str]], capsys: pytest.CaptureFixture[str]) -> Compare:
    """Return a function that compares a target. It returns the exit code and the differences not allowed."""

    def comparing(target: str, *more: str) -> tuple[int, dict[str, Any]]:
        options = ("--target", target, "--compare", "--speed", "max", "--max-wait", "500", "--json", *more)
        code = main(["drive", *captured[1], *options])
        report = json.loads(capsys.readouterr().out)
        rows = [row for row in report["compare"]["differences"] if not row["allowed"]]
        fetches = [row for row in report["compare"]["apis"] if row["api"] == "Fetch"]
        assert not fetches or fetches[0]["compared"] > 20, fetches
        return code, {f"{row['api']}: {row['difference']}": row["examples"] for row in rows}

    return comparing


def test_the_captured_broker_after_a_restart(compare: Compare, captured: tuple[Broker, list[str]]) -> None:
    captured[0].restart()

    assert compare(captured[0].address) == (0, {})


def test_an_empty_cluster_that_the_run_fills(compare: Compare) -> None:
    with Broker(LATEST) as empty:
        assert compare(empty.address, "--create-topics", "--include", WRITES) == (0, {})


def test_a_cluster_without_the_topics(compare: Compare) -> None:
    with Broker(LATEST) as empty:
        code, found = compare(empty.address)

    assert code == 5
    assert "Fetch: missing" in found


def test_fewer_partitions_and_other_batches(compare: Compare) -> None:
    with Broker(LATEST) as other:
        create_topics(other.address, {"orders": 2, "payments": 2, "copies": 1})
        producer = Producer({"bootstrap.servers": other.address, "linger.ms": 0, "batch.num.messages": 1})
        for number in range(40):
            producer.produce("payments", VALUE, partition=number % 2)
            assert producer.flush(30) == 0

        code, found = compare(other.address)

    assert code == 5
    assert {example["entry"] for example in found["Fetch: missing"]} == {"orders-2"}
    assert {"payments"} <= {example["topic"] for example in found["Fetch: fewer record bytes"]}


@pytest.fixture(scope="module")
def upgraded(captured: tuple[Broker, list[str]]) -> Broker:
    """Return the captured broker as the latest release, with its logs."""
    broker, _ = captured
    broker.stop()
    broker.version = LATEST
    broker.start()
    return broker


def test_a_newer_release_with_the_captured_logs(compare: Compare, upgraded: Broker) -> None:
    assert compare(upgraded.address) == (0, {})


def test_another_isolation_level(compare: Compare, upgraded: Broker) -> None:
    with isolating(upgraded) as address:
        code, found = compare(address)

    assert code == 5
    assert {each["topic"] for each in found["Fetch: other aborted transactions"]} >= {"copies"}


@contextmanager
def isolating(broker: Broker) -> Iterator[str]:
    """Serve a proxy that makes each fetch read uncommitted records."""

    async def frames(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, change: bool) -> None:
        try:
            while True:
                size = await reader.readexactly(4)
                frame = bytearray(size + await reader.readexactly(int.from_bytes(size)))
                if change and int.from_bytes(frame[4:6]) == ApiKey.FETCH:
                    version = int.from_bytes(frame[6:8])
                    frame[request_header(bytes(frame), 4)[-1] + LAYOUTS[version].request_isolation] = 0
                writer.write(frame)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await asyncio.open_connection(broker.host, broker.port)
        await asyncio.gather(frames(reader, to, change=True), frames(there, writer, change=False))

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(client, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.1))
        loop.close()


def test_a_missing_acl(compare: Compare, upgraded: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": upgraded.address})
    of_topic = (ResourceType.TOPIC, "payments", ResourcePatternType.LITERAL, "User:somebody-else", "*")
    binding = AclBinding(*of_topic, AclOperation.READ, ALLOW)
    for future in admin.create_acls([binding]).values():
        future.result()

    code, found = compare(upgraded.address)

    for future in admin.delete_acls([AclBindingFilter(*of_topic, AclOperation.READ, ALLOW)]).values():
        future.result()
    assert code == 5
    assert {"all: missing ACL"} == found.keys()
    topics = {each["topic"] for each in found["all: missing ACL"]}
    assert topics <= {"payments", ""}  # the errors in an OffsetFetch response are not read by topic
    assert "payments" in topics


def test_fewer_bytes_a_fetch(compare: Compare, upgraded: Broker) -> None:
    settings = upgraded.folder / "server.properties"
    before = settings.read_text()
    settings.write_text(f"{before}\nfetch.max.bytes=1024\n")
    upgraded.restart()

    code, found = compare(upgraded.address)

    settings.write_text(before)
    assert code == 5
    assert "Fetch: fewer record bytes" in found


def test_deleted_records(compare: Compare, upgraded: Broker) -> None:
    with Admin(upgraded.address) as admin:
        admin.delete_records("orders", {0: 10})

    code, found = compare(upgraded.address)

    assert code == 5
    assert {each["entry"] for each in found["Fetch: another error"]} == {"orders-0"}
    assert {each["now"] for each in found["Fetch: another error"]} == {"error 1 OFFSET_OUT_OF_RANGE"}
