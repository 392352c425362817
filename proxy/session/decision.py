"""The decisions on a fetch: request a session, continue it in one of two forms, or forward it.

`Fetches` makes the decision and sends the fetch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from proxy.explained import Explained
from proxy.protocol.fetch_layout import Rows
from proxy.protocol.fetch_request import Listing


@final
class Reason(Explained):
    """Why a fetch is forwarded: a label of `fetchgate_passthrough_total`. The last four: a connection."""

    NATIVE = (
        "native session",
        "the client has sessions of its own with the broker",
        "nothing: it needs no gateway",
    )
    SESSIONS_OFF = (
        "sessions off",
        "--sessions off, or --sessions-off-for this client id",
        "turn sessions on, unless this is intended",
    )
    UNCACHED_ERRORS = (
        "errors that a session forgets",
        "the broker sent error 35 or 76 on this connection; up to Kafka 3.9, sessions do not repeat them",
        "upgrade the brokers",
    )  # fetch-semantics 2.6, trap 7
    LEFT_OUT = (
        "session leaves out partitions",
        "the broker has twice lost a partition of this connection's sessions",
        "report it: the broker's sessions are faulty",
    )  # see Loss.LEFT_OUT
    NOT_A_CONSUMER = "not a consumer", "the fetch of a broker or a controller, without a session"
    TAGS = (
        "tags",
        "the fetch, or a response of the session, has tagged fields that fetchgate does not know",
        "report it",
    )
    FORGETS = (
        "forgets without a session",
        "the fetch lists partitions to forget, but has no session",
        "report it, with the client's software",
    )
    ONE_PARTITION = (
        "one partition",
        "the fetch lists a single partition: a session has nothing to leave out",
    )
    BROKER_NOT_KNOWN = (
        "broker not known yet",
        "the broker's ApiVersions response is not there yet, or was not understood",
        "wait; a capture must begin before the clients connect",
    )
    NO_SESSIONS = "broker without sessions", "Kafka 1.0 and older have no sessions", "upgrade the brokers"
    LEADER_EPOCHS = (
        "leader epochs",
        "sessions of these brokers (2.1 to 2.4) forget leader epochs (KAFKA-9338)",
        "upgrade the brokers to 2.5 or later",
    )
    BUSY = "session busy", "another fetch of the session has no response yet"
    CATCHING_UP = (
        "catching up",
        "the last response was 1 MiB or more, so the next one is streamed",
        "wait; capture when the client has caught up",
    )
    KEEP_ORDER = (
        "keep order",
        "--keep-order on, and responses have no room for all records of the listed partitions",
        "raise the client's fetch.max.bytes",
    )
    MEMORY = (
        "memory",
        "buffered responses have reached --max-inflight-bytes, or lists of partitions a quarter of it",
        "raise --max-inflight-bytes",
    )
    RESTING = (
        "resting",
        "sessions cost this connection more than they saved: none until 256 times the lost bytes have passed",
    )
    NO_SESSION_YET = (
        "no session yet",
        "a session would not have saved bytes yet, or the last one did not",
        "wait; capture for an hour",
    )
    NO_SLOT = "no slot left", "--max-sessions is reached", "raise --max-sessions"
    NO_BROKER_SLOT = (
        "no slot at the broker",
        "the broker refused or evicted sessions of this connection, which asks again after 1 s to 5 min",
        "raise max.incremental.fetch.session.cache.slots of the broker",
    )
    NOT_SMALLER = (
        "delta not smaller",
        "the incremental fetch with its response would not have been smaller than the full one",
    )
    TOO_SPARSE = (
        "partitions listed twice or too sparse",
        "the table of a session can't hold the fetch's list",
        "report it, with the client's software",
    )
    NOT_UNDERSTOOD = "not understood", "the bytes of the fetch do not match its version", "report it"
    NOT_READ = (
        "not looked into",
        "a version below 4 or above 18, over 1 MiB, 2,048 topics or 32,768 partitions, or no memory for it",
        "upgrade the client, or fetchgate",
    )  # other limits: 249 bytes in a topic name, 16 KiB of tags, 512 bytes before the body and after the rack
    GSSAPI = (
        "GSSAPI token",
        "the connection began with a GSSAPI token without a Kafka header, as clients of Kafka 0.9 send it",
        "upgrade the client",
    )
    SASL_V0 = (
        "SASL handshake v0",
        "it is not known where the tokens after it end, so all further bytes are forwarded unread",
        "upgrade the client",
    )  # KIP-43
    TLS = (
        "TLS",
        "transparent mode: the connection is TLS from the client to the broker",
        "use explicit mode, and let the gateway end TLS",
    )
    NOT_KAFKA = (
        "not Kafka",
        "transparent mode: the connection speaks another protocol",
        "redirect only Kafka's ports",
    )

    def __repr__(self) -> str:
        return repr(self.value)  # for log lines


# Tuples, because hashing a member of an enum takes a call, and comparing two takes none.
PASSING: Final = (Reason.BUSY, Reason.CATCHING_UP, Reason.MEMORY)
"""Temporary reasons to forward a fetch. The session is kept."""
FOR_GOOD: Final = (Reason.SESSIONS_OFF, Reason.UNCACHED_ERRORS, Reason.LEFT_OUT)
"""Lasting reasons to forward fetches. They close the session at once. So does NATIVE, see
`SessionKeeper.leave_unused`."""


@dataclass(slots=True, eq=False)
class Delta:
    """The differences between a fetch and the session."""

    rows: Rows
    """For each entry of the fetch, the row of its partition in the table, or -1."""
    added: Rows
    """The positions of entries whose partitions are not in the session."""
    altered: Rows
    """The positions of entries that differ from those last sent, grouped by topic."""
    forgotten: Rows
    """The rows of session partitions that the fetch no longer lists."""
    topics: list[tuple[bytes, bytes]]
    """The topic elements to send: those with added entries first, then those with altered entries."""
    forgotten_topics: list[tuple[bytes, bytes]]
    turned: bool
    """Whether the fetch lists the partitions of the previous fetch in the same order, perhaps from another
    one on."""

    @property
    def size(self) -> int:
        """The bytes of the entries, topic keys and forgotten partitions, without length fields and tags."""
        listed = sum(len(key) + len(block) for key, block in self.topics)
        return listed + sum(len(key) + len(block) for key, block in self.forgotten_topics)


@final
@dataclass(slots=True, eq=False)
class Incremental:
    """The fetch is sent as an incremental fetch, with only its differences from the session."""

    frame: bytes
    listing: Listing
    delta: Delta


@final
@dataclass(slots=True, eq=False)
class Rotated:
    """Like `Incremental`, but built faster: the list is only rotated, and few of its entries differ.

    See `proxy.session.rotation`.
    """

    frame: bytes
    first: int
    """The row of the table for the first entry of the fetch."""
    altered: Sequence[tuple[int, bytes]]
    """The entries that differ from the table, each with its row."""
