"""The members of cooperative groups that the clients of a process are, and their groups.

A member is known by the host of its client and by its client.id, on whatever connections it comes.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from proxy.cooperative.declared import Declared, declared
from proxy.cooperative.group import Group
from proxy.cooperative.member import FilterTally, Member
from proxy.cooperative.ranges import RangeError

MAX_MEMBERS: Final = 4096
"""Members that are known. With more, the one that was not seen for longest is forgotten: it has to join its
group again, or what it has declared is scanned again."""


class Members:
    """The members that clients of this process are.

    Args:
        groups: the names of the groups whose members commit for themselves.
        gateway: tells this process from all others.
    """

    __slots__ = ("_groups", "_members", "gateway", "tally")

    def __init__(self, groups: Iterable[str], gateway: bytes = b"") -> None:
        self._groups = {name.encode(): Group(name) for name in groups}
        self._members: OrderedDict[tuple[str, bytes], Member] = OrderedDict()
        self.tally = FilterTally()
        self.gateway = gateway

    def __repr__(self) -> str:
        return f"<Members {len(self._members)}>"

    def __len__(self) -> int:
        return len(self._members)

    def group(self, name: bytes) -> Group | None:
        """Return a group, None if its members do not commit for themselves."""
        return self._groups.get(name)

    def declared(self, host: str, client_id: bytes) -> tuple[Declared, Member] | None:
        """Return what a client.id declares, and the member that it names; None if it declares nothing.

        Args:
            host: the client's.
            client_id: as the client sends it.

        Raises:
            RangeError: it declares what can't be read, or a lane that nobody has named.
        """
        found = declared(client_id)
        if found is None:
            return None
        if found.lane:
            raise RangeError(f"no lane has the name {found.lane}")
        key = host, client_id
        member = self._members.get(key)
        if member is None:
            member = self._new(key, Member(self.tally, found.ranges))
        self._members.move_to_end(key)
        return found, member

    def is_bound(self, client_id: bytes) -> bool:
        """Whether a client.id is that of a member of a cooperative group: it begins with the group's name.

        So each fetch shows whose it is, to a process that has just started as well.
        """
        return any(client_id.startswith(name + b".") for name in self._groups)

    def bound(self, host: str, client_id: bytes) -> Member:
        """Return the member that a client is whose client.id is bound."""
        key = host, client_id
        member = self._members.get(key) or self._new(key, Member(self.tally))
        self._members.move_to_end(key)
        return member

    def _new(self, key: tuple[str, bytes], member: Member) -> Member:
        self._members[key] = member
        if len(self._members) > MAX_MEMBERS:
            _, oldest = self._members.popitem(last=False)
            if oldest.declared is None:
                oldest.freeze()  # it is asked to join again
        return member
