"""A worker: a process that serves the clients that the supervisor (`proxy.server.supervisor`) accepts."""

import asyncio
import mmap
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from proxy.addresses import OTHERS, Address, Broker
from proxy.config import Config, with_live
from proxy.net.link import Link
from proxy.net.transparent import MAX_DESTINATIONS, Destinations, OutboundPorts
from proxy.net.worker_relay import Relay
from proxy.options import ConfigError
from proxy.server.acceptor import ACCEPTED_AT_ONCE
from proxy.server.ipc import (
    Channel,
    HandedOver,
    Question,
    ReceivedConnection,
    receive_connection,
    send_connection,
)
from proxy.server.monitor import Monitor
from proxy.server.process import Process, keep_freed, new_event_loop
from proxy.server.registry import MAX_BROKERS, KnownBrokers
from proxy.server.server import Server, Shared
from proxy.telemetry import logs, state
from proxy.telemetry.status import UnreachableBrokers
from proxy.telemetry.totals import NodeId


class AskedBrokers(KnownBrokers):
    """The brokers that a worker knows. The listeners for these brokers are in the supervisor.

    Args:
        config: the options.
        listen: the address of the bootstrap listener.
        tell: sends the addresses of brokers to the supervisor.
        ask: sends a question to the supervisor, and blocks until it responds.
    """

    def __init__(
        self, config: Config, listen: Address, tell: Callable[[dict[int, Address]], None], ask: Question
    ) -> None:
        super().__init__(listen, config.advertise)
        self._tell = tell
        self._ask = ask
        self._asked: dict[int, Address] = {}
        """The addresses of brokers that the supervisor was asked to open listeners for. The supervisor has
        not confirmed them yet."""
        self._untold: dict[int, Address] = {}
        """The addresses in `_asked` that are not yet sent to the supervisor. They are sent together in the
        next step of the event loop, because one response can contain many brokers."""

    def knows(self, node_id: int) -> bool:
        """Return whether this worker or the supervisor knows a broker.

        The supervisor is asked because a client of a new listener may connect before this worker gets the
        message about the listener's broker.
        """
        return _knows(self, self._ask, node_id)

    def learn(self, node_id: int, address: Address) -> Broker | None:
        """Ask the supervisor to open a listener for a new broker, or to note a broker's new address.

        Until the supervisor confirms a new broker, this returns None and `is_opening` is true for the broker.
        """
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
        """Return whether the listener of a broker is still being opened.

        This is true until the supervisor has confirmed the listener.
        """
        return (node_id in self._asked and node_id not in self.known) or super().is_opening(node_id)

    def replace(self, known: dict[int, Broker]) -> None:
        """Replace the known brokers with those that the supervisor has sent."""
        self.known = known
        # This message may be older than the answer to `_asked`, so unknown brokers stay in `_asked`.
        # The supervisor only refuses brokers if there are too many.
        unknown = {} if len(known) >= MAX_BROKERS else self._asked
        self._asked = {node_id: at for node_id, at in unknown.items() if node_id not in known}
        for node_id in [node_id for node_id in self._openings if not self.is_opening(node_id)]:
            self._is_open(node_id)


class AskedDestinations(Destinations):
    """The destinations that a worker knows, in transparent mode. The supervisor gives them their numbers.

    Args:
        config: the options.
        listen: the address of the listener.
        ask: sends a question to the supervisor, and blocks until it responds.
    """

    def __init__(self, config: Config, listen: Address, ask: Question) -> None:
        super().__init__(config.transparent, listen)
        self._ask = ask

    def knows(self, node_id: int) -> bool:
        """Return whether this worker or the supervisor has a destination with this number."""
        return _knows(self, self._ask, node_id)

    def replace(self, known: dict[int, Broker]) -> None:
        """Replace the known destinations with the supervisor's."""
        self.known = known

    def number(self, address: Address) -> int:
        """Return the number of a destination. If it has none yet, ask the supervisor for a number."""
        number = self._numbers.get(address, OTHERS)
        if number == OTHERS and len(self._numbers) < MAX_DESTINATIONS:
            with suppress(OSError):  # without a response, the destination is counted under `OTHERS`
                number = int(self._ask("destination", address))
            if number != OTHERS:
                self._numbers[address] = number
                self.known[number] = Broker(node_id=number, address=address)
        return number


