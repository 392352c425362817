"""Sends what only a leader answers to the leader, for clients of ``--rack-clients``. Sans-IO.

Metadata calls a replica in the gateway's rack the leader (`RackLeaders`). So these clients ask the replica
for offsets, too, and may even produce to it. It answers NOT_LEADER_OR_FOLLOWER. The leader is then asked for
the offsets, on the same client's own connection. If there is none, or if the client is no pure
consumer, the error passes, and the client gets true Metadata for some time.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final

from proxy.core.asking.asker import Hold, asker_of
from proxy.core.asking.repeat import MAX_BYTES
from proxy.core.connection_state import ConnectionState
from proxy.core.events import Noticed
from proxy.core.in_flight import Handler, InFlight, Over
from proxy.core.requests import readable
from proxy.core.stage import Stage
from proxy.features.racks.rack_leaders import ALL, RackLeaders, SentAway
from proxy.features.racks.repeat_offsets import OFFSETS, OffsetsRepeat, OffsetsRequest
from proxy.protocol.api import LENGTH_BYTES, ApiKey, ErrorCode, request_header, response_header
from proxy.protocol.fetch_layout import MIN_VERSION
from proxy.protocol.fetch_request import FetchRequest
from proxy.protocol.fetch_v10 import RAISED
from proxy.protocol.leader_requests import Leader, Place
from proxy.protocol.messages import read
from proxy.protocol.primitives import Buffer, ProtocolError, Truncated
from proxy.protocol.produce import wants_response
from proxy.protocol.schemas import DELETE_RECORDS, PRODUCE

TRUE_SECONDS: Final = 60.0
"""How long a client gets true Metadata for a topic whose leader could not be asked for it."""
LONG_SECONDS: Final = 3600.0
"""How long a client that is no pure consumer, or that often asks for offsets, gets true Metadata."""
OFTEN: Final = 3
"""A client that asks for offsets this many times within `OFTEN_SECONDS` asks often."""
OFTEN_SECONDS: Final = 300.0
MAX_CLIENTS: Final = 10_000
"""For how many clients and topics these times are remembered."""
_MAX_HEADER: Final = 1 << 16
"""How many bytes of a request are kept until its client id has arrived."""
_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_PRODUCE: Final = int(ApiKey.PRODUCE)
_FETCH: Final = int(ApiKey.FETCH)
_FOR_LEADERS: Final = frozenset(map(int, (ApiKey.SHARE_FETCH, ApiKey.DESCRIBE_PRODUCERS)))
"""Other requests that only leaders answer."""
_WRITES: Final = {
    _PRODUCE: (14, PRODUCE, "responses", "partition_responses", "index"),
    int(ApiKey.DELETE_RECORDS): (3, DELETE_RECORDS, "topics", "partitions", "partition_index"),
}
"""By API key: the first version that is not read, the schema of the response, and the names of its fields for
topics, partitions, and partition numbers."""
_SEEN: Final = frozenset({*OFFSETS, *_WRITES, *_FOR_LEADERS})


class Troubles:
    """Remembers the clients that needed leaders. The connections of a process share it."""

    def __init__(self) -> None:
        self._times: OrderedDict[tuple[str, str, bytes], deque[float]] = OrderedDict()
        """By client id, host and topic: when the topic's leaders last could not be asked, in seconds."""
        self._known: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        """By client id, host and reason: until when a client gets true Metadata, in seconds."""
        self.fetching: Counter[tuple[str, str]] = Counter()
        """The number of open connections that have fetched, by client id and host."""
        self.stages: set[RackOffsetsStage] = set()
        """The stages of all open connections."""

    def forget_plans(self) -> None:
        """Let all connections look at their next requests: replicas are named for other clients now."""
        for stage in self.stages:
            stage.forget_plans()

    def is_new(self, client_id: str, host: str, reason: str, now: float) -> bool:
        """Note that a client gets true Metadata for `LONG_SECONDS`. Return whether that is new."""
        key = client_id, host, reason
        if self._known.get(key, 0.0) > now:
            return False
        self._known[key] = now + LONG_SECONDS
        self._known.move_to_end(key)
        if len(self._known) > MAX_CLIENTS:
            self._known.popitem(last=False)
        return True

    def unanswered(self, client_id: str, host: str, topic: bytes, now: float) -> float:
        """Note that leaders of a topic could not be asked for a client's ListOffsets.

        Return how long the client gets true Metadata for the topic, in seconds. Until then, further times do
        not count: it may have many consumers.
        """
        key = client_id, host, topic
        times = self._times.setdefault(key, deque(maxlen=OFTEN))
        self._times.move_to_end(key)
        if len(self._times) > MAX_CLIENTS:
            self._times.popitem(last=False)
        if not times or now - times[-1] >= TRUE_SECONDS:
            times.append(now)
        often = len(times) == OFTEN and now - times[0] < OFTEN_SECONDS
        return LONG_SECONDS if often else TRUE_SECONDS


