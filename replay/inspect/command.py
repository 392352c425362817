"""``fetchgate replay inspect``: shows the contents of captures, without Spark."""

import argparse
import json
import shlex
import sys
from typing import TYPE_CHECKING, Final

from replay.exits import EXIT_FAILED, EXIT_PARTLY, EXIT_USAGE

if TYPE_CHECKING:
    from replay.inspect.counts import Inspection

PROGRAM: Final = "fetchgate replay inspect"
_EXAMPLES: Final = """\
examples:
  fetchgate replay inspect fetches.pcap
  fetchgate replay inspect captures/ --json
  zcat old.pcap.gz | fetchgate replay inspect -
  fetchgate replay inspect any.pcap --port 9092
      reads only this port, and reads it as Kafka, whatever the bytes look like

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done, but a file is not a capture, is damaged or
incomplete, or has no Kafka.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Show what is in captures: which connections speak Kafka, what they request, and what is missing."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "inputs", nargs="+", metavar="FILE|GLOB|DIR|-", help="pcap or pcapng, also .gz, .zst and .lz4"
    )
    parser.add_argument(
        "--port",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="a port on which brokers listen (repeatable; default: Kafka is recognised by its bytes)",
    )
    parser.add_argument(
        "--keylog",
        action="append",
        default=[],
        metavar="FILE",
        help="decrypt TLS connections with the secrets in this file: a key log (SSLKEYLOGFILE), or a pcapng "
        "that has them (repeatable)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    # --help works without pyarrow, which these need
    from proxy.text.printable import printable  # noqa: PLC0415
    from replay.capture.files.secrets import load  # noqa: PLC0415
    from replay.capture.files.sources import InputError, expand  # noqa: PLC0415
    from replay.inspect.reading import inspect  # noqa: PLC0415

    if any(not 0 < port < 1 << 16 for port in arguments.port):
        return _usage("--port must be an integer from 1 to 65535")
    try:
        sources = expand(arguments.inputs)
        secrets, left_out = load(arguments.keylog, sources)
    except InputError as error:
        return _usage(printable(str(error)))
    for line in left_out:
        sys.stderr.write(f"{PROGRAM}: {printable(line)}\n")
    inspection = inspect(sources, frozenset(arguments.port), secrets)
    problems = [f"{name}: {problem}" for name, problem in inspection.problems()]
    failed = bool(problems) and not any(counts.packets for counts in inspection.files.values())
    if failed:
        sys.stderr.writelines(f"{PROGRAM}: {printable(problem)}\n" for problem in problems)
    if arguments.json:
        sys.stdout.write(json.dumps(inspection.as_json(), indent=1) + "\n")
    elif not failed:
        from replay.inspect.render import show  # noqa: PLC0415 - rich is slow to import, and --json does not need it

        show(inspection, measure=_measure(arguments, inspection))
    if failed and any(source.unopened for source in sources):
        return EXIT_FAILED
    return EXIT_PARTLY if problems or not inspection.kafka() else 0


def _measure(arguments: argparse.Namespace, inspection: "Inspection") -> str:
    """Return the command that measures the same captures: of a gateway, one side."""
    from replay.report.wording import ports_of_one_side  # noqa: PLC0415 - like all that only a running command needs

    sides = inspection.sides
    ports = ports_of_one_side(sides.found(), sides.fetched) or arguments.port
    options = [f"--port={port}" for port in ports] + [f"--keylog={file}" for file in arguments.keylog]
    return f"fetchgate replay measure {shlex.join([*arguments.inputs, *options])}"


def _usage(problem: str) -> int:
    sys.stderr.write(f"{PROGRAM}: {problem}; see {PROGRAM} --help\n")
    return EXIT_USAGE
