"""Measures the proxy's CPU per GB and its throughput, with records of 1 KB in responses of 1 MB."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from tools.bench.figures import DIRECT, FLOOR, FigureRow, FigureTable
from tools.bench.processes import Load, Proxy
from tools.bench.stage import BenchStage
from tools.bench.windows import Rounds, beside, medians, turned, without

PARTITIONS: Final = 12
RECORD_BYTES: Final = 1024
RESPONSE_BYTES: Final = 1_048_576
GIGABYTES: Final = 2.0
QUICK_GIGABYTES: Final = 0.25
CPU_LIMIT, PACE_LIMIT = 1.05, 0.95
"""The limits relative to a proxy that only forwards bytes: the most CPU, the least throughput."""
RESIDENT_LIMIT: Final = 60.0


@dataclass(frozen=True, slots=True)
class Drained:
    """The result of reading a topic once through one route."""

    cpu: float
    """The proxy's CPU time for a GB of records, in seconds. 0 without a proxy."""
    pace: float


def run(stage: BenchStage) -> list[FigureTable]:
    """Fill a topic, then read it through each route in turn."""
    gigabytes = QUICK_GIGABYTES if stage.quick else GIGABYTES
    records = round(gigabytes * 1e9 / RECORD_BYTES)
    rounds = stage.rounds(quick=1, usual=5, long=10)
    with ExitStack() as stack:
        topic = stack.enter_context(stage.topic(PARTITIONS))
        stage.report(f"bulk: producing {gigabytes:g} GB ...")
        fill_at(stage.broker.address, topic, records)
        proxies = stage.peers(stack)
        found: dict[str, list[Drained]] = {name: [] for name in (DIRECT, *proxies)}
        _drained(stage, topic, records, None)  # the broker warms up
        before = {name: proxy.meter.times for name, proxy in proxies.items()}
        for number in range(rounds):
            stage.report(f"bulk: draining by {', '.join(found)}, round {number + 1} of {rounds} ...")
            for name in turned(list(found), number):
                found[name].append(_drained(stage, topic, records, proxies.get(name)))
        kernel = {name: proxy.meter.times.kernel_since(before[name]) for name, proxy in proxies.items()}
        resident = {name: proxy.meter.resident / 1e6 for name, proxy in proxies.items()}
    return [_table(found, kernel, resident, gigabytes)]


def fill_at(address: str, topic: str, records: int) -> None:
    """Produce records of 1 KB to all partitions of a topic."""
    command = ["tools.bench.load", "fill", address, topic, f"--records={records}"]
    with Load(*command, f"--partitions={PARTITIONS}", f"--bytes={RECORD_BYTES}") as load:
        load.ready().result()


def drain(address: str, topic: str, records: int, *options: str) -> Load:
    """Start a consumer that reads a topic from its start."""
    command = ["tools.bench.load", "drain", address, topic, f"--records={records}"]
    return Load(*command, f"--partitions={PARTITIONS}", *options)


def drained(address: str, topic: str, records: int, proxy: Proxy | None, *options: str) -> Drained:
    """Read a topic from its start. The CPU of `proxy` is measured, if there is one."""
    before = proxy.meter.cpu if proxy is not None else 0.0
    with drain(address, topic, records, *options) as load:
        result = load.ready().result()
    spent = proxy.meter.cpu - before if proxy is not None else 0.0
    return Drained(spent / (result["bytes"] / 1e9), result["bytes"] / 1e6 / result["seconds"])


def _drained(stage: BenchStage, topic: str, records: int, proxy: Proxy | None) -> Drained:
    address = stage.broker.address if proxy is None else proxy.address
    return drained(address, topic, records, proxy, f"--set=fetch.max.bytes={RESPONSE_BYTES}")


def _table(
    rounds: Rounds[Drained], kernel: Mapping[str, float], resident: Mapping[str, float], gigabytes: float
) -> FigureTable:
    rows = [
        FigureRow(
            "CPU of the proxy",
            "s/GB",
            without(medians(rounds, "cpu"), DIRECT),
        ),
        FigureRow("of it in the kernel", "%", kernel),
        FigureRow(
            "CPU in the floor's",
            "times",
            without(beside(rounds, FLOOR, "cpu"), DIRECT),
            limit=CPU_LIMIT,
        ),
        FigureRow("throughput", "MB/s", medians(rounds, "pace")),
        FigureRow(
            "throughput in the floor's", "times", beside(rounds, FLOOR, "pace"), limit=PACE_LIMIT, least=True
        ),
        FigureRow("resident afterwards", "MB", resident, limit=RESIDENT_LIMIT),
    ]
    title = f"Bulk: {gigabytes:g} GB of 1 KB records, {PARTITIONS} partitions, one confluent-kafka consumer"
    notes = [
        f"Medians of {len(rounds[FLOOR])} rounds; ratios within a round; CPU user and system.",
        "Responses of 1 MB: fetch.max.bytes.",
    ]
    return FigureTable(title, rows, notes)
