"""How members join a group, on the wire: JoinGroup v0 to v9, SyncGroup v0 to v5, and what is in them.

One protocol, `PROTOCOL`, is put in front of those that a member offers. A coordinator picks a protocol that
all members have. So a group shares partitions if all its members are behind the gateway; else it is a plain
group.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from proxy.cooperative.fields import Reader, Writer, framed
from proxy.cooperative.plan import Joined, Lanes
from proxy.cooperative.positions import Place
from proxy.protocol.api import (
    LENGTH_BYTES,
    REQUEST_CORRELATION_ID,
    ApiKey,
    request_header,
    response_header,
)
from proxy.protocol.primitives import Malformed

PROTOCOL: Final = b"fetchgate.keyrange.1"
CONSUMER: Final = b"consumer"
_JOIN, _SYNC = int(ApiKey.JOIN_GROUP), int(ApiKey.SYNC_GROUP)
_THROTTLED_HEARTBEAT: Final = 1
_REBALANCING: Final = 27
_OWNED_SINCE: Final = 1
"""Subscriptions of this version and later name the partitions that their client has."""
_OFFER: Final = b"fgj1"
_LANES: Final = b"fgk1"
_RANGE: Final = Struct(">II")


# JoinGroup


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup request."""

    frame: bytes
    version: int
    group: bytes
    session_ms: int
    member_id: bytes
    protocol_type: bytes
    protocols: tuple[tuple[bytes, bytes], ...]
    """Name and metadata of each, the one that is liked best first."""
    protocols_at: int
    protocols_end: int

    def with_offer(self, offer: bytes) -> bytes:
        """Return the request with `PROTOCOL` in front of the others."""
        writer = Writer(_JOIN, self.version)
        writer.count(len(self.protocols) + 1)
        for name, metadata in ((PROTOCOL, offer), *self.protocols):
            writer.string(name)
            writer.data(metadata)
            writer.tags()
        head, tail = self.frame[LENGTH_BYTES : self.protocols_at], self.frame[self.protocols_end :]
        return framed(head + bytes(writer.content) + tail)


def read_join(frame: bytes) -> Join:
    """Read a JoinGroup request.

    Raises:
        ProtocolError: it is none.
    """
    _, version, _, _, body = request_header(frame, LENGTH_BYTES)
    reader = Reader(frame, body, _JOIN, version)
    group, session_ms = reader.string(), reader.int32()
    if version >= 1:
        reader.skip(4)  # rebalance_timeout_ms
    member_id = reader.string()
    if version >= 5:
        reader.nullable()  # group_instance_id (KIP-345)
    protocol_type = reader.string()
    at = reader.at
    protocols = []
    for _ in range(reader.count() or 0):
        protocols.append((reader.string(), reader.data() or b""))
        reader.tags()
    end = reader.at
    return Join(frame, version, group, session_ms, member_id, protocol_type, tuple(protocols), at, end)


@dataclass(frozen=True, slots=True)
class JoinedGroup:
    """A JoinGroup response."""

    frame: bytes
    version: int
    error_code: int
    generation: int
    protocol: bytes
    leader: bytes
    member_id: bytes
    skips: bool
    """The leader is not to assign anything (KIP-814)."""
    members: tuple[tuple[bytes, bytes | None, bytes], ...]
    """Of the leader's: member id, group_instance_id and metadata."""
    name_at: int
    name_end: int
    members_at: int

    def renamed(self, protocol: bytes, members: Sequence[tuple[bytes, bytes | None, bytes]]) -> bytes:
        """Return the response with another protocol, and other metadata of the members."""
        name, rest = Writer(_JOIN, self.version), Writer(_JOIN, self.version)
        name.string(protocol)
        rest.count(len(members))
        for member_id, instance, metadata in members:
            rest.string(member_id)
            if self.version >= 5:
                rest.string(instance)
            rest.data(metadata)
            rest.tags()
        rest.tags()
        head, middle = self.frame[LENGTH_BYTES : self.name_at], self.frame[self.name_end : self.members_at]
        return framed(b"".join((head, name.content, middle, rest.content)))


