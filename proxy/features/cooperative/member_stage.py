"""The stage for members of cooperative groups (docs/users/cooperative.md). Sans-IO.

The rest of the core sees a client without a lane: the client.id has no suffix, and fetches are full fetches
of whole partitions. So these fetches use a session like any others. From the responses, the stage makes
responses with the records of the client's lane.

A client has a lane if its client.id declares one, or begins with the name of a cooperative group and a dot.
Of other clients, the stage changes only the requests that join a group.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from typing import Final, NamedTuple

from proxy.core.connection_state import ConnectionState, Phase
from proxy.core.in_flight import FORWARD, Claim, InFlight
from proxy.core.requests import describe_length, read_client_names
from proxy.core.stage import Stage
from proxy.features.cooperative.commits import (
    CommitRequest,
    Exchanges,
    Steps,
    own_offsets,
    read_committed_of,
)
from proxy.features.cooperative.group import Group
from proxy.features.cooperative.identity import MemberIdentity
from proxy.features.cooperative.joining import Joining
from proxy.features.cooperative.lane_fetch import HELD_SECONDS, LaneFetch, refusal
from proxy.features.cooperative.member import Member
from proxy.features.cooperative.members import INVALID_RANGES, Members
from proxy.features.cooperative.membership import Sync, read_heartbeat, read_join, read_sync, rejoin
from proxy.features.cooperative.offsets import (
    Entry,
    offset_commit,
    offset_fetch,
    read_commit,
    read_offset_fetch,
    sender_of,
)
from proxy.features.cooperative.responses import Reply, Take
from proxy.features.cooperative.shared_fetch import Subscriber
from proxy.protocol.api import (
    LENGTH_BYTES,
    REQUEST_CORRELATION_ID,
    REQUEST_START,
    REQUEST_START_BYTES,
    ApiKey,
    ErrorCode,
    request_header,
)
from proxy.protocol.api_versions import NO_RANGES, Ranges
from proxy.protocol.fetch_request import parse_fetch_request
from proxy.protocol.fetch_response import empty_response
from proxy.protocol.messages import read
from proxy.protocol.primitives import Buffer, ProtocolError, encode_string
from proxy.protocol.produce import READ_WITHIN

_GROUP: Final = "group_id:string"
"""The first field of requests to a group's coordinator."""
MAX_READ: Final = 1 << 20
"""The largest request that the stage reads, in bytes. A larger one ends the connection, because it must not
be forwarded without having been read."""
MAX_HELD: Final = 1 << 16
"""The maximum number of bytes of requests that a client may send while a response is outstanding. At this
number, the gateway stops reading from the client."""
_NAME_BYTES: Final = 2
"""The size of the length field of client.id, which comes right after the correlation id."""
_OF_LANES: Final = frozenset(
    {
        int(ApiKey.FETCH),
        int(ApiKey.OFFSET_COMMIT),
        int(ApiKey.OFFSET_FETCH),
        int(ApiKey.TXN_OFFSET_COMMIT),
    }
)
"""The APIs whose requests the stage reads if the client has a lane."""
_AUTHENTICATE: Final = frozenset({int(ApiKey.SASL_HANDSHAKE), int(ApiKey.SASL_AUTHENTICATE)})
_OF_GROUPS: Final = frozenset(
    {int(ApiKey.JOIN_GROUP), int(ApiKey.SYNC_GROUP), int(ApiKey.HEARTBEAT), int(ApiKey.LEAVE_GROUP)}
)
"""The APIs whose requests the stage reads if they name a cooperative group."""
_FOR_GROUPS: Final[Ranges] = frozenset(
    {
        int(ApiKey.OFFSET_COMMIT): (2, 9),
        int(ApiKey.OFFSET_FETCH): (1, 9),
        int(ApiKey.JOIN_GROUP): (0, 9),
        int(ApiKey.HEARTBEAT): (0, 4),
        int(ApiKey.LEAVE_GROUP): (0, 5),
        int(ApiKey.SYNC_GROUP): (0, 5),
    }.items()
)
"""What all clients are offered. Later OffsetCommit and OffsetFetch name topics by id (KIP-848)."""
_FOR_MEMBERS: Final = _FOR_GROUPS | {(int(ApiKey.FETCH), (4, 12))}
"""What a client with a lane is offered. Later versions of Fetch name topics by id (KIP-516)."""
_READ: Final = dict(_FOR_MEMBERS)
_KEEP: Final = frozenset({"kafka-python"})
"""Client software that continues at its old position if a partition is taken from it and assigned again,
although it has reported the release. kafka-python 3 also delivers records that it had fetched before
(`assign_from_subscribed`)."""
_ASSIGNED_BY_BROKERS: Final = frozenset({68, 88})
"""With ConsumerGroupHeartbeat (KIP-848) and StreamsGroupHeartbeat (KIP-1071), brokers assign whole
partitions."""


