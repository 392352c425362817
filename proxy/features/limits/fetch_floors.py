"""Lets brokers gather records before they respond: ``--fetch-min-bytes``, ``--fetch-max-wait``. Sans-IO.

A fetch returns as soon as the broker has min_bytes of records, or after max_wait_ms. Most clients ask for one
byte, so they get nearly each record in a response of its own. With larger values there are fewer fetches, for
later records.

A client gives up a fetch that takes too long, and this time-out is in no request. So max_wait_ms is raised
only for software whose default is known, or if the operator has named the client id.

After the leader of a partition has moved, a client asks for Metadata and adds the partition to its fetches at
the new leader. Some clients do each step behind a fetch that waits. So the fetches of such a client are not
raised for a while, on none of its connections.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from weakref import WeakValueDictionary

from proxy.core.connection_state import ConnectionState
from proxy.core.in_flight import FetchHandler
from proxy.core.requests import read_client_names
from proxy.core.stage import Stage
from proxy.protocol.api import LENGTH_BYTES, ApiKey, is_flexible, request_header
from proxy.protocol.fetch_request import FetchRequest
from proxy.protocol.primitives import ProtocolError, read_compact_string, read_int32, read_string
from proxy.protocol.produce import READ_WITHIN

MAX_WAIT_MS: Final = 5000
"""The longest max_wait_ms that a fetch is given. Fetches that wait longer on their own are not changed."""
MAX_MIN_BYTES: Final = 2**31 - 1
"""The largest min_bytes: it is an int32 (FetchRequest.json)."""
TIMEOUTS_MS: Final = {
    "apache-kafka-java": 30_000,
    "rdkafka": 60_000,
    "confluent-kafka": 60_000,
    "sarama": 30_000,
    "kafka-python": 30_000,
    "kafka-ts": 60_000,
}
"""The default time-outs of requests, by a part of the name of the client's software (KIP-511):
request.timeout.ms, socket.timeout.ms, Net.ReadTimeout, request_timeout_ms, requestTimeout."""
OVERHEADS_MS: Final = {"kgo": 10_000, "franz-go": 10_000}
"""The same for software whose time-out begins after max_wait_ms: RequestTimeoutOverhead."""
PART: Final = 3
"""A fetch waits for at most this part of a time-out: a third."""
PAUSE_SECONDS: Final = 5.0
"""How long the fetches of a client are not raised after a response has told it that a leader has moved.
Clients wait up to 2 s before they look for the new leader (Sarama's Consumer.Retry.Backoff)."""
_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
_FETCH: Final = int(ApiKey.FETCH)
_JOIN_GROUP: Final = int(ApiKey.JOIN_GROUP)
_HEARTBEATS: Final = frozenset(
    map(
        int,
        (
            ApiKey.HEARTBEAT,
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            ApiKey.SHARE_GROUP_HEARTBEAT,
            ApiKey.STREAMS_GROUP_HEARTBEAT,
        ),
    )
)
_KAFKA_GO_VERSIONS: Final = frozenset({5, 10})
"""The versions of kafka-go's fetches whose entries have a log_start_offset."""
_NONE: Final[Mapping[str, int]] = {}


class FloorsPause:
    """The connections of one client, and the time in seconds until which none of its fetches is raised."""

    __slots__ = ("__weakref__", "stages", "until")

    def __init__(self) -> None:
        self.stages: set[FetchFloorsStage] = set()
        self.until = 0.0

    def begin(self, now: float) -> None:
        """Begin a pause, or prolong it."""
        self.until = now + PAUSE_SECONDS
        for stage in self.stages:
            stage.pause()


class FetchLimits:
    """The limits of fetches by client id. A process has one such object.

    `min_bytes` and `max_wait_ms` are the smallest values of a fetch, `max_bytes` is the largest. The entry ""
    is for all other clients. 0 means none.
    """

    __slots__ = ("max_bytes", "max_wait_ms", "min_bytes", "pauses")

    def __init__(
        self,
        min_bytes: Mapping[str, int] = _NONE,
        max_wait_ms: Mapping[str, int] = _NONE,
        max_bytes: Mapping[str, int] = _NONE,
    ) -> None:
        self.min_bytes = min_bytes
        self.max_wait_ms = max_wait_ms
        self.max_bytes = max_bytes
        self.pauses = WeakValueDictionary[tuple[str, str], FloorsPause]()
        """The pauses of connected clients that have floors, by host and client id."""

    def __repr__(self) -> str:
        return f"<FetchLimits {self.min_bytes} {self.max_wait_ms} {self.max_bytes}>"


class FetchFloorsStage(Stage):
    """Raises min_bytes and max_wait_ms in the fetches of one client."""

    __slots__ = (
        "_floors",
        "_partition_bytes",
        "_pause",
        "_paused",
        "_session_ms",
        "_software",
        "_state",
    )

    def __init__(self, floors: FetchLimits, state: ConnectionState) -> None:
        self._floors = floors
        self._state = state
        self._software: str | None = None
        """The name of the client's software. None if the client has not told it on this connection."""
        self._session_ms: int | None = None
        """The session timeout of the client's group, if the client sends its heartbeats on this connection. 0
        if it is not known. None without heartbeats here."""
        self._partition_bytes = 0
        """The smallest partition_max_bytes in the fetches so far. 0 before the first one."""
        self._pause: FloorsPause | None = None
        """The pause that all connections of the client share. None as long as it has no floors."""
        self._paused = False
        """Whether the last fetch was not raised because of a pause, or the next one will not be."""

    def on_request(self, data: bytes, size: int, api_key: int, version: int) -> bytes | None:
        if api_key == _API_VERSIONS and len(data) >= size and size < READ_WITHIN:
            with suppress(ProtocolError):
                _, software = read_client_names(data, version)
                if software is not None and software.name != self._software:
                    self._software = software.name
                    self._forget()
        elif api_key == _JOIN_GROUP or (api_key in _HEARTBEATS and self._session_ms is None):
            session_ms = _session_timeout(data, version) if api_key == _JOIN_GROUP else 0
            if session_ms != self._session_ms:
                self._session_ms = session_ms
                self._forget()
        return data

    def on_fetch(self, fetch: FetchRequest) -> FetchRequest:
        client_id = self._state.client_id
        least, longest = (
            of_client(floors, client_id) for floors in (self._floors.min_bytes, self._floors.max_wait_ms)
        )
        # A client that gets a part of partitions gets only some of the records that the broker counts.
        if not (least or longest) or self._state.gets_part:
            return fetch
        if least > fetch.min_bytes:
            self._partition_bytes = smallest_partition(fetch, self._partition_bytes)
        if self._is_paused():
            return fetch
        longest = self._limited(longest, fetch) if longest > fetch.max_wait_ms else 0
        version = self._state.client_version or fetch.layout.version
        wait_ms, min_bytes = raised(fetch, least, longest, self._partition_bytes, version)
        if wait_ms == fetch.max_wait_ms and min_bytes == fetch.min_bytes:
            return fetch
        return fetch.with_limits(max_wait_ms=wait_ms, min_bytes=min_bytes)

    def on_fetched(self, handler: FetchHandler) -> None:
        walk = handler.walk
        if self._pause is not None and walk is not None and walk.moved:
            self._pause.begin(self._state.now)

    def repeats(self, api_key: int, _version: int, *, in_session: bool = False) -> bool:  # noqa: ARG002
        # Fetches after a pause are raised again.
        return not (self._paused and api_key == _FETCH)

    def pause(self) -> None:
        """Process the next fetch in the core, because it is not to be raised."""
        self._paused = True
        self._forget()

    def end(self) -> None:
        if self._pause is not None:
            self._pause.stages.discard(self)
            self._pause = None

    def _is_paused(self) -> bool:
        state = self._state
        if self._pause is None:
            who = state.host, state.client_id
            self._pause = self._floors.pauses.setdefault(who, FloorsPause())
            self._pause.stages.add(self)
        self._paused = state.now < self._pause.until
        return self._paused

    def _limited(self, floor: int, fetch: FetchRequest) -> int:
        """Return a floor of max_wait_ms, limited to a third of each time-out that is known."""
        client_id, floors = self._state.client_id, self._floors.max_wait_ms
        timeout_ms = self._timeout_ms(fetch)
        if timeout_ms is not None:
            floor = min(floor, timeout_ms // PART)
        elif not client_id or client_id not in floors:
            return 0
        # A broker takes the next request of a connection when it has answered the last one
        # (fetch-semantics, trap 16). So a heartbeat waits for the fetch before it.
        return floor if self._session_ms is None else min(floor, self._session_ms // PART)

    def _timeout_ms(self, fetch: FetchRequest) -> int | None:
        """Return the default time-out of the client's fetches, or None if it is not known."""
        software = self._software or ""
        for name, timeout_ms in TIMEOUTS_MS.items():
            if name in software:
                return timeout_ms
        overhead_ms = OVERHEADS_MS.get(software)
        return None if overhead_ms is None else fetch.max_wait_ms + overhead_ms

    def _forget(self) -> None:
        """Have the core process the next fetch, because it may have another floor than the last one."""
        plans = self._state.plans
        plans.forget_fetch()
        plans.template = None


def raised(
    fetch: FetchRequest, min_bytes: int, max_wait_ms: int, partition_bytes: int, version: int | None = None
) -> tuple[int, int]:
    """Return max_wait_ms and min_bytes of a consumer's fetch, raised to these floors.

    A fetch that asks for a response at once keeps its own values, and so does a fetch of kafka-go. min_bytes
    is not raised if the fetch waits for longer than `MAX_WAIT_MS`, because its records would be later still.
    It is raised to max_bytes of the fetch at most (KIP-74).

    A broker counts at most partition_max_bytes of a partition. If min_bytes were more, a client that catches
    up with one partition would always wait for max_wait_ms. So `partition_bytes` is the smallest one of the
    client. `version` is that of the client's fetch, if `fetch` has another one.
    """
    wait_ms, least = fetch.max_wait_ms, fetch.min_bytes
    if wait_ms <= 0 or least <= 0 or _is_kafka_go(fetch, version or fetch.layout.version):
        return wait_ms, least
    wait_ms = max(wait_ms, max_wait_ms)
    if wait_ms <= MAX_WAIT_MS:
        least = max(least, min(min_bytes, fetch.max_bytes, partition_bytes))
    return wait_ms, least


def smallest_partition(fetch: FetchRequest, before: int) -> int:
    """Return the smallest partition_max_bytes of a client, or 0 if no fetch has listed a partition yet.

    In the client's own session, a fetch does not list all its partitions. So all fetches count: `before` is
    the smallest one of the fetches before, or 0.
    """
    listing = fetch.listing
    if listing is None or not len(listing):
        return before
    least = int(listing.entries.view(listing.layout.request_fields)["max_bytes"].min())
    return min(least, before or least)


def _is_kafka_go(fetch: FetchRequest, version: int) -> bool:
    """Return whether a fetch is kafka-go's. Its read deadline is little more than its own max_wait_ms.

    If the response is late, kafka-go connects again and repeats the fetch. So it would never get records for
    which the broker waits to the end. It does not tell its name. Its Client sends session id -1. Its Reader
    lists one partition, with a log_start_offset of 0 (fetch-semantics 1.3, 2.2, 6.7). Sarama does so as
    well, in all versions.
    """
    if fetch.session_id < 0:
        return True
    listing = fetch.listing
    if listing is None or len(listing) != 1 or version not in _KAFKA_GO_VERSIONS:
        return False
    return not listing.entries.view(listing.layout.request_fields)["log_start_offset"][0]


def of_client(by_client: Mapping[str, int], client_id: str) -> int:
    """Return a client's value of an option that has values by client id, or 0."""
    return by_client.get(client_id, by_client.get("", 0))


def _session_timeout(frame: bytes, version: int) -> int:
    """Return the session timeout in a JoinGroup request, or its first bytes, in ms. 0 if it can't be read."""
    try:
        _, _, _, _, at = request_header(frame, LENGTH_BYTES)
        read_name = read_compact_string if is_flexible(_JOIN_GROUP, version) else read_string
        _, at = read_name(frame, at)  # group_id
        return max(read_int32(frame, at)[0], 0)
    except ProtocolError:
        return 0
