"""The Spark jobs: they make the table from captures or from another table, and collect the report's figures.

One shuffle and one sort bring the segments of each connection together, in order. Memory never has to hold a
complete connection.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from replay.capture.files.counts import FileCounts
from replay.capture.files.sources import TaskInput, check_seen
from replay.capture.files.spans import SpanReader
from replay.capture.kafka.exchanges import BEFORE, Event
from replay.capture.packets import segments
from replay.capture.packets.segments import REFERENCES, connection_key
from replay.capture.packets.tcp import Filter
from replay.capture.tls.keylog import Secrets
from replay.measure import steps
from replay.measure.collected import Collected, collect_part
from replay.measure.groups import GROUPED, SUMMED, Group, groups_in
from replay.measure.rows import RowFilter, groups, rows
from replay.measure.steps import Batches
from replay.measure.strip_records import strip_records, stripped
from replay.measure.table import DETAILS, EXCHANGES_RAW
from replay.measure.typed import Packed
from replay.simulate.session_cache import CacheEvent, SlotsUse, simulate

_EVENTS: Final = ("broker", "time", "act", "name", "size")
_SHARE, _PART, _USE = Packed(TaskInput), Packed(Collected), Packed(SlotsUse)
_PARTS: Final = pa.schema(
    [
        *zip(_EVENTS, (pa.string(), pa.int64(), pa.string(), pa.string(), pa.int64()), strict=True),
        ("part", _PART.type),
    ]
)
"""The rows that tasks return. Each row is an event of a session. One more row for each task has all other
results of the task."""
_COLLECTED: Final = pa.schema([("part", _PART.type)])
_IDS: Final = pa.schema([("id", pa.binary())])
_SLOTS: Final = pa.schema([("broker", pa.string()), ("use", _USE.type)])
_SHUFFLED: Final = stripped(REFERENCES)
"""The rows of segments between two tasks. Payload that can't be referred to is stripped of records, unless
keys of records are counted."""
_MOST_PARTS: Final = 200
"""The maximum number of task results that one task merges. If there are more, several tasks merge them
first."""
_MOST_EVENTS: Final = 10_000

Key: TypeAlias = tuple[pa.Scalar, ...]
_Read: TypeAlias = Callable[[Batches, list[FileCounts]], Iterator[Event]]


def from_captures(
    spark: SparkSession,
    shares: list[TaskInput],
    keep: Filter,
    choice: RowFilter,
    partitions: int,
    secrets: Secrets | None = None,
    *,
    elsewhere: bool = False,
    uses: DataFrame | None = None,
) -> "TaskRows":
    """Make the rows of the table from captures.

    One task reads each of `shares`, and `partitions` tasks measure the connections. Only tasks get the
    secrets. With `elsewhere`, they run on other machines, and the job fails if one of these does not have the
    files. `uses` is how often the existing table has each pair of ports, see `uses_of_ports`.
    """
    found = _spread(spark, shares).mapInArrow(
        partial(_read, keep, elsewhere, choice), from_arrow_schema(_SHUFFLED)
    )
    if uses is not None:
        found = found.union(uses)
    spread = found.repartition(partitions, "connection").sortWithinPartitions("connection", "order")
    sources = {piece.source.number: piece.source for share in shares for piece in share.pieces}
    read_again = [source for source in sources.values() if source.at_offsets]
    reader = partial(SpanReader, read_again, elsewhere=elsewhere)
    return TaskRows(spread, partial(_events, keep.ports, choice, secrets, reader), choice)


def uses_of_ports(table: DataFrame) -> DataFrame:
    """Return how often a table has each pair of ports, as rows for the next run.

    The next run continues these numbers, so that no two connections have the same name. The rows sort before
    the run's segments.
    """
    names = f.substring_index("connection", " #", 1), f.substring_index("connection", " #", -1).cast("int")
    used = table.where("row = 'connection'").select(names[0].alias("ends"), names[1].alias("number"))
    return used.groupBy("ends").agg(f.max("number") + 1).mapInArrow(_uses, from_arrow_schema(_SHUFFLED))


def from_table(table: DataFrame, keep: Filter, choice: RowFilter, partitions: int) -> "TaskRows":
    """Make new rows with another filter, from a table that has the raw columns."""
    table = table.select(*EXCHANGES_RAW.names)
    spread = table.repartition(partitions, "connection").sortWithinPartitions("connection", "place")
    ends = table.where("row = 'connection'")
    return TaskRows(spread, partial(steps.events_again, keep, choice), choice, ends)


@dataclass(frozen=True, slots=True)
class TaskRows:
    """Rows of the table that tasks make. Each task makes all rows of its connections."""

    spread: DataFrame
    """The input rows of the tasks, sorted by connection."""
    read: _Read
    """Returns the events of connections. It adds the counts of files to the list."""
    choice: RowFilter
    ends: DataFrame | None = None
    """The input rows that have the ends of connections. None if all are needed to make the ends."""

    def of_topics(self, topics: frozenset[str]) -> "TaskRows":
        """Return the rows in which only the fetches of some topics are counted."""
        spread, ends = self.spread, self.ends
        if ends is None:
            ends = spread = spread.persist(StorageLevel.DISK_ONLY)
        found = ends.mapInArrow(partial(_topic_ids, self.read, topics), from_arrow_schema(_IDS)).distinct()
        ids = frozenset(found.toArrow().column("id").to_pylist())
        return replace(self, spread=spread, choice=replace(self.choice, topics=topics | ids))

    def table(self) -> DataFrame:
        make = partial(_rows, self.read, self.choice)
        return self.spread.mapInArrow(make, from_arrow_schema(EXCHANGES_RAW))

    def parts(self) -> DataFrame:
        """Return what tasks collect from their connections."""
        return self.spread.mapInArrow(partial(_collected, self.read, self.choice), from_arrow_schema(_PARTS))


def parts_of(table: DataFrame, partitions: int) -> DataFrame:
    """Return the sums and details of a stored table, in parts by connection. Rows may be in any order."""
    detailed = f.col("row").isin(*DETAILS)
    sums = [f.sum(name).alias(name) for name in SUMMED]
    summed = table.where(~detailed).groupBy(*GROUPED).agg(f.count("*").alias("count"), *sums)
    details = table.where(detailed).select(*GROUPED, *DETAILS.values())
    groups = summed.unionByName(details, allowMissingColumns=True)
    spread = groups.repartition(min(partitions, _MOST_PARTS), "connection").sortWithinPartitions("connection")
    return spread.mapInArrow(_collect, from_arrow_schema(_PARTS))


def collected(parts: DataFrame, partitions: int) -> Collected:
    """Merge the parts, and return the figures of the report.

    The sessions of each broker run through a simulated cache. Even with very many connections, the driver
    gets only sums.
    """
    parts = parts.persist(StorageLevel.DISK_ONLY)
    events = parts.where("part is null").select(*_EVENTS)
    events = events.repartition("broker").sortWithinPartitions(*_EVENTS)
    slots = events.groupBy("broker").applyInArrow(_simulated, from_arrow_schema(_SLOTS))
    used = slots.toArrow()  # first, for it has all parts made, side by side; those that follow are only read
    own = parts.where("part is not null").select("part")
    if partitions > _MOST_PARTS:
        own = own.repartition(_MOST_PARTS).mapInArrow(_merged, from_arrow_schema(_COLLECTED))
    merged = own.repartition(1).mapInArrow(_merged, from_arrow_schema(_COLLECTED)).toArrow()
    parts.unpersist()
    found = _whole(merged.to_batches())
    uses = _USE.read(used.column("use").combine_chunks())
    found.slots = dict(zip(used.column("broker").to_pylist(), uses, strict=True))
    return found


def _spread(spark: SparkSession, shares: list[TaskInput]) -> DataFrame:
    """Make a row of each task's input. In a closure, Spark would send all inputs to each task."""
    tasks = pa.table({"task": pa.array(range(len(shares)), pa.int32()), "share": _SHARE.write(shares)})
    return spark.createDataFrame(tasks).repartitionById(len(shares), "task")


