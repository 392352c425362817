"""The state of a fetch session, and the three tables that determine what the handler does. Sans-IO.

`TRANSITIONS` gives the next state. `AFTER_FULL` and `AFTER_INCREMENTAL` give two things for each kind of
response: the pair (session id, epoch) of the next request, and the action on the response. The kind (`Says`)
is found by `FetchSessionHandler.handle`. The rows follow Kafka's Java client (KIP-227; handleResponse of
FetchSessionHandler.java; fetch-semantics 3.2). If a row differs, a comment says so.
"""

from enum import Enum, IntEnum
from typing import Final

from proxy.explained import Explained


class SessionState(IntEnum):
    """The states of a connection's session with the broker. At most one fetch of a session is outstanding."""

    NONE = 0
    """There is no session that can be continued."""
    REQUESTED = 1
    """A full fetch with epoch 0, which requests a session, is outstanding."""
    ESTABLISHED = 2
    """The broker has the session, and no fetch of it is outstanding."""
    FETCHING = 3
    """An incremental fetch is outstanding."""
    CLOSING = 4
    """The session is closed at the broker. The table is still needed for the outstanding response."""
    CLOSED = 5
    """The session is closed, and no response is outstanding. The table can be dropped."""


class SessionEvent(IntEnum):
    """The events that change the state of a session."""

    ASK_FULL = 0
    ASK_INCREMENTAL = 1
    CONTINUE = 2
    """A response shows that the broker has created the session, or continues it."""
    LOSE = 3
    """A response ends the session or creates none, or the gateway stops using the session."""
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
        (SessionState.NONE, SessionEvent.CLOSE): SessionState.NONE,  # it was to be named with (id, 0)
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
"""The next state. A missing pair is a bug in fetchgate: the lookup raises RuntimeError, and the state does
not change."""

IDLE: Final = (SessionState.ESTABLISHED, SessionState.NONE, SessionState.CLOSED)
"""States in which no response of the session is outstanding."""


class Says(IntEnum):
    """The meaning of a broker's response for the session."""

    ID_NOT_FOUND = 0
    """Error 70: the broker does not have the session, because of an eviction or a restart."""
    SESSION_ERROR = 1
    """Error 71 or 106: the broker has the session, but it does not match the request."""
    OTHER_ERROR = 2
    """Any other top-level error."""
    THROTTLED = 3
    """A response with a throttle time, a session id and no partition: the broker throttles the client and
    sends no entries (KIP-219)."""
    THROTTLED_WITHOUT_ID = 4
    """Like THROTTLED, but with session id 0. A broker that throttles sends no session errors, so the session
    may not exist."""
    MISFIT = 5
    """A response without an error that can't be used: it has other partitions than the session, lacks a
    partition that it must contain, or has a topic that is gone. Or the table lacks data to expand it."""
    NO_ID = 6
    """A response without an error, with session id 0: the broker created no session, or ended it. To a full
    fetch, a negative id means the same."""
    ID = 7
    """A response without an error and with a session id."""


class Loss(Explained):
    """How a session is lost: by a broker that sends no error; a label of `fetchgate_sessions_lost_total`."""

    NO_ID = "no session id", "a response to an incremental fetch has session id 0, where Kafka sends error 70"
    LEFT_OUT = (
        "partitions left out",
        "a response left out a partition whose high watermark has changed, or which alone has records",
    )


class NextPair(Enum):
    """The (session id, epoch) of the next request."""

    NEW = "(0, 0)"
    """Request a new session. There is no old session that the broker could drop."""
    NEW_AND_DROP = "(0, 0), nothing kept"
    """As NEW, and drop the table of partitions."""
    RENEW = "(id, 0)"
    """Request a new session. The request has the id of the old one, so that the broker drops that."""
    NAME_AND_DROP = "(new id, 0), nothing kept"
    """Request a new session, and drop the table. The request names the unusable session that this response
    created, so that the broker drops it."""
    FIRST = "(new id, 1)"
    NEXT = "(id, epoch + 1)"


