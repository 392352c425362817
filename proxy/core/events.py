"""What happened on a client connection: *events* for what is rare, a *tally* for what every fetch adds to.

Log lines, metrics and the state that a dashboard shows are readers of the same two. An object per fetch would
cost more than the fetch, so what happens on each is only added up.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias


class FetchKind(IntEnum):
    """What a fetch is on the wire (KIP-227: the pair of session id and epoch)."""

    FULL = 0
    """Epoch 0: asks for a new session."""
    INCREMENTAL = 1
    """Epoch above 0: continues a session."""
    SESSIONLESS = 2
    """Epoch -1 without an id, and everything below Fetch v7."""
    CLOSE = 3
    """Epoch -1 with an id: ends that session."""


def fetch_kind(session_id: int, epoch: int) -> FetchKind:
    """Tell what a fetch of v7 or later is; below that all are sessionless."""
    if epoch > 0:
        return FetchKind.INCREMENTAL
    if epoch == 0:
        return FetchKind.FULL
    return FetchKind.CLOSE if session_id > 0 else FetchKind.SESSIONLESS


@dataclass(slots=True)
class SideTally:
    """What crossed one side (client or broker) of a connection. Bytes are whole frames, length included."""

    bytes_in: int = 0
    """Bytes received from that peer."""
    bytes_out: int = 0
    """Bytes sent to that peer."""
    fetch_request_bytes: int = 0
    fetch_response_bytes: int = 0
    fetch_record_bytes: int = 0
    """Contents of the ``records`` fields of fetch responses."""
    fetches: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    """Requests, indexed by `FetchKind`."""
    partitions_requested: int = 0
    partitions_answered: int = 0


@dataclass(slots=True)
class Tally:
    """All that is counted for one connection."""

    client: SideTally = field(default_factory=SideTally)
    broker: SideTally = field(default_factory=SideTally)
    session_errors: Counter[int] = field(default_factory=Counter)
    """Top-level error codes that a session met at the broker, by Kafka's number."""
    refusals: int = 0
    """Requests for a session that the broker answered without one, for it had no slot left."""
    passthrough: Counter[str] = field(default_factory=Counter)
    """Fetches and connections passed on as they came, by reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientNamed:
    """The client told its client id and its software in ApiVersions (KIP-511)."""

    client_id: str
    software_name: str
    software_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionMade:
    """The broker gave this connection a fetch session."""

    session_id: int
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRefused:
    """The broker had no slot: it answered a full fetch with session id 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLost:
    """A session can't be continued; the fetch was sent again in full, the client saw an ordinary response."""

    session_id: int
    error_code: int
    """The top-level code, or 0 where the gateway itself gave the session up."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionClosed:
    """The gateway closed its session at the broker, (id, -1)."""

    session_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Passthrough:
    """The connection, or all its fetches from here on, pass as they come."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A peer broke the protocol; the connection ends."""

    side: str
    """``client`` or ``broker``."""
    reason: str


Event: TypeAlias = (
    ClientNamed | SessionMade | SessionRefused | SessionLost | SessionClosed | Passthrough | Fault
)