def read_joined(frame: bytes, version: int) -> JoinedGroup:
    """Read a JoinGroup response.

    Raises:
        ProtocolError: it is none.
    """
    _, body = response_header(frame, LENGTH_BYTES, ApiKey.JOIN_GROUP, version)
    reader = Reader(frame, body, _JOIN, version)
    if version >= 2:
        reader.skip(4)  # throttle_time_ms
    error, generation = reader.int16(), reader.int32()
    if version >= 7:
        reader.nullable()  # protocol_type
    name_at = reader.at
    protocol = reader.nullable() or b""
    name_end = reader.at
    leader = reader.string()
    skips = bool(reader.int8()) if version >= 9 else False
    member_id = reader.string()
    members_at = reader.at
    members = []
    for _ in range(reader.count() or 0):
        one = reader.string()
        instance = reader.nullable() if version >= 5 else None
        members.append((one, instance, reader.data() or b""))
        reader.tags()
    reader.tags()
    reader.end()
    return JoinedGroup(
        frame,
        version,
        error,
        generation,
        protocol,
        leader,
        member_id,
        skips,
        tuple(members),
        name_at,
        name_end,
        members_at,
    )


# SyncGroup


@dataclass(frozen=True, slots=True)
class Sync:
    """A SyncGroup request."""

    frame: bytes
    version: int
    group: bytes
    generation: int
    member_id: bytes
    instance: bytes | None
    """group_instance_id (KIP-345)."""
    protocol: bytes
    """The client's own; b"" below v5."""
    assignments: tuple[tuple[bytes, bytes], ...]
    name_at: int
    """0: the version has no protocol name."""
    name_end: int
    assignments_at: int

    def with_assignments(self, assignments: Sequence[tuple[bytes, bytes]]) -> bytes:
        """Return the request of `PROTOCOL`, with other assignments."""
        name, rest = Writer(_SYNC, self.version), Writer(_SYNC, self.version)
        rest.count(len(assignments))
        for member_id, assignment in assignments:
            rest.string(member_id)
            rest.data(assignment)
            rest.tags()
        rest.tags()
        if not self.name_at:
            return framed(self.frame[LENGTH_BYTES : self.assignments_at] + bytes(rest.content))
        name.string(PROTOCOL)
        head, middle = (
            self.frame[LENGTH_BYTES : self.name_at],
            self.frame[self.name_end : self.assignments_at],
        )
        return framed(b"".join((head, name.content, middle, rest.content)))


def read_sync(frame: bytes) -> Sync:
    """Read a SyncGroup request.

    Raises:
        ProtocolError: it is none.
    """
    _, version, _, _, body = request_header(frame, LENGTH_BYTES)
    reader = Reader(frame, body, _SYNC, version)
    group, generation, member_id = reader.string(), reader.int32(), reader.string()
    instance = reader.nullable() if version >= 3 else None
    name_at = name_end = 0
    protocol = b""
    if version >= 5:
        reader.nullable()  # protocol_type
        name_at = reader.at
        protocol = reader.nullable() or b""
        name_end = reader.at
    at = reader.at
    assignments = []
    for _ in range(reader.count() or 0):
        assignments.append((reader.string(), reader.data() or b""))
        reader.tags()
    reader.tags()
    reader.end()
    return Sync(
        frame,
        version,
        group,
        generation,
        member_id,
        instance,
        protocol,
        tuple(assignments),
        name_at,
        name_end,
        at,
    )


@dataclass(frozen=True, slots=True)
class Synced:
    """A SyncGroup response."""

    frame: bytes
    version: int
    error_code: int
    protocol: bytes
    assignment: bytes
    name_at: int
    name_end: int
    assignment_at: int

    def renamed(self, protocol: bytes, assignment: bytes) -> bytes:
        """Return the response with another protocol and assignment."""
        name, rest = Writer(_SYNC, self.version), Writer(_SYNC, self.version)
        rest.data(assignment)
        rest.tags()
        if not self.name_at:
            return framed(self.frame[LENGTH_BYTES : self.assignment_at] + bytes(rest.content))
        name.string(protocol)
        head, middle = self.frame[LENGTH_BYTES : self.name_at], self.frame[self.name_end : self.assignment_at]
        return framed(b"".join((head, name.content, middle, rest.content)))


def read_synced(frame: bytes, version: int) -> Synced:
    """Read a SyncGroup response.

    Raises:
        ProtocolError: it is none.
    """
    _, body = response_header(frame, LENGTH_BYTES, ApiKey.SYNC_GROUP, version)
    reader = Reader(frame, body, _SYNC, version)
    if version >= 1:
        reader.skip(4)  # throttle_time_ms
    error = reader.int16()
    name_at = name_end = 0
    protocol = b""
    if version >= 5:
        reader.nullable()  # protocol_type
        name_at = reader.at
        protocol = reader.nullable() or b""
        name_end = reader.at
    at = reader.at
    assigned = reader.data() or b""
    reader.tags()
    reader.end()
    return Synced(frame, version, error, protocol, assigned, name_at, name_end, at)


