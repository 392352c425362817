"""A worker as the gateway sees it: a process, what it is told and what it tells."""

import asyncio
import os
import socket
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from itertools import count
from time import monotonic
from typing import Any, Final, Protocol

from proxy.config import Config
from proxy.server.ipc import Channel, hand_over, response
from proxy.telemetry.history import INTERVAL_SECONDS
from proxy.telemetry.status import Counts
from proxy.telemetry.totals import NodeId

TOLD_SECONDS: Final = 0.8
"""For a worker to answer; one that takes longer is said to be silent. The kubelet waits a second for both."""
LEAVE_SECONDS: Final = 2.0
"""Beyond the time for draining, for a worker to say that it has."""
FULL_SECONDS: Final = 1.0
"""How long a worker without a descriptor left is given no client."""
GONE_SECONDS: Final = 0.5
"""Between the end of a worker's channel and its own, at most; a millisecond where all is well."""
_BUSY_STEPS: Final = 20
"""Workers whose shares of a core differ by less than one of so many parts are equally busy."""


class WorkerOwner(Protocol):
    """What a worker belongs to."""

    config: Config
    loop: asyncio.AbstractEventLoop

    def beginning(self) -> tuple[object, ...]:
        """Give what a worker begins with, see `proxy.server.worker.Worker`."""

    def told(self, what: str, *more: Any) -> object:
        """Answer what a worker has to know at once."""

    def is_up(self, number: int) -> None:
        """Take note that one more worker serves."""

    def is_gone(self, hand: "WorkerHandle", code: int | None) -> None:
        """Take note that a worker ended.

        Args:
            hand: which.
            code: that of its process, negative for a signal; None: it has only closed its channel.
        """


class WorkerHandle:
    """A worker as the gateway sees it.

    Args:
        number: which it is, from 1.
        gateway: whose worker it is.
        memory: the descriptor of what all share.

    Raises:
        OSError: no process can be started.
    """

    def __init__(self, number: int, gateway: WorkerOwner, memory: int) -> None:
        self.number = number
        self.up = False
        """It serves."""
        self.silent = False
        """It did not answer when it was asked last."""
        self.full_until = 0.0
        """It has no descriptor left, and is given no client before."""
        self.open: Counter[NodeId] = Counter()
        """Its connections, by the listener to which they came."""
        self.counts = Counts()
        """What it told last."""
        self.busy = 0
        """How much of a core it took of late, in steps of a twentieth."""
        self.started_at = monotonic()
        self._looked_at = (self.started_at, 0.0)
        self._gateway = gateway
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count(1)  # none comes again: a late response must be none to a later question
        self._drained: asyncio.Future[int] | None = None
        self._channel = Channel(self._received, self._lost)
        pairs = [
            socket.socketpair(socket.AF_UNIX, kind)
            for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_SEQPACKET)
        ]
        self._end, self._takes, self._asks = (ours for ours, _ in pairs)
        descriptors = [*(theirs.fileno() for _, theirs in pairs), memory]
        arguments = (*descriptors, number, gateway.config.workers)
        try:  # -P and the path: it imports what this process does, and nothing from where it was started
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                [sys.executable, "-P", "-m", "proxy.server.worker", *map(str, arguments)],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # what a terminal sends is for the gateway
            )
        except OSError:
            for ours, _ in pairs:
                ours.close()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()
        for ours, _ in pairs:
            ours.setblocking(False)

    def __repr__(self) -> str:
        return f"<Hand {self.number} pid={self._process.pid} up={self.up} open={self.open.total()}>"

    async def begin(self) -> None:
        """Tell it what to serve, and listen to it."""
        gateway = self._gateway
        gateway.loop.add_reader(self._asks.fileno(), self._question)
        await self._channel.connect(gateway.loop, self._end)
        self.tell("begin", *gateway.beginning())

    def tell(self, name: str, *what: object) -> None:
        """Send it a message."""
        self._channel.send(name, *what)

    async def ask(self, what: str, *more: object, within: float = TOLD_SECONDS) -> Any:
        """Ask it something; None: it does not answer within so many seconds, or is gone."""
        number = next(self._numbers)
        asked = self._asked[number] = self._gateway.loop.create_future()
        self.tell("ask", number, what, *more)
        try:
            async with asyncio.timeout(within):
                told = await asked
        except TimeoutError:
            self.silent = True
            return None
        else:
            self.silent = False
            return told
        finally:
            del self._asked[number]

    def give(self, client: socket.socket, node_id: NodeId) -> bool:
        """Hand a connection to it; tell whether it takes it."""
        try:
            hand_over(self._takes, client, node_id)
        except OSError:
            return False
        self.open[node_id] += 1
        return True

    async def drain(self, within: float) -> int:
        """Have it drain; give the number of connections that it had to cut off."""
        if not self.up:
            return 0
        self._drained = self._gateway.loop.create_future()
        self.tell("drain", within)
        try:
            async with asyncio.timeout(within + LEAVE_SECONDS):
                return await self._drained
        except TimeoutError:
            return self.open.total()

    def end(self) -> None:
        """End it at once, if it has not ended."""
        self.up = False
        if self._asks.fileno() < 0:
            return
        self._gateway.loop.remove_reader(self._asks.fileno())
        self._channel.close()
        for end in (self._takes, self._asks):
            end.close()
        self._process.kill()
        self._process.wait()

    def took(self, counts: Counts) -> None:
        """Note what it told, and now and then from that how busy it is."""
        self.counts = counts
        now, taken = monotonic(), sum(each.cpu_seconds for each in counts.processes)
        then, before = self._looked_at
        if now - then >= INTERVAL_SECONDS:
            self.busy = round(_BUSY_STEPS * (taken - before) / (now - then))
            self._looked_at = (now, taken)

    def _received(self, name: str, *what: Any) -> None:
        if name == "left":
            self.open[what[0]] -= 1
        elif name == "full":
            self.open[what[0]] -= 1
            self.full_until = monotonic() + FULL_SECONDS
        elif name == "told":
            number, told = what
            asked = self._asked.get(number)
            if asked is not None and not asked.done():
                asked.set_result(told)
        elif name == "up":
            self.up = True
            self._gateway.is_up(self.number)
        elif name == "drained":
            cut_off, self.counts = what
            if self._drained is not None and not self._drained.done():
                self._drained.set_result(cut_off)

    def _question(self) -> None:
        try:
            response(self._asks, self._gateway.told)
        except BlockingIOError:
            return
        except OSError:
            self._gateway.loop.remove_reader(self._asks.fileno())

    def _lost(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(self.open.total())
        for asked in self._asked.values():
            if not asked.done():
                asked.set_result(None)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GONE_SECONDS)
        self._gateway.is_gone(self, self._process.returncode)
