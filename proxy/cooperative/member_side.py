"""The stage for members of cooperative groups (docs/cooperative.md), between a client and the core. Sans-IO.

The core sees the client as if it had no lane: its own client.id, full fetches of whole partitions. So its
fetches go through a session like any others. From the responses the client gets the records of its lane.

A client has a lane if it declares one in its client.id, or if its group gave it one, perhaps on another
connection. Requests of a client without a lane pass, except those that join a group.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from typing import Final, NamedTuple

from proxy.cooperative.commits import CommitRequest, OffsetFetchRequest
from proxy.cooperative.identity import Identity
from proxy.cooperative.joining import Joining
from proxy.cooperative.lane_fetch import HELD_SECONDS, LaneFetch, refusal
from proxy.cooperative.members import INVALID_RANGES, Members
from proxy.cooperative.membership import heartbeat_member, read_join, read_sync, rejoin
from proxy.cooperative.offsets import read_commit, read_offset_fetch
from proxy.cooperative.responses import PASS, Edit, Handler, Reply, Responses, nothing
from proxy.cooperative.shared_fetch import Subscriber
from proxy.core.in_flight import AT_ONCE, MAX_IN_FLIGHT
from proxy.core.requests import describe_length, read_client_names
from proxy.protocol.api import (
    LENGTH_BYTES,
    REQUEST_START,
    REQUEST_START_BYTES,
    ApiKey,
    request_header,
)
from proxy.protocol.api_versions import FOR_MEMBERS
from proxy.protocol.fetch_request import parse_fetch_request
from proxy.protocol.messages import read
from proxy.protocol.primitives import Buffer, ProtocolError, encode_string
from proxy.protocol.produce import READ_WITHIN, wants_response

_GROUP: Final = "group_id:string"
"""The field with which requests of groups begin."""
MAX_READ: Final = 1 << 20
"""The longest request of a member that is read. A longer one ends the connection: it can't pass unread."""
MAX_HELD: Final = 1 << 16
"""How many bytes may wait for the response to a fetch until no more is read from the client."""
_NAME_BYTES: Final = 2
"""The length of a client.id, which comes right after the correlation id."""
_OF_LANES: Final = frozenset(
    {
        int(ApiKey.FETCH),
        int(ApiKey.OFFSET_COMMIT),
        int(ApiKey.OFFSET_FETCH),
        int(ApiKey.TXN_OFFSET_COMMIT),
    }
)
"""The requests that are read of a client with a lane."""
_AUTHENTICATE: Final = frozenset({int(ApiKey.SASL_HANDSHAKE), int(ApiKey.SASL_AUTHENTICATE)})
_OF_GROUPS: Final = frozenset(
    {int(ApiKey.JOIN_GROUP), int(ApiKey.SYNC_GROUP), int(ApiKey.HEARTBEAT), int(ApiKey.LEAVE_GROUP)}
)
"""The requests that are read of any client, if they are about a cooperative group."""
_KEEP: Final = frozenset({"kafka-python"})
"""Software that keeps its position in a partition that it had and gets again, though it has said that it gave
the partition up: kafka-python 3 also delivers what it had fetched (`assign_from_subscribed`)."""
_ASSIGNED_BY_BROKERS: Final = frozenset({68, 88})
"""ConsumerGroupHeartbeat (KIP-848) and StreamsGroupHeartbeat (KIP-1071): brokers assign whole partitions."""


class _Request(NamedTuple):
    """The beginning of a request."""

    size: int
    """With its length."""
    name_end: int
    """Where its client.id ends."""
    api_key: int
    version: int


