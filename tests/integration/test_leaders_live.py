"""Leaders move all the time while clients produce and fetch, with three brokers: KIP-951 through the gateway.

`LEADERS_SECONDS` sets how long the leaders move, in seconds (`make soak`).
"""

import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, Self

import pytest

from proxy.protocol.metadata import read_replicas
from tests.clients.programs import tool
from tests.integration.bystander import until
from tests.integration.moving import GROUPS, PATIENCE, TOPIC, Received, Sent, doubled_by_the_client
from tools.gateway import GatewayProcess
from tools.kafka import Cluster
from tools.kafka.admin import ALTER_REASSIGNMENTS, ELECT_LEADERS, Admin
from tools.kafka.metadata import request_metadata
from tools.kafka.raw import METADATA, BodyReader, RawConnection, array, compact_array, compact_string, string

SECONDS: Final = float(os.environ.get("LEADERS_SECONDS", "0"))
pytestmark = pytest.mark.timeout(600 + SECONDS)
"""Leaders may be moved for longer than a test usually has."""

PARTITIONS: Final = 100 if SECONDS else 12
ROTATIONS: Final = 12
"""The minimum number of leader moves in the test."""
REST: Final = 3.0
"""Seconds between further leader moves. Sarama's consumer waits two seconds before it asks for a new leader
(Consumer.Retry.Backoff). If leaders moved faster, it would get no records."""
ENOUGH: Final = 10
"""How many records of each producer each consumer must have received before the moves end. 10 records are two
transactions."""
VERSION: Final = 12
ASKS: Final = compact_array([bytes(16) + compact_string(TOPIC) + b"\0"]) + b"\0\0\0"
"""The rest of a Metadata v12 request: it asks for one topic by name, and creates no topic."""
HEADER: Final = 5
"""The size of a response's header v1 without tags, in bytes."""
DESCRIBE_QUORUM: Final = 55
ROUNDS: Final = 10

Epochs = dict[int, tuple[int, int]]
"""The leader epoch and the leader, for each partition."""


@pytest.fixture
def topic(cluster: Cluster) -> Iterator[None]:
    """Create a topic. Each of its partitions has replicas on two brokers."""
    nodes = [broker.node_id for broker in cluster.brokers]
    with Admin(cluster.bootstrap) as admin:
        pairs = {at: [nodes[at % 3], nodes[(at + 1) % 3]] for at in range(PARTITIONS)}
        admin.create_topic(TOPIC, assignment=pairs, config={"min.insync.replicas": "2"})
        yield
        admin.delete_topic(TOPIC)


def epochs_of(body: bytes) -> Epochs:
    """Read the body of a Metadata v12 response about the topic."""
    told = read_replicas(body, VERSION)
    leaders = zip(told.epoch.tolist(), told.leader.tolist(), strict=True)
    return dict(zip(told.partition.tolist(), leaders, strict=True))


class Watch:
    """Requests Metadata at each listener of the gateway, and notes leader epochs that go back."""

    def __init__(self, gateway: GatewayProcess, nodes: list[int]) -> None:
        self._lock = threading.Lock()
        self.newest: Epochs = {}
        self.asked = 0
        self.older: list[str] = []
        self.ended = threading.Event()
        ports = [gateway.port, *(gateway.port + 1 + node for node in nodes)]
        self.threads = [threading.Thread(target=self._run, args=(gateway.host, port)) for port in ports]

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join()

    def _run(self, host: str, port: int) -> None:
        with RawConnection(host, port) as connection:
            while not self.ended.is_set():
                with self._lock:
                    before = dict(self.newest)
                told = epochs_of(connection.call(METADATA, VERSION, ASKS))
                with self._lock:
                    self.asked += 1
                    for at, (epoch, leader) in told.items():
                        if epoch < before.get(at, (-1, -1))[0]:
                            self.older.append(f"{at}: {leader} in {epoch} after {before[at]}")
                        if epoch > self.newest.get(at, (-1, -1))[0]:
                            self.newest[at] = epoch, leader
                time.sleep(0.01)


