"""``fetchgate replay drive``: its arguments, its output and its exit codes."""

import asyncio
import base64
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from proxy.text.options import ConfigError
from proxy.text.printable import printable
from replay.capture.files.outputs import why_not
from replay.drive import security
from replay.drive.access import Access
from replay.drive.asked import nameless
from replay.drive.compare import MOST_UNCOMPARED, differs
from replay.drive.loading import load
from replay.drive.options import DriveOptions
from replay.drive.report import (
    ALL,
    FETCH,
    MOST_LEFT_OUT,
    DriveReport,
    LeftOutRow,
    left_out_rows,
    render,
    render_plan,
    to_csv,
)
from replay.drive.running import drive, plan
from replay.drive.script import Script
from replay.drive.wire import SilentError, TargetError
from replay.exits import (
    EXIT_DIFFERS,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_PARTLY,
    EXIT_SILENT,
    EXIT_TERMINATED,
)
from replay.protocol.names import name_of
from replay.report.wording import both_sides, first_of, percent

new_event_loop: Callable[[], asyncio.AbstractEventLoop]
try:
    from uvloop import new_event_loop
except ImportError:  # not installed: asyncio's own works, only slower
    from asyncio import new_event_loop

_LISTED: Final = 20


def run(options: DriveOptions) -> int:
    """Run ``drive`` and return the exit code."""
    if options.csv is not None and (why := why_not(options.csv)):
        raise ConfigError(f"--csv {options.csv}: {why}")
    with Console(stderr=True).status("Reading captures ..."):
        script, problems = load(options)
    script.topics |= dict(options.topic_id)
    _report_absent_clients(script, options.client)
    if not script.connections:
        return _nothing(script, problems, options.port)
    for line in both_sides(
        script.sides.found(),
        script.sides.fetched,
        twice="their requests are played twice",
        verb="Play",
        same_port="capture one side only",
    ):
        _say(line)
    accesses = security.accesses(options, os.environ)
    if warning := security.warning(options):
        _say(warning)
    try:
        report = _run(script, options, accesses, problems)
    except TargetError as error:
        return _complain(str(error), EXIT_SILENT if isinstance(error, SilentError) else EXIT_FAILED)
    _report_nameless(script)
    _print(report, script, options)
    return _exit_code(report, options)


