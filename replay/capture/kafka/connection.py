"""One TCP connection of a capture: makes exchanges from rows of SEGMENTS, and detects whether it is Kafka.

Both directions are searched for requests. The end that sent the first request found is the client. But if the
user named the port of one end (--port), the other end is the client. SYNs do not decide this.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import numpy as np

from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.capture.kafka.framing import Framing
from replay.capture.kafka.ordering import Clocks, OrderedDirection, release
from replay.capture.kafka.pairing import Keep, Pairing
from replay.capture.kafka.preamble import Preamble, preambles
from replay.capture.kafka.reassembly import Reassembly
from replay.capture.kafka.request_frames import RequestFraming, is_no_request, is_one_exchange
from replay.capture.kafka.response_frames import ResponseFraming
from replay.capture.kafka.stretches import Stretches
from replay.capture.packets.tcp import FIN, RST, SYN
from replay.capture.tls.hello import begins_with_client_hello
from replay.capture.tls.keylog import Secrets
from replay.capture.tls.reasons import NO_HANDSHAKE, RENEGOTIATED, TLS

if TYPE_CHECKING:
    from replay.capture.tls.conversation import TlsConversation
    from replay.capture.tls.direction import TlsDirection

NOT_KAFKA: Final = "not Kafka"
OPAQUE: Final = "opaque after a SASL handshake v0"
NO_REQUESTS: Final = "no requests seen"

_SEARCHED: Final = 1 << 20
"""How many bytes at the start of each direction are searched for a Kafka request. If neither direction has a
request in these bytes, the connection counts as not Kafka."""
_ENOUGH: Final = 16
_TLS_TYPES: Final = frozenset({0x16, 0x17})
"""The types of TLS records that can be Kafka traffic: handshake and application data."""
_TLS_HEADER: Final = 5
_TLS_MAX_RECORD: Final = 0x4100


@dataclass(slots=True, eq=False)
class _DirectionFrames:
    endpoint: str
    connection: "CapturedConnection"
    framing: Framing
    stream: OrderedDirection = field(init=False)
    reassembly: Reassembly = field(init=False)
    other: "_DirectionFrames" = field(init=False)
    preamble: Preamble | None = None
    """What comes before Kafka or TLS. None if nothing does, or if it is over."""
    records: "TlsDirection | None" = None
    """The TLS records of this direction. None if the connection does not use TLS, or is not decrypted."""
    syn_ack: bool = False
    """Whether this side accepted the connection (sent SYN-ACK)."""

    @property
    def port(self) -> int:
        return int(self.endpoint.rpartition(":")[2])

    # The methods of `OrderedReceiver`.

    def begin(self) -> None:
        self.framing.begin()

    def data(self, view: memoryview, time: int, end_time: int) -> None:
        connection = self.connection
        if connection.unopened:
            connection.opens(self, view)
        if self.preamble is not None:
            rest = self.preamble.rest(view)
            self.framing.pass_over_preamble(len(view) - len(rest or b""))
            if rest is not None:
                self.preamble = None
            if not rest:
                return
            view = rest
        if connection.unknown:
            connection.begins(self, view)
        if self.records is None:
            self.decrypted(view, time, end_time)
        else:
            self.records.data(view, time, end_time)

    def gap(self, size: int, *, cut: bool) -> None:
        self.connection.unopened = self.connection.unknown = False
        self.preamble = None
        if self.records is None:
            self.lacks(size, cut=cut)
        else:
            self.records.gap(size, cut=cut)

    # The methods of `PlaintextReceiver`. Without TLS they get all that is captured.

    def decrypted(self, view: memoryview, time: int, end_time: int) -> None:
        connection = self.connection
        connection.speaks(self)
        self.framing.data(view, time, end_time)
        connection.spoke(self)

    def lacks(self, size: int, *, cut: bool) -> None:
        if cut:
            self.connection.speaks(self)
        self.framing.gap(size, cut=cut)
        if cut:
            self.connection.spoke(self)

    def unread(self, size: int, *, partial: bool) -> None:
        self.framing.unread(size, partial=partial)


class CapturedConnection:
    """One of the connections between two endpoints. A capture may have several, one after the other."""

    def __init__(
        self,
        low: str,
        high: str,
        number: int,
        *,
        ports: frozenset[int],
        keep: Keep,
        secrets: Secrets | None = None,
    ) -> None:
        self._end = ConnectionEnd(connection="", client="", broker="")
        self._pairing = Pairing(self._end, self._client_found, keep)
        self._clocks = Clocks()
        self._low = self._side(low)
        self._high = self._side(high)
        self._low.other, self._high.other = self._high, self._low
        # Times are told by the clock of the client's direction, most likely that of the higher port.
        broker = self._low if self._low.port <= self._high.port else self._high
        for side in (self._low, self._high):
            side.stream = OrderedDirection(side, self._clocks, second=side is broker)
            side.reassembly = Reassembly(side.stream)
        self._low.stream.other, self._high.stream.other = self._high.stream, self._low.stream
        self._number = number
        self._secrets = secrets
        self._tls: TlsConversation | None = None
        self.unopened = True
        """Whether no bytes were captured yet. The first bytes show whether a proxy is spoken to."""
        self.unknown = True
        """Whether it is still unknown if the connection is TLS. The first bytes show it."""
        self._captured: _DirectionFrames | None = None
        """The direction of the row that was captured last."""
        self._spoke: _DirectionFrames | None = None
        """The direction whose bytes were framed last."""
        self._first_syn: _DirectionFrames | None = None
        self._client: _DirectionFrames | None = None
        self._settled = False
        """Whether it is decided what the connection is: its client is known, or the connection is known not
        to be Kafka."""
        self._forced = (self._low.port in ports) != (self._high.port in ports)
        if self._forced:
            client = self._high if self._low.port in ports else self._low
            self._pairing.requests_found(client.framing)

    def row(  # the columns of SEGMENTS, once for every row
        self,
        payload: memoryview,
        from_low: bool,
        time: int,
        end_time: int,
        sequence: int,
        ack: int,
        flags: int,
        missing: int,
        packets: int,
    ) -> bool:
        """Add the next row. If it begins another connection, change nothing and return False."""
        side = self._low if from_low else self._high
        other = side.other
        if flags and not self._flags(side, flags, time, sequence, ack, len(payload) + missing):
            return False
        if payload or missing:
            if other.reassembly.waiting:
                other.reassembly.other_spoke(len(payload), end_time, turned=self._captured is other)
            if not side.reassembly.push(sequence, payload, missing, time, end_time, ack, packets):
                return False
            self._captured = side
        if side.stream.waiting or other.stream.waiting:
            release(side.stream, other.stream)
        end = self._end
        end.packets += packets
        end.first_time = min(end.first_time or time, time)
        end.last_time = max(end.last_time, end_time)
        return True

    def take(self, found: Stretches, row: int) -> tuple[Iterator[Exchange], int] | None:
        """Add the stretch that begins at a row, up to the first exchange that has to be read row by row.

        Return the exchanges, and their number of rows. None, with nothing changed, if there are none.
        """
        client = self._client
        if client is None or not self._is_idle(client):
            return None
        broker, turns = client.other, found.stretch(found.turn_of[row])
        here = [*map(attrgetter("reassembly.next", "stream.position"), (client, broker))]
        asked, answered = turns.sequence[:2].tolist()
        if turns.from_low[0] != (client is self._low) or turns.ack[0] != answered:
            return None
        if here != [(asked, asked), (answered, answered)]:
            return None
        count = 2 * turns.named(self._pairing.client_id)
        begin, end = self._clocks.tell_turns(client.stream, turns.time[:count], turns.end_time[:count])
        if not len(begin):
            return None
        count = len(begin)
        sizes = np.diff(turns.edges[: count + 1])
        for side, first in ((client, 0), (broker, 1)):
            size = int(sizes[first::2].sum())
            side.reassembly.skip(size)
            side.stream.skip(side.reassembly.next, int(turns.end_time[first:count:2][-1]))
            side.framing.skip(size)
        self._captured = self._spoke = broker
        self._end.packets += int(turns.packets[:count].sum())
        first_time = int(turns.time[:count].min())
        self._end.first_time = min(self._end.first_time or first_time, first_time)
        self._end.last_time = max(self._end.last_time, int(turns.end_time[:count].max()))
        return self._pairing.take(turns, begin, end), int(turns.rows[:count].sum())

    def _is_idle(self, client: _DirectionFrames) -> bool:
        """Return whether the connection is plain Kafka, and waits for the client's next request."""
        broker = client.other
        settled = self._settled and not self._end.reason and not self.unknown and self._tls is None
        return (
            settled
            and self._pairing.idle
            and self._spoke is broker
            and self._clocks.speaker is broker.stream
            and all(
                side.framing.idle and side.stream.idle and not side.reassembly.waiting
                for side in (client, broker)
            )
        )

    def opens(self, side: _DirectionFrames, view: memoryview) -> None:
        """Look at the first bytes: a client may speak to a proxy before it speaks Kafka."""
        self.unopened = False
        if side.framing.from_start and (sizes := preambles(bytes(view))):
            side.preamble, side.other.preamble = map(Preamble, sizes)

    def begins(self, side: _DirectionFrames, view: memoryview) -> None:
        """Look at the first captured bytes: if they are TLS, prepare to decrypt it, or note why not."""
        self.unknown = False
        if not begins_with_client_hello(view):
            if self._forced and _has_tls_records(view):
                self._renounce(TLS if self._secrets is None else NO_HANDSHAKE)
            return
        if self._secrets is None:
            self._renounce(TLS)
            return
        # Only here, for it needs an optional package.
        from replay.capture.tls.conversation import TlsConversation  # noqa: PLC0415

        tls = self._tls = TlsConversation(side, side.other, self._secrets, self._renounce)
        side.records, side.other.records = tls.client, tls.server
        for each in (side, side.other):
            each.begin()

    def speaks(self, side: _DirectionFrames) -> None:
        if self._spoke is side.other:
            side.other.framing.other_spoke()
        if not self._settled:
            self._settle()

    def spoke(self, side: _DirectionFrames) -> None:
        self._spoke = side
        if not self._settled:
            self._settle()
        elif self._pairing.contradicted:
            self._contradicted()

    def drain(self) -> list[Exchange]:
        return self._pairing.drain()

    def finish(self) -> tuple[list[Exchange], ConnectionEnd]:
        """End the connection. Return its last exchanges, and the connection's totals."""
        sides = sorted((self._low, self._high), key=lambda side: side is not self._first_syn)
        for side in sides:
            side.reassembly.finish()
        release(self._low.stream, self._high.stream, everything=True)
        if self._tls is not None:
            self._tls.finish()
        for side in sides:
            side.framing.resync(boundary=True)
            if not self._settled:
                self._settle()
        end = self._end
        if self._client is None and not end.reason:
            self._settle_by_one_exchange()
        if self._client is None and not end.reason:
            self._renounce(NOT_KAFKA if all(side.framing.seen_bytes for side in sides) else NO_REQUESTS)
        if end.reason:
            self._name(self._guess_client())
            self._count()
            return [], end
        assert self._client is not None  # noqa: S101 - for the types: otherwise there was a reason
        self._client.framing.finish()
        self._client.other.framing.finish()
        left = self._pairing.finish()
        self._count()
        if self._pairing.opaque:
            end.reason = OPAQUE
        elif self._tls is not None and self._tls.renegotiated:
            end.reason = RENEGOTIATED
        return left, end

    def _side(self, endpoint: str) -> _DirectionFrames:
        return _DirectionFrames(endpoint, self, RequestFraming(self._pairing))

    def _flags(
        self, side: _DirectionFrames, flags: int, time: int, sequence: int, ack: int, size: int
    ) -> bool:
        if flags & SYN:
            if not side.reassembly.syn(sequence - 1 & 0xFFFF_FFFF if size else sequence):
                return False
            side.stream.open(time, ack)
            side.syn_ack = ack >= 0
            if self._first_syn is None or (self._first_syn.syn_ack and not side.syn_ack):
                self._first_syn = side
            self._end.syn_seen = True
        if flags & (FIN | RST) and (size or side.reassembly.fits(sequence)):
            side.stream.close(time, ack)
            if flags & FIN:
                side.stream.fin(sequence + size & 0xFFFF_FFFF)
                if not size:
                    side.reassembly.fin(sequence)
        return True

    def _settle(self) -> None:
        """Try to find out whether this connection uses Kafka's protocol, and which end is the client."""
        if self._client is not None:
            self._settled = True
            broker = self._client.other
            framing = ResponseFraming(self._pairing)
            before = broker.framing
            broker.framing = framing
            framing.adopt(before)
        elif any(_is_tls(side.framing) for side in (self._low, self._high)):
            self._renounce(TLS if self._secrets is None else NO_HANDSHAKE)
        elif all(_is_hopeless(side.framing) for side in (self._low, self._high)):
            self._renounce(NOT_KAFKA)

    def _settle_by_one_exchange(self) -> None:
        """If the connection is one request and the response to it, note which end is the client."""
        for side in (self._low, self._high):
            asked, answered = side.framing.search, side.other.framing.search
            if asked is not None and answered is not None and is_one_exchange(asked, answered):
                side.framing.start_at(0)
                self._settle()
                side.other.framing.resync(boundary=True)
                return

    def _client_found(self, framing: Framing) -> None:
        self._client = self._low if self._low.framing is framing else self._high
        self._name(self._client)

    def _name(self, client: _DirectionFrames) -> None:
        end = self._end
        end.client, end.broker = client.endpoint, client.other.endpoint
        end.connection = f"{end.client} > {end.broker} #{self._number}"

    def _guess_client(self) -> _DirectionFrames:
        if self._first_syn is not None:
            return self._first_syn
        return self._low if self._low.port >= self._high.port else self._high

    def _contradicted(self) -> None:
        waiting = any(side.reassembly.waiting or side.stream.waiting for side in (self._low, self._high))
        self._pairing.contradicted = False
        if not waiting and not self._forced:
            self._renounce(NOT_KAFKA)

    def _renounce(self, reason: str) -> None:
        self._end.reason = reason
        self._settled = True
        self._pairing.discard()
        for side in (self._low, self._high):
            side.framing.ignored = True
            side.framing.search = None

    def _count(self) -> None:
        end, client = self._end, self._client or self._guess_client()
        broker = client.other
        end.closed_time = client.stream.closed_time
        end.closed = end.closed_time > 0
        end.clocks_apart = self._clocks.ahead
        for side in (client, broker):
            if side.records is not None and self._tls is not None:
                if self._tls.opened:
                    end.tls_bytes += side.records.seen_bytes - side.framing.seen_bytes
                else:
                    side.framing.seen_bytes = side.records.seen_bytes
        end.client_bytes, end.broker_bytes = client.framing.seen_bytes, broker.framing.seen_bytes
        end.headerless_requests = client.framing.headerless
        end.headerless_responses = broker.framing.headerless
        for side in (client, broker):
            framing, reassembly = side.framing, side.reassembly
            end.gaps += framing.gaps
            end.gap_bytes += framing.gap_bytes
            end.cut_bytes += framing.cut_bytes
            end.frame_gap_bytes += framing.frame_gap_bytes
            end.unframed_bytes += framing.unframed_bytes
            end.partial_bytes += framing.partial_bytes
            end.headerless_bytes += framing.headerless_bytes
            end.token_bytes += framing.token_bytes
            end.resyncs += framing.resyncs
            end.repeated_segments += reassembly.repeated_segments
            end.repeated_bytes += reassembly.repeated_bytes
            end.reordered_segments += reassembly.reordered_segments
        end.left_out_bytes = min(self._pairing.left_out_bytes, end.cut_bytes)  # others were lost
        if end.left_out_bytes:
            all_of_them = end.left_out_bytes == end.gap_bytes
            end.left_out_gaps = end.gaps if all_of_them else min(self._pairing.left_out_gaps, end.gaps - 1)
        if end.reason:
            end.left_out_bytes = end.left_out_gaps = 0
            end.unframed_bytes = end.client_bytes + end.broker_bytes
            end.frame_gap_bytes = end.partial_bytes = end.headerless_bytes = 0
            end.headerless_requests = end.headerless_responses = end.token_bytes = 0


def _is_hopeless(framing: Framing) -> bool:
    search = framing.search
    if search is None:
        return False
    if search.dropped + len(search) > _SEARCHED:
        return True
    return framing.from_start and len(search) >= _ENOUGH and is_no_request(search)


def _is_tls(framing: Framing) -> bool:
    """Return whether a stream begins with a TLS record: with two, if its start was not captured."""
    search = framing.search
    if search is None or search.dropped or len(search) < _TLS_HEADER:
        return False
    size = _tls_record(search.buffer, 0)
    return size > 0 and (framing.from_start or _tls_record(search.buffer, size) > 0)


def _has_tls_records(view: memoryview) -> bool:
    first = _tls_record(view, 0)
    return first > 0 and (first == len(view) or _tls_record(view, first) > 0)


def _tls_record(buffer: bytearray | memoryview, at: int) -> int:
    """Return the size of the TLS record at an offset, or 0 if there is no TLS record."""
    head = buffer[at : at + _TLS_HEADER]
    if len(head) < _TLS_HEADER or head[0] not in _TLS_TYPES or head[1] != 3 or head[2] > 4:
        return 0
    length = int.from_bytes(head[3:])
    return _TLS_HEADER + length if 0 < length <= _TLS_MAX_RECORD else 0
