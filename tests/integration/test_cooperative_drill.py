"""The drill of docs/cooperative.md, with the programs from the page."""

import re
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

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

PAGE = Path(__file__).parents[2] / "docs" / "cooperative.md"
Seen = list[tuple[str, int]]
"""Key and number of each record."""


def programs() -> dict[str, str]:
    """Return the programs of the page by name: the text after `cat > NAME <<'END'`."""
    text = PAGE.read_text().partition("### A drill")[2].partition("\n## ")[0]
    found = re.findall(r"    cat > (\w+\.py) <<'END'\n(.*?)    END\n", text, re.DOTALL)
    return {name: re.sub(r"^    ", "", body, flags=re.MULTILINE) for name, body in found}


class Drill:
    """The shell of the person who does the drill."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        for name, body in programs().items():
            (folder / name).write_text(body)

    def start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self.folder / f"{arguments[0]}.log").open("wb"))
        process = subprocess.Popen(
            [sys.executable, program, *arguments], cwd=self.folder, stdout=log, stderr=subprocess.STDOUT
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def seen(self, name: str) -> Seen:
        lines = (self.folder / f"{name}.log").read_text().splitlines()
        return [(key, int(number)) for _, key, number in map(str.split, lines)]


def wait(wanted: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 45
    while not wanted():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def keys_of(seen: Seen) -> set[str]:
    return {key for key, _ in seen}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def test_add_two_members_kill_one_take_the_gateway_out(broker: Broker, tmp_path: Path) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic("orders", partitions=1)
    with ExitStack() as stack:
        gateway = stack.enter_context(GatewayProcess(broker.address, "--cooperative", "billing"))
        drill = Drill(tmp_path, stack)
        drill.start("producer.py", broker.address)

        one = drill.start("member.py", "one", gateway.address)
        wait(lambda: len(keys_of(drill.seen("one"))) == 9, "one member gets all keys")

        two = drill.start("member.py", "two", gateway.address)
        three = drill.start("member.py", "three", gateway.address)
        wait(lambda: bool(drill.seen("two") and drill.seen("three")), "three members get records")
        time.sleep(6)
        shares = [keys_of(drill.seen(name)[-9:]) for name in ("one", "two", "three")]
        assert sum(map(len, shares)) == len(set.union(*shares)) == 9

        two.kill()
        two.wait()
        taken = shares[1]
        before = [len(drill.seen(name)) for name in ("one", "three")]

        def taken_over() -> bool:
            after = [drill.seen(name)[old:] for name, old in zip(("one", "three"), before, strict=True)]
            return taken <= set.union(*map(keys_of, after))

        wait(taken_over, "the others take over the keys of the killed member")

        for member in (one, three):
            member.terminate()
            assert member.wait(30) == 0
        gateway.stop()
        drill.start("member.py", "plain", broker.address)
        newest = max(number for _, number in drill.seen("one") + drill.seen("three"))
        wait(
            lambda: max((number for _, number in drill.seen("plain")), default=0) > newest + 20, "it goes on"
        )

        every = [drill.seen(name) for name in ("one", "two", "three", "plain")]
        numbers = Counter(number for seen in every for _, number in seen)
        last = max(number for _, number in drill.seen("plain"))
        assert sorted(numbers) == list(range(1, last + 1))
        for seen in every[:3]:
            for key in keys_of(seen):
                own = [number for each, number in seen if each == key]
                assert own == sorted(set(own))
