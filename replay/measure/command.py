"""``fetchgate replay measure``: computes from captures how many bytes fetch sessions would have saved.

Small captures are measured in this process, and with --in-process larger ones, too. Otherwise larger ones and
tables are measured on Spark, and so is everything with --parquet, --master or --conf, or with spark-submit.
"""

import dataclasses
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Final, NoReturn

from rich.console import Console

from proxy.text.environment import environment
from proxy.text.options import ConfigError
from proxy.text.printable import printable
from proxy.version import VERSION
from replay.capture.files.outputs import why_not
from replay.capture.files.secrets import load
from replay.capture.files.sources import Source, expand, is_table, spool
from replay.capture.packets.tcp import Filter
from replay.exits import EXIT_FAILED, EXIT_PARTLY, EXIT_TERMINATED, EXIT_USAGE, discard_output
from replay.measure.collected import Collected
from replay.measure.floors import Floors
from replay.measure.here import measure_here, why_spark
from replay.measure.memory import room
from replay.measure.options import STDOUT, MeasureOptions
from replay.measure.racks import racks
from replay.measure.report import About, report
from replay.measure.rows import RowFilter
from replay.measure.spark.errors import NoSparkError, SparkFailedError
from replay.measure.spark.java import OLDEST, SUBMITTED, NoJavaError
from replay.measure.work import Work
from replay.report import anonymize, csv, html, terminal
from replay.report.model import Filters, Report
from replay.report.wording import first_of, plural, shown, size, untold
from replay.report.zone_wording import racks_without_brokers
from replay.report.zones_model import any_zone_known

_SPARK: Final = frozenset({"pandas", "py4j", "pyspark"})
"""The packages of the extra `replay` that Spark needs."""
_LISTED: Final = 10
"""The maximum number of names in the message about a chosen name that is in no counted fetch."""

_FORMS: Final[dict[str, Callable[[Report], str]]] = {
    "csv": csv.render,
    "html": html.render,
    "json": lambda report: json.dumps(report, indent=2) + "\n",
}
"""The forms of the report, by the option that names a file for them."""


class NothingReadableError(Exception):
    """No input can be read. The message gives the reason for each input, all in one line."""

    def __init__(self, sources: Sequence[Source]) -> None:
        super().__init__("; ".join(printable(f"{source.name}: {source.problem}") for source in sources))
        self.code = EXIT_FAILED if any(source.unopened for source in sources) else EXIT_PARTLY
        """EXIT_FAILED if a file could not be opened or read, EXIT_PARTLY if the files are no captures."""


class NoRoomError(Exception):
    """The segments need more than `memory` bytes, so they can't be measured in this process."""

    def __init__(self, memory: int) -> None:
        super().__init__(
            f"--in-process: more than {size(memory)} of segments would have to be in memory; measure fewer "
            "captures at a time, or measure on Spark (without --in-process)"
        )


def run(options: MeasureOptions) -> int:
    """Run the command and return the exit code."""
    console = Console(stderr=True)
    with _ended_by_sigterm() as ended:
        try:
            return _run(options, console)
        except KeyboardInterrupt:
            if ended.is_set():
                return EXIT_TERMINATED
            raise


@contextmanager
def _ended_by_sigterm() -> Iterator[threading.Event]:
    """Let SIGTERM end the command as Ctrl-C does, so that the command's temporary folders are removed."""
    ended = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield ended
        return

    def end(*_: object) -> NoReturn:
        ended.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield ended
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(options: MeasureOptions, console: Console) -> int:
    try:
        with tempfile.TemporaryDirectory(prefix="fetchgate-measure-") as scratch:
            result = _measured(options, console, scratch)
        failed = _write(options, result)
    except NoSparkError as error:
        return _fail(error, EXIT_USAGE)
    except NothingReadableError as error:
        return _fail(error, error.code)
    except (NoJavaError, SparkFailedError, NoRoomError, OSError) as error:
        return _fail(error, EXIT_FAILED)
    for line in failed:
        _fail(line, EXIT_FAILED)
    problems = result["input"]["problems"]
    for problem in problems if options.json == STDOUT else ():  # the report for people lists them
        sys.stderr.write(printable(f"{problem['file']}: {problem['problem']}") + "\n")
    if failed:
        return EXIT_FAILED
    nothing = not result["fetch"]["actual"]["requests"]
    return EXIT_PARTLY if problems or nothing or untold(result) else 0


