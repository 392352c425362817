"""A worker: a process that serves the clients that `proxy.server.supervisor` sends it."""

import asyncio
import mmap
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from proxy.addresses import BY_NAME, OTHERS, Address, Broker
from proxy.config import Config
from proxy.core.connection import Connection
from proxy.core.events import Event, MemberElsewhere
from proxy.net.link import Link
from proxy.net.relay import Relay
from proxy.net.transparent import MAX_DESTINATIONS, Destinations, OutboundPorts
from proxy.options import ConfigError
from proxy.server.ipc import Channel, HandedOver, Question, Received, receive_connection, send_connection
from proxy.server.listeners import MAX_BROKERS, Directory
from proxy.server.process import keep_freed, new_event_loop
from proxy.server.server import ACCEPTED_AT_ONCE, Server, Shared
from proxy.telemetry import logs, state
from proxy.telemetry.status import Unreachable
from proxy.telemetry.totals import NodeId


class AskedBrokers(Directory):
    """The brokers as the supervisor knows them; it alone has listeners.

    Args:
        listen: where the bootstrap listener is.
        advertise: the host in the addresses that clients get, or nothing.
        tell: tells the supervisor the addresses of brokers.
    """

    def __init__(self, listen: Address, advertise: str, tell: Callable[[dict[int, Address]], None]) -> None:
        super().__init__(listen, advertise)
        self._tell = tell
        self._asked: dict[int, Address] = {}
        """What the supervisor is told, and has not confirmed yet."""
        self._untold: dict[int, Address] = {}
        """What of that is told in the next step of the event loop: a response can name many brokers."""

    def learn(self, node_id: int, address: Address) -> Broker | None:
        """Have the supervisor open a listener for a new broker; the broker is opening until it has."""
        broker = self.known.get(node_id)
        if broker is not None and broker.address == address:
            return broker
        full = len(self.known) + len(self._asked) >= MAX_BROKERS
        if full and broker is None and node_id not in self._asked:
            return None
        if self._asked.get(node_id) != address:
            if not self._untold:
                asyncio.get_running_loop().call_soon(self._tell_all)
            self._asked[node_id] = self._untold[node_id] = address
        return broker

    def _tell_all(self) -> None:
        self._tell(self._untold)
        self._untold = {}

    def is_opening(self, node_id: int) -> bool:
        """Tell whether it is not known yet if a broker will have a listener."""
        return (node_id in self._asked and node_id not in self.known) or super().is_opening(node_id)

    def replace(self, known: dict[int, Broker]) -> None:
        """Replace the known brokers by those of the supervisor."""
        self.known = known
        # A message may have been sent before the supervisor read what it was told. It refuses none but those
        # that are too many.
        unknown = {} if len(known) >= MAX_BROKERS else self._asked
        self._asked = {node_id: at for node_id, at in unknown.items() if node_id not in known}
        for node_id in [node_id for node_id in self._openings if not self.is_opening(node_id)]:
            self._is_open(node_id)


class AskedDestinations(Destinations):
    """Destinations with the numbers that the supervisor gives them.

    Args:
        mode: ``redirect`` or ``tproxy``.
        ask: asks the supervisor.
    """

    def __init__(self, mode: str, ask: Question) -> None:
        super().__init__(mode)
        self._ask = ask

    def number(self, address: Address) -> int:
        """Return the number of a destination."""
        number = self._numbers.get(address, OTHERS)
        if number == OTHERS and len(self._numbers) < MAX_DESTINATIONS:
            with suppress(OSError):  # without a response it is counted as one of the others
                number = int(self._ask("destination", address))
            if number != OTHERS:
                self._numbers[address] = number
                self.known[number] = Broker(node_id=number, address=address)
        return number


