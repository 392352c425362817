"""Lets a client read from the replica in the gateway's rack: ``--rack-clients``. Sans-IO.

`RackClientsStage` names replicas as leaders in the Metadata responses of one connection. On a connection to a
replica, it keeps its client from harm: where the replica does not serve as the leader would, the client gets
NOT_LEADER_OR_FOLLOWER, asks for Metadata, and gets the true leader.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Final, TypeAlias

import numpy as np

from proxy.core.connection_state import ConnectionState
from proxy.core.in_flight import Around, ClientFetch, FetchHandler, Handler, InFlight, Over
from proxy.core.requests import readable
from proxy.core.stage import Stage
from proxy.features.racks.follower import ASK_SECONDS, Follower
from proxy.features.racks.rack_leaders import LEAVES_SECONDS, RackLeaders, SentAway
from proxy.protocol.api import LENGTH_BYTES, ApiKey, ErrorCode, request_header, response_header
from proxy.protocol.fetch_layout import ERROR_CODE, HIGH_WATERMARK, LAYOUTS, FetchLayout
from proxy.protocol.fetch_request import FetchRequest, Topics
from proxy.protocol.fetch_response import MAX_ERRORS, FetchResponseWalk, HintAt, PartitionError
from proxy.protocol.leader_requests import Place
from proxy.protocol.metadata import LAST_VERSION, RACKS_VERSION
from proxy.protocol.primitives import Buffer, ProtocolError

UNKNOWN_EPOCHS: Final = 3
"""After this many errors UNKNOWN_LEADER_EPOCH in a row a client is sent to the leader. A follower that has
not heard of a new leader yet says so once or twice."""
_METADATA: Final = int(ApiKey.METADATA)
_FETCH: Final = int(ApiKey.FETCH)
_MAX_HEADER: Final = 1 << 16
"""How many bytes of a request are kept until its client id has arrived."""
_OUT_OF_RANGE: Final = int(ErrorCode.OFFSET_OUT_OF_RANGE)
_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_UNKNOWN_EPOCH: Final = int(ErrorCode.UNKNOWN_LEADER_EPOCH)
_REFUSALS: Final = frozenset({_OUT_OF_RANGE, 3, _NOT_LEADER, 9, 56, 78, 100, 103, _UNKNOWN_EPOCH})
"""The errors with which a follower does not serve what the leader may serve: OFFSET_OUT_OF_RANGE,
UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, REPLICA_NOT_AVAILABLE, KAFKA_STORAGE_ERROR,
OFFSET_NOT_AVAILABLE, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID; and UNKNOWN_LEADER_EPOCH.
FENCED_LEADER_EPOCH is not one of them: the client's epoch is an old one, so it asks for Metadata anyway."""
_NO_HINT: Final = (-1).to_bytes(4, signed=True) * 2
"""The node id and epoch of no leader, which clients ignore (KIP-951)."""

Edit: TypeAlias = tuple[int, bytes]
"""An offset in a response, and the bytes that replace as many bytes there."""


class NameReplicas(Over):
    """Names replicas in the client's Metadata response, which `inner` has made and returns as a whole."""

    __slots__ = ("_client_id", "_shared", "_state", "_version")

    def __init__(
        self, inner: Handler, shared: RackLeaders, state: ConnectionState, client_id: str, version: int
    ) -> None:
        super().__init__(inner)
        self._shared = shared
        self._state = state
        self._client_id = client_id
        self._version = version

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        return self._named(self._inner.feed(chunk, last=last))

    def opened(self) -> list[Buffer]:
        return self._named(self._inner.opened())

    def passes(self, _size: int) -> bool:
        return False

    def _named(self, pieces: list[Buffer]) -> list[Buffer]:
        frame = b"".join(pieces)
        if not frame:
            return pieces
        try:
            _, at = response_header(frame, LENGTH_BYTES, _METADATA, self._version)
        except ProtocolError:
            return pieces
        state, body = self._state, frame[at:]
        named = self._shared.name_replicas(body, self._version, self._client_id, state.host, state.now)
        return pieces if named is body else [frame[:at], named]


