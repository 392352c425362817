"""Messages for joining a group: JoinGroup v0 to v9, SyncGroup v0 to v5, Heartbeat, and the data inside them.

The gateway adds one protocol, `PROTOCOL`, before the member's own protocols. A coordinator only chooses a
protocol that all members have. So a group shares partitions only if all its members connect through the
gateway.

A function that reads bytes raises ProtocolError if it can't read them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from zlib import crc32

from proxy.features.cooperative.assignment import Assignment
from proxy.features.cooperative.plan import Joined, Lanes
from proxy.features.cooperative.positions import TopicPartition
from proxy.features.cooperative.slots import MAX_SLOTS, Seat
from proxy.features.cooperative.wire import read_request, read_response, string
from proxy.protocol import schemas
from proxy.protocol.api import LENGTH_BYTES, REQUEST_CORRELATION_ID, ApiKey, request_header
from proxy.protocol.messages import Struct, body, read, response, with_fields
from proxy.protocol.primitives import Malformed, ProtocolError

LAYOUT: Final = b"1"
"""The version of the layout of assignments (`write_given`): the byte after their marker. More fields at the
end leave it as it is, since gateways that do not know them do not read them. Any other change needs the next
version, and with it a `PROTOCOL` of its own. For some releases, gateways then offer both. So a group whose
gateways are upgraded one by one uses a layout that all of them read."""
PROTOCOL: Final = b"fetchgate.keyrange." + LAYOUT
CONSUMER: Final = b"consumer"
_REJOIN: Final = {"throttle_time_ms": 0, "error_code": 27}
"""The fields of a response with the error REBALANCE_IN_PROGRESS."""
_OWNED_SINCE: Final = 1
"""The lowest version of a consumer's subscription that lists the partitions of the client."""
_OFFER: Final = b"fgj1"
MARKER: Final = b"fgk"
"""How the user data of all assignments of gateways begins, in any layout."""
_SLOTS_SHIFT: Final = 8
"""The lowest bit of `Offer.slots` in the flags."""
_LANES_SCHEMA: Final = "lanes:[topic:string partition:int32 ranges:[first:uint32 last:uint32]]"
_OFFER_SCHEMA: Final = (
    "gateway:string binding:string planned:[topic:string partition:int32 start:uint32] "
    f"{_LANES_SCHEMA} flags:int32"
)
_GIVEN_SCHEMA: Final = f"{_LANES_SCHEMA} {_LANES_SCHEMA.replace('lanes', 'planned')}"
_PLACES_SCHEMA: Final = "[topic:string partitions:int32[]]"
_SLOTS_SCHEMA: Final = (
    f"plan:int64 slots:int32 number:int32 several:bool shared:{_PLACES_SCHEMA} begins:{_PLACES_SCHEMA}"
)
"""What follows if members have slots, or begin without committed offsets."""
_OLD: Final = (int(ApiKey.JOIN_GROUP), 0)
"""An API key and a version in which strings have 2-byte lengths. Data inside group messages also has
such strings, so it is read and written with this API key and version."""


# JoinGroup


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup request."""

    frame: bytes
    message: Struct
    version: int
    group: bytes
    session_ms: int
    rebalance_ms: int | None
    """The rebalance timeout. None in v0, which has none."""
    member_id: bytes
    protocol_type: bytes
    protocols: tuple[tuple[bytes, bytes], ...]
    """The name and the metadata of each protocol, the preferred one first."""

    def with_offer(self, offer: bytes) -> bytes:
        """Return the request with `PROTOCOL` before the client's protocols. Its metadata is the offer."""
        ours = {"name": PROTOCOL, "metadata": offer}
        return with_fields(self.frame, self.message, protocols=[ours, *(self.message["protocols"] or ())])


def read_join(frame: bytes) -> Join:
    """Read a JoinGroup request."""
    request = read_request(frame)
    found = request.message
    return Join(
        frame=frame,
        message=found,
        version=request.version,
        group=string(found, "group_id"),
        session_ms=found["session_timeout_ms"],
        rebalance_ms=found.get("rebalance_timeout_ms"),
        member_id=string(found, "member_id"),
        protocol_type=string(found, "protocol_type"),
        protocols=tuple((string(each, "name"), each["metadata"] or b"") for each in found["protocols"] or ()),
    )


