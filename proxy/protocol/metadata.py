"""Reads leaders and replicas from Metadata responses v1 to v13, and replaces leaders in them. Sans-IO.

`messages` reads the fields before and after the topics. This module reads the topics itself, because there
may be thousands of topics, each with thousands of partitions: it finds the entries of partitions in steps
that cost next to nothing, and then reads all values at once, as columns. The layout of topics comes from the
same schema.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import accumulate
from math import inf
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from proxy.protocol.api import ApiKey, is_flexible
from proxy.protocol.fetch_layout import Entries, Rows
from proxy.protocol.messages import Field, Struct, fields_at, read_fields
from proxy.protocol.primitives import (
    NO_TAGS,
    UUID_BYTES,
    Buffer,
    Malformed,
    TooMany,
    Truncated,
    read_compact_count,
    read_count,
    read_int16,
    read_string,
    read_uvarint,
    skip_tags,
)
from proxy.protocol.schemas import METADATA

RACKS_VERSION: Final = 1
"""The first version whose responses have the racks of brokers, and the first that is read."""
IDS_VERSION: Final = 10
"""The first version whose topics have ids (KIP-516). The layout of topics is equal from v10 to v13."""
LAST_VERSION: Final = 13
NO_TOPIC_ID: Final = bytes(UUID_BYTES)
"""Sent for a topic without an id: the cluster is older than 2.8, or only partly upgraded (KIP-516)."""
LEADER_AT: Final = 6
"""The offset of leader_id in a partition's entry, after error_code and partition_index."""
LEADER_BYTES: Final = 8
"""The size of leader id and leader epoch, which are adjacent fields."""
NOBODY: Final = -1
"""No broker: fills the columns of a partition that has fewer replicas than others."""
IN_SYNC, OFFLINE = 1, 2
"""The places of isr_nodes and offline_replicas among the arrays of a partition."""
NODE_IDS: Final = frozenset({"brokers.node_id"})
MAX_STEPS: Final = 1 << 16
"""The limit of work for one response: 20 to 40 ms. A topic with known bytes takes 2 steps, any other topic
16, and a changed topic 128 more. A partition that is parsed on its own takes 1 step."""
MAX_LEADERS: Final = 10_000
"""How many newer leaders are read from one response."""

_KEY: Final = ApiKey.METADATA
_KNOWN_STEPS: Final = 2
_TOPIC_STEPS: Final = 16
_CHANGED_STEPS: Final = 128
_STRIDE_WORTH: Final = 4
"""From this many partitions on it pays to check whether all entries have the same size."""
_MAX_REPLICAS: Final = 256
"""The limit of replicas of a partition. Each costs time for all partitions."""
_MAX_NODES: Final = 1 << 21
"""The limit of node ids in one column: 500,000 partitions with three replicas."""
_INT: Final = 4
_INTERNAL_BYTES: Final = 1
_LARGE_LENGTH: Final = 0x80
"""From here on, a compact length has more than one byte."""
_NONE_KNOWN: Final[Mapping[bytes, bytes]] = {}

NodeIds: TypeAlias = npt.NDArray[np.int32]
Places: TypeAlias = range | list[int]
"""The offset of each partition's entry. A range if all entries of a topic have the same size."""


class LeaderHint(NamedTuple):
    """A newer leader, from the field current_leader of a response other than Metadata (KIP-951)."""

    topic_id: bytes
    partition: int
    leader_id: int
    leader_epoch: int


class Layout(NamedTuple):
    """The layout of topics in one version."""

    flexible: bool
    id_bytes: int
    """The size of a topic's id. 0 below v10."""
    operations_bytes: int
    """The size of topic_authorized_operations. 0 below v8."""
    fields: np.dtype[np.void]
    """The fields at the start of a partition's entry: error_code, partition_index, leader_id (-1: none), and
    from v7 on leader_epoch (-1: unknown)."""
    size: int
    """The size of these fields."""
    read_count: Callable[[Buffer, int], tuple[int | None, int]]
    arrays: int
    """The arrays of node ids after them: replica_nodes, isr_nodes, and from v5 on offline_replicas."""


