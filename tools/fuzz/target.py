"""A target for fuzzing: the code it calls, its limits, and the findings."""

import time
import traceback
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

CPU_SECONDS: Final = 0.020
"""The limit of CPU time for one input, in seconds. Scripts may take longer, see `FuzzTarget.cpu_per_byte`."""
TRIES: Final = 3
"""An input is too slow if all tries are: other processes disturb caches, and garbage is collected."""
FRAMES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzTarget:
    """A part of the code that reads foreign bytes, with the inputs and limits for fuzzing it."""

    name: str
    run: Callable[[bytes], None]
    """Feeds one input. It catches documented errors; any other exception is a finding."""
    seeds: Callable[[], list[bytes]]
    modules: tuple[str, ...]
    most_bytes: int = 4096
    memory: int = 4 << 20
    """The limit of memory for one input, in addition to `memory_per_byte` for each of its bytes."""
    memory_per_byte: int = 256
    cpu_per_byte: float = 0.0
    """In addition to `CPU_SECONDS`, since a few bytes of a script send a whole request."""
    size: Callable[[bytes], int] = len
    """How many bytes an input stands for."""

    def cpu_limit(self, data: bytes) -> float:
        """Return the limit of CPU time for an input, in seconds."""
        return CPU_SECONDS + self.cpu_per_byte * self.size(data)


@dataclass(frozen=True, slots=True)
class Finding:
    """An input's effect that is not allowed: a crash, a hang, or memory growth."""

    kind: str
    """`crash`, `hang` or `growth`."""
    where: str
    """The identity of the finding. For a crash: the exception and the innermost lines of the traceback."""
    text: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}\n{self.text}"


def crash(error: BaseException) -> Finding:
    """Describe an exception as a finding."""
    lines = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    where = " < ".join(f"{Path(line.filename).name}:{line.lineno}" for line in reversed(lines))
    text = "".join(traceback.format_exception(error))
    return Finding("crash", f"{type(error).__name__} at {where}", text)


def run_once(target: FuzzTarget, data: bytes) -> tuple[Finding | None, float]:
    """Return the finding of an input, and the wall time (cheaper to read than CPU time), 0 after a crash."""
    began = time.perf_counter()
    try:
        target.run(data)
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return crash(error), 0.0
    return None, time.perf_counter() - began


def examine(target: FuzzTarget, data: bytes) -> Finding | None:
    """Feed one input with all checks: crash, CPU time, memory."""
    found, taken = run_once(target, data)
    limit = target.cpu_limit(data)
    if found is None and taken > limit and (cpu := cpu_seconds(target, data, limit)) > limit:
        found = Finding("hang", f"{cpu * 1000:.0f} ms of CPU time")
    return found or _greedy(target, data)


def cpu_seconds(target: FuzzTarget, data: bytes, limit: float) -> float:
    """Return the shortest CPU time of a few tries. A try within the limit is the last one."""
    least = inf
    for _ in range(TRIES):
        least = min(least, _cpu_seconds(target, data))
        if least <= limit:
            break
    return least


def _cpu_seconds(target: FuzzTarget, data: bytes) -> float:
    began = time.process_time()
    run_once(target, data)
    return time.process_time() - began


def _greedy(target: FuzzTarget, data: bytes) -> Finding | None:
    tracemalloc.start()
    try:
        found, _ = run_once(target, data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    size = target.size(data)
    bound = target.memory + target.memory_per_byte * size
    if found is None and peak > bound:
        return Finding("growth", f"{peak} bytes at a time, {bound} are allowed for {size} of input")
    return found
