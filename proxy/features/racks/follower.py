"""Keeps a client from harm while it reads from a follower: ``--rack-clients``. Sans-IO.

A follower learns the high watermark later than its leader. If a client is above it, the follower answers at
once with nothing, and again and again. Such responses are held back for some milliseconds.

A follower that is stopped answers nothing, and its leader does not know. Its connections are ended, so that
clients ask the leader. If a client connects to it again, the connection is ended sooner.
"""

from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from math import inf
from typing import Final

from proxy.core.connection_state import ConnectionState, Phase
from proxy.core.in_flight import Claim, FetchHandler
from proxy.core.own import OwnResponse, own
from proxy.features.racks.rack_leaders import RackLeaders
from proxy.protocol.api import LENGTH_BYTES, ApiKey, request_header, response_header
from proxy.protocol.fetch_request import FetchRequest
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.protocol.leader_requests import BY_ID, BY_NAME, metadata_request
from proxy.protocol.primitives import ProtocolError

OVERDUE_SECONDS: Final = 2.0
"""A follower has failed if the response to a fetch is this late, in seconds, after max_wait_ms."""
ASK_SECONDS: Final = 10.0
"""If for this time no response has described the topics that a client reads from a follower, the gateway asks
for them."""
SILENT_SECONDS: Final = 0.5
"""How long a follower that was late with a fetch may take for a request that brokers answer at once. Clients
that connect to it again would wait for their own time limits: 10 s and more."""
HOLD_SECONDS: Final = 0.01
"""How long the first empty response of a follower is held back after its fetch. Each next one is held back
for twice as long."""
MAX_HOLD_SECONDS: Final = 0.05
"""The longest time for which an empty response is held back after its fetch."""
_LOOK_SECONDS: Final = 0.5
"""How often a late response is looked at while its bytes still arrive."""
_FETCH: Final = int(ApiKey.FETCH)
_METADATA: Final = int(ApiKey.METADATA)
_CORRELATION_ID: Final = 0x6667_7263
_AT_ONCE: Final = frozenset(
    {ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.LIST_OFFSETS}
)
"""The requests that brokers answer at once."""


