"""The steps from segments, or from a stored table, to rows of the table. Spark is optional. Sans-IO.

Batches are sorted by `connection`, and within a connection by `order` or `place`.
"""

import ipaddress
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from proxy.protocol.api import ApiKey
from replay.capture.files.counts import FileCounts
from replay.capture.kafka.exchange import READ
from replay.capture.kafka.exchanges import BulkEvent, Event, earlier_uses, read_exchanges, read_in_bulk
from replay.capture.packets.segments import SEGMENTS, connection_key
from replay.capture.packets.tcp import Filter
from replay.capture.tls.keylog import Secrets
from replay.measure.rows import RowFilter
from replay.measure.strip_records import restore_records
from replay.measure.table import CODECS, connection_ends, exchanges

_EVERY: Final = frozenset(ApiKey)

Batches: TypeAlias = Iterator[pa.RecordBatch]


def events(
    ports: frozenset[int],
    choice: RowFilter,
    secrets: Secrets | None,
    batches: Batches,
    files: list[FileCounts],
) -> Iterator[BulkEvent]:
    """Yield the events of connections for SEGMENTS. Add the counts of files among them to `files`."""
    groups, responses = choice.members > 0, _EVERY if choice.errors else READ
    if choice.without:
        keys = {connection_key(*ends_of(name)) for name in choice.without}
        batches = _leave_out(keys, batches)
    if not choice.plain:
        return read_in_bulk(
            batches,
            ports=ports,
            responses=responses,
            groups=groups,
            secrets=secrets,
            on_files=lambda run: files.extend(_files_in_segments(run)),
        )

    def of_connection(_: bytes, own: Batches) -> Iterable[BulkEvent]:
        uses, rest = _used(own)
        return read_exchanges(
            rest, ports=ports, responses=responses, groups=groups, uses=uses, secrets=secrets
        )

    return _events(batches, files, _files_in_segments, of_connection)


def events_again(
    keep: Filter, choice: RowFilter, batches: Batches, files: list[FileCounts]
) -> Iterator[BulkEvent]:
    """Yield the events of a table that is measured again, with another filter. `files` is as in `events`."""
    without = set(map(ends_of, choice.without))

    def of_connection(connection: str, own: Batches) -> Iterable[Event]:
        wanted = _wanted(keep, connection) and ends_of(connection) not in without
        return (event for run in own for event in exchanges(run)) if wanted else ()

    return _events(batches, files, _files_in_table, of_connection)


def topic_ids(topics: frozenset[str], batches: Iterable[pa.RecordBatch]) -> frozenset[bytes]:
    """Return the ids of topics, from the Metadata responses in rows of the table."""
    ends = filter(None, (end for batch in batches for end in connection_ends(batch)))
    return frozenset(topic_id for end in ends for topic_id, name in end.topics.items() if name in topics)


def restored(batches: Batches, schema: pa.Schema = SEGMENTS) -> Batches:
    """Yield stripped batches in their earlier `schema`. Zeros replace the contents that were cut.

    The zeros may need much more memory than the other bytes. So a batch with zeros has the rows of only one
    connection.
    """
    for batch in batches:
        if pc.sum(pc.binary_length(batch.column("cuts"))).as_py():
            yield from (restore_records(run, schema) for _, run in _runs(iter([batch])))
        elif batch.num_rows:
            yield restore_records(batch, schema)


def _connections(batches: Batches) -> Iterator[tuple[Any, Batches]]:
    """Yield each connection and its batches. Spark could group rows, but needs 4 ms of CPU for a group."""
    for key, runs in groupby(_runs(batches), key=itemgetter(0)):
        yield key, (run for _, run in runs)


def _runs(batches: Batches) -> Iterator[tuple[Any, pa.RecordBatch]]:
    for batch in batches:
        runs = pc.run_end_encode(batch.column("connection"))
        begin = 0
        for key, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            yield key, batch.slice(begin, end - begin)
            begin = end


def _used(own: Batches) -> tuple[int, Batches]:
    """Return the number in the row with `uses_of_ports` (0 without such a row), and the other rows."""
    first = next(own)
    uses = earlier_uses(first, 0)
    return uses or 0, chain((first if uses is None else first.slice(1),), own)


def _files_in_segments(run: pa.RecordBatch) -> Iterable[FileCounts]:
    return map(FileCounts.from_json, run.column("payload").to_pylist())


def _files_in_table(run: pa.RecordBatch) -> Iterable[FileCounts]:
    return filter(None, CODECS["file_counts"].read(run.column("file_counts")))


def _events(
    batches: Batches,
    files: list[FileCounts],
    files_in: Callable[[pa.RecordBatch], Iterable[FileCounts]],
    events_of: Callable[[Any, Batches], Iterable[BulkEvent]],
) -> Iterator[BulkEvent]:
    for key, own in _connections(batches):
        if key:
            yield from events_of(key, own)
        else:
            for run in own:
                files.extend(files_in(run))


def ends_of(connection: str) -> tuple[str, str]:
    """Return the addresses of the client and of the broker in the name of a connection."""
    client, _, broker = connection.rpartition(" #")[0].partition(" > ")
    return client, broker


def _leave_out(keys: Iterable[bytes], batches: Batches) -> Batches:
    named = pa.array(keys, pa.binary())
    for batch in batches:
        yield batch.filter(pc.invert(pc.is_in(batch.column("connection"), named)))


def _wanted(keep: Filter, connection: str) -> bool:
    ends = [end.rpartition(":") for end in ends_of(connection)]
    hosts = [ipaddress.ip_address(host.strip("[]")) for host, _, _ in ends]
    networks = [ipaddress.ip_network(host, strict=False) for host in keep.hosts]
    return (not keep.ports or any(int(port) in keep.ports for _, _, port in ends)) and (
        not networks or any(host in network for host in hosts for network in networks)
    )