def _measured(options: MeasureOptions, console: Console, scratch: str) -> Report:
    work = _work(options, scratch)
    found = _collected(work, options, console)
    copies = found.copies()
    if copies and work.parquet:
        sys.stderr.write(
            f"fetchgate replay measure: the copies of {plural(len(copies), 'connection')} after NAT are in "
            f"the table and in this report; measure {printable(work.parquet)} to leave them out\n"
        )
    elif copies:  # what was summed up can't be taken apart again
        without = dataclasses.replace(work.choice, without=copies)
        found = _collected(dataclasses.replace(work, choice=without), options, console)
    about = About(
        version=VERSION,
        policy=options.policy,
        filters=Filters(
            ports=[*options.port],
            hosts=[*options.host],
            clients=[*options.client],
            topics=[*options.topic],
        ),
        price_per_gb=options.price_per_gb,
        currency=options.currency or "",
        sidecar_cost=options.sidecar_cost,
        max_fetch_bytes=options.max_fetch_bytes or 0,
        floors=work.choice.floors,
        members=options.cooperative_members or 0,
        racks=work.choice.racks,
        copies=0 if work.parquet else len(copies),
        zone_price_per_gb=options.zone_price_per_gb,
    )
    result = report(found, about)
    key = options.anonymize_key
    if options.anonymize or key:
        return anonymize.anonymize(result, key or b"")
    lines = (
        _absent(found, result),
        _unpriced(about, result),
        _misspelt(result),
        _zoneless(found, about, result),
    )
    for line in chain(*lines):
        sys.stderr.write(f"fetchgate replay measure: {line}\n")
    return result


def _collected(work: Work, options: MeasureOptions, console: Console) -> Collected:
    wanted = options.master or options.conf or SUBMITTED in os.environ
    found = _here(work, console) if options.in_process or not wanted else None
    return _on_spark(work, options, console) if found is None else found


def _on_spark(work: Work, options: MeasureOptions, console: Console) -> Collected:
    try:
        from replay.measure.spark.run import run_on_spark  # noqa: PLC0415 - slow to import, for large captures
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _SPARK:
            raise
        given = [name for name in ("master", "conf") if getattr(options, name)]
        why = f"--{given[0]} needs Spark" if given else why_spark(work)
        here = (
            ""
            if given or work.table or work.parquet
            else "add --in-process (slower, one core), or install it "
        )
        raise NoSparkError(
            f"{why}, which is not installed; {here}in fetchgate's source folder: "
            f"{environment().command_for_extra('replay')}, and Java {OLDEST} or later"
        ) from None
    return run_on_spark(work, options.master, dict(options.conf), console)


def _here(work: Work, console: Console) -> Collected | None:
    """Measure captures in this process, without Spark. Return None if they are left to Spark."""
    began = time.monotonic()
    with console.status(f"measuring {size(work.size)}" if work.size else "measuring"):
        found = measure_here(work)
    if found is None and work.memory is not None:
        raise NoRoomError(work.memory)
    if found is not None:
        seconds = time.monotonic() - began
        rate = f", {size(round(work.size / seconds))}/s" if work.size else ""
        console.print(f"Measured in {seconds:.1f} s{rate}", style="dim", highlight=False)
    return found


