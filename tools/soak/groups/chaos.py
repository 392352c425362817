"""A run of groups of members, which are killed, stopped and replaced, as gateways are. Its end is calm."""

import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition

from tools.kafka.admin import Admin
from tools.soak.groups.gateways import IN_FLIGHT_SECONDS, UP_SECONDS, GatewayFaults, GroupGateways
from tools.soak.groups.history import Did, MemberLife, read
from tools.soak.groups.judge import PROBLEMS, GroupsVerdict, judge
from tools.soak.groups.sharing import Handled, Sharing, sharing
from tools.soak.log import records

SESSION_MS: Final = 2_000
STOPPED_SECONDS: Final = (2.6, 4.0)
"""How long a member is stopped in seconds: minimum and maximum. The member's session expires in this time."""
PAUSE_SECONDS: Final = 2.0
KEYS: Final = 60
RATE: Final = 60.0
SAY_SECONDS: Final = 10.0
STUCK_SECONDS: Final = 90.0
"""The time limit between two processed records, in seconds. It applies from the end of the disturbances until
all records are processed. Within it, each group must share its partitions once there are no disturbances."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class MemberKind:
    """The kind of a group's members."""

    members: int
    partitions: int
    strategy: str = "range"
    static: bool = False


KINDS: Final = (
    MemberKind(3, 1),
    MemberKind(4, 2),
    MemberKind(3, 1, "cooperative-sticky"),
    MemberKind(3, 1, static=True),
    MemberKind(2, 1),
    MemberKind(3, 2, "cooperative-sticky"),
)


@dataclass(slots=True)
class GroupsOutcome:
    """The result of a run."""

    verdict: GroupsVerdict
    done: Counter[str]
    errors: Counter[str]
    seconds: float = 0.0
    gateways: int = 1
    sharing: dict[str, Sharing] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        """The problems, in words."""
        return self.verdict.problems

    @property
    def unshared(self) -> list[str]:
        """The groups that shared too little of the whole run; with several gateways: across gateways."""
        return [
            f"{name} did not share: {found}"
            for name, found in self.sharing.items()
            if not found.shares(self.gateways)
        ]


@dataclass(slots=True)
class _ChaosSlot:
    """A slot for a member in a group."""

    name: str
    gateway: int
    number: int = 0
    process: subprocess.Popen[bytes] | None = None
    life: MemberLife | None = None
    path: Path = Path()


