"""The known brokers, their listeners, and the addresses that clients get for them.

When a broker becomes known, `BrokerRegistry` opens a listener for it: at once if the listener's IPs are
known, else after a look-up of its host name. Until then the broker is *opening*, and responses with this
broker wait (`BrokerRegistry.opened`).
"""

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Collection, Iterable
from time import monotonic
from typing import Final

from proxy.addresses import BY_NAME, Address, Broker, FreePorts, advertised, can_be_reached
from proxy.net.bootstrap import BootstrapError, BootstrapResponse, ask_any
from proxy.net.tls import BrokerTls
from proxy.net.transparent import Destinations
from proxy.server.acceptor import Acceptor
from proxy.server.process import Process
from proxy.server.state_file import KeptBroker, StateFile
from proxy.telemetry.brokers import Reachability
from proxy.text.error_text import reason_of

_OF_THE_PORT: Final = frozenset({errno.EADDRINUSE, errno.EACCES})
"""If a bind fails with one of these errors, it may succeed with another port."""
FORGET_SECONDS: Final = 300.0
"""A broker loses its listener if it was in no response of the cluster for this long. A restart of a broker
takes less time."""
REFRESH_SECONDS: Final = 60.0
RETRY_SECONDS: Final = (1.0, 30.0)
"""The first and the longest wait after the cluster did not respond. The wait doubles each time."""
TICK_SECONDS: Final = 5.0
"""How often the gateway tries again to bind listeners that could not be bound."""
OPEN_SECONDS: Final = 2.0
"""How long a response waits for the listeners of the brokers in it."""
MAX_BROKERS: Final = 1000
"""Large clusters have some hundreds of brokers. A higher number is probably a mistake. The listeners would
use up the file descriptors that clients need."""
UNNAMED_SECONDS: Final = 3600.0
"""If all ports of ``--listen-ports`` are used, a new broker gets that of a broker that no response has named
for so many seconds. Clients ask for Metadata every few minutes."""
OTHER_PORTS: Final = 16
"""How many other ports of ``--listen-ports`` are tried at once for a broker whose port is in use."""
AT_ONCE: Final = 16
"""How many listeners are opened in one step of the event loop. Each listener takes about 0.1 ms."""


