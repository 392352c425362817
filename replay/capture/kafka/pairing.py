"""Pairs the requests and responses of one connection, and learns topic names from Metadata responses.

A broker responds in the order of the requests. If a response arrives while an earlier request is still open,
the response to the earlier request was not captured. The earlier request then becomes an exchange without a
response. Only requests in flight are buffered.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, repeat
from typing import Final

import numpy as np

from proxy.protocol import produce
from proxy.protocol.api import (
    LENGTH_BYTES,
    REQUEST_START,
    REQUEST_START_BYTES,
    RESPONSE_START_BYTES,
    ApiKey,
    is_flexible,
    request_header,
)
from proxy.protocol.metadata import IDS_VERSION, LAST_VERSION, read_topics
from proxy.protocol.primitives import (
    Buffer,
    ProtocolError,
    read_compact_count,
    read_compact_string,
    read_string,
    skip_tags,
)
from replay.capture.files.window import Column
from replay.capture.kafka.exchange import (
    READ,
    UNSEEN,
    ConnectionEnd,
    Exchange,
    before_cut,
    cuts_in,
    records_alone_are_cut,
)
from replay.capture.kafka.framing import Framing
from replay.capture.kafka.plausible import is_fetch_response
from replay.capture.kafka.stretches import Turns

CLIENT_ID_AT: Final = REQUEST_START_BYTES + 2
"""The offset of the client id in a request. The client id's length comes before it."""
_FETCH: Final = int(ApiKey.FETCH)
_MAX_WAITING: Final = 4096
_MAX_WAITING_BYTES: Final = 16 << 20
_CONFIRMED_BY: Final = 3
"""After this many valid requests in a row, a connection is accepted as Kafka, even if no response was
found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Selects which parts of requests and responses the pairing keeps for later steps."""

    requests: bool = False
    """If False, only requests with an API key in `READ` are kept."""
    responses: frozenset[int] = READ
    """The API keys whose responses are kept. Those of Metadata are kept as well."""
    groups: bool = False
    """Whether exchanges have their consumer group."""


KEPT: Final = Keep()


