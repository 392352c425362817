"""Three brokers in three racks, with a replica selector, for the part `zones`."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from tools.bench.processes import BenchGateway
from tools.kafka import NEAREST, Cluster
from tools.kafka.admin import Admin

RACKS: Final = {1: "R1", 2: "R2", 3: "R3"}
LEADER, REPLICA = 1, 2
"""The broker that leads partitions in these measurements, and the one in the clients' zone."""
OWN: Final = RACKS[REPLICA]
AUDITS: Final = ("--rack", OWN)
WRITES: Final = (*AUDITS, "--rack-reads", "client")
NAMES: Final = (*AUDITS, "--rack-clients")
"""The options that are followed by client ids."""
_PATIENCE: Final = 60.0


def cluster(racks: Mapping[int, str] = RACKS) -> Cluster:
    """Return brokers in racks, which `with` starts. All other settings are the brokers' defaults."""
    return Cluster(nodes=len(racks), properties=NEAREST, racks=racks)


def gateway(brokers: Cluster, *options: str) -> BenchGateway:
    """Start a gateway in front of the brokers."""
    return BenchGateway(brokers.bootstrap, *options, node_id=len(brokers.brokers))


def create(brokers: Cluster, topic: str, *replicas: Sequence[int]) -> None:
    """Make a topic: for each partition the replicas, the leader first. Wait until all are in sync."""
    with Admin(brokers.bootstrap) as admin:
        admin.create_topic(topic, assignment=dict(enumerate(map(list, replicas))))
    in_sync(brokers, topic, len(replicas[0]))


def in_sync(brokers: Cluster, topic: str, count: int) -> None:
    """Wait until each partition of a topic has this many replicas in sync."""

    def holds() -> bool:
        with suppress(OSError), Admin(brokers.broker(LEADER).address) as admin:
            found = admin.state(topic).topics[topic].in_sync
            return bool(found) and all(len(each) == count for each in found.values())
        return False

    until(holds, f"{count} replicas of {topic} are not in sync")


def follows(gateway: BenchGateway, partitions: int) -> None:
    """Wait until clients have got a response for this many partitions from a replica in the rack."""
    _until_reads(gateway, "partitions_moved", partitions)


def named(gateway: BenchGateway, partitions: int) -> None:
    """Wait until the replica in the rack was named as leader of this many partitions."""
    _until_reads(gateway, "leaders_named", partitions)


def _until_reads(gateway: BenchGateway, what: str, count: int) -> None:
    until(
        lambda: gateway.state()["zones"]["reads"][what] >= count,
        f"a client does not read from the replica in its rack: {what}",
    )


def until(holds: Callable[[], bool], otherwise: str) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + _PATIENCE
    while not holds():
        if time.monotonic() > end:
            raise RuntimeError(otherwise)
        time.sleep(0.1)
