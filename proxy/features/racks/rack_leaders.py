"""Knows which replicas Metadata names as leaders, and which brokers lead: ``--rack-clients``. Sans-IO.

A client fetches from the broker that Metadata calls the leader. Followers serve consumers as well (KIP-392),
without a replica selector and without a rack in the fetch. `proxy.features.racks.rack_clients` has the stage
of a connection.

What only a leader can answer then comes to the replica, too. Whoever handles that asks `RackLeaders` for the
true leader. After trouble, a client gets true Metadata for some time (`Distrust`).
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol
from zlib import crc32

import numpy as np
import numpy.typing as npt

from proxy.core.connection_state import ConnectionState, RequestFramer
from proxy.core.in_flight import Handler, Over
from proxy.core.requests import readable
from proxy.features.racks.distrust import ALL, Client, Distrust
from proxy.features.racks.racks import BrokerRacks
from proxy.protocol.api import LENGTH_BYTES, ApiKey, request_header, response_header
from proxy.protocol.brokers import read_brokers
from proxy.protocol.leader_requests import Place
from proxy.protocol.metadata import NOBODY, NodeIds, Replicas, read_replicas, with_leaders
from proxy.protocol.primitives import UUID_BYTES, Buffer, ProtocolError, Truncated

MAX_BYTES: Final = 1 << 23
"""The memory limit for known topics, enough for 300,000 partitions with three replicas. Topics that were in
no response for longest are forgotten first."""
_MAX_HEADER: Final = 1 << 16
"""How many bytes of a request are kept until its client id has arrived."""
_MORE_BYTES: Final = 400
"""The memory for a known topic in addition to its columns."""
_PARTITION, _LEADER, _EPOCH, _IN_SYNC = 0, 1, 2, 3
"""The columns of `_Known.table`. In-sync replicas are in the last ones."""


class Reading(Protocol):
    """The stage of a connection."""

    def forget(self) -> None:
        """Decide anew about the next fetch."""

    def hurry(self, now: float) -> None:
        """Look at the broker now: a broker was late with a request of another client."""


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
        self.held = 0
        """How many responses were held back."""
        self.changes = 0
        """How often something else was learned of leaders, replicas or racks."""
        self.distrust = Distrust(self._name)
        self.fetching: Counter[Client] = Counter()
        """The number of open connections that have fetched, by client."""
        self._stages: set[Reading] = set()

    def __repr__(self) -> str:
        return f"<RackLeaders topics={len(self._topics)} named={self.named}>"

    def names_for(self, client_id: str) -> bool:
        return client_id in self._clients()

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

    def failed(self, node_id: int | None, reason: str, now: float) -> None:
        """See `Distrust.failed`. A replica that is late with a request is probably late with others."""
        self.distrust.failed(node_id, reason, now)
        if reason == "overdue":
            for stage in tuple(self._stages):
                stage.hurry(now)

    def unreachable(self, node_id: int | None, now: float) -> None:
        if self.racks.is_here(node_id):  # it may be a follower
            self.distrust.failed(node_id, "unreachable", now)

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
        true = self.distrust.true_for((client_id, host), now)
        if not here or ALL[0] in true:
            return body
        may = (found.error == 0) & (found.leader >= 0) & ~np.isin(found.leader, here)
        for topic, rows in found.topics:
            if topic.name not in self._topics:  # there was no memory for it: its leaders would not be found
                may[rows] = False
            elif (partitions := true.get(topic.name)) is not None:
                may[rows] &= ALL[1] not in partitions and ~np.isin(found.partition[rows], partitions)
        rows_named = np.nonzero(may)[0]
        usable = [node_id for node_id in here if not self.distrust.is_out(node_id, now)]
        chosen = _choose(found, rows_named, usable, client_id)
        rows_named, chosen = rows_named[chosen != NOBODY], chosen[chosen != NOBODY]
        self.named += len(rows_named)
        return with_leaders(body, found.at[rows_named], chosen) if len(rows_named) else body


class NameReplicas(Over):
    """Names replicas in the client's Metadata response, which `inner` has made and returns as a whole."""

    __slots__ = ("_client_id", "_shared", "_state", "_version")

    def __init__(
        self, inner: Handler, shared: RackLeaders, state: ConnectionState, client_id: str, version: int
    ) -> None:
        super().__init__(inner)
        self._shared = shared
        self._state = state
        self._client_id = client_id
        self._version = version

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        return self._named(self._inner.feed(chunk, last=last))

    def opened(self) -> list[Buffer]:
        return self._named(self._inner.opened())

    def passes(self, _size: int) -> bool:
        return False

    def _named(self, pieces: list[Buffer]) -> list[Buffer]:
        frame = b"".join(pieces)
        if not frame:
            return pieces
        try:
            _, at = response_header(frame, LENGTH_BYTES, ApiKey.METADATA, self._version)
        except ProtocolError:
            return pieces
        state, body = self._state, frame[at:]
        named = self._shared.name_replicas(body, self._version, self._client_id, state.host, state.now)
        return pieces if named is body else [frame[:at], named]


def client_id_of(data: bytes, size: int, requests: RequestFramer) -> str | None:
    """Return the client id of a request, or "" if it can't be read. None if the request has to wait for it.

    `data` is the request, of `size` bytes, or its beginning.
    """
    try:
        return readable(request_header(data, LENGTH_BYTES)[3])
    except Truncated:
        if len(data) < min(size, _MAX_HEADER):
            requests.need = min(size, 2 * len(data))
            return None
    except ProtocolError:
        pass
    return ""


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
