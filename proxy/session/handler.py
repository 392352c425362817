"""The client half of KIP-227 (Kafka's FetchSessionHandler): a fetch session for one connection to one broker.

A session is a pair (id, epoch) and a list of partitions, which both sides remember. The handler has the pair
for the *next* request. Its transitions are in the three tables of `proxy.session.state`. If a session
response and the table do not contain everything that a full response needs, the fetch is sent again in full:
`_take` and `_misfit` find this, and the rows of `Says.MISFIT` in the tables say what follows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from proxy.protocol.api import ErrorCode
from proxy.protocol.fetch_layout import Entries, Rows
from proxy.protocol.fetch_request import FetchRequest, Listing, Topics, build_fetch_request, next_epoch
from proxy.protocol.fetch_response import FetchResponseWalk, PartitionResponse
from proxy.session.decision import Delta, Incremental, Rotated
from proxy.session.expand import FOUND_BEFORE_READING
from proxy.session.left_out import Expected
from proxy.session.partitions import PartitionTable, is_rotation
from proxy.session.rotation import Rotation
from proxy.session.state import (
    AFTER_FULL,
    AFTER_INCREMENTAL,
    IDLE,
    TRANSITIONS,
    Action,
    Loss,
    NextPair,
    Says,
    SessionEvent,
    SessionState,
)

UNSHARDED_ID: Final = 2_147_483_640
"""The lowest session id that belongs to no shard in brokers from 3.8 on. Such a broker responds to requests
with this id or a higher one with error -1, at every epoch (fetch-semantics 2.2, case 96)."""


@dataclass(slots=True, eq=False)
class SessionResult:
    """The meaning of a response for the session, and the action on the response."""

    action: Action
    reason: str = ""
    """Why the response can't be used. "" if it can."""
    loss: Loss | None = None
    """How the broker lost the session without sending an error."""
    entries: list[PartitionResponse] = field(default_factory=list)
    """The entries that are forwarded unchanged. All others of the client's response come from the table."""
    rows: list[int] = field(default_factory=list)
    """The row of each of `entries` in the table."""
    size: int = 0
    """The size of `entries` in bytes."""
    errors: set[int] = field(default_factory=set)
    """The error codes of the response's entries."""

    @property
    def late(self) -> bool:
        """Whether the response has errors that a broker finds before it reads records, and sends last."""
        return not FOUND_BEFORE_READING.isdisjoint(self.errors)

    @property
    def news(self) -> Sequence[int]:
        """The rows of entries that the next fetch will probably change."""
        if not self.late:
            return self.rows
        entries = zip(self.rows, self.entries, strict=True)
        return [row for row, entry in entries if entry.error_code not in FOUND_BEFORE_READING]


class _Taken:
    """The progress of applying one response to the session's table, and the result so far."""

    __slots__ = ("empty", "entries", "errors", "misfit", "result", "rows", "runs", "walk")

    def __init__(self, walk: FetchResponseWalk) -> None:
        self.walk = walk
        self.runs = 0
        self.entries = 0
        self.errors = 0
        self.misfit = ""
        self.result = SessionResult(_COMPLETE)
        self.rows: set[int] = set()
        """The rows of all entries so far, without those in runs."""
        self.empty: set[int] = set()
        """The rows of the entries in runs. Only used for a response that is looked through (see `check`)."""


