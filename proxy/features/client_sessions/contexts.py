"""The contexts for fetches of a client that gets its sessions from the gateway. Sans-IO.

Some contexts have the client's response at once. The others have the full fetch to send toward the broker,
and make the client's response while the full response arrives. Names are those of FetchSession.scala, except
`FinalContext`. The rules are in fetch-semantics 2.5 and 2.8.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, TypeAlias

import numpy as np

from proxy.features.client_sessions.cache import FetchSessionCache
from proxy.features.client_sessions.partitions import NOT_REPORTED, SessionPartitions
from proxy.features.client_sessions.session import FetchSession
from proxy.features.client_sessions.walk import OrderedWalk, ResponseColumns
from proxy.protocol.api import LENGTH_BYTES, REQUEST_CORRELATION_ID, RESPONSE_START_BYTES, ErrorCode
from proxy.protocol.fetch_layout import LAYOUTS, SESSION_VERSION, Rows
from proxy.protocol.fetch_request import FetchRequest, next_epoch
from proxy.protocol.fetch_response import Received, empty_response, response_head
from proxy.protocol.primitives import NO_TAGS, Buffer, ProtocolError

STREAM_FROM: Final = 1 << 20
"""If the response to an incremental fetch has at least this many bytes of records, all its entries are
streamed to the client. The unchanged entries add little to its size, and streaming saves memory."""
COPIED: Final = 1 << 13
"""Pieces below this size in bytes are joined."""

_NARROW_HEAD: Final = Struct(">iii")  # length, correlation_id, throttle_time_ms
_WIDE_HEAD: Final = Struct(">iiihi")  # the same, error_code, session_id
_SESSION_ID_BYTES: Final = 4


class FinalContext:
    """The context of a fetch whose response is already known: no fetch is sent to the broker.

    Either its session does not exist, does not match, or can't continue: `error` is 70, 71 or 106
    (fetch-semantics 2.2). Or the fetch has no partitions, and only closes its session (trap 42).
    """

    __slots__ = ("error", "response")

    def __init__(self, fetch: FetchRequest, error: ErrorCode = ErrorCode.NONE) -> None:
        self.error = error
        self.response = empty_response(fetch.layout, fetch.frame[REQUEST_CORRELATION_ID], error=error)

    def __repr__(self) -> str:
        return f"<FinalContext {self.error.name}>"


class SessionlessFetchContext:
    """The context of a fetch without a session. `request` is the fetch to send toward the broker."""

    __slots__ = ("_head", "request")

    def __init__(self, request: bytes, version: int) -> None:
        self.request = request
        self._head = b"" if version < SESSION_VERSION else None
        """The first bytes of a v5 or v6 response, until they can be converted to v7. None for other
        versions."""

    def __repr__(self) -> str:
        return "<SessionlessFetchContext>"

    def receive(self, piece: Buffer, _now_ms: int, *, last: bool) -> list[Buffer]:
        """Return the client's bytes for the next bytes of the broker's response, the length field first."""
        if self._head is None:
            return [piece]
        head = self._head + bytes(piece)
        if len(head) < _NARROW_HEAD.size:
            self._head = head
            return [head] if last else []
        self._head = None
        return [_widened(head, 0), head[_NARROW_HEAD.size :]]


class _WalkedResponse:
    """The common part of contexts that read the entries of a response while it arrives."""

    __slots__ = ("_fetch", "_held", "_understood", "_walk", "partitions", "record_bytes", "request")

    def __init__(self, fetch: FetchRequest, request: bytes, version: int) -> None:
        self.request = request
        """The fetch to send toward the broker."""
        self._fetch = fetch
        self._walk = OrderedWalk(LAYOUTS[version], fetch.isolation_level)
        self._understood = True
        self._held: Received | None = Received()
        """The bytes of the response so far. None after they were sent or dropped."""
        self.partitions = 0
        """The partitions in the client's response to an incremental fetch, when it is complete. 0 for a full
        fetch."""
        self.record_bytes = 0
        """The bytes of records in the client's response, like `partitions`."""

    @property
    def buffered(self) -> int:
        return self._held.size if self._held is not None else 0

    def drop(self) -> None:
        self._held = None

    def _read(self, piece: Buffer) -> None:
        self._keep(piece)
        self._walk_on(piece)

    def _keep(self, piece: Buffer) -> None:
        if self._held is not None:
            if isinstance(piece, bytes):
                self._held.append(piece)
            else:
                self._held.keep(piece)

    def _walk_on(self, piece: Buffer) -> None:
        if self._understood and not self._walk.skip_records(len(piece)):
            try:
                self._walk.feed(bytes(piece))
            except ProtocolError:
                self._understood = False

    def _released(self, session_id: int) -> list[Buffer]:
        """Stop buffering. Return the buffered part of the response, with another session id."""
        held, walk = self._held, self._walk
        if held is None:
            return []
        self._held = None
        at = walk.session_id_at
        if not walk.head_known:  # not a readable fetch response
            return [*held.span(0, held.size)]
        if not at:
            head, rest = _widened(b"".join(held.span(0, _NARROW_HEAD.size)), session_id), _NARROW_HEAD.size
        else:
            head = b"".join([*held.span(0, at), session_id.to_bytes(_SESSION_ID_BYTES, signed=True)])
            rest = at + _SESSION_ID_BYTES
        return [head, *held.span(rest, held.size)]

    def _complete(self) -> bool:
        return self._understood and self._walk.done


