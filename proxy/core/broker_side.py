"""The broker's side of a connection: its bytes cut into responses, and what each becomes. Sans-IO.

A response belongs to the first request that the broker has not answered. That request's `Disposition` says
who makes the client's bytes of it: `FetchResponses`, `Rewriting`, or nobody. They leave in the order of the
client's requests. A call processes a bounded number of them: what else has come waits for the next one.
"""

from contextlib import suppress
from typing import Final

from proxy.core.client_sessions import ClientSessions
from proxy.core.connection_state import ConnectionState, Stream
from proxy.core.events import LoginRefused
from proxy.core.fetch_responses import FetchResponses
from proxy.core.follow import Following
from proxy.core.in_flight import AT_ONCE, Disposition, InFlightRequest
from proxy.core.peers import SASL
from proxy.core.responses import Rewriting
from proxy.protocol.api import (
    LENGTH_BYTES,
    RESPONSE_CORRELATION_ID,
    RESPONSE_START_BYTES,
    ApiKey,
    response_header,
)
from proxy.protocol.primitives import Buffer, ProtocolError, read_int16

_FETCH: Final = int(ApiKey.FETCH)
"""A plain int, since every response's is compared with it and members of an enum are looked up slowly."""

_SASL: Final = frozenset(map(int, SASL))


