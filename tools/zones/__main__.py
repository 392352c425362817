"""The command line: see `tools.zones`."""

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import tools.zones
from tools.kafka import LATEST
from tools.kafka.jars import classpath
from tools.zones.brokers import FAULTS, Brokers
from tools.zones.outcome import Row, failures
from tools.zones.readers import CLIENTS, programs
from tools.zones.running import CONTROL, MODES, ZoneRun
from tools.zones.tables import by_fault, by_release, markdown


def _some(of: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a parser of names separated by commas, each of which must be known."""

    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        if unknown := [name for name in names if name not in of]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(of)}")
        return names

    return parse


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line. The exit code is 0 if nothing is worse than in the control."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m tools.zones", description=tools.zones.__doc__, formatter_class=raw
    )
    add = parser.add_argument
    add("--releases", default=LATEST, metavar="LIST", help=f"of the brokers (default: {LATEST})")
    add("--clients", type=_some(CLIENTS), default=list(CLIENTS), metavar="LIST", help="(default: all)")
    add("--faults", type=_some(FAULTS), default=list(FAULTS), metavar="LIST", help="(default: all)")
    add("--modes", type=_some(MODES), default=list(MODES), metavar="LIST", help="(default: all)")
    add("--seconds", type=float, default=10.0, metavar="N", help="the time before each fault (default: 10)")
    add("--keep", type=Path, metavar="DIR", help="keep captures and the gateway's logs there")
    given = parser.parse_args(argv)
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    releases = [release for release in given.releases.split(",") if release]
    for release in releases:
        classpath(release)
    found, lacking = programs(given.clients)
    rows: list[Row] = []
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {line}", file=sys.stderr, flush=True)

    for release in releases:
        say(f"Kafka {release}: starting three brokers ...")
        with ExitStack() as stack:
            brokers = stack.enter_context(Brokers(release))
            for fault in given.faults:
                new: list[Row] = []
                for mode in given.modes:
                    say(f"{fault}, {mode}")
                    new += ZoneRun(brokers, fault, mode, given.seconds, found, given.keep).rows()
                    new += [
                        Row(release=release, fault=fault, mode=mode, client=name, ran=False, note=why)
                        for name, why in lacking.items()
                    ]
                print(markdown(by_fault(new)), flush=True)
                rows += new
    print(markdown(by_release(rows)), end="")
    worse = failures(rows, CONTROL)
    for line in worse:
        print(line, file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