def _knows(brokers: AskedBrokers | AskedDestinations, ask: Question, node_id: int) -> bool:
    if node_id not in brokers.known:
        with suppress(OSError):
            if (broker := ask("known", node_id)) is not None:
                brokers.known[node_id] = broker
    return node_id in brokers.known


class Worker:
    """Serves the clients that the supervisor sends.

    Args:
        process: the process.
        brokers: the known brokers.
        shared: the state that the processes share.
        channel: the channel for messages to and from the supervisor.
        clients: the socket on which connections are received from the supervisor and sent back to it.
    """

    def __init__(
        self,
        process: Process,
        brokers: AskedBrokers | AskedDestinations,
        shared: Shared,
        channel: Channel,
        clients: socket.socket,
    ) -> None:
        self.process = process
        self.brokers = brokers
        monitor = Monitor(process, brokers)
        monitor.reach.answered = True  # only the supervisor asks the bootstrap
        monitor.reach.unreachable_brokers = UnreachableBrokers()
        tell = partial(channel.send, "replicas")
        self.server = Server(
            process, brokers, monitor, shared, left=self._left, elsewhere=self._hand_over, tell=tell
        )
        self._channel = channel
        self._clients = clients
        self._listener_of: dict[Link | Relay, NodeId] = {}
        """For each client, the broker of the listener that accepted it. The clients are those whose socket is
        in this process, even if another worker serves them."""
        self._relays: set[Relay] = set()
        self._none_relayed = asyncio.Event()

    def begin(self) -> None:
        """Start the background tasks, and serve the clients that the supervisor sends."""
        self.server.begin()
        self.process.loop.add_reader(self._clients.fileno(), self._receive_clients)
        self._channel.send("up")

    def _receive_clients(self) -> None:
        with suppress(BlockingIOError):
            for _ in range(ACCEPTED_AT_ONCE):
                received = receive_connection(self._clients)
                if received is None:
                    self.process.loop.remove_reader(self._clients.fileno())
                    return
                if received.client is not None:
                    self._serve(received, received.client)
                    continue
                self.server.monitor.out_of_descriptors()
                if received.handed is None:
                    self._channel.send("full", received.node_id)

    def _serve(self, received: ReceivedConnection, client: socket.socket) -> None:
        link = Link(self.server, received.node_id)
        tls: dict[str, Any] = {}
        if (handed := received.handed) is None:
            self._listener_of[link] = received.node_id
            tls = self.server.client_tls.accept_args(received.node_id)
        else:
            link.handed_over = True
            link.client_address, link.server_name = handed.client_address, handed.server_name
            link.client_subject = handed.client_subject
            link.reached_at, link.broker_address = handed.reached_at, handed.broker_address
        self.server.serve(link, client, tls)

    def _left(self, client: Link | Relay) -> None:
        """Tell the supervisor that a client has left, if its socket is in this process.

        For a client that another worker has handed over, that worker tells the supervisor.
        """
        with suppress(KeyError):
            self._channel.send("left", self._listener_of.pop(client))

    # -- clients of groups that another worker owns --------------------------------------------------------

    def _hand_over(self, link: Link, number: int) -> None:
        """Let another worker serve a client. This worker forwards the client's bytes to the other worker."""
        node_id = self._listener_of.pop(link)
        data, client = link.core.hand_over(), link.give_away()
        if client is None:
            self._channel.send("left", node_id)
            return
        relay = Relay(self.process.loop, client, self._relay_ended)
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
        self.process.spawn(relay.begin(data, ours))

    def _relay_ended(self, relay: Relay) -> None:
        self._left(relay)
        self._relays.discard(relay)
        if not self._relays:
            self._none_relayed.set()

    # -- what the supervisor asks --------------------------------------------------------------------------

    def received(self, name: str, *what: Any) -> None:
        """Handle a message from the supervisor.

        Args:
            name: the kind of the message.
            what: the values of the message.
        """
        if name == "brokers":
            self.brokers.replace(*what)
        elif name == "ask":
            self.process.spawn(self._respond(*what))
        elif name == "options":
            (config,) = what
            logs.configure(style=config.log_format, level=config.log_level)
            self.process.options.config = with_live(self.process.config, config)
            self.server.reconfigured()
        elif name == "follow files":
            self.server.follow_files()
        elif name == "replicas":
            self.server.told(*what)

    async def _respond(self, number: int, what: str, *more: Any) -> None:
        """Send the response to a question of the supervisor."""
        result: object
        if what == "status":
            result = self.server.status()
        elif what == "counts":
            result = self.server.counts()
        else:
            (most,) = more
            result = await state.connections(self.server.links, most, self.server.describe)
        self._channel.send("response", number, result)

    async def leave(self, within: float) -> None:
        """Finish all clients, and send the final counts to the supervisor.

        Clients whose bytes this worker forwards to other workers may finish first.

        Args:
            within: the time limit in seconds.
        """
        end = self.process.loop.time() + within
        await self.server.finish(within)
        cut_off = self.server.close()
        if self._relays:
            self._none_relayed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(end):
                    await self._none_relayed.wait()
        self._channel.send("drained", cut_off, self.server.counts())


