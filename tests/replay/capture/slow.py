"""Makes SEGMENTS from IP packets in a slow and simple way.

Tests compare `replay.capture.packets.segments` with the result.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import dpkt
import pyarrow as pa

from replay.capture.files import counts
from replay.capture.packets.segments import endpoints
from tests.replay.capture.crafting import Frame


@dataclass(frozen=True, slots=True)
class Run:
    """A row of SEGMENTS without its place in the input. `low` and `high` are the addresses as text."""

    low: str
    high: str
    from_low: bool
    time: int
    end_time: int
    sequence: int
    ack: int
    flags: int
    missing: int
    packets: int
    payload: bytes


def _text(address: bytes, port: int) -> str:
    host = ipaddress.ip_address(address)
    return f"[{host}]:{port}" if host.version == 6 else f"{host}:{port}"


def runs(frames: Iterable[Frame]) -> dict[tuple[str, str], list[Run]]:
    """Read complete IP packets without extension headers, with dpkt. Return the runs by connection."""
    found: dict[tuple[str, str], list[Run]] = {}
    for frame in frames:
        six = frame.data[0] >> 4 == 6
        ip: Any = dpkt.ip6.IP6(frame.data) if six else dpkt.ip.IP(frame.data)
        tcp = ip.data
        if not isinstance(tcp, dpkt.tcp.TCP):
            continue
        source, destination = (ip.src, tcp.sport), (ip.dst, tcp.dport)
        flags = tcp.flags & 7
        payload = b"" if flags & 4 else bytes(tcp.data)
        total = (ip.plen + 40) if six else ip.len
        wire = total - (40 if six else ip.hl * 4) - tcp.off * 4
        missing = 0 if flags & 4 else wire - len(payload)
        if not payload and not missing and not flags:
            continue
        low, high = sorted((source, destination))
        row = Run(
            _text(*low),
            _text(*high),
            source == low,
            frame.time,
            frame.time,
            (tcp.seq + (bool(flags & 2) and wire > 0)) % 2**32,
            tcp.ack if tcp.flags & 16 else -1,
            flags,
            missing,
            1,
            payload,
        )
        found.setdefault((row.low, row.high), []).append(row)
    return {ends: join(rows) for ends, rows in found.items()}


def join(rows: Iterable[Run]) -> list[Run]:
    """Join rows that follow each other without a gap in the same direction of a connection."""
    joined: list[Run] = []
    for row in rows:
        last = joined[-1] if joined else None
        if (
            last
            and last.payload
            and row.payload
            and last.from_low == row.from_low
            and last.ack == row.ack
            and not last.missing
            and not last.flags & 5
            and not row.flags & 2
            and (last.sequence + len(last.payload)) % 2**32 == row.sequence
        ):
            joined[-1] = replace(
                last,
                end_time=row.end_time,
                flags=last.flags | row.flags,
                missing=row.missing,
                packets=last.packets + row.packets,
                payload=last.payload + row.payload,
            )
        else:
            joined.append(row)
    return joined


def told(
    batches: Iterable[pa.RecordBatch],
) -> tuple[dict[tuple[str, str], list[Run]], list[counts.FileCounts]]:
    """Convert the results of `segments.read` to the form of `runs`. Also return the counts of the files."""
    found: dict[bytes, list[tuple[int, Run]]] = {}
    files = []
    for batch in batches:
        for row in batch.to_pylist():
            key = row.pop("connection")
            order = row.pop("order")
            if not key:
                files.append(counts.FileCounts.from_json(row["payload"]))
                continue
            low, high = endpoints(key)
            found.setdefault(key, []).append((order, Run(low=low, high=high, **row)))
    return {
        endpoints(key): join(run for _, run in sorted(rows, key=lambda row: row[0]))
        for key, rows in found.items()
    }, files
