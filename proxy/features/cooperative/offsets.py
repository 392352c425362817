"""Committed offsets on the wire: OffsetCommit v2 to v9, TxnOffsetCommit v0 to v5 and OffsetFetch v1 to v9.

Later versions of OffsetCommit and OffsetFetch name topics by id, and are not offered. Frames are complete,
with their 4-byte length. If one can't be read, a function raises ProtocolError. Commits are rare, so reading
and encoding them with `Entry` objects is fast enough.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

from proxy.features.cooperative.positions import TopicPartition
from proxy.features.cooperative.wire import read_request, read_response, string
from proxy.protocol import schemas
from proxy.protocol.api import (
    LENGTH_BYTES,
    REQUEST_CORRELATION_ID,
    ApiKey,
    is_flexible,
    request_header,
)
from proxy.protocol.messages import Struct, request, response, with_fields

NO_OFFSET: Final = -1
NO_EPOCH: Final = -1


@dataclass(frozen=True, slots=True)
class Entry:
    """The committed offset of a partition, in a request or response."""

    topic: bytes
    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH
    metadata: bytes | None = None
    error_code: int = 0

    @property
    def place(self) -> TopicPartition:
        return self.topic, self.partition


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
    message: Struct

    @property
    def places(self) -> list[TopicPartition]:
        return [entry.place for entry in self.entries]

    def with_entries(self, entries: Iterable[Entry]) -> bytes:
        return with_fields(self.frame, self.message, topics=_topics(entries))

    def without(self, frame: bytes, topic: bytes) -> bytes:
        """Return a response to the request without the entries of a topic."""
        message = read_response(_COMMITS[self.api_key], frame, self.api_key, self.version)
        return with_fields(
            frame, message, topics=[each for each in message["topics"] if each["name"] != topic]
        )

    def response(self, errors: Sequence[int]) -> bytes:
        said = [replace(entry, error_code=error) for entry, error in zip(self.entries, errors, strict=True)]
        schema, correlation_id = _COMMITS[self.api_key], self.frame[REQUEST_CORRELATION_ID]
        return response(
            schema, self.api_key, self.version, correlation_id, throttle_time_ms=0, topics=_topics(said)
        )


_COMMITS: Final = {
    int(ApiKey.OFFSET_COMMIT): schemas.OFFSET_COMMIT,
    int(ApiKey.TXN_OFFSET_COMMIT): schemas.TXN_OFFSET_COMMIT,
}
"""The schema of the response, by API key."""


def read_commit(frame: bytes) -> Commit:
    """Read an OffsetCommit or TxnOffsetCommit request."""
    request = read_request(frame)
    found = request.message
    return Commit(
        frame=frame,
        api_key=request.api_key,
        version=request.version,
        group=string(found, "group_id"),
        generation=found.get("generation_id", NO_EPOCH),
        member_id=string(found, "member_id") if "member_id" in found else b"",
        entries=tuple(_entries(found)),
        message=found,
    )


def read_answered(frame: bytes, commit: Commit) -> list[Entry]:
    """Read the response to a commit: the error code of each partition."""
    schema = _COMMITS[commit.api_key]
    return list(_entries(read_response(schema, frame, commit.api_key, commit.version)))


def _entries(message: Struct) -> Iterator[Entry]:
    for topic in message["topics"] or ():
        name = string(topic, "name")
        for each in topic["partitions"] or ():
            yield Entry(
                name,
                each["partition_index"],
                each.get("committed_offset", NO_OFFSET),
                each.get("committed_leader_epoch", NO_EPOCH),
                each.get("committed_metadata", each.get("metadata")),
                each.get("error_code", 0),
            )


def _topics(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Return the values of ``topics`` in a commit, its response, or a response to OffsetFetch."""
    # Only neighbouring entries of the same topic share an element.
    return [
        {"name": topic, "partitions": [_values(entry) for entry in some]}
        for topic, some in groupby(entries, attrgetter("topic"))
    ]


def _values(entry: Entry) -> dict[str, Any]:
    return {
        "partition_index": entry.partition,
        "committed_offset": entry.offset,
        "committed_leader_epoch": entry.leader_epoch,
        "committed_metadata": entry.metadata,
        "metadata": entry.metadata,
        "error_code": entry.error_code,
    }


@dataclass(frozen=True, slots=True)
class FetchedGroup:
    """One group in an OffsetFetch request or response."""

    group: bytes
    entries: tuple[Entry, ...] = ()
    error_code: int = 0
    everything: bool = False
    """Whether the request is for all partitions of the group."""


