"""The gateway: it accepts clients and serves them."""

from collections.abc import Sequence
from socket import socket

from proxy.addresses import Address
from proxy.command.config import Config, with_live
from proxy.server.acceptor import Acceptor
from proxy.server.monitor import Monitor
from proxy.server.process import Process
from proxy.server.registry import BrokerRegistry, brokers_of, open_listeners
from proxy.server.server import Server
from proxy.telemetry import state
from proxy.telemetry.status import Account, Health, Status, health_of


class Gateway:
    """The process of ``fetchgate proxy``. `inherited` are the listening sockets that systemd has opened."""

    def __init__(self, process: Process, inherited: Sequence[socket] = ()) -> None:
        self.process = process
        self.acceptor = Acceptor(process, inherited)
        self.brokers = brokers_of(process, self.acceptor)
        self.monitor = Monitor(process, self.brokers)
        self.server = Server(process, self.brokers, self.monitor)

    @property
    def listen(self) -> Address:
        """The address of the first listener. The port is the real one when the listener is bound."""
        return self.brokers.listen

    def open(self) -> None:
        """Bind the first listener and the listeners of brokers in the state file. Start the background tasks.

        Raises:
            OSError: the address of the first listener can't be bound.
            ConfigError: the process lacks the privilege for ``tproxy``.
        """
        brokers, server = self.brokers, self.server
        open_listeners(self.process, brokers, self.acceptor)
        self.acceptor.begin(server.take, self.monitor.out_of_descriptors)
        if isinstance(brokers, BrokerRegistry):
            brokers.begin(self.monitor.reach, server.upstream.tls, self._in_use)
        server.begin()

    def status(self) -> Status:
        return self.server.status()

    def health(self) -> Health:
        return health_of(self.status())

    def account(self) -> Account:
        return self.server.account()

    async def connections(self, most: int) -> list[state.Described]:
        return await state.connections(self.server.links, most, self.server.describe)

    def reconfigure(self, config: Config) -> None:
        self.process.options.config = with_live(self.process.config, config)
        self.server.reconfigured()

    def follow_files(self) -> None:
        self.server.follow_files()

    async def drain(self, within: float) -> int:
        """Stop listening, finish the requests in flight, then close everything.

        Requests in flight get at most `within` seconds. Return how many connections were still open then.
        """
        if isinstance(self.brokers, BrokerRegistry):
            self.brokers.stop_opening()
        self.acceptor.close()
        await self.server.finish(within)
        return self.close()

    def close(self) -> int:
        """Close everything at once. Return the number of connections that were open."""
        self.acceptor.close()
        if isinstance(self.brokers, BrokerRegistry):
            self.brokers.close()
        return self.server.close()

    def _in_use(self) -> set[int]:
        return {link.node_id for link in self.server.links if link.node_id is not None}
