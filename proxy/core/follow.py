"""Repeats a fetch to the new leader for clients that KIP-951 does not tell: ``--follow-leader``. Sans-IO.

A response with errors 6 or 74 is held. The broker is asked who leads now; then the failed partitions are
fetched from that one, once, on the connection that the same client has there (`proxy.core.peers`). What comes
is put in the place of the errors. Whatever else happens, the client gets the errors as they came: when the
hold ends at the latest, which is bounded by what the client itself would have waited.

An epoch that the client sent fences it (KIP-320). It is replaced only when the new leader has proven that
nothing is hidden by that: its log has records of that very epoch, and they reach the client's offset. Logs
that share a record of an epoch are the same up to it.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Final

from proxy.core.connection_state import ConnectionState, Stage, Stream
from proxy.core.events import FetchKind, NotFollowed
from proxy.core.in_flight import Disposition, InFlightRequest
from proxy.core.peers import Authentication, Identity, Peer, Peers
from proxy.protocol.api import LENGTH_BYTES, REQUEST_CORRELATION_ID, REQUEST_START_BYTES, ApiKey, ErrorCode
from proxy.protocol.fetch_layout import HINTS_VERSION, LAYOUTS
from proxy.protocol.fetch_request import SESSIONLESS_EPOCH, FetchRequest, Listing, build_fetch_request
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.protocol.leader_requests import (
    BY_ID,
    BY_NAME,
    EPOCHS_VERSION,
    Leader,
    Place,
    epochs_request,
    metadata_request,
    read_epochs,
    read_metadata,
)
from proxy.protocol.primitives import Buffer, ProtocolError, read_string

FIRST_VERSION: Final = 9
"""Of Fetch. A broker that takes it takes what the gateway asks, too: see `proxy.protocol.leader_requests`."""
MAX_SECONDS: Final = 1.0
"""No response is held longer."""
MIN_SECONDS: Final = 0.1
"""So long a response may be held whatever the client's max_wait_ms."""
AGAIN_SECONDS: Final = 0.025
"""After so long a broker is asked again that does not know yet who leads."""
WAIT_MS: Final = 100
"""max_wait_ms of a repeated fetch, at most. It paces a client that asks a former leader again and again."""
MAX_BYTES: Final = 1 << 20
"""A larger response is not held, and no more records are asked for than this."""
_MAX_KNOWN: Final = 1 << 15
_CORRELATION_ID: Final = 0x6667_666C
_FETCH: Final = int(ApiKey.FETCH)
_PARKED: Final = (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)
"""Brokers answer these when other members have come, which may take minutes."""
_LIMITS = Struct(">iii")  # max_wait_ms, min_bytes, max_bytes
_EPOCH: Final = slice(4, 8)
"""current_leader_epoch in an entry of a request."""


@dataclass(slots=True, eq=False)
class _Failed:
    """A partition whose entry in a response is an error."""

    place: Place
    start: int
    end: int
    """Where its entry stands in the response."""
    fields: bytes
    """Its entry in the client's request."""
    epoch: int
    """The leader epoch that the client sent; -1: none."""
    offset: int
    leader: Leader | None = None
    proven: bool = False
    """The client's position is one in the log of that leader."""
    why: NotFollowed = NotFollowed.NO_LEADER
    """What stands in the way, until it is followed."""
    entry: bytes = b""
    """What the new leader says."""
    record_bytes: int = 0


@dataclass(slots=True, eq=False)
class _Held:
    """A response that waits for what new leaders say."""

    request: InFlightRequest
    fetch: FetchRequest
    frame: bytes
    record_bytes: int
    failed: dict[Place, _Failed]
    deadline: float
    ask_at: float | None = None
    """When the broker is asked again who leads."""
    waits: int = 0
    """Responses to requests of the gateway's own that are to come."""
    done: bool = False


@dataclass(slots=True, eq=False)
class _Leg:
    """What one new leader is asked."""

    held: _Held
    peer: Peer
    failed: list[_Failed]


def _nothing(*_: object) -> None:
    """Do nothing: no shell is attached."""


