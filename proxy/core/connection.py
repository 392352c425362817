"""One client and the broker connection that is its own: bytes from either side in, bytes out. Sans-IO.

What is not understood passes byte for byte; only frames are told apart. The core never raises for a peer's
fault: `Connection.fault` says why the connection has to end.
"""

from struct import Struct
from typing import Final

from proxy.core.budget import RequestBudget
from proxy.core.eligibility import SessionLimits
from proxy.core.events import ClientNamed, Event, Fault, Passthrough, Tally
from proxy.core.fetches import Fetches
from proxy.core.histograms import Measured, Meter
from proxy.core.in_flight import Disposition, InFlightRequest, ResponseQueue
from proxy.core.requests import (
    READ_WITHIN,
    TLS_HANDSHAKE,
    describe_length,
    printable,
    read_client_names,
    wants_response,
)
from proxy.core.responses import Rewriting
from proxy.protocol import api_versions
from proxy.protocol.addresses import Resolve
from proxy.protocol.api import ApiKey, request_header
from proxy.protocol.fetch_layout import MAX_VERSION, MIN_VERSION
from proxy.protocol.primitives import Buffer, ProtocolError
from proxy.session.partitions import PartitionTable

MAX_REQUEST_BYTES: Final = 104_857_600
"""Kafka's default for socket.request.max.bytes."""
MAX_IN_FLIGHT: Final = 1024
"""Unanswered requests of one client; at more it is not read."""
_MAX_FETCH_REQUEST: Final = 1 << 20
"""A fetch request beyond this passes unread: some 31,000 partitions."""
_HEAD = Struct(">ihhi")  # length, api_key, api_version, correlation_id
_HEAD_SIZE: Final = 12
_ANSWER_HEAD_SIZE: Final = 8
_MIN_LENGTH: Final = 10
"""No request is shorter: a header is 10 bytes at least, and the one that is 8 (ControlledShutdown v0, v0) is
followed by 4. PostgreSQL asks for encryption with a length of 8."""
_PROBE_CORRELATION_ID: Final = 0x6667_6174
_GSSAPI_TOKEN: Final = 0x60
_FETCH: Final = int(ApiKey.FETCH)
"""For what is asked on every fetch: a member is looked up slowly."""


