"""Compares cooperative groups with a gateway for each member, with one for all, and plain groups."""

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

from proxy.protocol.api import ApiKey
from tools.bench.figures import ONE_EACH, ONE_FOR_ALL, PLAIN_GROUP, FigureRow, FigureTable
from tools.bench.processes import BenchGateway, Load
from tools.bench.stage import BenchStage
from tools.bench.windows import beside, turned
from tools.work_log import COMMITTED, PARTITION_BIT, SUBSCRIBED, Entries, handled, rate, records
from tools.worker import LoggedWorker, group_member, wait_steady

SIZES: Final = (1, 2, 4, 8)
WORK_MS: Final = 1
KEYS: Final = 5_000
BYTES: Final = 200
RATE: Final = 1_000
"""The number of records to produce each second for each member. It is more than a member can process."""
AHEAD: Final = 0.02
"""The producer produces the records of this time at once, in seconds, so that it needs little CPU."""
NEARLY: Final = 0.95
"""The target: a group with a gateway for each member has this share of the rate with one gateway."""
SHARE_OF_WINDOW, LEAST_SECONDS = 0.5, 4.0
ALL_SECONDS: Final = 60.0
"""How long a member runs at most, without its window. It needs more than 1 ms for each record."""
STEADY_SECONDS, JOIN_SECONDS = 2.0, 40.0
"""A group is stable so long after a rebalance, and has to be within `JOIN_SECONDS`."""
MISSED_SECONDS: Final = 30.0
"""After a kill, the remaining records count as lost if no record is processed for this time, in seconds."""
_GATEWAYS: Final[dict[str, Callable[[int], int]]] = {
    PLAIN_GROUP: lambda _: 0,
    ONE_FOR_ALL: lambda _: 1,
    ONE_EACH: lambda members: members,
}
"""How many gateways a group has, by kind and number of members."""
_groups = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """The results after a member was killed."""

    again: int
    lost: int
    still: float
    """The time from the kill until other members processed records of the member's keys, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWindow:
    """The results of one group. Rates are per second."""

    rate: float
    commits: float
    reads: float
    requests: float
    bytes: float
    cpu: float
    """The CPU time of all gateways, in percent of one core."""
    resident: float
    joined: float
    """The time that the last member needed from its subscribe to its first record, in seconds."""
    disordered: int
    needless: int
    kill: Kill | None


Windows: TypeAlias = Mapping[int, Mapping[str, Sequence[GroupWindow]]]


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure groups of all sizes: plain, with one gateway, and with a gateway for each member."""
    seconds = max(SHARE_OF_WINDOW * stage.seconds, LEAST_SECONDS)
    rounds = stage.rounds(quick=1, usual=2, long=3)
    found: dict[int, defaultdict[str, list[GroupWindow]]] = {size: defaultdict(list) for size in SIZES}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fetchgate-")))
        slots = stack.enter_context(stage.topic(max(SIZES), name="slots"))
        for number in range(rounds):
            for size in SIZES:
                for kind in turned([each for each in _GATEWAYS if size > 1 or each != ONE_EACH], number):
                    stage.report(f"sidecars: {size} members, {kind}, round {number + 1} of {rounds} ...")
                    found[size][kind].append(_window(stage, size, kind, seconds, slots, folder))
    return [table(found, seconds=seconds, rounds=rounds)]


