"""Keeps the session of one connection with its broker, for all fetches of the connection. Sans-IO.

`SessionKeeper` closes the session, and checks it for partitions that the broker has lost. It holds the memory
of the partition table and the session slot of the connection. It asks the broker for its versions (`probe`).
"""

from dataclasses import dataclass, field
from typing import Final

from proxy.core.connection_state import ConnectionState
from proxy.core.eligibility import Eligibility, SessionLimits
from proxy.core.events import FetchKind, SessionClosed, saved_bytes
from proxy.core.in_flight import UNSENT, ClientFetch, FetchHandler, Handler, InFlight
from proxy.core.leaders import Leaders
from proxy.core.own import Check, OwnFetch, Probe, own
from proxy.core.responses import Rewriting
from proxy.protocol import api_versions
from proxy.protocol.api import REQUEST_START_BYTES
from proxy.protocol.fetch_layout import SESSION_VERSION
from proxy.protocol.fetch_request import SESSIONLESS_EPOCH, FetchRequest, Listing, no_waiting
from proxy.protocol.primitives import read_string
from proxy.session.decision import FOR_GOOD, PASSING, Reason
from proxy.session.handler import FetchSessionHandler
from proxy.session.partitions import memory_of
from proxy.session.state import Loss, SessionState

CHECK_SECONDS: Final = 300.0
"""The time between two checks of a session that saves bytes, in seconds. A broker may lose a partition of the
session without an error, and only a check detects the loss. For 1,000 partitions a check needs some 70 kB,
which is 0.2 kB per second."""
SUSPECT_SECONDS: Final = 10.0
"""The shorter time between two checks, in seconds. It applies if the broker has lost a partition of a session
before, or if a client has waited this long at one offset below the known end of a partition."""
CHECK_PAID: Final = 64
"""A check is sent only if the session has since saved this many times the size of its request. A check with
its response costs two to three times its request (law 6)."""
_UNUSED_FETCHES: Final = 64
"""The number of fetches that are forwarded without the session, and without a saving in between, after which
it is closed."""
_CONNECTION_ENDS: Final = "the connection ends"
_PROBE_CORRELATION_ID: Final = 0x6667_6174


