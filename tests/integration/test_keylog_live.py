"""TLS connections between real programs, captured like by tcpdump, are read with the client's key log."""

import asyncio
import ssl
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer  # type: ignore[import-untyped]  # it has no types
from aiokafka.helpers import create_ssl_context  # type: ignore[import-untyped]  # it has no types
from confluent_kafka import Producer

from proxy.protocol.api import ApiKey
from replay.capture.files import sources
from replay.capture.files.secrets import load
from replay.capture.kafka.exchange import ConnectionEnd, Exchange, without_records
from replay.capture.kafka.exchanges import Connections
from replay.capture.packets import segments
from tests.integration.bystander import until
from tests.integration.sniffing import sniffed
from tools.certificates import Authority, Pair
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas in an old way
    from kafka import KafkaConsumer  # type: ignore[import-untyped] # it carries no types

TOPIC, PARTITIONS, RECORDS = "logged", 12, 600
VALUE = b"SECRET" * 400

pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated")  # in kafka-python


@dataclass(frozen=True)
class Stage:
    broker: Broker
    ca: Authority
    own: Pair

    def context(self, keylog: Path, version: ssl.TLSVersion) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca.file)
        context.maximum_version = version
        context.keylog_filename = str(keylog)
        return context


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("keylog")
    ca = Authority(folder)
    own = ca.sign("kafka")
    store = folder / "both.pem"
    store.write_text(own.private + own.chain)
    properties = {"ssl.keystore.type": "PEM", "ssl.keystore.location": store}
    with Broker(listeners={"SSL": None}, properties=properties) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
        producer = Producer({"bootstrap.servers": broker.address})
        for number in range(RECORDS):
            producer.produce(TOPIC, value=VALUE, partition=number % PARTITIONS)
        assert producer.flush(30) == 0
        yield Stage(broker, ca, own)


def consume(bootstrap: str, context: ssl.SSLContext) -> None:
    consumer = KafkaConsumer(
        TOPIC,
        bootstrap_servers=bootstrap,
        client_id="logger",
        security_protocol="SSL",
        ssl_context=context,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=50,
        metadata_max_age_ms=5000,  # see `moving.consume_kafka_python`
    )
    seen = 0
    while seen < RECORDS:
        seen += sum(map(len, consumer.poll(1000).values()))
    for _ in range(5):
        consumer.poll(100)
    consumer.close()


def read(path: Path, *keylogs: Path) -> tuple[dict[str, list[Exchange]], list[ConnectionEnd]]:
    found = sources.expand([str(path)])
    secrets, problems = load([str(file) for file in keylogs], found)
    assert problems == []
    exchanges, ends = dict[str, list[Exchange]](), []
    batches = (batch for share in sources.plan(found, 1 << 30) for batch in segments.read(share))
    for event in Connections(secrets=secrets).read(batches):
        if isinstance(event, Exchange):
            exchanges.setdefault(event.connection, []).append(event)
        else:
            ends.append(event)
    return exchanges, ends


def told(exchange: Exchange) -> tuple[object, ...]:
    """Return the parts of an exchange that are the same wherever the exchange was captured."""
    return (
        exchange.number,
        exchange.client_id,
        exchange.software,
        (exchange.api_key, exchange.api_version, exchange.correlation_id),
        (exchange.request_bytes, exchange.response_bytes, exchange.answer_due),
        exchange.request,
        b"".join(exchange.response),
    )


def test_aiokafka_logs_where_the_environment_says(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = stage.broker.port_of("SSL")
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys.log"))
    context = create_ssl_context(cafile=str(stage.ca.file))

    async def run() -> int:
        consumer = AIOKafkaConsumer(
            TOPIC,
            bootstrap_servers=f"127.0.0.1:{port}",
            security_protocol="SSL",
            ssl_context=context,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        seen = 0
        while seen < RECORDS:
            seen += sum(map(len, (await consumer.getmany(timeout_ms=1000)).values()))
        await consumer.stop()
        return seen

    with sniffed(tmp_path / "tls.pcap", port):
        asyncio.run(run())
    exchanges, ends = read(tmp_path / "tls.pcap", tmp_path / "keys.log")
    found = [exchange for of_one in exchanges.values() for exchange in of_one]

    assert b"".join(piece for one in found for piece in one.response).count(VALUE) == RECORDS
    assert not any(end.reason or end.unframed_bytes or end.gaps for end in ends)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_what_a_broker_and_kafka_python_encrypt_is_read(
    stage: Stage, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    port = stage.broker.port_of("SSL")
    with sniffed(tmp_path / "tls.pcap", port):
        consume(f"127.0.0.1:{port}", stage.context(tmp_path / "keys.log", version))
    exchanges, ends = read(tmp_path / "tls.pcap", tmp_path / "keys.log")
    found = [exchange for of_one in exchanges.values() for exchange in of_one]
    fetches = [one for one in found if one.api_key == ApiKey.FETCH and one.response_bytes]
    values = b"".join(piece for one in fetches for piece in one.response).count(VALUE)
    _, without = read(tmp_path / "tls.pcap")

    assert values == RECORDS
    assert not any(VALUE in b"".join(without_records(one.response, one.api_version)) for one in fetches)
    assert all(one.response_missing == one.request_missing == 0 for one in found)
    assert [end.reason for end in ends] == [""] * len(ends)
    assert sum(end.unframed_bytes + end.gaps for end in ends) == 0
    assert all(end.tls_bytes > 500 for end in ends)
    assert {end.reason for end in without} == {"TLS"}


def test_it_is_what_the_gateway_captures_in_plain_text(stage: Stage, tmp_path: Path) -> None:
    keylog, own = tmp_path / "keys.log", tmp_path / "own"
    options = ["--tls-cert", str(stage.own.cert), "--tls-key", str(stage.own.key), "--capture", str(own)]
    with GatewayProcess(stage.broker.address, *options) as gateway:
        ports = [gateway.port, gateway.port + 1 + stage.broker.node_id]
        with sniffed(tmp_path / "tls.pcap", *ports):
            consume(gateway.address, stage.context(keylog, ssl.TLSVersion.TLSv1_3))
            until(lambda: not gateway.state()["connections_open"], "all connections to be closed")
        assert gateway.stop() == 0
    seen, ends = read(tmp_path / "tls.pcap", keylog)
    plain, _ = read(own)
    clients = {name: each for name, each in plain.items() if int(each[0].broker.rpartition(":")[2]) in ports}

    assert clients
    assert not any(end.reason for end in ends)
    assert clients.keys() == seen.keys()
    for connection, exchanges in clients.items():
        for exchange, other in zip(exchanges, seen[connection], strict=True):
            if not other.response_bytes:  # written to a client that had gone
                exchange.response, exchange.response_bytes = [], 0
            assert told(exchange) == told(other)
