"""``--capture`` with a real broker: the files agree with tcpdump's and with the gateway's counts."""

import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from proxy.capture.redact import KEPT
from proxy.protocol.api import RESPONSE_START_BYTES, ApiKey
from replay.capture.kafka.exchange import ConnectionEnd, Exchange, is_cut
from tests.captured import RST, SYN, read, read_directory, streams
from tests.integration.bystander import until
from tests.replay.events import captured_events
from tools.gateway import GatewayProcess
from tools.kafka import Broker, reaper
from tools.kafka.admin import Admin

PARTITIONS = 12
RECORDS = 300
SECRET = b"SECRET" * 20

Told: TypeAlias = tuple[object, ...]


@dataclass(frozen=True)
class Run:
    """One consumer through one gateway, captured."""

    directory: Path
    tcpdump: Path | None
    listeners: frozenset[int]
    metrics: dict[str, float]
    log: str


@contextmanager
def tcpdump(file: Path, *ports: int) -> Iterator[Path | None]:
    """Let tcpdump capture the packets of these ports, and yield its file.

    Yield None if tcpdump is not installed, or not permitted.
    """
    if shutil.which("tcpdump") is None:
        yield None
        return
    # As root it stays root: the user that it would become is made when it is installed.
    command = ["tcpdump", "-Z", "root", "-i", "lo", "-s", "0", "-U", "-B", "32768", "-w", str(file)]
    command += ["tcp and (" + " or ".join(f"port {port}" for port in ports) + ")"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    reaper.watch(process.pid)
    assert process.stderr is not None
    line = process.stderr.readline()
    while line and "listening on" not in line:
        line = process.stderr.readline()
    try:
        yield file if line else None
        if line:
            _wait_written(file, ports[-1])
    finally:
        process.send_signal(signal.SIGINT)
        assert "\n0 packets dropped by kernel" in process.communicate(timeout=60)[1] or not line
        reaper.forget(process.pid)


def _wait_written(file: Path, port: int) -> None:
    """Wait until tcpdump has written all packets so far. The kernel delivers them in blocks of a second.

    The function opens a new connection to a watched port. When tcpdump has written its packets, all earlier
    packets are written, too.
    """
    with socket.create_connection(("127.0.0.1", port)) as last:
        ports = struct.pack(">HH", last.getsockname()[1], port)
    until(lambda: ports in file.read_bytes(), "tcpdump does not write")


def _consume(bootstrap: str, topic: str) -> None:
    """Read everything in a group, with one partition paused for a while."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"captured-{time.monotonic_ns()}",
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,
        }
    )
    consumer.subscribe([topic])
    seen = 0
    while seen < RECORDS:
        message = consumer.poll(120)
        assert message is not None
        assert message.error() is None
        seen += 1
    paused = [TopicPartition(topic, 0)]
    consumer.pause(paused)
    consumer.poll(0.3)
    consumer.resume(paused)
    consumer.poll(0.7)
    consumer.close()


def _produce(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "writer"})
    for number in range(RECORDS):
        producer.produce(topic, value=SECRET, partition=number % PARTITIONS)
    assert producer.flush(30) == 0


@pytest.fixture(scope="module", params=["yes", "no"])
def taken(request: pytest.FixtureRequest, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Take one capture with records, and one without."""
    folder = tmp_path_factory.mktemp("captured")
    topic = f"captured-{request.param}"
    with Admin(broker.address) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
    options = ["--capture", str(folder / "own"), "--capture-records", request.param]
    with GatewayProcess(broker.address, *options) as gateway:
        ports = [gateway.port, gateway.port + 1 + broker.node_id]
        with tcpdump(folder / "tcpdump.pcap", *ports, broker.port) as file:
            _produce(gateway.address, topic)
            _consume(gateway.address, topic)
            until(lambda: not gateway.state()["connections_open"], "all connections to be closed")
        metrics = gateway.metrics()
        assert gateway.stop() == 0
        log = gateway.log()
    return Run(folder / "own", file, frozenset(ports), metrics, log)


def _exchanges(*inputs: Path) -> dict[str, list[Exchange]]:
    found: dict[str, list[Exchange]] = {}
    for event in captured_events(*inputs):
        if isinstance(event, Exchange):
            found.setdefault(event.connection, []).append(event)
    return found


def _told(exchange: Exchange, *, records: bool) -> Told:
    """Return the parts that must be equal. Without records, their contents are excluded."""
    response = b"".join(exchange.response)
    return (
        exchange.number,
        exchange.client_id,
        exchange.software,
        (exchange.api_key, exchange.api_version, exchange.correlation_id),
        (exchange.request_bytes, exchange.response_bytes, exchange.answer_due),
        exchange.request,
        response if records else len(response),
    )


def _kept_records(run: Run) -> bool:
    return "records=True" in run.log


def _assert_left_out_in_doubt(exchange: Exchange, exchanges: list[Exchange]) -> None:
    """Check that a later request, whose response may have records, was open when the body was left out.

    If the response were shorter than its length says, the response to that later request would begin within
    it (`proxy/capture/redact.py`).
    """
    assert exchange.api_key != ApiKey.FETCH
    assert any(
        later.number > exchange.number
        and (later.api_key == ApiKey.FETCH or later.api_key not in KEPT)
        and later.request_time <= exchange.response_time
        for later in exchanges
    )


def _seen_by_tcpdump(run: Run) -> Path:
    if run.tcpdump is None:
        pytest.skip("no tcpdump here: python -m tools.debian fetches it; or this user may not use it")
    return run.tcpdump


def test_the_bytes_are_those_that_tcpdump_saw(taken: Run) -> None:
    packets = read(_seen_by_tcpdump(taken).read_bytes())
    seen, own = streams(packets), streams(read_directory(taken.directory))
    resets = {packet.ends for packet in packets if packet.flags & RST}

    assert {ends for ends in seen if taken.listeners & {_port(end) for end in ends}} <= own.keys()
    for ends, stream in own.items():
        # A client that went without waiting resets: what was written to it meanwhile is not on the wire.
        assert len(stream) == len(seen[ends]) or (ends[::-1] in resets and len(stream) > len(seen[ends]))
        if _kept_records(taken):
            assert stream.startswith(seen[ends])


def test_what_replay_reads_is_what_it_reads_from_tcpdump(taken: Run) -> None:
    seen, own = _exchanges(_seen_by_tcpdump(taken)), _exchanges(taken.directory)
    records = _kept_records(taken)

    # The gateway's own question for the brokers is on no client's account, and in no capture of it.
    assert own
    for connection, exchanges in own.items():
        for exchange, other in zip(exchanges, seen[connection], strict=True):
            if not other.response_bytes:  # written to a client that had gone
                exchange.response, exchange.response_bytes = [], 0
            if exchange.response and exchange.response_missing and not records:
                _assert_left_out_in_doubt(exchange, exchanges)
                other.response = [b"".join(other.response)[:RESPONSE_START_BYTES]]
            assert _told(exchange, records=records) == _told(other, records=records)


@pytest.mark.parametrize("side", ["client", "broker"])
def test_fetches_in_the_capture_are_those_that_the_gateway_counted(taken: Run, side: str) -> None:
    fetches = [
        exchange
        for exchanges in _exchanges(taken.directory).values()
        for exchange in exchanges
        if exchange.api_key == ApiKey.FETCH
        and (_port(exchange.broker) in taken.listeners) is (side == "client")
    ]

    def metric(name: str) -> float:
        return taken.metrics[f'fetchgate_fetch_{name}_bytes_total{{side="{side}"}}']

    assert fetches
    assert sum(fetch.request_bytes for fetch in fetches) == metric("request")
    assert sum(fetch.response_bytes for fetch in fetches) == metric("response")
    if not _kept_records(taken):
        cut = sum(len(piece) for fetch in fetches for piece in fetch.response if is_cut(piece))
        assert cut == metric("record")
        assert not any(fetch.response_missing for fetch in fetches)


def test_nothing_is_unread_and_every_connection_has_its_end(taken: Run) -> None:
    ends = [event for event in captured_events(taken.directory) if isinstance(event, ConnectionEnd)]

    assert {(end.reason, end.syn_seen, end.closed) for end in ends} == {("", True, True)}
    assert {end.unframed_bytes + end.partial_bytes + end.resyncs for end in ends} == {0}
    clients = [end for end in ends if _port(end.broker) in taken.listeners]
    assert len(clients) == taken.metrics["fetchgate_connections_accepted_total"]
    opened = [packet for packet in read_directory(taken.directory) if packet.flags == SYN]
    assert len(opened) == len(ends)


def test_records_are_in_it_only_when_they_may_be(taken: Run) -> None:
    written = b"".join(path.read_bytes() for path in taken.directory.iterdir())

    assert (SECRET in written) is _kept_records(taken)


def _port(end: str) -> int:
    return int(end.rpartition(":")[2])


def test_a_disk_that_is_full_ends_the_capture_alone(
    broker: Broker, start_gateway: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic("captured-full", partitions=PARTITIONS)
    gateway = start_gateway(broker.address, "--capture", str(tmp_path / "own"))
    room = 20_000
    psutil.Process(gateway.pid).rlimit(psutil.RLIMIT_FSIZE, (room, room))

    _produce(gateway.address, "captured-full")
    _consume(gateway.address, "captured-full")

    assert gateway.log().count("capture stopped, the gateway continues") == 1
    assert "File too large" in gateway.log()
    (file,) = (tmp_path / "own").iterdir()
    assert file.stat().st_size <= room
    read(file.read_bytes())  # whole records alone
