"""A plan remembers how a request and its response were handled, for later similar requests. Sans-IO.

Clients mostly repeat their requests. The core makes a `FetchPlan` from a fetch, or a `RequestPlan` from
another request, and the fast path (`proxy.core.fast_path`) compares each frame with the plans. A frame that
matches is sent to the broker at once. The request is then in flight like any other, with the plan as its
handler. If the response does not match, `Handler.begin` of the plan makes a handler for it, and the rest of
the core processes the response.

A plan relies on assumptions. Code that changes one of them must drop the plan (`Plans.forget_fetch`,
`Plans.forget`).
"""

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from typing import Final, Self

from proxy.core.eligibility import SessionLimits
from proxy.core.events import FetchKind, Tally
from proxy.core.histograms import NO_RESPONSE_TIME, Measured, Meter
from proxy.core.in_flight import Handler, InFlight
from proxy.protocol.addresses import changeable
from proxy.protocol.api import (
    LENGTH_BYTES,
    REQUEST_CORRELATION_ID,
    REQUEST_START_BYTES,
    RESPONSE_START_BYTES,
    ApiKey,
    response_header,
)
from proxy.protocol.fetch_layout import HIGH_WATERMARK, RACK_VERSION, FetchLayout
from proxy.protocol.fetch_request import MAX_AROUND, FetchRequest
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.protocol.primitives import ProtocolError, Span, read_uvarint
from proxy.session.decision import Reason

MAX_PLANS: Final = 16
"""The maximum number of a connection's plans for requests other than fetches. With more, all are dropped."""
MAX_PREFIX: Final = 256
"""The maximum number of bytes after the correlation id that are kept for comparison. The tags of a header may
have any length."""
MAX_KEPT: Final = 2 * MAX_AROUND + 512
"""The maximum number of bytes around the entries of a fetch that is kept as a template. Without it, a client
with its own sessions could add forgotten topics of any length."""
ENTRY_HEAD: Final = 512
"""The maximum bytes of a response with one entry, up to its records. A topic's name has at most 249 bytes."""
MAX_COMPARED: Final = 512
"""The maximum size of a frame that is kept whole for comparison, in bytes. Larger frames have many entries,
so they seldom equal an earlier frame."""
_KIND_BYTES: Final = REQUEST_CORRELATION_ID.start
"""The size in bytes of the length field, API key and version at the start of a request."""
_NO_ABORTED: Final = {True: (b"\0", b"\1"), False: (b"\xff\xff\xff\xff", b"\0\0\0\0")}
"""The bytes of null and of an empty array as aborted_transactions. The key is True for flexible versions."""


class Template:
    """A template made from a frame. Other frames match if they differ only in these fields of fixed size."""

    __slots__ = ("_mask", "_size", "_value")

    def __init__(self, frame: bytes, fields: Iterable[Span]) -> None:
        mask = bytearray(b"\xff" * len(frame))
        for start, end in fields:
            mask[start:end] = bytes(end - start)
        self._mask = int.from_bytes(mask)
        self._size = len(frame)
        self._value = int.from_bytes(frame) & self._mask

    def matches(self, frame: bytes) -> bool:
        return len(frame) == self._size and int.from_bytes(frame) & self._mask == self._value


