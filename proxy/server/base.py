"""What every process of a gateway has, whether it serves clients or assigns them to workers."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from copy import deepcopy
from time import monotonic, time
from typing import Any

from proxy.addresses import Address
from proxy.config import Config
from proxy.logger import Logger
from proxy.net.resolve import Resolver
from proxy.net.tls import ReloadingContext
from proxy.net.transparent import Destinations
from proxy.server.conditions import ConnectionLimit, HungBrokers, Reachability
from proxy.server.listeners import Directory
from proxy.telemetry.history import INTERVAL_SECONDS
from proxy.telemetry.status import Account, Counts, Status, called
from proxy.telemetry.totals import NodeId, Totals


class Service(ABC):
    """The base of `Server` and `Supervisor`: background tasks, totals and their history, the status.

    Args:
        config: what the operator asked for.
        loop: the event loop that runs it.
        log: takes its log lines.
    """

    brokers: Directory | Destinations
    """The known brokers, by number. Set when the bootstrap listener is bound."""

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop, log: Logger) -> None:
        self.loop = loop
        self.log = log
        self.config = config
        """The options as they apply now; a reload changes those that are live."""
        self.reload_errors: list[str] = []
        """Why the last reload failed; a restart would fail for the same reason."""
        self.needs_restart: list[str] = []
        """Options that were read again and differ, but do not apply before a restart."""
        self.certificates: dict[str, ReloadingContext | None] = {}
        """By option: the TLS that has the gateway's own certificate; None: there is none."""
        self.reloaded_at = time()
        """When the options were last read without a mistake, in seconds since 1970."""
        self.reload_failures = 0
        """How often they were read since the start, and one was wrong."""
        self.listen = config.listen
        """The address of the bootstrap listener; with the port that was bound, once it is bound."""
        self.bound: tuple[Address, ...] = ()
        """The IPs, and the port, at which it is bound."""
        self.reach = Reachability(config.bootstrap, log, self.note, self.called)
        self.hung_brokers = HungBrokers(log, self.note, self.called)
        self.resolver = Resolver()
        self.totals = Totals()
        self.started_at = monotonic()
        self._connection_limit = ConnectionLimit(log, self.note)
        self._draining = False
        self._transparent = config.is_transparent
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task in the background and keep a reference to it."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Cancel all background tasks."""
        for task in list(self._tasks):
            task.cancel()

    def note(self, kind: str, text: str, *, warning: bool = False) -> None:
        """Add a recent event, in words, to what ``/state`` shows."""
        self.totals.recent_events.note(time(), kind, text, warning=warning)

    def called(self, node_id: NodeId) -> str:
        """Name a broker as people read it."""
        return called(node_id, self.brokers.known, transparent=self._transparent)

    def status_of(self, problems: list[str], *, slots_used: int, connections: int) -> Status:
        """Describe the status of this process."""
        return Status(
            config=self.config,
            listen=self.listen,
            bootstrap=self.reach.bootstrap,
            brokers=self.brokers.known,
            at=monotonic(),
            unreachable_brokers=deepcopy(self.reach.unreachable_brokers),
            unanswered=deepcopy(self.hung_brokers.unanswered),
            bootstrap_answered=self.reach.answered,
            draining=self._draining,
            reloaded_at=self.reloaded_at,
            reload_failures=self.reload_failures,
            needs_restart=list(self.needs_restart),
            certificates={
                option: each.valid_until.timestamp()
                for option, each in self.certificates.items()
                if each is not None and each.valid_until is not None
            },
            problems=problems,
            slots_used=slots_used,
            connections=connections,
        )

    def reload_problems(self) -> list[str]:
        """Return what is wrong with the options since they were read again."""
        needed = f"a restart is needed for {', '.join(self.needs_restart)}"
        return [*self.reload_errors, *([needed] if self.needs_restart else [])]

    def account_of(self, status: Status, counts: Counts) -> Account:
        """Describe everything but the single connections."""
        return Account(
            status=status,
            counts=counts,
            uptime_seconds=monotonic() - self.started_at,
            history=self.totals.history,
            saved_bytes=self.totals.saved(counts.tallies),
            response_seconds=self.totals.all_response_seconds(),
        )

    async def keep_history(self) -> None:
        """Sample the totals at regular intervals, and measure how late the event loop was."""
        while True:
            before = monotonic()
            await asyncio.sleep(INTERVAL_SECONDS)
            now = monotonic()
            self.totals.loop_lag.note([max(0.0, now - before - INTERVAL_SECONDS)])
            await self.sample(now)

    @abstractmethod
    async def sample(self, now: float) -> None:
        """Add the totals as they are now to the history; `now` in seconds."""
