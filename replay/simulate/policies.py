"""The two policies by which captured fetches use sessions. Sans-IO.

- ``gateway``: each fetch goes through the gateway's core, `proxy.core.connection.Connection`, which decides
  as in a live gateway. `CapturedBroker` makes the broker's responses from the captured ones.
- ``always``: every connection gets a session at its first eligible fetch, and the broker never evicts it.
  This defines what sessions can save.
"""

from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from proxy.core.connection import Connection
from proxy.core.eligibility import SessionLimits
from proxy.core.fetches import Fetches
from proxy.core.responses import clamped
from proxy.protocol.api import (
    LENGTH_BYTES,
    REQUEST_CORRELATION_ID,
    RESPONSE_CORRELATION_ID,
    ApiKey,
    request_header,
)
from proxy.protocol.fetch_layout import FetchLayout
from proxy.protocol.fetch_request import (
    SESSIONLESS_EPOCH,
    FetchRequest,
    build_fetch_request,
    parse_fetch_request,
)
from proxy.protocol.fetch_response import response_head
from proxy.protocol.primitives import Buffer, encode_count
from proxy.session.decision import Delta, Reason
from proxy.session.handler import FetchSessionHandler
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.simulate.captured_broker import SESSION_ID, CapturedBroker
from replay.simulate.captured_response import CapturedResponse, joined
from replay.simulate.lists import OneTopic, SeveralTopics
from replay.simulate.outcome import (
    NOT_UNDERSTOOD,
    UNPAIRED,
    CapturedFetch,
    Kind,
    Outcome,
    kind_of,
    share_elements,
    share_sent,
    share_whole,
)
from replay.simulate.runs import OtherSession, SteadySession

_NO_SLOT_LIMIT: Final = 1 << 30
_SECOND: Final = 1_000_000_000


@dataclass(slots=True, eq=False)
class _SimulatedRequest:
    """A request that the simulated broker has not answered yet."""

    correlation_id: bytes
    request: FetchRequest | None
    """The fetch request. None for the core's own ApiVersions request."""
    outcome: Outcome
    own: bool
    """Whether the core sent it on its own initiative. Then no fetch of the client waits for the response."""