def _run(
    script: Script, options: DriveOptions, accesses: tuple[Access, Access], problems: list[str]
) -> DriveReport:
    if options.dry_run:
        return plan(script, options, problems)
    with _progress() as progress, asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(drive(script, options, progress, problems, accesses))


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("requests", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print(report: DriveReport, script: Script, options: DriveOptions) -> None:
    if options.json:
        sys.stdout.write(json.dumps(report, indent=1) + "\n")
        return
    console = Console(highlight=False)
    console.print(render_plan(report, _versions(script)) if options.dry_run else render(report))


def _written(file: Path, text: str) -> bool:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        _say(f"--csv {file}: {error.strerror}")
        return False
    sys.stderr.write(f"Written to {printable(str(file))}\n")
    return True


def _versions(script: Script) -> dict[tuple[str, int], tuple[int, int]]:
    requests: Counter[tuple[str, int]] = Counter()
    sizes: Counter[tuple[str, int]] = Counter()
    for connection in script.connections:
        for step in connection.steps:
            key = name_of(step.api_key), step.version
            requests[key] += 1
            sizes[key] += len(step.frame)
    return {key: (count, sizes[key]) for key, count in requests.items()}


def _exit_code(report: DriveReport, options: DriveOptions) -> int:
    """Write the table, and return the exit code."""
    if options.csv is not None and not _written(options.csv, to_csv(report)):
        return EXIT_FAILED
    compared = report["compare"]
    differing = compared is not None and differs(compared)
    if not report["planned"]:
        most = _most(report["left_out"])
        why = f"none of the requests can be sent ({most}); the report lists what was left out"
        if report["missing_topics"] and not options.create_topics:
            why += "; --create-topics creates missing topics"
        if differing:
            why += "; --compare counts what the target lacks as a difference"
        return _complain(f"nothing to play: {why}", EXIT_DIFFERS if differing else EXIT_PARTLY)
    if report["timed_out"]:
        return EXIT_SILENT
    if report["interrupted"]:
        return EXIT_TERMINATED if report["stopped_by"] == "SIGTERM" else EXIT_INTERRUPTED
    if report["connection_errors"] or any(report["lost"].values()):
        return EXIT_FAILED
    if differing:
        return EXIT_DIFFERS
    answered, failed = (
        sum(row[count] for row in report["figures"] if row["side"] in report["lost"] and row["api"] == ALL)
        for count in ("answered", "failed")
    )
    if answered and failed == answered:
        return _complain("every response has an error; the report lists them", EXIT_PARTLY)
    if not options.dry_run and not report["sent"]:
        return _complain("nothing was played; the report lists what was left out", EXIT_PARTLY)
    if report["left_out_ratio"] > MOST_LEFT_OUT:
        share = percent(report["left_out_ratio"])
        return _complain(f"{share} of the captured requests were left out; the report lists why", EXIT_PARTLY)
    if compared is not None and not compared["apis"]:
        return _complain("nothing was compared; the report lists why", EXIT_PARTLY)
    if compared is not None and compared["uncompared_ratio"] > MOST_UNCOMPARED:
        share = percent(compared["uncompared_ratio"])
        return _complain(
            f"{share} of the captured responses could not be compared; the report lists why", EXIT_PARTLY
        )
    return EXIT_PARTLY if report["problems"] else 0


def _nothing(script: Script, problems: list[str], ports: Sequence[int]) -> int:
    for problem in problems:
        _say(problem)
    if script.start and script.clients:
        why = f"no request comes after --from {script.start:g} that can be played"
        return _complain(f"nothing to play: {why}", EXIT_PARTLY)
    left_out = script.left_out.total()
    if left_out:
        why = f"all {left_out} requests are left out; see --include"
    elif script.clients:
        why = "no request is of a chosen client"
    else:
        chosen = f" on --port {' or '.join(map(str, ports))}" if ports else ""
        why = f"no Kafka requests{chosen} in the input"
        if ports:
            why += "; without --port, Kafka is recognised by its bytes, on any port"
        elif not problems:  # where a file can't be read, that says why, and inspect knows no more
            why += "; `fetchgate replay inspect` says what to do"
    if script.left_out:
        why += f" (most of them {_most(left_out_rows(script.left_out))})"
    return _complain(f"nothing to play: {why}", EXIT_PARTLY)


def _most(left_out: Sequence[LeftOutRow]) -> str:
    """Return the API and the reason of most left-out fetches, or of most requests if there are no fetches."""
    fetches = [row for row in left_out if row["api"] == FETCH]
    most = max(fetches or left_out, key=lambda row: row["requests"])
    return f"{most['api']}: {most['reason']}"


def _report_absent_clients(script: Script, chosen: Iterable[str]) -> None:
    if there := first_of(sorted(script.clients), _LISTED):
        for name in sorted(set(chosen) - script.clients):
            _say(f"no request is of --client {name}; the capture has the client ids: {there}")


def _report_nameless(script: Script) -> None:
    ids = nameless(script)
    if ids:
        names = ", ".join(base64.urlsafe_b64encode(each).decode().rstrip("=") for each in ids)
        _say(
            f"topic ids without a name in the capture or at the target, left out: {names}; "
            "give their names with --topic-id ID=NAME"
        )


def _say(text: str) -> None:
    # A broker's own words may be in it: no escape sequence of theirs reaches the terminal.
    sys.stderr.write(f"fetchgate replay drive: {printable(text)}\n")


def _complain(text: str, code: int) -> int:
    _say(text)
    return code
