"""``fetchgate replay measure``: computes from captures how many bytes fetch sessions would have saved.

Small captures are measured in this process, and with --in-process larger ones, too. Otherwise larger ones and
tables are measured on Spark, and so is everything with --parquet, --master or --conf, or with spark-submit.
"""

import argparse
import dataclasses
import ipaddress
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from rich.console import Console

from proxy.addresses import MAX_PORT, whole_number
from proxy.features.limits.fetch_floors import MAX_MIN_BYTES, MAX_WAIT_MS
from proxy.text.printable import brief, printable
from proxy.text.units import seconds
from proxy.text.units import size as bytes_of
from replay.capture.files.outputs import why_not
from replay.capture.files.secrets import load
from replay.capture.files.sources import InputError, Source, expand, is_table, spool
from replay.capture.packets.tcp import Filter
from replay.environment import environment
from replay.exits import EXIT_FAILED, EXIT_PARTLY, EXIT_TERMINATED, EXIT_USAGE
from replay.measure.collected import Collected
from replay.measure.floors import Floors
from replay.measure.here import MOST, measure_here, why_spark
from replay.measure.memory import room
from replay.measure.racks import broker_rack, client_rack, racks
from replay.measure.report import About, report
from replay.measure.rows import RowFilter
from replay.measure.spark.errors import NoSparkError, SparkFailedError
from replay.measure.spark.java import OLDEST, SUBMITTED, NoJavaError
from replay.measure.spread import MEMBERS
from replay.measure.work import Work
from replay.measure.zones_report import ZonePrice
from replay.report import anonymize, csv, html, terminal
from replay.report.model import Filters, Report
from replay.report.wording import plural, shown, size, untold
from replay.report.zone_wording import racks_without_brokers
from replay.report.zones_model import any_zone_known

_EXAMPLES: Final = """\
examples:
  fetchgate replay measure fetches.pcap
  fetchgate replay measure captures/ '/var/captures/*.pcap.zst' --html report.html
  tcpdump -i any -w - tcp port 9092 | fetchgate replay measure -
  fetchgate replay measure s3://bucket/captures/ --master spark://host:7077 --parquet table/
  fetchgate replay measure table/ --policy always --client billing --json
      measures what --parquet wrote, without reading the captures again
  fetchgate replay measure captures/ --client-rack 10.0.1.0/24=az1 --client-rack 10.0.2.0/24=az2
      also reports the bytes from one zone to another; for brokers without a rack, add --broker-rack 3=az1
  fetchgate replay measure captures/ --price-per-gb 0.02 --currency USD --sidecar-cost 3.50
      also reports the saving minus the cost of sidecars, for a month and a year
  fetchgate replay measure captures/ --fetch-min-bytes 64KiB --fetch-max-wait 1s
      also reports how many fetches are saved if brokers wait for records
  fetchgate replay measure captures/ --cooperative 6
      also reports how evenly keys would spread over 6 members of each consumer group, and the share of
      the hottest key

Bytes are whole Kafka frames. Predicted bytes between gateway and brokers =
eligible fetches with sessions + all other fetches as captured.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done, but a file is not a capture, is damaged or
incomplete, has no Kafka or no fetch of a consumer, or has so few fetches, or so little of them, that the
saving can't be computed.
"""

_Named = TypeVar("_Named")
_CURRENCY: Final = 8
"""The maximum length of the name of a currency."""
_PRICES: Final = 1e-12, 1e15
"""The lowest and the highest price above 0. Sums of higher ones could be infinite, which JSON does not have.
Lower ones would be lines of zeros."""
_SPARK: Final = frozenset({"pandas", "py4j", "pyspark"})
"""The packages of the extra `replay` that Spark needs."""
_LISTED: Final = 10
"""The maximum number of names in the message about a chosen name that is in no counted fetch."""


_STDOUT: Final = "-"
"""The value of --json without a file."""
_FORMS: Final[dict[str, Callable[[Report], str]]] = {
    "csv": csv.render,
    "html": html.render,
    "json": lambda report: json.dumps(report, indent=2) + "\n",
}
"""The forms of the report, by the option that names a file for them."""


