"""The gateways of a run: some of them before one broker, and their faults.

With several gateways, a relay is between each of them and the broker. It can hold all bytes, so that the
gateway is cut off from the broker. Nothing is lost: the bytes arrive when the relay goes on, also those of a
gateway that was killed in the meantime.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Self

from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.settings import HOST, Properties
from tools.soak.network import Relays

UP_SECONDS: Final = (10.0, 40.0)
DOWN_SECONDS: Final = (0.1, 1.5)
CUT_SECONDS: Final = (3.0, 8.0)
LONG_CUT_SECONDS: Final = 60.0
LONG_CUT: Final = 5
"""Each cut with a number that this number divides takes `LONG_CUT_SECONDS`."""
IN_FLIGHT_SECONDS: Final = 0.5
"""Then a stopped or cut off member's fetch in flight has its response: these records are not new."""
STEP_SECONDS: Final = 0.1
DEFECTS: Final = ("Traceback", "defect", "not understood")
KILL, CUT, RESTART = "gateway killed", "gateway cut off", "gateway restarted"
FIRST: Final = (KILL, CUT, RESTART)
LATER: Final = (*[KILL] * 8, *[CUT] * 3, RESTART)

Span = tuple[int, int]
Ends = Mapping[str, Mapping[int, int]]


class GroupGateways:
    """A broker, and `count` gateways before it. With 0, members connect to the broker itself."""

    def __init__(self, count: int, groups: Sequence[str], properties: Properties) -> None:
        self._relays = Relays(count if count > 1 else 0)
        self.wires = self._relays.wires
        """The path from each gateway to the broker, by number from 1 on; empty with one gateway."""
        listeners = {f"VIA{number}": relay.listens for number, relay in self._relays.relays.items()}
        self.broker = Broker(properties=properties, listeners=listeners)
        self.processes: list[GatewayProcess] = []
        self._count, self._groups = count, groups
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._relays)
            stack.enter_context(self.broker)
            for number, relay in self._relays.relays.items():
                relay.target = f"{HOST}:{self.broker.port_of(f'VIA{number}')}"
            addresses = [relay.address for relay in self._relays.relays.values()]
            for address in addresses or [self.broker.address] * self._count:
                gateway = GatewayProcess(address, "--cooperative", ",".join(self._groups))
                self.processes.append(stack.enter_context(gateway))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def address(self, number: int) -> str:
        """Return the bootstrap address of the members behind a gateway."""
        return self.processes[number].address if self.processes else self.broker.address

    def of(self, member: int) -> int:
        """Return the number of the gateway of a member, from 0 on: members are spread over the gateways."""
        return member % max(self._count, 1)

    def defects(self) -> list[str]:
        """Return the lines of the gateways' logs that show a defect."""
        return [
            line
            for gateway in self.processes
            for line in gateway.log().splitlines()
            if any(word in line for word in DEFECTS)
        ]


@dataclass(frozen=True, slots=True)
class CutOff:
    """A time in which a gateway was cut off from the broker, in nanoseconds."""

    gateway: int
    began: int
    ended: int
    ends: Ends
    """The ends of the logs shortly after the begin. Later records could not reach the gateway."""


class GatewayFaults:
    """Kills gateways, cuts them off, restarts them one by one. A single one is only killed."""

    def __init__(
        self,
        gateways: GroupGateways,
        seed: int,
        done: Counter[str],
        up_seconds: tuple[float, float] = UP_SECONDS,
        ends: Callable[[], Ends] = dict,
    ) -> None:
        self._gateways, self._done, self._up_seconds, self._ends = gateways, done, up_seconds, ends
        self._random = random.Random(seed)  # noqa: S311 - not a secret
        self.down: dict[int, list[Span]] = {number: [] for number in range(len(gateways.processes))}
        """The time spans in which each gateway was not running, or was cut off, by its number from 0 on."""
        self.cuts: list[CutOff] = []
        self.had_all = threading.Event()
        self._cut_off: dict[int, tuple[int, float, Ends]] = {}
        """The gateways that are cut off: since when (ns), until when (s), and `CutOff.ends`."""
        self._long: set[int] = set()
        """The gateways that are cut off for `LONG_CUT_SECONDS`. They have no other fault until then."""

    def run(self, ended: threading.Event) -> None:
        """Disturb the gateways until `ended` is set. Then let all of them run, connected to the broker."""
        for number, what in enumerate(self._kinds()):
            if number == len(FIRST) or len(self.down) <= 1:
                self.had_all.set()
            if self._pause(ended):
                break
            if what == RESTART:
                self._restart()
            elif some := [each for each in self.down if each not in self._long]:
                (self._kill if what == KILL else self._cut)(self._random.choice(some))
        for gateway in list(self._cut_off):
            self._heal(gateway)

    def _kinds(self) -> Iterator[str]:
        several = len(self.down) > 1
        yield from FIRST if several else ()
        while self.down:
            yield from self._random.sample(LATER, len(LATER)) if several else (KILL,)

    def _pause(self, ended: threading.Event) -> bool:
        """Wait until the next fault. Return whether `ended` is set."""
        until = time.monotonic() + self._random.uniform(*self._up_seconds) / len(self.down)
        while not ended.wait(STEP_SECONDS) and time.monotonic() < until:
            now = time.monotonic()
            for number in [each for each, (_, end, _) in self._cut_off.items() if end <= now]:
                self._heal(number)
        return ended.is_set()

    def _kill(self, number: int) -> None:
        gateway, at = self._gateways.processes[number], time.monotonic_ns()
        gateway.kill()
        self._heal(number)  # what it had sent arrives late
        time.sleep(self._random.uniform(*DOWN_SECONDS))
        gateway.start()
        self.down[number].append((at, time.monotonic_ns()))
        self._done[KILL] += 1

    def _restart(self) -> None:
        """Restart all gateways one by one, as an update does: each ends gracefully."""
        for number, gateway in enumerate(self._gateways.processes):
            if number in self._long:
                continue
            at = time.monotonic_ns()
            self._heal(number)
            gateway.stop()
            gateway.start()
            self.down[number].append((at, time.monotonic_ns()))
            self._done[RESTART] += 1

    def _cut(self, number: int) -> None:
        self._heal(number)
        at = time.monotonic_ns()
        self._gateways.wires[number + 1].loss = 1.0
        time.sleep(IN_FLIGHT_SECONDS)
        self._done[CUT] += 1
        seconds = self._random.uniform(*CUT_SECONDS)
        if self._done[CUT] % LONG_CUT == 0:
            seconds = LONG_CUT_SECONDS
            self._long.add(number)
        self._cut_off[number] = at, time.monotonic() + seconds, self._ends()

    def _heal(self, number: int) -> None:
        """Connect a gateway to the broker again, if it is cut off."""
        if number not in self._cut_off:
            return
        at, _, ends = self._cut_off.pop(number)
        self._long.discard(number)
        self._gateways.wires[number + 1].loss = 0.0
        now = time.monotonic_ns()
        self.down[number].append((at, now))
        self.cuts.append(CutOff(number, at, now, ends))
