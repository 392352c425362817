"""The clients, and when each of their records came."""

import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

from tests.clients.programs import lacking, program_of
from tests.clients.runner import Program, Run
from tools.zones.brokers import PARTITIONS

STEP_SECONDS: Final = 0.02
GIVES_UP_SECONDS: Final = 25.0
"""How long a client has to be without a record, after an error, so that the run does not wait for it."""
_GROUP: Final = "-group"
"""The end of the name of a client that reads as a member of a group. Others are assigned all partitions."""
CLIENTS: Final = (
    "java",
    "confluent-kafka",
    "sarama",
    f"sarama{_GROUP}",
    "kafka-python",
    "franz-go",
    "kafkajs",
    "aiokafka",
    "platformatic",
    "kafka-go",
    "kafka-python-2.0.2",
)
OWN_GROUP: Final = ("kafkajs", "platformatic")
_ERROR: Final = re.compile(r"error|\bcode:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Received:
    """A record that a client has received."""

    partition: int
    offset: int
    value: str
    """The length and the hash of its value, as programs print them."""
    at: float


@dataclass(slots=True, eq=False)
class Reader:
    """One running client."""

    name: str
    client_id: str
    run: Run
    records: list[Received] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    ended: str = ""
    positions: dict[int, int] = field(default_factory=dict)

    @property
    def in_group(self) -> bool:
        """Whether the client is a member of a group. It may then get records again after a rebalance."""
        return self.name.endswith(_GROUP) or self.name in OWN_GROUP

    @property
    def reads(self) -> bool:
        """Whether the client has got a record of each partition."""
        return len(self.positions) == PARTITIONS

    @property
    def gave_up(self) -> bool:
        """Whether the client told its application of an error, and has got nothing for long since then."""
        return bool(self.errors) and time.time() - self.records[-1].at > GIVES_UP_SECONDS

    def read(self) -> None:
        """Take the records that have come since the last call."""
        now, runs = time.time(), self.run.running
        for line in self.run.take():
            match line["kind"]:
                case "record":
                    partition, offset = line["partition"], line["offset"]
                    self.records.append(Received(partition, offset, line["value"], now))
                    self.positions[partition] = max(self.positions.get(partition, 0), offset + 1)
                case "error":
                    self.errors[line["code"]] += 1
        if not runs and not self.ended:
            self.ended = f"it ended: {why(self.run.told_on_stderr())}"


class Readers:
    """All clients, which read a topic from its beginning. `with` starts them and ends them."""

    def __init__(self, programs: Mapping[str, Program], bootstrap: str, topic: str) -> None:
        self.all: list[Reader] = []
        self._programs, self._bootstrap, self._topic = programs, bootstrap, topic
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        try:
            for name, program in self._programs.items():
                self.all.append(self._start(name, program))
        except BaseException:
            self._end()
            raise
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._end()

    def stop(self) -> None:
        """Stop to take records."""
        self._stopped.set()
        self._thread.join()

    def reading(self) -> bool:
        """Return whether each client has got a record of each partition, or has ended."""
        return all(reader.reads or reader.ended for reader in self.all)

    def have(self, ends: Mapping[int, int]) -> bool:
        """Return whether each client that reads, and has not given up, has all records to these offsets."""
        return all(
            reader.positions.get(partition, 0) >= end
            for reader in self.all
            if reader.reads and not reader.gave_up
            for partition, end in ends.items()
        )

    def _start(self, name: str, program: Program) -> Reader:
        suffix = _suffix(name)
        if suffix or name in OWN_GROUP:
            group = f"{name}-{uuid.uuid4().hex[:8]}"
            run = Run(program, self._bootstrap, subscribe=[self._topic], group=group, suffix=suffix)
        else:
            run = Run(program, self._bootstrap, assign={self._topic: PARTITIONS})
        return Reader(name, client_id_of(name, program), run)

    def _read(self) -> None:
        while not self._stopped.wait(STEP_SECONDS):
            for reader in self.all:
                reader.read()

    def _end(self) -> None:
        for reader in self.all:
            reader.run.__exit__(None, None, None)


def why(told: str) -> str:
    """Return the line of a program's last output that names an error. If none does, return the last line."""
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    return next((line for line in lines if _ERROR.search(line)), lines[-1] if lines else "")


def client_id_of(name: str, program: Program) -> str:
    """Return the client id of a client."""
    return program.client_id + _suffix(name)


def _suffix(name: str) -> str:
    return _GROUP if name.endswith(_GROUP) else ""


def usual(program: Program) -> Program:
    """Return a program with the usual settings of its client."""
    return replace(program, environment={**program.environment, "CONSUME_USUAL": "1"})


def programs(names: Sequence[str]) -> tuple[dict[str, Program], dict[str, str]]:
    """Return the programs of clients, and why others can't be run, by name."""
    absent = {name: why for name in names if (why := lacking(name.removesuffix(_GROUP)))}
    runs = [name for name in names if name not in absent]
    return {name: usual(program_of(name.removesuffix(_GROUP))) for name in runs}, absent