class FromReplica(Around):
    """Makes the client's response to a fetch that goes to a broker in the rack.

    A follower may answer with an error that the leader would not give. Some clients would begin at another
    offset then. They get NOT_LEADER_OR_FOLLOWER instead, and ask the leader.
    """

    __slots__ = (
        "_follower",
        "_hinted",
        "_leaves",
        "_pieces",
        "_sent",
        "_size",
        "_stage",
        "_told",
        "_whole",
        "_whole_size",
    )

    def __init__(self, stage: "RackClientsStage", inner: Handler, asked: ClientFetch) -> None:
        super().__init__(inner, asked)
        self._stage, self._follower = stage, stage.follower
        self._pieces: list[Buffer] = []
        """The beginning of an entry whose rest has not come."""
        self._size = 0
        """Of `_pieces`, in bytes."""
        self._sent = 0
        """How many of the client's bytes were returned so far."""
        self._told = self._hinted = 0
        """The numbers of errors, and of newer leaders, that were seen so far."""
        self._leaves: bool | None = None
        """Whether the client leaves partitions with this response, so that it is buffered as a whole. None
        until it begins."""
        self._whole: list[Buffer] = []
        self._whole_size = 0

    @property
    def _kept(self) -> int:
        return self._size + self._whole_size

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        if self._leaves is None:
            self._leaves = bool(self._stage.leaving)
        pieces = self._fed(chunk, last=last)
        if self._leaves:
            pieces = self._buffered(pieces, last=last)
        if last:
            self._stage.answered(self._innermost)
        return pieces

    def _buffered(self, pieces: list[Buffer], *, last: bool) -> list[Buffer]:
        """Return the whole response when it is complete, without the partitions that the client leaves."""
        self._whole += pieces
        self._whole_size += sum(map(len, pieces))
        if not last:
            return []
        frame, self._whole, self._whole_size = b"".join(self._whole), [], 0
        return [self._left(frame)] if frame else []

    def _left(self, frame: bytes) -> bytes:
        """Return a response in which the partitions that the client has to leave have an error.

        Their records are cut: an error comes without records. A partition that is not in the response, as in
        the client's own session, can't get an error. Then the connection ends.
        """
        innermost = self._innermost
        isolation = innermost.fetch.isolation_level if innermost.fetch is not None else 0
        walk = FetchResponseWalk(LAYOUTS[self._asked.version], isolation, keep=True)
        try:
            walk.feed(frame)
        except ProtocolError:
            return frame
        if walk.error_code or innermost.resend is not None:
            return frame
        leaving = self._stage.leave()
        new, found = with_errors(frame, walk, leaving, isolation)
        if found != leaving:
            self._follower.fail("is not in sync any more")
        return new

    def _fed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        """Return the client's bytes that are ready now, with errors replaced."""
        pieces = self._inner.feed(chunk, last=last)
        innermost = self._innermost
        if innermost.resend is not None or not innermost.understood:
            pieces, self._pieces, self._size = [*self._pieces, *pieces], [], 0
            return pieces
        if (walk := innermost.walk) is not None:
            if len(walk.errors) >= MAX_ERRORS:  # further ones are not noted
                self._follower.fail("has too many errors")
                return []
            pieces = self._without_errors(pieces, walk, last=last)
        follower = self._follower
        if last and pieces and follower.watched and follower.is_early(innermost, walk):
            follower.hold()
        return pieces

    def _without_errors(self, pieces: list[Buffer], walk: FetchResponseWalk, *, last: bool) -> list[Buffer]:
        """Replace errors in the next bytes. The beginning of an entry is kept until its rest comes."""
        if self._innermost.expands:
            if not (last and walk.errors):
                return pieces
            # The client's response is another one than the broker's, and it is whole.
            told = FetchResponseWalk(LAYOUTS[self._asked.version], 0, keep=False, noted=walk.noted)
            frame = b"".join(pieces)
            told.feed(frame)
            return [_edited(frame, 0, self._stage.judge(told.errors, told.hints))]
        errors, hints = walk.errors[self._told :], walk.hints[self._hinted :]
        self._told, self._hinted = len(walk.errors), len(walk.hints)
        # The client's response has the broker's offsets up to its tags, which come last.
        size = self._size + sum(map(len, pieces))
        left = 0 if last else max(self._sent + size - walk.offset, 0)
        begins, self._sent = self._sent, self._sent + size - left
        if not (self._pieces or left or errors or hints):
            return pieces
        edits = self._stage.judge(errors, hints) if errors or hints else []
        data = _edited(b"".join((*self._pieces, *pieces)), begins, edits)
        ready = size - left
        self._pieces, self._size = [data[ready:]] if left else [], left
        return [data[:ready]] if ready else []

    def end(self, request: InFlight) -> bool:
        return self._inner.end(request)

    def passes(self, size: int) -> bool:
        if self._leaves or self._pieces or not self._inner.passes(size):
            return False
        self._sent += size
        return True