class FollowOffsets(Over):
    """Buffers the response to a request for offsets, and has leaders asked for what is missing in it."""

    __slots__ = ("_asked", "_pieces", "_size", "_stage", "hold")

    def __init__(self, inner: Handler, stage: "RackOffsetsStage", asked: OffsetsRequest) -> None:
        super().__init__(inner)
        self._stage = stage
        self._asked = asked
        self._pieces: list[Buffer] = []
        self._size = 0
        self.hold: Hold | None = None
        """See `Holding.hold`."""

    @property
    def buffered(self) -> int:  # type: ignore[override]  # of both handlers
        return self._inner.buffered + self._size

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        pieces = [*self._pieces, *self._inner.feed(chunk, last=last)]
        if not last and self._stage.may_hold:
            self._pieces, self._size = pieces, sum(map(len, pieces))
            return []
        self._pieces, self._size = [], 0
        if self._stage.may_hold:
            return self._stage.receive(self, self._asked, pieces)
        if last:
            self._stage.leave_unread(readable(self._asked.client_id))
        return pieces

    def end(self, request: InFlight) -> bool:
        return self._inner.end(request) and not (self.hold and self.hold.is_held)

    def passes(self, size: int) -> bool:
        return not self._stage.may_hold and self._inner.passes(size)


class SeeRefusals(Over):
    """Looks for partitions of a write that the broker does not lead. The response passes unchanged."""

    __slots__ = ("_api_key", "_chunks", "_size", "_stage", "_version")

    def __init__(self, inner: Handler, stage: "RackOffsetsStage", api_key: int, version: int) -> None:
        super().__init__(inner)
        self._stage = stage
        self._api_key, self._version = api_key, version
        self._chunks: list[bytes] = []
        self._size = 0

    @property
    def buffered(self) -> int:  # type: ignore[override]  # of both handlers
        return self._inner.buffered + self._size

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        if self._stage.may_hold:
            self._chunks.append(chunk)
            self._size += len(chunk)
            if last:
                self._stage.see(self._api_key, self._version, b"".join(self._chunks))
                self._chunks, self._size = [], 0
        return self._inner.feed(chunk, last=last)

    def passes(self, _size: int) -> bool:
        return False


