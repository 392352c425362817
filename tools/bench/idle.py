"""Measures the CPU of broker and proxy with 1,000 partitions, of which one gets 100 records a second."""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from tools.bench.figures import DIRECT, FLOOR, GATEWAY, HAPROXY, FigureRow, FigureTable
from tools.bench.processes import BenchGateway, Load, Proxy
from tools.bench.stage import BenchStage
from tools.bench.windows import Rounds, beside, medians, turned, without
from tools.bench.wire import consumer

PARTITIONS: Final = 1000
RATE: Final = 100
SHARE: Final = 2
CPU_LIMIT, BOTH_LIMIT = 1.8, 0.8
"""The most CPU: of the gateway relative to the floor, and with the broker relative to direct."""
SETTLE_SECONDS: Final = 3.0
"""From a consumer's first record until it has read all partitions and the session exists."""


@dataclass(frozen=True, slots=True)
class Spent:
    """The CPU time of the proxy and of the broker in one time window, in percent of a core."""

    proxy: float
    broker: float

    @property
    def both(self) -> float:
        """The CPU time of the proxy and of the broker together."""
        return self.proxy + self.broker


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure all routes in turn, in several rounds. Return the tables of the results."""
    rounds = stage.rounds(quick=1, usual=4, long=8)
    with ExitStack() as stack:
        topic = stack.enter_context(stage.topic(PARTITIONS))
        command = ["tools.bench.load", "produce", stage.broker.address, topic, f"--rate={RATE}"]
        stack.enter_context(Load(*command)).ready()
        gateway = stack.enter_context(stage.gateway())
        proxies: dict[str, Proxy | None] = {
            DIRECT: None,
            FLOOR: stack.enter_context(stage.floor()),
            HAPROXY: stack.enter_context(stage.haproxy()),
            GATEWAY: gateway,
        }
        spent: dict[str, list[Spent]] = {name: [] for name in proxies}
        stage.report("idle: the broker warms up ...")
        for proxy in (None, gateway):  # Java compiles its code for full and for incremental fetches
            _window(stage, topic, proxy)
        before = _incremental(gateway)
        for number in range(rounds):
            stage.report(f"idle: {PARTITIONS:,} partitions by each route, round {number + 1} of {rounds} ...")
            for name in turned(list(proxies), number):
                spent[name].append(_window(stage, topic, proxies[name]))
        fetches = _incremental(gateway) - before
    return [_table(spent, fetches / (rounds * (stage.seconds / SHARE + SETTLE_SECONDS)))]


def _incremental(gateway: BenchGateway) -> int:
    return int(gateway.state()["totals"]["broker"]["fetches"]["incremental"])


def _window(stage: BenchStage, topic: str, proxy: Proxy | None) -> Spent:
    broker = stage.broker_meter
    address = stage.broker.address if proxy is None else proxy.address
    with consumer(address, topic, PARTITIONS) as load:
        load.ready()
        time.sleep(SETTLE_SECONDS)
        began = time.monotonic()
        before = (proxy.meter.cpu if proxy is not None else 0.0, broker.cpu)
        time.sleep(stage.seconds / SHARE)
        after = (proxy.meter.cpu if proxy is not None else 0.0, broker.cpu)
        took = (time.monotonic() - began) / 100
        load.finish()
    return Spent((after[0] - before[0]) / took, (after[1] - before[1]) / took)


def _table(spent: Rounds[Spent], fetches: float) -> FigureTable:
    rows = [
        FigureRow("proxy", "% of a core", without(medians(spent, "proxy"), DIRECT)),
        FigureRow(
            "proxy in the floor's",
            "times",
            without(beside(spent, FLOOR, "proxy"), DIRECT),
            limit=CPU_LIMIT,
        ),
        FigureRow("broker", "% of a core", medians(spent, "broker")),
        FigureRow("both", "% of a core", medians(spent, "both")),
        FigureRow(
            "both in direct",
            "times",
            without(beside(spent, DIRECT, "both"), DIRECT),
            limit=BOTH_LIMIT,
        ),
    ]
    notes = [
        f"Medians of {len(spent[FLOOR])} rounds; ratios within a round.",
        f"Some {fetches:.0f} incremental fetches a second. The broker's has the producer's requests.",
    ]
    return FigureTable(f"Idle: {PARTITIONS:,} partitions, one with {RATE} records/s", rows, notes)