class Following:
    """Follows the leaders for one connection, and serves as its client's connection for others.

    Args:
        state: that of the connection.
        peers: the connections of all clients.
        host: the client's.
        node_id: the broker; None: it is not known which one that is.
    """

    __slots__ = (
        "_alarm",
        "_authentication",
        "_catch_up",
        "_held",
        "_host",
        "_known",
        "_node_id",
        "_peers",
        "_settle",
        "_state",
        "_wake",
    )

    def __init__(
        self,
        state: ConnectionState,
        peers: Peers,
        host: str,
        node_id: int | None,
        *,
        catch_up: Callable[[], None],
        settle: Callable[[], None],
    ) -> None:
        self._state = state
        self._peers = peers
        self._host = host
        self._node_id = node_id
        self._catch_up = catch_up
        self._settle = settle
        self._authentication = Authentication()
        self._held: list[_Held] = []
        self._known: dict[Place, tuple[int, Leader]] = {}
        """The epoch that the client sends, and the leader that was followed with it. While that one leads in
        that epoch, it is asked at once: what was proven once stays so, for a leader truncates nothing."""
        self._wake: Callable[[], None] = _nothing
        self._alarm: Callable[[float], None] = _nothing
        if node_id is not None:
            peers.add(self, host, node_id)

    def attach(self, wake: Callable[[], None], alarm: Callable[[float], None]) -> None:
        """Have a shell see to this connection.

        Args:
            wake: is called when something is due that did not come with the connection's own bytes. It must
                be written at once: what passes by the steady path next comes behind it.
            alarm: is given a time, in seconds, at which `tick` is to be called.
        """
        self._wake, self._alarm = wake, alarm

    def __repr__(self) -> str:
        return f"<Following {self._host} at {self._node_id} held={len(self._held)}>"

    # As a peer

    def identity(self) -> Identity | None:
        """Return whose connection it is; None if that is not known, or requests can't be sent now."""
        state, told = self._state, self._authentication
        usable = (
            state.stage is Stage.OPEN
            and state.stream is Stream.FRAMES
            and state.fault is None
            and not (state.forwarding_left or state.delayed)
        )
        if not (usable and told.done and state.client_id) or told.as_whom is None:
            return None
        return Identity(self._host, state.client_id, told.as_whom)

    def wait_left(self, now: float) -> float:
        """Return how many seconds the broker may let a request wait that is sent now; inf: do not send it.

        A broker handles the requests of a connection one by one (fetch-semantics, trap 16).
        """
        self._catch_up()
        self._state.take_over()
        self._settle()
        left = 0.0
        for request in self._state.responses.expected:
            if request.api_key in _PARKED:
                return float("inf")
            if request.fetch is not None:
                left = max(left, request.sent_at + request.fetch.max_wait_ms / 1e3 - now)
        return left

    def ask(self, request: InFlightRequest, frame: bytes, now: float) -> None:
        """Send a request of the gateway's own."""
        self._catch_up()
        self._state.now = now
        broker = self._state.tally.broker
        if request.api_key == _FETCH:
            broker.fetch_request_bytes += len(frame)
            broker.fetches[FetchKind.SESSIONLESS] += 1
            broker.partitions_requested += request.sent_partitions
        else:
            self._state.tally.probe_bytes += len(frame)
        request.sent = len(frame)
        self._state.send(request, frame)
        self._settle()
        self._wake()

    def count(self, walk: FetchResponseWalk) -> None:
        """Count what came for a fetch of the gateway's own."""
        broker = self._state.tally.broker
        broker.partitions_answered += walk.partitions
        broker.fetch_record_bytes += walk.record_bytes

    # What the client asks

    def asked(self, request: InFlightRequest) -> None:
        """Note a request of the client that will be answered, and is not of SASL."""
        self._authentication.asked(request)

    def answered(self, request: InFlightRequest) -> None:
        """Note that a response is whole."""
        self._authentication.answered(request)

    def authenticates(self, frame: bytes) -> None:
        """Note a request of SASL; b"" if it was not kept."""
        self._state.steady.forget()  # what comes next is to be seen
        self._authentication.authenticates(frame)

    # What the broker says

    def receive(
        self, request: InFlightRequest, pieces: list[Buffer], *, left: int, last: bool
    ) -> list[Buffer]:
        """Take the next bytes of a fetch's response, as the client is to get them; return what it gets now.

        Args:
            request: the fetch.
            pieces: these bytes.
            left: how many are still to come from the broker.
            last: there are no more.
        """
        if request.version >= HINTS_VERSION:
            return pieces
        if not last:
            if not pieces or request.served is not None or request.received + left > MAX_BYTES:
                return pieces
            request.kept += pieces
            self._state.responses.buffered += sum(map(len, pieces))
            return []
        if request.kept:
            self._state.responses.buffered -= sum(map(len, request.kept))
            pieces, request.kept = [*request.kept, *pieces], []
        walk = request.walk
        if walk is None or not walk.moved or request.resend is not None:
            return pieces
        reason = _against(request)
        if reason is not None:
            self._state.tally.not_followed[reason] += walk.moved
            return pieces
        return self._begin(request, pieces)

    def _begin(self, request: InFlightRequest, pieces: list[Buffer]) -> list[Buffer]:
        """Hold a response with errors; return it if nothing can be done."""
        frame, fetch, tally = b"".join(pieces), request.fetch, self._state.tally
        walk = FetchResponseWalk(LAYOUTS[request.version], fetch.isolation_level if fetch else 0, keep=True)
        with suppress(ProtocolError):
            walk.feed(frame)
        listing = fetch.listing if fetch is not None else None
        if fetch is None or listing is None or not walk.done:
            tally.not_followed[NotFollowed.NOT_UNDERSTOOD] += request.walk.moved if request.walk else 0
            return pieces
        failed, left = _failed(walk, listing)
        if left:  # an incremental fetch of the client's own session does not list what has not changed
            tally.not_followed[NotFollowed.NOT_LISTED] += left
        if not failed:
            return pieces
        now = self._state.now
        seconds = min(max(fetch.max_wait_ms / 1e3, MIN_SECONDS), MAX_SECONDS)
        held = _Held(request, fetch, frame, walk.record_bytes, failed, now + seconds)
        if self._who is None or self._state.stage is not Stage.OPEN:
            self._give_up(failed.values(), NotFollowed.NO_CONNECTION)
            self._count(held)
            return pieces
        for each in failed.values():
            epoch, leader = self._known.get(each.place, (-1, None))
            if leader is not None and epoch == each.epoch:
                each.leader, each.proven = leader, True
        if any(each.leader is None for each in failed.values()):
            self._ask_leaders(held)
        self._go(held, [each for each in failed.values() if each.leader is not None], now)
        if not held.waits:
            self._count(held)
            return [self._spliced(held)]
        request.held = True
        self._held.append(held)
        self._state.responses.buffered += len(frame)
        self._alarm(held.deadline)
        return []

    @property
    def _who(self) -> Identity | None:
        """Whose connection this is; a request that is coming in does not hinder a response."""
        told = self._authentication
        if not (told.done and self._state.client_id) or told.as_whom is None:
            return None
        return Identity(self._host, self._state.client_id, told.as_whom)

    # Who leads

    def _ask_leaders(self, held: _Held) -> None:
        """Ask the broker that said that it does not lead who does."""
        by_id = held.fetch.layout.topic_ids
        topics = dict.fromkeys(each.place[0] for each in held.failed.values() if each.leader is None)
        frame = metadata_request(_CORRELATION_ID, _client_id(held.fetch), topics, by_id=by_id)
        request = _own(ApiKey.METADATA, BY_ID if by_id else BY_NAME, frame)
        request.reply = partial(self._leaders_told, held)
        held.ask_at = None
        held.waits += 1
        self.ask(request, frame, self._state.now)

    def _leaders_told(self, held: _Held, frame: bytes | None, now: float) -> None:
        held.waits -= 1
        if held.done:
            return
        told: dict[Place, Leader] = {}
        if frame is not None:
            with suppress(ProtocolError):
                told = read_metadata(frame, by_id=held.fetch.layout.topic_ids)
        found: list[_Failed] = []
        unknown = False
        for each in held.failed.values():
            if each.leader is not None:
                continue
            leader = told.get(each.place)
            if leader is None or leader.leader_id < 0 or leader.leader_epoch < each.epoch:
                unknown = True
            elif leader.leader_id != self._node_id or 0 <= each.epoch < leader.leader_epoch:
                each.leader = leader  # it may be the same broker, which leads again
                found.append(each)
            else:
                unknown = True
        self._go(held, found, now)
        if unknown and frame is not None and now + AGAIN_SECONDS < held.deadline:
            held.ask_at = now + AGAIN_SECONDS
            self._alarm(held.ask_at)
        self._go_on(held)

    # What the new leader says

    def _go(self, held: _Held, failed: Iterable[_Failed], now: float) -> None:
        """Ask the leaders of some partitions: first for a proof of the position, where one is needed."""
        by_leader: dict[int, list[_Failed]] = {}
        for each in failed:
            if each.leader is not None:
                by_leader.setdefault(each.leader.leader_id, []).append(each)
        for leader_id, those in by_leader.items():
            peer = self._peers.find(self._who, leader_id, now)
            if peer is None:
                self._give_up(those, NotFollowed.NO_CONNECTION)
            elif peer.wait_left(now) > held.deadline - now:
                self._give_up(those, NotFollowed.BUSY)
            else:
                leg = _Leg(held, peer, those)
                doubtful = [each for each in those if each.epoch >= 0 and not each.proven]
                if doubtful:
                    self._ask_epochs(leg, doubtful, now)
                else:
                    self._repeat(leg, now)

    def _ask_epochs(self, leg: _Leg, doubtful: Iterable[_Failed], now: float) -> None:
        asked: dict[bytes, list[tuple[int, int, int]]] = {}
        for each in doubtful:
            if each.leader is not None:
                entry = each.place[1], each.leader.leader_epoch, each.epoch
                asked.setdefault(each.leader.topic, []).append(entry)
        frame = epochs_request(_CORRELATION_ID, _client_id(leg.held.fetch), asked)
        request = _own(ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCHS_VERSION, frame)
        request.reply = partial(self._epochs_told, leg)
        leg.held.waits += 1
        leg.peer.ask(request, frame, now)

    def _epochs_told(self, leg: _Leg, frame: bytes | None, now: float) -> None:
        held = leg.held
        held.waits -= 1
        if held.done:
            return
        if frame is None:
            self._give_up(leg.failed, NotFollowed.CLOSED)
        else:
            ends = {}
            with suppress(ProtocolError):
                ends = read_epochs(frame)
            for each in leg.failed:
                end = ends.get((each.leader.topic, each.place[1])) if each.leader is not None else None
                # Its log has records of the client's epoch, and they reach the client's offset (KIP-320).
                if end is not None and not end.error_code and end.leader_epoch == each.epoch:
                    each.proven |= 0 <= each.offset <= end.end_offset
            self._give_up((each for each in leg.failed if not _sure(each)), NotFollowed.NOT_PROVEN)
            leg.failed = [each for each in leg.failed if _sure(each)]
            if leg.failed and leg.peer.identity() != self._who:
                self._give_up(leg.failed, NotFollowed.CLOSED)
            elif leg.failed:
                self._repeat(leg, now)
        self._go_on(held)

    def _repeat(self, leg: _Leg, now: float) -> None:
        """Fetch from a new leader what the old one refused."""
        held = leg.held
        frame = _repeated(held, leg.failed)
        request = _own(ApiKey.FETCH, held.request.version, frame)
        request.sent_partitions = len(leg.failed)
        request.reply = partial(self._answered, leg)
        held.waits += 1
        leg.peer.ask(request, frame, now)

    def _answered(self, leg: _Leg, frame: bytes | None, _now: float) -> None:
        held = leg.held
        held.waits -= 1
        if frame is None:
            if not held.done:
                self._give_up(leg.failed, NotFollowed.CLOSED)
                self._go_on(held)
            return
        walk = FetchResponseWalk(held.fetch.layout, held.fetch.isolation_level, keep=True)
        with suppress(ProtocolError):
            walk.feed(frame)
        leg.peer.count(walk)
        if held.done:
            return
        said = _entries(walk, frame) if walk.done and not walk.error_code else {}
        for each in leg.failed:
            each.entry, each.record_bytes = said.get(each.place, (b"", 0))
            if each.entry and each.leader is not None:
                if len(self._known) >= _MAX_KNOWN:
                    self._known.clear()
                self._known[each.place] = each.epoch, each.leader
            else:
                each.why = NotFollowed.REFUSED
                self._known.pop(each.place, None)
        self._go_on(held)

    # The end

    def _give_up(self, failed: Iterable[_Failed], why: NotFollowed) -> None:
        """Leave partitions with their errors."""
        for each in failed:
            each.why = why
            self._known.pop(each.place, None)

    def _go_on(self, held: _Held) -> None:
        """Send a response if nothing is to come for it."""
        if not held.waits and held.ask_at is None:
            self._end(held)

    def _end(self, held: _Held) -> None:
        """Send a response as far as it was mended."""
        if held.done:
            return
        self._catch_up()
        held.done = True
        request, state = held.request, self._state
        self._held.remove(held)
        request.held = False
        state.responses.buffered -= len(held.frame)
        self._count(held)
        frame = self._spliced(held)
        state.to_client += state.responses.in_turn(request, [frame])
        state.to_client += state.responses.ended(request)
        self._settle()
        self._wake()

    def _count(self, held: _Held) -> None:
        tally, room = self._state.tally, held.fetch.max_bytes - held.record_bytes
        for each in held.failed.values():
            # KIP-74: only the first batch of a response may be larger than max_bytes.
            if each.record_bytes > room and each.record_bytes and room < held.fetch.max_bytes:
                each.entry, each.record_bytes, each.why = b"", 0, NotFollowed.NO_ROOM
            room -= each.record_bytes
            if each.entry:
                tally.followed["fetch"] += 1
            else:
                tally.not_followed[each.why] += 1

    def _spliced(self, held: _Held) -> bytes:
        """Return the response with what new leaders have said, and count its bytes."""
        frame, at, parts = held.frame, LENGTH_BYTES, []
        followed = [each for each in held.failed.values() if each.entry]
        if not followed:
            return frame
        for each in followed:  # in the order of the response
            parts += [frame[at : each.start], each.entry]
            at = each.end
        content = b"".join([*parts, frame[at:]])
        more = LENGTH_BYTES + len(content) - len(frame)
        client = self._state.tally.client
        client.fetch_response_bytes += more
        client.fetch_record_bytes += sum(each.record_bytes for each in followed)
        self._state.meter.skip(0, more)
        return len(content).to_bytes(LENGTH_BYTES) + content

    def tick(self, now: float) -> None:
        """Do what is due: ask again, or send a response that was held long enough."""
        self._state.now = now
        for held in self._held.copy():
            if now >= held.deadline:
                late = (each for each in held.failed.values() if each.leader is not None and not each.entry)
                for each in late:
                    each.why = NotFollowed.LATE if each.why is NotFollowed.NO_LEADER else each.why
                self._end(held)
            elif held.ask_at is not None and now >= held.ask_at:
                self._ask_leaders(held)

    def release(self) -> None:
        """Send all responses that are held as they came: the connection is about to end."""
        for held in self._held.copy():
            self._end(held)

    def lose(self) -> None:
        """Note that the broker answers no more: what others have asked on this connection is lost."""
        expected, now = self._state.responses.expected, self._state.now
        for request in [each for each in expected if each.reply is not None]:
            reply, request.reply = request.reply, None
            if reply is not None:
                reply(None, now)

    def end(self) -> None:
        """Note that the connection has ended."""
        self.attach(_nothing, _nothing)
        if self._node_id is not None:
            self._peers.remove(self, self._host, self._node_id)
        self.lose()
        for held in self._held:
            held.done = True
        self._held.clear()


