"""The members of cooperative groups, and the groups, of one process.

A member is identified by its host and client.id, on any connection. With ``--workers``, one worker serves all
members of a group.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, Protocol
from weakref import WeakSet
from zlib import crc32

from proxy.cooperative.claims import Claims, Client
from proxy.cooperative.declared import Declared, NamedLane, declared, shown
from proxy.cooperative.group import Group
from proxy.cooperative.member import Member
from proxy.cooperative.plan import Lanes
from proxy.cooperative.positions import TopicPartition
from proxy.cooperative.ranges import KeyRanges, RangeError
from proxy.cooperative.shared_fetch import SharedFetches
from proxy.cooperative.tally import (
    EXCLUSIVE,
    Cooperative,
    FilterTally,
    GroupNotice,
    GroupSeen,
    MemberSeen,
    Tell,
)

MAX_MEMBERS: Final = 4096
"""How many members are tracked. The least recently seen one is dropped first. It has to join its group
again, and its declared ranges are scanned again."""
MAX_PLACES: Final = 1 << 20
"""The limit of tracked partitions that members have fetched: 130 MB. The partitions of the member with the
most are dropped first (`Member.first`)."""
MAX_NAMED: Final = 10
"""How many lanes an error lists if a client asks for a lane that does not exist."""
INVALID_RANGES: Final = 42
"""INVALID_REQUEST: the ranges can't be read, there is no such lane, or it does not have the partition."""
OVERLAPS: Final = 44
"""POLICY_VIOLATION: another client has some of the key ranges, or the lane belongs to another group."""


class Joins(Protocol):
    """A client that joins a group, on one connection to its coordinator."""

    client_id: bytes
    member_id: bytes
    """Its member id, or "" if it is in no group."""

    def __hash__(self) -> int:
        """Return a hash. Two connections are never equal."""


class Denial(NamedTuple):
    """The reason why a client does not get its declared lane."""

    code: int
    """Kafka's error code for the client."""
    reason: str
    """In words."""


