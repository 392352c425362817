"""A group of members in seven client libraries, which are killed and restarted at random.

    python -m tools.soak.groups.mixed --seed 1 --seconds 200
    python -m tools.soak.groups.mixed --gateways 7 --must-share
    python -m tools.soak.groups.mixed --direct --partitions 7 --seed 1     the control: a plain group

The members use one gateway or several, or the broker itself with `--direct`. Gateways are killed. Several
gateways are also cut off from the broker, and restarted one by one. Members commit every second by
themselves, like applications. A program prints a record before it may be committed (`tests.clients`). So a
record of the log that no program has printed is lost. A lost record is reported with its key's hash, the
owners of the key before and after, and the committed positions over time.

A library without its toolchain is left out, with a message.
"""

import argparse
import json
import random
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from proxy.features.cooperative.positions import Positions, read_committed
from tests.clients.programs import lacking, program_of
from tests.clients.runner import Program, Run
from tools.kafka.admin import Admin
from tools.soak.groups.gateways import GatewayFaults, GroupGateways
from tools.soak.groups.seen import Down, Log, Moved, Record, SeenLife, SeenVerdict, judge
from tools.soak.groups.sharing import Handled, Sharing, sharing
from tools.soak.log import records

LIBRARIES: Final = ("confluent-kafka", "aiokafka", "kafka-python", "java", "franz-go", "kafkajs", "sarama")
SESSION_MS: Final = 6_000
KEYS: Final = 60
RATE: Final = 150
SETTLING_SECONDS: Final = 15.0
ASKS_SECONDS: Final = 0.25
UP_SECONDS: Final = (20.0, 50.0)
STUCK_SECONDS: Final = 60.0
LEAVE_SECONDS: Final = 20.0
BATCH_SECONDS: Final = 0.1
ABORTED_SHARE: Final = 0.25

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of a run."""

    direct: bool = False
    """Whether the members use the broker without a gateway, as a plain group."""
    partitions: int = 2
    seed: int = 1
    seconds: float = 200.0
    gateways: int = 1


class _MemberRun(Run):
    """A member, whose records are noted when they are printed."""

    def __init__(
        self, life: SeenLife, seen: set[Record], program: Program, bootstrap: str, options: Sequence[str]
    ) -> None:
        self.life, self._seen = life, seen
        super().__init__(program, bootstrap, isolation="read_committed", options=options)

    def _hear(self) -> None:
        for text in self._process.stdout or ():
            at = time.time()
            try:
                line: dict[str, Any] = json.loads(text)
            except ValueError:
                continue  # cut by a kill
            if line["kind"] == "record":
                record = line["topic"], line["partition"], line["offset"]
                self.life.did.append((at, record, bytes.fromhex(line["key"] or "")))
                self._seen.add(record)
            elif line["kind"] == "end":
                with self._heard:
                    self.lines.append(line)

    def kill(self) -> None:
        """Kill the member."""
        self.life.killed_at = time.time()
        self.__exit__(None, None, None)


@dataclass(slots=True, eq=False)
class _MixedSlot:
    """A place in the group for one member at a time."""

    program: Program
    client_id: str
    gateway: int
    number: int = 0
    run: _MemberRun | None = None


@dataclass(slots=True)
class MixedOutcome:
    """The result of a run."""

    verdict: SeenVerdict
    left_out: list[str]
    done: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    defects: list[str] = field(default_factory=list)
    sharing: Sharing = field(default_factory=Sharing)


class MixedGroup:
    """The members of one group."""

    def __init__(
        self,
        plan: Plan,
        name: str,
        topics: Sequence[str],
        gateways: GroupGateways,
        members: Sequence[Program],
    ) -> None:
        self._plan, self._name, self._topics, self._gateways = plan, name, topics, gateways
        self._slots = [
            _MixedSlot(program, f"{name}.{program.name}-{at}", gateways.of(at))
            for at, program in enumerate(members)
        ]
        self.lives: list[SeenLife] = []
        self._random = random.Random(plan.seed)  # noqa: S311 - not a secret
        self.done: Counter[str] = Counter()
        self.seen: set[Record] = set()

    def settle(self) -> None:
        """Start all members that are not running."""
        for slot in self._slots:
            if slot.run is None or not slot.run.running:
                self._start(slot)

    def disturb(self) -> None:
        """Kill a member, or let it leave, and start it again most times. One that does not run is started."""
        slot = self._random.choice(self._slots)
        if slot.run is None or not slot.run.running:
            self._start(slot)
            return
        if self._random.random() < 0.6:
            slot.run.kill()
            slot.run = None
            self.done["killed"] += 1
        else:
            self._end(slot)
            self.done["left"] += 1
        if self._random.random() < 0.8:
            self._start(slot)

    def leave(self) -> None:
        """Let all members leave their group gracefully, and end."""
        for slot in self._slots:
            self._end(slot)

    def close(self) -> None:
        """Kill all members."""
        for slot in self._slots:
            if slot.run is not None:
                slot.run.kill()

    def _start(self, slot: _MixedSlot) -> None:
        if slot.run is not None:
            slot.run.__exit__(None, None, None)  # it ended by itself
        slot.number += 1
        life = SeenLife(f"{slot.program.name}#{slot.number}", gateway=slot.gateway)
        self.lives.append(life)
        options = ["--subscribe", ",".join(self._topics), "--group", self._name]
        options += ["--client-id", slot.client_id, "--session-ms", str(SESSION_MS)]
        if self._plan.direct:  # the only strategy that all libraries have
            options += ["--strategy", "range"]
        slot.run = _MemberRun(life, self.seen, slot.program, self._gateways.address(slot.gateway), options)
        self.done["started"] += 1

    def _end(self, slot: _MixedSlot) -> None:
        if slot.run is None:
            return
        try:
            slot.run.stop(seconds=LEAVE_SECONDS)
            slot.run.__exit__(None, None, None)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            slot.run.kill()
            self.done["killed, as it did not leave"] += 1
        slot.run = None


class _CommittedPositions:
    """Reads the committed positions of a group repeatedly, and stores their changes."""

    def __init__(self, broker: str, group: str, places: Sequence[tuple[str, int]]) -> None:
        self._asks = Consumer({"bootstrap.servers": broker, "group.id": group, "log_level": 0})
        self._places = places
        self._last: dict[tuple[str, int], Positions] = {}
        self.moved: list[Moved] = []

    def look(self) -> None:
        """Request the group's committed positions once."""
        asked = [TopicPartition(*place) for place in self._places]
        try:
            committed = self._asks.committed(asked, timeout=10)
        except KafkaException:  # the coordinator does not answer yet
            return
        for each in committed:
            if each.error is not None or each.offset < 0:
                continue
            try:
                metadata = each.metadata or ""
            except UnicodeDecodeError:  # confluent-kafka reads beyond the end of the metadata
                continue
            place = each.topic, each.partition
            positions = read_committed(each.offset, metadata).positions
            if positions != self._last.get(place):
                self._last[place] = positions
                self.moved.append((time.time(), place, positions))

    def run(self, ended: threading.Event) -> None:
        """Request the committed positions repeatedly until `ended` is set."""
        while not ended.wait(ASKS_SECONDS):
            self.look()


