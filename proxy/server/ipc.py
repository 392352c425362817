"""How the supervisor and a worker communicate: messages, blocking questions, and client connections.

Each of these three uses its own pair of sockets. Only the supervisor and the worker can write to it, so
pickled data is trusted.
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
"""The time limit for a worker to get the response to a blocking question, in seconds."""
_LENGTH: Final = struct.Struct("<I")
_LISTENER: Final = struct.Struct("<q")
_BOOTSTRAP: Final = -(2**40)
"""The number that is sent instead of a broker's node id for the bootstrap listener, whose node id is None."""
_MAX_QUESTION: Final = 65_536
_MAX_PACKET: Final = 4096


class Channel(asyncio.Protocol):
    """Exchanges messages with the other process. A message is a name and its arguments.

    Args:
        received: the function to call for each message that arrives.
        lost: the function to call when either process has closed the channel.
    """

    def __init__(self, received: Callable[..., None], lost: Callable[[], None]) -> None:
        self._received = received
        self._lost = lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    async def connect(self, loop: asyncio.AbstractEventLoop, end: socket.socket) -> None:
        """Connect the channel to one end of a pair of stream sockets."""
        await loop.create_unix_connection(lambda: self, sock=end)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport (a callback of asyncio)."""
        self._transport = cast("asyncio.Transport", transport)

    def send(self, name: str, *what: object) -> None:
        """Send a message. It is dropped if the channel is not connected yet, or is closed."""
        if self._transport is not None and not self._transport.is_closing():
            message = pickle.dumps((name, *what))
            self._transport.writelines([_LENGTH.pack(len(message)), message])

    def data_received(self, data: bytes) -> None:
        """Call `received` for each complete message."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                return
            message = pickle.loads(memoryview(self._buffer)[_LENGTH.size : end])  # noqa: S301 - from another process of this gateway
            del self._buffer[:end]
            self._received(*message)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Tell the owner of the channel that the channel is closed, by either process."""
        self._transport = None
        self._lost()

    def close(self) -> None:
        """Close this end."""
        if self._transport is not None:
            self._transport.close()


class Question:
    """Sends a worker's questions to the supervisor. Each blocks the worker until the response arrives.

    Args:
        end: the worker's end of a pair of SOCK_SEQPACKET sockets.
    """

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(RESPONSE_SECONDS)
        self._end = end
        self._number = 0

    def __call__(self, *what: object) -> Any:
        """Send the question to the supervisor, and return the response.

        Raises:
            OSError: the supervisor does not respond.
        """
        self._number += 1
        try:
            self._end.send(pickle.dumps((self._number, what)))
            number, result = 0, None
            while number != self._number:  # skips late responses to earlier questions
                number, result = pickle.loads(self._end.recv(_MAX_QUESTION))  # noqa: S301 - from another process of this gateway
        except (EOFError, OSError) as error:
            raise OSError("the supervisor does not respond to its worker") from error
        return result


def respond(end: socket.socket, find: Callable[..., object]) -> None:
    """Receive one `Question` of a worker, and send the response.

    Args:
        end: the supervisor's end of the socket pair. It must not block.
        find: the function that returns the response. It gets the arguments of the question.

    Raises:
        BlockingIOError: there is no question now.
        OSError: the worker has ended.
    """
    question = end.recv(_MAX_QUESTION)
    if not question:
        raise OSError("the worker has ended")
    number, what = pickle.loads(question)  # noqa: S301 - from another process of this gateway
    end.send(pickle.dumps((number, find(*what))))


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """A client that one worker has accepted and another worker will serve."""

    worker: int
    """The number of the worker that will serve the client."""
    client_address: str
    client_subject: str
    server_name: str
    reached_at: str
    broker_address: Address | None
    """The broker's address, as `Link.broker_address` in `proxy.net.link`. The four fields before this one
    also have the meanings that they have in `Link`."""


class ReceivedConnection(NamedTuple):
    """A client's connection that this process has received from another process of the gateway."""

    node_id: NodeId
    """The broker of the listener that accepted the connection, or None for the bootstrap listener. If
    `handed` is set: the broker that the other worker has found for the client."""
    client: socket.socket | None
    """The socket of the connection. None if this process had no free descriptor to receive it."""
    handed: HandedOver | None
    """Set if `client` is a stream from another worker, which forwards the client's bytes. None if it is the
    client's own socket."""


def send_connection(
    end: socket.socket, client: socket.socket, node_id: NodeId, handed: HandedOver | None = None
) -> None:
    """Send a connection to another process of the gateway.

    Args:
        end: one end of a pair of SOCK_SEQPACKET sockets. It must not block.
        client: the socket (`ReceivedConnection.client`). The caller may close it afterwards.
        node_id: the broker (`ReceivedConnection.node_id`).
        handed: the data of a client from another worker (`ReceivedConnection.handed`).

    Raises:
        OSError: the other process has ended, or has not received earlier connections yet.
    """
    packet = _LISTENER.pack(_BOOTSTRAP if node_id is None else node_id)
    if handed is not None:
        packet += pickle.dumps(handed)
    end.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [client.fileno()]))])


def receive_connection(end: socket.socket) -> ReceivedConnection | None:
    """Receive a connection that was sent by `send_connection`. Return None if the other process has ended.

    Raises:
        BlockingIOError: there is no connection to receive now.
    """
    packet, descriptors, _, _ = socket.recv_fds(end, _MAX_PACKET, 1)
    if not packet:
        return None
    (number,) = _LISTENER.unpack_from(packet)
    node_id = None if number == _BOOTSTRAP else number
    more = packet[_LISTENER.size :]
    handed = pickle.loads(more) if more else None  # noqa: S301 - from another process of this gateway
    if not descriptors:
        return ReceivedConnection(node_id, None, handed)
    client = socket.socket(fileno=descriptors[0])
    client.setblocking(False)
    return ReceivedConnection(node_id, client, handed)