@dataclass(frozen=True, slots=True)
class JoinedGroup:
    """A JoinGroup response."""

    frame: bytes
    message: Struct
    error_code: int
    protocol: bytes
    member_id: bytes
    members: tuple[tuple[bytes, bytes | None, bytes], ...]
    """If the client is the leader: member id, group_instance_id and metadata of each member. Else empty."""

    def renamed(self, protocol: bytes, members: Sequence[tuple[bytes, bytes | None, bytes]]) -> bytes:
        listed = [
            {"member_id": member_id, "group_instance_id": instance, "metadata": metadata}
            for member_id, instance, metadata in members
        ]
        return with_fields(self.frame, self.message, protocol_name=protocol, members=listed)


def read_joined(frame: bytes, version: int) -> JoinedGroup:
    """Read a JoinGroup response."""
    found = read_response(schemas.JOIN_GROUP, frame, ApiKey.JOIN_GROUP, version)
    return JoinedGroup(
        frame=frame,
        message=found,
        error_code=found["error_code"],
        protocol=found["protocol_name"] or b"",
        member_id=string(found, "member_id"),
        members=tuple(
            (string(each, "member_id"), each.get("group_instance_id"), each["metadata"] or b"")
            for each in found["members"] or ()
        ),
    )


# SyncGroup


@dataclass(frozen=True, slots=True)
class Sync:
    """A SyncGroup request."""

    frame: bytes
    message: Struct
    version: int
    group: bytes
    generation: int
    member_id: bytes
    instance: bytes | None
    """The group_instance_id (KIP-345), or None."""
    protocol: bytes
    """The name of the client's own protocol. Empty below v5."""
    assignments: tuple[tuple[bytes, bytes], ...]

    def with_assignments(self, assignments: Sequence[tuple[bytes, bytes]]) -> bytes:
        """Return the request with the protocol name `PROTOCOL`, and with other assignments."""
        listed = [{"member_id": member_id, "assignment": data} for member_id, data in assignments]
        return with_fields(self.frame, self.message, protocol_name=PROTOCOL, assignments=listed)


def read_sync(frame: bytes) -> Sync:
    """Read a SyncGroup request."""
    request = read_request(frame)
    found = request.message
    return Sync(
        frame=frame,
        message=found,
        version=request.version,
        group=string(found, "group_id"),
        generation=found["generation_id"],
        member_id=string(found, "member_id"),
        instance=found.get("group_instance_id"),
        protocol=found.get("protocol_name") or b"",
        assignments=tuple(
            (string(each, "member_id"), each["assignment"] or b"") for each in found["assignments"] or ()
        ),
    )


@dataclass(frozen=True, slots=True)
class Synced:
    """A SyncGroup response."""

    frame: bytes
    message: Struct
    error_code: int
    protocol: bytes
    assignment: bytes

    def renamed(self, protocol: bytes, assignment: bytes) -> bytes:
        return with_fields(self.frame, self.message, protocol_name=protocol, assignment=assignment)


def read_synced(frame: bytes, version: int) -> Synced:
    """Read a SyncGroup response."""
    found = read_response(schemas.SYNC_GROUP, frame, ApiKey.SYNC_GROUP, version)
    protocol, given = found.get("protocol_name") or b"", found["assignment"] or b""
    return Synced(frame, found, found["error_code"], protocol, given)


# Heartbeat


class Beat(NamedTuple):
    """The sender of a Heartbeat request."""

    member_id: bytes
    generation: int


def read_heartbeat(frame: bytes) -> Beat:
    """Read a Heartbeat request."""
    found = read_request(frame).message
    return Beat(string(found, "member_id"), found["generation_id"])


def heartbeat_error(frame: bytes, version: int) -> int:
    """Return the error code of a Heartbeat response."""
    error: int = read_response(schemas.HEARTBEAT, frame, ApiKey.HEARTBEAT, version)["error_code"]
    return error


def rejoin(request: bytes) -> bytes:
    """Return a response to a Heartbeat or SyncGroup request that tells the member to join again."""
    api_key, version, _, _, _ = request_header(request, LENGTH_BYTES)
    correlation_id = bytes(request[REQUEST_CORRELATION_ID])
    if api_key == ApiKey.HEARTBEAT:
        return response(schemas.HEARTBEAT, api_key, version, correlation_id, **_REJOIN)
    nothing = {"protocol_type": None, "protocol_name": None, "assignment": b""}
    return response(schemas.SYNC_GROUP, api_key, version, correlation_id, **_REJOIN, **nothing)