class RackClientsStage(Stage):
    """Handles one connection of a client for which replicas are named.

    `node_id` returns the node id of the broker, or None while it is unknown.
    """

    __slots__ = (
        "_alarm",
        "_ask_at",
        "_changes",
        "_client_id",
        "_followed",
        "_listed",
        "_node_id",
        "_reading",
        "_sent_away",
        "_shared",
        "_state",
        "_told",
        "_told_until",
        "_unknown_epochs",
        "follower",
        "leaving",
    )

    def __init__(
        self, shared: RackLeaders, node_id: Callable[[], int | None], state: ConnectionState
    ) -> None:
        self._shared = shared
        self._node_id = node_id
        self._state = state
        self._client_id = ""
        """That of the Metadata request that is being processed."""
        self.follower = Follower(shared, node_id, state)
        """The broker, if it is in the rack."""
        self._sent_away = SentAway(shared, state)
        self._alarm: Callable[[float], None] = lambda _: None
        self._ask_at = 0.0
        """When the broker may be asked for Metadata again, in seconds."""
        self._listed: tuple[Topics, bytes] | None = None
        """The topics, and the numbers of the partitions, of the last fetch without a session."""
        self._reading: dict[bytes, set[int]] = {}
        """The partitions that the client reads here, by the topic's key in fetches."""
        self._changes = -1
        """`RackLeaders.changes` when these partitions were last looked up."""
        self._followed = False
        """Whether another broker leads one of them, or none is known to lead it."""
        self.leaving: set[Place] = set()
        """The partitions that the client has to read elsewhere from the next response on, because the broker
        is not in sync any more."""
        self._told: set[Place] = set()
        """The partitions with which that was done, less than `LEAVES_SECONDS` ago."""
        self._told_until = inf
        """When that is done again with those which the client still reads here, in seconds."""
        self._unknown_epochs: dict[Place, int] = {}
        """How many errors UNKNOWN_LEADER_EPOCH came in a row."""
        shared.add(self)

    # Metadata

    def on_request(self, data: bytes, size: int, api_key: int, _version: int) -> bytes | None:
        if self._shared.racks.is_here(self._node_id()):
            self.follower.asked(api_key, may_fail=self._is_named(data))
        if api_key == _METADATA:  # not all clients send another request before it
            self._client_id = ""
            with suppress(ProtocolError):
                self._client_id = readable(request_header(data, LENGTH_BYTES)[3])
                if self._shared.names_for(self._client_id):
                    self._shared.asks(self._client_id, self._state.host, self._state.now)
                return data
            if len(data) < min(size, _MAX_HEADER):
                self._state.from_client.need = min(size, 2 * len(data))
                return None
        return data

    def _is_named(self, data: bytes) -> bool:
        with suppress(ProtocolError):
            return self._shared.names_for(readable(request_header(data, LENGTH_BYTES)[3]))
        return False

    def around(self, request: InFlight) -> Handler:
        # Not for a client that gets a part of partitions: the part needs the high watermark of one broker.
        if (
            request.api_key != _METADATA
            or not RACKS_VERSION <= request.version <= LAST_VERSION
            or self._state.gets_part
            or not self._shared.names_for(self._client_id)
        ):
            return request.handler
        return NameReplicas(request.handler, self._shared, self._state, self._client_id, request.version)

    def repeats(self, api_key: int, _version: int, *, in_session: bool = False) -> bool:  # noqa: ARG002
        if api_key == _FETCH:
            return not (self.leaving or self._unknown_epochs or self.follower.early)
        return api_key != _METADATA

    # Fetches

    @property
    def _reads_here(self) -> bool:
        """Whether the client may read from the broker as from a follower.

        A client that a reload has taken from the option reads here until its next Metadata.
        """
        return (
            (self.follower.watched or self._shared.names_for(self._state.client_id))
            and self._shared.racks.may_be_here(self._node_id())
            and not self._state.gets_part
        )

    def around_fetch(self, request: InFlight, asked: ClientFetch) -> Handler:
        if not self._reads_here:
            return request.handler
        # New leaders are not followed: Metadata leads the client.
        asked.follows, asked.noted = False, _REFUSALS
        return FromReplica(self, request.handler, asked)

    def on_fetch(self, fetch: FetchRequest) -> FetchRequest:
        if not self._reads_here:
            return fetch
        self._list(fetch)
        if self._state.now >= self._told_until:
            self._told, self._told_until, self._changes = set(), inf, -1
        if self._changes != self._shared.changes:
            self._look_up()
        if self._followed and self._state.now >= self._ask_at:
            self._ask(fetch)
        # The response comes at once, with few records, so that the client leaves soon.
        return fetch.with_limits(max_wait_ms=0, max_bytes=1) if self.leaving else fetch

    def _list(self, fetch: FetchRequest) -> None:
        """Note the partitions that the client reads here."""
        listing = fetch.listing
        if listing is None:
            return
        numbers = listing.entries.view(listing.layout.request_fields)["partition"]
        goes_on = fetch.session_id != 0 and fetch.session_epoch > 0
        if not goes_on:
            listed = fetch.topics, numbers.tobytes()
            if self._listed is not None and listed[0] is self._listed[0] and listed[1] == self._listed[1]:
                return
            self._listed = listed
            self._reading = {}
        elif len(listing) or fetch.forgotten:
            self._listed = None
        else:
            return
        done = 0
        for key, count in zip(listing.keys, listing.counts, strict=True):
            self._reading.setdefault(key, set()).update(numbers[done : done + count].tolist())
            done += count
        for key, forgotten in fetch.forgotten if goes_on else ():
            self._reading.get(key, set()).difference_update(np.frombuffer(forgotten, ">i4").tolist())
        self._changes = -1

    def _look_up(self) -> None:
        """Look which partitions other brokers lead, and for which the broker is not in sync any more."""
        shared, node_id = self._shared, self._node_id()
        self._changes = shared.changes
        gone: set[Place] = set()
        self._followed = False
        for key, partitions in self._reading.items():
            numbers = np.fromiter(partitions, np.int64, len(partitions))
            others, out_of_sync = shared.look(key, numbers, -1 if node_id is None else node_id)
            gone.update((key, int(number)) for number in numbers[out_of_sync])
            if others.any():
                self._followed = True
                self.follower.watch()
            elif len(numbers) and shared.leads((key, int(numbers[0])), node_id) is None:
                self._followed = True
        self._told &= gone
        self.leaving = gone - self._told

    def judge(self, errors: Sequence[PartitionError], hints: Sequence[HintAt]) -> list[Edit]:
        """Return what becomes of errors that the leader might not give, and of the leaders that they name.

        An error of the leader itself passes. If the leader is not known, the client gets true Metadata once,
        and then the errors.
        """
        shared, state, node_id = self._shared, self._state, self._node_id()
        client = state.client_id, state.host
        edits: list[Edit] = []
        refused: dict[str, list[Place]] = {}
        for error in errors:
            place, code = (error.key, error.partition), error.error_code
            leads, told_before = shared.leads(place, node_id), shared.is_distrusted(*client, place, state.now)
            if leads or (leads is None and told_before):
                continue
            if code == _UNKNOWN_EPOCH:
                times = self._unknown_epochs[place] = self._unknown_epochs.get(place, 0) + 1
                if times < UNKNOWN_EPOCHS:
                    continue
            if code != _NOT_LEADER:
                edits.append(not_leader(error))
            self._sent_away.note(state.client_id, place, told_before=told_before)
            refused.setdefault("out_of_range" if code == _OUT_OF_RANGE else "refused", []).append(place)
        for reason, places in refused.items():
            shared.refused(*client, places, reason, state.now)
        for at, hint in hints:
            known = shared.epoch_of(hint.topic_id, hint.partition)
            if known is not None and hint.leader_epoch <= known:
                edits.append((at, _NO_HINT))
        return edits

    def answered(self, handler: FetchHandler) -> None:
        """Forget errors that the last response did not have again."""
        if self._unknown_epochs and handler.resend is None:
            walk = handler.walk
            seen = {(error.key, error.partition) for error in walk.errors} if walk is not None else set()
            for place in self._unknown_epochs.keys() - seen:
                del self._unknown_epochs[place]
            for place in [place for place, times in self._unknown_epochs.items() if times >= UNKNOWN_EPOCHS]:
                del self._unknown_epochs[place]

    def leave(self) -> set[Place]:
        """Return the partitions that the client leaves with the next response, and note that it is told."""
        leaving, self.leaving = self.leaving, set()
        self._told |= leaving
        self._told_until = self._state.now + LEAVES_SECONDS
        self._alarm(self._told_until)
        self._shared.refused(self._state.client_id, self._state.host, leaving, "isr", self._state.now)
        return leaving

    # Questions

    def _ask(self, fetch: FetchRequest) -> None:
        """Ask the broker for Metadata of the topics that the client reads here, if none has passed lately."""
        topics, self._ask_at = self._shared.stale(self._reading, self._state.now, ASK_SECONDS)
        self._alarm(self._ask_at)
        self.follower.ask(fetch, topics, self._shared.learn)

    def forget(self) -> None:
        self._state.plans.forget_fetch()

    # The connection

    def hurry(self, now: float) -> None:
        self.follower.hurry(now)

    def attach(self, _wake: Callable[[], None], alarm: Callable[[float], None]) -> None:
        self._alarm = alarm
        self.follower.attach(alarm)

    def tick(self, now: float) -> None:
        self.follower.tick(now)
        # From time to time, the broker is asked before the next fetch.
        if now >= self._told_until or (self._followed and now >= self._ask_at):
            self.forget()

    def release(self) -> None:
        self.follower.release()

    def lose(self) -> None:
        self.follower.lose()

    def end(self) -> None:
        self.follower.end()
        self._shared.remove(self)