class BrokerRegistry:
    """The known brokers and their listeners, and the addresses that clients get for them."""

    def __init__(self, process: Process, acceptor: Acceptor) -> None:
        config = process.config
        self.listen = config.listen
        """The address of the bootstrap listener. A port 0 is replaced when the listener is bound."""
        self.bound: tuple[Address, ...] = ()
        self.known: dict[int, Broker] = {}
        self._openings: dict[int, asyncio.Future[None]] = {}
        """For each broker that a response waits for: done when its listener is no longer being opened."""
        self._process = process
        self._log = process.log
        self._resolver = process.resolver
        self._acceptor = acceptor
        self._rule = config.broker_ports
        self._ports: FreePorts | None = None
        """The free ports of ``--listen-ports``. None if each broker has a port by its id."""
        if config.listen_ports is not None:
            self._ports = FreePorts(config.listen_ports, {config.listen.port, *self._rule.single.values()})
        self._in_use: Callable[[], Collection[int]] = tuple
        self._shares = config.tls_cert is not None
        """Whether the brokers of a host template share one listener, at the template's port. Then the server
        name in TLS (SNI) selects the broker."""
        self._shared = Address(config.listen.host, self._rule.template_port)
        self._shared_at: tuple[Address, ...] = ()
        self._state: StateFile | None = None
        self._queue: deque[Broker] = deque()
        self._opening: set[int] = set()
        """The ids of brokers in the queue, or whose host names are being looked up."""
        self._at_once = AT_ONCE
        """How many more listeners may be opened in this step of the event loop."""
        self._too_many = ""
        self._stopped = False

    @property
    def problems(self) -> list[str]:
        """Why brokers are left out of responses: one sentence each, and one for all beyond `MAX_BROKERS`."""
        problems = [broker.problem for broker in self.known.values() if broker.problem]
        return [*problems, self._too_many] if self._too_many else problems

    @property
    def listeners(self) -> list[Address]:
        return [*self.bound, *(at for broker in self.known.values() for at in broker.bound)]

    def open(self) -> None:
        """Bind the bootstrap listener.

        Raises:
            OSError: the address can't be bound.
        """
        self.listen, self.bound = self._acceptor.open()
        self._resolver.keep(self.listen.host, [at.host for at in self.bound])
        if self._shared == self.listen:
            self._shared_at = self.bound

    def restore(self) -> None:
        """Open the listeners of the brokers in the state file. From now on, changes are written to it."""
        self._state = StateFile(self._process, self._kept)
        known = self._state.load()
        if self._ports is not None:
            self._ports.give_last({kept.port for kept in known})
        # Brokers with a port of --listen-ports come first, so that no other broker gets it.
        for kept in sorted(known, key=lambda kept: kept.port is None):
            self.learn(kept.node_id, kept.address, port=kept.port)

    def close(self) -> None:
        if self._state is not None:
            self._state.close()

    def _kept(self) -> list[KeptBroker]:
        return [
            KeptBroker(
                broker.node_id,
                broker.address,
                broker.listener.port if self._ports is not None and broker.listener is not None else None,
            )
            for broker in self.known.values()
        ]

    def _changed(self) -> None:
        if self._state is not None:
            self._state.changed()

    def learn(self, node_id: int, address: Address, *, port: int | None = None) -> Broker | None:
        """Store the address of a broker. If the broker is new, open a listener for it.

        Return None if there are too many brokers. `port` is the one that the broker had of ``--listen-ports``
        before a restart.
        """
        broker = self.known.get(node_id)
        if broker is not None:
            broker.named_at = monotonic()
        if broker is None:
            if len(self.known) >= MAX_BROKERS:
                self._refuse(node_id)
                return None
            listener = self._place(node_id, port)
            broker = Broker(
                node_id=node_id, address=address, listener=listener, opening=True, named_at=monotonic()
            )
            self.known[node_id] = broker
            self._open_soon(broker)
        elif broker.address == address:
            return broker
        else:
            self._log.info(
                "address of a broker changed", broker=node_id, before=str(broker.address), now=str(address)
            )
            broker.address = address
        self._changed()
        return broker

    def _place(self, node_id: int, wanted: int | None = None) -> Address | None:
        if self._ports is None or node_id in self._rule.single:
            return self._rule.place(node_id, self.listen)
        port = self._ports.take(wanted)
        if port is None and (unnamed := self._unnamed()) is not None:
            self._forget(unnamed)
            port = self._ports.take()
        return None if port is None else Address(self.listen.host, port)

    def _unnamed(self) -> Broker | None:
        # A broker that has probably left the cluster. If the cluster requires authentication, the gateway
        # can't ask it which brokers have left.
        then, in_use = monotonic() - UNNAMED_SECONDS, self._in_use()
        gone = (
            broker
            for broker in self.known.values()
            if broker.named_at < then
            and broker.listener is not None
            and broker.node_id not in self._rule.single
            and broker.node_id not in in_use
        )
        return min(gone, key=lambda broker: broker.named_at, default=None)

    def _refuse(self, node_id: int) -> None:
        if not self._too_many:
            self._too_many = (
                f"a gateway serves at most {MAX_BROKERS} brokers: broker {node_id} and others are left out"
            )
            self._log.warning("brokers left out", reason=self._too_many)

    def update(self, named: dict[int, Address], in_use: Collection[int], now: float) -> None:
        """Update the known brokers from a complete response of the cluster.

        A broker that was in no response for `FORGET_SECONDS` is removed, unless it is in use.
        """
        for broker in [broker for node_id, broker in self.known.items() if node_id not in named]:
            if broker.missing_since is None:
                broker.missing_since = now
            elif now - broker.missing_since >= FORGET_SECONDS and broker.node_id not in in_use:
                self._forget(broker)
        for node_id, address in named.items():
            if (learned := self.learn(node_id, address)) is not None:
                learned.missing_since = None

    def _forget(self, broker: Broker) -> None:
        del self.known[broker.node_id]
        self._too_many = ""
        self._opening.discard(broker.node_id)
        self._acceptor.stop(broker.node_id)
        if self._ports is not None and broker.listener is not None:
            self._ports.give_back(broker.listener.port)
        self._is_open(broker.node_id)
        self._log.info(
            "broker is no longer in the cluster", broker=broker.node_id, address=str(broker.address)
        )
        self._changed()

    def retry(self) -> None:
        """Try again to open the listeners that failed. This happens in the next steps of the event loop."""
        for broker in list(self.known.values()):
            if not broker.problem or broker.node_id in self._opening:
                continue
            if broker.listener is None and self._ports is not None:  # a port may have become free
                broker.listener = self._place(broker.node_id)
            if broker.listener is not None:
                self._enqueue(broker)

    def is_opening(self, node_id: int) -> bool:
        broker = self.known.get(node_id)
        return broker is not None and broker.opening

    def resolve(self, reached_at: str, node_id: int, host: str, port: int) -> tuple[str, int] | None:
        """Return the address that clients get for a broker.

        None if the broker's own address is not valid, it has no open listener, or there are too many brokers.
        With a fixed `reached_at`, this function is a `proxy.protocol.addresses.Resolve`.
        """
        if not can_be_reached(node_id, host, port):
            return None
        broker = self.learn(node_id, Address(host, port))
        if broker is None or broker.listener is None or broker.opening or broker.problem:
            return None
        address = advertised(
            broker.listener,
            listen=self.listen,
            advertise=self._process.config.advertise,
            reached_at=reached_at,
        )
        return address.host, address.port

    async def opened(self, node_ids: Iterable[int]) -> None:
        """Wait until none of these brokers' listeners is being opened, for at most `OPEN_SECONDS`."""
        loop = asyncio.get_running_loop()
        opening = [
            self._openings.setdefault(node_id, loop.create_future())
            for node_id in node_ids
            if self.is_opening(node_id)
        ]
        if opening:
            await asyncio.wait(opening, timeout=OPEN_SECONDS)

    def _is_open(self, node_id: int) -> None:
        opening = self._openings.pop(node_id, None)
        if opening is not None and not opening.done():
            opening.set_result(None)

    # -- opening -------------------------------------------------------------------------------------------

    def stop_opening(self) -> None:
        # The gateway drains. Responses still have new brokers in them: another gateway on the same port may
        # serve these brokers.
        self._stopped = True

    def _open_soon(self, broker: Broker) -> None:
        host = self._host_of(broker)
        ips = self._resolver.known(host)
        if self._at_once and (ips or not host):
            if self._at_once == AT_ONCE:
                self._process.spawn(self._open_queued())
            self._at_once -= 1
            self._open(broker, ips)
        else:
            self._enqueue(broker)

    def _enqueue(self, broker: Broker) -> None:
        self._opening.add(broker.node_id)
        self._queue.append(broker)
        if self._at_once == AT_ONCE:
            self._at_once -= 1
            self._process.spawn(self._open_queued())

    async def _open_queued(self) -> None:
        # A few listeners are opened in each step of the event loop.
        try:
            await asyncio.sleep(0)
            while self._queue:
                for broker in [self._queue.popleft() for _ in range(min(AT_ONCE, len(self._queue)))]:
                    host = self._host_of(broker)
                    ips = self._resolver.known(host)
                    if host and (broker.problem or not ips):
                        self._process.spawn(self._resolve_and_open(broker, host))
                    elif self._knows(broker):
                        self._open(broker, ips)
                await asyncio.sleep(0)
        finally:
            self._at_once = AT_ONCE

    async def _resolve_and_open(self, broker: Broker, host: str) -> None:
        # The name is also looked up if IPs are known, but the listener could not be opened at them.
        broker.problem = broker.problem or f"broker {broker.node_id}: the name {host} is being looked up"
        late = asyncio.get_running_loop().call_later(OPEN_SECONDS, self._leave_out, broker)
        try:
            ips = await self._resolver.ips(host)
        except OSError as error:
            if self._knows(broker):
                self._failed(broker, error)
        else:
            if self._knows(broker):
                self._open(broker, ips)
        finally:
            late.cancel()

    def _leave_out(self, broker: Broker) -> None:
        # The look-up of the broker's host takes long. Responses no longer wait for this broker.
        broker.opening = False
        self._is_open(broker.node_id)
        self._changed()

    def _knows(self, broker: Broker) -> bool:
        return self.known.get(broker.node_id) is broker

    def _host_of(self, broker: Broker) -> str:
        """Return the host at which to bind a broker's listener. "" if nothing has to be bound."""
        if broker.listener is None or (self._by_name(broker) and self._shared_at):
            return ""
        return self.listen.host if self._by_name(broker) else broker.listener.host

    def _by_name(self, broker: Broker) -> bool:
        # Brokers whose listener is at the host of `listen` do not share it.
        return self._shares and broker.listener is not None and broker.listener.host != self.listen.host

    def _open(self, broker: Broker, ips: tuple[str, ...]) -> None:
        if broker.listener is None:
            self._settle(broker, f"broker {broker.node_id}: {self._no_port()}")
            return
        if self._stopped:
            broker.opening = False
            self._opening.discard(broker.node_id)
            self._changed()
            self._is_open(broker.node_id)
            return
        try:
            if not self._by_name(broker):
                broker.bound = self._listen(broker, broker.listener, ips)
            else:
                self._shared_at = self._shared_at or self._acceptor.listen(BY_NAME, self._shared, ips)
                broker.bound = self._shared_at
        except (OSError, ValueError) as error:
            self._failed(broker, error)
        else:
            self._settle(broker, "")

    def _listen(self, broker: Broker, listener: Address, ips: tuple[str, ...]) -> tuple[Address, ...]:
        """Bind the listener of a broker. If its port of ``--listen-ports`` is in use, try some others."""
        ports = self._ports if broker.node_id not in self._rule.single else None
        for _ in range(OTHER_PORTS):
            try:
                return self._acceptor.listen(broker.node_id, listener, ips)
            except OSError as error:
                another = ports.take() if ports is not None and error.errno in _OF_THE_PORT else None
                if ports is None or another is None:
                    raise
                ports.give_back(listener.port)
                broker.listener = listener = Address(listener.host, another)
        return self._acceptor.listen(broker.node_id, listener, ips)

    def _no_port(self) -> str:
        if self._ports is not None:
            return "all ports of --listen-ports are used; give more of them"
        remedy = "give it a port with --broker-ports, or all brokers with --listen-ports"
        return f"its port is outside 1-65535; {remedy}"

    def _failed(self, broker: Broker, error: OSError | ValueError) -> None:
        at = self._shared if self._by_name(broker) else broker.listener
        taken = isinstance(error, OSError) and error.errno in _OF_THE_PORT and not self._shares
        remedy = "give it another port with --broker-ports" if taken else "see --broker-ports"
        if taken and self._ports is not None and broker.node_id not in self._rule.single:
            remedy = "give --listen-ports other ports"
        self._settle(broker, f"broker {broker.node_id}: {at} can't be bound: {reason_of(error)}; {remedy}")

    def _settle(self, broker: Broker, problem: str) -> None:
        """Note that the opening of a broker's listener has ended. `problem` is "" if it has succeeded."""
        before, broker.problem = broker.problem, problem
        broker.opening = False
        self._opening.discard(broker.node_id)
        if not problem:
            self._log.info(
                "listening", broker=broker.node_id, at=str(broker.listener), to=str(broker.address)
            )
        elif problem != before:
            self._log.warning("broker left out", reason=problem)
        if problem != before or not problem:
            self._changed()
        self._is_open(broker.node_id)

    # -- the cluster ---------------------------------------------------------------------------------------

    def begin(self, reach: Reachability, tls: BrokerTls, in_use: Callable[[], set[int]]) -> None:
        self._in_use = in_use
        self._process.spawn(self._poll(reach, tls, in_use))
        self._process.spawn(self._keep_retrying())

    async def _keep_retrying(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.retry()

    async def _poll(self, reach: Reachability, tls: BrokerTls, in_use: Callable[[], set[int]]) -> None:
        wait = RETRY_SECONDS[0]
        plain: set[Address] = set()  # bootstrap addresses that have responded: without TLS, in plain text
        while True:
            try:
                cluster = await ask_any(reach.bootstrap, self._resolver, tls, self.listeners, plain)
            except BootstrapError as error:
                reach.unreachable(None, str(error))
                await asyncio.sleep(wait)
                wait = min(wait * 2, RETRY_SECONDS[1])
            else:
                plain.add(cluster.address)
                if cluster.brokers is not None:
                    self.update(cluster.brokers, in_use(), monotonic())
                    await self.opened(cluster.brokers)
                if reach.bootstrap_responded(cluster.address):
                    self._ready(cluster)
                wait = RETRY_SECONDS[0]
                await asyncio.sleep(REFRESH_SECONDS)

    def _ready(self, cluster: BootstrapResponse) -> None:
        self._log.info("ready", bootstrap=str(cluster.address), brokers=sorted(self.known))
        self._process.note("ready", f"ready: the bootstrap {cluster.address} responded")
        if cluster.brokers is None:
            self._log.info(
                "the cluster requires authentication: brokers are learned from the responses to clients"
            )


def brokers_of(process: Process, acceptor: Acceptor) -> BrokerRegistry | Destinations:
    """Return the registry of brokers. In transparent mode, return the registry of destinations."""
    config = process.config
    if config.is_transparent:
        return Destinations(config.transparent, config.listen)
    return BrokerRegistry(process, acceptor)


def open_listeners(process: Process, brokers: BrokerRegistry | Destinations, acceptor: Acceptor) -> None:
    """Bind the first listener, and the listeners of the brokers in the state file.

    Raises:
        OSError: the address of the first listener can't be bound.
        ConfigError: the process lacks the privilege for ``tproxy``.
    """
    if isinstance(brokers, BrokerRegistry):
        brokers.open()
        brokers.restore()
        return
    brokers.listen, brokers.bound = acceptor.open()
    mode = process.config.transparent
    process.log.info("ready", transparent=mode)
    process.note("ready", f"ready in transparent mode: {mode}")
