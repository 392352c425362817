"""Runs brokers, gateway and clients with disturbances, then without disturbances, and judges the result."""

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from rich.table import Table

from tools.kafka import LATEST, Cluster
from tools.kafka.admin import Admin
from tools.kafka.jars import classpath
from tools.soak.broker_sessions import broker_sessions
from tools.soak.consumers import DIRECT, GATEWAY, SoakConsumer, readers
from tools.soak.disturbances import PRODUCERS, Disturbances, create
from tools.soak.gateways import Gateways, Used
from tools.soak.log import records
from tools.soak.network import Network, configure, network, restored
from tools.soak.producers import CHURN_PARTITIONS, CLIENTS, PARTITIONS, SoakProducer, SoakTopics
from tools.soak.records import (
    GENERATION,
    ProducedRecords,
    RecordLog,
    RecordPlace,
    SoakRecord,
    Written,
    describe,
)
from tools.soak.written import written

NODES: Final = 3
FEW_SLOTS: Final = 8
"""The fetch sessions that the last broker has room for: one in each of its eight shards."""
STEP_SECONDS: Final = 0.1
SAY_SECONDS: Final = 5.0
CATCH_UP_SECONDS: Final = 180.0
COMPLETE_SECONDS: Final = 600.0
CALM_SECONDS: Final = 10.0
"""The least time before and after the takeover at the end."""
FOLLOWERS_SECONDS: Final = 5.0
"""How many seconds to wait after all replicas are in sync, so that followers have created their sessions."""

READS_ON: Final = ("confluent-kafka",)
"""Clients that now and then miss the beginning of a topic that was deleted and created again: librdkafka does
so without a gateway as well (fetch-semantics 6.7)."""
OWN_ENDINGS: Final = {"kafka-python-2.0.2": "ValueError: Invalid file object: None"}
"""Errors with which consumers end by their own fault: kafka-python uses a socket that it has closed."""

Say = Callable[[str], None]


@dataclass(slots=True)
class SoakOutcome:
    """The result of a run."""

    produced: ProducedRecords
    log: RecordLog
    readers: list[SoakConsumer]
    topics: SoakTopics
    disturbances: Disturbances
    gateways: Gateways
    last: Used
    written: Mapping[tuple[RecordPlace, int], Written]
    """For each record that is in the log more than once: its producer's id, epoch and sequence."""
    sessions: Mapping[int, tuple[int, int]]
    """By node id: the number of sessions of its followers, and of all sessions at the end."""
    problems: list[str]

    def missing(self, reader: SoakConsumer) -> list[tuple[RecordPlace, int]]:
        """Return the places and offsets of the records that a consumer did not receive."""
        return missing(self.produced, self.log, reader)

    def judge(self) -> None:
        """Add the problems with records, consumers and sessions to `problems`."""
        late, churn = self.disturbances.late, self.topics.churn
        self.problems += self.produced.problems(self.log, {churn: self.topics.generation}, self.written)
        direct = {reader.name: reader for reader in self.readers if reader.way == DIRECT}
        for reader in self.readers:
            name, received = str(reader), reader.received
            like = direct.get(reader.name.partition(",")[0])
            # Clients sometimes lose their position in a topic that was made again, without a gateway as well.
            lost = self.missing(reader)
            excused = reader.way == DIRECT or bool(like and (str(like) in late or self.missing(like)))
            if reader.name in READS_ON and lost and begins_late(lost, reader.received.log):
                excused = True
            excused |= bool(lost) and reads_on(lost, reader.received.log)
            if [where for where in lost if not (excused and where[0].topic == churn)]:
                self.problems.append(f"{name} lacks {len(lost)} records: {describe(lost)}")
            if name in late and not excused:
                self.problems.append(f"{name} had not received all of a topic when it was deleted")
            if received.changed:
                self.problems.append(f"{name} received changed records: {describe(received.changed)}")
            if received.invented:
                self.problems.append(f"{name} received invented records: {describe(received.invented)}")
            if reader.way == DIRECT:
                continue
            if received.again and not (like and like.received.again):
                self.problems.append(f"{name} received {received.again} records again without a reason")
            if private := reader.private_errors:
                self.problems.append(f"{name} was told {private}")
            endings = [
                said for said in reader.endings if OWN_ENDINGS.get(reader.name, said + ".") not in said
            ]
            if endings and not (like and like.endings):
                self.problems.append(f"{name} ended by itself: {endings[0][-400:]}")
        for node, (followers, at_end) in self.sessions.items():
            if at_end > followers:
                self.problems.append(
                    f"broker {node} has {at_end} sessions, {followers} of them its followers'"
                )