class Action(Enum):
    """What to do with a broker's response."""

    EXPAND = "expand"
    """Expand the response to a full response, with entries from the table."""
    EMPTY = "empty"
    """Forward the response without partitions. The broker throttles the client, so it sends no entries."""
    COMPLETE = "complete"
    """Forward the full response, without the session id."""
    COMPLETE_NO_SESSION = "complete, no session"
    """Forward the full response, without the session id. There is no session that can be used after it."""
    RESEND_FULL = "resend full"
    """Drop the response, and send a full fetch with the pair of the next request. If the fetch was sent again
    before, or the client sends no more fetches, send it without a session."""
    RESEND_SESSIONLESS = "resend sessionless"
    """Drop the response, and send the fetch again with (0, -1). Without a session there can be no session
    errors."""


AFTER_FULL: Final = {
    Says.ID_NOT_FOUND: (NextPair.NEW, Action.RESEND_SESSIONLESS),
    Says.SESSION_ERROR: (NextPair.NEW, Action.RESEND_SESSIONLESS),
    Says.OTHER_ERROR: (NextPair.NEW, Action.RESEND_SESSIONLESS),
    # Kafka sends id 0 here (fetch-semantics 2.8). A broker that sends an id has created a session.
    Says.THROTTLED: (NextPair.NAME_AND_DROP, Action.EMPTY),
    Says.THROTTLED_WITHOUT_ID: (NextPair.NEW_AND_DROP, Action.EMPTY),
    # Java discards such a response and requests with (0, 0), so the session stays at the broker. We differ:
    # the client gets the response, which is the broker's own, and the session is named or closed.
    # (fetch-semantics 3.2, case 53, trap 21)
    Says.MISFIT: (NextPair.NAME_AND_DROP, Action.COMPLETE_NO_SESSION),
    # The broker had no slot. The next full fetch requests one again, like Java. (fetch-semantics 2.7, cases
    # 50 and 95)
    Says.NO_ID: (NextPair.NEW, Action.COMPLETE),
    Says.ID: (NextPair.FIRST, Action.COMPLETE),
}
"""For each kind of response to a full fetch with epoch 0: the pair of the next request, and the action on the
response.

After an error, the fetch is sent without a session. If the broker repeats the error, the client gets it as
the response to its own fetch. The Java client puts the session id into the next request instead. fetchgate
differs on purpose (fetch-semantics 3.2, traps 6 and 11, cases 71 and 96).
"""

AFTER_INCREMENTAL: Final = {
    # 70: the broker does not have the id, so there is nothing to name. (fetch-semantics 3.2, case 52)
    Says.ID_NOT_FOUND: (NextPair.NEW, Action.RESEND_FULL),
    # 71, 106: the broker still has the session; (id, 0) drops it and creates another. (fetch-semantics 3.2,
    # case 52)
    Says.SESSION_ERROR: (NextPair.RENEW, Action.RESEND_FULL),
    # fetch-semantics, traps 6 and 11
    Says.OTHER_ERROR: (NextPair.RENEW, Action.RESEND_SESSIONLESS),
    # The delta was applied and the epoch advanced before the read. (fetch-semantics 2.8, case 48)
    Says.THROTTLED: (NextPair.NEXT, Action.EMPTY),
    # If a throttle hid error 71, the session still exists: name it, so that the broker drops it.
    # (fetch-semantics 2.8, case 49)
    Says.THROTTLED_WITHOUT_ID: (NextPair.RENEW, Action.EMPTY),
    Says.MISFIT: (NextPair.RENEW, Action.RESEND_FULL),
    # The broker does not have the session. Kafka sends 70 then, and id 0 only if a fetch forgets all
    # partitions, which ours never do. Tansu sends id 0 and no partition, so nothing is known. Java uses such
    # a response; we differ on purpose. (fetch-semantics, trap 10; case 54)
    Says.NO_ID: (NextPair.NEW, Action.RESEND_FULL),
    Says.ID: (NextPair.NEXT, Action.EXPAND),
}
"""For each kind of response to an incremental fetch: the pair of the next request, and the action on the
response."""