# Heartbeat


def heartbeat_member(frame: bytes) -> bytes:
    """Return the member id in a Heartbeat request.

    Raises:
        ProtocolError: it is none.
    """
    _, version, _, _, body = request_header(frame, LENGTH_BYTES)
    reader = Reader(frame, body, int(ApiKey.HEARTBEAT), version)
    reader.string()  # group_id
    reader.int32()  # generation_id
    return reader.string()


def heartbeat_error(frame: bytes, version: int) -> int:
    """Return the error code of a Heartbeat response.

    Raises:
        ProtocolError: it is none.
    """
    _, body = response_header(frame, LENGTH_BYTES, ApiKey.HEARTBEAT, version)
    reader = Reader(frame, body, int(ApiKey.HEARTBEAT), version)
    if version >= _THROTTLED_HEARTBEAT:
        reader.skip(4)  # throttle_time_ms
    return reader.int16()


def rejoin(request: bytes) -> bytes:
    """Return the response to a Heartbeat that has its member join again: REBALANCE_IN_PROGRESS."""
    _, version, _, _, _ = request_header(request, LENGTH_BYTES)
    writer = Writer(int(ApiKey.HEARTBEAT), version)
    writer.content += request[REQUEST_CORRELATION_ID]
    writer.tags()
    writer.content += bytes(4) if version >= _THROTTLED_HEARTBEAT else b""
    writer.content += _REBALANCING.to_bytes(2)
    writer.tags()
    return framed(bytes(writer.content))


# What `PROTOCOL` carries


@dataclass(frozen=True, slots=True)
class Offer:
    """The metadata of `PROTOCOL` in a JoinGroup request."""

    gateway: bytes
    """The process through which the member comes."""
    binding: bytes
    """What its fetches are known by: host and client.id."""
    planned: Mapping[Place, int]
    held: Lanes
    unknown: bool
    keeps: bool
    """See `Joined` for these four."""
    own: bytes
    """The metadata of the first protocol of its own."""

    def encoded(self) -> bytes:
        """Return it as the user data of a consumer's subscription to the same topics.

        A broker of 4.0 or later reads the subscriptions of all members, and completes no rebalance of a group
        in which it can't.

        Raises:
            ProtocolError: what the member offers itself is no subscription.
        """
        own = Reader(self.own, 2, _JOIN, 0)
        for _ in range(own.count() or 0):
            own.string()
        whole = Writer(_JOIN, 0)
        whole.content += bytes(2) + self.own[2 : own.at]
        writer = Writer(_JOIN, 0)
        writer.content += _OFFER
        for text in (self.gateway, self.binding):
            writer.string(text)
        writer.count(len(self.planned))
        for (topic, partition), start in self.planned.items():
            writer.string(topic)
            writer.content += _RANGE.pack(partition, start)
        _write_lanes(writer, self.held)
        writer.count(int(self.unknown) + 2 * self.keeps)
        whole.data(bytes(writer.content) + self.own)
        return bytes(whole.content)


def read_offer(data: bytes) -> Offer:
    """Read the metadata of `PROTOCOL`.

    Raises:
        ProtocolError: it is not.
    """
    subscription = Reader(data, 2, _JOIN, 0)
    for _ in range(subscription.count() or 0):
        subscription.string()
    data = subscription.data() or b""
    if not data.startswith(_OFFER):
        raise Malformed("the metadata of another protocol")
    reader = Reader(data, len(_OFFER), _JOIN, 0)
    gateway, binding = reader.string(), reader.string()
    planned: dict[Place, int] = {}
    for _ in range(reader.count() or 0):
        place = reader.string(), reader.int32()
        planned[place] = reader.int32() & 0xFFFF_FFFF
    held, flags = _read_lanes(reader), reader.count() or 0
    return Offer(gateway, binding, planned, held, bool(flags & 1), bool(flags & 2), data[reader.at :])


