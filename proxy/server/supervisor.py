"""The gateway as several processes: this one takes the clients and hands each to a worker, which serves it.

A worker is given a connection as a whole, never a part of one: what a connection needs stands in one process.
Shared are the slots at brokers and, in transparent mode, where the gateway's own connections come from; each
worker has an equal part of ``--max-inflight-bytes``. What workers tell is added up here.
"""

import asyncio
import os
import pickle
import socket
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, Final

from proxy.config import Config, with_live
from proxy.logger import Logger
from proxy.net.listen import Binding
from proxy.net.tls import BrokerTls, ClientTls
from proxy.net.transparent import Destinations
from proxy.reasons import reason_of
from proxy.server.base import Service
from proxy.server.listeners import Brokers, Front
from proxy.server.server import DRAINING, LIMIT
from proxy.server.worker import TAKEN_AT_ONCE, shared_bytes, shared_memory
from proxy.server.worker_handle import TOLD_SECONDS, WorkerHandle
from proxy.telemetry.state import Described
from proxy.telemetry.status import Account, Counts, Status
from proxy.telemetry.totals import NodeId

START_AGAIN_SECONDS: Final = (1.0, 30.0)
"""The first and the longest wait before a worker that ended is started again; each wait doubles."""
TAKE_AGAIN_SECONDS: Final = 1.0
"""Before clients are taken again, where one could not be."""
AGAIN_SECONDS: Final = 0.01
"""Before one that was taken is offered to the workers again."""
TOGETHER_SECONDS: Final = 5.0
"""How long the first worker waits for the others."""
LISTED_SECONDS: Final = 4.0
"""For a worker to describe its connections; they may be thousands."""
STEADY_SECONDS: Final = 60.0
"""A worker that lived for so long is started again at once."""


