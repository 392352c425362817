"""A link with delay and loss between gateway and broker, on any machine, without kernel features.

A relay simulates TCP with 20 ms and 1 % loss. Every segment is delayed, and one in a hundred waits for a
retransmission, with all segments after it. `test_transparent_live` loses real packets where possible.
"""

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from queue import SimpleQueue
from typing import Final

import pytest

from tests.clients.runner import CONFLUENT, Run, assert_same_records
from tests.integration.bystander import until
from tests.integration.faulty import Forward, Relay
from tests.integration.producing import Producer
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin
from tools.kafka.raw import RawConnection

TOPIC, PARTITIONS, BUSY = "slow-link", 60, 3
BATCHES, RECORDS = 30, 10
VALUE: Final = 2000
"""Bytes of a record. All records need about 1200 segments. A dozen of them is held back."""
FETCHES: Final = 4
SEGMENT: Final = 1448
"""Payload bytes of a TCP segment over Ethernet."""
DELAY_SECONDS: Final = 0.02
LOSS: Final = 0.01
HELD_SECONDS: Final = 0.22
"""How long a segment is held back, in seconds. Linux retransmits a lost segment after 200 ms at the
earliest."""


class SlowRelay(Relay):
    """A relay that delays both directions equally, and holds back some segments.

    It keeps the order and loses nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.carried = self.held = 0
        """Segments of all connections: forwarded, and held back."""
        self._random = random.Random(1)

    def _pump(
        self, source: socket.socket, sink: socket.socket, _forward: Forward, data: bytes, _count: bool
    ) -> None:
        """Read segments of one direction and set the due time of each, until either side ends it."""
        due: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
        deliver = threading.Thread(target=_deliver, args=(due, sink), daemon=True)
        deliver.start()
        at = 0.0
        with suppress(OSError):
            while data := data or source.recv(SEGMENT):
                held = self._random.random() < LOSS
                self.carried += 1
                self.held += held
                at = max(at, time.monotonic() + DELAY_SECONDS + held * HELD_SECONDS)
                due.put((at, data))
                data = b""
        due.put((max(at, time.monotonic() + DELAY_SECONDS), b""))
        deliver.join()
        with suppress(OSError):
            source.shutdown(socket.SHUT_RDWR)


def _deliver(due: "SimpleQueue[tuple[float, bytes]]", sink: socket.socket) -> None:
    """Send each segment to the other side at its time. An empty segment ends the connection."""
    with suppress(OSError):
        while True:
            at, data = due.get()
            time.sleep(max(0.0, at - time.monotonic()))
            if not data:
                break
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def relay() -> Iterator[SlowRelay]:
    with SlowRelay() as relay:
        yield relay


@pytest.fixture(scope="module")
def slow_broker(relay: SlowRelay) -> Iterator[Broker]:
    """A broker that advertises the relay to clients that come through the relay."""
    with Broker(listeners={"VIA": ("127.0.0.1", relay.port)}) as broker:
        relay.target = (broker.host, broker.port_of("VIA"))
        with Admin(broker.address) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
        yield broker


def test_the_link_is_slow(relay: SlowRelay, slow_broker: Broker) -> None:
    host, port = relay.address.rsplit(":", 1)
    assert slow_broker.address != relay.address
    with RawConnection(host, int(port)) as connection:
        for _ in range(3):
            began = time.monotonic()
            connection.versions()
            assert time.monotonic() - began >= 2 * DELAY_SECONDS


def test_a_client_reads_over_a_slow_link_what_it_reads_directly(
    relay: SlowRelay, slow_broker: Broker
) -> None:
    with (
        GatewayProcess(relay.address) as gateway,
        Run(CONFLUENT, gateway.address, assign={TOPIC: PARTITIONS}) as through,
    ):

        def incremental() -> float:
            return gateway.metric("fetchgate_fetches_total", side="broker", kind="incremental")

        until(lambda: incremental() >= FETCHES, "no session")
        held = relay.held
        with closing(Producer(slow_broker.host, slow_broker.port)) as producer:
            for batch in range(BATCHES):
                for partition in range(BUSY):
                    values = [b"%d-%d " % (batch, each) for each in range(RECORDS)]
                    producer.produce(TOPIC, partition, [value.ljust(VALUE, b".") for value in values])
                time.sleep(0.02)  # so that they come in many responses
        with Admin(slow_broker.address) as admin:
            ends = {(TOPIC, partition): end for partition, end in admin.offsets(TOPIC).items()}
        through.wait_ends(ends)
        reached = incremental()
        until(lambda: relay.held > held and incremental() >= reached + FETCHES, "no segment was held")
        through.stop()
        assert gateway.metric("fetchgate_fetch_session_errors_total", code="71") == 0
        assert gateway.state()["state"] == "ready", gateway.state()["reasons"]
        assert gateway.stop() == 0
    with Run(CONFLUENT, slow_broker.address, assign={TOPIC: PARTITIONS}) as direct:
        direct.wait_ends(ends)
        direct.stop()
    assert len(direct.of("record")) == BATCHES * BUSY * RECORDS
    assert_same_records(direct, through)
    assert through.errors() == direct.errors() == []
