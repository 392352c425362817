"""The steady path of a session: the list turned, at most some entries moved, and one or none came. Sans-IO.

It is the flat form of what `Fetches` does with a `Rotated` fetch and with a response of at most one entry.
It decides nothing by itself: `Eligibility` is asked by `Fetches`, and `Rotation` finds and builds. What it
leaves out are the objects and the tables that only other cases need. `FetchResponses` starts it after such a
fetch, and again or not when the core has completed a response. So what only the core changes is asked once.
"""

from typing import Final

from proxy.core.eligibility import Eligibility, SessionLimits
from proxy.core.entry_form import EntryForm
from proxy.core.events import FetchKind, Tally
from proxy.core.fetch_in_flight import Kept, Responses
from proxy.core.in_flight import InFlight
from proxy.core.last_seen import LastSeen
from proxy.protocol.api import RESPONSE_CORRELATION_ID, RESPONSE_START_BYTES
from proxy.protocol.fetch_request import FetchRequest
from proxy.session.handler import FetchSessionHandler
from proxy.session.rotation import Rotation
from proxy.session.state import SessionState

_ESTABLISHED: Final = SessionState.ESTABLISHED


class SteadySession:
    """A session whose last fetch only rotated its list.

    Args:
        request: the form of the client's fetches, without a frame.
        handler: the session.
        rotation: recognises these fetches, and expands their responses.
        eligibility: says that fetches may go through it.
        limits: the switches of the process.
        last_seen: knows what is around the entries of such fetches, and empty responses.
        responses: makes the responses that this does not.
        until: when the core has to see a fetch, in seconds.
    """

    __slots__ = (
        "_answered",
        "_asked",
        "_described",
        "_eligibility",
        "_empty",
        "_entry",
        "_first",
        "_frame",
        "_from_broker",
        "_handler",
        "_last_seen",
        "_limits",
        "_max_fetch_bytes",
        "_news",
        "_off_for",
        "_on",
        "_record_bytes",
        "_request",
        "_requested",
        "_responses",
        "_rotation",
        "_row",
        "_sent",
        "_tagged",
        "_to_broker",
        "_to_client",
        "altered",
        "partitions",
        "until",
        "wait",
    )

    def __init__(
        self,
        request: FetchRequest,
        handler: FetchSessionHandler,
        rotation: Rotation,
        eligibility: Eligibility,
        limits: SessionLimits,
        last_seen: LastSeen,
        responses: Responses,
        *,
        until: float,
    ) -> None:
        self._request = request
        self.until = until
        self.partitions = request.partitions
        """How many the client's fetches list."""
        self.wait = max(request.max_wait_ms, 0) / 1e3
        """How many seconds they let the broker wait."""
        self._responses = responses
        self._tagged = request.layout.flexible
        """Entries end with tags."""
        self._handler = handler
        self._rotation = rotation
        self._eligibility = eligibility
        self._last_seen = last_seen
        self._empty = last_seen.repeatable
        self._described = not rotation.table.undescribed
        """Each row has an entry that may be used. It stays so, as long as the core takes no response."""
        self._limits, self._on, self._off_for = limits, limits.on, limits.off_for
        self._max_fetch_bytes = limits.max_fetch_bytes
        self._entry: EntryForm | None = None
        self._row = -1
        """The row of the entry that responses of the form `_entry` have."""
        self._frame = b""
        """The fetch whose response is to come; so are the next three."""
        self._sent = self.altered = 0
        self._first = -1
        self._asked = self._to_broker = self._requested = 0
        """Fetches that are not in the tally yet, bytes of their deltas, and partitions in these."""
        self._answered = self._from_broker = self._to_client = self._news = self._record_bytes = 0
        """Responses that are not in the tally yet, their bytes on either side, entries and record bytes."""

    def expects(self, entry: EntryForm | None, row: int) -> None:
        """Note what the last response with one entry looked like."""
        self._entry, self._row = entry, row

    def request(self, frame: bytes) -> bytes | None:
        """Return the incremental form of a client's fetch; None if the core has to look at it.

        Args:
            frame: what was read, which may be anything.
        """
        handler, rotation, limits = self._handler, self._rotation, self._limits
        if handler.state is not _ESTABLISHED or handler.rotation is not rotation:
            return None
        if limits.on is not self._on or limits.off_for is not self._off_for:
            return None
        if limits.max_fetch_bytes is not self._max_fetch_bytes:
            return None
        last_seen = self._last_seen
        if limits.crowded or limits.keep_order or not last_seen.surrounds(frame):
            return None
        if last_seen.changes:
            frame = last_seen.as_sent(frame)
        first = rotation.first(frame)
        altered = rotation.altered(frame, first) if first >= 0 else None
        # Entries that equal the table's have no tags, as those have none.
        if altered is None or (altered and self._tagged and any(entry[-1] for _, entry in altered)):
            return None
        delta = rotation.delta(frame, altered, (handler.session_id, handler.epoch))
        handler.ask_rotated(altered)
        self._frame, self._first = frame, first
        self._sent, self.altered = len(delta), len(altered)
        self._asked += 1
        self._to_broker += self._sent
        self._requested += self.altered
        return delta

    def response(self, frame: bytes) -> bytes | None:
        """Return the full form of the broker's response; None if the core has to look at it.

        Args:
            frame: a whole response to the outstanding fetch.
        """
        rotation, size = self._rotation, len(frame)
        table, entry, empty = rotation.table, self._entry, self._empty
        if not self._described or table.behind or self._limits.keep_order:
            return None
        row, records, sent = -1, 0, b""
        if empty is None or size != RESPONSE_START_BYTES + len(empty) or not frame.endswith(empty):
            if entry is None or (records := entry.records(frame)) <= 0:
                return None
            row, sent = self._row, entry.of(frame)
        full = rotation.full(self._first, row, sent, frame[RESPONSE_CORRELATION_ID])
        saved = len(self._frame) - self._sent + len(full) - size
        if saved <= 0:
            return None
        if row >= 0:
            table.describe(row, sent[: table.layout.aborted])
            rotation.suspect((row,))
            self._news += 1
            self._record_bytes += records
        else:
            rotation.suspect(())
        self._handler.go_on()
        self._eligibility.savings.answered(saved, row >= 0)
        self._frame = b""
        self._answered += 1
        self._from_broker += size
        self._to_client += len(full)
        return full

    def repeat(self, received: int, full: int) -> None:
        """Do what `request` and `response` do for a fetch and a response that are like the last ones.

        The last fetch changed nothing, and its response had no entry. The fetch may begin at another entry.

        Args:
            received: bytes of the broker's response.
            full: bytes of its full form.
        """
        self._handler.go_on()
        self._eligibility.savings.answered(self._last_seen.size - self._sent + full - received, 0)
        self._asked += 1
        self._to_broker += self._sent
        self._answered += 1
        self._from_broker += received
        self._to_client += full

    def count(self, tally: Tally) -> tuple[int, int]:
        """Add to a tally what passed since the last call.

        Returns:
            the bytes of responses, from the broker and to the client.
        """
        asked, answered = self._asked, self._answered
        if not (asked or answered):
            return 0, 0
        client, broker = tally.client, tally.broker
        asked_bytes = asked * self._last_seen.size
        client.bytes_in += asked_bytes
        client.fetch_request_bytes += asked_bytes
        client.fetches[FetchKind.SESSIONLESS] += asked
        client.partitions_requested += asked * self.partitions
        broker.bytes_out += self._to_broker
        broker.fetch_request_bytes += self._to_broker
        broker.fetches[FetchKind.INCREMENTAL] += asked
        broker.partitions_requested += self._requested
        received, sent = self._from_broker, self._to_client
        broker.bytes_in += received
        broker.fetch_response_bytes += received
        broker.partitions_answered += self._news
        client.bytes_out += sent
        client.fetch_response_bytes += sent
        client.partitions_answered += answered * self.partitions
        for side in (client, broker):
            side.fetch_record_bytes += self._record_bytes
        self._asked = self._to_broker = self._requested = 0
        self._answered = self._from_broker = self._to_client = self._news = self._record_bytes = 0
        return received, sent

    def in_flight(self, correlation_id: bytes, sent_at: float) -> InFlight:
        """Return the outstanding fetch as the core keeps it."""
        fetch = self._request.with_frame(self._frame)
        request, fetching = self._responses.in_flight(fetch.layout.version, correlation_id)
        fetching.ask(fetch)
        fetching.first = self._first
        fetching.through_session, fetching.response = True, Kept()
        fetching.session_id = self._handler.session_id
        fetching.sent, fetching.sent_partitions = self._sent, self.altered
        request.sent_at = sent_at
        return request
