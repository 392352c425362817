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
"""Members that are known. With more, what was scanned for the one that was not seen for longest is forgotten:
that costs reading it again."""


class Members:
    """The members that clients of this process are.

    Args:
        groups: the names of the groups whose members commit for themselves.
    """

    __slots__ = ("_groups", "_members", "tally")

    def __init__(self, groups: Iterable[str]) -> None:
        self._groups = {name.encode(): Group(name) for name in groups}
        self._members: OrderedDict[tuple[str, bytes], Member] = OrderedDict()
        self.tally = FilterTally()

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
            member = self._members[key] = Member(found.ranges, self.tally)
            if len(self._members) > MAX_MEMBERS:
                self._members.popitem(last=False)
        self._members.move_to_end(key)
        return found, member
