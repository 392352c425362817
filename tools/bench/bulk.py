"""Reading a topic of 1 KB records from its start: CPU of each proxy for a GB, and throughput.

A confluent-kafka consumer reads by all routes in turn, several rounds. Each figure is the median of its
rounds.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Final

from tools.bench.figures import GATEWAY, Row, Table
from tools.bench.processes import Load, Proxy
from tools.bench.stage import Stage

PARTITIONS: Final = 12
RECORD_BYTES: Final = 1024
GIGABYTES: Final = 2.0
QUICK_GIGABYTES: Final = 0.25
ROUNDS: Final = 3
CPU_LIMIT, PACE_LIMIT = 1.2, 0.95
"""Limits, relative to the floor: the most CPU, the least throughput."""
RESIDENT_LIMIT: Final = 60.0
"""Most megabytes with one client, after reading."""


@dataclass(frozen=True, slots=True)
class Drained:
    """One round of one route."""

    cpu: float
    """CPU seconds of the proxy for a GB of records; 0 without a proxy."""
    pace: float
    """MB of records a second."""


def run(stage: Stage) -> list[Table]:
    """Fill a topic, then read it by every route in turn."""
    gigabytes = QUICK_GIGABYTES if stage.quick else GIGABYTES
    records = round(gigabytes * 1e9 / RECORD_BYTES)
    with ExitStack() as stack:
        topic = stack.enter_context(stage.topic(PARTITIONS))
        stage.report(f"bulk: producing {gigabytes:g} GB ...")
        fill(stage, topic, records)
        proxies = _proxies(stage, stack)
        rounds: dict[str, list[Drained]] = {name: [] for name in ("direct", *proxies)}
        for number in range(1 if stage.quick else ROUNDS):
            stage.report(f"bulk: draining by {', '.join(rounds)}, round {number + 1} ...")
            for name, drained in rounds.items():
                drained.append(_drain(stage, topic, records, proxies.get(name)))
        resident = {name: proxy.meter.resident / 1e6 for name, proxy in proxies.items()}
    return [_table(rounds, resident, gigabytes)]


def fill(stage: Stage, topic: str, records: int) -> None:
    """Produce records of 1 KB to all partitions of a topic of the stage's broker."""
    fill_at(stage.broker.address, topic, records)


def fill_at(address: str, topic: str, records: int) -> None:
    """Produce records of 1 KB to all partitions of a topic."""
    command = ["tools.bench.load", "fill", address, topic, f"--records={records}"]
    with Load(*command, f"--partitions={PARTITIONS}", f"--bytes={RECORD_BYTES}") as load:
        load.ready().result()


def drain(address: str, topic: str, records: int, *options: str) -> Load:
    """Start a consumer that reads a topic from its start."""
    command = ["tools.bench.load", "drain", address, topic, f"--records={records}"]
    return Load(*command, f"--partitions={PARTITIONS}", *options)


def _proxies(stage: Stage, stack: ExitStack) -> dict[str, Proxy]:
    found = {"floor": stack.enter_context(stage.floor()), GATEWAY: stack.enter_context(stage.gateway())}
    if (haproxy := stage.haproxy()) is not None:
        found["haproxy"] = stack.enter_context(haproxy)
    return found


def _drain(stage: Stage, topic: str, records: int, proxy: Proxy | None) -> Drained:
    before = proxy.meter.cpu if proxy is not None else 0.0
    address = stage.broker.address if proxy is None else proxy.address
    with drain(address, topic, records) as load:
        result = load.ready().result()
    spent = proxy.meter.cpu - before if proxy is not None else 0.0
    return Drained(spent / (result["bytes"] / 1e9), result["bytes"] / 1e6 / result["seconds"])


def _table(rounds: Mapping[str, list[Drained]], resident: Mapping[str, float], gigabytes: float) -> Table:
    cpu = {name: median(each.cpu for each in drained) for name, drained in rounds.items() if name != "direct"}
    pace = {name: median(each.pace for each in drained) for name, drained in rounds.items()}
    times_cpu = {name: value / cpu["floor"] for name, value in cpu.items()}
    times_pace = {name: value / pace["floor"] for name, value in pace.items()}
    rows = [
        Row(name="CPU of the proxy", unit="s/GB", values=cpu),
        Row(name="in the floor's", unit="times", values=times_cpu, limit=CPU_LIMIT),
        Row(name="throughput", unit="MB/s", values=pace),
        Row(name="in the floor's", unit="times", values=times_pace, limit=PACE_LIMIT, least=True),
        Row(name="resident afterwards", unit="MB", values=resident, limit=RESIDENT_LIMIT),
    ]
    title = f"Bulk: {gigabytes:g} GB of 1 KB records, {PARTITIONS} partitions, one confluent-kafka consumer"
    notes = ["Medians of rounds that follow each other; CPU user and system."]
    if "haproxy" not in rounds:
        notes.append("haproxy is not installed here.")
    return Table(part="bulk", title=title, rows=rows, notes=notes)