def joined(member_id: bytes, offer: Offer) -> Joined:
    """Return a member with the topics of its subscription (ConsumerProtocolSubscription.json).

    Raises:
        ProtocolError: its own metadata is no subscription of a consumer.
    """
    reader = Reader(offer.own, 2, _JOIN, 0)
    topics = frozenset(reader.string() for _ in range(reader.count() or 0))
    return Joined(
        member_id, topics, offer.planned, offer.held, read_owned(offer.own)[0], offer.unknown, offer.keeps
    )


def read_owned(own: bytes) -> tuple[frozenset[Place], int, int]:
    """Return the partitions that a client says it has, and where they begin and end in what it offers.

    It does so with incremental rebalancing (KIP-429, v1 of a subscription). Else it has given up all.
    kafka-go says v1, but leaves them out.

    Raises:
        ProtocolError: what it offers is no subscription of a consumer.
    """
    if int.from_bytes(own[:2]) < _OWNED_SINCE:
        return frozenset(), len(own), len(own)
    reader = Reader(own, 2, _JOIN, 0)
    for _ in range(reader.count() or 0):
        reader.string()
    reader.data()
    begin = reader.at
    places = _read_places(reader) if begin < len(own) else []
    return frozenset(places), begin, reader.at


def without_owned(own: bytes, places: Collection[Place]) -> bytes:
    """Return what a client offers, but for partitions that it has.

    Raises:
        ProtocolError: what it offers is no subscription of a consumer.
    """
    owned, begin, end = read_owned(own)
    if owned.isdisjoint(places):
        return own
    writer = Writer(_JOIN, 0)
    _write_places(writer, sorted(owned.difference(places)))
    return own[:begin] + bytes(writer.content) + own[end:]


def _read_places(reader: Reader) -> list[Place]:
    places: list[Place] = []
    for _ in range(reader.count() or 0):
        topic = reader.string()
        places += [(topic, reader.int32()) for _ in range(reader.count() or 0)]
    return places


def _write_places(writer: Writer, places: Sequence[Place]) -> None:
    topics: dict[bytes, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    writer.count(len(topics))
    for topic, partitions in topics.items():
        writer.string(topic)
        writer.count(len(partitions))
        for partition in partitions:
            writer.number(partition)


def read_assignment(data: bytes) -> tuple[list[Place], bytes]:
    """Read an assignment of a consumer (ConsumerProtocolAssignment.json): partitions, and the user data.

    Raises:
        ProtocolError: it is none.
    """
    if not data:
        return [], b""
    reader = Reader(data, 2, _JOIN, 0)
    places = _read_places(reader)
    return places, reader.data() or b""


def assignment(places: Sequence[Place], user_data: bytes | None = None) -> bytes:
    """Return an assignment of v0."""
    writer = Writer(_JOIN, 0)
    writer.content += bytes(2)
    _write_places(writer, places)
    writer.data(user_data)
    return bytes(writer.content)


def with_lanes(lanes: Lanes, planned: Lanes) -> bytes:
    """Return the assignment of a member: its lanes, and those planned, are in the user data."""
    writer = Writer(_JOIN, 0)
    writer.content += _LANES
    _write_lanes(writer, lanes)
    _write_lanes(writer, planned)
    return assignment(sorted(lanes), bytes(writer.content))


def read_lanes(data: bytes) -> tuple[Lanes, Lanes]:
    """Read what `with_lanes` made.

    Raises:
        ProtocolError: it is another assignment.
    """
    if not data:
        return {}, {}
    places, user_data = read_assignment(data)
    if not user_data.startswith(_LANES):
        raise Malformed("an assignment without lanes")
    reader = Reader(user_data, len(_LANES), _JOIN, 0)
    lanes, planned = _read_lanes(reader), _read_lanes(reader)
    if sorted(lanes) != sorted(places):
        raise Malformed("lanes of other partitions than assigned")
    return lanes, planned


def _write_lanes(writer: Writer, lanes: Lanes) -> None:
    writer.count(len(lanes))
    for (topic, partition), ranges in lanes.items():
        writer.string(topic)
        writer.number(partition)
        writer.count(len(ranges))
        writer.content += b"".join(_RANGE.pack(*each) for each in ranges)


def _read_lanes(reader: Reader) -> Lanes:
    lanes: Lanes = {}
    for _ in range(reader.count() or 0):
        place = reader.string(), reader.int32()
        count = reader.count() or 0
        lanes[place] = tuple(
            (reader.int32() & 0xFFFF_FFFF, reader.int32() & 0xFFFF_FFFF) for _ in range(count)
        )
    return lanes