class _Request(NamedTuple):
    """The fields at the beginning of a request."""

    size: int
    """The size of the whole request in bytes, including the length field."""
    name_end: int
    """The offset of the first byte after the client.id."""
    api_key: int
    version: int


class MemberStage(Stage):
    """Reads a member's requests, and makes the member's responses.

    While the stage makes a response, the client's next request waits until the response is sent. A broker
    does the same on each connection (fetch-semantics, trap 16). Requests that the stage forwards do not hold
    up others.
    """

    __slots__ = (
        "_alarm",
        "_alarmed_at",
        "_claim",
        "_closing",
        "_current",
        "_due_at",
        "_fetch_wait",
        "_identity",
        "_is_member",
        "_joining",
        "_last",
        "_members",
        "_rest",
        "_resume",
        "_state",
        "_subscriber",
        "_take",
        "_wake",
    )

    def __init__(self, members: Members, state: ConnectionState) -> None:
        self._members = members
        self._state = state
        self._rest: Callable[[bytes, int, int, int], bool]
        """The function that processes a request as if the client had no lane (`ClientSide.process`)."""
        self._resume: Callable[[], None] = _nothing
        self._is_member: bool | None = None
        """Whether this stage looks at the client's requests. None until it has read a client.id. False if the
        client.id of the first request can't be read."""
        self._identity = MemberIdentity(members, state.host)
        self._joining = Joining(members, state.host)
        self._subscriber = Subscriber(members.shared_fetches, state.broker, self._go_on)
        self._current: LaneFetch | CommitRequest | None = None
        """The last fetch or commit. If it `waits` for other members, the client's next request waits, too."""
        self._claim: Claim | None = None
        """The response that the client's next request waits for."""
        self._take: Take | None = None
        """The function that processes the response in `_claim`. It is None if the client's response is ready.
        A ready response waits for its turn, and until `_due_at` (in seconds)."""
        self._due_at = 0.0
        self._last = InFlight(0, 0, b"", FORWARD)
        """The last request that the stage has read, for responses that it makes without the broker."""
        self._fetch_wait = 0.0
        """How long the last request may wait in the gateway, in seconds. 0 if it is no fetch."""
        self._closing = False
        self._alarmed_at = inf
        """When the next alarm for a parked fetch is due, in seconds. Infinite if there is none."""
        self._alarm: Callable[[float], None] = _nothing
        self._wake: Callable[[], None] = _nothing

    def __repr__(self) -> str:
        return f"<MemberStage {self._identity.client_id!r} holds={self.holds}>"

    def connect_core(
        self,
        process: Callable[[bytes, int, int, int], bool],
        resume: Callable[[], None],
        settle: Callable[[], None],  # noqa: ARG002 - as every stage
    ) -> None:
        self._rest, self._resume = process, resume

    def attach(self, wake: Callable[[], None], alarm: Callable[[float], None]) -> None:
        self._wake, self._alarm = wake, alarm

    @property
    def holds(self) -> bool:  # type: ignore[override]  # computed, not set
        return self._claim is not None or (self._current is not None and self._current.waits)

    @property
    def versions(self) -> Ranges:  # type: ignore[override]  # computed, not set
        if not self._is_member:
            return NO_RANGES
        return _FOR_MEMBERS if self._state.gets_part else _FOR_GROUPS

    @property
    def busy(self) -> bool:
        return self.holds

    @property
    def longest_wait(self) -> float:
        return self._fetch_wait if self.holds else 0.0

    def reads_on(self, waiting: int) -> bool:
        return self.holds and waiting < MAX_HELD  # to notice when the client disconnects

    def close(self) -> None:
        self._closing = True
        self._joining.end(self._state.now)
        self._send_due()
        if self._current is not None:
            self._current.close(self._state.now)

    def end(self) -> None:
        self._wake = self._alarm = self._resume = _nothing
        self._joining.end(self._state.now)
        if self._current is not None:
            self._current.end(self._state.now)
        self._identity.end()
        self._subscriber.end(self._state.now)

    def tick(self, now: float) -> None:
        self._state.now = now
        if now >= self._alarmed_at:
            self._alarmed_at = inf
        self._send_due()
        if self._current is not None and self._current.waits:
            self._go(self._current, now)
        self._resume()

    def _go_on(self, now: float) -> None:
        """Continue the current request, because another member's request is done."""
        self.tick(now)
        self._wake()

    # Requests

    def on_frame(self, data: bytes, size: int, api_key: int, version: int) -> bool | None:
        if self._is_member is False:
            return None
        if self.holds or self._closing:
            return self._hold()
        name_end = REQUEST_START_BYTES + _NAME_BYTES
        if len(data) >= name_end:
            name_end += max(int.from_bytes(data[REQUEST_START_BYTES:name_end], signed=True), 0)
        if name_end > size:
            if self._is_member is None:
                self._is_member = False  # the core reports the error
                return None
            return self._fail(describe_length(data[:16], size - LENGTH_BYTES, size))
        if len(data) < name_end:
            return self._need(name_end)
        client_id = data[REQUEST_START_BYTES + _NAME_BYTES : name_end]
        if client_id != self._identity.client_id or not self._is_member:
            if (used := self._names(client_id)) is not None:
                return used
            self._state.gets_part = self._identity.has_lane or not client_id
            self._state.plans.stop()
        return self._process(_Request(size, name_end, api_key, version), data)

    def _names(self, client_id: bytes) -> bool | None:
        """Note the client.id. Return None if the request can be processed, else the result of `on_frame`."""
        if self._identity.declares:
            return self._fail("the client.id changed on a connection with a lane")
        if self._is_member and self._state.queue.owed:
            return self._hold()  # a session may hold fetches under the earlier client.id
        self._is_member = True
        self._joining.client_id = client_id
        self._identity.named(client_id)
        return None

    def _need(self, size: int) -> bool:
        self._state.from_client.need = size
        return False

    def _hold(self) -> bool:
        self._state.from_client.held = True
        return False

    def _fail(self, reason: str) -> bool:
        self._state.fail("client", reason)
        return True

    def _process(self, request: _Request, data: bytes) -> bool | None:
        size, identity = request.size, self._identity
        has_lane = bool(identity.refused) or identity.member is not None
        if request.api_key in _AUTHENTICATE:
            self._subscriber.alone()
        if has_lane and request.api_key == ApiKey.SASL_HANDSHAKE and request.version == 0:
            return self._fail("a client of a cooperative group used SASL without Kafka's framing")
        is_read = has_lane and request.api_key in _OF_LANES
        if request.api_key in _OF_GROUPS:
            named = self._group_named(data[:READ_WITHIN], size)
            if named is None:
                return self._need(len(data) + 1)
            is_read = self._members.group(named) is not None
        return self._read_whole(request, data) if is_read else self._pass(request, data)

    def _read_whole(self, request: _Request, data: bytes) -> bool:
        size, version, now = request.size, request.version, self._state.now
        lowest, highest = _READ.get(request.api_key, (0, version))
        name = ApiKey(request.api_key).name
        if size > MAX_READ or not lowest <= version <= highest:
            wrong = f"{size} bytes are too many" if size > MAX_READ else "the version is not offered"
            return self._fail(f"a client of a cooperative group sent {name} v{version}: {wrong}")
        if len(data) < size:
            return self._need(size)
        frame = self._renamed(data, request)
        self._fetch_wait = 0.0
        self._last = InFlight(request.api_key, version, frame[REQUEST_CORRELATION_ID], FORWARD)
        try:
            if request.api_key in _OF_GROUPS:
                self._group_request(frame, request, now)
            elif request.api_key == ApiKey.FETCH:
                self._fetch(frame, version, now)
            elif request.api_key == ApiKey.OFFSET_FETCH:
                self._exchange(own_offsets(read_offset_fetch(frame), self._identity, self._members))
            else:
                commit = read_commit(frame)
                self._go(CommitRequest(commit, self._identity, self._members, self._send, self._go_on), now)
        except ProtocolError as error:
            return self._fail(f"{name} v{version} is not understood: {error}")
        return True

    def _pass(self, request: _Request, data: bytes) -> bool | None:
        """Forward a request with the client's own id, without suffix."""
        size, identity, requests = request.size, self._identity, self._state.from_client
        if request.api_key == ApiKey.API_VERSIONS and identity.bound and size <= READ_WITHIN:
            if len(data) < size:
                return self._need(size)
            self._versions(data, request.version)
        if request.api_key in _ASSIGNED_BY_BROKERS and identity.bound:
            self._members.bound(identity.host, identity.client_id).assigned(self._state.now)
        if identity.own_id == identity.client_id:  # the other stages process the request
            return None
        less = len(identity.client_id) - len(identity.own_id)
        renamed = self._renamed(data, request)
        used = self._rest(renamed, size - less, request.api_key, request.version)
        if not (used or requests.held):
            requests.need += less
        return used

    def _versions(self, frame: bytes, version: int) -> None:
        with suppress(ProtocolError):
            _, software = read_client_names(frame, version)
            if software is not None and software.name in _KEEP:
                self._members.bound(self._identity.host, self._identity.client_id).keeps = True

    @staticmethod
    def _group_named(data: bytes, size: int) -> bytes | None:
        """Return the group that a request names: b"" if none, or None if more bytes are needed."""
        try:
            api_key, version, _, _, body = request_header(data, LENGTH_BYTES)
            group: bytes | None = read(_GROUP, api_key, version, data, body, whole=False)["group_id"]
        except ProtocolError:
            return None if len(data) < min(size, READ_WITHIN) else b""
        return group or b""

    def _renamed(self, data: bytes, request: _Request) -> bytes:
        """Return a request, or its beginning, in which the client.id has no suffix."""
        own_id = self._identity.own_id
        less = len(self._identity.client_id) - len(own_id)
        head = (request.size - LENGTH_BYTES - less).to_bytes(LENGTH_BYTES)
        rest = data[request.name_end :]
        return b"".join((head, data[LENGTH_BYTES:REQUEST_START_BYTES], encode_string(own_id), rest))

    def _group_request(self, frame: bytes, request: _Request, now: float) -> None:
        joining, identity = self._joining, self._identity
        if request.api_key == ApiKey.JOIN_GROUP:
            join = read_join(frame)
            joining.saw_join = True
            if not joining.takes(join):
                self._send(frame, None)
            elif identity.declares:
                self._fail("a client with key ranges in its client.id must assign partitions, not subscribe")
            else:
                self._send(joining.join(join, now), _edited(joining.joined))
        elif request.api_key == ApiKey.SYNC_GROUP:
            self._exchange(self._sync(read_sync(frame)))
        elif (member := identity.member) is None or not identity.bound:
            self._send(frame, None)
        elif request.api_key == ApiKey.HEARTBEAT:
            self._beat(frame, request.version, member, now)
        else:
            joining.leave()
            self._send(frame, None)

    def _exchange(self, steps: Steps) -> None:
        reply = Exchanges(steps, self._send).begin()
        if reply is not None:
            self._reply(reply.pieces)

    def _sync(self, sync: Sync) -> Steps:
        joining, group, now, read = self._joining, self._members.group(sync.group), self._state.now, None
        if group is not None and (places := joining.committed_of(sync)):
            sender = sender_of(sync.frame)
            frame, now = yield offset_fetch(sender, sync.group, places)
            read = read_committed_of(frame, sender, group)
        made = None if read is not None and read.failed else joining.sync(sync, now, read)
        if made is None:
            return Reply([rejoin(sync.frame)])
        frame, now = yield made
        return Reply([joining.synced(sync, frame, now)])

    def _beat(self, frame: bytes, version: int, member: Member, now: float) -> None:
        """Process a heartbeat. Before it, commit what the member's application does not."""
        joining, group = self._joining, self._members.group(member.group)
        beat = read_heartbeat(frame)
        joining.beats(beat)
        refused = group is not None and group.slots_error and member.assignment.seat is not None
        if member.joins_again(now) or refused or (group is not None and group.tries(now)):
            self._reply([rejoin(frame)])
            return

        def goes(begun: bool = False) -> Reply | None:
            if begun:
                return Reply([rejoin(frame)])
            self._send(frame, _edited(partial(joining.beat, beat, version, now)))
            return None

        if group is None or group.busy:
            goes()  # the commit of another member may take seconds
        elif member.begun:
            entries = [Entry(*place, member.first[place]) for place in sorted(member.assignment.begins)]
            self._commit(frame, group, member, entries, goes, first=True)
        elif entries := group.idle(member):
            self._commit(frame, group, member, entries, lambda _: goes())
        else:
            goes()

    def _commit(
        self,
        frame: bytes,
        group: Group,
        member: Member,
        entries: list[Entry],
        then: Callable[[bool], Reply | None],
        *,
        first: bool = False,
    ) -> None:
        """Commit for a member before the client's request."""
        made = offset_commit(
            sender_of(frame),
            group.name.encode(),
            member.generation,
            member.member_id,
            member.instance,
            entries,
        )
        self._go(
            CommitRequest(
                read_commit(made), self._identity, self._members, self._send, self._go_on, then, first=first
            ),
            self._state.now,
        )

    def _fetch(self, frame: bytes, version: int, now: float) -> None:
        fetch = parse_fetch_request(frame, version, request_header(frame, LENGTH_BYTES)[4])
        member, members = self._identity.member, self._members
        if member is None:
            members.tally.refused[INVALID_RANGES] += fetch.partitions
            # franz-go and aiokafka ask again at once, hundreds of times a second.
            self._fetch_wait = held = max(fetch.max_wait_ms / 1e3, HELD_SECONDS)
            self._reply([refusal(fetch, INVALID_RANGES)], now + held)
            return
        client = self._identity.host, self._identity.client_id
        if self._identity.bound and (away := members.fetches(client, member, now)):
            self._fail(away)
            return
        before = len(member.first)
        try:
            lane = LaneFetch(fetch, member, self._subscriber, members, self._send, now)
        finally:  # a fetch of too many partitions ends the connection, and the member keeps those before
            members.fetched(len(member.first) - before)
        self._fetch_wait = lane.refuse_at - now
        if fetch.session_id:  # the gateway has never given a session to this client
            error = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            self._reply([empty_response(fetch.layout, self._last.correlation_id, error=error)])
        elif code := self._identity.denied(lane.offsets, claims=True):
            members.tally.refused[code] += len(lane.offsets)
            self._reply([refusal(fetch, code)], lane.refuse_at)
        else:
            self._go(lane, now)

    def _go(self, request: LaneFetch | CommitRequest, now: float) -> None:
        self._current = request
        if (reply := request.go(now)) is not None:
            self._reply(*reply)
        self._set_alarm()

    def _set_alarm(self) -> None:
        current = self._current
        if current is not None and current.waits and current.wait_until < self._alarmed_at:
            self._alarmed_at = current.wait_until
            self._alarm(current.wait_until)

    def _send(self, frame: bytes, take: Take | None) -> None:
        state = self._state
        if state.fault is not None or state.phase is Phase.CLOSING:
            return
        _, api_key, version, _ = REQUEST_START.unpack_from(frame)
        self._rest(frame, len(frame), api_key, version)
        if take is not None and state.fault is None:
            self._claim, self._take = state.queue.claim(state.queue.owed[-1]), take

    # Responses

    def settle(self) -> None:
        state, claim, take = self._state, self._claim, self._take
        if claim is None or state.queue.owed[0] is not claim.request:
            return
        if take is None:
            if not self._send_due():
                return
        elif claim.whole:
            self._claim = self._take = None
            try:
                reply = take(b"".join(claim.pieces), state.now)
            except ProtocolError as error:
                state.fail(
                    "broker", f"a response to a client of a cooperative group is not understood: {error}"
                )
                return
            if reply is None:
                state.queue.keep(claim, [])
                state.to_client += state.queue.respond(claim)
            else:
                self._respond(claim, reply)
            self._set_alarm()
        else:
            return
        self._resume()

    def _reply(self, pieces: list[Buffer], due_at: float = 0.0) -> None:
        """Respond to the last request without asking the broker."""
        queue = self._state.queue
        queue.owed.append(self._last)
        self._respond(queue.claim(self._last), Reply(pieces, due_at))

    def _respond(self, claim: Claim, reply: Reply) -> None:
        state = self._state
        state.queue.keep(claim, reply.pieces)
        self._claim, self._due_at = claim, reply.due_at
        self._send_due()
        if reply.due_at > state.now:
            self._alarm(reply.due_at)

    def _send_due(self) -> bool:
        state, claim = self._state, self._claim
        if claim is None or self._take is not None or state.queue.owed[0] is not claim.request:
            return False
        if self._due_at > state.now and not self._closing:
            return False
        self._claim = None
        state.to_client += state.queue.respond(claim)
        return True


def _edited(edit: Callable[[bytes, float], bytes]) -> Take:
    return lambda frame, now: Reply([edit(frame, now)])


def _nothing(*_: object) -> None:
    """Do nothing. This stands for functions that are not set yet, or that must no longer be called."""
