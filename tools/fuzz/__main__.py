"""The command line: see `tools.fuzz`."""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import tools.fuzz
from tools.fuzz import guided
from tools.fuzz.findings import keep
from tools.fuzz.plain import plain
from tools.fuzz.target import Target, examine
from tools.fuzz.targets import TARGETS

_ROOT: Final = Path(__file__).parents[2]
_WORK: Final = Path(os.environ.get("FETCHGATE_CACHE", _ROOT / ".cache")) / "fuzz"
_GRACE_SECONDS: Final = 600.0
_FOR_EVER: Final = 1 << 62


def main() -> int:
    """Run from the command line. The exit code is 0 if nothing was found."""
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
    counts = [_fuzz(target, count, seconds, seed, with_atheris=with_atheris) for target in chosen]
    return int(any(counts))


def _fuzz(target: Target, count: int, seconds: float, seed: int, *, with_atheris: bool) -> int:
    """Fuzz one target; return how many findings there were."""
    say = _Say(target.name)
    broken = False
    if with_atheris:
        inputs, taken, suspects, broken = _guided(target, count, seconds, seed, say)
    else:
        began = time.monotonic()
        watch = plain(target, count, seconds, seed, say)
        inputs, taken, suspects = watch.inputs, time.monotonic() - began, list(watch.suspects.values())
    found = {kept for data in suspects if (kept := keep(target, data)) is not None}
    say.told(inputs, taken, len(found))
    for file, finding in sorted(found, key=str):
        print(f"{file}\n{finding}", flush=True)
    return len(found) + broken


class _Say:
    """Prints how a target goes."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, inputs: int, taken: float) -> None:
        print(
            f"{self._name}: {inputs} inputs in {taken:.0f} s, {inputs / max(taken, 0.001):.0f} a second",
            flush=True,
        )

    def told(self, inputs: int, taken: float, found: int) -> None:
        """Print how it ended."""
        self(inputs, taken)
        print(f"{self._name}: {found or 'no'} findings", flush=True)


def _guided(
    target: Target, count: int, seconds: float, seed: int, say: _Say
) -> tuple[int, float, list[bytes], bool]:
    """Fuzz in a process of its own. An input that ends that process is found beside its result.

    Returns:
        how many inputs in how many seconds, which of them are suspects, and whether the process ended without
        a suspect.
    """
    folder = _WORK / target.name
    folder.mkdir(parents=True, exist_ok=True)
    result, log = folder / "result.json", folder / "log"
    result.unlink(missing_ok=True)
    for old in (*folder.glob("crash-*"), *folder.glob("timeout-*"), *folder.glob("oom-*")):
        old.unlink()
    command = [sys.executable, "-m", "tools.fuzz.guided", target.name, ",".join(target.modules)]
    command += [str(count), str(seconds), str(seed), str(folder)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=_ROOT)
    began = time.monotonic()
    try:
        while process.poll() is None:
            time.sleep(1)
            if time.monotonic() - began > seconds + _GRACE_SECONDS:
                break
            if result.exists() and round(time.monotonic() - began) % 15 == 0:
                told = json.loads(result.read_text())
                say(told["inputs"], told["seconds"])
    finally:
        process.kill()
        process.wait()
    told = {"inputs": 0, "seconds": 0.0, "suspects": {}}
    if result.exists():
        told = json.loads(result.read_text())
    suspects = [bytes.fromhex(text) for text in told["suspects"].values()]
    ended = [*folder.glob("crash-*"), *folder.glob("timeout-*"), *folder.glob("oom-*")]
    broken = bool(process.returncode and not ended and not suspects)
    if broken:
        print(f"{target.name}: the fuzzer ended with {process.returncode}:")
        print(log.read_text(errors="replace")[-2000:])
    return told["inputs"], told["seconds"], [*suspects, *(file.read_bytes() for file in ended)], broken


if __name__ == "__main__":
    sys.exit(main())