def _absent(found: Collected, result: Report) -> Iterator[str]:
    """Yield a message for each chosen client or topic that is in no counted fetch."""
    clients = {row["client_id"] for row in result["by_client"]}
    topics = {row["topic"] for row in result["by_topic"]}
    filters = result["filters"]
    several = sum(map(bool, (filters["ports"], filters["hosts"], filters["clients"], filters["topics"]))) > 1
    fetch = "fetch that passes the other filters" if several else "fetch"
    for option, noun, chosen, there, known in (
        ("--client", "client ids", filters["clients"], clients, found.client_ids),
        ("--topic", "topics", filters["topics"], topics, found.names.values()),
    ):
        names = sorted(set(known) | {name for name in there if name})
        has = f"; the capture has the {noun}: {first_of(names, _LISTED)}" if names else ""
        for name in chosen:
            if name not in there:
                yield f"no {fetch} is of {option} {shown(name)}{has}"


def _unpriced(about: About, result: Report) -> Iterator[str]:
    """Yield a message if bytes between zones have a price, but no zone is known."""
    if about.zone_price_per_gb is None:
        return
    if "zones" not in result:
        yield (
            "--zone-price-per-gb: no rack is known, so no bytes between zones can be counted; name racks "
            "with --broker-rack and --client-rack"
        )
    elif not any_zone_known(result["zones"]):
        yield (
            "--zone-price-per-gb: no bytes have a known zone at both ends, so their cost is not known; name "
            "racks with --broker-rack and --client-rack"
        )


def _misspelt(result: Report) -> Iterator[str]:
    """Yield a message if clients are in racks that no broker has: their bytes all count as between zones."""
    if "zones" in result and (line := racks_without_brokers(result["zones"])):
        yield f"--client-rack: {line}"


def _zoneless(found: Collected, about: About, result: Report) -> Iterator[str]:
    """Yield a message for each rack of --client-rack without a client, and one if no broker has a rack."""
    if not about.racks.clients or "zones" not in result:
        return
    zones = result["zones"]
    there = {row["rack"] for row in zones["clients"]}
    hosts = sorted({host.strip("[]") for host in found.hosts.names()})
    has = f"; the capture has clients at {first_of(hosts, _LISTED)}" if hosts else ""
    for network, rack in about.racks.clients:
        if rack not in there:
            yield f"--client-rack {network}={shown(rack)}: no client is in this network{has}"
    if there - {None} and not any(row["rack"] for row in zones["brokers"]):
        yield (
            "--client-rack: no rack of a broker is known, so no bytes between zones can be counted; name the "
            "racks of brokers with --broker-rack"
        )


def _work(options: MeasureOptions, scratch: str) -> Work:
    """Check the inputs and outputs of the command, before anything is measured. Return what to do."""
    for option, file in _files(options).items():
        if why := why_not(Path(file)):
            raise ConfigError(f"--{option} {file}: {why}")
    if options.html:
        import_module("jinja2")  # only the page needs it: this tells if it is missing
    if options.parquet and (why := _why_no_table(options.parquet)):
        raise ConfigError(f"--parquet {options.parquet}: {why}")
    work = Work(
        keep=Filter(hosts=frozenset(options.host), ports=frozenset(options.port)),
        choice=RowFilter(
            policy=options.policy,
            clients=frozenset(options.client),
            max_fetch_bytes=options.max_fetch_bytes or 0,
            floors=Floors(min_bytes=options.fetch_min_bytes or 0, max_wait_ms=options.fetch_max_wait or 0),
            members=options.cooperative_members or 0,
            racks=racks(options.broker_rack, options.client_rack),
            plain=os.environ.get("FETCHGATE_REPLAY") == "plain",
        ),
        topics=frozenset(options.topic),
        parquet=options.parquet,
        memory=room() if options.in_process else None,
    )
    tables = [text for text in options.inputs if is_table(text)]
    if options.in_process and (spark := _asks_for_spark(options, tables)):
        raise ConfigError(
            f"--in-process measures without Spark, but {spark} needs Spark: leave one of them out"
        )
    if members := options.cooperative_members:
        if tables:
            raise ConfigError(
                f"--cooperative {members}: {tables[0]} is a table, which has no records; name the captures"
            )
        import_module("replay.measure.keys")  # it needs the extra `cooperative`: this tells if it is missing
    if not tables:
        sources = [_readable(source, scratch) for source in expand(options.inputs)]
        if all(source.problem for source in sources):
            raise NothingReadableError(sources)
        secrets, left_out = load(options.keylog, sources)
        for line in left_out:
            sys.stderr.write(f"fetchgate replay measure: {printable(line)}\n")
        return dataclasses.replace(work, sources=tuple(sources), secrets=secrets)
    if options.keylog:
        raise ConfigError(f"--keylog {options.keylog[0]}: {tables[0]} is a table; --keylog is for captures")
    if len(options.inputs) > 1:
        raise ConfigError(f"{tables[0]} is a table that --parquet wrote: it must be the only input")
    return dataclasses.replace(work, table=tables[0])