def missing(produced: ProducedRecords, log: RecordLog, reader: SoakConsumer) -> list[tuple[RecordPlace, int]]:
    """Return the records that a consumer has not received, but that are acknowledged or in the log."""
    received = reader.received.log
    places = {*produced.acknowledged.missing_from(received), *log.missing_from(received)}
    return sorted(where for where in places if where[0].topic in reader.topics)


def begins_late(lost: list[tuple[RecordPlace, int]], received: RecordLog) -> bool:
    """Whether all lost records (in order) begin partitions of topics that were made again."""
    first = {place: offset for place, offset, _ in reversed(list(received.items()))}
    return all(place.generation and offset < first.get(place, offset + 1) for place, offset in lost)


def reads_on(lost: list[tuple[RecordPlace, int]], received: RecordLog) -> bool:
    """Whether a consumer continued in a topic that was made again, from its offset in the old one.

    A fetch that names topics without ids can't tell the two apart (KIP-516). The broker only refuses such an
    offset while the new partition is shorter. A consumer without a fetch in that time does not notice. `lost`
    is in order.
    """
    first = {place: offset for place, offset, _ in reversed(list(received.items()))}
    last = {place: offset for place, offset, _ in received.items()}
    return all(
        place.generation
        and offset < first.get(place, 0)
        and first.get(place, 0) == last.get(replace(place, generation=place.generation - 1), -2) + 1
        for place, offset in lost
    )


def soak(seconds: float, seed: int, say: Say, only: frozenset[str] = frozenset()) -> SoakOutcome:
    """Run for some seconds, and until each kind of disturbance (of `only`, if given) has happened."""
    for tools in (False, True):  # of the brokers, and of the last look at them
        classpath(LATEST, tools=tools)  # now: nothing can be fetched from the network of this run
    with ExitStack() as stack:
        between, what = network(NODES, seed)
        say(f"seed {seed}; {what}")
        stack.enter_context(between)
        with between.far():
            cluster = Cluster(nodes=NODES, heap="320m")
            slots = {"max.incremental.fetch.session.cache.slots": FEW_SLOTS}
            cluster.brokers[-1].configure(slots)
            via = ",".join(configure(between, broker) for broker in cluster.brokers)
            say("starting three brokers ...")
            stack.enter_context(cluster)
            run_id = uuid.uuid4().hex[:6]
            topics = SoakTopics(f"steady-{run_id}", f"churn-{run_id}")
            with Admin(cluster.bootstrap) as admin:
                create(admin, topics.steady, PARTITIONS)
                create(admin, topics.churn, CHURN_PARTITIONS)
        gateways = stack.enter_context(Gateways(via, between.near))
        run = _SoakRun(seconds, seed, say, between, cluster, gateways, topics, only)
        stack.callback(run.close)
        return run.outcome()


