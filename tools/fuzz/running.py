"""Fuzzes one target, in this process or, with atheris, in a child process."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tools.fuzz.findings import keep
from tools.fuzz.plain import plain
from tools.fuzz.target import FuzzTarget
from tools.fuzz.targets import TARGETS

_ROOT: Final = Path(__file__).parents[2]
_WORK: Final = Path(os.environ.get("FETCHGATE_CACHE", _ROOT / ".cache")) / "fuzz"
_GRACE_SECONDS: Final = 600.0


def fuzz(name: str, count: int, seconds: float, seed: int, *, with_atheris: bool) -> int:
    """Fuzz one target. Return the number of findings, plus 1 if the process of atheris failed without any."""
    target = TARGETS[name]
    say = _Say(target.name)
    broken = False
    if with_atheris:
        inputs, taken, suspects, broken = _guided(target, count, seconds, seed, say)
    else:
        began = time.monotonic()
        watch = plain(target, count, seconds, seed, say)
        inputs, taken, suspects = watch.inputs, time.monotonic() - began, list(watch.suspects.values())
    found = {kept for data in suspects if (kept := keep(target, data)) is not None}
    say.done(inputs, taken, len(found))
    for file, finding in sorted(found, key=str):
        print(f"{file}\n{finding}", flush=True)
    return len(found) + broken


class _Say:
    """Prints the progress of a target."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, inputs: int, taken: float) -> None:
        print(
            f"{self._name}: {inputs} inputs in {taken:.0f} s, {inputs / max(taken, 0.001):.0f} a second",
            flush=True,
        )

    def done(self, inputs: int, taken: float, found: int) -> None:
        """Print the result of the run."""
        self(inputs, taken)
        print(f"{self._name}: {found or 'no'} findings", flush=True)


def _guided(
    target: FuzzTarget, count: int, seconds: float, seed: int, say: _Say
) -> tuple[int, float, list[bytes], bool]:
    """Fuzz in a child. Return inputs, seconds, suspects, and whether it ended without a suspect."""
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
                figures = json.loads(result.read_text())
                say(figures["inputs"], figures["seconds"])
    finally:
        process.kill()
        process.wait()
    figures = {"inputs": 0, "seconds": 0.0, "suspects": {}}
    if result.exists():
        figures = json.loads(result.read_text())
    suspects = [bytes.fromhex(text) for text in figures["suspects"].values()]
    ended = [*folder.glob("crash-*"), *folder.glob("timeout-*"), *folder.glob("oom-*")]
    broken = bool(process.returncode and not ended and not suspects)
    if broken:
        print(f"{target.name}: the fuzzer ended with {process.returncode}:")
        print(log.read_text(errors="replace")[-2000:])
    return figures["inputs"], figures["seconds"], [*suspects, *(file.read_bytes() for file in ended)], broken
