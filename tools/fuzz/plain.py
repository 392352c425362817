"""Fuzzes without atheris: the inputs are mutated seeds. `Watch` runs each input, with atheris or without."""

import gc
import random
import time
from collections.abc import Callable, Iterator
from typing import Final

import psutil

from tools.fuzz.mutate import mutated
from tools.fuzz.target import Finding, FuzzTarget, cpu_seconds, examine, run_once

EXAMINE_EVERY: Final = 2000
"""After so many inputs, the memory of one is examined, at a hundred times its cost."""
LOOK_EVERY: Final = 20_000
MOST_GROWTH: Final = 64 << 20
"""The most bytes by which the process may grow after the first `LOOK_EVERY` inputs."""

Say = Callable[[int, float], None]
"""Shows the progress: the number of inputs, and the seconds so far."""


class Watch:
    """Keeps the inputs that show a defect. Traced code runs `slower` by this factor."""

    def __init__(self, target: FuzzTarget, *, slower: float = 1.0) -> None:
        self.inputs = 0
        self.suspects: dict[str, bytes] = {}
        """One input for each finding, by what identifies it. `findings.keep` checks them again."""
        self._target = target
        self._slower = slower
        self._process = psutil.Process()
        self._memory = 0

    def feed(self, data: bytes) -> None:
        """Run the target with one input."""
        self.inputs += 1
        found, taken = run_once(self._target, data)
        if found is not None:
            self._suspect(found, data)
        elif (
            taken > (most := self._target.cpu_limit(data) * self._slower)
            and cpu_seconds(self._target, data, most) > most
        ):
            self._suspect(Finding("hang", ""), data)
        elif self.inputs % EXAMINE_EVERY == 0 and (found := examine(self._target, data)) is not None:
            self._suspect(found, data)
        if self.inputs % LOOK_EVERY == 0:
            self._look(data)

    def _suspect(self, found: Finding, data: bytes) -> None:
        name = f"{found.kind} {found.where if found.kind == 'crash' else len(self.suspects) % 8}"
        if name not in self.suspects or len(self.suspects[name]) > len(data):
            self.suspects[name] = data

    def _look(self, data: bytes) -> None:
        gc.collect()
        memory = self._process.memory_info().rss
        self._memory = self._memory or memory
        if memory > self._memory + MOST_GROWTH:
            self._suspect(Finding("growth", f"{memory - self._memory} bytes kept"), data)
            self._memory = memory


def inputs(target: FuzzTarget, seed: int) -> Iterator[bytes]:
    """Yield the seeds, and then mutations of them without end."""
    seeds = target.seeds()
    yield from seeds
    choose = random.Random(f"{target.name} {seed}")  # noqa: S311 - not a secret
    while True:
        yield mutated(choose.choice(seeds), seeds, choose, target.most_bytes)


def plain(target: FuzzTarget, count: int, seconds: float, seed: int, say: Say) -> Watch:
    """Run the target with `count` inputs, but not longer than `seconds`."""
    watch = Watch(target)
    target.seeds()  # read the files first
    began = said = time.monotonic()
    for data in inputs(target, seed):
        now = time.monotonic()
        if watch.inputs >= count or now - began >= seconds:
            break
        watch.feed(data)
        if now - said >= 5:
            said = now
            say(watch.inputs, now - began)
    return watch
