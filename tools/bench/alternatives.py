"""Measures fetchgate beside other ways to fewer bytes, all at once: settings, partitions, Java's sessions."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final

from tools.bench.figures import DIRECT, FEWER, GATEWAY, MIN_BYTES, RAISED, FigureRow, FigureTable
from tools.bench.processes import Load
from tools.bench.stage import BenchStage
from tools.bench.wire import WIRE, console_consumer, settle, settled
from tools.counting import CountedFetches, saved

PARTITIONS: Final = 100
FEW: Final = 10
RATE: Final = 50
SETTINGS: Final = ("--set=fetch.min.bytes=65536", "--set=fetch.wait.max.ms=500")
FLOOR: Final = ("--fetch-min-bytes", "64KiB")
NOT_COUNTED: Final = 2.0
"""The first seconds of the window, in which nothing is counted."""
CONSUMERS: Final[Mapping[str, tuple[int, tuple[str, ...]]]] = {
    DIRECT: (PARTITIONS, ()),
    MIN_BYTES: (PARTITIONS, SETTINGS),
    FEWER: (FEW, ()),
    GATEWAY: (PARTITIONS, ()),
    RAISED: (PARTITIONS, ()),
}

Latencies = Mapping[str, Mapping[str, float]]


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure all consumers in one window."""
    stage.report("alternatives: settings, fewer partitions, Java and through at once ...")
    with ExitStack() as stack:
        topic = stack.enter_context(stage.topic(PARTITIONS))
        options: dict[str, tuple[str, ...]] = {**dict.fromkeys(CONSUMERS, WIRE), GATEWAY: (), RAISED: FLOOR}
        routes = {name: stack.enter_context(stage.gateway(*own)) for name, own in options.items()}
        java_route = stack.enter_context(stage.gateway(*WIRE))
        produce = ("tools.bench.load", "produce", stage.broker.address, topic, f"--rate={RATE}")
        first = stack.enter_context(Load(*produce, "--window=-1")).ready()
        java = stack.enter_context(console_consumer(java_route.address, topic))
        consumers = {}
        for name, (partitions, settings) in CONSUMERS.items():
            arguments = (routes[name].address, topic, f"--partitions={partitions}", "--first", *settings)
            consumers[name] = stack.enter_context(Load("tools.bench.load", "consume", *arguments))
        for name, consumer in consumers.items():
            consumer.ready()
            settle(routes[name], CONSUMERS[name][0])
        if java is not None and settled(java_route, java):
            routes["Java"] = java_route
        first.finish()
        times = (f"--warm-up={NOT_COUNTED}", f"--seconds={NOT_COUNTED + stage.seconds}")
        with Load(*produce, *times) as load:
            load.ready()
            time.sleep(NOT_COUNTED)
            before = {name: (time.monotonic(), route.state()) for name, route in routes.items()}
            load.result()
            after = {name: (time.monotonic(), route.state()) for name, route in routes.items()}
        time.sleep(1.0)  # the last records of those that wait
        latencies = {name: consumer.finish()["windows"]["0"] for name, consumer in consumers.items()}
    seconds = {name: after[name][0] - at for name, (at, _) in before.items()}
    counted = {name: _fetches(after[name][1]) - _fetches(state) for name, (_, state) in before.items()}
    return [table(counted, seconds, latencies, stage.seconds)]


def _fetches(state: Mapping[str, Any]) -> CountedFetches:
    return CountedFetches.of(state["totals"], "broker")


def table(
    counted: Mapping[str, CountedFetches], seconds: Mapping[str, float], latencies: Latencies, window: float
) -> FigureTable:
    """Make the table. Java's consumer does not tell its latencies."""
    listing = {name: (one.total - one.records) / seconds[name] for name, one in counted.items()}
    whole = {name: one.total / seconds[name] for name, one in counted.items()}
    others = [name for name in counted if name != DIRECT]
    rows = [
        FigureRow("fetches", "1/s", {name: one.fetches / seconds[name] for name, one in counted.items()}),
        FigureRow("bytes without records", "kB/s", {name: each / 1e3 for name, each in listing.items()}),
        FigureRow("below direct", "%", {name: saved(listing[DIRECT], listing[name]) for name in others}),
        FigureRow(
            "records", "kB/s", {name: one.records / seconds[name] / 1e3 for name, one in counted.items()}
        ),
        FigureRow(
            "below direct, records included",
            "%",
            {name: saved(whole[DIRECT], whole[name]) for name in others},
        ),
        *(
            FigureRow(
                f"produce to consume: {name}", "ms", {route: each[name] for route, each in latencies.items()}
            )
            for name in ("p50", "p99")
        ),
    ]
    notes = [
        f"One window of {window:g} s; {PARTITIONS} partitions, one with {RATE} records/s of 200 bytes.",
        "All but Java are librdkafka. Gateways with --sessions off (wires) count those without fetchgate.",
        f"{MIN_BYTES}: the client's own, 65536, with fetch.wait.max.ms 500. {RAISED}: fetchgate raises it.",
        f"{FEWER}: one of ten consumers, the one with the records. The other nine fetch twice a second.",
    ]
    return FigureTable("Alternatives: one consumer, other ways to fewer bytes", rows, notes)
