"""What a gateway and its workers say to each other: messages, questions that wait, connections.

All ends are sockets of a pair that only these processes have: what comes is as trusted as the code itself.
"""

import asyncio
import pickle
import socket
import struct
from array import array
from collections.abc import Callable
from typing import Any, Final, cast

from proxy.telemetry.totals import NodeId

ANSWER_SECONDS: Final = 5.0
"""For a response to a question that a worker waits for."""
_LENGTH: Final = struct.Struct("<I")
_LISTENER: Final = struct.Struct("<q")
_BOOTSTRAP: Final = -(2**40)
"""What stands for None, the bootstrap, among the ids of listeners."""
_MAX_QUESTION: Final = 65_536


class Channel(asyncio.Protocol):
    """Messages in both directions, each a name and what belongs to it.

    Args:
        received: takes each message that comes.
        lost: is called when the other end is gone.
    """

    def __init__(self, received: Callable[..., None], lost: Callable[[], None]) -> None:
        self._received = received
        self._lost = lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    async def connect(self, loop: asyncio.AbstractEventLoop, end: socket.socket) -> None:
        """Begin at one end of a pair of stream sockets."""
        await loop.create_unix_connection(lambda: self, sock=end)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)

    def send(self, name: str, *what: object) -> None:
        """Send a message; nothing when the other end is gone."""
        if self._transport is not None and not self._transport.is_closing():
            message = pickle.dumps((name, *what))
            self._transport.writelines([_LENGTH.pack(len(message)), message])

    def data_received(self, data: bytes) -> None:
        """Hand on the messages that are whole."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                return
            message = pickle.loads(memoryview(self._buffer)[_LENGTH.size : end])  # noqa: S301 - of our own process
            del self._buffer[:end]
            self._received(*message)

    def connection_lost(self, _exc: Exception | None) -> None:
        """End."""
        self._transport = None
        self._lost()

    def close(self) -> None:
        """Say no more."""
        if self._transport is not None:
            self._transport.close()


class Question:
    """A worker's end for what it has to know at once: it stands still until it is told.

    Args:
        end: one end of a pair of sequenced packets.
    """

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(ANSWER_SECONDS)
        self._end = end
        self._number = 0

    def __call__(self, *what: object) -> Any:
        """Ask, and give the response.

        Raises:
            OSError: none came.
        """
        self._number += 1
        try:
            self._end.send(pickle.dumps((self._number, what)))
            number, told = 0, None
            while number != self._number:  # one to an earlier question may have come too late for it
                number, told = pickle.loads(self._end.recv(_MAX_QUESTION))  # noqa: S301 - of our own process
        except (EOFError, OSError) as error:
            raise OSError("the gateway does not answer its worker") from error
        return told


def response(end: socket.socket, told: Callable[..., object]) -> None:
    """Answer one question that has come; the gateway's end must not block.

    Raises:
        OSError: the worker is gone.
    """
    question = end.recv(_MAX_QUESTION)
    if not question:
        raise OSError("the worker is gone")
    number, what = pickle.loads(question)  # noqa: S301 - of our own process
    end.send(pickle.dumps((number, told(*what))))


def hand_over(end: socket.socket, client: socket.socket, node_id: NodeId) -> None:
    """Give a connection to a worker.

    Args:
        end: one end of a pair of sequenced packets that does not block.
        client: the connection; this process may close it afterwards.
        node_id: the broker whose listener it came to; None: the bootstrap's.

    Raises:
        OSError: the worker is gone, or does not take what it was given before.
    """
    listener = _LISTENER.pack(_BOOTSTRAP if node_id is None else node_id)
    end.sendmsg([listener], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [client.fileno()]))])


def take_over(end: socket.socket) -> tuple[NodeId, socket.socket | None] | None:
    """Take a connection that was handed over.

    Returns:
        The broker whose listener it came to, and the connection, or None for it when this process has no
        descriptor left and it is lost. None alone: the gateway is gone.

    Raises:
        BlockingIOError: there is none.
    """
    listener, descriptors, _, _ = socket.recv_fds(end, _LISTENER.size, 1)
    if not listener:
        return None
    (number,) = _LISTENER.unpack(listener)
    node_id = None if number == _BOOTSTRAP else number
    if not descriptors:
        return node_id, None
    client = socket.socket(fileno=descriptors[0])
    client.setblocking(False)
    return node_id, client
