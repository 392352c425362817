"""Three brokers in three racks, and their faults."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final, Self

from tools.kafka import Cluster
from tools.kafka.admin import Admin
from tools.kafka.settings import listener_list
from tools.zones.replication import Replication

RACKS: Final = {1: "R1", 2: "R2", 3: "R3"}
HERE: Final = 2
"""The broker in the rack of the gateway. It is the follower that fails."""
ELSEWHERE: Final = 3
"""The broker in another rack that fails. Broker 1 always runs."""
PARTITIONS: Final = 6
FAULTS: Final = ("steady", "killed", "stopped", "lagging", "leader")
"""The faults. `steady`: none. `killed`, `stopped`: broker 2, with SIGKILL and SIGSTOP. `lagging`: broker 2
lives, but copies nothing, and leaves the in-sync replicas. `leader`: broker 3 is killed."""
LAG_MS: Final = 5_000
_REPLICATION: Final = "REPLICATION"
_SETTINGS: Final[Mapping[str, object]] = {
    "replica.lag.time.max.ms": LAG_MS,
    "auto.leader.rebalance.enable": "false",  # else coordinators move in a later run
    "inter.broker.listener.name": _REPLICATION,
}


def replicas(partition: int) -> list[int]:
    """Return the replicas of a partition. The first one leads it, unless it has failed."""
    return [(partition + at) % len(RACKS) + 1 for at in range(len(RACKS))]


def led_elsewhere(partition: int) -> bool:
    """Return whether the leader of a partition is in another rack than the gateway."""
    return replicas(partition)[0] != HERE


class Brokers:
    """Three brokers of a release. `with` starts them and ends them."""

    def __init__(self, release: str) -> None:
        self.release = release
        self._stack = ExitStack()
        self._replication = Replication(len(RACKS))
        listeners = {_REPLICATION: None}
        self._cluster = Cluster(
            release, len(RACKS), properties=_SETTINGS, listeners=listeners, heap="320m", racks=RACKS
        )
        for broker in self._cluster.brokers:
            relay = self._replication.address(broker.node_id)
            advertised = listener_list({"PLAINTEXT": (broker.host, broker.port), _REPLICATION: relay})
            broker.configure({"advertised.listeners": advertised})

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._replication)
            for broker in self._cluster.brokers:
                self._replication.relay(broker.node_id, broker.port_of(_REPLICATION))
            stack.enter_context(self._cluster)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return self._cluster.bootstrap

    def create(self, topic: str) -> None:
        """Create a topic of which each broker leads a third of the partitions."""
        with self._admin() as admin:
            admin.create_topic(topic, assignment={each: replicas(each) for each in range(PARTITIONS)})

    def settle(self, topic: str) -> None:
        """Wait until all replicas of a topic are in sync."""
        with self._admin() as admin:
            admin.await_in_sync(topic)

    @contextmanager
    def fault(self, name: str) -> Iterator[None]:
        """Let a fault begin. At the end of the `with`, it is undone."""
        undo = self._begin(name)
        try:
            yield
        finally:
            undo()

    def _begin(self, name: str) -> Callable[[], None]:
        here, elsewhere = self._cluster.broker(HERE), self._cluster.broker(ELSEWHERE)
        match name:
            case "steady":
                return lambda: None
            case "killed" | "leader":
                broker = here if name == "killed" else elsewhere
                broker.kill()
                return broker.start
            case "stopped":
                os.kill(here.pid, signal.SIGSTOP)
                return lambda: os.kill(here.pid, signal.SIGCONT)
            case "lagging":
                self._replication.hold(HERE)
                return lambda: self._replication.hold(0)
        raise ValueError(f"unknown fault: {name}")

    def _admin(self) -> Admin:
        return Admin(self._cluster.broker(1).address)