@dataclass(slots=True, eq=False, repr=False)
class SessionKeeper:
    """The session of one connection, and what its fetches share. `Fetches` is the subclass."""

    state: ConnectionState
    limits: SessionLimits
    eligibility: Eligibility
    rewriting: Rewriting
    leaders: Leaders
    session: FetchSessionHandler = field(default_factory=FetchSessionHandler)
    closing: bool = False
    """Whether the client sends no more fetches. If so, a fetch that is sent again does not use a
    session."""
    check_at: float = 0.0
    """The next time, in seconds, at which `check_if_due` decides whether to check the session."""
    _check_due_at: float = 0.0
    _check_paid_at: int = 0
    """The number of bytes that the connection had saved when the last check was sent."""
    version: int = -1
    """The version of the last fetch that was read, or -1 before the first one."""
    unused: int = 0
    """The number of fetches that were forwarded although there was a session, since a session last saved
    bytes. The reasons in `PASSING` do not count. A new session does not reset the number."""
    _memory: int = 0
    """The bytes of the memory limit that are reserved for the table."""
    _probed: bool = False
    """Whether the gateway itself has sent an ApiVersions request on this connection."""
    _slot: bool = False
    """Whether the connection holds one of the process's session slots (--max-sessions)."""
    _close_frame: bytes = b""
    """Closes a session. Made from a client's fetch; the session id is inserted when it is sent."""
    _close_id_at: int = 0

    # A fetch

    def around(self, request: InFlight, client_fetch: ClientFetch) -> Handler:
        """Return the handlers of all stages for a client's fetch. The innermost one is put in later."""
        request.handler = UNSENT
        for stage in self.state.stages:
            request.handler = stage.around_fetch(request, client_fetch)
        return request.handler

    def send(self, request: InFlight, frame: bytes, kind: FetchKind, partitions: int) -> None:
        self.state.tally.broker.add_fetches(kind, len(frame), partitions)
        self.state.send(request, frame)

    def send_again(self, request: InFlight, handler: FetchHandler) -> None:
        """Send a fetch once more, with a new handler, as `handler.resend` says."""
        raise NotImplementedError

    def count_unread(self, size: int, version: int, reason: Reason) -> None:
        """Count a fetch that is forwarded without being parsed."""
        self.state.decided = reason
        self.state.plans.forget_fetch()
        self.state.tally.passthrough[reason] += 1
        # Brokers take a fetch below v7 for (0, -1) (fetch-semantics 1.3). The kind of others is not known.
        times = 1 if version < SESSION_VERSION else 0
        for side in (self.state.tally.client, self.state.tally.broker):
            side.add_fetches(FetchKind.SESSIONLESS, size, 0, times=times)

    def probe(self, fetch: bytes) -> None:
        """Ask the broker for its version ranges, once on a connection.

        A client need not send ApiVersions, but the gateway must know the broker's release (fetch-semantics
        1.7, 6.3). The request has the client id of the client's fetch, because quotas depend on it. Every
        broker answers v0 (KIP-35; fetch-semantics, trap 14).
        """
        if self._probed:
            return
        self._probed = True
        client_id, _ = read_string(fetch, REQUEST_START_BYTES)
        frame = api_versions.request(_PROBE_CORRELATION_ID, client_id or b"")
        self.state.tally.probe_bytes += len(frame)
        self.state.send(own(frame, Probe(self.state, self.eligibility)), frame)

    # Checks

    def arrange_check(self) -> None:
        """Set the times of the session's next regular check, and of the next call of `check_if_due`."""
        suspect, now = self.state.tally.sessions_lost[Loss.LEFT_OUT], self.state.now
        self._check_due_at = now + (SUSPECT_SECONDS if suspect else CHECK_SECONDS)
        self._look_later(now)

    def _look_later(self, now: float) -> None:
        self.check_at = min(now + SUSPECT_SECONDS, self._check_due_at)

    def check_if_due(self, fetch: FetchRequest) -> None:
        """Check the session if a check is due, or if the client waits for records that are available."""
        now = self.state.now
        if self.session.waits() or now >= self._check_due_at:
            self._check(fetch)
        else:
            self._look_later(now)

    def look_quietly(self, now: float) -> bool:
        """Do what `check_if_due` does, if no check is due. Otherwise change nothing, and return False.

        For what takes several fetches of the session at once, as `Fetches.steady`.
        """
        if now >= self._check_due_at or not self.session.expected.advances(self.session.table):
            return False
        self._look_later(now)
        return True

    def _check(self, fetch: FetchRequest) -> None:
        """Send the broker a full fetch of the client's list, right before a fetch of the session.

        The broker responds to the full fetch at once, with one batch at most. A session's response leaves out
        only partitions without changes since the last response. So the session's next response must contain
        each partition whose high watermark has changed by now. If a partition is missing, the session at the
        broker has lost it (fetch-semantics 2.5).
        """
        frame = no_waiting(fetch, (0, SESSIONLESS_EPOCH))
        saved = saved_bytes(self.state.tally)
        if saved - self._check_paid_at < CHECK_PAID * len(frame):
            self.check_at = self.state.now + SUSPECT_SECONDS
            return
        self.arrange_check()
        self._check_paid_at = saved
        self.state.tally.session_checks += 1
        version, partitions = fetch.layout.version, fetch.partitions
        check = Check(self.state, partitions, version, self.eligibility, self.session)
        self.eligibility.savings.add(-len(frame))
        self.send(own(frame, check), frame, FetchKind.SESSIONLESS, partitions)

    # Memory and slot

    def finish_response(self, *, again: bool) -> None:
        """Do what a complete response makes due: close the session, release slot and memory.

        `again` is true if its fetch is sent again.
        """
        session = self.session
        if session.state is _CLOSED:
            session.drop()
            self._release_slot()
        elif self.closing and session.has_session and session.state is not SessionState.CLOSING:
            self._close(_CONNECTION_ENDS)
        elif not session.session_id and not session.outstanding and not again:
            self._release_slot()
        self.settle_memory()

    def has_room(self, listing: Listing) -> bool:
        """Reserve memory for a fetch's partitions. `settle_memory` releases what the table does not use."""
        # The table is only made after the room is reserved, so its size is estimated from above.
        budget, table = self.state.request_budget, self.session.table
        need = memory_of(listing) + (table.memory if table is not None else 0)
        if need > self._memory:
            if not budget.reserve(need - self._memory):
                return False
            self._memory = need
        return True

    def settle_memory(self) -> None:
        """Reserve no more memory than the table uses."""
        budget, table = self.state.request_budget, self.session.table
        memory = table.memory if table is not None else 0
        if memory != self._memory:
            budget.release(self._memory - memory)
            self._memory = memory

    @property
    def may_have_slot(self) -> bool:
        return self._slot or self.limits.left

    def takes_slot(self) -> bool:
        """Take a session slot, if the connection has none. Return False if none is left."""
        self._slot = self._slot or self.limits.reserve()
        return self._slot

    def _release_slot(self) -> None:
        if self._slot:
            self._slot = False
            self.limits.release()

    # The session's end

    def closes_with(self, frame: bytes, id_at: int) -> None:
        """Keep a frame that closes a session. The session id is at the offset `id_at`."""
        self._close_frame, self._close_id_at = frame, id_at

    def close(self, *, silently: bool = False) -> None:
        """Close the session at the broker with (id, -1), unless nothing can be sent any more (`silently`).

        If the response that creates the session has not arrived yet, the session is closed when it arrives.
        Otherwise sessions without a client would fill slots and evict other sessions (fetch-semantics, trap
        21, case 88).
        """
        self.closing = True
        self.state.plans.forget_fetch()  # the response to a fetch in flight releases the slot
        session = self.session
        if not silently and session.session_id and session.state is not SessionState.REQUESTED:
            self._close(_CONNECTION_ENDS)

    def end(self) -> None:
        """Drop the session and release its slot, because the connection has ended."""
        self.session.drop()
        self._close_frame = b""
        self._release_slot()
        self.settle_memory()

    def leave_unused(self, reason: Reason) -> None:
        session = self.session
        if not (session.session_id and self._close_frame) or session.outstanding or reason in PASSING:
            return
        self.unused += 1
        # Slots are shared by all clients of the broker (fetch-semantics, trap 22).
        if self.unused >= _UNUSED_FETCHES:
            self.eligibility.savings.failed()
            self._close(reason)
        elif reason in FOR_GOOD or reason is Reason.NATIVE:
            self._close(reason)

    def _close(self, reason: str) -> None:
        session_id = self.session.close()
        if not self.session.outstanding:
            self._release_slot()
        if not self._close_frame:
            return
        frame, at = self._close_frame, self._close_id_at
        frame = frame[:at] + session_id.to_bytes(4) + frame[at + 4 :]
        self.eligibility.savings.closed(len(frame))
        self.state.events.append(SessionClosed(session_id=session_id, reason=reason))
        self.send(own(frame, OwnFetch(self.state, 0)), frame, FetchKind.CLOSE, 0)


# A member of an enum is looked up slowly.
_CLOSED: Final = SessionState.CLOSED
