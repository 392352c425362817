"""The gateway as one process: it listens and serves."""

import asyncio
from collections.abc import Sequence
from socket import socket

from proxy.capture.pcap import BROKER
from proxy.capture.tap import Tap, no_tap
from proxy.config import Config
from proxy.logger import Logger
from proxy.net.link import Link
from proxy.net.listen import BACKLOG, Binding
from proxy.net.sockets import ClientProtocol
from proxy.server.listeners import ClusterListeners
from proxy.server.server import ACCEPT_AGAIN_SECONDS, ACCEPTED_AT_ONCE, Server
from proxy.telemetry import state
from proxy.telemetry.status import Account, Status
from proxy.telemetry.totals import NodeId


class Gateway(Server):
    """``fetchgate proxy`` with one process.

    Args:
        config: what the operator asked for.
        loop: the event loop that runs it.
        log: takes its log lines.
        tap: wraps the protocol of each socket, to capture its bytes.
        inherited: listening sockets from systemd.
    """

    def __init__(
        self,
        config: Config,
        loop: asyncio.AbstractEventLoop,
        log: Logger,
        tap: Tap = no_tap,
        inherited: Sequence[socket] = (),
    ) -> None:
        super().__init__(config, loop, log, tap)
        self.listeners = ClusterListeners(
            config,
            binding=Binding(config.reuse_port, inherited),
            reach=self.reach,
            broker_tls=self._broker_tls,
            log=log,
            note=self.note,
            serve=self._serve,
            stop=self._stop,
            in_use=lambda: {link.node_id for link in self.links if link.node_id is not None},
            spawn=self.spawn,
            resolver=self.resolver,
        )
        self._servers: dict[NodeId, list[asyncio.Server]] = {}
        self._unserved: set[socket] = set()
        self._tls_sockets: dict[NodeId, list[socket]] = {}

    def open(self) -> None:
        """Bind the bootstrap listener and those of the brokers in the state file; start the background tasks.

        Raises:
            OSError: the address of the bootstrap listener can't be bound.
            ConfigError: the right for ``tproxy`` is missing.
        """
        self.listeners.open()
        self.listen, self.bound = self.listeners.listen, self.listeners.bound
        self.brokers = self.listeners.brokers
        for work in self.listeners.background_tasks():
            self.spawn(work)
        self.begin()

    async def collect_status(self) -> Status:
        """Describe the status."""
        return self.status()

    async def collect_account(self) -> Account:
        """Describe everything but the single connections."""
        return self.account()

    async def collect_connections(self, most: int) -> list[state.Described]:
        """Describe the connections that moved most bytes."""
        return await state.connections(self.links, most)

    async def drain(self, within: float) -> int:
        """Stop listening, and finish what is in flight: see `Server.drain`."""
        self.listeners.stop_opening()
        self._stop_all()
        return await super().drain(within)

    def close(self) -> int:
        """Close everything at once; return the number of connections that were open."""
        self._stop_all()
        self.listeners.close()
        left = super().close()
        for sock in self._unserved:
            sock.close()
        return left

    def _serve(self, node_id: NodeId, sockets: list[socket]) -> None:
        if self._client_tls.reloading:
            self._tls_sockets[node_id] = sockets
            for sock in sockets:
                self.loop.add_reader(sock.fileno(), self._accept_tls, node_id, sock)
            return
        self._servers[node_id] = []
        self._unserved.update(sockets)
        for sock in sockets:
            self.spawn(self._accept(node_id, sock))

    async def _accept(self, node_id: NodeId, sock: socket) -> None:
        server = await self.loop.create_server(
            lambda: self.tap(ClientProtocol(Link(self, node_id)), BROKER), sock=sock, backlog=BACKLOG
        )
        self._unserved.discard(sock)
        if node_id in self._servers:
            self._servers[node_id].append(server)
        else:
            server.close()

    def _accept_tls(self, node_id: NodeId, listener: socket) -> None:
        """Accept the waiting clients, as far as the connection limit allows, and begin their handshakes.

        Event loops call a protocol only after the handshake: handshakes would not count as connections.
        """
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                client, _address = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor is left: connections that end free some
                self.out_of_descriptors()
                self.loop.remove_reader(listener.fileno())
                self.loop.call_later(ACCEPT_AGAIN_SECONDS, self._accept_again, node_id, listener)
                return
            if not self.admits_beside(len(self.links) + len(self.handshakes)):
                client.close()
                continue
            client.setblocking(False)
            self.handshakes.add(link := Link(self, node_id))
            self.spawn(self._shake_hands(link, client))

    def _accept_again(self, node_id: NodeId, listener: socket) -> None:
        if listener in self._tls_sockets.get(node_id, []):
            self.loop.add_reader(listener.fileno(), self._accept_tls, node_id, listener)

    async def _shake_hands(self, link: Link, client: socket) -> None:
        try:
            await self.receive_client(link, client, self._client_tls.accept_args(link.node_id))
        finally:
            self.handshakes.discard(link)

    def _stop(self, node_id: NodeId) -> None:
        for server in self._servers.pop(node_id, []):
            server.close()
        for sock in self._tls_sockets.pop(node_id, []):
            self.loop.remove_reader(sock.fileno())
            sock.close()

    def _stop_all(self) -> None:
        for node_id in [*self._servers, *self._tls_sockets]:
            self._stop(node_id)