class GatewayPolicy:
    """A policy that plays fetches through the gateway's own core, with the times of the capture."""

    def __init__(self) -> None:
        self.differing = 0
        self._connection = Connection(sessions=SessionLimits(max_sessions=_NO_SLOT_LIMIT), resolve=None)
        self._broker = CapturedBroker()
        self._open: deque[CapturedFetch] = deque()
        self._in_flight: deque[_SimulatedRequest] = deque()
        self._last: FetchRequest | None = None
        """The last fetch that `add` got."""
        self._steady: SteadySession | None = None
        self._steady_by: tuple[object, object] | None = None
        """What `_steady` was made of."""

    def versions(self, exchange: Exchange) -> list[Outcome]:
        """Pass the client's ApiVersions exchange to the core, which learns the broker's versions."""
        if not (exchange.request and exchange.response):
            return []
        settled = self.settle(exchange.request_time)
        self._connection.receive_client(exchange.request, exchange.request_time / _SECOND)
        if self._connection.drain_broker():
            response = b"".join(exchange.response)
            self._broker.moves_all = _moves_all(response, exchange.api_version)
            self._connection.receive_broker(response, exchange.response_time / _SECOND)
        self._connection.drain_client()
        return settled

    def steady(self) -> SteadySession | None:
        """Return what the next fetch is compared with. None if the core has to process it."""
        fetches = self._connection.fetches
        if self._open or self._in_flight or self._connection.state.fault is not None:
            return None
        template, rotation = fetches.steady(), fetches.session.rotation
        if template is None or rotation is None:
            return self._steady_of_several(fetches)
        if self._steady_by != (template, rotation):
            self._steady_by = template, rotation
            self._steady = SteadySession(fetches, OneTopic(fetches, template, rotation), self._broker)
        return self._steady

    def _steady_of_several(self, fetches: Fetches) -> SteadySession | None:
        last = self._last
        listing = last.listing if last is not None else None
        if last is None or listing is None or (table := fetches.steady_table(last, listing)) is None:
            return None
        if self._steady_by != (last, table):
            self._steady_by = last, table
            lists = SeveralTopics(fetches, last, listing, table)
            self._steady = SteadySession(fetches, lists, self._broker)
        return self._steady

    def add(self, fetch: CapturedFetch) -> list[Outcome]:
        """Add the next fetch. If its response was not captured, it is sent and stays without one."""
        exchange, outcome = fetch.outcome.exchange, fetch.outcome
        settled = self.settle(exchange.request_time)
        self._open.append(fetch)
        self._last = fetch.request
        connection, state = self._connection, self._connection.state
        time = exchange.request_time / _SECOND
        dealt_with, passed = connection.fast_path.request(exchange.request, time)
        if not dealt_with:
            connection.receive_client(exchange.request, time)
        # After a fault the core accepts no fetch.
        reason = state.decided if state.fault is None else None
        if fetch.of_replica:  # for the core, a session of the client's own comes first
            reason = Reason.NOT_A_CONSUMER
        outcome.reason = reason.value if reason is not None else ""
        outcome.eligible = fetch.listed and reason is not Reason.NATIVE
        self._forward(outcome, passed)
        if outcome.eligible and outcome.session_kind is None:  # the core no longer reads the connection
            outcome.eligible, outcome.reason = False, NOT_UNDERSTOOD
        return settled

    def end(self, end: ConnectionEnd) -> tuple[list[Outcome], Outcome | None]:
        """Settle all open fetches. If the capture shows when the client left, the session is closed then."""
        settled = []
        closing = Outcome(_no_exchange(end))
        if end.closed:
            settled += self.settle(end.closed_time)  # after the close, the core treats responses differently
            self._connection.close_session(end.closed_time / _SECOND)
            self._forward(closing)
        settled += self.settle(None)
        settled += [fetch.outcome for fetch in self._open]
        return settled, closing if closing.closes else None

    def _forward(self, outcome: Outcome, passed: bytes = b"") -> None:
        """Send the requests that the fast path `passed`, and the core's. They count for this outcome."""
        data = passed + b"".join(self._connection.drain_broker())
        while data:
            size = 4 + int.from_bytes(data[:4])
            frame, data = data[:size], data[size:]
            api_key, version = int.from_bytes(frame[4:6]), int.from_bytes(frame[6:8])
            if api_key != ApiKey.FETCH:
                self._in_flight.append(
                    _SimulatedRequest(frame[REQUEST_CORRELATION_ID], None, outcome, own=True)
                )
                continue
            sent = parse_fetch_request(frame, version, request_header(frame, LENGTH_BYTES)[4])
            kind = kind_of(sent.session_id, sent.session_epoch)
            own = kind == "close" and frame != outcome.exchange.request
            self._in_flight.append(_SimulatedRequest(frame[REQUEST_CORRELATION_ID], sent, outcome, own=own))
            if own or outcome.eligible:
                self._count(outcome, sent, kind)
        self._answer_own()

    def _count(self, outcome: Outcome, sent: FetchRequest, kind: Kind) -> None:
        outcome.sent(kind, len(sent.frame), sent.partitions)
        share_sent(outcome, sent)
        if kind != "incremental" or sent.unsupported_reason or self._connection.session_table is None:
            return
        added, forgotten = self._broker.follow(sent)
        outcome.forgotten += forgotten
        outcome.added += added
        outcome.altered += sent.partitions - added

    def settle(self, until: int | None) -> list[Outcome]:
        """Deliver all responses that came by `until` (in nanoseconds). With None, deliver all responses.

        The broker answers requests in the order in which they were sent. If a fetch is sent again, its answer
        comes after the answers to requests sent in between.
        """
        settled = []
        self._connection.drain_events()  # nothing here uses them
        while self._open:
            if not self._is_in_flight(self._open[0].outcome):
                settled.append(self._open.popleft().outcome)
                continue
            fetch = next(fetch for fetch in self._open if fetch.outcome is self._in_flight[0].outcome)
            response = fetch.response
            if response is None or (until is not None and fetch.outcome.exchange.response_time > until):
                break
            self._answer(fetch, response)
        return settled

    def _is_in_flight(self, outcome: Outcome) -> bool:
        return any(sent.outcome is outcome and not sent.own for sent in self._in_flight)

    def _answer(self, fetch: CapturedFetch, response: CapturedResponse) -> None:
        """Answer the oldest request, which is for this fetch. The core may then send the fetch once more."""
        exchange, outcome, connection = fetch.outcome.exchange, fetch.outcome, self._connection
        time = exchange.response_time / _SECOND
        buffered, sent = connection.state.buffered, self._in_flight.popleft().request
        pieces = self._modelled(fetch, sent, response)
        size = sum(map(len, pieces))
        if outcome.eligible:
            outcome.session_response_bytes += size
            outcome.repair_bytes += size if outcome.repair_bytes else 0
        dealt_with, full = 0, b""
        if response.cut:
            for piece in joined(pieces):
                connection.receive_broker(bytes(piece), time)
        else:
            whole = b"".join(pieces)
            dealt_with, full = connection.fast_path.response(whole, time, time)
            if not dealt_with:
                connection.receive_broker(whole, time)
        self._forward(outcome)
        came = len(full) + sum(map(len, connection.drain_client()))
        if self._is_in_flight(outcome):
            return
        outcome.session_size = connection.state.session_partitions
        # The core buffers responses that are behind a fetch that it sent again.
        differs = came + connection.state.buffered - buffered != exchange.response_bytes
        if differs and outcome.eligible:
            self.differing += 1

    def _modelled(
        self, fetch: CapturedFetch, sent: FetchRequest | None, response: CapturedResponse
    ) -> list[Buffer]:
        if sent is None:
            raise RuntimeError("the core's own requests are answered at once")
        outcome = fetch.outcome
        kind = kind_of(sent.session_id, sent.session_epoch)
        if kind == "incremental" and outcome.eligible:
            pieces, elements = self._broker.response(response.as_v7, fetch.listing)
            share_elements(outcome, sent.layout, elements)
            return pieces
        if sent.layout.version != response.layout.version:
            response = response.as_v7
        if outcome.eligible:
            share_whole(outcome, response)
        table = self._connection.session_table
        asks = kind == "full" and outcome.eligible and not outcome.reason
        if asks and table is not None and self._broker.make(table, fetch.listing, response):
            return response.with_session(SESSION_ID)
        return list(response.pieces)

    def _answer_own(self) -> None:
        """Answer the core's own requests: closes of a session, and ApiVersions."""
        while self._in_flight and self._in_flight[0].own:
            sent = self._in_flight.popleft()
            if sent.request is None:
                response = _modern(sent.correlation_id)
            else:
                response = _closed(sent.request.layout, sent.correlation_id)
                sent.outcome.session_response_bytes += len(response)
                sent.outcome.close_bytes += len(response)
            self._connection.receive_broker(response, 0.0)


