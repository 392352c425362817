"""Measures the memory of a gateway with many connections to a real broker, from one plain process."""

import time
from contextlib import ExitStack
from typing import Final

from tools.bench import bulk
from tools.bench.figures import FLOOR, GATEWAY, FigureRow, FigureTable
from tools.bench.many import clients
from tools.bench.micro import partition_bytes
from tools.bench.processes import Load, Proxy
from tools.bench.stage import BenchStage
from tools.bench.wire import consumer
from tools.kafka.admin import Admin

IDLE: Final = 200
BUSY: Final = 500
DRAINED: Final = 250_000
QUICK_DRAINED: Final = 50_000
SESSION: Final = 10_000
SETTLE_SECONDS: Final = 3.0
FLAT: Final = 3
"""The number of windows with traffic in a row. Growth is measured from the end of the first on."""
SIDECAR: Final = 100
SIDECAR_LIMIT, RESIDENT_LIMIT, CONNECTION_LIMIT, PARTITION_LIMIT = 35.0, 55.0, 20.0, 150.0
"""MB of a sidecar that is idle or has one client, after reads; KB of a connection; B of a partition."""
GROWTH_LIMIT: Final = 2.0


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure the memory of the floor and of the gateway."""
    with ExitStack() as stack:
        quiet = stack.enter_context(stage.topic(1, name="quiet"))
        drained = stack.enter_context(stage.topic(bulk.PARTITIONS))
        records = QUICK_DRAINED if stage.quick else DRAINED
        bulk.fill_at(stage.broker.address, drained, records)
        with Admin(stage.broker.address) as admin:
            topic_id = admin.topic_id(quiet).hex
        stage.report(f"memory: {IDLE} idle connections, one client that drains ...")
        with stage.floor() as floor, stage.gateway() as gateway:  # new ones: they have no free memory yet
            idle = {FLOOR: _idle(floor, topic_id), GATEWAY: _idle(gateway, topic_id)}
        proxies = {FLOOR: stack.enter_context(stage.floor()), GATEWAY: stack.enter_context(stage.gateway())}
        time.sleep(SETTLE_SECONDS)
        start = {name: proxy.meter.resident / 1e6 for name, proxy in proxies.items()}
        stage.report("memory: a sidecar with one client ...")
        one = {name: _with_one_client(stage, proxy) for name, proxy in proxies.items()}
        after = {name: _after_drain(proxy, drained, records) for name, proxy in proxies.items()}
        stage.report(f"memory: growth in {FLAT * stage.seconds:.0f} s ...")
        grown = _growth(stage, proxies[GATEWAY], topic_id)
    resident = [
        FigureRow("an idle sidecar", "MB", start, limit=SIDECAR_LIMIT),
        FigureRow(
            "a sidecar with one client",
            "MB",
            {name: resident for name, (resident, _) in one.items()},
            limit=SIDECAR_LIMIT,
        ),
        FigureRow(
            "of it, without the code of libraries", "MB", {name: own for name, (_, own) in one.items()}
        ),
        FigureRow("one client, after drains", "MB", after, limit=RESIDENT_LIMIT),
        FigureRow("an idle connection", "KB", idle, limit=CONNECTION_LIMIT),
        FigureRow(
            "a partition in a session", "bytes", {GATEWAY: partition_bytes(SESSION)}, limit=PARTITION_LIMIT
        ),
        FigureRow("growth under traffic", "MB", {GATEWAY: grown}, limit=GROWTH_LIMIT),
    ]
    notes = [
        f"One client: confluent-kafka with {SIDECAR} partitions, 50 records a second. The code of libraries",
        "is in memory once for all gateways of a machine.",
        f"Idle: of {IDLE}, each with one to the broker. Partition: of {SESSION:,}, by tracemalloc.",
        f"Growth: the last two thirds of {FLAT * stage.seconds:.0f} s; see --seconds for a longer watch.",
    ]
    return [FigureTable("Resident memory", resident, notes)]


def _with_one_client(stage: BenchStage, proxy: Proxy) -> tuple[float, float]:
    """Return the resident memory of a proxy with one client, and the part that is in no file, in MB."""
    with ExitStack() as stack:
        topic = stack.enter_context(stage.topic(SIDECAR))
        command = ["tools.bench.load", "produce", stage.broker.address, topic, f"--partitions={SIDECAR}"]
        stack.enter_context(Load(*command, "--rate=50")).ready()
        stack.enter_context(consumer(proxy.address, topic, SIDECAR)).ready()
        time.sleep(stage.seconds)
        return proxy.meter.resident / 1e6, proxy.meter.own / 1e6


def _after_drain(proxy: Proxy, topic: str, records: int) -> float:
    with bulk.drain(proxy.address, topic, records, "--stay") as load:
        load.ready().result()
        time.sleep(SETTLE_SECONDS)
        return proxy.meter.resident / 1e6


def _idle(proxy: Proxy, topic_id: str) -> float:
    with clients(proxy.address, topic_id, 1) as load:
        load.ready()  # what the first connection brings is for all
    time.sleep(SETTLE_SECONDS)
    before = proxy.meter.resident
    with clients(proxy.address, topic_id, IDLE) as load:
        load.ready()
        time.sleep(SETTLE_SECONDS)
        return (proxy.meter.resident - before) / 1024 / IDLE


def _growth(stage: BenchStage, gateway: Proxy, topic_id: str) -> float:
    """Return the MB by which memory grows under full load, from the first of `FLAT` windows on."""
    seconds = FLAT * stage.seconds
    with ExitStack() as stack:
        topic = stack.enter_context(stage.topic(100))
        command = ["tools.bench.load", "produce", stage.broker.address, topic, "--partitions=100"]
        stack.enter_context(Load(*command, "--rate=500")).ready()
        stack.enter_context(consumer(gateway.address, topic, 100)).ready()
        stack.enter_context(clients(gateway.address, topic_id, BUSY)).ready().go()
        time.sleep(seconds / FLAT)
        first = gateway.meter.resident
        time.sleep(seconds - seconds / FLAT)
        return (gateway.meter.resident - first) / 1e6