@dataclass(slots=True, eq=False)
class FetchSessionHandler:
    """Builds the fetches of one session, and interprets the responses. At most one fetch is outstanding."""

    state: SessionState = SessionState.NONE
    session_id: int = 0
    """For the next request, or 0. It may be the id of a session that the gateway no longer uses: the next
    full fetch contains it, so that the broker drops that session."""
    epoch: int = 0
    """For the next request. 0 requests a new session."""
    table: PartitionTable | None = None
    """The partitions of the session. Without a session, the partitions of the last fetch."""
    rotation: Rotation | None = None
    """The fast path if the list of the last fetch was only rotated."""
    expected: Expected = field(default_factory=Expected)
    """What the session's next response must contain."""
    _taken: _Taken | None = None

    def __repr__(self) -> str:
        size = self.table.size if self.table is not None else 0
        return f"<FetchSessionHandler {self.session_id} epoch={self.epoch} partitions={size}>"

    @property
    def has_session(self) -> bool:
        """Whether there is a session. One of its fetches may be outstanding.

        Also true if the session is closed but not dropped yet (states CLOSING and CLOSED).
        """
        return self.epoch > 0

    @property
    def outstanding(self) -> bool:
        return self.state not in IDLE

    @property
    def pair(self) -> tuple[int, int]:
        """The (session id, epoch) for the next request."""
        return self.session_id, self.epoch

    # Decide

    def rotated(self, frame: bytes, topics: Topics) -> Rotated | None:
        """Return the incremental form of a fetch if `rotation` recognises the fetch."""
        rotation = self.rotation
        if rotation is None or rotation.table is not self.table or rotation.topics is not topics:
            return None
        first = rotation.first(frame)
        if first < 0 or not self.epoch or (altered := rotation.altered(frame, first)) is None:
            return None
        # Never larger than the fetch itself: both list one topic, and this one only its changes.
        return Rotated(rotation.delta(frame, altered, (self.session_id, self.epoch)), first, altered)

    def incremental(self, fetch: FetchRequest, listing: Listing) -> Incremental | None:
        """Return the incremental form of a fetch, or None if `compare` returns None.

        `compare` decides what the form adds, alters and forgets. `Rotation.delta` makes the same frame.
        """
        delta = self.compare(listing)
        if delta is None:
            return None
        frame = build_fetch_request(fetch, listing.layout, self.pair, delta.topics, delta.forgotten_topics)
        return Incremental(frame, listing, delta)

    def fits(self, listing: Listing, isolation_level: int) -> bool:
        """Return whether a session with this table can hold the fetch. If not, a new session is needed."""
        table = self.table
        return table is None or (
            table.layout is listing.layout and table.isolation_level == isolation_level and not table.bloated
        )

    def compare(self, listing: Listing) -> Delta | None:
        """Return the differences between a fetch and the table. Only the positions in the table are changed.

        None if there is no table of the fetch's version, or if the fetch lists a partition twice.
        """
        table = self.table
        if table is None or table.layout is not listing.layout:
            return None
        rows = table.locate(listing)
        turned = False
        if len(rows) and rows.min() < 0:
            new = rows < 0
            added, known = new.nonzero()[0], (~new).nonzero()[0]
            if table.place(rows[known]) != len(known) or _repeated(listing, added):
                return None
            altered = known[listing.entries[known] != table.requests[rows[known]]]
            forgotten = table.unplaced()
        else:
            added = _NONE
            turned = len(rows) == table.size and is_rotation(table.position.take(rows))
            named = table.place(rows)
            if named != len(rows):
                return None
            altered = _differing(listing.entries, table.requests.take(rows))
            forgotten = table.unplaced() if named != table.size else _NONE
        if len(altered) > 1 and len(listing.keys) > 1:
            # Only neighbours share a topic element (fetch-semantics 3.1), and librdkafka mixes the topics of
            # its list. Unsorted, there would be more elements, each with the topic's name or id.
            altered = altered[np.argsort(table.topic[rows[altered]], kind="stable")]
        # Added first, altered last, like the Java client (fetch-semantics 3.1, case 51).
        topics = _elements(listing, added) + _elements(listing, altered)
        return Delta(rows, added, altered, forgotten, topics, _forgotten_elements(table, forgotten), turned)

    def learn_listing(self, listing: Listing, isolation_level: int) -> bool:
        """Replace the table by a new table with the partitions of a full fetch.

        If a partition is listed twice, or the partition numbers are too sparse, return False. Then there is
        no table.
        """
        table = PartitionTable(listing.layout, isolation_level, len(listing))
        everything = np.arange(len(listing))
        self.table = self.rotation = None
        # A partition that is listed twice has only one row in the lookup.
        if not table.add(listing, everything) or table.place(table.locate(listing)) != len(listing):
            return False
        self.table = table
        return True

    def learn(self, listing: Listing, isolation_level: int) -> Delta | None:
        """Apply a fetch to the table while there is no session. Return the differences from the last one.

        None if the table could not be changed to this fetch; then `learn_listing` was called.
        """
        self.rotation = None  # this fetch changes the table, and a row may then be another partition
        delta = self.compare(listing)
        if delta is not None and self.apply(listing, delta):
            return delta
        self.learn_listing(listing, isolation_level)
        return None

    # Send

    def ask_full(self) -> tuple[int, int]:
        """Return the pair for a full fetch of the table's partitions, which is outstanding from now on."""
        table = self._require_table()
        self.state = TRANSITIONS[self.state, SessionEvent.ASK_FULL]
        table.forget_responses()
        self.expected.forget()
        # (id, 0) makes the broker drop the old session and create another; (0, 0) creates one (KIP-227;
        # fetch-semantics 2.2, case 15).
        self.epoch = 0
        return self.pair

    def ask(self, fetch: FetchRequest, decision: Incremental | Rotated) -> bool:
        """Apply an incremental fetch to the table. From now on the fetch is outstanding.

        If the table can't hold the added partitions, return False, with nothing changed.
        """
        following = TRANSITIONS[self.state, _ASK_INCREMENTAL]
        if type(decision) is Rotated:
            if self.rotation is not None:
                self.rotation.apply(decision.altered)
        elif not self.apply(decision.listing, decision.delta):
            return False
        else:
            self.rotation = self.find_rotation(fetch, decision.delta)
        self.state = following
        return True

    def ask_rotated(self, altered: Sequence[tuple[int, bytes]]) -> None:
        """Like `ask`, but faster: only for a rotated fetch in state `ESTABLISHED`."""
        if altered and self.rotation is not None:
            self.rotation.apply(altered)
        self.state = _FETCHING

    def continue_session(self) -> None:
        """Continue the session after a response without an error: a fast form of `handle`."""
        self.state = _ESTABLISHED
        self.epoch = next_epoch(self.epoch)

    def apply(self, listing: Listing, delta: Delta) -> bool:
        """Apply the differences of a fetch to the table.

        If the table can't hold the added partitions, return False, with nothing changed.
        """
        table = self._require_table()
        if len(delta.added) and not table.add(listing, delta.added):
            return False
        if len(delta.added):
            delta.rows = table.locate(listing)
        if len(delta.forgotten):
            table.forget(delta.forgotten)
        if len(delta.altered):
            table.alter(delta.rows[delta.altered], listing.entries[delta.altered])
        if len(delta.added) or len(delta.forgotten):
            table.place(delta.rows)
        return True

    def find_rotation(self, fetch: FetchRequest, delta: Delta | None = None) -> Rotation | None:
        """Return a `Rotation` for the next fetches, or None if this fetch is none or has several topics.

        Call this after the fetch has been applied to the table. If the fetch does not rotate the table's rows
        but the list of the previous fetch (`delta`), the rows are first put into the order of the fetch.
        """
        table = self._require_table()
        if fetch.block is None or fetch.layout is not table.layout:
            return None
        if not is_rotation(table.position[: table.size]):
            if delta is None or not delta.turned:
                return None
            table.arrange(delta.rows)
            delta.rows = np.arange(table.size)
        return Rotation(fetch, table)

    def take(self, walk: FetchResponseWalk) -> Sequence[PartitionResponse]:
        """Apply the parsed part of the outstanding response to the table.

        Return the entries so far that are forwarded unchanged. Applying it in parts leaves little work after
        the last byte. If the response turns out to be unusable, the session ends, and the next one uses none
        of the stored entries.
        """
        if self.table is None or walk.error_code:
            return ()
        return self._take(self.table, walk).result.entries

    def handle(self, walk: FetchResponseWalk, *, empties: bool = True) -> SessionResult:
        """Apply the complete response to the outstanding fetch. The rules are in `proxy.session.state`.

        `empties` is true for brokers that discard the entries of throttled responses (Kafka 2.0 and later).
        Their empty throttled responses contain no information about partitions.
        """
        full, expected = self.state is _REQUESTED, self.expected
        result = SessionResult(_COMPLETE)
        # KIP-219: brokers from 2.0 on discard the read, so the response says nothing about any partition
        # (fetch-semantics 2.8, cases 48 and 55).
        if walk.error_code:
            says = _ERRORS.get(walk.error_code, Says.OTHER_ERROR)
            result.reason = f"error {walk.error_code}"
        elif not walk.partitions and walk.throttle_time_ms > 0 and empties:
            says = Says.THROTTLED if walk.session_id else Says.THROTTLED_WITHOUT_ID
        else:
            table = self._require_table()
            taken = self._take(table, walk)
            if misfit := _misfit(table, taken, full=full):
                says = Says.MISFIT
                result.reason = misfit
            elif (expected.due or expected.readable) and expected.missing(
                table, walk, taken.rows | taken.empty
            ):
                says = Says.MISFIT
                result.reason, result.loss = _LEFT_OUT, Loss.LEFT_OUT
            else:
                result = taken.result
                if self.rotation is not None:
                    self.rotation.suspect(result.news)
                # A new session has an id above 0. Any id except 0 continues a session, even a negative one:
                # Java only compares with 0 (fetch-semantics 3.2).
                says = _ID if walk.session_id > 0 or (walk.session_id and not full) else Says.NO_ID
                if says is not _ID and not full:
                    result.reason, result.loss = _NO_ID, Loss.NO_ID
        expected.readable.clear()
        self._taken = None
        pair, result.action = (AFTER_FULL if full else AFTER_INCREMENTAL)[says]
        if pair is _NEXT:
            self.state = TRANSITIONS[self.state, _CONTINUE]
            # The id in the response is not compared, as in Java (fetch-semantics 3.2).
            self.epoch = next_epoch(self.epoch)
        elif pair is NextPair.FIRST:
            self.state = TRANSITIONS[self.state, _CONTINUE]
            self.session_id, self.epoch = walk.session_id, 1
        else:
            self._lose(pair, walk.session_id, walk.error_code)
        return result

    def waits(self) -> bool:
        """Return whether the client does not advance, see `Expected.waits`."""
        return self.expected.waits(self.table if self.epoch else None)

    def check(self, walk: FetchResponseWalk) -> None:
        """Note what the session's next response must contain. `walk` is the full response to a check."""
        if self.table is not None and self.epoch:
            self.expected.check(walk, self.table)

    def drop(self) -> None:
        self.state = SessionState.NONE
        self.session_id = self.epoch = 0
        self.table = self.rotation = self._taken = None
        self.expected.forget()

    def forget_list(self) -> None:
        """Forget the partitions of earlier fetches. Call this only while there is no session."""
        self.table = self.rotation = None

    def renew(self, session_id: int = 0) -> None:
        """Stop using the session. The next full fetch contains its id, so that the broker drops the session.

        If the broker has just created an unusable session, `session_id`, it contains the id of that one.
        """
        self.state = TRANSITIONS[self.state, SessionEvent.LOSE]
        # No broker creates a session with a negative id: it is a refusal (fetch-semantics 2.2, 3.2).
        self.session_id = session_id if session_id > 0 else self.session_id
        self.epoch = 0
        self.table = self.rotation = self._taken = None

    def adopt(self, session_id: int) -> None:
        """Take over the id of a session that the client does not use.

        The next full or forwarded fetch contains this id, so that the broker drops the session.
        """
        self.session_id = session_id

    def close(self) -> int:
        """Close the session. Return its id, which is needed for the (id, -1) to the broker.

        If a response is outstanding, the table is kept to expand it.
        """
        session_id = self.session_id
        self.state = TRANSITIONS[self.state, SessionEvent.CLOSE]
        if self.state is SessionState.NONE:
            self.drop()
        return session_id

    def _lose(self, pair: NextPair, given: int, error_code: int) -> None:
        """Stop using the session, and set the next pair. `given` is the session id in the response."""
        self.state = TRANSITIONS[self.state, SessionEvent.LOSE]
        self.epoch = 0
        if pair is NextPair.NAME_AND_DROP:
            self.session_id = max(given, 0)
            self.table = self.rotation = None
            return
        # An unsharded id would fail with -1 forever (fetch-semantics 2.2, case 96).
        if pair is not NextPair.RENEW or (error_code and self.session_id >= UNSHARDED_ID):
            self.session_id = 0
        if pair is NextPair.NEW_AND_DROP:
            self.table = self.rotation = None

    def _require_table(self) -> PartitionTable:
        if self.table is None:
            raise RuntimeError("no fetch was asked")
        return self.table

    def _take(self, table: PartitionTable, walk: FetchResponseWalk) -> _Taken:
        taken = self._taken
        if taken is None or taken.walk is not walk:
            taken = self._taken = _Taken(walk)
        if taken.misfit:
            return taken
        full = self.state is _REQUESTED
        outside = _OTHER_PARTITIONS if full else "a partition outside the session"
        if taken.runs < len(walk.runs):
            run, rows = table.located(walk.runs[taken.runs :])
            if (rows < 0).any():
                taken.misfit = outside
                return taken
            table.apply_run(run, rows)
            if self.expected.due or self.expected.readable:
                taken.empty.update(rows.tolist())
            taken.runs = len(walk.runs)
        result, seen = taken.result, taken.rows
        for entry in walk.entries[taken.entries :] if taken.entries < len(walk.entries) else ():
            row = table.row(entry.key, entry.partition)
            # A client must get no entry that it did not request (fetch-semantics, trap 24; case 54).
            if row < 0 or row in seen:
                taken.misfit = outside
                return taken
            seen.add(row)
            error = entry.error_code
            if full:
                table.refused[row] = error
            elif error and self._names_stuck(table, entry, row):
                taken.misfit = f"topic deleted or created again (error {error})"
                return taken
            table.apply_entry(entry, row)
            if not entry.ends_empty or error:
                result.entries.append(entry)
                result.rows.append(row)
                result.size += entry.end - entry.start
                if error:
                    taken.errors += 1
                    result.errors.add(error)
        taken.entries = len(walk.entries)
        return taken

    def _names_stuck(self, table: PartitionTable, entry: PartitionResponse, row: int) -> bool:
        """Return whether an entry may have error 3 or 103 only because of the session.

        A full fetch might get error 100 instead: a session resolves a topic's name only once, even if the
        topic is deleted or recreated later. If the first, full response of this session already had the
        error, the session is not the cause. KIP-516, v13 and later: fetch-semantics 2.4, trap 8 (cases 44 and
        80). librdkafka reports error 103 to its user.
        """
        stuck = entry.error_code in _STUCK_ERRORS and table.layout.topic_ids
        return stuck and int(table.refused[row]) != entry.error_code


