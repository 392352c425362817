"""``fetchgate replay drive``: its arguments, its output and its exit codes."""

import argparse
import asyncio
import base64
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from proxy.addresses import Address
from proxy.text.printable import printable
from replay.capture.files.outputs import why_not
from replay.capture.files.sources import InputError
from replay.drive import security, values
from replay.drive.asked import nameless
from replay.drive.compare import MOST_UNCOMPARED, Keeper, differs
from replay.drive.loading import Wanted, load
from replay.drive.mapping import OffsetPolicy
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
from replay.drive.running import TO_CAPTURED, TO_END, PlayOptions, drive, plan
from replay.drive.script import Script
from replay.drive.wire import TIMEOUT_SECONDS, SilentError, TargetError
from replay.exits import (
    EXIT_DIFFERS,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_PARTLY,
    EXIT_SILENT,
    EXIT_TERMINATED,
    EXIT_USAGE,
)
from replay.protocol.names import name_of
from replay.report.wording import both_sides, percent, shown

new_event_loop: Callable[[], asyncio.AbstractEventLoop]
try:
    from uvloop import new_event_loop
except ImportError:  # not installed: asyncio's own works, only slower
    from asyncio import new_event_loop

_LISTED: Final = 20

DESCRIPTION: Final = """\
Send the captured requests again, to a live gateway or broker. Each captured connection gets a connection of
its own; order and timing are as captured. Topics are found by name. Offsets are replaced as --offsets says,
session ids by those of the target. Requests that write (Produce, and those that change a group: JoinGroup,
Heartbeat, OffsetCommit ...) are left out, unless --include names them.
"""