class FetchTemplate:
    """A template made from a client's fetch. Other fetches match if only correlation id and entries differ.

    It takes much less time to compare a fetch with the template than to parse it. This matters with hundreds
    of connections, or with fetches of a thousand partitions.
    """

    __slots__ = ("_after", "_before", "_block", "_kind", "_sent", "changes", "request", "size")

    def __init__(self, request: FetchRequest, block: Span) -> None:
        frame = request.frame
        self.request = request.with_frame(b"")
        """The parsed fetch of the template, without its frame."""
        self.size = len(frame)
        self._block = block
        self._sent = self._kind, self._before, self._after = _around(frame, block)
        """The parts of the fetch as it was sent, see `_around`."""
        self.changes = False
        """Whether stages changed the fetch before it was sent."""

    @classmethod
    def of(cls, request: FetchRequest) -> Self | None:
        """Return the template of a fetch, or None if it is too large, or its entries are not contiguous."""
        block = request.block
        if block is None or len(request.frame) - (block[1] - block[0]) > MAX_KEPT:
            return None
        return cls(request, block)

    def surrounds(self, frame: bytes) -> bool:
        """Whether a frame equals the template's fetch, except for the correlation id and the entries."""
        return (
            len(frame) == self.size
            and frame.startswith(self._kind)
            and frame.startswith(self._before, REQUEST_START_BYTES)
            and frame.endswith(self._after)
        )

    def note_sent(self, sent: FetchRequest) -> None:
        """Note the fetch as the stages have changed it. The entries and their offset must be unchanged."""
        around = _around(sent.frame, self._block)
        if around != self._sent:
            self._sent = around
            self.changes = around != (self._kind, self._before, self._after)
            # A `Rotation` recognises fetches by their topics, and would send the old bytes around them.
            self.request.topics = sent.topics = copy(self.request.topics)

    def as_sent(self, frame: bytes) -> bytes:
        """Return a matching fetch with the changes that the stages made to the template's fetch."""
        kind, before, after = self._sent
        entries = frame[REQUEST_START_BYTES + len(self._before) : self.size - len(self._after)]
        return b"".join((kind, frame[REQUEST_CORRELATION_ID], before, entries, after))

    def read(self, frame: bytes) -> FetchRequest | None:
        """Return the parsed form of a matching fetch, or None if the frame has to be parsed."""
        if not self.surrounds(frame):
            return None
        # Each entry of a flexible version ends with its tags: here the byte 0 each.
        layout = self.request.layout
        if layout.flexible:
            size, (start, count) = layout.request_entry, self.request.topics.blocks[0]
            if frame[start + size - 1 : start + count * size : size].count(0) != count:
                return None  # an entry has tags
        return self.request.with_frame(frame)


class EntryTemplate:
    """A template made from a fetch response with one entry, at offset `at`.

    A later response matches the template if it differs only in offsets and records. The records may be left
    out of `frame`.
    """

    __slots__ = ("_at", "_end", "_ends_at", "_flexible", "_head", "_records_at", "_tail", "version")

    def __init__(self, layout: FetchLayout, frame: bytes, at: int) -> None:
        self.version = layout.version
        self._at = at
        self._head = frame[RESPONSE_START_BYTES : at + HIGH_WATERMARK.start]
        self._ends_at = at + layout.aborted
        aborted = 1 if layout.flexible else LENGTH_BYTES
        self._records_at = self._ends_at + aborted + (4 if layout.version >= RACK_VERSION else 0)
        self._end = frame[self._ends_at : self._records_at]
        self._tail = b"\0\0\0" if layout.flexible else b""
        self._flexible = layout.flexible

    @classmethod
    def of(cls, request: FetchRequest, frame: bytes, walk: FetchResponseWalk) -> Self | None:
        """Return a template made from a response, or None if it does not have exactly one plain entry.

        `frame` has the first `ENTRY_HEAD` bytes of the response, or more.
        """
        layout = request.layout
        if walk.partitions != 1 or walk.tags or walk.redirects or walk.errors or not request.topics.keys:
            return None
        element = layout.count(1) + layout.prefix(request.topics.keys[0], 1)
        begins = RESPONSE_START_BYTES + layout.flexible + layout.response_head
        at = begins + len(element)
        ends = frame[at + layout.aborted :]
        # Without header tags, and without aborted transactions: null or none.
        if frame[begins:at] != element or not ends.startswith(_NO_ABORTED[layout.flexible]):
            return None
        return cls(layout, frame, at)

    def records(self, frame: bytes) -> int:
        """Return the number of record bytes in a response, or -1 if the response does not match."""
        if not frame.startswith(self._head, RESPONSE_START_BYTES) or not frame.startswith(
            self._end, self._ends_at
        ):
            return -1
        at = self._records_at
        if self._flexible:
            if frame[at : at + 1] < b"\x80":  # of one byte: no records, or few
                size, at = frame[at] if at < len(frame) else 0, at + 1
            else:
                try:
                    size, at = read_uvarint(frame, at)
                except ProtocolError:
                    return -1
            size -= size > 0
        else:
            size = max(int.from_bytes(frame[at : at + LENGTH_BYTES], signed=True), 0)
            at += LENGTH_BYTES
        return size if at + size + len(self._tail) == len(frame) and frame.endswith(self._tail) else -1

    def entry(self, frame: bytes) -> bytes:
        # The empty tags of the topic element and of the body follow it.
        return frame[self._at : len(frame) - 2] if self._flexible else frame[self._at :]


