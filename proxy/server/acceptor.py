"""Opens the listening sockets, and accepts clients on them."""

from collections.abc import Callable, Sequence
from socket import socket
from typing import Final

from proxy.addresses import Address
from proxy.net.listen import Binding
from proxy.net.transparent import listen
from proxy.server.process import Process
from proxy.telemetry.totals import NodeId

ACCEPTED_AT_ONCE: Final = 64
"""How many connections of one socket are accepted in a row. Then the event loop serves open connections
again."""
ACCEPT_AGAIN_SECONDS: Final = 1.0


class Acceptor:
    """Has a listener for the bootstrap and one for each broker, and accepts clients on them.

    The key of a listener is the broker's id, None for the bootstrap, or `BY_NAME` for the one listener that
    the brokers of a host template share. In transparent mode, only None has a listener. `inherited` are
    listening sockets from systemd.
    """

    # The servers of asyncio are not used: they report a client only after the TLS handshake, so handshakes
    # would not count as connections.

    def __init__(self, process: Process, inherited: Sequence[socket] = ()) -> None:
        self.binding = Binding(process.config.reuse_port, inherited)
        self._process = process
        self.listeners: dict[NodeId, list[socket]] = {}
        self._watching = False
        self._take: Callable[[socket, NodeId], None]
        self._failed: Callable[[], None]

    def open(self) -> tuple[Address, tuple[Address, ...]]:
        """Bind the first listener: for the bootstrap, or in transparent mode for all clients.

        Returns:
            The address of the listener with the bound port, then all bound IPs, each with the port.

        Raises:
            OSError: the address can't be bound.
            ConfigError: the process lacks the privilege for ``tproxy``.
        """
        config = self._process.config
        if config.is_transparent:
            bound = self._listen(None, listen(config.listen, config.transparent, self.binding))
        else:
            bound = self.listen(None, config.listen)
        return Address(config.listen.host, bound[0].port), bound

    def listen(self, node_id: NodeId, address: Address, ips: Sequence[str] = ()) -> tuple[Address, ...]:
        """Bind a listener. Return the bound IPs, each with the port.

        `ips` are the IPs of the address. If empty, a host name is looked up, which blocks.

        Raises:
            OSError: the address can't be bound.
        """
        return self._listen(node_id, self.binding.bind(address, ips=ips))

    def _listen(self, node_id: NodeId, sockets: list[socket]) -> tuple[Address, ...]:
        self.listeners[node_id] = sockets
        if self._watching:
            self._watch(node_id)
        return tuple(Address(*sock.getsockname()[:2]) for sock in sockets)

    def stop(self, node_id: NodeId) -> None:
        for sock in self.listeners.get(node_id, ()):
            if self._watching:
                self._process.loop.remove_reader(sock.fileno())
            sock.close()
        self.listeners.pop(node_id, None)

    def close(self) -> None:
        for node_id in list(self.listeners):
            self.stop(node_id)

    def begin(self, take: Callable[[socket, NodeId], None], failed: Callable[[], None]) -> None:
        self._take, self._failed = take, failed
        self._go_on()

    def _go_on(self) -> None:
        if not self._watching:
            self._watching = True
            for node_id in self.listeners:
                self._watch(node_id)

    def _watch(self, node_id: NodeId) -> None:
        for sock in self.listeners[node_id]:
            self._process.loop.add_reader(sock.fileno(), self._accept, node_id, sock)

    def _unwatch(self) -> None:
        if self._watching:
            self._watching = False
            for sockets in self.listeners.values():
                for sock in sockets:
                    self._process.loop.remove_reader(sock.fileno())

    def _accept(self, node_id: NodeId, listener: socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                client, _address = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # out of descriptors or memory: try again when connections have ended
                self._failed()
                self._unwatch()
                self._process.loop.call_later(ACCEPT_AGAIN_SECONDS, self._go_on)
                return
            self._take(client, node_id)
