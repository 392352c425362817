"""Fetch requests v4 to v18: reads received frames, and builds the frames that the gateway sends instead.

`fetch_layout.py` has the fields of each version, the tagged ones excepted.
In this module a frame includes its 4-byte length field. Offsets count from the start of the frame.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

import numpy as np

from proxy.protocol.api import API_KEY, REQUEST_CORRELATION_ID
from proxy.protocol.fetch_layout import (
    LAYOUTS,
    PARTITION_BYTES,
    RACK_VERSION,
    SESSION,
    SESSION_VERSION,
    Entries,
    FetchLayout,
)
from proxy.protocol.primitives import (
    UUID_BYTES,
    Malformed,
    Span,
    TagSpan,
    TooMany,
    Truncated,
    read_compact_count,
    read_compact_string,
    read_count,
    read_string,
    read_tags,
    skip_tags,
)

INITIAL_EPOCH: Final = 0
"""The epoch of a full fetch that requests a session."""
SESSIONLESS_EPOCH: Final = -1
FIRST_EPOCH: Final = 1
"""The epoch of the first incremental fetch."""
MAX_EPOCH: Final = 2**31 - 1

_LIMITS = Struct(">iiib")  # max_wait_ms, min_bytes, max_bytes, isolation_level
_MIN_BYTES_AT: Final = 4
"""Offset in the limits. So is `_MAX_BYTES_AT`."""
_MAX_BYTES_AT: Final = 8
_REPLICA_ID = Struct(">i")
CONSUMER: Final = -1
"""The replica id of a consumer."""
_REPLICA_STATE: Final = 1
"""The tag of a request's body that has the replica id, from v15 on."""
_NO_ELEMENTS: Final = b"\x01"
_NO_RACK_NO_TAGS: Final = b"\x01\x00"
MAX_TOPICS: Final = 2048
"""The limit of topic elements in a fetch, and of forgotten ones. Each costs some microseconds."""
MAX_PARTITIONS: Final = 1 << 15
MAX_TAG_BYTES: Final = 1 << 14
"""The limit of tag bytes in the entries and elements of a fetch."""
MAX_NAME: Final = 249
"""The longest topic name that Kafka allows. Longer names are not stored."""
MAX_AROUND: Final = 512
"""The limit for each of two parts of a fetch that may be rewritten: the bytes before the body, and the bytes
from the rack to the end."""
_MAX_BARE_TOPICS: Final = 256
"""The limit of listed topics without partitions. No client has a reason to list these."""
_STRIDE_WORTH: Final = 8
"""From this many topics on, check first whether all topic elements have the same shape."""


