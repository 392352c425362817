"""A captured fetch, and its cost with sessions: in total, and by topic. Sans-IO."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final, Literal, NamedTuple, TypeAlias

from proxy.core.events import FetchKind, fetch_kind
from proxy.core.plans import FetchTemplate
from proxy.protocol.api import request_header
from proxy.protocol.fetch_layout import MAX_VERSION, MIN_VERSION, FetchLayout
from proxy.protocol.fetch_request import (
    CONSUMER,
    SESSIONLESS_EPOCH,
    FetchRequest,
    Listing,
    parse_fetch_request,
)
from proxy.protocol.fetch_response import response_head
from proxy.protocol.primitives import ProtocolError, read_int32
from proxy.protocol.versions import raise_listing
from proxy.session.decision import Reason
from replay.capture.kafka.exchange import Exchange
from replay.simulate.captured_broker import Element
from replay.simulate.captured_response import CapturedResponse

Kind: TypeAlias = Literal["full", "incremental", "sessionless", "close"]
_KINDS: Final[dict[FetchKind, Kind]] = {
    FetchKind.FULL: "full",
    FetchKind.INCREMENTAL: "incremental",
    FetchKind.SESSIONLESS: "sessionless",
    FetchKind.CLOSE: "close",
}
TopicKey: TypeAlias = str | bytes
"""A topic's name, or its 16-byte id (v13 and later)."""
ListedTopic: TypeAlias = tuple[bytes, int, int]
"""A topic in a request: its key, the number of its partitions, and its size in bytes."""

NOT_UNDERSTOOD: Final = "not understood"
UNPAIRED: Final = "unpaired"
CUT: Final = "bytes missing"


@dataclass(slots=True)
class TopicShare:
    """A topic's part of a fetch: its entries, and the topic element that contains them."""

    partitions_requested: int = 0
    """Its entries in requests."""
    partitions_answered: int = 0
    """Its entries in responses."""
    request_bytes: int = 0
    """Its entries in requests, and the fields around them."""
    response_bytes: int = 0
    """Its entries in responses, the fields around them, and records."""
    record_bytes: int = 0
    """The part of `response_bytes` that is the contents of records."""
    session_request_bytes: int = 0
    """As `request_bytes`, for eligible fetches with sessions."""
    session_response_bytes: int = 0
    """As `response_bytes`, for eligible fetches with sessions."""
    session_partitions_requested: int = 0
    """As `partitions_requested`, for eligible fetches with sessions."""
    session_partitions_answered: int = 0
    """As `partitions_answered`, for eligible fetches with sessions."""


class FetchBytes(NamedTuple):
    """What differs between the fetches that an outcome stands for."""

    request_time: int
    response_time: int
    captured: int
    """The bytes of the fetch and its response, as captured."""
    predicted: int
    """Their bytes with sessions."""
    records: int
    """The bytes of records in the response."""


