"""`make demo-link`: two gateways in a row, before a real broker that gives no sessions.

A topic has 100 partitions. Two consumers of confluent-kafka (librdkafka, which has no fetch sessions) read it
at the same time. One uses two gateways in a row. The other uses a gateway with `--sessions off`, which
changes nothing and counts bytes.

1. Records are written, and both consumers must get the same ones. 2. Nothing is written, so all fetches are
idle. The fetches between the two gateways are counted. 3. To compare with a native session, the same consumer
reads through one gateway from a broker that gives sessions.

So no figure is estimated.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from rich.console import Console

from tools.counting import CountedFetches
from tools.demo.frame import SAME_RECORDS, Steps, add_seconds, fetch, parser, perform, say, start
from tools.demo.link_report import LinkOutcome, link_table
from tools.demo.reading import (
    CATCH_UP_SECONDS,
    PARTITIONS,
    SETTLE_SECONDS,
    TOPIC,
    DemoReader,
    catch_up,
    check,
    produce,
)
from tools.demo.report import compare
from tools.gateway import GatewayProcess
from tools.kafka import LATEST, Broker
from tools.kafka.admin import Admin
from tools.kafka.settings import Properties


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessionless:
    """A broker without sessions."""

    why: str
    properties: Properties
    native: str
    """The release of the broker with native sessions, of the same Fetch version."""


BROKERS: Mapping[str, Sessionless] = {
    LATEST: Sessionless(
        why="with 0 slots for sessions",
        properties={"max.incremental.fetch.session.cache.slots": 0},
        native=LATEST,
    ),
    "1.0.2": Sessionless(why="which has no sessions", properties={}, native="1.1.1"),
}

EXAMPLES = f"""\
examples:
  make demo-link                                       Kafka {LATEST} with 0 slots for sessions
  .venv/bin/python -m tools.demo.link --seconds 60     counts more fetches
  .venv/bin/python -m tools.demo.link --kafka 1.0.2    a release that has no sessions
                                                       (downloads it and 1.1.1 once, 36 MB)

exit codes: 0: the records are the same, and the link takes what a native session takes; 1: something failed;
2: wrong options; 130: interrupted
"""
NEXT = """\
Try next: the two commands of docs/users/two-gateways.md.
docs/developers/sessions.md says how it works.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A place where bytes are counted: one side of a gateway."""

    gateway: GatewayProcess
    side: str
    """The side of the gateway to count at: "client" or "broker"."""
    parked_seconds: float = 0.4
    """The shortest wait of an idle fetch at the broker. librdkafka lets it wait half a second."""

    def counted(self) -> CountedFetches:
        """Return the counts so far."""
        return CountedFetches.of(self.gateway.state()["totals"], self.side)

    def counted_at_a_fetch(self) -> CountedFetches:
        """Return the counts while one fetch is outstanding, so that requests and responses are as many."""
        began = earlier_at = time.monotonic()
        earlier = self.counted()
        while earlier_at - began < CATCH_UP_SECONDS:
            time.sleep(0.02)
            at = time.monotonic()
            now = self.counted()
            if now.fetches > earlier.fetches and time.monotonic() - earlier_at < self.parked_seconds:
                return now
            earlier, earlier_at = now, at
        raise RuntimeError(f"no idle fetch was seen in {CATCH_UP_SECONDS:.0f} s at {self.gateway.address}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The records read, and the bytes of idle fetches."""

    produced: int
    read: int
    differences: tuple[str, ...]
    idle: Mapping[str, CountedFetches]