class Worker(Server):
    """Serves the clients whose sockets the supervisor sends.

    Args:
        config: what the operator asked for, with this worker's part of ``--max-inflight-bytes``.
        listen: the bootstrap listener.
        bound: the IPs, and the port, at which it is bound.
        loop: the event loop that runs it.
        shared: what the processes share.
        ask: asks the supervisor.
        channel: to the supervisor.
        clients: connections from and to the supervisor.
    """

    def __init__(
        self,
        config: Config,
        listen: Address,
        bound: tuple[Address, ...],
        loop: asyncio.AbstractEventLoop,
        *,
        shared: Shared,
        ask: Question,
        channel: Channel,
        clients: socket.socket,
    ) -> None:
        super().__init__(config, loop, logs.logger().bind(worker=shared.number), shared=shared)
        self.listen, self.bound = listen, bound
        if config.is_transparent:
            self.brokers = AskedDestinations(config.transparent, ask)
        else:
            self.brokers = AskedBrokers(listen, config.advertise, partial(channel.send, "learned"))
        self.reach.answered = True  # only the supervisor asks the bootstrap
        self.reach.unreachable_brokers = Unreachable()
        self._ask = ask
        self._channel = channel
        self._clients = clients
        self._listener_of: dict[Link | Relay, NodeId] = {}
        """The listeners of the clients whose sockets this process has, be they served here or elsewhere."""
        self._relays: set[Relay] = set()
        self._none_relayed = asyncio.Event()

    def receive_clients(self) -> None:
        """Receive the connections that the supervisor sent, and serve them."""
        with suppress(BlockingIOError):
            for _ in range(ACCEPTED_AT_ONCE):
                received = receive_connection(self._clients)
                if received is None:
                    self.loop.remove_reader(self._clients.fileno())
                    return
                if received.client is not None:
                    self.spawn(self._serve(received, received.client))
                    continue
                self.out_of_descriptors()
                if received.handed is None:
                    self._channel.send("full", received.node_id)

    async def _serve(self, received: Received, client: socket.socket) -> None:
        link = Link(self, received.node_id)
        tls: dict[str, Any] = {}
        if (handed := received.handed) is None:
            self._listener_of[link] = received.node_id
            tls = self._client_tls.accept_args(received.node_id)
        else:
            link.client_address, link.server_name = handed.client_address, handed.server_name
            link.client_subject = handed.client_subject
            link.reached_at, link.broker_address = handed.reached_at, handed.broker_address
        await self.receive_client(link, client, tls)
        if link not in self.links:
            self._left(link)

    def opened(self, link: Link, sock: Any, reached_at: str) -> Connection:
        """Count a new connection, find its broker, and make its core; see `Server.opened`."""
        core = super().opened(link, sock, reached_at)
        if link not in self._listener_of:
            self.accepted -= 1  # the worker that accepted it has counted it
        return core

    def closed(self, link: Link) -> None:
        """Remove a link, and report to the supervisor that the client has left."""
        super().closed(link)
        self._left(link)

    def _left(self, client: Link | Relay) -> None:
        with suppress(KeyError):
            self._channel.send("left", self._listener_of.pop(client))

    # -- clients of groups that another worker owns --------------------------------------------------------

    def report(self, event: Event, link: Link) -> None:
        """Log an event of a connection; have a client served by the worker that owns its group."""
        super().report(event, link)
        if isinstance(event, MemberElsewhere):
            self._hand_over(link, event.worker)

    def _hand_over(self, link: Link, number: int) -> None:
        node_id = self._listener_of.pop(link)
        data, client = link.core.hand_over(), link.give_away()
        if client is None:
            self._channel.send("left", node_id)
            return
        relay = Relay(self.loop, client, self._relay_ended)
        self._listener_of[relay] = node_id
        self._relays.add(relay)
        handed = HandedOver(
            worker=number,
            client_address=link.client_address,
            client_subject=link.client_subject,
            server_name=link.server_name,
            reached_at=link.reached_at,
            broker_address=link.broker_address,
        )
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                send_connection(self._clients, theirs, link.node_id, handed)
        except OSError:
            relay.abort()
            return
        ours.setblocking(False)
        self.spawn(relay.begin(data, ours))

    def _relay_ended(self, relay: Relay) -> None:
        self._left(relay)
        self._relays.discard(relay)
        if not self._relays:
            self._none_relayed.set()

    def broker_for(self, link: Link, sock: Any) -> int | None:
        """Return the broker that a new connection is for; see `Server.broker_for`.

        A client of a new listener may come before the message that names its broker. For a client that was
        handed over, the worker that accepted it has found it.
        """
        if link.node_id not in {None, BY_NAME}:
            self.knows(link.node_id)
        return super().broker_for(link, sock) if link in self._listener_of else link.node_id

    def knows(self, node_id: int) -> bool:
        """Tell whether a broker is known, here or to the supervisor."""
        if node_id not in self.brokers.known:
            with suppress(OSError):
                if (broker := self._ask("known", node_id)) is not None:
                    self.brokers.known[node_id] = broker
        return super().knows(node_id)

    def set_brokers(self, known: dict[int, Broker]) -> None:
        """Replace the known brokers by those of the supervisor."""
        if isinstance(self.brokers, AskedBrokers):
            self.brokers.replace(known)
        else:
            self.brokers.known = known

    async def respond(self, number: int, what: str, *more: Any) -> None:
        """Send the response to a question of the supervisor."""
        result: object
        if what == "status":
            result = self.status()
        elif what == "counts":
            result = self.counts()
        else:
            result = await state.connections(self.links, *more)
        self._channel.send("response", number, result)

    async def leave(self, within: float) -> None:
        """Drain, and report the final counts. Clients that other workers serve are finished by these."""
        end = self.loop.time() + within
        cut_off = await self.drain(within)
        if self._relays:
            self._none_relayed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(end):
                    await self._none_relayed.wait()
        self._channel.send("drained", cut_off, self.counts())


