"""The drill of docs/users/incidents.md for operators: each incident is reported within ten seconds."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest

from tests.integration.bystander import fill, until
from tools.certificates import Authority
from tools.gateway import GatewayProcess
from tools.kafka import LATEST, Broker
from tools.kafka.admin import Admin

pytestmark = [pytest.mark.integration, pytest.mark.soak]

TOPIC: Final = "incidents"
WITHIN: Final = 10.0
STEP: Final = 1.0
"""The tolerance of the time limits in seconds. Reports are based on checks every two seconds."""
PARTITIONS: Final = 4

Start = Callable[..., GatewayProcess]


@pytest.fixture(scope="module")
def own() -> Iterator[Broker]:
    """A broker that only this module uses, so that its tests may disturb it."""
    with Broker(LATEST) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
        yield broker


def ready(gateway: GatewayProcess) -> str:
    """Return the text of /readyz."""
    try:
        with urllib.request.urlopen(f"http://{gateway.admin}/readyz", timeout=30) as response:
            return str(json.loads(response.read()))
    except urllib.error.HTTPError as error:
        return str(json.loads(error.read()))


def top(gateway: GatewayProcess) -> str:
    """Return the output of `fetchgate top --once` on a terminal of 120 columns."""
    command = [sys.executable, "-m", "proxy", "top", "--once", "--admin", gateway.admin]
    environment = {**os.environ, "COLUMNS": "120"}
    shown = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    return " ".join(shown.split())  # long reasons have several lines


def tells(gateway: GatewayProcess, within: float = WITHIN + STEP, **said: str | Callable[[], object]) -> None:
    """Check that each output reports the incident in time.

    Args:
        gateway: the gateway.
        within: the time limit in seconds.
        said: the text to find in `readyz`, `log` and `top`, or for `metrics` a query.
    """
    shows: dict[str, Callable[[GatewayProcess], str]] = {
        "readyz": ready,
        "log": GatewayProcess.log,
        "top": top,
    }
    began = time.monotonic()
    for where, what in said.items():
        left = max(within - (time.monotonic() - began), 1.0)
        if isinstance(what, str):
            until(lambda: what in shows[where](gateway), f"{where}: {what!r}", patience=left)  # noqa: B023 - asked at once
        else:
            until(what, where, patience=left)


@contextmanager
def consuming(address: str, name: str = "orders", **more: Any) -> Iterator[confluent_kafka.Consumer]:
    """A librdkafka consumer that is assigned all partitions. It fetches in the background."""
    settings = {"bootstrap.servers": address, "group.id": name, "client.id": name} | more
    consumer = confluent_kafka.Consumer(settings)
    try:
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
        yield consumer
    finally:
        consumer.close()


def test_1_a_hung_broker(own: Broker, start_gateway: Start) -> None:
    gateway = start_gateway(own.address)
    with consuming(gateway.address):
        until(lambda: gateway.state()["sessions"]["held"], "a session")
        os.kill(own.pid, signal.SIGSTOP)
        try:
            late = "fetchgate_broker_oldest_request_seconds"
            node = str(gateway.state()["brokers"][0]["id"])
            tells(
                gateway,
                within=2 * WITHIN,  # a response is too late after ten seconds
                readyz="no response for 1",
                metrics=lambda: gateway.metric(late, broker=node) > 10,
                top="no response for 1",
                log="broker does not respond",
            )
            tells(gateway, top=f"waits for broker {node}: 1")
        finally:
            os.kill(own.pid, signal.SIGCONT)
        tells(gateway, log="broker responds again")
        until(lambda: "'ready'" in ready(gateway), "all to be well")


def test_2_a_dead_broker(start_gateway: Start) -> None:
    with Broker(LATEST) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
        gateway = start_gateway(broker.address)
        with consuming(gateway.address):
            until(lambda: gateway.state()["sessions"]["held"], "a session")
            (only,) = gateway.state()["brokers"]
            node, (host, port) = str(only["id"]), only["listener"].split(":")
            broker.kill()
            # librdkafka may ask only the bootstrap for half a minute.
            socket.create_connection((host, int(port))).close()
            tells(
                gateway,
                readyz="Connection refused",
                metrics=lambda: gateway.metric("fetchgate_broker_unreachable", broker=node) == 1,
                top="Connection refused",
                log="Connection refused",
            )
            failures = "fetchgate_broker_connect_failures_total"
            until(lambda: gateway.metric(failures, broker=node) > 0, "the client to try again")


def test_3_a_slow_disk_at_the_broker(own: Broker, start_gateway: Start) -> None:
    """The broker process is paused most of the time. To the gateway, this looks like a slow disk."""
    gateway = start_gateway(own.address)
    producer = confluent_kafka.Producer({"bootstrap.servers": gateway.address, "linger.ms": 0})
    ended = threading.Event()

    def stumble() -> None:
        while not ended.is_set():
            os.kill(own.pid, signal.SIGSTOP)
            time.sleep(0.8)
            os.kill(own.pid, signal.SIGCONT)
            time.sleep(0.1)

    def slow() -> bool:
        producer.produce(TOPIC, b"v")
        producer.poll(0)
        means = [each["answer_seconds"]["other"] or 0 for each in gateway.state()["brokers"]]
        return max(means) > 0.2

    stumbling = threading.Thread(target=stumble)
    stumbling.start()
    try:
        tells(gateway, metrics=slow)
        assert " ms" in top(gateway)
        assert "'ready'" in ready(gateway), "slow is not sick"
    finally:
        ended.set()
        stumbling.join()
        producer.flush(30)


def test_4_a_certificate_that_expires(own: Broker, start_gateway: Start, tmp_path: Path) -> None:
    pair = Authority(tmp_path).sign("gateway", days=(-0.9, 1))
    gateway = start_gateway(own.address, "--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    old = Authority(tmp_path, "other").sign("gateway", days=(-0.9, -0.1))
    assert old.cert == pair.cert, "it was replaced"
    tells(
        gateway,
        readyz="the certificate expired at",
        log="the certificate expired at",
        top="the certificate expired at",
        metrics=lambda: any(
            name.startswith("fetchgate_certificate_expiry_timestamp_seconds") and value < time.time()
            for name, value in gateway.metrics().items()
        ),
    )


def test_5_slots_that_are_exhausted(own: Broker, start_gateway: Start) -> None:
    gateway = start_gateway(own.address, "--max-sessions", "1")
    with consuming(gateway.address), consuming(gateway.address, "billing"):
        tells(
            gateway,
            readyz="all 1 session slots are used",
            metrics=lambda: gateway.metric("fetchgate_session_slots_held") == 1,
            top="1 of 1 slots",
        )
        until(lambda: "no slot" in top(gateway), "why the other one saves nothing")


def not_reading(gateway: GatewayProcess) -> set[str]:
    """Return the ids of clients that do not read, so that the gateway has stopped reading their broker."""
    connections = gateway.state()["connections"]
    return {each["client_id"] for each in connections if "peer_full" in each["not_read"]["broker"]}


def test_6_a_client_that_does_not_read(own: Broker, start_gateway: Start) -> None:
    gateway = start_gateway(own.address)
    fill(own.address, TOPIC, 40, PARTITIONS, 900_000)
    with consuming(gateway.address, "reads") as consumer:
        until(lambda: consumer.poll(1) is not None, "a record")
        node = gateway.state()["brokers"][0]["id"]
        stopped = subprocess.Popen(
            [sys.executable, "-c", _READS_NOTHING, gateway.address_of(node), TOPIC], stdout=subprocess.PIPE
        )
        try:
            assert stopped.stdout is not None
            stopped.stdout.readline()
            stopped.send_signal(signal.SIGSTOP)
            tells(
                gateway,
                metrics=lambda: any(
                    name.startswith("fetchgate_paused_connections") and 'side="broker"' in name and value > 0
                    for name, value in gateway.metrics().items()
                ),
            )
            # One that reads is in it as well while the gateway has more for it than the system takes at once.
            until(lambda: not_reading(gateway) == {"sleepy"}, "the one that reads to be left out")
            for _ in range(20):
                assert "sleepy" in not_reading(gateway), "it is in it each time"
        finally:
            stopped.kill()
            stopped.communicate()


_READS_NOTHING: Final = """
import socket, struct, sys, time
host, port = sys.argv[1].split(":")
def ask(key, version, body):
    head = struct.pack(">hhih", key, version, 1, 6) + b"sleepy"
    return struct.pack(">i", len(head) + len(body)) + head + body