class _Main:
    """The main loop of a worker process. It handles the supervisor's messages until the worker ends."""

    def __init__(self, clients: socket.socket, asks: socket.socket, shared: Shared) -> None:
        self._clients = clients
        self._ask = Question(asks)
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(logs.unexpected)
        sys.unraisablehook = logs.ignored
        self.failed = False
        """Whether the worker failed to start."""
        self._ended = asyncio.Event()
        self._channel = Channel(self._received, self._ended.set)
        self._worker: Worker | None = None
        self._leaving: asyncio.Task[None] | None = None

    async def run(self, end: socket.socket) -> None:
        """Serve until the supervisor ends the worker or closes the channel."""
        await self._channel.connect(self._loop, end)
        await self._ended.wait()
        if self._worker is not None:
            self._worker.server.close()

    def _received(self, name: str, *what: Any) -> None:
        if name == "begin":
            self._begin(*what)
        elif self._worker is None:
            return
        elif name == "drain":  # not a background task of the process, because draining ends those
            self._leaving = self._loop.create_task(self._worker.leave(*what))
        else:
            self._worker.received(name, *what)

    def _begin(
        self, config: Config, listen: Address, bound: tuple[Address, ...], known: dict[int, Broker]
    ) -> None:
        logs.configure(style=config.log_format, level=config.log_level)
        process = Process.of(config, self._loop, logs.logger().bind(worker=self._shared.number))
        brokers: AskedBrokers | AskedDestinations
        if config.is_transparent:
            brokers = AskedDestinations(config, listen, self._ask)
        else:
            brokers = AskedBrokers(config, listen, partial(self._channel.send, "learned"), self._ask)
            brokers.bound = bound
        try:
            worker = Worker(process, brokers, self._shared, self._channel, self._clients)
        except ConfigError as error:  # a file has changed since the supervisor read it
            logs.logger().error("worker can't start", worker=self._shared.number, reason=str(error))
            self.failed = True
            self._ended.set()
            return
        brokers.replace(known)
        worker.begin()
        self._worker = worker


def main(arguments: list[str]) -> int:
    """Run a worker.

    Args:
        arguments: six numbers as text. Four are descriptors: the sockets for messages, connections and
            questions, and the shared memory. The others are the number of this worker, and the number of
            workers.
    """
    for number_of_signal in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number_of_signal, signal.SIG_IGN)  # the supervisor handles them
    keep_freed()
    channel, clients, asks, memory, number, count = map(int, arguments)
    shared = shared_memory(memory, number, count)
    ends = [socket.socket(fileno=descriptor) for descriptor in (channel, clients, asks)]
    for end in ends[:2]:
        end.setblocking(False)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:

        async def run() -> int:
            worker = _Main(ends[1], ends[2], shared)
            await worker.run(ends[0])
            return int(worker.failed)

        return runner.run(run())


def shared_memory(descriptor: int, number: int, count: int) -> Shared:
    """Map the memory that the processes share.

    Args:
        descriptor: the descriptor of the memory. Its size is `shared_bytes`.
        number: the number of this worker, from 1 on.
        count: the number of workers.
    """
    memory = memoryview(mmap.mmap(descriptor, shared_bytes(count)))
    slots, ports = memory[: 8 * count].cast("q"), memory[8 * count :].cast("I")
    return Shared(number=number, slots=slots, outbound_ports=OutboundPorts(ports, number))


def shared_bytes(count: int) -> int:
    """Return the size of the shared memory for this many workers, in bytes."""
    return 8 * count + 4 * OutboundPorts.CELLS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