class MemberSide:
    """Reads a member's requests, and sends it what it is to get.

    Args:
        members: those of the process.
        host: the client's.
        forward: takes bytes as those of a client without a lane.
        fail: ends the connection for a fault of one side ("client" or "broker") and a reason in words.
        max_request_bytes: the longest frame taken from the client.
        broker: identifies the broker. Empty, or with a comma, if it is not known which one it is.
    """

    __slots__ = (
        "_alarm",
        "_alarmed_at",
        "_closing",
        "_current",
        "_data",
        "_fail",
        "_fetch_wait",
        "_forward",
        "_identity",
        "_joining",
        "_left_at_once",
        "_max_request_bytes",
        "_members",
        "_passing",
        "_responses",
        "_stopped",
        "_subscriber",
        "_wake",
        "elsewhere",
        "is_member",
        "to_client",
    )

    def __init__(
        self,
        members: Members,
        host: str,
        forward: Callable[[bytes, float], None],
        fail: Callable[[str, str], None],
        max_request_bytes: int,
        broker: str = "",
    ) -> None:
        self._members = members
        self._forward = forward
        self._fail = fail
        self._max_request_bytes = max_request_bytes
        self.is_member: bool | None = None
        """Whether the stage is needed. None until the first request has come."""
        self.elsewhere = 0
        """The number of the process that is to serve the client; 0 for this one."""
        self._responses = Responses()
        self.to_client = self._responses.to_client
        """Bytes that are due to the client."""
        self._identity = Identity(members, host)
        self._joining = Joining(members, host)
        self._subscriber = Subscriber(members.shared_fetches, broker, self._resume)
        self._data = bytearray()
        """What came from the client and was not processed."""
        self._passing = 0
        """Bytes to come of a request that passes as it comes."""
        self._current: LaneFetch | CommitRequest | None = None
        """The fetch or commit behind which the client's next request waits."""
        self._fetch_wait = 0.0
        """How long the last request may wait in the gateway, if it is a fetch, in seconds."""
        self._left_at_once = AT_ONCE
        """How many more requests may be processed in this call."""
        self._stopped = False
        """Whether requests wait only because of `_left_at_once`."""
        self._closing = False
        self._alarmed_at = inf
        """The time of the next alarm for a fetch that is parked, in seconds."""
        self._alarm: Callable[[float], None] = nothing
        self._wake: Callable[[float], None] = nothing

    def attach(self, wake: Callable[[float], None], alarm: Callable[[float], None]) -> None:
        """Attach the I/O shell.

        Args:
            wake: takes the time in seconds, and calls `tick`: another member has finished what this one waits
                for.
            alarm: takes the time, in seconds, at which `tick` is to be called.
        """
        self._wake = wake
        self._alarm = self._responses.alarm = alarm

    def __repr__(self) -> str:
        return f"<MemberSide {self._identity.client_id!r} expected={len(self._responses)}>"

    @property
    def reads(self) -> bool:
        """Whether more is wanted from the client."""
        return not self._stopped and not (self._waits and len(self._data) >= MAX_HELD)

    @property
    def goes_on(self) -> bool:
        """Whether some of what came from the client waits for `go_on` alone."""
        return self._stopped and not (self._waits or self._full or self._closing)

    @property
    def waits(self) -> bool:
        """Whether whole requests of the client are still to be processed.

        Half a request is not: its end would have to come first.
        """
        return self._waits or self._stopped or (self._full and len(self._data) > 0)

    @property
    def longest_wait(self) -> float:
        """How long a fetch may wait here for another member's or until it is refused, at most, in seconds."""
        return self._fetch_wait if self._waits else 0.0

    @property
    def has_lane(self) -> bool:
        """Whether the client has a lane, wants one that it can't have, or has not said who it is."""
        return self._identity.has_lane or not self._identity.client_id

    @property
    def busy(self) -> bool:
        """Whether the client waits for a response."""
        return len(self._responses) > 0 or self._is_held

    @property
    def buffered(self) -> int:
        """How many bytes are kept."""
        return len(self._data) + self._responses.buffered

    # Requests

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes from the client."""
        self._data += data
        self.go_on(now)

    def go_on(self, now: float) -> None:
        """Process more of what came from the client."""
        self._left_at_once = AT_ONCE
        self._read(now)

    def drain(self) -> bytes:
        """Hand over what came of a client that has no lane, or is served by another process."""
        data = bytes(self._data)
        self._data.clear()
        return data

    def close(self, now: float) -> None:
        """Take no more requests; finish what is in flight."""
        self._closing = True
        self._data.clear()
        self._responses.close()
        if self._current is not None:
            self._current.close(now)

    def end(self, now: float) -> None:
        """Note that the connection has ended: others need not wait for it."""
        self._wake = self._alarm = self._responses.alarm = nothing
        self._joining.end()
        if self._current is not None:
            self._current.end(now)
        self._identity.end()
        self._subscriber.end(now)

    def tick(self, now: float) -> None:
        """Do what is due."""
        self._left_at_once = AT_ONCE
        if now >= self._alarmed_at:
            self._alarmed_at = inf
        self._responses.send_due(now)
        if self._current is not None and self._current.waits:
            self._go(self._current, now)
        self._read(now)

    def _resume(self, now: float) -> None:
        """Go on: another member has finished what this one waits for."""
        self._wake(now)

    @property
    def _is_held(self) -> bool:
        """Whether a fetch or commit waits for another member."""
        return self._current is not None and self._current.waits

    @property
    def _waits(self) -> bool:
        """Whether the client's next request has to wait."""
        return self._responses.hold or self._is_held

    @property
    def _full(self) -> bool:
        """Whether as many requests are in flight as may be."""
        return len(self._responses) >= MAX_IN_FLIGHT and not self._passing

    def _read(self, now: float) -> None:
        """Process what came from the client, as far as it need not wait: a bounded number of requests."""
        self._stopped = False
        if not self._waits:
            self._current = None
        while self._data and not (self._waits or self._full or self._closing):
            if self._passing:
                used = self._pass_on(now)
            elif self._left_at_once:
                self._left_at_once -= 1
                used = self._request(now)
            else:
                self._stopped = True
                return
            if not used:
                return
            del self._data[:used]

    def _pass_on(self, now: float) -> int:
        size = min(self._passing, len(self._data))
        self._passing -= size
        self._forward(bytes(self._data[:size]), now)
        return size

    def _request(self, now: float) -> int:
        """Process the request that begins; return how many bytes were used, 0 if more are needed."""
        data = self._data
        if len(data) < LENGTH_BYTES:
            return 0
        length = int.from_bytes(data[:LENGTH_BYTES], signed=True)
        name_end = REQUEST_START_BYTES + _NAME_BYTES
        if len(data) >= name_end:
            name_end += max(int.from_bytes(data[REQUEST_START_BYTES:name_end], signed=True), 0)
        if not name_end <= LENGTH_BYTES + length <= LENGTH_BYTES + self._max_request_bytes:
            if self.is_member is None:
                self.is_member = False  # the rest of the core says what is wrong with it
                return 0
            self._fail("client", describe_length(bytes(data[:16]), length, self._max_request_bytes))
            return len(data)
        if len(data) < name_end:
            return 0
        client_id = bytes(data[REQUEST_START_BYTES + _NAME_BYTES : name_end])
        if client_id != self._identity.client_id or not self.is_member:
            if self._identity.declares:
                self._fail("client", "another client.id than before, on a connection with a lane")
                return len(data)
            owner = self._members.owner(client_id)
            if owner != self._members.number:
                if self.is_member is None:
                    self.elsewhere = owner
                    return 0
                self._fail("client", "another client.id than before: one of a group that another worker owns")
                return len(data)
            self.is_member = True
            self._joining.client_id = client_id
            self._identity.named(client_id)
        _, api_key, version, _ = REQUEST_START.unpack_from(data)
        return self._process(_Request(LENGTH_BYTES + length, name_end, api_key, version), now)

    def _process(self, request: _Request, now: float) -> int:
        """Process a request; return how many bytes were used, 0 if more are needed."""
        data, size, identity = self._data, request.size, self._identity
        has_lane = bool(identity.refused) or identity.member is not None
        if request.api_key in _AUTHENTICATE:
            self._subscriber.alone()
        if has_lane and request.api_key == ApiKey.SASL_HANDSHAKE and request.version == 0:
            self._fail("client", "SASL without Kafka's framing, by a client with a lane")
            return len(data)
        is_read = has_lane and request.api_key in _OF_LANES
        if request.api_key in _OF_GROUPS:
            named = self._group_named(bytes(data[:READ_WITHIN]), size)
            if named is None:
                return 0
            is_read = self._members.group(named) is not None
        return self._read_whole(request, now) if is_read else self._pass(request, now)

    def _read_whole(self, request: _Request, now: float) -> int:
        """Read a request of a member; return how many bytes were used, 0 if more are needed."""
        data, size, version = self._data, request.size, request.version
        lowest, highest = FOR_MEMBERS.get(request.api_key, (0, version))
        name = ApiKey(request.api_key).name
        if size > MAX_READ or not lowest <= version <= highest:
            wrong = f"of {size} bytes" if size > MAX_READ else "which is not offered"
            self._fail("client", f"{name} v{version}, {wrong}, by a client with a lane")
            return len(data)
        if len(data) < size:
            return 0
        frame = self._renamed(bytes(data[:size]), request)
        self._fetch_wait = 0.0
        try:
            if request.api_key in _OF_GROUPS:
                self._group_request(frame, request, now)
            elif request.api_key == ApiKey.FETCH:
                self._fetch(frame, version, now)
            elif request.api_key == ApiKey.OFFSET_FETCH:
                asked = OffsetFetchRequest(read_offset_fetch(frame), self._identity, self._members)
                self._send(frame, Edit(asked.edit), now)
            else:
                commit = read_commit(frame)
                self._go(CommitRequest(commit, self._identity, self._members, self._send, self._resume), now)
        except ProtocolError as error:
            self._fail("client", f"{name} v{version} that is not understood: {error}")
            return len(data)
        return size

    def _pass(self, request: _Request, now: float) -> int:
        """Pass a request with the client's own id; return how many bytes were used, 0 if more are needed."""
        data, size, identity = self._data, request.size, self._identity
        if request.api_key == ApiKey.API_VERSIONS and identity.bound and size <= READ_WITHIN:
            if len(data) < size:
                return 0
            self._versions(bytes(data[:size]), request.version)
        if request.api_key in _ASSIGNED_BY_BROKERS and identity.bound:
            self._members.bound(identity.host, identity.client_id).assigned(now)
        has_response = True
        if request.api_key == ApiKey.PRODUCE:
            wants = wants_response(bytes(data[:READ_WITHIN]), size)
            if wants is None and len(data) < min(size, READ_WITHIN):
                return 0
            has_response = bool(wants)
        if has_response:
            self._responses.expect(PASS)
        self._passing = size - request.name_end
        self._forward(self._renamed(bytes(data[: request.name_end]), request), now)
        return request.name_end

    def _versions(self, frame: bytes, version: int) -> None:
        """Note what an ApiVersions request says of the client's software: how it joins a group."""
        with suppress(ProtocolError):
            _, software = read_client_names(frame, version)
            if software is not None and software.name in _KEEP:
                self._members.bound(self._identity.host, self._identity.client_id).keeps = True

    @staticmethod
    def _group_named(data: bytes, size: int) -> bytes | None:
        """Return the group that a request is about; b"" if that can't be read, None if more bytes are needed.

        Args:
            data: its first bytes.
            size: of all of it.
        """
        try:
            api_key, version, _, _, body = request_header(data[:size], LENGTH_BYTES)
            group: bytes | None = read(_GROUP, api_key, version, data[:size], body, whole=False)["group_id"]
        except ProtocolError:
            return None if len(data) < min(size, READ_WITHIN) else b""
        return group or b""

    def _renamed(self, data: bytes, request: _Request) -> bytes:
        """Return a request, or its beginning, with the client's own id."""
        own_id = self._identity.own_id
        less = request.name_end - REQUEST_START_BYTES - _NAME_BYTES - len(own_id)
        head = (request.size - LENGTH_BYTES - less).to_bytes(LENGTH_BYTES)
        rest = data[request.name_end :]
        return b"".join((head, data[LENGTH_BYTES:REQUEST_START_BYTES], encode_string(own_id), rest))

    def _group_request(self, frame: bytes, request: _Request, now: float) -> None:
        """Process what a member says to the coordinator of a cooperative group.

        Raises:
            ProtocolError: it can't be read.
        """
        joining = self._joining
        handler: Handler = PASS
        if request.api_key == ApiKey.JOIN_GROUP:
            join = read_join(frame)
            joining.saw_join = True
            if joining.takes(join):
                if self._identity.declares:
                    wrong = "a client.id with key ranges subscribes: it has to assign partitions"
                    self._fail("client", wrong)
                    return
                frame, handler = joining.join(join), Edit(joining.joined)
        elif request.api_key == ApiKey.SYNC_GROUP:
            sync = read_sync(frame)
            made = joining.sync(sync)
            if made is None:
                self._reply([rejoin(frame)], now)
                return
            frame, handler = made, Edit(partial(joining.synced, sync))
        elif (member := self._identity.member) is not None and self._identity.bound:
            if request.api_key == ApiKey.LEAVE_GROUP:
                joining.leave()
            else:
                joining.beats()
                if member.joins_again:
                    self._reply([rejoin(frame)], now)
                    return
                handler = Edit(partial(joining.beat, heartbeat_member(frame), request.version, now))
        self._send(frame, handler, now)

    def _fetch(self, frame: bytes, version: int, now: float) -> None:
        fetch = parse_fetch_request(frame, version, request_header(frame, LENGTH_BYTES)[4])
        member, members = self._identity.member, self._members
        if member is None:
            members.tally.refused[INVALID_RANGES] += fetch.partitions
            # franz-go and aiokafka ask again at once, hundreds of times a second (cooperative.md).
            self._fetch_wait = held = max(fetch.max_wait_ms / 1e3, HELD_SECONDS)
            self._reply([refusal(fetch, INVALID_RANGES)], now, now + held)
            return
        before = len(member.first)
        lane = LaneFetch(fetch, member, self._subscriber, members, self._send, now)
        self._fetch_wait = lane.refuse_at - now
        members.fetched(len(member.first) - before)
        if lane.in_session:
            self._reply([lane.no_session()], now)
        elif code := self._identity.denied(lane.places, claims=True):
            members.tally.refused[code] += sum(1 for _ in lane.places)
            self._reply([lane.refusal(code)], now, lane.refuse_at)
        else:
            self._go(lane, now)

    def _go(self, request: LaneFetch | CommitRequest, now: float) -> None:
        """Have a fetch or commit go on, as far as it need not wait for other members."""
        self._current = request
        if (reply := request.go(now)) is not None:
            self._responses.reply(reply, now)
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Have `tick` called when a fetch has waited for another member's as long as it may."""
        current = self._current
        if current is not None and current.waits and current.wait_until < self._alarmed_at:
            self._alarmed_at = current.wait_until
            self._alarm(current.wait_until)

    def _send(self, frame: bytes, handler: Handler, now: float) -> None:
        """Send a request to the broker."""
        self._responses.expect(handler)
        self._forward(frame, now)

    def _reply(self, pieces: list[Buffer], now: float, due_at: float = 0.0) -> None:
        """Send a response of the gateway's own."""
        self._responses.reply(Reply(pieces, due_at), now)

    # Responses

    def respond(self, due: list[Buffer], now: float) -> None:
        """Take what would be due to the client if it had no lane."""
        self._left_at_once = AT_ONCE
        for piece in due:
            view, at = memoryview(piece), 0
            while at < len(view):
                try:
                    at += self._responses.feed(view[at:], now)
                except ProtocolError as error:
                    why = f"a response to a client with a lane that is not understood: {error}"
                    self._fail("broker", why)
                    return
                if self._responses.whole:
                    self._set_alarm()
                    self._read(now)