class Topic(NamedTuple):
    """A topic of a Metadata response."""

    error_code: int
    name: bytes
    """Empty if the response has none."""
    topic_id: bytes
    """Empty if it has none."""
    start: int
    """The offset of the topic's *image* in the body. An image is the bytes of these fields: the topic's id,
    is_internal, and partitions."""
    end: int
    places: Places
    """The places of the partitions in the body. Empty if the image was known."""


class Replicas(NamedTuple):
    """The partitions of a Metadata response. Each has one row."""

    brokers: frozenset[int]
    """The node ids of the brokers in the response."""
    topics: list[tuple[Topic, slice]]
    """The topics without an error, and the rows of each."""
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


@cache
def layout_of(version: int) -> Layout:
    """Return the layout of topics in a version."""
    (topic,) = (field.fields for field in fields_at(METADATA, version) if field.name == "topics")
    sizes = {field.name: field.size for field in topic}
    (entry,) = (field.fields for field in topic if field.name == "partitions")
    fields = np.dtype([(field.name, f">i{field.size}") for field in entry if field.size])
    flexible = bool(is_flexible(_KEY, version))
    return Layout(
        flexible=flexible,
        id_bytes=sizes.get("topic_id", 0),
        operations_bytes=sizes.get("topic_authorized_operations", 0),
        fields=fields,
        size=fields.itemsize,
        read_count=read_compact_count if flexible else read_count,
        arrays=sum(not field.size for field in entry),
    )


def read_topics(
    body: bytes,
    version: int,
    known: Mapping[bytes, bytes] = _NONE_KNOWN,
    only: frozenset[str] = NODE_IDS,
    *,
    limited: bool = True,
) -> tuple[Struct, Iterator[Topic]]:
    """Return the fields before the topics, and the topics one after the other.

    `body` is the complete response without its header. `known` has the images of topics that were read
    before, by topic id: a topic with equal bytes is not parsed again. `only` has the fields to read before
    the topics.

    Raises:
        ProtocolError: the body does not match the version.
        TooMany: it is `limited`, and more topics would cost more than `MAX_STEPS`.
    """
    before, after = _around_topics(version, only)
    head = read_fields(before, _KEY, version, body, 0)
    most = MAX_STEPS if limited else inf
    return head, _topics(body, version, head.span[1], known, after, most)


@cache
def _around_topics(version: int, only: frozenset[str]) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
    fields = fields_at(METADATA, version, only | {"topics"})
    at = [field.name for field in fields].index("topics")
    return fields[:at], fields[at + 1 :]


def _topics(
    body: bytes, version: int, at: int, known: Mapping[bytes, bytes], after: tuple[Field, ...], most: float
) -> Iterator[Topic]:
    layout = layout_of(version)
    flexible, id_bytes = layout.flexible, layout.id_bytes
    count, at = layout.read_count(body, at)
    steps = most
    for _ in range(count or 0):
        if steps <= 0:
            raise TooMany(f"more than {most} steps to read a response")
        error_code, at = read_int16(body, at)
        if flexible:
            length, at = read_uvarint(body, at)
            start = at + length - 1 if length else at
            name: bytes | None = body[at:start]
        else:
            name, start = read_string(body, at)
        topic_id = body[start : start + id_bytes]
        image = known.get(topic_id)
        places: Places = []
        if image is not None and body.startswith(image, start):
            end = start + len(image)
            steps -= _KNOWN_STEPS
        else:
            at = start + id_bytes + _INTERNAL_BYTES
            places, end = _find_partitions(body, at, layout, most)
            steps -= _TOPIC_STEPS if image is None else _TOPIC_STEPS + _CHANGED_STEPS
            steps -= 0 if isinstance(places, range) else len(places)
        yield Topic(error_code, name or b"", b"" if topic_id == NO_TOPIC_ID else topic_id, start, end, places)
        at = end + layout.operations_bytes
        if flexible:
            at = at + 1 if body.startswith(NO_TAGS, at) else skip_tags(body, at)[1]
    at = read_fields(after, _KEY, version, body, at, tagged=True).span[1]
    if at != len(body):
        raise Malformed(f"{len(body) - at} bytes are left over")


