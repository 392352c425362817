"""What every process of a gateway has, whether it serves clients or hands them to others."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from copy import deepcopy
from time import monotonic, time
from typing import Any

from proxy.config import Config
from proxy.logger import Logger
from proxy.net.transparent import Destinations
from proxy.server.conditions import ConnectionLimit, Reachability
from proxy.server.listeners import Directory
from proxy.telemetry.history import INTERVAL_SECONDS
from proxy.telemetry.status import Account, Counts, Status, called
from proxy.telemetry.totals import NodeId, Totals


class Service(ABC):
    """The base of what serves clients: tasks that nobody awaits, totals and their history, the status.

    Args:
        config: what the operator asked for.
        loop: the event loop that runs it.
        log: where its lines go.
    """

    brokers: Directory | Destinations
    """Those that are known, by number; there once the bootstrap listener is bound."""

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop, log: Logger) -> None:
        self.loop = loop
        self.log = log
        self.config = config
        """What counts now."""
        self.mistakes: list[str] = []
        """Why the options could not be read again, and a restart would fail."""
        self.listen = config.listen
        """The bootstrap listener; its port is the one that was bound, once it is."""
        self.reach = Reachability(config.bootstrap, log, self.note, self.called)
        self.totals = Totals()
        self.started_at = monotonic()
        self._room = ConnectionLimit(log, self.note)
        self._draining = False
        self._transparent = config.transparent != "off"
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task and keep it alive."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """End all of them."""
        for task in list(self._tasks):
            task.cancel()

    def note(self, kind: str, text: str, *, warning: bool = False) -> None:
        """Keep something that happened, in words, for those who look at the gateway."""
        self.totals.recent_events.note(time(), kind, text, warning=warning)

    def called(self, node_id: NodeId) -> str:
        """Name a broker for people."""
        return called(node_id, self.brokers.known, transparent=self._transparent)

    def status_of(self, problems: list[str], *, slots_held: int, connections: int) -> Status:
        """Tell how this process stands."""
        return Status(
            config=self.config,
            listen=self.listen,
            bootstrap=self.reach.bootstrap,
            brokers=self.brokers.known,
            unreachable_brokers=deepcopy(self.reach.unreachable_brokers),
            bootstrap_answered=self.reach.answered,
            draining=self._draining,
            problems=problems,
            slots_held=slots_held,
            connections=connections,
        )

    def account_of(self, status: Status, counts: Counts) -> Account:
        """Tell everything but the connections one by one."""
        return Account(
            status=status,
            counts=counts,
            uptime_seconds=monotonic() - self.started_at,
            history=self.totals.history,
            answer_seconds=self.totals.all_answer_seconds(),
        )

    async def keep_history(self) -> None:
        """Take the sums for a picture of now, and see by how much the event loop was late."""
        while True:
            asked = monotonic()
            await asyncio.sleep(INTERVAL_SECONDS)
            now = monotonic()
            self.totals.loop_lag.note([max(0.0, now - asked - INTERVAL_SECONDS)])
            await self.sample(now)

    @abstractmethod
    async def sample(self, now: float) -> None:
        """Take the sums as they are now (seconds)."""