class _Process:
    """The main loop of a worker process: it carries out the messages of the supervisor."""

    def __init__(self, clients: socket.socket, asks: socket.socket, shared: Shared) -> None:
        self._clients = clients
        self._ask = Question(asks)
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(logs.unexpected)
        sys.unraisablehook = logs.ignored
        self.failed = False
        """It could not start to serve."""
        self._ended = asyncio.Event()
        self._channel = Channel(self._received, self._ended.set)
        self._worker: Worker | None = None
        self._leaving: asyncio.Task[None] | None = None

    async def run(self, end: socket.socket) -> None:
        """Serve until the supervisor ends or closes the channel."""
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
        if name == "brokers":
            worker.set_brokers(*what)
        elif name == "ask":
            worker.spawn(worker.respond(*what))
        elif name == "options":
            (config,) = what
            logs.configure(style=config.log_format, level=config.log_level)
            worker.reconfigure(config)
        elif name == "follow files":
            worker.follow_files()
        elif name == "drain":
            self._leaving = self._loop.create_task(worker.leave(*what))

    def _begin(
        self, config: Config, listen: Address, bound: tuple[Address, ...], known: dict[int, Broker]
    ) -> None:
        logs.configure(style=config.log_format, level=config.log_level)
        try:
            worker = Worker(
                config,
                listen,
                bound,
                self._loop,
                shared=self._shared,
                ask=self._ask,
                channel=self._channel,
                clients=self._clients,
            )
        except ConfigError as error:  # a file has changed since the supervisor read it
            logs.logger().error("worker can't start", worker=self._shared.number, reason=str(error))
            self.failed = True
            self._ended.set()
            return
        worker.set_brokers(known)
        worker.begin()
        self._worker = worker
        self._loop.add_reader(self._clients.fileno(), worker.receive_clients)
        self._channel.send("up")


def main(arguments: list[str]) -> int:
    """Run a worker.

    Args:
        arguments: the descriptors of the sockets for messages, for connections and for questions, and of the
            shared memory; the number of this worker; the number of workers.
    """
    for number_of_signal in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number_of_signal, signal.SIG_IGN)  # the supervisor handles them and sends messages
    keep_freed()
    channel, clients, asks, memory, number, count = map(int, arguments)
    shared = shared_memory(memory, number, count)
    ends = [socket.socket(fileno=descriptor) for descriptor in (channel, clients, asks)]
    for end in ends[:2]:
        end.setblocking(False)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:

        async def run() -> int:
            process = _Process(ends[1], ends[2], shared)
            await process.run(ends[0])
            return int(process.failed)

        return runner.run(run())


def shared_memory(descriptor: int, number: int, count: int) -> Shared:
    """Map the memory that the processes share.

    Args:
        descriptor: of memory of `shared_bytes` bytes.
        number: the number of this worker, from 1.
        count: the number of workers.
    """
    memory = memoryview(mmap.mmap(descriptor, shared_bytes(count)))
    slots, ports = memory[: 8 * count].cast("q"), memory[8 * count :].cast("I")
    return Shared(number=number, slots=slots, outbound_ports=OutboundPorts(ports, number))


def shared_bytes(count: int) -> int:
    """Return the size of the memory that so many workers share."""
    return 8 * count + 4 * OutboundPorts.CELLS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
