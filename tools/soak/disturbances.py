"""Disturbs brokers, topics, network and gateway: each kind once in a random order, then again."""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from tools.kafka import Broker, Cluster
from tools.kafka.admin import Admin
from tools.soak.gateways import Gateways
from tools.soak.network import Network, restored
from tools.soak.producers import CHURN_PARTITIONS, PARTITIONS, SoakTopics

SUSPENDED_SECONDS: Final = (5.0, 60.0)
DOWN_SECONDS: Final = (1.0, 8.0)
BAD_SECONDS: Final = (5.0, 20.0)
CUT_SECONDS: Final = (3.0, 30.0)
PAUSE_SECONDS: Final = (1.0, 4.0)
MOVES: Final = 4
SETTLE_SECONDS: Final = 90.0
CAUGHT_UP_SECONDS: Final = 130.0
"""The time limit for all consumers to receive all records when there are no disturbances, in seconds."""
PRODUCERS: Final = "producers"
EMPTY_SECONDS: Final = 8.0
"""How long a new topic is empty, so that consumers at an old offset get an error, in seconds."""

Settings = dict[str, object]
TOPIC_SETTINGS: Final[Settings] = {"min.insync.replicas": 2}


@dataclass(slots=True)
class Disturbances:
    """The work of two threads: one disturbs brokers and topics, one disturbs the network and the gateway.

    A disturbance takes at most `longest` seconds. `behind` returns the consumers that lack records of the
    topic with disturbances, or `PRODUCERS` if not all are acknowledged. `only` names kinds, all if empty.
    """

    cluster: Cluster
    network: Network
    gateways: Gateways
    topics: SoakTopics
    seed: int
    longest: float
    behind: Callable[[], list[str]]
    only: frozenset[str] = frozenset()
    done: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    late: set[str] = field(default_factory=set)
    now: dict[str, str] = field(default_factory=dict)
    _calm: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)

    @property
    def broker_kinds(self) -> dict[str, Callable[[random.Random], None]]:
        """The disturbances of brokers and topics, by name."""
        return {
            "broker killed": self._kill,
            "broker restarted": self._restart,
            "broker stopped": self._suspend,
            "leaders moved": self._move_leaders,
            "topic made again": self._recreate,
        }

    @property
    def gateway_kinds(self) -> dict[str, Callable[[random.Random], None]]:
        """The disturbances of the network and the gateway, by name."""
        return {
            "gateway taken over": lambda _: self.gateways.take_over(),
            "two slots": lambda choose: self._reloaded(choose, max_sessions=2),
            "sessions off": lambda choose: self._reloaded(choose, sessions=False),
            "network slow": lambda choose: self._network(choose, delay=choose.uniform(0.02, 0.4)),
            "network lossy": lambda choose: self._network(choose, loss=choose.uniform(0.02, 0.2)),
            "broker cut off": lambda choose: self._cut(choose, everything=False),
            "network cut": lambda choose: self._cut(choose, everything=True),
        }

    @property
    def complete(self) -> bool:
        """Whether each kind happened at least once."""
        return all(self.done[kind] for kind in (self.only or {*self.broker_kinds, *self.gateway_kinds}))

    def end(self) -> None:
        """Let both threads end when their present disturbance is undone."""
        self._ended.set()

    def brokers(self) -> None:
        """Disturb brokers and topics until the run ends. At the end, all brokers run."""
        with self.network.far():
            for kind, choose in self._turns("brokers", self.broker_kinds):
                self.broker_kinds[kind](choose)
                self.settle()

    def gateway(self) -> None:
        """Disturb the network and the gateway until the run ends. At the end, everything is restored."""
        for kind, choose in self._turns("gateway", self.gateway_kinds):
            with self._calm:
                self.gateway_kinds[kind](choose)

    def _turns(
        self, thread: str, kinds: dict[str, Callable[[random.Random], None]]
    ) -> Iterator[tuple[str, random.Random]]:
        choose = random.Random(f"{self.seed} {thread}")  # noqa: S311 - not a secret
        order = sorted(kinds.keys() & self.only if self.only else kinds)
        while order:
            choose.shuffle(order)
            for kind in order:
                self.now[thread] = ""
                if self._ended.wait(choose.uniform(*PAUSE_SECONDS)):
                    return
                self.now[thread] = kind
                yield kind, choose
                self.done[kind] += 1
        self._ended.wait()

    def _wait(self, choose: random.Random, span: tuple[float, float]) -> None:
        least, most = span
        self._ended.wait(choose.uniform(least, max(least, min(most, self.longest))))

    def _broker(self, choose: random.Random) -> Broker:
        return choose.choice(self.cluster.brokers)

    def _kill(self, choose: random.Random) -> None:
        broker = self._broker(choose)
        broker.kill()
        self._wait(choose, DOWN_SECONDS)
        broker.restart()

    def _restart(self, choose: random.Random) -> None:
        broker = self._broker(choose)
        broker.stop()
        self._wait(choose, DOWN_SECONDS)
        broker.restart()

    def _suspend(self, choose: random.Random) -> None:
        broker = self._broker(choose)
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            self._wait(choose, SUSPENDED_SECONDS)
        finally:
            os.kill(broker.pid, signal.SIGCONT)

    def _move_leaders(self, choose: random.Random) -> None:
        with self._tolerant("move leaders"), Admin(self.cluster.bootstrap) as admin:
            for partition in choose.sample(range(0, PARTITIONS, 4), MOVES):
                leader = admin.leaders(self.topics.steady)[partition]
                admin.move_leader(self.topics.steady, partition, leader % len(self.cluster.brokers) + 1)

    def _recreate(self, _choose: random.Random) -> None:
        """Make a topic again when all consumers have all of it, or are noted (`late`) after a time limit."""
        topics = self.topics
        with self._calm:
            topics.churn_open = False
            deadline = time.monotonic() + CAUGHT_UP_SECONDS
            while (behind := self.behind()) and time.monotonic() < deadline and not self._ended.wait(0.2):
                pass
            # At the end of the run, slow consumers get time later, so the topic has to exist.
            if PRODUCERS not in behind and not (behind and self._ended.is_set()):
                self.late.update(behind)
                self._insist(lambda admin: admin.delete_topic(topics.churn), 3)
                time.sleep(1)
                self._insist(lambda admin: create(admin, topics.churn, CHURN_PARTITIONS), 36)
                self._ended.wait(EMPTY_SECONDS)
                topics.generation += 1
            topics.churn_open = True

    def _insist(self, change: Callable[[Admin], None], already: int) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            try:
                with Admin(self.cluster.bootstrap) as admin:
                    change(admin)
            except (OSError, RuntimeError, KeyError) as error:
                if getattr(error, "code", None) == already:
                    return
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)
            else:
                return

    def _reloaded(self, choose: random.Random, **options: object) -> None:
        self.gateways.reload(**options)
        self._wait(choose, BAD_SECONDS)
        self.gateways.reload()

    def _network(self, choose: random.Random, **bad: float) -> None:
        with self._restoring():
            for node in choose.sample(sorted(self.network.wires), choose.randint(1, 3)):
                for name, value in bad.items():
                    setattr(self.network.wires[node], name, value)
            self._wait(choose, BAD_SECONDS)

    def _cut(self, choose: random.Random, *, everything: bool) -> None:
        with self._restoring():
            nodes = sorted(self.network.wires)
            for node in nodes if everything else [choose.choice(nodes)]:
                self.network.wires[node].loss = 1.0
            self._wait(choose, CUT_SECONDS)

    @contextmanager
    def _restoring(self) -> Iterator[None]:
        try:
            yield
        finally:
            restored(self.network.wires)

    def settle(self) -> None:
        """Wait until all replicas are in sync. If they are not after `SETTLE_SECONDS`, note a problem."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            with (
                suppress(OSError, RuntimeError, KeyError, ValueError),
                Admin(self.cluster.bootstrap) as admin,
            ):
                if admin.in_sync(self.topics.steady, self.topics.churn):
                    return
            time.sleep(0.5)
        self.problems.append(f"not all replicas were in sync {SETTLE_SECONDS:.0f} s after a disturbance")

    @contextmanager
    def _tolerant(self, what: str) -> Iterator[None]:
        """Ignore the error if a broker refuses a change because of an earlier disturbance. Count it."""
        try:
            yield
        except (OSError, RuntimeError, KeyError) as error:
            self.done[f"refused: {what} ({type(error).__name__})"] += 1


def create(admin: Admin, topic: str, partitions: int) -> None:
    """Create a topic for the disturbances, with three replicas."""
    admin.create_topic(topic, partitions=partitions, replication=3, config=TOPIC_SETTINGS)
