"""Runs consumer groups through the gateway for minutes or hours, while leaders move and brokers restart.

    python -m tools.soak --minutes 10

There are three brokers, the gateway, and a producer. librdkafka, aiokafka and kafka-python (2.0.2 without
sessions, 3.x with its own) have two groups each: one direct to the brokers, one through the gateway. At the
end every group must have received all that was produced, byte for byte. A client behind the gateway must not
have reported an error that the same client did not report without it.
"""

import argparse
import hashlib
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import psutil
from confluent_kafka import KafkaError, Message, Producer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from tests.clients.runner import Program, Run, python_programs
from tools.gateway import GatewayProcess
from tools.kafka import Cluster
from tools.kafka.admin import Admin

PARTITIONS = 48
BUSY = range(0, PARTITIONS, 8)
"""The partitions with records. The others are idle, so that sessions save bytes."""
RECORDS_PER_SECOND = 150
VALUE_BYTES = 200
STEP_SECONDS = 0.1
MOVE_SECONDS = 0.5
"""Seconds between two leader moves. Each move takes about as long."""
LEAST_MOVES = 3
"""A run goes on until there were so many moves and a restart, also on slow machines."""
RESTART_SECONDS = 60.0
"""Seconds between two restarts. The first one is after half the time at the latest."""
DOWN_SECONDS = 2.0
CATCH_UP_SECONDS = 90.0
DIRECT, GATEWAY = "direct", "gateway"


@dataclass(slots=True)
class Group:
    """A consumer group of one member, and what it received."""

    name: str
    way: str
    run: Run
    seen: dict[tuple[int, int], str] = field(default_factory=dict)
    """The digest of each value, by partition and offset."""
    repeated: int = 0
    """Records that it received again: after a rebalance it reads from the last commit on."""
    wrong: int = 0
    """Those of them whose content was different."""
    errors: Counter[str] = field(default_factory=Counter)

    def read(self) -> None:
        """Count what was received since the last call."""
        for line in self.run.take():
            if line["kind"] == "record":
                place = line["partition"], line["offset"]
                before = self.seen.setdefault(place, line["value"])
                if before is not line["value"]:
                    self.repeated += 1
                    self.wrong += before != line["value"]
            elif line["kind"] == "error":
                self.errors[line["code"]] += 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run."""

    produced: Mapping[tuple[int, int], str]
    """The digest of each acknowledged record's value, by partition and offset."""
    groups: list[Group]
    moves: int
    restarts: int

    def missing(self, group: Group) -> int:
        """Return how many records a group did not receive, or received with another content."""
        return sum(group.seen.get(place) != value for place, value in self.produced.items())

    def problems(self) -> list[str]:
        """Return why the run failed; empty if it did not."""
        direct = {group.name: group.errors for group in self.groups if group.way == DIRECT}
        found = []
        for group in self.groups:
            if missing := self.missing(group):
                found.append(f"{group.name} ({group.way}) lacks {missing} of {len(self.produced)} records")
            if group.wrong:
                found.append(f"{group.name} ({group.way}) received {group.wrong} changed records")
            if group.way == GATEWAY and (new := group.errors.keys() - direct[group.name].keys()):
                found.append(f"{group.name} got {sorted(new)} only through the gateway")
        return found


