"""Knows which replicas Metadata names as leaders, and which brokers lead: ``--rack-clients``. Sans-IO.

A client fetches from the broker that Metadata calls the leader. Followers serve consumers as well (KIP-392),
without a replica selector and without a rack in the fetch. `proxy.features.racks.rack_clients` has the stage
of a connection.

What only a leader can answer then comes to the replica, too. Whoever handles that asks `RackLeaders` for the
true leader. After trouble, a client gets true Metadata for some time (`RackLeaders.distrust`).
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple, Protocol
from zlib import crc32

import numpy as np
import numpy.typing as npt

from proxy.core.connection_state import ConnectionState
from proxy.features.racks.racks import RETURNS, BrokerRacks
from proxy.protocol.api import ApiKey
from proxy.protocol.brokers import read_brokers
from proxy.protocol.leader_requests import Place
from proxy.protocol.metadata import NOBODY, NodeIds, Replicas, read_replicas, with_leaders
from proxy.protocol.primitives import UUID_BYTES, ProtocolError

MAX_BYTES: Final = 1 << 23
"""The memory limit for known topics, enough for 300,000 partitions with three replicas. Topics that were in
no response for longest are forgotten first."""
MAX_CLIENTS: Final = 10_000
"""For how many clients it is remembered that they get true Metadata."""
MAX_PLACES: Final = 1000
"""For how many topics and partitions this is remembered of one client. A client with more of them gets true
Metadata for all topics."""
TRUE_SECONDS: Final = 60.0
"""How long a client gets true Metadata for a partition that its replica did not serve."""
LONG_SECONDS: Final = 300.0
"""How long it does if that happens again within this time after the first time."""
LEAVES_SECONDS: Final = 10.0
"""A client that got error 6 has asked for Metadata, and has left the replica, after this time. A client that
still reads there has got no Metadata, or was led there again."""
AWAY_SECONDS: Final = 3.0
"""A client that got error 6 has asked a gateway at this address for Metadata after this time."""
PAUSE_SECONDS: Final = 30.0
"""How long nobody is led to a follower after it has failed. The leader may not know yet that it has
failed."""
MAX_PAUSE_SECONDS: Final = 300.0
"""The longest such pause. Each failure soon after the last pause doubles the pause."""
_MORE_BYTES: Final = 400
"""The memory for a known topic in addition to its columns."""
_PARTITION, _LEADER, _EPOCH, _IN_SYNC = 0, 1, 2, 3
"""The columns of `_Known.table`. In-sync replicas are in the last ones."""


ALL: Final = b"", -1
"""Stands for all partitions of all topics. A topic with the number -1 stands for all its partitions."""


class Pause(NamedTuple):
    """A time in which nobody is led to a follower that has failed, or a client to no follower. In seconds."""

    until: float = -inf
    seconds: float = PAUSE_SECONDS

    def after(self, now: float) -> "Pause":
        """Return the pause that begins now, because a follower has failed again."""
        recent = now - self.until < MAX_PAUSE_SECONDS
        seconds = min(2 * self.seconds, MAX_PAUSE_SECONDS) if recent else PAUSE_SECONDS
        return Pause(now + seconds, seconds)


class Reading(Protocol):
    """The stage of a connection."""

    def forget(self) -> None:
        """Decide anew about the next fetch."""

    def hurry(self, now: float) -> None:
        """See `Follower.hurry`."""


@dataclass(slots=True, eq=False)
class _Known:
    """A topic, as the last Metadata response has described it."""

    topic_id: bytes
    table: NodeIds
    """A row for each partition, in the order of their numbers."""
    seen: float
    """When the response came, or when a broker was last asked, in seconds."""

    @property
    def size(self) -> int:
        return self.table.nbytes + _MORE_BYTES


class RackLeaders:
    """What the connections of a process share.

    Topics have two kinds of keys: a topic's name, or its id of 16 bytes, as in fetches from v13 on.

    Args:
        racks: the racks of the brokers.
        clients: returns the client ids for which replicas are named.
        max_bytes: the memory limit for known topics.
    """

    def __init__(
        self, racks: BrokerRacks, clients: Callable[[], Collection[str]], max_bytes: int = MAX_BYTES
    ) -> None:
        self.racks = racks
        self._clients = clients
        self._max_bytes = max_bytes
        self._topics: OrderedDict[bytes, _Known] = OrderedDict()
        """By name. The first one was in no response for longest."""
        self._names: dict[bytes, bytes] = {}
        """The names of known topics by topic id."""
        self.buffered = 0
        """The memory of all known topics in bytes."""
        self.named = 0
        """How many partitions in Metadata responses a replica was named for."""
        self.returns: Counter[str] = Counter(dict.fromkeys(RETURNS, 0))
        """How often a client, or all, got true Metadata for some time, by reason."""
        self.held = 0
        """How many responses were held back."""
        self.changes = 0
        """How often something else was learned of leaders, replicas or racks."""
        self._true: OrderedDict[tuple[str, str], dict[Place, Pause]] = OrderedDict()
        """The clients that get true Metadata, by client id and host, and the partitions for which they do."""
        self._asked: OrderedDict[tuple[str, str], float] = OrderedDict()
        """When each client last asked for Metadata, by client id and host, in seconds."""
        self._out: dict[int, Pause] = {}
        """By node id."""
        self._stages: set[Reading] = set()
        self._silent: dict[int, float] = {}
        """Until when a broker that was late with a request counts as silent, in seconds."""

    def __repr__(self) -> str:
        return f"<RackLeaders topics={len(self._topics)} named={self.named}>"

    def names_for(self, client_id: str) -> bool:
        return client_id in self._clients()

    def asks(self, client_id: str, host: str, now: float) -> None:
        """Note that a client asks for Metadata."""
        self._asked[client_id, host] = now
        self._asked.move_to_end((client_id, host))
        if len(self._asked) > MAX_CLIENTS:
            self._asked.popitem(last=False)

    def has_asked(self, client_id: str, host: str, since: float) -> bool:
        """Return whether a client has asked for Metadata since a time in seconds."""
        return self._asked.get((client_id, host), -inf) >= since

    # What the process knows of leaders

    def leader_of(self, topic_key: bytes, partition: int) -> int | None:
        """Return the node id of the true leader of a partition. None if it is not known, or there is none."""
        row = self._row(topic_key, partition)
        return None if row is None or row[_LEADER] < 0 else int(row[_LEADER])

    def epoch_of(self, topic_key: bytes, partition: int) -> int | None:
        """Return the epoch of the true leader of a partition. None if it is not known."""
        row = self._row(topic_key, partition)
        return None if row is None or row[_EPOCH] < 0 else int(row[_EPOCH])

    def leads(self, place: Place, node_id: int | None) -> bool | None:
        """Return whether a broker leads a partition. None if that is not known."""
        row = self._row(*place)
        return None if row is None else bool(row[_LEADER] == node_id)

    def look(
        self, topic_key: bytes, partitions: npt.NDArray[np.int64], node_id: int
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return for which partitions of a topic a broker is a follower, and for which it is out of sync.

        Where nothing is known, it is neither.
        """
        known = self._topics.get(self._name(topic_key))
        if known is None or not len(known.table):
            nowhere = np.zeros(len(partitions), np.bool_)
            return nowhere, nowhere
        numbers = known.table[:, _PARTITION]
        rows = np.minimum(numbers.searchsorted(partitions), len(numbers) - 1)
        others = (numbers[rows] == partitions) & (known.table[rows, _LEADER] != node_id)
        in_sync = (known.table[rows, _IN_SYNC:] == node_id).any(axis=1)
        return others, others & ~in_sync

    def stale(self, topic_keys: Iterable[bytes], now: float, seconds: float) -> tuple[list[bytes], float]:
        """Return the topics that no response has described for some seconds, and when to look again.

        They count as described now, because a broker is asked about them.
        """
        found: list[bytes] = []
        again = now + seconds
        for key in topic_keys:
            known = self._topics.get(self._name(key))
            if known is None or now - known.seen >= seconds:
                found.append(key)
                if known is not None:
                    known.seen = now
            else:
                again = min(again, known.seen + seconds)
        return found, again

    def learn(self, body: bytes, version: int, now: float) -> None:
        """Learn leaders, in-sync replicas and racks from a Metadata response that is not for the client.

        `body` is the complete response without its header.
        """
        with suppress(ProtocolError):
            self._learn(read_replicas(body, version), now)
            self.racks.learn(read_brokers(ApiKey.METADATA, version, body)[0])

    def _name(self, topic_key: bytes) -> bytes:
        return self._names.get(topic_key, topic_key) if len(topic_key) == UUID_BYTES else topic_key

    def _row(self, topic_key: bytes, partition: int) -> NodeIds | None:
        known = self._topics.get(self._name(topic_key))
        if known is None:
            return None
        numbers = known.table[:, _PARTITION]
        at = int(numbers.searchsorted(partition))
        return known.table[at] if at < len(numbers) and numbers[at] == partition else None

    def _learn(self, found: Replicas, now: float) -> None:
        lengths = [len(topic.places) for topic, _ in found.topics]
        order = np.lexsort((found.partition, np.repeat(np.arange(len(lengths)), lengths)))
        columns = (found.partition, found.leader, found.epoch, *found.in_sync.T)
        table = np.column_stack(columns)[order]
        changed = False
        # The newest response wins, also with older epochs: the topic may be another one of the same name.
        for topic, rows in found.topics:
            if topic.name:
                before = self._topics.get(topic.name)
                # Responses below v10 have no ids. The next fetch by id may be of the same topic.
                topic_id = topic.topic_id or (b"" if before is None else before.topic_id)
                known = _Known(topic_id, table[rows].copy(), now)
                changed |= before is None or not np.array_equal(before.table, known.table)
                self._forget(topic.name)
                self._topics[topic.name] = known
                self.buffered += known.size
                if topic_id:
                    self._names[topic_id] = topic.name
        while self.buffered > self._max_bytes:
            self._forget(next(iter(self._topics)))
        if changed:
            self.changed()

    def changed(self) -> None:
        """Have all connections look again at what is known of leaders, replicas and racks."""
        self.changes += 1
        for stage in self._stages:
            stage.forget()

    def _forget(self, name: bytes) -> None:
        known = self._topics.pop(name, None)
        if known is not None:
            self.buffered -= known.size
            self._names.pop(known.topic_id, None)

    def add(self, stage: Reading) -> None:
        self._stages.add(stage)

    def remove(self, stage: Reading) -> None:
        self._stages.discard(stage)

    # Replicas that have failed

    def failed(self, node_id: int | None, how: str, now: float) -> None:
        """Note that a replica does not serve its clients. For some time no client is told of it.

        `how` is ``closed``, ``overdue`` or ``unreachable``. If it is late with a request, it is probably late
        with others as well.
        """
        self.returns[how] += 1
        if node_id is None:
            return
        last = self._out.get(node_id, Pause())
        if now >= last.until:
            self._out[node_id] = last.after(now)
        if how == "overdue":
            self._silent[node_id] = self._out[node_id].until
            for stage in tuple(self._stages):
                stage.hurry(now)

    def silent(self, node_id: int | None, now: float) -> bool:
        """Return whether a replica was late with a request, less than a pause ago."""
        return node_id is not None and now < self._silent.get(node_id, 0.0)

    def unreachable(self, node_id: int | None, now: float) -> None:
        if self.racks.is_here(node_id):  # it may be a follower
            self.failed(node_id, "unreachable", now)

    def _is_out(self, node_id: int, now: float) -> bool:
        return node_id in self._out and now < self._out[node_id].until

    # True Metadata

    def distrust(
        self,
        client_id: str,
        host: str,
        topics: Iterable[bytes] | None,
        seconds: float,
        reason: str,
        now: float,
    ) -> None:
        """Give a client true Metadata for some time.

        Topics are given by name or id, None stands for all. A longer time that was given before stays.
        `reason` is one of `RETURNS`.
        """
        self.returns[reason] += 1
        places = [ALL] if topics is None else [(self._name(key), -1) for key in topics]
        given = dict.fromkeys(places, seconds)
        self._distrust(client_id, host, given, now)

    def refused(self, client_id: str, host: str, places: Iterable[Place], reason: str, now: float) -> None:
        """Note that a follower does not serve a client. For some time the client gets true Metadata.

        `reason` is one of `RETURNS`.
        """
        before = self._true.get((client_id, host), {})
        seconds: dict[Place, float] = {}
        for key, partition in places:
            place = self._name(key), partition
            last = before.get(place, before.get(ALL))
            if last is None or now >= last.until:
                recent = last is not None and now - last.until < LONG_SECONDS
                seconds[place] = LONG_SECONDS if recent else TRUE_SECONDS
        self.returns[reason] += len(seconds)
        if seconds:
            self._distrust(client_id, host, seconds, now)

    def _distrust(self, client_id: str, host: str, seconds: dict[Place, float], now: float) -> None:
        found = self._true.setdefault((client_id, host), {})
        self._true.move_to_end((client_id, host))
        for place, each in seconds.items():
            last = found.get(place, Pause())
            # A pause that is made longer began with its first cause: see `is_distrusted`.
            begun = last.until - last.seconds if now < last.until else now
            found[place] = max(last, Pause(now + each, now + each - begun))
        if len(found) > MAX_PLACES:
            latest = max(found.values())
            found.clear()
            found[ALL] = latest
        if len(self._true) > MAX_CLIENTS:
            self._true.popitem(last=False)

    def is_distrusted(self, client_id: str, host: str, place: Place, now: float) -> bool:
        """Return whether a client has got true Metadata for a partition since a follower did not serve it.

        If it gets true Metadata for all topics, it may not have asked yet: see `LEAVES_SECONDS`.
        """
        found = self._true.get((client_id, host), {})
        one, every = found.get((self._name(place[0]), place[1])), found.get(ALL)
        if one is not None and now < one.until:
            return True
        return every is not None and every.until - every.seconds + LEAVES_SECONDS <= now < every.until

    def _distrusted(self, client_id: str, host: str, now: float) -> dict[bytes, list[int]]:
        """Return the topics and partitions for which a client gets true Metadata, see `ALL`."""
        found = self._true.get((client_id, host))
        if found is None:
            return {}
        for place in [place for place, each in found.items() if now - each.until >= LONG_SECONDS]:
            del found[place]
        if not found:
            del self._true[client_id, host]
        true: dict[bytes, list[int]] = {}
        for (name, partition), each in found.items():
            if now < each.until:
                true.setdefault(name, []).append(partition)
        return true

    # Metadata

    def name_replicas(self, body: bytes, version: int, client_id: str, host: str, now: float) -> bytes:
        """Return a Metadata response that names replicas in the gateway's rack. Learn the true leaders.

        The leader of a partition is replaced by a replica that is in the rack, in sync, not offline, and in
        the list of brokers. If there are several, the client always gets the same one. Nothing else changes,
        not even the leader epoch: a follower knows it as well.

        Below v7 there are no leader epochs, and below v5 no offline replicas. That is safe: a client without
        an epoch sends none in its fetches, so nothing is compared with it. An offline replica leaves the
        in-sync replicas.

        `body` is the complete response without its header. The new body has the same size. It is `body`
        itself if no leader is replaced, or if the response is not understood, so that nothing is learned.
        """
        try:
            found = read_replicas(body, version)
        except ProtocolError:
            return body
        self._learn(found, now)
        here = [node_id for node_id in sorted(found.brokers) if self.racks.is_here(node_id)]
        true = self._distrusted(client_id, host, now)
        if not here or ALL[0] in true:
            return body
        may = (found.error == 0) & (found.leader >= 0) & ~np.isin(found.leader, here)
        for topic, rows in found.topics:
            if topic.name not in self._topics:  # there was no memory for it: its leaders would not be found
                may[rows] = False
            elif (partitions := true.get(topic.name)) is not None:
                may[rows] &= ALL[1] not in partitions and ~np.isin(found.partition[rows], partitions)
        rows_named = np.nonzero(may)[0]
        usable = [node_id for node_id in here if not self._is_out(node_id, now)]
        chosen = _choose(found, rows_named, usable, client_id)
        rows_named, chosen = rows_named[chosen != NOBODY], chosen[chosen != NOBODY]
        self.named += len(rows_named)
        return with_leaders(body, found.at[rows_named], chosen) if len(rows_named) else body