class FullFetchContext(_WalkedResponse):
    """A full fetch that requests a session (epoch 0).

    The session is created when the response begins, so that the response can be streamed. When the response
    ends, its order and its offsets are stored in the session. If the response does not list exactly the
    requested partitions, the session is removed. The client's next fetch then gets error 70 and requests a
    new session.
    """

    __slots__ = ("_broker", "_cache", "session")

    def __init__(
        self, fetch: FetchRequest, request: bytes, version: int, cache: FetchSessionCache, broker: str
    ) -> None:
        super().__init__(fetch, request, version)
        self._cache = cache
        self._broker = broker
        self.session: FetchSession | None = None
        """The session that was created for the client."""

    def __repr__(self) -> str:
        return f"<FullFetchContext {self.session!r}>"

    def receive(self, piece: Buffer, now_ms: int, *, last: bool) -> list[Buffer]:
        self._read(piece)
        if self._held is None:
            pieces = [piece]
        elif self._walk.partitions or self._walk.done or not self._understood or last:
            pieces = self._released(self._session_id(now_ms))
        else:
            return []
        if last and self.session is not None and not self._settle(self.session.partitions):
            self._cache.remove(self.session)
        return pieces

    def _session_id(self, now_ms: int) -> int:
        """Create a session for the client if possible. Return the session id for the response, or 0."""
        walk, fetch = self._walk, self._fetch
        if not self._understood or not walk.head_known:
            return 0
        if walk.error_code:
            # The broker copies the id of the request (fetch-semantics 2.9, trap 12).
            return fetch.session_id
        if walk.session_id > 0:  # the broker's own session: this client needs none
            return walk.session_id
        # A throttled response is empty and creates no session (fetch-semantics 2.8). The same holds for a
        # server that names none of the requested partitions.
        if not walk.partitions and (fetch.partitions or walk.throttle_time_ms):
            return 0
        partitions = SessionPartitions(fetch.layout)
        partitions.update(fetch.topics.listing(fetch.frame))
        session = FetchSession(partitions, uses_ids=fetch.layout.topic_ids, broker=self._broker)
        if self._cache.create(session, now_ms):
            self.session = session
        return session.session_id

    def _settle(self, partitions: SessionPartitions) -> bool:
        """Store the offsets of the response, in its order. Return whether it has every partition."""
        if not self._complete():
            return False
        reported = ResponseColumns(self._walk)
        order = partitions.rows(reported.topics, reported.partitions)
        if len(order) != len(partitions) or (order < 0).any() or len(np.unique(order)) != len(order):
            return False
        partitions.arrange(order)
        partitions.high_watermarks[:] = reported.high_watermarks
        partitions.log_starts[:] = reported.log_starts
        return True


