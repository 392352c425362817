"""What takes the client's bytes before the rest of the core: nothing, or the stage for cooperative groups.

`proxy.cooperative` has that stage. It reads records, so it needs libraries that a gateway without cooperative
groups may lack: the core does not import it.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeAlias

from proxy.core.client_side import ClientSide
from proxy.core.connection_state import ConnectionState
from proxy.core.events import MemberElsewhere
from proxy.core.responses import Rewriting
from proxy.protocol.primitives import Buffer


class MemberStage(Protocol):
    """Stands before the core, and hides from it that the client shares partitions with others."""

    is_member: bool | None
    """None until the first request has come. False: the stage is not needed, and is dropped."""
    elsewhere: int
    """The number of the worker that is to serve the client; 0 for this one."""
    to_client: list[Buffer]
    """Bytes that are due to the client."""

    @property
    def has_lane(self) -> bool:
        """Whether the client has a lane, wants one that it can't have, or has not said who it is."""

    @property
    def reads(self) -> bool:
        """Whether more is wanted from the client."""

    @property
    def goes_on(self) -> bool:
        """Whether some of what came from the client waits for `go_on` alone."""

    @property
    def waits(self) -> bool:
        """Whether the client has sent something that is still to be processed."""

    @property
    def busy(self) -> bool:
        """Whether the client waits for a response."""

    @property
    def longest_wait(self) -> float:
        """How long a fetch may wait in the stage, at most, in seconds."""

    @property
    def buffered(self) -> int:
        """How many bytes are kept."""

    def attach(self, wake: Callable[[float], None], alarm: Callable[[float], None]) -> None:
        """Attach the I/O shell.

        Args:
            wake: takes the time in seconds, and calls `tick`: what the member has waited for is there.
            alarm: takes the time, in seconds, at which `tick` is to be called.
        """

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes from the client."""

    def go_on(self, now: float) -> None:
        """Process more of what came from the client."""

    def tick(self, now: float) -> None:
        """Do what is due."""

    def respond(self, due: list[Buffer], now: float) -> None:
        """Take the bytes that the rest of the core has for the client."""

    def drain(self) -> bytes:
        """Hand over what came of a client that has no lane, or is served by another worker."""

    def close(self, now: float) -> None:
        """Take no more requests; finish what is in flight."""

    def end(self, now: float) -> None:
        """Note that the connection has ended."""


MakeMemberSide: TypeAlias = Callable[
    [str, Callable[[bytes, float], None], Callable[[str, str], None], int, str], MemberStage
]
"""Makes the stage of one connection; `proxy.cooperative.member_side.MemberSide` says what it takes."""


class Front:
    """Hands the client's bytes on as they come: the client is no member of a cooperative group.

    Args:
        client_side: takes the client's bytes.
        to_client: the bytes that are due to the client.
    """

    __slots__ = ("_client_side", "to_client")

    reads: bool = True
    goes_on: bool = False
    waits: bool = False
    busy: bool = False
    longest_wait: float = 0.0
    buffered: int = 0
    """As those of `MemberStage`."""

    def __init__(self, client_side: ClientSide, to_client: list[Buffer]) -> None:
        self._client_side = client_side
        self.to_client = to_client

    def attach(
        self, wake: Callable[[], None], alarm: Callable[[float], None], tick: Callable[[float], None]
    ) -> None:
        """Attach the I/O shell, as `Connection.attach` does.

        Args:
            wake: writes what is due.
            alarm: takes the time, in seconds, at which `tick` is to be called.
            tick: has the connection do what is due.
        """

    def receive(self, data: bytes, now: float) -> "Front":
        """Take bytes from the client; return who takes the next ones."""
        self._client_side.receive(data, now)
        return self

    def go_on(self, now: float) -> None:
        """Process more of what came from the client."""

    def tick(self, now: float) -> None:
        """Do what is due."""

    def settle(self) -> bool:
        """Let the client have its part of what is due to it; return whether it gets only a part."""
        return False

    def drain(self) -> bytes:
        """Hand over what came of a client that another worker serves."""
        return b""

    def client_ended(self, now: float) -> None:
        """Note that the client sends no more."""

    def close(self, now: float) -> None:
        """Take no more requests; finish what is in flight."""

    def end(self, now: float) -> None:
        """Note that the connection has ended."""


class MemberFront(Front):
    """Puts a `MemberStage` before the rest of the core, until the client is known not to need it.

    Args:
        make: makes the stage.
        state: that of the connection.
        client_side: takes the client's bytes as the stage hands them on.
        rewriting: is told what the client may be offered.
        host: the client's.
        max_request_bytes: the longest frame taken from the client.
        broker: identifies the broker.
    """

    __slots__ = ("_rewriting", "_stage", "_state", "_works")

    def __init__(
        self,
        make: MakeMemberSide,
        state: ConnectionState,
        client_side: ClientSide,
        rewriting: Rewriting,
        *,
        host: str,
        max_request_bytes: int,
        broker: str,
    ) -> None:
        super().__init__(client_side, state.to_client)
        self._state = state
        self._rewriting = rewriting
        self._stage = make(host, self._forward, state.fail, max_request_bytes, broker)
        self._works = False
        """The stage is at work; it must not be called again meanwhile."""

    @property
    def reads(self) -> bool:  # type: ignore[override]  # the stage says it
        """Whether more is wanted from the client."""
        return self._stage.reads

    @property
    def goes_on(self) -> bool:  # type: ignore[override]  # the stage says it
        """Whether some of what came from the client waits for `go_on` alone."""
        return self._stage.goes_on

    @property
    def waits(self) -> bool:  # type: ignore[override]  # the stage says it
        """Whether the client has sent something that is still to be processed."""
        return self._stage.waits

    @property
    def busy(self) -> bool:  # type: ignore[override]  # the stage says it
        """Whether the client waits for a response."""
        return self._stage.busy

    @property
    def longest_wait(self) -> float:  # type: ignore[override]  # the stage says it
        """How long a fetch may wait in the stage, at most, in seconds."""
        return self._stage.longest_wait

    @property
    def buffered(self) -> int:  # type: ignore[override]  # the stage says it
        """How many bytes are kept."""
        return self._stage.buffered

    def attach(
        self, wake: Callable[[], None], alarm: Callable[[float], None], tick: Callable[[float], None]
    ) -> None:
        """As `Front.attach`."""
        self._stage.attach(partial(_wake, wake, tick), alarm)

    def receive(self, data: bytes, now: float) -> Front:
        """Take bytes from a client that is a member, or may be one."""
        state, stage, rewriting = self._state, self._stage, self._rewriting
        state.now = now
        self._works = True
        stage.receive(data, now)
        self._works = False
        if stage.is_member is False:
            stage.attach(_nothing, _nothing)
            del self._stage  # it refers to this object
            return Front(self._client_side, state.to_client).receive(stage.drain(), now)
        if stage.elsewhere:  # it is counted there
            state.events.append(MemberElsewhere(worker=stage.elsewhere))
            return self
        state.tally.client.bytes_in += len(data)
        rewriting.member = stage.has_lane
        if stage.is_member and not rewriting.grouped:
            rewriting.grouped = True
            state.steady.stop()
            self.to_client = stage.to_client
        return self

    def _forward(self, data: bytes, now: float) -> None:
        """Take bytes as those of a client without a lane; what the client itself sent was counted."""
        self._client_side.receive(data, now)
        self._state.tally.client.bytes_in -= len(data)

    def go_on(self, now: float) -> None:
        """Process more of what came from the client."""
        if self._stage.goes_on:
            self._works = True
            self._stage.go_on(now)
            self._works = False

    def tick(self, now: float) -> None:
        """Do what is due."""
        self._works = True
        self._stage.tick(now)
        self._works = False

    def settle(self) -> bool:
        """Let the member have its part of what is due to it."""
        if not self._rewriting.grouped or self._works:
            return False
        due, now = self._state.to_client, self._state.now
        self._works = True
        while due:
            pieces = due.copy()
            due.clear()
            self._stage.respond(pieces, now)
        self._works = False
        return True

    def drain(self) -> bytes:
        """Hand over what came of a client that another worker serves."""
        return self._stage.drain()

    def client_ended(self, now: float) -> None:
        """Hand on what has come of a first request."""
        if self._stage.is_member is None:
            self._client_side.receive(self._stage.drain(), now)

    def close(self, now: float) -> None:
        """Take no more requests; finish what is in flight."""
        self._stage.close(now)

    def end(self, now: float) -> None:
        """Note that the connection has ended."""
        self._stage.end(now)
        del self._stage  # it refers to this object


def _wake(wake: Callable[[], None], tick: Callable[[float], None], now: float) -> None:
    """Let the client go on that has waited for another member of its group."""
    tick(now)
    wake()


def _nothing(_: float) -> None:
    """Do nothing: no shell is attached."""