class _Unpaired(deque[Exchange]):
    """Requests or responses that wait for the other one. Frames that are kept count for a limit."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: dict[int, int] = {}
        """How many of them have each correlation id. In a capture with gaps many responses have no request,
        and thousands of requests may wait."""
        self._bytes = 0

    @property
    def are_too_many(self) -> bool:
        return len(self) > _MAX_WAITING or self._bytes > _MAX_WAITING_BYTES

    def append(self, exchange: Exchange, /) -> None:
        super().append(exchange)
        self.ids[exchange.correlation_id] = self.ids.get(exchange.correlation_id, 0) + 1
        self._bytes += len(exchange.request) + sum(map(len, exchange.response))

    def popleft(self) -> Exchange:
        exchange = super().popleft()
        self.ids[exchange.correlation_id] -= 1
        if not self.ids[exchange.correlation_id]:
            del self.ids[exchange.correlation_id]
        self._bytes -= len(exchange.request) + sum(map(len, exchange.response))
        return exchange

    def clear(self) -> None:
        super().clear()
        self.ids.clear()
        self._bytes = 0


class Pairing:
    """Pairs the requests and responses of one connection. `drain` returns the complete exchanges."""

    def __init__(self, end: ConnectionEnd, on_client: Callable[[Framing], None], keep: Keep) -> None:
        self.end = end
        self.on_client = on_client
        self.client_id = b""
        self.confirmed = False
        """Whether the bytes are certainly Kafka: a request and its response were found."""
        self.contradicted = False
        """Whether the bytes of the connection turned out not to be Kafka."""
        self.tokens = False
        self.tokens_from_broker = False
        self.opaque = False
        self.request_broken = False
        self.response_broken = False
        self.left_out_bytes = 0
        """The contents of records that were not captured."""
        self.left_out_gaps = 0
        self.client: Framing | None = None
        self._keeps_all = keep.requests
        self._read = keep.responses | {ApiKey.METADATA}
        self._special_keys = _SPECIAL | _GROUPS if keep.groups else _SPECIAL
        self._waiting = _Unpaired()
        """The requests without a response so far."""
        self._early = _Unpaired()
        """The responses that came before their requests were found."""
        self._number = 0
        self._last_correlation_id = UNSEEN
        self._repeats_ids = False
        self._out: list[Exchange] = []
        self._handshake: Exchange | None = None
        """The last SaslHandshake v0."""
        self._client_text = ""

    def drain(self) -> list[Exchange]:
        if not self._out or not (self.confirmed or self._number >= _CONFIRMED_BY):
            return []
        out, self._out = self._out, []
        return out

    @property
    def idle(self) -> bool:
        """Whether the bytes are certainly Kafka, and all exchanges so far are complete and were drained."""
        waits = self._waiting or self._early or self._out or self.contradicted
        return self.confirmed and not (waits or self.tokens or self.opaque)

    def take(self, turns: Turns, begin: Column, end: Column) -> Iterator[Exchange]:
        """Return the first fetches of `turns`, with their responses. Begin and end are their times."""
        ids, first = turns.correlation_id[: len(begin) : 2], self._number
        self._number += len(ids)
        self._repeats_ids |= bool((np.append(self._last_correlation_id, ids[:-1]) == ids).any())
        self._last_correlation_id = int(ids[-1])
        edges = turns.edges[: len(begin) + 1].tolist()
        requests = map(slice, edges[:-1:2], edges[1::2])
        responses = map(slice, edges[1::2], edges[2::2])
        keeps, payload = ApiKey.FETCH in self._read, turns.payload
        sizes = np.diff(turns.edges[: len(begin) + 1])
        return map(
            Exchange,  # its fields, in columns
            repeat(self.end.connection),
            repeat(self.end.client),
            repeat(self.end.broker),
            count(first),
            repeat(self._client_text),
            repeat(self.end.software),
            repeat(_FETCH),
            (turns.kind[: len(begin) : 2] & 0xFFFF).tolist(),
            ids.tolist(),
            begin[::2].tolist(),
            end[1::2].tolist(),
            sizes[::2].tolist(),
            sizes[1::2].tolist(),
            (bytes(payload[place]) for place in requests),
            ([payload[place]] if keeps else [] for place in responses),
        )

    def finish(self) -> list[Exchange]:
        for response in self._early:
            self._unpaired(response)
        self._out += self._waiting
        self._early.clear()
        self._waiting.clear()
        out, self._out = self._out, []
        return out

    def discard(self) -> None:
        self._out.clear()
        self._waiting.clear()
        self._early.clear()

    # The methods of `framing.FrameOwner`.

    def requests_found(self, framing: Framing) -> None:
        if self.client is None:
            self.client = framing
            self.on_client(framing)

    def wants_request(self, api_key: int) -> bool:
        return self._keeps_all or api_key in READ

    def wants_response(self, correlation_id: int) -> bool | None:
        waiting = self._waiting
        if waiting and waiting[0].correlation_id == correlation_id:
            return waiting[0].api_key in self._read
        if correlation_id not in waiting.ids:
            return None
        return next(one.api_key in self._read for one in waiting if one.correlation_id == correlation_id)

    def awaited(self) -> Iterator[int]:
        return (one.correlation_id for one in self._waiting if one.answer_due)

    def is_response(self, frame: Buffer, correlation_id: int, *, whole: bool) -> bool | None:
        request = next((one for one in self._waiting if one.correlation_id == correlation_id), None)
        if request is None or request.api_key != ApiKey.FETCH or request.request_missing:
            return None
        body = CLIENT_ID_AT + len(self.client_id)
        return is_fetch_response(
            frame, whole=whole, version=request.api_version, request=request.request, body=body
        )

    def request_seen(self, frame: bytes, size: int, missing: int, time: int) -> None:
        _, api_key, version, correlation_id = REQUEST_START.unpack_from(frame)
        exchange = Exchange(
            connection=self.end.connection,
            client=self.end.client,
            broker=self.end.broker,
            number=self._number,
            client_id=self._read_client_id(frame, api_key, version),
            software=self.end.software,
            api_key=api_key,
            api_version=version,
            correlation_id=correlation_id,
            request_time=time,
            request_bytes=size,
            request=frame if self.wants_request(api_key) else b"",
            request_missing=missing,
        )
        self._number += 1
        if correlation_id == self._last_correlation_id:
            self._repeats_ids = True
        self._last_correlation_id = correlation_id
        if missing and api_key == ApiKey.PRODUCE:
            self.left_out_bytes += missing
            self.left_out_gaps += 1
        self.tokens = False
        if api_key in self._special_keys:
            self._special(exchange, frame)
        self._wait(exchange)

    def response_seen(
        self, correlation_id: int, pieces: list[Buffer], size: int, missing: int, end_time: int
    ) -> None:
        waiting = self._waiting
        if waiting and waiting[0].correlation_id == correlation_id and not self._is_ambiguous():
            request = waiting.popleft()
        else:
            found = self._find(correlation_id)
            if found is None:
                self._keep_early(correlation_id, pieces, size, missing, end_time)
                return
            request = found
        if self._early:
            self._flush_early()
        self._pair(request, pieces, size, missing, end_time)

    def _wait(self, exchange: Exchange) -> None:
        if self._early and self._answered_early(exchange):
            return
        self._waiting.append(exchange)
        while self._waiting and (not self._waiting[0].answer_due or self._waiting.are_too_many):
            self._report_first()

    def _report_first(self) -> None:
        self._out.append(self._waiting.popleft())

    def _is_ambiguous(self) -> bool:
        """Return whether a response may belong to several requests, because their correlation ids are equal.

        Some clients give each request the same one. Responses are then only paired in a stream without gaps.
        """
        return self._repeats_ids and self.response_broken and len(self._waiting) > 1

    def _find(self, correlation_id: int) -> Exchange | None:
        count = self._waiting.ids.get(correlation_id, 0)
        if not count:
            certain = self.confirmed or self.request_broken or self.response_broken
            if not certain and 0 < self._number < _CONFIRMED_BY:
                self.contradicted = True
            return None
        if count > 1 and self.response_broken:
            while self._waiting:
                self._report_first()
            return None
        while self._waiting[0].correlation_id != correlation_id:
            self._report_first()
        return self._waiting.popleft()

    def _pair(self, request: Exchange, pieces: list[Buffer], size: int, missing: int, end_time: int) -> None:
        request.response_bytes = size
        request.response_time = end_time
        if (
            missing
            and request.api_key == ApiKey.FETCH
            and pieces
            and records_alone_are_cut(pieces, request.api_version)
        ):
            self.left_out_bytes += missing
            self.left_out_gaps += cuts_in(pieces)
            missing = 0
        request.response_missing = missing
        if request.api_key in self._read:
            request.response = before_cut(pieces) if missing else pieces
            if request.api_key == ApiKey.METADATA and not missing:
                learn_topics(b"".join(pieces), request.api_version, self.end.topics)
        self._out.append(request)
        self.confirmed = True
        if request is self._handshake:
            self.tokens_from_broker = True

    def _keep_early(
        self, correlation_id: int, pieces: list[Buffer], size: int, missing: int, end_time: int
    ) -> None:
        response = Exchange(
            connection=self.end.connection,
            client=self.end.client,
            broker=self.end.broker,
            number=UNSEEN,
            correlation_id=correlation_id,
            response_time=end_time,
            response_bytes=size,
            response=pieces,
            response_missing=missing,
        )
        self._early.append(response)
        while self._early.are_too_many:
            self._report_early()

    def _answered_early(self, request: Exchange) -> bool:
        """Pair a request with an earlier response: after a gap, requests are found late (`resync`)."""
        if request.correlation_id not in self._early.ids or self._repeats_ids:
            return False
        place = [one.correlation_id for one in self._early].index(request.correlation_id)
        response = self._early[place]
        if response.response_time < request.request_time:
            return False
        while self._waiting:
            self._report_first()
        for _ in range(place):
            self._report_early()
        self._early.popleft()
        pieces, size, missing = response.response, response.response_bytes, response.response_missing
        self._pair(request, pieces, size, missing, response.response_time)
        return True

    def _flush_early(self) -> None:
        while self._early:
            self._report_early()

    def _report_early(self) -> None:
        self._unpaired(self._early.popleft())

    def _unpaired(self, response: Exchange) -> None:
        response.response = []
        response.number = self._number
        response.client_id = self._client_text
        response.software = self.end.software
        self._number += 1
        self._out.append(response)

    def _read_client_id(self, frame: bytes, api_key: int, version: int) -> str:
        size = int.from_bytes(frame[REQUEST_START_BYTES:CLIENT_ID_AT], signed=True)
        if frame[CLIENT_ID_AT : CLIENT_ID_AT + size] == self.client_id and size == len(self.client_id):
            return self._client_text
        if api_key == ApiKey.CONTROLLED_SHUTDOWN and version == 0:
            return self._client_text
        try:
            found, _ = read_string(frame, REQUEST_START_BYTES)
        except ProtocolError:
            return self._client_text
        self.client_id = found or b""
        self._client_text = self.end.client_id = self.client_id.decode(errors="replace")
        return self._client_text

    def _special(self, exchange: Exchange, frame: bytes) -> None:
        """Read a request that changes how later bytes are read, or has the client's software or group."""
        version = exchange.api_version
        try:
            body = request_header(frame, LENGTH_BYTES)[-1]
            if exchange.api_key == ApiKey.PRODUCE:
                exchange.answer_due = produce.acks(frame, version, body) != 0
            elif exchange.api_key == ApiKey.API_VERSIONS and version >= 3:
                self.end.software = exchange.software = _software(frame, body)
            elif exchange.api_key == ApiKey.SASL_HANDSHAKE and version == 0:
                self.tokens = True
                self._handshake = exchange
            elif exchange.api_key in _GROUPS:
                exchange.group = _group(frame, exchange.api_key, version, body)
        except ProtocolError:
            return  # cut off, or of a later version: its contents stay unknown


