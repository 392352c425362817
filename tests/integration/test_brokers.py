import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.fetching import Fetcher
from tests.integration.wire import ProduceError, Record, Wire, message_set, record_batch
from tools.gateway import GatewayProcess
from tools.kafka import LATEST, Broker, Cluster
from tools.kafka.__main__ import make_ready
from tools.kafka.admin import Admin, AdminError
from tools.kafka.jars import classpath, fetch
from tools.kafka.java import java
from tools.kafka.raw import FETCH, PRODUCE, BodyReader, array, string
from tools.kafka.sharing import sharing

BrokerOf = Callable[[str], Broker]

RANGES = [
    ("1.0.2", (0, 6), (0, 5)),
    ("1.1.1", (0, 7), (0, 5)),
    ("2.4.1", (0, 11), (0, 8)),
    ("2.8.2", (0, 12), (0, 9)),
    ("3.9.1", (0, 17), (0, 11)),
    ("4.4.0", (4, 18), (0, 13)),
]
"""The lowest and highest version of Fetch and Produce in each release, from Kafka's own tables."""


def test_newest_broker_takes_fetch_4_to_18(broker: Broker) -> None:
    with Wire(broker.host, broker.port) as wire:
        versions = wire.versions()
    assert versions[FETCH] == (4, 18)
    assert versions[PRODUCE] == (0, 13)  # 0 to 2 are told but refused (KIP-896)


@pytest.mark.parametrize(("release", "fetch", "produce"), RANGES)
def test_each_release_takes_its_versions(
    broker_of: BrokerOf, release: str, fetch: tuple[int, int], produce: tuple[int, int]
) -> None:
    broker = broker_of(release)
    with Wire(broker.host, broker.port) as wire:
        versions = wire.versions()
        state = wire.metadata()
    assert versions[FETCH] == fetch
    assert versions[PRODUCE] == produce
    assert state.brokers == {1: (broker.host, broker.port)}


@pytest.mark.parametrize("release", [release for release, _, _ in RANGES])
def test_each_release_is_administered(broker_of: BrokerOf, release: str) -> None:
    broker = broker_of(release)
    topic = "administered"
    with Admin(broker.address) as admin, Wire(broker.host, broker.port) as wire:
        admin.create_topic(topic, partitions=2, config={"retention.ms": 1_000_000})
        admin.add_partitions(topic, 3)
        assert admin.leaders(topic) == {0: 1, 1: 1, 2: 1}
        assert wire.produce(topic, 1, record_batch([Record(value=b"a"), Record(value=b"b")])) == 0
        assert admin.offsets(topic) == {0: 0, 1: 2, 2: 0}
        assert admin.delete_records(topic, {1: 1}) == {1: 1}
        assert admin.offsets(topic, timestamp=-2) == {0: 0, 1: 1, 2: 0}
        with pytest.raises(AdminError, match="error 36"):
            admin.create_topic(topic)
        admin.delete_topic(topic)
        admin.create_topic(topic, assignment={0: [1]})
        assert admin.leaders(topic) == {0: 1}


def test_a_topic_is_served_when_it_is_there(broker: Broker) -> None:
    """A broker names itself as leader of new partitions before it leads them: of many, seconds before."""
    with Admin(broker.address) as admin, Fetcher(broker.address, "served", 150) as fetcher:

        def errors() -> list[int]:
            return [data.error_code for data in fetcher.fetch(max_wait_ms=0).topics[0].partitions]

        admin.create_topic("served", partitions=100)
        assert errors()[:100] == [0] * 100
        admin.add_partitions("served", 150)
        assert errors()[:150] == [0] * 150
        admin.delete_topic("served")


def test_message_sets_are_taken_by_old_brokers_alone(broker: Broker, broker_of: BrokerOf) -> None:
    old = broker_of("1.0.2")
    with Admin(old.address) as admin, Wire(old.host, old.port) as wire:
        admin.create_topic("sets", config={"message.format.version": "0.9.0"})
        assert wire.produce("sets", 0, message_set([Record(value=b"a")], magic=0), version=0) == 0
        assert wire.produce("sets", 0, message_set([Record(value=b"b")], magic=1), version=2) == 1
        assert admin.offsets("sets") == {0: 2}
    with Admin(broker.address) as admin, Wire(broker.host, broker.port) as wire:
        admin.create_topic("sets")
        with pytest.raises((ConnectionError, ProduceError)):
            wire.produce("sets", 0, message_set([Record(value=b"a")], magic=0), version=2)
        admin.delete_topic("sets")


