"""Kafka Streams with exactly_once_v2 processes each record once, directly and through the gateway."""

import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import confluent_kafka
import pytest

from tests.clients.programs import BUILT, HERE, QUICK_START, build, tool
from tools.gateway import GatewayProcess
from tools.kafka import LATEST, Broker
from tools.kafka.admin import Admin
from tools.kafka.jars import LOGGER, fetch_as

pytestmark = pytest.mark.clients
RECORDS: Final = 3_000
PARTS: Final = 6
"""The number of parts in which the records are produced while the application runs. The application is
restarted in the middle."""
KEYS: Final = 50
PARTITIONS: Final = 3
PATIENCE: Final = 120.0


@pytest.fixture(scope="module")
def streams_jars() -> str:
    """Return the Java class path of Kafka Streams."""
    return f"{fetch_as(f'streams-{LATEST}', [f'org.apache.kafka:kafka-streams:{LATEST}', LOGGER])}/*"


@pytest.fixture(scope="module")
def command(streams_jars: str) -> list[str]:
    """Build the application. Return its command line."""
    compiler, runtime = tool("javac"), tool("java")
    folder = BUILT / f"streams-{LATEST}"
    folder.mkdir(parents=True, exist_ok=True)
    build(compiler, "-cp", streams_jars, "-d", str(folder), "ExactlyOnce.java", folder=HERE / "java")
    options = [*QUICK_START, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    return [runtime, "-Xmx256m", *options, "-cp", f"{folder}:{streams_jars}", "ExactlyOnce"]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@contextmanager
def application(command: list[str], log: Path, **options: str) -> Iterator[None]:
    """Run the application. At the end, let it stop gracefully."""
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    with log.open("ab") as file:
        process = subprocess.Popen([*command, *words], stdin=subprocess.PIPE, stdout=file, stderr=file)
    try:
        yield
        process.communicate(b"\n", timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, log.read_text()[-4_000:]


def produce(bootstrap: str, topic: str, first: int, number: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for each in range(first, first + number):
        producer.produce(topic, key=b"key-%d" % (each % KEYS), value=b"%d" % each)
    assert producer.flush(PATIENCE) == 0


class Reader:
    """A read_committed consumer that reads one topic from its beginning."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"judge-{topic}",
                "isolation.level": "read_committed",
            }
        )
        places = [confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)]
        self._consumer.assign(places)
        self.records: list[tuple[str, int]] = []

    def read(self, number: int, log: Path) -> None:
        """Read until a total of `number` records were received.

        If it takes too long, fail with the text in `log`.
        """
        deadline = time.monotonic() + PATIENCE
        while len(self.records) < number:
            assert time.monotonic() < deadline, (len(self.records), number, log.read_text()[-2_000:])
            self.look(0.2)

    def look(self, seconds: float) -> None:
        """Read the records that arrive within the given time in seconds."""
        for message in self._consumer.consume(500, seconds):
            assert message.error() is None, message.error()
            self.records.append(((message.key() or b"").decode(), int(message.value() or b"")))

    def close(self) -> None:
        self._consumer.close()


@pytest.mark.parametrize("way", ["direct", "gateway"])
def test_streams_process_each_record_once(
    way: str, broker: Broker, command: list[str], tmp_path: Path
) -> None:
    source, copies, counts = (f"{way}-{name}" for name in ("source", "copies", "counts"))
    with Admin(broker.address) as admin:
        for topic in (source, copies, counts):
            admin.create_topic(topic, partitions=PARTITIONS)
    log = tmp_path / "log"
    log.touch()
    with GatewayProcess(broker.address) as gateway:
        options = {
            "bootstrap": gateway.address if way == "gateway" else broker.address,
            "application": f"streams-{way}",
            "from": source,
            "to": copies,
            "counts": counts,
            "state": str(tmp_path / "state"),
        }
        copied, counted = Reader(broker.address, copies), Reader(broker.address, counts)
        step = RECORDS // PARTS
        for half in range(2):
            with application(command, log, **options):
                for part in range(half * PARTS // 2, (half + 1) * PARTS // 2):
                    produce(broker.address, source, part * step, step)
                    copied.read((part + 1) * step, log)
        copied.look(2)
        assert Counter(copied.records) == Counter((f"key-{each % KEYS}", each) for each in range(RECORDS))
        for key, values in _by_key(copied.records).items():
            assert values == sorted(values), key
        deadline = time.monotonic() + PATIENCE
        last = dict(counted.records)
        while last != {f"key-{key}": RECORDS // KEYS for key in range(KEYS)}:
            assert time.monotonic() < deadline, last
            counted.look(0.2)
            last = dict(counted.records)
        counted.look(2)
        for key, values in _by_key(counted.records).items():
            assert values == sorted(set(values)), key
            assert values[-1] == RECORDS // KEYS
        copied.close()
        counted.close()
        incremental = gateway.metric("fetchgate_fetches_total", kind="incremental", side="client")
        assert (incremental > 0) == (way == "gateway")


def _by_key(records: list[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for key, value in records:
        found[key].append(value)
    return found
