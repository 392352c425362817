"""Names the replica in the gateway's rack as leader in Metadata: ``--rack-clients``. Sans-IO.

A client fetches from the broker that Metadata calls the leader. Followers serve consumers as well (KIP-392),
without a replica selector and without a rack in the fetch. So a client that can't be led by an answer of the
leader (`proxy.core.rack_reads`) reads from its own zone nevertheless.

What only a leader can answer then comes to the replica, too. Whoever handles that asks `RackLeaders` for the
true leader. After trouble, a client gets true Metadata for some time (`RackLeaders.distrust`).
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol
from zlib import crc32

import numpy as np
import numpy.typing as npt

from proxy.core.connection_state import ConnectionState
from proxy.core.in_flight import Handler, InFlight, Over
from proxy.core.requests import readable
from proxy.core.stage import Stage
from proxy.protocol.api import LENGTH_BYTES, ApiKey, request_header, response_header
from proxy.protocol.metadata import LAST_VERSION
from proxy.protocol.primitives import UUID_BYTES, Buffer, ProtocolError
from proxy.protocol.replicas import FIRST_VERSION, NOBODY, NodeIds, Replicas, read_replicas, with_leaders

MAX_BYTES: Final = 1 << 23
"""The memory limit for known topics in bytes, enough for 300,000 partitions with three replicas. Topics that
were in no response for longest are forgotten first."""
MAX_CLIENTS: Final = 10_000
"""The maximum number of clients for which it is remembered that they get true Metadata."""
MAX_TOPICS: Final = 1000
"""The maximum number of topics for which this is remembered of one client. A client with more of them gets
true Metadata for all topics."""
RETURNS: Final = ("offsets", "no_consumer", "old_fetch")
"""The reasons for true Metadata. ``offsets``: the leader of a partition could not be asked for offsets.
``no_consumer``: the client sends requests that only leaders take. ``old_fetch``: followers do not answer its
version of Fetch."""
_METADATA: Final = int(ApiKey.METADATA)
_MAX_HEADER: Final = 1 << 16
"""The maximum number of bytes of a request that are kept until its client id has arrived."""
_MORE_BYTES: Final = 400
"""The memory for a known topic in bytes, in addition to its columns."""
_PARTITION, _LEADER, _EPOCH, _IN_SYNC = 0, 1, 2, 3
"""The columns of `_Known.table`. In-sync replicas are in the last ones."""


class Racks(Protocol):
    """The racks of the brokers, as far as they are known."""

    def is_here(self, node_id: int | None) -> bool:
        """Return whether a broker is known to be in the gateway's rack."""


