"""Sends what only a leader answers to the leader, for clients of ``--rack-clients``. Sans-IO.

Metadata calls a replica in the gateway's rack the leader (`RackLeaders`). So these clients ask the replica
for offsets, too, and may even produce to it. It answers NOT_LEADER_OR_FOLLOWER. The leader is then asked for
the offsets, on the same client's own connection. If there is none, or if the client is no pure
consumer, the error passes, and the client gets true Metadata for some time.
"""

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final

from proxy.core.asking.asker import Hold, asker_of
from proxy.core.asking.repeat import MAX_BYTES
from proxy.core.connection_state import ConnectionState
from proxy.core.events import Noticed
from proxy.core.in_flight import Handler, InFlight, Over
from proxy.core.stage import Stage
from proxy.features.racks.distrust import ALL, Client, SentAway
from proxy.features.racks.rack_leaders import RackLeaders, client_id_of
from proxy.features.racks.repeat_offsets import OFFSETS, OffsetsRepeat, OffsetsRequest
from proxy.protocol.api import LENGTH_BYTES, ApiKey, ErrorCode, response_header
from proxy.protocol.fetch_layout import MIN_VERSION
from proxy.protocol.fetch_request import FetchRequest
from proxy.protocol.fetch_v10 import RAISED
from proxy.protocol.leader_requests import Leader, Place
from proxy.protocol.messages import read
from proxy.protocol.primitives import Buffer, ProtocolError
from proxy.protocol.produce import wants_response
from proxy.protocol.schemas import DELETE_RECORDS, PRODUCE

_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_PRODUCE: Final = int(ApiKey.PRODUCE)
_FETCH: Final = int(ApiKey.FETCH)
_SASL_HANDSHAKE: Final = int(ApiKey.SASL_HANDSHAKE)
_FOR_LEADERS: Final = frozenset(map(int, (ApiKey.SHARE_FETCH, ApiKey.DESCRIBE_PRODUCERS)))
"""Other requests that only leaders answer."""
_WRITES: Final = {
    _PRODUCE: (14, PRODUCE, "responses", "partition_responses", "index"),
    int(ApiKey.DELETE_RECORDS): (3, DELETE_RECORDS, "topics", "partitions", "partition_index"),
}
"""By API key: the first version that is not read, the schema of the response, and the names of its fields for
topics, partitions, and partition numbers."""
_SEEN: Final = frozenset({*OFFSETS, *_WRITES, *_FOR_LEADERS, _SASL_HANDSHAKE})


class _Collected(Over):
    """Collects a response that is small enough."""

    __slots__ = ("_client", "_pieces", "_size", "_stage")

    def __init__(self, inner: Handler, stage: "RackOffsetsStage", client: Client) -> None:
        super().__init__(inner)
        self._stage = stage
        self._client = client
        self._pieces: list[Buffer] = []
        self._size = 0

    @property
    def buffered(self) -> int:  # type: ignore[override]  # of both handlers
        return self._inner.buffered + self._size


class FollowOffsets(_Collected):
    """Buffers the response to a request for offsets, and has leaders asked for what is missing in it."""

    __slots__ = ("_asked", "hold")

    def __init__(
        self, inner: Handler, stage: "RackOffsetsStage", client: Client, asked: OffsetsRequest
    ) -> None:
        super().__init__(inner, stage, client)
        self._asked = asked
        self.hold: Hold | None = None
        """See `Holding.hold`."""

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        pieces = [*self._pieces, *self._inner.feed(chunk, last=last)]
        if not last and self._stage.may_hold:
            self._pieces, self._size = pieces, sum(map(len, pieces))
            return []
        self._pieces, self._size = [], 0
        if self._stage.may_hold:
            return self._stage.receive(self, self._client, self._asked, b"".join(pieces))
        if last:
            self._stage.leave_unread(self._client)
        return pieces

    def end(self, request: InFlight) -> bool:
        return self._inner.end(request) and not (self.hold and self.hold.is_held)

    def passes(self, size: int) -> bool:
        return not self._stage.may_hold and self._inner.passes(size)


class SeeRefusals(_Collected):
    """Looks for partitions of a write that the broker does not lead. The response passes unchanged."""

    __slots__ = ("_api_key", "_version")

    def __init__(self, stage: "RackOffsetsStage", client: Client, request: InFlight) -> None:
        super().__init__(request.handler, stage, client)
        self._api_key, self._version = request.api_key, request.version

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        if self._stage.may_hold:
            self._pieces.append(chunk)
            self._size += len(chunk)
            if last:
                self._stage.see(self._client, self._api_key, self._version, b"".join(self._pieces))
                self._pieces, self._size = [], 0
        return self._inner.feed(chunk, last=last)

    def passes(self, _size: int) -> bool:
        return False