class BrokerSide:
    """Processes what comes from the broker.

    Args:
        state: that of the connection.
        fetches: makes the responses to fetches.
        rewriting: puts addresses or version ranges into responses.
        sessions: makes the responses of the sessions that the client has with the gateway.
        following: holds responses that say that a leader has moved; None: nothing does.
    """

    __slots__ = ("_fetches", "_following", "_rest", "_rewriting", "_sessions", "_state", "awaiting")

    def __init__(
        self,
        state: ConnectionState,
        fetches: FetchResponses,
        rewriting: Rewriting,
        sessions: ClientSessions,
        following: Following | None,
    ) -> None:
        self._state = state
        self._following = following
        self._fetches = fetches
        self._rewriting = rewriting
        self._sessions = sessions
        self._rest = b""
        """What came from the broker and was not processed."""
        self.awaiting = 0
        """Whole responses that wait for the listeners of brokers that they name."""

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes from the broker."""
        state = self._state
        state.now = now
        state.tally.broker.bytes_in += len(data)
        if state.fault is not None:
            return
        if state.response_part:
            data = state.response_part + data
            state.response_part = b""
        elif self._rest:
            data, self._rest = self._rest + data, b""
        expected = state.responses.expected
        at, left_at_once = 0, AT_ONCE
        while at < len(data) and state.fault is None:
            if not state.response_left:
                if not left_at_once:
                    self._rest = data[at:]
                    return
                left_at_once -= 1
                if not expected:
                    state.take_over()
                if not expected and state.stream is not _FRAMES:
                    state.to_client.append(data[at:])
                    return
                if len(data) - at < RESPONSE_START_BYTES and (expected or not state.foreign):
                    state.response_part = data[at:]
                    return
                if not self._begins(data[at : at + RESPONSE_START_BYTES]):
                    if state.stream is not _FRAMES:
                        state.to_client.append(data[at:])
                    return
            left = state.response_left
            chunk = data if at == 0 and len(data) <= left else data[at : at + left]
            state.response_left = left - len(chunk)
            self._response(expected[0], chunk, last=not state.response_left)
            at += len(chunk)

    @property
    def waiting(self) -> int:
        """Bytes that came from the broker and were not processed: call `receive` again."""
        return len(self._rest) if self._state.fault is None else 0

    def end(self) -> None:
        """Forget what was not processed."""
        self._rest = b""

    def brokers_opened(self, node_ids: frozenset[int]) -> None:
        """Send the responses that wait for these brokers; one without a listener is left out of them."""
        responses, to_client = self._state.responses, self._state.to_client
        for request in list(responses.owed):
            if not request.awaits_brokers or not request.awaits_brokers <= node_ids:
                continue
            buffered = request.buffered
            pieces = self._rewriting.rewritten(request, waits=False, now=self._state.now)
            responses.buffered -= buffered
            self.awaiting -= 1
            to_client += responses.in_turn(request, pieces) + responses.ended(request)

    def _begins(self, data: bytes) -> bool:
        """Note the beginning of a response; return False if it is none that is due."""
        state = self._state
        length = int.from_bytes(data[:LENGTH_BYTES], signed=True)
        expected = state.responses.expected
        if length < RESPONSE_START_BYTES - LENGTH_BYTES:
            state.unread("broker", f"a response of {length} bytes")
        elif not expected:
            state.unread("broker", "a response that nothing asked for")
        elif data[RESPONSE_CORRELATION_ID] != expected[0].correlation_id:
            asked = int.from_bytes(expected[0].correlation_id, signed=True)
            got = int.from_bytes(data[RESPONSE_CORRELATION_ID], signed=True)
            state.unread("broker", f"a response to request {got} where {asked} is due")
        else:
            state.foreign = False
            state.response_left = LENGTH_BYTES + length
            state.meter.began = state.now
            return True
        return False

    def _response(self, request: InFlightRequest, chunk: bytes, *, last: bool) -> None:
        """Take the next bytes of a response."""
        state = self._state
        responses, tally = state.responses, state.tally
        request.received += len(chunk)
        buffered = request.buffered
        disposition = request.disposition
        pieces: list[Buffer]
        if disposition in _FETCHED:
            pieces = self._fetches.receive(request, chunk, last=last)
            if request.served is not None and request.resend is None:
                pieces = self._sessions.receive(request, pieces, last=last)
            if last and request.walk is not None and not request.through_session:
                self._sessions.passed(request.walk.session_id)
            if self._following is not None:
                pieces = self._following.receive(request, pieces, left=state.response_left, last=last)
        elif disposition is _PASSED:
            pieces = [chunk]
            if request.produced is not None and self._following is not None:
                pieces = self._following.receive_produced(request, request.produced, chunk, last=last)
            if request.api_key in _SASL and request.received == len(chunk):
                self._judge_login(request, chunk)
            if request.api_key == _FETCH:
                tally.broker.fetch_response_bytes += len(chunk)
                tally.client.fetch_response_bytes += len(chunk)
        elif disposition is Disposition.REWRITTEN:
            state.steady.forget_fetch()  # what the broker can do may decide the next one
            pieces = self._rewriting.receive(request, chunk, left=state.response_left, now=state.now)
        else:
            pieces = []
            self._receive_ours(request, chunk, last=last)
        responses.buffered += request.buffered - buffered
        if pieces:
            state.to_client += responses.in_turn(request, pieces)
        if last and self._following is not None:
            self._following.answered(request)
        if last and request.awaits_brokers:
            self.awaiting += 1
            responses.expected.popleft()
            state.meter.note_other(request)
        elif last:
            self._end_response(request)

    def _judge_login(self, request: InFlightRequest, chunk: bytes) -> None:
        """Tell if the broker refuses a client; both responses of SASL begin with the error code."""
        with suppress(ProtocolError):  # not even this much has come: it is not told
            _, at = response_header(chunk, LENGTH_BYTES, request.api_key, request.version)
            error_code, _ = read_int16(chunk, at)
            if error_code:
                self._state.events.append(LoginRefused(error_code=error_code))

    def _receive_ours(self, request: InFlightRequest, chunk: bytes, *, last: bool) -> None:
        """Take the response to what the gateway itself asked."""
        if request.api_key == ApiKey.FETCH:
            self._state.tally.broker.fetch_response_bytes += len(chunk)
            if request.checks:
                self._fetches.receive_check(request, chunk, last=last)
        else:
            self._state.tally.probe_bytes += len(chunk)
            if request.reply is None:
                self._rewriting.learn(request, chunk, last=last)
        if request.reply is not None:
            request.chunks.append(chunk)
            request.buffered += len(chunk)

    def _end_response(self, request: InFlightRequest) -> None:
        """End a response: send its request again, or let it and what waited for it leave."""
        state = self._state
        responses = state.responses
        responses.expected.popleft()
        resend, request.resend = request.resend, None
        if request.api_key == _FETCH:
            state.meter.note_fetch(request, state.now, again=resend is not None)
        else:
            state.meter.note_other(request)
        # A fetch that is sent again keeps its place; later responses wait (fetch-semantics, trap 17; case
        # 84).
        if resend is not None:
            if request.attempts == 1:
                responses.resending += 1
            resend()
            return
        if request.attempts:
            responses.resending -= 1
        if request.served is not None:
            self._sessions.ended(request)
        if request.reply is not None:
            frame, responses.buffered = b"".join(request.chunks), responses.buffered - request.buffered
            request.drop_chunks()
            request.reply(frame, state.now)
        elif request.held:
            return  # `Following` sends it
        if waited := responses.ended(request):
            state.to_client += waited


# Looked up on every read: members as globals, and a tuple, for hashing a member takes a call, comparing none.
_FRAMES: Final = Stream.FRAMES
_PASSED: Final = Disposition.PASSED
_FETCHED: Final = (Disposition.WALKED, Disposition.EXPANDED)
