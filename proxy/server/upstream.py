"""Connections to brokers: chooses the broker for a client, its address, and connects the socket."""

import asyncio
import errno
import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from socket import socket
from time import monotonic
from typing import Any, Final

from proxy.addresses import BY_NAME, LOOPED, Address
from proxy.capture.pcap import CLIENT
from proxy.capture.tap import Tap, no_tap
from proxy.error_text import is_tls, reason_of, refuses_certificate
from proxy.net.link import BrokerProtocol, Link
from proxy.net.listen import check_not_own
from proxy.net.resolve import try_each
from proxy.net.tls import BrokerTls
from proxy.net.transparent import Destinations, OutboundPorts, is_own, outbound_socket
from proxy.server.monitor import Monitor
from proxy.server.process import Process
from proxy.server.registry import KnownBrokers
from proxy.telemetry.totals import NodeId

CONNECT_SECONDS: Final = 10.0
"""The longest time to connect to one address of a broker."""
UNREACHABLE_SECONDS: Final = 0.5
"""How long a client stays connected if its broker can't be reached."""
LOOP_SECONDS: Final = 60.0
"""How long /readyz reports that one of the gateway's own connections came back to it."""
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})


class Upstream:
    """Connects links to their brokers.

    Args:
        process: the process that it belongs to.
        brokers: its known brokers.
        monitor: records whether brokers are reachable.
        outbound_ports: the local ports of connections to brokers, in transparent mode.
    """

    def __init__(
        self,
        process: Process,
        brokers: KnownBrokers | Destinations,
        monitor: Monitor,
        outbound_ports: OutboundPorts,
    ) -> None:
        self.tls = BrokerTls(process.config)
        self.tap: Tap = no_tap
        """Wraps the protocol of each socket, to capture its bytes."""
        self.certificates: dict[NodeId, float] = {}
        """When the last certificate that a broker showed expires, in seconds since 1970."""
        self.tls_failures = 0
        """TLS handshakes that failed."""
        self.certificates_refused = 0
        """TLS handshakes that failed because of a certificate, either the gateway's or a broker's."""
        self._process = process
        self._loop = process.loop
        self._brokers = brokers
        self._monitor = monitor
        self._outbound_ports = outbound_ports
        self._looped_at = -LOOP_SECONDS
        self._refused = ""
        """The reason why the last client without a broker was refused."""

    # -- which broker --------------------------------------------------------------------------------------

    def broker_of(self, link: Link, sock: Any) -> int | None:
        """Return the broker of a new connection: the broker of its listener, or its original destination.

        Args:
            link: the new connection; the address of its client is known.
            sock: its socket, as the event loop gives it.
        """
        brokers, node_id = self._brokers, link.node_id
        if node_id is not None and node_id != BY_NAME:
            brokers.knows(node_id)  # a worker asks for a broker that it does not know yet
            return node_id
        if link.handed_over:
            return node_id
        if isinstance(brokers, Destinations):
            return self._destination_of(brokers, link, sock)
        return self._broker_by_name(link)

    def _broker_by_name(self, link: Link) -> int | None:
        """Return the broker that a client names in TLS (SNI), or None (the bootstrap) if it names none."""
        rule = self._process.config.broker_ports
        named = rule.called(link.server_name) if link.server_name else None
        if named is None or self._brokers.knows(named):
            return named
        return self._refuse(f"a client asked for {link.server_name}, but this broker is not known yet")

    def _destination_of(self, destinations: Destinations, link: Link, sock: Any) -> int:
        """Return the number of a connection's original destination."""
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
        host, port = host_and_port(link.client_address)
        if (port, destination) in self._outbound_ports and is_own(host):
            self._looped_at = monotonic()
            return self._refuse(
                "netfilter sent the gateway's own connection back to it: "
                "exclude the gateway's user from the rules"
            )
        return number

    def _refuse(self, reason: str) -> int:
        """Refuse a client that can't be served. Log the reason if it differs from the last one."""
        if self._refused != reason:
            self._refused = reason
            self._process.log.warning("client refused", reason=reason)
            self._process.note("refused", f"a client is refused: {reason}", warning=True)
        return LOOPED

    def addresses_for(self, link: Link) -> Sequence[Address]:
        """Return the addresses to try for a connection, in order."""
        if not isinstance(self._brokers, Destinations):
            return self.targets(link.node_id)
        return (link.broker_address,) if link.broker_address and link.node_id != LOOPED else ()

    def targets(self, node_id: NodeId) -> Sequence[Address]:
        """Return the addresses of a broker. None means the bootstrap."""
        if node_id is None:
            return self._monitor.reach.bootstrap
        broker = self._brokers.known.get(node_id)
        return (broker.address,) if broker else ()

    # -- sockets -------------------------------------------------------------------------------------------

    async def connect(self, link: Link) -> None:
        """Connect a link to its broker. Close the link if no address can be reached."""
        reason, last_error = "no address is known", None
        for address in self.addresses_for(link):
            link.tries(address)  # all callbacks may run before this task continues
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self.connect_to(address, link)
            except (OSError, ValueError) as error:  # TimeoutError is an OSError; ValueError: not a host name
                if isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR:
                    self._monitor.out_of_descriptors()
                    reason = ""  # the broker is not to blame
                    break
                reason, last_error = f"{address}: {reason_of(error)}", error
                continue
            link.read_client()
            return
        if reason:
            self.unreachable(link.node_id, reason, last_error)
        link.last_event = link.last_error = "broker unreachable" if reason else "no file descriptor"
        # To a client an accepted connection is a success: if it is closed at once, it reconnects at once.
        await asyncio.sleep(UNREACHABLE_SECONDS)
        link.finish()

    async def connect_to(self, address: Address, link: Link) -> None:
        """Connect a link to one address of its broker.

        Raises:
            OSError: nobody listens there, or the gateway itself does.
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
        """Return a socket that is connected to an address, in transparent mode.

        Its local port is recorded before the first packet leaves. On loopback, a connection that comes back
        is accepted before this one is reported as connected.

        Raises:
            OSError: nobody listens there.
        """
        sock = outbound_socket(address)
        link.outbound = (sock.getsockname()[1], address)
        self._outbound_ports.add(link.outbound)
        try:
            await self._loop.sock_connect(sock, (address.host, address.port))
        except BaseException:
            sock.close()
            raise
        return sock

    def tls_args(self, link: Link, address: Address) -> Mapping[str, Any]:
        """Return asyncio's arguments for TLS to an address. For plain text, return none.

        In transparent mode the address is an IP. A client that speaks TLS has named the broker.
        """
        transparent = isinstance(self._brokers, Destinations)
        return self.tls.connect_args((transparent and link.server_name) or address.host)

    # -- results -------------------------------------------------------------------------------------------

    def unreachable(self, node_id: NodeId, reason: str, error: Exception | None = None) -> None:
        """Record that no address of a broker responded. `error` is the last error."""
        self._monitor.reach.unreachable(node_id, reason)
        if error is not None and self.tls.reloading is not None:
            self.tls_failures += is_tls(error)
            self.certificates_refused += refuses_certificate(error)

    def closed(self, link: Link) -> None:
        """Forget a link that has closed."""
        if link.outbound is not None:
            self._outbound_ports.discard(link.outbound)

    def problems(self) -> list[str]:
        """Return why a client was refused recently: one of the gateway's own connections came back."""
        return [self._refused] if monotonic() - self._looped_at < LOOP_SECONDS else []


def host_and_port(address: str) -> tuple[str, int]:
    """Split the address of a client as `str(Address)` writes it."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port or 0)
