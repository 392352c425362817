"""The main process of a gateway with several processes: it accepts clients and sends each to a worker.

A worker gets whole connections, so one process has everything that a connection needs. The workers share the
session slots at brokers and, in transparent mode, the list of local ports of connections to brokers. Each
worker gets an equal part of ``--max-inflight-bytes``. The supervisor adds up the reports of the workers.
"""

import asyncio
import os
import pickle
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, Final

from proxy.addresses import Address
from proxy.config import Config, with_live
from proxy.error_text import reason_of
from proxy.net.tls import BrokerTls, ClientTls
from proxy.net.transparent import Destinations
from proxy.server.acceptor import Acceptor
from proxy.server.ipc import HandedOver
from proxy.server.monitor import Monitor
from proxy.server.process import Process
from proxy.server.rack_audit import RackWarning
from proxy.server.registry import BrokerRegistry, brokers_of, open_listeners
from proxy.server.server import DRAINING, LIMIT
from proxy.server.worker import shared_bytes, shared_memory
from proxy.server.worker_handle import ASK_SECONDS, WorkerHandle
from proxy.telemetry.state import Described
from proxy.telemetry.status import Account, Counts, Status
from proxy.telemetry.totals import NodeId

START_AGAIN_SECONDS: Final = (1.0, 30.0)
"""How long to wait before an ended worker is started again, in seconds: the second time, and at most. The
first time there is no wait; from the second time on, it doubles each time."""
HAND_OVER_SECONDS: Final = 5.0
"""The time that a client waits for the worker that has to serve it, in seconds. In this time an ended worker
may be started again."""
HAND_OVER_AGAIN_SECONDS: Final = 0.05
TOGETHER_SECONDS: Final = 5.0
"""How long the first worker that is ready waits for the other workers, in seconds. After this time the
gateway accepts clients."""
LISTED_SECONDS: Final = 4.0
"""How long a worker may take to describe its connections, in seconds. A worker may have thousands of
connections."""
SEND_SECONDS: Final = 0.1
"""The shortest time between two messages to the workers about known brokers, in seconds. The messages are
limited because one response may name many new brokers."""
STEADY_SECONDS: Final = 60.0
"""If a worker has run for this many seconds before it ended, the next start counts as the first one again,
without a wait."""