class GroupMembers:
    """The members of a group, whose topic has the same name. `done` counts the disturbances."""

    def __init__(
        self,
        name: str,
        kind: MemberKind,
        gateways: GroupGateways,
        folder: Path,
        seed: int,
        done: Counter[str],
    ) -> None:
        self.name, self.kind = name, kind
        self._gateways, self._folder, self._done = gateways, folder, done
        self._random = random.Random(seed)  # noqa: S311 - not a secret
        self._slots = [_ChaosSlot(f"{name}.{number}", gateways.of(number)) for number in range(kind.members)]
        self._paths: list[tuple[MemberLife, Path]] = []
        self._processed: set[tuple[int, int]] = set()
        self._read: dict[Path, int] = {}
        """How many bytes of each process's output have been read."""
        self._asks = Consumer({"bootstrap.servers": gateways.broker.address, "group.id": f"{name}-reader"})

    def close(self) -> None:
        """Kill all members."""
        for slot in self._slots:
            if slot.process is not None:
                slot.process.kill()
                slot.process.wait()
        self._asks.close()

    def disturb(self, kills: int, ended: threading.Event) -> None:
        """Kill members until `kills` are done or `ended` is set, with other disturbances in between."""
        chance = self._random
        while kills and not ended.wait(chance.expovariate(1 / PAUSE_SECONDS)):
            slot = chance.choice(self._slots)
            what = chance.random()
            if what < 0.6:
                kills -= self._kill(slot)
            elif what < 0.72:
                self._leave(slot)
            elif what < 0.8:
                self._join(slot)
            elif what < 0.9:
                self._stop(slot, ended)
            else:
                self._both(slot)

    def settle(self) -> None:
        """Start all members that are not running."""
        for slot in self._slots:
            if slot.process is None or slot.process.poll() is not None:
                self._start(slot)

    def shares(self, since: float) -> bool:
        """Whether members shared a partition since a monotonic time: across gateways, if there are any."""
        found = sharing(
            each
            for slot in self._slots
            if slot.life is not None
            for each in _handled(slot.life, read(slot.path.read_text().splitlines())[0])
            if each.at > since
        )
        return bool(found.across if len(self._gateways.processes) > 1 else found.within)

    def leave(self) -> None:
        """End all members gracefully."""
        for slot in self._slots:
            self._end(slot)

    def lives(self) -> list[MemberLife]:
        """Return the actions of all processes so far."""
        for life, path in self._paths:
            life.did, life.errors = read(path.read_text().splitlines())
        return [life for life, _ in self._paths]

    def log(self) -> dict[tuple[int, int], str]:
        """Return the key of each record of the topic, by partition and offset."""
        found: dict[tuple[int, int], str] = {}
        places = [(self.name, number) for number in range(self.kind.partitions)]
        for (_, partition), offset, message in records(self._gateways.broker.address, places):
            key = message.key()
            found[partition, offset] = key.decode() if isinstance(key, bytes) else ""
        return found

    def processed(self) -> int:
        """Return the number of different records processed."""
        for _, path in self._paths:
            at = self._read.get(path, 0)
            if path.stat().st_size == at:
                continue
            with path.open() as file:
                file.seek(at)
                did, _ = read(file.read().splitlines())
                self._read[path] = file.tell()
            self._processed |= {(each.partition, each.offset) for each in did if each.kind == "record"}
        return len(self._processed)

    def ends(self) -> dict[int, int]:
        """Return the end of each partition's log."""
        found = {}
        for number in range(self.kind.partitions):
            _, found[number] = self._asks.get_watermark_offsets(TopicPartition(self.name, number), timeout=60)
        return found

    def _start(self, slot: _ChaosSlot) -> None:
        slot.number += 1
        slot.life = MemberLife(f"{slot.name}#{slot.number}", gateway=slot.gateway)
        slot.path = self._folder / f"{slot.name}.{slot.number}"
        self._paths.append((slot.life, slot.path))
        command = [sys.executable, "-m", "tools.soak.groups.member"]
        command += ["--bootstrap", self._gateways.address(slot.gateway)]
        command += ["--topic", self.name, "--group", self.name, "--client-id", slot.name]
        command += ["--session-ms", str(SESSION_MS), "--strategy", self.kind.strategy]
        if self.kind.static:
            command += ["--instance", slot.name]
        with slot.path.open("ab") as out, slot.path.with_suffix(".log").open("ab") as log:
            slot.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=log)
        self._done["started"] += 1

    def _kill(self, slot: _ChaosSlot) -> bool:
        """Kill a member, if it runs, and start it again in most cases. Return whether it ran."""
        if slot.process is None or slot.life is None or slot.process.poll() is not None:
            self._start(slot)
            return False
        slot.process.kill()
        slot.process.wait()
        slot.life.killed_at = time.monotonic_ns()
        slot.process = None
        self._done["killed"] += 1
        if self._random.random() < 0.8:
            self._start(slot)
        return True

    def _leave(self, slot: _ChaosSlot) -> None:
        if slot.process is not None:
            self._end(slot)
            self._done["left"] += 1

    def _end(self, slot: _ChaosSlot) -> None:
        if slot.process is None:
            return
        slot.process.terminate()
        try:
            slot.process.wait(40)
        except subprocess.TimeoutExpired:
            self._done["killed, as it did not leave"] += 1
            slot.process.kill()
            slot.process.wait()
            if slot.life is not None:
                slot.life.killed_at = time.monotonic_ns()
        slot.process = None

    def _join(self, slot: _ChaosSlot) -> None:
        if slot.process is None:
            self._start(slot)

    def _both(self, slot: _ChaosSlot) -> None:
        self._leave(slot)
        self._start(slot)

    def _stop(self, slot: _ChaosSlot, ended: threading.Event) -> None:
        if slot.process is None or slot.life is None or slot.process.poll() is not None:
            return
        slot.process.send_signal(signal.SIGSTOP)
        at = time.monotonic_ns()
        self._done["stopped"] += 1
        time.sleep(IN_FLIGHT_SECONDS)
        ends = self.ends()
        ended.wait(self._random.uniform(*STOPPED_SECONDS))
        slot.process.send_signal(signal.SIGCONT)
        slot.life.stopped.append((at, time.monotonic_ns(), ends))


