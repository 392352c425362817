"""A worker: a process that serves the clients which `proxy.server.supervisor` hands it."""

import asyncio
import mmap
import signal
import socket
import sys
from contextlib import suppress
from typing import Any, Final

from proxy.addresses import BY_NAME, OTHERS, Address, Broker
from proxy.config import Config, ConfigError
from proxy.net.link import Link
from proxy.net.sockets import ClientProtocol
from proxy.net.transparent import MOST, Destinations, OutboundPorts
from proxy.server.ipc import Channel, Question, take_over
from proxy.server.listeners import Directory
from proxy.server.process import keep_freed, new_event_loop
from proxy.server.server import Server, Shared
from proxy.telemetry import logs, state
from proxy.telemetry.status import Unreachable
from proxy.telemetry.totals import NodeId

TAKEN_AT_ONCE: Final = 64
"""Connections that are taken before others are served."""


class AskedBrokers(Directory):
    """The brokers as the gateway knows them, which alone has listeners.

    Args:
        listen: where the bootstrap listener is.
        advertise: the host that clients are told, or nothing.
        ask: asks the gateway.
    """

    def __init__(self, listen: Address, advertise: str, ask: Question) -> None:
        super().__init__(listen, advertise)
        self._ask = ask

    def learn(self, node_id: int, address: Address) -> Broker:
        """Have the gateway open a listener for a broker that is new; without a response it has none."""
        broker = self.known.get(node_id)
        if broker is not None and broker.address == address:
            return broker
        try:
            learned: Broker = self._ask("broker", node_id, address)
        except OSError as error:
            return Broker(node_id=node_id, address=address, problem=str(error))
        self.known[node_id] = learned
        return learned


class AskedDestinations(Destinations):
    """Destinations with the numbers that the gateway gives them.

    Args:
        mode: ``redirect`` or ``tproxy``.
        ask: asks the gateway.
    """

    def __init__(self, mode: str, ask: Question) -> None:
        super().__init__(mode)
        self._ask = ask

    def number(self, address: Address) -> int:
        """Return the number of a destination."""
        number = self._numbers.get(address, OTHERS)
        if number == OTHERS and len(self._numbers) < MOST:
            with suppress(OSError):  # without a response it is counted with those beyond them
                number = int(self._ask("destination", address))
            if number != OTHERS:
                self._numbers[address] = number
                self.known[number] = Broker(node_id=number, address=address)
        return number


class Worker(Server):
    """Serves the clients that come over a socket, and does what the gateway says.

    Args:
        config: what the operator asked for, with this worker's part of what is shared out.
        listen: the bootstrap listener.
        loop: the event loop that runs it.
        shared: what the processes share.
        ask: asks the gateway.
        channel: to the gateway.
    """

    def __init__(
        self,
        config: Config,
        listen: Address,
        loop: asyncio.AbstractEventLoop,
        *,
        shared: Shared,
        ask: Question,
        channel: Channel,
    ) -> None:
        super().__init__(config, loop, logs.logger().bind(worker=shared.number), shared=shared)
        self.listen = listen
        if config.transparent == "off":
            self.brokers = AskedBrokers(listen, config.advertise, ask)
        else:
            self.brokers = AskedDestinations(config.transparent, ask)
        self.reach.answered = True  # that is for the gateway to know
        self.reach.unreachable_brokers = Unreachable()
        self._ask = ask
        self._channel = channel
        self._came: dict[Link, NodeId] = {}

    def take(self, end: socket.socket) -> None:
        """Take the connections that were handed over."""
        with suppress(BlockingIOError):
            for _ in range(TAKEN_AT_ONCE):
                taken = take_over(end)
                if taken is None:
                    self.loop.remove_reader(end.fileno())
                    return
                node_id, client = taken
                if client is None:
                    self.exhausted()
                    self._channel.send("full", node_id)
                else:
                    self.spawn(self._serve(node_id, client))

    async def _serve(self, node_id: NodeId, client: socket.socket) -> None:
        link = Link(self, node_id)
        self._came[link] = node_id
        try:
            await self.loop.connect_accepted_socket(
                lambda: ClientProtocol(link), client, **self._client_tls.accepting
            )
        except OSError:
            client.close()  # it left, or its handshake failed, which TLS itself tells
        if link not in self.links:
            self._left(link)

    def closed(self, link: Link) -> None:
        """Strike a link off, and tell the gateway that there is room."""
        super().closed(link)
        self._left(link)

    def _left(self, link: Link) -> None:
        with suppress(KeyError):
            self._channel.send("left", self._came.pop(link))

    def arrived(self, link: Link, shown: Any) -> int | None:
        """Give the broker that a new connection is for; see `Server.arrived`.

        A listener may be older than the message that tells of its broker.
        """
        if link.node_id not in {None, BY_NAME}:
            self.knows(link.node_id)
        return super().arrived(link, shown)

    def knows(self, node_id: int) -> bool:
        """Tell whether a broker is known, here or to the gateway."""
        if node_id not in self.brokers.known:
            with suppress(OSError):
                if (broker := self._ask("known", node_id)) is not None:
                    self.brokers.known[node_id] = broker
        return super().knows(node_id)

    def know(self, known: dict[int, Broker]) -> None:
        """Take over which brokers there are."""
        self.brokers.known = known

    async def response(self, number: int, what: str, *more: Any) -> None:
        """Answer a question of the gateway."""
        told: object
        if what == "status":
            told = self.status()
        elif what == "counts":
            told = self.counts()
        else:
            told = await state.connections(self.links, *more)
        self._channel.send("told", number, told)

    async def leave(self, within: float) -> None:
        """Drain, and say what was counted to the end."""
        cut_off = await self.drain(within)
        self._channel.send("drained", cut_off, self.counts())


