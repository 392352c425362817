"""Measures the bytes that cross zones, for six clients: only counted, and read from the zone's replica."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from proxy.features.racks.racks import Zone
from tests.clients.programs import lacking, program_of
from tests.clients.runner import Program, Run
from tools.bench import zone_brokers
from tools.bench.figures import AUDIT, NAMED, FigureRow, FigureTable
from tools.bench.processes import BenchGateway, Load
from tools.bench.stage import BenchStage
from tools.bench.zone_brokers import AUDITS, NAMES
from tools.kafka import Cluster
from tools.kafka.admin import Admin
from tools.zones.brokers import PARTITIONS, replicas

TOPIC: Final = "crossing"
RECORDS: Final = 500
RECORD_BYTES: Final = 1024
PATIENCE: Final = 90.0
CLIENTS: Final = {
    "librdkafka": "confluent-kafka",
    "Java": "java",
    "Sarama": "sarama",
    "kafka-python": "kafka-python",
    "aiokafka": "aiokafka",
    "franz-go": "franz-go",
}
"""The clients, with the names of their programs."""


@dataclass(frozen=True, slots=True)
class Crossed:
    """What one client has exchanged with brokers, in bytes."""

    records: int
    every: int
    own: int


def run(stage: BenchStage, brokers: Cluster) -> list[FigureTable]:
    """Measure all clients that can run here."""
    zone_brokers.create(brokers, TOPIC, *map(replicas, range(PARTITIONS)))
    command = ["tools.bench.load", "fill", brokers.bootstrap, TOPIC, f"--records={RECORDS * PARTITIONS}"]
    with Load(*command, f"--partitions={PARTITIONS}", f"--bytes={RECORD_BYTES}") as load:
        load.ready().result()
    with Admin(brokers.bootstrap) as admin:
        admin.await_in_sync(TOPIC)
    found: dict[str, dict[str, Crossed]] = {}
    notes: list[str] = []
    for client, library in CLIENTS.items():
        if why := lacking(library):
            notes.append(f"{client}: left out, {why}.")
            continue
        stage.report(f"zones: bytes that cross, {client} ...")
        try:
            program = program_of(library)
        except subprocess.SubprocessError as error:
            stage.report(f"zones: {error}")
            notes.append(f"{client}: left out, it could not be built.")
            continue
        ways = {AUDIT: AUDITS, NAMED: (*NAMES, program.client_id)}
        found[client] = {name: crossed(brokers, program, options) for name, options in ways.items()}
    return [table(found, notes)]


def crossed(brokers: Cluster, program: Program, options: tuple[str, ...]) -> Crossed:
    """Have a client read all records through a gateway, from its start on. Return what crossed."""
    with zone_brokers.gateway(brokers, *options).ready() as gateway:
        with Run(program, gateway.address, assign={TOPIC: PARTITIONS}) as reader:
            reader.wait_records(RECORDS * PARTITIONS, seconds=PATIENCE)
        return _read(gateway)


def _read(gateway: BenchGateway) -> Crossed:
    zones = gateway.state()["zones"]["bytes"]
    other, unknown = zones[Zone.OTHER], zones[Zone.UNKNOWN]
    return Crossed(
        records=other["records"] + unknown["records"],
        every=sum(other.values()) + sum(unknown.values()),
        own=zones[Zone.SAME]["records"],
    )


def table(found: Mapping[str, Mapping[str, Crossed]], notes: list[str]) -> FigureTable:
    """Make the table of all clients."""
    rows = []
    for client, ways in found.items():
        rows += [
            FigureRow(
                f"{client}: records from other zones",
                "kB",
                {name: each.records / 1e3 for name, each in ways.items()},
                limit=0,
                judged=(NAMED,),
            ),
            FigureRow(
                f"{client}: records from its zone",
                "kB",
                {name: each.own / 1e3 for name, each in ways.items()},
            ),
            FigureRow(
                f"{client}: all bytes with other zones",
                "kB",
                {name: each.every / 1e3 for name, each in ways.items()},
            ),
        ]
    told = [
        f"{PARTITIONS} partitions, each with {RECORDS} records of {RECORD_BYTES} bytes, read from the start.",
        "All bytes: also Metadata and the listings of fetches, and bytes before a zone was known.",
        *notes,
    ]
    return FigureTable("Zones, bytes that cross: three brokers in three racks", rows, told)