def elect(connection: RawConnection, partitions: list[int]) -> None:
    """Make the first replica of each partition its leader, by an ElectLeaders request."""
    indexes = [struct.pack(">i", at) for at in partitions]
    connection.call(ELECT_LEADERS, 0, array([string(TOPIC) + array(indexes)]) + struct.pack(">i", 1000))


def reorder(connection: RawConnection, on: Mapping[int, list[int]]) -> None:
    """Set the order of each partition's replicas."""
    places = [
        struct.pack(">i", at) + compact_array([struct.pack(">i", node) for node in replicas]) + b"\0"
        for at, replicas in on.items()
    ]
    topics = compact_array([compact_string(TOPIC) + compact_array(places) + b"\0"])
    reader = BodyReader(connection.call(ALTER_REASSIGNMENTS, 0, struct.pack(">i", 20_000) + topics + b"\0"))
    reader.int32()
    assert reader.int16() == 0


def rotate(connection: RawConnection, watch: Watch, enough: Callable[[], bool]) -> None:
    """Move all leaders again and again, until enough records were read.

    Each move waits until the previous ones are visible in Metadata.
    """
    end = time.monotonic() + SECONDS
    done = 0
    on = request_metadata(connection, TOPIC).topics[TOPIC].replicas
    while done < ROTATIONS or time.monotonic() < end or not enough():
        before = dict(watch.newest)
        # Kept here, for a broker that is asked may not know the last order yet.
        on = {at: replicas[::-1] for at, replicas in on.items()}
        reorder(connection, on)
        until(partial(_moved, connection, watch, before), f"newer leaders than {before}")
        done += 1
        if done >= ROTATIONS and time.monotonic() >= end:
            time.sleep(REST)


def _moved(connection: RawConnection, watch: Watch, before: Epochs) -> bool:
    """Elect new leaders, and return whether the leader of each partition has moved.

    If not, the controller does not know the new order of the replicas yet.
    """
    elect(connection, list(before))
    return all(watch.newest[at] > before[at] for at in before)


@pytest.mark.parametrize("group", GROUPS)
def test_nothing_is_lost_doubled_or_out_of_order_while_leaders_move(
    group: str, cluster: Cluster, topic: None, start_gateway: Callable[..., GatewayProcess]
) -> None:
    """Case 66: while leaders move, each consumer gets each record once and in order.

    The Metadata responses of the gateway never go back to an older leader.
    """
    if group == "sarama":
        tool("go")
    gateway = start_gateway(cluster.bootstrap)
    nodes = [broker.node_id for broker in cluster.brokers]
    produce, consume = GROUPS[group]
    ending, over = threading.Event(), threading.Event()
    sent = [Sent(name, PARTITIONS) for name in produce]
    received = [Received(name, PARTITIONS) for name in consume]
    with ExitStack() as stack:
        threads = ThreadPoolExecutor(len(sent) + len(received))
        stack.callback(threads.shutdown)
        stack.callback(over.set)
        stack.callback(ending.set)
        producing = [threads.submit(produce[each.name], gateway.address, each, ending) for each in sent]
        consuming = [threads.submit(consume[each.name], gateway.address, each, over) for each in received]
        with Watch(gateway, nodes) as watch:
            broker = cluster.brokers[0]
            until(lambda: len(watch.newest) == PARTITIONS, "Metadata")
            with RawConnection(broker.host, broker.port) as connection:
                rotate(connection, watch, lambda: all(each.has_of(produce, ENOUGH) for each in received))
        ending.set()
        for done in producing:
            done.result(PATIENCE)
        wanted = sum(each.count for each in sent)  # at least
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and any(each.count < wanted for each in received):
            time.sleep(0.1)
        over.set()
        for done in consuming:
            done.result(PATIENCE)

    assert [each.failed for each in sent] == [[]] * len(sent)
    doubled = doubled_by_the_client(cluster.brokers, PARTITIONS)
    for each in received:
        for partition in range(PARTITIONS):
            records = each.once(partition)
            offsets = [offset for offset, _ in records]
            assert offsets == sorted(set(offsets)), (each.name, partition)
            by_name = [value for offset, value in records if offset not in doubled[partition]]
            for producer in sent:
                numbers = [number for name, number in by_name if name == producer.name]
                assert numbers == producer.numbers[partition], (each.name, partition, producer.name)
    assert watch.older == []


