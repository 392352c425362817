"""Runs a client that produces or consumes while leaders move. Each client is a process.

    python -m tools.bench.moving NAME produce|consume ADDRESS TOPIC

The process follows the protocol of `tools.bench.processes.Load`. Each producer uses acks=all, linger 0 and
idempotence; all other settings are the client's defaults. A consumer prints two numbers for each record: the
time when it was produced (ns since 1970) and its latency (ns).
"""

import asyncio
import json
import logging
import os
import re
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import aiokafka  # type: ignore[import-untyped]  # no types
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition, libversion

from tools.kafka import LATEST, jars, reaper
from tools.kafka.java import java
from tools.kafka.process import JVM

PARTITIONS: Final = 100
RATE: Final = 500
"""The number of records produced per second, to all partitions in turn."""
BYTES: Final = 300
PRODUCER, CONSUMER = "moves-producer", "moves-consumer"
"""The client ids of the producer and of the consumer."""
POLL: Final = 0.1
PATIENCE: Final = 30.0
ERRORS: Final = 3
"""librdkafka's log level for errors. Without this limit, librdkafka logs each move of a leader."""
GO: Final = {"Sarama": "github.com/IBM/sarama", "franz-go": "github.com/twmb/franz-go"}
"""The Go module of each Go client, by the name of the client."""
_GO_FOLDER: Final = Path(__file__).parents[2] / "tests" / "clients" / "go"
_GO_SECONDS: Final = 300.0
"""The time limit for building a Go client, in seconds. The first build downloads the modules."""
_STAMP: Final = struct.Struct(">q")
_JAVA_RECORDS: Final = 10_000_000
"""The number of records that a Java program is asked for: more than any run needs."""


class RecordPace:
    """Makes records, and says when the next one is due at a constant rate. Prints `ready` when it is made."""

    def __init__(self) -> None:
        self.made = 0
        self._began = time.monotonic()
        print("ready", flush=True)

    @property
    def early(self) -> float:
        """The number of seconds until the next record is due. It is 0 if the record is overdue."""
        return max(self._began + self.made / RATE - time.monotonic(), 0)

    def record(self) -> tuple[bytes, int]:
        """Return the value of the next record, and its partition."""
        self.made += 1
        return _STAMP.pack(time.time_ns()) + bytes(BYTES - _STAMP.size), self.made % PARTITIONS


class MovingRecords:
    """For each received record: the time when it was produced, and its latency, in ns.

    When the first record arrives, the client prints that it is ready.
    """

    def __init__(self) -> None:
        self.records: list[tuple[int, int]] = []

    def add(self, made: int) -> None:
        """Note that a record was received now.

        Args:
            made: the time when the record was produced, in nanoseconds.
        """
        self.records.append((made, time.time_ns() - made))
        if len(self.records) == 1:
            print("ready", flush=True)

    def value(self, value: bytes) -> None:
        """Note a record, given its value, which contains the time when `RecordPace` produced it."""
        self.add(_STAMP.unpack_from(value)[0])


