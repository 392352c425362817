"""Compares a cooperative group of four consumers of one partition with other ways to consume the partition.

The other ways are a single consumer, Confluent's parallel-consumer (four threads of one process, in order by
key), and a share group (KIP-932) of four Java consumers. Each way reads the same records from the same
broker, one way after another.
"""

import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Final, TypeAlias

import numpy as np

from tools.bench.figures import FOUR_MEMBERS, ONE_MEMBER, PARALLEL, SHARE, FigureRow, FigureTable
from tools.bench.member_latency import latency
from tools.bench.processes import Load
from tools.bench.stage import BenchStage
from tools.bench.windows import turned
from tools.kafka import LATEST
from tools.kafka.jars import fetch, fetch_as
from tools.kafka.java import java
from tools.work_log import handled, rate, records, rewound
from tools.worker import LoggedWorker, group_member, wait_steady

CONSUMERS: Final = 4
KEYS: Final = 5_000
BYTES: Final = 200
WORK_MS: Final = 1
TIMES: Final = 3.8
"""With work for each record, four members must process at least `TIMES` times the records of one member."""
SHARE_OF_WINDOW, LEAST_SECONDS = 0.5, 4.0
"""The length of windows as a share of the usual length, and their minimum length in seconds."""
IDLE_RATE: Final = 150_000
"""The number of records to produce for each second of a window, if consumers do no work on records."""
BUSY_RATE: Final = 4_500
"""The number of records to produce for each second of a window, if consumers work on each record.

This is more than four consumers can process, so that some records are left when one of them is killed.
"""
WARM_UP: Final = 5.0
"""The time at the start of a Java consumer that is not counted, in seconds. In this time the Java runtime
compiles hot code."""
BATCH: Final = (f"--set=batch.size={16 << 10}", "--set=linger.ms=5")
"""The default batch settings of the Java producer. They matter, because a share group gives a whole batch to
one consumer."""
NEARLY_ALL: Final = 0.95
"""The measured window ends at the latest when this share of the records is processed. So no consumer is idle
at its end."""
STEADY_SECONDS, JOIN_SECONDS = 2.0, 60.0
"""A group counts as stable if its last rebalance was at least `STEADY_SECONDS` ago. `JOIN_SECONDS` is the
time limit for this."""
BEGIN_SECONDS: Final = 20.0
"""The time limit for a consumer to receive its first record, in seconds."""
MISSED_SECONDS: Final = 60.0
"""After a kill, the remaining records count as lost if no record is processed for this time, in seconds.

A share group needs up to 30 seconds until it delivers records again.
"""
PARALLEL_CONSUMER: Final = "0.5.3.2"
PARALLEL_JARS: Final = (
    f"io.confluent.parallelconsumer:parallel-consumer-core:{PARALLEL_CONSUMER}",
    "org.slf4j:slf4j-simple:2.0.13",
)
JVM: Final = ("-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
_SOURCES: Final = Path(__file__).with_name("java")
_groups = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecords:
    """A topic, the number of its records, and the time to process each record in ms (`work_ms`)."""

    name: str
    records: int
    work_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """The results after a consumer was killed."""

    disordered: int
    """The number of records that were processed in the wrong order of their key: after a later record of the
    key, or at the same time as another record of the key."""
    again: int
    lost: int
    seconds: float
    """The time from the kill of a member to the last record, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The results of one measured window of one group."""

    rate: float
    """The number of records that the group processed per second."""
    disordered: int
    cpu: float
    """The CPU time of the gateway, in percent of one core. The gateway is idle if the group uses none."""
    killed: Killed | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPlace:
    """The settings of a consumer: the addresses, the topic, the group, and the folder for its log."""

    broker: str
    gateway: str
    topic: TopicRecords
    group: str
    folder: Path

    @property
    def entries(self) -> int:
        """The maximum number of entries in a consumer's log. Some records may be processed twice."""
        return 2 * self.topic.records + 1_000


Start: TypeAlias = Callable[[ConsumerPlace, int], LoggedWorker]
"""A function that makes the consumer with a given number. The consumer is not started yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKind:
    """A kind of consumer group: a way in which consumers share the partition."""

    consumers: int
    start: Start
    alone: bool = False
    """Whether there is only one consumer, so that no other consumer continues after a kill."""
    warm_up: float = 0.0
    """The time at the start that is not counted, in seconds. If it is 0, the consumers begin only when all of
    them are ready."""


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure all kinds of consumer groups in turn: first with work for each record, then without work.

    Then measure the latency of a member of a cooperative group.
    """
    seconds = max(SHARE_OF_WINDOW * stage.seconds, LEAST_SECONDS)
    rounds = stage.rounds(quick=1, usual=2, long=3)
    ran: defaultdict[tuple[int, str], list[Ran]] = defaultdict(list)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fetchgate-")))
        kinds, missing = _kinds(folder)
        for work_ms, each_second in ((WORK_MS, BUSY_RATE), (0, IDLE_RATE)):
            name = stack.enter_context(stage.topic(1))
            topic = TopicRecords(name=name, records=round((seconds + WARM_UP) * each_second), work_ms=work_ms)
            stage.report(f"cooperative: writing {topic.records:,} records with {KEYS:,} keys ...")
            _fill(stage, topic)
            for number in range(rounds):
                for kind in turned(list(kinds), number):
                    stage.report(
                        f"cooperative: {work_ms} ms of work, {kind}, round {number + 1} of {rounds} ..."
                    )
                    ran[work_ms, kind].append(_ran(stage, topic, kinds[kind], seconds, folder))
    return [table(ran, list(kinds), seconds=seconds, rounds=rounds, missing=missing), latency(stage)]


def _kinds(folder: Path) -> tuple[dict[str, GroupKind], list[str]]:
    """Return the kinds of consumer groups by column, and the reason for each kind that can't run here."""
    own = {
        ONE_MEMBER: GroupKind(consumers=1, start=_member, alone=True),
        FOUR_MEMBERS: GroupKind(consumers=CONSUMERS, start=_member),
    }
    compiler = shutil.which("javac")
    if compiler is None:
        return own, ["No Java compiler (javac) on this machine: the Java consumers were not run."]
    jars = fetch_as(f"parallel-consumer-{PARALLEL_CONSUMER}", PARALLEL_JARS)
    parallel = _compiled(compiler, folder, jars, "ParallelWork")
    share = _compiled(compiler, folder, fetch(LATEST), "ShareWork")
    return own | {
        PARALLEL: GroupKind(
            consumers=1,
            start=lambda place, number: _java(place, parallel, number, threads=CONSUMERS),
            warm_up=WARM_UP,
        ),
        SHARE: GroupKind(
            consumers=CONSUMERS, start=lambda place, number: _java(place, share, number), warm_up=WARM_UP
        ),
    }, []


def _compiled(compiler: str, folder: Path, jars: Path, name: str) -> list[str]:
    """Compile a Java program, and return the command line that runs it."""
    classes = folder / name
    sources = [str(_SOURCES / f"{each}.java") for each in ("WorkLog", name)]
    subprocess.run(
        [compiler, "--release", "17", "-cp", f"{jars}/*", "-d", str(classes), *sources], check=True
    )
    return [str(java()), *JVM, "-cp", f"{classes}:{jars}/*", name]


def _member(place: ConsumerPlace, number: int) -> LoggedWorker:
    return group_member(
        place.gateway,
        place.topic.name,
        place.group,
        number,
        place.folder,
        work_ms=place.topic.work_ms,
        gate=True,
        entries=place.entries,
    )


def _java(place: ConsumerPlace, program: Sequence[str], number: int, *, threads: int = 0) -> LoggedWorker:
    command = [*program, place.broker, place.topic.name, place.group, *([str(threads)] if threads else [])]
    options = (str(place.topic.work_ms), str(place.entries))
    return LoggedWorker(command, place.folder / f"{place.group}.{number}", *options)


def _fill(stage: BenchStage, topic: TopicRecords) -> None:
    size = [f"--records={topic.records}", f"--bytes={BYTES}", f"--keys={KEYS}", *BATCH]
    with Load("tools.bench.load", "fill", stage.broker.address, topic.name, *size) as load:
        load.ready().result()


def _ran(stage: BenchStage, topic: TopicRecords, kind: GroupKind, seconds: float, folder: Path) -> Ran:
    """Let a group consume a topic for some seconds. Return the results.

    If the consumers work on each record, one of them is then killed, and the other consumers process the
    rest.
    """
    group = f"billing-{next(_groups)}"
    with ExitStack() as stack:
        gateway = stack.enter_context(stage.gateway("--cooperative", group)).ready()
        place = ConsumerPlace(
            broker=stage.broker.address, gateway=gateway.address, topic=topic, group=group, folder=folder
        )
        workers = [stack.enter_context(kind.start(place, number)) for number in range(kind.consumers)]
        if not kind.warm_up:
            wait_steady(workers, STEADY_SECONDS, at_most=JOIN_SECONDS)
            for worker in workers:
                worker.go()
        _begin(workers)
        time.sleep(kind.warm_up)
        before, at = gateway.meter.cpu, time.monotonic()
        time.sleep(seconds)
        cpu = 100 * (gateway.meter.cpu - before) / (time.monotonic() - at)
        killed = None
        if topic.work_ms and not kind.alone:
            killed = _kill(stack, workers, kind, place)
        logs = [records(worker.entries) for worker in workers]
    for log in folder.glob(f"{group}.*"):
        log.unlink()
    logs = [log for log in logs if len(log)]
    first = max(int(log["began"][0]) for log in logs[: kind.consumers]) + round(kind.warm_up * 1e9)
    ended = np.sort(np.concatenate([log["ended"] for log in logs]))
    nearly = int(ended[min(int(NEARLY_ALL * topic.records), len(ended) - 1)])
    found = handled(logs)
    return Ran(
        rate=rate(logs, first, min(first + round(seconds * 1e9), nearly)),
        disordered=found.disordered + found.together,
        cpu=cpu,
        killed=killed,
    )


def _begin(workers: Sequence[LoggedWorker]) -> None:
    """Wait until each consumer has received its first record, at most for `BEGIN_SECONDS`."""
    deadline = time.monotonic() + BEGIN_SECONDS
    while not all(worker.done for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.2)


def _kill(stack: ExitStack, workers: list[LoggedWorker], kind: GroupKind, place: ConsumerPlace) -> Killed:
    """Kill the consumer that has processed the most records. Return what happened after the kill.

    A group of one process gets a new process at once. The function waits until all records are processed, or
    until no record is processed for `MISSED_SECONDS`.
    """
    busiest = max(workers, key=lambda worker: worker.done)
    at = busiest.kill()
    if kind.consumers == 1:
        workers.append(stack.enter_context(kind.start(place, 1)))
    done, since = -1, time.monotonic()
    while done < place.topic.records and time.monotonic() - since < MISSED_SECONDS:
        time.sleep(0.5)
        now = handled([worker.entries for worker in workers]).records
        if now > done:
            done, since = now, time.monotonic()
    logs = [records(worker.entries) for worker in workers]
    found = handled(logs)
    last = max(int(log["ended"].max()) for log in logs if len(log))
    return Killed(
        disordered=found.disordered + found.together + sum(map(rewound, logs)),
        again=len(found.again),
        lost=place.topic.records - found.records,
        seconds=(last - at) / 1e9,
    )


def table(
    ran: Mapping[tuple[int, str], Sequence[Ran]],
    kinds: Sequence[str],
    *,
    seconds: float,
    rounds: int,
    missing: Sequence[str],
) -> FigureTable:
    """Make the table of all groups.

    Args:
        ran: the results of all windows, by ms of work for each record and kind of group.
        kinds: the kinds of groups that ran.
        seconds: the length of a window in seconds.
        rounds: the number of windows of each kind.
        missing: the reasons for the kinds that could not run.
    """
    rows = []
    for work_ms in (WORK_MS, 0):
        of = {kind: ran[work_ms, kind] for kind in kinds}
        what = f"{work_ms} ms of work"
        rows += [
            FigureRow(name=what, unit="records/s", values=_medians(of, lambda each: each.rate)),
            FigureRow(
                name=f"{what}, beside 1 member",
                unit="times",
                values=_beside(of, ONE_MEMBER),
                limit=TIMES if work_ms else None,
                least=True,
            ),
        ]
        if PARALLEL in of:
            values = {FOUR_MEMBERS: _beside(of, PARALLEL)[FOUR_MEMBERS]}
            rows.append(
                FigureRow(
                    name=f"{what}, beside parallel-consumer",
                    unit="times",
                    values=values,
                    limit=1.0,
                    least=True,
                )
            )
        own = {kind: each for kind, each in of.items() if kind in {ONE_MEMBER, FOUR_MEMBERS}}
        rows += [
            FigureRow(
                name=f"{what}, CPU of the gateway",
                unit="% of a core",
                values=_medians(own, lambda each: each.cpu),
            ),
            FigureRow(
                name=f"{what}, out of order by key",
                unit="records",
                values={kind: max(each.disordered for each in found) for kind, found in of.items()},
                limit=0,
            ),
        ]
    kills = {kind: [each.killed for each in ran[WORK_MS, kind] if each.killed] for kind in kinds}
    for name, unit, of_kill, limit in _OF_A_KILL:
        values = {kind: max(map(of_kill, found)) for kind, found in kills.items() if found}
        rows.append(FigureRow(name=f"one is killed: {name}", unit=unit, values=values, limit=limit))
    notes = [
        f"Medians of {rounds} rounds of {seconds:g} s; of a kill the worst.",
        f"One partition, records of {BYTES} bytes in batches of 16 kB, {KEYS:,} keys by chance.",
        "Rates are counted while all consumers of a group have records, so without their start;",
        f"of those in Java after {WARM_UP:g} s more.",
        "Members: confluent-kafka, a process each, through the gateway; with work, one record at a time.",
        "Members and parallel-consumer commit every 0.5 s.",
        f"parallel-consumer {PARALLEL_CONSUMER}: KEY order, {CONSUMERS} threads, initialLoadFactor 100.",
        "After a kill it is started again.",
        f"Share group: Java consumers {LATEST}, a process each, with their defaults.",
        *missing,
    ]
    return FigureTable(part="cooperative", title="Four consumers on one partition", rows=rows, notes=notes)


_OF_A_KILL: Final[tuple[tuple[str, str, Callable[[Killed], float], float | None], ...]] = (
    ("lost", "records", lambda each: each.lost, 0),
    ("out of order by key", "records", lambda each: each.disordered, 0),
    ("seen again", "records", lambda each: each.again, None),
    ("until all were done", "s", lambda each: each.seconds, None),
)


def _medians(of: Mapping[str, Sequence[Ran]], what: Callable[[Ran], float]) -> dict[str, float]:
    return {kind: median(map(what, found)) for kind, found in of.items()}


def _beside(of: Mapping[str, Sequence[Ran]], other: str) -> dict[str, float]:
    """Return the rate of each kind of group, divided by the rate of the kind `other`.

    Rates of the same round are compared. The result is the median of all rounds.
    """
    return {
        kind: median(own.rate / its.rate for own, its in zip(found, of[other], strict=True))
        for kind, found in of.items()
        if kind != other
    }