class UsageError(Exception):
    """The command line is wrong. The message is one line that names the option or the file."""


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = "Compute from captures what incremental fetch sessions would have saved."
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add(
        "inputs",
        nargs="+",
        metavar="FILE|GLOB|DIR|-",
        help="captures (pcap, pcapng, .gz, .zst, .lz4), or a table of --parquet",
    )
    add(
        "--port",
        action="append",
        default=[],
        type=_port,
        metavar="N",
        help="read only this port of brokers (repeatable)",
    )
    add(
        "--host",
        action="append",
        default=[],
        type=_host,
        metavar="H",
        help="read only connections of this address or network (repeatable)",
    )
    add(
        "--client",
        action="append",
        default=[],
        metavar="ID",
        help="count only fetches of this client id (repeatable)",
    )
    add(
        "--topic",
        action="append",
        default=[],
        metavar="T",
        help="count only fetches that name this topic (repeatable)",
    )
    add(
        "--policy",
        choices=("gateway", "always"),
        default="gateway",
        help="which connections get a session; gateway: the same as with the gateway; "
        "always: every connection, from its first eligible fetch (default: gateway)",
    )
    add(
        "--max-fetch-bytes",
        default=0,
        type=_bytes,
        metavar="SIZE",
        help="report which responses have more records than this limit, to see the effect of `fetchgate "
        "proxy --max-fetch-bytes`; in bytes, or with a unit (10m, 256MiB, 1.5GB); by default the limit is "
        "the max_bytes of each fetch",
    )
    add(
        "--fetch-min-bytes",
        default=0,
        type=_min_bytes,
        metavar="SIZE",
        help="report how many fetches `fetchgate proxy --fetch-min-bytes` would save, and how much later "
        "records would come (modelled)",
    )
    add(
        "--fetch-max-wait",
        default=0,
        type=_max_wait,
        metavar="TIME",
        help="the same for `fetchgate proxy --fetch-max-wait`, or for both together; at most 5s",
    )
    add(
        "--cooperative",
        dest="cooperative_members",
        type=_members,
        metavar="N",
        help="also read the records, and report how evenly their keys would spread over N members of each "
        f"consumer group ({MEMBERS[0]} to {MEMBERS[-1]}) with `fetchgate proxy --cooperative`; the report "
        "has no keys (in the environment: FETCHGATE_COOPERATIVE_MEMBERS)",
    )
    add(
        "--master",
        metavar="URL",
        help="the URL of the Spark master (default: that of spark-submit, otherwise local[*]; captures of at "
        f"most {MOST >> 20} MiB need no Spark)",
    )
    add(
        "--in-process",
        action="store_true",
        help="measure larger captures without Spark, too: on one core. This needs about 0.2 GB of memory, "
        "plus 0.1 GB for each GB of captures (4 GB with --topic, or if they are compressed or remote)",
    )
    add(
        "--conf",
        action="append",
        default=[],
        type=_setting,
        metavar="KEY=VALUE",
        help="a setting of Spark, such as spark.executor.memory=2g (repeatable); with this option, small "
        "captures are measured on Spark, too",
    )
    add(
        "--keylog",
        action="append",
        default=[],
        metavar="FILE",
        help="decrypt TLS connections with the secrets in this file: a key log (SSLKEYLOGFILE), or a pcapng "
        "that has them (repeatable)",
    )
    add(
        "--json",
        nargs="?",
        const=_STDOUT,
        metavar="FILE.json",
        help="print the report as one JSON object; with a name that ends in .json, write it to this file "
        "instead",
    )
    add("--csv", metavar="FILE", help="write the report as a CSV table too")
    add("--html", metavar="FILE", help="write the report as one HTML file too")
    add(
        "--parquet",
        metavar="DIR",
        help="write the captured requests and responses as a table, which can be measured again later, or "
        "add them to such a table",
    )
    add(
        "--price-per-gb",
        type=_price,
        metavar="X",
        help="the price of 10^9 bytes (the sum of both ends, if you pay at both); the report then shows what "
        "the saved bytes cost",
    )
    add(
        "--sidecar-cost",
        type=_price,
        metavar="X",
        help="the price of one sidecar in a month; the report then shows what is left of the saving, for "
        "this capture and for 20 and 200 equal services (needs --price-per-gb and --currency)",
    )
    add(
        "--broker-rack",
        action="append",
        default=[],
        type=_rack(broker_rack),
        metavar="ID=NAME",
        help="the rack (zone) of a broker, by its node id, or by its address or network; by default "
        "the rack in captured Metadata (repeatable)",
    )
    add(
        "--client-rack",
        action="append",
        default=[],
        type=_rack(client_rack),
        metavar="CIDR=NAME",
        help="the rack (zone) of the clients in a network; the longest prefix counts (repeatable)",
    )
    add(
        "--zone-price-per-gb",
        type=_price,
        metavar="X",
        help="the price that one end pays for 10^9 bytes from one zone to another, in each direction (never "
        "the sum of both ends); the report then shows what bytes between zones cost one end, and both",
    )
    add(
        "--currency",
        type=_currency,
        metavar="NAME",
        help="the currency of all prices, such as USD",
    )
    add("--anonymize", action="store_true", help="replace names and addresses in the report with pseudonyms")
    add(
        "--anonymize-key",
        type=_key,
        metavar="KEY",
        help="like --anonymize, but with a secret key, so that nobody can check a guessed name; it is "
        "safer to set FETCHGATE_ANONYMIZE_KEY",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    console = Console(stderr=True)
    with _ended_by_sigterm() as ended:
        try:
            return _run(arguments, console)
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


def _run(arguments: argparse.Namespace, console: Console) -> int:
    try:
        with tempfile.TemporaryDirectory(prefix="fetchgate-measure-") as scratch:
            result = _measured(arguments, console, scratch)
        failed = _write(arguments, result)
    except UsageError as error:
        return _fail(printable(str(error)), EXIT_USAGE)
    except NoSparkError as error:
        return _fail(error, EXIT_USAGE)
    except InputError as error:
        return _fail(f"{printable(str(error))}; see fetchgate replay measure --help", EXIT_USAGE)
    except NothingReadableError as error:
        return _fail(error, error.code)
    except (NoJavaError, SparkFailedError, NoRoomError, OSError) as error:
        return _fail(error, EXIT_FAILED)
    for line in failed:
        _fail(line, EXIT_FAILED)
    problems = result["input"]["problems"]
    for problem in problems if arguments.json == _STDOUT else ():  # the report for people lists them
        sys.stderr.write(printable(f"{problem['file']}: {problem['problem']}") + "\n")
    if failed:
        return EXIT_FAILED
    nothing = not (result["input"]["connections"] or result["fetch"]["actual"]["requests"])
    return EXIT_PARTLY if problems or nothing or untold(result) else 0


def _measured(arguments: argparse.Namespace, console: Console, scratch: str) -> Report:
    work = _work(arguments, scratch)
    found = _collected(work, arguments, console)
    copies = found.copies()
    if copies and work.parquet:
        sys.stderr.write(
            f"fetchgate replay measure: the copies of {plural(len(copies), 'connection')} after NAT are in "
            f"the table and in this report; measure {printable(work.parquet)} to leave them out\n"
        )
    elif copies:  # what was summed up can't be taken apart again
        without = dataclasses.replace(work.choice, without=copies)
        found = _collected(dataclasses.replace(work, choice=without), arguments, console)
    about = About(
        version=_version(),
        policy=arguments.policy,
        filters=Filters(
            ports=arguments.port, hosts=arguments.host, clients=arguments.client, topics=arguments.topic
        ),
        price_per_gb=arguments.price_per_gb,
        currency=arguments.currency or "",
        sidecar_cost=arguments.sidecar_cost,
        max_fetch_bytes=arguments.max_fetch_bytes,
        floors=work.choice.floors,
        members=arguments.cooperative_members or 0,
        racks=work.choice.racks,
        copies=0 if work.parquet else len(copies),
        zone_price=None
        if arguments.zone_price_per_gb is None
        else ZonePrice(per_gb=arguments.zone_price_per_gb, currency=arguments.currency or ""),
    )
    result = report(found, about)
    key = arguments.anonymize_key
    if arguments.anonymize or key:
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


def _collected(work: Work, arguments: argparse.Namespace, console: Console) -> Collected:
    wanted = arguments.master or arguments.conf or SUBMITTED in os.environ
    found = _here(work, console) if arguments.in_process or not wanted else None
    return _on_spark(work, arguments, console) if found is None else found


def _on_spark(work: Work, arguments: argparse.Namespace, console: Console) -> Collected:
    try:
        from replay.measure.spark.run import run_on_spark  # noqa: PLC0415 - slow to import, for large captures
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _SPARK:
            raise
        given = [name for name in ("master", "conf") if getattr(arguments, name)]
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
    return run_on_spark(work, arguments.master, dict(arguments.conf), console)


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
        listed = ", ".join(map(shown, names[:_LISTED]))
        more = f" and {len(names) - _LISTED} more" if names[_LISTED:] else ""
        has = f"; the capture has the {noun}: {listed}{more}" if names else ""
        for name in chosen:
            if name not in there:
                yield f"no {fetch} is of {option} {shown(name)}{has}"


def _unpriced(about: About, result: Report) -> Iterator[str]:
    """Yield a message if bytes between zones have a price, but no zone is known."""
    if about.zone_price is None:
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
    hosts = sorted({host.strip("[]") for host in found.addresses})
    more = f" and {len(hosts) - _LISTED} more" if hosts[_LISTED:] else ""
    has = f"; the capture has clients at {', '.join(hosts[:_LISTED])}{more}" if hosts else ""
    for network, rack in about.racks.clients:
        if rack not in there:
            yield f"--client-rack {network}={shown(rack)}: no client is in this network{has}"
    if there - {None} and not any(row["rack"] for row in zones["brokers"]):
        yield (
            "--client-rack: no rack of a broker is known, so no bytes between zones can be counted; name the "
            "racks of brokers with --broker-rack"
        )


def _work(arguments: argparse.Namespace, scratch: str) -> Work:
    """Check the inputs and outputs of the command, before anything is measured. Return what to do."""
    for option, file in _files(arguments).items():
        if why := why_not(Path(file)):
            raise UsageError(f"--{option} {file}: {why}")
    if arguments.html:
        import_module("jinja2")  # only the page needs it: this tells if it is missing
    _check_prices(arguments)
    if arguments.parquet and (arguments.anonymize or arguments.anonymize_key):
        raise UsageError("--parquet writes the names that --anonymize replaces: use only one of them")
    if arguments.parquet and (why := _why_no_table(arguments.parquet)):
        raise UsageError(f"--parquet {arguments.parquet}: {why}")
    work = Work(
        keep=Filter(hosts=frozenset(arguments.host), ports=frozenset(arguments.port)),
        choice=RowFilter(
            policy=arguments.policy,
            clients=frozenset(arguments.client),
            max_fetch_bytes=arguments.max_fetch_bytes,
            floors=Floors(min_bytes=arguments.fetch_min_bytes, max_wait_ms=arguments.fetch_max_wait),
            members=arguments.cooperative_members or 0,
            racks=racks(arguments.broker_rack, arguments.client_rack),
            plain=os.environ.get("FETCHGATE_REPLAY") == "plain",
        ),
        topics=frozenset(arguments.topic),
        parquet=arguments.parquet,
        memory=room() if arguments.in_process else None,
    )
    tables = [text for text in arguments.inputs if is_table(text)]
    if arguments.in_process and (spark := _asks_for_spark(arguments, tables)):
        raise UsageError(
            f"--in-process measures without Spark, but {spark} needs Spark: leave one of them out"
        )
    if members := arguments.cooperative_members:
        if tables:
            raise UsageError(
                f"--cooperative {members}: {tables[0]} is a table, which has no records; name the captures"
            )
        import_module("replay.measure.keys")  # it needs the extra `cooperative`: this tells if it is missing
    if not tables:
        sources = [_readable(source, scratch) for source in expand(arguments.inputs)]
        if all(source.problem for source in sources):
            raise NothingReadableError(sources)
        secrets, left_out = load(arguments.keylog, sources)
        for line in left_out:
            sys.stderr.write(f"fetchgate replay measure: {printable(line)}\n")
        return dataclasses.replace(work, sources=tuple(sources), secrets=secrets)
    if arguments.keylog:
        raise UsageError(f"--keylog {arguments.keylog[0]}: {tables[0]} is a table; --keylog is for captures")
    if len(arguments.inputs) > 1:
        raise UsageError(f"{tables[0]} is a table that --parquet wrote: it must be the only input")
    return dataclasses.replace(work, table=tables[0])


def _check_prices(arguments: argparse.Namespace) -> None:
    """Check that no sum would lack one of its parts."""
    gb, sidecar = arguments.price_per_gb, arguments.sidecar_cost
    if arguments.currency and gb is None and sidecar is None and arguments.zone_price_per_gb is None:
        raise UsageError("--currency needs a price: --price-per-gb, --zone-price-per-gb or --sidecar-cost")
    if sidecar is not None and gb is None:
        raise UsageError("--sidecar-cost needs --price-per-gb X: the price of the saved bytes")
    for option in ("sidecar_cost", "price_per_gb", "zone_price_per_gb"):
        if getattr(arguments, option) is not None and not arguments.currency:
            flag = f"--{option.replace('_', '-')}"
            raise UsageError(f"{flag} needs --currency NAME, such as USD: the currency of all prices")


def _asks_for_spark(arguments: argparse.Namespace, tables: Sequence[str]) -> str:
    """Return the first option or table that only Spark can serve, or ""."""
    options = (f"--{name}" for name in ("parquet", "master", "conf") if getattr(arguments, name))
    return next(iter([*options, *(f"the table {text}" for text in tables)]), "")


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


def _write(arguments: argparse.Namespace, result: Report) -> list[str]:
    """Write the report to the files in the options, then print it. Return a line for each that failed."""
    failed, written = [], []
    for option, file in _files(arguments).items():
        try:
            # RFC 4180: lines end with CRLF, as the rendered table has it already
            Path(file).write_text(_FORMS[option](result), encoding="utf-8", newline="")
        except OSError as error:
            failed.append(f"--{option} {file}: {error.strerror}; the file is not complete")
        else:
            written.append(file)
    try:
        if arguments.json == _STDOUT:
            sys.stdout.write(_FORMS["json"](result))
        else:
            Console().print(terminal.render(result))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        failed.append(f"standard output: {error.strerror}; the report is not complete")
        _discard_output()
    for file in written:
        sys.stderr.write(f"Written to {printable(file)}\n")
    return failed


def _files(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the files to which the report is written, by the option."""
    named = {option: getattr(arguments, option) for option in _FORMS}
    return {option: file for option, file in named.items() if file and (option, file) != ("json", _STDOUT)}


def _discard_output() -> None:
    """Drop the output that could not be printed. Otherwise Python would print it again at exit, and fail."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: Exception | str, code: int) -> int:
    sys.stderr.write(f"fetchgate replay measure: {error}\n")
    return code


def _version() -> str:
    with suppress(PackageNotFoundError):
        return version("kafka-fetchgate")
    return "unknown"


def _port(text: str) -> int:
    if (port := whole_number(text, 1, MAX_PORT)) is None:
        raise argparse.ArgumentTypeError(f"{brief(text)} is not a port (1 to {MAX_PORT})")
    return port


def _members(text: str) -> int:
    if (number := whole_number(text, MEMBERS[0], MEMBERS[-1])) is None:
        raise argparse.ArgumentTypeError(
            f"{brief(text)} is not a number of members ({MEMBERS[0]} to {MEMBERS[-1]})"
        )
    return number


def _rack(read: Callable[[str], _Named]) -> Callable[[str], _Named]:
    def of(text: str) -> _Named:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return of


def _bytes(text: str) -> int:
    try:
        return bytes_of(text, lowest=1)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _min_bytes(text: str) -> int:
    found = _bytes(text)
    if found > MAX_MIN_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is too large: min_bytes is at most {MAX_MIN_BYTES}")
    return found


def _max_wait(text: str) -> int:
    try:
        found = seconds(text) * 1e3
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 0 < found <= MAX_WAIT_MS:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be above 0, and at most {MAX_WAIT_MS / 1e3:g} s; a number without a unit is in "
            "seconds"
        )
    return round(found)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if equals and key.startswith("spark."):
        return key, value
    raise argparse.ArgumentTypeError(f"{text} is not KEY=VALUE, such as spark.executor.memory=2g")


def _host(text: str) -> str:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text} is not an address or a network such as 10.0.0.0/8"
        ) from None
    return text


def _key(text: str) -> bytes:
    key = text.encode(errors="surrogateescape")
    if 0 < len(key) <= anonymize.MAX_KEY:
        return key
    raise argparse.ArgumentTypeError(f"a key has 1 to {anonymize.MAX_KEY} bytes")


def _currency(text: str) -> str:
    name = text.strip()
    if 0 < len(name) <= _CURRENCY and name.isprintable() and not any(map(str.isdigit, name)):
        return name
    raise argparse.ArgumentTypeError(f"{name or 'an empty text'} is not a currency such as USD")


def _price(text: str) -> float:
    lowest, highest = _PRICES
    with suppress(ValueError):
        price = float(text) or 0.0  # -0.0 would be shown as such
        if price == 0 or lowest <= price <= highest:
            return price
    raise argparse.ArgumentTypeError(
        f"{text or 'an empty text'} is not a price such as 0.02 (0, or 1e-12 to 1e15)"
    )