class _Producing:
    """Writes records: without transactions, in transactions (some aborted), and to a compacted topic."""

    def __init__(self, plan: Plan, broker: str, topics: Sequence[str]) -> None:
        self._plan, self._topics = plan, topics
        self._random = random.Random(plan.seed)  # noqa: S311 - not a secret
        common = {"bootstrap.servers": broker, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        self._plain = Producer(common)
        self._transactional = Producer(common | {"transactional.id": f"tx-{topics[0]}"})
        self._transactional.init_transactions(30)
        self.number = 0

    def run(self, ended: threading.Event) -> None:
        """Write records until `ended` is set."""
        began = time.monotonic()
        while not ended.wait(BATCH_SECONDS):
            due = int((time.monotonic() - began) * RATE) - self.number
            if self._random.random() < 0.3:
                self._transaction(self._transactional, min(due, 20))
                continue
            for _ in range(due):
                self._write(self._plain)
            self._plain.poll(0)
        self._plain.flush(60)

    def _transaction(self, producer: Producer, number: int) -> None:
        producer.begin_transaction()
        for _ in range(number):
            self._write(producer)
        if self._random.random() < ABORTED_SHARE:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)

    def _write(self, producer: Producer) -> None:
        topic = self._topics[0] if self._random.random() < 0.85 else self._topics[-1]
        producer.produce(topic, key=b"k%d" % self._random.randrange(KEYS), value=b"%d" % self.number)
        self.number += 1


