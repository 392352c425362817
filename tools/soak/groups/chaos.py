"""The run of the soak test: a broker, a gateway, and groups of members. The end of the run is calm.

Until then, members are killed, stopped and replaced.
"""

import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin
from tools.soak.groups.history import MemberLife, read
from tools.soak.groups.judge import PROBLEMS, GroupsVerdict, judge

SESSION_MS: Final = 2_000
STOPPED_SECONDS: Final = (2.6, 4.0)
"""How long a member is stopped in seconds: minimum and maximum. The member's session expires in this time."""
IN_FLIGHT_SECONDS: Final = 0.5
"""The wait after a member was stopped, in seconds. Then the broker has answered the member's fetch in flight,
so the records of this fetch have reached the stopped member."""
PAUSE_SECONDS: Final = 2.0
"""The pause between two disturbances of one group, on average."""
DOWN_SECONDS: Final = (0.1, 1.5)
UP_SECONDS: Final = (10, 40)
"""The time between two kills of the gateway in seconds: minimum and maximum."""
KEYS: Final = 60
RATE: Final = 60.0
"""Records a second for each group."""
SAY_SECONDS: Final = 10.0
STUCK_SECONDS: Final = 90.0
"""The time limit between two processed records, in seconds. It applies from the end of the disturbances until
all records are processed."""
DEFECTS: Final = ("Traceback", "defect", "not understood")

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
    """The errors that members received, and how often."""
    seconds: float = 0.0

    @property
    def problems(self) -> list[str]:
        """The problems, in words."""
        return self.verdict.problems


@dataclass(slots=True)
class _ChaosSlot:
    """A slot for a member in a group."""

    name: str
    number: int = 0
    process: subprocess.Popen[bytes] | None = None
    life: MemberLife | None = None
    path: Path = Path()


class GroupMembers:
    """The members of one group, and their disturbances.

    Args:
        name: the name of the group, and of its topic.
        kind: the kind of members.
        bootstrap: the address of the gateway.
        broker: the broker.
        folder: the folder for the members' output.
        seed: the seed of all random choices.
        done: the counts of the disturbances.
    """

    def __init__(
        self,
        name: str,
        kind: MemberKind,
        bootstrap: str,
        broker: Broker,
        folder: Path,
        seed: int,
        done: Counter[str],
    ) -> None:
        self.name, self.kind = name, kind
        self._bootstrap, self._folder, self._done = bootstrap, folder, done
        self._random = random.Random(seed)  # noqa: S311 - not a secret
        self._slots = [_ChaosSlot(f"{name}.{number}") for number in range(kind.members)]
        self._paths: list[tuple[MemberLife, Path]] = []
        self._processed: set[tuple[int, int]] = set()
        self._read: dict[Path, int] = {}
        """How many bytes of each process's output have been read."""
        self._asks = Consumer({"bootstrap.servers": broker.address, "group.id": f"{name}-reader"})

    def start(self) -> None:
        """Start all members."""
        for slot in self._slots:
            self._start(slot)

    def close(self) -> None:
        """Kill all members."""
        for slot in self._slots:
            if slot.process is not None:
                slot.process.kill()
                slot.process.wait()
        self._asks.close()

    def disturb(self, kills: int, ended: threading.Event) -> None:
        """Kill members until `kills` kills are done or `ended` is set.

        Disturb the members in other ways in between.
        """
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
        ends = self._ends()
        self._asks.assign(
            [TopicPartition(self.name, each, OFFSET_BEGINNING) for each in range(self.kind.partitions)]
        )
        while len(found) < sum(ends.values()):
            for message in self._asks.consume(1000, 1.0):
                partition, offset, key = message.partition(), message.offset(), message.key()
                if message.error() is None and partition is not None and offset is not None:
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

    def _ends(self) -> dict[int, int]:
        found = {}
        for number in range(self.kind.partitions):
            _, found[number] = self._asks.get_watermark_offsets(TopicPartition(self.name, number), timeout=20)
        return found

    def _start(self, slot: _ChaosSlot) -> None:
        slot.number += 1
        slot.life = MemberLife(f"{slot.name}#{slot.number}")
        slot.path = self._folder / f"{slot.name}.{slot.number}"
        self._paths.append((slot.life, slot.path))
        command = [sys.executable, "-m", "tools.soak.groups.member", "--bootstrap", self._bootstrap]
        command += ["--topic", self.name, "--group", self.name, "--client-id", slot.name]
        command += ["--session-ms", str(SESSION_MS), "--strategy", self.kind.strategy]
        if self.kind.static:
            command += ["--instance", slot.name]
        with slot.path.open("ab") as out, slot.path.with_suffix(".log").open("ab") as log:
            slot.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=log)
        self._done["started"] += 1

    def _kill(self, slot: _ChaosSlot) -> bool:
        """Kill a member, and start it again in most cases. A member that does not run is only started.

        Return whether a member was killed.
        """
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
        """Let a member leave and join again at once."""
        self._leave(slot)
        self._start(slot)

    def _stop(self, slot: _ChaosSlot, ended: threading.Event) -> None:
        if slot.process is None or slot.life is None or slot.process.poll() is not None:
            return
        slot.process.send_signal(signal.SIGSTOP)
        at = time.monotonic_ns()
        self._done["stopped"] += 1
        time.sleep(IN_FLIGHT_SECONDS)
        ends = self._ends()
        ended.wait(self._random.uniform(*STOPPED_SECONDS))
        slot.process.send_signal(signal.SIGCONT)
        slot.life.stopped.append((at, time.monotonic_ns(), ends))


