"""The steps from segments, or from a stored table, to rows of the table. Spark is optional. Sans-IO.

Batches are sorted by `connection`, and within a connection by `order` or `place`.
"""

import ipaddress
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from proxy.protocol.api import ApiKey
from replay.capture.files.counts import FileCounts
from replay.capture.kafka.exchange import READ, ConnectionEnd
from replay.capture.kafka.exchanges import Connections, Event
from replay.capture.kafka.pairing import Keep
from replay.capture.packets.segments import SEGMENTS, connection_key, connections_in, parts
from replay.capture.packets.tcp import Filter
from replay.capture.tls.keylog import Secrets
from replay.measure.rows import RowFilter
from replay.measure.strip_records import restore_records, restored_edges
from replay.measure.table import CODECS, exchanges

_EVERY: Final = frozenset(ApiKey)

Batches: TypeAlias = Iterator[pa.RecordBatch]


def events(
    ports: frozenset[int],
    choice: RowFilter,
    secrets: Secrets | None,
    batches: Batches,
    files: list[FileCounts],
) -> Iterator[Event]:
    """Yield the events of connections for SEGMENTS. Add the counts of files among them to `files`."""
    keep = Keep(responses=_EVERY if choice.errors else READ, groups=choice.members > 0)
    if choice.without:
        keys = {connection_key(*ends_of(name)) for name in choice.without}
        batches = _leave_out(keys, batches)
    connections = Connections(ports=ports, keep=keep, secrets=secrets, plain=choice.plain)
    return connections.read_sorted(
        batches,
        on_files=lambda run: files.extend(map(FileCounts.from_json, run.column("payload").to_pylist())),
    )


def events_again(
    keep: Filter, choice: RowFilter, batches: Batches, files: list[FileCounts]
) -> Iterator[Event]:
    """Yield the events of a table that is measured again, with another filter. `files` is as in `events`."""
    without = set(map(ends_of, choice.without))
    for connection, run in _runs(batches):
        if not connection:
            files.extend(filter(None, CODECS["file_counts"].read(run.column("file_counts"))))
        elif _wanted(keep, connection) and ends_of(connection) not in without:
            yield from exchanges(run)


def topic_ids(topics: frozenset[str], events: Iterable[Event]) -> frozenset[bytes]:
    """Return the ids of topics, from the captured Metadata responses."""
    ends = (event for event in events if isinstance(event, ConnectionEnd))
    return frozenset(topic_id for end in ends for topic_id, name in end.topics.items() if name in topics)


def restored(batches: Batches, schema: pa.Schema = SEGMENTS) -> Batches:
    """Yield stripped batches in their earlier `schema`. Zeros replace the contents that were cut.

    The zeros may need much more memory than the other bytes. So batches are split, as in `segments.split`.
    """
    for batch in batches:
        for begin, end in parts(restored_edges(batch)):
            yield restore_records(batch.slice(begin, end - begin), schema)


def _runs(batches: Batches) -> Iterator[tuple[Any, pa.RecordBatch]]:
    for batch in batches:
        for connection, begin, end in connections_in(batch):
            yield connection, batch.slice(begin, end - begin)


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
