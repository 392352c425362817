"""Walks fetch responses v4 to v18 while they arrive, and builds the first bytes of a response.

To *walk* means to read the structure without the records. A response can be too large for memory, so it is
walked chunk by chunk. Records are skipped by their length and never copied. If a response has to be buffered,
`Received` stores it in few pieces.
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from proxy.protocol.api import LENGTH_BYTES, RESPONSE_START_BYTES, ErrorCode
from proxy.protocol.fetch_layout import (
    ABORTED_BYTES,
    MAX_RUN_MATCH,
    RACK_VERSION,
    SESSION_VERSION,
    Entries,
    FetchLayout,
)
from proxy.protocol.metadata import LEADER_BYTES, MAX_LEADERS, LeaderHint
from proxy.protocol.primitives import (
    UUID_BYTES,
    Buffer,
    Malformed,
    Span,
    TagSpan,
    Truncated,
    read_tags,
    read_uvarint,
    skip_tags,
)

NODE_ENDPOINTS_TAG: Final = 0
"""The tag of NodeEndpoints in a response's body, v16 and later (KIP-951, FetchResponse.json)."""
_CURRENT_LEADER_TAG: Final = 1
"""The tag of CurrentLeader in an entry. Brokers send it from v16 on (fetch-semantics 5)."""

_MOVED: Final = (int(ErrorCode.NOT_LEADER_OR_FOLLOWER), int(ErrorCode.FENCED_LEADER_EPOCH))

_THROTTLE = Struct(">i")
_SESSION_HEAD = Struct(">ihi")  # throttle_time_ms, error_code, session_id
_SESSION_ID_AT: Final = 6
_COUNT = Struct(">i")
_NAME = Struct(">h")
_ENTRY = Struct(">ih")  # partition_index, error_code
_LEADER = Struct(">ii")  # leader_id, leader_epoch
_NOBODY: Final = b"\xff\xff\xff\xff"
_NODE_BYTES: Final = 4
MAX_ERRORS: Final = 1 << 15
"""How many entries with an error are noted in one response: enough for a fetch of 1 MiB."""
OUT_OF_RANGE: Final = frozenset({int(ErrorCode.OFFSET_OUT_OF_RANGE)})
"""The errors that are noted, if not others are asked for."""
_BRIDGE: Final = 512
"""If a unit began in an earlier chunk, at least this many bytes of the next chunk are joined to it, and more
if the unit is longer."""
_MAX_UNIT: Final = 1 << 24
_RUN_WORTH: Final = 4
"""The least entries of a run."""


NULL: Final = 0
"""`PartitionResponse.aborted` if ``aborted_transactions`` is null."""
NO_ABORTED: Final = 1

# The kind of the next unit. Plain integers, because each unit is compared.
_HEADER: Final = 0
_TOPIC: Final = 1
_ENTRY_AT: Final = 2
_ENTRY_TAGS: Final = 3
_TOPIC_TAGS: Final = 4
_BODY_TAGS: Final = 5
_END: Final = 6
_SMALL: Final = 1 << 14
"""Reads below this size are joined, because each piece costs Python objects and an item of a vectored
write."""
_JOINED: Final = 1 << 16
"""Small reads are joined into one piece when they reach this size, or earlier if a large read follows."""


