"""How a member joins its group, gets its lanes, and leaves the group.

The client's requests are changed for the broker, and the broker's responses for the client. Only the
coordinator decides who is in the group. If the gateway loses its state, the members join again. A function
that reads bytes raises ProtocolError if it can't read them.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from hashlib import blake2b
from math import inf
from typing import Final

from proxy.features.cooperative.assignment import Assignment
from proxy.features.cooperative.group import Read
from proxy.features.cooperative.member import Member
from proxy.features.cooperative.members import Members
from proxy.features.cooperative.membership import (
    CONSUMER,
    PROTOCOL,
    Beat,
    Join,
    Offer,
    Sync,
    assignment,
    heartbeat_error,
    joined,
    read_assignment,
    read_given,
    read_joined,
    read_offer,
    read_owned,
    read_synced,
    slots_number,
    without_owned,
    write_given,
)
from proxy.features.cooperative.plan import Joined, at_once, plan, sharable
from proxy.features.cooperative.positions import PLAN_BYTES, TopicPartition
from proxy.features.cooperative.presence import ABSENT_SECONDS
from proxy.features.cooperative.ranges import FULL
from proxy.features.cooperative.slots import MAX_SLOTS, seats
from proxy.protocol.primitives import ProtocolError

_UNKNOWN_MEMBER_ID: Final = 25
_GONE: Final = frozenset({22, _UNKNOWN_MEMBER_ID, 82})
"""The errors ILLEGAL_GENERATION (the member has missed a generation), UNKNOWN_MEMBER_ID and
FENCED_INSTANCE_ID (it is no longer in the group). The member's assignment is not valid any more."""
_BETWEEN: Final = b"\0"
_REBALANCING: Final = 27
"""REBALANCE_IN_PROGRESS."""
_NOWHERE: Final[TopicPartition] = b"", 0
"""A partition that does not exist. If it is added to a member's planned lanes, they differ from the member's
present lanes, so the member joins again."""