def active_controller(connection: RawConnection) -> int:
    """Return the id of the node that leads the metadata quorum. The tests must not stop this node."""
    partition = compact_array([struct.pack(">i", 0) + b"\0"])
    topic = compact_string("__cluster_metadata") + partition + b"\0"
    reader = BodyReader(connection.call(DESCRIBE_QUORUM, 0, compact_array([topic]) + b"\0"))
    assert reader.int16() == 0
    reader.uvarint(), reader.compact_string(), reader.uvarint()
    reader.int32(), reader.int16()  # partition, error
    return reader.int32()


def _newer(through: RawConnection, electing: RawConnection, before: Epochs, newest: Epochs) -> bool:
    """Elect new leaders, and add them to `newest`. Return whether the leader of each partition has moved."""
    elect(electing, list(before))
    told = epochs_of(through.call(METADATA, VERSION, ASKS))
    newest.update((at, told[at]) for at in before)
    return all(newest[at] > before[at] for at in before)


def _has_stopped(pid: int) -> bool:
    """Return whether each thread of a process has stopped (state T in proc_pid_stat(5))."""
    return all(
        stat.read_text().rpartition(")")[2].split()[0] == "T"
        for stat in Path(f"/proc/{pid}/task").glob("*/stat")
    )


def test_a_broker_that_has_missed_moves_leads_nobody_back(
    cluster: Cluster, topic: None, start_gateway: Callable[..., GatewayProcess]
) -> None:
    """No client of the gateway gets old leaders from a broker that has missed leader moves.

    A broker is stopped while leaders move, and a Metadata request already waits in its socket. When the
    broker continues, it nearly always responds with the old leaders. The test repeats this until it does.
    """
    gateway = start_gateway(cluster.bootstrap)
    with RawConnection(cluster.brokers[0].host, cluster.brokers[0].port) as connection:
        controller = active_controller(connection)
    one = cluster.broker(controller)
    slow = next(broker for broker in cluster.brokers if broker is not one)
    stale = False
    with ExitStack() as stack:
        admin = stack.enter_context(Admin(cluster.bootstrap))
        ours = stack.enter_context(RawConnection(gateway.host, gateway.port + 1 + slow.node_id))
        other = stack.enter_context(RawConnection(gateway.host, gateway.port + 1 + one.node_id))
        direct = stack.enter_context(RawConnection(slow.host, slow.port))
        electing = stack.enter_context(RawConnection(one.host, one.port))
        on = admin.state(TOPIC).topics[TOPIC].replicas
        moving = [at for at, replicas in on.items() if slow.node_id not in replicas]
        for _ in range(ROUNDS):
            if stale:
                break
            state = admin.state(TOPIC).topics[TOPIC]
            for at in moving:
                admin.reorder(TOPIC, at, state.replicas[at][::-1])
            for connection in (ours, direct):
                connection.call(METADATA, VERSION, ASKS)
            told = epochs_of(other.call(METADATA, VERSION, ASKS))
            before, newest = {at: told[at] for at in moving}, Epochs()
            os.kill(slow.pid, signal.SIGSTOP)
            try:
                # On a busy machine a thread may still run, and respond before any leader has moved.
                until(partial(_has_stopped, slow.pid), "each thread of the broker to stop")
                for connection in (ours, direct):
                    connection.send(METADATA, VERSION, ASKS)
                until(partial(_newer, other, electing, before, newest), f"newer leaders than {before}")
            finally:
                os.kill(slow.pid, signal.SIGCONT)
            through, directly = (epochs_of(each.receive()[HEADER:]) for each in (ours, direct))
            assert all(through[at] >= newest[at] for at in moving), (through, newest)
            stale = any(directly[at] < newest[at] for at in moving)
    assert stale
    assert gateway.metric("fetchgate_leaders_updated_total") >= 1
