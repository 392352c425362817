"""Reads leaders and replicas from Metadata responses v1 to v13, and replaces leaders in them.

A response may have thousands of topics, each with thousands of partitions. So a partition is found in steps
that cost next to nothing, and all values are then read at once, as columns. `metadata` has more for v10 to
v13, where topics have ids.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from proxy.protocol.api import ApiKey, is_flexible
from proxy.protocol.fetch_layout import Rows
from proxy.protocol.messages import read_fields
from proxy.protocol.metadata import MAX_STEPS, NO_TOPIC_ID, around_topics
from proxy.protocol.primitives import (
    UUID_BYTES,
    Malformed,
    TooMany,
    Truncated,
    read_compact_count,
    read_compact_string,
    read_count,
    read_int16,
    read_string,
    skip_tags,
)

FIRST_VERSION: Final = 1
"""The first version whose responses have the racks of brokers."""
NOBODY: Final = -1
"""No broker: fills the columns of a partition that has fewer replicas than others."""

_KEY: Final = ApiKey.METADATA
_OFFLINE_VERSION: Final = 5
_EPOCH_VERSION: Final = 7
_OPERATIONS_VERSION: Final = 8
_TOPIC_ID_VERSION: Final = 10
_INT: Final = 4
_INT_BYTES: Final = np.arange(_INT)
_TOPIC_STEPS: Final = 16
"""As in `metadata`. A partition that is found on its own costs 1 step more."""
_MAX_REPLICAS: Final = 256
"""The limit of replicas of a partition. Each costs time for all partitions."""
_MAX_NODES: Final = 1 << 21
"""The limit of node ids in one column of a response: 500,000 partitions with three replicas."""
_STRIDE_WORTH: Final = 4
"""From this many partitions on it pays to check whether all entries have the same size."""

NodeIds: TypeAlias = npt.NDArray[np.int32]


class Topic(NamedTuple):
    """A topic of a Metadata response."""

    name: bytes
    """Empty if the response has none."""
    topic_id: bytes
    """Empty if it has none."""
    start: int
    """The row of its first partition."""
    end: int
    """The row after its last partition."""


class Replicas(NamedTuple):
    """The partitions of a Metadata response. Each has one row."""

    brokers: frozenset[int]
    """The node ids of the brokers in the response."""
    topics: list[Topic]
    """The topics without an error."""
    partition: NodeIds
    error: npt.NDArray[np.int16]
    leader: NodeIds
    epoch: NodeIds
    """-1 if it is unknown, as below v7."""
    in_sync: NodeIds
    """The node ids of the in-sync replicas, one row for each partition, filled with `NOBODY`. Replicas that
    the response calls offline are left out."""
    at: Rows
    """The offset of each leader's node id in the body."""


def read_replicas(body: bytes, version: int) -> Replicas:
    """Read the partitions of all topics that have no error, from a response (v1 to v13) without its header.

    Raises:
        ProtocolError: the body does not match the version, or reading it would cost too much.
    """
    before, after = around_topics(version)
    head = read_fields(before, _KEY, version, body, 0)
    walk = _Walk(body, version)
    at = walk.topics(head.span[1])
    end = read_fields(after, _KEY, version, body, at, tagged=True).span[1]
    if end != len(body):
        raise Malformed(f"{len(body) - end} bytes are left over")
    brokers = frozenset(broker["node_id"] for broker in head["brokers"] or ())
    return walk.replicas(brokers)


def with_leaders(body: bytes, at: Rows, leaders: NodeIds) -> bytes:
    """Return a response with other leaders at these offsets, see `Replicas.at`. It has the same size."""
    changed = np.array(np.frombuffer(body, np.uint8))
    changed[at[:, None] + _INT_BYTES] = leaders.astype(">i4").view(np.uint8).reshape(-1, _INT)
    return changed.tobytes()


