"""Reads connections whose rows are all in one batch, without a search for the client. Sans-IO.

A capture of many clients has many connections with few exchanges. If a connection began before the capture,
only its second request shows which side is the client, and until then its rows wait (`connection`). Here
numpy checks all connections of a batch at once. A connection is read at once if all of this is true:

- It is whole: it has no other rows, and its rows are requests and responses in turn. Sequence numbers, ACK
  numbers and correlation ids fit, and times ascend.
- Its first two requests are from one client, and no other bytes up to the second one look like requests.

`connection.CapturedConnection` finds the same exchanges in such rows. It reads all other connections.
"""

from typing import Final, TypeAlias

import numpy as np

from proxy.protocol.api import ApiKey
from proxy.protocol.primitives import Buffer
from replay.capture.files.window import Column
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.capture.kafka.pairing import CLIENT_ID_AT, Keep, Pairing
from replay.capture.kafka.plausible import HEAD, is_fetch_response, named_starts, request_size
from replay.capture.kafka.request_frames import are_of_one_client
from replay.capture.kafka.stretches import Stretches
from replay.capture.packets.segments import endpoints, ports_of

Events: TypeAlias = list[Exchange | ConnectionEnd]

LEAST: Final = 2
"""The first exchange does not show which side is the client."""
MOST: Final = 64
"""A connection with more exchanges is not read here, because its beginning is a small part of it."""
_MOST_BYTES: Final = 1 << 20
"""A connection with more bytes is not read here. `connection` has no limit that is lower."""
_EXCLUDED: Final = (ApiKey.PRODUCE, ApiKey.SASL_HANDSHAKE)
"""The requests that may have no response, or after which there may be no frames."""


class WholeConnections:
    """Those connections of a batch of SEGMENTS that can be read at once.

    `begins` has the first row of each connection in the batch.
    """

    def __init__(self, found: Stretches, begins: list[int], ports: frozenset[int], keep: Keep) -> None:
        self._found, self._ports, self._keep = found, ports, keep
        turns = found.turns
        first = found.turn_of[begins]
        size = np.diff(first, append=len(turns))
        whole = (size % 2 == 0) & (size >= 2 * LEAST) & (size <= 2 * MOST)
        whole &= np.logical_and.reduceat(_fits(found, first, size), first)
        begin = first[whole]
        bounded = turns.edges[begin + size[whole]] - turns.edges[begin] <= _MOST_BYTES
        known = (turns.ack[begin] == turns.sequence[begin + 1]) & (turns.time[begin] > 0)
        whole[whole] = bounded & known
        begin = first[whole]
        whole[whole] = ~_is_ambiguous(turns.payload, turns.edges[begin], turns.edges[begin + 2])
        self._first, self._size = first.tolist(), np.where(whole, size, 0).tolist()
        self._payload, self._edges = turns.payload, turns.edges.tolist()
        self._times, self._end_times = turns.time.tolist(), turns.end_time.tolist()
        self._kinds, self._ids = turns.kind.tolist(), turns.correlation_id.tolist()
        self._packets = np.append(0, np.cumsum(turns.packets)).tolist()

    def read(self, number: int, key: bytes) -> Events | None:
        """Return the events of the connection at a place in the batch, None if it can't be read at once."""
        size, first = self._size[number], self._first[number]
        if not size:
            return None
        from_low = bool(self._found.turns.from_low[first])
        if self._ports and not _may_be_client(ports_of(key), self._ports, low=from_low):
            return None
        if not self._shows_client(first):
            return None
        client, broker = endpoints(key) if from_low else reversed(endpoints(key))
        last = first + size
        end = ConnectionEnd(
            connection=f"{client} > {broker} #0",
            client=client,
            broker=broker,
            first_time=self._times[first],
            last_time=self._end_times[last - 1],
            packets=self._packets[last] - self._packets[first],
        )
        events: Events = []
        pairing = Pairing(end, lambda _: None, self._keep)
        at = first
        while at < last:
            if at > first and (taken := self._take(pairing, at)):
                events += [*pairing.drain(), *taken]
                at += 2 * len(taken)
            else:
                self._pair(pairing, at)
                at += 2
        edges = self._edges[first : last + 1]
        end.client_bytes = sum(edges[1::2]) - sum(edges[:-1:2])
        end.broker_bytes = edges[-1] - edges[0] - end.client_bytes
        return [*events, *pairing.drain(), end]

    def _take(self, pairing: Pairing, at: int) -> list[Exchange]:
        if not self._found.count[at]:
            return []
        turns = self._found.stretch(at)
        count = 2 * turns.named(pairing.client_id)
        return [*pairing.take(turns, turns.time[:count], turns.end_time[:count])] if count else []

    def _pair(self, pairing: Pairing, at: int) -> None:
        begin, middle, end = self._edges[at : at + 3]
        wanted = pairing.wants_request(self._kinds[at] >> 16)
        frame = bytes(self._payload[begin : middle if wanted else min(middle, begin + HEAD)])
        pairing.request_seen(frame, middle - begin, 0, self._times[at])
        correlation_id = self._ids[at]
        wanted = bool(pairing.wants_response(correlation_id))
        pieces: list[Buffer] = [self._payload[middle:end]] if wanted else []
        pairing.response_seen(correlation_id, pieces, end - middle, 0, self._end_times[at + 1])

    def _shows_client(self, first: int) -> bool:
        """Return whether the first two requests show that it is Kafka, and which side is the client."""
        edges, payload = self._edges[first : first + 4], self._payload
        one, other = (bytes(payload[begin:end]) for begin, end in (edges[:2], edges[2:]))
        sizes = (request_size(frame[:HEAD], cut=False) for frame in (one, other))
        if (*sizes,) != (len(one), len(other)) or not are_of_one_client(one, other):
            return False
        # A search must then find the first response at its place.
        fetches = [at for at in (first, first + 2) if self._kinds[at] >> 16 == ApiKey.FETCH]
        if not fetches:
            return True
        answer = bytes(payload[edges[1] : edges[2]])
        if fetches[0] == first:
            version = self._kinds[first] & 0xFFFF
            body = CLIENT_ID_AT + int.from_bytes(one[CLIENT_ID_AT - 2 : CLIENT_ID_AT])
            found = is_fetch_response(answer, whole=True, version=version, request=one, body=body)
            if found is not None:
                return found
        ids = (self._ids[at].to_bytes(4, signed=True) for at in fetches)
        return not any(answer.find(pattern, _AFTER_START) >= 0 for pattern in ids)


