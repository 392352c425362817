"""Which replicas no client is led to, which clients are led to none, and for how long: ``--rack-clients``.

A replica that has failed is named to nobody for some time. A client that a replica did not serve, or that
needs leaders, gets *true Metadata* for some time: for a partition, a topic, or all topics. Sans-IO.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Final, NamedTuple, TypeAlias, TypeVar

from proxy.core.connection_state import ConnectionState
from proxy.features.racks.racks import RETURNS
from proxy.protocol.leader_requests import Place

PAUSE_SECONDS: Final = 30.0
"""How long nobody is led to a replica after it has failed. The leader may not know yet that it has failed.
Each failure soon after the last pause doubles the pause."""
AGAIN_SECONDS: Final = 300.0
"""The longest such pause. Also the longest true Metadata for a partition that a replica did not serve: for
what happens again within this time after the last time."""
TRUE_SECONDS: Final = 60.0
"""How long a client gets true Metadata."""
HOUR_SECONDS: Final = 3600.0
"""How long a client gets it that is no pure consumer, or that often asks for offsets."""
OFTEN: Final = 3
"""A client whose questions for offsets had no answer this many times within `AGAIN_SECONDS` asks often."""
LEAVES_SECONDS: Final = 10.0
"""A client that got error 6 has asked for Metadata, and has left the replica, after this time. A client that
still reads there has got no Metadata, or was led there again."""
AWAY_SECONDS: Final = 3.0
"""A client that got error 6 has asked a gateway at this address for Metadata after this time."""
MAX_CLIENTS: Final = 10_000
"""For how many clients each thing is remembered."""
MAX_PLACES: Final = 1000
"""For how many topics and partitions true Metadata is remembered of one client. A client with more of them
gets it for all topics."""
ALL: Final = b"", -1
"""Stands for all partitions of all topics. A topic with the number -1 stands for all its partitions."""

Client: TypeAlias = tuple[str, str]
"""Client id and host."""
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class _Lately(OrderedDict[_Key, _Value]):
    """The `MAX_CLIENTS` entries that were set last."""

    def __setitem__(self, key: _Key, value: _Value) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > MAX_CLIENTS:
            self.popitem(last=False)


class _Pause(NamedTuple):
    """A time without a replica. In seconds."""

    until: float = -inf
    seconds: float = 0.0

    def after(self, now: float, first: float, again: float) -> "_Pause":
        """Return the pause that begins now. It has `again` seconds if this one has ended lately."""
        seconds = again if now - self.until < AGAIN_SECONDS else first
        return _Pause(now + seconds, seconds)

    def longer(self, now: float, until: float) -> "_Pause":
        """Return the pause that ends at `until` or later. It began with its first cause: see `holds`."""
        begun = self.until - self.seconds if now < self.until else now
        return max(self, _Pause(until, until - begun))


class Distrust:
    """What the connections of a process share. Topics are given by name or id, `name` returns the name."""

    def __init__(self, name: Callable[[bytes], bytes]) -> None:
        self._name = name
        self.returns: Counter[str] = Counter(dict.fromkeys(RETURNS, 0))
        """How often a client, or all, got true Metadata for some time, by reason."""
        self._out: dict[int, _Pause] = {}
        """By the node id of a replica."""
        self._late: dict[int, float] = {}
        """Until when a replica counts as late, in seconds."""
        self._true: _Lately[Client, dict[Place, _Pause]] = _Lately()
        self._needs: _Lately[tuple[Client, str], float] = _Lately()
        """By reason: until when a client that needs leaders gets true Metadata, in seconds."""
        self._unanswered: _Lately[tuple[Client, bytes], list[float]] = _Lately()
        """By topic: when the leaders could not be asked for offsets, in seconds. The last `OFTEN` times."""
        self.asked: _Lately[Client, float] = _Lately()
        """When each client last asked for Metadata, in seconds."""

    # Replicas

    def failed(self, node_id: int | None, reason: str, now: float) -> None:
        """Note that a replica does not serve its clients: ``closed``, ``overdue`` or ``unreachable``."""
        self.returns[reason] += 1
        if node_id is None:
            return
        last = self._out.get(node_id, _Pause())
        if now >= last.until:
            last = last.after(now, PAUSE_SECONDS, min(2 * last.seconds, AGAIN_SECONDS))
            self._out[node_id] = last
        if reason == "overdue":
            self._late[node_id] = last.until

    def is_out(self, node_id: int, now: float) -> bool:
        return node_id in self._out and now < self._out[node_id].until

    def is_late(self, node_id: int | None, now: float) -> bool:
        """Return whether a replica was late with a request, less than a pause ago."""
        return node_id is not None and now < self._late.get(node_id, 0.0)

    # Clients

    def refused(self, client: Client, places: Iterable[Place], reason: str, now: float) -> None:
        """Note that a replica does not serve a client: ``refused``, ``out_of_range`` or ``isr``.

        If it happens again meanwhile, the time does not get longer.
        """
        before = self._true.get(client, {})
        new: dict[Place, _Pause] = {}
        for key, partition in places:
            place = self._name(key), partition
            last = before.get(place, before.get(ALL, _Pause()))
            if now >= last.until:
                new[place] = last.after(now, TRUE_SECONDS, AGAIN_SECONDS)
        self.returns[reason] += len(new)
        if new:
            self._give(client, new, now)

    def needs(
        self, client: Client, topic: bytes | None, reason: str, now: float, seconds: float = TRUE_SECONDS
    ) -> None:
        """Note that a client needs the leaders of a topic, or of all topics: ``offsets`` or ``login``."""
        self.returns[reason] += 1
        place = ALL if topic is None else (self._name(topic), ALL[1])
        self._give(client, {place: _Pause(now + seconds)}, now)

    def needs_always(self, client: Client, reason: str, now: float) -> bool:
        """Note that a client always needs leaders: ``no_consumer`` or ``old_fetch``. Return if it is new."""
        if self._needs.get((client, reason), 0.0) > now:
            return False
        self._needs[client, reason] = now + HOUR_SECONDS
        self.needs(client, None, reason, now, HOUR_SECONDS)
        return True

    def unanswered(self, client: Client, topic: bytes, now: float) -> None:
        """Note that a topic's leaders could not be asked for a client's ListOffsets.

        For a minute, further times do not count: it may have many consumers.
        """
        times = self._unanswered.get((client, topic), [])
        if not times or now - times[-1] >= TRUE_SECONDS:
            times = [*times, now][-OFTEN:]
        self._unanswered[client, topic] = times
        often = len(times) == OFTEN and now - times[0] < AGAIN_SECONDS
        self.needs(client, topic, "offsets", now, HOUR_SECONDS if often else TRUE_SECONDS)

    def _give(self, client: Client, pauses: Mapping[Place, _Pause], now: float) -> None:
        found = self._true.get(client, {})
        for place, each in pauses.items():
            found[place] = found.get(place, _Pause()).longer(now, each.until)
        if len(found) > MAX_PLACES:
            every, latest = found.get(ALL, _Pause()), max(found.values())
            found = {ALL: max(latest, every.longer(now, latest.until))}
        self._true[client] = found

    def holds(self, client: Client, place: Place, now: float) -> bool:
        """Return whether a client has got true Metadata for a partition since a replica did not serve it.

        If it gets true Metadata for all topics, it may not have asked yet: see `LEAVES_SECONDS`.
        """
        found = self._true.get(client, {})
        if now < found.get((self._name(place[0]), place[1]), _Pause()).until:
            return True
        every = found.get(ALL, _Pause())
        return every.until - every.seconds + LEAVES_SECONDS <= now < every.until

    def true_for(self, client: Client, now: float) -> dict[bytes, list[int]]:
        """Return the topics and partitions for which a client gets true Metadata, see `ALL`."""
        found = self._true.get(client, {})
        for place in [place for place, each in found.items() if now - each.until >= AGAIN_SECONDS]:
            del found[place]
        if not found:
            self._true.pop(client, None)
        true: dict[bytes, list[int]] = {}
        for (name, partition), each in found.items():
            if now < each.until:
                true.setdefault(name, []).append(partition)
        return true


class SentAway:
    """Notices that a client comes back to a replica although it was told to ask the leader.

    If it has not asked this gateway for Metadata since then, another gateway at the same address has led it
    here, and does not know of the trouble. The connection ends. Sooner or later a new one reaches that
    gateway, which then sees the trouble itself.
    """

    __slots__ = ("_distrust", "_since", "_state")

    def __init__(self, distrust: Distrust, state: ConnectionState) -> None:
        self._distrust = distrust
        self._state = state
        self._since: dict[Place, float] = {}
        """When the client was told so on this connection, in seconds."""

    def note(self, client: Client, place: Place, *, told_before: bool) -> None:
        """Note that the replica has refused what only the leader answers.

        With `told_before`, the client gets true Metadata for it already. A partition with the number -1
        stands for all partitions of its topic.
        """
        state, since = self._state, self._since.get(place, inf)
        has_asked = self._distrust.asked.get(client, -inf) >= since
        if not told_before or since == inf or has_asked:
            if len(self._since) == MAX_PLACES:
                self._since.clear()
            self._since[place] = state.now
        elif state.now - since >= AWAY_SECONDS:
            state.fail("broker", "a replica in the rack has its client again, so the client connects anew")
