"""The steady path: exchanges that only repeat what passed before, known by comparing bytes. Sans-IO.

Most of what a client sends it has sent before: a produce, a heartbeat, a fetch of one partition. What makes
these dear is not what is computed but what is touched: at each wake-up the caches are cold. So `Steady`
stands before the core. It compares a frame with the `Form` of an earlier one, up to the last byte that
decided what became of it, and tells that it goes to the other side as it came. It counts in a few numbers of
its own. The core adds them to its tally when that is read, or when it has to process bytes itself.

The order of the requests in flight is always: first those of the core, then those of the steady path. What
has no known form goes to the core, which first takes over what is in flight.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from proxy.core.eligibility import SessionLimits
from proxy.core.entry_form import EntryForm, entry_form
from proxy.core.events import FetchKind, Tally
from proxy.core.fetch_in_flight import FetchHandler
from proxy.core.histograms import NO_RESPONSE_TIME, Measured
from proxy.core.in_flight import Handler, InFlight
from proxy.core.last_seen import LastSeen
from proxy.core.steady_session import SteadySession
from proxy.protocol.addresses import changeable
from proxy.protocol.api import (
    API_KEY_AND_VERSION,
    LENGTH_BYTES,
    REQUEST_CORRELATION_ID,
    REQUEST_START_BYTES,
    RESPONSE_CORRELATION_ID,
    RESPONSE_START_BYTES,
    ApiKey,
    response_header,
)
from proxy.protocol.fetch_request import FetchRequest
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.protocol.primitives import Span
from proxy.session.decision import Reason

MAX_FORMS: Final = 16
"""A client uses a few kinds of requests; after so many the forms are kept anew."""
MAX_PREFIX: Final = 256
"""Bytes of a header that are worth keeping. Tags of a header may have any length."""
_AT_ONCE: Final = range(1024)
"""So many requests are taken in one call: those without a response have no other limit."""
_FETCH: Final = int(ApiKey.FETCH)
MAX_JOINED: Final = 1 << 14
"""Bytes of a response that is kept until it is whole."""
_MAX_MASKED: Final = 512
"""A larger frame has many entries, and is seldom like another one."""
_PLAIN: Final = (Reason.ONE_PARTITION, Reason.SESSIONS_OFF)
"""Reasons to forward a fetch that hold for the next one like it, unless the switch for sessions is turned."""


class Masked:
    """A template of a frame: other frames match it if they differ only in the given fixed-size fields.

    Args:
        frame: such a frame.
        fields: the spans of these fields.
    """

    __slots__ = ("_mask", "_size", "_value")

    def __init__(self, frame: bytes, fields: Iterable[Span]) -> None:
        mask = bytearray(b"\xff" * len(frame))
        for start, end in fields:
            mask[start:end] = bytes(end - start)
        self._mask = int.from_bytes(mask)
        self._size = len(frame)
        self._value = int.from_bytes(frame) & self._mask

    def matches(self, frame: bytes) -> bool:
        """Whether a frame matches the template."""
        return len(frame) == self._size and int.from_bytes(frame) & self._mask == self._value


def key_of(api_key: int, version: int) -> bytes:
    """Return API key and version as on the wire."""
    return api_key.to_bytes(2, signed=True) + version.to_bytes(2, signed=True)


class Form:
    """A request that passes, and so does its response.

    Args:
        api_key: its kind.
        version: of the request.
        handler: that of such a request.
        prefix: the bytes behind the correlation id that decided so.
        answered: a response will come.
    """

    __slots__ = (
        "answered",
        "api_key",
        "handler",
        "key",
        "prefix",
        "response",
        "rewritten",
        "timed",
        "version",
        "wait",
    )

    def __init__(
        self,
        api_key: int,
        version: int,
        handler: Handler,
        prefix: bytes,
        *,
        answered: bool = True,
    ) -> None:
        self.wait = handler.wait
        self.api_key = api_key
        self.version = version
        self.key = key_of(api_key, version)
        self.prefix = prefix
        self.answered = answered
        self.timed = api_key not in NO_RESPONSE_TIME
        """Its response shows how fast the broker is."""
        self.handler = handler
        self.rewritten = not handler.forwards
        """Only a response of the form `response` passes."""
        self.response: Masked | None = None

    def in_flight(self, correlation_id: bytes, sent_at: float) -> InFlight:
        """Return such a request as the core keeps it."""
        request = InFlight(self.api_key, self.version, correlation_id, self.handler.fresh())
        request.sent_at = sent_at
        return request


class FetchForm(Form):
    """A fetch that is forwarded: the next ones differ in the fields of their entries.

    Args:
        fetching: the handler of such a fetch.
        request: a fetch without a session, as the client sent it, whose entries stand in one place.
        reason: why it is forwarded.
        limits: the switch for sessions; the form is of use only while it stands as it does.
    """

    __slots__ = (
        "_limits",
        "_max_fetch_bytes",
        "_off_for",
        "_on",
        "_responses",
        "masked",
        "partitions",
        "reason",
        "request",
        "size",
    )

    def __init__(
        self, fetching: FetchHandler, request: FetchRequest, reason: Reason, limits: SessionLimits
    ) -> None:
        super().__init__(_FETCH, request.layout.version, fetching, b"")
        self._responses = fetching.responses
        frame, layout = request.frame, request.layout
        start, self.partitions = request.topics.blocks[0]
        item, tags = layout.request_entry, int(layout.flexible)
        entries = [(at, at + item - tags) for at in range(start, start + self.partitions * item, item)]
        self.masked = Masked(frame, [(REQUEST_CORRELATION_ID.start, REQUEST_CORRELATION_ID.stop), *entries])
        self._limits, self._on, self._off_for = limits, limits.on, limits.off_for
        self._max_fetch_bytes = limits.max_fetch_bytes
        self.request = fetching.asked.with_frame(b"")
        """Such a fetch as it is sent, without its frame."""
        self.reason = reason
        self.size = len(frame)

    def matches(self, frame: bytes) -> bool:
        """Whether a fetch is forwarded for the same reason."""
        limits = self._limits
        return (
            self.masked.matches(frame)
            and limits.on is self._on
            and limits.off_for is self._off_for
            and limits.max_fetch_bytes is self._max_fetch_bytes
        )

    def in_flight(self, correlation_id: bytes, sent_at: float) -> InFlight:
        """Return such a request as the core keeps it."""
        request, fetching = self._responses.in_flight(self.version, correlation_id)
        fetching.ask(self.request)
        fetching.sent, fetching.sent_partitions = self.size, self.partitions
        request.sent_at = sent_at
        return request


class Steady:
    """The steady path of one connection.

    Args:
        limits: the switch for sessions.
        measured: gets the response times and sizes.
        max_request_bytes: the longest frame taken from the client.
        on: false in tests, to see what the core does by itself.
    """

    __slots__ = (
        "_asked",
        "_entry",
        "_fetch",
        "_forms",
        "_from_broker",
        "_from_client",
        "_limits",
        "_max_request_bytes",
        "_measured",
        "_on",
        "_part",
        "_partitions",
        "_record_bytes",
        "_response_bytes",
        "_skips_request",
        "_skips_response",
        "began",
        "in_flight",
        "is_next",
        "last_seen",
        "request_rest",
        "response_rest",
        "room",
        "session",
    )

    def __init__(
        self, limits: SessionLimits, measured: Measured, *, max_request_bytes: int, on: bool
    ) -> None:
        self._on = on
        self._max_request_bytes = max_request_bytes
        self._limits = limits
        self._measured = measured
        self.last_seen = LastSeen()
        self._forms: dict[bytes, Form] = {}
        """By API key and version, as on the wire."""
        self._fetch: FetchForm | None = None
        """The last fetch, if it was forwarded and the next one like it is, too."""
        self._entry: EntryForm | None = None
        self.session: SteadySession | None = None
        """Takes the fetches of a session, until the core has to decide one."""
        self.in_flight: deque[tuple[bytes, float, Form | SteadySession]] = deque()
        """Correlation id, time and form of the requests whose responses come behind those of the core."""
        self.room = 0
        """How many requests may be in flight here; 0 while the core has to see each."""
        self.is_next = False
        """The next response is for a request in flight here: the core waits for none."""
        self.request_rest = self.response_rest = 0
        """Bytes of the frame that is coming in which pass whatever they are."""
        self._skips_request = self._skips_response = 0
        """As the two before, when the core said so."""
        self._from_client = self._from_broker = 0
        """Bytes of whole frames that are not in the tally yet; so are the next four."""
        self._asked = 0
        """Fetches. They all have one form."""
        self._response_bytes = self._partitions = self._record_bytes = 0
        """Of responses to fetches."""
        self._part = b""
        """The beginning of a response that `join` keeps."""
        self.began = 0.0
        """When the first byte of what `join` has returned was read, in seconds; the shell sets it to the time
        at which the broker was connected."""

    # What passes

    def request(self, data: bytes, now: float) -> tuple[int, bytes]:
        """Return how much of what a client sent is dealt with, and what goes to the broker for it.

        The rest is for the core. If there is none, nothing else is to be done.

        Args:
            data: the bytes of one read.
            now: when they were read, in seconds.
        """
        size, in_flight = len(data), self.in_flight
        if 0 < size <= self.request_rest:
            self.request_rest -= size
            return size, data
        session = self.session
        if session is not None and now < session.until and 0 < self.room > len(in_flight):
            delta = session.request(data)
            if delta is not None:
                in_flight.append((data[REQUEST_CORRELATION_ID], now, session))
                return size, delta
        fetch = self._fetch
        if fetch is not None and 0 < self.room > len(in_flight) and fetch.matches(data):
            in_flight.append((data[REQUEST_CORRELATION_ID], now, fetch))
            self._asked += 1
            self._from_client += size
            return size, self.last_seen.as_sent(data) if self.last_seen.changes else data
        at = 0
        for _ in _AT_ONCE:
            if at >= size or len(in_flight) >= self.room:
                break
            length = int.from_bytes(data[at : at + LENGTH_BYTES])
            end = at + LENGTH_BYTES + length
            if end > size or length > self._max_request_bytes:
                break
            frame = data if end - at == size else data[at:end]
            form = self._forms.get(frame[API_KEY_AND_VERSION])
            if form is None or not frame.startswith(form.prefix, REQUEST_START_BYTES):
                break
            if form.answered:
                in_flight.append((frame[REQUEST_CORRELATION_ID], now, form))
            at = end
        self._from_client += at
        return at, data if at == size else data[:at]

    def join(self, data: bytes, now: float) -> bytes:
        """Return what a broker sent, behind what was kept of it; b"" while a small response is not whole.

        A broker writes head, records and end of a fetch response one by one, and each wakes the gateway.
        Nobody can use a part of a response, but each part would have to be looked at. So a response that is
        likely to be like one before is looked at once.

        Args:
            data: the bytes of one read.
            now: when they were read, in seconds.
        """
        if self._part:
            data, self._part = self._part + data, b""
        else:
            self.began = now
            if not (self.is_next and self.in_flight):
                return data
        size = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES])
        if len(data) < size <= MAX_JOINED and self._due(data):
            self._part = data
            return b""
        return data

    def _due(self, data: bytes) -> bool:
        """Whether a response may be the next one of those that are due here, as far as it has come."""
        if len(data) < RESPONSE_START_BYTES or not self.in_flight:
            return True
        return data.startswith(self.in_flight[0][0], LENGTH_BYTES)

    def part(self) -> bytes:
        """Return what is kept of a response, and keep it no more: the rest of it will not come."""
        part, self._part = self._part, b""
        return part

    def response(self, data: bytes, began: float, now: float) -> tuple[int, bytes]:
        """Return how much of what a broker sent is dealt with, and what goes to the client for it.

        Args:
            data: what `join` has returned.
            began: when the first of it was read, in seconds.
            now: when the last of it was.
        """
        size, in_flight = len(data), self.in_flight
        if 0 < size <= self.response_rest:
            self.response_rest -= size
            return size, data
        at = 0
        while at < size and in_flight and self.is_next:
            end = at + LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES])
            if end > size:
                break
            frame = data if end - at == size else data[at:end]
            correlation_id, sent_at, form = in_flight[0]
            if frame[RESPONSE_CORRELATION_ID] != correlation_id:
                break
            if isinstance(form, SteadySession):
                # One that the core has dropped meanwhile is counted no more.
                full = form.response(frame) if form is self.session and end - at == size else None
                if full is None:
                    break
                self._measured.note_fetch(began - sent_at, size, len(full), form.altered, form.partitions)
                in_flight.popleft()
                return size, full
            if isinstance(form, FetchForm):
                if not self._fetched(frame, form.version):
                    break
                length, listed = end - at, form.partitions
                self._measured.note_fetch(began - sent_at, length, length, listed, listed)
            elif form.rewritten and (form.response is None or not form.response.matches(frame)):
                break
            elif form.timed:
                self._measured.note_other(began - sent_at)
            in_flight.popleft()
            at, began = end, now
        self._from_broker += at
        return at, data if at == size else data[:at]

    def _fetched(self, frame: bytes, version: int) -> bool:
        """Count what a fetch response says, if it is like one before."""
        entry = self._entry
        if entry is not None and entry.version == version and (records := entry.records(frame)) >= 0:
            self._partitions += 1
            self._record_bytes += records
        elif (partitions := self.last_seen.response(frame, version)) >= 0:
            self._partitions += partitions
        else:
            return False
        self._response_bytes += len(frame)
        return True

    # What the core says

    def learn(self, request: InFlight, decisive: bytes, *, answered: bool) -> None:
        """Keep the form of a request that was forwarded as it came.

        Args:
            request: a request, but no fetch.
            decisive: what decided its handler, behind the correlation id.
            answered: a response will come.
        """
        if len(decisive) > MAX_PREFIX:
            return
        form = Form(request.api_key, request.version, request.handler, decisive, answered=answered)
        if (known := self._forms.get(form.key)) is None or known.prefix != decisive:
            if len(self._forms) >= MAX_FORMS:
                self._forms.clear()
            self._forms[form.key] = form

    def learn_fetch(self, fetching: FetchHandler, request: FetchRequest, reason: Reason) -> None:
        """Keep the form of a forwarded fetch if the next one like it is forwarded for the same reason.

        Args:
            fetching: its handler.
            request: the fetch as the client sent it.
            reason: why it is forwarded.
        """
        self.forget_fetch()
        size = len(request.frame)
        small = request.block is not None and size <= _MAX_MASKED and size == len(fetching.asked.frame)
        if small and reason in _PLAIN and not request.session_id and request.session_epoch < 0:
            self._fetch = FetchForm(fetching, request, reason, self._limits)

    def forget_fetch(self) -> None:
        """Let the core decide the next fetch."""
        self.session = None
        self._fetch = None

    def stop(self) -> None:
        """Let the core see all bytes from now on."""
        self._on = False

    def forget(self) -> None:
        """Let the core see the next request, whatever it is."""
        self.forget_fetch()
        self._forms.clear()

    def learn_unaddressed(self, api_key: int, version: int, frame: bytes) -> None:
        """Keep the form of a response that may name brokers, but names none: nearly all to a produce."""
        form = self._forms.get(key_of(api_key, version))
        if form is None or len(frame) > _MAX_MASKED:
            return
        _, body = response_header(frame, LENGTH_BYTES, api_key, version)
        fields = changeable(api_key, version, frame[body:])
        if fields is not None:
            spans = [(body + start, body + end) for start, end in fields]
            for other in self._forms.values():  # a client produces in one version
                other.response = None
            form.response = Masked(frame, [(0, RESPONSE_START_BYTES), *spans])

    def learn_response(self, request: FetchRequest, frame: bytes, walk: FetchResponseWalk) -> None:
        """Keep the form of a fetch response, which is forwarded as it came, if it has one entry."""
        self._entry = entry_form(request, frame, walk) or self._entry

    def settle(self, *, room: int, is_next: bool, request_rest: int, response_rest: int) -> None:
        """Say what may pass from now on; see the attributes."""
        self.room = room if self._on else 0
        self.is_next = is_next
        self.request_rest = self._skips_request = request_rest if self._on else 0
        self.response_rest = self._skips_response = response_rest if self._on else 0

    # What the core asks

    def skipped(self) -> tuple[int, int]:
        """Return how many bytes of a request and of a response passed in the middle of the core's frames."""
        skipped = self._skips_request - self.request_rest, self._skips_response - self.response_rest
        self._skips_request, self._skips_response = self.request_rest, self.response_rest
        return skipped

    def count(self, tally: Tally) -> tuple[int, int]:
        """Add to a tally what passed since the last call.

        Returns:
            the bytes of fetch responses, from the broker and to the client.
        """
        client, broker = tally.client, tally.broker
        client.bytes_in += self._from_client
        broker.bytes_out += self._from_client
        broker.bytes_in += self._from_broker
        client.bytes_out += self._from_broker
        received = self._response_bytes
        form, asked = self._fetch, self._asked
        for side in (client, broker):
            side.fetch_response_bytes += received
            side.partitions_answered += self._partitions
            side.fetch_record_bytes += self._record_bytes
            if form is not None:
                side.fetch_request_bytes += asked * form.size
                side.partitions_requested += asked * form.partitions
                side.fetches[FetchKind.SESSIONLESS] += asked
        if form is not None and asked:
            tally.passthrough[form.reason] += asked
        self._from_client = self._from_broker = 0
        self._asked = self._response_bytes = self._partitions = self._record_bytes = 0
        if self.session is None:
            return received, received
        of_session, full = self.session.count(tally)
        return received + of_session, received + full

    def end(self) -> None:
        """Forget everything: the connection has ended."""
        self.settle(room=0, is_next=False, request_rest=0, response_rest=0)
        self.in_flight.clear()
        self._part = b""
        self._forms.clear()
        self._fetch = self._entry = self.session = None
        self.last_seen = LastSeen()