class RackOffsetsStage(Stage):
    """Handles what only leaders answer, on one connection of a client for which replicas are named.

    `node_id` returns the node id of the broker, or None while it is unknown.
    """

    __slots__ = (
        "_asked",
        "_client_id",
        "_fetches_as",
        "_leaders",
        "_node_id",
        "_sent_away",
        "_state",
        "_troubles",
    )

    def __init__(
        self,
        leaders: RackLeaders,
        troubles: Troubles,
        node_id: Callable[[], int | None],
        state: ConnectionState,
    ) -> None:
        self._leaders = leaders
        self._troubles = troubles
        self._node_id = node_id
        self._state = state
        self._sent_away = SentAway(leaders, state)
        self._client_id = ""
        """That of the last request that was looked at."""
        self._asked: OffsetsRequest | None = None
        """The request for offsets that is being processed."""
        self._fetches_as: tuple[str, str] | None = None
        """Client id and host, as which the connection counts as one that has fetched. None if it does not."""
        troubles.stages.add(self)

    @property
    def may_hold(self) -> bool:
        """Whether the arriving response is small enough to be buffered."""
        return self._state.response_size <= MAX_BYTES

    @property
    def _is_named(self) -> bool:
        return self._leaders.names_for(self._client_id)

    # Requests

    def on_request(self, data: bytes, size: int, api_key: int, version: int) -> bytes | None:
        self._asked = None
        if api_key == _FETCH and version < MIN_VERSION:
            with suppress(ProtocolError):
                self._is_too_old(readable(request_header(data, LENGTH_BYTES)[3]))
        elif api_key == ApiKey.SASL_HANDSHAKE:
            with suppress(ProtocolError):
                self._logs_in(readable(request_header(data, LENGTH_BYTES)[3]))
        if api_key not in _SEEN:
            return data
        requests = self._state.from_client
        try:
            self._client_id = readable(request_header(data, LENGTH_BYTES)[3])
        except Truncated:
            if len(data) < min(size, _MAX_HEADER):
                requests.need = min(size, 2 * len(data))
                return None
            return data
        except ProtocolError:
            return data
        if not self._is_named:
            return data
        if api_key in OFFSETS:
            reads = size <= MAX_BYTES and version in OFFSETS[api_key][0]
            if reads and len(data) < size and requests.reserve(min(size, 2 * len(data))):
                return None
            if reads and len(data) >= size:
                with suppress(ProtocolError):
                    self._asked = OffsetsRequest(data)
            if self._asked is None:
                self.leave_unread(self._client_id)
        elif api_key in _FOR_LEADERS or (
            self._is_replica and _is_refused_unseen(api_key, version, data, size)
        ):
            self._is_no_consumer(ApiKey(api_key).name)
        return data

    def around(self, request: InFlight) -> Handler:
        asked, self._asked = self._asked, None
        if asked is not None:
            return FollowOffsets(request.handler, self, asked)
        if request.api_key in _WRITES and self._is_named and request.version < _WRITES[request.api_key][0]:
            return SeeRefusals(request.handler, self, request.api_key, request.version)
        return request.handler

    def repeats(self, api_key: int, _version: int, *, in_session: bool = False) -> bool:  # noqa: ARG002
        return api_key not in _SEEN or not self._is_named

    @property
    def _is_replica(self) -> bool:
        """Whether the broker may have been named as a leader that it is not."""
        return self._leaders.racks.may_be_here(self._node_id())

    # Fetches

    def before_fetch(self, frame: bytes, version: int, _body: int) -> tuple[bytes, int] | None:
        state = self._state
        if version < RAISED:  # no follower answers it
            self._is_too_old(state.client_id)
        if self._fetches_as is None and self._leaders.names_for(state.client_id):
            self._fetches_as = state.client_id, state.host
            self._troubles.fetching[self._fetches_as] += 1
        return frame, version

    def _logs_in(self, client_id: str) -> None:
        """Give a client that authenticates true Metadata for some time, if it does not read yet.

        It has no connection to leaders then, and the gateway must not open one for it. Not all clients would
        survive the error (platformatic).
        """
        state, leaders = self._state, self._leaders
        if leaders.names_for(client_id) and not self._troubles.fetching[client_id, state.host]:
            leaders.distrust(client_id, state.host, None, TRUE_SECONDS, "login", state.now)

    def may_raise(self) -> bool:
        """See `RaiseFetch`."""
        return self._leaders.names_for(self._state.client_id)

    def raises(self, fetch: FetchRequest) -> bool:
        """Return whether a fetch lists a partition for which the broker was named as a leader.

        If the broker's release is not known, it is taken for one that serves consumers as a follower: 2.4 or
        later. Not every client asks each broker for its versions (kafka-python 2).
        """
        listing, features = fetch.listing, self._state.fetches.eligibility.known
        if listing is None or (features is not None and features.fetch_max <= RAISED) or not self._is_replica:
            return False
        numbers = iter(listing.entries.view(listing.layout.request_fields)["partition"].tolist())
        return any(
            self._may_follow((key, next(numbers)))
            for key, count in zip(listing.keys, listing.counts, strict=True)
            for _ in range(count)
        )

    def _is_too_old(self, client_id: str) -> None:
        if self._leaders.names_for(client_id) and self._is_replica:
            self._needs_leaders(client_id, "old_fetch")

    def _needs_leaders(self, client_id: str, reason: str) -> bool:
        """Give a client true Metadata for an hour. Return whether it had none for this reason."""
        host, now = self._state.host, self._state.now
        is_new = self._troubles.is_new(client_id, host, reason, now)
        if is_new:
            self._leaders.distrust(client_id, host, None, LONG_SECONDS, reason, now)
        return is_new

    # Responses

    def receive(self, handler: FollowOffsets, asked: OffsetsRequest, pieces: list[Buffer]) -> list[Buffer]:
        """Have leaders asked for the partitions that the broker does not lead. Return the client's bytes."""
        frame = b"".join(pieces)
        leaders: dict[Place, Leader | None] = {}
        led_by_none: list[Place] = []
        try:
            for place, entry in asked.read_response(frame):
                if entry["error_code"] != _NOT_LEADER or not self._may_follow(place):
                    continue
                leader_id = self._leaders.leader_of(*place)
                if leader_id is not None:
                    leaders[place] = Leader(leader_id, -1, place[0])
                elif self._leaders.leads(place, self._node_id()) is None:
                    leaders[place] = None  # it is asked for
                else:
                    led_by_none.append(place)
        except ProtocolError:
            self.leave_unread(readable(asked.client_id))
            return [frame]
        if led_by_none:
            self._unanswered_by_leaders(asked, led_by_none)
        if not leaders:
            return [frame]

        def left(places: Collection[Place]) -> None:
            self._unanswered_by_leaders(asked, places)

        asker = asker_of(self._state)
        if asker is None:
            left(leaders.keys())
            return [frame]
        # The client has authenticated: this may be the first response that shows it.
        asker.on_answered(asked.api_key)
        return asker.follow(handler, OffsetsRepeat(asked, frame, leaders, left))

    def _may_follow(self, place: Place) -> bool:
        """Return whether the broker is in the rack, and not known to lead a partition.

        The Metadata of the topic may have passed in another gateway.
        """
        return self._is_replica and not self._leaders.leads(place, self._node_id())

    def leave_unread(self, client_id: str) -> None:
        """Give a client true Metadata for some time, because its question or the response can't be read.

        Otherwise it would get errors of the replica for ever.
        """
        if self._is_replica:
            host, now = self._state.host, self._state.now
            self._leaders.distrust(client_id, host, None, TRUE_SECONDS, "offsets", now)

    def _unanswered_by_leaders(self, asked: OffsetsRequest, places: Iterable[Place]) -> None:
        """Give the client true Metadata for topics whose leaders could not be asked. It asks them itself."""
        state, leaders = self._state, self._leaders
        client_id, host, now = readable(asked.client_id), state.host, state.now
        for topic in {topic for topic, _ in places}:
            seconds = TRUE_SECONDS
            if asked.api_key == ApiKey.LIST_OFFSETS:
                seconds = self._troubles.unanswered(client_id, host, topic, now)
            place = topic, ALL[1]
            told_before = leaders.is_distrusted(client_id, host, place, now)
            self._sent_away.note(client_id, place, told_before=told_before)
            leaders.distrust(client_id, host, (topic,), seconds, "offsets", now)

    def see(self, api_key: int, version: int, frame: bytes) -> None:
        """Look at the response to a write for partitions that the broker does not lead."""
        _, schema, topics, partitions, number = _WRITES[api_key]
        try:
            _, at = response_header(frame, LENGTH_BYTES, api_key, version)
            found = read(schema, api_key, version, frame, at)
        except ProtocolError:
            return
        for topic in found[topics] or ():
            key = topic.get("name") or topic.get("topic_id") or b""
            for each in topic[partitions] or ():
                place = key, each[number]
                if each["error_code"] == _NOT_LEADER and self._may_follow(place):
                    is_new = self._is_no_consumer(ApiKey(api_key).name)
                    self._sent_away.note(self._client_id, place, told_before=not is_new)

    def _is_no_consumer(self, api: str) -> bool:
        """Give the client true Metadata for an hour, because it sends requests that only leaders take.

        Return whether it had none for this reason.
        """
        is_new = self._needs_leaders(self._client_id, "no_consumer")
        if is_new:
            self._state.events.append(no_consumer(api))
        return is_new

    # The connection

    def forget_plans(self) -> None:
        self._state.plans.forget()

    def end(self) -> None:
        self._troubles.stages.discard(self)
        key, self._fetches_as = self._fetches_as, None
        if key is not None:
            fetching = self._troubles.fetching
            fetching[key] -= 1
            if not fetching[key]:
                del fetching[key]


def no_consumer(api: str) -> Noticed:
    """Return the event of a client that sends requests that only leaders take. It gets true Metadata."""
    return Noticed(
        kind="no consumer",
        text=f"of --rack-clients sends {api}; for an hour it gets the brokers' own Metadata",
        message="client of --rack-clients is not a pure consumer",
        remedy="it gets the brokers' own Metadata for an hour; remove its id from --rack-clients",
        request=api,
    )


def _is_refused_unseen(api_key: int, version: int, data: bytes, size: int) -> bool:
    """Return whether no response shows that a follower refuses a write, one of `_WRITES`.

    `data` is the request or its beginning, `size` the size of the request.
    """
    if version >= _WRITES[api_key][0]:
        return True
    return api_key == _PRODUCE and wants_response(data, size) is False  # its records are lost
