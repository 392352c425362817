"""Connections to brokers: which broker a client gets, its address, and the socket."""

import asyncio
import errno
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from socket import socket
from time import monotonic
from typing import Any, Final

from proxy.addresses import BY_NAME, LOOPED, Address
from proxy.capture.no_tap import CLIENT, NoTap, Tap
from proxy.net.link import BrokerProtocol, Link
from proxy.net.listen import check_not_own, is_own
from proxy.net.resolve import try_each
from proxy.net.tls import BrokerTls
from proxy.net.transparent import Destinations, outbound_socket
from proxy.server.monitor import Monitor
from proxy.server.process import Process
from proxy.server.registry import BrokerRegistry
from proxy.telemetry.totals import NodeId
from proxy.text.error_text import is_tls, reason_of, refuses_certificate

CONNECT_SECONDS: Final = 10.0
UNREACHABLE_SECONDS: Final = 0.5
"""How long a client stays connected after the last attempt to reach its broker has failed."""
LOOP_SECONDS: Final = 60.0
"""How long /readyz reports that the gateway has connected to itself."""
_LOOP: Final = (
    "netfilter sent the gateway's own connection back to it: exclude the gateway's user from the rules"
)
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})


class Upstream:
    """Connects links to their brokers. `monitor` notes whether brokers are reachable."""

    def __init__(self, process: Process, brokers: BrokerRegistry | Destinations, monitor: Monitor) -> None:
        self.tls = BrokerTls(process.config)
        self.tap: Tap = NoTap()
        """Wraps the protocol of each socket, to capture the bytes."""
        self.failed: Callable[[Link], None] = lambda _: None
        self.certificates: dict[NodeId, float] = {}
        """When the certificate that each broker showed last expires, in seconds since 1970."""
        self._process = process
        self._loop = process.loop
        self._brokers = brokers
        self._monitor = monitor
        self.outbound: set[tuple[int, Address]] = set()
        """In transparent mode, the local port and the destination of each open connection to a broker."""
        self._looped_at = -LOOP_SECONDS
        self._refused = ""

    # -- which broker --------------------------------------------------------------------------------------

    def broker_of(self, link: Link, sock: Any) -> int | None:
        """Return the broker of a new connection; None for the bootstrap, `LOOPED` if the client is refused.

        The listener, the client's TLS server name, or its original destination determines the broker.

        `link` already has the address of the client.
        """
        brokers, node_id = self._brokers, link.node_id
        if node_id is not None and node_id != BY_NAME:
            return node_id
        if isinstance(brokers, Destinations):
            return self._destination_of(brokers, link, sock)
        return self._broker_by_name(link)

    def _broker_by_name(self, link: Link) -> int | None:
        # The client's TLS server name (SNI) may name a broker. If it does not, the client gets the bootstrap.
        rule = self._process.config.broker_ports
        named = rule.called(link.server_name) if link.server_name else None
        if named is None or named in self._brokers.known:
            return named
        return self._refuse(f"a client asked for {link.server_name}, but this broker is not known yet")

    def _destination_of(self, destinations: Destinations, link: Link, sock: Any) -> int:
        try:
            number, destination = destinations.of(sock)
        except OSError as error:
            return self._refuse(
                f"a connection has no original destination ({reason_of(error)}): in transparent mode "
                "only connections that netfilter redirects are served"
            )
        link.broker_address = destination
        if destination == Address(str(sock.getsockname()[0]), destinations.listen.port):
            return self._refuse(
                "a client connected to --listen directly; in transparent mode it must connect to a broker"
            )
        port = int(link.client_address.rpartition(":")[2] or 0)
        if (port, destination) in self.outbound and is_own(link.client_host):
            self._looped_at = monotonic()
            return self._refuse(_LOOP)
        return number

    def _refuse(self, reason: str) -> int:
        # The reason is logged only if the last client was refused for another one.
        if self._refused != reason:
            self._refused = reason
            self._process.log.warning("client refused", reason=reason)
            self._process.note("refused", f"a client is refused: {reason}", warning=True)
        return LOOPED

    def addresses_for(self, link: Link) -> Sequence[Address]:
        if not isinstance(self._brokers, Destinations):
            return self.targets(link.node_id)
        return (link.broker_address,) if link.broker_address and link.node_id != LOOPED else ()

    def targets(self, node_id: NodeId) -> Sequence[Address]:
        if node_id is None:
            return self._monitor.reach.bootstrap
        broker = self._brokers.known.get(node_id)
        return (broker.address,) if broker else ()

    # -- sockets -------------------------------------------------------------------------------------------

    async def connect(self, link: Link) -> None:
        reason, last_error = "no address is known", None
        for address in self.addresses_for(link):
            link.tries(address)  # the link may be closed before this task continues
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self.connect_to(address, link)
            except (OSError, ValueError) as error:  # TimeoutError is an OSError; ValueError: not a host name
                if isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR:
                    self._monitor.out_of_descriptors()
                    reason = ""  # the error is not the broker's
                    break
                reason, last_error = f"{address}: {reason_of(error)}", error
                continue
            link.read_client()
            return
        if reason:
            self.unreachable(link.node_id, reason, last_error)
            self.failed(link)
        link.last_event = link.last_error = "broker unreachable" if reason else "no file descriptor"
        # If an accepted connection is closed at once, a client sees a success and reconnects at once.
        await asyncio.sleep(UNREACHABLE_SECONDS)
        link.finish()

    async def connect_to(self, address: Address, link: Link) -> None:
        """Connect a link to one address of its broker.

        Raises:
            OSError: the connection or its TLS handshake fails, or the gateway itself listens at the address.
            ValueError: the host can't be a host name.
        """
        if isinstance(self._brokers, Destinations):
            await self._open(address, link, sock=await self._recorded_socket(address, link))
            return
        end = self._loop.time() + CONNECT_SECONDS
        ips = await self._process.resolver.ips(address.host)
        check_not_own(ips, address.port, self._brokers.listeners)
        connect = partial(self._open, address, link, port=address.port)
        await try_each(ips, end - self._loop.time(), lambda ip: connect(host=ip))

    async def _open(self, address: Address, link: Link, **where: Any) -> None:
        transport, _ = await self._loop.create_connection(
            lambda: self.tap(BrokerProtocol(link), CLIENT), **where, **self.tls_args(link, address)
        )
        if certificate := transport.get_extra_info("peercert"):
            self.certificates[link.node_id] = ssl.cert_time_to_seconds(certificate["notAfter"])

    async def _recorded_socket(self, address: Address, link: Link) -> socket:
        # The local port is noted before the first packet is sent. On loopback, a connection that is
        # redirected to the gateway itself can be accepted before `connect` returns here.
        sock = outbound_socket(address)
        link.outbound = (sock.getsockname()[1], address)
        self.outbound.add(link.outbound)
        try:
            await self._loop.sock_connect(sock, (address.host, address.port))
        except BaseException:
            sock.close()
            raise
        return sock

    def tls_args(self, link: Link, address: Address) -> Mapping[str, Any]:
        """Return the TLS arguments for asyncio to connect to an address. Empty for plain text.

        In transparent mode the address is only an IP: the client's server name (SNI) names the broker.
        """
        transparent = isinstance(self._brokers, Destinations)
        return self.tls.connect_args((transparent and link.server_name) or address.host)

    # -- results -------------------------------------------------------------------------------------------

    def unreachable(self, node_id: NodeId, reason: str, error: Exception | None = None) -> None:
        """Note that a broker did not respond at any address, or ended a connection with a TLS error.

        `reason` is in words for the log, `error` the error at the last address.
        """
        self._monitor.reach.unreachable(node_id, reason)
        if error is not None and self.tls.reloading is not None:
            self._monitor.tls_failures["broker"] += is_tls(error)
            self._monitor.authentication_failures["broker"] += refuses_certificate(error)

    def closed(self, link: Link) -> None:
        if link.outbound is not None:
            self.outbound.discard(link.outbound)

    def problems(self) -> list[str]:
        return [_LOOP] if monotonic() - self._looped_at < LOOP_SECONDS else []