class RequestPlan(Handler):
    """A plan for requests that are forwarded unchanged, and whose responses are forwarded unchanged.

    The plan is the handler of all matching requests, until their responses begin. They have the same header
    after the correlation id (`prefix`), in Produce also the same fields up to acks. The rest may differ.
    """

    __slots__ = (
        "_handler",
        "_plans",
        "_rewrites",
        "_timed",
        "answered",
        "api_key",
        "live",
        "prefix",
        "produces",
        "response",
        "spare",
        "version",
        "wait",
    )
    planned = True

    def __init__(self, request: InFlight, prefix: bytes, *, answered: bool, plans: "Plans") -> None:
        self.live = True
        """Whether the plan's assumptions still apply."""
        self.spare = None
        self.api_key, self.version = request.api_key, request.version
        self.prefix = prefix
        self.produces = request.api_key == ApiKey.PRODUCE
        self.answered = answered
        self.response: Template | None = None
        """The template of responses that need no rewriting, if the handler may rewrite responses."""
        self.wait = request.handler.wait
        self._handler = request.handler
        self._rewrites = not request.handler.forwards
        self._timed = request.api_key not in NO_RESPONSE_TIME
        """Whether the broker does not wait on purpose, so that the response time shows its speed."""
        self._plans = plans

    def begin(self, _request: InFlight) -> Handler:
        return self._handler.fresh()

    def answer(self, frame: bytes, seconds: float) -> bytes | None:
        if not self.live:
            return None
        if self._rewrites and (self.response is None or not self.response.matches(frame)):
            return None
        plans = self._plans
        plans.responded += len(frame)
        if self.produces:
            plans.produced += len(frame)
        if self._timed:
            plans.measured.note_other(seconds)
        return frame


class FetchPlan(Handler):
    """A plan for fetches: a `ForwardPlan`, or a `SessionPlan`. It is made from a matching fetch.

    `sent` is this fetch with the changes of the stages.
    """

    __slots__ = (
        "_answered",
        "_asked",
        "_fetch_template",
        "_kind",
        "_limits",
        "_measured",
        "_options_generation",
        "_plans",
        "_plans_generation",
        "_reason",
        "_received",
        "_record_bytes",
        "_requested",
        "_sent",
        "_sent_size",
        "_told",
        "_told_partitions",
        "fetch",
        "live",
        "partitions",
        "spare",
        "version",
        "wait",
    )
    planned = True

    def __init__(
        self,
        plans: "Plans",
        template: FetchTemplate,
        sent: FetchRequest,
        kind: FetchKind,
        reason: Reason | None = None,
    ) -> None:
        self.live = True
        """Whether the plan's assumptions still hold. `SessionLimits.generation` is checked separately."""
        self.spare = None
        self._kind, self._reason = kind, reason
        self._fetch_template, self._sent_size = template, len(sent.frame)
        self.fetch: FetchRequest = sent.with_frame(b"")
        """The fetch with the changes of the stages, without its frame."""
        self.version = sent.layout.version
        self.partitions = sent.partitions
        self.wait = max(sent.max_wait_ms, 0) / 1e3
        # The first generation ends the plan. `begin` gives the second to the fetch, which may make a plan.
        self._limits, self._options_generation = plans.limits, plans.limits.generation
        self._plans_generation = plans.generation
        self._plans, self._measured = plans, plans.measured
        self._asked = self._sent = self._requested = 0
        """Fetches that are not in the tally yet: their number, their bytes and partitions to the broker."""
        self._received = self._answered = self._record_bytes = 0
        """Responses that are not in the tally yet: the broker's bytes, partitions and record bytes."""
        self._told = self._told_partitions = 0
        """The bytes and partitions of these responses that the client got."""

    def request(self, frame: bytes, now: float) -> bytes | None:
        """Return the frame to send to the broker, or None if the core has to process this client's fetch."""
        raise NotImplementedError

    def count(self, tally: Tally, meter: Meter) -> None:
        """Add the exchanges since the last call to the tally. The meter skips them: they are measured."""
        asked, sent, received, told = self._asked, self._sent, self._received, self._told
        if not (asked or received):
            return
        client, broker, size = tally.client, tally.broker, asked * self._fetch_template.size
        client.bytes_in += size
        client.add_fetches(FetchKind.SESSIONLESS, size, asked * self.partitions, times=asked)
        broker.bytes_out += sent
        broker.add_fetches(self._kind, sent, self._requested, times=asked)
        if asked and self._reason is not None:
            tally.passthrough[self._reason] += asked
        broker.bytes_in += received
        broker.fetch_response_bytes += received
        broker.add_responses(self._answered, self._record_bytes)
        client.bytes_out += told
        client.fetch_response_bytes += told
        client.add_responses(self._told_partitions, self._record_bytes)
        meter.skip(received, told)
        self._asked = self._sent = self._requested = 0
        self._received = self._answered = self._record_bytes = 0
        self._told = self._told_partitions = 0