def _read(keep: Filter, elsewhere: bool, choice: RowFilter, batches: Batches) -> Batches:
    for batch in batches:
        for share in _SHARE.read(batch.column("share")):
            if elsewhere:
                check_seen(piece.source for piece in share.pieces)
            for found in segments.read_references(share, keep, plain=choice.plain):
                yield strip_records(found, keep=choice.members > 0)


def _events(
    ports: frozenset[int],
    choice: RowFilter,
    secrets: Secrets | None,
    reader: Callable[[], SpanReader],
    batches: Batches,
    files: list[FileCounts],
) -> Iterator[Event]:
    with reader() as opened:
        found = segments.with_payload(steps.restored(batches, REFERENCES), opened)
        yield from steps.events(ports, choice, secrets, found, files)


def _rows(read: _Read, choice: RowFilter, batches: Batches) -> Batches:
    files: list[FileCounts] = []
    return rows(read(batches, files), choice, files)


def _collected(read: _Read, choice: RowFilter, batches: Batches) -> Batches:
    files: list[FileCounts] = []
    return _parts(groups(read(batches, files), choice, files))


def _topic_ids(read: _Read, topics: frozenset[str], batches: Batches) -> Batches:
    yield pa.record_batch([pa.array(steps.topic_ids(topics, read(batches, [])), pa.binary())], schema=_IDS)


