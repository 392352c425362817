"""Processes the client's requests. Sans-IO.

A fetch of a known version is buffered until it is complete. Then `Fetches` decides how to send it. Most other
requests are forwarded as they arrive, and little more than length and header is read.

One read may contain 18,000 requests. So one call processes a limited number of requests, and the requests in
flight are limited, too. Further bytes wait until the shell calls again or the broker has responded.
"""

from contextlib import suppress
from typing import Final

from proxy.core.connection_state import ConnectionState, Phase, Stream
from proxy.core.events import ClientNamed, Refusal
from proxy.core.fetches import Fetches
from proxy.core.forwarded_fetch import UnknownFetch
from proxy.core.histograms import NO_RESPONSE_TIME
from proxy.core.in_flight import AT_ONCE, FORWARD, TOKEN, InFlight
from proxy.core.plans import MAX_PREFIX
from proxy.core.requests import (
    GROUP_SECONDS,
    MAX_FETCH_REQUEST,
    MAX_TOKEN,
    NAMED_START_BYTES,
    TOKENS,
    UNCOUNTED,
    decisive,
    describe_length,
    is_request_start,
    read_client_names,
    read_mechanism,
    read_wait,
    readable,
)
from proxy.core.responses import Rewriting
from proxy.protocol import api_versions
from proxy.protocol.api import (
    LENGTH_BYTES,
    REQUEST_CORRELATION_ID,
    REQUEST_START,
    REQUEST_START_BYTES,
    SASL,
    ApiKey,
    request_header,
)
from proxy.protocol.fetch_layout import MAX_VERSION, MIN_VERSION
from proxy.protocol.framing import is_frame
from proxy.protocol.primitives import ProtocolError
from proxy.protocol.produce import READ_WITHIN, wants_response
from proxy.session.decision import Reason

_MIN_LENGTH: Final = 10
"""The shortest valid length of a request. A header has 10 bytes or more. (That of ControlledShutdown v0 has
8, but its body has 4.) A PostgreSQL client that requests encryption sends the length 8, and so it is
recognized."""
_GSSAPI_TOKEN: Final = 0x60
_UNLEARNT: Final = frozenset({int(ApiKey.FETCH), *map(int, SASL), *map(int, NO_RESPONSE_TIME)})
"""API keys for which `Plans.learn` makes no plan, because the core has to read the requests. JoinGroup and
ShareFetch contain how long the broker may wait, and SyncGroup waits as long as the last JoinGroup. A broker
may refuse SASL requests. Fetches have plans of their own (`FetchPlan`)."""