def _window(stage: BenchStage, size: int, kind: str, seconds: float, slots: str, folder: Path) -> GroupWindow:
    """Let a group of some members process records for some seconds. Then kill one of several members."""
    group = f"billing-{next(_groups)}"
    with ExitStack() as stack:
        topic = stack.enter_context(stage.topic(size if kind == PLAIN_GROUP else 1))
        wire = stack.enter_context(stage.counting()).ready()
        options = ("--cooperative", group, "--cooperative-slots", slots)
        gateways = [
            stack.enter_context(BenchGateway(wire.address, *options, node_id=stage.broker.node_id))
            for _ in range(_GATEWAYS[kind](size))
        ]
        addresses = [each.ready().address for each in gateways] or [wire.address]
        command = [stage.broker.address, topic, f"--rate={RATE * size}", f"--bytes={BYTES}", f"--keys={KEYS}"]
        command += [f"--partitions={1 if kind != PLAIN_GROUP else size}", f"--ahead={AHEAD}"]
        producer = stack.enter_context(Load("tools.bench.load", "produce", *command)).ready()
        workers = [
            group_member(
                addresses[number % len(addresses)],
                topic,
                group,
                number,
                folder,
                work_ms=WORK_MS,
                entries=round(RATE * (seconds + ALL_SECONDS)),
            )
            for number in range(size)
        ]
        *early, last = workers
        for worker in early:
            stack.enter_context(worker)
        _wait_at_work(early)
        stack.enter_context(last)
        _wait_at_work(workers)
        began, cpu, before = time.monotonic_ns(), _cpu(gateways), wire.passed()
        time.sleep(seconds)
        ended, used, passed = time.monotonic_ns(), _cpu(gateways) - cpu, wire.passed() - before
        resident = sum(each.meter.resident for each in gateways) / 1e6
        killed = max(range(size), key=lambda number: workers[number].done)
        at = workers[killed].kill() if size > 1 else 0
        produced = producer.finish()["produced"]
        _wait_all_done(workers, produced)
        logs = [worker.entries for worker in workers]
    for log in folder.glob(f"{group}.*"):
        log.unlink()
    took, done = (ended - began) / 1e9, handled(logs)
    return GroupWindow(
        rate=rate(logs, began, ended),
        commits=passed.requests[ApiKey.OFFSET_COMMIT] / took,
        reads=passed.requests[ApiKey.OFFSET_FETCH] / took,
        requests=passed.requests.total() / took,
        bytes=passed.from_broker / took,
        cpu=100 * used / took,
        resident=resident,
        joined=_joined(logs[-1]),
        disordered=done.disordered + done.together,
        needless=_needless(logs),
        kill=_kill(logs, killed, (began, at), produced) if at else None,
    )


def _cpu(gateways: Sequence[BenchGateway]) -> float:
    return sum(each.meter.cpu for each in gateways)


def _wait_at_work(workers: Sequence[LoggedWorker]) -> None:
    """Wait until each member has received records, and the group is stable."""
    deadline = time.monotonic() + JOIN_SECONDS
    while not all(worker.done for worker in workers):
        if time.monotonic() > deadline:
            raise RuntimeError(f"a member had no records within {JOIN_SECONDS:.0f} s")
        time.sleep(0.2)
    if workers:
        wait_steady(workers, STEADY_SECONDS, at_most=JOIN_SECONDS)


def _wait_all_done(workers: Sequence[LoggedWorker], produced: int) -> None:
    done, since = -1, time.monotonic()
    while done < produced and time.monotonic() - since < MISSED_SECONDS:
        time.sleep(0.5)
        now = handled([worker.entries for worker in workers]).records
        if now > done:
            done, since = now, time.monotonic()


def _joined(log: Entries) -> float:
    subscribed = int(log["began"][log["key"] == SUBSCRIBED][0])
    return (int(records(log)["began"][0]) - subscribed) / 1e9


def _needless(logs: Sequence[Entries]) -> int:
    """Count the records that came again though their member had committed them."""
    first: dict[int, tuple[int, int]] = {}
    """The member that processed a record first, and when it had ended, by offset."""
    done = [(entry, number) for number, log in enumerate(logs) for entry in records(log).tolist()]
    commits = [log[log["key"] == COMMITTED] for log in logs]
    found = 0
    for (offset, _, began, ended), number in sorted(done, key=lambda each: each[0][2]):
        member, since = first.setdefault(offset, (number, ended))
        if since == ended:
            continue
        own = commits[member]
        own = own[(own["began"] >= since) & (own["began"] < began)]
        of_partition = own["offset"][own["offset"] >> PARTITION_BIT == offset >> PARTITION_BIT]
        found += bool((of_partition > offset).any())
    return found