def _against(request: InFlightRequest) -> NotFollowed | None:
    """Say why a response with errors is not followed."""
    if request.served is not None:
        return NotFollowed.SESSION
    if request.version < FIRST_VERSION:
        return NotFollowed.VERSION
    if request.received > MAX_BYTES:
        return NotFollowed.TOO_LARGE
    return None if request.understood else NotFollowed.NOT_UNDERSTOOD


def _failed(walk: FetchResponseWalk, listing: Listing) -> tuple[dict[Place, _Failed], int]:
    """Return the partitions that new leaders may have, and how many others of them are not listed."""
    errors = {
        (entry.key, entry.partition): entry
        for entry in walk.entries
        if entry.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
    }
    topics = {key for key, _ in errors}
    fields = listing.entries.view(listing.layout.request_fields)
    asked: dict[Place, int] = {}
    done = 0
    for key, count in zip(listing.keys, listing.counts, strict=True):
        if key in topics:
            numbers = fields["partition"][done : done + count].tolist()
            asked.update(((key, number), done + row) for row, number in enumerate(numbers))
        done += count
    failed = {
        place: _Failed(
            place,
            entry.start,
            entry.end,
            listing.entries[asked[place]].tobytes(),
            int(fields["epoch"][asked[place]]),
            int(fields["offset"][asked[place]]),
        )
        for place, entry in errors.items()
        if place in asked
    }
    return failed, walk.moved - len(failed)


