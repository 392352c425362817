"""The network between the gateway and each broker. It can be slow, lose packets, and be cut.

The brokers and their direct clients are in one namespace, the gateway and its clients in another. For each
broker, a link (`tools.netns.lossy`) joins the namespaces. A lost packet stays lost, and neither end is
informed when a link is cut. If namespaces are not allowed, a relay for each broker replaces the links. A
relay delays and withholds bytes, but loses none.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Final, Protocol, Self, TypeAlias

from tools.kafka import Broker
from tools.kafka.ports import free_ports
from tools.netns import Namespace, missing
from tools.netns.lossy import LossyLink

LISTENER: Final = "VIA"
LINK_PORT: Final = 9092
STEP_SECONDS: Final = 0.05
CHUNK: Final = 65_536
Uncut: TypeAlias = Callable[[], Awaitable[None]]


class Wire(Protocol):
    """The network path between the gateway and one broker."""

    delay: float
    loss: float
    """The share of lost packets. It is 1.0 if the connection is cut."""


class Network(Protocol):
    """The network connections to all brokers. Entering the object makes them, leaving it removes them."""

    wires: dict[int, Wire]

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def near(self) -> AbstractContextManager[None]:
        """Run the body in the network namespace of the gateway and its clients."""

    def far(self) -> AbstractContextManager[None]:
        """Run the body in the network namespace of the brokers and direct clients."""

    def via(self, broker: Broker) -> tuple[str, str]:
        """Return the address for a broker to bind for the gateway, and the address to connect to."""


def configure(network: Network, broker: Broker) -> str:
    """Give a broker, not started yet, a listener for the gateway. Return the address to reach it."""
    bound, advertised = network.via(broker)
    own = f"PLAINTEXT://{broker.address}"
    controller = f"CONTROLLER://{broker.host}:{broker.controller_port}"
    names = ("PLAINTEXT", LISTENER, "CONTROLLER")
    broker.configure(
        {
            "listeners": f"{own},{LISTENER}://{bound},{controller}",
            "advertised.listeners": f"{own},{LISTENER}://{advertised}",
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
        }
    )
    return advertised


def network(nodes: int, seed: int) -> tuple[Network, str]:
    """Return the most realistic network that this machine allows, and a description of it."""
    if lacking := missing():
        return Relays(nodes), f"relays between gateway and brokers, which lose no packets ({lacking})"
    return Links(nodes, seed), "two network namespaces, with a link for each broker"


class Links:
    """Network links between two namespaces, one for each broker."""

    def __init__(self, nodes: int, seed: int) -> None:
        self.wires: dict[int, Wire] = {}
        self._nodes, self._seed = nodes, seed
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._near = self._stack.enter_context(Namespace())
        self._far = self._stack.enter_context(Namespace())
        for node in range(1, self._nodes + 1):
            addresses = (f"10.81.{node}.1/24", f"10.81.{node}.2/24")
            link = LossyLink(
                self._near, self._far, f"wire{node}", addresses, delay=0, loss=0, seed=self._seed + node
            )
            self.wires[node] = self._stack.enter_context(link)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def near(self) -> AbstractContextManager[None]:
        """Run the body in the network namespace of the gateway and its clients."""
        return self._near.inside()

    def far(self) -> AbstractContextManager[None]:
        """Run the body in the network namespace of the brokers and direct clients."""
        return self._far.inside()

    def via(self, broker: Broker) -> tuple[str, str]:
        """Return the address for a broker to bind for the gateway, and the address to connect to."""
        address = f"10.81.{broker.node_id}.2:{LINK_PORT}"  # a broker needs another port for each listener
        return address, address


class Relays:
    """A network without namespaces: one relay for each broker, all in one thread."""

    def __init__(self, nodes: int, make: "Callable[[], NetworkRelay] | None" = None) -> None:
        self.relays = {node: (make or NetworkRelay)() for node in range(1, nodes + 1)}
        self.wires: dict[int, Wire] = dict(self.relays)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        for relay in self.relays.values():
            asyncio.run_coroutine_threadsafe(relay.start(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for relay in self.relays.values():
            relay.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def near(self) -> AbstractContextManager[None]:
        """Do nothing: with relays there are no namespaces."""
        return nullcontext()

    def far(self) -> AbstractContextManager[None]:
        """Do nothing: with relays there are no namespaces."""
        return nullcontext()

    def via(self, broker: Broker) -> tuple[str, str]:
        """Return the address for a broker to bind for the gateway, and the address to connect to."""
        relay = self.relays[broker.node_id]
        return relay.target, relay.address


class NetworkRelay:
    """Listens at `address` and forwards the bytes of both directions, between its clients and `target`."""

    def __init__(self) -> None:
        self.delay = self.loss = 0.0
        port = free_ports(2)
        self.address, self.target = f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"
        self._server: asyncio.Server | None = None

    @property
    def listens(self) -> tuple[str, int]:
        """The host and port of `address`."""
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    async def start(self) -> None:
        """Start to listen at `address`."""
        self._server = await asyncio.start_server(self._serve, *self.listens)

    def close(self) -> None:
        """Stop to listen."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, near: asyncio.StreamReader, near_writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        with _closing(near_writer):
            await self._uncut()
            try:
                far, far_writer = await asyncio.open_connection(host, int(port))
            except OSError:
                return
            with _closing(far_writer):
                uncut = await self._begin(near, far_writer)
                await asyncio.gather(self._pump(near, far_writer, uncut), self._pump(far, near_writer, uncut))

    async def _begin(self, _near: asyncio.StreamReader, _far: asyncio.StreamWriter) -> Uncut:
        """Return what waits while a new connection from a client to the target is cut."""
        return self._uncut

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, uncut: Uncut) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK):
                if self.delay:
                    await asyncio.sleep(self.delay)
                await uncut()
                sink.write(data)
                await sink.drain()
        sink.close()

    async def _uncut(self) -> None:
        while self.loss >= 1:  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(STEP_SECONDS)


@contextmanager
def _closing(writer: asyncio.StreamWriter) -> Iterator[None]:
    try:
        yield
    finally:
        writer.close()


def restored(wires: Mapping[int, Wire]) -> None:
    """Remove the delays and losses of all connections."""
    for wire in wires.values():
        wire.delay = wire.loss = 0.0