class RackOffsetsStage(Stage):
    """Handles what only leaders answer, on one connection of a client for which replicas are named.

    `node_id` returns the node id of the broker, or None while it is unknown.
    """

    __slots__ = ("_asked", "_client", "_fetches_as", "_leaders", "_node_id", "_sent_away", "_state")

    def __init__(
        self, leaders: RackLeaders, node_id: Callable[[], int | None], state: ConnectionState
    ) -> None:
        self._leaders = leaders
        self._node_id = node_id
        self._state = state
        self._sent_away = SentAway(leaders.distrust, state)
        self._client: Client = "", state.host
        """That of the last request that was looked at."""
        self._asked: OffsetsRequest | None = None
        """The request for offsets that is being processed."""
        self._fetches_as: Client | None = None
        """The client as which the connection counts as one that has fetched. None if it does not."""

    @property
    def may_hold(self) -> bool:
        """Whether the arriving response is small enough to be buffered."""
        return self._state.response_size <= MAX_BYTES

    @property
    def _is_named(self) -> bool:
        return self._leaders.names_for(self._client[0])

    @property
    def _is_replica(self) -> bool:
        """Whether the broker may have been named as a leader that it is not."""
        return self._leaders.racks.may_be_here(self._node_id())

    def _may_follow(self, place: Place) -> bool:
        """Return whether the broker is in the rack, and not known to lead a partition.

        The Metadata of the topic may have passed in another gateway.
        """
        return self._is_replica and not self._leaders.leads(place, self._node_id())

    # Requests

    def on_request(self, data: bytes, size: int, api_key: int, version: int) -> bytes | None:
        self._asked = None
        if api_key not in _SEEN and (api_key != _FETCH or version >= MIN_VERSION):
            return data
        client_id = client_id_of(data, size, self._state.from_client)
        if client_id is None:
            return None
        self._client = client_id, self._state.host
        if not self._is_named:
            return data
        if api_key in OFFSETS:
            return self._read(data, size, api_key, version)
        if api_key == _FETCH:
            self._is_too_old(self._client)
        elif api_key == _SASL_HANDSHAKE:
            self._logs_in()
        elif api_key in _FOR_LEADERS or (
            self._is_replica and _is_refused_unseen(api_key, version, data, size)
        ):
            self._is_no_consumer(self._client, api_key)
        return data

    def _read(self, data: bytes, size: int, api_key: int, version: int) -> bytes | None:
        """Note a request for offsets. Return None until it is complete."""
        if size <= MAX_BYTES and version in OFFSETS[api_key][0]:
            if len(data) < size and self._state.from_client.reserve(min(size, 2 * len(data))):
                return None
            if len(data) >= size:
                with suppress(ProtocolError):
                    self._asked = OffsetsRequest(data)
        if self._asked is None:
            self.leave_unread(self._client)
        return data

    def around(self, request: InFlight) -> Handler:
        asked, self._asked = self._asked, None
        if asked is not None:
            return FollowOffsets(request.handler, self, self._client, asked)
        if request.api_key in _WRITES and self._is_named and request.version < _WRITES[request.api_key][0]:
            return SeeRefusals(self, self._client, request)
        return request.handler

    def repeats(self, api_key: int, _version: int, *, in_session: bool = False) -> bool:  # noqa: ARG002
        return api_key not in _SEEN or not self._is_named

    def _logs_in(self) -> None:
        """Give a client that authenticates true Metadata for some time, if it does not read yet.

        It has no connection to leaders then, and the gateway must not open one for it. Not all clients would
        survive the error (platformatic).
        """
        if not self._leaders.fetching[self._client]:
            self._leaders.distrust.needs(self._client, None, "login", self._state.now)

    # Fetches

    def before_fetch(self, frame: bytes, version: int, _body: int) -> tuple[bytes, int] | None:
        client = self._state.client_id, self._state.host
        if self.may_raise():
            if version < RAISED:  # no follower answers it
                self._is_too_old(client)
            if self._fetches_as is None:
                self._fetches_as = client
                self._leaders.fetching[client] += 1
        return frame, version

    def _is_too_old(self, client: Client) -> None:
        if self._is_replica:
            self._leaders.distrust.needs_always(client, "old_fetch", self._state.now)

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

    # Responses

    def receive(
        self, handler: FollowOffsets, client: Client, asked: OffsetsRequest, frame: bytes
    ) -> list[Buffer]:
        """Have leaders asked for the partitions that the broker does not lead. Return the client's bytes."""
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
            self.leave_unread(client)
            return [frame]

        def left(places: Collection[Place]) -> None:
            self._unanswered_by_leaders(client, asked.api_key, places)

        left(led_by_none)
        if not leaders:
            return [frame]
        asker = asker_of(self._state)
        if asker is None:
            left(leaders.keys())
            return [frame]
        # The client has authenticated: this may be the first response that shows it.
        asker.on_answered(asked.api_key)
        return asker.follow(handler, OffsetsRepeat(asked, frame, leaders, left))

    def leave_unread(self, client: Client) -> None:
        """Give a client true Metadata for some time, because its question or the response can't be read.

        Otherwise it would get errors of the replica for ever.
        """
        if self._is_replica:
            self._leaders.distrust.needs(client, None, "offsets", self._state.now)

    def _unanswered_by_leaders(self, client: Client, api_key: int, places: Iterable[Place]) -> None:
        """Give the client true Metadata for topics whose leaders could not be asked. It asks them itself."""
        distrust, now = self._leaders.distrust, self._state.now
        for topic in {topic for topic, _ in places}:
            place = topic, ALL[1]
            self._sent_away.note(client, place, told_before=distrust.holds(client, place, now))
            if api_key == ApiKey.LIST_OFFSETS:
                distrust.unanswered(client, topic, now)
            else:
                distrust.needs(client, topic, "offsets", now)

    def see(self, client: Client, api_key: int, version: int, frame: bytes) -> None:
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
                    is_new = self._is_no_consumer(client, api_key)
                    self._sent_away.note(client, place, told_before=not is_new)

    def _is_no_consumer(self, client: Client, api_key: int) -> bool:
        """Give a client true Metadata for an hour, because it sends requests that only leaders take.

        Return whether it had none for this reason.
        """
        is_new = self._leaders.distrust.needs_always(client, "no_consumer", self._state.now)
        if is_new:
            self._state.events.append(no_consumer(ApiKey(api_key).name))
        return is_new

    # The connection

    def forget_plans(self) -> None:
        """Look at the next requests: replicas are named for other clients now."""
        self._state.plans.forget()

    def end(self) -> None:
        key, self._fetches_as = self._fetches_as, None
        if key is not None:
            fetching = self._leaders.fetching
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
