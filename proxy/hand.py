"""A worker as the gateway sees it: a process, what it is told and what it tells."""

import asyncio
import socket
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from time import monotonic
from typing import Any, Final, Protocol

from proxy.account import Counts
from proxy.books import NodeId
from proxy.channel import Channel, answer, hand_over
from proxy.config import Config
from proxy.recent import INTERVAL_SECONDS

TOLD_SECONDS: Final = 0.8
"""For a worker to answer; one that takes longer is said to be silent. The kubelet waits a second for both."""
LEAVE_SECONDS: Final = 2.0
"""Beyond the time for draining, for a worker to say that it has."""
GONE_SECONDS: Final = 0.1
"""Between the end of a worker's channel and its own."""
_BUSY_STEPS: Final = 20
"""Workers whose shares of a core differ by less than one of so many parts are equally busy."""


class Boss(Protocol):
    """What a worker belongs to."""

    config: Config
    loop: asyncio.AbstractEventLoop

    def beginning(self) -> tuple[object, ...]:
        """Give what a worker begins with, see `proxy.worker.Worker`."""

    def told(self, what: str, *more: Any) -> object:
        """Answer what a worker has to know at once."""

    def is_up(self, hand: "Hand") -> None:
        """Take note that a worker serves."""

    def is_gone(self, hand: "Hand", code: int | None) -> None:
        """Take note that a worker ended.

        Args:
            hand: which.
            code: that of its process, negative for a signal; None: it has only closed its channel.
        """


class Hand:
    """A worker as the gateway sees it.

    Args:
        number: which it is, from 1.
        gateway: whose worker it is.
        memory: the descriptor of what all share.

    Raises:
        OSError: no process can be started.
    """

    def __init__(self, number: int, gateway: Boss, memory: int) -> None:
        self.number = number
        self.up = False
        """It serves."""
        self.open: Counter[NodeId] = Counter()
        """Its connections, by the listener to which they came."""
        self.counts = Counts()
        """What it told last."""
        self.busy = 0
        """How much of a core it took of late, in steps of a twentieth."""
        self.started_at = monotonic()
        self._gateway = gateway
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._drained: asyncio.Future[int] | None = None
        self._channel = Channel(self._received, self._lost)
        pairs = [
            socket.socketpair(socket.AF_UNIX, kind)
            for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_SEQPACKET)
        ]
        self._end, self._takes, self._asks = (ours for ours, _ in pairs)
        descriptors = [*(theirs.fileno() for _, theirs in pairs), memory]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                [
                    sys.executable,
                    "-m",
                    "proxy.worker",
                    *map(str, (*descriptors, number, gateway.config.workers)),
                ],
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

    async def ask(self, what: str, *more: object) -> Any:
        """Ask it something; None: it does not answer."""
        number = len(self._asked) and max(self._asked) + 1
        asked = self._asked[number] = self._gateway.loop.create_future()
        self.tell("ask", number, what, *more)
        try:
            async with asyncio.timeout(TOLD_SECONDS):
                return await asked
        except TimeoutError:
            return None
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
        """End it at once."""
        self.up = False
        self._gateway.loop.remove_reader(self._asks.fileno())
        self._channel.close()
        for end in (self._takes, self._asks):
            end.close()
        self._process.kill()
        self._process.wait()

    def took(self, counts: Counts) -> None:
        """Note what it told, and from that how busy it is."""
        before, after = (sum(each.cpu_seconds for each in told.processes) for told in (self.counts, counts))
        if self.counts.processes:
            self.busy = round(_BUSY_STEPS * (after - before) / INTERVAL_SECONDS)
        self.counts = counts

    def _received(self, name: str, *what: Any) -> None:
        if name == "left":
            self.open[what[0]] -= 1
        elif name == "told":
            number, told = what
            asked = self._asked.get(number)
            if asked is not None and not asked.done():
                asked.set_result(told)
        elif name == "up":
            self.up = True
            self._gateway.is_up(self)
        elif name == "drained":
            cut_off, self.counts = what
            if self._drained is not None and not self._drained.done():
                self._drained.set_result(cut_off)

    def _question(self) -> None:
        try:
            answer(self._asks, self._gateway.told)
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