ERRORS_SINCE: Final = 2
"""The lowest version of OffsetFetch whose response has an error code for a whole group."""
GROUPS_SINCE: Final = 8
"""The lowest version of OffsetFetch with several groups (KIP-709)."""


@dataclass(frozen=True, slots=True)
class OffsetFetch:
    """An OffsetFetch request or response."""

    frame: bytes
    version: int
    message: Struct
    groups: tuple[FetchedGroup, ...]
    """Up to v7 there is one group. In a response, it has no name."""

    def refused(self, group: FetchedGroup, error_code: int) -> FetchedGroup:
        """Return one of the groups with an error, as a broker responds if it can't read the group."""
        if self.version >= ERRORS_SINCE:
            return replace(group, entries=(), error_code=error_code)
        entries = (replace(entry, offset=NO_OFFSET, error_code=error_code) for entry in group.entries)
        return replace(group, entries=tuple(entries))

    def with_groups(self, groups: Iterable[FetchedGroup]) -> bytes:
        said: list[dict[str, Any]] = [
            {
                "group_id": group.group,
                "topics": _topics(group.entries),
                "error_code": group.error_code,
            }
            for group in groups
        ]
        if self.version >= GROUPS_SINCE:
            return with_fields(self.frame, self.message, groups=said)
        (one,) = said
        return with_fields(self.frame, self.message, topics=one["topics"], error_code=one["error_code"])


def read_offset_fetch(frame: bytes) -> OffsetFetch:
    """Read an OffsetFetch request."""
    request = read_request(frame)
    groups = []
    for group in _groups(request.message, request.version):
        entries = tuple(
            Entry(string(topic, "name"), partition)
            for topic in group["topics"] or ()
            for partition in topic["partition_indexes"] or ()
        )
        everything = group["topics"] is None
        groups.append(FetchedGroup(string(group, "group_id"), entries, everything=everything))
    return OffsetFetch(frame, request.version, request.message, tuple(groups))


def read_fetched_offsets(frame: bytes, version: int) -> OffsetFetch:
    """Read the response to an OffsetFetch request."""
    message = read_response(schemas.OFFSET_FETCH, frame, ApiKey.OFFSET_FETCH, version)
    groups = [
        FetchedGroup(
            string(group, "group_id") if "group_id" in group else b"",
            tuple(_entries(group)),
            group.get("error_code", 0),
        )
        for group in _groups(message, version)
    ]
    return OffsetFetch(frame, version, message, tuple(groups))


def _groups(message: Struct, version: int) -> Sequence[Struct]:
    return (message["groups"] or ()) if version >= GROUPS_SINCE else (message,)


ASKS: Final = 2
FLEXIBLE_ASKS: Final = 6
"""The versions of OffsetFetch that `offset_fetch` sends: one after flexible requests, one after others. If a
broker supports the version of the client's request, it also supports this version."""
_COMMITS_AS: Final = 2
_FLEXIBLE_COMMITS_AS: Final = 8
"""The versions of OffsetCommit that `offset_commit` makes, in the same way."""


class Sender(NamedTuple):
    """The client's request in whose place the gateway sends one of its own."""

    correlation_id: int
    client_id: bytes | None
    flexible: bool

    @property
    def asks(self) -> int:
        return FLEXIBLE_ASKS if self.flexible else ASKS


def sender_of(frame: bytes) -> Sender:
    """Return a client's request as the place for requests of the gateway."""
    api_key, version, correlation_id, client_id, _ = request_header(frame, LENGTH_BYTES)
    return Sender(correlation_id, client_id, bool(is_flexible(api_key, version)))


def offset_fetch(sender: Sender, group: bytes, places: Iterable[TopicPartition]) -> bytes:
    """Return an OffsetFetch request for some partitions."""
    topics = [
        {"name": topic, "partition_indexes": [partition for _, partition in some]}
        for topic, some in groupby(places, itemgetter(0))
    ]
    return request(
        schemas.OFFSET_FETCH_REQUEST,
        ApiKey.OFFSET_FETCH,
        sender.asks,
        sender.correlation_id,
        sender.client_id,
        group_id=group,
        topics=topics,
    )


def offset_commit(
    sender: Sender,
    group: bytes,
    generation: int,
    member_id: bytes,
    instance: bytes | None,
    entries: Iterable[Entry],
) -> bytes:
    """Return an OffsetCommit request of a member, to be sent before the client's request `sender`."""
    return request(
        schemas.OFFSET_COMMIT_REQUEST,
        ApiKey.OFFSET_COMMIT,
        _FLEXIBLE_COMMITS_AS if sender.flexible else _COMMITS_AS,
        sender.correlation_id,
        sender.client_id,
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance,
        retention_time_ms=-1,
        topics=_topics(entries),
    )