class AlwaysPolicy:
    """A policy that gives every connection a session at its first eligible fetch.

    The broker never evicts it. A new one begins if a fetch can't be sent in it (another isolation level, for
    example).
    """

    def __init__(self) -> None:
        self._handler = FetchSessionHandler()
        self._broker = CapturedBroker()

    def versions(self, exchange: Exchange) -> None:
        """Learn the broker's order of partitions in a session, from its ApiVersions response."""
        if exchange.request and exchange.response:
            self._broker.moves_all = _moves_all(b"".join(exchange.response), exchange.api_version)

    def add(self, fetch: CapturedFetch) -> list[Outcome]:
        """Add the next fetch. A fetch whose response was not captured counts with its captured bytes."""
        outcome, response = fetch.outcome, fetch.response
        if response is None:
            outcome.reason = UNPAIRED
        elif fetch.of_replica:
            outcome.reason = Reason.NOT_A_CONSUMER.value
        elif not fetch.listed or response.walk.session_id:
            outcome.reason = Reason.NATIVE.value
        elif response.walk.error_code:
            outcome.reason = f"error {response.walk.error_code}"
        else:
            self._through_session(fetch, response)
            outcome.session_size = self._handler.table.size if self._handler.table is not None else 0
        return [outcome]

    def beside(self, lists: SeveralTopics) -> OtherSession | None:
        """Return the session, to follow a run of the gateway's session of these lists."""
        own, table, listing = self._handler.table, lists.table, lists.listing
        if own is None or own.size != table.size or (located := own.locate(listing)).min() < 0:
            return None
        rows = np.zeros(len(table.topic), np.intp)
        rows[table.locate(listing)] = located
        return OtherSession(own, self._broker, rows.tolist())

    def _through_session(self, fetch: CapturedFetch, response: CapturedResponse) -> None:
        outcome, handler, listing = fetch.outcome, self._handler, fetch.listing
        isolation = fetch.request.isolation_level
        outcome.eligible = True
        table = handler.table
        known = table is not None and table.isolation_level == isolation
        delta = handler.compare(listing) if known else None
        if delta is not None and handler.apply(listing, delta):
            self._incremental(fetch, response, delta)
            return
        made = handler.learn_listing(listing, isolation)
        sent = _whole(fetch, (0, 0 if made else SESSIONLESS_EPOCH))
        outcome.sent("full" if made else "sessionless", len(sent.frame), sent.partitions)
        share_sent(outcome, sent)
        if made:
            response = response.as_v7
        if handler.table is not None and not self._broker.make(handler.table, listing, response):
            handler.drop()
        share_whole(outcome, response)
        outcome.session_response_bytes = response.size

    def _incremental(self, fetch: CapturedFetch, response: CapturedResponse, delta: Delta) -> None:
        outcome, listing, request = fetch.outcome, fetch.listing, fetch.request
        frame = build_fetch_request(
            request, listing.layout, (SESSION_ID, 1), delta.topics, delta.forgotten_topics
        )
        sent = parse_fetch_request(frame, listing.layout.version, request.body)
        outcome.sent("incremental", len(frame), sent.partitions)
        outcome.added, outcome.altered = len(delta.added), len(delta.altered)
        outcome.forgotten = len(delta.forgotten)
        share_sent(outcome, sent)
        if outcome.forgotten:
            self._broker.forget()
        if outcome.added:
            self._broker.add(delta.rows[delta.added])
        pieces, elements = self._broker.response(response.as_v7, listing)
        outcome.session_response_bytes = sum(map(len, pieces))
        share_elements(outcome, listing.layout, elements)