class Workers(Service):
    """``fetchgate proxy --workers N``.

    Args:
        config: what the operator asked for.
        loop: the event loop that runs it.
        log: where its lines go.
        inherited: sockets that listen already, handed over by systemd.
    """

    def __init__(
        self,
        config: Config,
        loop: asyncio.AbstractEventLoop,
        log: Logger,
        inherited: Sequence[socket.socket] = (),
    ) -> None:
        super().__init__(config, loop, log)
        self._broker_tls = BrokerTls(config)
        self.front = Front(
            config,
            binding=Binding(config.reuse_port, inherited),
            reach=self.reach,
            broker_tls=self._broker_tls,
            log=log,
            note=self.note,
            serve=self._serve,
            stop=self._stop,
            in_use=self._in_use,
        )
        self.turned_away = Counter({LIMIT: 0, DRAINING: 0})
        self._begun = False
        """The cluster is followed and clients are taken: all workers were up, or one for long enough."""
        self._closed = False
        self._gone = Counts()
        """What workers counted that are gone."""
        self._hands: dict[int, WorkerHandle] = {}
        self._again: dict[int, float] = {}
        self._listeners: dict[NodeId, list[socket.socket]] = {}
        self._listening = False
        """Clients are taken."""
        self._waiting: deque[tuple[socket.socket, NodeId]] = deque()
        """Those that were taken and that no worker could be given yet."""
        self._known = b""
        ClientTls(config, lambda _: None)  # to tell of a bad file before a worker is started
        self._memory = os.memfd_create("fetchgate")
        os.ftruncate(self._memory, shared_bytes(config.workers))
        shared = shared_memory(self._memory, 1, config.workers)
        self._slots, self._ways = shared.slots, shared.ways

    def open(self) -> None:
        """Bind the bootstrap listener and those of the brokers that are known from before; start the workers.

        Raises:
            OSError: the address of the bootstrap listener can't be bound.
            ConfigError: the right for ``tproxy`` is missing.
        """
        self.front.open()
        self.listen, self.brokers = self.front.listen, self.front.brokers
        for number in range(1, self.config.workers + 1):
            self.spawn(self._start(number))
        self.spawn(self.keep_history())

    def beginning(self) -> tuple[object, ...]:
        """Give what a worker begins with."""
        return self._part(), self.listen, self.brokers.known

    def _part(self) -> Config:
        """Give what one worker runs with."""
        share = max(1, self.config.max_inflight_bytes // self.config.workers)
        return replace(self.config, max_inflight_bytes=share)

    # -- what it tells of itself ---------------------------------------------------------------------------

    def status(self) -> Status:
        """Tell how this process stands; what workers know is not in it."""
        missing = self._missing
        problems = [*self.brokers.problems, *self.mistakes]
        problems += [f"worker {number} does not run yet" for number in missing]
        status = self.status_of(problems, slots_held=sum(self._slots), connections=self._connected)
        status.bootstrap_answered &= len(missing) < self.config.workers
        return status

    async def tell_status(self) -> Status:
        """Tell how it stands, as this process and its workers know."""
        total = self.status()
        for hand, status in await self._ask_all("status"):
            if status is not None:
                total.add(status)
            elif hand.up:
                total.silent = True
                total.problems.append(f"worker {hand.number} does not answer")
        total.connections = self._connected
        return total

    async def tell_account(self) -> Account:
        """Tell everything but the connections one by one."""
        counts = await self._counts()
        return self.account_of(await self.tell_status(), counts)

    async def tell_connections(self, most: int) -> list[Described]:
        """Describe the connections that moved most bytes."""
        asked = self._ask_all("connections", most, within=LISTED_SECONDS)
        described = [each for _, told in await asked for each in told or ()]
        return sorted(described, key=lambda each: each[0], reverse=True)[:most]

    async def _counts(self) -> Counts:
        """Add up what this process and its workers have counted, those that are gone included."""
        total, totals = Counts(), self.totals
        total.add(
            Counts(loop_lag=totals.loop_lag, turned_away=self.turned_away, recent_events=totals.recent_events)
        )
        for hand, counts in await self._ask_all("counts"):
            if counts is not None and hand.up:
                hand.took(counts)
            total.add(hand.counts)
        total.add(self._gone)  # now, with those that ended while they were asked
        return total

    async def _ask_all(
        self, what: str, *more: object, within: float = TOLD_SECONDS
    ) -> list[tuple[WorkerHandle, Any]]:
        hands = [hand for _, hand in sorted(self._hands.items()) if hand.up]
        told = await asyncio.gather(*(hand.ask(what, *more, within=within) for hand in hands))
        return list(zip(hands, told, strict=True))

    @property
    def _missing(self) -> list[int]:
        """Give the numbers of the workers that don't serve."""
        up = {hand.number for hand in self._hands.values() if hand.up}
        return [number for number in range(1, self.config.workers + 1) if number not in up]

    async def sample(self, now: float) -> None:
        """Take the sums of all processes, and have workers know the brokers."""
        counts = await self._counts()
        self.totals.sample(now, counts.tallies.items(), counts.measured)
        self._have_known()
        self._follow_own_files()

    def _in_use(self) -> set[int]:
        links = (hand.counts.links for hand in self._hands.values())
        return {node_id for each in links for node_id in each if node_id is not None}

    # -- how it changes and ends ---------------------------------------------------------------------------

    def reconfigure(self, config: Config) -> None:
        """Take the options that apply at once, and have the workers take them."""
        self.config = with_live(self.config, config)
        self._tell_all("options", self._part())

    def follow_files(self) -> None:
        """Read certificates again whose files have changed, here and in the workers, which tell of it."""
        self._follow_own_files()
        self._tell_all("follow files")

    def _follow_own_files(self) -> None:
        if self._broker_tls.followed is not None:
            self._broker_tls.followed.follow()

    async def drain(self, within: float) -> int:
        """Take no new clients, and have the workers finish what is in flight; see `Serving.drain`."""
        self._draining = True
        self.note("draining", f"draining: {self._connected} connections finish what is in flight")
        for node_id in list(self._listeners):
            self._stop(node_id)
        cut_off = await asyncio.gather(*(hand.drain(within) for hand in self._hands.values()))
        self.close()
        return sum(cut_off)

    def close(self) -> int:
        """Close everything at once; give the number of connections that were open."""
        self._closed = True
        left = self._connected
        for node_id in list(self._listeners):
            self._stop(node_id)
        for client, _ in self._waiting:
            client.close()
        self._waiting.clear()
        self.cancel()
        for hand in self._hands.values():
            hand.end()
        self._hands.clear()
        return left

    # -- the workers ---------------------------------------------------------------------------------------

    def told(self, what: str, *more: Any) -> object:
        """Answer what a worker has to know at once."""
        brokers = self.brokers
        if what == "broker" and isinstance(brokers, Brokers):
            learned = brokers.learn(*more)
            self._have_known()
            return learned
        if what == "destination" and isinstance(brokers, Destinations):
            return brokers.number(*more)
        return brokers.known.get(*more)

    def is_up(self, number: int) -> None:
        """Take note that one more worker serves."""
        if self._begun:
            self.log.info("worker serves", worker=number)
            self._take()
        elif not self._missing:
            self._begin()
        else:
            self.loop.call_later(TOGETHER_SECONDS, self._begin)

    def _begin(self) -> None:
        """Begin to follow the cluster and to take clients: those that come first stay where they are put."""
        if not self._begun and not self._closed:
            self._begun = True
            for work in self.front.work():
                self.spawn(work)
            self._take()

    def is_gone(self, hand: WorkerHandle, code: int | None) -> None:
        """Take note that a worker ended, and start another in its place."""
        if self._closed:
            return
        hand.end()
        why = "without a word" if code is None else f"by signal {-code}" if code < 0 else f"with code {code}"
        self.log.error("worker ended", worker=hand.number, reason=why)
        name = f"worker {hand.number}"
        self.note(name, f"{name} ended {why}; its clients connect again", warning=True)
        hand.counts.ended()
        self._gone.add(hand.counts)
        hand.counts = Counts()
        hand.open.clear()
        self._slots[hand.number - 1] = 0
        self._ways.ended(hand.number)
        if not any(other.up for other in self._hands.values()):
            self._wait()
        if not self._draining:
            self.spawn(self._start_again(hand))

    async def _start(self, number: int) -> None:
        """Start a worker; where that fails, for want of memory or descriptors, again and again."""
        while True:
            try:
                self._hands[number] = hand = WorkerHandle(number, self, self._memory)
            except OSError as error:
                self.log.warning(
                    "worker can't be started, trying again", worker=number, reason=reason_of(error)
                )
                await asyncio.sleep(START_AGAIN_SECONDS[1])
            else:
                return await hand.begin()

    async def _start_again(self, hand: WorkerHandle) -> None:
        wait = self._again.get(hand.number, 0.0)
        if monotonic() - hand.started_at >= STEADY_SECONDS:
            wait = 0.0
        self._again[hand.number] = min(max(2 * wait, START_AGAIN_SECONDS[0]), START_AGAIN_SECONDS[1])
        await asyncio.sleep(wait)
        if not self._draining:
            await self._start(hand.number)

    def _tell_all(self, name: str, *what: object) -> None:
        for hand in self._hands.values():
            hand.tell(name, *what)

    def _have_known(self) -> None:
        """Have the workers know the brokers, if these are not as they were told."""
        known = self.brokers.known
        if (now := pickle.dumps(known)) != self._known:
            self._known = now
            self._tell_all("know", known)

    # -- clients -------------------------------------------------------------------------------------------

    @property
    def _connected(self) -> int:
        return sum(hand.open.total() for hand in self._hands.values())

    def _serve(self, node_id: NodeId, sockets: list[socket.socket]) -> None:
        self._listeners[node_id] = sockets
        if self._listening:
            self._watch(node_id)

    def _watch(self, node_id: NodeId) -> None:
        for sock in self._listeners[node_id]:
            self.loop.add_reader(sock.fileno(), self._accept, node_id, sock)

    def _leave_alone(self, node_id: NodeId) -> None:
        for sock in self._listeners[node_id]:
            self.loop.remove_reader(sock.fileno())

    def _stop(self, node_id: NodeId) -> None:
        if node_id in self._listeners:
            self._leave_alone(node_id)
            for sock in self._listeners.pop(node_id):
                sock.close()

    def _take(self) -> None:
        """Take clients, those first that were taken before and are not handed over yet."""
        while self._waiting:
            if not self._hand_over(*self._waiting[0]):
                self._wait(AGAIN_SECONDS)
                return
            self._waiting.popleft()[0].close()
        if not self._listening and any(hand.up for hand in self._hands.values()):
            self._listening = True
            for node_id in self._listeners:
                self._watch(node_id)

    def _wait(self, seconds: float | None = None) -> None:
        """Leave clients in the backlog, for some seconds or until a worker is up."""
        if self._listening:
            self._listening = False
            for node_id in self._listeners:
                self._leave_alone(node_id)
        if seconds is not None:
            self.loop.call_later(seconds, self._take)

    def _accept(self, node_id: NodeId, listener: socket.socket) -> None:
        """Hand those that have come to workers."""
        for _ in range(TAKEN_AT_ONCE):
            try:
                client, _address = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor is left, or no memory: others may leave some
                self.log.warning("no client can be taken, trying again", reason=reason_of(error))
                self._wait(TAKE_AGAIN_SECONDS)
                return
            if not self._hand_over(client, node_id):
                self._waiting.append((client, node_id))
                self._wait(AGAIN_SECONDS)
                return
            client.close()

    def _hand_over(self, client: socket.socket, node_id: NodeId) -> bool:
        """Give a client to the worker with the fewest of its listener, and of these to the one least busy.

        Returns:
            False when no worker takes it now: those that were given before are still in its way, or no
            descriptor is left.
        """
        now = monotonic()
        if not self._room.for_one_more(self._connected, self.config.max_connections, now):
            self.turned_away[LIMIT] += 1
            return True
        able = [hand for hand in self._hands.values() if hand.up and hand.full_until <= now]
        able.sort(key=lambda hand: (hand.silent, hand.open[node_id], hand.busy, hand.open.total()))
        return any(hand.give(client, node_id) for hand in able)
