"""The real broker of all benchmark parts, and the proxies in front of it."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final, Self

from rich.console import Console

from tools.bench.counted import CountingProxy
from tools.bench.figures import FLOOR, GATEWAY, HAPROXY
from tools.bench.processes import HOST, BenchGateway, ProcessMeter, Proxy, haproxy_command, haproxy_program
from tools.kafka import LATEST, Broker
from tools.kafka.admin import Admin
from tools.kafka.ports import free_ports

HEAP: Final = "1g"


class BenchStage:
    """A broker that starts when it is first used. Leaving the `with` ends the broker and the proxies.

    Proxies that only forward do not rewrite addresses. So the broker has a listener for each of these
    proxies, which advertises the proxy's port. A measured window takes `seconds`. `long` also does runs that
    take minutes.
    """

    def __init__(self, *, seconds: float, quick: bool, console: Console, long: bool = False) -> None:
        self.seconds = seconds
        self.quick = quick
        self.long = long
        self._console = console
        self._stack = ExitStack()
        self._broker: Broker | None = None
        self._ports: dict[str, int] = {}
        self._topics = count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def report(self, text: str) -> None:
        """Print which step of the benchmark runs now."""
        self._console.print(f"[dim]{text}[/]", highlight=False)

    @property
    def broker(self) -> Broker:
        """The broker. It is started if it is not running."""
        if self._broker is None:
            first = free_ports(2)
            self._ports = {FLOOR: first, HAPROXY: first + 1}
            self.report(f"Starting Kafka {LATEST} ...")
            listeners = {name.upper(): (HOST, port) for name, port in self._ports.items()}
            broker = Broker(listeners=listeners, heap=HEAP)
            self._broker = self._stack.enter_context(broker)
        return self._broker

    @property
    def broker_meter(self) -> ProcessMeter:
        """Measures the broker's CPU and memory."""
        return ProcessMeter(self.broker.pid)

    @contextmanager
    def topic(self, partitions: int, *, name: str = "events") -> Iterator[str]:
        """Make a topic with a new name. Delete it at the end."""
        topic = f"{name}-{next(self._topics)}"
        with Admin(self.broker.address) as admin:
            admin.create_topic(topic, partitions=partitions)
        yield topic
        with Admin(self.broker.address) as admin, suppress(TimeoutError):  # a busy broker deletes it later
            admin.delete_topic(topic)

    def gateway(self, *options: str) -> BenchGateway:
        """Return a gateway process that forwards to the stage's broker."""
        return BenchGateway(self.broker.address, *options, node_id=self.broker.node_id)

    def floor(self) -> Proxy:
        """Start the floor: the proxy that only forwards."""
        target = f"{HOST}:{self.broker.port_of(FLOOR.upper())}"
        port = self._ports[FLOOR]
        return Proxy([sys.executable, "-m", "tools.bench.passthrough", f"{HOST}:{port}", target], port)

    def counting(self) -> CountingProxy:
        """Start a proxy that counts requests and bytes. It has the address of the floor."""
        target = f"{HOST}:{self.broker.port_of(FLOOR.upper())}"
        return CountingProxy(f"{HOST}:{self._ports[FLOOR]}", target)

    def haproxy(self) -> Proxy:
        """Start haproxy in front of the broker."""
        folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        target = self.broker.port_of(HAPROXY.upper())
        port = self._ports[HAPROXY]
        return Proxy(haproxy_command(haproxy_program(), Path(folder), port, target), port)

    def peers(self, stack: ExitStack) -> dict[str, Proxy]:
        """Start the proxies that are compared: floor, haproxy, gateway. Return them by column."""
        return {
            FLOOR: stack.enter_context(self.floor()),
            HAPROXY: stack.enter_context(self.haproxy()),
            GATEWAY: stack.enter_context(self.gateway()),
        }

    def rounds(self, *, quick: int, usual: int, long: int) -> int:
        """Return how many rounds of windows this run has."""
        return quick if self.quick else long if self.long else usual