class ClientSide:
    """Processes the bytes from the client."""

    __slots__ = (
        "_fetches",
        "_group_wait",
        "_header",
        "_header_version",
        "_max_request_bytes",
        "_rewriting",
        "_state",
    )

    def __init__(
        self,
        state: ConnectionState,
        fetches: Fetches,
        rewriting: Rewriting,
        *,
        max_request_bytes: int,
    ) -> None:
        self._state = state
        self._fetches = fetches
        self._rewriting = rewriting
        self._max_request_bytes = max_request_bytes
        self._group_wait = GROUP_SECONDS
        """The rebalance timeout of the client's group, in seconds."""
        self._header = b""
        """The header of the client's last fetch, after the correlation id."""
        self._header_version = -1

    # Bytes

    def receive(self, data: bytes, now: float) -> None:
        state = self._state
        state.now = now
        state.tally.client.bytes_in += len(data)
        if state.fault is not None or state.phase is _CLOSING:
            return
        requests = state.from_client
        if state.stream is _FRAMES and is_frame(data) and requests.idle and len(data) >= REQUEST_START_BYTES:
            if not self._frame(data):  # as nearly every read: one frame
                requests.keep(data)
            return
        requests.feed(data)
        if requests.left:
            self._forward_rest(requests.next())
        self.go_on()

    def go_on(self) -> None:
        """Process waiting bytes from the client, at most `AT_ONCE` frames after a request that was held."""
        state, requests = self._state, self._state.from_client
        if not requests.data:
            return
        held = requests.held and not any(stage.holds for stage in state.stages)
        if held and state.phase is not _CLOSING:
            self._next()
        left = AT_ONCE
        while left and state.requests_wait:
            left -= 1
            self._next()

    def _next(self) -> None:
        state, requests = self._state, self._state.from_client
        if state.stream not in _READ:
            state.to_broker.append(requests.rest())
            return
        process = self._frame if state.stream is _FRAMES else self._token
        if not process(data := requests.next()):
            requests.keep(data)

    def _forward_rest(self, data: bytes) -> None:
        state = self._state
        state.to_broker.append(data)
        if state.produces:
            state.tally.produce_bytes += len(data)
        if not state.from_client.left:
            state.phase = Phase.OPEN
            if state.forwarding is not None:
                state.forwarding.sent_at = state.now
            delayed = state.delayed.copy()
            state.delayed.clear()
            for request, frame in delayed:
                state.send(request, frame)

    # Requests

    def _frame(self, data: bytes) -> bool:
        """Process a frame, or its beginning. Return False if it has to wait (see `process`)."""
        length: int
        if whole := len(data) >= REQUEST_START_BYTES:
            length, api_key, version, _ = REQUEST_START.unpack_from(data)
        else:  # a wrong length is found before the rest of the header has come
            length = (
                int.from_bytes(data[:LENGTH_BYTES], signed=True) if len(data) >= LENGTH_BYTES else _MIN_LENGTH
            )
        # A broker closes the connection as well (fetch-semantics 1.7).
        if not _MIN_LENGTH <= length <= self._max_request_bytes:
            self._state.not_kafka("client", describe_length(data, length, self._max_request_bytes), data)
            return True
        if not whole:
            self._state.from_client.need = REQUEST_START_BYTES
            return False
        size = LENGTH_BYTES + length
        for stage in self._state.stages:
            if (used := stage.on_frame(data, size, api_key, version)) is not None:
                return used
        return self.process(data, size, api_key, version)

    def process(self, data: bytes, size: int, api_key: int, version: int) -> bool:
        """Process a request that no stage has used. Return False if it has to wait.

        `data` is the request, of `size` bytes, or its beginning. It waits for more of its bytes
        (`Framer.need`), or for something else (`RequestFramer.held`).
        """
        if api_key == _FETCH and size <= MAX_FETCH_REQUEST and MIN_VERSION <= version <= MAX_VERSION:
            return self._fetch(data, size, version)
        return self._other(data, size, api_key, version)

    def _fetch(self, frame: bytes, size: int, version: int) -> bool:
        if len(frame) < size:
            return self._collect(frame, size, version)
        state = self._state
        state.phase = _OPEN
        for stage in state.stages:
            stage.on_asked(_FETCH)
        # A client's headers differ only in the correlation id.
        if version != self._header_version or not frame.startswith(self._header, REQUEST_START_BYTES):
            try:
                _, _, _, client_id, body = request_header(frame, LENGTH_BYTES)
            except ProtocolError:
                request = self._unread_fetch(version, frame)
                state.queue.owed.append(request)
                self._fetches.count_unread(size, version, Reason.NOT_UNDERSTOOD)
                state.send(request, frame)
                return True
            if body - REQUEST_START_BYTES <= MAX_PREFIX:
                self._header, self._header_version = frame[REQUEST_START_BYTES:body], version
            if not state.client_id:
                state.client_id = readable(client_id)
                self._report_names()
        else:
            body = REQUEST_START_BYTES + len(self._header)
        for stage in state.stages:
            seen = stage.before_fetch(frame, version, body)
            if seen is None:
                # A held fetch waits in the framer. Otherwise the stage has answered it, or there is a fault.
                return not state.from_client.held
            frame, version = seen
        request, client_fetch = self._fetches.new(version, frame[REQUEST_CORRELATION_ID])
        state.queue.owed.append(request)
        self._fetches.request(request, client_fetch, frame, body)
        return True

    def _unread_fetch(self, version: int, data: bytes) -> InFlight:
        correlation_id = data[REQUEST_CORRELATION_ID]
        if MIN_VERSION <= version <= MAX_VERSION:  # KIP-951: there may be addresses in it
            return self._fetches.unread(version, correlation_id)
        return InFlight(_FETCH, version, correlation_id, UnknownFetch(self._state))

    def _collect(self, data: bytes, size: int, version: int) -> bool:
        if not self._state.from_client.reserve(min(size, 2 * len(data))):
            # Without room, the fetch is forwarded as it arrives.
            return self._other(data, size, _FETCH, version)
        return False

    def _other(self, data: bytes, size: int, api_key: int, version: int) -> bool:
        """Forward a fetch that is not parsed, or another request, as its bytes arrive."""
        state = self._state
        if self._rewriting.refuses(api_key, version):
            state.tally.refused[Refusal.VERSION] += 1
            state.fail("client", f"{ApiKey(api_key).name} v{version}, which is not offered")
            return True
        if api_key == ApiKey.SASL_HANDSHAKE and self._waits_for_fetches(data, size):
            return False
        left = size - len(data)
        for stage in state.stages:
            seen = stage.on_request(data, size, api_key, version)
            if seen is None:
                return state.fault is not None
            data = seen
        answered = True
        if api_key == ApiKey.PRODUCE:
            # With acks=0 no response comes, and nothing may wait for one (fetch-semantics, trap 32; case 86).
            wants = wants_response(data, size)
            if wants is None:
                state.from_client.need = min(size, 2 * len(data))
                return False
            answered = wants
            state.tally.produce_bytes += len(data)
        elif api_key == ApiKey.API_VERSIONS and size < READ_WITHIN:
            if len(data) < size:
                state.from_client.need = size
                return False
            if not self._takes_versions(data, version):
                return True
        elif api_key == ApiKey.SASL_HANDSHAKE:
            if version == 0 and len(data) < size < READ_WITHIN:
                state.from_client.need = size
                return False
            state.mechanism = ""
            with suppress(ProtocolError):  # it may be incomplete
                state.mechanism = read_mechanism(data)
                if version == 0 and not state.client_id:  # it may be the last request that is read
                    state.client_id = readable(request_header(data, LENGTH_BYTES)[3])
                    self._report_names()
        request = self._in_flight(data, size, api_key, version)
        if answered:
            self._expect(request)
        state.to_broker.append(data)
        state.from_client.left = left
        state.produces = api_key == ApiKey.PRODUCE
        state.forwarding = request if answered and left else None
        if not self._stops_framing(request) and self._repeats(request):
            with suppress(ProtocolError):
                state.plans.learn(request, decisive(data), answered=answered)
        if not left:
            state.phase = Phase.OPEN
        return True

    def _waits_for_fetches(self, data: bytes, size: int) -> bool:
        state = self._state
        # A broker refuses a fetch between SaslHandshake and SaslAuthenticate (error 34, ILLEGAL_SASL_STATE),
        # and earlier fetches may be sent again. There are earlier fetches only if a client authenticates
        # again (KIP-368).
        if size >= READ_WITHIN or not (self._fetches.session.outstanding or state.queue.resending):
            return False
        state.from_client.need = size
        state.from_client.held = len(data) >= size
        return True

    def _takes_versions(self, frame: bytes, version: int) -> bool:
        self._name(frame, version)
        if version <= api_versions.UNDERSTOOD[ApiKey.API_VERSIONS][1]:
            return True
        # The gateway can't edit a response of this version, so it refuses the request itself
        # (fetch-semantics, traps 5 and 31; case 85).
        self._refuse(frame[REQUEST_CORRELATION_ID])
        self._state.phase = _OPEN
        return False

    def _in_flight(self, data: bytes, size: int, api_key: int, version: int) -> InFlight:
        if api_key == _FETCH:
            self._fetches.count_unread(size, version, Reason.NOT_READ)
            return self._unread_fetch(version, data)
        wait = self._asked_wait(data, api_key) if api_key in NO_RESPONSE_TIME else 0.0
        handler = self._rewriting.handler(api_key, version, wait)
        request = InFlight(api_key, version, data[REQUEST_CORRELATION_ID], handler)
        for stage in self._state.stages:
            request.handler = stage.around(request)
        return request

    def _expect(self, request: InFlight) -> None:
        state = self._state
        for stage in state.stages:
            stage.on_asked(request.api_key)
        state.queue.owed.append(request)
        state.queue.expected.append(request)
        request.sent_at = state.now

    def _stops_framing(self, request: InFlight) -> bool:
        """Return whether the client's next bytes may be SASL tokens without Kafka's framing."""
        state, api_key = self._state, request.api_key
        if api_key >> 8 == _GSSAPI_TOKEN and len(state.queue.expected) == 1 and state.phase is Phase.NEW:
            # 0.9 clients begin with a bare GSSAPI token (fetch-semantics, trap 33).
            state.stop_framing(Stream.OPAQUE, Reason.GSSAPI)
            state.queue.clear()
        elif api_key == ApiKey.SASL_HANDSHAKE and request.version == 0:
            # KIP-43: from here on tokens travel without Kafka's framing, in both directions, until the broker
            # is satisfied. From v1 on they are in SaslAuthenticate (KIP-152; fetch-semantics, trap 33; case
            # 87).
            state.stream, state.tokens = Stream.TOKENS, TOKENS.get(state.mechanism, UNCOUNTED)
        else:
            return False
        return True

    def _token(self, data: bytes) -> bool:
        """Forward a SASL token after a SaslHandshake v0, or process the first request after the last one."""
        state, requests = self._state, self._state.from_client
        if len(data) < LENGTH_BYTES:
            requests.need = LENGTH_BYTES
            return False
        length = int.from_bytes(data[:LENGTH_BYTES], signed=True)
        if state.tokens > 0:
            if 0 <= length <= MAX_TOKEN:
                if len(data) < LENGTH_BYTES + length < READ_WITHIN:
                    requests.need = LENGTH_BYTES + length
                    return False
                for stage in state.stages:
                    stage.on_token(data[LENGTH_BYTES:] if len(data) == LENGTH_BYTES + length else b"")
                state.tokens -= 1
                token = InFlight(ApiKey.SASL_AUTHENTICATE, 0, b"", TOKEN)
                self._expect(token)
                state.to_broker.append(data)
                requests.left = LENGTH_BYTES + length - len(data)
                state.forwarding = token if requests.left else None
                return True
        elif state.tokens == 0 and length >= _MIN_LENGTH and not state.queue.expected:
            if len(data) < NAMED_START_BYTES:
                requests.need = NAMED_START_BYTES
                return False
            if is_request_start(data):
                state.stream = _FRAMES
                return self._frame(data)
        # In doubt, all later bytes are forwarded unread: it is neither of the two, tokens can't be counted,
        # or the client did not wait for the broker's last token.
        state.stop_framing(Stream.OPAQUE, Reason.SASL_V0)
        state.to_broker.append(data + requests.rest())
        return True

    def _asked_wait(self, data: bytes, api_key: int) -> float:
        wait = self._group_wait
        # A SyncGroup request does not contain this time: that of the last JoinGroup counts.
        if api_key != ApiKey.SYNC_GROUP:
            with suppress(ProtocolError):  # that field may not have arrived yet
                wait = read_wait(data)
        if api_key == ApiKey.JOIN_GROUP:
            self._group_wait = wait
        return wait

    def _repeats(self, request: InFlight) -> bool:
        """Whether the next requests of the same kind may follow a plan made from this request."""
        api_key = request.api_key
        if api_key != ApiKey.PRODUCE and (not request.handler.forwards or api_key in _UNLEARNT):
            return False
        return all(stage.repeats(api_key, request.version) for stage in self._state.stages)

    def _name(self, frame: bytes, version: int) -> None:
        try:
            self._state.client_id, software = read_client_names(frame, version)
        except ProtocolError:
            return
        self._state.plans.forget_fetch()  # sessions may be off for a client of this name
        if software is not None:
            self._state.software_name, self._state.software_version = software.name, software.version
        self._report_names()

    def _report_names(self) -> None:
        state = self._state
        state.events.append(
            ClientNamed(
                client_id=state.client_id,
                software_name=state.software_name,
                software_version=state.software_version,
            )
        )

    def _refuse(self, correlation_id: bytes) -> None:
        queue = self._state.queue
        request = InFlight(ApiKey.API_VERSIONS, 0, correlation_id, FORWARD)
        queue.owed.append(request)
        # As a broker does that does not support the version (KIP-35; fetch-semantics, trap 31, case 85). Then
        # the client repeats its request with a version that both support.
        self._state.to_client += queue.in_turn(request, [api_versions.refusal(correlation_id)])
        self._state.to_client += queue.ended(request)


# Needed on every read, and members of enums are slow to look up.
_FETCH: Final = int(ApiKey.FETCH)
_OPEN: Final = Phase.OPEN
_CLOSING: Final = Phase.CLOSING
_FRAMES: Final = Stream.FRAMES
_READ: Final = (Stream.FRAMES, Stream.TOKENS)
