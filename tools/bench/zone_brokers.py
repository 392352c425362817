"""Three brokers in three racks, with a replica selector, for the part `zones`."""

from collections.abc import Sequence
from typing import Final

from tools.bench.processes import BenchGateway
from tools.kafka import NEAREST, Cluster
from tools.kafka.admin import Admin, until
from tools.zones.brokers import RACKS

LEADER, REPLICA = 1, 2
"""The broker that leads partitions in these measurements, and the one in the clients' zone."""
OWN: Final = RACKS[REPLICA]
AUDITS: Final = ("--rack", OWN)
NAMES: Final = (*AUDITS, "--rack-clients")


def cluster() -> Cluster:
    """Return brokers in racks, which `with` starts. All other settings are the brokers' defaults."""
    return Cluster(properties=NEAREST, racks=RACKS)


def gateway(brokers: Cluster, *options: str) -> BenchGateway:
    """Start a gateway in front of the brokers."""
    return BenchGateway(brokers.bootstrap, *options, node_id=len(brokers.brokers))


def create(brokers: Cluster, topic: str, *replicas: Sequence[int]) -> None:
    """Make a topic: for each partition the replicas, the leader first. Wait until all are in sync."""
    with Admin(brokers.bootstrap) as admin:
        admin.create_topic(topic, assignment=dict(enumerate(map(list, replicas))))
        admin.await_in_sync(topic)


def wait_named(gateway: BenchGateway) -> None:
    """Wait until the gateway has named a replica as leader."""
    until("a replica is named", lambda: gateway.state()["zones"]["reads"]["leaders_named"] > 0)
