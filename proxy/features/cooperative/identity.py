"""What the client.id of a connection's client says: the group and the lane of the client. Sans-IO."""

from collections.abc import Iterable

from proxy.features.cooperative.claims import shown_client
from proxy.features.cooperative.member import Member
from proxy.features.cooperative.members import INVALID_RANGES, OVERLAPS, Members
from proxy.features.cooperative.positions import TopicPartition
from proxy.features.cooperative.ranges import KeyRanges, RangeError
from proxy.features.cooperative.tally import GroupNotice


class MemberIdentity:
    """The client of one connection. It has a lane if its client.id declares one, or is bound to a group."""

    __slots__ = ("_declared", "_denied", "_members", "bound", "client_id", "host", "own_id", "refused")

    def __init__(self, members: Members, host: str) -> None:
        self._members = members
        self.host = host
        self.client_id = b""
        self.own_id = b""
        """The client.id that is sent to the broker: without the suffix that declares a lane, if the
        declaration is valid."""
        self._declared: Member | None = None
        self._denied = False
        """Whether the last check has refused the declared lane. If so, the log already says it."""
        self.bound = False
        """Whether the client.id begins with a cooperative group's name and a dot, and declares no lane."""
        self.refused = ""
        """Why the declared lane is invalid, in words. Empty if it is valid, or if none is declared."""

    def __repr__(self) -> str:
        return f"<Identity {self.client_id!r} bound={self.bound} declares={self.declares}>"

    @property
    def declares(self) -> bool:
        """Whether the client.id declares a lane, valid or not."""
        return self._declared is not None or bool(self.refused)

    @property
    def has_lane(self) -> bool:
        """Whether the client.id gives the client a lane, or tries to declare a lane (even an invalid one)."""
        return self.bound or self.declares

    @property
    def member(self) -> Member | None:
        """The member that this client is, or None if the client has no valid lane."""
        return self._members.bound(self.host, self.client_id) if self.bound else self._declared

    def named(self, client_id: bytes) -> None:
        """Store the client.id, and read the lane that it declares, if any."""
        self.client_id = self.own_id = client_id
        self.bound = False  # the earlier client.id may have been bound
        try:
            found = self._members.declared(self.host, client_id)
        except RangeError as error:
            self.refused = str(error)
            self._members.tell(GroupNotice.REFUSED, self.host, self.refused)
            return
        if found is not None:
            what, self._declared = found
            self.own_id = what.own_id
            self._members.claims.opened((self.host, client_id))
        self.bound = found is None and self._members.is_bound(client_id)

    def denied(self, places: Iterable[TopicPartition], *, claims: bool) -> int:
        """Return an error code if the client can't have its declared lane of some partitions, else 0.

        If the client's group is not known yet, there are no other claims to compare. With `claims`, the lane
        is reserved for the client until its last connection is closed.
        """
        member = self._declared
        if member is None or not member.group:
            return 0
        lanes = [(place, member.ranges(place) or ()) for place in places]
        code, reason = self._denial(member.group, lanes)
        if code and not self._denied:
            self._members.tell(GroupNotice.REFUSED, self.host, reason)
        self._denied = code != 0
        if claims and not code:
            self._members.claims.claim((self.host, self.client_id), member.group, lanes)
        return code

    def _denial(self, group: bytes, lanes: list[tuple[TopicPartition, KeyRanges]]) -> tuple[int, str]:
        """Return the reason why the client can't have these lanes, and Kafka's error code for it, or 0."""
        client = self.host, self.client_id
        for place, ranges in lanes:
            if not ranges:
                return INVALID_RANGES, f"{shown_client(client)}: its lane has no range of {_place(place)}"
        found = self._members.claims.overlap(client, group, lanes)
        if found is None:
            return 0, ""
        who = f"{shown_client(client)} overlaps {shown_client(found.holder)}"
        where = f"{_place(found.place)} of group {group.decode(errors='replace')}"
        return OVERLAPS, f"{who} on {where}; the first one keeps the lane"

    def is_of(self, group: bytes) -> bool:
        """Return False if `group` is cooperative, and the declared lane belongs to another group.

        If the lane has no group yet, a cooperative `group` becomes its group.
        """
        member = self._declared
        if member is None or self._members.group(group) is None:
            return True
        member.group = member.group or group
        return member.group == group

    def end(self) -> None:
        if self._declared is not None:
            self._members.claims.closed((self.host, self.client_id))
            self._declared = None


def _place(place: TopicPartition) -> str:
    return f"{place[0].decode(errors='replace')}-{place[1]}"