def chaos(
    kills: int,
    groups: int,
    seed: int,
    say: Say,
    *,
    gateways: int = 1,
    members: int = 0,
    up_seconds: tuple[float, float] = UP_SECONDS,
) -> GroupsOutcome:
    """Disturb groups until `kills` members were killed in all, and gateways had each kind of fault."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="groups-")))
        run_id = uuid.uuid4().hex[:6]
        kinds = {f"g{number}-{run_id}": KINDS[number % len(KINDS)] for number in range(groups)}
        if members:
            kinds = {name: replace(kind, members=members) for name, kind in kinds.items()}
        served = stack.enter_context(
            GroupGateways(gateways, list(kinds), {"group.min.session.timeout.ms": 500})
        )
        with Admin(served.broker.address) as admin:
            for name, kind in kinds.items():
                admin.create_topic(name, partitions=kind.partitions)
        outcome = GroupsOutcome(GroupsVerdict(), Counter(), Counter(), gateways=gateways)
        all_members = [
            GroupMembers(name, kind, served, folder, seed * 1000 + number, outcome.done)
            for number, (name, kind) in enumerate(kinds.items())
        ]
        for each in all_members:
            stack.callback(each.close)
        faults = GatewayFaults(
            served, seed, outcome.done, up_seconds, lambda: {each.name: each.ends() for each in all_members}
        )
        _GroupsRun(served, faults, all_members, say, outcome).run(kills)
        return outcome


class _GroupsRun:
    """One run of the soak test for groups."""

    def __init__(
        self,
        gateways: GroupGateways,
        faults: GatewayFaults,
        members: list[GroupMembers],
        say: Say,
        outcome: GroupsOutcome,
    ) -> None:
        self._gateways, self._faults, self._members = gateways, faults, members
        self._say, self._outcome = say, outcome
        self._produced = 0

    def run(self, kills: int) -> None:
        """Run the soak test, and check its results."""
        began = time.monotonic()
        ended, stop_producing = threading.Event(), threading.Event()
        share, more = divmod(kills, len(self._members))
        with ThreadPoolExecutor(len(self._members) + 2) as pool:
            producing = pool.submit(self._produce, stop_producing)
            failing = pool.submit(self._faults.run, ended)
            try:
                for each in self._members:
                    each.settle()
                working = [
                    pool.submit(each.disturb, share + (number < more), ended)
                    for number, each in enumerate(self._members)
                ]
                self._watch(working, failing, kills)
                ended.set()
                for done in [failing, *working]:
                    done.result()
                self._say("no more disturbances; waiting until all groups share ...")
                for each in self._members:
                    each.settle()
                self._share()
            finally:
                ended.set()
                stop_producing.set()
            producing.result()
        self._say("waiting until all is processed ...")
        self._wait()
        for each in self._members:
            each.leave()
        for each in self._members:
            lives = each.lives()
            for life in lives:
                life.stopped += [
                    (cut.began, cut.ended, dict(cut.ends[each.name]))
                    for cut in self._faults.cuts
                    if cut.gateway == life.gateway
                ]
            judge(each.log(), lives, self._faults.down, self._outcome.verdict)
            self._outcome.sharing[each.name] = sharing(
                handled for life in lives for handled in _handled(life, life.did)
            )
            self._outcome.errors.update(error for life in lives for error in life.errors)
        self._outcome.verdict.problems += self._gateways.defects()
        self._outcome.seconds = time.monotonic() - began

    def _watch(self, working: Sequence[Future[None]], failing: Future[None], kills: int) -> None:
        said, done = time.monotonic(), self._outcome.done
        while not failing.done() and not (
            all(each.done() for each in working) and self._faults.had_all.is_set()
        ):
            time.sleep(0.2)
            now = time.monotonic()
            if now - said > SAY_SECONDS:
                said = now
                counts = ", ".join(f"{name} {count}" for name, count in sorted(done.items()))
                self._say(f"{done['killed']} of {kills} kills; {counts}; {self._produced} records produced")

    def _produce(self, ended: threading.Event) -> None:
        producer = Producer(
            {"bootstrap.servers": self._gateways.broker.address, "enable.idempotence": True, "linger.ms": 5}
        )
        chance = random.Random(0)  # noqa: S311 - not a secret
        while not ended.wait(0.05):
            for each in self._members:
                for _ in range(round(RATE * 0.05)):
                    producer.produce(each.name, key=b"k%d" % chance.randrange(KEYS), value=b"v")
                    self._produced += 1
            producer.poll(0)
        producer.flush(60)

    def _share(self) -> None:
        """Wait until each group shares its partitions. Records are produced, and nothing is disturbed."""
        began, waiting = time.monotonic(), list(self._members)
        while waiting and time.monotonic() - began < STUCK_SECONDS:
            time.sleep(1)
            waiting = [each for each in waiting if not each.shares(began)]
        self._outcome.verdict.problems += [
            f"{each.name} shared nothing in the {STUCK_SECONDS:.0f} s after the last disturbance"
            for each in waiting
        ]

    def _wait(self) -> None:
        at, most = time.monotonic(), -1
        while time.monotonic() - at < STUCK_SECONDS:
            some = sum(each.processed() for each in self._members)
            if some > most:
                at, most = time.monotonic(), some
            if some >= self._produced:
                return
            time.sleep(1)


def _handled(life: MemberLife, did: Iterable[Did]) -> Iterator[Handled]:
    return (
        Handled(each.at / 1e9, each.partition, life.name, life.gateway)
        for each in did
        if each.kind == "record"
    )


def summary(outcome: GroupsOutcome) -> list[str]:
    """Return the counts of a run, as lines."""
    counts = outcome.verdict.counts
    shown = [f"{name}: {counts[name]}" for name in PROBLEMS]
    others = [f"{name}: {count}" for name, count in sorted(counts.items()) if name not in PROBLEMS]
    return [
        ", ".join(f"{name} {count}" for name, count in sorted(outcome.done.items())),
        ", ".join(others),
        ", ".join(shown),
        *(f"{name}: {found}" for name, found in outcome.sharing.items()),
        "errors that members were told: "
        + "; ".join(f"{error} ({count})" for error, count in outcome.errors.most_common(12)),
    ]