class Connection:
    """A client and its broker.

    Args:
        sessions: the switch and the slots that all connections of the process share.
        resolve: where brokers are told to be; None leaves addresses as they are.
        max_request_bytes: the longest frame taken from the client.
        foreign: the client may speak something else than Kafka, or Kafka inside TLS; it passes then.
        collecting: room for fetches until they are whole, for all connections of the process; None: any.
        measured: what connections to this broker share; None: it is measured for nobody.
    """

    __slots__ = (
        "_begun",
        "_broker_left",
        "_broker_parts",
        "_client_left",
        "_client_need",
        "_client_part",
        "_closing",
        "_fetches",
        "_foreign",
        "_half",
        "_header",
        "_header_version",
        "_max_request_bytes",
        "_meter",
        "_now",
        "_opaque",
        "_probed",
        "_request_budget",
        "_responses",
        "_rewriting",
        "_room",
        "_waiting",
        "client_id",
        "events",
        "fault",
        "software_name",
        "software_version",
        "tally",
        "to_broker",
        "to_client",
        "wire",
    )

    def __init__(
        self,
        *,
        sessions: SessionLimits,
        resolve: Resolve | None,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        measured: Measured | None = None,
        foreign: bool = False,
        request_budget: RequestBudget | None = None,
    ) -> None:
        self.tally = Tally()
        self.client_id = ""
        self.software_name = ""
        self.software_version = ""
        self.fault: Fault | None = None
        """Set when the connection has to end; what `take_client` gives is still due."""
        self.wire = False
        """It is not Kafka: all passes, and with it the end of what either side says."""
        self.events: list[Event] = []
        """What has happened and is not taken yet."""
        self.to_client: list[Buffer] = []
        self.to_broker: list[Buffer] = []
        """Bytes that are due and not taken yet."""
        self._foreign = foreign
        self._max_request_bytes = max_request_bytes
        self._responses = ResponseQueue()
        self._client_part = bytearray()
        self._client_need = 0
        self._request_budget = request_budget
        self._room = 0
        self._client_left = 0
        self._broker_parts = b""
        self._broker_left = 0
        self._opaque = False
        self._closing = False
        self._probed = False
        self._begun = False
        self._half: InFlightRequest | None = None
        self._waiting: list[tuple[InFlightRequest, bytes]] = []
        self._header = b""
        self._header_version = -1
        self._now = 0.0
        self._meter = Meter(measured or Measured(), self.tally)
        self._fetches = Fetches(
            sessions=sessions, resolve=resolve, tally=self.tally, events=self.events, send=self._send
        )
        self._rewriting = Rewriting(resolve, self._fetches.eligibility, self.events)

    def __repr__(self) -> str:
        return (
            f"<Connection {self.client_id!r} in_flight={len(self._responses.owed)} {self._fetches.handler!r}>"
        )

    # What the shell asks

    @property
    def reads_client(self) -> bool:
        """Whether more is wanted from the client now."""
        if self._closing:
            return False
        # What goes to the broker on our own account waits for the end of a frame that is being passed.
        responses = self._responses
        return self._client_left > 0 or (not responses.repeating and len(responses.owed) < MAX_IN_FLIGHT)

    @property
    def done(self) -> bool:
        """Whether, after `close_session`, nothing is in flight any more."""
        if not self._closing:
            return False
        # A request of which the end never came is not answered.
        expected = self._responses.expected
        return not expected or (bool(self._client_left) and expected[0] is self._half)

    @property
    def begun(self) -> bool:
        """Whether a first request has come, or what comes instead passes unread.

        Half a request is none, but so much of a large one that passes as it comes that nobody let it drip.
        """
        large = self._client_left > 0 and self.tally.client.bytes_in > READ_WITHIN
        return self._begun or large or self.wire

    @property
    def busy(self) -> bool:
        """Whether the client waits for a response; to half a request it waits for none.

        On a wire it may wait as long as it likes: whose turn it is can't be told once both sides have spoken.
        """
        if self.wire:
            return self.tally.client.bytes_in > 0 and self.tally.broker.bytes_in > 0
        if self._client_left:
            return len(self._responses.expected) > (self._half is not None)
        return bool(self._responses.owed)

    @property
    def held(self) -> int:
        """Bytes of responses kept until they are whole or their turn comes."""
        return self._responses.held

    @property
    def fetch_version(self) -> int:
        """The version of the last fetch, -1 before."""
        return self._fetches.version

    @property
    def session_table(self) -> PartitionTable | None:
        """What the session holds; None before a first fetch was taken."""
        return self._fetches.handler.table

    @property
    def session_id(self) -> int:
        """The session at the broker, 0 without one."""
        return self._fetches.handler.session_id if self._fetches.handler.established else 0

    @property
    def session_epoch(self) -> int:
        """The epoch of the next incremental fetch, 0 without a session."""
        return self._fetches.handler.epoch

    @property
    def session_partitions(self) -> int:
        """How many partitions the session has, 0 without one."""
        handler = self._fetches.handler
        return handler.table.size if handler.established and handler.table is not None else 0

    def take_client(self) -> list[Buffer]:
        """Hand over the bytes that are due to the client."""
        if not self.to_client:
            return []
        due, self.to_client = self.to_client, []
        self.tally.client.bytes_out += len(due[0]) if len(due) == 1 else sum(map(len, due))
        return due

    def take_broker(self) -> list[Buffer]:
        """Hand over the bytes that are due to the broker."""
        if not self.to_broker:
            return []
        due, self.to_broker = self.to_broker, []
        self.tally.broker.bytes_out += len(due[0]) if len(due) == 1 else sum(map(len, due))
        return due

    def take_events(self) -> list[Event]:
        """Hand over what has happened since the last call."""
        if not self.events:
            return []
        due = self.events.copy()
        self.events.clear()
        return due

    def close_session(self, now: float) -> None:
        """Take no more from the client; finish what is in flight, then close the session at the broker."""
        self._now = now
        if not self._closing:
            self._closing = True
            self._fetches.close(silently=bool(self._client_left))

    def client_ended(self) -> None:
        """Note that the client says no more: what could have been the beginning of a request is none."""
        if self._foreign and self._client_part:
            self._be_wire()

    def broker_ended(self) -> None:
        """Note that the broker says no more: what could have been the beginning of a response is none."""
        if self._foreign and self._broker_parts:
            self._be_wire()

    def ended(self) -> None:
        """Note that both sides are gone, and with them all that was in flight."""
        self._fetches.end()
        # What is kept goes now: this object is part of a cycle, which may wait long for its collection.
        self._collected()
        self._client_part = bytearray()
        self._broker_parts = b""
        self.to_client, self.to_broker, self._waiting = [], [], []
        self._responses.clear()
        self._half = None

    # From the client

    def receive_client(self, data: bytes, now: float) -> None:
        """Take bytes from the client."""
        self._now = now
        self.tally.client.bytes_in += len(data)
        if self.fault is not None or self._closing:
            return
        if self._client_left:
            data = self._client_passes(data)
        if self._client_part:
            self._client_part += data
            if len(self._client_part) < self._client_need:
                return
            data = self._collected()
        if len(data) >= _HEAD_SIZE and len(data) == 4 + int.from_bytes(data[:4]) and not self._opaque:
            self._client_frame(data)  # as nearly every read: one frame
            return
        at = 0
        while at < len(data) and self.fault is None:
            at += self._client_piece(data, at)

    def _client_piece(self, data: bytes, at: int) -> int:
        """Take the frame that begins at an offset, or what there is of it; return how many bytes that is."""
        end = at + 4 + int.from_bytes(data[at : at + 4]) if len(data) - at >= 4 else len(data)
        if self._opaque or end > len(data):
            end = len(data)
        piece = data if at == 0 and end == len(data) else data[at:end]
        if self._opaque:
            self.to_broker.append(piece)
        elif not self._client_frame(piece):
            self._client_part += piece
        return len(piece)

    def _collect(self, data: bytes, size: int, version: int) -> int:
        """Have a fetch kept until it is whole, or there is twice as much of it; without room it passes."""
        need = min(size, 2 * len(data))
        if self._request_budget is not None:
            if not self._request_budget.reserve(need):
                return self._other(data, size, _FETCH, version)
            self._room = need
        self._client_need = need
        return 0

    def _collected(self) -> bytes:
        """Hand over what was kept of a request."""
        data = bytes(self._client_part)
        self._client_part.clear()
        if self._room and self._request_budget is not None:
            self._request_budget.release(self._room)
            self._room = 0
        return data

    def _client_passes(self, data: bytes) -> bytes:
        """Pass on the rest of a frame that is not looked into; return what follows it."""
        left = self._client_left
        self._client_left = max(left - len(data), 0)
        self.to_broker.append(data[:left])
        if not self._client_left:
            self._begun = True
            if self._half is not None:
                self._half.sent_at = self._now
            waiting, self._waiting = self._waiting, []
            for exchange, frame in waiting:
                self._put(exchange, frame)
        return data[left:]

    def _client_frame(self, data: bytes) -> int:
        """Take the frame that `data` begins with; return how many bytes were used, 0 if more are needed."""
        if len(data) < _HEAD_SIZE:
            if self._short_garbage(data):
                return len(data)
            self._client_need = _HEAD_SIZE
            return 0
        length: int
        length, api_key, version, _ = _HEAD.unpack_from(data)
        if not _MIN_LENGTH <= length <= self._max_request_bytes:
            self._unread("client", describe_length(data, length, self._max_request_bytes), data)
            return len(data)
        size = 4 + length
        if api_key == _FETCH and MIN_VERSION <= version <= MAX_VERSION and size <= _MAX_FETCH_REQUEST:
            return self._fetch(data, size, version)
        return self._other(data, size, api_key, version)

    def _other(self, data: bytes, size: int, api_key: int, version: int) -> int:
        """Take a request that passes as it is; what becomes of its response depends on it."""
        answered = True
        if api_key == ApiKey.PRODUCE:
            wants = wants_response(data, size)
            if wants is None:
                self._client_need = min(size, 2 * len(data))
                return 0
            answered = wants
        elif api_key == ApiKey.API_VERSIONS and size < READ_WITHIN:
            if len(data) < size:
                self._client_need = size
                return 0
            self._name(data[:size], version)
            if version > api_versions.UNDERSTOOD[ApiKey.API_VERSIONS]:
                self._refuse(data[8:12])
                return size
        elif api_key == ApiKey.FETCH:
            self._fetches.count_unread(size, version, "not looked into")
        exchange = InFlightRequest(
            api_key, version, data[8:12], self._rewriting.disposition(api_key, version)
        )
        responses = self._responses
        if answered:
            responses.owed.append(exchange)
            responses.expected.append(exchange)
            exchange.sent_at = self._now
        self._begin_frame(data, size)
        self._half = exchange if answered and self._client_left else None
        if api_key >> 8 == _GSSAPI_TOKEN and len(responses.expected) == 1 and not self._begun:
            # 0.9 clients begin with a bare GSSAPI token.
            self._go_opaque("GSSAPI token")
            responses.clear()
        elif api_key == ApiKey.SASL_HANDSHAKE and version == 0:
            # From here on tokens travel without Kafka's framing, in both directions, until the broker is
            # satisfied.
            self._go_opaque("SASL handshake v0")
        self._begun = self._begun or not self._client_left
        return min(size, len(data))

    def _short_garbage(self, data: bytes) -> bool:
        """Whether the first few bytes already tell that no frame will come of them."""
        length = int.from_bytes(data[:4], signed=True)
        if len(data) >= 4 and not _MIN_LENGTH <= length <= self._max_request_bytes:
            self._unread("client", describe_length(data, length, self._max_request_bytes), data)
            return True
        return False

    def _begin_frame(self, data: bytes, size: int) -> None:
        """Pass on a frame, or its beginning."""
        self.to_broker.append(data if len(data) <= size else data[:size])
        self._client_left = max(size - len(data), 0)

    def _fetch(self, data: bytes, size: int, version: int) -> int:
        if len(data) < size:
            return self._collect(data, size, version)
        frame = data if len(data) == size else data[:size]
        self._begun = True
        exchange = InFlightRequest(_FETCH, version, frame[8:12], Disposition.WALKED)
        # A client repeats its header but for the correlation id.
        if version != self._header_version or not frame.startswith(self._header, _HEAD_SIZE):
            try:
                _, _, _, client_id, body = request_header(frame, 4)
            except ProtocolError:
                exchange.disposition = Disposition.PASSED
                self._responses.owed.append(exchange)
                self._fetches.count_unread(size, version, "not understood")
                self._send(exchange, frame)
                return size
            self._header, self._header_version = frame[_HEAD_SIZE:body], version
            self.client_id = self.client_id or printable(client_id)
            if self._fetches.eligibility.features is None and not self._probed:
                self._probe(client_id)
        self._responses.owed.append(exchange)
        body = _HEAD_SIZE + len(self._header)
        self._fetches.request(exchange, frame, body, self.client_id, self._now)
        return size

    def _probe(self, client_id: bytes | None) -> None:
        """Ask the broker what it can, since the client did not. Quotas go by client id: it is kept."""
        self._probed = True
        frame = api_versions.request(_PROBE_CORRELATION_ID, client_id or b"")
        self._put(InFlightRequest(ApiKey.API_VERSIONS, 0, frame[8:12], Disposition.OURS), frame)

    def _send(self, exchange: InFlightRequest, frame: bytes) -> None:
        if self._client_left:
            self._waiting.append((exchange, frame))
        else:
            self._put(exchange, frame)

    def _put(self, exchange: InFlightRequest, frame: bytes) -> None:
        exchange.sent_at = self._now
        self._responses.expected.append(exchange)
        self.to_broker.append(frame)

    def _name(self, frame: bytes, version: int) -> None:
        """Note what the client says of itself (KIP-511)."""
        try:
            self.client_id, software = read_client_names(frame, version)
        except ProtocolError:
            return
        if software is not None:
            self.software_name, self.software_version = software.name, software.version
        self.events.append(
            ClientNamed(
                client_id=self.client_id,
                software_name=self.software_name,
                software_version=self.software_version,
            )
        )

    def _refuse(self, correlation_id: bytes) -> None:
        """Answer an ApiVersions request of which the gateway could not clamp the response.

        It does as a broker without that version does: the client asks again with one that both know.
        """
        exchange = InFlightRequest(ApiKey.API_VERSIONS, 0, correlation_id, Disposition.OURS)
        self._responses.owed.append(exchange)
        self.to_client += self._responses.in_turn(exchange, [api_versions.refusal(correlation_id)])
        self.to_client += self._responses.ended(exchange)

    def _go_opaque(self, reason: str) -> None:
        self._opaque = True
        self.tally.passthrough[reason] += 1
        self.events.append(Passthrough(reason=reason))

    def _unread(self, side: str, reason: str, data: bytes = b"") -> None:
        """End the connection for what no Kafka peer says; while it may be foreign, let all of it pass."""
        if not self._foreign:
            self._fail(side, reason)
            return
        self._be_wire(data)

    def _be_wire(self, data: bytes = b"") -> None:
        """Let all of it pass: it is not Kafka.

        Args:
            data: what the client has just said.
        """
        self._foreign = False
        self.wire = True
        self._responses.clear()
        self._half = None
        self._go_opaque("TLS" if data.startswith(TLS_HANDSHAKE) else "not Kafka")
        # One of the two has waited for the rest of what is no frame.
        if said := self._collected() + data:
            self.to_broker.append(said)
        if self._broker_parts:
            self.to_client.append(self._broker_parts)
        self._broker_parts = b""

    def _fail(self, side: str, reason: str) -> None:
        self.fault = Fault(side=side, reason=reason)
        self.events.append(self.fault)

    # From the broker

    def receive_broker(self, data: bytes, now: float) -> None:
        """Take bytes from the broker."""
        self._now = now
        self.tally.broker.bytes_in += len(data)
        if self.fault is not None or (self._broker_left > len(data) and self._records_pass(data)):
            return
        if self._broker_parts:
            data = self._broker_parts + data
            self._broker_parts = b""
        expected = self._responses.expected
        at = 0
        while at < len(data):
            if not self._broker_left:
                if not expected and self._opaque:
                    self.to_client.append(data[at:])
                    return
                if len(data) - at < _ANSWER_HEAD_SIZE and (expected or not self._foreign):
                    self._broker_parts = data[at:]
                    return
                if not self._response_begins(data[at : at + _ANSWER_HEAD_SIZE]):
                    if self._opaque:
                        self.to_client.append(data[at:])
                    return
            left = self._broker_left
            chunk = data if at == 0 and len(data) <= left else data[at : at + left]
            self._broker_left = left - len(chunk)
            self._response(expected[0], chunk, last=not self._broker_left)
            at += len(chunk)

    def _records_pass(self, data: bytes) -> bool:
        """Pass on bytes that lie within the records of a response: most of what a catching-up client gets."""
        exchange, owed = self._responses.expected[0], self._responses.owed
        walk, size = exchange.walk, len(data)
        passes = exchange.passed_on and not exchange.chunks and owed and owed[0] is exchange
        if walk is None or not passes or not walk.skip_records(size):
            return False
        exchange.received += size
        exchange.passed_on += size
        self._broker_left -= size
        self.tally.client.fetch_response_bytes += size
        self.tally.broker.fetch_response_bytes += size
        self.to_client.append(data)
        return True

    def _response_begins(self, data: bytes) -> bool:
        length = int.from_bytes(data[:4], signed=True)
        expected = self._responses.expected
        if length < 4:
            self._unread("broker", f"a response of {length} bytes")
        elif not expected:
            self._unread("broker", "a response that nothing asked for")
        elif data[4:8] != expected[0].correlation_id:
            asked = int.from_bytes(expected[0].correlation_id, signed=True)
            got = int.from_bytes(data[4:8], signed=True)
            self._unread("broker", f"a response to request {got} where {asked} is due")
        else:
            self._foreign = False
            self._broker_left = 4 + length
            self._meter.began = self._now
            return True
        return False

    def _response(self, exchange: InFlightRequest, chunk: bytes, *, last: bool) -> None:
        """Take the next bytes of a response."""
        exchange.received += len(chunk)
        held = exchange.held
        disposition = exchange.disposition
        pieces: list[Buffer]
        if disposition in _FETCHED:
            pieces = self._fetches.receive(exchange, chunk, last=last, now=self._now)
        elif disposition is _PASSED:
            pieces = [chunk]
            if exchange.api_key == _FETCH:
                self.tally.broker.fetch_response_bytes += len(chunk)
                self.tally.client.fetch_response_bytes += len(chunk)
        elif disposition is Disposition.REWRITTEN:
            pieces = self._rewriting.receive(exchange, chunk, left=self._broker_left)
        else:
            pieces = []
            self._take_ours(exchange, chunk, last=last)
        self._responses.held += exchange.held - held
        if pieces:
            self.to_client += self._responses.in_turn(exchange, pieces)
        if last:
            self._end_response(exchange)

    def _take_ours(self, exchange: InFlightRequest, chunk: bytes, *, last: bool) -> None:
        """Take the response to what the gateway itself asked."""
        if exchange.api_key == ApiKey.FETCH:
            self.tally.broker.fetch_response_bytes += len(chunk)
        else:
            self._rewriting.learn(exchange, chunk, last=last)

    def _end_response(self, exchange: InFlightRequest) -> None:
        """End a response: have it again, or let it and what waited for it go."""
        responses = self._responses
        responses.expected.popleft()
        repeat, exchange.repeat = exchange.repeat, None
        if exchange.api_key == _FETCH:
            self._meter.note_fetch(exchange, self._now, again=repeat is not None)
        else:
            self._meter.note_other(exchange)
        if repeat is not None:
            if exchange.attempts == 1:
                responses.repeating += 1
            repeat()
            return
        if exchange.attempts:
            responses.repeating -= 1
        if waited := responses.ended(exchange):
            self.to_client += waited


_PASSED: Final = Disposition.PASSED
_FETCHED: Final = (
    Disposition.WALKED,
    Disposition.EXPANDED,
)  # hashing a member takes a call, comparing it none