class Joining:
    """The membership of one client, on one connection to its coordinator."""

    __slots__ = (
        "__weakref__",
        "_given",
        "_had_nothing",
        "_host",
        "_is_new",
        "_join",
        "_members",
        "_offers",
        "_owned",
        "_sharing",
        "_sync_sent",
        "_syncs",
        "_unknown",
        "client_id",
        "member_id",
        "named",
        "saw_join",
    )

    def __init__(self, members: Members, host: str) -> None:
        self._members = members
        self._host = host
        self.client_id = b""
        self.member_id = b""
        self.named = b""
        self._join: Join | None = None
        self.saw_join = False
        """Whether a JoinGroup request was received on this connection."""
        self._owned: frozenset[TopicPartition] = frozenset()
        """The partitions that the client listed as owned when it joined (`plan.Joined.owned`)."""
        self._offers: dict[bytes, Offer] = {}
        """The offers of all members, by member id. Empty unless the client is the leader of its group."""
        self._given = b""
        """The member id that the coordinator gave to a client without one, until the client has its lanes."""
        self._is_new = False
        """Whether the client has joined as a new member, so that it has no lanes anywhere."""
        self._sync_sent = -inf
        """When the last SyncGroup request was sent, in seconds."""
        self._syncs = 0
        """`Assignment.number` after the last SyncGroup on this connection."""
        self._had_nothing = False
        """Whether the client certainly had no partitions before its last SyncGroup. If this client drops the
        SyncGroup response, it still has no partitions."""
        self._unknown = False
        """Whether this process did not know the client's lanes when the client joined (`Joined.unknown`)."""
        self._sharing = False
        """Whether the coordinator has chosen the gateway's protocol, `PROTOCOL`."""

    def takes(self, join: Join) -> bool:
        """Return whether a JoinGroup request comes from a consumer and is for a cooperative group."""
        named = self._members.group(join.group) is not None
        return named and join.protocol_type == CONSUMER and bool(join.protocols)

    def join(self, join: Join, now: float) -> bytes:
        """Return the JoinGroup request for the broker."""
        self._join, self._sharing = join, False
        self._offers = {}
        own = join.protocols[0][1]
        self._owned = read_owned(own)[0]
        self.member_id = join.member_id
        member = self._member
        self._is_new = join.member_id in {b"", self._given}
        self._unknown = member is not None and not self._knows(member)
        if member is not None and self._unknown and member.assignment.number != self._syncs:
            member.moves()
        doubtful = self._members.joins(self._host, self)
        if member is not None and not doubtful:  # else the broker may refuse it
            self._joins(member, join, now)
        binding = b"" if doubtful else self._host.encode() + _BETWEEN + self.client_id
        given = Assignment() if member is None else member.assignment
        planned = {place: ranges[0][0] for place, ranges in given.planned.items()}
        shared = member is not None and not given.plain and not self._unknown
        held = given.lanes if shared else dict.fromkeys(self._owned, FULL)
        keeps = member is not None and member.keeps
        again = keeps and not shared and not self._is_new  # its position is unknown
        unknown = self._unknown or again
        group = self._members.group(join.group)
        refused = group is not None and group.slots_error != 0
        offer = Offer(
            self._members.gateway,
            binding,
            planned,
            held,
            unknown,
            keeps,
            refused=refused,
            slots=0 if group is None else slots_number(group.slots_topic),
            own=own,
        )
        return join.with_offer(offer.encoded())

    def _knows(self, member: Member) -> bool:
        # The client may not have received its last SyncGroup response: its connection may have ended, or the
        # client has dropped the response. Then it still has its earlier partitions. kafka-python 3 drops a
        # response that arrives between two polls, and keeps its positions. In this case it has sent no
        # heartbeat since, unlike other clients.
        if member.keeps_position:
            return False
        if self._is_new:
            return True
        here = member.assignment.number == self._syncs
        if self._owned and not (here or member.presence.is_on(self)):
            return False  # it may have other lanes from another process, and goes on with them
        here = here and (member.heartbeats > 0 or self._had_nothing)
        return member.assignment.number > 0 and (here or member.has_heard)

    def joined(self, frame: bytes, now: float) -> bytes:
        """Process the broker's JoinGroup response. Return the response for the client."""
        join = self._join
        if join is None:
            return frame
        said = read_joined(frame, join.version)
        if not join.member_id:
            self._given = said.member_id  # also with an error (KIP-394)
        if said.error_code:
            if said.error_code == _UNKNOWN_MEMBER_ID and self._member is not None:
                self._member.removed()
            return frame
        self.member_id = said.member_id
        if (member := self._member) is not None:
            self._joins(member, join, now)
        if said.protocol != PROTOCOL:
            self._members.noted(join.group, "outsider")
            return frame  # some member does not have this protocol: the group shares nothing
        self._sharing = True
        offers = [(member_id, instance, read_offer(data)) for member_id, instance, data in said.members]
        self._offers = {member_id: offer for member_id, _, offer in offers}
        # The client's assignor must not see that several members have a partition.
        owners = Counter(place for _, _, offer in offers for place in read_owned(offer.own)[0])
        several = [place for place, number in owners.items() if number > 1]
        members = [(member_id, who, without_owned(offer.own, several)) for member_id, who, offer in offers]
        return said.renamed(join.protocols[0][0], members)

    def committed_of(self, sync: Sync) -> list[TopicPartition]:
        """Return the partitions whose committed offsets `sync` needs, to share them across gateways."""
        shares = self.saw_join and self._sharing and sync.assignments and not self._exclusive()
        if not (shares and self._several):
            return []
        try:
            topics = sharable(self._joined(), _assigned(sync))
        except ProtocolError:
            return []
        topics.pop(self._slots_topic(sync), None)
        return [(topic, number) for topic in sorted(topics) for number in sorted(topics[topic])]

    def sync(self, sync: Sync, now: float, read: Read | None = None) -> bytes | None:
        """Return the SyncGroup request for the broker, or None if the client must join again.

        If the client is the leader of its group, the gateway plans the lanes, and needs the offers of all
        members. The offers are in the JoinGroup response. This response may have arrived on another
        connection, or through a gateway that has since stopped. Without the offers, only the leader's own
        assignment could be forwarded: whole partitions, each from its lowest committed offset on. Then
        members would get some records again that are already processed.
        `read` has the committed offsets of the partitions in `committed_of`.
        """
        self._sync_sent = now
        if not self.saw_join:
            return None
        if not self._sharing:
            return sync.frame
        if not sync.assignments:
            return sync.with_assignments(())
        try:
            members, assigned = self._joined(), _assigned(sync)
        except ProtocolError:  # the assignment of another kind of assignor does not change
            self._members.noted(sync.group, "assignor")
            return sync.with_assignments(sync.assignments)
        exclusive = self._exclusive()
        absent = [each for each in read.entries if each.offset < 0 or each.error_code] if read else []
        begins = {each.place for each in absent if not each.error_code}
        waiting = {each.topic for each in absent}
        self._members.noted(sync.group, exclusive or ("uncommitted" if waiting else ""))
        # A pattern of topics may match the topic of slots. A member's commit for it would overwrite a slot.
        slots = self._slots_topic(sync)
        assigned = {
            each: [place for place in places if place[0] != slots] for each, places in assigned.items()
        }
        lanes = plan(members, assigned, shares=not exclusive, but={*waiting, slots})
        now_given = {each.member_id: at_once(each, lanes[each.member_id], members) for each in members}
        places = self._in_slots([{*now_given[each.member_id], *each.owned} for each in members])
        seated = seats(self._plan_id(sync), lanes, places, several=self._several) if places else {}
        self._members.planned(sync.group, sync.generation, lanes)
        given = {
            each: Assignment(
                lanes=now_given[each],
                planned=mine,
                seat=seated.get(each),
                begins=frozenset(begins.intersection(mine)),
            )
            for each, mine in lanes.items()
        }
        return sync.with_assignments([(each, write_given(what)) for each, what in given.items()])

    def _joined(self) -> list[Joined]:
        return [joined(member_id, offer) for member_id, offer in self._offers.items()]

    def _in_slots(self, committed: Iterable[Collection[TopicPartition]]) -> set[TopicPartition]:
        if not self._has_slots:
            return set()
        # A member commits for the partitions that it gets now, and for those that it still has to release.
        # The second ones are there in an exclusive group as well.
        owners = Counter(place for places in committed for place in places)
        return {place for place, number in owners.items() if number > 1}

    @property
    def _has_slots(self) -> bool:
        return len(self._offers) <= MAX_SLOTS and not any(offer.refused for offer in self._offers.values())

    @property
    def _several(self) -> bool:
        return len({offer.gateway for offer in self._offers.values()}) > 1

    def _slots_topic(self, sync: Sync) -> bytes:
        group = self._members.group(sync.group)
        return b"" if group is None else group.slots_topic

    def _plan_id(self, sync: Sync) -> int:
        told = b"\0".join((self._members.gateway, sync.group, b"%d" % sync.generation, sync.member_id))
        return int.from_bytes(blake2b(told, digest_size=PLAN_BYTES).digest()) >> 1

    def _exclusive(self) -> str:
        """Return the reason why the group must not share partitions in this generation, or "" if it may."""
        offers = self._offers.values()
        if self._several:
            if not self._has_slots:
                return "slots"
            if len({offer.slots for offer in offers}) > 1:
                return "slots"
        bindings = {(offer.gateway, offer.binding) for offer in offers}
        names = {binding.partition(_BETWEEN)[2] for _, binding in bindings}
        unbound = not all(map(self._members.is_bound, names))
        return "client_id" if unbound or len(bindings) < len(offers) else ""

    def synced(self, sync: Sync, frame: bytes, now: float) -> bytes:
        """Give the member its lanes from a SyncGroup response. Return the response for the client."""
        said = read_synced(frame, sync.version)
        if said.error_code:
            return frame
        member = self._member
        try:
            read = read_given(said.assignment)
            self._members.reads(sync.group, True)
        except ProtocolError:  # which keys are others' is unknown, so it gets none
            self._members.reads(sync.group, False)
            read = Assignment(planned={_NOWHERE: FULL})
        plain = read is None if said.assignment else not self._sharing
        given, written = read or Assignment(), said.assignment
        if member is not None:
            if plain:
                given, written = self._plain(member, written)
            group = self._members.group(sync.group)
            # A member takes part in each generation. In one that this process missed, it joined elsewhere.
            missed = not (self._is_new or self._unknown) and member.generation + 1 < sync.generation
            known = group is None or group.enters(member, sync.generation, sync.instance, now)
            if missed or not known:
                given = replace(given, lanes={}, planned=given.planned or {_NOWHERE: FULL})
                written = assignment(())
            member.member_id = sync.member_id
            self._had_nothing = not (self._unknown or member.assignment.plain or member.assignment.lanes)
            member.synced(given, self._sync_sent, self._owned, unknown=self._unknown or missed)
            self._syncs, self._given = member.assignment.number, b""
        if not plain:
            return said.renamed(sync.protocol, assignment(sorted(given.lanes)) if written else b"")
        if said.protocol == PROTOCOL:
            return said.renamed(sync.protocol, written)
        return frame if written == said.assignment else said.renamed(said.protocol, written)

    def _plain(self, member: Member, written: bytes) -> tuple[Assignment, bytes]:
        """Return the assignment of a member whose group shares no partition, also as the client gets it."""
        # If the member had only a part of a partition, it may keep its position in this partition
        # (`plan.at_once`). So the assignment leaves this partition out. The member gets the whole partition
        # after it has joined again. If its lanes are unknown, the assignment leaves out all partitions.
        (places, user_data), had = read_assignment(written), member.assignment.lanes
        again = [place for place in places if self._unknown or had.get(place, FULL) != FULL]
        if again:
            written = assignment([place for place in places if place not in again], user_data or None)
        return Assignment(plain=True, planned=dict.fromkeys(again, FULL)), written

    def beats(self, beat: Beat) -> None:
        member = self._member
        if member is None:
            return
        member.heartbeats += 1
        joined_here = member.presence.joining or self._members.has_joined(
            (self._host, self.client_id), beat.member_id
        )
        if beat.member_id == member.member_id:
            joined_here = member.presence.joining or beat.generation <= member.generation
        if not joined_here:
            member.presence.joins_elsewhere()

    def beat(self, beat: Beat, version: int, sent: float, frame: bytes, _now: float) -> bytes:
        """Process the coordinator's response to a heartbeat that was `sent` at this time. Return it."""
        error_code, member = heartbeat_error(frame, version), self._member
        # If the heartbeat is of an earlier generation, or another client with the same client.id has joined
        # since then, the response is not about the present member.
        if member is not None and beat == (member.member_id, member.generation):
            if error_code in _GONE:
                member.presence.freeze()
            else:
                # Errors 14, 15 and 16 count, too: a coordinator that has just loaded the group gives each
                # member its whole session timeout.
                member.presence.confirm(sent, settled=error_code != _REBALANCING)
                member.presence.beats(self)
        return frame

    def leave(self) -> None:
        self._sharing = False
        member = self._member
        if member is not None and member.member_id in {b"", self.member_id}:
            member.presence.freeze()
        self.member_id = b""

    def end(self, now: float) -> None:
        if (member := self._member) is not None:
            member.presence.ends(self, now)
        self._members.left(self._host, self)

    def _joins(self, member: Member, join: Join, now: float) -> None:
        member.group, presence = join.group, member.presence
        presence.session_seconds = join.session_ms / 1e3
        presence.rebalance_seconds = inf if join.rebalance_ms is None else join.rebalance_ms / 1e3
        # Another process may serve a new member by the lanes of the client before it.
        presence.joins(self, now, ABSENT_SECONDS if self._is_new else presence.session_seconds)

    @property
    def _member(self) -> Member | None:
        """None if the client.id is not bound to a group: such a client gets whole partitions."""
        bound = self._members.is_bound(self.client_id)
        return self._members.bound(self._host, self.client_id) if bound else None


def _assigned(sync: Sync) -> dict[bytes, list[TopicPartition]]:
    """Return the assignment of the leading client, by member id."""
    return {member_id: read_assignment(data)[0] for member_id, data in sync.assignments}