class SentAway:
    """Notices that a client comes back to a replica although it was told to ask the leader.

    If it has not asked this gateway for Metadata since then, another gateway at the same address has led it
    here, and does not know of the trouble. The connection ends. Sooner or later a new one reaches that
    gateway, which then sees the trouble itself.
    """

    __slots__ = ("_shared", "_since", "_state")

    def __init__(self, shared: RackLeaders, state: ConnectionState) -> None:
        self._shared = shared
        self._state = state
        self._since: dict[Place, float] = {}
        """When the client was told so on this connection, in seconds."""

    def note(self, client_id: str, place: Place, *, told_before: bool) -> None:
        """Note that the replica has refused what only the leader answers.

        With `told_before`, the client gets true Metadata for it already. A partition with the number -1
        stands for all partitions of its topic.
        """
        state, since = self._state, self._since.get(place, inf)
        if not told_before or since == inf or self._shared.has_asked(client_id, state.host, since):
            if len(self._since) == MAX_PLACES:
                self._since.clear()
            self._since[place] = state.now
        elif state.now - since >= AWAY_SECONDS:
            state.fail("broker", "a replica in the rack has its client again, so the client connects anew")


def _choose(found: Replicas, rows: npt.NDArray[np.intp], nodes: list[int], client_id: str) -> NodeIds:
    """Return one of these brokers for each of these partitions, or `NOBODY` if none of them is in sync.

    Each broker has a score from topic, partition, client id and node id, and the highest score wins
    (rendezvous hashing). So clients and partitions spread. A broker that comes or goes moves only its own.
    """
    starts, of_client = np.zeros(len(found.partition), np.uint32), crc32(client_id.encode())
    for topic, its_rows in found.topics:
        starts[its_rows] = crc32(topic.name, of_client)
    seeds = starts[rows] + found.partition[rows].astype(np.uint32) * np.uint32(0x9E3779B1)
    chosen = np.full(len(rows), NOBODY, np.int32)
    best = np.full(len(rows), -1, np.int64)
    for node_id in nodes:
        scores = _mixed(seeds ^ np.uint32(node_id * 0x85EBCA77 & 0xFFFFFFFF)).astype(np.int64)
        better = (found.in_sync[rows] == node_id).any(axis=1) & (scores > best)
        chosen[better], best[better] = node_id, scores[better]
    return chosen


def _mixed(values: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return the values with their bits mixed, as murmur3 does at its end."""
    values = (values ^ (values >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    values = (values ^ (values >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return values ^ (values >> np.uint32(16))
