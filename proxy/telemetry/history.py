"""The recent history of the gateway: the growth of each total per interval, and rare events. Sans-IO."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, assert_never

from proxy.core.events import (
    BrokersAwaited,
    ClientNamed,
    Event,
    Fault,
    LoginRefused,
    Noticed,
    Passthrough,
    SessionClosed,
    SessionLost,
    SessionMade,
    SessionRefused,
)
from proxy.logger import Logger
from proxy.protocol.api import ErrorCode

INTERVAL_SECONDS: Final = 2.0
"""The time between two samples of the totals."""
INTERVALS: Final = 60
"""Together they are two minutes long."""
MAX_EVENTS: Final = 50
TOGETHER_SECONDS: Final = 10.0
"""Within this time an event joins the previous entry of its kind. The entry counts both and becomes the
latest one."""
_MAX_TEXT: Final = 300


class History:
    """The growth of several totals in each of the last intervals."""

    __slots__ = ("_before", "_rows")

    def __init__(self) -> None:
        self._before: tuple[float, Sequence[float]] | None = None
        self._rows: deque[tuple[float, list[float]]] = deque(maxlen=INTERVALS)

    def note(self, now: float, sums: Sequence[float]) -> None:
        """Add the present values of the totals. The first call only sets the start of the first interval."""
        if self._before is not None:
            then, before = self._before
            grown = [after - earlier for after, earlier in zip(sums, before, strict=True)]
            self._rows.append((now - then, grown))
        self._before = now, sums

    @property
    def seconds(self) -> list[float]:
        return [seconds for seconds, _ in self._rows]

    def column(self, which: int) -> list[float]:
        """Return the growth of one total in each interval. `which` is its index."""
        return [grown[which] for _, grown in self._rows]


@dataclass(slots=True, kw_only=True)
class RecentEvent:
    """One event, or several events of the same kind in a short time. `/state` has these fields, too."""

    at: float
    """When it last occurred, in seconds since 1970. `text` describes the last occurrence, too."""
    kind: str
    text: str
    count: int = 1
    warning: bool


class RecentEvents:
    """The most recent events of the gateway, with descriptions."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: deque[RecentEvent] = deque(maxlen=MAX_EVENTS)

    def __iter__(self) -> Iterator[RecentEvent]:
        return iter(self._kept)

    def note(self, at: float, kind: str, text: str, *, warning: bool = False) -> None:
        """Add an event. `at` is in seconds since 1970. An operator should look at a `warning`."""
        last = RecentEvent(at=at, kind=kind, text=text[:_MAX_TEXT], warning=warning)
        alike = (
            kept for kept in self._kept if kept.kind == last.kind and last.at - kept.at < TOGETHER_SECONDS
        )
        if (before := next(alike, None)) is not None:
            last = replace(last, count=last.count + before.count)
            self._kept.remove(before)
        self._kept.append(last)


class Note(Protocol):
    """The type of a function that adds a recent event."""

    def __call__(self, kind: str, text: str, *, warning: bool = False) -> None:
        """Add an event of this kind, with a description."""


def describe(event: Event, client: str, broker: str) -> tuple[str, str, bool] | None:
    """Return an event's kind, its description, and whether it is a warning. None if it is not shown."""
    match event:
        case ClientNamed() | BrokersAwaited():
            return None
        case SessionMade():
            words = f"{broker} gave {client} a session of {event.partitions:,} partitions"
            return "session made", words, False
        case SessionRefused():
            words = f"{broker} has no free session slot for {client}; fetches are forwarded unchanged"
            return "session refused", words, True
        case SessionLost():
            return "session lost", _lost(event, client, broker), True
        case SessionClosed():
            words = f"{client}'s session at {broker} was closed: {event.reason}"
            return "session closed", words, False
        case Passthrough():
            return "passed through", f"{client} is forwarded unchanged: {event.reason}", False
        case Noticed():
            return event.kind, f"{client} {event.text}", True
        case LoginRefused():
            words = f"{broker} refused the authentication of {client}: {refusal(event)}"
            return "login refused", words, True
        case Fault():
            closed = f"the connection of {client} to {broker} was closed"
            return "fault", f"{closed}, fault of the {event.side}: {event.reason}", True
        case _:
            assert_never(event)


def _lost(event: SessionLost, client: str, broker: str) -> str:
    if event.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
        return f"{broker} evicted {client}'s session (70); the fetch was resent"
    if event.error_code and event.error_code in set(ErrorCode):
        named = ErrorCode(event.error_code).name.lower().replace("_", " ")
        reason = f"{named} ({event.error_code})"
    else:
        reason = event.reason
    return f"{client} lost its session at {broker}: {reason}; the fetch was resent"


def refusal(event: LoginRefused) -> str:
    """Return the error of a refused authentication, and the mechanism, for messages."""
    code = event.error_code
    error = f"{code} {ErrorCode(code).name}" if code in set(ErrorCode) else f"error {code}"
    return f"{error}, mechanism {event.mechanism or 'unknown'}"


def write_event(log: Logger, event: Event, **who: object) -> None:
    """Log an event of a connection. `who` has fields that identify the connection."""
    match event:
        case ClientNamed():
            software = f"{event.software_name} {event.software_version}".strip()
            log.debug("client sent its name", **who | {"client_id": event.client_id}, software=software)
        case SessionMade():
            log.debug("session made", **who, session_id=event.session_id, partitions=event.partitions)
        case SessionRefused():
            log.warning(
                "session refused",
                **who,
                remedy="its fetches are forwarded unchanged, and it requests a session less often; raise "
                "max.incremental.fetch.session.cache.slots at the broker",
            )
        case SessionLost():
            log.info(
                "session lost", **who, session_id=event.session_id, code=event.error_code, reason=event.reason
            )
        case SessionClosed():
            log.debug("session closed", **who, session_id=event.session_id, reason=event.reason)
        case Passthrough():
            log.debug("forwarded unchanged", **who, reason=event.reason)
        case BrokersAwaited():
            log.debug("response waits for listeners", **who, brokers=sorted(event.node_ids))
        case Noticed():
            log.warning(event.message, **who, request=event.request, remedy=event.remedy)
        case LoginRefused():
            pass  # logged once a minute for each client: see `Server.report`
        case Fault():
            log.warning("connection fault", **who, side=event.side, reason=event.reason)
        case _:
            assert_never(event)
