"""The steady path of a session: the list turned, at most some entries moved, and one or none came. Sans-IO.

It is the flat form of what `Fetches` does with a `Rotated` fetch and with a response of at most one entry.
It decides nothing by itself: `Eligibility` is asked each time, and `Rotation` finds and builds. What it
leaves out are the objects and the tables that only other cases need. `Fetches` arms it after such a fetch.
"""

from typing import Final

from proxy.core.eligibility import Eligibility, SessionLimits
from proxy.core.entry_form import EntryForm
from proxy.core.events import FetchKind, Tally
from proxy.core.histograms import Meter
from proxy.core.in_flight import Disposition, InFlightRequest
from proxy.core.last_seen import LastSeen
from proxy.protocol.api import RESPONSE_CORRELATION_ID, ApiKey
from proxy.protocol.fetch_request import FetchRequest
from proxy.session.handler import FetchSessionHandler
from proxy.session.state import SessionState

_ESTABLISHED: Final = SessionState.ESTABLISHED
_FETCH: Final = int(ApiKey.FETCH)
_SESSIONLESS: Final = int(FetchKind.SESSIONLESS)
_INCREMENTAL: Final = int(FetchKind.INCREMENTAL)


class SteadySession:
    """A session whose last fetch only rotated its list.

    Args:
        request: the form of the client's fetches, without a frame.
        handler: the session.
        eligibility: says whether fetches may go through it.
        limits: the switches of the process.
        last_seen: knows what is around the entries of such fetches, and empty responses.
        tally: that of the connection.
        meter: that of the connection.
    """

    __slots__ = (
        "_altered",
        "_eligibility",
        "_entry",
        "_first",
        "_frame",
        "_handler",
        "_last_seen",
        "_limits",
        "_meter",
        "_off_for",
        "_on",
        "_request",
        "_row",
        "_sent",
        "_tagged",
        "_tally",
    )

    def __init__(
        self,
        request: FetchRequest,
        handler: FetchSessionHandler,
        eligibility: Eligibility,
        limits: SessionLimits,
        last_seen: LastSeen,
        tally: Tally,
        meter: Meter,
    ) -> None:
        self._request = request
        self._tagged = request.layout.flexible
        """Entries end with tags."""
        self._handler = handler
        self._eligibility = eligibility
        self._last_seen = last_seen
        self._limits, self._on, self._off_for = limits, limits.on, limits.off_for
        self._tally = tally
        self._meter = meter
        self._entry: EntryForm | None = None
        self._row = -1
        """The row of the entry that responses of the form `_entry` have."""
        self._frame = b""
        """The fetch whose response is to come; so are the next three."""
        self._sent = self._altered = 0
        self._first = -1

    def expects(self, entry: EntryForm | None, row: int) -> None:
        """Note what the last response with one entry looked like."""
        self._entry, self._row = entry, row

    def request(self, frame: bytes) -> bytes | None:
        """Return the incremental form of a client's fetch; None if the core has to look at it.

        Args:
            frame: what was read, which may be anything.
        """
        request, handler = self._request, self._handler
        limits = self._limits
        if handler.state is not _ESTABLISHED or not self._last_seen.surrounds(frame):
            return None
        if limits.on is not self._on or limits.off_for is not self._off_for or self._eligibility.hinders():
            return None
        rotated = handler.rotated(frame, request.topics)
        # Entries that equal the table's have no tags, as those have none.
        if rotated is None or (self._tagged and any(entry[-1] for _, entry in rotated.altered)):
            return None
        handler.ask_rotated(rotated)
        self._frame, self._first = frame, rotated.first
        self._sent, self._altered = len(rotated.frame), len(rotated.altered)
        client, broker = self._tally.client, self._tally.broker
        client.bytes_in += len(frame)
        client.fetch_request_bytes += len(frame)
        client.fetches[_SESSIONLESS] += 1
        client.partitions_requested += request.partitions
        broker.bytes_out += self._sent
        broker.fetch_request_bytes += self._sent
        broker.fetches[_INCREMENTAL] += 1
        broker.partitions_requested += self._altered
        return rotated.frame

    def response(self, frame: bytes, now: float, sent_at: float) -> bytes | None:
        """Return the full form of the broker's response; None if the core has to look at it.

        Args:
            frame: a whole response to the outstanding fetch.
            now: in seconds.
            sent_at: when that fetch was sent.
        """
        handler, partitions = self._handler, self._request.partitions
        rotation, table, entry = handler.rotation, handler.table, self._entry
        if rotation is None or table is None or table.undescribed or table.behind or self._limits.keep_order:
            return None
        row, records, sent = -1, entry.records(frame) if entry is not None else 0, b""
        if entry is not None and records > 0:
            row, sent = self._row, entry.of(frame)
        elif (walk := self._last_seen.empty(frame)) is None or not walk.repeatable:
            return None
        full = rotation.full(self._first, row, sent, frame[RESPONSE_CORRELATION_ID])
        saved = len(self._frame) - self._sent + len(full) - len(frame)
        if saved <= 0:
            return None
        if row >= 0:
            table.describe(row, sent[: table.layout.aborted])
            rotation.suspect((row,))
        else:
            rotation.suspect(())
        handler.go_on()
        self._eligibility.large = False  # it came in one read
        self._eligibility.savings.answered(saved, row >= 0)
        self._frame = b""
        client, broker = self._tally.client, self._tally.broker
        broker.bytes_in += len(frame)
        broker.fetch_response_bytes += len(frame)
        broker.partitions_answered += row >= 0
        client.bytes_out += len(full)
        client.fetch_response_bytes += len(full)
        client.partitions_answered += partitions
        if row >= 0:
            broker.fetch_record_bytes += records
            client.fetch_record_bytes += records
        self._meter.note_steady(now - sent_at, len(frame), len(full), self._altered, partitions)
        return full

    def in_flight(self, correlation_id: bytes, sent_at: float) -> InFlightRequest:
        """Return the outstanding fetch as the core keeps it."""
        fetch = self._request
        request = InFlightRequest(_FETCH, fetch.layout.version, correlation_id, Disposition.EXPANDED)
        request.fetch = fetch.with_frame(self._frame)
        request.first = self._first
        request.through_session = True
        request.session_id = self._handler.session_id
        request.sent, request.sent_partitions, request.sent_at = self._sent, self._altered, sent_at
        return request
