"""Consumer programs behind the gateway, and the same ones direct to the brokers."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from tests.clients.runner import Program, Run, python_programs
from tools.soak.producers import PARTITIONS, SoakTopics
from tools.soak.records import ReceivedRecords

DIRECT: Final = "direct"
GATEWAY: Final = "gateway"
ASSIGNED: Final = ("confluent-kafka", "aiokafka")
PRIVATE_ERRORS: Final = ("SESSION", "CORRUPT", "CRC", "BAD_MSG", "INVALID_RECORD", "PROTOCOL", "UnknownError")
"""Parts of error names that no disturbance of the soak explains: session errors, or broken frames."""
_ENDINGS: Final = 5


@dataclass(slots=True, eq=False)
class SoakConsumer:
    """A consumer, and the records it received."""

    name: str
    way: str
    start: Callable[[], Run]
    received: ReceivedRecords
    topics: tuple[str, ...]
    run: Run
    errors: Counter[str] = field(default_factory=Counter)
    endings: list[str] = field(default_factory=list)
    """The last output of each process that ended by itself. The program was then started again."""
    _runs: int = 0

    def __str__(self) -> str:
        return f"{self.name} ({self.way})"

    def read(self) -> None:
        """Read new records. Start a program that has ended again, at most `_ENDINGS` times."""
        ended = not self.run.running
        for line in self.run.take():
            match line["kind"]:
                case "record":
                    self.received.record(self._runs, line)
                case "error":
                    self.errors[line["code"]] += 1
                case "assigned" | "revoked":
                    self.received.rebalanced(self._runs)
        if ended and len(self.endings) < _ENDINGS:
            self.endings.append(self.run.told_on_stderr())
            self.run.__exit__(None, None, None)
            self._runs += 1
            self.run = self.start()

    def stop(self) -> None:
        """Make the program leave."""
        self.read()
        try:
            self.run.stop()
        except (AssertionError, OSError) as error:
            self.endings.append(f"it did not leave: {error}")
        for line in self.run.take():
            if line["kind"] == "record":
                self.received.record(self._runs, line)
        self.close()

    def close(self) -> None:
        """Kill the program if it is running."""
        self.run.__exit__(None, None, None)

    @property
    def private_errors(self) -> list[str]:
        """Return the client's errors that an application must never get."""
        upper = {code: code.upper() for code in self.errors}
        return sorted(
            code for code, text in upper.items() if any(part.upper() in text for part in PRIVATE_ERRORS)
        )


def readers(
    way: str,
    bootstrap: str,
    topics: SoakTopics,
    sent: set[int],
    place: Callable[[], AbstractContextManager[None]],
    *,
    without: str = "",
) -> Iterator[SoakConsumer]:
    """Start all clients except `without`, in one way. Behind the gateway, `ASSIGNED` come twice."""
    for program in python_programs().values():
        if program.name == without:
            continue
        yield _reader(program, way, bootstrap, topics, sent, place, assigned=False)
        if way == GATEWAY and program.name in ASSIGNED:
            yield _reader(program, way, bootstrap, topics, sent, place, assigned=True)


def _reader(
    program: Program,
    way: str,
    bootstrap: str,
    topics: SoakTopics,
    sent: set[int],
    place: Callable[[], AbstractContextManager[None]],
    *,
    assigned: bool,
) -> SoakConsumer:
    def start() -> Run:
        with place():
            if assigned:
                return Run(program, bootstrap, assign={topics.steady: PARTITIONS})
            group = f"{topics.steady}-{program.name}-{way}"
            return Run(program, bootstrap, subscribe=[topics.steady, topics.churn], group=group)

    name = f"{program.name}, assigned" if assigned else program.name
    followed = (topics.steady,) if assigned else (topics.steady, topics.churn)
    return SoakConsumer(name, way, start, ReceivedRecords(sent), followed, start())