def _sure(each: _Failed) -> bool:
    return each.proven or each.epoch < 0


def _own(api_key: int, version: int, frame: bytes) -> InFlightRequest:
    return InFlightRequest(api_key, version, frame[REQUEST_CORRELATION_ID], Disposition.OURS)


def _client_id(fetch: FetchRequest) -> bytes:
    return read_string(fetch.frame, REQUEST_START_BYTES)[0] or b""


def _repeated(held: _Held, failed: Sequence[_Failed]) -> bytes:
    """Return a fetch of some partitions, with the client's own fields."""
    fetch = held.fetch
    layout = fetch.layout
    by_topic: dict[bytes, list[bytes]] = {}
    for each in failed:
        fields = each.fields
        if each.epoch >= 0 and each.leader is not None:
            epoch = each.leader.leader_epoch.to_bytes(4, signed=True)
            fields = fields[: _EPOCH.start] + epoch + fields[_EPOCH.stop :]
        by_topic.setdefault(each.place[0], []).append(fields)
    topics = ((key, b"".join(entries)) for key, entries in by_topic.items())
    frame = bytearray(build_fetch_request(fetch, layout, (0, SESSIONLESS_EPOCH), topics))
    frame[REQUEST_CORRELATION_ID] = _CORRELATION_ID.to_bytes(4)
    at = fetch.body + layout.request_limits
    max_wait_ms, min_bytes, max_bytes = _LIMITS.unpack_from(frame, at)
    # What the client has got must not wait.
    wait_ms = 0 if held.record_bytes else min(max(max_wait_ms, 0), WAIT_MS)
    room = max(min(max_bytes - held.record_bytes, MAX_BYTES), 1)
    _LIMITS.pack_into(frame, at, wait_ms, min(min_bytes, 1), room)
    return bytes(frame)


def _entries(walk: FetchResponseWalk, frame: bytes) -> dict[Place, tuple[bytes, int]]:
    """Return what a new leader says of the partitions that have no error, and how many bytes are records."""
    said: dict[Place, tuple[bytes, int]] = {}
    for entry in walk.entries:
        # One that leads the client elsewhere is left out: it is for a request that the client has not sent.
        if not (entry.error_code or entry.redirects):
            said[entry.key, entry.partition] = frame[entry.start : entry.end], entry.records
    for run in walk.runs:
        for item in run.entries:
            data = item.tobytes()
            said[run.key, int.from_bytes(data[:4])] = data, 0
    return said
