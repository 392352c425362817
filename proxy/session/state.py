"""The state of a fetch session, and the three tables that drive the handler. Sans-IO.

`TRANSITIONS` moves the state. `AFTER_FULL` and `AFTER_INCREMENTAL` say what a response means: the pair
(session id, epoch) that the next request carries, and what is done with the response. Both have a row for
each thing that a response can say. The rows follow Kafka's own client (KIP-227; handleResponse of
FetchSessionHandler.java; fetch-semantics 3.2). A comment says where a row differs from it.
"""

from enum import Enum, IntEnum, StrEnum
from typing import Final


class SessionState(IntEnum):
    """Where a connection's session stands; at most one fetch of a session is outstanding."""

    NONE = 0
    """There is no session."""
    REQUESTED = 1
    """A full fetch with epoch 0 is outstanding: it asks for a session."""
    ESTABLISHED = 2
    """The broker has the session; none of its fetches is outstanding."""
    FETCHING = 3
    """An incremental fetch is outstanding."""
    CLOSING = 4
    """The session is closed at the broker, but the outstanding response still needs what it holds."""
    CLOSED = 5
    """That response has come: what the session held can go."""


class SessionEvent(IntEnum):
    """What moves the state."""

    ASK_FULL = 0
    """A full fetch is sent that asks for a session."""
    ASK_INCREMENTAL = 1
    """An incremental fetch is sent."""
    CONTINUE = 2
    """A response made the session, or continues it."""
    LOSE = 3
    """A response ended the session or made none, or the session is given up."""
    CLOSE = 4
    """The session is closed at the broker with (id, -1)."""


class _Transitions(dict[tuple[SessionState, SessionEvent], SessionState]):
    def __missing__(self, key: tuple[SessionState, SessionEvent]) -> SessionState:
        state, event = key
        raise RuntimeError(f"{event.name} can't follow in state {state.name}")


TRANSITIONS: Final = _Transitions(
    {
        (SessionState.NONE, SessionEvent.ASK_FULL): SessionState.REQUESTED,
        (SessionState.NONE, SessionEvent.LOSE): SessionState.NONE,
        (SessionState.NONE, SessionEvent.CLOSE): SessionState.NONE,  # one that was to be named with (id, 0)
        (SessionState.REQUESTED, SessionEvent.CONTINUE): SessionState.ESTABLISHED,
        (SessionState.REQUESTED, SessionEvent.LOSE): SessionState.NONE,
        (SessionState.ESTABLISHED, SessionEvent.ASK_FULL): SessionState.REQUESTED,  # (id, 0): made anew
        (SessionState.ESTABLISHED, SessionEvent.ASK_INCREMENTAL): SessionState.FETCHING,
        (SessionState.ESTABLISHED, SessionEvent.LOSE): SessionState.NONE,
        (SessionState.ESTABLISHED, SessionEvent.CLOSE): SessionState.NONE,
        (SessionState.FETCHING, SessionEvent.CONTINUE): SessionState.ESTABLISHED,
        (SessionState.FETCHING, SessionEvent.LOSE): SessionState.NONE,
        (SessionState.FETCHING, SessionEvent.CLOSE): SessionState.CLOSING,
        (SessionState.CLOSING, SessionEvent.CONTINUE): SessionState.CLOSED,
        (SessionState.CLOSING, SessionEvent.LOSE): SessionState.CLOSED,
    }
)
"""State and event to the next state. A pair that is not here is a mistake in our own code: the look-up raises
RuntimeError, and nothing changes."""

IDLE: Final = (SessionState.ESTABLISHED, SessionState.NONE, SessionState.CLOSED)
"""States in which the handler waits for no response."""


class Says(IntEnum):
    """What a response says of the session."""

    ID_NOT_FOUND = 0
    """Error 70: the broker does not have the session, it evicted it or was restarted."""
    SESSION_ERROR = 1
    """Error 71 or 106: the broker has the session, but not as the request has it."""
    OTHER_ERROR = 2
    """Another top-level error."""
    THROTTLED = 3
    """No partition, and the session's id: the broker threw the read away to throttle (KIP-219)."""
    THROTTLED_WITHOUT_ID = 4
    """The same with id 0; a throttle hides session errors."""
    MISFIT = 5
    """It names partitions that the session does not have, or too little is known to complete it."""
    NO_ID = 6
    """A good response with id 0: the broker made no session, or ended it."""
    ID = 7
    """A good response with a session id."""