name = sys.argv[2].encode()
topic = struct.pack(">h", len(name)) + name
parts = b"".join(struct.pack(">iqi", number, 0, 30_000_000) for number in range(4))
limits = struct.pack(">iiiib", -1, 100, 1, 60_000_000, 0)
fetch = ask(1, 4, limits + struct.pack(">i", 1) + topic + struct.pack(">i", 4) + parts)
with socket.create_connection((host, int(port))) as one:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for _ in range(4):
        one.sendall(fetch)
    print("asked", flush=True)
    time.sleep(600)
"""


def test_7_a_leak_of_connections(own: Broker, start_gateway: Start) -> None:
    gateway = start_gateway(own.address, "--max-connections", "20")
    host, _, port = gateway.address.rpartition(":")
    with ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(socket.create_connection((host, int(port))))
        tells(
            gateway,
            readyz="20 connections",
            metrics=lambda: (
                sum(
                    value
                    for name, value in gateway.metrics().items()
                    if name.startswith("fetchgate_connections_turned_away_total")
                )
                > 0
            ),
            log="connections",
            top="20 of 20",
        )


def test_8_a_bad_rollout(own: Broker, start_gateway: Start, tmp_path: Path) -> None:
    options = tmp_path / "fetchgate.toml"
    options.write_text("max_sessions = 500\n")
    gateway = start_gateway(own.address, "--config", str(options))
    with consuming(gateway.address):
        until(lambda: gateway.state()["sessions"]["held"], "a session")
        options.write_text("max_sessions = 'many'\n")
        gateway.reload()
        tells(
            gateway,
            readyz=f"options not reloaded: max_sessions in {options}: ",
            log="max_sessions",
            top="options not reloaded",
            metrics=lambda: gateway.metric("fetchgate_reload_failures_total") > 0,
        )
        assert gateway.state()["sessions"]["max"] == 500, "nothing was applied"
        assert gateway.state()["sessions"]["held"] == 1
        command = [
            sys.executable,
            "-m",
            "proxy",
            "proxy",
            "--bootstrap",
            own.address,
            "--config",
            str(options),
        ]
        done = subprocess.run([*command, "--check"], check=False, capture_output=True, text=True)
        assert done.returncode == 2, "the check before a rollout finds it"
        assert "max_sessions" in done.stderr
