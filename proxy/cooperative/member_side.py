"""The side of a client that has a lane of a cooperative group (docs/cooperative.md). Sans-IO.

It stands between the client and the rest of the core, which sees the client as if it had no lane: its own
client.id, full fetches of whole partitions. So these go through a session like those of any client. Of the
responses the client gets the records of its lane.

A client has a lane if it declares one in its client.id, or if its group gave it one, on another connection
perhaps. What a client without a lane sends passes, but for what it says to join a group.
"""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import Final

from proxy.cooperative.group import Group, own_offset, with_positions
from proxy.cooperative.joining import Joining
from proxy.cooperative.lane_fetch import HELD_SECONDS, LaneFetch, Verdict, refusal
from proxy.cooperative.member import Member
from proxy.cooperative.members import INVALID_RANGES, OVERLAPS, Members
from proxy.cooperative.membership import (
    Sync,
    heartbeat_error,
    heartbeat_member,
    read_join,
    read_sync,
    rejoin,
)
from proxy.cooperative.offsets import (
    ASKS,
    FLEXIBLE_ASKS,
    GROUPS_SINCE,
    Commit,
    FetchedGroup,
    offset_fetch,
    read_answered,
    read_commit,
    read_fetched_offsets,
    read_offset_fetch,
)
from proxy.cooperative.positions import Positions, TopicPartition
from proxy.cooperative.ranges import RangeError
from proxy.cooperative.reader import Rider
from proxy.cooperative.tally import Told
from proxy.core.in_flight import AT_ONCE, MAX_IN_FLIGHT
from proxy.core.requests import describe_length, read_client_names
from proxy.protocol.api import (
    LENGTH_BYTES,
    REQUEST_CORRELATION_ID,
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
"""A larger fetch or commit of a client with a lane is not read, and can't pass unread."""
MAX_HELD: Final = 1 << 16
"""With so many bytes that wait for the response to a fetch, no more is read from the client."""
_NAME_BYTES: Final = 2
"""The length of a client.id, which stands behind the correlation id."""
_NOT_ALLOWED: Final = 35
"""UNSUPPORTED_VERSION: commits for key ranges are off for the group (allow.individual.commit)."""
_SHARED: Final = 44
"""POLICY_VIOLATION: transactions commit for all keys of a partition."""
_REBALANCING: Final = 27
"""REBALANCE_IN_PROGRESS: it is not known here what the member has, until it joins again."""
_TOO_LARGE: Final = 12
"""OFFSET_METADATA_TOO_LARGE."""
_OF_LANES: Final = frozenset(
    {
        int(ApiKey.FETCH),
        int(ApiKey.OFFSET_COMMIT),
        int(ApiKey.OFFSET_FETCH),
        int(ApiKey.TXN_OFFSET_COMMIT),
    }
)
"""What is read of a client that has a lane."""
_AUTHENTICATE: Final = frozenset({int(ApiKey.SASL_HANDSHAKE), int(ApiKey.SASL_AUTHENTICATE)})
_OF_GROUPS: Final = frozenset(
    {int(ApiKey.JOIN_GROUP), int(ApiKey.SYNC_GROUP), int(ApiKey.HEARTBEAT), int(ApiKey.LEAVE_GROUP)}
)
"""What is read of any client, about a cooperative group."""
_KEEP: Final = frozenset({"kafka-python"})
"""Software that goes on where it is in a partition that it had and gets again, though it has said that it
gave it up: kafka-python 3 keeps the position, and delivers what it had fetched (`assign_from_subscribed`)."""
_ASSIGNED_BY_BROKERS: Final = frozenset({68, 88})
"""ConsumerGroupHeartbeat (KIP-848) and StreamsGroupHeartbeat (KIP-1071): brokers assign whole partitions."""


class _Own:
    """A response of the gateway's own: its bytes, and when it is due, in seconds."""

    __slots__ = ("due_at", "pieces")

    def __init__(self, pieces: list[Buffer], due_at: float = 0.0) -> None:
        self.pieces, self.due_at = pieces, due_at


class _Committing:
    """A commit of the member that waits for the broker."""

    __slots__ = ("asks", "commit", "group", "maps", "moved")

    def __init__(self, commit: Commit, group: Group) -> None:
        self.commit, self.group = commit, group
        self.asks = False
        """The broker is asked first what it has."""
        self.moved: dict[TopicPartition, Positions] = {}
        """What it has once it has taken the commit."""
        self.maps = True
        """It is sent maps."""


class _Joins:
    """The client joins a group that may share partitions."""

    __slots__ = ()


class _Syncs:
    """It waits for its assignment."""

    __slots__ = ("request",)

    def __init__(self, request: Sync) -> None:
        self.request = request


class _Beats:
    """It tells its group that it lives."""

    __slots__ = ("member_id", "sent", "version")

    def __init__(self, version: int, member_id: bytes, sent: float) -> None:
        self.version, self.member_id = version, member_id
        self.sent = sent
        """When, in seconds."""


class _Offsets:
    """The member asks for committed offsets."""

    __slots__ = ("changes", "everything", "groups", "version")

    def __init__(
        self, version: int, groups: list[bytes], changes: dict[bytes, int], everything: set[bytes]
    ) -> None:
        self.version, self.groups = version, groups
        self.everything = everything
        """The groups of which it asks for all that was committed."""
        self.changes = changes
        """Of the cooperative ones among these: see `Group.changes`."""


def _nothing(*_: object) -> None:
    """Do nothing: no shell is attached."""


class MemberSide:
    """Processes what comes from a client with a lane, and what is due to it.

    Args:
        members: those of the process.
        host: the client's.
        forward: takes bytes as those of a client without a lane.
        fail: ends the connection with a fault of one side, for a reason in words.
        max_request_bytes: the longest frame taken from the client.
        broker: identifies the broker; empty, or several: it is not known which one it is.
    """

    __slots__ = (
        "_alarm",
        "_alarmed_at",
        "_bound",
        "_client_id",
        "_closing",
        "_data",
        "_declared",
        "_expected",
        "_fail",
        "_fetch_wait",
        "_forward",
        "_frame",
        "_host",
        "_joining",
        "_left",
        "_left_at_once",
        "_max_request_bytes",
        "_members",
        "_own_id",
        "_parked",
        "_passing",
        "_queues",
        "_refused",
        "_rider",
        "_stopped",
        "_told",
        "_turn",
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
        self._host = host
        self._forward = forward
        self._fail = fail
        self._max_request_bytes = max_request_bytes
        self.is_member: bool | None = None
        """Whether the client has a lane, or wants one that it can't have; None: it has not said yet."""
        self.elsewhere = 0
        """The number of the process that is to serve the client; 0: this one."""
        self.to_client: list[Buffer] = []
        """Bytes that are due to the client."""
        self._data = bytearray()
        """What came from the client and was not processed."""
        self._client_id = self._own_id = b""
        """As the client sends it, and without the suffix."""
        self._declared: Member | None = None
        """The member, if the client declares its lane."""
        self._bound = False
        """It is a member of a group, as its client.id says."""
        self._refused = ""
        """Why what it declares can't be, in words."""
        self._told = False
        """It was told why the client is denied its lane."""
        self._joining = Joining(members, host)
        self._passing = 0
        """Bytes to come of a request that passes as it comes."""
        self._expected: deque[LaneFetch | _Committing | _Offsets | _Joins | _Syncs | _Beats | _Own | None] = (
            deque()
        )
        """What becomes of each response that the client waits for, in its order; None: it passes. Behind a
        fetch, or a response of the gateway's own, there is nothing: what the client sends then waits. A
        broker handles one request of a connection at a time as well (fetch-semantics, trap 16)."""
        self._frame = bytearray()
        """The beginning of a response, or all of it if it is read."""
        self._left = 0
        """Bytes to come of a response that passes."""
        self._left_at_once = AT_ONCE
        """So many requests may still be processed in this call."""
        self._stopped = False
        """Others would have been."""
        self._fetch_wait = 0.0
        """How long the last request may wait in the gateway, if it is a fetch, in seconds."""
        self._closing = False
        self._turn: Group | None = None
        """The group whose next commit is this member's, or that it waits for."""
        self._queues = False
        """It waits."""
        self._rider = Rider(members.readers, broker, self._go_on)
        self._parked: LaneFetch | None = None
        """The fetch that waits for the response to another member's. What the client sends then waits."""
        self._alarmed_at = inf
        """When `tick` is called for it, in seconds."""
        self._alarm: Callable[[float], None] = _nothing
        self._wake: Callable[[float], None] = _nothing

    def attach(self, wake: Callable[[float], None], alarm: Callable[[float], None]) -> None:
        """Have a shell see to this connection.

        Args:
            wake: is called when the member can go on that has waited for another one's commit, or for
                another one's fetch; takes the time in seconds. `tick` is to be called then.
            alarm: is given a time, in seconds, at which `tick` is to be called.
        """
        self._wake, self._alarm = wake, alarm

    def __repr__(self) -> str:
        return f"<MemberSide {self._client_id!r} expected={len(self._expected)}>"

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
        """Whether some of what came from the client is still to be processed, though no more of it comes.

        Half a request behind it is not: its end would have to come first.
        """
        return self._waits or self._stopped or (self._full and len(self._data) > 0)

    @property
    def longest_wait(self) -> float:
        """How many seconds a fetch may wait here, at most: for another member's, or until it is refused."""
        return self._fetch_wait if self._waits else 0.0

    @property
    def has_lane(self) -> bool:
        """Whether the client has a lane, wants one that it can't have, or has not said who it is."""
        return self._bound or self._declared is not None or bool(self._refused) or not self._client_id

    @property
    def busy(self) -> bool:
        """Whether the client waits for a response."""
        return bool(self._expected) or self._queues or self._parked is not None

    @property
    def buffered(self) -> int:
        """Bytes that are kept."""
        kept = len(self._data) + len(self._frame)
        if self._expected and isinstance(own := self._expected[-1], _Own):
            kept += sum(map(len, own.pieces))
        return kept

    @property
    def refused(self) -> str:
        """Why the client gets no records, in words; empty if it does."""
        return self._refused

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
        """Take no more requests; what is in flight is finished."""
        self._closing = True
        self._data.clear()
        self._send_own(inf)
        if self._queues:
            self._leave(now)
        if (parked := self._parked) is not None:
            self._parked = None
            self._rider.goes(now)
            self._send_fetch(parked, now, parked.wait_until)  # the broker is not to wait

    def end(self, now: float) -> None:
        """Note that the connection has ended: others need not wait for it."""
        self._wake = self._alarm = _nothing
        self._joining.end()
        for each in self._expected:
            if isinstance(each, _Committing):
                each.group.forget(each.commit.places)
        self._leave(now)
        if self._declared is not None:
            self._members.claims.closed((self._host, self._client_id))
            self._declared = None
        self._rider.end(now)

    def _leave(self, now: float) -> None:
        """Let the next member of the group commit."""
        turn, self._turn, self._queues = self._turn, None, False
        if turn is not None:
            turn.release(self, now)

    def tick(self, now: float) -> None:
        """Do what is due."""
        self._left_at_once = AT_ONCE
        if now >= self._alarmed_at:
            self._alarmed_at = inf
        self._send_own(now)
        if (parked := self._parked) is not None:
            self._parked = None
            self._ask(parked, now)
        self._read(now)

    @property
    def _waits(self) -> bool:
        """Whether what the client sends has to wait."""
        behind = bool(self._expected) and self._expected[-1] is not None
        return behind or self._queues or self._parked is not None

    @property
    def _full(self) -> bool:
        """Whether as many requests are in flight as may be."""
        return len(self._expected) >= MAX_IN_FLIGHT and not self._passing

    def _read(self, now: float) -> None:
        """Process what came from the client, as far as it need not wait: a bounded number of requests."""
        self._stopped = False
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
        if client_id != self._client_id or not self.is_member:
            if self._declared is not None or self._refused:
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
            self._named(client_id)
        _, api_key, version, _ = REQUEST_START.unpack_from(data)
        return self._member_request(LENGTH_BYTES + length, name_end, api_key, version, now)

    def _named(self, client_id: bytes) -> None:
        """Note what the client calls itself, and what that declares."""
        self._client_id = self._own_id = self._joining.client_id = client_id
        try:
            found = self._members.declared(self._host, client_id)
        except RangeError as error:
            self._refused = str(error)
            self._members.tell(Told.REFUSED, self._host, self._refused)
            return
        if found is not None:
            what, self._declared = found
            self._own_id = what.own_id
            self._members.claims.opened((self._host, client_id))
        self._bound = found is None and self._members.is_bound(client_id)

    @property
    def _member(self) -> Member | None:
        return self._members.bound(self._host, self._client_id) if self._bound else self._declared

    def _member_request(self, size: int, name_end: int, api_key: int, version: int, now: float) -> int:
        """Process a request; return how many bytes were used, 0 if more are needed."""
        data = self._data
        has_lane = self._refused or self._member is not None
        if api_key in _AUTHENTICATE:
            self._rider.alone()
        if has_lane and api_key == ApiKey.SASL_HANDSHAKE and version == 0:
            self._fail("client", "SASL without Kafka's framing, by a client with a lane")
            return len(data)
        is_read = has_lane and api_key in _OF_LANES
        if api_key in _OF_GROUPS:
            named = self._group_named(bytes(data[:READ_WITHIN]), size)
            if named is None:
                return 0
            is_read = self._members.group(named) is not None
        if is_read:
            lowest, highest = FOR_MEMBERS.get(api_key, (0, version))
            if size > MAX_READ or not lowest <= version <= highest:
                wrong = f"of {size} bytes" if size > MAX_READ else "which is not offered"
                self._fail("client", f"{ApiKey(api_key).name} v{version}, {wrong}, by a client with a lane")
                return len(data)
            if len(data) < size:
                return 0
            try:
                frame = self._renamed(bytes(data[:size]), name_end, size)
                if not self._read_request(frame, api_key, version, now):
                    return 0
            except ProtocolError as error:
                self._fail("client", f"{ApiKey(api_key).name} v{version} that is not understood: {error}")
                return len(data)
            return size
        if api_key == ApiKey.API_VERSIONS and self._bound and size <= READ_WITHIN:
            if len(data) < size:
                return 0
            self._versions(bytes(data[:size]), version)
        if api_key in _ASSIGNED_BY_BROKERS and self._bound:
            self._members.bound(self._host, self._client_id).assigned(now)
        answered = True
        if api_key == ApiKey.PRODUCE:
            wants = wants_response(bytes(data[:READ_WITHIN]), size)
            if wants is None and len(data) < min(size, READ_WITHIN):
                return 0
            answered = bool(wants)
        if answered:
            self._expected.append(None)
        self._passing = size - name_end
        self._forward(self._renamed(bytes(data[:name_end]), name_end, size), now)
        return name_end

    def _versions(self, frame: bytes, version: int) -> None:
        """Note by what an ApiVersions request says of the client's software how it joins a group."""
        with suppress(ProtocolError):
            _, software = read_client_names(frame, version)
            if software is not None and software.name in _KEEP:
                self._members.bound(self._host, self._client_id).keeps = True

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

    def _renamed(self, data: bytes, name_end: int, size: int) -> bytes:
        """Return a request, or its beginning, with the client's own id."""
        less = name_end - REQUEST_START_BYTES - _NAME_BYTES - len(self._own_id)
        head = (size - LENGTH_BYTES - less).to_bytes(LENGTH_BYTES)
        name = encode_string(self._own_id)
        return b"".join((head, data[LENGTH_BYTES:REQUEST_START_BYTES], name, data[name_end:]))

    def _read_request(self, frame: bytes, api_key: int, version: int, now: float) -> bool:
        """Process a whole fetch, or what is committed; return False if it has to wait for its turn.

        Raises:
            ProtocolError: it can't be read.
        """
        self._fetch_wait = 0.0
        if api_key in _OF_GROUPS:
            self._group_request(frame, api_key, version, now)
        elif api_key == ApiKey.FETCH:
            self._fetch(frame, version, now)
        elif api_key == ApiKey.OFFSET_FETCH:
            asked = read_offset_fetch(frame)
            names = [each.group for each in asked.groups]
            known = {name: group.changes for name in names if (group := self._members.group(name))}
            everything = {each.group for each in asked.groups if each.everything}
            self._expected.append(_Offsets(version, names, known, everything))
            self._forward(frame, now)
        else:
            return self._commit(read_commit(frame), now)
        return True

    def _group_request(self, frame: bytes, api_key: int, version: int, now: float) -> None:
        """Process what a member says to the coordinator of a cooperative group.

        Raises:
            ProtocolError: it can't be read.
        """
        joining = self._joining
        if api_key == ApiKey.JOIN_GROUP:
            join = read_join(frame)
            joining.saw_join = True
            if joining.takes(join) and (self._declared is not None or self._refused):
                self._fail("client", "a client.id with key ranges subscribes: it has to assign partitions")
                return
            if joining.takes(join):
                self._expected.append(_Joins())
                self._forward(joining.join(join), now)
                return
        elif api_key == ApiKey.SYNC_GROUP:
            sync = read_sync(frame)
            made = joining.sync(sync)
            if made is None:
                self._answer([rejoin(frame)], now)
                return
            self._expected.append(_Syncs(sync))
            self._forward(made, now)
            return
        elif (member := self._member) is not None and self._bound:
            if api_key == ApiKey.LEAVE_GROUP:
                joining.leave()
            else:
                joining.beats()
                if member.joins_again:
                    self._answer([rejoin(frame)], now)
                    return
                self._expected.append(_Beats(version, heartbeat_member(frame), now))
                self._forward(frame, now)
                return
        self._expected.append(None)
        self._forward(frame, now)

    def _fetch(self, frame: bytes, version: int, now: float) -> None:
        body = request_header(frame, LENGTH_BYTES)[4]
        member = self._member
        if member is None:
            fetch = parse_fetch_request(frame, version, body)
            self._members.tally.refused[INVALID_RANGES] += fetch.partitions
            # franz-go and aiokafka ask again at once, hundreds of times a second (cooperative.md).
            self._fetch_wait = held = max(fetch.max_wait_ms / 1e3, HELD_SECONDS)
            self._answer([refusal(fetch, INVALID_RANGES)], now, now + held)
            return
        before = len(member.first)
        lane = LaneFetch(frame, version, body, member, now, self._rider)
        self._fetch_wait = lane.refuse_at - now
        self._members.fetched(len(member.first) - before)
        if lane.in_session:
            self._answer([lane.no_session()], now)
        elif code := self._denied(lane.places, claims=True):
            self._members.tally.refused[code] += sum(1 for _ in lane.places)
            self._answer([lane.refusal(code)], now, lane.refuse_at)
        else:
            self._ask(lane, now)

    def _denied(self, places: Iterable[TopicPartition], *, claims: bool) -> int:
        """Return the error that a member gets for a lane which it declares and can't have; 0: it has it."""
        if self._declared is None:
            return 0
        found = self._members.denied((self._host, self._client_id), self._declared, places, claims=claims)
        if found is not None and not self._told:
            self._members.tell(Told.REFUSED, self._host, found.reason)
        self._told = found is not None
        return 0 if found is None else found.code

    def _commit(self, commit: Commit, now: float) -> bool:
        """Process a commit; return False if it has to wait for another member's."""
        group, member = self._members.group(commit.group), self._member
        if member is None:
            self._refuse(commit, INVALID_RANGES, now)
        elif self._declared is not None and not self._members.owns(commit.group):
            self._refuse(commit, _NOT_ALLOWED, now)
        elif not self._is_of(commit.group):
            self._refuse(commit, OVERLAPS, now)
        elif code := self._denied(commit.places, claims=False):
            self._refuse(commit, code, now)
        elif group is not None and (
            member.unknown or group.strange(member, commit) or not member.goes_on(commit.places)
        ):
            self._refuse(commit, _REBALANCING, now)
        elif group is None or not group.shares(member, commit):
            self._expected.append(None)
            self._forward(commit.frame, now)
            self._leave(now)
        elif commit.api_key == ApiKey.TXN_OFFSET_COMMIT:
            self._refuse(commit, _SHARED, now)
        elif any(each.offset < 0 for each in commit.entries):
            self._refuse(commit, INVALID_RANGES, now)
        elif not group.takes(self, self._go):
            self._turn, self._queues = group, True
            return False
        else:
            self._turn = group
            group.joined(member)
            committing = _Committing(commit, group)
            if group.unknown(commit):
                committing.asks = True
                self._expected.append(committing)
                self._forward(offset_fetch(commit, commit.frame[REQUEST_CORRELATION_ID]), now)
            else:
                self._send_commit(committing, member, now)
        return True

    def _is_of(self, group: bytes) -> bool:
        """Whether a lane that is declared is of a cooperative group: of the first one, if none was known."""
        member = self._declared
        if member is None or self._members.group(group) is None:
            return True
        member.group = member.group or group
        return member.group == group

    def _refuse(self, commit: Commit, code: int, now: float) -> None:
        self._members.tally.refused[code] += len(commit.entries)
        self._answer([commit.response([code] * len(commit.entries))], now)
        self._leave(now)  # it may have waited for its turn

    def _go(self, now: float) -> None:
        """Go on: it is this member's turn to commit."""
        self._queues = False
        self._wake(now)

    def _send_commit(self, committing: _Committing, member: Member, now: float) -> None:
        committing.asks = False
        committing.moved = committing.group.moved(member, committing.commit)
        self._expected.append(committing)
        self._forward(with_positions(committing.commit, committing.moved, maps=committing.maps), now)

    def _ask(self, fetch: LaneFetch, now: float) -> None:
        """Give the member what is there for its fetch, or have it wait for it, or ask the broker."""
        while (shares := fetch.find(now)) is not None:
            if not shares:
                self._parked = fetch
                if fetch.wait_until < self._alarmed_at:
                    self._alarmed_at = fetch.wait_until
                    self._alarm(fetch.wait_until)
                return
            verdict, pieces = fetch.served(shares, now)
            if verdict is Verdict.SEND:
                self._answer(pieces, now)
                return
        self._send_fetch(fetch, now, now)

    def _send_fetch(self, fetch: LaneFetch, now: float, as_at: float) -> None:
        self._expected.append(fetch)
        self._forward(fetch.request(as_at), now)

    def _go_on(self, now: float) -> None:
        """Go on with the fetch that waits."""
        self._wake(now)

    def _answer(self, pieces: list[Buffer], now: float, due_at: float = 0.0) -> None:
        """Send a response of the gateway's own, behind those that are to come, and not before a time."""
        self._expected.append(_Own(pieces, due_at))
        self._send_own(inf if self._closing else now)
        if due_at > now:
            self._alarm(due_at)

    def _send_own(self, now: float) -> None:
        """Send the response of the gateway's own whose turn it is, if it is due."""
        if self._expected and isinstance(own := self._expected[0], _Own) and own.due_at <= now:
            self._expected.popleft()
            self.to_client += own.pieces

    # Responses

    def respond(self, due: list[Buffer], now: float) -> None:
        """Take what would be due to the client if it had no lane."""
        self._left_at_once = AT_ONCE
        for piece in due:
            view, at = memoryview(piece), 0
            while at < len(view):
                at += self._response(view[at:], now)

    def _response(self, data: memoryview, now: float) -> int:
        """Take the next bytes of a response; return how many were used."""
        if self._left:
            used = min(self._left, len(data))
            self.to_client.append(data[:used])
            self._left -= used
            if not self._left:
                self._passed(now)
            return used
        begun = len(self._frame)
        size = LENGTH_BYTES
        if begun >= LENGTH_BYTES:
            size += int.from_bytes(self._frame[:LENGTH_BYTES])
        used = min(size - begun, len(data))
        self._frame += data[:used]
        if len(self._frame) == LENGTH_BYTES and self._expected and self._expected[0] is None:
            self._left = int.from_bytes(self._frame)
            self.to_client.append(bytes(self._frame))
            self._frame.clear()
        elif len(self._frame) == size > LENGTH_BYTES:
            self._whole(now)
        return used

    def _passed(self, now: float) -> None:
        """Note that a response has passed."""
        self._expected.popleft()
        self._send_own(now)
        self._read(now)

    def _whole(self, now: float) -> None:
        """Process a whole response to what was read."""
        what, frame = self._expected.popleft(), bytes(self._frame)
        self._frame.clear()
        try:
            if isinstance(what, LaneFetch):
                self._fetched(what, frame, now)
            elif isinstance(what, _Committing):
                self._committed(what, frame, now)
            elif isinstance(what, _Offsets):
                self._answer([self._own_offsets(what, frame)], now)
            elif isinstance(what, _Joins):
                self._answer([self._joining.joined(frame)], now)
            elif isinstance(what, _Syncs):
                self._answer([self._joining.synced(frame, what.request, now)], now)
            elif isinstance(what, _Beats):
                self._joining.beat(what.member_id, heartbeat_error(frame, what.version), what.sent)
                self._answer([frame], now)
        except ProtocolError as error:
            self._fail("broker", f"a response to a client with a lane that is not understood: {error}")
            return
        self._read(now)

    def _fetched(self, fetch: LaneFetch, frame: bytes, now: float) -> None:
        verdict, pieces = fetch.response(frame, now, last=self._closing)
        waiting = self._rider.arrived()
        if self._member is not None and (group := self._members.group(self._member.group)) is not None:
            group.forget(fetch.failed)
        if verdict is Verdict.GO_ON:
            self._ask(fetch, now)
        else:
            self._answer(pieces, now, fetch.refuse_at if verdict is Verdict.WAIT else 0.0)
        for rider in waiting:
            rider.wake(now)

    def _committed(self, committing: _Committing, frame: bytes, now: float) -> None:
        """Process what the broker says to a commit, or before it of what it has."""
        commit, group, member = committing.commit, committing.group, self._member
        if member is None:  # it has left meanwhile
            self._answer([frame if not committing.asks else commit.response([-1] * len(commit.entries))], now)
            group.forget(commit.places)
            self._leave(now)
            return
        if committing.asks:
            said = read_fetched_offsets(frame, FLEXIBLE_ASKS if commit.flexible else ASKS)
            error = next((each.error_code for each in said.groups if each.error_code), 0)
            error = error or group.learn(entry for each in said.groups for entry in each.entries)
            if not error and not group.unknown(commit):
                self._send_commit(committing, member, now)
                return
            self._answer([commit.response([error or -1] * len(commit.entries))], now)
        else:
            errors = {
                (entry.topic, entry.partition): entry.error_code for entry in read_answered(frame, commit)
            }
            self._members.tally.commits["error" if any(errors.values()) else "ok"] += 1
            if committing.maps and _TOO_LARGE in errors.values() and not group.unknown(commit):
                committing.maps = False
                self._send_commit(committing, member, now)
                return
            group.positions.update(
                (place, positions) for place, positions in committing.moved.items() if errors.get(place) == 0
            )
            self._answer([frame], now)
        self._leave(now)

    def _own_offsets(self, asked: _Offsets, frame: bytes) -> bytes:
        """Return what a member is told of committed offsets."""
        said = read_fetched_offsets(frame, asked.version)
        member = self._member
        if member is None:
            return frame
        names = asked.groups if said.version < GROUPS_SINCE else [each.group for each in said.groups]
        groups: list[FetchedGroup] = []
        for name, each in zip(names, said.groups, strict=True):
            group = self._members.group(name)
            if group is None or not self._is_of(name):
                groups.append(each)
                continue
            group.joined(member)
            if not group.busy and group.changes == asked.changes.get(name):
                group.learn(entry for entry in each.entries if entry.offset >= 0)
            group.forget((entry.topic, entry.partition) for entry in each.entries if entry.offset < 0)
            entries = tuple(own_offset(member, entry) for entry in each.entries)
            if not each.error_code:
                told = {(entry.topic, entry.partition) for entry in each.entries if not entry.error_code}
                member.unasked = set() if name in asked.everything else member.unasked - told
            groups.append(replace(each, entries=entries))
        return said.with_groups(groups)