class _SoakRun:
    """One run of the soak: its clients, its disturbances, and its end."""

    def __init__(
        self,
        seconds: float,
        seed: int,
        say: Say,
        between: Network,
        cluster: Cluster,
        gateways: Gateways,
        topics: SoakTopics,
        only: frozenset[str],
    ) -> None:
        self._seconds, self._say, self._network = seconds, say, between
        self._cluster, self._gateways, self._topics = cluster, gateways, topics
        self._produced = ProducedRecords()
        self._readers: list[SoakConsumer] = []
        self._sources = [
            SoakProducer(name, make, gateways.address, topics, self._produced, seed + number)
            for number, (name, make) in enumerate(CLIENTS.items())
        ]
        self._disturbances = Disturbances(
            cluster, between, gateways, topics, seed, max(5.0, seconds / 8), self._behind, only
        )
        self._began = time.monotonic()
        self._said = 0.0
        self._pool = ThreadPoolExecutor(len(self._sources) + 2)

    def close(self) -> None:
        """Kill the clients."""
        for reader in self._readers:
            reader.close()

    def outcome(self) -> SoakOutcome:
        """Run with disturbances, end all clients and the gateway gracefully, and return the judged result."""
        sent, topics = self._produced.sent, self._topics
        for way, bootstrap, place in (
            (GATEWAY, self._gateways.address, self._network.near),
            (DIRECT, self._cluster.bootstrap, self._network.far),
        ):
            for reader in readers(way, bootstrap, topics, sent, place):
                self._readers.append(reader)
        self._disturb()
        self._say("no more disturbances; waiting until everybody has received everything ...")
        log = self._caught_up()
        with self._network.far():
            numbers = written(self._cluster, chain.from_iterable(log.twice().values()))
        self._say("ending the clients ...")
        for reader in self._readers:
            reader.stop()
        self._gateways.quiet()
        followers = self._sessions()
        last = self._gateways.finish()
        sessions = {node: (before, self._sessions_of(node)) for node, before in followers.items()}
        outcome = SoakOutcome(
            self._produced,
            log,
            self._readers,
            topics,
            self._disturbances,
            self._gateways,
            last,
            numbers,
            sessions,
            self._disturbances.problems + self._gateways.problems,
        )
        outcome.judge()
        return outcome

    def _disturb(self) -> None:
        ended = threading.Event()
        disturbances = self._disturbances
        working: list[Future[None]] = [
            self._pool.submit(source.run, ended, self._network.near()) for source in self._sources
        ]
        disturbing: list[Future[None]] = []
        try:
            while not self._all_started():
                self._step(working)
            self._began = time.monotonic()
            disturbing += [self._pool.submit(disturbances.brokers), self._pool.submit(disturbances.gateway)]
            deadline = self._began + self._seconds
            while (now := time.monotonic()) < deadline or (
                not disturbances.complete and now < deadline + COMPLETE_SECONDS
            ):
                self._step([*working, *disturbing])
            disturbances.end()
            while not all(each.done() for each in disturbing):
                self._step(working)
        finally:
            disturbances.end()
            ended.set()
        restored(self._network.wires)
        for each in disturbing:
            each.result()
        while not all(each.done() for each in working):
            self._step([])
        for each in working:
            each.result()
        if not disturbances.complete:
            disturbances.problems.append("not every kind of disturbance has happened")

    def _all_started(self) -> bool:
        """Whether every consumer has received a record, or its start took too long."""
        late = time.monotonic() - self._began > CATCH_UP_SECONDS
        if late:
            self._disturbances.problems.append("not every consumer had received something before it began")
        return late or all(reader.received.log.count for reader in self._readers)

    def _step(self, working: Iterable[Future[None]]) -> None:
        time.sleep(STEP_SECONDS)
        for each in working:
            if each.done():
                each.result()  # it must not end by itself: this raises its error
                raise RuntimeError("a thread of the soak has ended early")
        for reader in self._readers:
            reader.read()
        now = time.monotonic()
        if now - self._said >= SAY_SECONDS:
            self._said = now
            self._gateways.used()
            self._tell()

    def _tell(self) -> None:
        produced = self._produced
        doing = " + ".join(filter(None, self._disturbances.now.values())) or "calm"
        counts = " ".join(
            f"{reader.name[:13]}{'!' * (',' in reader.name)}/{reader.way[0]} {reader.received.log.count}"
            for reader in self._readers
        )
        done = sum(self._disturbances.done.values())
        self._say(
            f"{time.monotonic() - self._began:6.0f} s  {done} disturbances, now {doing}; "
            f"{produced.acknowledged.count} acknowledged, {produced.given_up} given up; "
            f"{self._gateways.most / 1e6:.0f} MB; {counts}"
        )

    def _behind(self) -> list[str]:
        if any(source.churn_in_flight for source in self._sources):
            return [PRODUCERS]
        return [
            str(reader)
            for reader in self._readers
            if self._topics.churn in reader.topics
            and any(
                place.topic == self._topics.churn
                for place, _ in self._produced.acknowledged.missing_from(reader.received.log)
            )
        ]

    def _caught_up(self) -> RecordLog:
        """Return the log when all consumers have it, after `CATCH_UP_SECONDS` at the latest."""
        with self._network.far():
            log = read_log(self._cluster.bootstrap, self._topics)
        deadline = time.monotonic() + CATCH_UP_SECONDS
        while time.monotonic() < deadline:
            self._step([])
            if not any(missing(self._produced, log, reader) for reader in self._readers):
                break
        return log

    def _sessions(self) -> dict[int, int]:
        """Make brokers forget all sessions of clients, then use the gateway for a while.

        If a connection breaks, its session stays at the broker until the slot is needed, with or without a
        gateway. So all brokers are restarted one after the other. After that there are only sessions of
        followers, and the gateway has to close all of its own. Return the number of sessions of followers, by
        node id.
        """
        self._say("restarting the brokers, so that only sessions from now on count ...")
        with self._network.far():
            for broker in self._cluster.brokers:
                broker.restart()
                self._disturbances.settle()
        time.sleep(FOLLOWERS_SECONDS)
        followers = {broker.node_id: self._sessions_of(broker.node_id) for broker in self._cluster.brokers}
        # kafka-python has its own sessions, and closes them itself.
        at, sent = self._gateways.address, self._produced.sent
        some = readers(GATEWAY, at, self._topics, sent, self._network.near, without="kafka-python")
        self._readers_apart(list(some))
        return followers

    def _readers_apart(self, some: list[SoakConsumer]) -> None:
        """Run consumers for a while, with a takeover halfway. Their records are not checked."""
        try:
            self._held(some)
            self._gateways.take_over()
            if not (held := self._held(some)):
                self._disturbances.problems.append("the gateway had no session at the end: nothing to close")
            self._say(f"the gateway holds {held} sessions; ending its clients ...")
            for reader in some:
                reader.stop()
        finally:
            for reader in some:
                reader.close()

    def _held(self, some: list[SoakConsumer]) -> int:
        """Run consumers for `CALM_SECONDS`, and until the gateway holds sessions. Return how many."""
        began, held = time.monotonic(), 0
        while (calm := time.monotonic() - began) < CALM_SECONDS or (not held and calm < CATCH_UP_SECONDS):
            time.sleep(STEP_SECONDS)
            for reader in some:
                reader.read()
            if calm >= CALM_SECONDS:
                held = self._gateways.state().get("sessions", {}).get("held", 0)
        return held

    def _sessions_of(self, node_id: int) -> int:
        with self._network.far():
            return broker_sessions(self._cluster.broker(node_id))