def _asks_for_spark(options: MeasureOptions, tables: Sequence[str]) -> str:
    """Return the first option or table that only Spark can serve, or ""."""
    flags = (f"--{name}" for name in ("parquet", "master", "conf") if getattr(options, name))
    return next(iter([*flags, *(f"the table {text}" for text in tables)]), "")


def _why_no_table(text: str) -> str | None:
    """Return why no table can be written to a directory, and the remedy. None if it can be written."""
    try:
        text.encode()
        if Path(text).is_file():
            return "it is a file; name a directory"
        others = not is_table(text) and _has_files(text)
    except UnicodeEncodeError:  # Spark opens no such directory
        return "the name is not UTF-8; name another directory"
    except OSError as error:
        return f"{error.strerror}; name another directory"
    if others:
        return (
            "the directory is not empty, and --parquet did not write it; name a table of --parquet, an empty "
            "directory, or a new one"
        )
    return None


def _has_files(text: str) -> bool:
    """Return whether there are files other than those that Spark leaves beside a table, or when killed."""
    return Path(text).is_dir() and any(not path.name.startswith(("_", ".")) for path in Path(text).iterdir())


def _readable(source: Source, scratch: str) -> Source:
    """Copy a pipe to a file, which can be read again, also by Spark's workers. Return others unchanged."""
    if not source.once:
        return source
    try:
        return spool(source, scratch)
    except OSError as error:
        raise OSError(
            f"{printable(source.name)}: can't be copied to {tempfile.gettempdir()}: {error.strerror}; "
            "set TMPDIR to a larger disk"
        ) from error


def _write(options: MeasureOptions, result: Report) -> list[str]:
    """Write the report to the files in the options, then print it. Return a line for each that failed."""
    failed, written = [], []
    for option, file in _files(options).items():
        try:
            # RFC 4180: lines end with CRLF, as the rendered table has it already
            Path(file).write_text(_FORMS[option](result), encoding="utf-8", newline="")
        except OSError as error:
            failed.append(f"--{option} {file}: {error.strerror}; the file is not complete")
        else:
            written.append(file)
    try:
        if options.json == STDOUT:
            sys.stdout.write(_FORMS["json"](result))
        else:
            Console().print(terminal.render(result))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        failed.append(f"standard output: {error.strerror}; the report is not complete")
        discard_output()
    for file in written:
        sys.stderr.write(f"Written to {printable(file)}\n")
    return failed


def _files(options: MeasureOptions) -> dict[str, str]:
    """Return the files to which the report is written, by the option."""
    named = {option: getattr(options, option) for option in _FORMS}
    return {option: file for option, file in named.items() if file and (option, file) != ("json", STDOUT)}


def _fail(error: Exception | str, code: int) -> int:
    sys.stderr.write(f"fetchgate replay measure: {error}\n")
    return code
