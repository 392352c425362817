"""KIP-227's FetchSessionHandler: the requesting half of a fetch session, for one connection to one broker.

A session is a pair (id, epoch) and the partitions that both ends believe to be in it. The next request
carries the *next* pair; what a response does to it is Kafka's own table (FetchSessionHandler.java,
handleResponse):

    next         response                                    next becomes        the response
    any          70                                        (0, 0)              is to be had again
    any          another error (71, 106, -1 ...)           (same id, 0) [1]    is to be had again
    full         nothing in it, throttled                  (0, 0)              is handed on empty
    full         other partitions than asked for           (0, 0)              is handed on
    full         right, id 0                               (0, 0)              is handed on
    full         right, id n                               (n, 1)              is handed on
    incremental  nothing in it, throttled                  (id, epoch + 1) [2] is handed on empty
    incremental  a partition outside the session           (same id, 0)        is to be had again
    incremental  right, id 0                               (0, 0)              is expanded
    incremental  right, an id                              (id, epoch + 1)     is expanded
    -            the connection ends                       (0, 0)

[1] (0, 0) if the request carried epoch 0 already, or an id of which a broker from 3.8 on can't tell the
shard: there each further try with that id fails the same way. [2] (same id, 0) if it carries id 0: a throttle
masks session errors, and behind a masked 71 the session lives on.

Where a response can't be completed from what the broker said in this session, nothing is invented: it is to
be had again, in full.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import numpy as np

from proxy.protocol.api import ErrorCode
from proxy.protocol.fetch_layout import Entries, Rows
from proxy.protocol.fetch_request import FetchRequest, Listing
from proxy.protocol.fetch_response import FetchResponseWalk, PartitionResponse
from proxy.session.partitions import PartitionTable, is_rotation
from proxy.session.rotation import Rotation

MAX_EPOCH: Final = 0x7FFF_FFFF
UNSHARDED_ID: Final = 2_147_483_640
"""Ids from here on are in no shard of a broker from 3.8 on; it answers them with -1 at every epoch."""


class Action(Enum):
    """What is to be done with a response."""

    EXPAND = "expand"
    """Complete it from the table."""
    EMPTY = "empty"
    """The broker threw the read away to throttle: hand it on as it is."""
    COMPLETE = "complete"
    """A full response: it is complete as it is."""
    REPEAT_FULL = "repeat full"
    """Have it again with a full fetch at the next (id, epoch)."""
    REPEAT_SESSIONLESS = "repeat sessionless"
    """Have it again with (0, -1), which can't fail for a session's sake."""


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
    """The fetch lists what the one before did, in its order, beginning anywhere."""

    @property
    def size(self) -> int:
        """Bytes of entries, topic keys and forgotten partitions on the wire, lengths and tags apart."""
        listed = sum(len(key) + len(block) for key, block in self.topics)
        return listed + sum(len(key) + len(block) for key, block in self.forgotten_topics)


@dataclass(slots=True, eq=False)
class SessionResult:
    """What a response means."""

    use: Action
    reason: str = ""
    entries: list[PartitionResponse] = field(default_factory=list)
    """The entries that are told as the broker sent them; all others are as the table has them."""
    rows: list[int] = field(default_factory=list)
    """The row of each of `entries`."""


class FetchSessionHandler:
    """Builds the fetches of one session and judges their responses. At most one fetch is outstanding."""

    __slots__ = ("_asked_full", "epoch", "session_id", "table")

    def __init__(self) -> None:
        self.session_id = 0
        """Id that the next request carries; 0 without a session."""
        self.epoch = 0
        """Epoch that the next request carries; 0 asks for a new session."""
        self.table: PartitionTable | None = None
        """What the session holds; before there is one, what the last fetch listed."""
        self._asked_full = False

    def __repr__(self) -> str:
        size = self.table.size if self.table is not None else 0
        return f"<FetchSessionHandler {self.session_id} epoch={self.epoch} partitions={size}>"

    @property
    def established(self) -> bool:
        """Whether there is a session to continue."""
        return self.epoch > 0

    def compare(self, listing: Listing) -> Delta | None:
        """Tell what a fetch would change, and change nothing.

        Returns:
            None if there is nothing to compare with, or it lists a partition twice.
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
            altered = altered[np.argsort(table.topic[rows[altered]], kind="stable")]
        topics = _elements(listing, added) + _elements(listing, altered)
        return Delta(rows, added, altered, forgotten, topics, _forgotten_elements(table, forgotten), turned)

    def learn_listing(self, listing: Listing, isolation_level: int) -> bool:
        """Make a table of what a full fetch lists, replacing what there was.

        Returns:
            False, without a table, if partitions are listed twice or too sparse to be looked up.
        """
        table = PartitionTable(listing.layout, isolation_level)
        everything = np.arange(len(listing))
        self.table = None
        if _repeated(listing, everything) or not table.add(listing, everything):
            return False
        table.place(everything)
        self.table = table
        return True

    def ask_full(self) -> tuple[int, int]:
        """Return the (id, epoch) of a full fetch for what the table has; it is outstanding from now on."""
        self._held().forget_responses()
        self.epoch = 0
        self._asked_full = True
        return self.session_id, 0

    def ask_incremental(self) -> tuple[int, int]:
        """Return the (id, epoch) that an incremental fetch carries now."""
        self._asked_full = False
        return self.session_id, self.epoch

    def apply(self, listing: Listing, delta: Delta) -> bool:
        """Make the table hold what a fetch lists.

        Returns:
            False, with nothing changed, if the table can't take what is added.
        """
        table = self._held()
        if len(delta.added) and not table.add(listing, delta.added):
            return False
        if len(delta.added):
            delta.rows = table.locate(listing)
        if len(delta.forgotten):
            table.forget(delta.forgotten)
        if len(delta.altered):
            table.requests[delta.rows[delta.altered]] = listing.entries[delta.altered]
        if len(delta.added) or len(delta.forgotten):
            table.place(delta.rows)
        return True

    def rotation(self, request: FetchRequest, delta: Delta) -> Rotation | None:
        """Return what knows the next fetches by, if they go on like this one, which has been applied.

        Once a circle was seen twice, the table's rows are brought into its order.
        """
        table = self._held()
        if request.block is None or request.layout is not table.layout or len(delta.rows) != table.size:
            return None
        if not is_rotation(delta.rows):
            if not delta.turned:
                return None
            table.arrange(delta.rows)
            delta.rows = np.arange(table.size)
        return Rotation(request, table)

    def handle(self, walk: FetchResponseWalk, *, empties: bool = True) -> SessionResult:
        """Take the response to the outstanding fetch, walked to its end; see the table above.

        Args:
            walk: the response.
            empties: the broker throttles by throwing the read away, so that an empty throttled response says
                nothing of any partition (from Kafka 2.0 on).
        """
        if walk.error_code:
            return self._failed(walk.error_code)
        if not walk.partitions and walk.throttle_time_ms > 0 and empties:
            self._throttled(walk.session_id)
            return SessionResult(Action.EMPTY)
        if self._asked_full:
            return self._full(walk)
        return self._incremental(walk)

    def drop(self) -> None:
        """Forget the session and what it held; the broker has or will have lost it."""
        self.session_id = self.epoch = 0
        self.table = None

    def renew(self, session_id: int = 0) -> None:
        """Leave the session; the next full fetch names its id, and so has the broker drop it.

        Args:
            session_id: a session that the broker made but that can't be used; 0: the one held.
        """
        self.session_id = session_id or self.session_id
        self.epoch = 0
        self.table = None

    def _held(self) -> PartitionTable:
        if self.table is None:
            raise RuntimeError("no fetch was asked")
        return self.table

    def _failed(self, code: int) -> SessionResult:
        lost = (
            code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            or self._asked_full
            or self.session_id >= UNSHARDED_ID
        )
        self.epoch = 0
        if lost:
            self.session_id = 0
        # Whatever it was, without a session the broker tells the client's own truth; 70, 71 and 106 are
        # cured by a new one.
        use = (
            Action.REPEAT_SESSIONLESS
            if self._asked_full or code not in _SESSION_ERRORS
            else Action.REPEAT_FULL
        )
        return SessionResult(use, f"error {code}")

    def _throttled(self, answered_id: int) -> None:
        if self._asked_full:
            self.drop()
        elif answered_id:
            self._advance()
        else:
            self.epoch = 0

    def _advance(self) -> None:
        self.epoch = 1 if self.epoch == MAX_EPOCH else self.epoch + 1

    def _full(self, walk: FetchResponseWalk) -> SessionResult:
        table = self._held()
        verdict = self._take_response(table, walk)
        if verdict is None or walk.partitions != table.size or table.unmentioned:
            self.drop()
            return SessionResult(Action.COMPLETE, "other partitions than asked for")
        self.session_id = max(walk.session_id, 0)
        self.epoch = 1 if self.session_id else 0
        return verdict

    def _incremental(self, walk: FetchResponseWalk) -> SessionResult:
        table = self._held()
        verdict = self._take_response(table, walk)
        if verdict is None:
            verdict = SessionResult(Action.REPEAT_FULL, "a partition outside the session")
        elif (
            verdict.use is Action.EXPAND
            and len(unknown := table.unknown())
            and not set(unknown.tolist()) <= set(verdict.rows)
        ):
            verdict = SessionResult(Action.REPEAT_FULL, "a partition that the broker has not described")
        if verdict.use is Action.REPEAT_FULL:
            self.epoch = 0
        elif walk.session_id:
            self._advance()
        else:
            self.session_id = self.epoch = 0
        return verdict

    def _take_response(self, table: PartitionTable, walk: FetchResponseWalk) -> SessionResult | None:
        """Take what a response says of partitions; None if it names one outside the session, or one twice."""
        full = self._asked_full
        verdict = SessionResult(Action.COMPLETE if full else Action.EXPAND)
        for run in walk.runs:
            rows = table.rows(run.key, run.entries.view(table.layout.response_fields)["partition"])
            if (rows < 0).any():
                return None
            table.apply_run(run, rows)
        seen: set[int] = set()
        for entry in walk.entries:
            row = table.row(entry.key, entry.partition)
            if row < 0 or row in seen:
                return None
            seen.add(row)
            if full:
                table.refused[row] = entry.error_code
            elif entry.error_code and self._names_stuck(table, entry, row):
                return SessionResult(
                    Action.REPEAT_FULL, f"topic gone or made anew (error {entry.error_code})"
                )
            table.apply_entry(entry, row)
            if not entry.ends_empty or entry.error_code:
                verdict.entries.append(entry)
                verdict.rows.append(row)
        return verdict

    def _names_stuck(self, table: PartitionTable, entry: PartitionResponse, row: int) -> bool:
        """Whether a session says 3 or 103 where a full fetch may say 100: it keeps a topic's name for good.

        An error that the full fetch of this very session gave as well is the broker's own.
        """
        stuck = entry.error_code in _STUCK_ERRORS and table.layout.topic_ids
        return stuck and int(table.refused[row]) != entry.error_code


