"""Finds stretches of rows that are whole fetches, each followed by its whole response. Sans-IO.

Most rows of a capture are like this: a request in one row, and its response in the next ones. numpy finds
them in the columns of a batch (`Stretches`). A connection takes a stretch at once if nothing in its state is
open (`connection.CapturedConnection.take`). All other rows are read one by one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import pyarrow as pa

from proxy.protocol.api import LENGTH_BYTES, REQUEST_START_BYTES, RESPONSE_START_BYTES, ApiKey
from replay.capture.files.window import Column
from replay.capture.kafka.plausible import KEYS, MAX_FRAME
from replay.capture.packets.segments import MAX_RUN, bytes_of

LEAST: Final = 8
"""A stretch of fewer exchanges is read row by row, which takes less time."""
_FETCH: Final = int(ApiKey.FETCH)
_MASK: Final = 0xFFFF_FFFF
_HEAD: Final = 12
"""Bytes of a frame that are looked at: its length, then key, version and correlation id of a request, or the
correlation id of a response."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turns:
    """Rows of segments as columns. A *turn* is neighbouring rows from one side of a connection."""

    payload: memoryview
    edges: Column
    """Where in the payload each turn begins. The last value is the end."""
    from_low: Column
    """Whether the lower endpoint sent it."""
    rows: Column
    packets: Column
    time: Column
    """Of the first packet, in ns since 1970."""
    end_time: Column
    """Of the last packet."""
    sequence: Column
    ack: Column
    kind: Column
    """Of a request: its API key and version. Of a response: its correlation id."""
    correlation_id: Column
    """Of a request. Of no meaning for a response."""

    def __len__(self) -> int:
        return len(self.time)

    def between(self, begin: int, end: int) -> "Turns":
        columns = {name: getattr(self, name)[begin:end] for name in _OF_TURNS}
        return Turns(payload=self.payload, edges=self.edges[begin : end + 1], **columns)

    def named(self, client_id: bytes) -> int:
        """Return how many of the first requests in a row have this client id."""
        name = np.frombuffer(len(client_id).to_bytes(2) + client_id, np.uint8)
        begin, end = self.edges[:-1:2] + REQUEST_START_BYTES, self.edges[1::2]
        data = np.frombuffer(self.payload, np.uint8)
        places = np.minimum(begin[:, None] + np.arange(len(name)), len(data) - 1)
        return first_true((begin + len(name) > end) | (data[places] != name).any(axis=1))


_OF_TURNS: Final = tuple(one.name for one in fields(Turns)[2:])


def first_true(column: Column) -> int:
    """Return the place of the first True, or the length if there is none."""
    return int(column.argmax()) if column.any() else len(column)