# The data inside `PROTOCOL`


@dataclass(frozen=True, slots=True)
class Offer:
    """The member's metadata for the gateway's protocol `PROTOCOL`, in a JoinGroup request."""

    gateway: bytes
    """The id of the gateway process that serves the member."""
    binding: bytes
    """The host and client.id of the member. They identify its fetches. Empty if another client in a group has
    the same."""
    planned: Mapping[TopicPartition, int]
    held: Lanes
    unknown: bool
    keeps: bool
    """`planned`, `held`, `unknown` and `keeps` are those of `Joined`."""
    refused: bool
    """Whether the broker has refused the gateway's slots (`Group.slots_error`)."""
    slots: int
    """The topic of slots, as a number of 23 bits (`slots_number`)."""
    own: bytes
    """The metadata of the client's own first protocol."""

    def encoded(self) -> bytes:
        """Return the offer as a consumer's subscription, with the client's topics and the offer as user data.

        Brokers of 4.0 or later read the subscriptions of all members. If one of them is unreadable, no
        rebalance completes.

        Raises:
            ProtocolError: the client's own metadata is not a subscription.
        """
        user_data = body(
            _OFFER_SCHEMA,
            *_OLD,
            gateway=self.gateway,
            binding=self.binding,
            planned=[
                {"topic": topic, "partition": partition, "start": start}
                for (topic, partition), start in self.planned.items()
            ],
            lanes=_listed(self.held),
            flags=int(self.unknown) + 2 * self.keeps + 8 * self.refused + (self.slots << _SLOTS_SHIFT),
        )
        return body(
            schemas.SUBSCRIPTION,
            *_OLD,
            protocol_version=0,
            topics=_subscription(self.own)["topics"] or [],
            user_data=_OFFER + user_data + self.own,
        )


def slots_number(topic: bytes) -> int:
    """Return a number of 23 bits for a topic of slots. Gateways compare it."""
    return crc32(topic) >> 9


def _subscription(data: bytes) -> Struct:
    found = read(schemas.SUBSCRIPTION, *_OLD, data, 0, whole=False)
    if None in (found["topics"] or ()):
        raise Malformed("a topic without a name")
    return found


def read_offer(data: bytes) -> Offer:
    """Read the metadata of `PROTOCOL`."""
    data = _subscription(data)["user_data"] or b""
    if not data.startswith(_OFFER):
        raise Malformed("the metadata of another protocol")
    found = read(_OFFER_SCHEMA, *_OLD, data, len(_OFFER), whole=False)
    return Offer(
        gateway=string(found, "gateway"),
        binding=string(found, "binding"),
        planned={
            (string(each, "topic"), each["partition"]): each["start"] for each in found["planned"] or ()
        },
        held=_lanes(found["lanes"]),
        unknown=bool(found["flags"] & 1),
        keeps=bool(found["flags"] & 2),
        refused=bool(found["flags"] & 8),
        slots=found["flags"] >> _SLOTS_SHIFT,
        own=data[found.span[1] :],
    )


def joined(member_id: bytes, offer: Offer) -> Joined:
    """Return a member as the plan needs it, with the topics of its ConsumerProtocolSubscription."""
    topics = frozenset(_subscription(offer.own)["topics"] or ())
    return Joined(
        member_id, topics, offer.planned, offer.held, read_owned(offer.own)[0], offer.unknown, offer.keeps
    )


def read_owned(own: bytes) -> tuple[frozenset[TopicPartition], int, int]:
    """Return the partitions that a client lists as its own, and where the list begins and ends in `own`.

    Only clients with incremental rebalancing (KIP-429, v1 of a subscription) list partitions. Other clients
    have released all their partitions. kafka-go sends v1 without a list.
    """
    if int.from_bytes(own[:2]) < _OWNED_SINCE:
        return frozenset(), len(own), len(own)
    begin = _subscription(own).span[1]
    if begin >= len(own):
        return frozenset(), begin, begin
    found = read(schemas.OWNED_PARTITIONS, *_OLD, own, begin, whole=False)
    return frozenset(_places(found["owned_partitions"])), begin, found.span[1]