class Stream:
    """A producer at a constant rate that remembers the offset of each record."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.produced: dict[tuple[int, int], str] = {}
        self._topic = topic
        self._count = 0
        self._began = time.monotonic()
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        self._producer = Producer(settings)

    def produce_due(self) -> None:
        """Produce what is due by now."""
        due = int((time.monotonic() - self._began) * RECORDS_PER_SECOND)
        while self._count < due:
            value = self._count.to_bytes(8) * (VALUE_BYTES // 8)
            partition = BUSY[self._count % len(BUSY)]
            self._producer.produce(self._topic, value=value, partition=partition, on_delivery=self._delivered)
            self._count += 1
        self._producer.poll(0)

    def finish(self) -> None:
        """Wait for the last acknowledgements."""
        self._producer.flush(CATCH_UP_SECONDS)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        partition, offset, value = message.partition(), message.offset(), message.value()
        if error is not None:
            raise RuntimeError(f"a record was not produced: {error}")
        if partition is None or offset is None or value is None:
            return  # sent twice because of a restart: the broker acknowledges a duplicate without its offset
        self.produced[partition, offset] = f"{len(value)}:{hashlib.sha256(value).hexdigest()}"


class Disturbance:
    """Moves leaders and restarts brokers in turn, in its own thread, because both take seconds."""

    def __init__(self, cluster: Cluster, topic: str, seconds: float) -> None:
        self.moves = self.restarts = 0
        self._cluster = cluster
        self._topic = topic
        self._restart_every = min(RESTART_SECONDS, seconds / 2)

    @property
    def enough(self) -> bool:
        """Whether there were enough moves and restarts."""
        return self.moves >= LEAST_MOVES and self.restarts > 0

    def run(self, ended: threading.Event) -> None:
        """Go on until ``ended``. All brokers are running when this returns."""
        restart_at = time.monotonic() + self._restart_every
        while not ended.wait(MOVE_SECONDS):
            if time.monotonic() >= restart_at:
                self._restart(ended)
                restart_at = time.monotonic() + self._restart_every
            self._move()

    def _restart(self, ended: threading.Event) -> None:
        broker = self._cluster.brokers[self.restarts % len(self._cluster.brokers)]
        self.restarts += 1
        broker.stop()
        ended.wait(DOWN_SECONDS)
        broker.restart()

    def _move(self) -> None:
        with Admin(self._cluster.bootstrap) as admin:
            partition = (7 * self.moves) % PARTITIONS  # a busy one now and then
            leader = admin.leaders(self._topic)[partition]
            admin.move_leader(self._topic, partition, leader % len(self._cluster.brokers) + 1)
            self.moves += 1


Watch: TypeAlias = Callable[[float, Stream, list[Group]], None]
"""Called with the seconds since the start, the producer and the groups."""


def soak(cluster: Cluster, gateway: str, seconds: float, watch: Watch) -> Outcome:
    """Run everything for so many seconds, and until all groups have caught up.

    Args:
        cluster: three brokers. At the end all are running, and the topic is deleted.
        gateway: address of a gateway before them.
        seconds: how long to produce and disturb. It takes longer if there were too few moves and restarts.
        watch: called several times a second.
    """
    with ExitStack() as stack:
        topic = stack.enter_context(_topic(cluster))
        ways = ((DIRECT, cluster.bootstrap), (GATEWAY, gateway))
        groups = [
            Group(name, way, stack.enter_context(_member(program, bootstrap, topic, way)))
            for name, program in python_programs().items()
            for way, bootstrap in ways
        ]
        stream = Stream(cluster.bootstrap, topic)
        disturbance = Disturbance(cluster, topic, seconds)
        _produce(disturbance, stream, groups, seconds, watch)
        outcome = Outcome(stream.produced, groups, disturbance.moves, disturbance.restarts)
        deadline = time.monotonic() + CATCH_UP_SECONDS
        while time.monotonic() < deadline and any(map(outcome.missing, groups)):
            _look(groups)
            watch(seconds, stream, groups)
        for group in groups:
            group.run.stop()
            group.read()
        return outcome


def _produce(
    disturbance: Disturbance, stream: Stream, groups: list[Group], seconds: float, watch: Watch
) -> None:
    ended = threading.Event()
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        disturbing = pool.submit(disturbance.run, ended)
        try:
            while not disturbing.done():
                gone = time.monotonic() - began
                if gone >= seconds and disturbance.enough:
                    break
                stream.produce_due()
                _look(groups)
                watch(gone, stream, groups)
        finally:
            ended.set()
        disturbing.result()
    stream.finish()


def _look(groups: list[Group]) -> None:
    time.sleep(STEP_SECONDS)
    for group in groups:
        group.read()
        if not group.run.running:
            raise RuntimeError(f"{group.name} ({group.way}) has ended: {group.run.told_on_stderr()}")


def _member(program: Program, bootstrap: str, topic: str, way: str) -> Run:
    return Run(program, bootstrap, subscribe=[topic], group=f"{topic}-{program.name}-{way}")


@contextmanager
def _topic(cluster: Cluster) -> Iterator[str]:
    name = f"soak-{uuid.uuid4().hex[:8]}"
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(name, partitions=PARTITIONS, replication=3, config={"min.insync.replicas": 2})
    yield name
    with Admin(cluster.bootstrap) as admin:
        admin.delete_topic(name)


def _table(outcome: Outcome) -> Table:
    table = Table(
        title=f"{len(outcome.produced)} records, {outcome.moves} leader moves, {outcome.restarts} restarts"
    )
    for heading in ("group", "way", "received", "missing", "changed", "repeated", "errors"):
        table.add_column(heading)
    for group in outcome.groups:
        numbers = len(group.seen), outcome.missing(group), group.wrong, group.repeated
        table.add_row(group.name, group.way, *map(str, numbers), ", ".join(sorted(group.errors)))
    return table


def main() -> int:
    """Run from the command line. The exit code is 0 if there was no problem."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m tools.soak", description=__doc__, formatter_class=raw)
    parser.add_argument("--minutes", type=float, default=10.0)
    seconds = parser.parse_args().minutes * 60
    console = Console()
    counts = TextColumn("{task.completed:.0f}/{task.total:.0f}")
    with (
        Cluster(nodes=3) as cluster,
        GatewayProcess(cluster.bootstrap) as gateway,
        Progress(TextColumn("{task.description}"), BarColumn(), counts, console=console) as progress,
    ):
        process = psutil.Process(gateway.pid)
        before = _resources(process)
        outcome = soak(cluster, gateway.address, seconds, _progress(progress, seconds))
        resources, totals = f"{before} before, {_resources(process)} after", gateway.state()["totals"]
    console.print(_table(outcome))
    console.print(f"the gateway used {resources}")
    console.print(
        f"fetches: {totals['client']['fetches']} of clients, {totals['broker']['fetches']} to brokers"
    )
    console.print(f"saved {totals['saved_bytes'] / 1e6:.1f} MB of the clients' fetches")
    for problem in outcome.problems():
        console.print(f"[red]{problem}[/red]")
    return 1 if outcome.problems() else 0


def _resources(process: psutil.Process) -> str:
    return f"{process.memory_info().rss / 1e6:.0f} MB and {process.num_fds()} descriptors"


def _progress(progress: Progress, seconds: float) -> Watch:
    clock = progress.add_task("seconds", total=seconds)
    bars = defaultdict[str, TaskID](lambda: progress.add_task("", total=1))

    def watch(gone: float, stream: Stream, groups: list[Group]) -> None:
        progress.update(clock, completed=gone)
        for group in groups:
            name = f"{group.name}, {group.way}"
            received, produced = len(group.seen), len(stream.produced)
            progress.update(bars[name], description=name, completed=received, total=produced)

    return watch


if __name__ == "__main__":
    sys.exit(main())