_AFTER_START: Final = 5
"""The first offset in a response at which a correlation id is not that of the response itself."""


def _fits(found: Stretches, first: Column, size: Column) -> Column:
    """Return for each turn whether it is in its place in a connection of requests and responses in turn."""
    turns = found.turns
    place = np.arange(len(turns)) - np.repeat(first, size)
    is_request, is_last = place % 2 == 0, place == np.repeat(size, size) - 1
    fits: Column = np.where(is_request, found.pair, is_last | np.append(False, found.link[:-1]))
    fits &= ~(is_request & np.isin(turns.kind >> 16, _EXCLUDED))
    fits[1:] &= (place[1:] == 0) | (turns.time[1:] > turns.end_time[:-1])
    # Responses with equal ids can't be told apart in a stream whose beginning is unknown.
    fits[2:] &= ~is_request[2:] | (place[2:] == 0) | (turns.correlation_id[2:] != turns.correlation_id[:-2])
    return fits


def _is_ambiguous(payload: memoryview, begin: Column, end: Column) -> Column:
    """Return for each part of the payload whether one header in it leads to another one."""
    found = np.zeros(len(begin), np.bool_)
    data = np.frombuffer(payload, np.uint8)
    size = end - begin
    edges = np.append(0, np.cumsum(size))
    joined = np.concatenate([data[:0], *(data[one:other] for one, other in zip(begin, end, strict=True))])
    places = named_starts(joined)
    lengths = joined[places[:, None] + np.arange(4)].view(">u4")[:, 0].astype(np.int64)
    # A search might find the client there (`request_frames.RequestFraming.judge`).
    leads = np.isin(places + 4 + lengths, places)
    found[edges.searchsorted(places[leads], side="right") - 1] = True
    return found


def _may_be_client(ends: tuple[int, int], ports: frozenset[int], *, low: bool) -> bool:
    """Return whether the ports of brokers allow one end of a connection to be the client."""
    mine, others = ends if low else reversed(ends)
    return (mine in ports) == (others in ports) or others in ports
