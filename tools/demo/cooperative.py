"""`make demo-cooperative`: four members on one partition, first as a plain, then as a cooperative group.

A producer writes records with keys into topics of one partition. Four consumers of confluent-kafka, each with
a gateway beside it, work for 5 ms on each record. Both groups get the same records through the same gateways,
each group from its own topic. The gateways' option `--cooperative` names only the second group. When half of
the records are done, the busiest member is killed (SIGKILL). Each member logs each record, so all records are
checked at the end.
"""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from confluent_kafka import Producer
from rich.console import Console

from tools.demo.cooperative_report import CooperativeOutcome, GroupOutcome, cooperative_table
from tools.demo.frame import RunningStep, Steps, fetch, parser, perform, say, start
from tools.gateway import GatewayProcess
from tools.kafka import LATEST, Broker
from tools.kafka.admin import Admin
from tools.work_log import handled
from tools.worker import LoggedWorker, group_member, wait_steady

PLAIN: Final = "orders-plain"
COOPERATIVE: Final = "orders"
MEMBERS: Final = 4
BESIDE: Final = f"{MEMBERS} gateways, one for each member"
KEYS: Final = 500
RECORDS: Final = 6_000
WORK_MS: Final = 5.0
VALUE_BYTES: Final = 200
STEADY_SECONDS: Final = 2.0
"""A group is stable so long after a rebalance. Members notice one within half a second."""
JOIN_SECONDS: Final = 60.0
ERRORS: Final = 3
STALLED_SECONDS: Final = 45.0
"""Without a record for so long, the demo gives up. A group notices a kill after 6 s."""
EXAMPLES: Final = """\
examples:
  make demo-cooperative                                      takes about a minute and a half
  .venv/bin/python -m tools.demo.cooperative --records 20000

exit codes: 0: nothing lost, nothing out of order, and four members at least 3 times as fast; 1: something
failed; 2: wrong options; 130: interrupted
"""
NEXT: Final = """\
Try next:
  docs/users/cooperative.md
      for whom this is, for whom not; a drill to type: kill a member, kill a gateway, take the gateways out
  .venv/bin/fetchgate proxy --bootstrap YOUR-BROKER:9092 --cooperative YOUR-GROUP
      beside each consumer of the group; then start it with bootstrap.servers=127.0.0.1:19092, and
      client.id=YOUR-GROUP.1 for the first, YOUR-GROUP.2 for the second, and so on
"""


def produce(bootstrap: str, topic: str, count: int) -> None:
    """Write records, each with a random key; every run writes the same ones."""
    settings = {"linger.ms": 5, "enable.idempotence": True, "log_level": ERRORS}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    chance = random.Random(1)  # noqa: S311 - no secret
    for number in range(count):
        value = b"%d" % number
        producer.produce(topic, value.ljust(VALUE_BYTES, b"."), key=b"%d" % chance.randrange(KEYS))
        producer.poll(0)
    if left := producer.flush(30):
        raise RuntimeError(f"the broker did not take {left} records")


def watch(workers: Sequence[LoggedWorker], until: int, step: RunningStep) -> None:
    """Wait until `until` different records are handled, or no record was handled for `STALLED_SECONDS`."""
    done, since = -1, time.monotonic()
    while done < until and time.monotonic() - since < STALLED_SECONDS:
        time.sleep(0.1)
        now = handled([worker.entries for worker in workers]).records
        if now > done:
            done, since = now, time.monotonic()
        each = ", ".join(f"{worker.done:,}" for worker in workers)
        step.reached(done, f"{done:,} records ({each})")


def work(
    bootstrap: str, gateways: Sequence[str], group: str, count: int, folder: Path, steps: Steps
) -> GroupOutcome:
    """Let four members work on records that go to the broker directly. Halfway, kill a member."""
    workers = [
        group_member(
            gateways[number],
            group,
            group,
            number,
            folder,
            work_ms=WORK_MS,
            entries=2 * count + 1_000,
        )
        for number in range(MEMBERS)
    ]
    with ExitStack() as stack:
        with steps.step(f"{MEMBERS} members of {group}"):
            for worker in workers:
                stack.enter_context(worker)
            wait_steady(workers, STEADY_SECONDS, at_most=JOIN_SECONDS)
        with steps.step(f"{group}: {count:,} records, {WORK_MS:g} ms of work each", total=count) as step:
            produce(bootstrap, group, count)
            watch(workers, count // 2, step)
            killed = max(range(MEMBERS), key=lambda number: workers[number].done)
            at = workers[killed].kill()
            watch(workers, count, step)
            logs = [worker.entries for worker in workers]
        with steps.step(f"{group}: the members leave"):
            left = [worker for number, worker in enumerate(workers) if number != killed]
            for worker in left:
                worker.leave()
            for worker in left:
                worker.wait()
    return GroupOutcome.of(logs, killed=killed, killed_at=at, produced=count)


def run(count: int, steps: Steps) -> CooperativeOutcome:
    """Start broker, gateways and members, let both groups work, and stop all of them."""
    fetch(steps, LATEST)
    with ExitStack() as stack:
        broker = start(stack, steps, f"Kafka {LATEST}: starting a broker", Broker(LATEST))
        with steps.step(f"Two topics of one partition; {BESIDE}: --cooperative {COOPERATIVE}"):
            with Admin(broker.address) as admin:
                for group in (PLAIN, COOPERATIVE):
                    admin.create_topic(group, partitions=1)
            gateways = [
                stack.enter_context(GatewayProcess(broker.address, "--cooperative", COOPERATIVE)).address
                for _ in range(MEMBERS)
            ]
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="fetchgate-")))
        plain, cooperative = (
            work(broker.address, gateways, group, count, folder, steps) for group in (PLAIN, COOPERATIVE)
        )
    return CooperativeOutcome(plain=plain, cooperative=cooperative)


def show(count: int, outcome: CooperativeOutcome, console: Console) -> None:
    """Print the result."""
    console.print()
    console.print(cooperative_table(outcome))
    say(
        console,
        f"{count:,} records with {KEYS} keys, {WORK_MS:g} ms of work on each; the same for both groups, "
        f"through {BESIDE}. When half were done, the busiest member was killed. A broker misses a member "
        "after its session timeout, here 6 s.",
        "Each record was checked: whether it was handled, behind which ones of its key, and if twice, "
        "whether the killed member had not committed it.",
        outcome.verdict,
    )


def _count(text: str) -> int:
    with suppress(ValueError):
        if 1_000 <= (value := int(text)) <= 1_000_000:
            return value
    raise argparse.ArgumentTypeError(f"{text} is not a number between 1000 and 1000000")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo. Return the exit code: 0 if no record is wrong and the group is fast enough, else 1."""
    options = parser(
        "tools.demo.cooperative",
        "Four members on one partition: as a plain group, and as a cooperative one.",
        EXAMPLES,
    )
    options.add_argument(
        "--records", type=_count, default=RECORDS, metavar="N", help=f"for each group (default: {RECORDS})"
    )
    count = options.parse_args(argv).records
    return perform(partial(run, count), partial(show, count), NEXT)


if __name__ == "__main__":
    sys.exit(main())
