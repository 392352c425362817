"""Reports about a client connection: an *event* for each rare incident, and a *tally* that counts fetches.

Log lines, metrics and the dashboard's state are all made from events and tallies. An object for each fetch
would cost more than the fetch itself, so fetches are only counted. A new count of fetches or responses is a
parameter of `SideTally.add_fetches` or `add_responses`: the core, plans and features call both.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TypeAlias

from proxy.adding import Figures


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


class Refusal(StrEnum):
    """Why the gateway ended a connection to keep a broker's own address from the client.

    The values are the label of `fetchgate_refused_total`. This only happens in explicit mode, in which
    addresses are rewritten.
    """

    VERSION = "version not offered"
    """The client sent a request whose response could have addresses that the gateway can't find."""
    NOT_UNDERSTOOD = "response not understood"
    """A response that may have addresses does not match its version."""
    TOO_LARGE = "response too large"
    """A response with addresses is longer than the gateway can buffer."""


class NotFollowed(StrEnum):
    """Why a client got an error after a partition's leader moved, although new leaders are asked.

    The values are the label of `fetchgate_leaders_not_followed_total`.
    """

    NO_CONNECTION = "no connection"
    """The client has no connection to the new leader, or can't be identified, or is about to be
    disconnected."""
    NO_LEADER = "no leader"
    """The broker did not name a new leader in time."""
    NOT_PROVEN = "position not proven"
    """The log of the new leader does not prove that no records before the client's offset were lost
    (KIP-320)."""
    REFUSED = "refused"
    """The new leader responded with an error, too, or its response can't be used."""
    BUSY = "connection busy"
    """The client's connection to the new leader is in use. Another retry already waits there, or the retry
    would have to wait too long."""
    CLOSED = "connection closed"
    """The client's connection to the new leader ended, or could no longer be used, before the answer came."""
    LATE = "too late"
    """The new leader did not answer while the response to the client was held back."""
    SESSION = "session"
    """The client has a session with the gateway."""
    NOT_LISTED = "not listed"
    """The client's fetch does not list the partition, because the client has a session with the broker."""
    NO_ROOM = "no room"
    """With the new leader's records, the response would be larger than the fetch's max_bytes."""
    TOO_LARGE = "response too large"
    """The response was too large to be buffered."""
    VERSION = "version"
    """The fetch has an old version, so the broker may be old too, and may not support what a retry needs."""
    NOT_UNDERSTOOD = "not understood"


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