def not_leader(error: PartitionError) -> Edit:
    """Return the change that makes an error NOT_LEADER_OR_FOLLOWER."""
    return error.start + ERROR_CODE.start, _NOT_LEADER.to_bytes(2)


def _edited(data: bytes, begins: int, edits: Sequence[Edit]) -> bytes:
    """Return bytes of a response with changes. Their offset in the response is `begins`."""
    if not edits:
        return data
    changed = bytearray(data)
    for at, new in edits:
        changed[at - begins : at - begins + len(new)] = new
    return bytes(changed)


def with_errors(
    frame: bytes, walk: FetchResponseWalk, places: set[Place], isolation_level: int
) -> tuple[bytes, set[Place]]:
    """Return a response in which some partitions have an error, and which of them it has."""
    layout, found = walk.layout, set[Place]()
    spans: list[tuple[int, int, int]] = []
    for entry in walk.entries:
        if (place := (entry.key, entry.partition)) in places:
            spans.append((entry.start, entry.end, entry.partition))
            found.add(place)
    for run in walk.runs:
        numbers = run.entries.view(layout.response_fields)["partition"].tolist()
        for number, partition in enumerate(numbers):
            if (place := (run.key, partition)) in places:
                start = run.start + number * layout.response_entry
                spans.append((start, start + layout.response_entry, partition))
                found.add(place)
    parts: list[bytes] = []
    at = LENGTH_BYTES
    for start, end, partition in sorted(spans):
        parts += (frame[at:start], _refusal(layout, partition, isolation_level))
        at = end
    body = b"".join((*parts, frame[at:]))
    return len(body).to_bytes(LENGTH_BYTES) + body, found


def _refusal(layout: FetchLayout, partition: int, isolation_level: int) -> bytes:
    """Return an entry of a response with NOT_LEADER_OR_FOLLOWER, as brokers send it."""
    offsets = b"\xff" * (layout.aborted - HIGH_WATERMARK.start)
    code = _NOT_LEADER.to_bytes(ERROR_CODE.stop - ERROR_CODE.start)
    ends = layout.empty_ends[1 if isolation_level else 0]
    return partition.to_bytes(ERROR_CODE.start, signed=True) + code + offsets + ends