def chaos(kills: int, groups: int, seed: int, say: Say, folder: Path | None = None) -> GroupsOutcome:
    """Disturb groups until enough members were killed.

    Args:
        kills: the number of members to kill, in all groups together.
        groups: the number of groups that run at the same time.
        seed: the seed of all random choices. Times still differ from run to run.
        say: the function that is called with each line about the progress.
        folder: the folder for the members' output. None for a temporary folder.
    """
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="groups-")))
        folder.mkdir(parents=True, exist_ok=True)
        broker = stack.enter_context(Broker(properties={"group.min.session.timeout.ms": 500}))
        run_id = uuid.uuid4().hex[:6]
        kinds = {f"g{number}-{run_id}": KINDS[number % len(KINDS)] for number in range(groups)}
        with Admin(broker.address) as admin:
            for name, kind in kinds.items():
                admin.create_topic(name, partitions=kind.partitions)
        gateway = stack.enter_context(GatewayProcess(broker.address, "--cooperative", ",".join(kinds)))
        outcome = GroupsOutcome(GroupsVerdict(), Counter(), Counter())
        members = [
            GroupMembers(name, kind, gateway.address, broker, folder, seed * 1000 + number, outcome.done)
            for number, (name, kind) in enumerate(kinds.items())
        ]
        for each in members:
            stack.callback(each.close)
        _GroupsRun(broker, gateway, members, seed, say, outcome).run(kills)
        return outcome


class _GroupsRun:
    """One run of the soak test for groups."""

    def __init__(
        self,
        broker: Broker,
        gateway: GatewayProcess,
        members: list[GroupMembers],
        seed: int,
        say: Say,
        outcome: GroupsOutcome,
    ) -> None:
        self._broker, self._gateway, self._members = broker, gateway, members
        self._random = random.Random(seed)  # noqa: S311 - not a secret
        self._say, self._outcome = say, outcome
        self._gateway_down: list[tuple[int, int]] = []
        self._produced = 0

    def run(self, kills: int) -> None:
        """Run the soak test, and check its results."""
        began = time.monotonic()
        ended, stop_producing = threading.Event(), threading.Event()
        share, more = divmod(kills, len(self._members))
        with ThreadPoolExecutor(len(self._members) + 1) as pool:
            producing = pool.submit(self._produce, stop_producing)
            try:
                for each in self._members:
                    each.start()
                working = [
                    pool.submit(each.disturb, share + (number < more), ended)
                    for number, each in enumerate(self._members)
                ]
                self._watch(working, kills)
            finally:
                ended.set()
                stop_producing.set()
            for done in [producing, *working]:
                done.result()
        self._say("no more disturbances; waiting until all is processed ...")
        for each in self._members:
            each.settle()
        self._wait()
        for each in self._members:
            each.leave()
        for each in self._members:
            lives = each.lives()
            judge(each.log(), lives, self._gateway_down, self._outcome.verdict)
            self._outcome.errors.update(error for life in lives for error in life.errors)
        self._outcome.verdict.problems += [
            line for line in self._gateway.log().splitlines() if any(word in line for word in DEFECTS)
        ]
        self._outcome.seconds = time.monotonic() - began

    def _watch(self, working: Sequence[Future[None]], kills: int) -> None:
        """Kill the gateway now and then, and report the progress."""
        said, killed_at = time.monotonic(), time.monotonic()
        done = self._outcome.done
        pause = self._random.uniform(*UP_SECONDS)
        while not all(each.done() for each in working):
            time.sleep(0.2)
            now = time.monotonic()
            if now - killed_at > pause:
                self._gateway.kill()
                gone_at = time.monotonic_ns()
                time.sleep(self._random.uniform(*DOWN_SECONDS))
                self._gateway.start()
                self._gateway_down.append((gone_at, time.monotonic_ns()))
                done["gateway killed"] += 1
                killed_at, pause = time.monotonic(), self._random.uniform(*UP_SECONDS)
            if now - said > SAY_SECONDS:
                said = now
                counts = ", ".join(f"{name} {count}" for name, count in sorted(done.items()))
                self._say(f"{done['killed']} of {kills} kills; {counts}; {self._produced} records produced")

    def _produce(self, ended: threading.Event) -> None:
        producer = Producer(
            {"bootstrap.servers": self._broker.address, "enable.idempotence": True, "linger.ms": 5}
        )
        chance = random.Random(0)  # noqa: S311 - not a secret
        while not ended.wait(0.05):
            for each in self._members:
                for _ in range(round(RATE * 0.05)):
                    producer.produce(each.name, key=b"k%d" % chance.randrange(KEYS), value=b"v")
                    self._produced += 1
            producer.poll(0)
        producer.flush(60)

    def _wait(self) -> None:
        """Wait until all records are processed, or there is no progress."""
        at, most = time.monotonic(), -1
        while time.monotonic() - at < STUCK_SECONDS:
            some = sum(each.processed() for each in self._members)
            if some > most:
                at, most = time.monotonic(), some
            if some >= self._produced:
                return
            time.sleep(1)


def summary(outcome: GroupsOutcome) -> list[str]:
    """Return the counts of a run, as lines."""
    counts = outcome.verdict.counts
    shown = [f"{name}: {counts[name]}" for name in PROBLEMS]
    others = [f"{name}: {count}" for name, count in sorted(counts.items()) if name not in PROBLEMS]
    return [
        ", ".join(f"{name} {count}" for name, count in sorted(outcome.done.items())),
        ", ".join(others),
        ", ".join(shown),
        "errors that members were told: "
        + "; ".join(f"{error} ({count})" for error, count in outcome.errors.most_common(12)),
    ]
