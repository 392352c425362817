"""The decisions on a fetch: request a session, continue it in one of two forms, or forward it.

`Fetches` makes the decision and sends the fetch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final

from proxy.protocol.fetch_layout import Rows
from proxy.protocol.fetch_request import Listing


@final
class Reason(StrEnum):
    """Reasons to forward a request or a connection unchanged: a label of `fetchgate_passthrough_total`."""

    NATIVE = "native session"
    """The client uses sessions of its own with the broker, or the fetch requests one."""
    SESSIONS_OFF = "sessions off"
    """The option --sessions is off, or --sessions-off-for has this client id."""
    UNCACHED_ERRORS = "errors that a session forgets"
    """The broker sent error 35 or 76. Sessions of brokers up to Kafka 3.9 do not repeat these errors
    (fetch-semantics 2.6, trap 7)."""
    LEFT_OUT = "session leaves out partitions"
    """On this connection, the broker has twice lost a partition of a session: see `Loss.LEFT_OUT`."""
    NOT_A_CONSUMER = "not a consumer"
    """The fetch has a replica id: it is from a broker or a controller. In a session, the reason is
    `NATIVE`."""
    TAGS = "tags"
    """The fetch has tags, or a response of the session has had tags in its header or in a topic element."""
    FORGETS = "forgets without a session"
    """The fetch lists partitions to forget, but has no session id."""
    ONE_PARTITION = "one partition"
    """The fetch lists fewer than two partitions, so a session would save almost no bytes."""
    BROKER_NOT_KNOWN = "broker not known yet"
    """The gateway has no ApiVersions response of the broker yet, or could not parse it."""
    NO_SESSIONS = "broker without sessions"
    """The broker is Kafka 1.0 or older, which has no sessions."""
    LEADER_EPOCHS = "leader epochs"
    """The broker's sessions do not update the leader epochs of their entries (KIP-320), and the fetch has
    leader epochs."""
    BUSY = "session busy"
    """The session is busy: one of its fetches still waits for its response."""
    CATCHING_UP = "catching up"
    """The last response was large, so the next fetch is forwarded, and its response is streamed."""
    KEEP_ORDER = "keep order"
    """The option --keep-order is on, and an earlier response probably had no room for all available records.
    So the fetch is sent in the client's own order."""
    MEMORY = "memory"
    """A memory limit of the process is reached: for buffered responses, or for incomplete requests and listed
    partitions."""
    RESTING = "resting"
    """Sessions have cost this connection more bytes than they saved. It uses no session until it has
    transferred many times the lost bytes."""
    NO_SESSION_YET = "no session yet"
    """The last session did not save bytes, or fetches have cost too few bytes so far: a session must save
    more bytes than its close request costs."""
    NO_SLOT = "no slot left"
    """The gateway already uses as many sessions as --max-sessions allows."""
    NO_BROKER_SLOT = "no slot at the broker"
    """The broker has refused or evicted sessions of this connection, because all its session slots are used.
    The next session is requested after a wait of up to six minutes."""
    NOT_SMALLER = "delta not smaller"
    """The incremental fetch and its response would probably not be smaller than the full fetch and the full
    response."""
    TOO_SPARSE = "partitions listed twice or too sparse"
    """The partition table can't hold the list of the fetch: a partition is listed twice, or the partition
    numbers are too sparse."""
    NOT_UNDERSTOOD = "not understood"
    """The fetch request does not match the schema of its version."""
    NOT_READ = "not looked into"
    """The fetch or a part of it is too large, its version is not supported, or memory is short.

    Limits: versions 4 to 18, 1 MiB, 2,048 topics, 32,768 partitions, 249 bytes in a topic name, 16 KiB of
    tags, and 512 bytes each before the body and from the rack on. Memory is short if incomplete requests and
    listed partitions use all of their memory.
    """
    GSSAPI = "GSSAPI token"
    """The connection began with a GSSAPI token without a Kafka header, as clients of Kafka 0.9 send it."""
    SASL_V0 = "SASL handshake v0"
    """After a SaslHandshake v0, all bytes are forwarded without being parsed, because it is unknown where the
    SASL tokens end. They have no Kafka header (KIP-43)."""
    TLS = "TLS"
    """In transparent mode: the client and the broker use TLS, so the gateway can't read the connection."""
    NOT_KAFKA = "not Kafka"
    """In transparent mode: the connection uses another protocol than Kafka's."""

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
