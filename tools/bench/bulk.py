"""A topic of 1 KB records drained by confluent-kafka: CPU of each proxy by GB, and how fast it goes.

Rounds of all routes follow each other; each figure is the median of its rounds.
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
"""The gateway's CPU seconds at most, and its throughput at least, in the floor's."""
RESIDENT_LIMIT: Final = 60.0
"""Megabytes with one client, after drains."""


@dataclass(frozen=True, slots=True)
class Drained:
    """One round of one route."""

    cpu: float
    """CPU seconds of the proxy for each GB of records; 0 without a proxy."""
    pace: float
    """MB of records a second."""


def run(stage: Stage) -> list[Table]:
    """Fill a topic, then drain it by every route in turn."""
    gigabytes = QUICK_GIGABYTES if stage.quick else GIGABYTES
    records = round(gigabytes * 1e9 / RECORD_BYTES)
    with ExitStack() as stack:
        topic = stack.enter_context(stage.topic(PARTITIONS))
        stage.say(f"bulk: producing {gigabytes:g} GB ...")
        fill(stage, topic, records)
        proxies = _proxies(stage, stack)
        rounds: dict[str, list[Drained]] = {name: [] for name in ("direct", *proxies)}
        for number in range(1 if stage.quick else ROUNDS):
            stage.say(f"bulk: draining by {', '.join(rounds)}, round {number + 1} ...")
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
    """Start a consumer that drains a topic."""
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
        told = load.ready().result()
    spent = proxy.meter.cpu - before if proxy is not None else 0.0
    return Drained(spent / (told["bytes"] / 1e9), told["bytes"] / 1e6 / told["seconds"])


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
