"""A member joins its group, gets its lanes, and leaves: what the broker and the client are told of it.

The coordinator stays the only truth: what is known here can be made anew by joining again.
"""

from typing import Final

from proxy.cooperative.member import Member
from proxy.cooperative.members import Members
from proxy.cooperative.membership import (
    CONSUMER,
    PROTOCOL,
    Join,
    Offer,
    Sync,
    assignment,
    joined,
    read_assignment,
    read_joined,
    read_lanes,
    read_offer,
    read_synced,
    with_lanes,
)
from proxy.cooperative.plan import at_once, plan
from proxy.protocol.primitives import ProtocolError

_GONE: Final = frozenset({22, 25, 82})
"""ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID and FENCED_INSTANCE_ID: the group goes on without the member."""
_BETWEEN: Final = b"\0"


class Joining:
    """The membership of one client, as its connection to the coordinator shows it.

    Args:
        members: those of the process.
        host: the client's.
    """

    __slots__ = ("_given", "_host", "_join", "_members", "_offers", "_sharing", "client_id")

    def __init__(self, members: Members, host: str) -> None:
        self._members = members
        self._host = host
        self.client_id = b""
        self._join: Join | None = None
        self._offers: dict[bytes, Offer] = {}
        """Of the leader's: what each member offers, by member id."""
        self._given = b""
        """The member id that the coordinator gave to a client that had none (KIP-394)."""
        self._sharing = False
        """The coordinator has picked `PROTOCOL`."""

    def takes(self, join: Join) -> bool:
        """Whether a client joins a cooperative group as a consumer."""
        named = self._members.group(join.group) is not None
        return named and join.protocol_type == CONSUMER and bool(join.protocols)

    def join(self, join: Join) -> bytes:
        """Return the JoinGroup request that the broker gets."""
        self._join, self._sharing = join, False
        self._offers = {}
        member = self._member
        unknown = member is not None and member.unknown and join.member_id not in {b"", self._given}
        if member is not None:
            member.joins(join.session_ms / 1e3)
        binding = self._host.encode() + _BETWEEN + self.client_id
        planned = {place: ranges[0][0] for place, ranges in member.planned.items()} if member else {}
        held = member.lanes if member is not None else {}
        offer = Offer(self._members.gateway, binding, planned, held, unknown, join.protocols[0][1])
        return join.with_offer(offer.encoded())

    def joined(self, frame: bytes) -> bytes:
        """Return the JoinGroup response that the client gets.

        Raises:
            ProtocolError: it is none.
        """
        join = self._join
        if join is None:
            return frame
        said = read_joined(frame, join.version)
        if said.error_code:
            self._given = said.member_id
            return frame
        if said.protocol != PROTOCOL:
            return frame  # a member from outside: a plain group
        self._sharing = True
        members = []
        for member_id, instance, metadata in said.members:
            offer = self._offers[member_id] = read_offer(metadata)
            members.append((member_id, instance, offer.own))
        return said.renamed(join.protocols[0][0], members)

    def sync(self, sync: Sync) -> bytes:
        """Return the SyncGroup request that the broker gets."""
        if not self._sharing:
            return sync.frame
        if not sync.assignments:
            return sync.with_assignments(())
        try:
            members = [joined(member_id, offer) for member_id, offer in self._offers.items()]
            assigned = {member_id: read_assignment(data)[0] for member_id, data in sync.assignments}
        except ProtocolError:  # another kind of assignor: its assignment stays
            return sync.with_assignments(sync.assignments)
        lanes = plan(members, assigned, shares=not self._exclusive())
        return sync.with_assignments(
            [
                (member.member_id, with_lanes(at_once(member, mine), mine))
                for member in members
                for mine in [lanes[member.member_id]]
            ]
        )

    def _exclusive(self) -> str:
        """Return why no partition is shared in this generation, empty if some may be."""
        offers = self._offers.values()
        if len({offer.gateway for offer in offers}) > 1:
            return "instances"
        bindings = {offer.binding for offer in offers}
        names = {binding.partition(_BETWEEN)[2] for binding in bindings}
        unbound = not all(map(self._members.is_bound, names))
        return "client_id" if unbound or len(bindings) < len(offers) else ""

    def synced(self, frame: bytes, sync: Sync, now: float) -> bytes:
        """Return the SyncGroup response that the client gets, and give the member its lanes.

        Raises:
            ProtocolError: it is none.
        """
        said = read_synced(frame, sync.version)
        if said.error_code:
            return frame
        member = self._member
        try:
            lanes, planned = read_lanes(said.assignment)
            plain = not (said.assignment or self._sharing)
        except ProtocolError:  # a plain assignment
            lanes, planned, plain = {}, {}, True
        if member is not None:
            member.synced(None if plain else lanes, planned, now)
        if not plain:
            return said.renamed(sync.protocol, assignment(sorted(lanes)) if said.assignment else b"")
        return said.renamed(sync.protocol, said.assignment) if said.protocol == PROTOCOL else frame

    def beat(self, error_code: int, now: float) -> None:
        """Note what the coordinator says to a heartbeat."""
        member = self._member
        if member is None:
            return
        if error_code in _GONE:
            member.freeze()
        else:
            member.beats(now)

    def leave(self) -> None:
        """Note that the client leaves its group."""
        self._sharing = False
        if (member := self._member) is not None:
            member.freeze()

    @property
    def _member(self) -> Member | None:
        """The member, if its client.id says so. Another one has all of its partitions."""
        bound = self._members.is_bound(self.client_id)
        return self._members.bound(self._host, self.client_id) if bound else None