# Globals, because looking up a member of an enum is slow and every fetch needs these.
_REQUESTED: Final = SessionState.REQUESTED
_ESTABLISHED: Final = SessionState.ESTABLISHED
_FETCHING: Final = SessionState.FETCHING
_ASK_INCREMENTAL: Final = SessionEvent.ASK_INCREMENTAL
_CONTINUE: Final = SessionEvent.CONTINUE
_ID: Final = Says.ID
_NEXT: Final = NextPair.NEXT
_COMPLETE: Final = Action.COMPLETE

_FEW: Final = 256
_NONE: Final[Rows] = np.zeros(0, np.intp)
_ERRORS: Final[dict[int, Says]] = {
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND: Says.ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH: Says.SESSION_ERROR,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR: Says.SESSION_ERROR,
}
_NO_ID: Final = "the broker does not have the session"
_LEFT_OUT: Final = "the broker leaves out partitions with something new"
_OTHER_PARTITIONS: Final = "other partitions than asked for"
_STUCK_ERRORS: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INCONSISTENT_TOPIC_ID})


def _misfit(table: PartitionTable, taken: _Taken, *, full: bool) -> str:
    """Return why a complete response does not fit the session, or "". A full one must list all partitions."""
    if taken.misfit:
        return taken.misfit
    if full:
        complete = taken.walk.partitions == table.size and not table.unmentioned
        return "" if complete else _OTHER_PARTITIONS
    # Fast check: the only rows without a cached entry are the errors of this response.
    if table.undescribed == taken.errors and not taken.runs:
        return ""
    # The first response for this partition was lost to a throttle. Law 4: nothing is invented
    # (fetch-semantics 6.2, case 27).
    unknown = table.unknown()
    if len(unknown) and not set(unknown.tolist()) <= set(taken.result.rows):
        return "a partition that the broker has not described"
    return ""