def _moves_all(response: bytes, version: int) -> bool:
    """Return whether a broker with this ApiVersions response moves all that it sends to the end."""
    return _moves_all_of(response[RESPONSE_CORRELATION_ID.stop :], version)


@lru_cache(maxsize=64)  # all clients of a broker get the same response
def _moves_all_of(body: bytes, version: int) -> bool:
    _, features = clamped(bytes(RESPONSE_CORRELATION_ID.stop) + body, version)
    return features is not None and not features.moves_records_only


def _whole(fetch: CapturedFetch, session: tuple[int, int]) -> FetchRequest:
    """Return the full fetch that would be sent to the broker. A fetch of v4 to v6 becomes v7."""
    request, listing = fetch.request, fetch.listing
    if listing.layout is request.layout:
        return request
    frame = build_fetch_request(request, listing.layout, session, listing.topics())
    return parse_fetch_request(frame, listing.layout.version, request.body)


def _modern(correlation_id: bytes) -> bytes:
    """Return the ApiVersions response of a modern broker, if the client's own was not captured."""
    ranges = b"".join(key.to_bytes(2) + least.to_bytes(2) + most.to_bytes(2) for key, least, most in _MODERN)
    body = correlation_id + bytes(2) + encode_count(len(_MODERN)) + ranges
    return len(body).to_bytes(4) + body


_MODERN: Final = ((ApiKey.FETCH, 4, 17), (ApiKey.OFFSET_FETCH, 1, 9), (ApiKey.FIND_COORDINATOR, 0, 6))


def _closed(layout: FetchLayout, correlation_id: bytes) -> bytes:
    tags = b"\x00" if layout.flexible else b""
    content = response_head(layout, correlation_id, 0) + layout.count(0) + tags
    return len(content).to_bytes(4) + content


def _no_exchange(end: ConnectionEnd) -> Exchange:
    """Return an empty exchange, for the close that the gateway sends after the client has left."""
    return Exchange(
        connection=end.connection,
        client=end.client,
        broker=end.broker,
        number=-1,
        client_id=end.client_id,
        software=end.software,
        api_key=ApiKey.FETCH,
        request_time=end.closed_time,
        response_time=end.closed_time,
    )