@dataclass(slots=True, eq=False)
class Listing:
    """The partitions that a fetch lists, in the order of the fetch."""

    layout: FetchLayout
    keys: list[bytes]
    """Names or ids. Consecutive elements with the same key are merged, as in a broker's response."""
    counts: list[int]
    """The number of entries for each of `keys`."""
    entries: Entries
    """One item of ``layout.request_item`` for each partition."""

    def __len__(self) -> int:
        return len(self.entries)

    def topics(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the key of each topic and the bytes of its entries."""
        done = 0
        for key, count in zip(self.keys, self.counts, strict=True):
            yield key, self.entries[done : done + count].tobytes()
            done += count


class Topics:
    """The ``topics`` of a fetch, with the position of each entry in the frame.

    Fetches that differ only in correlation id, limits and the contents of entries may share one `Topics`.
    """

    __slots__ = ("blocks", "counts", "element", "keys", "layout", "partitions", "tagged")

    def __init__(self, layout: FetchLayout) -> None:
        self.layout = layout
        self.keys: list[bytes] = []
        """As in `Listing`. So is `counts`."""
        self.counts: list[int] = []
        self.blocks: list[tuple[int, int]] = []
        """For each topic element, the offset of its entries in the frame and their number."""
        self.element = 0
        """The size of a topic element if there are many and all have the same shape, otherwise 0. If it is
        not 0, `blocks` has only the first element."""
        self.partitions = 0
        self.tagged = False
        """Whether an entry or an element has tags. If so, the gateway does not read the entries."""

    def listing(self, frame: bytes) -> Listing:
        """Return the listed partitions of a frame. If possible, the entries are a view of the frame."""
        layout = self.layout
        if self.element:
            at, count = self.blocks[0]
            strides = (self.element, layout.request_entry)
            alike = np.ndarray((len(self.keys), count), layout.request_item, frame, at, strides)
            return Listing(layout, self.keys, self.counts, alike.reshape(-1))
        blocks = [np.frombuffer(frame, layout.request_item, count, at) for at, count in self.blocks]
        if len(blocks) == 1:
            entries = blocks[0]
        else:
            entries = np.concatenate(blocks) if blocks else np.zeros(0, layout.request_item)
        return Listing(layout, self.keys, self.counts, entries)


@dataclass(slots=True, eq=False)
class FetchRequest:
    """A parsed fetch request."""

    frame: bytes
    body: int
    """Offset of the body in `frame`."""
    layout: FetchLayout
    max_wait_ms: int
    isolation_level: int
    session_id: int
    """0 below v7, as brokers interpret such a fetch."""
    session_epoch: int
    """-1 below v7, as brokers interpret such a fetch."""
    topics: Topics
    unsupported_reason: str
    """Why the gateway must not rewrite this fetch, or "". See `parse_fetch_request`."""
    forgotten: list[tuple[bytes, bytes]]
    """forgotten_topics_data: topic keys, each with its partition numbers as int32."""
    topics_end: int
    """Offset after the field ``topics``."""
    tail: int
    """Offset of rack and tags, after the forgotten topics."""
    _listing: Listing | None = None

    @property
    def min_bytes(self) -> int:
        at = self.body + self.layout.request_limits + _MIN_BYTES_AT
        return int.from_bytes(self.frame[at : at + 4], signed=True)

    @property
    def max_bytes(self) -> int:
        at = self.body + self.layout.request_limits + _MAX_BYTES_AT
        return int.from_bytes(self.frame[at : at + 4], signed=True)

    @property
    def partitions(self) -> int:
        return self.topics.partitions

    @property
    def listing(self) -> Listing | None:
        """None if the gateway must not rewrite this fetch (`unsupported_reason`)."""
        if self._listing is None and not self.unsupported_reason:
            self._listing = self.topics.listing(self.frame)
        return self._listing

    @property
    def block(self) -> Span | None:
        """Where all entries are in the frame, if they follow one another without a gap."""
        topics = self.topics
        if self.unsupported_reason or topics.element or len(topics.blocks) != 1:
            return None
        at, count = topics.blocks[0]
        return at, at + count * self.layout.request_entry

    def with_frame(self, frame: bytes) -> "FetchRequest":
        """Return a copy of this fetch with another frame.

        The new frame may differ from the old one only in correlation id, limits, entry fields and rack.
        """
        return FetchRequest(
            frame,
            self.body,
            self.layout,
            self.max_wait_ms,
            self.isolation_level,
            self.session_id,
            self.session_epoch,
            self.topics,
            self.unsupported_reason,
            self.forgotten,
            self.topics_end,
            self.tail,
        )

    def with_limits(
        self, *, max_wait_ms: int | None = None, min_bytes: int | None = None, max_bytes: int | None = None
    ) -> "FetchRequest":
        at = self.body + self.layout.request_limits
        wait, least, most, isolation = _LIMITS.unpack_from(self.frame, at)
        limits = _LIMITS.pack(
            wait if max_wait_ms is None else max_wait_ms,
            least if min_bytes is None else min_bytes,
            most if max_bytes is None else max_bytes,
            isolation,
        )
        fetch = self.with_frame(b"".join((self.frame[:at], limits, self.frame[at + _LIMITS.size :])))
        fetch.max_wait_ms = wait if max_wait_ms is None else max_wait_ms
        return fetch

    @property
    def rack_id(self) -> bytes:
        """The rack of the client (KIP-392). Empty if it has none, and below v11."""
        version = self.layout.version
        if version < RACK_VERSION:
            return b""
        if self.layout.flexible:
            return read_compact_string(self.frame, self.tail)[0] or b""
        return read_string(self.frame, self.tail)[0] or b""

    def with_session(self, session_id: int, session_epoch: int) -> bytes:
        """Return the frame with another session id and epoch (v7 and later)."""
        at = self.body + self.layout.request_session
        session = SESSION.pack(session_id, session_epoch)
        return b"".join((self.frame[:at], session, self.frame[at + SESSION.size :]))


def next_epoch(epoch: int) -> int:
    """Return the next epoch (FetchMetadata.nextEpoch; fetch-semantics 2.2).

    After 2^31-1 comes 1, because 0 would request a new session (case 17).
    """
    if epoch < 0:
        return SESSIONLESS_EPOCH
    return FIRST_EPOCH if epoch == MAX_EPOCH else epoch + 1


def no_waiting(fetch: FetchRequest, session: tuple[int, int]) -> bytes:
    """Return a fetch's frame so that the broker answers at once, with one batch at most (KIP-74).

    From v7 on, it has the session id and epoch of `session`.
    """
    layout = fetch.layout
    frame = bytearray(fetch.frame)
    at = fetch.body + layout.request_limits
    _LIMITS.pack_into(frame, at, 0, 0, 1, fetch.isolation_level)
    if layout.version >= SESSION_VERSION:
        SESSION.pack_into(frame, fetch.body + layout.request_session, *session)
    return bytes(frame)


def parse_fetch_request(frame: bytes, version: int, body: int) -> FetchRequest:
    """Parse a complete fetch request, v4 to v18.

    Raises:
        TooMany: the fetch has too many topics, partitions or tags.
        ProtocolError: the body is not a fetch request, or does not end at the end of the frame.
    """
    layout = LAYOUTS[version]
    head_end = body + layout.request_head
    if head_end > len(frame):
        raise Truncated("fetch request", body)
    limits = layout.request_limits
    max_wait_ms, _, _, isolation = _LIMITS.unpack_from(frame, body + limits)
    # Brokers use these values below v7 (fetch-semantics 1.3).
    session_id, epoch = (0, SESSIONLESS_EPOCH)
    if version >= SESSION_VERSION:
        session_id, epoch = SESSION.unpack_from(frame, body + layout.request_session)
    walk = _TopicsWalk(frame, layout)
    topics_end = walk.walk_topics(head_end)
    forgotten, tail = _forgotten(frame, layout, topics_end)
    tags = _tail(frame, layout, tail)
    replica_id = _REPLICA_ID.unpack_from(frame, body)[0] if limits else _replica_in(frame, tags)
    # These strings are values of `Reason` (proxy/session/decision.py), which this lower layer can't import.
    unsupported_reason = ""
    # Followers are privileged and drive the ISR (fetch-semantics, traps 1 and 2; case 90).
    if replica_id != CONSUMER:
        unsupported_reason = "not a consumer"
    elif tags or walk.topics.tagged:
        # No known consumer has tags (fetch-semantics 1.3).
        unsupported_reason = "tags"
    elif forgotten and session_id == 0 and epoch <= 0:
        # A broker ignores forgotten topics in a full fetch (fetch-semantics 2.3); no known client sends any.
        unsupported_reason = "forgets without a session"
    elif walk.long_name or body > MAX_AROUND or len(frame) - tail > MAX_AROUND:
        unsupported_reason = "not looked into"
    return FetchRequest(
        frame,
        body,
        layout,
        max_wait_ms,
        isolation,
        session_id,
        epoch,
        walk.topics,
        unsupported_reason,
        forgotten,
        topics_end,
        tail,
    )


def _tail(frame: bytes, layout: FetchLayout, at: int) -> Sequence[TagSpan]:
    tags: Sequence[TagSpan] = ()
    if layout.flexible and frame[at:] == _NO_RACK_NO_TAGS:
        return tags
    if layout.version >= RACK_VERSION:
        rack, at = (read_compact_string if layout.flexible else read_string)(frame, at)
        if rack is None:
            # Not nullable (fetch-semantics 1.3).
            raise Malformed("rack_id is null")
    if layout.flexible:
        tags, at = read_tags(frame, at)
    if at != len(frame):
        # A broker ignores them (fetch-semantics 1.3). Their meaning is unknown, so the fetch is forwarded.
        raise Malformed(f"{len(frame) - at} bytes after a fetch request")
    return tags


def _replica_in(frame: bytes, tags: Sequence[TagSpan]) -> int:
    """Return the replica id in the tag replica_state (KIP-903: v15 and later), else that of a consumer."""
    for tag, start, end in tags:
        if tag == _REPLICA_STATE and end - start >= _REPLICA_ID.size:
            replica_id: int = _REPLICA_ID.unpack_from(frame, start)[0]
            return replica_id
    return CONSUMER


class _TopicsWalk:
    """Reads the array ``topics`` of a request."""

    __slots__ = ("bare", "frame", "layout", "long_name", "tag_bytes", "topics")

    def __init__(self, frame: bytes, layout: FetchLayout) -> None:
        self.frame = frame
        self.layout = layout
        self.topics = Topics(layout)
        self.bare = 0
        self.tag_bytes = 0
        self.long_name = False
        """Whether a topic's name is longer than Kafka allows."""

    def walk_topics(self, at: int) -> int:
        count, at = (read_compact_count if self.layout.flexible else read_count)(self.frame, at)
        if not count:
            return at
        if count > MAX_TOPICS:
            raise TooMany(f"a fetch of {count} topics")
        end = self.element(at)
        if count >= _STRIDE_WORTH and (same := self._alike(at, end - at, count)):
            return same
        for _ in range(count - 1):
            end = self.element(end)
        return end

    def element(self, at: int) -> int:
        """Read one topic element. Return the offset after it."""
        # Lengths of one byte are read here: with calls, a fetch of 2,000 topics takes five times as long.
        layout, frame, topics = self.layout, self.frame, self.topics
        if (
            layout.flexible
            and not layout.topic_ids
            and 0 < (size := frame[at] if at < len(frame) else 0) < 0x80
        ):
            key, at = frame[at + 1 : at + size], at + size
        else:
            key, at = _read_key(frame, layout, at)
        if layout.flexible and 0 < (short := frame[at] if at < len(frame) else 0) < 0x80:
            count, at = short - 1, at + 1
        else:
            count, at = self._count(at)
        size = layout.request_entry
        end = at + count * size
        if topics.partitions + count > MAX_PARTITIONS:
            raise TooMany(f"a fetch of more than {MAX_PARTITIONS} partitions")
        if len(key) > MAX_NAME:
            self.long_name = True
        if layout.flexible:
            # Each entry and the element end with an empty tag buffer (fetch-semantics, trap 46).
            if end < len(frame) and frame[at + size - 1 : end : size].count(0) == count and not frame[end]:
                end += 1
            else:
                return self._tagged(at, count)
        elif end > len(frame):
            raise Truncated("fetch request", at)
        # A broker's response has no topic element without partitions (fetch-semantics 2.5).
        if not count:
            self.bare += 1
            if self.bare > _MAX_BARE_TOPICS:
                raise Malformed(f"a fetch of {self.bare} topics without partitions")
            return end
        topics.partitions += count
        # Neighbours of one topic share an element in the response (fetch-semantics 2.5, case 36).
        if topics.keys and topics.keys[-1] == key:
            topics.counts[-1] += count
        else:
            topics.keys.append(key)
            topics.counts.append(count)
        topics.blocks.append((at, count))
        return end

    def _count(self, at: int) -> tuple[int, int]:
        count, at = (read_compact_count if self.layout.flexible else read_count)(self.frame, at)
        if count is None:
            raise Malformed("partitions are null")
        return count, at

    def _tagged(self, at: int, count: int) -> int:
        self.topics.tagged = True
        self.topics.partitions += count
        for _ in range(count):
            at = self._skip_tags(at + self.layout.request_entry - 1)
        return self._skip_tags(at)

    def _skip_tags(self, at: int) -> int:
        end = skip_tags(self.frame, at)[1]
        self.tag_bytes += end - at
        if self.tag_bytes > MAX_TAG_BYTES:
            raise TooMany(f"a fetch with more than {MAX_TAG_BYTES} bytes of tags")
        return end

    def _alike(self, start: int, size: int, count: int) -> int:
        """Read all topic elements at once. Return the offset after the last one.

        Return 0 if the shapes of the elements differ, or if a topic occurs twice.
        """
        topics, frame, layout = self.topics, self.frame, self.layout
        if topics.tagged or not topics.keys:
            return 0
        each = topics.counts[0]
        end = start + count * size
        if count * each > MAX_PARTITIONS:
            raise TooMany(f"a fetch of more than {MAX_PARTITIONS} partitions")
        key_size = len(topics.keys[0])
        prefix = layout.prefix_size(topics.keys[0], each)
        key_at = 0 if layout.topic_ids else prefix - key_size - len(layout.count(each))
        if end > len(frame):
            return 0
        fixed = [*range(key_at), *range(key_at + key_size, prefix)]
        if layout.flexible:
            entry = layout.request_entry
            fixed += [*range(prefix + entry - 1, size, entry), size - 1]
        if any(frame[start + i : end : size] != frame[start + i : start + i + 1] * count for i in fixed):
            return 0
        keys: list[bytes] = np.ndarray((count,), f"V{key_size}", frame, start + key_at, (size,)).tolist()
        if len(set(keys)) != count:
            return 0
        topics.keys, topics.counts, topics.partitions = keys, [each] * count, count * each
        topics.element = size
        return end


def _read_key(frame: bytes, layout: FetchLayout, at: int) -> tuple[bytes, int]:
    if layout.topic_ids:
        if at + UUID_BYTES > len(frame):
            raise Truncated("topic id", at)
        return frame[at : at + UUID_BYTES], at + UUID_BYTES
    key, at = (read_compact_string if layout.flexible else read_string)(frame, at)
    if key is None:
        raise Malformed("topic is null")
    return key, at


def _forgotten(frame: bytes, layout: FetchLayout, at: int) -> tuple[list[tuple[bytes, bytes]], int]:
    found: list[tuple[bytes, bytes]] = []
    if layout.version < SESSION_VERSION:
        return found, at
    if layout.flexible and frame[at : at + 1] == _NO_ELEMENTS:
        return found, at + 1
    read = read_compact_count if layout.flexible else read_count
    topics, at = read(frame, at)
    if topics is not None and topics > MAX_TOPICS:
        raise TooMany(f"a fetch that forgets {topics} topics")
    for _ in range(topics or 0):
        key, at = _read_key(frame, layout, at)
        count, at = read(frame, at)
        end = at + PARTITION_BYTES * (count or 0)
        if end > len(frame):
            raise Truncated("forgotten topics", at)
        found.append((key, frame[at:end]))
        at = skip_tags(frame, end)[1] if layout.flexible else end
    return found, at


def build_fetch_request(
    request: FetchRequest,
    layout: FetchLayout,
    session: tuple[int, int],
    topics: Iterable[tuple[bytes, bytes]] = (),
    forgotten: Iterable[tuple[bytes, bytes]] = (),
) -> bytes:
    """Return a frame of a fetch with other partitions. Header, limits and rack are those of `request`.

    `layout` is that of the request, or v7 for a request of v4 to v6. `session` is the session id (0: none),
    and the epoch (0: create a session; -1: use none, or close it). Each element of `topics` has the topic's
    key and the bytes of the entries, each of `forgotten` has it and the partition numbers as int32. Below v7
    there are no session and no forgotten topics.
    """
    frame, body = request.frame, request.body
    in_session = layout.version >= SESSION_VERSION
    end = b"\x00" if layout.flexible else b""
    listed = [layout.prefix(key, len(block) // layout.request_entry) + block + end for key, block in topics]
    dropped = [layout.prefix(key, len(block) // PARTITION_BYTES) + block + end for key, block in forgotten]
    limits_end = body + request.layout.request_session
    parts = [
        frame[API_KEY],
        layout.version.to_bytes(2),
        frame[REQUEST_CORRELATION_ID.start : limits_end],
        SESSION.pack(*session) if in_session else b"",
        layout.count(len(listed)),
        *listed,
        layout.count(len(dropped)) if in_session else b"",
        *dropped,
        frame[request.tail :],
    ]
    content = b"".join(parts)
    return len(content).to_bytes(4) + content
