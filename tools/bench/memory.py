"""Resident memory of the gateway, and the cost of many connections that do little.

The connections fetch from a real broker. Their clients are one process without a Kafka library.
"""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

from tools.bench import bulk
from tools.bench.figures import GATEWAY, Row, Table
from tools.bench.micro import partition_bytes
from tools.bench.processes import Load, Proxy
from tools.bench.stage import Stage
from tools.bench.wire import consumer
from tools.kafka.admin import Admin

IDLE: Final = 200
BUSY: Final = 500
WAIT_MS: Final = 500
DRAINED: Final = 250_000
QUICK_DRAINED: Final = 50_000
"""Records of 1 KB that one client has read before its gateway is measured."""
SESSION: Final = 10_000
"""Partitions in the session whose bytes are measured."""
SETTLE_SECONDS: Final = 3.0
FLAT: Final = 3
"""Growth is measured over so many windows."""
RESIDENT_LIMIT, CONNECTION_LIMIT, PARTITION_LIMIT, CPU_LIMIT = 60.0, 20.0, 150.0, 4.0
"""Most MB with one client, KB for a connection, bytes for a partition, percent of a core."""
GROWTH_LIMIT: Final = 2.0
"""Most MB of growth in the last two thirds of these windows."""

Values = dict[str, float]


def run(stage: Stage) -> list[Table]:
    """Measure the floor, then the gateway."""
    with ExitStack() as stack:
        quiet = stack.enter_context(stage.topic(1, name="quiet"))
        drained = stack.enter_context(stage.topic(bulk.PARTITIONS))
        records = QUICK_DRAINED if stage.quick else DRAINED
        bulk.fill(stage, drained, records)
        with Admin(stage.broker.address) as admin:
            topic_id = admin.topic_id(quiet).hex
        stage.report(f"memory: {IDLE} idle connections, one client that drains ...")
        with stage.floor() as floor, stage.gateway() as gateway:  # new ones: they have no free memory yet
            idle = {"floor": _idle(floor, topic_id), GATEWAY: _idle(gateway, topic_id)}
        proxies = {"floor": stack.enter_context(stage.floor()), GATEWAY: stack.enter_context(stage.gateway())}
        time.sleep(SETTLE_SECONDS)
        start = {name: proxy.meter.resident / 1e6 for name, proxy in proxies.items()}
        after = {name: _after_drain(proxy, drained, records) for name, proxy in proxies.items()}
        stage.report(f"memory: {BUSY} connections that fetch ...")
        busy = {name: _busy(proxy, topic_id, stage.seconds) for name, proxy in proxies.items()}
        stage.report(f"memory: growth in {FLAT * stage.seconds:.0f} s ...")
        grown = _growth(stage, proxies[GATEWAY], topic_id)
    resident = [
        Row(name="at start", unit="MB", values=start),
        Row(name="one client, after drains", unit="MB", values=after, limit=RESIDENT_LIMIT),
        Row(name="an idle connection", unit="KB", values=idle, limit=CONNECTION_LIMIT),
        Row(
            name="a partition in a session",
            unit="bytes",
            values={GATEWAY: partition_bytes(SESSION)},
            limit=PARTITION_LIMIT,
        ),
        Row(name="growth under traffic", unit="MB", values={GATEWAY: grown}, limit=GROWTH_LIMIT),
    ]
    notes = [
        f"Idle: of {IDLE}, each with one to the broker. Partition: of {SESSION:,}, by tracemalloc.",
        f"Growth: the last two thirds of {FLAT * stage.seconds:.0f} s; see --seconds for a longer watch.",
    ]
    return [Table(part="memory", title="Resident memory", rows=resident, notes=notes), _connections(busy)]


def _connections(busy: Mapping[str, tuple[float, float]]) -> Table:
    rows = [
        Row(name="fetches", unit="1/s", values={name: rate for name, (rate, _) in busy.items()}),
        Row(
            name="CPU",
            unit="% of a core",
            values={name: cpu for name, (_, cpu) in busy.items()},
            limit=CPU_LIMIT,
        ),
    ]
    notes = ["A real broker and one process of raw clients; the broker responds after max_wait_ms, 500."]
    return Table(part="memory", title=f"{BUSY} connections of one partition", rows=rows, notes=notes)


def _after_drain(proxy: Proxy, topic: str, records: int) -> float:
    with bulk.drain(proxy.address, topic, records, "--stay") as load:
        load.ready().result()
        time.sleep(SETTLE_SECONDS)
        return proxy.meter.resident / 1e6


def _clients(address: str, topic_id: str, count: int) -> Load:
    return Load("tools.bench.connections", address, topic_id, str(count), str(WAIT_MS))


def _idle(proxy: Proxy, topic_id: str) -> float:
    """Return KB for each of many connections that send nothing."""
    time.sleep(SETTLE_SECONDS)
    before = proxy.meter.resident
    with _clients(proxy.address, topic_id, IDLE) as load:
        load.ready()
        time.sleep(SETTLE_SECONDS)
        return (proxy.meter.resident - before) / 1024 / IDLE


def _busy(proxy: Proxy, topic_id: str, seconds: float) -> tuple[float, float]:
    """Return fetches a second, and the CPU for them in percent of a core."""
    with _clients(proxy.address, topic_id, BUSY) as load:
        load.ready().go()
        began = time.monotonic()
        time.sleep(SETTLE_SECONDS)
        before, since = proxy.meter.cpu, time.monotonic()
        time.sleep(seconds)
        spent = 100 * (proxy.meter.cpu - before) / (time.monotonic() - since)
        responses = load.finish()["responses"]
        return responses / (time.monotonic() - began), spent


def _growth(stage: Stage, gateway: Proxy, topic_id: str) -> float:
    """Return by how many MB the gateway grows while all its clients are busy."""
    seconds = FLAT * stage.seconds
    with ExitStack() as stack:
        topic = stack.enter_context(stage.topic(100))
        command = ["tools.bench.load", "produce", stage.broker.address, topic, "--partitions=100"]
        stack.enter_context(Load(*command, "--rate=500")).ready()
        stack.enter_context(consumer(gateway.address, topic, 100)).ready()
        stack.enter_context(_clients(gateway.address, topic_id, BUSY)).ready().go()
        time.sleep(seconds / FLAT)
        first = gateway.meter.resident
        time.sleep(seconds - seconds / FLAT)
        return (gateway.meter.resident - first) / 1e6
