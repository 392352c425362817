"""Measures the latency from produce to consume at the leader and at a follower, direct and by the gateway.

One producer writes to the leader (acks=1). Four consumers read the same records at the same time, each with a
maximum wait of 500 ms: two from the leader, two from the replica in their zone. Direct, a client has a
client.rack to read from the replica. Behind a gateway it has none: ``--rack-clients`` names the replica as
leader.
"""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final

from tools.bench import zone_brokers
from tools.bench.figures import DIRECT, GATEWAY, NAMED, FigureRow, FigureTable
from tools.bench.processes import BenchGateway, Load
from tools.bench.stage import BenchStage
from tools.bench.zone_brokers import LEADER, NAMES, OWN, REPLICA
from tools.kafka import Cluster

RATES: Final[Mapping[int, float]] = {2: 1.5, 10: 1.0, 100: 0.5, 1000: 0.5}
"""The rates in records per second. For each, the length of its window as a share of those of other parts."""
READS: Final = ("leader", "replica")
PERCENTILES: Final = {"p50": "p50", "p99": "p99", "most": "worst"}
BYTES: Final = 200
CLIENT_ID: Final = "named"
NOT_COUNTED: Final = 2.0
_PRODUCE: Final = ("--set=acks=1", f"--bytes={BYTES}")

Latencies = Mapping[tuple[str, str], Mapping[str, float]]


def run(stage: BenchStage, brokers: Cluster) -> list[FigureTable]:
    """Measure all rates."""
    found = {}
    with ExitStack() as stack:
        gateways = {
            GATEWAY: stack.enter_context(zone_brokers.gateway(brokers)).ready(),
            NAMED: stack.enter_context(zone_brokers.gateway(brokers, *NAMES, CLIENT_ID)).ready(),
        }
        for rate, share in RATES.items():
            seconds = stage.seconds * share
            stage.report(f"zones: latency at {rate:,} records/s, {seconds:g} s ...")
            found[rate] = measured(brokers, gateways, rate, seconds)
    return [table(found, stage.seconds)]


def measured(
    brokers: Cluster, gateways: Mapping[str, BenchGateway], rate: int, seconds: float
) -> dict[tuple[str, str], dict[str, float]]:
    """Measure one rate. Return the figures in ms."""
    topic = f"latency-{rate}"
    zone_brokers.create(brokers, topic, [LEADER, REPLICA, 3])
    produce = ("tools.bench.load", "produce", brokers.bootstrap, topic, *_PRODUCE)
    with ExitStack() as stack:
        first = stack.enter_context(Load(*produce, f"--rate={max(rate, 10)}", "--window=-1")).ready()
        consumers = {}
        for what, route, address, *setting in (
            ("leader", DIRECT, brokers.bootstrap),
            ("leader", GATEWAY, gateways[GATEWAY].address),
            ("replica", DIRECT, brokers.bootstrap, f"--set=client.rack={OWN}"),
            ("replica", NAMED, gateways[NAMED].address, f"--set=client.id={CLIENT_ID}"),
        ):
            load = Load("tools.bench.load", "consume", address, topic, "--first", *setting)
            consumers[what, route] = stack.enter_context(load)
        for load in consumers.values():
            load.ready()
        zone_brokers.wait_named(gateways[NAMED])
        first.finish()
        times = (f"--warm-up={NOT_COUNTED}", f"--seconds={NOT_COUNTED + seconds}")
        with Load(*produce, f"--rate={rate}", *times) as load:
            load.ready().result()
        time.sleep(1.0)  # the last records are late at the replica
        return {key: _only(load.finish()) for key, load in consumers.items()}


def _only(result: Mapping[str, Any]) -> dict[str, float]:
    window: dict[str, float] = result["windows"]["0"]
    return window


def table(found: Mapping[int, Latencies], seconds: float) -> FigureTable:
    """Make the table of all rates."""
    rows = [
        FigureRow(
            f"{rate:,} records/s, {what}: {label}",
            "ms",
            {route: each[name] for (of, route), each in figures.items() if of == what},
        )
        for rate, figures in found.items()
        for what in READS
        for name, label in PERCENTILES.items()
    ]
    lengths = ", ".join(f"{seconds * RATES[rate]:g}" for rate in found)
    notes = [
        f"Windows of {lengths} s. One partition of three brokers, replica.fetch.wait.max.ms 500; acks=1.",
        "Four librdkafka consumers read the same records at the same time, with a maximum wait of 500 ms.",
        "replica: direct, the client has a client.rack; by the gateway it has none.",
    ]
    title = f"Zones, latency: produce to consume, records of {BYTES} bytes"
    return FigureTable(title, rows, notes)