class Loss(StrEnum):
    """How a broker lost a session without an error; the label of `fetchgate_sessions_lost_total`."""

    NO_ID = "no session id"
    """A response to an incremental fetch has session id 0."""
    LEFT_OUT = "partitions left out"
    """A response leaves out a partition whose high watermark is not the one that this session was told."""


class NextPair(Enum):
    """The (session id, epoch) that the next request carries."""

    NEW = "(0, 0)"
    """Ask for a new session; there is none to name."""
    NEW_AND_DROP = "(0, 0), nothing kept"
    """The same, and what the session held is dropped."""
    RENEW = "(id, 0)"
    """Ask for a new session, and name the old one, so that the broker drops it."""
    NAME_AND_DROP = "(new id, 0), nothing kept"
    """Ask for a new session, and name the one that this response made and that can't be used."""
    FIRST = "(new id, 1)"
    NEXT = "(id, epoch + 1)"


class Action(Enum):
    """What is done with a response."""

    EXPAND = "expand"
    """Complete it from the table."""
    EMPTY = "empty"
    """The broker threw the read away to throttle: send it on without partitions."""
    COMPLETE = "complete"
    """A full response: it is complete as it is."""
    COMPLETE_NO_SESSION = "complete, no session"
    """A full response, complete as it is. No session can be kept for it."""
    RESEND_FULL = "resend full"
    """Drop it, and send a full fetch with the next (id, epoch)."""
    RESEND_SESSIONLESS = "resend sessionless"
    """Drop it, and send the fetch with (0, -1). Without a session, session errors can't come."""


AFTER_FULL: Final = {
    Says.ID_NOT_FOUND: (NextPair.NEW, Action.RESEND_SESSIONLESS),
    Says.SESSION_ERROR: (NextPair.NEW, Action.RESEND_SESSIONLESS),
    Says.OTHER_ERROR: (NextPair.NEW, Action.RESEND_SESSIONLESS),
    # Kafka gives no id there (fetch-semantics 2.8). One that does has made a session.
    Says.THROTTLED: (NextPair.NAME_AND_DROP, Action.EMPTY),
    Says.THROTTLED_WITHOUT_ID: (NextPair.NEW_AND_DROP, Action.EMPTY),
    # Java throws such a response away, and asks with (0, 0): the session stays behind at the broker. The
    # response is the broker's own, so the client gets it; the session is named or closed. (fetch-semantics
    # 3.2, case 53, trap 21)
    Says.MISFIT: (NextPair.NAME_AND_DROP, Action.COMPLETE_NO_SESSION),
    # The broker had no slot. The next full fetch asks again, as Java does. (fetch-semantics 2.7, cases 50 and
    # 95)
    Says.NO_ID: (NextPair.NEW, Action.COMPLETE),
    Says.ID: (NextPair.FIRST, Action.COMPLETE),
}
"""What the response to a full fetch with epoch 0 leads to.

After an error the fetch is sent without a session. If the error comes again, it is the broker's response to
the client's own fetch, and the client gets it. Java names the id again there; we differ on purpose
(fetch-semantics 3.2, traps 6 and 11, cases 71 and 96).
"""

AFTER_INCREMENTAL: Final = {
    # 70: the broker does not have the id, so there is nothing to name. (fetch-semantics 3.2, case 52)
    Says.ID_NOT_FOUND: (NextPair.NEW, Action.RESEND_FULL),
    # 71, 106: it still has the session; (id, 0) drops that and makes another. (fetch-semantics 3.2, case 52)
    Says.SESSION_ERROR: (NextPair.RENEW, Action.RESEND_FULL),
    Says.OTHER_ERROR: (NextPair.RENEW, Action.RESEND_SESSIONLESS),
    # The delta was applied and the epoch advanced before the read. (fetch-semantics 2.8, case 48)
    Says.THROTTLED: (NextPair.NEXT, Action.EMPTY),
    # Behind a masked 71 the session lives on: it is named, so that it is dropped. (fetch-semantics 2.8, case
    # 49)
    Says.THROTTLED_WITHOUT_ID: (NextPair.RENEW, Action.EMPTY),
    Says.MISFIT: (NextPair.RENEW, Action.RESEND_FULL),
    # The broker does not have the session. Kafka says 70 then, and 0 only to a client that forgets all, which
    # no fetch of ours does. Tansu says 0, with no partition: nothing is known of them. Java uses such a
    # response; we differ on purpose. (fetch-semantics, trap 10; case 54)
    Says.NO_ID: (NextPair.NEW, Action.RESEND_FULL),
    Says.ID: (NextPair.NEXT, Action.EXPAND),
}
"""What the response to an incremental fetch leads to."""
