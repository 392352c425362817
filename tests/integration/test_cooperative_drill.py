"""A drill with a cooperative group: kill a member, kill a gateway, take the gateways out."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

pytestmark = pytest.mark.integration

KEYS = {f"order-{number}" for number in range(1, 10)}
Seen = list[tuple[str, int]]
"""Key and number of each record."""


PROGRAMS = {
    "producer.py": """\
import itertools, sys, time
from confluent_kafka import Producer

producer = Producer({"bootstrap.servers": sys.argv[1]})
for number in itertools.count(1):
    producer.produce("orders", key=f"order-{number % 9 + 1}", value=str(number))
    producer.poll(0)
    time.sleep(0.1)
""",
    "member.py": """\
import signal, sys
from confluent_kafka import Consumer

name, bootstrap = sys.argv[1:]
stopped = []
for number in signal.SIGINT, signal.SIGTERM:
    signal.signal(number, lambda *_: stopped.append(True))  # the record at hand is printed first
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "billing", "client.id": f"billing.{name}",
                     "auto.offset.reset": "earliest", "auto.commit.interval.ms": 1000,
                     "session.timeout.ms": 6000, "heartbeat.interval.ms": 1000, "reconnect.backoff.ms": 1000})
consumer.subscribe(["orders"])
while not stopped:
    if (message := consumer.poll(1)) and not message.error():
        print(name, message.key().decode(), message.value().decode(), flush=True)
consumer.close()
""",
}
"""The producer writes ten numbered records a second, with nine keys. A member prints what it reads."""


class Drill:
    """The shell of the person who does the drill."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        for name, body in PROGRAMS.items():
            (folder / name).write_text(body)

    def start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self.folder / f"{arguments[0]}.log").open("wb"))
        process = subprocess.Popen([sys.executable, program, *arguments], cwd=self.folder, stdout=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def seen(self, name: str) -> Seen:
        lines = (self.folder / f"{name}.log").read_text().splitlines()
        return [(key, int(number)) for _, key, number in map(str.split, lines)]

    def newest(self, *names: str) -> int:
        return max((number for name in names for _, number in self.seen(name)), default=0)

    def last_keys(self, name: str) -> set[str]:
        return {key for key, _ in self.seen(name)[-len(KEYS) :]}

    def split(self, *names: str) -> bool:
        """Return whether each member gets keys, and no key is among the last ones of two members."""
        shares = [self.last_keys(name) for name in names]
        return all(shares) and sum(map(len, shares)) == len(set().union(*shares)) == len(KEYS)

    def end(self, member: subprocess.Popen[bytes]) -> None:
        member.terminate()
        assert member.wait(30) == 0


def wait(wanted: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not wanted():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def test_kill_a_member_kill_a_gateway_take_the_gateways_out(broker: Broker, tmp_path: Path) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic("orders", partitions=1)
    with ExitStack() as stack:
        gateways = [
            stack.enter_context(GatewayProcess(broker.address, "--cooperative", "billing")) for _ in range(3)
        ]
        drill = Drill(tmp_path, stack)
        drill.start("producer.py", broker.address)

        one = drill.start("member.py", "one", gateways[0].address)
        wait(lambda: drill.last_keys("one") == KEYS, "one member gets all keys")

        two = drill.start("member.py", "two", gateways[1].address)
        three = drill.start("member.py", "three", gateways[2].address)
        wait(lambda: drill.split("one", "two", "three"), "each of three members gets some of the keys")

        two.kill()
        two.wait()
        wait(lambda: drill.split("one", "three"), "the others take over the keys of the killed member")

        gateways[2].kill()
        wait(lambda: drill.last_keys("one") == KEYS, "the group misses the member behind the killed gateway")
        gateways[2].start()
        wait(lambda: drill.split("one", "three"), "the member behind the restarted gateway gets keys")

        drill.end(one)
        drill.start("member.py", "plain", broker.address)
        wait(
            lambda: any("group shares no partition" in gateway.log() for gateway in gateways),
            "a gateway reports that the group is a plain one",
        )
        newest = drill.newest("one", "three", "plain")
        wait(lambda: drill.newest("plain", "three") > newest + 20, "it goes on")
        drill.end(three)
        for gateway in gateways:
            gateway.stop()
        newest = drill.newest("three")
        wait(lambda: drill.newest("plain") > newest + 20, "it goes on without gateways")

        every = [drill.seen(name) for name in ("one", "two", "three", "plain")]
        numbers = Counter(number for seen in every for _, number in seen)
        last = drill.newest("plain")
        assert sorted(numbers) == list(range(1, last + 1))
        for seen in every:
            for key in KEYS:
                own = [number for each, number in seen if each == key]
                assert own == sorted(set(own))