class _Process:
    """The process of a worker, from its first message to its last."""

    def __init__(self, takes: socket.socket, asks: socket.socket, shared: Shared) -> None:
        self._takes = takes
        self._ask = Question(asks)
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(logs.unexpected)
        sys.unraisablehook = logs.ignored
        self.failed = False
        """It could not begin."""
        self._ended = asyncio.Event()
        self._channel = Channel(self._received, self._ended.set)
        self._worker: Worker | None = None
        self._leaving: asyncio.Task[None] | None = None

    async def run(self, end: socket.socket) -> None:
        """Serve until the gateway is gone, or closes the channel."""
        await self._channel.connect(self._loop, end)
        await self._ended.wait()
        if self._worker is not None:
            self._worker.close()

    def _received(self, name: str, *what: Any) -> None:
        if name == "begin":
            self._begin(*what)
            return
        worker = self._worker
        if worker is None:
            return
        if name == "know":
            worker.know(*what)
        elif name == "ask":
            worker.spawn(worker.response(*what))
        elif name == "options":
            (config,) = what
            logs.configure(style=config.log_format, level=config.log_level)
            worker.reconfigure(config)
        elif name == "follow files":
            worker.follow_files()
        elif name == "drain":
            self._leaving = self._loop.create_task(worker.leave(*what))

    def _begin(self, config: Config, listen: Address, known: dict[int, Broker]) -> None:
        logs.configure(style=config.log_format, level=config.log_level)
        try:
            worker = Worker(
                config, listen, self._loop, shared=self._shared, ask=self._ask, channel=self._channel
            )
        except ConfigError as error:  # a file has changed since the gateway read it
            logs.logger().error("worker can't begin", worker=self._shared.number, reason=str(error))
            self.failed = True
            self._ended.set()
            return
        worker.know(known)
        worker.begin()
        self._worker = worker
        self._loop.add_reader(self._takes.fileno(), worker.take, self._takes)
        self._channel.send("up")


def main(arguments: list[str]) -> int:
    """Run a worker.

    Args:
        arguments: the descriptors of the channel, of what hands over connections, of what questions go to, of
            the memory that is shared; the number of this worker; how many there are.
    """
    for meant_for_the_gateway in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(meant_for_the_gateway, signal.SIG_IGN)  # which says what is to be done
    keep_freed()
    channel, takes, asks, memory, number, count = map(int, arguments)
    shared = shared_memory(memory, number, count)
    ends = [socket.socket(fileno=descriptor) for descriptor in (channel, takes, asks)]
    for end in ends[:2]:
        end.setblocking(False)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:

        async def run() -> int:
            process = _Process(ends[1], ends[2], shared)
            await process.run(ends[0])
            return int(process.failed)

        return runner.run(run())


def shared_memory(descriptor: int, number: int, count: int) -> Shared:
    """Give a process its view of what all share.

    Args:
        descriptor: of memory of `shared_bytes` bytes.
        number: which of the workers it is, from 1.
        count: how many there are.
    """
    memory = memoryview(mmap.mmap(descriptor, shared_bytes(count)))
    slots, ways = memory[: 8 * count].cast("q"), memory[8 * count :].cast("I")
    return Shared(number=number, slots=slots, ways=OutboundPorts(ways, number))


def shared_bytes(count: int) -> int:
    """Tell how much memory so many workers share."""
    return 8 * count + 4 * OutboundPorts.CELLS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
