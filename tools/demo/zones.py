"""`make demo-zones`: three brokers in three racks, and four clients that read in their own zone.

Each partition has its leader in one rack, and followers in the other two. Four consumers that have no setting
for it are in rack R2, each with a gateway beside it.

1. The gateways have only `--rack R2`: they count record bytes by zone, and change nothing. 2. New gateways
have `--rack-clients` as well. In the middle, the broker in R2 is killed, and comes back.

Each record is checked: whether a client lost it, got it twice, out of order, or with another value.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final, Self

from rich.console import Console

from tests.clients.runner import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, Program, Run, Sessions, old_kafka_python
from tools.demo.frame import RunningStep, Steps, add_seconds, fetch, parser, perform, say, start
from tools.demo.zones_report import (
    ClientOutcome,
    Period,
    ZonesOutcome,
    by_zone,
    checked,
    records_table,
    zones_table,
)
from tools.gateway import GatewayProcess
from tools.kafka import LATEST, Broker, Cluster
from tools.kafka.admin import Admin
from tools.zones.brokers import HERE, PARTITIONS, RACKS, replicas
from tools.zones.outcome import judge
from tools.zones.readers import Received
from tools.zones.written import Written

AUDIT: Final = ("--rack", RACKS[HERE])
HELP: Final = (*AUDIT, "--rack-clients", "librdkafka,kafka-python-3,aiokafka,kafka-python-2")
RECORDS_PER_SECOND: Final = 120
RECORD_BYTES: Final = 1_000
OLD_KAFKA_PYTHON: Final = "2.3.3"
"""The last kafka-python before 3. It speaks Fetch v10, which followers do not answer."""
KILLED_SECONDS: Final = 8.0
"""Seconds until the killed broker is started again. The cluster misses it after 6 s."""
BACK_SECONDS: Final = 60.0
"""For clients to read in their zone again. The replica is not named for 30 s after a failure."""
PATIENCE: Final = 60.0
LOOK_SECONDS: Final = 1.0
EXAMPLES: Final = """\
examples:
  make demo-zones                                            takes about a minute and a half
  .venv/bin/python -m tools.demo.zones --seconds 60

exit codes: 0: nothing lost, twice or out of order, and all clients read in their zone; 1: something failed;
2: wrong options; 130: interrupted
"""
NEXT: Final = """\
Try next:
  docs/users/zones.md
      what clients can do without fetchgate, what it costs, when a replica is named
  .venv/bin/fetchgate proxy --bootstrap YOUR-BROKER:9092 --rack YOUR-ZONE
      counts what crosses: curl http://127.0.0.1:9464/metrics | grep zone_bytes
  .venv/bin/fetchgate proxy --bootstrap YOUR-BROKER:9092 --rack YOUR-ZONE --rack-clients CLIENT-ID
      names the replica in the zone as leader for these consumers
  .venv/bin/fetchgate replay measure captures/librdkafka-zones.pcap --client-rack 127.0.0.0/8=R2
      computes what would move, from a capture
"""


class ZoneReader:
    """A consumer with a gateway beside it. It reads a topic from its beginning."""

    def __init__(self, program: Program, gateway: GatewayProcess, topic: str) -> None:
        self.name = program.name
        """The name of the client's library. With its version, as soon as the client has told it."""
        self.received: list[Received] = []
        self.periods: dict[Period, Counter[str]] = {}
        self._last: Counter[str] = Counter()
        self._ends: set[int] = set()
        self._gateway = gateway
        self._run = Run(program, gateway.address, assign={topic: PARTITIONS})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._run.__exit__(None, None, None)

    def read(self) -> None:
        """Take what the consumer has printed since the last call."""
        ended = not self._run.running
        for line in self._run.take():
            match line["kind"]:
                case "record":
                    self.received.append(Received(line["partition"], line["offset"], line["value"], 0.0))
                case "start":
                    self.name = f"{line['client']} {line['version']}"
                case "eof":
                    self._ends.add(line["partition"])
        if ended:
            raise RuntimeError(f"the consumer {self.name} has ended:\n{self._run.told_on_stderr()}")

    @property
    def started(self) -> bool:
        """Whether the consumer has fetched each partition."""
        return len(self._ends) == PARTITIONS

    def counted(self) -> Counter[str]:
        """Return the record bytes that the gateway has counted so far, by zone."""
        return by_zone(self._gateway.state()["zones"]["bytes"])

    def end_period(self, period: Period) -> None:
        """Note the record bytes that were counted since the last period."""
        now = self.counted()
        self.periods[period] = now - self._last
        self._last = now