def _kill(logs: Sequence[Entries], killed: int, window: tuple[int, int], produced: int) -> Kill:
    """Return what happened after a kill. `window`: its begin and the time of the kill (monotonic, ns)."""
    began, at = window
    own = records(logs[killed])
    keys = own["key"][own["began"] > began]
    others = np.concatenate([records(log) for number, log in enumerate(logs) if number != killed])
    taken = others["began"][(others["began"] > at) & np.isin(others["key"], keys)]
    done = handled(logs)
    return Kill(
        again=len(done.again),
        lost=produced - done.records,
        still=(int(taken.min()) - at) / 1e9 if len(taken) else float("inf"),
    )


_FIGURES: Final[tuple[tuple[str, str, Callable[[GroupWindow], float]], ...]] = (
    ("processed", "records/s", lambda each: each.rate),
    ("commits", "requests/s", lambda each: each.commits),
    ("offset reads", "requests/s", lambda each: each.reads),
    ("all requests", "requests/s", lambda each: each.requests),
    ("from the broker", "MB/s", lambda each: each.bytes / 1e6),
    ("CPU of all gateways", "% of a core", lambda each: each.cpu),
    ("memory of all gateways", "MB", lambda each: each.resident),
    ("join to first record", "s", lambda each: each.joined),
)
_WRONG: Final[tuple[tuple[str, Callable[[GroupWindow], float]], ...]] = (
    ("out of order by key", lambda each: each.disordered),
    ("twice though committed", lambda each: each.needless),
)
_OF_A_KILL: Final[tuple[tuple[str, str, Callable[[Kill], float], float | None], ...]] = (
    ("keys stood still", "s", lambda each: each.still, None),
    ("seen again", "records", lambda each: each.again, None),
    ("lost", "records", lambda each: each.lost, 0),
)


def table(found: Windows, *, seconds: float, rounds: int) -> FigureTable:
    """Make the table of all groups."""
    rows = []
    for name, unit, what in _FIGURES:
        for size, of in found.items():
            values = {kind: median(map(what, each)) for kind, each in of.items()}
            rows.append(FigureRow(_named(size, name), unit, values))
    rows[len(found) : len(found)] = [_nearly(size, of) for size, of in found.items() if ONE_EACH in of]
    for name, wrong in _WRONG:
        for size, of in found.items():
            worst = {kind: max(map(wrong, windows)) for kind, windows in of.items()}
            rows.append(FigureRow(_named(size, name), "records", worst, limit=0))
    for name, unit, of_kill, limit in _OF_A_KILL:
        for size, of in found.items():
            kills = {kind: [each.kill for each in windows if each.kill] for kind, windows in of.items()}
            worst_kill = {kind: max(map(of_kill, each)) for kind, each in kills.items() if each}
            if worst_kill:
                named = _named(size, f"a kill: {name}")
                rows.append(FigureRow(named, unit, worst_kill, limit=limit))
    notes = [
        f"Medians of {rounds} rounds of {seconds:g} s; of a kill, and where the target is 0, the worst.",
        f"{RATE:,} records/s of {BYTES} bytes for each member, {KEYS:,} keys, {WORK_MS} ms of work.",
        "Members: confluent-kafka, a process each; they commit every 0.5 s, and take one record at a time.",
        "A plain group is direct at the broker; its topic has a partition for each member. Others have one.",
        "Requests and bytes are counted between the gateways (or members) and the broker.",
        "The last member joins a group at work. A broker misses a killed member after 6 s.",
    ]
    return FigureTable("A gateway beside each member, or one for all", rows, notes, brief=True)


def _nearly(size: int, of: Mapping[str, Sequence[GroupWindow]]) -> FigureRow:
    values = {ONE_EACH: beside(of, ONE_FOR_ALL, "rate")[ONE_EACH]}
    return FigureRow(_named(size, "beside one gateway"), "times", values, limit=NEARLY, least=True)


def _named(size: int, name: str) -> str:
    return f"{size} member{'s' if size > 1 else ''}, {name}"