def without_owned(own: bytes, places: Collection[TopicPartition]) -> bytes:
    """Return a client's metadata without `places` in its list of owned partitions."""
    owned, begin, end = read_owned(own)
    if owned.isdisjoint(places):
        return own
    kept = body(schemas.OWNED_PARTITIONS, *_OLD, owned_partitions=_topics(sorted(owned.difference(places))))
    return own[:begin] + kept + own[end:]


def _places(topics: Iterable[Struct] | None) -> list[TopicPartition]:
    return [
        (string(topic, "topic"), number) for topic in topics or () for number in topic["partitions"] or ()
    ]


def _topics(places: Sequence[TopicPartition]) -> list[dict[str, Any]]:
    topics: dict[bytes, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    return [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()]


def read_assignment(data: bytes) -> tuple[list[TopicPartition], bytes]:
    """Return the partitions and the user data of an assignment (ConsumerProtocolAssignment)."""
    if not data:
        return [], b""
    found = read(schemas.ASSIGNMENT, *_OLD, data, 0, whole=False)
    return _places(found["assigned_partitions"]), found["user_data"] or b""


def assignment(places: Sequence[TopicPartition], user_data: bytes | None = None) -> bytes:
    """Return an assignment (ConsumerProtocolAssignment) of version 0."""
    listed = _topics(places)
    return body(
        schemas.ASSIGNMENT, *_OLD, protocol_version=0, assigned_partitions=listed, user_data=user_data
    )


def write_given(given: Assignment) -> bytes:
    """Return an assignment: the partitions of `lanes`, and planned lanes, seat and `begins` as user data."""
    carried = body(_GIVEN_SCHEMA, *_OLD, lanes=_listed(given.lanes), planned=_listed(given.planned))
    if given.seat is not None or given.begins:
        seat = given.seat or Seat(0, 0, 0, frozenset())
        carried += body(
            _SLOTS_SCHEMA,
            *_OLD,
            plan=seat.plan,
            slots=seat.slots,
            number=seat.number,
            several=seat.several,
            shared=_topics(sorted(seat.places)),
            begins=_topics(sorted(given.begins)),
        )
    return assignment(sorted(given.lanes), MARKER + LAYOUT + carried)


def read_given(data: bytes) -> Assignment | None:
    """Read an assignment that `write_given` has made. Return None if no gateway has made it.

    Raises:
        ProtocolError: a gateway has made it, but not as this one does: it has another layout, or its seat is
            impossible. It must not be taken for one of whole partitions, as others have parts of these.
    """
    if not data:
        return Assignment()
    try:
        places, user_data = read_assignment(data)
    except ProtocolError:
        return None
    if not user_data.startswith(MARKER):
        return None
    begin = len(MARKER) + len(LAYOUT)
    if user_data[len(MARKER) : begin] != LAYOUT:
        raise Malformed("an assignment of another layout")
    found = read(_GIVEN_SCHEMA, *_OLD, user_data, begin, whole=False)
    lanes, planned = _lanes(found["lanes"]), _lanes(found["planned"])
    if sorted(lanes) != sorted(places):
        raise Malformed("lanes of partitions that were not assigned")
    if found.span[1] == len(user_data):
        return Assignment(lanes=lanes, planned=planned)
    more = read(_SLOTS_SCHEMA, *_OLD, user_data, found.span[1], whole=False)
    shared, begins = (frozenset(_places(more[name])) for name in ("shared", "begins"))
    seat = Seat(more["plan"], more["slots"], more["number"], shared, bool(more["several"]))
    if seat.slots and not (seat.plan >= 0 <= seat.number < seat.slots <= MAX_SLOTS):
        raise Malformed(f"an impossible seat: {seat.number} of {seat.slots}")
    return Assignment(lanes=lanes, planned=planned, seat=seat if seat.slots else None, begins=begins)


def _listed(lanes: Lanes) -> list[dict[str, Any]]:
    return [
        {
            "topic": topic,
            "partition": partition,
            "ranges": [{"first": first, "last": last} for first, last in ranges],
        }
        for (topic, partition), ranges in lanes.items()
    ]


def _lanes(listed: Iterable[Struct] | None) -> Lanes:
    return {
        (string(each, "topic"), each["partition"]): tuple(
            (one["first"], one["last"]) for one in each["ranges"] or ()
        )
        for each in listed or ()
    }