def test_records_come_back_byte_for_byte(broker: Broker) -> None:
    records = [
        Record(value=b"one", key=b"k", timestamp=1_700_000_000_123, headers=(("h", b"x"), ("n", None))),
        Record(value=None, timestamp=1_700_000_000_001),
    ]
    batch = record_batch(records)
    with Admin(broker.address) as admin, Wire(broker.host, broker.port) as wire:
        admin.create_topic("bytes", config={"retention.ms": -1})
        wire.produce_unacknowledged("bytes", 0, batch)
        assert wire.produce("bytes", 0, batch) == 2
        partition = b"\0\0\0\0" + bytes(8) + (1 << 20).to_bytes(4)
        head = (
            (-1).to_bytes(4, signed=True)
            + (500).to_bytes(4)
            + (1).to_bytes(4)
            + (1 << 20).to_bytes(4)
            + b"\0"
        )
        response = wire.call(FETCH, 4, head + array([string("bytes") + array([partition])]))
        admin.delete_topic("bytes")
    reader = BodyReader(response)
    reader.read(4 + 4 + 2 + len("bytes") + 4 + 4 + 2 + 8 + 8)
    reader.int32()  # aborted transactions: none, as null or as no elements
    stored = reader.blob()
    assert stored is not None
    assert reader.left == 0
    leader_epoch = slice(12, 16)  # the broker's own, outside what is checked
    second = stored[len(batch) :]
    assert stored[16 : len(batch)] == batch[16:]
    assert second[:8] == (2).to_bytes(8)
    assert second[leader_epoch] == bytes(4)
    assert second[16:] == batch[16:]


def test_broker_comes_back_with_its_data(broker_of: BrokerOf) -> None:
    broker = broker_of("4.3.0")
    port, pid = broker.port, broker.pid
    with Admin(broker.address) as admin:
        admin.create_topic("kept")
        identity = admin.topic_id("kept")
        broker.kill()
        assert not broker.running
        broker.restart()
        assert (broker.port, broker.pid != pid) == (port, True)
        assert admin.topic_id("kept") == identity


def test_leaders_are_moved_where_they_are_told(cluster: Cluster) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("moved", assignment={0: [1, 2], 1: [2, 3]})
        assert admin.leaders("moved") == {0: 1, 1: 2}
        admin.move_leader("moved", 0, 2)
        admin.move_leader("moved", 1, 1)
        state = admin.state("moved").topics["moved"]
        assert state.leaders == {0: 2, 1: 1}
        assert state.replicas == {0: [2, 1], 1: [1, 2]}
        admin.delete_topic("moved")


def test_gateway_process_serves_and_leaves(broker: Broker, gateway: GatewayProcess) -> None:
    with Wire(gateway.host, gateway.port) as wire:
        state = wire.metadata()
    assert state.brokers == {1: (gateway.host, gateway.port + 2)}
    assert gateway.address_of(1) == f"{gateway.host}:{gateway.port + 2}"
    assert gateway.state()["brokers"][0]["address"] == broker.address
    assert gateway.metric("fetchgate_bytes_total", side="client", direction="in") > 0
    assert gateway.stop() == 0
    assert "ready" in gateway.log()


def test_gateway_process_that_does_not_start_tells_why() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)exit code 2.*--nonsense"):
        GatewayProcess("127.0.0.1:1", "--nonsense").start()


def test_gateway_process_need_not_be_ready(start_gateway: Callable[..., GatewayProcess]) -> None:
    gateway = start_gateway("127.0.0.1:1", ready=False, environment={"FETCHGATE_LOG_FORMAT": "json"})
    assert gateway.state()["state"] == "starting"
    assert json.loads(gateway.log().splitlines()[0])["event"] == "started"
    assert gateway.stop() == 0


def test_java_tools_run_beside_a_broker(broker: Broker) -> None:
    main = "org.apache.kafka.tools.VerifiableProducer"
    with Admin(broker.address) as admin:
        admin.create_topic("verifiable")
        command = [str(java()), "-Xmx256m", "-cp", classpath(LATEST, tools=True), main]
        command += ["--bootstrap-server", broker.address, "--topic", "verifiable", "--max-messages", "10"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert '"name":"tool_data","sent":10,"acked":10' in done.stdout
        assert admin.offsets("verifiable") == {0: 10}
        admin.delete_topic("verifiable")


@pytest.mark.soak
def test_a_broker_starts_from_an_archive_that_its_java_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = fetch(LATEST)
    monkeypatch.setenv("FETCHGATE_CACHE", str(tmp_path))
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka" / LATEST).symlink_to(jars)
    make_ready(LATEST)
    assert sharing(LATEST) != []
    with Broker(options=["-Xshare:on"]) as broker:  # Java ends when it can't use the archive
        assert broker.running
