"""All members and groups of one process. A member is identified by its host and client.id."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from math import inf
from typing import Final, Protocol
from weakref import WeakSet

from proxy.features.cooperative.assignment import Assignment
from proxy.features.cooperative.claims import Claims, Client, shown_client
from proxy.features.cooperative.declared import Declared, NamedLane, declared, shown
from proxy.features.cooperative.group import AGAIN_SECONDS, SLOTS, Group
from proxy.features.cooperative.member import Member
from proxy.features.cooperative.plan import Lanes
from proxy.features.cooperative.positions import TopicPartition
from proxy.features.cooperative.presence import SEEN_SECONDS
from proxy.features.cooperative.ranges import RangeError
from proxy.features.cooperative.shared_fetch import SharedFetches
from proxy.features.cooperative.tally import (
    Cooperative,
    FilterTally,
    GroupNotice,
    GroupSeen,
    MemberSeen,
    Tell,
)
from proxy.features.cooperative.words import EXCLUSIVE

MAX_MEMBERS: Final = 4096
"""How many members are tracked. Above that, the least recently seen member is dropped. It has to join its
group again. If it declares its lane, only its new connections begin anew, with no offsets to skip."""
MAX_PLACES: Final = 1 << 19
"""How many partitions of all members are tracked (`Member.first`). This takes 200 MB at most. Above this
number, the gateway drops the partitions of the member that has the most partitions."""
MAX_NAMED: Final = 10
"""How many lane names an error message lists if a client declares an unknown lane."""
INVALID_RANGES: Final = 42
"""INVALID_REQUEST: the ranges can't be read, the lane does not exist, the partition is not part of the lane,
or a commit for key ranges has a negative offset."""
OVERLAPS: Final = 44
"""POLICY_VIOLATION: another client has some of the key ranges, or the lane belongs to another group."""

AWAY: Final = (
    "{}{} fetches here, but sends no heartbeats here: all connections of a member must reach one process, "
    "and it must join its group"
)
TOO_LARGE: Final = 12
"""OFFSET_METADATA_TOO_LARGE."""


class Joins(Protocol):
    """A client that joins a group, on one connection to its coordinator."""

    client_id: bytes
    member_id: bytes
    """The client's member id, or b"" if it is in no group."""
    named: bytes
    """The client.id with which it joined last, or b"". A later request may have another client.id."""

    def __hash__(self) -> int:
        """Return a hash. Two connections are never equal."""