EXAMPLES: Final = """\
examples:
  fetchgate replay drive morning.pcap --target 127.0.0.1:19092
      as captured, against a gateway
  fetchgate replay drive morning.pcap --target 127.0.0.1:19092 --against kafka:9092
      each request to a gateway and to a broker; the report shows what the gateway saved
  fetchgate replay drive morning.pcap --target kafka:9092 --speed max --rate 2000 --max-wait 0 --csv run1.csv
      as fast as responses come, at most 2000 requests a second; writes the figures as a table
  fetchgate replay drive morning.pcap --target kafka:9092 --speed 10 --connections 20 --duration 60
      ten times as fast, twenty clients for each captured one, for a minute
  fetchgate replay drive morning.pcap --target kafka:9092 --create-topics --include Produce
      at an empty cluster, with the records that the capture's producers wrote
  FETCHGATE_SASL_PASSWORD=... fetchgate replay drive morning.pcap --target kafka:9093 \\
      --security-protocol SASL_SSL --sasl-mechanism SCRAM-SHA-512 --sasl-username alice --broker-tls-ca ca.pem
      at a broker that requires TLS and a login
  fetchgate replay drive morning.pcap --target kafka-new:9092 --compare --speed max
      at a new broker with the same records; shows how its responses differ from the captured ones
  fetchgate replay drive morning.pcap --dry-run
      print what would be sent

exit codes: 0 done; 1 the target could not be reached, or a request got no response; 2 wrong usage; 3 nothing
could be played, every response had an error, or parts of the input could not be read; 4 a broker did not
respond within --timeout; 5 with --compare: there is a difference that is not allowed; 130 or 143 stopped by
Ctrl-C or SIGTERM
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``drive``."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "inputs", nargs="+", metavar="FILE", help="captures: files, patterns or directories, as for inspect"
    )
    parser.add_argument(
        "--target",
        type=values.address,
        metavar="HOST:PORT",
        help="the gateway or broker that gets the requests",
    )
    parser.add_argument(
        "--against",
        type=values.address,
        metavar="HOST:PORT",
        help="a broker that gets the same requests; --target is then a gateway, and the report shows what it "
        "saves",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="compare each response with the captured one: errors, versions, partitions, record bytes, "
        "offsets; exit with 5 if there is a difference that is not allowed (docs/reference/drive.md has the "
        "list)",
    )
    parser.add_argument(
        "--allow",
        type=values.differences,
        action="append",
        default=[],
        metavar="KIND[,...]",
        help="with --compare: accept differences of these kinds, named as in the report: another error, "
        "fewer versions, missing ...",
    )
    parser.add_argument(
        "--admin",
        type=values.admin,
        default=Address("127.0.0.1", 9464),
        metavar="HOST:PORT",
        help="with --against: the gateway's admin endpoint (default: 127.0.0.1:9464)",
    )
    parser.add_argument(
        "--keylog",
        action="append",
        default=[],
        metavar="FILE",
        help="decrypt captured TLS connections with the secrets in this file: a key log (SSLKEYLOGFILE), "
        "or a pcapng that has them (repeatable)",
    )
    security.add_arguments(parser)
    _add_when(parser)
    _add_what(parser)
    parser.add_argument("--dry-run", action="store_true", help="print what would be sent, and send nothing")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="write the figures as a table, to compare runs"
    )


def _add_when(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--speed",
        type=values.speed,
        default=1.0,
        metavar="N|max",
        help="the speed: 2 is twice as fast as captured, max is as fast as responses come (default: 1)",
    )
    parser.add_argument("--rate", type=values.positive, metavar="N", help="send at most N requests a second")
    parser.add_argument(
        "--connections",
        type=values.count,
        default=1,
        metavar="N",
        help="open N connections for each captured connection: N times the load, from N clients; each "
        "further client has its own client, group and transactional id (NAME-2, NAME-3 ...) (default: 1)",
    )
    parser.add_argument(
        "--loop",
        type=values.count,
        default=1,
        metavar="N",
        help="play the capture N times, one after another (default: 1)",
    )
    parser.add_argument(
        "--limit", type=values.count, metavar="N", help="play only the first N requests of the capture"
    )
    parser.add_argument(
        "--duration",
        type=values.duration,
        metavar="TIME",
        help="stop sending after this time: seconds, or with a unit (500ms, 30s, 5m, 1h)",
    )
    parser.add_argument(
        "--from",
        dest="start",
        type=values.duration,
        default=0.0,
        metavar="TIME",
        help="begin this time after the first request of the capture: where a stopped run goes on, as its "
        "report says",
    )
    parser.add_argument(
        "--longest-wait",
        type=values.duration,
        metavar="TIME",
        help="shorten each silence of the capture to this time",
    )
    parser.add_argument(
        "--timeout",
        type=values.duration,
        default=TIMEOUT_SECONDS,
        metavar="TIME",
        help="how long to wait for a response, like request.timeout.ms of Kafka's clients; for a fetch, its "
        f"max_wait_ms is added; if no response comes, the run ends (default: {TIMEOUT_SECONDS:g})",
    )


def _add_what(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-wait",
        type=values.wait,
        metavar="TIME",
        help="replace max_wait_ms in fetches: milliseconds, or with a unit (1s); 0: the broker responds at "
        "once, with or without records",
    )
    parser.add_argument(
        "--min-bytes",
        type=values.size,
        metavar="SIZE",
        help="replace min_bytes in fetches: bytes, or with a unit (64k, 1MB)",
    )
    parser.add_argument(
        "--offsets",
        type=values.offsets,
        metavar="HOW",
        help="how offsets are replaced in each partition; latest (default, without --compare): the captured "
        "end becomes the target's latest, so that the distance from the end stays; earliest: the "
        "lowest captured offset becomes the target's earliest; clamp: as captured, but at least the "
        "target's earliest and at most its latest; keep (default, with --compare): as captured",
    )
    parser.add_argument(
        "--read-to",
        choices=(TO_CAPTURED, TO_END),
        help="where reads end; captured (default, without --against): where the captured response ended, so "
        "that a partition with more records is not read again and again; end (default, with --against): "
        "where the captured limits and the target's records end",
    )
    parser.add_argument(
        "--create-topics",
        action="store_true",
        help="create topics that the target does not have, with as many partitions as in the capture, and "
        "the broker's default number of replicas (one replica below Kafka 2.4)",
    )
    parser.add_argument(
        "--include",
        type=values.apis,
        action="append",
        default=[],
        metavar="API[,...]",
        help="also send requests of these Kafka APIs: Produce, OffsetCommit ...; "
        "docs/reference/drive-writes.md says what they do to the target",
    )
    parser.add_argument(
        "--keep-ids",
        action="store_true",
        help="with --include: change the captured groups and transactional ids, in place of own ones "
        "(NAME-replay); this disturbs live groups, and fences live producers",
    )
    parser.add_argument(
        "--topic-id",
        type=values.named_id,
        action="append",
        default=[],
        metavar="ID=NAME",
        help="the name of a topic id; needed if the capture began after the client connected, so that it has "
        "no Metadata response with that id, and the target does not have the id, either",
    )
    parser.add_argument(
        "--client",
        action="append",
        default=[],
        metavar="ID",
        help="play only requests of this client id (repeatable)",
    )
    parser.add_argument(
        "--port",
        type=values.port,
        action="append",
        default=[],
        metavar="N",
        help="play only connections to this broker port (repeatable)",
    )


def run(args: argparse.Namespace) -> int:
    """Run ``drive`` and return the exit code."""
    if args.target is None and not args.dry_run:
        return _complain(
            "--target HOST:PORT is missing; or give --dry-run, to see what would be sent", EXIT_USAGE
        )
    if args.compare and (args.against is not None or args.dry_run):
        return _complain(_alone("--dry-run" if args.dry_run else "--against"), EXIT_USAGE)
    if args.allow and not args.compare:
        return _complain("--allow needs --compare, which finds differences", EXIT_USAGE)
    if args.csv is not None and (why := why_not(args.csv)):
        return _complain(f"--csv {args.csv}: {why}", EXIT_USAGE)
    if args.read_to is None:
        # Limits that change with each fetch would be changes in a gateway's sessions.
        args.read_to = TO_CAPTURED if args.against is None else TO_END
    if args.offsets is None:
        args.offsets = OffsetPolicy.KEEP if args.compare else OffsetPolicy.LATEST
    args.allow = frozenset(kind for kinds in args.allow for kind in kinds)
    keeper = Keeper() if args.compare else None
    wanted = Wanted(
        include=frozenset(key for keys in args.include for key in keys),
        clients=frozenset(args.client),
        ports=frozenset(args.port),
        keylogs=tuple(args.keylog),
        start=args.start,
        longest_wait=args.longest_wait,
        limit=args.limit,
    )
    try:
        with Console(stderr=True).status("Reading captures ..."):
            script, problems = load(args.inputs, wanted, None if keeper is None else keeper.keep)
    except InputError as error:
        return _complain(f"{error}; see fetchgate replay drive --help", EXIT_USAGE)
    script.topics |= dict(args.topic_id)
    _report_absent_clients(script, wanted.clients)
    if not script.connections:
        return _nothing(script, problems, args.port)
    for line in both_sides(
        script.sides.found(),
        script.sides.fetched,
        twice="their requests are played twice",
        verb="Play",
        same_port="capture one side only",
    ):
        _say(line)
    try:
        args.access, args.against_access = security.accesses(args, os.environ)
        if warning := security.warning(args):
            sys.stderr.write(f"fetchgate replay drive: {warning}\n")
        options = _options(args)
        report = _run(script, options, problems, keeper, dry=args.dry_run)
    except security.SecurityError as error:
        return _complain(str(error), EXIT_USAGE)
    except TargetError as error:
        return _complain(str(error), EXIT_SILENT if isinstance(error, SilentError) else EXIT_FAILED)
    _report_nameless(script)
    _print(report, script, args)
    return _exit_code(report, args)


def _alone(other: str) -> str:
    why = {
        "--dry-run": "gets no responses",
        "--against": "measures what a gateway saves; run --compare once for the gateway and "
        "once for the broker",
    }
    return f"--compare can't be used with {other}, which {why[other]}"


def _options(args: argparse.Namespace) -> PlayOptions:
    return PlayOptions(**{field.name: getattr(args, field.name) for field in fields(PlayOptions)})


def _run(
    script: Script, options: PlayOptions, problems: list[str], keeper: Keeper | None, *, dry: bool
) -> DriveReport:
    if dry:
        return plan(script, options, problems)
    with _progress() as progress, asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(drive(script, options, progress, problems, keeper))


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("requests", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print(report: DriveReport, script: Script, args: argparse.Namespace) -> None:
    if args.json:
        sys.stdout.write(json.dumps(report, indent=1) + "\n")
        return
    console = Console(highlight=False)
    console.print(render_plan(report, _versions(script)) if args.dry_run else render(report))


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


def _exit_code(report: DriveReport, args: argparse.Namespace) -> int:
    """Write the table, and return the exit code."""
    if args.csv is not None and not _written(args.csv, to_csv(report)):
        return EXIT_FAILED
    compared = report["compare"]
    differing = compared is not None and differs(compared)
    if not report["planned"]:
        most = _most(report["left_out"])
        why = f"none of the requests can be sent ({most}); the report lists what was left out"
        if report["missing_topics"] and not args.create_topics:
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
    if not args.dry_run and not report["sent"]:
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
    names = [shown(name) for name in sorted(script.clients)]
    there = ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if names[_LISTED:] else "")
    if there:
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
