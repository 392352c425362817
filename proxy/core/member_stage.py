"""What a connection needs of the stage before it, which serves members of cooperative groups.

`proxy.cooperative` has the stage. It reads records, so it needs libraries that a gateway without cooperative
groups may lack: the core does not import it.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from proxy.protocol.primitives import Buffer


class MemberStage(Protocol):
    """Stands between a client and the rest of the core, which sees the client as if it had no lane."""

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
