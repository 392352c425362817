"""Packets of captures as rows of SEGMENTS. Tests lose, repeat and reorder these packets."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import dpkt
import pyarrow as pa

from replay.capture.kafka.exchange import READ, Exchange
from replay.capture.kafka.exchanges import Connections, Event
from replay.capture.kafka.pairing import KEPT, Keep
from replay.capture.packets.segments import SEGMENTS
from replay.capture.tls.keylog import Secrets

CAPTURES = Path(__file__).parents[3] / "captures"
NAMES = ("librdkafka-100p", "librdkafka-midstream", "java-100p", "many-clients-any")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    connection: bytes
    from_low: bool
    time: int
    sequence: int
    payload: bytes = b""
    flags: int = 0
    missing: int = 0
    packets: int = 1
    ack: int = -1


def row(
    *,
    client: bool,
    sequence: int,
    payload: bytes = b"",
    flags: int = 0,
    time: int = 1,
    missing: int = 0,
    ack: int = -1,
) -> Row:
    """Return a row of one connection: client 10.0.0.1:50000, broker 10.0.0.2:9092."""
    return Row(
        connection=b"\4"
        + bytes([10, 0, 0, 1])
        + (50000).to_bytes(2)
        + bytes([10, 0, 0, 2])
        + (9092).to_bytes(2),
        from_low=client,
        time=time,
        sequence=sequence & 0xFFFF_FFFF,
        payload=payload,
        flags=flags,
        missing=missing,
        ack=ack,
    )


_LAST = replace(row(client=True, sequence=0, payload=b"?"), connection=b"\6" + b"\xff" * 36)


@cache
def packets(name: str) -> tuple[Row, ...]:
    with (CAPTURES / f"{name}.pcap").open("rb") as file:
        return tuple(_rows(dpkt.pcap.Reader(file)))


def _rows(reader: dpkt.pcap.Reader) -> Iterator[Row]:
    link = dpkt.sll2.SLL2 if reader.datalink() == 276 else dpkt.ethernet.Ethernet
    for time, data in reader:
        ip = link(data).data
        tcp = ip.data
        flags = (tcp.flags & dpkt.tcp.TH_FIN) | (tcp.flags & dpkt.tcp.TH_SYN) | (tcp.flags & dpkt.tcp.TH_RST)
        if not tcp.data and not flags:
            continue
        ends = (ip.src, tcp.sport), (ip.dst, tcp.dport)
        key = b"\4" + b"".join(address + port.to_bytes(2) for address, port in sorted(ends))
        yield Row(
            connection=key,
            from_low=ends[0] < ends[1],
            time=round(time * 1_000_000) * 1000,
            sequence=tcp.seq,
            payload=bytes(tcp.data),
            flags=flags,
            ack=tcp.ack if tcp.flags & dpkt.tcp.TH_ACK else -1,
        )


def batch(rows: Iterable[Row]) -> pa.RecordBatch:
    listed = list(rows)
    columns = {
        "connection": [one.connection for one in listed],
        "from_low": [one.from_low for one in listed],
        "time": [one.time for one in listed],
        "end_time": [one.time for one in listed],
        "order": list(range(len(listed))),
        "sequence": [one.sequence for one in listed],
        "ack": [one.ack for one in listed],
        "flags": [one.flags for one in listed],
        "missing": [one.missing for one in listed],
        "packets": [one.packets for one in listed],
        "payload": [one.payload for one in listed],
    }
    return pa.RecordBatch.from_pydict(columns, schema=SEGMENTS)


def read(
    rows: Iterable[Row],
    *,
    ports: frozenset[int] = frozenset(),
    responses: frozenset[int] = READ,
    secrets: Secrets | None = None,
) -> list[Event]:
    """Return the events of rows, read one by one. Check that they are the same if they are read in columns.

    In one batch, whole connections are read at once. With a second batch, the rows of one are in both.
    """
    listed = list(rows)
    keep = Keep(responses=responses)
    events = [*Connections(ports=ports, keep=keep, secrets=secrets, plain=True).read([batch(listed)])]
    known = by_connection(events)
    listed.sort(key=lambda one: one.connection)
    for cut in (0, len(listed) // 2):
        shares = listed[:cut], listed[cut:]
        assert by_connection(read_sorted(shares, ports, keep, secrets)) == known
    return events


def read_sorted(
    shares: Iterable[Sequence[Row]],
    ports: frozenset[int] = frozenset(),
    keep: Keep = KEPT,
    secrets: Secrets | None = None,
) -> list[Event]:
    """Return the events of rows that are sorted by connection, as `measure` reads them in batches.

    One more row follows, of another connection: the last connection in a batch is not read at once.
    """
    connections = Connections(ports=ports, keep=keep, secrets=secrets)
    *before, last = [*shares] or [[]]
    batches = map(batch, [*before, [*last, _LAST]])
    *events, _ = connections.read_sorted(batches, lambda _: None)
    return events


def by_connection(events: Iterable[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        found[event.connection].append(joined(event))
    return found


def joined(event: Event) -> Event:
    """Return an event whose response has one piece."""
    return replace(event, response=[b"".join(event.response)]) if isinstance(event, Exchange) else event


def resized(rows: Iterable[Row], size: int) -> Iterator[Row]:
    """Yield rows with the same bytes, in segments of at most `size` bytes."""
    for one in rows:
        for at in range(0, max(len(one.payload), 1), size):
            yield replace(one, payload=one.payload[at : at + size], sequence=one.sequence + at & 0xFFFF_FFFF)