class IncrementalFetchContext(_WalkedResponse):
    """An incremental fetch. It was already applied to the session, and has advanced its epoch.

    If the session is evicted before the response arrives, the client still gets the same response. If the
    response can't be read, the session is removed from the cache.
    """

    __slots__ = ("_cache", "_repeats", "_session")

    def __init__(
        self,
        fetch: FetchRequest,
        session: FetchSession,
        request: bytes,
        version: int,
        cache: FetchSessionCache,
    ) -> None:
        super().__init__(fetch, request, version)
        self._session = session
        self._cache = cache
        self._repeats = bool(session.silent)
        """Whether the response so far equals `FetchSession.silent`."""

    def __repr__(self) -> str:
        return f"<IncrementalFetchContext {self._session!r}>"

    def receive(self, piece: Buffer, _now_ms: int, *, last: bool) -> list[Buffer]:
        if self._repeats and self._held is not None:
            if self._is_repeated(piece, last=last):
                self._keep(piece)
                return self._finished([self._unchanged()]) if last else []
            self._repeats = False
            for kept in self._held.span(0, self._held.size):
                self._walk_on(kept)
        self._read(piece)
        if self._held is None:
            if last:
                self._note_forwarded()
            return [piece]
        walk = self._walk
        if (
            self._understood
            and not self._overtaken
            and not walk.error_code
            and walk.record_bytes >= STREAM_FROM
        ):
            pieces = self._released(self._session.session_id)
            if last:
                self._note_forwarded()
            return pieces
        return self._finished(self._respond()) if last else []

    def _finished(self, pieces: list[Buffer]) -> list[Buffer]:
        self._held = None
        return pieces

    def _is_repeated(self, piece: Buffer, *, last: bool) -> bool:
        silent, at = self._session.silent, self.buffered
        if at:
            at -= RESPONSE_START_BYTES
        elif len(piece) < RESPONSE_START_BYTES:
            return False
        else:
            piece = piece[RESPONSE_START_BYTES:]
        return silent.startswith(bytes(piece), at) and (not last or at + len(piece) == len(silent))

    def _unchanged(self) -> bytes:
        if self._overtaken:
            return self._empty(ErrorCode.INVALID_FETCH_SESSION_EPOCH, self._session.session_id)
        return self._empty(ErrorCode.NONE, self._session.session_id)

    @property
    def _overtaken(self) -> bool:
        """Whether a later fetch has already advanced the session (fetch-semantics 2.5, case 42)."""
        return self._session.epoch != next_epoch(self._fetch.session_epoch)

    def _respond(self) -> list[Buffer]:
        walk, session = self._walk, self._session
        if not self._complete():
            # What the client has been sent is unknown: it must begin a new session (fetch-semantics 3.2).
            self._cache.remove(session)
            return [self._empty(ErrorCode.UNKNOWN_SERVER_ERROR, self._fetch.session_id)]
        if walk.error_code:
            return [self._empty(walk.error_code, self._fetch.session_id)]
        if self._overtaken:
            return [self._empty(ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.session_id)]
        if walk.tagged:  # unknown tags: forward every entry
            self._note_forwarded()
            return self._released(session.session_id)
        elements = self._changes()
        if not (elements or walk.throttle_time_ms or walk.tags) and self._held is not None:
            session.silent = b"".join(self._held.span(RESPONSE_START_BYTES, self._held.size))
            return [self._unchanged()]
        return self._changed(elements)

    def _note_forwarded(self) -> None:
        """Update the session after a response whose entries are all forwarded to the client."""
        self._changes()
        self.partitions, self.record_bytes = self._walk.partitions, self._walk.record_bytes

    def _empty(self, error: int, session_id: int) -> bytes:
        return empty_response(
            self._fetch.layout,
            self._fetch.frame[REQUEST_CORRELATION_ID],
            session_id=session_id,
            error=error,
            throttle_time_ms=self._walk.throttle_time_ms,
        )

    def _changes(self) -> "list[_Element]":
        """Return the entries for the client, and update the session (fetch-semantics 2.5)."""
        self._session.silent = b""
        if not self._complete():
            self._cache.remove(self._session)
            return []
        partitions = self._session.partitions
        if not len(partitions):  # closed by a later fetch
            return []
        reported = ResponseColumns(self._walk)
        rows = partitions.rows(reported.topics, reported.partitions)
        # A partition outside the session is never reported (fetch-semantics, trap 24).
        known = rows >= 0
        changed = partitions.high_watermarks.take(rows, mode="clip") != reported.high_watermarks
        changed |= partitions.log_starts.take(rows, mode="clip") != reported.log_starts
        served: list[int] = []
        errors: list[int] = []
        for place, entry in zip(reported.entry_places.tolist(), reported.entries, strict=True):
            if entry.records or entry.error_code or entry.redirects:
                changed[place] = True
                if entry.error_code:
                    errors.append(place)
                if entry.records:
                    served.append(place)
        changed &= known
        partitions.high_watermarks[rows[known]] = reported.high_watermarks[known]
        partitions.log_starts[rows[known]] = reported.log_starts[known]
        # An error is reported each time, and the partition once more after the error (cases 24 and 25).
        partitions.high_watermarks[rows[[place for place in errors if known[place]]]] = NOT_REPORTED
        elements = self._elements(reported, changed.nonzero()[0]) if changed.any() else []
        # A partition that returned records is served last next time (KIP-227, KAFKA-12330).
        partitions.move_to_end(rows[[place for place in served if known[place]]].tolist())
        return elements

    def _elements(self, reported: ResponseColumns, places: Rows) -> "list[_Element]":
        """Return the entries at some positions of the response, grouped into topic elements."""
        elements: list[_Element] = []
        topics = np.repeat(np.arange(len(reported.topics)), [count for _, count in reported.topics])[places]
        before = np.searchsorted(reported.entry_places, places)
        is_entry = np.isin(places, reported.entry_places)
        # Neighbours in a run become one piece.
        joined = (np.diff(places) == 1) & (np.diff(topics) == 0) & ~is_entry[1:] & ~is_entry[:-1]
        starts = [0, *((~joined).nonzero()[0] + 1).tolist()]
        for start, end in zip(starts, [*starts[1:], len(places)], strict=True):
            key = reported.topics[topics[start]][0]
            sent: Sequence[Buffer]
            if is_entry[start]:
                sent = reported.entries[before[start]].sent(self._held) if self._held is not None else ()
            else:
                at = places[start] - before[start]
                sent = (reported.items[at : at + end - start].tobytes(),)
            # Neighbours of one topic share an element (case 36).
            if elements and elements[-1][0] == key:
                _, count, pieces = elements[-1]
                pieces += sent
                elements[-1] = (key, count + end - start, pieces)
            else:
                elements.append((key, end - start, [*sent]))
        return elements

    def _changed(self, elements: "list[_Element]") -> list[Buffer]:
        held, walk, layout = self._held, self._walk, self._fetch.layout
        if held is None:
            raise RuntimeError("the response has left")
        self.partitions, self.record_bytes = sum(count for _, count, _ in elements), walk.record_bytes
        end = NO_TAGS if layout.flexible else b""
        correlation_id = self._fetch.frame[REQUEST_CORRELATION_ID]
        head = response_head(layout, correlation_id, walk.throttle_time_ms, self._session.session_id)
        parts: list[Buffer] = [head + layout.count(len(elements))]
        for key, count, pieces in elements:
            parts.append(layout.prefix(key, count))
            parts += pieces
            parts.append(end)
        # KIP-951: node_endpoints stay even if entries are left out (fetch-semantics, trap 44).
        parts += held.span(walk.tags_at, held.size) if layout.flexible else []
        return _joined(parts)


_Element: TypeAlias = tuple[bytes, int, list[Buffer]]
"""The topic key, the number of entries, and their bytes as the broker sent them."""

FetchContext: TypeAlias = FullFetchContext | SessionlessFetchContext | IncrementalFetchContext
"""The context of a fetch that is sent toward the broker."""


def _widened(head: bytes, session_id: int) -> bytes:
    """Convert the first bytes of a v5 or v6 response to v7."""
    length, correlation_id, throttle = _NARROW_HEAD.unpack_from(head)
    more = _WIDE_HEAD.size - _NARROW_HEAD.size
    return _WIDE_HEAD.pack(length + more, correlation_id, throttle, 0, session_id)


def _joined(parts: list[Buffer]) -> list[Buffer]:
    """Return a frame as pieces: its length field and its parts. Small parts are joined."""
    size = sum(map(len, parts))
    pieces: list[Buffer] = []
    small: list[Buffer] = [size.to_bytes(LENGTH_BYTES)]
    for part in parts:
        if len(part) < COPIED:
            small.append(part)
        else:
            pieces += (b"".join(small), part)
            small = []
    if small:
        pieces.append(b"".join(small))
    return pieces
