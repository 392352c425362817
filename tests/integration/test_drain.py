"""Clients of a real broker lose nothing when the gateway stops under load, or when another one replaces it.

`CONNECTIONS_SECONDS` sets how long connections come and go, in seconds (`make soak`).
"""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from statistics import median

import psutil
import pytest

from tests.integration.bystander import PARTITIONS as BYSTANDER_PARTITIONS
from tests.integration.bystander import Bystander, until
from tests.integration.faulty import reset
from tests.integration.fetching import FETCHES_TO_SESSION, Fetcher
from tests.integration.producing import Producer
from tests.model.wire import FetchResponse
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin
from tools.kafka.raw import API_VERSIONS, frame, request

TOPIC = "drained"
PARTITIONS = 12
SLOTS = 64
"""The broker's number of session slots. In 3.8 and later they are in eight shards with eight slots each."""
CLIENTS = 1000
IN_SESSION = 64
AT_LEISURE = ("--handshake-timeout", "0")
"""On a busy machine, a thousand connections take over a minute until the first one sends something."""
DRAIN_SECONDS = 20
CONNECTIONS, SESSIONS = 2000, 16
ROUNDS = 7
"""The number of rounds in which connections come and go. In the second half of the rounds, the gateway's
memory must not grow any more."""
MOST_ROUNDS = 28
"""The maximum number of rounds until memory is constant. If the gateway grows by 150 bytes for each
connection, its memory is not constant after this number of rounds either."""
ROUNDS_SECONDS = float(os.environ.get("CONNECTIONS_SECONDS", "0"))
"""The minimum time of the test with many connections, in seconds. 0 means only as many rounds as it needs."""
LOADS: tuple[dict[str, object], ...] = (
    {"metadata.recovery.strategy": "none"},
    {"metadata.recovery.strategy": "none"},
    {"enable.idempotence": True},
)
"""The settings of each producer and its consumer.

With librdkafka's defaults, a producer may write a record twice, direct as well. When all its connections end,
librdkafka 2.16 connects and produces again, and then still returns to its bootstrap servers (KIP-899). It
drops the requests that are in flight then, and sends them again."""
LOAD_RATE, SUCCESSORS = 100, 3
"""The records per second of each producer, and the number of gateways that replace the first one, one after
the other."""
EARLY, LATE = 3, 2
"""How many records are written while all fetches are parked (`EARLY`), and after all were answered
(`LATE`)."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Start a broker with few session slots (`SLOTS`), so that a test can count them."""
    with Broker(properties={"max.incremental.fetch.session.cache.slots": SLOTS}) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
        yield broker


def free_slots(broker: Broker) -> int:
    """Count the free session slots of a broker by taking all of them for a moment.

    The broker keeps a slot in use for at least 120 s, so no other session is lost.
    """
    with ExitStack() as stack:
        taken = []
        for number in range(4 * SLOTS):  # shards are asked in turn; some are full before others
            asker = stack.enter_context(
                Fetcher(broker.address, TOPIC, PARTITIONS, client_id=f"slot-{number}")
            )
            if session_id := asker.fetch(session_epoch=0).session_id:
                taken.append((asker, session_id))
        for asker, session_id in taken:
            asker.fetch(session_id=session_id, session_epoch=-1)
    return len(taken)


def values(response: FetchResponse) -> list[tuple[int, int]]:
    """Return partition and base offset of each batch in a response."""
    found = []
    for data in response.topics[0].partitions if response.topics else ():
        rest = data.records or b""
        while rest:
            found.append((data.partition_index, int.from_bytes(rest[:8])))
            rest = rest[12 + int.from_bytes(rest[8:12]) :]
    return found


def offsets(broker: Broker) -> list[int]:
    with Fetcher(broker.address, TOPIC, PARTITIONS) as direct:
        found = {data.partition_index: data for data in direct.fetch().topics[0].partitions}
    return [found[partition].high_watermark for partition in range(PARTITIONS)]


def test_a_thousand_fetches_in_flight_are_answered_once_and_all_sessions_end(broker: Broker) -> None:
    """The gateway stops while a thousand fetches wait at the broker. Each client still gets its response.

    The records in these responses and in a later direct fetch are together every record once. The gateway
    closes all its sessions at the broker.
    """
    assert free_slots(broker) == SLOTS
    starts = offsets(broker)
    gateway = GatewayProcess(broker.address, *AT_LEISURE, "--drain-timeout", str(DRAIN_SECONDS))
    with gateway, ExitStack() as stack, closing(Producer(broker.host, broker.port)) as producer:
        clients = [
            stack.enter_context(Fetcher(gateway.address, TOPIC, PARTITIONS, client_id=f"c-{number}"))
            for number in range(CLIENTS)
        ]
        for client in clients:
            client.seek(starts)
        for client in clients[:IN_SESSION]:
            client.hello().fetches(FETCHES_TO_SESSION)
        assert gateway.metric("fetchgate_fetch_sessions", side="broker") == IN_SESSION
        for client in clients:
            client.send(max_wait_ms=10_000, min_bytes=1)
        until(lambda: _asked(gateway) == CLIENTS + IN_SESSION * FETCHES_TO_SESSION, "not all fetches came")
        process = psutil.Process(gateway.pid)
        process.terminate()
        until(lambda: "draining" in gateway.log(), "it does not drain")
        began = time.monotonic()
        written = [(partition, starts[partition]) for partition in range(EARLY)]
        for partition, _ in written:
            producer.produce(TOPIC, partition, [b"early"])
        responses = [client.receive() for client in clients]
        ends = [client.socket.recv(1) for client in clients]
        process.wait(DRAIN_SECONDS + 10)
        assert time.monotonic() - began < DRAIN_SECONDS
        assert ends == [b""] * CLIENTS
        assert "cut_off=0" in gateway.log()
    written += [(partition, starts[partition] + 1) for partition in range(LATE)]
    with closing(Producer(broker.host, broker.port)) as producer:
        for partition, _ in written[EARLY:]:
            producer.produce(TOPIC, partition, [b"late"])
    with Fetcher(broker.address, TOPIC, PARTITIONS) as direct:
        for response in {tuple(values(response)) for response in responses}:
            rest = starts.copy()
            for partition, offset in response:
                rest[partition] = offset + 1
            direct.seek(rest)
            assert sorted([*response, *values(direct.fetch())]) == sorted(written)
    assert free_slots(broker) == SLOTS


