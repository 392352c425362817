"""Three real brokers in three racks, and clients that read from the replica in one of them, for tests."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final

from tests.clients.runner import Program, Run, assert_same_records
from tests.integration.bystander import until
from tests.integration.producing import Producer
from tools.gateway import GatewayProcess
from tools.kafka import Cluster
from tools.kafka.admin import Admin
from tools.kafka.raw import RawConnection

HERE: Final = 2
"""The broker in the gateway's rack."""
TOPIC, PARTITIONS, RECORDS = "zones", 6, 40
LED_ELSEWHERE: Final = 2 * PARTITIONS // 3
LATE_SECONDS: Final = 1.0
"""A broker that takes longer than this may be late with a fetch, too: clients then rightly leave it."""
RUNS: Final = 3
"""How often clients read at most, if a broker is late."""


class Brokers:
    """Brokers 1 to 3 in the racks R1 to R3. Each leads a third of the partitions, if it lives."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.asked = cluster.broker(1).address
        """The address of a broker that no test disturbs."""

    def produce(self, *values: bytes) -> None:
        """Append records to every partition."""
        with Admin(self.asked) as admin:
            for partition, leader in admin.leaders(TOPIC).items():
                broker = self.cluster.broker(leader)
                with closing(Producer(broker.host, broker.port)) as producer:
                    producer.produce(TOPIC, partition, list(values))

    def ends(self) -> dict[tuple[str, int], int]:
        with Admin(self.asked) as admin:
            return {(TOPIC, partition): end for partition, end in admin.offsets(TOPIC).items()}

    def leaders(self) -> set[int]:
        with Admin(self.asked) as admin:
            return set(admin.leaders(TOPIC).values())


@contextmanager
def make_brokers(properties: Mapping[str, object]) -> Iterator[Brokers]:
    """Start brokers 1 to 3 in the racks R1 to R3, with records in each partition of a topic."""
    racks = {node_id: f"R{node_id}" for node_id in (1, 2, 3)}
    with Cluster(nodes=3, properties=properties, racks=racks) as cluster:
        with Admin(cluster.bootstrap) as admin:
            turned = {part: [(part + at) % 3 + 1 for at in range(3)] for part in range(PARTITIONS)}
            admin.create_topic(TOPIC, assignment=turned)
        found = Brokers(cluster)
        found.produce(*(b"%d" % number * 200 for number in range(RECORDS)))
        yield found


def reads(gateway: GatewayProcess) -> dict[str, Any]:
    found: dict[str, Any] = gateway.state()["zones"]["reads"]
    return found


def record_bytes(gateway: GatewayProcess) -> dict[str, int]:
    zones = gateway.state()["zones"]["bytes"]
    return {zone: counts["records"] for zone, counts in zones.items()}


def consumer(program: Program, address: str) -> Run:
    return Run(program, address, assign={TOPIC: PARTITIONS})


def reads_while_killed(brokers: Brokers, run: Run) -> None:
    """Kill the replica, and check that a client gets what is produced meanwhile. Then start it again."""
    broker = brokers.cluster.broker(HERE)
    broker.kill()
    try:
        _reads_new(brokers, run, b"while it is gone %d")
    finally:
        broker.start()


def reads_while_stopped(brokers: Brokers, run: Run, *gateways: GatewayProcess) -> None:
    """Stop the replica, and check the same, once one of the gateways has seen it. Then let it go on."""
    broker = brokers.cluster.broker(HERE)
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        until(
            lambda: any(reads(gateway)["returns"]["overdue"] for gateway in gateways),
            "nobody sees that it is overdue",
        )
        _reads_new(brokers, run, b"while it is stopped %d")
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def _reads_new(brokers: Brokers, run: Run, value: bytes) -> None:
    until(lambda: HERE not in brokers.leaders(), "partitions have no new leader")
    brokers.produce(*(value % number for number in range(RECORDS)))
    run.wait_ends(brokers.ends(), seconds=90)


@contextmanager
def asked_often(brokers: Brokers) -> Iterator[list[float]]:
    """Ask each broker again and again. Yield a list that gets the seconds until each response."""
    took: list[float] = []
    ended = threading.Event()

    def ask(host: str, port: int) -> None:
        with RawConnection(host, port) as connection:
            while not ended.wait(0.1):
                began = time.monotonic()
                connection.versions()
                took.append(time.monotonic() - began)

    asking = [threading.Thread(target=ask, args=(each.host, each.port)) for each in brokers.cluster.brokers]
    for thread in asking:
        thread.start()
    try:
        yield took
    finally:
        ended.set()
        for thread in asking:
            thread.join()


def once_and_in_order(run: Run) -> None:
    for place, lines in run.records().items():
        offsets = [line["offset"] for line in lines]
        assert offsets == list(range(offsets[-1] + 1)), place


def gateways(brokers: Brokers, *options: str) -> Iterator[GatewayProcess]:
    """Yield a gateway to read through, and another one as long as a broker was late meanwhile."""
    for _ in range(RUNS):
        with asked_often(brokers) as took, GatewayProcess(brokers.cluster.bootstrap, *options) as gateway:
            yield gateway
        if max(took, default=LATE_SECONDS) < LATE_SECONDS:
            return


def read_both_ways(
    brokers: Brokers, gateway: GatewayProcess, program: Program, begun: Callable[[GatewayProcess], object]
) -> dict[str, int]:
    """Read through the gateway and directly, and compare the records.

    Args:
        brokers: the brokers.
        gateway: the gateway.
        program: the client.
        begun: called when the client has read all. Then more records are produced.

    Returns:
        The bytes of the later records, by zone.
    """
    with consumer(program, gateway.address) as through, consumer(program, brokers.asked) as direct:
        for run in (through, direct):
            run.wait_ends(brokers.ends())
        begun(gateway)
        before = record_bytes(gateway)
        brokers.produce(*(b"later %d" % number * 100 for number in range(RECORDS)))
        for run in (through, direct):
            run.wait_ends(brokers.ends())
            run.stop()
    assert_same_records(direct, through)
    assert through.errors() == direct.errors() == []
    return {zone: count - before[zone] for zone, count in record_bytes(gateway).items()}