class Stretches:
    """The stretches of a batch of SEGMENTS, found without the state of any connection.

    In a stretch, whole fetch requests and their whole responses alternate. The sequence and ACK numbers of
    each one continue those of the ones before it. A response has the correlation id of its request.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        payload, edges = bytes_of(batch.column("payload"))
        rows = {name: batch.column(name).to_numpy(zero_copy_only=False) for name in _OF_ROWS}
        rows["sequence"] = rows["sequence"].astype(np.int64)
        connection = batch.column("connection").dictionary_encode().indices.to_numpy()
        side = connection.astype(np.int64) * 2 + rows["from_low"]
        new = np.append(True, side[1:] != side[:-1])
        self.turn_of = np.cumsum(new) - 1
        """For each row, its place in `turns`."""
        first = np.flatnonzero(new)
        after = np.append(first[1:], len(new))
        edges_of_turns = edges[np.append(first, len(new))]
        length, kind, correlation_id = _heads(payload, edges_of_turns).T
        self.turns = turns = Turns(
            payload=payload,
            edges=edges_of_turns,
            rows=after - first,
            packets=np.add.reduceat(rows["packets"], first, dtype=np.int64),
            end_time=rows["end_time"][after - 1],
            **{name: rows[name][first] for name in ("from_low", "time", "sequence", "ack")},
            kind=kind,
            correlation_id=correlation_id.astype(np.int32),
        )
        whole = np.logical_and.reduceat(_continues(rows, np.diff(edges), new), first)
        whole &= (np.diff(turns.edges) == length + LENGTH_BYTES) & (length <= MAX_FRAME)
        self.pair, self.link = pair, link = _linked(turns, side[first], whole)
        """For each turn: whether an exchange begins with it, and whether another one follows that."""
        is_fetch = kind >> 16 == _FETCH
        self.count = count = np.zeros_like(first)
        """For each turn: the number of exchanges in the stretch that begins with it, or 0 if none begins."""
        for parity in (0, 1):
            paired = (pair & is_fetch)[parity::2]
            linked = link[parity::2] & paired & np.append(paired[1:], False)
            place = np.arange(len(linked))
            last = np.minimum.accumulate(np.where(linked, len(linked), place)[::-1])[::-1]
            count[parity::2] = np.where(paired, last - place + 1, 0)
        count[count < LEAST] = 0
        lengths = np.zeros(len(new), np.int64)
        lengths[first] = count
        self.lengths: list[int] = lengths.tolist()
        """The same for each row."""

    def stretch(self, turn: int) -> Turns:
        """Return the turns of the stretch that begins with a turn."""
        return self.turns.between(turn, turn + 2 * int(self.count[turn]))


_OF_ROWS: Final = ("from_low", "time", "end_time", "sequence", "ack", "flags", "missing", "packets")


def _heads(payload: memoryview, edges: Column) -> Column:
    """Return the first three numbers of each turn's payload, or zeros if the batch ends before."""
    data = np.frombuffer(payload, np.uint8)
    heads = np.zeros((len(edges) - 1, 3), np.int64)
    known = edges[:-1] <= len(data) - _HEAD
    heads[known] = data[edges[:-1][known, None] + np.arange(_HEAD)].view(">u4")
    return heads


def _continues(rows: Mapping[str, Column], size: Column, new: Column) -> Column:
    """Return whether each row is payload, and directly follows the row before it in its turn."""
    sequence, ack, time, end_time = (rows[name] for name in ("sequence", "ack", "time", "end_time"))
    found: Column = (size > 0) & (rows["flags"] == 0) & (rows["missing"] == 0) & (end_time >= time)
    after = (sequence[1:] == sequence[:-1] + size[:-1] & _MASK) & (ack[1:] == ack[:-1])
    found[1:] &= new[1:] | (after & (time[1:] >= end_time[:-1]))
    return found


def _linked(turns: Turns, side: Column, whole: Column) -> tuple[Column, Column]:
    """Return for each turn whether an exchange begins with it, and whether the next exchange follows."""
    size, sequence, ack, kind = np.diff(turns.edges), turns.sequence, turns.ack, turns.kind
    after = sequence + size & _MASK
    request = whole & (turns.rows == 1) & (size >= REQUEST_START_BYTES) & (size <= MAX_RUN)
    request &= (kind >> 16 < KEYS) & (kind & 0xFFFF < KEYS)
    pair, link = np.zeros((2, len(turns)), np.bool_)
    pair[:-1] = request[:-1] & whole[1:] & (size[1:] >= RESPONSE_START_BYTES) & (side[:-1] ^ side[1:] == 1)
    pair[:-1] &= (turns.correlation_id[:-1] == kind[1:].astype(np.int32)) & (ack[1:] == after[:-1])
    # The next exchange begins two turns later, in the same direction and without a gap.
    link[:-3] = pair[:-3] & pair[2:-1] & (side[:-3] == side[2:-1])
    link[:-3] &= (sequence[2:-1] == after[:-3]) & (sequence[3:] == after[1:-2]) & (ack[2:-1] == after[1:-2])
    return pair, link