class Received:
    """The received bytes of one frame.

    Large reads are kept unchanged. Small reads are copied once, into pieces of about `_JOINED` bytes.
    Otherwise 50 MB, received in reads of one TCP segment each, would be 36,000 pieces.
    """

    __slots__ = ("_small", "_small_size", "_starts", "_views", "settled", "size")

    def __init__(self, *chunks: bytes) -> None:
        self._starts: list[int] = []
        self._views: list[memoryview] = []
        self._small: list[bytes] = []
        self._small_size = 0
        self.size = 0
        self.settled = 0
        """How many bytes are in finished pieces, which do not change any more."""
        for chunk in chunks:
            self.append(chunk)

    def __repr__(self) -> str:
        return f"<Received {self.size} bytes in {len(self._views)} pieces>"

    def append(self, chunk: bytes) -> None:
        size = len(chunk)
        self.size += size
        if size < _SMALL:
            self._small.append(chunk)
            self._small_size += size
            if self._small_size >= _JOINED:
                self._settle()
            return
        if self._small:
            self._settle()
        self._add(chunk)

    def keep(self, piece: Buffer) -> None:
        """Add the next bytes as a separate piece, even if they are few."""
        if self._small:
            self._settle()
        self.size += len(piece)
        self._add(piece)

    def span(self, start: int, end: int) -> list[memoryview]:
        """Return the bytes from `start` to `end` as views. The cost depends only on the number of pieces."""
        if end > self.settled:
            self._settle()
        starts, views = self._starts, self._views
        number = bisect_right(starts, start) - 1
        if number < 0 or end <= start:
            return []
        at = starts[number]
        first = views[number][start - at : end - at]
        missing = end - start - len(first)
        if not missing:
            return [first]
        found = [first]
        while missing > 0 and (number := number + 1) < len(views):
            found.append(views[number][:missing])
            missing -= len(found[-1])
        return found

    def _settle(self) -> None:
        if self._small:
            small, self._small, self._small_size = self._small, [], 0
            self._add(b"".join(small))

    def _add(self, piece: Buffer) -> None:
        self._starts.append(self.settled)
        self._views.append(memoryview(piece))
        self.settled += len(piece)


class PartitionError(NamedTuple):
    """An entry with an error in a fetch response."""

    key: bytes
    partition: int
    error_code: int
    start: int
    """Offset of the entry in the frame."""


class HintAt(NamedTuple):
    """A newer leader in an entry of a fetch response (KIP-951)."""

    at: int
    """Offset of its node id in the frame. Its epoch follows."""
    hint: LeaderHint


class _Short(Exception):  # noqa: N818 - not an error: the unit continues in the next chunk
    """Raised if the current unit of the walk continues in the next chunk."""


@dataclass(slots=True, eq=False)
class PartitionResponse:
    """An entry of a fetch response that is not part of an `EmptyRun`."""

    key: bytes
    partition: int
    error_code: int
    start: int
    """Offset of the entry in the frame."""
    end: int
    """Offset after the entry, which includes its tags."""
    fixed: bytes
    """The bytes before ``aborted_transactions``: partition, error, high watermark, last stable offset and,
    from v5 on, log start offset."""
    ends_empty: bool
    """Whether the entry ends with the `FetchLayout.empty_ends` of the request's isolation level: no records,
    no preferred replica and no tags."""
    records: int
    """The size of the records in bytes."""
    redirects: bool
    """Whether the entry sends the client elsewhere: it has a preferred read replica or has tags (a diverging
    epoch, a leader)."""
    aborted: int = NO_ABORTED
    """`NULL`, `NO_ABORTED` (an empty list), or a higher number if there are any."""
    null_records: bool = False
    views: Sequence[memoryview] = ()
    """The bytes of the entry, if the caller has stored them here while the response arrived."""

    def sent(self, frame: Received) -> Sequence[memoryview]:
        """Return the bytes of the entry exactly as the broker sent them."""
        return self.views or frame.span(self.start, self.end)


@dataclass(slots=True, eq=False)
class EmptyRun:
    """Consecutive entries of one topic in a fetch response, without records, errors and tags."""

    key: bytes
    entries: Entries
    """An array whose dtype is ``layout.response_item``. It is a copy."""
    start: int = -1
    """Offset of the first entry in the frame, or -1 if the entries are not one span of a frame."""