def _differing(entries: Entries, sent: Entries) -> Rows:
    ours, theirs = entries.tobytes(), sent.tobytes()
    # All bytes at once, because the arrays are nearly always equal.
    if ours == theirs:
        return _NONE
    if len(entries) <= _FEW:
        few: Rows = (entries != sent).nonzero()[0]
        return few
    spots = (np.frombuffer(ours, np.uint8) != np.frombuffer(theirs, np.uint8)).nonzero()[0]
    positions: Rows = spots // entries.dtype.itemsize
    return positions[np.flatnonzero(np.diff(positions, prepend=-1))]


def _repeated(listing: Listing, positions: Rows) -> bool:
    if len(positions) < 2:
        return False
    numbers = {key: number for number, key in enumerate(dict.fromkeys(listing.keys))}
    elements = np.repeat(np.array([numbers[key] for key in listing.keys]), listing.counts)[positions]
    partitions = listing.entries.view(listing.layout.request_fields)["partition"][positions].astype(np.int64)
    return len(np.unique((elements << 32) | partitions)) != len(positions)


def _elements(listing: Listing, positions: Rows) -> list[tuple[bytes, bytes]]:
    """Return the entries at some positions of a fetch, grouped into topic elements."""
    if not len(positions):
        return []
    entries, keys = listing.entries, listing.keys
    if len(keys) == 1:
        return [(keys[0], entries.take(positions).tobytes())]
    ends = np.cumsum(listing.counts)
    owners = ends.searchsorted(positions, side="right").tolist()
    found: list[tuple[bytes, bytes]] = []
    start = 0
    for at in range(1, len(owners) + 1):
        if at == len(owners) or keys[owners[at]] != keys[owners[start]]:
            found.append((keys[owners[start]], entries.take(positions[start:at]).tobytes()))
            start = at
    return found


def _forgotten_elements(table: PartitionTable, rows: Rows) -> list[tuple[bytes, bytes]]:
    if not len(rows):
        return []
    order = np.argsort(table.topic[rows], kind="stable")
    rows = rows[order]
    topics = table.topic[rows]
    numbers = table.partitions(rows).astype(">i4")
    starts = np.flatnonzero(np.diff(topics, prepend=-1)).tolist()
    return [
        (table.key(int(topics[start])), numbers[start:end].tobytes())
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True)
    ]
