"""Reports about a client connection: an *event* for each rare incident, and a *tally* that counts fetches.

Log lines, metrics and the dashboard's state are all made from events and tallies. An object for each fetch
would cost more than the fetch itself, so fetches are only counted. A new count of fetches or responses is a
parameter of `SideTally.add_fetches` or `add_responses`: the core, plans and features call both.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

from proxy.adding import Figures
from proxy.explained import Explained


class FetchKind(IntEnum):
    """The kind of a fetch as it is sent. The kind follows from session id and epoch (KIP-227)."""

    FULL = 0
    """Epoch 0: requests a new session."""
    INCREMENTAL = 1
    """Epoch above 0: continues a session."""
    SESSIONLESS = 2
    """Epoch -1 without a session id, and all fetches below v7."""
    CLOSE = 3
    """Epoch -1 with a session id: ends that session."""


def fetch_kind(session_id: int, epoch: int) -> FetchKind:
    """Return the kind of a fetch of v7 or later. Earlier fetches are all sessionless."""
    if epoch > 0:
        return FetchKind.INCREMENTAL
    if epoch == 0:
        return FetchKind.FULL
    return FetchKind.CLOSE if session_id > 0 else FetchKind.SESSIONLESS


class Refusal(Explained):
    """Why a connection is refused: in explicit mode, its client would have got a broker's own address."""

    VERSION = (
        "version not offered",
        "the client sent a version that was not offered, whose response has addresses",
    )
    NOT_UNDERSTOOD = "response not understood", "a response with addresses does not match its version"
    TOO_LARGE = "response too large", "a response with addresses is over 256 MiB"


class NotFollowed(Explained):
    """Why a leader is not followed: a label of `fetchgate_leaders_not_followed_total`."""

    NO_CONNECTION = (
        "no connection",
        "the client has no connection to the new leader, or fetchgate can't tell which are the client's",
    )
    NO_LEADER = "no leader", "the broker did not name a new leader in time"
    NOT_PROVEN = (
        "position not proven",
        "the new leader's log does not prove that no record before the client's offset was lost (KIP-320)",
    )
    REFUSED = "refused", "the new leader also responded with an error, or sent the client to another broker"
    BUSY = (
        "connection busy",
        "on the client's connection to the new leader, a request may wait long, or a retry has no response",
    )
    CLOSED = "connection closed", "that connection ended first"
    LATE = "too late", "the new leader responded too late: the client's response could not wait longer"
    SESSION = "session", "the client has a session with the gateway"
    NOT_LISTED = (
        "not listed",
        "the fetch does not list the partition: the client has a session with the broker",
    )
    NO_ROOM = "no room", "with the new leader's records, the response would be larger than max_bytes"
    TOO_LARGE = "response too large", "fetchgate does not hold fetch responses above 1 MiB"
    VERSION = "version", "Fetch below v9: the broker may not accept the request that a retry needs"
    NOT_UNDERSTOOD = "not understood", "the fetch or its response could not be read"


@dataclass(slots=True)
class SideTally(Figures):
    """Counts of one side (client or broker) of a connection. Sizes of frames include the length field."""

    bytes_in: int = 0
    """Bytes that this side sent to the gateway."""
    bytes_out: int = 0
    """Bytes that the gateway sent to this side."""
    fetch_request_bytes: int = 0
    fetch_response_bytes: int = 0
    fetch_record_bytes: int = 0
    """Bytes in the ``records`` fields of fetch responses."""
    fetches: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    """The number of fetch requests for each `FetchKind`."""
    partitions_requested: int = 0
    partitions_answered: int = 0

    # A count that is added to fetches or responses gets a parameter of these methods, so that no caller, and
    # no plan of the fast path, can forget it.

    def add_fetches(self, kind: FetchKind, size: int, partitions: int, *, times: int = 1) -> None:
        """Count fetches of one kind. `size` and `partitions` are those of all `times` fetches together."""
        self.fetches[kind] += times
        self.fetch_request_bytes += size
        self.partitions_requested += partitions

    def add_responses(self, partitions: int, record_bytes: int) -> None:
        """Count the contents of fetch responses. Their bytes are counted as they arrive and leave."""
        self.partitions_answered += partitions
        self.fetch_record_bytes += record_bytes


