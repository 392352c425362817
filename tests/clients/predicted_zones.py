"""Predicts which records a client would read in its own zone, and counts which ones it then reads there.

A client without a rack reads a topic through a gateway that only counts and captures. `replay measure`
predicts from this capture what would move if the gateway named replicas as leaders. Then the same client
reads the same records through a gateway that does so (``--rack-clients``), and the gateway counts.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from tests.clients.runner import Program, Run, assert_same_records
from tools.gateway import GatewayProcess
from tools.kafka import Cluster
from tools.kafka.admin import Admin

OWN: Final = "R2"
TOPIC: Final = "zones"
REPLICAS: Final = {0: [1, 2], 1: [2, 3], 2: [3, 1], 3: [3, 2], 4: [1, 3], 5: [2, 1]}
"""The replicas of each partition, the leader first. Broker N is in rack RN. Two partitions of other leaders
have a replica in the client's rack, and two have none, so these can't be moved."""
RECORDS: Final = 1_000
"""The number of records of each partition: twice as many bytes as a client asks for at a time."""
BATCH: Final = 8
"""The number of records of each batch. A client may read the end of a response again, so it is not large."""
VALUE: Final = b"v" * 2_000
WITHIN: Final = 0.02
"""The largest part of all record bytes by which prediction and count may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Record bytes by the zone of the broker that sent them."""

    before: Mapping[str, int]
    predicted: Mapping[str, int]
    counted: Mapping[str, int]

    @property
    def error(self) -> float:
        """The difference between prediction and count, as a part of all record bytes."""
        wrong = max(abs(self.predicted[zone] - self.counted[zone]) for zone in self.counted)
        return wrong / sum(self.before.values())

    def __str__(self) -> str:
        rows = {"before": self.before, "predicted": self.predicted, "counted": self.counted}
        shown = (f"{name} {row['same']:,} own, {row['other']:,} other" for name, row in rows.items())
        return f"{'; '.join(shown)}; {self.error:.2%} apart"


@contextmanager
def zoned_cluster() -> Iterator[Cluster]:
    """Run three brokers in three racks, which have all records of the topic."""
    racks = {node_id: f"R{node_id}" for node_id in (1, 2, 3)}
    with Cluster(nodes=3, racks=racks) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, assignment=REPLICAS)
        _fill(cluster.bootstrap)
        yield cluster


def _fill(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.num.messages": BATCH})
    for number in range(RECORDS * len(REPLICAS)):
        producer.produce(TOPIC, VALUE, partition=number % len(REPLICAS))
        producer.poll(0)
    assert producer.flush(60) == 0


def assert_predicted(program: Program, cluster: Cluster, folder: Path) -> None:
    """Check that what is predicted to move is what moves, within `WITHIN`. Print the figures.

    Args:
        program: the client.
        cluster: a cluster of `zoned_cluster`.
        folder: an empty folder for the capture.
    """
    figures = _compare(program, cluster, folder)
    sys.stdout.write(f"{program.name}: {figures}\n")  # pytest -s shows it
    assert figures.before["other"] > figures.before["same"] > 0
    assert figures.predicted["other"] > 0, "two partitions have no replica in the zone"
    assert figures.error <= WITHIN, str(figures)


def _compare(program: Program, cluster: Cluster, folder: Path) -> Figures:
    audit = ("--rack", OWN)
    with GatewayProcess(cluster.bootstrap, *audit, "--capture", str(folder)) as gateway:
        alone = _read(program, gateway.address)
        before = _record_bytes(gateway)
        gateway.stop()
        zones = _measured(folder, gateway)
    assert zones["record_bytes"] == before, (zones["record_bytes"], before)
    moved = zones["rack_clients"]["moved_bytes"]
    with GatewayProcess(cluster.bootstrap, *audit, "--rack-clients", program.client_id) as gateway:
        led = _read(program, gateway.address)
        counted = _record_bytes(gateway)
    assert_same_records(alone, led)
    return Figures(
        before=before,
        predicted={**before, "same": before["same"] + moved, "other": before["other"] - moved},
        counted=counted,
    )


def _read(program: Program, bootstrap: str) -> Run:
    """Let the client read all records. Return the run, which has ended."""
    with Run(program, bootstrap, assign={TOPIC: len(REPLICAS)}) as run:
        run.wait_records(RECORDS * len(REPLICAS), seconds=120)
        run.stop()
    assert run.errors() == []
    return run


def _record_bytes(gateway: GatewayProcess) -> dict[str, int]:
    gateway.totals()  # when all connections have ended
    return {zone: counts["records"] for zone, counts in gateway.state()["zones"]["bytes"].items()}


def _measured(folder: Path, gateway: GatewayProcess) -> dict[str, Any]:
    """Return `zones` of the report on the client's side of a gateway's capture."""
    command = [sys.executable, "-m", "proxy", "replay", "measure", str(folder), "--json"]
    command += ["--client-rack", f"127.0.0.0/8={OWN}"]
    command += [word for port in gateway.ports for word in ("--port", str(port))]
    told = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True).stdout
    zones: dict[str, Any] = json.loads(told)["zones"]
    return zones