@dataclass(slots=True, eq=False, repr=False)
class Plans:
    """The plans of one connection, and the templates that save the parsing of similar frames."""

    limits: SessionLimits
    measured: Measured
    tally: Tally
    _meter: Meter
    _forgotten: int = 0
    """How often the plan for fetches was dropped."""
    on: bool = True
    """False after `stop`: the fast path is off for the rest of the connection."""
    no_sooner: float = 0.0
    """Fetch responses without records that come sooner than this (in seconds), and sooner than half the
    wait that the fetch allows, take no plan. A stage sets this if it holds such responses back
    (`ResponseQueue.claim`)."""
    requested: int = 0
    """The number of request bytes that are not in the tally yet. The plans other than `fetch` have forwarded
    them. So for `responded`, and for `produced`, which has all bytes of Produce."""
    responded: int = 0
    produced: int = 0
    requests: dict[bytes, RequestPlan] = field(default_factory=dict)
    """By API key and version, as the bytes in a request's header."""
    fetch: FetchPlan | None = None
    """The plan of the last fetch. None if the core has to decide the next fetch."""
    template: FetchTemplate | None = None
    """The template of the last fetch that was parsed, if `FetchTemplate.of` made one."""
    entry: EntryTemplate | None = None
    """The template of the last forwarded response that had exactly one entry."""
    _response: tuple[bytes, int, int] = b"", -1, 0
    """The last small response that was forwarded: the bytes after its correlation id, its version, and
    its number of partitions."""
    _empty: tuple[bytes, FetchResponseWalk] | None = None
    """The session's last response without an entry, and its parsed form."""

    # Requests

    def learn(self, request: InFlight, decisive: bytes, *, answered: bool) -> None:
        """Make a plan from a request other than a fetch that was forwarded unchanged.

        The `decisive` bytes after the correlation id decided how it is handled.
        """
        if len(decisive) > MAX_PREFIX:
            return
        key = _key_of(request.api_key, request.version)
        if (known := self.requests.get(key)) is None or known.prefix != decisive:
            if len(self.requests) >= MAX_PLANS:
                self.requests.clear()
            self.requests[key] = RequestPlan(request, decisive, answered=answered, plans=self)

    def forget_fetch(self) -> None:
        """Drop the plan for fetches.

        The rest of the core then processes the next fetch, and the responses to fetches that were already
        sent.
        """
        self.count()
        self._forgotten += 1
        if self.fetch is not None:
            self.fetch.live = False
            self.fetch = None

    @property
    def generation(self) -> int:
        """Rises when the plan for fetches is dropped, and with `SessionLimits.generation`.

        A fetch can become a plan only as long as the number is that of the decision on it.
        """
        return self._forgotten + self.limits.generation

    def forget(self) -> None:
        """Drop all plans. The core then processes the next request of each kind, and responses in flight."""
        self.forget_fetch()
        for plan in self.requests.values():
            plan.live = False
        self.requests.clear()

    def stop(self) -> None:
        """Stop using plans. From now on the core processes all bytes."""
        self.on = False
        self.forget()

    def count(self) -> Tally:
        """Add the exchanges since the last call to the connection's tally. Return the tally."""
        client, broker = self.tally.client, self.tally.broker
        client.bytes_in += self.requested
        broker.bytes_out += self.requested
        broker.bytes_in += self.responded
        client.bytes_out += self.responded
        self.tally.produce_bytes += self.produced
        self.requested = self.responded = self.produced = 0
        if self.fetch is not None:
            self.fetch.count(self.tally, self._meter)
        return self.tally

    def end(self) -> None:
        self.stop()
        self.template = self.entry = self._empty = None
        self._response = b"", -1, 0

    # Responses

    def learn_unaddressed(self, api_key: int, version: int, frame: bytes) -> None:
        """Note a response if it could contain brokers' addresses, but contains none.

        Most produce responses are like this. Metadata responses are never noted.
        """
        plan = self.requests.get(_key_of(api_key, version))
        if plan is None or len(frame) > MAX_COMPARED:
            return
        _, body = response_header(frame, LENGTH_BYTES, api_key, version)
        fields = changeable(api_key, version, frame[body:])
        if fields is not None:
            spans = [(body + start, body + end) for start, end in fields]
            # A client produces in one version: an older template would only take memory.
            for other in self.requests.values():
                other.response = None
            plan.response = Template(frame, [(0, RESPONSE_START_BYTES), *spans])

    def learn_response(
        self, request: FetchRequest | None, frame: bytes, version: int, walk: FetchResponseWalk
    ) -> None:
        """Note a complete response to a fetch that was forwarded unchanged.

        `walk.errors` has only the codes that a stage asks for. Other errors may stand in what is noted: they
        are forwarded unchanged.
        """
        special = (
            walk.record_bytes
            or walk.throttle_time_ms
            or walk.tags
            or walk.session_id
            or walk.error_code
            or walk.moved
            or walk.redirects
            or walk.errors
        )
        if not special and len(frame) <= MAX_COMPARED:
            self._response = frame[RESPONSE_START_BYTES:], version, walk.partitions
        if request is not None:
            self.entry = EntryTemplate.of(request, frame, walk) or self.entry

    def response(self, frame: bytes, version: int) -> int:
        """Return a response's number of partitions if it equals the last small response, otherwise -1."""
        known, known_version, partitions = self._response
        alike = len(frame) == RESPONSE_START_BYTES + len(known) and frame.endswith(known)
        return partitions if alike and version == known_version else -1

    def learn_empty(self, frame: bytes, walk: FetchResponseWalk) -> None:
        """Note a complete response of the session that has no partition."""
        if walk.done and not walk.partitions and not walk.error_code and len(frame) <= MAX_COMPARED:
            self._empty = frame[RESPONSE_START_BYTES:], walk

    def empty(self, frame: bytes) -> FetchResponseWalk | None:
        """Return the parsed form of the session's last response without an entry, if `frame` equals it."""
        if self._empty is None:
            return None
        known, walk = self._empty
        return walk if len(frame) == RESPONSE_START_BYTES + len(known) and frame.endswith(known) else None

    @property
    def repeatable(self) -> bytes | None:
        """The bytes after the correlation id in the session's last response without an entry.

        None if there is no such response, or if it has other contents that can change.
        """
        return self._empty[0] if self._empty is not None and self._empty[1].repeatable else None


def _around(frame: bytes, block: Span) -> tuple[bytes, bytes, bytes]:
    """Return the parts of a fetch before the correlation id, before the entries, and after the entries."""
    start, end = block
    return frame[:_KIND_BYTES], frame[REQUEST_START_BYTES:start], frame[end:]


def _key_of(api_key: int, version: int) -> bytes:
    return api_key.to_bytes(2, signed=True) + version.to_bytes(2, signed=True)