def read(
    bootstrap: str,
    consumers: Mapping[str, GatewayProcess],
    points: Mapping[str, Point],
    seconds: float,
    steps: Steps,
) -> Read:
    """Read for half of the time, then count idle fetches at `points`. All client ids are as long."""
    half = seconds / 2
    readers = [DemoReader(gateway.address, name) for name, gateway in consumers.items()]
    try:
        with steps.step(f"Writing and reading for {half:g} s", total=half) as step:
            for reader in readers:
                reader.start()
            time.sleep(SETTLE_SECONDS)
            produced = produce(bootstrap, half, step, readers)
            catch_up(readers, produced)
        with steps.step(f"Counting idle fetches for {half:g} s", total=half) as step:
            earlier = {name: point.counted_at_a_fetch() for name, point in points.items()}
            began = time.monotonic()
            while (spent := time.monotonic() - began) < half:
                check(readers)
                first = next(iter(points))
                step.reached(spent, f"{points[first].counted().fetches - earlier[first].fetches} fetches")
                time.sleep(0.2)
            idle = {name: point.counted_at_a_fetch() - earlier[name] for name, point in points.items()}
    finally:
        for reader in readers:
            reader.stop()
    same, differences = compare(readers[0].records, readers[-1].records)
    return Read(produced=produced, read=same, differences=differences, idle=idle)


def run(release: str, seconds: float, steps: Steps) -> LinkOutcome:
    """Start brokers, gateways and consumers. Read the records, and stop everything."""
    sessionless = BROKERS[release]
    fetch(steps, release, sessionless.native)
    with ExitStack() as stack:
        what = f"Kafka {release}, {sessionless.why}: starting a broker"
        broker = with_topic(start(stack, steps, what, Broker(release, properties=sessionless.properties)))
        with steps.step("Two gateways in a row, and a gateway without sessions"):
            far = stack.enter_context(GatewayProcess(broker.address))
            near = stack.enter_context(GatewayProcess(far.address))
            wire = stack.enter_context(GatewayProcess(broker.address, "--sessions", "off"))
        points = {
            "direct": Point(gateway=wire, side="broker"),
            "near": Point(gateway=near, side="broker"),
            "far": Point(gateway=far, side="client"),
        }
        row = read(broker.address, {"direct": wire, "linked": near}, points, seconds, steps)
    with ExitStack() as stack:
        what = f"Kafka {sessionless.native}, with sessions: starting a broker"
        broker = with_topic(start(stack, steps, what, Broker(sessionless.native)))
        with steps.step("One gateway"):
            gateway = stack.enter_context(GatewayProcess(broker.address))
        points = {"native": Point(gateway=gateway, side="broker")}
        native = read(broker.address, {"native": gateway}, points, seconds, steps)
    return LinkOutcome(
        **row.idle, **native.idle, produced=row.produced, read=row.read, differences=row.differences
    )


def with_topic(broker: Broker) -> Broker:
    """Create the topic at a broker. Return the broker."""
    with Admin(broker.address) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS)
    return broker


def show(release: str, outcome: LinkOutcome, console: Console) -> None:
    """Print the result of the demo."""
    sessionless = BROKERS[release]
    console.print()
    console.print(link_table(outcome))
    say(
        console,
        f"Client (librdkafka, no sessions) - gateway - link - gateway - Kafka {release}, {sessionless.why}. "
        f"Topic of {PARTITIONS} partitions. An idle fetch brings no records. Bytes are whole Kafka frames; "
        "those of the link were counted at both ends. Direct: the same client without these gateways. Native "
        f"session: the same client, one gateway, and Kafka {sessionless.native}, which gives it a session.",
        SAME_RECORDS.format(read=outcome.read, produced=outcome.produced),
        f"Saved on the link: {outcome.saved:.1%} of the bytes of an idle fetch.",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo. Return 0 if the records are the same and the link takes few bytes, else 1."""
    options = parser(
        "tools.demo.link",
        "Count the bytes between two gateways in a row, before a broker that gives no sessions.",
        EXAMPLES,
    )
    add_seconds(options, "to read from each broker", 20.0)
    options.add_argument(
        "--kafka", choices=BROKERS, default=LATEST, help=f"release of the broker (default: {LATEST})"
    )
    chosen = options.parse_args(argv)
    return perform(partial(run, chosen.kafka, chosen.seconds), partial(show, chosen.kafka), NEXT)


if __name__ == "__main__":
    sys.exit(main())