@dataclass(slots=True)
class Outcome:
    """A captured fetch, and its cost with sessions. Request and response bytes include the frames' length."""

    exchange: Exchange
    kind: Kind | None = None
    """The kind of the client's fetch. None if the request was not parsed."""
    topics: dict[TopicKey, TopicShare] = field(default_factory=dict)
    session_id: int = 0
    session_epoch: int = SESSIONLESS_EPOCH
    answer_session_id: int = 0
    error_code: int = 0
    """The top-level error code of the response."""
    partitions_requested: int = 0
    partitions_answered: int = 0
    record_bytes: int = 0
    listing_bytes: int = 0
    """The bytes of the request's topic elements, with their entries. Forgotten topics are not included."""
    empty_entry_bytes: int = 0
    """The bytes of response entries with nothing new."""
    entry_bytes: int = 0
    """The bytes of response entries with something new, without the bytes of their records."""
    eligible: bool = False
    """Whether the fetch went through the engine. The fields below are the cost of the fetch in the engine. If
    it did not go through the engine, they are 0, except `session_size` and the cost of a session that the
    gateway closes because of the fetch."""
    reason: str = ""
    """The reason why the fetch was not eligible, or why the engine forwarded it unchanged."""
    session_kind: Kind | None = None
    """The kind of the first request for the fetch, apart from closes. None if it was not eligible."""
    session_request_bytes: int = 0
    """The request bytes with sessions. Closes and repairs are included, as in `session_response_bytes`."""
    session_response_bytes: int = 0
    close_bytes: int = 0
    """The part of the two figures above for requests that close a session, and for their responses."""
    repair_bytes: int = 0
    """The part for fetches that were sent again after a session was lost, and for their responses."""
    full: int = 0
    incremental: int = 0
    sessionless: int = 0
    closes: int = 0
    added: int = 0
    altered: int = 0
    forgotten: int = 0
    session_partitions_requested: int = 0
    session_partitions_answered: int = 0
    session_listing_bytes: int = 0
    session_empty_entry_bytes: int = 0
    session_entry_bytes: int = 0
    session_record_bytes: int = 0
    session_size: int = 0
    """The number of partitions in the session after the fetch."""
    request: FetchRequest | None = field(default=None, repr=False)
    """The client's fetch request. None if the request or its response was not parsed."""
    response: CapturedResponse | None = field(default=None, repr=False)
    """The fetch's response. None if there is none, or if the request or the response was not parsed."""
    run: Sequence[FetchBytes] = field(default=(), repr=False)
    """The run of fetches that this stands for. Then all figures are sums, and `request` is the last one's."""

    @property
    def times(self) -> int:
        """How many fetches this stands for."""
        return len(self.run) or 1

    @property
    def fetches(self) -> Sequence[FetchBytes]:
        """The fetches that this stands for."""
        if self.run:
            return self.run
        exchange = self.exchange
        captured = exchange.request_bytes + exchange.response_bytes
        predicted = self.session_request_bytes + self.session_response_bytes
        predicted += 0 if self.eligible else captured
        times = exchange.request_time, exchange.response_time
        return [FetchBytes(*times, captured, predicted, self.record_bytes)]

    def topic(self, key: bytes, layout: FetchLayout) -> TopicShare:
        name = topic_name(key, layout)
        share = self.topics.get(name)
        if share is None:
            share = self.topics[name] = TopicShare()
        return share

    def sent(self, kind: Kind, size: int, partitions: int) -> None:
        if kind == "close":
            self.closes += 1
            self.close_bytes += size
        elif self.session_kind is None:
            self.session_kind = kind
        else:
            self.repair_bytes += size
        if kind == "full":
            self.full += 1
        elif kind == "incremental":
            self.incremental += 1
        elif kind == "sessionless":
            self.sessionless += 1
        self.session_request_bytes += size
        self.session_partitions_requested += partitions


@dataclass(slots=True, eq=False)
class CapturedFetch:
    """A parsed fetch with its response. It is the input of both policies."""

    outcome: Outcome
    request: FetchRequest
    elements: list[ListedTopic]
    response: CapturedResponse | None

    @property
    def listed(self) -> bool:
        """Whether the fetch is a full or sessionless one, which lists all, and the gateway supports it."""
        return (
            self.request.session_id <= 0 >= self.request.session_epoch and not self.request.unsupported_reason
        )

    @property
    def of_replica(self) -> bool:
        """Whether a broker or a controller sent the fetch, in a session or not."""
        return self.request.unsupported_reason == Reason.NOT_A_CONSUMER

    @property
    def listing(self) -> Listing:
        """The partitions of the fetch. If the fetch is older than v7, they are in the format of v7."""
        listing = self.request.listing
        if listing is None:
            raise RuntimeError("only a consumer's plain fetch has a listing")
        return raise_listing(listing)


def read_fetch(
    outcome: Outcome, template: FetchTemplate | None
) -> tuple[CapturedFetch | None, FetchTemplate | None]:
    """Parse a fetch and its response, and store their figures in its outcome.

    Return the parsed fetch, and the template for the next one, given that of the connection's last fetch. If
    the fetch can't be used, the first value is None, and the outcome has the reason.
    """
    exchange = outcome.exchange
    version = exchange.api_version
    if not exchange.request or exchange.request_missing or exchange.response_missing:
        outcome.reason = CUT if exchange.request else UNPAIRED
        return None, template
    try:
        if not MIN_VERSION <= version <= MAX_VERSION:
            outcome.reason = _why_not_read(exchange.request, version)
            return None, template
        request = template.read(exchange.request) if template is not None else None
        if request is None:
            body = request_header(exchange.request, 4)[4]
            request = parse_fetch_request(exchange.request, version, body)
            template = FetchTemplate.of(request)
        elements = [*_request_topics(request)]
        _note_request(outcome, request, elements)
        response = None
        if exchange.response:
            response = CapturedResponse(exchange.response, version, request.isolation_level)
            _note_response(outcome, response)
        outcome.request, outcome.response = request, response
    except ProtocolError:
        outcome.reason = NOT_UNDERSTOOD
        return None, template
    return CapturedFetch(outcome, request, elements, response), template


def topic_name(key: bytes, layout: FetchLayout) -> TopicKey:
    """Return a topic as figures have it: its id from v13 on, before that its name."""
    return key if layout.topic_ids else key.decode(errors="replace")


