"""Listening sockets, and the clients accepted on them."""

from collections import deque
from collections.abc import Callable, Sequence
from socket import socket
from typing import Final

from proxy.addresses import Address
from proxy.net.listen import Binding
from proxy.net.transparent import listen
from proxy.server.process import Process
from proxy.telemetry.totals import NodeId

ACCEPTED_AT_ONCE: Final = 64
"""How many waiting connections are accepted before open ones are served again."""
ACCEPT_AGAIN_SECONDS: Final = 1.0
"""The wait before clients are accepted again after an accept failed."""
OFFER_AGAIN_SECONDS: Final = 0.01
"""The wait before an accepted client that could not be taken is offered again."""


class Acceptor:
    """Has a listener for the bootstrap and one for each broker, and accepts their clients.

    A listener is the sockets for one broker. Its key is the broker's id, or None for the bootstrap. The
    servers of event loops call a protocol only after the TLS handshake, so handshakes would not count as
    connections.

    Args:
        process: the process that it belongs to.
        inherited: listening sockets from systemd.
    """

    def __init__(self, process: Process, inherited: Sequence[socket] = ()) -> None:
        self.binding = Binding(process.config.reuse_port, inherited)
        self.waiting: deque[tuple[socket, NodeId]] = deque()
        """Accepted clients that could not be taken yet."""
        self._process = process
        self.listeners: dict[NodeId, list[socket]] = {}
        """The sockets of each listener."""
        self._watching = False
        """The event loop watches the listeners."""
        self._paused = True
        self._take: Callable[[socket, NodeId], bool]
        self._failed: Callable[[OSError], None]

    def open(self) -> tuple[Address, tuple[Address, ...]]:
        """Bind the first listener: for the bootstrap, or in transparent mode for all clients.

        Returns:
            Its address with the bound port, then the bound IPs with the port.

        Raises:
            OSError: the address can't be bound.
            ConfigError: the right for ``tproxy`` is missing.
        """
        config = self._process.config
        if config.is_transparent:
            bound = self._listen(None, listen(config.listen, config.transparent, self.binding))
        else:
            bound = self.listen(None, config.listen)
        return Address(config.listen.host, bound[0].port), bound

    def listen(self, node_id: NodeId, address: Address, ips: Sequence[str] = ()) -> tuple[Address, ...]:
        """Bind a listener. Return the bound IPs with the port.

        Args:
            node_id: its broker.
            address: its address.
            ips: the IPs of the address. Without them a name is looked up, which blocks.

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
        """Close a listener, if it exists."""
        for sock in self.listeners.get(node_id, ()):
            if self._watching:
                self._process.loop.remove_reader(sock.fileno())
            sock.close()
        self.listeners.pop(node_id, None)

    def stop_all(self) -> None:
        """Close all listeners. Clients that could not be taken are still offered."""
        for node_id in list(self.listeners):
            self.stop(node_id)

    def close(self) -> None:
        """Close all listeners, and the clients that could not be taken."""
        self.stop_all()
        for client, _ in self.waiting:
            client.close()
        self.waiting.clear()

    def begin(self, take: Callable[[socket, NodeId], bool], failed: Callable[[OSError], None]) -> None:
        """Begin to accept.

        Args:
            take: takes a client of a listener. If it returns False, it is offered the client again later.
            failed: called with the reason if no client can be accepted.
        """
        self._take, self._failed = take, failed
        self.resume()

    def pause(self) -> None:
        """Leave clients in the listeners' backlog until `resume`."""
        self._paused = True
        self._unwatch()

    def resume(self) -> None:
        """Accept clients again."""
        self._paused = False
        self._go_on()

    def _go_on(self) -> None:
        """Offer the waiting clients. Once they are taken, accept more."""
        while self.waiting:
            if not self._take(*self.waiting[0]):
                self._go_on_later(OFFER_AGAIN_SECONDS)
                return
            self.waiting.popleft()
        if not self._paused and not self._watching:
            self._watching = True
            for node_id in self.listeners:
                self._watch(node_id)

    def _go_on_later(self, seconds: float) -> None:
        self._unwatch()
        self._process.loop.call_later(seconds, self._go_on)

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
        """Accept the waiting clients of one socket."""
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                client, _address = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor or no memory is left: connections that end free some
                self._failed(error)
                self._go_on_later(ACCEPT_AGAIN_SECONDS)
                return
            if not self._take(client, node_id):
                self.waiting.append((client, node_id))
                self._go_on_later(OFFER_AGAIN_SECONDS)
                return
