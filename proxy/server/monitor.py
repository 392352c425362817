"""What a process knows of its brokers and of itself, for its status and metrics."""

import asyncio
from collections import Counter
from collections.abc import Callable
from time import monotonic

from proxy.net.tls import ReloadingContext
from proxy.net.transparent import Destinations
from proxy.server.conditions import ConnectionLimit, Descriptors
from proxy.server.process import Process
from proxy.server.registry import BrokerRegistry
from proxy.telemetry.brokers import HungBrokers, Reachability
from proxy.telemetry.history import INTERVAL_SECONDS
from proxy.telemetry.status import called
from proxy.telemetry.totals import NodeId, Totals


class Monitor:
    """Watches the brokers, the limits and the event loop of one process."""

    def __init__(self, process: Process, brokers: BrokerRegistry | Destinations) -> None:
        self.reach = Reachability(process.config.bootstrap, process.log, process.note, self.called)
        self.hung_brokers = HungBrokers(process.log, process.note, self.called)
        self.connection_limit = ConnectionLimit(process.log, process.note)
        self.descriptors = Descriptors(process.log, process.note)
        self.totals = Totals()
        self.tls_failures = Counter(client=0, broker=0)
        """By side: handshakes of clients, and how often a client's broker could not be reached because of
        TLS. The gateway's own questions to the bootstrap do not count."""
        self.authentication_failures = Counter(client=0, broker=0)
        """By side: clients' credentials that a broker refused, or certificates that the gateway refused or
        missed; and TLS failures with brokers because of a certificate, the gateway's or the broker's."""
        self.certificates: dict[str, ReloadingContext | None] = {}
        """The TLS contexts with the gateway's own certificates, by option. None without TLS on that side."""
        self.draining = False
        self._process = process
        self._brokers = brokers
        self.started_at = monotonic()

    def called(self, node_id: NodeId) -> str:
        return called(node_id, self._brokers.known, transparent=self._process.config.is_transparent)

    def admits(self, clients: int) -> bool:
        return self.connection_limit.admits(clients, self._process.config.max_connections, monotonic())

    def out_of_descriptors(self) -> None:
        self.descriptors.update(left=False, now=monotonic())

    async def keep_history(self, sample: Callable[[float], None]) -> None:
        """Call `sample` (with the time in seconds) at regular intervals. Measure how late the loop is."""
        while True:
            before = monotonic()
            await asyncio.sleep(INTERVAL_SECONDS)
            now = monotonic()
            self.totals.loop_lag.note([max(0.0, now - before - INTERVAL_SECONDS)])
            sample(now)
