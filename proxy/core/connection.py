"""One client and the broker connection that is its own: bytes from either side in, bytes out. Sans-IO.

What is not understood is forwarded byte for byte: only its length and its header are read. The core never
raises for a peer's fault: `Connection.fault` says why the connection has to end.
"""

from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Final

from proxy.core.broker_versions import BrokerVersions
from proxy.core.budget import RequestBudget
from proxy.core.eligibility import SessionLimits
from proxy.core.events import ClientNamed, Event, Fault, Passthrough, Refusal, Tally
from proxy.core.fetches import Fetches
from proxy.core.histograms import Measured, Meter
from proxy.core.in_flight import Disposition, InFlightRequest, ResponseQueue
from proxy.core.requests import TLS_HANDSHAKE, decisive, describe_length, printable, read_client_names
from proxy.core.responses import Rewriting
from proxy.core.steady import Steady
from proxy.protocol import api_versions
from proxy.protocol.addresses import Resolve
from proxy.protocol.api import (
    LENGTH_BYTES,
    REQUEST_CORRELATION_ID,
    REQUEST_START,
    REQUEST_START_BYTES,
    RESPONSE_CORRELATION_ID,
    RESPONSE_START_BYTES,
    ApiKey,
    request_header,
)
from proxy.protocol.fetch_layout import MAX_VERSION, MIN_VERSION
from proxy.protocol.primitives import Buffer, ProtocolError, read_string
from proxy.protocol.produce import READ_WITHIN, wants_response
from proxy.session.decision import Reason
from proxy.session.partitions import PartitionTable

MAX_REQUEST_BYTES: Final = 104_857_600
"""Kafka's default for socket.request.max.bytes."""
MAX_IN_FLIGHT: Final = 1024
"""With this many unanswered requests, no more is read from a client."""
_MAX_FETCH_REQUEST: Final = 1 << 20
"""A fetch request beyond this is forwarded unread: some 31,000 partitions."""
_MIN_LENGTH: Final = 10
"""No request is shorter, without its 4 bytes of length. A header has 10 bytes or more. Only the one of
ControlledShutdown v0 has 8, and 4 bytes of body follow it. PostgreSQL asks for encryption with a length of 8.
"""
_SMALL: Final = 1 << 16
_SMALL_REWRITTEN: Final = 1 << 20
"""Responses of up to so many bytes never wait for memory. Metadata of 10,000 partitions is half of this."""
_PROBE_CORRELATION_ID: Final = 0x6667_6174
_GSSAPI_TOKEN: Final = 0x60
_FETCH: Final = int(ApiKey.FETCH)
"""A plain int, since every fetch is compared with it and members of an enum are looked up slowly."""


class Stage(Enum):
    """How far a connection has come; it only goes on. `Connection.fault` ends it at any stage."""

    NEW = "new"
    """No whole request has come."""
    OPEN = "open"
    CLOSING = "closing"
    """No more is taken from the client; what is in flight is finished."""


class Stream(Enum):
    """How the bytes of a connection are read; it only moves down this list."""

    FRAMES = "frames"
    OPAQUE = "opaque"
    """The client's bytes are forwarded as they come: SASL tokens without Kafka's framing. Responses to
    earlier requests still come in frames."""
    WIRE = "wire"
    """It is not Kafka: all is forwarded, and with it the end of what either side sends."""


def _none_opening(_node_id: int, /) -> bool:
    """Say that no broker's listener is being opened."""
    return False