def _why_not_read(frame: bytes, version: int) -> str:
    if version < MIN_VERSION:  # the body begins with the replica id
        replica_id, _ = read_int32(frame, request_header(frame, 4)[4])
        if replica_id != CONSUMER:
            return Reason.NOT_A_CONSUMER.value
    return f"fetch v{version}"


def _note_request(outcome: Outcome, request: FetchRequest, elements: list[ListedTopic]) -> None:
    outcome.kind = kind_of(request.session_id, request.session_epoch)
    outcome.session_id, outcome.session_epoch = request.session_id, request.session_epoch
    outcome.partitions_requested = request.partitions
    outcome.listing_bytes = sum(size for _, _, size in elements)


def _note_response(outcome: Outcome, response: CapturedResponse) -> None:
    outcome.answer_session_id = response.walk.session_id
    outcome.error_code = response.walk.error_code
    outcome.partitions_answered = response.walk.partitions
    outcome.record_bytes = response.walk.record_bytes
    outcome.empty_entry_bytes = response.empty_entry_bytes
    outcome.entry_bytes = response.entry_bytes


def kind_of(session_id: int, epoch: int) -> Kind:
    """Return the kind of a fetch by its session id and epoch (KIP-227)."""
    return _KINDS[fetch_kind(session_id, epoch)]


def share_captured(fetch: CapturedFetch) -> None:
    """Add the topics in the captured request and response to their figures."""
    outcome, layout = fetch.outcome, fetch.request.layout
    for key, count, size in fetch.elements:
        share = outcome.topic(key, layout)
        share.request_bytes += size
        share.partitions_requested += count
    if fetch.response is not None:
        for key, count, size, records in _response_topics(fetch.response):
            share = outcome.topic(key, layout)
            share.response_bytes += size
            share.record_bytes += records
            share.partitions_answered += count


def share_sent(outcome: Outcome, sent: FetchRequest) -> None:
    """Add the topics in a request to the broker to their figures, and their bytes to the fetch's."""
    for key, count, size in _request_topics(sent):
        outcome.session_listing_bytes += size
        share = outcome.topic(key, sent.layout)
        share.session_request_bytes += size
        share.session_partitions_requested += count


def share_elements(outcome: Outcome, layout: FetchLayout, elements: list[Element]) -> None:
    """Add the topics in an incremental response to their figures, and to the fetch's."""
    for element in elements:
        size = sum(map(len, element.pieces))
        outcome.session_partitions_answered += element.partitions
        outcome.session_entry_bytes += size - element.records
        outcome.session_record_bytes += element.records
        share = outcome.topic(element.key, layout)
        share.session_response_bytes += size
        share.session_partitions_answered += element.partitions


def share_whole(outcome: Outcome, response: CapturedResponse) -> None:
    """Add the topics in a full response to their figures, and to the fetch's."""
    outcome.session_partitions_answered += response.walk.partitions
    outcome.session_empty_entry_bytes += response.empty_entry_bytes
    outcome.session_entry_bytes += response.entry_bytes
    outcome.session_record_bytes += response.walk.record_bytes
    for key, count, size, _ in _response_topics(response):
        share = outcome.topic(key, response.layout)
        share.session_response_bytes += size
        share.session_partitions_answered += count


def _request_topics(request: FetchRequest) -> Iterator[ListedTopic]:
    topics, layout = request.topics, request.layout
    if request.unsupported_reason:
        return
    end = 1 if layout.flexible else 0
    for key, count in zip(topics.keys, topics.counts, strict=True):
        yield key, count, layout.prefix_size(key, count) + count * layout.request_entry + end


@cache
def head_size(layout: FetchLayout) -> int:
    """Return the number of bytes before the topic element, in a response with only one topic."""
    return len(response_head(layout, bytes(4), 0)) + 4 + len(layout.count(1))


def _response_topics(response: CapturedResponse) -> Iterator[tuple[bytes, int, int, int]]:
    """Yield for each topic of a response: key, partitions, bytes, and bytes of its records."""
    layout, walk = response.layout, response.walk
    end = 1 if layout.flexible else 0
    if len(walk.elements) == 1:
        key, count = walk.elements[0]
        head = head_size(layout)
        tail = response.size - walk.tags_at if walk.tags_at >= 0 else 0
        yield key, count, response.size - head - tail, walk.record_bytes
        return
    for key, count in walk.elements:
        yield key, 0, layout.prefix_size(key, count) + end, 0
    for run in walk.runs:
        yield run.key, len(run.entries), len(run.entries) * layout.response_entry, 0
    for entry in walk.entries:
        yield entry.key, 1, entry.end - entry.start, entry.records
