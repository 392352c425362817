"""1,000 partitions, one of them with 100 records a second: CPU of the broker, and of the proxy before it."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Final

from tools.bench.figures import GATEWAY, Row, Table
from tools.bench.latency import turned
from tools.bench.processes import Load, Proxy
from tools.bench.stage import Stage
from tools.bench.wire import consumer

PARTITIONS: Final = 1000
RATE: Final = 100
CPU_LIMIT: Final = 2.5
"""Most CPU of the gateway, in percent of a core."""
ROUNDS: Final = 2
SETTLE_SECONDS: Final = 3.0
"""Seconds from a consumer's first record until it has all partitions and a session."""


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU in one window of one route, in percent of a core."""

    proxy: float
    broker: float


def run(stage: Stage) -> list[Table]:
    """Measure all routes in turn, several rounds."""
    rounds = 1 if stage.quick else ROUNDS
    stage.report(f"idle: {rounds} rounds of a consumer of {PARTITIONS:,} partitions by each route ...")
    with ExitStack() as stack:
        topic = stack.enter_context(stage.topic(PARTITIONS))
        command = ["tools.bench.load", "produce", stage.broker.address, topic, f"--rate={RATE}"]
        stack.enter_context(Load(*command)).ready()
        gateway = stack.enter_context(stage.gateway())
        proxies: dict[str, Proxy | None] = {"direct": None, "floor": stack.enter_context(stage.floor())}
        if (haproxy := stage.haproxy()) is not None:
            proxies["haproxy"] = stack.enter_context(haproxy)
        proxies[GATEWAY] = gateway
        spent: dict[str, list[Spent]] = {name: [] for name in proxies}
        _window(stage, topic, None)  # the broker warms up
        for number in range(rounds):
            for name in turned(list(proxies), number):
                spent[name].append(_window(stage, topic, proxies[name]))
        totals = gateway.state()["totals"]
    incremental = totals["broker"]["fetches"]["incremental"]
    return [_table(spent, incremental / (rounds * (stage.seconds + SETTLE_SECONDS)))]


def _window(stage: Stage, topic: str, proxy: Proxy | None) -> Spent:
    broker = stage.broker_meter
    address = stage.broker.address if proxy is None else proxy.address
    with consumer(address, topic, PARTITIONS) as load:
        load.ready()
        time.sleep(SETTLE_SECONDS)
        began = time.monotonic()
        before = (proxy.meter.cpu if proxy is not None else 0.0, broker.cpu)
        time.sleep(stage.seconds)
        after = (proxy.meter.cpu if proxy is not None else 0.0, broker.cpu)
        took = (time.monotonic() - began) / 100
        load.finish()
    return Spent((after[0] - before[0]) / took, (after[1] - before[1]) / took)


def _table(spent: Mapping[str, list[Spent]], fetches: float) -> Table:
    proxy = {name: median(each.proxy for each in found) for name, found in spent.items() if name != "direct"}
    broker = {name: median(each.broker for each in found) for name, found in spent.items()}
    both = {name: median(each.proxy + each.broker for each in found) for name, found in spent.items()}
    rows = [
        Row(name="proxy", unit="% of a core", values=proxy, limit=CPU_LIMIT),
        Row(name="broker", unit="% of a core", values=broker),
        Row(name="both", unit="% of a core", values=both, limit=both["direct"]),
    ]
    notes = [
        f"Medians of windows that follow each other; about {fetches:.0f} incremental fetches a second.",
        "The broker's share contains the producer's requests.",
    ]
    title = f"Idle: {PARTITIONS:,} partitions, one with {RATE} records/s"
    return Table(part="idle", title=title, rows=rows, notes=notes)