def _stopped() -> bool:
    """Return whether stdin was closed. The parent process never writes to it."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def produce_librdkafka(bootstrap: str, topic: str) -> None:
    """Produce records with confluent-kafka."""
    settings = {"acks": "all", "linger.ms": 0, "enable.idempotence": True, "log_level": ERRORS}
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": PRODUCER, **settings})
    pace = RecordPace()
    while not _stopped():
        time.sleep(pace.early)
        value, partition = pace.record()
        producer.produce(topic, value, partition=partition)
        producer.poll(0)
    producer.flush(PATIENCE)


def consume_librdkafka(bootstrap: str, topic: str, received: MovingRecords) -> None:
    """Consume records with confluent-kafka."""
    settings = {"group.id": CONSUMER, "enable.auto.commit": False, "log_level": ERRORS}
    consumer = Consumer({"bootstrap.servers": bootstrap, "client.id": CONSUMER, **settings})
    consumer.assign([TopicPartition(topic, number, OFFSET_END) for number in range(PARTITIONS)])
    while not _stopped():
        message = consumer.poll(POLL)
        if message is not None and message.error() is None:
            received.value(message.value() or b"")
    consumer.close()


def produce_aiokafka(bootstrap: str, topic: str) -> None:
    """Produce records with aiokafka."""

    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, client_id=PRODUCER, acks="all", enable_idempotence=True
        )
        await producer.start()
        pace = RecordPace()
        while not _stopped():
            await asyncio.sleep(pace.early)
            value, partition = pace.record()
            await producer.send(topic, value, partition=partition)
        await producer.stop()

    asyncio.run(run())


def consume_aiokafka(bootstrap: str, topic: str, received: MovingRecords) -> None:
    """Consume records with aiokafka."""

    async def run() -> None:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, client_id=CONSUMER)
        await consumer.start()
        consumer.assign([aiokafka.TopicPartition(topic, number) for number in range(PARTITIONS)])
        await consumer.seek_to_end()
        while not _stopped():
            for messages in (await consumer.getmany(timeout_ms=round(POLL * 1000))).values():
                for message in messages:
                    received.value(message.value)
        await consumer.stop()

    asyncio.run(run())


def produce_kafka_python(bootstrap: str, topic: str) -> None:
    """Produce records with kafka-python."""
    import kafka  # type: ignore[import-untyped]  # noqa: PLC0415 - no types; its import warns and takes long

    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, client_id=PRODUCER, acks="all", linger_ms=0)
    pace = RecordPace()
    while not _stopped():
        time.sleep(pace.early)
        value, partition = pace.record()
        producer.send(topic, value, partition=partition)
    producer.close(timeout=PATIENCE)


def consume_kafka_python(bootstrap: str, topic: str, received: MovingRecords) -> None:
    """Consume records with kafka-python."""
    import kafka  # noqa: PLC0415 - as above

    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, client_id=CONSUMER)
    consumer.assign([kafka.TopicPartition(topic, number) for number in range(PARTITIONS)])
    consumer.seek_to_end()
    while not _stopped():
        for messages in consumer.poll(timeout_ms=round(POLL * 1000)).values():
            for message in messages:
                received.value(message.value)
    consumer.close()


def produce_java(bootstrap: str, topic: str) -> None:
    """Produce records with Kafka's own performance tool.

    It uses round robin. Otherwise one partition would get many records in a row.
    """
    command = ["org.apache.kafka.tools.ProducerPerformance", "--bootstrap-server", bootstrap]
    command += ["--topic", topic, "--num-records", str(_JAVA_RECORDS), "--record-size", str(BYTES)]
    command += ["--throughput", str(RATE), "--command-property", f"client.id={PRODUCER}"]
    command += ["acks=all", "linger.ms=0"]
    command += ["partitioner.class=org.apache.kafka.clients.producer.RoundRobinPartitioner"]
    print("ready", flush=True)
    _run_java(command, lambda _: None)


def consume_java(bootstrap: str, topic: str, received: MovingRecords) -> None:
    """Consume records with Kafka's own console consumer.

    It prints for each record when it was produced, in ms.
    """
    command = ["org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", bootstrap]
    command += ["--topic", topic, "--command-property", f"client.id={CONSUMER}"]
    command += ["--formatter-property", "print.timestamp=true", "--formatter-property", "print.value=false"]
    _run_java(command, lambda line: received.add(int(line.rpartition(b":")[2]) * 1_000_000))


def _run_java(command: list[str], line: Callable[[bytes], None]) -> None:
    """Run a Java tool of Kafka until stdin is closed. Call `line` with each line that the tool prints."""
    whole = [str(java()), "-Xmx256m", *JVM, "-cp", jars.classpath(LATEST, tools=True), *command]
    process = subprocess.Popen(
        whole, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    reaper.watch(process.pid)

    def read() -> None:
        for each in process.stdout or ():
            line(each)

    thread = threading.Thread(target=read)
    thread.start()
    sys.stdin.read()
    process.terminate()
    thread.join(PATIENCE)
    process.wait(PATIENCE)
    reaper.forget(process.pid)


def go_program() -> Path:
    """Return the path of the program with the Go clients. `build_go` builds it."""
    return jars.cache_folder().with_name("go") / "moving"


def build_go() -> None:
    """Build the program with the Go clients.

    Raises:
        OSError: Go is not installed.
        subprocess.SubprocessError: the program could not be built.
    """
    command = ["go", "build", "-o", str(go_program()), "./moving"]
    subprocess.run(command, cwd=_GO_FOLDER, check=True, capture_output=True, timeout=_GO_SECONDS)


def go_version(module: str) -> str:
    """Return the version of a Go module in the go.mod file of the Go clients."""
    found = re.search(rf"{re.escape(module)} v(\S+)", (_GO_FOLDER / "go.mod").read_text())
    return found[1] if found else ""


def _become_go(name: str, role: str, bootstrap: str, topic: str) -> None:
    """Replace this process by the Go program, which follows the same protocol."""
    settings = {
        "client": name,
        "role": role,
        "bootstrap": bootstrap,
        "topic": topic,
        "client-id": PRODUCER if role == "produce" else CONSUMER,
        "partitions": PARTITIONS,
        "rate": RATE,
        "bytes": BYTES,
    }
    arguments = [f"-{key}={value}" for key, value in settings.items()]
    os.execv(go_program(), [str(go_program()), *arguments])  # noqa: S606 - our own program


VERSIONS: Final[dict[str, Callable[[], str]]] = {
    "librdkafka": lambda: str(libversion()[0]),
    "Java": lambda: LATEST,
    "aiokafka": lambda: metadata.version("aiokafka"),
    "kafka-python": lambda: metadata.version("kafka-python"),
    "Sarama": lambda: go_version(GO["Sarama"]),
    "franz-go": lambda: go_version(GO["franz-go"]),
}
"""Functions that return the version of a client, by the name of the client."""
PRODUCERS: Final[dict[str, Callable[[str, str], None]]] = {
    "librdkafka": produce_librdkafka,
    "Java": produce_java,
    "aiokafka": produce_aiokafka,
    "kafka-python": produce_kafka_python,
}
CONSUMERS: Final[dict[str, Callable[[str, str, MovingRecords], None]]] = {
    "librdkafka": consume_librdkafka,
    "Java": consume_java,
    "aiokafka": consume_aiokafka,
    "kafka-python": consume_kafka_python,
}


def main() -> None:
    """Run one producer or consumer."""
    logging.disable()  # the clients warn of each error, and that takes time
    name, role, bootstrap, topic = sys.argv[1:]
    if name in GO:
        _become_go(name, role, bootstrap, topic)
    result: dict[str, Any] = {}
    if role == "produce":
        PRODUCERS[name](bootstrap, topic)
    else:
        received = MovingRecords()
        CONSUMERS[name](bootstrap, topic, received)
        result["records"] = received.records
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
