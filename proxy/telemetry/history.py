"""What happened of late: sums by interval for a picture of now, and the rare events in words. Sans-IO."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, assert_never

from proxy.core.events import (
    ClientNamed,
    Event,
    Fault,
    Passthrough,
    SessionClosed,
    SessionLost,
    SessionMade,
    SessionRefused,
)
from proxy.logger import Logger
from proxy.protocol.api import ErrorCode

INTERVAL_SECONDS: Final = 2.0
"""How often sums are taken."""
INTERVALS: Final = 60
"""How many of them are kept: two minutes."""
HAPPENINGS: Final = 50
"""Events that are kept."""
TOGETHER_SECONDS: Final = 10.0
"""Events of one kind that follow each other within this time are told as one, with their number."""
_MAX_TEXT: Final = 300


class History:
    """How much some sums grew in each of the last intervals."""

    __slots__ = ("_before", "_rows")

    def __init__(self) -> None:
        self._before: tuple[float, Sequence[float]] | None = None
        self._rows: deque[tuple[float, list[float]]] = deque(maxlen=INTERVALS)

    def note(self, now: float, sums: Sequence[float]) -> None:
        """Take the sums as they are now (seconds); the first time there is nothing to compare them with."""
        if self._before is not None:
            then, before = self._before
            grown = [after - earlier for after, earlier in zip(sums, before, strict=True)]
            self._rows.append((now - then, grown))
        self._before = now, sums

    @property
    def seconds(self) -> list[float]:
        """Give the length of each interval, the latest last."""
        return [seconds for seconds, _ in self._rows]

    def column(self, which: int) -> list[float]:
        """Give how much one of the sums grew in each interval."""
        return [grown[which] for _, grown in self._rows]


@dataclass(slots=True, kw_only=True)
class RecentEvent:
    """Something that happened, once or several times."""

    at: float
    """The last time, in seconds since 1970."""
    kind: str
    text: str
    """The last of them in words."""
    warning: bool
    count: int = 1


class RecentEvents:
    """The last that happened, in words."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: deque[RecentEvent] = deque(maxlen=HAPPENINGS)

    def __iter__(self) -> Iterator[RecentEvent]:
        return iter(self._kept)

    def note(self, at: float, kind: str, text: str, *, warning: bool = False) -> None:
        """Keep one; a thousand of a kind at once take the place of one.

        Args:
            at: when, in seconds since 1970.
            kind: what sort it is.
            text: what happened.
            warning: it is something to look at.
        """
        self._keep(RecentEvent(at=at, kind=kind, text=text[:_MAX_TEXT], warning=warning))

    def add(self, other: "RecentEvents") -> None:
        """Put in what happened elsewhere, in the order of time."""
        both = sorted((*self._kept, *other), key=lambda happening: happening.at)
        self._kept.clear()
        for happening in both:
            self._keep(happening)

    def _keep(self, last: RecentEvent) -> None:
        alike = (
            kept for kept in self._kept if kept.kind == last.kind and last.at - kept.at < TOGETHER_SECONDS
        )
        if (before := next(alike, None)) is not None:
            last = replace(last, count=last.count + before.count)
            self._kept.remove(before)
        self._kept.append(last)


class Note(Protocol):
    """Keeps something that happened, in words."""

    def __call__(self, kind: str, text: str, *, warning: bool = False) -> None:
        """Keep it."""


def describe(event: Event, client: str, broker: str) -> tuple[str, str, bool] | None:
    """Say in words what a connection reports.

    Args:
        event: what it reports.
        client: what the client is called.
        broker: what its broker is called.

    Returns:
        The kind, the text, and whether it is something to look at; None where it is nothing to tell.
    """
    kind = _KINDS.get(type(event))
    return (kind, _words(event, client, broker), kind in _WARNINGS) if kind is not None else None


_KINDS: Final[dict[type[Event], str]] = {
    SessionMade: "session made",
    SessionRefused: "session refused",
    SessionLost: "session lost",
    SessionClosed: "session closed",
    Passthrough: "passed through",
    Fault: "fault",
}
_WARNINGS: Final = frozenset({"session refused", "session lost", "fault"})


def _words(event: Event, client: str, broker: str) -> str:
    match event:
        case ClientNamed():
            words = f"{client} said what it is"
        case SessionMade():
            words = f"{broker} gave {client} a session of {event.partitions:,} partitions"
        case SessionRefused():
            words = f"{broker} has no slot for {client}, which goes on in full"
        case SessionLost():
            words = _lost(event, client, broker)
        case SessionClosed():
            words = f"{client}'s session at {broker} was closed: {event.reason}"
        case Passthrough():
            words = f"{client} passes as it comes: {event.reason}"
        case Fault():
            words = f"{client} at {broker} was cut off, fault of the {event.side}: {event.reason}"
        case _:
            assert_never(event)
    return words


def _lost(event: SessionLost, client: str, broker: str) -> str:
    if event.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
        return f"{broker} evicted {client}'s session (70); the fetch was sent again"
    if event.error_code and event.error_code in set(ErrorCode):
        named = ErrorCode(event.error_code).name.lower().replace("_", " ")
        reason = f"{named} ({event.error_code})"
    else:
        reason = event.reason
    return f"{client} lost its session at {broker}: {reason}; the fetch was sent again"


def write_event(log: Logger, event: Event, **who: object) -> None:
    """Write what a connection reports.

    Args:
        log: where to.
        event: what happened.
        who: the connection, in the words of the other lines.
    """
    match event:
        case ClientNamed():
            software = f"{event.software_name} {event.software_version}".strip()
            log.debug("client named", **who | {"client_id": event.client_id}, software=software)
        case SessionMade():
            log.debug("session made", **who, session_id=event.session_id, partitions=event.partitions)
        case SessionRefused():
            log.warning("session refused", **who, remedy="the broker has no free slot; fetches go on in full")
        case SessionLost():
            log.info(
                "session lost", **who, session_id=event.session_id, code=event.error_code, reason=event.reason
            )
        case SessionClosed():
            log.debug("session closed", **who, session_id=event.session_id, reason=event.reason)
        case Passthrough():
            log.debug("passed through", **who, reason=event.reason)
        case Fault():
            log.warning("connection fault", **who, side=event.side, reason=event.reason)
        case _:
            assert_never(event)