@dataclass(slots=True, eq=False, repr=False)
class FetchResponseWalk:
    """A walk over one fetch response. `feed` gets the chunks of the frame, from the length field on."""

    layout: FetchLayout
    """That of the request's version."""
    isolation_level: int
    """That of the request. It decides what the last bytes of an entry without records are. Without `keep`,
    the bytes of both isolation levels are accepted in each run, because the request may not have been
    read."""
    _: KW_ONLY
    keep: bool
    """Whether to collect `entries`, `runs` and `elements`. If False, entries are only counted."""
    spans: bool = False
    """Whether to collect `record_spans`."""
    noted: frozenset[int] = OUT_OF_RANGE
    """The codes of errors that are collected in `errors`."""

    # What was read so far

    offset: int = 0
    """How many bytes of the response were walked so far. These may be forwarded."""
    throttle_time_ms: int = 0
    error_code: int = 0
    session_id: int = 0
    session_id_at: int = 0
    """Offset in the frame. 0 below v7, and until it was read."""
    partitions: int = 0
    with_records: int = 0
    """The number of entries with records."""
    record_bytes: int = 0
    record_spans: list[Span] | None = None
    """The spans of records in the frame, in order. A span is added when the length of the records has been
    read."""
    entries: list[PartitionResponse] = field(default_factory=list)
    runs: list[EmptyRun] = field(default_factory=list)
    elements: list[tuple[bytes, int]] = field(default_factory=list)
    """The topic elements, each with the topic key and the number of entries."""
    hints: list[HintAt] = field(default_factory=list)
    """The newer leaders in entries. Only versions with topic ids have them (v13 and later)."""
    redirects: bool = False
    """Whether an entry has a preferred read replica (v11 and later)."""
    failed: int = 0
    """The number of entries with an error."""
    errors: list[PartitionError] = field(default_factory=list)
    """The entries with an error of `noted`, at most `MAX_ERRORS`."""
    moved: int = 0
    """The number of entries with error 6 or 74: the leader has moved, or the client's leader epoch is too
    old."""
    tagged: bool = False
    """Whether the response header or a topic element has tags. No schema of Fetch defines tags there."""
    tags: Sequence[TagSpan] = ()
    """The body's tags. Their offsets count from `tags_at`."""
    tags_at: int = -1
    """Offset of the body's tag buffer, which ends the frame. -1 until the walk reaches it, and below v12."""

    # Where the walk is

    _at: int = _HEADER
    _topics_left: int = 0
    _left: int = 0
    """The entries of the current topic element that were not walked yet."""
    _key: bytes = b""
    _partition: int = 0
    _open: PartitionResponse | None = None
    """The current entry, if its tags were not walked yet."""
    _skip: int = 0
    _tail: bytes = b""
    """The beginning of a unit that continues in the next chunk."""
    _waiting: list[bytes] = field(default_factory=list)
    """The next chunks of a long unit, until it is walked again. `_waiting_size` is their size."""
    _waiting_size: int = 0
    _waiting_for: int = 0
    """The size from which on the unit is walked again. 0 if `_waiting` is not used."""
    _size: int = 0
    """The size of the frame."""
    _isolation: int = 0
    _ends_empty: bytes = b""
    _list_at: int = -1

    def __post_init__(self) -> None:
        self._isolation = 1 if self.isolation_level else 0
        self._ends_empty = self.layout.empty_ends[self._isolation]
        if not self.keep:
            self._list_at = self.layout.aborted
        if self.spans:
            self.record_spans = []

    @property
    def head_known(self) -> bool:
        """Whether the top-level fields have been read."""
        return self._at != _HEADER

    @property
    def counted(self) -> bool:
        """Whether the numbers of entries of all topic elements have been read."""
        return self._topics_left <= 1 and self._at not in (_HEADER, _TOPIC)

    @property
    def done(self) -> bool:
        return self._at == _END and not self._skip

    @property
    def repeatable(self) -> bool:
        """Whether the top-level fields contain nothing but a session id."""
        return (
            not (self.throttle_time_ms or self.error_code or self.tags or self.tagged)
            and self.session_id != 0
        )

    @property
    def records_left(self) -> int:
        """How many of the next bytes are certainly records."""
        return self._skip

    def skip_records(self, size: int) -> bool:
        """Skip the next `size` bytes if all of them are records. Return whether they were skipped."""
        if self._skip < size:
            return False
        self._skip -= size
        self.offset += size
        return True

    def feed(self, chunk: bytes) -> None:
        """Walk the next bytes of the frame.

        Raises:
            ProtocolError: the bytes do not match a response of this version.
        """
        size = len(chunk)
        if self.skip_records(size):
            return
        at = self._skip
        self.offset += at
        self._skip = 0
        if self._tail:
            if self._waiting_for:
                chunk = self._gathered(chunk)
                size = len(chunk)
                if not size:
                    return
            at = self._bridge(chunk)
            if at < 0:
                return
        start = at
        at = self._walk(chunk, at)
        self.offset += min(at, size) - start
        if at > size:
            self._skip = at - size
        else:
            self._tail = chunk[at:]

    def _gathered(self, chunk: bytes) -> bytes:
        """Collect the chunks of an incomplete unit. Return them if it is time to walk it, otherwise b"".

        The walk of a unit is tried again each time its collected size has doubled, and at the end of the
        frame. So the cost is proportional to the size of the unit, for chunks of any size.
        """
        self._waiting.append(chunk)
        self._waiting_size += len(chunk)
        have = len(self._tail) + self._waiting_size
        if have > _MAX_UNIT:
            raise Malformed("a fetch response whose entry has no end")
        if have < self._waiting_for and self.offset + have < self._size:
            return b""
        waiting, self._waiting, self._waiting_size, self._waiting_for = self._waiting, [], 0, 0
        return b"".join(waiting)

    def _bridge(self, chunk: bytes) -> int:
        """Walk a unit that began in an earlier chunk.

        Return the offset in this chunk after the unit, or -1 if the unit or its records take the whole chunk.
        """
        window = max(_BRIDGE, len(self._tail))
        while True:
            tail = self._tail
            joined = tail + chunk[:window]
            at = self._walk(joined, 0)
            if at >= len(tail):
                self._tail = b""
                at -= len(tail)
                passed = min(at, len(chunk))
                self.offset += len(tail) + passed
                if at >= len(chunk):
                    self._skip = at - len(chunk)
                    return -1
                return at
            self._tail = tail[at:]
            self.offset += at
            if window >= len(chunk):
                self._tail += chunk
                if len(self._tail) > _MAX_UNIT:
                    raise Malformed("a fetch response whose entry has no end")
                if len(self._tail) > _BRIDGE:
                    if self._at == _HEADER:
                        self._size = LENGTH_BYTES + int.from_bytes(self._tail[:LENGTH_BYTES])
                    self._waiting_for = 2 * len(self._tail)
                return -1
            window *= 4

    def _walk(self, buffer: bytes, at: int) -> int:
        """Walk the complete units in the buffer. Return the offset of the next unit.

        If the buffer ends within records, the returned offset is after the end of the buffer.
        """
        base = self.offset - at
        size = len(buffer)
        try:
            while at <= size:
                unit = self._at
                if unit == _ENTRY_AT:
                    at = self._entry(buffer, at, base)
                elif unit == _TOPIC:
                    at = self._topic(buffer, at)
                elif unit == _TOPIC_TAGS:
                    at = self._unknown_tags(buffer, at)
                    self._topic_done()
                elif unit == _HEADER:
                    at = self._header(buffer, at, base)
                elif unit == _BODY_TAGS:
                    at = self._body_tags(buffer, at, base)
                elif unit == _ENTRY_TAGS:
                    at = self._entry_tags(buffer, at, base)
                else:
                    if at < size:
                        raise Malformed(f"{size - at} bytes after a fetch response")
                    break
        except (struct.error, IndexError, Truncated, _Short):
            pass
        return at

    def _header(self, buffer: bytes, at: int, base: int) -> int:
        layout = self.layout
        size = LENGTH_BYTES + int.from_bytes(buffer[at : at + LENGTH_BYTES])
        at += RESPONSE_START_BYTES
        if layout.flexible:
            at = self._unknown_tags(buffer, at)
        throttle, error, session_id, session_id_at = 0, 0, 0, 0
        # KIP-227: error and session id from v7 on (fetch-semantics 1.4).
        if layout.version >= SESSION_VERSION:
            throttle, error, session_id = _SESSION_HEAD.unpack_from(buffer, at)
            session_id_at = base + at + _SESSION_ID_AT
        else:
            throttle = _THROTTLE.unpack_from(buffer, at)[0]
        topics, at = self._count(buffer, at + layout.response_head)
        self._topics_left = topics + 1
        self.throttle_time_ms, self.error_code = throttle, error
        self.session_id, self.session_id_at = session_id, session_id_at
        self._size = size
        self._topic_done()
        return at

    def _unknown_tags(self, buffer: bytes, at: int) -> int:
        if not buffer[at]:
            return at + 1
        end = skip_tags(buffer, at)[1]
        self.tagged = True
        return end

    def _topic(self, buffer: bytes, at: int) -> int:
        layout = self.layout
        if layout.topic_ids:
            end = at + UUID_BYTES
        elif layout.flexible:
            length, at = read_uvarint(buffer, at)
            end = at + length - 1
        else:
            end = at + 2 + _NAME.unpack_from(buffer, at)[0]
            at += 2
        if end < at:
            raise Malformed("a topic in a fetch response has no name")
        if end > len(buffer):
            raise _Short
        key = buffer[at:end]
        self._left, at = self._count(buffer, end)
        self._key = key
        if self.keep:
            self.elements.append((key, self._left))
        self._at = _ENTRY_AT
        if self._left <= 0:
            self._entries_done()
        return at

    def _entry(self, buffer: bytes, at: int, base: int) -> int:
        if self._left >= _RUN_WORTH and (end := self._run(buffer, at, base)):
            return end
        layout = self.layout
        start = at
        partition, error = _ENTRY.unpack_from(buffer, at)
        at += layout.aborted
        if layout.flexible:
            aborted, listed = read_uvarint(buffer, at)
            preferred = listed + ((aborted - 1) * (ABORTED_BYTES + 1) if aborted else 0)
            size, at = read_uvarint(buffer, preferred + _NODE_BYTES)
            # Aborted transactions are assumed to have no tags: no schema defines any.
            if aborted > 1 and any(buffer[listed + ABORTED_BYTES : preferred : ABORTED_BYTES + 1]):
                raise Malformed("an aborted transaction with tags")
            # Null records: Kafka 3.0 to 3.9 in entries with some errors (fetch-semantics 6.3, case 93).
            records = size - 1 if size else 0
        else:
            aborted = _COUNT.unpack_from(buffer, at)[0] + 1
            preferred = at + 4 + max(aborted - 1, 0) * ABORTED_BYTES
            at = preferred + (_NODE_BYTES if layout.version >= RACK_VERSION else 0)
            # Null records, see above (case 93).
            size = _COUNT.unpack_from(buffer, at)[0] + 1
            records = max(size - 1, 0)
            at += 4
        if at > len(buffer):
            raise _Short
        end = at + records
        node = buffer[preferred : preferred + _NODE_BYTES]
        redirects = layout.version >= RACK_VERSION and node != _NOBODY
        if redirects:
            self.redirects = True
        if self.keep:
            ends = self._ends_empty
            begin = start + layout.aborted
            empty = not records and buffer[begin : begin + len(ends)][: at - begin] == ends[: at - begin]
            fixed = buffer[start:begin]
            # KIP-392: brokers repeat this until the client has moved (fetch-semantics, trap 29; case 83).
            self._open = PartitionResponse(
                self._key,
                partition,
                error,
                base + start,
                base + end,
                fixed,
                empty,
                records,
                redirects,
                aborted,
                size <= 0,
            )
        if records:
            self.with_records += 1
            self.record_bytes += records
            if self.record_spans is not None:
                self.record_spans.append((base + at, base + end))
        if error:
            self.failed += 1
            if error in _MOVED:
                self.moved += 1
            if error in self.noted and len(self.errors) < MAX_ERRORS:
                self.errors.append(PartitionError(self._key, partition, error, base + start))
        self._left -= 1
        self.partitions += 1
        if not layout.flexible:
            self._entry_done()
        elif end < len(buffer) and not buffer[end]:  # no tags
            # An entry's tags follow its records (fetch-semantics 1.4, trap 49).
            end += 1
            if self._open is not None:
                self._open.end += 1
            self._entry_done()
        else:
            self._partition = partition
            self._at = _ENTRY_TAGS
        return end

    def _run(self, buffer: bytes, at: int, base: int) -> int:
        """Walk the next run of empty entries. Return the offset after it, or 0 if it would be too short."""
        layout, left = self.layout, self._left
        if self._list_at >= 0:
            # Learn the form of the list: not null if it starts with compact length 1, or with the first byte
            # of a length of 0.
            self._isolation = int(buffer[at + self._list_at] == layout.flexible)
            self._ends_empty = layout.empty_ends[self._isolation]
        found = layout.empty_runs[self._isolation].match(buffer, at)
        count = min((found.end() - at) // layout.response_entry, left) if found is not None else 0
        if count < _RUN_WORTH:
            return 0
        if count == MAX_RUN_MATCH and left > count:
            count += self._long_run(buffer, at + count * layout.response_entry, left - count)
        if self.keep:
            items = np.frombuffer(buffer, layout.response_item, count, at)
            self.runs.append(EmptyRun(self._key, items.copy(), base + at))
        self._left = left - count
        self.partitions += count
        if not self._left:
            self._entries_done()
        return at + count * layout.response_entry

    def _long_run(self, buffer: bytes, at: int, left: int) -> int:
        """Return the number of consecutive entries that are empty, at most `left`.

        For many entries, comparing whole columns is the fastest way.
        """
        layout = self.layout
        limit = min((len(buffer) - at) // layout.response_entry, left)
        size, count = 8 * MAX_RUN_MATCH, 0
        while count < limit:
            items = np.frombuffer(buffer, layout.response_item, min(size, limit - count), at)
            fields = items.view(layout.response_fields)
            changes = (fields["end"] != np.void(self._ends_empty)) | (fields["error"] != 0)
            first = int(changes.argmax())
            if changes[first]:
                return count + first
            count += len(items)
            at += len(items) * layout.response_entry
            size *= 8
        return count

    def _entry_tags(self, buffer: bytes, at: int, base: int) -> int:
        end = skip_tags(buffer, at)[1]
        entry = self._open
        if entry is not None:
            entry.end = base + end
            if end - at > 1:
                entry.ends_empty = False
                entry.redirects = True
        if end - at > 1 and self.layout.topic_ids and len(self.hints) < MAX_LEADERS:
            self._note_leader(buffer, at, base)
        self._entry_done()
        return end

    def _note_leader(self, buffer: bytes, at: int, base: int) -> None:
        for tag, start, end in read_tags(buffer, at)[0]:
            if tag == _CURRENT_LEADER_TAG and end - start >= LEADER_BYTES:
                leader = _LEADER.unpack_from(buffer, start)
                self.hints.append(HintAt(base + start, LeaderHint(self._key, self._partition, *leader)))

    def _entry_done(self) -> None:
        if self._open is not None:
            self.entries.append(self._open)
            self._open = None
        self._at = _ENTRY_AT
        if not self._left:
            self._entries_done()

    def _entries_done(self) -> None:
        if self.layout.flexible:
            self._at = _TOPIC_TAGS
        else:
            self._topic_done()

    def _topic_done(self) -> None:
        self._topics_left -= 1
        if self._topics_left > 0:
            self._at = _TOPIC
        else:
            self._at = _BODY_TAGS if self.layout.flexible else _END

    def _body_tags(self, buffer: bytes, at: int, base: int) -> int:
        # KIP-951: they contain node_endpoints, at the end of the frame (fetch-semantics 1.4).
        self.tags_at = base + at
        end = at + 1
        if buffer[at]:
            tags, end = read_tags(buffer, at)
            self.tags = [(tag, start - at, stop - at) for tag, start, stop in tags]
            # Tags must ascend (KIP-482): node_endpoints, tag 0, is expected to be the first.
            if any(tag <= before for (before, *_), (tag, *_) in pairwise(self.tags)):
                raise Malformed("the tags of a fetch response are not in order")
        self._at = _END
        return end

    def _count(self, buffer: bytes, at: int) -> tuple[int, int]:
        if self.layout.flexible:
            if (count := buffer[at]) < 0x80:
                return count - 1, at + 1
            count, at = read_uvarint(buffer, at)
            return count - 1, at
        return _COUNT.unpack_from(buffer, at)[0], at + 4


def response_head(
    layout: FetchLayout, correlation_id: bytes, throttle_time_ms: int, session_id: int = 0, error: int = 0
) -> bytes:
    """Return the bytes of a response from the correlation id to before ``responses``."""
    tags = b"\x00" if layout.flexible else b""
    if layout.version < SESSION_VERSION:
        return correlation_id + _THROTTLE.pack(throttle_time_ms)
    return correlation_id + tags + _SESSION_HEAD.pack(throttle_time_ms, error, session_id)


def empty_response(
    layout: FetchLayout,
    correlation_id: bytes,
    *,
    session_id: int = 0,
    error: int = 0,
    throttle_time_ms: int = 0,
) -> bytes:
    """Return a complete response without entries. Session id and error are sent from v7 on."""
    head = response_head(layout, correlation_id, throttle_time_ms, session_id, error)
    content = head + layout.count(0) + (b"\x00" if layout.flexible else b"")
    return len(content).to_bytes(LENGTH_BYTES) + content
