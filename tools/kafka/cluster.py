"""Several nodes on loopback. From 3.5 on, each is a broker and a controller. Older ones share a ZooKeeper."""

import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

from tools.kafka import reaper
from tools.kafka.broker import LATEST, Broker, new_cluster_id, uses_zookeeper
from tools.kafka.jars import classpath
from tools.kafka.ports import free_ports
from tools.kafka.settings import Listeners, Properties
from tools.kafka.zookeeper import ZooKeeper

NEAREST: Final = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
"""The setting with which leaders name the replica in the rack of a fetch (KIP-392)."""


class Cluster:
    """Nodes 1 to N. Kafka's own topics are on every node, so that consumers survive a restart."""

    def __init__(
        self,
        version: str = LATEST,
        nodes: int = 3,
        *,
        properties: Properties | None = None,
        listeners: Listeners | None = None,
        heap: str = "384m",
        racks: Mapping[int, str] | None = None,
    ) -> None:
        first = free_ports(2 * nodes)
        ids = range(1, nodes + 1)
        voters = {node_id: first + nodes + node_id - 1 for node_id in ids}
        cluster_id = new_cluster_id()
        shared: dict[str, object] = {
            "offsets.topic.replication.factor": min(3, nodes),
            "transaction.state.log.replication.factor": min(3, nodes),
            "share.coordinator.state.topic.replication.factor": min(3, nodes),
            **(properties or {}),
        }
        self.version = version
        self._zookeeper_port = first + nodes if uses_zookeeper(version) else 0
        self._zookeeper: ZooKeeper | None = None
        self._folder = Path()
        self.brokers = [
            Broker(
                version,
                properties=shared,
                listeners=listeners,
                node_id=node_id,
                port=first + node_id - 1,
                heap=heap,
                voters=voters,
                cluster_id=cluster_id,
                zookeeper_port=self._zookeeper_port,
            )
            for node_id in ids
        ]
        for node_id, rack in (racks or {}).items():
            self.broker(node_id).configure({"broker.rack": rack})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, separated by commas."""
        return ",".join(broker.address for broker in self.brokers)

    def broker(self, node_id: int) -> Broker:
        """Return a broker by its id, 1 to N."""
        return self.brokers[node_id - 1]

    def start(self) -> None:
        """Start all nodes and wait until each node knows all other nodes."""
        class_path = classpath(self.version)  # first, instead of in three threads that wait for each other
        try:
            if self._zookeeper_port:
                self._folder = Path(tempfile.mkdtemp(prefix="zookeeper-"))
                reaper.remove(self._folder)
                self._zookeeper = ZooKeeper(class_path, port=self._zookeeper_port, folder=self._folder)
            with ThreadPoolExecutor(len(self.brokers)) as pool:
                list(pool.map(Broker.launch, self.brokers))
            for broker in self.brokers:
                broker.wait_ready(nodes=len(self.brokers))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill all nodes and remove their data."""
        for broker in self.brokers:
            broker.close()
        if self._zookeeper is not None:
            self._zookeeper.close()
        if self._folder != Path():
            shutil.rmtree(self._folder, ignore_errors=True)