class Supervisor:
    """The main process of ``fetchgate proxy --workers N``.

    Args:
        process: the state of the main process.
        inherited: listening sockets from systemd.
    """

    def __init__(self, process: Process, inherited: Sequence[socket.socket] = ()) -> None:
        config = process.config
        self.process = process
        self.acceptor = Acceptor(process, inherited)
        self.brokers = brokers_of(process, self.acceptor, self._brokers_changed)
        self.monitor = Monitor(process, self.brokers)
        self.turned_away = Counter({LIMIT: 0, DRAINING: 0})
        self._broker_tls = BrokerTls(config)
        self._rack_warning = RackWarning(process)
        self._started = False
        """Whether the gateway asks the cluster for its brokers and accepts clients. Both begin when all
        workers are ready, or `TOGETHER_SECONDS` after the first worker is ready."""
        self._closed = False
        self._ended_counts = Counts()
        """The sum of the counts of workers that have ended."""
        self._workers: dict[int, WorkerHandle] = {}
        self._restart_waits: dict[int, float] = {}
        self._sent_brokers = b""
        self._sent_brokers_at = 0.0
        self._sends_brokers = False
        """Whether a message about the known brokers will soon be sent to the workers."""
        ClientTls(config)  # an unreadable file is reported before a worker is started
        self._memory = os.memfd_create("fetchgate")
        os.ftruncate(self._memory, shared_bytes(config.workers))
        shared = shared_memory(self._memory, 1, config.workers)
        self._slots, self._outbound_ports = shared.slots, shared.outbound_ports

    @property
    def listen(self) -> Address:
        """The address of the first listener. It has the real port once the listener is bound."""
        return self.brokers.listen

    def open(self) -> None:
        """Bind the first listener and the listeners of brokers in the state file. Start the workers.

        Raises:
            OSError: the address of the first listener can't be bound.
            ConfigError: the process lacks the privilege for ``tproxy``.
        """
        open_listeners(self.process, self.brokers, self.acceptor)
        for number in range(1, self.process.config.workers + 1):
            self.process.spawn(self._start(number))
        self.process.spawn(self.monitor.keep_history(self._sample))

    def _worker_config(self) -> Config:
        """Return the options of a worker. It gets an equal part of ``--max-inflight-bytes``."""
        config = self.process.config
        return replace(config, max_inflight_bytes=max(1, config.max_inflight_bytes // config.workers))

    # -- its status and counts -----------------------------------------------------------------------------

    def status(self) -> Status:
        """Return the status from the supervisor's point of view, without the figures of the workers."""
        missing = self._missing
        problems = [*self.brokers.problems, *self.process.options.problems()]
        problems += [f"worker {number} is not running yet" for number in missing]
        slots_used, connections = sum(self._slots), self._connected
        status = self.monitor.status(problems, slots_used=slots_used, connections=connections)
        status.bootstrap_answered &= len(missing) < self.process.config.workers
        return status

    async def collect_status(self) -> Status:
        """Return the status of this process and of the workers, added up."""
        total = self.status()
        for worker, status in await self._ask_all("status"):
            if status is not None:
                total.add(status)
            elif worker.up:
                total.silent = True
                total.problems.append(f"worker {worker.number} does not respond")
        total.connections = self._connected
        return total

    async def collect_account(self) -> Account:
        """Return the status and the sums over all connections, without the list of connections."""
        counts = await self._counts()
        return self.monitor.account(await self.collect_status(), counts)

    async def collect_connections(self, most: int) -> list[Described]:
        """Return the `most` connections with the most bytes, of all workers."""
        responses = self._ask_all("connections", most, within=LISTED_SECONDS)
        described = [each for _, response in await responses for each in response or ()]
        return sorted(described, key=lambda each: each[0], reverse=True)[:most]

    async def _counts(self) -> Counts:
        """Return the sum of the counts of this process and all workers, including workers that have ended."""
        total = Counts()
        total.add(
            Counts(
                loop_lag=self.monitor.totals.loop_lag,
                turned_away=self.turned_away,
                connect_failures=self.monitor.reach.failures,
                recent_events=self.process.events,
            )
        )
        for worker, counts in await self._ask_all("counts"):
            if counts is not None and worker.up:
                worker.update_counts(counts)
        for worker in self._workers.values():  # also of a worker that is exiting
            total.add(worker.counts)
        total.add(self._ended_counts)  # last, to include workers that have ended in between
        return total

    async def _ask_all(
        self, what: str, *more: object, within: float = ASK_SECONDS
    ) -> list[tuple[WorkerHandle, Any]]:
        workers = [worker for _, worker in sorted(self._workers.items()) if worker.up]
        responses = await asyncio.gather(*(worker.ask(what, *more, within=within) for worker in workers))
        return list(zip(workers, responses, strict=True))

    @property
    def _missing(self) -> list[int]:
        """The numbers of the workers that are not ready to serve."""
        up = {worker.number for worker in self._workers.values() if worker.up}
        return [number for number in range(1, self.process.config.workers + 1) if number not in up]

    @property
    def _any_up(self) -> bool:
        return any(worker.up for worker in self._workers.values())

    async def _sample(self, now: float) -> None:
        """Add the present totals of all processes to the history, and reload changed files.

        In transparent mode, also send the known destinations to the workers.
        """
        counts = await self._counts()
        self.monitor.totals.sample(now, counts.tallies.items(), counts.measured)
        if isinstance(self.brokers, Destinations):  # the known brokers are sent when they change
            self._send_brokers()
        self._follow_own_files()
        if counts.zones is not None:
            self._rack_warning.look(counts.zones.racks.values())

    def _in_use(self) -> set[int]:
        links = (worker.counts.links for worker in self._workers.values())
        return {node_id for each in links for node_id in each if node_id is not None}

    # -- reload, drain, close ------------------------------------------------------------------------------

    def reconfigure(self, config: Config) -> None:
        """Apply the changed options that need no restart, here and in the workers."""
        self.process.options.config = with_live(self.process.config, config)
        self._send_all("options", self._worker_config())

    def follow_files(self) -> None:
        """Reload certificates whose files have changed, here and in the workers.

        Only the workers log a reload.
        """
        self._follow_own_files()
        self._send_all("follow files")

    def _follow_own_files(self) -> None:
        if self._broker_tls.reloading is not None:
            self._broker_tls.reloading.reload_if_changed()

    async def drain(self, within: float) -> int:
        """Accept no new clients, and let the workers finish their requests in flight. See `Gateway.drain`."""
        self.monitor.draining = True
        self.process.note(
            "draining", f"draining: {self._connected} connections finish their requests in flight"
        )
        if isinstance(self.brokers, BrokerRegistry):
            self.brokers.stop_opening()
        self.acceptor.stop_all()
        cut_off = await asyncio.gather(*(worker.drain(within) for worker in self._workers.values()))
        self.close()
        return sum(cut_off)

    def close(self) -> int:
        """Close everything at once. Return the number of client connections that were open."""
        self._closed = True
        left = self._connected
        self.acceptor.close()
        if isinstance(self.brokers, BrokerRegistry):
            self.brokers.close()
        self.process.tasks.cancel()
        for worker in self._workers.values():
            worker.end()
        self._workers.clear()
        return left

    # -- the workers ---------------------------------------------------------------------------------------

    def _respond(self, what: str, *more: Any) -> object:
        """Return the response to a question for which a worker waits."""
        brokers = self.brokers
        if what == "destination" and isinstance(brokers, Destinations):
            return brokers.number(*more)
        return brokers.known.get(*more)

    def _received(self, worker: WorkerHandle, name: str, *what: Any) -> None:
        """Handle a message from a worker. `WorkerHandle` lists the messages."""
        if name == "up":
            self._worker_up(worker)
        elif name == "ended":
            self._worker_ended(worker, *what)
        elif name == "learned":
            self._learned(*what)
        elif name == "replicas":
            for other in self._workers.values():
                if other is not worker:
                    other.send(name, *what)
        elif name == "hand over":
            self.process.spawn(self._hand_over(*what))

    async def _hand_over(self, stream: socket.socket, node_id: NodeId, handed: HandedOver) -> None:
        """Send a client to the worker that has to serve it, as soon as that worker runs.

        If this takes too long, close `stream`. Then the worker that accepted the client closes the client's
        connection.
        """
        end = monotonic() + HAND_OVER_SECONDS
        with stream:
            while not self.monitor.draining and monotonic() < end:
                worker = self._workers.get(handed.worker)
                if worker is not None and worker.up and worker.send_handed_over(stream, node_id, handed):
                    return
                await asyncio.sleep(HAND_OVER_AGAIN_SECONDS)
        self.process.log.warning(
            "connection closed: the worker of its group is not ready",
            client=handed.client_address,
            worker=handed.worker,
        )

    def _learned(self, named: dict[int, Address]) -> None:
        """Note the broker addresses that a worker has read in responses.

        All workers get the new addresses.
        """
        if isinstance(self.brokers, BrokerRegistry) and not self._closed:
            for node_id, address in named.items():
                self.brokers.learn(node_id, address)

    def _worker_up(self, worker: WorkerHandle) -> None:
        """Accept clients, because a worker is ready now.

        At the start of the gateway, first wait for the other workers.
        """
        if self._started:
            self.process.log.info("worker started", worker=worker.number)
            self.acceptor.resume()
        elif not self._missing:
            self._begin()
        else:
            self.process.loop.call_later(TOGETHER_SECONDS, self._begin)

    def _begin(self) -> None:
        """Begin to ask the cluster for its brokers, to accept clients, and to assign them to workers."""
        if not self._started and not self._closed:
            self._started = True
            if isinstance(self.brokers, BrokerRegistry):
                self.brokers.begin(self.monitor.reach, self._broker_tls, self._in_use)
            self.acceptor.begin(self._assign, self._no_client)
            if not self._any_up:
                self.acceptor.pause()

    def _worker_ended(self, worker: WorkerHandle, code: int | None) -> None:
        """Note that a worker has ended, and start a new one in its place."""
        if self._closed:
            return
        worker.end()
        why = "unexpectedly" if code is None else f"by signal {-code}" if code < 0 else f"with code {code}"
        self.process.log.error("worker ended", worker=worker.number, reason=why)
        name = f"worker {worker.number}"
        self.process.note(name, f"{name} ended {why}; its clients must reconnect", warning=True)
        worker.counts.drop_current()
        self._ended_counts.add(worker.counts)
        worker.counts = Counts()
        worker.open.clear()
        self._slots[worker.number - 1] = 0
        self._outbound_ports.forget(worker.number)
        if not self._any_up:
            self.acceptor.pause()
        if not self.monitor.draining:
            self.process.spawn(self._restart(worker))

    async def _start(self, number: int) -> None:
        """Start a worker. If the system lacks memory or descriptors, try again until it works."""
        while True:
            try:
                self._workers[number] = worker = WorkerHandle(
                    self.process, number, self._memory, self._received, self._respond
                )
            except OSError as error:
                self.process.log.warning(
                    "worker can't be started, trying again", worker=number, reason=reason_of(error)
                )
                await asyncio.sleep(START_AGAIN_SECONDS[1])
            else:
                brokers = self.brokers
                return await worker.begin(self._worker_config(), brokers.listen, brokers.bound, brokers.known)

    async def _restart(self, worker: WorkerHandle) -> None:
        wait = self._restart_waits.get(worker.number, 0.0)
        if monotonic() - worker.started_at >= STEADY_SECONDS:
            wait = 0.0
        self._restart_waits[worker.number] = min(
            max(2 * wait, START_AGAIN_SECONDS[0]), START_AGAIN_SECONDS[1]
        )
        await asyncio.sleep(wait)
        if not self.monitor.draining:
            await self._start(worker.number)

    def _send_all(self, name: str, *what: object) -> None:
        for worker in self._workers.values():
            worker.send(name, *what)

    def _brokers_changed(self) -> None:
        """Send the known brokers to the workers, but not more often than once in `SEND_SECONDS`."""
        if not self._sends_brokers:
            self._sends_brokers = True
            self.process.loop.call_at(self._sent_brokers_at + SEND_SECONDS, self._send_brokers)

    def _send_brokers(self) -> None:
        """Send the list of known brokers to the workers, if the list has changed since it was last sent."""
        self._sends_brokers = False
        self._sent_brokers_at = self.process.loop.time()
        known = self.brokers.known
        if (now := pickle.dumps(known)) != self._sent_brokers:
            self._sent_brokers = now
            self._send_all("brokers", known)

    # -- clients -------------------------------------------------------------------------------------------

    @property
    def _connected(self) -> int:
        return sum(worker.open.total() for worker in self._workers.values())

    def _no_client(self, error: OSError) -> None:
        self.process.log.warning("no client can be accepted, trying again", reason=reason_of(error))

    def _assign(self, client: socket.socket, node_id: NodeId) -> bool:
        """Send a client to the worker with the fewest clients of the same listener.

        If several workers have equally few clients, the least busy of them gets the client. Silent workers
        are only used if no other can take it. Above ``--max-connections`` the client is closed.

        Returns:
            False if no worker can take the client now. A worker can't if it has not received earlier clients
            yet, or has no free descriptor.
        """
        now = monotonic()
        if not self.monitor.admits(self._connected):
            self.turned_away[LIMIT] += 1
            client.close()
            return True
        able = [worker for worker in self._workers.values() if worker.up and worker.full_until <= now]
        able.sort(key=lambda worker: (worker.silent, worker.open[node_id], worker.busy, worker.open.total()))
        sent = any(worker.send_client(client, node_id) for worker in able)
        if sent:
            client.close()  # the worker has its own descriptor
        return sent
