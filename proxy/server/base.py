"""What every process of a gateway has, whether it serves clients or hands them to others."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from time import monotonic, time
from typing import Any

from proxy.config import Config
from proxy.logger import Logger
from proxy.telemetry.history import INTERVAL_SECONDS
from proxy.telemetry.status import Account, Counts, Status
from proxy.telemetry.totals import Totals


class Service(ABC):
    """Tasks that nobody awaits, books, and the history that is made of them.

    Args:
        config: what the operator asked for.
        loop: the event loop that runs it.
        log: where its lines go.
    """

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop, log: Logger) -> None:
        self.loop = loop
        self.log = log
        self.config = config
        """What counts now."""
        self.mistakes: list[str] = []
        """Why the options could not be read again, and a restart would fail."""
        self.totals = Totals()
        self.started_at = monotonic()
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
