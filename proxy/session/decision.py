"""What becomes of a fetch: it goes through the session in one of three forms, or as it came, for a reason.

Deciding changes nothing that a broker or a client could see. `Fetches`, which sends the fetch, carries the
decision out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias, final

from proxy.protocol.fetch_layout import Rows
from proxy.protocol.fetch_request import Listing


@final
class Reason(StrEnum):
    """Why a request or a connection is forwarded as it came; the label of `fetchgate_passthrough_total`."""

    NATIVE = "native session"
    """The client has sessions of its own."""
    SESSIONS_OFF = "sessions off"
    """--sessions off, or --sessions-off-for this client id."""
    UNCACHED_ERRORS = "errors that a session forgets"
    """The broker sent error 35 or 76, which a session up to Kafka 3.9 does not repeat (fetch-semantics 2.6,
    trap 7)."""
    LEFT_OUT = "session leaves out partitions"
    """Twice on this connection a response of the session left out a partition with a new high watermark."""
    NOT_A_CONSUMER = "not a consumer"
    """The fetch has a replica id: it is from a broker or a controller."""
    TAGS = "tags"
    """The fetch has tags that the gateway does not know, or a response of the session has some outside of its
    entries."""
    FORGETS = "forgets without a session"
    """The fetch lists partitions to forget, but names no session."""
    ONE_PARTITION = "one partition"
    """The fetch lists fewer than two partitions: a session would save next to nothing."""
    BROKER_NOT_KNOWN = "broker not known yet"
    """The gateway has no ApiVersions response of the broker, or did not understand it."""
    NO_SESSIONS = "broker without sessions"
    """Kafka 1.0 and older."""
    LEADER_EPOCHS = "leader epochs"
    """A session of this broker does not follow the leader epochs of the entries (KIP-320)."""
    BUSY = "session busy"
    """A fetch of the session is outstanding."""
    CATCHING_UP = "catching up"
    """The last response was large; the next one is streamed."""
    KEEP_ORDER = "keep order"
    """--keep-order: the response limit starved a listed partition, so partitions are served in its order."""
    MEMORY = "memory"
    """The process holds as many bytes of responses, or of what fetches list, as it may."""
    RESTING = "resting"
    """Sessions cost this connection more than they saved. Many times as many bytes pass first."""
    NO_SESSION_YET = "no session yet"
    """The list is so short that a session's close would be much of what fetches have cost so far; or the last
    session did not pay."""
    NO_SLOT = "no slot left"
    """--max-sessions is reached."""
    NOT_SMALLER = "delta not smaller"
    """With its response, the incremental form is expected to be no smaller than the full one."""
    TOO_SPARSE = "partitions listed twice or too sparse"
    """The table of partitions can't take the fetch's list."""
    NOT_UNDERSTOOD = "not understood"
    """The fetch request is not as its version says."""
    NOT_READ = "not looked into"
    """A version below 4 or above 18; a request of over 1 MiB, or one for which the memory for incomplete
    requests had no room; a fetch of over 2,048 topics or 32,768 partitions, or with a topic name of over 249
    bytes."""
    GSSAPI = "GSSAPI token"
    """The connection began with a bare GSSAPI token, as clients of Kafka 0.9 do."""
    SASL_V0 = "SASL handshake v0"
    """After it the client's bytes are forwarded as they come: SASL tokens have no Kafka framing (KIP-43)."""
    TLS = "TLS"
    """In transparent mode: the connection is TLS from the client to the broker."""
    NOT_KAFKA = "not Kafka"
    """In transparent mode: the connection speaks another protocol."""

    def __repr__(self) -> str:
        """Look like the string that it is, in log lines for people."""
        return repr(self.value)


# Tuples, because hashing a member of an enum takes a call, and comparing two takes none.
PASSING: Final = (Reason.BUSY, Reason.CATCHING_UP, Reason.MEMORY)
"""Reasons that pass by themselves: the session stays."""
FOR_GOOD: Final = (Reason.SESSIONS_OFF, Reason.UNCACHED_ERRORS, Reason.LEFT_OUT)
"""Reasons that stay: a session is closed at once (as it is for NATIVE, see `Fetches._leave_unused`)."""


@dataclass(slots=True, eq=False)
class Delta:
    """What a fetch changes in the session."""

    rows: Rows
    """The row of each entry of the fetch, -1 where the table has none."""
    added: Rows
    """Positions of entries that the session does not have."""
    altered: Rows
    """Positions of entries whose bytes differ from those last sent, topics together."""
    forgotten: Rows
    """Rows that the fetch no longer lists."""
    topics: list[tuple[bytes, bytes]]
    """Added, then altered entries as topic elements."""
    forgotten_topics: list[tuple[bytes, bytes]]
    turned: bool
    """The fetch lists what the previous one listed, in the same order, but may begin at any of them."""

    @property
    def size(self) -> int:
        """Bytes of entries, topic keys and forgotten partitions on the wire, lengths and tags apart."""
        listed = sum(len(key) + len(block) for key, block in self.topics)
        return listed + sum(len(key) + len(block) for key, block in self.forgotten_topics)


@final
@dataclass(slots=True, eq=False)
class Full:
    """Ask for a session: the fetch goes with epoch 0."""


@final
@dataclass(slots=True, eq=False)
class Incremental:
    """Send only what the fetch changes in the session."""

    frame: bytes
    """The incremental fetch."""
    listing: Listing
    delta: Delta


@final
@dataclass(slots=True, eq=False)
class Rotated:
    """The same, found by a quicker comparison: one topic's list only rotated (`proxy.session.rotation`)."""

    frame: bytes
    """The incremental fetch."""
    first: int
    """The session's row of the fetch's first entry."""
    altered: Sequence[tuple[int, bytes]]
    """Row and entry of what the fetch alters."""


Decision: TypeAlias = Reason | Full | Incremental | Rotated
"""What becomes of a fetch; a `Reason`: it is forwarded as it came."""