def _find_partitions(buffer: bytes, at: int, layout: Layout, most: float = inf) -> tuple[Places, int]:
    """Return the places of a topic's partitions, and the offset after the last one.

    Raises:
        ProtocolError: they do not match the version.
        TooMany: there are more than `most`, and they have different sizes.
    """
    flexible, read_number = layout.flexible, layout.read_count
    found, at = read_number(buffer, at)
    count, places = found or 0, list[int]()
    try:
        if count >= _STRIDE_WORTH and (size := _size_of_all(buffer, at, count, layout)):
            end = at + size * count
            return range(at, end, size), end
        if count > most:
            raise TooMany(f"more than {most} steps to read a response")
        for _ in range(count):
            places.append(at)
            at += layout.size
            for _ in range(layout.arrays):
                if flexible and (length := buffer[at]) < _LARGE_LENGTH:
                    at += _INT * length - 3 if length else 1
                else:
                    number, at = read_number(buffer, at)
                    at += _INT * (number or 0)
            if flexible:
                at = skip_tags(buffer, at)[1] if buffer[at] else at + 1
    except IndexError:
        raise Truncated("partition", at) from None
    if at > len(buffer):
        raise Truncated("partition", at)
    return places, at


def _size_of_all(buffer: bytes, start: int, count: int, layout: Layout) -> int:
    """Return the size of an entry in bytes if all entries have the same size, otherwise 0.

    They have if they have the same numbers of replicas and no tags.
    """
    at, same = start + layout.size, list[int]()
    for _ in range(layout.arrays):
        if layout.flexible and (length := buffer[at]) < _LARGE_LENGTH:
            same.append(at)
            at += _INT * length - 3 if length else 1
        else:
            number, ids_at = layout.read_count(buffer, at)
            same += range(at, ids_at)
            at = ids_at + _INT * (number or 0)
    if layout.flexible:
        same.append(at)
        at += 1
    size, end = at - start, start + (at - start) * count
    if end > len(buffer) or (layout.flexible and buffer[at - 1]):
        return 0
    alike = all(buffer[i:end:size] == buffer[i : i + 1] * count for i in same)
    return size if alike else 0


def partitions_of(image: bytes, layout: Layout) -> Places:
    """Return the places of the partitions in a topic's image."""
    return _find_partitions(image, layout.id_bytes + _INTERNAL_BYTES, layout)[0]


def partition_count(image: bytes, layout: Layout) -> int:
    """Return the number of partitions in a topic's image."""
    return layout.read_count(image, layout.id_bytes + _INTERNAL_BYTES)[0] or 0


def as_rows(places: Places) -> Rows:
    """Return places as an array."""
    if isinstance(places, range):
        return np.arange(places.start, places.stop, places.step)
    return np.array(places, np.intp)


def rows_of(topics: Iterable[Topic]) -> Rows:
    """Return the places of the partitions of topics, one after the other."""
    return np.concatenate([np.empty(0, np.intp), *[as_rows(topic.places) for topic in topics]])


def read_entries(data: bytes, places: Places | Rows, layout: Layout) -> Entries:
    """Return the fields at the start of the entries of partitions. See `Layout.fields`."""
    if isinstance(places, range):
        return np.ndarray((len(places),), layout.fields, data, places.start, (places.step,))
    rows = np.asarray(places, np.intp)
    found: Entries = np.frombuffer(data, np.uint8)[rows[:, None] + np.arange(layout.size)].view(layout.fields)
    return found[:, 0]


def _counts(data: bytes, at: Rows) -> tuple[Rows, Rows]:
    return np.maximum(_ints(data, at).astype(np.intp), 0), at + _INT