class _Known(NamedTuple):
    """A topic, as the last Metadata response has described it."""

    topic_id: bytes
    table: NodeIds
    """A row for each partition, in the order of their numbers."""

    @property
    def size(self) -> int:
        """The memory of the topic in bytes."""
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
        self, racks: Racks, clients: Callable[[], Collection[str]], max_bytes: int = MAX_BYTES
    ) -> None:
        self.racks = racks
        self._clients = clients
        self._max_bytes = max_bytes
        self._topics: OrderedDict[bytes, _Known] = OrderedDict()
        """The known topics by name. The first one was in no response for longest."""
        self._names: dict[bytes, bytes] = {}
        """The names of known topics by topic id."""
        self.buffered = 0
        """The memory of all known topics in bytes."""
        self.named = 0
        """The number of partitions in Metadata responses for which a replica was named as leader."""
        self.returns: Counter[str] = Counter(dict.fromkeys(RETURNS, 0))
        """How often a client, or all, got true Metadata for some time, by reason."""
        self._true: OrderedDict[tuple[str, str], dict[bytes, float]] = OrderedDict()
        """The clients that get true Metadata, by client id and host: for each topic until when, in seconds.
        The key of all topics is b""."""

    def __repr__(self) -> str:
        return f"<RackLeaders topics={len(self._topics)} named={self.named}>"

    def names_for(self, client_id: str) -> bool:
        """Return whether replicas are named for a client."""
        return client_id in self._clients()

    # What the process knows of leaders

    def leader_of(self, topic_key: bytes, partition: int) -> int | None:
        """Return the node id of the true leader of a partition. None if it is not known, or if there is none.

        Args:
            topic_key: the topic's name, or its id.
            partition: the partition's number.
        """
        row = self._row(topic_key, partition)
        return None if row is None or row[_LEADER] < 0 else int(row[_LEADER])

    def epoch_of(self, topic_key: bytes, partition: int) -> int | None:
        """Return the epoch of the true leader of a partition. None if it is not known."""
        row = self._row(topic_key, partition)
        return None if row is None or row[_EPOCH] < 0 else int(row[_EPOCH])

    def is_named(self, topic_key: bytes, partition: int, node_id: int | None) -> bool:
        """Return whether a client may have been told that a broker leads a partition, but it does not.

        This is so if the broker is in the gateway's rack and another broker leads the partition.
        """
        row = self._row(topic_key, partition)
        return row is not None and row[_LEADER] != node_id and self.racks.is_here(node_id)

    def _row(self, topic_key: bytes, partition: int) -> NodeIds | None:
        """Return the row of a partition in the table of its topic. None if it is not known."""
        name = self._names.get(topic_key, topic_key) if len(topic_key) == UUID_BYTES else topic_key
        known = self._topics.get(name)
        if known is None:
            return None
        numbers = known.table[:, _PARTITION]
        at = int(numbers.searchsorted(partition))
        return known.table[at] if at < len(numbers) and numbers[at] == partition else None

    def _learn(self, found: Replicas) -> None:
        """Note all topics of a response.

        The newest response wins, also with older epochs: the topic may be another one of the same name.
        """
        lengths = [topic.end - topic.start for topic in found.topics]
        order = np.lexsort((found.partition, np.repeat(np.arange(len(lengths)), lengths)))
        columns = (found.partition, found.leader, found.epoch, *found.in_sync.T)
        table = np.column_stack(columns)[order]
        for topic in found.topics:
            if topic.name:
                self._forget(topic.name)
                known = _Known(topic.topic_id, table[topic.start : topic.end].copy())
                self._topics[topic.name] = known
                self.buffered += known.size
                if topic.topic_id:
                    self._names[topic.topic_id] = topic.name
        while self.buffered > self._max_bytes:
            self._forget(next(iter(self._topics)))

    def _forget(self, name: bytes) -> None:
        known = self._topics.pop(name, None)
        if known is not None:
            self.buffered -= known.size
            self._names.pop(known.topic_id, None)

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

        Args:
            client_id: the client's id.
            host: the client's host.
            topics: the topics, by name or id. None for all topics.
            seconds: how long, in seconds. A longer time that was given before stays.
            reason: why, one of `RETURNS`.
            now: the time in seconds.
        """
        self.returns[reason] += 1
        until = self._true.setdefault((client_id, host), {})
        self._true.move_to_end((client_id, host))
        for key in (b"",) if topics is None else topics:
            name = self._names.get(key, key)
            until[name] = max(until.get(name, 0.0), now + seconds)
        if len(until) > MAX_TOPICS:
            latest = max(until.values())
            until.clear()
            until[b""] = latest
        if len(self._true) > MAX_CLIENTS:
            self._true.popitem(last=False)

    def _distrusted(self, client_id: str, host: str, now: float) -> Collection[bytes]:
        """Return the topics for which a client gets true Metadata. The key of all topics is b""."""
        until = self._true.get((client_id, host))
        if until is None:
            return ()
        for name in [name for name, each in until.items() if each <= now]:
            del until[name]
        if not until:
            del self._true[client_id, host]
        return until.keys()

    # Metadata

    def name_replicas(self, body: bytes, version: int, client_id: str, host: str, now: float) -> bytes:
        """Return a Metadata response that names replicas in the gateway's rack. Learn the true leaders.

        The leader of a partition is replaced by a replica that is in the rack, in sync, not offline, and in
        the list of brokers. If there are several, the client always gets the same one. Nothing else changes,
        not even the leader epoch: a follower knows it as well.

        Below v7 there are no leader epochs, and below v5 no offline replicas. That is safe: a client without
        an epoch sends none in its fetches, so nothing is compared with it. An offline replica leaves the
        in-sync replicas.

        Args:
            body: the complete response without its header.
            version: the version of the request.
            client_id: the client's id.
            host: the client's host.
            now: the time in seconds.

        Returns:
            The new body, which has the same size. It is `body` itself if no leader is replaced, or if the
            response is not understood. In the latter case nothing is learned.
        """
        try:
            found = read_replicas(body, version)
        except ProtocolError:
            return body
        self._learn(found)
        here = [node_id for node_id in sorted(found.brokers) if self.racks.is_here(node_id)]
        true = self._distrusted(client_id, host, now)
        if not here or b"" in true:
            return body
        may = (found.error == 0) & (found.leader >= 0) & ~np.isin(found.leader, here)
        for topic in found.topics if true else ():
            if topic.name in true:
                may[topic.start : topic.end] = False
        rows = np.nonzero(may)[0]
        chosen = _choose(found, rows, here, client_id)
        rows, chosen = rows[chosen != NOBODY], chosen[chosen != NOBODY]
        self.named += len(rows)
        return with_leaders(body, found.at[rows], chosen) if len(rows) else body


def _choose(found: Replicas, rows: npt.NDArray[np.intp], nodes: list[int], client_id: str) -> NodeIds:
    """Return one of these brokers for each of these partitions, or `NOBODY` if none of them is in sync.

    Each broker has a score from topic, partition, client id and node id, and the highest score wins
    (rendezvous hashing). So clients and partitions spread. A broker that comes or goes moves only its own.
    """
    starts = np.zeros(len(found.partition), np.uint32)
    for topic in found.topics:
        starts[topic.start : topic.end] = crc32(topic.name, crc32(client_id.encode()))
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


class NameReplicas(Over):
    """Names replicas in the client's Metadata response, which another handler has made.

    Args:
        inner: makes the client's response, and returns it as a whole.
        shared: what the connections of the process share.
        state: the state of the connection.
        client_id: the client's id.
        version: the version of the request.
    """

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
        """Return the client's bytes that are ready now."""
        return self._named(self._inner.feed(chunk, last=last))

    def opened(self) -> list[Buffer]:
        """Return the client's response after it has waited for listeners."""
        return self._named(self._inner.opened())

    def passes(self, _size: int) -> bool:
        """Return False, because the response is changed as a whole."""
        return False

    def _named(self, pieces: list[Buffer]) -> list[Buffer]:
        frame = b"".join(pieces)
        if not frame:
            return pieces
        try:
            _, at = response_header(frame, LENGTH_BYTES, _METADATA, self._version)
        except ProtocolError:
            return pieces
        state, body = self._state, frame[at:]
        named = self._shared.name_replicas(body, self._version, self._client_id, state.host, state.now)
        return pieces if named is body else [frame[:at], named]


