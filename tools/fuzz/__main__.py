"""The command line of the fuzzer, see `tools.fuzz`."""

import argparse
import multiprocessing
import os
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import tools.fuzz
from tools.fuzz import guided
from tools.fuzz.running import fuzz
from tools.fuzz.target import examine
from tools.fuzz.targets import TARGETS

_FOR_EVER: Final = 1 << 62


def main() -> int:
    """Run the fuzzer from the command line. The exit code is 0 if it found nothing."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m tools.fuzz", description=tools.fuzz.__doc__, formatter_class=raw
    )
    names = ", ".join(TARGETS)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"{names} (default: all)")
    parser.add_argument("--inputs", type=int, help="how many of each target")
    parser.add_argument(
        "--seconds", type=float, help="how long each target at most (default: 60, or no limit)"
    )
    parser.add_argument("--seed", type=int, help="of all inputs (default: another one each time)")
    parser.add_argument("--plain", action="store_true", help="do not use atheris")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="feed one input, and show what it does")
    given = parser.parse_args()
    if unknown := [name for name in given.targets if name not in TARGETS]:
        parser.error(f"no target {', '.join(unknown)}; there are {names}")
    chosen = [TARGETS[name] for name in given.targets or TARGETS]
    if given.replay:
        found = [str(each) for target in chosen if (each := examine(target, given.replay.read_bytes()))]
        print("\n".join(found) or "nothing found")
        return bool(found)
    seed = random.randrange(1_000_000) if given.seed is None else given.seed  # noqa: S311 - not a secret
    count = _FOR_EVER if given.inputs is None else given.inputs
    seconds = given.seconds or (60.0 if given.inputs is None else float(_FOR_EVER))
    with_atheris = guided.available() and not given.plain
    print(
        f"seed {seed}; {'guided by atheris' if with_atheris else 'without atheris: mutated seeds'}",
        flush=True,
    )
    fuzz_one = partial(fuzz, count=count, seconds=seconds, seed=seed, with_atheris=with_atheris)
    # One process each, so that CPU time and memory are measured per target.
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=fresh, max_tasks_per_child=1) as processes:
        counts = list(processes.map(fuzz_one, [target.name for target in chosen]))
    return int(any(counts))


if __name__ == "__main__":
    sys.exit(main())
