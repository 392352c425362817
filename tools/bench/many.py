"""Measures each proxy's CPU while 500 connections fetch one partition each, without new records."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from tools.bench.figures import FLOOR, FigureRow, FigureTable
from tools.bench.processes import Load, Proxy
from tools.bench.stage import BenchStage
from tools.bench.windows import Rounds, beside, medians, turned
from tools.kafka.admin import Admin

CONNECTIONS: Final = 500
WAIT_MS: Final = 500
SHARE: Final = 4
CPU_LIMIT: Final = 1.25


@dataclass(frozen=True, slots=True)
class ManyWindow:
    """One window of one route."""

    fetches: float
    core: float
    cpu: float
    """CPU of the proxy for each fetch, in microseconds."""


def clients(address: str, topic_id: str, count: int) -> Load:
    """Start connections that fetch the first partition of a topic. They wait for `Load.go`."""
    return Load("tools.bench.connections", address, topic_id, str(count), str(WAIT_MS))


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure all routes in turn, several rounds."""
    rounds = stage.rounds(quick=2, usual=6, long=10)
    with ExitStack() as stack:
        topic = stack.enter_context(stage.topic(1, name="quiet"))
        with Admin(stage.broker.address) as admin:
            topic_id = admin.topic_id(topic).hex
        proxies = stage.peers(stack)
        loads = {
            name: stack.enter_context(clients(proxy.address, topic_id, CONNECTIONS)).ready()
            for name, proxy in proxies.items()
        }
        found: dict[str, list[ManyWindow]] = {name: [] for name in proxies}
        before = {name: proxy.meter.times for name, proxy in proxies.items()}
        for number in range(rounds):
            stage.report(f"connections: {CONNECTIONS} that fetch, round {number + 1} of {rounds} ...")
            for name in turned(list(proxies), number):
                found[name].append(_window(proxies[name], loads[name], stage.seconds / SHARE))
        kernel = {name: proxy.meter.times.kernel_since(before[name]) for name, proxy in proxies.items()}
    return [_table(found, kernel, stage.seconds / SHARE)]


def _window(proxy: Proxy, load: Load, seconds: float) -> ManyWindow:
    before = proxy.meter.cpu
    load.go()
    time.sleep(seconds)
    result = load.pause()
    spent, fetches = proxy.meter.cpu - before, result["responses"]
    return ManyWindow(
        fetches=fetches / result["seconds"],
        core=100 * spent / result["seconds"],
        cpu=spent / max(fetches, 1) * 1e6,
    )


def _table(rounds: Rounds[ManyWindow], kernel: Mapping[str, float], seconds: float) -> FigureTable:
    rows = [
        FigureRow("fetches", "1/s", medians(rounds, "fetches")),
        FigureRow("CPU", "% of a core", medians(rounds, "core")),
        FigureRow("CPU of a fetch", "µs", medians(rounds, "cpu")),
        FigureRow("of it in the kernel", "%", kernel),
        FigureRow(
            "CPU of a fetch in the floor's",
            "times",
            beside(rounds, FLOOR, "cpu"),
            limit=CPU_LIMIT,
        ),
    ]
    notes = [
        f"Medians of {len(rounds[FLOOR])} rounds of windows of {seconds:g} s; ratios within a round.",
        f"A real broker, which answers after max_wait_ms, {WAIT_MS}; for each proxy one process of clients.",
    ]
    return FigureTable(f"{CONNECTIONS} connections of one partition", rows, notes)
