"""The responses that a member waits for, in the order of its requests. Sans-IO.

Each request has a *handler*. It takes the broker's response and says what the client gets.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple

from proxy.protocol.api import LENGTH_BYTES
from proxy.protocol.primitives import Buffer


def nothing(*_: object) -> None:
    """Do nothing: no shell is attached."""


class Reply(NamedTuple):
    """A response for the client, with its length."""

    pieces: list[Buffer]
    due_at: float = 0.0
    """When it may be sent, in seconds."""


class Handler:
    """Takes the broker's response to one request."""

    __slots__ = ()

    def response(self, frame: bytes, now: float) -> Reply | None:
        """Take a whole response, and return what the client gets.

        None is nothing yet: the handler has sent another request, or waits for another member.

        Raises:
            ProtocolError: the response can't be read.
        """
        raise NotImplementedError


class _Pass(Handler):
    """Passes a response as it comes: `Responses` does not even wait until it is whole."""

    __slots__ = ()

    def response(self, frame: bytes, _now: float) -> Reply:
        return Reply([frame])


PASS: Final = _Pass()


class Edit(Handler):
    """Gives the client an edited response.

    Args:
        edit: takes the response and the time, returns the edited response.
    """

    __slots__ = ("_edit",)

    def __init__(self, edit: Callable[[bytes, float], bytes]) -> None:
        self._edit = edit

    def response(self, frame: bytes, now: float) -> Reply:
        """Edit the response."""
        return Reply([self._edit(frame, now)])


class Responses:
    """Matches the broker's responses with their handlers, and keeps replies until they are due.

    The client's next request has to wait behind any handler but `PASS`, and behind a reply. A broker handles
    one request of a connection at a time as well (fetch-semantics, trap 16).
    """

    __slots__ = ("_closing", "_expected", "_frame", "_left", "alarm", "to_client")

    def __init__(self) -> None:
        self.to_client: list[Buffer] = []
        """Bytes that are due to the client."""
        self.alarm: Callable[[float], None] = nothing
        """Takes the time, in seconds, at which `send_due` is to be called."""
        self._expected: deque[Handler | Reply] = deque()
        self._frame = bytearray()
        """The beginning of the response that is coming in."""
        self._left = 0
        """Bytes to come of a response that passes."""
        self._closing = False

    def __repr__(self) -> str:
        return f"<Responses expected={len(self)}>"

    def __len__(self) -> int:
        return len(self._expected)

    @property
    def hold(self) -> bool:
        """Whether the client's next request has to wait."""
        return bool(self._expected) and self._expected[-1] is not PASS

    @property
    def whole(self) -> bool:
        """Whether no response is half received."""
        return not (self._left or self._frame)

    @property
    def buffered(self) -> int:
        """How many bytes are kept."""
        kept = len(self._frame)
        if self._expected and isinstance(reply := self._expected[-1], Reply):
            kept += sum(map(len, reply.pieces))
        return kept

    def expect(self, handler: Handler) -> None:
        """Add the handler of a request that goes to the broker now."""
        self._expected.append(handler)

    def reply(self, reply: Reply, now: float) -> None:
        """Send a response of the gateway's own, behind those that are to come."""
        self._expected.append(reply)
        self.send_due(now)
        if reply.due_at > now:
            self.alarm(reply.due_at)

    def send_due(self, now: float) -> None:
        """Send the reply whose turn it is, if it is due."""
        at = inf if self._closing else now
        if self._expected and isinstance(reply := self._expected[0], Reply) and reply.due_at <= at:
            self._expected.popleft()
            self.to_client += reply.pieces

    def close(self) -> None:
        """Let no reply wait until it is due, from now on."""
        self._closing = True
        self.send_due(inf)

    def feed(self, data: memoryview, now: float) -> int:
        """Take the broker's next bytes, up to the end of one response; return how many were used.

        Raises:
            ProtocolError: its handler can't read the response.
        """
        if self._left:
            return self._pass(data, now)
        begun, size = len(self._frame), LENGTH_BYTES
        if begun >= LENGTH_BYTES:
            size += int.from_bytes(self._frame[:LENGTH_BYTES])
        used = min(size - begun, len(data))
        self._frame += data[:used]
        if len(self._frame) == LENGTH_BYTES and self._expected and self._expected[0] is PASS:
            self._left = int.from_bytes(self._frame)
            self.to_client.append(bytes(self._frame))
            self._frame.clear()
        elif len(self._frame) == size > LENGTH_BYTES:
            self._handle(now)
        return used

    def _pass(self, data: memoryview, now: float) -> int:
        used = min(self._left, len(data))
        self.to_client.append(data[:used])
        self._left -= used
        if not self._left:
            self._expected.popleft()
            self.send_due(now)
        return used

    def _handle(self, now: float) -> None:
        handler, frame = self._expected.popleft(), bytes(self._frame)
        self._frame.clear()
        if isinstance(handler, Handler) and (reply := handler.response(frame, now)) is not None:
            self.reply(reply, now)