_FEW: Final = 256
_NONE: Final[Rows] = np.zeros(0, np.intp)
_SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
_STUCK_ERRORS: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INCONSISTENT_TOPIC_ID})


def _differing(entries: Entries, sent: Entries) -> Rows:
    """Return where two columns of entries differ.

    Bytes are compared all at once; only if they differ, and by what is fastest at that size, item by item.
    """
    ours, theirs = entries.tobytes(), sent.tobytes()
    if ours == theirs:
        return _NONE
    if len(entries) <= _FEW:
        few: Rows = (entries != sent).nonzero()[0]
        return few
    spots = (np.frombuffer(ours, np.uint8) != np.frombuffer(theirs, np.uint8)).nonzero()[0]
    positions: Rows = spots // entries.dtype.itemsize
    return positions[np.flatnonzero(np.diff(positions, prepend=-1))]


def _repeated(listing: Listing, positions: Rows) -> bool:
    """Whether entries at these positions name a partition twice."""
    if len(positions) < 2:
        return False
    numbers = {key: number for number, key in enumerate(dict.fromkeys(listing.keys))}
    elements = np.repeat(np.array([numbers[key] for key in listing.keys]), listing.counts)[positions]
    partitions = listing.entries.view(listing.layout.request_fields)["partition"][positions].astype(np.int64)
    return len(np.unique((elements << 32) | partitions)) != len(positions)


def _elements(listing: Listing, positions: Rows) -> list[tuple[bytes, bytes]]:
    """Return entries as topic elements, neighbours of one topic together."""
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