class Follower:
    """The broker of a connection on which a client reads from a follower.

    `node_id` returns the broker's node id, or None while it is unknown.
    """

    __slots__ = (
        "_alarm",
        "_bytes_in",
        "_due",
        "_holds",
        "_may_fail",
        "_muted_until",
        "_node_id",
        "_shared",
        "_state",
        "_waits",
        "early",
        "watched",
    )

    def __init__(
        self, shared: RackLeaders, node_id: Callable[[], int | None], state: ConnectionState
    ) -> None:
        self._shared = shared
        self._node_id = node_id
        self._state = state
        self._may_fail = False
        """Whether the follower has failed if it is late with a request that brokers answer at once."""
        self.watched = False
        """Whether the client reads partitions here that another broker leads."""
        self.early = 0
        """The number of responses in a row that were held back."""
        self._waits = True
        """Whether the client's last fetch was to wait for records."""
        self._muted_until = 0.0
        """When the broker reads requests again, in seconds, if it throttles the client (KIP-219)."""
        self._holds: deque[tuple[float, Claim]] = deque()
        """The responses that are held back, each with its end in seconds."""
        self._bytes_in = 0
        """The bytes that the broker had sent at the last call of `tick`."""
        self._due = 0.0
        """When `tick` next looks at the follower, in seconds."""
        self._alarm: Callable[[float], None] = lambda _: None

    def attach(self, alarm: Callable[[float], None]) -> None:
        self._alarm = alarm

    # Empty responses

    def is_early(self, handler: FetchHandler, walk: FetchResponseWalk | None) -> bool:
        """Return whether the follower had to wait, but has answered at once with nothing.

        Note for how long it throttles the client. `walk` is None if the response is the same as the last one
        without records.
        """
        state, fetch = self._state, handler.fetch
        if fetch is not None and fetch.frame:  # a fetch of the fast path has none, and is like the last one
            self._waits = fetch.min_bytes > 0
        empty = walk is None or not (walk.record_bytes or walk.failed or walk.redirects or walk.error_code)
        throttle_ms = 0 if walk is None else walk.throttle_time_ms
        if throttle_ms > 0:
            self._muted_until = state.now + throttle_ms / 1e3
        if not empty or throttle_ms or fetch is None or not self._waits:
            self.early = 0
            return False
        early = state.now - state.queue.expected[0].sent_at < min(MAX_HOLD_SECONDS, handler.wait / 2)
        self.early = self.early + 1 if early else 0
        return early

    def hold(self) -> None:
        """Hold back the response that now ends, for some milliseconds after its fetch."""
        queue = self._state.queue
        request = queue.expected[0]
        due = request.sent_at + min(HOLD_SECONDS * 2 ** (self.early - 1), MAX_HOLD_SECONDS)
        self._holds.append((due, queue.claim(request)))
        self._shared.held += 1
        self._state.plans.forget_fetch()
        self._alarm(due)

    def _respond(self, now: float) -> None:
        state, holds = self._state, self._holds
        while holds and holds[0][0] <= now:
            state.to_client += state.queue.respond(holds.popleft()[1])

    def release(self) -> None:
        """Send all responses that are held back, because the connection is about to end."""
        self._respond(inf)

    # Replicas in sync

    def ask(
        self, fetch: FetchRequest, topics: Collection[bytes], learn: Callable[[bytes, int, float], None]
    ) -> None:
        """Ask the broker for Metadata of topics. The question goes right before the client's fetch.

        `learn` gets the response without its header, its version, and the time in seconds.
        """
        state = self._state
        if not topics or state.phase is Phase.CLOSING or state.from_client.left:
            return
        by_id = fetch.layout.topic_ids
        _, _, _, client_id, _ = request_header(fetch.frame, LENGTH_BYTES)
        frame = metadata_request(_CORRELATION_ID, client_id or b"", topics, by_id=by_id)
        version = BY_ID if by_id else BY_NAME

        def take(response: bytes | None, now: float) -> None:
            if response is not None:
                with suppress(ProtocolError):
                    _, at = response_header(response, LENGTH_BYTES, _METADATA, version)
                    learn(response[at:], version, now)

        state.tally.probe_bytes += len(frame)
        state.send(own(frame, OwnResponse(state, _METADATA, take, 0)), frame)

    def fail(self, why: str) -> None:
        """End the connection, because the client has to leave and can't be told so."""
        self._state.fail("broker", f"a replica in the rack {why}, so its client asks the leader")

    # The follower's health

    def watch(self) -> None:
        """Begin to look whether the follower answers. No empty response takes the fast path early."""
        if not self.watched:
            self.watched = True
            self._state.plans.no_sooner = MAX_HOLD_SECONDS
            self._look_at(self._state.now + OVERDUE_SECONDS)

    def asked(self, api_key: int, *, may_fail: bool) -> None:
        """Note a request of the client that is not a fetch.

        If it `may_fail`, the follower has failed when it is late with a request that brokers answer at once.
        Some clients close their connections themselves before a fetch is late.
        """
        now = self._state.now
        if api_key not in _AT_ONCE:
            return
        if self._shared.silent(self._node_id(), now):
            self._look_at(now + SILENT_SECONDS)
        elif may_fail and not self.watched:
            self._may_fail = True
            self._look_at(now + OVERDUE_SECONDS)

    def hurry(self, now: float) -> None:
        """Look at the broker now: a broker was late with a fetch of another client."""
        if self._shared.silent(self._node_id(), now):
            self._look_at(now)

    def _look_at(self, due: float) -> None:
        self._due = due
        self._alarm(due)

    def tick(self, now: float) -> None:
        """Send responses that were held back. If the follower does not answer, end the connection."""
        self._respond(now)
        state, silent = self._state, self._shared.silent(self._node_id(), now)
        if not (self.watched or silent or self._may_fail) or now < self._due:
            return
        if state.fault is not None or state.phase is Phase.CLOSING:
            return
        head = state.queue.expected[0] if state.queue.expected else None
        due = now + OVERDUE_SECONDS
        late = self._late_at() if self.watched else inf
        if head is not None and head.api_key in _AT_ONCE:
            asked = max(head.sent_at, self._muted_until)
            late = min(late, asked + OVERDUE_SECONDS) if self._may_fail else late
            soon = min(late, asked + SILENT_SECONDS) if silent else late
        else:
            soon = late
        if soon < inf:
            due = soon
            bytes_in = state.plans.count().broker.bytes_in
            if now >= due and bytes_in == self._bytes_in:
                if now >= late:
                    self._shared.failed(self._node_id(), "overdue", now)
                self.fail("does not respond")
                return
            self._bytes_in = bytes_in
        self._look_at(due if due > now else now + _LOOK_SECONDS)

    def _late_at(self) -> float:
        """Return when the first fetch without a response is late, in seconds. `inf` if there is none.

        A broker handles the requests of a connection one by one, so those before the fetch may wait as well.
        """
        wait = OVERDUE_SECONDS
        for request in self._state.queue.expected:
            wait += request.handler.wait
            if request.api_key == _FETCH:
                return max(request.sent_at, self._muted_until) + wait
        return inf

    def lose(self) -> None:
        # The broker has closed the connection: it may be about to stop.
        if self.watched and self._state.phase is not Phase.CLOSING and self._state.fault is None:
            self._shared.failed(self._node_id(), "closed", self._state.now)

    def end(self) -> None:
        self._holds.clear()
