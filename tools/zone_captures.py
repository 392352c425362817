"""Makes the captures of `captures/` that cross zones, from three brokers in three racks.

    python -m tools.zone_captures --into captures

Two have the same records. In `librdkafka-zones` the consumer reads from the leaders. In
`librdkafka-zones-rack` its rack is R2, and it reads from the replicas there that the leaders name (KIP-392).
So the second shows whether `replay measure` predicts the right thing from the first. `followers` has what the
brokers fetched from each other while these records were written. They need tcpdump, and the right to capture.
"""

import argparse
import json
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

try:
    from confluent_kafka import Consumer, Producer, TopicPartition

    from tools.capture_clients import LIBRDKAFKA, WAIT_SECONDS
    from tools.captures import DESTINATION, tcpdump
except ImportError as error:
    raise SystemExit(f"zone_captures: {error}; install '.[dev,kafka]'") from None

from tools.kafka import LATEST, NEAREST, Cluster
from tools.kafka.admin import Admin
from tools.zones.brokers import RACKS

NAME: Final = "librdkafka-zones"
FOLLOWERS: Final = "followers"
CLIENT_RACK: Final = "R2"
REPLICAS: Final[dict[str, dict[int, list[int]]]] = {
    "events": {0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2], 3: [1, 2, 3], 4: [2, 3, 1], 5: [3, 1, 2]},
    "orders": {0: [1, 3], 1: [3, 1], 2: [2, 1]},
}
"""The replicas of each partition, the leader first. Two partitions have none in the client's rack."""
RECORDS: Final = 40
RECORD_BYTES: Final = 150
_LISTENER: Final = "CLIENTS"
"""The listener of clients. Brokers fetch from each other at another one."""
_WRITES: Final = (
    f"producer writer writes {RECORDS} records to each of {sum(map(len, REPLICAS.values()))} partitions"
)
_IDLE: Final = 2.0
_REPLICATED: Final = 2.0


def capture(cluster: Cluster, folder: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Make the captures. Return the file and the manifest of each."""
    ports = [broker.port_of(_LISTENER) for broker in cluster.brokers]
    between = [port for broker in cluster.brokers for port in (broker.port, broker.controller_port)]
    bootstrap = ",".join(f"{broker.host}:{port}" for broker, port in zip(cluster.brokers, ports, strict=True))
    with Admin(cluster.brokers[0].address) as admin:
        for topic, replicas in REPLICAS.items():
            admin.create_topic(topic, assignment=replicas)
    found = {}
    for name, rack in ((NAME, ""), (f"{NAME}-rack", CLIENT_RACK)):
        file = folder / f"{name}.pcap"
        with tcpdump(file, ports) as command:
            if not rack:
                followers = folder / f"{FOLLOWERS}.pcap"
                with tcpdump(followers, between) as command_between:
                    write(bootstrap)
                    time.sleep(_REPLICATED)
                found[FOLLOWERS] = followers, of_followers(command_between, between)
            read = consume(bootstrap, rack)
        found[name] = file, manifest(command, rack, ports, read)
    return found


def write(bootstrap: str) -> None:
    """Write all records."""
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "writer", "linger.ms": 20})
    for number in range(RECORDS):
        for topic, replicas in REPLICAS.items():
            for partition in replicas:
                producer.produce(topic, f"{number} ".encode().ljust(RECORD_BYTES, b"."), partition=partition)
        producer.poll(0)
    if producer.flush(WAIT_SECONDS):
        raise RuntimeError("not all records were written")


def consume(bootstrap: str, rack: str) -> int:
    """Read all records, and wait for more. Return their number."""
    settings = {"client.rack": rack} if rack else {}
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "client.id": "reader", "enable.auto.commit": False}
        | settings
    )
    consumer.assign([TopicPartition(*place, 0) for place in partitions()])
    read, began, until = 0, time.monotonic(), 0.0
    while not until or time.monotonic() < until:
        read += sum(message.error() is None for message in consumer.consume(100, 0.1))
        if read == RECORDS * len(partitions()) and not until:
            until = time.monotonic() + _IDLE
        if not until and time.monotonic() - began > WAIT_SECONDS:
            raise RuntimeError(f"the consumer got {read} records")
    consumer.close()
    return read


def partitions() -> list[tuple[str, int]]:
    """Return all partitions."""
    return [(topic, partition) for topic, replicas in REPLICAS.items() for partition in replicas]


def manifest(command: str, rack: str, ports: Sequence[int], read: int) -> dict[str, Any]:
    """Return the manifest of a capture of clients."""
    reads = f"from the replicas in its rack {rack}" if rack else "from the leaders"
    story = [f"consumer reader reads all of it {reads}, waits for more, and leaves"]
    return {
        "what": f"{LIBRDKAFKA}: three brokers in three racks",
        **_made(command, story if rack else [_WRITES, *story], {"client": LIBRDKAFKA}),
        "client_rack": CLIENT_RACK,
        "ports": {"client_side": list(ports), "broker_side": []},
        "expected": {"records_read": read},
    }


def of_followers(command: str, ports: Sequence[int]) -> dict[str, Any]:
    """Return the manifest of the capture between the brokers."""
    return {
        "what": "three brokers and controllers in three racks fetch from each other",
        **_made(command, [_WRITES], {}),
        "ports": {"client_side": [], "broker_side": list(ports)},
    }


def _made(command: str, story: list[str], versions: Mapping[str, str]) -> dict[str, Any]:
    return {
        "origin": "a run of this project on loopback; it holds nobody's data",
        "made_by": "python -m tools.zone_captures",
        "taken_by": command,
        "story": story,
        "versions": {
            "broker": f"Apache Kafka {LATEST}, three nodes, KRaft, with RackAwareReplicaSelector",
            **versions,
            "python": platform.python_version(),
        },
        "racks": {str(node_id): name for node_id, name in RACKS.items()},
        "replicas": REPLICAS,
    }


def in_racks(racks: Mapping[int, str]) -> Cluster:
    """Return a cluster of brokers in racks, whose leaders name the replica in the client's rack."""
    return Cluster(nodes=len(racks), properties=NEAREST, listeners={_LISTENER: None}, racks=racks)


def main(argv: Sequence[str] | None = None) -> int:
    """Make the captures. The exit code is 0 for success, 1 for a failure, 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.zone_captures", description="Make the captures of captures/ that cross zones."
    )
    parser.add_argument("--into", type=Path, default=DESTINATION, metavar="DIR", help="write them there")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="fetchgate-") as folder:
        try:
            with in_racks(RACKS) as cluster:
                found = capture(cluster, Path(folder))
        except RuntimeError as error:
            sys.stderr.write(f"zone_captures: {error}\n")
            return 1
        arguments.into.mkdir(parents=True, exist_ok=True)
        for name, (file, described) in found.items():
            shutil.copyfile(file, arguments.into / f"{name}.pcap")
            (arguments.into / f"{name}.manifest.json").write_text(json.dumps(described, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
