"""The command line: see `tools.soak.groups`."""

import argparse
import random
import sys

import tools.soak.groups
from tools.soak.groups.chaos import chaos, summary
from tools.soak.groups.gateways import UP_SECONDS


def main() -> int:
    """Run from the command line. The exit code is 0 if there was no problem."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m tools.soak.groups", description=tools.soak.groups.__doc__, formatter_class=raw
    )
    parser.add_argument("--kills", type=int, default=1000, help="members to kill (default: 1000)")
    parser.add_argument("--groups", type=int, default=6, help="groups side by side (default: 6)")
    parser.add_argument("--seed", type=int, help="of all choices (default: another one each time)")
    parser.add_argument(
        "--gateways", type=int, default=1, help="members are spread over so many (default: 1)"
    )
    parser.add_argument(
        "--up-seconds",
        type=float,
        nargs=2,
        default=UP_SECONDS,
        metavar=("LEAST", "MOST"),
        help="the time between two faults of one gateway (default: %(default)s)",
    )
    parser.add_argument("--members", type=int, default=0, help="of each group (default: 2 to 4, by its kind)")
    parser.add_argument(
        "--must-share",
        action="store_true",
        help="fail if a group shared less than a tenth of its records, with several gateways across them",
    )
    given = parser.parse_args()
    seed = random.randrange(1_000_000) if given.seed is None else given.seed  # noqa: S311 - not a secret
    print(f"seed {seed}")
    outcome = chaos(
        given.kills,
        given.groups,
        seed,
        lambda line: print(line, flush=True),
        gateways=given.gateways,
        members=given.members,
        up_seconds=tuple(given.up_seconds),
    )
    if given.must_share:
        outcome.verdict.problems += outcome.unshared
    for line in summary(outcome):
        print(line)
    for problem in outcome.problems:
        print(problem)
    print(f"{outcome.seconds:.0f} s in all, seed {seed}")
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