@dataclass(slots=True)
class Tally(Figures):
    """The counts of one connection."""

    client: SideTally = field(default_factory=SideTally)
    broker: SideTally = field(default_factory=SideTally)
    session_errors: Counter[int] = field(default_factory=Counter)
    """Responses in sessions with a top-level error, by Kafka's error codes."""
    sessions_lost: Counter[str] = field(default_factory=Counter)
    """Sessions that the broker lost without an error, by `Loss`."""
    session_checks: int = 0
    """How often the gateway checked a session's responses against a full fetch."""
    refusals: int = 0
    """Requests for a session that the broker refused, because it had no free slot."""
    probe_bytes: int = 0
    """Bytes of the gateway's own requests, except fetches, and of their responses."""
    passthrough: Counter[str] = field(default_factory=Counter)
    """Fetches and connections that were forwarded unchanged, by reason."""
    refused: Counter[str] = field(default_factory=Counter)
    """Connections that the gateway ended so that no client gets a broker's own address, by `Refusal`."""
    leaders_followed: Counter[str] = field(default_factory=Counter)
    """Partitions that were retried successfully at their new leader, by the name of the request (``fetch`` or
    ``offsets``)."""
    leaders_not_followed: Counter[str] = field(default_factory=Counter)
    """Partitions with an error for the client, by `NotFollowed`."""
    produce_bytes: int = 0
    """Bytes of Produce requests and responses on the broker's side."""


def saved_bytes(tally: Tally) -> int:
    """Return the bytes on the client's side minus those on the broker's side (`broker_bytes`)."""
    return fetch_bytes(tally.client) - broker_bytes(tally)


def broker_bytes(tally: Tally) -> int:
    """Return the bytes of fetches and of the gateway's own other requests on the broker's side."""
    return fetch_bytes(tally.broker) + tally.probe_bytes


def fetch_bytes(side: SideTally) -> int:
    """Return the bytes of fetch requests and responses on one side."""
    return side.fetch_request_bytes + side.fetch_response_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientNamed:
    """The client named itself: in ApiVersions, with its software (KIP-511), or in its first fetch."""

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
    """The broker has no slot for this connection: it refused a session (id 0), or evicts sessions repeatedly.

    This is reported once, until a session of the connection has lasted.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLost:
    """A session can't continue, or could not be created.

    The fetch is sent again, in full or without a session. The client gets only the response to this fetch.
    """

    session_id: int
    error_code: int
    """The top-level error code, or 0 if the gateway itself gave up the session."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionClosed:
    """The gateway closed its session at the broker with (id, -1)."""

    session_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Passthrough:
    """Bytes are forwarded unchanged, for `reason`.

    This concerns one response that was not understood, all later fetches of the connection (for some time or
    for good), or all its later bytes.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokersAwaited:
    """A response waits until the listeners of some brokers are open, see `Connection.brokers_opened`."""

    node_ids: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed:
    """A stage has found something about a client that the operator can mend."""

    kind: str
    """What it is, in two words."""
    text: str
    """The rest of a sentence that begins with the client."""
    message: str
    """The message of the log."""
    remedy: str
    request: str
    """The name of the API of the client's request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginRefused:
    """The broker refused the client's SASL mechanism or credentials (KIP-152)."""

    error_code: int
    """Kafka's error code: 58 for the credentials, 33 for the mechanism."""
    mechanism: str
    """The SASL mechanism of the client. "" if it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The client or the broker has violated the protocol. The connection ends."""

    side: str
    """``client`` or ``broker``."""
    reason: str


Event: TypeAlias = (
    ClientNamed
    | SessionMade
    | SessionRefused
    | SessionLost
    | SessionClosed
    | Passthrough
    | BrokersAwaited
    | Noticed
    | LoginRefused
    | Fault
)
