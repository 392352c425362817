"""Compares `--workers 2` with one worker: CPU for each fetch, balance of the load, and fetches per second.

Many connections fetch through two gateways in turn, as fast as each gateway allows. The broker is a stub that
responds at once (`tools.bench.stub`).
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from tools.bench.figures import ONE_WORKER, TWO_WORKERS, FigureRow, FigureTable
from tools.bench.processes import HOST, BenchGateway, Load, Proxy
from tools.bench.stage import BenchStage
from tools.bench.stub import NODE_ID, PARTITIONS, TOPIC_ID
from tools.bench.windows import Rounds, beside, medians, turned
from tools.kafka.ports import free_ports

WORKERS: Final = {ONE_WORKER: 1, TWO_WORKERS: 2}
LOADS: Final = 2
CONNECTIONS: Final = 32
"""The number of connections of each load program."""
SHARE: Final = 20
"""The factor by which windows are shorter than in other parts of the benchmark: they take one second."""
CPU_LIMIT, LOAD_LIMIT, PACE_LIMIT = 1.05, 40.0, 1.6
"""Three limits for two workers: their CPU time relative to one worker, each worker's smallest share of the
load in percent, and their smallest throughput relative to one worker."""
CORES: Final = 6
"""The number of CPU cores that two workers, their clients and their broker need to be faster than one
worker."""


@dataclass(frozen=True, slots=True)
class WorkersWindow:
    """The figures of one measured window with one gateway."""

    cpu: float
    """The CPU time of all processes of the gateway for each fetch, in microseconds."""
    pace: float
    """The number of fetches per second."""
    least: float
    """The share of the least busy worker in the CPU time of all workers, in percent."""


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure the gateway with one worker and the gateway with two workers, in turn."""
    rounds = stage.rounds(quick=4, usual=20, long=40)
    stage.report(f"workers: {rounds} rounds of {LOADS * CONNECTIONS} connections, one worker and two ...")
    found: dict[str, list[WorkersWindow]] = {name: [] for name in WORKERS}
    with ExitStack() as stack:
        port = free_ports()
        stub = [sys.executable, "-m", "tools.bench.stub", f"{HOST}:{port}", "0"]
        broker = stack.enter_context(Proxy(stub, port)).address
        gateways = {
            name: stack.enter_context(BenchGateway(broker, "--workers", str(count), node_id=NODE_ID)).ready()
            for name, count in WORKERS.items()
        }
        loads = {name: [_load(stack, gateway) for _ in range(LOADS)] for name, gateway in gateways.items()}
        before = {name: gateway.meter.times for name, gateway in gateways.items()}
        for number in range(rounds):
            for name in turned(list(WORKERS), number):
                found[name].append(_window(gateways[name], loads[name], stage.seconds / SHARE))
        kernel = {name: gateway.meter.times.kernel_since(before[name]) for name, gateway in gateways.items()}
    return [_table(found, kernel, stage.seconds / SHARE, os.cpu_count() or 1)]


def _load(stack: ExitStack, gateway: BenchGateway) -> Load:
    command = ["tools.bench.connections", gateway.address, TOPIC_ID.hex()]
    return stack.enter_context(Load(*command, str(CONNECTIONS), "0", str(PARTITIONS))).ready()


def _window(gateway: BenchGateway, loads: Sequence[Load], seconds: float) -> WorkersWindow:
    before = gateway.meter.by_process()
    for load in loads:
        load.go()
    time.sleep(seconds)
    results = [load.pause() for load in loads]
    spent = {pid: cpu - before[pid] for pid, cpu in gateway.meter.by_process().items()}
    workers = [spent[worker["pid"]] for worker in gateway.state()["workers"]]
    return WorkersWindow(
        cpu=sum(spent.values()) / sum(each["responses"] for each in results) * 1e6,
        pace=sum(each["responses"] / each["seconds"] for each in results),
        least=100 * min(workers) / sum(workers),
    )


def _table(
    rounds: Rounds[WorkersWindow], kernel: Mapping[str, float], seconds: float, cores: int
) -> FigureTable:
    scales = cores >= CORES
    rows = [
        FigureRow(name="CPU of all processes", unit="µs a fetch", values=medians(rounds, "cpu")),
        FigureRow(name="of it in the kernel", unit="%", values=kernel),
        FigureRow(
            name="CPU in one worker's",
            unit="times",
            values=beside(rounds, ONE_WORKER, "cpu"),
            limit=CPU_LIMIT,
            figure="--workers 2: CPU a fetch in one worker's",
        ),
        FigureRow(
            name="carried by the one with less",
            unit="%",
            values={TWO_WORKERS: medians(rounds, "least")[TWO_WORKERS]},
            limit=LOAD_LIMIT,
            least=True,
        ),
        FigureRow(name="fetches", unit="1/s", values=medians(rounds, "pace")),
        FigureRow(
            name="fetches in one worker's",
            unit="times",
            values=beside(rounds, ONE_WORKER, "pace"),
            limit=PACE_LIMIT if scales else None,
            least=True,
        ),
    ]
    notes = [
        f"{LOADS * CONNECTIONS} connections to a stub of a broker that responds at once.",
        f"Medians of {len(rounds[ONE_WORKER])} rounds of windows of {seconds:g} s; ratios within a round.",
    ]
    if not scales:
        notes.append(f"Fetches a second are not judged: {cores} cores here, {CORES} are needed.")
    title = f"--workers 2: fetches of {PARTITIONS} partitions with nothing new"
    return FigureTable(part="workers", title=title, rows=rows, notes=notes)