def _compact_counts(data: bytes, at: Rows) -> tuple[Rows, Rows]:
    octets = np.frombuffer(data, np.uint8)
    counts, at = octets[at].astype(np.intp), at + 1
    rows, shift = np.nonzero(counts >= _LARGE_LENGTH)[0], 7
    while len(rows):
        octet = octets[at[rows]].astype(np.intp)
        counts[rows] += (octet - 1) << shift  # -1 takes away the bit that says that this octet follows
        at[rows] += 1
        rows, shift = rows[octet >= _LARGE_LENGTH], shift + 7
    return np.maximum(counts - 1, 0), at


def _ints(data: bytes, at: Rows) -> npt.NDArray[np.int32]:
    found: npt.NDArray[np.int32] = np.frombuffer(data, np.uint8)[at[:, None] + np.arange(_INT)].view(">i4")
    return found[:, 0]


def read_node_ids(data: bytes, rows: Rows, layout: Layout, array: int) -> tuple[NodeIds, Rows]:
    """Return the node ids in an array of the entries at these offsets, and their numbers.

    `array` is `IN_SYNC` or `OFFLINE`. Each entry has one row of node ids, filled with `NOBODY`.

    Raises:
        TooMany: an entry has too many.
    """
    read_counts = _compact_counts if layout.flexible else _counts
    counts, at = read_counts(data, rows + layout.size)
    for _ in range(array):
        counts, at = read_counts(data, at + _INT * counts)
    most = int(counts.max(initial=0))
    if most > _MAX_REPLICAS or (most + 1) * len(counts) > _MAX_NODES:
        raise TooMany(f"{len(counts)} partitions with up to {most} replicas")
    columns = np.full((len(counts), most), NOBODY, np.int32)
    for number in range(most):
        has = np.nonzero(counts > number)[0]
        columns[has, number] = _ints(data, at[has] + _INT * number)
    return columns, counts


def read_replicas(body: bytes, version: int) -> Replicas:
    """Read the partitions of all topics that have no error, from a response without its header.

    Raises:
        ProtocolError: the body does not match the version, or reading it would cost too much.
    """
    layout = layout_of(version)
    head, found = read_topics(body, version)
    listed = [topic for topic in found if not topic.error_code]
    rows, ends = rows_of(listed), accumulate(len(topic.places) for topic in listed)
    in_sync, _ = read_node_ids(body, rows, layout, IN_SYNC)
    if layout.arrays > OFFLINE:
        for column in read_node_ids(body, rows, layout, OFFLINE)[0].T:
            in_sync[(in_sync == column[:, None]) & (column[:, None] != NOBODY)] = NOBODY
    entries = read_entries(body, rows, layout)
    has_epoch = "leader_epoch" in (layout.fields.names or ())
    return Replicas(
        brokers=node_ids(head),
        topics=[
            (topic, slice(end - len(topic.places), end)) for topic, end in zip(listed, ends, strict=True)
        ],
        partition=entries["partition_index"].astype(np.int32),
        error=entries["error_code"].astype(np.int16),
        leader=entries["leader_id"].astype(np.int32),
        epoch=entries["leader_epoch"].astype(np.int32) if has_epoch else np.full(len(rows), -1, np.int32),
        in_sync=in_sync,
        at=rows + LEADER_AT,
    )


def node_ids(head: Struct) -> frozenset[int]:
    """Return the node ids of the brokers in the fields before the topics."""
    return frozenset([broker["node_id"] for broker in head["brokers"] or ()])


def with_bytes(data: bytes, edits: Iterable[tuple[Rows, npt.NDArray[np.uint8]]]) -> bytes:
    """Return a response or an image with other bytes: at each offset, those of one row. Its size stays."""
    changed = np.array(np.frombuffer(data, np.uint8))
    for at, rows in edits:
        changed[at[:, None] + np.arange(rows.shape[1])] = rows
    return changed.tobytes()


def with_leaders(body: bytes, at: Rows, leaders: NodeIds) -> bytes:
    """Return a response with other leaders at these offsets, see `Replicas.at`. It has the same size."""
    return with_bytes(body, [(at, leaders.astype(">i4").view(np.uint8).reshape(-1, _INT))])