def read_log(bootstrap: str, topics: SoakTopics) -> RecordLog:
    """Read all records of the topics, from the brokers themselves."""
    log = RecordLog()
    counts = {topics.steady: PARTITIONS, topics.churn: CHURN_PARTITIONS}
    places = [(name, partition) for name, count in counts.items() for partition in range(count)]
    for (name, partition), offset, message in records(bootstrap, places):
        headers = [(str(key), _bytes(content)) for key, content in list(message.headers() or [])]
        generation = int(dict(headers)[GENERATION] or b"-1")
        value = _bytes(message.value()) or b""
        record = SoakRecord(message.timestamp()[1], _bytes(message.key()), value, headers)
        log.put(RecordPlace(name, generation, partition), offset, record.digest())
    return log


def _bytes(content: str | bytes | None) -> bytes | None:
    """Return a value as bytes. The library returns bytes, but its types allow text."""
    return content.encode() if isinstance(content, str) else content


def table(outcome: SoakOutcome) -> Table:
    """Return a table of the records that each consumer received."""
    produced = outcome.produced
    title = f"{len(produced.sent)} records sent, {produced.acknowledged.count} acknowledged with their offset"
    found = Table(title=title)
    for heading in ("consumer", "way", "received", "missing", "changed", "invented", "repeated", "errors"):
        found.add_column(heading)
    for reader in outcome.readers:
        received = reader.received
        numbers = (
            received.log.count,
            len(outcome.missing(reader)),
            len(received.changed),
            len(received.invented),
            f"{received.repeated} ({received.again} without a reason)",
        )
        errors = ", ".join(f"{code} {count}" for code, count in sorted(reader.errors.items()))
        found.add_row(reader.name, reader.way, *map(str, numbers), errors)
    return found
