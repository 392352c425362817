"""Measures the latency from produce to consume at a constant rate, and the proxy's CPU at that rate.

Producer and consumer both connect through the proxy, and linger is 0. Each route has its own topic, and its
own consumer that is always connected. In each round, the routes have one window after the other, and only
windows of the same round are compared.
"""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from tools.bench.figures import DIRECT, FLOOR, FigureRow, FigureTable
from tools.bench.load import WARM_UP as NOT_COUNTED
from tools.bench.processes import Load, Proxy
from tools.bench.stage import BenchStage
from tools.bench.windows import Rounds, beside, beyond, medians, turned, without

LONG_SHARE, SHARE = 1.5, 0.25
"""The length of a window, as a share of those in other parts: 30 s in long runs, otherwise 5 s."""
WARM_UP: Final = 1.0
"""The uncounted first seconds of a window, while the producer connects."""
FIRST_SECONDS: Final = 5.0
RATES: Final = (500, 2000)
CPU_RATE: Final = 2000
"""The rate at which the proxy's CPU use is compared with its limit, in records per second."""
ADDED_LIMIT, CPU_LIMIT, P99_LIMIT = 0.03, 1.3, 1.2
"""The limits: milliseconds added to the floor's p50, CPU relative to the floor, p99 relative to the floor."""
BYTES: Final = 200


@dataclass(frozen=True, slots=True)
class LatencyWindow:
    """The measurements of one window on one route."""

    p50: float
    p99: float
    cpu: float


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure latency and CPU at both rates of `RATES`."""
    return [_table(rate, seconds_of(stage), *measured(stage, rate)) for rate in RATES]


def seconds_of(stage: BenchStage) -> float:
    """Return the length of a window in seconds."""
    return stage.seconds * (LONG_SHARE if stage.long else SHARE)


def measured(stage: BenchStage, rate: int) -> tuple[dict[str, list[LatencyWindow]], dict[str, float]]:
    """Measure all routes at one rate. Return their windows, and each proxy's kernel share in percent."""
    rounds, seconds = stage.rounds(quick=2, usual=6, long=10), seconds_of(stage)
    with ExitStack() as stack:
        peers = stage.peers(stack)
        proxies: dict[str, Proxy | None] = {DIRECT: None, **peers}
        routes = {
            name: stage.broker.address if proxy is None else proxy.address for name, proxy in proxies.items()
        }
        topics = {name: stack.enter_context(stage.topic(1)) for name in routes}
        consume = ("tools.bench.load", "consume")
        consumers = {
            name: stack.enter_context(Load(*consume, address, topics[name], "--rest")).ready()
            for name, address in routes.items()
        }
        cpu: dict[str, list[float]] = {name: [] for name in routes}
        for name, address in routes.items():
            _produce(address, topics[name], rate, NOT_COUNTED, None, min(seconds, FIRST_SECONDS))
        before = {name: proxy.meter.times for name, proxy in peers.items()}
        for number in range(rounds):
            stage.report(f"latency: {rate:,} records/s, round {number + 1} of {rounds} of all routes ...")
            for name in turned(list(routes), number):
                spent = _produce(routes[name], topics[name], rate, number, proxies[name], seconds)
                cpu[name].append(spent)
        kernel = {name: proxy.meter.times.kernel_since(before[name]) for name, proxy in peers.items()}
        found = {name: load.finish()["windows"] for name, load in consumers.items()}
    return {name: windows(found[name], cpu[name]) for name in routes}, kernel


def windows(latencies: Mapping[str, Mapping[str, Any]], cpu: list[float]) -> list[LatencyWindow]:
    """Combine a consumer's latencies with the proxy's CPU use, for each window."""
    return [
        LatencyWindow(p50=latencies[str(number)]["p50"], p99=latencies[str(number)]["p99"], cpu=spent)
        for number, spent in enumerate(cpu)
    ]


def _produce(address: str, topic: str, rate: int, window: int, proxy: Proxy | None, seconds: float) -> float:
    command = ["tools.bench.load", "produce", address, topic, f"--rate={rate}"]
    command += [f"--bytes={BYTES}", f"--window={window}", f"--warm-up={WARM_UP}"]
    with Load(*command, f"--seconds={WARM_UP + seconds}") as load:
        load.ready()
        time.sleep(WARM_UP)
        before, began = (proxy.meter.cpu if proxy is not None else 0.0), time.monotonic()
        time.sleep(0.9 * seconds)  # the producer may end a little early
        after, ended = (proxy.meter.cpu if proxy is not None else 0.0), time.monotonic()
        load.result()
    return 100 * (after - before) / (ended - began)


def _table(
    rate: int, seconds: float, rounds: Rounds[LatencyWindow], kernel: Mapping[str, float]
) -> FigureTable:
    rows = [
        FigureRow("p50", "ms", medians(rounds, "p50")),
        FigureRow(
            "added to p50",
            "ms",
            without(beyond(rounds, DIRECT, "p50"), DIRECT),
        ),
        FigureRow(
            "p50 above the floor's",
            "ms",
            without(beyond(rounds, FLOOR, "p50"), DIRECT),
            limit=ADDED_LIMIT,
        ),
        FigureRow("CPU of the proxy", "% of a core", without(medians(rounds, "cpu"), DIRECT)),
        FigureRow("of it in the kernel", "%", kernel),
        FigureRow(
            "CPU in the floor's",
            "times",
            without(beside(rounds, FLOOR, "cpu"), DIRECT),
            limit=CPU_LIMIT if rate == CPU_RATE else None,
        ),
        FigureRow("p99", "ms", medians(rounds, "p99")),
        FigureRow(
            "p99 in the floor's",
            "times",
            beside(rounds, FLOOR, "p99"),
            limit=P99_LIMIT,
        ),
    ]
    notes = [
        f"Medians of {len(rounds[FLOOR])} rounds of windows of {seconds:g} s;",
        "differences and ratios are those of windows of the same round.",
        "Producer and consumer both connect through the proxy; acks=all, linger 0.",
    ]
    title = f"Latency: {rate:,} records/s of {BYTES} bytes, produce to consume"
    return FigureTable(title, rows, notes)