class Members:
    """All members of this process.

    `gateway` is an id of this process that no other process has. `slots` is the topic of slots.
    """

    __slots__ = (
        "_groups",
        "_joining",
        "_members",
        "_warned_at",
        "claims",
        "gateway",
        "lanes",
        "places",
        "shared_fetches",
        "tally",
        "tell",
    )

    def __init__(
        self,
        groups: Iterable[str],
        gateway: bytes = b"",
        tell: Tell = lambda *_: None,
        *,
        slots: bytes = SLOTS,
    ) -> None:
        self._groups = {name.encode(): Group(name, slots) for name in sorted(groups)}
        self._members: OrderedDict[Client, Member] = OrderedDict()
        self._joining: dict[Client, WeakSet[Joins]] = {}
        """The open connections on which a client has joined a group, by client."""
        self._warned_at = -inf
        self.places = 0
        """An upper bound for the number of tracked partitions: the last exact count, plus the additions since
        that count."""
        self.tally = FilterTally()
        self.shared_fetches = SharedFetches()
        self.gateway = gateway
        self.tell = tell
        self.lanes: Mapping[str, NamedLane] = {}
        """The lanes of the options file, by name. If a reload changes a lane, a client keeps the old one
        until its last connection is closed. So nobody gets records that another client may still process."""
        self.claims = Claims()

    def __repr__(self) -> str:
        return f"<Members {len(self._members)}>"

    def __len__(self) -> int:
        return len(self._members)

    def seen(self, now: float) -> Cooperative:
        ends: dict[TopicPartition, int] = {}
        for member in self._members.values():
            for place, progress in member.progress.items():
                if progress.end is not None:
                    ends[place] = max(ends.get(place, 0), progress.end)
        by_group: dict[bytes, list[MemberSeen]] = {name: [] for name in self._groups}
        for client, member in self._members.items():
            host, client_id = client
            named = member.group or self._named_by(client_id)
            away = member.presence.is_away(now)
            connected = self.claims.connected(client) or client in self._joining
            # A disconnected member is left out if its session timeout is over, or if it gets no records until
            # it joins again.
            if named not in by_group or not (away or connected or member.presence.lives(now)):
                continue
            state, lanes = member.seen(self._groups[named].positions, ends)
            state = "away" if away else state
            by_group[named].append(
                MemberSeen(client_id=client_id.decode(errors="replace"), host=host, state=state, lanes=lanes)
            )
        groups = [
            GroupSeen(
                name=name.decode(),
                exclusive=self._groups[name].exclusive,
                members=sorted(members, key=lambda each: (each.client_id, each.host)),
            )
            for name, members in by_group.items()
        ]
        return Cooperative(
            tally=self.tally,
            reader_fetches=self.shared_fetches.fetches,
            buffered_bytes=self.shared_fetches.buffered,
            detached=self.shared_fetches.detached,
            groups=groups,
        )

    def noted(self, name: bytes, exclusive: str) -> None:
        """Note why a group shares no partition in this generation. "" if it may (`GroupSeen.exclusive`)."""
        group = self._groups.get(name)
        if group is None:
            return
        if exclusive and group.exclusive != exclusive:
            self.tally.exclusive[exclusive] += 1
            self.tell(GroupNotice.EXCLUSIVE, group.name, EXCLUSIVE[exclusive])
        group.exclusive = exclusive

    def reads(self, name: bytes, readable: bool) -> None:
        """Note whether this process can read the assignments of a group (`membership.read_given`)."""
        group = self._groups.get(name)
        if not readable:
            self.noted(name, "instances")
        elif group is not None and group.exclusive == "instances":
            group.exclusive = ""

    def slot_refused(self, group: Group, error: int) -> None:
        """Note that the broker has refused slots of a group with an error code. 0: it has not."""
        if error and not group.slots_error:
            topic = group.slots_topic.decode(errors="replace")
            again = f"they are tried again after {AGAIN_SECONDS / 60:.0f} minutes"
            self.tell(
                GroupNotice.SLOT,
                group.name,
                f"error {error} for the topic {topic}: {_remedy(error)}; {again}",
            )
        group.slots_error = group.slots_error or error

    def planned(self, name: bytes, generation: int, lanes: Mapping[bytes, Lanes]) -> None:
        """Log how the partitions of a group are shared in a generation."""
        owners = Counter(place for each in lanes.values() for place in each)
        shared = sum(number > 1 for number in owners.values())
        counted = f"{shared} of {len(owners)} partitions shared"
        text = f"{len(lanes)} member{'s' * (len(lanes) != 1)}, {counted}, generation {generation}"
        self.tell(GroupNotice.REBALANCED, name.decode(errors="replace"), text)

    def group(self, name: bytes) -> Group | None:
        """Return the state of a cooperative group, or None if the group is not cooperative."""
        return self._groups.get(name)

    def declared(self, host: str, client_id: bytes) -> tuple[Declared, Member] | None:
        """Return the declaration in a client.id, and the member. None if the client.id declares nothing.

        Raises:
            RangeError: the declaration is invalid, or the lane does not exist.
        """
        found = declared(client_id)
        if found is None:
            return None
        key = host, client_id
        member = self._members.get(key)
        if found.lane and not self.claims.connected(key):
            member = None  # a reload may have changed the lane
        if member is None:
            member = self._new(key, self._lane(client_id, found))
        self._members.move_to_end(key)
        return found, member

    def _lane(self, client_id: bytes, found: Declared) -> Member:
        member = Member(self.tally, found.ranges)
        if not found.lane:
            member.group = self._named_by(found.own_id)
            return member
        lane = self.lanes.get(found.lane)
        if lane is None or lane.group not in self._groups:
            known = f"the file of options names {self._lanes_named()}"
            raise RangeError(f"{shown(client_id)}: no lane has the name {found.lane}; {known}")
        member.group = lane.group
        member.assignment = Assignment(lanes=dict(lane.ranges))
        return member

    def _lanes_named(self) -> str:
        names = sorted(name for name, lane in self.lanes.items() if lane.group in self._groups)
        more = f", and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        return ", ".join(names[:MAX_NAMED]) + more if names else "none"

    def fetched(self, places: int) -> None:
        """Add to the number of tracked partitions. If there are too many partitions, drop some of them."""
        self.places += places
        while self.places > MAX_PLACES:
            self.places = sum(len(member.first) for member in self._members.values())
            if self.places > MAX_PLACES:
                most = max(self._members.values(), key=lambda member: len(member.first))
                most.forget_fetches()

    def _named_by(self, own_id: bytes) -> bytes:
        names = (name for name in self._groups if own_id == name or own_id.startswith(name + b"."))
        return max(names, key=len, default=b"")

    def is_bound(self, client_id: bytes) -> bool:
        """Return whether a client.id begins with a cooperative group's name and a dot (it is *bound*).

        The client.id alone shows the group. So a process that has just started knows the group of each fetch.
        """
        return any(client_id.startswith(name + b".") for name in self._groups)

    def bound(self, host: str, client_id: bytes) -> Member:
        key = host, client_id
        member = self._members.get(key) or self._new(key, Member(self.tally))
        self._members.move_to_end(key)
        return member

    def joins(self, host: str, client: Joins) -> bool:
        """Record that a client joins. Return whether another with its host and client.id is in a group."""
        if client.named != client.client_id:
            self.left(host, client)
            client.named = client.client_id
        known = self._joining.setdefault((host, client.named), WeakSet())
        known.add(client)
        return any(
            other is not client and other.member_id and other.member_id != client.member_id for other in known
        )

    def problems(self, now: float) -> list[str]:
        away = [client for client, member in self._members.items() if member.presence.is_away(now)]
        if not away:
            return []
        more = f" and {len(away) - 1} more" if len(away) > 1 else ""
        return [AWAY.format(shown_client(away[0]), more)]

    def fetches(self, client: Client, member: Member, now: float) -> str:
        """Note a fetch of a member. Return why its connection has to be closed, or "" if it has not."""
        if not member.presence.has_coordinator:
            return ""
        member.presence.fetches(now)
        if not member.presence.closes(now):
            return ""
        if now >= self._warned_at + SEEN_SECONDS:
            self._warned_at = now
            self.tell(GroupNotice.AWAY, client[0], self.problems(now)[0])
        return AWAY.format(shown_client(client), "")

    def has_joined(self, client: Client, member_id: bytes) -> bool:
        """Return whether a client has joined with a member id, on a connection that is open."""
        return any(each.member_id == member_id for each in self._joining.get(client, ()))

    def left(self, host: str, client: Joins) -> None:
        """Record that a connection has ended, on which the client may have joined a group."""
        key = host, client.named
        if (known := self._joining.get(key)) is not None:
            known.discard(client)
            if not known:
                del self._joining[key]

    def _new(self, key: tuple[str, bytes], member: Member) -> Member:
        self._members[key] = member
        if len(self._members) > MAX_MEMBERS:
            _, oldest = self._members.popitem(last=False)
            if oldest.declared is None:
                oldest.presence.freeze()  # it will be told to join again
        return member


def _remedy(error: int) -> str:
    if error == TOO_LARGE:
        return (
            "offset.metadata.max.bytes of the brokers is too small for a slot; its default, 4096, is enough"
        )
    return (
        "it must exist, with as many partitions as a group has members, and clients need READ on it; or name "
        "another one with --cooperative-slots"
    )