class RackLeadersStage(Stage):
    """Names replicas in the Metadata responses of one connection, if its client is to have that.

    Args:
        shared: what the connections of the process share.
        state: the state of the connection.
    """

    __slots__ = ("_client_id", "_shared", "_state")

    def __init__(self, shared: RackLeaders, state: ConnectionState) -> None:
        self._shared = shared
        self._state = state
        self._client_id = ""
        """The client id in the Metadata request that is being processed."""

    def on_request(self, data: bytes, size: int, api_key: int, _version: int) -> bytes | None:
        """Read the client id of a Metadata request. Not all clients send another request before it."""
        if api_key == _METADATA:
            self._client_id = ""
            with suppress(ProtocolError):
                self._client_id = readable(request_header(data, LENGTH_BYTES)[3])
                return data
            if len(data) < min(size, _MAX_HEADER):
                self._state.from_client.need = min(size, 2 * len(data))
                return None
        return data

    def around(self, request: InFlight) -> Handler:
        """Return a handler that names replicas, if the request is for Metadata.

        Members of cooperative groups get none: what they share needs the high watermark of one broker.
        """
        if (
            request.api_key != _METADATA
            or not FIRST_VERSION <= request.version <= LAST_VERSION
            or self._state.has_lane
            or not self._shared.names_for(self._client_id)
        ):
            return request.handler
        return NameReplicas(request.handler, self._shared, self._state, self._client_id, request.version)

    def repeats(self, api_key: int, _version: int, *, in_session: bool = False) -> bool:  # noqa: ARG002
        """Return False for requests whose responses are changed."""
        return api_key != _METADATA
