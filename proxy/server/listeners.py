"""The brokers that are known and the listener of each: bound as soon as a broker is heard of.

Binding and listening do not block, so a response that names a broker is handed on when a client can connect,
not before. What is learned can be kept in a file: after a restart the listeners are open at once.
"""

import asyncio
import errno
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterable
from pathlib import Path
from socket import socket
from time import monotonic
from typing import Any, Final

from proxy.addresses import BY_NAME, MAX_PORT, Address, Broker, BrokerPorts, advertised, listeners
from proxy.config import Config
from proxy.logger import Logger
from proxy.net.bootstrap import BootstrapError, Cluster, ask_any
from proxy.net.listen import Binding
from proxy.net.tls import BrokerTls
from proxy.net.transparent import Destinations, listen
from proxy.reasons import reason_of
from proxy.server.conditions import Reachability
from proxy.telemetry.history import Note
from proxy.telemetry.totals import NodeId

_OF_THE_PORT: Final = frozenset({errno.EADDRINUSE, errno.EACCES})
"""Errors of a port that another one would not have."""
GONE_SECONDS: Final = 300.0
"""A broker that the cluster has not named for so long loses its listener; a restart takes less."""


class Directory(ABC):
    """The brokers that are known, and where clients are told that they are.

    Args:
        listen: where the bootstrap listener is.
        advertise: the host that clients are told, or nothing.
    """

    def __init__(self, listen: Address, advertise: str) -> None:
        self._listen = listen
        self._advertise = advertise
        self.known: dict[int, Broker] = {}

    @abstractmethod
    def learn(self, node_id: int, address: Address) -> Broker:
        """Take note of where a broker is; it has a listener then, or a problem."""

    def resolve(self, reached_at: str, node_id: int, host: str, port: int) -> tuple[str, int] | None:
        """Tell a client where a broker is (a `proxy.protocol.addresses.Resolve`, but for `reached_at`)."""
        if node_id < 0 or not host or not 1 <= port <= MAX_PORT:
            return None
        broker = self.learn(node_id, Address(host, port))
        if broker.listener is None or broker.problem:
            return None
        told = advertised(
            broker.listener, listen=self._listen, advertise=self._advertise, reached_at=reached_at
        )
        return told.host, told.port

    @property
    def problems(self) -> list[str]:
        """Say which brokers are left out of the responses, and why."""
        return [broker.problem for broker in self.known.values() if broker.problem]


class Brokers(Directory):
    """All brokers by node id.

    Args:
        rule: where listeners go.
        listen: where the bootstrap listener is.
        advertise: the host that clients are told, or nothing.
        serve: takes the listening sockets of a broker.
        stop: takes the id of a broker that is served no more.
        log: where changes are told.
        state: the file to keep the brokers in, or None.
        shares: brokers of a host template share its port at the host of `listen`; the client tells by name
            which it means.
        binding: how sockets are had.
    """

    def __init__(
        self,
        *,
        rule: BrokerPorts,
        listen: Address,
        advertise: str,
        serve: Callable[[int, list[socket]], None],
        stop: Callable[[int], None],
        log: Logger,
        state: Path | None,
        shares: bool = False,
        binding: Binding,
    ) -> None:
        super().__init__(listen, advertise)
        self._rule = rule
        self._serve = serve
        self._stop = stop
        self._log = log
        self._state = state
        self._shares = shares
        self._bind = binding.bind
        self._shared = Address(listen.host, rule.template_port)
        self._sharing = self._shared == listen
        """Whether the shared port is served: that of the bootstrap listener is."""

    def learn(self, node_id: int, address: Address) -> Broker:
        """Take note of where a broker is, and open its listener if it is new."""
        broker = self.known.get(node_id)
        if broker is None:
            listener = self._rule.place(node_id, self._listen)
            broker = self.known[node_id] = Broker(node_id=node_id, address=address, listener=listener)
            self._open(broker)
        elif broker.address == address:
            return broker
        else:
            self._log.info("broker moved", broker=node_id, before=str(broker.address), now=str(address))
            broker.address = address
        self._save()
        return broker

    def named(self, seen: dict[int, Address], in_use: Collection[int], now: float) -> None:
        """Take note of all the brokers that the cluster names, and drop those that it no longer does.

        Args:
            seen: the brokers of a complete response.
            in_use: brokers with connections; they stay.
            now: in seconds.
        """
        for node_id, address in seen.items():
            self.learn(node_id, address).missing_since = None
        for broker in [broker for node_id, broker in self.known.items() if node_id not in seen]:
            if broker.missing_since is None:
                broker.missing_since = now
            elif now - broker.missing_since >= GONE_SECONDS and broker.node_id not in in_use:
                del self.known[broker.node_id]
                self._stop(broker.node_id)
                self._log.info("broker gone", broker=broker.node_id, address=str(broker.address))
                self._save()

    def retry(self) -> None:
        """Try again to open the listeners that could not be opened."""
        for broker in self.known.values():
            if broker.problem and broker.listener is not None:
                self._open(broker)

    def load(self) -> None:
        """Open the listeners of the brokers that were known before the restart."""
        if self._state is None or not self._state.exists():
            return
        try:
            kept = list(_parse(json.loads(self._state.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError, KeyError) as error:
            self._log.warning("state not read", file=str(self._state), reason=reason_of(error))
            return
        for node_id, address in kept:
            self.learn(node_id, address)

    def _open(self, broker: Broker) -> None:
        before, broker.problem = broker.problem, ""
        try:
            if broker.listener is None:
                broker.problem = f"broker {broker.node_id}: its port is outside 1-65535; see --broker-ports"
            elif not self._shares or broker.listener.host == self._listen.host:
                self._serve(broker.node_id, self._bind(broker.listener))
            elif not self._sharing:
                self._serve(BY_NAME, self._bind(self._shared))
                self._sharing = True
        except (OSError, ValueError) as error:
            at = self._shared if self._shares else broker.listener
            taken = isinstance(error, OSError) and error.errno in _OF_THE_PORT and not self._shares
            remedy = "give it another port with --broker-ports" if taken else "see --broker-ports"
            broker.problem = f"broker {broker.node_id}: {at} can't be bound: {reason_of(error)}; {remedy}"
        if not broker.problem:
            self._log.info(
                "listening", broker=broker.node_id, at=str(broker.listener), to=str(broker.address)
            )
        elif broker.problem != before:
            self._log.warning("broker left out", reason=broker.problem)

    def _save(self) -> None:
        """Keep what is known; the file is replaced as a whole or not at all."""
        if self._state is None:
            return
        document = {
            "brokers": [
                {"id": broker.node_id, "host": broker.address.host, "port": broker.address.port}
                for broker in self.known.values()
            ]
        }
        aside = self._state.with_name(f"{self._state.name}.{os.getpid()}.new")
        try:
            aside.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            aside.replace(self._state)
        except OSError as error:
            self._log.warning("state not written", file=str(self._state), reason=reason_of(error))


def _parse(document: Any) -> Iterable[tuple[int, Address]]:
    for entry in document["brokers"]:
        yield int(entry["id"]), Address(str(entry["host"]), int(entry["port"]))


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
        reach: Reachability,
        broker_tls: BrokerTls,
        log: Logger,
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
            self._log.info("the cluster wants authentication: brokers are learned from clients' responses")