def _uses(batches: Batches) -> Batches:
    for batch in batches:
        ends, uses = (column.to_pylist() for column in batch.columns)
        keys = [connection_key(*text.split(" > ")) for text in ends]
        empty: dict[pa.DataType, Any] = {pa.binary(): b"", pa.bool_(): False}
        columns = {one.name: [empty.get(one.type, 0)] * len(keys) for one in _SHUFFLED}
        columns |= {"connection": keys, "order": [BEFORE] * len(keys), "sequence": uses}
        arrays = [pa.array(columns[one.name], one.type) for one in _SHUFFLED]
        yield pa.record_batch(arrays, schema=_SHUFFLED)


def _collect(batches: Batches) -> Batches:
    return _parts(group for batch in batches for group in groups_in(batch))


def _parts(groups: Iterable[Group]) -> Batches:
    for found in collect_part(groups, _MOST_EVENTS):
        rows: list[tuple[Any, ...]]
        parts: list[Collected | None]
        if isinstance(found, Collected):
            rows, parts = [(None,) * len(_EVENTS)], [found]
        else:
            rows, parts = [(broker, *event) for broker, event in found], [None] * len(found)
        columns = zip(list(zip(*rows, strict=True)) or [()] * len(_EVENTS), _PARTS, strict=False)
        arrays = [pa.array(column, field.type) for column, field in columns]
        yield pa.record_batch([*arrays, _PART.write(parts)], schema=_PARTS)


def _merged(batches: Iterable[pa.RecordBatch]) -> Batches:
    yield pa.record_batch([_PART.write([_whole(batches)])], schema=_COLLECTED)


def _whole(batches: Iterable[pa.RecordBatch]) -> Collected:
    whole = Collected()
    for batch in batches:
        for row in range(batch.num_rows):  # one after the other: each may be large
            for part in _PART.read(batch.column("part")[row : row + 1]):
                whole.merge(part)
    return whole


def _simulated(key: Key, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    events = (
        CacheEvent(*event)
        for batch in batches
        for event in zip(*(batch.column(name).to_pylist() for name in _EVENTS[1:]), strict=True)
    )
    use = simulate(events, in_order=True)
    yield pa.record_batch([pa.array([key[0].as_py()]), _USE.write([use])], schema=_SLOTS)