class Connection:
    """A client and its broker.

    Args:
        sessions: the switch and the slots that all connections of the process share.
        resolve: where brokers are told to be; None leaves addresses as they are.
        opening: tells whether it is not known yet if a broker will have a listener.
        max_request_bytes: the longest frame taken from the client.
        foreign: the client may use another protocol than Kafka, or TLS. All its bytes are forwarded then.
        request_budget: room for fetches until they are whole, for all connections of the process; None: any.
        measured: what connections to this broker share; None: it is measured for nobody.
        versions: what this broker said of itself to other clients; None: nothing.
        steady: false in tests: the core sees all bytes, also those that would pass by the steady path.
    """

    __slots__ = (
        "_awaiting",
        "_delayed",
        "_fetches",
        "_foreign",
        "_forwarding_left",
        "_header",
        "_header_version",
        "_max_request_bytes",
        "_meter",
        "_now",
        "_partial",
        "_probed",
        "_request_budget",
        "_request_need",
        "_request_part",
        "_reserved",
        "_response_left",
        "_response_part",
        "_responses",
        "_rewriting",
        "_tally",
        "_versions",
        "client_id",
        "events",
        "fault",
        "software_name",
        "software_version",
        "stage",
        "steady",
        "stream",
        "to_broker",
        "to_client",
    )

    def __init__(
        self,
        *,
        sessions: SessionLimits,
        resolve: Resolve | None,
        opening: Callable[[int], bool] = _none_opening,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        measured: Measured | None = None,
        foreign: bool = False,
        request_budget: RequestBudget | None = None,
        versions: BrokerVersions | None = None,
        steady: bool = True,
    ) -> None:
        self._tally = Tally()
        self.client_id = ""
        self.software_name = ""
        self.software_version = ""
        self.fault: Fault | None = None
        """Set when the connection has to end. The client must still be sent what `drain_client` returns."""
        self.stage = Stage.NEW
        self.stream = Stream.FRAMES
        self.events: list[Event] = []
        """What has happened and was not reported yet."""
        self.to_client: list[Buffer] = []
        self.to_broker: list[Buffer] = []
        """Bytes that are due and were not taken yet."""
        self._foreign = foreign
        """The protocol may still turn out not to be Kafka: no request was answered yet."""
        self._max_request_bytes = max_request_bytes
        self._responses = ResponseQueue()
        self._request_part = bytearray()
        """The beginning of a request, until there is enough of it."""
        self._request_need = 0
        self._request_budget = request_budget
        self._reserved = 0
        """Bytes of the request budget that this beginning has reserved."""
        self._forwarding_left = 0
        """Bytes still to come of a request that is forwarded while it comes."""
        self._response_part = b""
        self._response_left = 0
        """Bytes still to come of the response that is coming in."""
        self._probed = False
        """The gateway itself has sent an ApiVersions request."""
        self._partial: InFlightRequest | None = None
        """The request that is forwarded while it comes, if it will be answered."""
        self._delayed: list[tuple[InFlightRequest, bytes]] = []
        """Requests that have to wait until the request that is being forwarded has ended."""
        self._header = b""
        """The header of the last fetch, behind its correlation id."""
        self._header_version = -1
        self._now = 0.0
        measured = measured or Measured()
        self._meter = Meter(measured, self._tally)
        self.steady = Steady(sessions, measured, max_request_bytes=max_request_bytes, on=steady)
        """Asked first: the core gets only the bytes that do not pass there."""
        self._versions = versions or BrokerVersions()
        self._fetches = Fetches(
            sessions=sessions,
            resolve=resolve,
            tally=self._tally,
            events=self.events,
            send=self._send,
            ask_versions=self._probe,
            refuse=self._refuse_response,
            steady=self.steady,
            meter=self._meter,
            versions=self._versions,
        )
        self._rewriting = Rewriting(
            resolve, opening, self._fetches.eligibility, self.events, self._refuse_response, self.steady
        )
        self._awaiting = 0
        """Whole responses that wait for the listeners of brokers that they name."""

    def __repr__(self) -> str:
        return (
            f"<Connection {self.client_id!r} in_flight={len(self._responses.owed)} {self._fetches.handler!r}>"
        )

    # What the shell asks

    @property
    def tally(self) -> Tally:
        """What was counted."""
        self._catch_up()
        return self._tally

    @property
    def reads_client(self) -> bool:
        """Whether more is wanted from the client now."""
        if self.stage is _CLOSING:
            return False
        # The gateway's own requests wait for the end of a frame that is being forwarded: read the rest of it.
        responses = self._responses
        return self._forwarding_left > 0 or (not responses.resending and len(responses.owed) < MAX_IN_FLIGHT)

    @property
    def done(self) -> bool:
        """Whether, after `close_session`, nothing is in flight any more."""
        if self.stage is not Stage.CLOSING or self._awaiting:
            return False
        # A request of which the end never came is not answered.
        expected = self._responses.expected
        return not expected or (bool(self._forwarding_left) and expected[0] is self._partial)

    @property
    def begun(self) -> bool:
        """Whether a whole request has come, or more than READ_WITHIN bytes of one that is forwarded.

        It is also true when the connection is not Kafka.
        """
        large = self._forwarding_left > 0 and self.tally.client.bytes_in > READ_WITHIN
        return self.stage is not Stage.NEW or large or self.wire

    @property
    def wire(self) -> bool:
        """Whether it is not Kafka: all is forwarded, and with it the end of what either side sends."""
        return self.stream is Stream.WIRE

    @property
    def busy(self) -> bool:
        """Whether the client waits for a response. A partial request has none to wait for.

        If it is not Kafka, the client counts as waiting from the time when both sides have sent something:
        nobody knows then which side is to send next.
        """
        if self.wire:
            return self.tally.client.bytes_in > 0 and self.tally.broker.bytes_in > 0
        if self._forwarding_left:
            return len(self._responses.expected) > (self._partial is not None)
        return bool(self._responses.owed or self.steady.in_flight)

    @property
    def longest_wait(self) -> float:
        """How many seconds the fetches in flight let the broker wait (max_wait_ms), at most."""
        fetches = [request.fetch for request in self._responses.expected if request.fetch is not None]
        return max((fetch.max_wait_ms for fetch in fetches), default=0) / 1e3

    @property
    def buffered(self) -> int:
        """Bytes of responses kept until they are whole or their turn comes."""
        return self._responses.buffered

    @property
    def completes_soon(self) -> bool:
        """Whether the response that is coming in is small: to keep it costs less than to let it wait."""
        expected = self._responses.expected
        if not self._response_left or not expected:
            return False
        most = _SMALL_REWRITTEN if expected[0].disposition is Disposition.REWRITTEN else _SMALL
        return expected[0].received + self._response_left <= most

    @property
    def fetch_version(self) -> int:
        """The version of the last fetch, -1 before."""
        return self._fetches.version

    @property
    def decided(self) -> Reason | None:
        """Why the last fetch was forwarded as it came; see `Fetches.decided` for None."""
        return self._fetches.decided

    @property
    def session_table(self) -> PartitionTable | None:
        """What the session holds; before there is one, what the last fetch listed.

        None before the first such fetch, and again after the table was dropped.
        """
        return self._fetches.handler.table

    @property
    def session_id(self) -> int:
        """The session at the broker, 0 without one."""
        return self._fetches.handler.session_id if self._fetches.handler.has_session else 0

    @property
    def session_epoch(self) -> int:
        """The epoch of the next incremental fetch, 0 without a session."""
        return self._fetches.handler.epoch

    @property
    def session_partitions(self) -> int:
        """How many partitions the session has, 0 without one."""
        handler = self._fetches.handler
        return handler.table.size if handler.has_session and handler.table is not None else 0

    def drain_client(self) -> list[Buffer]:
        """Hand over the bytes that are due to the client."""
        if not self.to_client:
            return []
        due, self.to_client = self.to_client, []
        self._tally.client.bytes_out += len(due[0]) if len(due) == 1 else sum(map(len, due))
        return due

    def drain_broker(self) -> list[Buffer]:
        """Hand over the bytes that are due to the broker."""
        if not self.to_broker:
            return []
        due, self.to_broker = self.to_broker, []
        self._tally.broker.bytes_out += len(due[0]) if len(due) == 1 else sum(map(len, due))
        return due

    def drain_events(self) -> list[Event]:
        """Hand over what has happened since the last call."""
        if not self.events:
            return []
        due = self.events.copy()
        self.events.clear()
        return due

    def close_session(self, now: float) -> None:
        """Take no more from the client; finish what is in flight, then close the session at the broker."""
        self._now = now
        self._catch_up()
        self._take_over()
        if self.stage is not Stage.CLOSING:
            self.stage = Stage.CLOSING
            # Half a frame may be on its way: a close amid it would corrupt it (fetch-semantics, trap 21).
            self._fetches.close(silently=bool(self._forwarding_left))
        self._settle()

    def client_ended(self) -> None:
        """Note that the client sends no more.

        If only a part of a request has come, it was no Kafka request: forward it, if that is allowed.
        """
        if self._foreign and self._request_part:
            self._be_wire()

    def broker_ended(self) -> None:
        """Note that the broker sends no more.

        If only a part of a response has come, it was no Kafka response: forward it, if that is allowed.
        """
        self._versions.forget()  # the next broker at this address may be of another release
        if self._foreign and self._response_part:
            self._be_wire()
        for request in list(self._responses.owed):
            if request.awaits_brokers:
                self.brokers_opened(request.awaits_brokers)

    def brokers_opened(self, node_ids: frozenset[int]) -> None:
        """Send the responses that wait for these brokers; one without a listener is left out of them."""
        self._catch_up()
        for request in list(self._responses.owed):
            if not request.awaits_brokers or not request.awaits_brokers <= node_ids:
                continue
            buffered = request.buffered
            pieces = self._rewriting.rewritten(request, waits=False)
            self._responses.buffered -= buffered
            self._awaiting -= 1
            self.to_client += self._responses.in_turn(request, pieces) + self._responses.ended(request)
        self._settle()

    def ended(self) -> None:
        """Note that both sides are gone, and with them all that was in flight."""
        self._catch_up()
        self._fetches.end()
        self._versions.ended(self._fetches.eligibility)
        # What is kept goes now: this object is part of a cycle, which may wait long for its collection.
        self._collected()
        self._request_part = bytearray()
        self._response_part = b""
        self.to_client, self.to_broker, self._delayed = [], [], []
        self._responses.clear()
        self._partial = None

    # The steady path

    def _catch_up(self) -> None:
        """Count what passed by the steady path, and note what passed of the core's own frames."""
        steady, client, broker = self.steady, self._tally.client, self._tally.broker
        received, sent = steady.count(self._tally)
        if received:
            self._meter.skip(received, sent)
            self._fetches.eligibility.large = False  # a response in one read is small
        of_request, of_response = steady.skipped()
        if of_request:
            client.bytes_in += of_request
            broker.bytes_out += of_request
            self._forwarding_left -= of_request
        if of_response:
            broker.bytes_in += of_response
            client.bytes_out += of_response
            self._response_left -= of_response
            request = self._responses.expected[0]
            request.received += of_response
            request.forwarded += of_response
            if request.walk is not None:
                request.walk.skip_records(of_response)
            if request.api_key == _FETCH:
                client.fetch_response_bytes += of_response
                broker.fetch_response_bytes += of_response

    def _take_over(self) -> None:
        """Expect the responses that the steady path waits for: they come after those that are expected."""
        in_flight, responses = self.steady.in_flight, self._responses
        while in_flight:
            correlation_id, sent_at, form = in_flight.popleft()
            request = form.in_flight(correlation_id, sent_at)
            responses.owed.append(request)
            responses.expected.append(request)

    def _settle(self) -> None:
        """Tell the steady path what may pass there from now on."""
        responses, left = self._responses, self._forwarding_left
        framed = self.fault is None and self.stream is _FRAMES and self.stage is _OPEN and not self._foreign
        # The broker is connected: it has sent something.
        free = (
            framed and not (left or self._request_part or responses.resending) and self._tally.broker.bytes_in
        )
        self.steady.settle(
            room=MAX_IN_FLIGHT - 1 - len(responses.owed) if free else 0,
            is_next=self.fault is None
            and not (self._response_left or self._response_part or responses.expected or responses.owed),
            request_rest=max(left - 1, 0) if self.fault is None else 0,
            response_rest=self._passing() if self._response_left and self.fault is None else 0,
        )

    def _passing(self) -> int:
        """Return how many bytes of the current response pass whatever they are; never the last one."""
        request, owed = self._responses.expected[0], self._responses.owed
        if not owed or owed[0] is not request or request.chunks:
            return 0
        if request.disposition is _PASSED:
            return self._response_left - 1
        if request.disposition is not _WALKED or request.walk is None or not request.forwarded:
            return 0
        return min(request.walk.records_left, self._response_left - 1)

    # From the client

    def receive_client(self, data: bytes, now: float) -> None:
        """Take bytes from the client that did not pass by the steady path."""
        self._catch_up()
        self._take_over()
        self._read_client(data, now)
        self._settle()

    def _read_client(self, data: bytes, now: float) -> None:
        self._now = now
        self._tally.client.bytes_in += len(data)
        if self.fault is not None or self.stage is _CLOSING:
            return
        if self._forwarding_left:
            data = self._forward_rest(data)
        if self._request_part:
            self._request_part += data
            if len(self._request_part) < self._request_need:
                return
            data = self._collected()
        size = len(data)
        framed = size >= REQUEST_START_BYTES and self.stream is _FRAMES
        if framed and size == LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES]):
            self._client_frame(data)  # as nearly every read: one frame
            return
        at = 0
        while at < size and self.fault is None:
            at += self._client_piece(data, at)

    def _client_piece(self, data: bytes, at: int) -> int:
        """Take the frame that begins at an offset, or what there is of it; return how many bytes that is."""
        framed = self.stream is _FRAMES
        end = len(data)
        if end - at >= LENGTH_BYTES:
            end = at + LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES])
        if not framed or end > len(data):
            end = len(data)
        piece = data if at == 0 and end == len(data) else data[at:end]
        if not framed:
            self.to_broker.append(piece)
        elif not self._client_frame(piece):
            self._request_part += piece
        return len(piece)

    def _collect(self, data: bytes, size: int, version: int) -> int:
        """Keep the beginning of a fetch until there is twice as much, or all of it.

        If the request budget has no room for that, the fetch is forwarded as it comes.
        """
        need = min(size, 2 * len(data))
        if self._request_budget is not None:
            if not self._request_budget.reserve(need):
                return self._other(data, size, _FETCH, version)
            self._reserved = need
        self._request_need = need
        return 0

    def _collected(self) -> bytes:
        """Hand over what was kept of a request."""
        data = bytes(self._request_part)
        self._request_part.clear()
        if self._reserved and self._request_budget is not None:
            self._request_budget.release(self._reserved)
            self._reserved = 0
        return data

    def _forward_rest(self, data: bytes) -> bytes:
        """Forward the rest of a frame that is not read; return what follows it."""
        left = self._forwarding_left
        self._forwarding_left = max(left - len(data), 0)
        self.to_broker.append(data[:left])
        if not self._forwarding_left:
            self.stage = Stage.OPEN
            if self._partial is not None:
                self._partial.sent_at = self._now
            delayed, self._delayed = self._delayed, []
            for request, frame in delayed:
                self._send(request, frame)
        return data[left:]

    def _client_frame(self, data: bytes) -> int:
        """Process the first frame in `data`. Return how many bytes were used, 0 if more are needed."""
        length: int
        if whole := len(data) >= REQUEST_START_BYTES:
            length, api_key, version, _ = REQUEST_START.unpack_from(data)
        else:  # a wrong length is found before the rest of the header has come
            length = (
                int.from_bytes(data[:LENGTH_BYTES], signed=True) if len(data) >= LENGTH_BYTES else _MIN_LENGTH
            )
        # A broker closes the connection as well (fetch-semantics 1.7).
        if not _MIN_LENGTH <= length <= self._max_request_bytes:
            self._unread("client", describe_length(data, length, self._max_request_bytes), data)
            return len(data)
        if not whole:
            self._request_need = REQUEST_START_BYTES
            return 0
        size = LENGTH_BYTES + length
        # v0 to v3 are left alone, and so is what is not known (fetch-semantics, traps 1 and 3; case 75).
        if api_key == _FETCH and MIN_VERSION <= version <= MAX_VERSION and size <= _MAX_FETCH_REQUEST:
            return self._fetch(data, size, version)
        return self._other(data, size, api_key, version)

    def _other(self, data: bytes, size: int, api_key: int, version: int) -> int:
        """Take a request that is forwarded as it is; what becomes of its response depends on it."""
        if self._rewriting.refuses(api_key, version):
            self._tally.refused[Refusal.VERSION] += 1
            self._fail("client", f"{ApiKey(api_key).name} v{version}, which is not offered")
            return len(data)
        answered = True
        # With acks=0 no response comes, and nothing may wait for one (fetch-semantics, trap 32; case 86).
        if api_key == ApiKey.PRODUCE:
            wants = wants_response(data, size)
            if wants is None:
                self._request_need = min(size, 2 * len(data))
                return 0
            answered = wants
        elif api_key == ApiKey.API_VERSIONS and size < READ_WITHIN:
            if len(data) < size:
                self._request_need = size
                return 0
            self._name(data[:size], version)
            # A version whose response could not be cut must not be agreed on (fetch-semantics, traps 5 and
            # 31; case 85).
            if version > api_versions.UNDERSTOOD[ApiKey.API_VERSIONS][1]:
                self._refuse(data[REQUEST_CORRELATION_ID])
                return size
        elif api_key == ApiKey.FETCH:
            self._fetches.count_unread(size, version, Reason.NOT_READ)
        request = InFlightRequest(
            api_key, version, data[REQUEST_CORRELATION_ID], self._rewriting.disposition(api_key, version)
        )
        responses = self._responses
        if answered:
            responses.owed.append(request)
            responses.expected.append(request)
            request.sent_at = self._now
        self._begin_frame(data, size)
        self._partial = request if answered and self._forwarding_left else None
        if api_key >> 8 == _GSSAPI_TOKEN and len(responses.expected) == 1 and self.stage is Stage.NEW:
            # 0.9 clients begin with a bare GSSAPI token (fetch-semantics, trap 33).
            self._stop_framing(Stream.OPAQUE, Reason.GSSAPI)
            responses.clear()
        elif api_key == ApiKey.SASL_HANDSHAKE and version == 0:
            # KIP-43: from here on tokens travel without Kafka's framing, in both directions, until the broker
            # is satisfied. From v1 on they are in SaslAuthenticate (KIP-152; fetch-semantics, trap 33; case
            # 87).
            self._stop_framing(Stream.OPAQUE, Reason.SASL_V0)
        elif (request.disposition is _PASSED and api_key != _FETCH) or api_key == ApiKey.PRODUCE:
            with suppress(ProtocolError):
                self.steady.learn(request, decisive(data), answered=answered)
        if not self._forwarding_left:
            self.stage = Stage.OPEN
        return min(size, len(data))

    def _begin_frame(self, data: bytes, size: int) -> None:
        """Forward a frame, or its beginning."""
        self.to_broker.append(data if len(data) <= size else data[:size])
        self._forwarding_left = max(size - len(data), 0)

    def _fetch(self, data: bytes, size: int, version: int) -> int:
        if len(data) < size:
            return self._collect(data, size, version)
        frame = data if len(data) == size else data[:size]
        self.stage = _OPEN
        request = InFlightRequest(_FETCH, version, frame[REQUEST_CORRELATION_ID], _WALKED)
        # A client repeats its header but for the correlation id.
        if version != self._header_version or not frame.startswith(self._header, REQUEST_START_BYTES):
            try:
                _, _, _, client_id, body = request_header(frame, LENGTH_BYTES)
            except ProtocolError:
                self._responses.owed.append(request)
                self._fetches.count_unread(size, version, Reason.NOT_UNDERSTOOD)
                self._send(request, frame)
                return size
            self._header, self._header_version = frame[REQUEST_START_BYTES:body], version
            self.client_id = self.client_id or printable(client_id)
        self._responses.owed.append(request)
        body = REQUEST_START_BYTES + len(self._header)
        self._fetches.request(request, frame, body, self.client_id)
        return size

    def _probe(self) -> None:
        """Ask the broker for its version ranges, once, since the client did not ask before its first fetch.

        A client need not ask, but the broker's age decides (fetch-semantics 1.7, 6.3). The client's id is
        used, because quotas depend on it.
        v0 is what every broker answers (KIP-35; fetch-semantics, trap 14).
        """
        if self._probed:
            return
        self._probed = True
        client_id, _ = read_string(self._header, 0)
        frame = api_versions.request(_PROBE_CORRELATION_ID, client_id or b"")
        self._tally.probe_bytes += len(frame)
        self._send(
            InFlightRequest(ApiKey.API_VERSIONS, 0, frame[REQUEST_CORRELATION_ID], Disposition.OURS), frame
        )

    def _send(self, request: InFlightRequest, frame: bytes) -> None:
        """Send a frame to the broker. If a request is being forwarded, send it after the end of that one."""
        if self._forwarding_left:
            self._delayed.append((request, frame))
            return
        self._take_over()
        request.sent_at = self._now
        self._responses.expected.append(request)
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
        """Answer an ApiVersions request of a version whose response the gateway can't rewrite.

        It answers as a broker without that version does (KIP-35; fetch-semantics, trap 31, case 85): the
        client asks again with one that both know.
        """
        request = InFlightRequest(ApiKey.API_VERSIONS, 0, correlation_id, Disposition.OURS)
        self._responses.owed.append(request)
        self.to_client += self._responses.in_turn(request, [api_versions.refusal(correlation_id)])
        self.to_client += self._responses.ended(request)

    def _stop_framing(self, stream: Stream, reason: Reason) -> None:
        """Forward the client's bytes as they come from now on."""
        self.stream = stream
        self._tally.passthrough[reason] += 1
        self.events.append(Passthrough(reason=reason))

    def _unread(self, side: str, reason: str, data: bytes = b"") -> None:
        """Handle bytes that no Kafka peer sends: end the connection with a fault.

        While the protocol may still be another one, forward everything instead.
        """
        if not self._foreign:
            self._fail(side, reason)
            return
        self._be_wire(data)

    def _be_wire(self, data: bytes = b"") -> None:
        """Forward everything: it is not Kafka.

        Args:
            data: what the client has just sent.
        """
        self._foreign = False
        self._responses.clear()
        self._partial = None
        self._stop_framing(Stream.WIRE, Reason.TLS if data.startswith(TLS_HANDSHAKE) else Reason.NOT_KAFKA)
        # One of these two may have been kept until the rest of its frame comes. There is no frame: send it.
        if said := self._collected() + data:
            self.to_broker.append(said)
        if self._response_part:
            self.to_client.append(self._response_part)
        self._response_part = b""

    def _refuse_response(self, refusal: Refusal, reason: str) -> None:
        """End the connection: of this response nothing more may go to the client."""
        self._tally.refused[refusal] += 1
        self._fail("broker", reason)

    def _fail(self, side: str, reason: str) -> None:
        self.fault = Fault(side=side, reason=reason)
        self.events.append(self.fault)

    # From the broker

    def receive_broker(self, data: bytes, now: float) -> None:
        """Take bytes from the broker that did not pass by the steady path."""
        self._catch_up()
        self._read_broker(data, now)
        self._settle()

    def _read_broker(self, data: bytes, now: float) -> None:
        self._now = now
        self._tally.broker.bytes_in += len(data)
        if self.fault is not None:
            return
        if self._response_part:
            data = self._response_part + data
            self._response_part = b""
        expected = self._responses.expected
        at = 0
        while at < len(data) and self.fault is None:
            if not self._response_left:
                if not expected:
                    self._take_over()
                if not expected and self.stream is not _FRAMES:
                    self.to_client.append(data[at:])
                    return
                if len(data) - at < RESPONSE_START_BYTES and (expected or not self._foreign):
                    self._response_part = data[at:]
                    return
                if not self._response_begins(data[at : at + RESPONSE_START_BYTES]):
                    if self.stream is not _FRAMES:
                        self.to_client.append(data[at:])
                    return
            left = self._response_left
            chunk = data if at == 0 and len(data) <= left else data[at : at + left]
            self._response_left = left - len(chunk)
            self._response(expected[0], chunk, last=not self._response_left)
            at += len(chunk)

    def _response_begins(self, data: bytes) -> bool:
        length = int.from_bytes(data[:LENGTH_BYTES], signed=True)
        expected = self._responses.expected
        if length < RESPONSE_START_BYTES - LENGTH_BYTES:
            self._unread("broker", f"a response of {length} bytes")
        elif not expected:
            self._unread("broker", "a response that nothing asked for")
        elif data[RESPONSE_CORRELATION_ID] != expected[0].correlation_id:
            asked = int.from_bytes(expected[0].correlation_id, signed=True)
            got = int.from_bytes(data[RESPONSE_CORRELATION_ID], signed=True)
            self._unread("broker", f"a response to request {got} where {asked} is due")
        else:
            self._foreign = False
            self._response_left = LENGTH_BYTES + length
            self._meter.began = self._now
            return True
        return False

    def _response(self, request: InFlightRequest, chunk: bytes, *, last: bool) -> None:
        """Take the next bytes of a response."""
        request.received += len(chunk)
        buffered = request.buffered
        disposition = request.disposition
        pieces: list[Buffer]
        if disposition in _FETCHED:
            pieces = self._fetches.receive(request, chunk, last=last)
        elif disposition is _PASSED:
            pieces = [chunk]
            if request.api_key == _FETCH:
                self._tally.broker.fetch_response_bytes += len(chunk)
                self._tally.client.fetch_response_bytes += len(chunk)
        elif disposition is Disposition.REWRITTEN:
            self.steady.forget_fetch()  # what the broker can do may decide the next one
            pieces = self._rewriting.receive(request, chunk, left=self._response_left)
        else:
            pieces = []
            self._receive_ours(request, chunk, last=last)
        self._responses.buffered += request.buffered - buffered
        if pieces:
            self.to_client += self._responses.in_turn(request, pieces)
        if last and request.awaits_brokers:
            self._awaiting += 1
            self._responses.expected.popleft()
            self._meter.note_other(request)
        elif last:
            self._end_response(request)

    def _receive_ours(self, request: InFlightRequest, chunk: bytes, *, last: bool) -> None:
        """Take the response to what the gateway itself asked."""
        if request.api_key == ApiKey.FETCH:
            self._tally.broker.fetch_response_bytes += len(chunk)
        else:
            self._tally.probe_bytes += len(chunk)
            self._rewriting.learn(request, chunk, last=last)

    def _end_response(self, request: InFlightRequest) -> None:
        """End a response: send its request again, or let it and what waited for it leave."""
        responses = self._responses
        responses.expected.popleft()
        resend, request.resend = request.resend, None
        if request.api_key == _FETCH:
            self._meter.note_fetch(request, self._now, again=resend is not None)
        else:
            self._meter.note_other(request)
        # A fetch that is sent again keeps its place; later responses wait (fetch-semantics, trap 17; case
        # 84).
        if resend is not None:
            if request.attempts == 1:
                responses.resending += 1
            resend()
            return
        if request.attempts:
            responses.resending -= 1
        if waited := responses.ended(request):
            self.to_client += waited


# Looked up on every read: members as globals, and a tuple, for hashing a member takes a call, comparing none.
_OPEN: Final = Stage.OPEN
_CLOSING: Final = Stage.CLOSING
_FRAMES: Final = Stream.FRAMES
_WALKED: Final = Disposition.WALKED
_PASSED: Final = Disposition.PASSED
_FETCHED: Final = (_WALKED, Disposition.EXPANDED)
