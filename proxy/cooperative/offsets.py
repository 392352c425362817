"""Committed offsets on the wire: OffsetCommit v2 to v9, TxnOffsetCommit v0 to v5 and OffsetFetch v1 to v9.

Later versions name topics by id, and are not offered to a member. A frame is whole here, with its 4-byte
length. Requests and responses are read into `Entry` objects, and written again with others: commits are rare.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from typing import Final

from proxy.cooperative.fields import Reader, Writer, framed
from proxy.cooperative.positions import Place
from proxy.protocol.api import (
    LENGTH_BYTES,
    REQUEST_CORRELATION_ID,
    ApiKey,
    is_flexible,
    request_header,
    response_header,
)
from proxy.protocol.primitives import NO_TAGS, encode_string

NO_OFFSET: Final = -1
NO_EPOCH: Final = -1


@dataclass(frozen=True, slots=True)
class Entry:
    """What is committed of a partition, or what is said of that."""

    topic: bytes
    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH
    metadata: bytes | None = None
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class Commit:
    """An OffsetCommit or TxnOffsetCommit request."""

    frame: bytes
    api_key: int
    version: int
    group: bytes
    generation: int
    member_id: bytes
    entries: tuple[Entry, ...]
    topics_at: int
    """Offset of ``topics`` in the frame; all before it stays as it is."""

    @property
    def places(self) -> list[Place]:
        """The partitions for which it commits."""
        return [(entry.topic, entry.partition) for entry in self.entries]

    @property
    def flexible(self) -> bool:
        """Whether it has compact lengths and tags."""
        return bool(is_flexible(self.api_key, self.version))

    def with_entries(self, entries: Iterable[Entry]) -> bytes:
        """Return the request with other entries."""
        writer = Writer(self.api_key, self.version)
        _write(writer, entries, _committed)
        writer.tags()
        return framed(self.frame[LENGTH_BYTES : self.topics_at] + writer.content)

    def response(self, errors: Sequence[int]) -> bytes:
        """Return the response that has an error code for each entry, in their order."""
        writer = Writer(self.api_key, self.version)
        if self.api_key == ApiKey.TXN_OFFSET_COMMIT or self.version >= _THROTTLED_SINCE:
            writer.content += bytes(4)
        said = [replace(entry, error_code=error) for entry, error in zip(self.entries, errors, strict=True)]
        _write(writer, said, _answered)
        writer.tags()
        head = self.frame[REQUEST_CORRELATION_ID] + (NO_TAGS if writer.flexible else b"")
        return framed(head + writer.content)


_THROTTLED_SINCE: Final = 3
"""OffsetCommit and OffsetFetch: throttle_time_ms stands first from here on."""


def read_commit(frame: bytes) -> Commit:
    """Read an OffsetCommit request of v2 to v9, or a TxnOffsetCommit request of v0 to v5.

    Raises:
        ProtocolError: it is none.
    """
    api_key, version, _, _, body = request_header(frame, LENGTH_BYTES)
    reader = Reader(frame, body, api_key, version)
    generation, member_id = NO_EPOCH, b""
    if api_key == ApiKey.OFFSET_COMMIT:
        group = reader.string()
        generation, member_id = reader.int32(), reader.string()
        if version >= 7:  # KIP-345: group_instance_id
            reader.nullable()
        if version <= 4:  # retention_time_ms
            reader.skip(8)
        epochs_since = 6
    else:
        reader.string()  # transactional_id
        group = reader.string()
        reader.skip(10)  # producer_id and producer_epoch
        if version >= 3:  # KIP-447
            generation, member_id = reader.int32(), reader.string()
            reader.nullable()
        epochs_since = 2
    topics_at = reader.at
    entries: list[Entry] = []
    for _ in range(reader.count() or 0):
        topic = reader.string()
        for _ in range(reader.count() or 0):
            partition, offset = reader.int32(), reader.int64()
            epoch = reader.int32() if version >= epochs_since else NO_EPOCH
            entries.append(Entry(topic, partition, offset, epoch, reader.nullable()))
            reader.tags()
        reader.tags()
    reader.tags()
    reader.end()
    return Commit(frame, api_key, version, group, generation, member_id, tuple(entries), topics_at)


def read_answered(frame: bytes, commit: Commit) -> list[Entry]:
    """Read the response to an OffsetCommit: the error code of each partition.

    Raises:
        ProtocolError: it is none.
    """
    _, body = response_header(frame, LENGTH_BYTES, commit.api_key, commit.version)
    reader = Reader(frame, body, commit.api_key, commit.version)
    if commit.version >= _THROTTLED_SINCE:
        reader.skip(4)
    found: list[Entry] = []
    for _ in range(reader.count() or 0):
        topic = reader.string()
        for _ in range(reader.count() or 0):
            found.append(Entry(topic, reader.int32(), error_code=reader.int16()))
            reader.tags()
        reader.tags()
    reader.tags()
    reader.end()
    return found


def _committed(writer: Writer, entry: Entry) -> None:
    writer.content += entry.partition.to_bytes(4) + entry.offset.to_bytes(8, signed=True)
    if writer.version >= (6 if writer.api_key == ApiKey.OFFSET_COMMIT else 2):
        writer.content += entry.leader_epoch.to_bytes(4, signed=True)
    writer.string(entry.metadata)


def _answered(writer: Writer, entry: Entry) -> None:
    writer.content += entry.partition.to_bytes(4) + entry.error_code.to_bytes(2, signed=True)


@dataclass(frozen=True, slots=True)
class FetchedGroup:
    """What an OffsetFetch response says of one group, or what a request asks of it."""

    group: bytes
    entries: tuple[Entry, ...] = ()
    error_code: int = 0
    everything: bool = False
    """Of a request: it asks for all partitions of the group."""


@dataclass(slots=True)
class OffsetFetch:
    """An OffsetFetch request: what it asks, group by group (one group up to v7)."""

    frame: bytes
    version: int
    groups: list[FetchedGroup] = field(default_factory=list)


GROUPS_SINCE: Final = 8
"""KIP-709: several groups in one OffsetFetch."""
_EPOCHS_SINCE: Final = 5
"""leader_epoch in OffsetFetch responses."""


def read_offset_fetch(frame: bytes) -> OffsetFetch:
    """Read an OffsetFetch request of v1 to v9.

    Raises:
        ProtocolError: it is none.
    """
    api_key, version, _, _, body = request_header(frame, LENGTH_BYTES)
    reader = Reader(frame, body, api_key, version)
    found = OffsetFetch(frame, version)
    for _ in range((reader.count() or 0) if version >= GROUPS_SINCE else 1):
        group = reader.string()
        if version >= 9:  # KIP-848: member_id and member_epoch
            reader.nullable()
            reader.skip(4)
        topics = reader.count()
        entries: list[Entry] = []
        for _ in range(topics or 0):
            topic = reader.string()
            entries += [Entry(topic, reader.int32()) for _ in range(reader.count() or 0)]
            reader.tags()
        if version >= GROUPS_SINCE:
            reader.tags()
        found.groups.append(FetchedGroup(group, tuple(entries), everything=topics is None))
    if version >= 7:  # KIP-447: require_stable
        reader.skip(1)
    reader.tags()
    reader.end()
    return found


@dataclass(frozen=True, slots=True)
class FetchedOffsets:
    """An OffsetFetch response."""

    frame: bytes
    version: int
    groups_at: int
    """Offset after throttle_time_ms; all before it stays as it is."""
    groups: tuple[FetchedGroup, ...]
    """Up to v7 there is one, whose name is b""."""

    def with_groups(self, groups: Iterable[FetchedGroup]) -> bytes:
        """Return the response with other entries."""
        writer = Writer(int(ApiKey.OFFSET_FETCH), self.version)
        said = list(groups)
        if self.version >= GROUPS_SINCE:
            writer.count(len(said))
        for group in said:
            if self.version >= GROUPS_SINCE:
                writer.string(group.group)
            _write(writer, group.entries, _fetched)
            if self.version >= 2:
                writer.content += group.error_code.to_bytes(2, signed=True)
            if self.version >= GROUPS_SINCE:
                writer.tags()
        writer.tags()
        return framed(self.frame[LENGTH_BYTES : self.groups_at] + writer.content)


def read_fetched_offsets(frame: bytes, version: int) -> FetchedOffsets:
    """Read the response to an OffsetFetch of v1 to v9.

    Raises:
        ProtocolError: it is none.
    """
    _, body = response_header(frame, LENGTH_BYTES, ApiKey.OFFSET_FETCH, version)
    reader = Reader(frame, body, int(ApiKey.OFFSET_FETCH), version)
    if version >= _THROTTLED_SINCE:
        reader.skip(4)
    groups_at = reader.at
    groups: list[FetchedGroup] = []
    for _ in range((reader.count() or 0) if version >= GROUPS_SINCE else 1):
        group = reader.string() if version >= GROUPS_SINCE else b""
        entries: list[Entry] = []
        for _ in range(reader.count() or 0):
            topic = reader.string()
            for _ in range(reader.count() or 0):
                partition, offset = reader.int32(), reader.int64()
                epoch = reader.int32() if version >= _EPOCHS_SINCE else NO_EPOCH
                metadata = reader.nullable()
                entries.append(Entry(topic, partition, offset, epoch, metadata, reader.int16()))
                reader.tags()
            reader.tags()
        error = reader.int16() if version >= 2 else 0
        if version >= GROUPS_SINCE:
            reader.tags()
        groups.append(FetchedGroup(group, tuple(entries), error))
    reader.tags()
    reader.end()
    return FetchedOffsets(frame, version, groups_at, tuple(groups))


def _fetched(writer: Writer, entry: Entry) -> None:
    writer.content += entry.partition.to_bytes(4) + entry.offset.to_bytes(8, signed=True)
    if writer.version >= _EPOCHS_SINCE:
        writer.content += entry.leader_epoch.to_bytes(4, signed=True)
    writer.string(entry.metadata)
    writer.content += entry.error_code.to_bytes(2, signed=True)


ASKS: Final = 2
FLEXIBLE_ASKS: Final = 6
"""The versions of `offset_fetch`. Every broker that takes the commit, flexible or not, takes these."""


def offset_fetch(commit: Commit, correlation_id: bytes) -> bytes:
    """Return an OffsetFetch request for what is stored of a commit's partitions."""
    flexible = commit.flexible
    writer = Writer(int(ApiKey.OFFSET_FETCH), FLEXIBLE_ASKS if flexible else ASKS)
    _, _, _, client_id, _ = request_header(commit.frame, LENGTH_BYTES)
    writer.content += writer.api_key.to_bytes(2) + writer.version.to_bytes(2)
    writer.content += correlation_id + encode_string(client_id) + (NO_TAGS if flexible else b"")
    writer.string(commit.group)
    _write(writer, commit.entries, lambda writer, entry: writer.number(entry.partition), tagged=False)
    writer.tags()
    return framed(bytes(writer.content))


def _write(
    writer: Writer, entries: Iterable[Entry], write: Callable[[Writer, Entry], None], *, tagged: bool = True
) -> None:
    """Write topics and their partitions; neighbours of one topic share an element."""
    topics = [(topic, list(some)) for topic, some in groupby(entries, attrgetter("topic"))]
    writer.count(len(topics))
    for topic, some in topics:
        writer.string(topic)
        writer.count(len(some))
        for entry in some:
            write(writer, entry)
            if tagged:
                writer.tags()
        writer.tags()