class Half:
    """One half of the demo: all clients read what is written meanwhile. Leaving the ``with`` ends them."""

    def __init__(
        self, cluster: Cluster, topic: str, clients: Sequence[Program], options: Sequence[str]
    ) -> None:
        self._cluster, self._topic, self._clients, self._options = cluster, topic, clients, options
        self._stack = ExitStack()
        self._written = Written(cluster.bootstrap, topic, RECORDS_PER_SECOND, RECORD_BYTES)
        self.readers: list[ZoneReader] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        with Admin(self._cluster.broker(1).address) as admin:
            admin.create_topic(self._topic, assignment={part: replicas(part) for part in range(PARTITIONS)})
        for client in self._clients:
            gateway = self._stack.enter_context(GatewayProcess(self._cluster.bootstrap, *self._options))
            reader = ZoneReader(client, gateway, self._topic)
            self.readers.append(self._stack.enter_context(reader))
        if not self._reach(lambda reader: reader.started):
            raise RuntimeError(f"not all consumers have started in {PATIENCE:g} s")
        self._stack.enter_context(self._written)

    def _reach(self, true: Callable[[ZoneReader], bool]) -> bool:
        """Read until a condition is true for all clients, at most `PATIENCE`. Return whether it is true."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for reader in self.readers:
                reader.read()
            if all(true(reader) for reader in self.readers):
                return True
            time.sleep(0.05)
        return False

    def go_on(self, seconds: float, step: RunningStep, since: float = 0.0) -> None:
        """Read for some time, and show how much was read."""
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            for reader in self.readers:
                reader.read()
            each = ", ".join(f"{len(reader.received):,}" for reader in self.readers)
            step.reached(since + passed, f"{len(self._written.values):,} written, read: {each}")
            time.sleep(0.1)

    def wait_back(self, step: RunningStep) -> None:
        """Wait until all clients read only in their zone, at most `BACK_SECONDS`."""
        began, before = time.monotonic(), [reader.counted() for reader in self.readers]
        while (passed := time.monotonic() - began) < BACK_SECONDS:
            self.go_on(LOOK_SECONDS, step, passed)
            now = [reader.counted() for reader in self.readers]
            if all(
                new["same"] > old["same"] and new["other"] == old["other"]
                for new, old in zip(now, before, strict=True)
            ):
                return
            before = now

    def finish(self) -> None:
        """Stop writing, and wait at most `PATIENCE` seconds until clients have all that was written."""
        self._written.stop()
        if refused := self._written.refused:
            raise RuntimeError(f"the brokers did not accept {refused} records")
        self._reach(lambda reader: len(reader.received) >= len(self._written.values))

    def end_period(self, period: Period) -> None:
        """Note what was counted since the last period."""
        for reader in self.readers:
            reader.end_period(period)

    def check(self, reader: ZoneReader) -> Counter[str]:
        """Return the result of the check of all records of a client."""
        return checked(judge(reader.received, self._written.values, 0.0, 0.0), len(self._written.values))


@contextmanager
def four_clients(
    cluster: Cluster, topic: str, four: Sequence[Program], options: Sequence[str], steps: Steps
) -> Iterator[Half]:
    """Run the clients of one half, each with a gateway."""
    with ExitStack() as stack:
        with steps.step(f"Four clients, each with a gateway: {' '.join(options)}"):
            half = stack.enter_context(Half(cluster, topic, four, options))
        yield half


def before(half: Half, seconds: float, steps: Steps) -> None:
    """Read while the gateways only count."""
    with steps.step(f"Without help: reading for {seconds:g} s", total=seconds) as step:
        half.go_on(seconds, step)
        half.finish()
        half.end_period(Period.BEFORE)


def after(half: Half, broker: Broker, seconds: float, steps: Steps) -> None:
    """Read while the gateways help. Kill the broker in the zone, and start it again."""
    with steps.step(f"With help: reading for {seconds:g} s", total=seconds) as step:
        half.go_on(seconds, step)
        half.end_period(Period.AFTER)
    with steps.step(f"The broker in the zone: killed, and started after {KILLED_SECONDS:g} s") as step:
        broker.kill()
        half.go_on(KILLED_SECONDS, step)
        broker.start()
    with steps.step(
        "Reading until clients are in their zone again (30 s after the kill at the soonest)"
    ) as step:
        half.wait_back(step)
        half.end_period(Period.KILLED)
    with steps.step(f"Reading for {seconds / 2:g} s more", total=seconds / 2) as step:
        half.go_on(seconds / 2, step)
        half.finish()
        half.end_period(Period.BACK)


def run(seconds: float, steps: Steps) -> ZonesOutcome:
    """Start brokers, gateways and clients, read in both halves, and stop all of them."""
    fetch(steps, LATEST)
    with ExitStack() as stack:
        what = f"Kafka {LATEST}: starting three brokers in three racks"
        cluster = start(stack, steps, what, Cluster(racks=RACKS))
        with steps.step(f"kafka-python {OLD_KAFKA_PYTHON}, of which pip makes a copy in .cache"):
            old = old_kafka_python(OLD_KAFKA_PYTHON, Sessions.OWN)
        four = (CONFLUENT, KAFKA_PYTHON, AIOKAFKA, old)
        with four_clients(cluster, "zones-before", four, AUDIT, steps) as first:
            before(first, seconds, steps)
        with four_clients(cluster, "zones-after", four, HELP, steps) as second:
            after(second, cluster.broker(HERE), seconds, steps)
    return ZonesOutcome(
        clients=tuple(
            ClientOutcome(
                name=other.name,
                periods=one.periods | other.periods,
                checked=first.check(one) + second.check(other),
            )
            for one, other in zip(first.readers, second.readers, strict=True)
        )
    )


def show(outcome: ZonesOutcome, console: Console) -> None:
    """Print the result."""
    console.print()
    console.print(zones_table(outcome))
    say(
        console,
        f"Three brokers in the racks {', '.join(RACKS.values())} lead a third of {PARTITIONS} partitions "
        f"each, with {RECORDS_PER_SECOND} records/s of {RECORD_BYTES:,} bytes. The clients are in "
        f"{RACKS[HERE]}, and none of them has a setting for it. The gateway of each client counts "
        "whole batches.",
        f"before: {' '.join(AUDIT)}, which only counts. after: {' '.join(HELP)}. Then the broker in "
        f"{RACKS[HERE]} is killed, and is started again. This part ends when clients read from it again, no "
        "sooner than 30 s after the kill.",
    )
    console.print()
    console.print(records_table(outcome))
    say(
        console,
        outcome.verdict,
        "Metadata names the replica in the zone as the leader of each partition: --rack-clients. The "
        "brokers need no replica selector.",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo. Return the exit code: 0 if no record is wrong and clients read in their zone, else 1."""
    options = parser(
        "tools.demo.zones",
        "Three brokers in three racks: what crosses zones, without fetchgate and with it.",
        EXAMPLES,
    )
    add_seconds(options, "each half reads while nothing fails", 10.0)
    return perform(partial(run, options.parse_args(argv).seconds), show, NEXT)


if __name__ == "__main__":
    sys.exit(main())
