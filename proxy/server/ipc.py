"""Communication between the supervisor and a worker: messages, blocking questions, client connections.

Each uses its own socket pair. Only these two processes have it, so pickled data is trusted.
"""

import asyncio
import pickle
import socket
import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from proxy.addresses import Address
from proxy.telemetry.totals import NodeId

RESPONSE_SECONDS: Final = 5.0
"""The longest wait for the response to a worker's blocking question."""
_LENGTH: Final = struct.Struct("<I")
_LISTENER: Final = struct.Struct("<q")
_BOOTSTRAP: Final = -(2**40)
"""The id for the bootstrap's listener (None)."""
_MAX_QUESTION: Final = 65_536
_MAX_PACKET: Final = 4096


class Channel(asyncio.Protocol):
    """Messages in both directions. A message is a name and its arguments.

    Args:
        received: called with each message that arrives.
        lost: called when the other end is closed.
    """

    def __init__(self, received: Callable[..., None], lost: Callable[[], None]) -> None:
        self._received = received
        self._lost = lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    async def connect(self, loop: asyncio.AbstractEventLoop, end: socket.socket) -> None:
        """Attach to one end of a pair of stream sockets."""
        await loop.create_unix_connection(lambda: self, sock=end)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def send(self, name: str, *what: object) -> None:
        """Send a message. It is dropped if the other end is closed."""
        if self._transport is not None and not self._transport.is_closing():
            message = pickle.dumps((name, *what))
            self._transport.writelines([_LENGTH.pack(len(message)), message])

    def data_received(self, data: bytes) -> None:
        """Deliver the complete messages."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                return
            message = pickle.loads(memoryview(self._buffer)[_LENGTH.size : end])  # noqa: S301 - of our own process
            del self._buffer[:end]
            self._received(*message)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Report that the other end is closed."""
        self._transport = None
        self._lost()

    def close(self) -> None:
        """Close this end."""
        if self._transport is not None:
            self._transport.close()


class Question:
    """A worker's blocking question to the supervisor. The event loop stops until the response arrives.

    Args:
        end: one end of a pair of sequenced packets.
    """

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(RESPONSE_SECONDS)
        self._end = end
        self._number = 0

    def __call__(self, *what: object) -> Any:
        """Ask, and return the response.

        Raises:
            OSError: no response came.
        """
        self._number += 1
        try:
            self._end.send(pickle.dumps((self._number, what)))
            number, result = 0, None
            while number != self._number:  # skips the late response to an earlier question
                number, result = pickle.loads(self._end.recv(_MAX_QUESTION))  # noqa: S301 - of our own process
        except (EOFError, OSError) as error:
            raise OSError("the supervisor does not respond to its worker") from error
        return result


def respond(end: socket.socket, find: Callable[..., object]) -> None:
    """Respond to one `Question` that has arrived.

    Args:
        end: the supervisor's end, which must not block.
        find: called with the arguments of the question. It returns the response.

    Raises:
        OSError: the worker has ended.
    """
    question = end.recv(_MAX_QUESTION)
    if not question:
        raise OSError("the worker has ended")
    number, what = pickle.loads(question)  # noqa: S301 - of our own process
    end.send(pickle.dumps((number, find(*what))))


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """A client that one worker has accepted and another one will serve."""

    worker: int
    """The number of the worker that will serve the client."""
    client_address: str
    client_subject: str
    server_name: str
    reached_at: str
    broker_address: Address | None
    """The last five fields belong to `proxy.net.link.Link`."""


class ReceivedConnection(NamedTuple):
    """A connection from another process of the gateway."""

    node_id: NodeId
    """The listener of the connection: a broker's, or None for the bootstrap's."""
    client: socket.socket | None
    """The connection. None if it was lost, because this process has no free descriptor."""
    handed: HandedOver | None
    """Set if `client` is a stream on which another worker forwards the client's bytes. None if it is the
    client's own socket."""


def send_connection(
    end: socket.socket, client: socket.socket, node_id: NodeId, handed: HandedOver | None = None
) -> None:
    """Send a connection to another process of the gateway.

    Args:
        end: one end of a pair of sequenced packets that does not block.
        client: see `ReceivedConnection`. This process may close its own descriptor afterwards.
        node_id: see `ReceivedConnection`.
        handed: see `ReceivedConnection`.

    Raises:
        OSError: the process has ended, or has not received earlier connections yet.
    """
    packet = _LISTENER.pack(_BOOTSTRAP if node_id is None else node_id)
    if handed is not None:
        packet += pickle.dumps(handed)
    end.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [client.fileno()]))])


def receive_connection(end: socket.socket) -> ReceivedConnection | None:
    """Receive a connection from `send_connection`. Return None if the other process has ended.

    Raises:
        BlockingIOError: no connection was sent.
    """
    packet, descriptors, _, _ = socket.recv_fds(end, _MAX_PACKET, 1)
    if not packet:
        return None
    (number,) = _LISTENER.unpack_from(packet)
    node_id = None if number == _BOOTSTRAP else number
    more = packet[_LISTENER.size :]
    handed = pickle.loads(more) if more else None  # noqa: S301 - of our own process
    if not descriptors:
        return ReceivedConnection(node_id, None, handed)
    client = socket.socket(fileno=descriptors[0])
    client.setblocking(False)
    return ReceivedConnection(node_id, client, handed)