_SPECIAL: Final = frozenset({ApiKey.PRODUCE, ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE})
_GROUPS: Final = frozenset(
    {
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.JOIN_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.SYNC_GROUP,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
    }
)
"""The requests of a group's members. Their bodies begin with the group's name."""
_MANY_GROUPS: Final = 8
"""The first version of OffsetFetch that may request several groups."""


def _group(frame: Buffer, api_key: int, version: int, body: int) -> str:
    if api_key == ApiKey.OFFSET_FETCH and version >= _MANY_GROUPS:
        groups, body = read_compact_count(frame, body)
        if groups != 1:
            return ""
    read_name = read_compact_string if is_flexible(api_key, version) else read_string
    name, _ = read_name(frame, body)
    return (name or b"").decode(errors="replace")


def _software(frame: Buffer, body: int) -> str:
    name, at = read_compact_string(frame, body)
    version, _ = read_compact_string(frame, at)
    return b" ".join(part for part in (name, version) if part).decode(errors="replace")


def learn_topics(frame: Buffer, version: int, topics: dict[bytes, str]) -> None:
    """Add names by topic id from a Metadata response, with its length. Only v10 to v13 have topic ids."""
    if IDS_VERSION <= version <= LAST_VERSION:
        topics |= _topics_of(bytes(frame[RESPONSE_START_BYTES:]), version)


@lru_cache(maxsize=8)
def _topics_of(frame: bytes, version: int) -> dict[bytes, str]:
    """Return names by topic id. Results are cached: all clients of a cluster get the same response."""
    topics: dict[bytes, str] = {}
    with suppress(ProtocolError):  # names are only shown to people; without a name a topic is shown by its id
        body = frame[skip_tags(frame, 0)[1] :]
        for topic in read_topics(body, version, limited=False)[1]:
            if topic.name and topic.topic_id and not topic.error_code:
                topics[topic.topic_id] = topic.name.decode(errors="replace")
    return topics
