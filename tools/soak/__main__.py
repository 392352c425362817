"""The command line: see `tools.soak`."""

import argparse
import logging
import os
import random
import sys
import time

from rich.console import Console

import tools.soak
from tools import debian
from tools.soak.chaos import SoakOutcome, soak, table


def main() -> int:
    """Run from the command line. The exit code is 0 if there was no problem."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m tools.soak", description=tools.soak.__doc__, formatter_class=raw
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="how long to disturb (default: 60)")
    parser.add_argument("--seed", type=int, help="of all choices (default: another one each time)")
    given = parser.parse_args()
    os.environ["PATH"] += f"{os.pathsep}{debian.programs()}"
    for name in ("aiokafka", "kafka"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # their failures are in the table
    seed = random.randrange(1_000_000) if given.seed is None else given.seed  # noqa: S311 - not a secret
    began = time.monotonic()
    outcome = soak(given.minutes * 60, seed, lambda line: print(line, flush=True))
    _show(outcome)
    print(f"{time.monotonic() - began:.0f} s in all, seed {seed}")
    return 1 if outcome.problems else 0


def _show(outcome: SoakOutcome) -> None:
    console = Console(width=160)
    console.print(table(outcome))
    produced, gateways = outcome.produced, outcome.gateways
    print(
        "disturbances:",
        ", ".join(f"{name} {count}" for name, count in sorted(outcome.disturbances.done.items())),
    )
    print(f"given up by producers: {produced.given_up}", dict(produced.errors) or "")
    again = len(outcome.log.twice())
    print(f"records that are in the log more than once: {again} (their producers' own, unless told below)")
    print(f"the last gateway used {gateways.first} at its start, {outcome.last} after its clients had left")
    print(f"the most memory of a gateway: {gateways.most / 1e6:.0f} MB")
    print(f"fetches: {gateways.fetches['client']} of clients, {gateways.fetches['broker']} to brokers")
    print(f"a new gateway was ready after at most {gateways.slowest:.1f} s")
    print(f"saved {gateways.saved / 1e6:.1f} MB of the clients' fetches")
    for node, (followers, at_end) in outcome.sessions.items():
        print(f"sessions at broker {node}: {followers} of followers, {at_end} at the end")
    for problem in outcome.problems:
        console.print(f"[red]{problem}[/red]")
    print(
        "nothing lost, changed or invented" if not outcome.problems else f"{len(outcome.problems)} problems"
    )


if __name__ == "__main__":
    sys.exit(main())
