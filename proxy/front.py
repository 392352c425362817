"""What clients come to: the bootstrap listener, one for each broker; and the cluster, followed for them."""

import asyncio
from collections.abc import Callable, Coroutine
from socket import socket
from time import monotonic
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from proxy.binding import Binding
from proxy.books import NodeId
from proxy.bootstrap import BootstrapError, Cluster, ask_any
from proxy.config import Config
from proxy.listeners import Brokers
from proxy.reach import Reach
from proxy.recent import Note
from proxy.routing import Address, listeners
from proxy.tls import BrokerTls
from proxy.transparent import Destinations, listen

REFRESH_SECONDS: Final = 60.0
"""How often the cluster is asked for its brokers while it answers."""
RETRY_SECONDS: Final = (1.0, 30.0)
"""The first and the longest wait after it did not answer; each wait doubles."""
TICK_SECONDS: Final = 5.0
"""How often listeners that could not be bound are tried again."""


def first_listener(config: Config, binding: Binding) -> tuple[Address, list[socket]]:
    """Bind what clients come to first: the bootstrap listener, or where netfilter leads all of them.

    Returns:
        Where it is, with the port that was bound, and its sockets.

    Raises:
        OSError: the address can't be bound.
        ConfigError: the right for ``tproxy`` is missing.
    """
    at, mode = config.listen, config.transparent
    sockets = binding.bind(at) if mode == "off" else listen(at, mode, binding)
    return Address(at.host, sockets[0].getsockname()[1]), sockets


class Front:
    """Binds what clients come to and follows the cluster; whoever serves them takes the sockets.

    Args:
        config: what the operator asked for.
        binding: how sockets are had.
        reach: takes what the bootstrap answers.
        broker_tls: how the bootstrap is spoken to; who made it follows its files.
        log: where changes are told.
        note: keeps them for those who look at the gateway.
        serve: takes the listening sockets of a broker; of None: the bootstrap's.
        stop: takes the id of one that is served no more.
        in_use: gives the brokers that clients are connected to.
    """

    def __init__(
        self,
        config: Config,
        *,
        binding: Binding,
        reach: Reach,
        broker_tls: BrokerTls,
        log: FilteringBoundLogger,
        note: Note,
        serve: Callable[[NodeId, list[socket]], None],
        stop: Callable[[NodeId], None],
        in_use: Callable[[], set[int]],
    ) -> None:
        self.brokers: Brokers | Destinations
        self.listen = config.listen
        """The bootstrap listener; its port is the one that was bound, once it is."""
        self.binding = binding
        self._config = config
        self._reach = reach
        self._log = log
        self._note = note
        self._serve = serve
        self._stop = stop
        self._in_use = in_use
        self._broker_tls = broker_tls

    def open(self) -> None:
        """Bind the bootstrap listener and those of the brokers that are known from before.

        Raises:
            OSError: the address of the bootstrap listener can't be bound.
            ConfigError: the right for ``tproxy`` is missing.
        """
        config = self._config
        self.listen, sockets = first_listener(config, self.binding)
        if config.transparent != "off":
            self.brokers = Destinations(config.transparent)
            self._serve(None, sockets)
            self._log.info("ready", transparent=config.transparent)
            self._note("ready", f"ready: connections come by {config.transparent}")
            return
        self.brokers = brokers = Brokers(
            rule=config.broker_ports,
            listen=self.listen,
            advertise=config.advertise,
            serve=self._serve,
            stop=self._stop,
            log=self._log,
            state=config.state,
            shares=config.tls_cert is not None,
            binding=self.binding,
        )
        self._serve(None, sockets)
        brokers.load()

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """Give what is to run as long as clients are taken."""
        if isinstance(self.brokers, Destinations):
            return []
        return [self._follow_cluster(self.brokers), self._retry(self.brokers)]

    async def _retry(self, brokers: Brokers) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            brokers.retry()

    async def _follow_cluster(self, brokers: Brokers) -> None:
        """Ask for the brokers for ever, with a growing wait while the cluster does not answer."""
        wait = RETRY_SECONDS[0]
        while True:
            try:
                shares = self._config.tls_cert is not None
                own = [*listeners(self.listen, brokers.known.values(), shares=shares)]
                cluster = await ask_any(self._reach.bootstrap, self._broker_tls, own)
            except BootstrapError as error:
                self._reach.unreachable(None, str(error))
                await asyncio.sleep(wait)
                wait = min(wait * 2, RETRY_SECONDS[1])
            else:
                self._answered(cluster, brokers)
                wait = RETRY_SECONDS[0]
                await asyncio.sleep(REFRESH_SECONDS)

    def _answered(self, cluster: Cluster, brokers: Brokers) -> None:
        if cluster.brokers is not None:
            brokers.named(cluster.brokers, self._in_use(), monotonic())
        if not self._reach.told(cluster.address):
            return
        self._log.info("ready", bootstrap=str(cluster.address), brokers=sorted(brokers.known))
        self._note("ready", f"ready: the bootstrap {cluster.address} answered")
        if cluster.brokers is None:
            self._log.info("the cluster wants authentication: brokers are learned from clients' answers")