def _asked(gateway: GatewayProcess) -> float:
    return gateway.metric("fetchgate_fetches_total", side="client", kind="sessionless")


class Successor(GatewayProcess):
    """A second gateway with the same command line and ports as a gateway that is still running."""

    def __init__(self, before: GatewayProcess) -> None:
        super().__init__("")
        self.port, self.admin = before.port, before.admin
        self._command = before._command


def _take_over(old: GatewayProcess, new: GatewayProcess) -> None:
    """Replace the old gateway: wait until the new one is ready, and stop the old one.

    Then wait until clients are connected to the new gateway.
    """
    until(lambda: " ready " in new.log(), "the new one is not ready")
    assert old.stop() == 0

    def connected() -> bool:
        with suppress(OSError):
            return int(new.state()["connections_open"]) > 0
        return False

    until(connected, "nobody came to the new one")


def test_a_restart_under_load_is_an_ordinary_reconnect(broker: Broker, tmp_path: Path) -> None:
    """Producers and consumers have no error and lose or double no record when gateways replace one another.

    Each new gateway takes over the port of the old one, so clients only reconnect.
    """
    topics = {f"taken-over-{number}": settings for number, settings in enumerate(LOADS)}
    with Admin(broker.address) as admin:
        for topic in topics:
            admin.create_topic(topic, partitions=BYSTANDER_PARTITIONS)
    options = ("--reuse-port", "on", "--state", str(tmp_path / "state.json"))
    with ExitStack() as stack:
        gateway = stack.enter_context(GatewayProcess(broker.address, *options))
        at = gateway.address
        loads = [
            stack.enter_context(Bystander(at, at, topic, rate=LOAD_RATE, settings=settings))
            for topic, settings in topics.items()
        ]
        for load in loads:
            load.check()
        for _ in range(SUCCESSORS):
            new = stack.enter_context(Successor(gateway))
            _take_over(gateway, new)
            for load in loads:
                load.check()
            gateway = new
        for load in loads:
            load.finish()
            assert load.errors == []


def test_connections_leave_nothing_behind(broker: Broker) -> None:
    """The gateway's memory becomes constant, and no file descriptors are left after connections have ended.

    Each round opens and closes 2,000 connections, each with its own connection to the broker.
    """
    with GatewayProcess(broker.address, *AT_LEISURE) as gateway:
        process = psutil.Process(gateway.pid)

        def descriptors() -> int:
            return int(process.num_fds())

        resident: list[int] = []
        before = descriptors()
        began = time.monotonic()
        while time.monotonic() < began + ROUNDS_SECONDS or (
            not _level(resident) and len(resident) < MOST_ROUNDS
        ):
            _come_and_go(gateway)
            until(lambda: descriptors() <= before + 1, "file descriptors are left")  # one may ask /state
            resident.append(process.memory_info().rss)
        assert _level(resident), resident
        assert _standing(gateway) == 0
        assert gateway.state()["sessions"]["held"] == 0


def _level(resident: list[int]) -> bool:
    """Return whether the last rounds took no more memory than earlier ones."""
    last = resident if ROUNDS_SECONDS else resident[-ROUNDS:]
    half = len(last) // 2  # medians: one round may be seen before all of it is given back
    return len(last) >= ROUNDS and median(last[half:]) - median(last[:half]) < 1 << 20


def _come_and_go(gateway: GatewayProcess) -> None:
    """Open all connections, let each send a request and some use a session, and close all of them.

    A third of the connections without a session is reset instead of closed.
    """
    hello = frame(request(API_VERSIONS, 0, b"", "comes and goes", 1))
    with ExitStack() as stack:
        for number in range(SESSIONS):
            client = stack.enter_context(Fetcher(gateway.address, TOPIC, PARTITIONS, client_id=f"g-{number}"))
            client.hello().fetches(FETCHES_TO_SESSION)
        peers = [
            stack.enter_context(socket.create_connection((gateway.host, gateway.port)))
            for _ in range(CONNECTIONS - SESSIONS)
        ]
        for peer in peers:
            peer.sendall(hello)
        for peer in peers:
            assert peer.recv(4, socket.MSG_WAITALL)  # the rest is left unread
        assert _standing(gateway) == CONNECTIONS
        assert gateway.state()["sessions"]["held"] == SESSIONS
        for peer in peers[::3]:
            reset(peer)


def _standing(gateway: GatewayProcess) -> float:
    """Return the number of connections to the broker."""
    return gateway.metric("fetchgate_connections", side="broker")