def run(plan: Plan, say: Say) -> MixedOutcome:
    """Run the group with disturbances, and check that no record was lost."""
    began = time.monotonic()
    left_out = [f"{name} ({why})" for name in LIBRARIES if (why := lacking(name))]
    members = [program_of(name) for name in LIBRARIES if not lacking(name)]
    with ExitStack() as stack:
        properties = {
            "group.min.session.timeout.ms": 500,
            "log.cleaner.backoff.ms": 2000,
            "transaction.state.log.num.partitions": 1,
        }
        name = f"mixed-{uuid.uuid4().hex[:6]}"
        gateways = GroupGateways(0 if plan.direct else plan.gateways, [name], properties)
        broker = stack.enter_context(gateways).broker
        topics = [f"{name}-orders", f"{name}-latest"]
        compaction = {"cleanup.policy": "compact", "segment.ms": "20000", "min.cleanable.dirty.ratio": "0.01"}
        with Admin(broker.address) as admin:
            for topic in topics:
                config = compaction if topic.endswith("latest") else {}
                admin.create_topic(topic, partitions=plan.partitions, config=config)
        group = MixedGroup(plan, name, topics, gateways, members)
        stack.callback(group.close)
        places = [(topic, number) for topic in topics for number in range(plan.partitions)]
        positions = _CommittedPositions(broker.address, name, places)
        producing = _Producing(plan, broker.address, topics)
        ended, written = threading.Event(), threading.Event()
        threads = [
            threading.Thread(target=positions.run, args=(ended,), daemon=True),
            threading.Thread(target=producing.run, args=(written,), daemon=True),
        ]
        group.settle()
        for thread in threads:
            thread.start()
        time.sleep(SETTLING_SECONDS)
        faults = GatewayFaults(gateways, plan.seed, group.done, UP_SECONDS)
        _disturb(plan, group, faults, say)
        say("no more disturbances; waiting until all is processed ...")
        written.set()
        threads[1].join()
        group.settle()
        log = _log(broker.address, places)
        _wait(group, log)
        group.leave()
        ended.set()
        threads[0].join()
        positions.look()
        log = _log(broker.address, places)  # compaction continues
        verdict = judge(log, group.lives, _since_1970(faults), positions.moved)
        outcome = MixedOutcome(verdict, left_out, group.done, defects=gateways.defects())
        outcome.sharing = sharing(
            Handled(at, (topic, partition), life.name, life.gateway)
            for life in group.lives
            for at, (topic, partition, _), _ in life.did
        )
        outcome.seconds = time.monotonic() - began
        return outcome


def _disturb(plan: Plan, group: MixedGroup, faults: GatewayFaults, say: Say) -> None:
    chance = random.Random(plan.seed)  # noqa: S311 - not a secret
    ended = threading.Event()
    end = time.monotonic() + plan.seconds
    with ThreadPoolExecutor(1) as pool:
        failing = pool.submit(faults.run, ended)
        try:
            while time.monotonic() < end and not (failing.done() and faults.down):
                time.sleep(chance.expovariate(1 / 5.0))
                group.disturb()
                say(f"{dict(group.done)}, {len(group.seen)} records processed")
        finally:
            ended.set()
        failing.result()


def _since_1970(faults: GatewayFaults) -> Down:
    """Return `GatewayFaults.down` in seconds since 1970."""
    since = time.time() - time.monotonic()
    return {
        number: [(since + began / 1e9, since + ended / 1e9) for began, ended in spans]
        for number, spans in faults.down.items()
    }


def _wait(group: MixedGroup, log: Log) -> None:
    at, least = time.monotonic(), len(log)
    while time.monotonic() - at < STUCK_SECONDS:
        left = len(log.keys() - group.seen)
        if left < least:
            at, least = time.monotonic(), left
        if not left:
            return
        time.sleep(0.5)


def _log(broker: str, places: Sequence[tuple[str, int]]) -> Log:
    """Return the keys of all records outside aborted transactions, by topic, partition and offset."""
    found: dict[Record, bytes] = {}
    for place, offset, message in records(broker, places):
        key = message.key()
        found[*place, offset] = key if isinstance(key, bytes) else b""
    return found


def main() -> int:
    """Run. Exit code 1: a record was lost or out of order, a defect was logged, or nothing was shared."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("tools.soak.groups.mixed", description=__doc__, formatter_class=raw)
    parser.add_argument("--direct", action="store_true", help="without a gateway: a plain group")
    parser.add_argument(
        "--gateways", type=int, default=1, help="members are spread over so many (default: 1)"
    )
    parser.add_argument(
        "--must-share",
        action="store_true",
        help="fail if the group did not share, with several gateways across them",
    )
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=200.0)
    given = parser.parse_args()
    plan = Plan(
        direct=given.direct,
        partitions=given.partitions,
        seed=given.seed,
        seconds=given.seconds,
        gateways=given.gateways,
    )
    outcome = run(plan, lambda line: print(line, flush=True))
    for name in outcome.left_out:
        print(f"left out: {name}")
    print(f"{'direct' if plan.direct else 'through the gateway'}, seed {plan.seed}, {dict(outcome.done)}")
    for line in [*outcome.verdict.lines(), *outcome.defects, str(outcome.sharing)]:
        print(line)
    unshared = given.must_share and not outcome.sharing.shares(plan.gateways)
    if unshared:
        print("the group did not share")
    print(f"{outcome.seconds:.0f} s in all")
    return 1 if outcome.verdict.lost or outcome.verdict.unordered or outcome.defects or unshared else 0


if __name__ == "__main__":
    sys.exit(main())