class _Walk:
    """Finds the partitions in a body."""

    def __init__(self, body: bytes, version: int) -> None:
        self._body = body
        self._version = version
        self._flexible = bool(is_flexible(_KEY, version))
        self._fields = np.dtype(
            [("error", ">i2"), ("partition", ">i4"), ("leader", ">i4")]
            + ([("epoch", ">i4")] if version >= _EPOCH_VERSION else [])
        )
        self._arrays = 3 if version >= _OFFLINE_VERSION else 2
        """The arrays of node ids in an entry: replicas, in-sync replicas, offline replicas."""
        self._steps = MAX_STEPS
        self._topics: list[Topic] = []
        self._rows = 0
        self._found: list[npt.NDArray[np.intp]] = []
        """For each topic, a table with a row for each partition: the offset of its entry, then offset and
        number of the node ids in each of its arrays."""

    def topics(self, at: int) -> int:
        body, version = self._body, self._version
        text = read_compact_string if self._flexible else read_string
        count, at = self._count(at)
        for _ in range(count or 0):
            error_code, at = read_int16(body, at)
            name, at = text(body, at)
            topic_id = b""
            if version >= _TOPIC_ID_VERSION:
                topic_id, at = body[at : at + UUID_BYTES], at + UUID_BYTES
            found, at = self._partitions(at + 1)  # is_internal
            if version >= _OPERATIONS_VERSION:
                at += _INT
            if self._flexible:
                _, at = skip_tags(body, at)
            self._steps -= _TOPIC_STEPS
            if self._steps < 0:
                raise TooMany(f"more than {MAX_STEPS} steps to read a response")
            if not error_code:
                start, self._rows = self._rows, self._rows + len(found)
                known = b"" if topic_id == NO_TOPIC_ID else topic_id
                self._topics.append(Topic(name or b"", known, start, self._rows))
                self._found.append(found)
        return at

    def _count(self, at: int) -> tuple[int | None, int]:
        read: Callable[[bytes, int], tuple[int | None, int]]
        read = read_compact_count if self._flexible else read_count
        return read(self._body, at)

    def _entry(self, at: int) -> tuple[list[int], int]:
        """Return the row of `_found` for the entry at an offset, and the offset after the entry."""
        row = [at]
        at += self._fields.itemsize
        for _ in range(self._arrays):
            count, at = self._count(at)
            row += (at, count or 0)
            at += _INT * (count or 0)
        if self._flexible:
            _, at = skip_tags(self._body, at)
        if at > len(self._body):
            raise Truncated("partition", row[0])
        return row, at

    def _partitions(self, at: int) -> tuple[npt.NDArray[np.intp], int]:
        found, at = self._count(at)
        count = found or 0
        if count >= _STRIDE_WORTH:
            row, end = self._entry(at)
            if self._alike(row, at, end - at, count):
                size = end - at
                offsets = np.array(row, np.intp)
                grows = np.array([1] + [1, 0] * self._arrays, np.intp) * size
                return offsets + np.arange(count)[:, None] * grows, at + size * count
        rows: list[list[int]] = []
        self._steps -= count
        if self._steps < 0:
            raise TooMany(f"more than {MAX_STEPS} steps to read a response")
        for _ in range(count):
            row, at = self._entry(at)
            rows.append(row)
        return np.array(rows, np.intp).reshape(-1, 1 + 2 * self._arrays), at

    def _alike(self, row: list[int], start: int, size: int, count: int) -> bool:
        # Entries have the same size if all their numbers of node ids and of tags are the same.
        body, end = self._body, start + size * count
        if end > len(body):
            return False
        places: list[int] = []
        before = start + self._fields.itemsize
        for at, number in zip(row[1::2], row[2::2], strict=True):
            places += range(before, at)
            before = at + _INT * number
        places += range(before, start + size)
        if self._flexible and size != before + 1 - start:
            return False  # it has tags: each entry is read on its own
        return all(body[place:end:size] == body[place : place + 1] * count for place in places)

    def replicas(self, brokers: frozenset[int]) -> Replicas:
        found = np.concatenate([np.empty((0, 1 + 2 * self._arrays), np.intp), *self._found])
        data = np.frombuffer(self._body, np.uint8)
        in_sync = self._nodes(data, found[:, 3], found[:, 4])
        starts = found[:, 0]
        entries = data[starts[:, None] + np.arange(self._fields.itemsize)].view(self._fields)[:, 0]
        if self._arrays > 2:
            offline = self._nodes(data, found[:, 5], found[:, 6])
            for column in offline.T:
                in_sync[(in_sync == column[:, None]) & (column[:, None] != NOBODY)] = NOBODY
        leader_at = self._fields.fields["leader"][1] if self._fields.fields else 0
        epochs = (
            entries["epoch"].astype(np.int32)
            if self._version >= _EPOCH_VERSION
            else np.full(len(entries), -1, np.int32)
        )
        return Replicas(
            brokers=brokers,
            topics=self._topics,
            partition=entries["partition"].astype(np.int32),
            error=entries["error"].astype(np.int16),
            leader=entries["leader"].astype(np.int32),
            epoch=epochs,
            in_sync=in_sync,
            at=starts + leader_at,
        )

    @staticmethod
    def _nodes(data: npt.NDArray[np.uint8], at: Rows, counts: Rows) -> NodeIds:
        """Return the node ids in one array of each partition, filled with `NOBODY`.

        Raises:
            TooMany: a partition has too many.
        """
        most = int(counts.max(initial=0))
        if most > _MAX_REPLICAS or (most + 1) * len(counts) > _MAX_NODES:
            raise TooMany(f"{len(counts)} partitions with up to {most} replicas")
        columns = np.full((len(counts), most), NOBODY, np.int32)
        for number in range(most):
            rows = np.nonzero(counts > number)[0]
            ids = data[(at[rows] + _INT * number)[:, None] + _INT_BYTES].view(">i4")[:, 0]
            columns[rows, number] = ids
        return columns
