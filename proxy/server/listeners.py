"""The listeners: one for the bootstrap and one for each broker that the cluster names.

`ClusterListeners` binds the bootstrap listener, or in transparent mode the one that netfilter leads clients
to, and polls the cluster for its brokers. `Brokers` opens a listener as soon as a broker is known. Binding
does not block, so a response that names a broker is forwarded only when clients can connect to that broker's
listener. The brokers can be kept in a file (``--state``): after a restart their listeners are open at once.
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
"""Errors that another port would not have."""
FORGET_SECONDS: Final = 300.0
"""A broker that the cluster did not name for so long loses its listener. A restart of a broker takes less."""
REFRESH_SECONDS: Final = 60.0
"""How often the cluster is asked for its brokers while it responds."""
RETRY_SECONDS: Final = (1.0, 30.0)
"""The first and the longest wait after it did not respond; each wait doubles."""
TICK_SECONDS: Final = 5.0
"""How often the gateway retries to bind listeners that could not be bound."""


class Directory(ABC):
    """The known brokers, and the addresses that clients get for them.

    Args:
        listen: the address of the bootstrap listener.
        advertise: the host in the addresses that clients get, or nothing.
    """

    def __init__(self, listen: Address, advertise: str) -> None:
        self._listen = listen
        self._advertise = advertise
        self.known: dict[int, Broker] = {}

    @abstractmethod
    def learn(self, node_id: int, address: Address) -> Broker:
        """Record the address of a broker; afterwards it has a listener or a problem."""

    def resolve(self, reached_at: str, node_id: int, host: str, port: int) -> tuple[str, int] | None:
        """Return a broker's address for clients (a `proxy.protocol.addresses.Resolve` with `reached_at`)."""
        if node_id < 0 or not host or not 1 <= port <= MAX_PORT:
            return None
        broker = self.learn(node_id, Address(host, port))
        if broker.listener is None or broker.problem:
            return None
        address = advertised(
            broker.listener, listen=self._listen, advertise=self._advertise, reached_at=reached_at
        )
        return address.host, address.port

    @property
    def problems(self) -> list[str]:
        """The brokers that are left out of the responses, and why."""
        return [broker.problem for broker in self.known.values() if broker.problem]


