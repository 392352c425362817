"""Starts consumer programs, reads their output, and compares two runs."""

import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("FETCHGATE_CACHE", ROOT / ".cache"))

PATIENCE: Final = 120.0
"""The time limit of a wait, in seconds. On a busy machine, a program may take half a minute to start."""

Line: TypeAlias = dict[str, Any]
Place: TypeAlias = tuple[str, int]
"""A partition: its topic and its number."""


class Sessions(Enum):
    """Who creates the fetch sessions (KIP-227) if a client connects through the gateway."""

    OWN = "the client's own, passed on as they come"
    GIVEN = "the gateway's"
    ASKED = "the gateway's; the client asks for a new one with each fetch, and uses none"
    NONE = "nobody: they would not pay for one partition a connection"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """How to start the consumer program of one client."""

    name: str
    client_id: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    sessions: "Sessions"
    transactions: bool = True
    """Whether the client supports the isolation level read_committed."""
    aborted: int = 0
    """The number of records of aborted transactions that the client delivers with read_committed. It delivers
    them also without the gateway."""
    markers: bool = True
    """Whether the client skips transaction markers. Otherwise it delivers them as records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """The bootstrap addresses of the brokers (`direct`) and of the gateway in front of them."""

    direct: str
    gateway: str


def _python(name: str, client_id: str, module: str, sessions: Sessions) -> Program:
    command = (sys.executable, "-m", f"tests.clients.python.{module}")
    return Program(name=name, client_id=client_id, command=command, sessions=sessions)


CONFLUENT = _python("confluent-kafka", "librdkafka", "consume_confluent", Sessions.GIVEN)
AIOKAFKA = _python("aiokafka", "aiokafka", "consume_aiokafka", Sessions.GIVEN)
KAFKA_PYTHON = _python("kafka-python", "kafka-python-3", "consume_kafka_python", Sessions.OWN)


def old_kafka_python(release: str = "2.0.2", sessions: Sessions = Sessions.GIVEN) -> Program:
    """Return the program of a kafka-python before 3. 2.0.2 is the last release without fetch sessions.

    The release is installed into its own folder when it is first used.

    Raises:
        subprocess.CalledProcessError: it could not be installed.
    """
    folder = CACHE / f"kafka-python=={release}"
    if not (folder / "kafka").is_dir():
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-compile",
        ]
        subprocess.run([*pip, "--target", str(folder), folder.name, "six"], check=True)
    return Program(
        name=f"kafka-python-{release}",
        client_id="kafka-python-2",
        command=KAFKA_PYTHON.command,
        environment={"PYTHONPATH": str(folder)},
        sessions=sessions,
        transactions=False,
        markers=False,
    )


def python_programs() -> dict[str, Program]:
    """Return the programs of the Python clients by name."""
    programs = (CONFLUENT, AIOKAFKA, KAFKA_PYTHON, old_kafka_python())
    return {program.name: program for program in programs}


class Run:
    """One running consumer program. Leaving the ``with`` ends it.

    Args:
        program: The program to start.
        bootstrap: ``HOST:PORT[,...]`` of the brokers or of the gateway.
        assign: Topics to read completely, with their number of partitions.
        subscribe: Topics to read as a member of ``group``.
        group: The consumer group.
        isolation: ``read_uncommitted`` or ``read_committed``.
        suffix: The end of the client.id, which declares a lane (docs/users/cooperative.md).
        options: More arguments of the program.
    """

    def __init__(
        self,
        program: Program,
        bootstrap: str,
        *,
        assign: Mapping[str, int] | None = None,
        subscribe: Sequence[str] = (),
        group: str | None = None,
        isolation: str = "read_uncommitted",
        suffix: str = "",
        options: Sequence[str] = (),
    ) -> None:
        arguments = ["--bootstrap", bootstrap, "--isolation", isolation, *options]
        if suffix:
            arguments += ["--suffix", suffix]
        if assign:
            arguments += ["--assign", ",".join(f"{topic}:{number}" for topic, number in assign.items())]
        if subscribe:
            arguments += ["--subscribe", ",".join(subscribe), "--group", str(group)]
        self.program = program
        self._bootstrap = bootstrap
        self.lines: list[Line] = []
        self.heard_at: list[int] = []
        """When each of `lines` was read, in nanoseconds of the machine's monotonic clock."""
        self._heard = threading.Condition()
        self._stderr: list[str] = []
        self._process = subprocess.Popen(
            [*program.command, *arguments],
            cwd=ROOT,
            env={**os.environ, **program.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._readers = [
            threading.Thread(target=self._hear, daemon=True),
            threading.Thread(target=self._hear_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def __repr__(self) -> str:
        records = len(self.of("record"))
        return f"<Run {self.program.name} at {self._bootstrap} records={records} pid={self._process.pid}>"

    def _hear(self) -> None:
        for text in self._process.stdout or ():
            with self._heard:
                self.lines.append(json.loads(text))
                self.heard_at.append(time.monotonic_ns())
                self._heard.notify_all()
        with self._heard:
            self._heard.notify_all()

    def _hear_errors(self) -> None:
        for text in self._process.stderr or ():
            self._stderr.append(text)

    def take(self) -> list[Line]:
        """Return the output lines since the last call, and drop them from memory. Used in long runs."""
        with self._heard:
            lines, self.lines, self.heard_at = self.lines, [], []
            return lines

    @property
    def running(self) -> bool:
        """Whether the program is still running."""
        return self._process.poll() is None

    def told_on_stderr(self) -> str:
        """The last part of what the program has written to stderr."""
        return "".join(self._stderr[-20:])

    def of(self, kind: str) -> list[Line]:
        """Return the output lines of one kind, in order."""
        return [line for line in self.lines if line["kind"] == kind]

    def wait(self, wanted: Callable[["Run"], bool], what: str, *, seconds: float = PATIENCE) -> None:
        """Wait until ``wanted`` returns True.

        Raises:
            AssertionError: it returned False for ``seconds``, or the program ended before.
        """
        deadline = time.monotonic() + seconds
        with self._heard:
            while not wanted(self):
                if not self._readers[0].is_alive() or time.monotonic() > deadline:
                    raise AssertionError(f"{self} has not seen {what}: {self._tail()}")
                self._heard.wait(0.2)

    def _tail(self) -> str:
        counts: dict[str, int] = defaultdict(int)
        for line in self.lines:
            counts[line["kind"]] += 1
        last = "\n".join(map(str, self.lines[-5:]))
        return f"{dict(counts)}\n{last}\n" + self.told_on_stderr()

    def wait_records(self, count: int, *, seconds: float = PATIENCE) -> None:
        """Wait until the program has printed ``count`` records."""
        self.wait(lambda run: len(run.of("record")) >= count, f"{count} records", seconds=seconds)

    def wait_ends(self, ends: Mapping[Place, int], *, seconds: float = PATIENCE) -> None:
        """Wait until every partition has reported its end, at the offset that is in `ends`."""

        def reached(run: Run) -> bool:
            seen = {(line["topic"], line["partition"]): line["offset"] for line in run.of("eof")}
            return all(seen.get(place) == offset for place, offset in ends.items())

        self.wait(reached, f"the ends {dict(ends)}", seconds=seconds)

    def send(self, do: str, **arguments: Any) -> None:
        """Send a command to the program. Only the Python programs understand commands."""
        stdin = self._process.stdin
        if stdin is None or self._process.poll() is not None:
            raise AssertionError(f"{self} is gone: {self._tail()}")
        stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        stdin.flush()

    def ask(self, question: str, **arguments: Any) -> Line:
        """Send a command to the program, and return the line with which the program answers."""
        kind = "committed" if question == "commit" else question
        before = len(self.of(kind))
        self.send(question, **arguments)
        self.wait(lambda run: len(run.of(kind)) > before, f"a response to {question}")
        return self.of(kind)[before]

    def stop(self, *, seconds: float = PATIENCE) -> None:
        """Let the program leave gracefully.

        Raises:
            AssertionError: the program did not end, or ended with an error.
        """
        self.send("stop")
        self.wait(lambda run: bool(run.of("end")), "its end", seconds=seconds)
        if self._process.wait(seconds) != 0:
            raise AssertionError(f"{self} left with {self._process.returncode}: {self._tail()}")

    def records(self) -> dict[Place, list[Line]]:
        """Return the records of each partition, in the order of delivery."""
        return _by_place(self.of("record"))

    def ends(self) -> dict[Place, list[int]]:
        """Return the end offsets that were reported for each partition, in order."""
        return {
            place: [line["offset"] for line in lines] for place, lines in _by_place(self.of("eof")).items()
        }

    def errors(self) -> list[str]:
        """Return the error codes that the client reported to its application."""
        return [line["code"] for line in self.of("error")]


def _by_place(lines: list[Line]) -> dict[Place, list[Line]]:
    places: dict[Place, list[Line]] = defaultdict(list)
    for line in lines:
        places[line["topic"], line["partition"]].append(line)
    return dict(places)


def assert_same_records(direct: Run, gateway: Run) -> None:
    """Check that both runs got the same records of each partition, in the same order.

    Raises:
        AssertionError: the records differ. The message shows the first difference.
    """
    one, other = direct.records(), gateway.records()
    assert one.keys() == other.keys(), (sorted(one), sorted(other))
    for place, expected in one.items():
        for mine, theirs in zip(expected, other[place], strict=False):
            assert mine == theirs, f"{place}: direct {mine}, through the gateway {theirs}"
        assert len(expected) == len(other[place]), place