class Members:
    """All members of this process.

    Args:
        groups: the names of the cooperative groups.
        gateway: identifies this process among all others.
        tell: called with the events of groups and their clients, for the log.
        number: the number of this process among those of the gateway, from 1.
        processes: how many processes the gateway has.
    """

    __slots__ = (
        "_groups",
        "_joining",
        "_members",
        "_owners",
        "claims",
        "gateway",
        "lanes",
        "number",
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
        number: int = 1,
        processes: int = 1,
    ) -> None:
        self._groups = {name.encode(): Group(name) for name in sorted(groups)}
        self._owners = {name: crc32(name) % processes + 1 for name in self._groups}
        self.number = number
        self._members: OrderedDict[Client, Member] = OrderedDict()
        self._joining: dict[Client, WeakSet[Joins]] = {}
        """By client: its open connections on which it has joined a group."""
        self.places = 0
        """An upper limit of the tracked partitions that members have fetched: the last count, plus the
        additions since."""
        self.tally = FilterTally()
        self.shared_fetches = SharedFetches()
        self.gateway = gateway
        self.tell = tell
        self.lanes: Mapping[str, NamedLane] = {}
        """Lanes by name. If they change, a client keeps its lane until its last connection is closed. So
        nobody gets records on which another client may still work."""
        self.claims = Claims()

    def __repr__(self) -> str:
        return f"<Members {len(self._members)}>"

    def __len__(self) -> int:
        return len(self._members)

    def seen(self, now: float) -> Cooperative:
        """Return the figures of the groups that this process owns.

        Args:
            now: the time in seconds. Members whose session timeout is over are left out.
        """
        ends: dict[TopicPartition, int] = {}
        for member in self._members.values():
            for place, end in member.ends.items():
                ends[place] = max(ends.get(place, 0), end)
        by_group: dict[bytes, list[MemberSeen]] = {name: [] for name in self._groups if self.owns(name)}
        for client, member in self._members.items():
            host, client_id = client
            named = member.group or self._named_by(client_id)
            connected = self.claims.connected(client) or client in self._joining
            if named not in by_group or not (connected or member.lives(now)):
                continue
            state, lanes = member.seen(self._groups[named].positions, ends)
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
        """Note why a group shares nothing in its generation; "" if it may (see `GroupSeen.exclusive`)."""
        group = self._groups.get(name)
        if group is None:
            return
        if exclusive and group.exclusive != exclusive:
            self.tally.exclusive[exclusive] += 1
            self.tell(GroupNotice.EXCLUSIVE, group.name, EXCLUSIVE[exclusive])
        group.exclusive = exclusive

    def planned(self, name: bytes, generation: int, lanes: Mapping[bytes, Lanes]) -> None:
        """Log how a group's partitions are shared in a generation. Lanes are by member id."""
        owners = Counter(place for each in lanes.values() for place in each)
        shared = sum(number > 1 for number in owners.values())
        counted = f"{shared} of {len(owners)} partitions shared"
        text = f"{len(lanes)} members, {counted}, generation {generation}"
        self.tell(GroupNotice.REBALANCED, name.decode(errors="replace"), text)

    def group(self, name: bytes) -> Group | None:
        """Return a cooperative group, or None if the group is not cooperative."""
        return self._groups.get(name)

    def owner(self, client_id: bytes) -> int:
        """Return the number of the process that serves a client: the owner of its group.

        If a client declares ranges, and its client.id begins with no group's name, the owner of the first
        group serves it. Clients without a group, and refused clients, stay where they are.
        """
        try:
            found = declared(client_id)
        except RangeError:
            return self.number
        if found is not None and found.lane:
            lane = self.lanes.get(found.lane)
            return self.number if lane is None else self._owners.get(lane.group, self.number)
        if found is None:
            return self._owners[self._named_by(client_id)] if self.is_bound(client_id) else self.number
        return self._owners.get(self._named_by(found.own_id)) or next(
            iter(self._owners.values()), self.number
        )

    def owns(self, group: bytes) -> bool:
        """Whether this process owns a group."""
        return self._owners.get(group) == self.number

    def declared(self, host: str, client_id: bytes) -> tuple[Declared, Member] | None:
        """Return the declaration in a client.id, and its member. Return None if it declares nothing.

        Raises:
            RangeError: the declaration is invalid, or there is no such lane.
        """
        found = declared(client_id)
        if found is None:
            return None
        key = host, client_id
        member = self._members.get(key)
        if found.lane and not self.claims.connected(key):
            member = None  # the lane may be another one by now
        if member is None:
            member = self._new(key, self._lane(client_id, found))
        self._members.move_to_end(key)
        return found, member

    def _lane(self, client_id: bytes, found: Declared) -> Member:
        """Return a new member with the declared lane.

        Raises:
            RangeError: there is no such lane.
        """
        member = Member(self.tally, found.ranges)
        if not found.lane:
            member.group = self._named_by(found.own_id)
            return member
        lane = self.lanes.get(found.lane)
        if lane is None or lane.group not in self._groups:
            known = f"the file of options names {self._lanes_named()}"
            raise RangeError(f"{shown(client_id)}: no lane has the name {found.lane}; {known}")
        member.group = lane.group
        member.lanes.update(lane.ranges)
        return member

    def _lanes_named(self) -> str:
        names = sorted(name for name, lane in self.lanes.items() if lane.group in self._groups)
        more = f", and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        return ", ".join(names[:MAX_NAMED]) + more if names else "none"

    def denied(
        self, client: Client, member: Member, places: Iterable[TopicPartition], *, claims: bool
    ) -> Denial | None:
        """Return why a client can't have its lane of some partitions, or None if it can.

        It can if its group is not known yet, because there is nothing to compare.

        Args:
            client: the client.
            member: its member.
            places: the partitions.
            claims: whether to reserve the lane for the client until its last connection is closed.
        """
        if not member.group:
            return None
        lanes: list[tuple[TopicPartition, KeyRanges]] = []
        for place in places:
            ranges = member.ranges(place)
            if ranges is None:
                return Denial(INVALID_RANGES, f"{_shown(client)}: its lane has nothing of {_place(place)}")
            lanes.append((place, ranges))
        found = self.claims.overlap(client, member.group, lanes)
        if found is not None:
            group = member.group.decode(errors="replace")
            where = f"{_place(found.place)} of group {group}"
            return Denial(
                OVERLAPS,
                f"{_shown(client)} overlaps {_shown(found.holder)} on {where}; who came first keeps the lane",
            )
        if claims:
            self.claims.claim(client, member.group, lanes)
        return None

    def fetched(self, places: int) -> None:
        """Note that a member has fetched a number of partitions for the first time."""
        self.places += places
        while self.places > MAX_PLACES:
            self.places = sum(len(member.first) for member in self._members.values())
            if self.places > MAX_PLACES:
                max(self._members.values(), key=lambda member: len(member.first)).first.clear()

    def _named_by(self, own_id: bytes) -> bytes:
        """Return the group whose name a client's own id is, or begins with. Return "" if there is none."""
        names = (name for name in self._groups if own_id == name or own_id.startswith(name + b"."))
        return max(names, key=len, default=b"")

    def is_bound(self, client_id: bytes) -> bool:
        """Return whether a client.id begins with a cooperative group's name and a dot, and so is bound to it.

        So a process that has just started knows the group of each fetch.
        """
        return any(client_id.startswith(name + b".") for name in self._groups)

    def bound(self, host: str, client_id: bytes) -> Member:
        """Return the member of a client whose client.id is bound."""
        key = host, client_id
        member = self._members.get(key) or self._new(key, Member(self.tally))
        self._members.move_to_end(key)
        return member

    def joins(self, host: str, client: Joins) -> bool:
        """Note that a client joins a group. Return whether another one with its client.id is in it."""
        known = self._joining.setdefault((host, client.client_id), WeakSet())
        known.add(client)
        return any(
            other is not client and other.member_id and other.member_id != client.member_id for other in known
        )

    def left(self, host: str, client: Joins) -> None:
        """Note that a client's connection has ended."""
        key = host, client.client_id
        if (known := self._joining.get(key)) is not None:
            known.discard(client)
            if not known:
                del self._joining[key]

    def _new(self, key: tuple[str, bytes], member: Member) -> Member:
        self._members[key] = member
        if len(self._members) > MAX_MEMBERS:
            _, oldest = self._members.popitem(last=False)
            if oldest.declared is None:
                oldest.freeze()  # it is asked to join again
        return member


def _shown(client: Client) -> str:
    return f"{shown(client[1])} at {client[0]}"


def _place(place: TopicPartition) -> str:
    return f"{place[0].decode(errors='replace')}-{place[1]}"