class Brokers(Directory):
    """The known brokers and their listeners.

    Args:
        rule: the addresses of the listeners.
        listen: the address of the bootstrap listener.
        advertise: the host in the addresses that clients get, or nothing.
        serve: gets the listening sockets of a broker.
        stop: gets the id of a broker that is no longer served.
        log: takes the changes.
        state: the file that keeps the brokers, or None.
        shares: brokers of a host template share its port at the host of `listen`; the server name
            in TLS (SNI) says which broker a client wants.
        binding: makes the sockets.
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
        """The shared port is served; it is from the start when it is that of the bootstrap listener."""

    def learn(self, node_id: int, address: Address) -> Broker:
        """Record the address of a broker, and open a listener if the broker is new."""
        broker = self.known.get(node_id)
        if broker is None:
            listener = self._rule.place(node_id, self._listen)
            broker = self.known[node_id] = Broker(node_id=node_id, address=address, listener=listener)
            self._open(broker)
        elif broker.address == address:
            return broker
        else:
            self._log.info(
                "address of a broker changed", broker=node_id, before=str(broker.address), now=str(address)
            )
            broker.address = address
        self._save()
        return broker

    def update(self, named: dict[int, Address], in_use: Collection[int], now: float) -> None:
        """Record the brokers that the cluster names; drop those that it has not named for `FORGET_SECONDS`.

        Args:
            named: all brokers of a complete response.
            in_use: brokers with open connections; they are kept.
            now: in seconds.
        """
        for node_id, address in named.items():
            self.learn(node_id, address).missing_since = None
        for broker in [broker for node_id, broker in self.known.items() if node_id not in named]:
            if broker.missing_since is None:
                broker.missing_since = now
            elif now - broker.missing_since >= FORGET_SECONDS and broker.node_id not in in_use:
                del self.known[broker.node_id]
                self._stop(broker.node_id)
                self._log.info(
                    "broker is no longer in the cluster", broker=broker.node_id, address=str(broker.address)
                )
                self._save()

    def retry(self) -> None:
        """Retry to open the listeners that could not be opened."""
        for broker in self.known.values():
            if broker.problem and broker.listener is not None:
                self._open(broker)

    def load(self) -> None:
        """Open the listeners of the brokers in the state file."""
        if self._state is None or not self._state.exists():
            return
        try:
            saved = list(_parse(json.loads(self._state.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError, KeyError) as error:
            self._log.warning("--state file not read", file=str(self._state), reason=reason_of(error))
            return
        for node_id, address in saved:
            self.learn(node_id, address)

    def _open(self, broker: Broker) -> None:
        before, broker.problem = broker.problem, ""
        try:
            if broker.listener is None:
                broker.problem = (
                    f"broker {broker.node_id}: its port is outside 1-65535; "
                    "give it a port with --broker-ports"
                )
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
        """Write the state file; it is replaced as a whole or not at all."""
        if self._state is None:
            return
        document = {
            "brokers": [
                {"id": broker.node_id, "host": broker.address.host, "port": broker.address.port}
                for broker in self.known.values()
            ]
        }
        temporary = self._state.with_name(f"{self._state.name}.{os.getpid()}.new")
        try:
            temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            temporary.replace(self._state)
        except OSError as error:
            self._log.warning("--state file not written", file=str(self._state), reason=reason_of(error))


def _parse(document: Any) -> Iterable[tuple[int, Address]]:
    for entry in document["brokers"]:
        yield int(entry["id"]), Address(str(entry["host"]), int(entry["port"]))


def first_listener(config: Config, binding: Binding) -> tuple[Address, list[socket]]:
    """Bind the first listener: that of the bootstrap, or in transparent mode the one for all clients.

    Returns:
        Its address, with the port that was bound, and its sockets.

    Raises:
        OSError: the address can't be bound.
        ConfigError: the right for ``tproxy`` is missing.
    """
    address, mode = config.listen, config.transparent
    sockets = listen(address, mode, binding) if config.is_transparent else binding.bind(address)
    return Address(address.host, sockets[0].getsockname()[1]), sockets


class ClusterListeners:
    """Binds the listeners and polls the cluster for its brokers; the caller serves the sockets.

    Args:
        config: what the operator asked for.
        binding: makes the sockets.
        reach: records whether the bootstrap responds.
        broker_tls: TLS to the bootstrap; the caller reloads its files.
        log: takes the changes.
        note: adds them to the recent events.
        serve: gets the listening sockets of a broker; those of None are the bootstrap's.
        stop: gets the id of a broker that is no longer served.
        in_use: returns the brokers that clients are connected to.
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
        """The address of the bootstrap listener; with the port that was bound, once it is bound."""
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
        """Bind the bootstrap listener and those of the brokers in the state file.

        Raises:
            OSError: the address of the bootstrap listener can't be bound.
            ConfigError: the right for ``tproxy`` is missing.
        """
        config = self._config
        self.listen, sockets = first_listener(config, self.binding)
        if config.is_transparent:
            self.brokers = Destinations(config.transparent)
            self._serve(None, sockets)
            self._log.info("ready", transparent=config.transparent)
            self._note("ready", f"ready in transparent mode: {config.transparent}")
            return
        self.brokers = brokers = Brokers(
            rule=config.broker_ports,
            listen=self.listen,
            advertise=config.advertise,
            serve=self._serve,
            stop=self._stop,
            log=self._log,
            state=config.state,
            shares=config.shares_port,
            binding=self.binding,
        )
        self._serve(None, sockets)
        brokers.load()

    def background_tasks(self) -> list[Coroutine[Any, Any, None]]:
        """Return what must run as long as clients are accepted."""
        if isinstance(self.brokers, Destinations):
            return []
        return [self._poll_cluster(self.brokers), self._retry(self.brokers)]

    async def _retry(self, brokers: Brokers) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            brokers.retry()

    async def _poll_cluster(self, brokers: Brokers) -> None:
        """Ask the cluster for its brokers for ever; the wait grows while it does not respond."""
        wait = RETRY_SECONDS[0]
        while True:
            try:
                known, shares = brokers.known.values(), self._config.shares_port
                own = [*listeners(self.listen, known, shares=shares)]
                cluster = await ask_any(self._reach.bootstrap, self._broker_tls, own)
            except BootstrapError as error:
                self._reach.unreachable(None, str(error))
                await asyncio.sleep(wait)
                wait = min(wait * 2, RETRY_SECONDS[1])
            else:
                self._cluster_responded(cluster, brokers)
                wait = RETRY_SECONDS[0]
                await asyncio.sleep(REFRESH_SECONDS)

    def _cluster_responded(self, cluster: Cluster, brokers: Brokers) -> None:
        if cluster.brokers is not None:
            brokers.update(cluster.brokers, self._in_use(), monotonic())
        if not self._reach.bootstrap_responded(cluster.address):
            return
        self._log.info("ready", bootstrap=str(cluster.address), brokers=sorted(brokers.known))
        self._note("ready", f"ready: the bootstrap {cluster.address} responded")
        if cluster.brokers is None:
            self._log.info(
                "the cluster requires authentication: brokers are learned from the responses to clients"
            )
