"""``fetchgate replay inspect``: shows the contents of captures, without Spark."""

import json
import shlex
import sys
from typing import Final

from proxy.text.printable import printable
from replay.capture.files.secrets import load
from replay.capture.files.sources import expand
from replay.exits import EXIT_FAILED, EXIT_PARTLY
from replay.inspect.counts import Inspection
from replay.inspect.options import InspectOptions
from replay.inspect.reading import inspect
from replay.report.wording import ports_of_one_side

PROGRAM: Final = "fetchgate replay inspect"


def run(options: InspectOptions) -> int:
    """Run the command and return the exit code."""
    sources = expand(options.inputs)
    secrets, left_out = load(options.keylog, sources)
    for line in left_out:
        sys.stderr.write(f"{PROGRAM}: {printable(line)}\n")
    inspection = inspect(sources, frozenset(options.port), secrets)
    problems = [f"{name}: {problem}" for name, problem in inspection.problems()]
    failed = bool(problems) and not any(counts.packets for counts in inspection.files.values())
    if failed:
        sys.stderr.writelines(f"{PROGRAM}: {printable(problem)}\n" for problem in problems)
    if options.json:
        sys.stdout.write(json.dumps(inspection.as_json(), indent=1) + "\n")
    elif not failed:
        from replay.inspect.render import show  # noqa: PLC0415 - rich is slow to import, and --json does not need it

        show(inspection, measure=_measure(options, inspection))
    if failed and any(source.unopened for source in sources):
        return EXIT_FAILED
    return EXIT_PARTLY if problems or not inspection.kafka() else 0


def _measure(options: InspectOptions, inspection: Inspection) -> str:
    """Return the command that measures the same captures: of a gateway, one side."""
    sides = inspection.sides
    ports = ports_of_one_side(sides.found(), sides.fetched) or options.port
    flags = [f"--port={port}" for port in ports] + [f"--keylog={file}" for file in options.keylog]
    return f"fetchgate replay measure {shlex.join([*options.inputs, *flags])}"
