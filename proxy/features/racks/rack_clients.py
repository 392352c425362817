"""Lets a client read from the replica in the gateway's rack: ``--rack-clients``. Sans-IO.

`RackClientsStage` names replicas as leaders in the Metadata responses of one connection. On a connection to a
replica, it keeps its client from harm:

- Where the replica does not serve as the leader would, or is not in sync, the client gets
  NOT_LEADER_OR_FOLLOWER (`FromReplica`). It asks for Metadata, and gets the true leader.
- A follower learns the high watermark later than its leader. If a client is above it, the follower answers at
  once with nothing, and again and again. Such responses are held back for some milliseconds.
- A follower that is stopped answers nothing, and its leader does not know. Its connections are ended, so that
  clients ask the leader. If a client connects to it again, the connection is ended sooner.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Final

import numpy as np

from proxy.core.connection_state import ConnectionState, Phase
from proxy.core.in_flight import Around, Claim, ClientFetch, FetchHandler, Handler, InFlight
from proxy.core.own import OwnResponse, own
from proxy.core.stage import Stage
from proxy.features.racks.distrust import LEAVES_SECONDS, Client, SentAway
from proxy.features.racks.rack_leaders import NameReplicas, RackLeaders, client_id_of
from proxy.features.racks.refusals import NOT_LEADER, Edit, edited, not_leader, with_errors
from proxy.protocol.api import LENGTH_BYTES, ApiKey, ErrorCode, request_header, response_header
from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_request import FetchRequest, Topics
from proxy.protocol.fetch_response import MAX_ERRORS, FetchResponseWalk, HintAt, PartitionError
from proxy.protocol.leader_requests import BY_ID, BY_NAME, Place, metadata_request
from proxy.protocol.metadata import LAST_VERSION, RACKS_VERSION
from proxy.protocol.primitives import Buffer, ProtocolError

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
UNKNOWN_EPOCHS: Final = 3
"""After this many errors UNKNOWN_LEADER_EPOCH in a row a client is sent to the leader. A follower that has
not heard of a new leader yet says so once or twice."""
_METADATA: Final = int(ApiKey.METADATA)
_FETCH: Final = int(ApiKey.FETCH)
_CORRELATION_ID: Final = 0x6667_7263
_AT_ONCE: Final = frozenset(
    {ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.LIST_OFFSETS}
)
"""The requests that brokers answer at once."""
_OUT_OF_RANGE: Final = int(ErrorCode.OFFSET_OUT_OF_RANGE)
_UNKNOWN_EPOCH: Final = int(ErrorCode.UNKNOWN_LEADER_EPOCH)
_REFUSALS: Final = frozenset({_OUT_OF_RANGE, 3, NOT_LEADER, 9, 56, 78, 100, 103, _UNKNOWN_EPOCH})
"""The errors with which a follower does not serve what the leader may serve: OFFSET_OUT_OF_RANGE,
UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, REPLICA_NOT_AVAILABLE, KAFKA_STORAGE_ERROR,
OFFSET_NOT_AVAILABLE, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID; and UNKNOWN_LEADER_EPOCH.
FENCED_LEADER_EPOCH is not one of them: the client's epoch is an old one, so it asks for Metadata anyway."""
_NO_HINT: Final = (-1).to_bytes(4, signed=True) * 2
"""The node id and epoch of no leader, which clients ignore (KIP-951)."""


class FromReplica(Around):
    """Makes the client's response to a fetch that goes to a broker in the rack.

    A follower may answer with an error that the leader would not give. Some clients would begin at another
    offset then. They get NOT_LEADER_OR_FOLLOWER instead, and ask the leader.
    """

    __slots__ = ("_hinted", "_leaves", "_pieces", "_sent", "_size", "_stage", "_told")

    def __init__(self, stage: "RackClientsStage", inner: Handler, client_fetch: ClientFetch) -> None:
        super().__init__(inner, client_fetch)
        self._stage = stage
        self._pieces: list[Buffer] = []
        """The beginning of an entry whose rest has not come. All bytes so far if the client `_leaves`."""
        self._size = 0
        """Of `_pieces`, in bytes."""
        self._sent = 0
        """How many of the client's bytes were returned so far."""
        self._told = self._hinted = 0
        """The numbers of errors, and of newer leaders, that were seen so far."""
        self._leaves: bool | None = None
        """Whether the client leaves partitions with this response, so that it is buffered as a whole. None
        until it begins."""

    @property
    def _kept(self) -> int:
        return self._size

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        if self._leaves is None:
            self._leaves = bool(self._stage.leaving)
        pieces = self._fed(chunk, last=last)
        if last:
            self._stage.answered(self._innermost)
        return pieces

    def _fed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        """Return the client's bytes that are ready now, with errors replaced."""
        pieces = self._inner.feed(chunk, last=last)
        innermost, walk = self._innermost, self._innermost.walk
        if innermost.resend is not None or not innermost.understood:
            pieces, self._pieces, self._size = [*self._pieces, *pieces], [], 0
            return pieces
        if walk is not None and len(walk.errors) >= MAX_ERRORS:  # further ones are not noted
            self._stage.fail("has too many errors")
            return []
        if self._leaves:
            pieces = self._whole(pieces, last=last)
        elif walk is not None and not innermost.expands:
            pieces = self._without_errors(pieces, walk, last=last)
        elif walk is not None and last and walk.errors:
            # The client's response is another one than the broker's, and it is whole.
            pieces = self._whole(pieces, last=True)
        if last and pieces:
            self._stage.hold_early(innermost, walk)
        return pieces

    def _whole(self, pieces: list[Buffer], *, last: bool) -> list[Buffer]:
        """Return the complete response with errors replaced. Partitions that the client leaves get an error.

        Their records are cut: an error comes without records. A partition that is not in the response, as in
        the client's own session, can't get an error. Then the connection ends.
        """
        self._pieces += pieces
        self._size += sum(map(len, pieces))
        if not last:
            return []
        frame, self._pieces, self._size = b"".join(self._pieces), [], 0
        fetch, noted = self._client_fetch.fetch, self._client_fetch.noted
        isolation = fetch.isolation_level if fetch is not None else 0
        walk = FetchResponseWalk(LAYOUTS[self._client_fetch.version], isolation, keep=True, noted=noted)
        try:
            walk.feed(frame)
        except ProtocolError:
            return [frame]
        frame = edited(frame, 0, self._stage.judge(walk.errors, walk.hints))
        if not self._leaves or walk.error_code:
            return [frame]
        leaving = self._stage.leave()
        new, found = with_errors(frame, walk, leaving, isolation)
        if found != leaving:
            self._stage.fail("is not in sync any more")
        return [new]

    def _without_errors(self, pieces: list[Buffer], walk: FetchResponseWalk, *, last: bool) -> list[Buffer]:
        """Replace errors in the next bytes. The beginning of an entry is kept until its rest comes."""
        errors, hints = walk.errors[self._told :], walk.hints[self._hinted :]
        self._told, self._hinted = len(walk.errors), len(walk.hints)
        # The client's response has the broker's offsets up to its tags, which come last.
        size = self._size + sum(map(len, pieces))
        left = 0 if last else max(self._sent + size - walk.offset, 0)
        begins, self._sent = self._sent, self._sent + size - left
        if not (self._pieces or left or errors or hints):
            return pieces
        edits = self._stage.judge(errors, hints) if errors or hints else []
        data = edited(b"".join((*self._pieces, *pieces)), begins, edits)
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
        "_bytes_in",
        "_changes",
        "_client_id",
        "_due",
        "_followed",
        "_hold",
        "_holds",
        "_listed",
        "_may_fail",
        "_muted_until",
        "_node_id",
        "_reading",
        "_sent_away",
        "_shared",
        "_state",
        "_told",
        "_unknown_epochs",
        "_waits",
        "leaving",
        "watched",
    )

    def __init__(
        self, shared: RackLeaders, node_id: Callable[[], int | None], state: ConnectionState
    ) -> None:
        self._shared = shared
        self._node_id = node_id
        self._state = state
        self._client_id = ""
        """That of the Metadata request that is being processed."""
        self._sent_away = SentAway(shared.distrust, state)
        self._alarm: Callable[[float], None] = lambda _: None
        # What the client reads here
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
        self.watched = False
        """Whether another broker has led one of them. Then the broker is watched as a follower."""
        self.leaving: set[Place] = set()
        """The partitions that the client has to read elsewhere from the next response on, because the broker
        is not in sync any more."""
        self._told: dict[Place, float] = {}
        """The partitions with which that was done, and when it is done again, in seconds."""
        self._unknown_epochs: dict[Place, int] = {}
        """How many errors UNKNOWN_LEADER_EPOCH came in a row."""
        # The follower
        self._may_fail = False
        """Whether the follower has failed if it is late with a request that brokers answer at once."""
        self._hold = 0.0
        """How long after its fetch the last response was held back, in seconds. 0 if it was not."""
        self._waits = True
        """Whether the client's last fetch was to wait for records."""
        self._muted_until = 0.0
        """When the broker reads requests again, in seconds, if it throttles the client (KIP-219)."""
        self._holds: deque[tuple[float, Claim]] = deque()
        """The responses that are held back, each with its end in seconds."""
        self._bytes_in = 0
        """The bytes that the broker had sent when it was last looked at."""
        self._due = 0.0
        """When the broker is looked at next, in seconds."""
        shared.add(self)

    # Requests other than fetches

    def on_request(self, data: bytes, size: int, api_key: int, _version: int) -> bytes | None:
        if api_key not in _AT_ONCE:
            return data
        shared, state = self._shared, self._state
        # Not all clients send another request before Metadata.
        client_id = client_id_of(data, size, state.from_client)
        if client_id is None:
            return None
        is_named = shared.names_for(client_id)
        if shared.racks.is_here(self._node_id()):
            if shared.distrust.is_late(self._node_id(), state.now):
                self._look_at(state.now + SILENT_SECONDS)
            elif is_named and not self.watched:
                # Some clients close their connections themselves before a fetch is late.
                self._may_fail = True
                self._look_at(state.now + OVERDUE_SECONDS)
        if api_key == _METADATA:
            self._client_id = client_id
            if is_named:
                shared.distrust.asked[client_id, state.host] = state.now
        return data

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
            return not (self.leaving or self._unknown_epochs or self._hold)
        return api_key != _METADATA

    # Fetches

    @property
    def _client(self) -> Client:
        return self._state.client_id, self._state.host

    @property
    def _reads_here(self) -> bool:
        """Whether the client may read from the broker as from a follower.

        A client that a reload has taken from the option reads here until its next Metadata.
        """
        return (
            (self.watched or self._shared.names_for(self._state.client_id))
            and self._shared.racks.may_be_here(self._node_id())
            and not self._state.gets_part
        )

    def around_fetch(self, request: InFlight, client_fetch: ClientFetch) -> Handler:
        if not self._reads_here:
            return request.handler
        # New leaders are not followed: Metadata leads the client.
        client_fetch.follows, client_fetch.noted = False, _REFUSALS
        return FromReplica(self, request.handler, client_fetch)

    def on_fetch(self, fetch: FetchRequest) -> FetchRequest:
        if not self._reads_here:
            return fetch
        now = self._state.now
        self._list(fetch)
        if self._changes != self._shared.changes or now >= self._tells_at:
            self._look_up(now)
        if self._followed and now >= self._ask_at:
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

    def _look_up(self, now: float) -> None:
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
                self._watch()
            elif len(numbers) and shared.leads((key, int(numbers[0])), node_id) is None:
                self._followed = True
        self._told = {place: again for place, again in self._told.items() if place in gone and now < again}
        self.leaving = gone - self._told.keys()

    def _ask(self, fetch: FetchRequest) -> None:
        """Ask the broker for Metadata of the topics that the client reads here, if none has passed lately.

        The question goes right before the client's fetch.
        """
        state, shared = self._state, self._shared
        topics, self._ask_at = shared.stale(self._reading, state.now, ASK_SECONDS)
        self._alarm(self._ask_at)
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
                    shared.learn(response[at:], version, now)

        state.tally.probe_bytes += len(frame)
        state.send(own(frame, OwnResponse(state, _METADATA, take, 0)), frame)

    # Their responses

    def judge(self, errors: Sequence[PartitionError], hints: Sequence[HintAt]) -> list[Edit]:
        """Return what becomes of errors that the leader might not give, and of the leaders that they name.

        An error of the leader itself passes. If the leader is not known, the client gets true Metadata once,
        and then the errors.
        """
        shared, now, client = self._shared, self._state.now, self._client
        edits: list[Edit] = []
        refused: dict[str, list[Place]] = {}
        for error in errors:
            place, code = (error.key, error.partition), error.error_code
            leads = shared.leads(place, self._node_id())
            told_before = shared.distrust.holds(client, place, now)
            if leads or (leads is None and told_before):
                continue
            if code == _UNKNOWN_EPOCH:
                times = self._unknown_epochs[place] = self._unknown_epochs.get(place, 0) + 1
                if times < UNKNOWN_EPOCHS:
                    continue
            if code != NOT_LEADER:
                edits.append(not_leader(error))
            self._sent_away.note(client, place, told_before=told_before)
            refused.setdefault("out_of_range" if code == _OUT_OF_RANGE else "refused", []).append(place)
        for reason, places in refused.items():
            shared.distrust.refused(client, places, reason, now)
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
            self._unknown_epochs = {
                place: times
                for place, times in self._unknown_epochs.items()
                if place in seen and times < UNKNOWN_EPOCHS
            }

    def leave(self) -> set[Place]:
        """Return the partitions that the client leaves with the next response, and note that it is told."""
        leaving, self.leaving, now = self.leaving, set(), self._state.now
        self._told |= dict.fromkeys(leaving, now + LEAVES_SECONDS)
        self._alarm(now + LEAVES_SECONDS)
        self._shared.distrust.refused(self._client, leaving, "isr", now)
        return leaving

    @property
    def _tells_at(self) -> float:
        """When the client is told again to leave a partition that it still reads here, in seconds."""
        return min(self._told.values(), default=inf)

    def hold_early(self, handler: FetchHandler, walk: FetchResponseWalk | None) -> None:
        """Hold the response that now ends back, if the follower had to wait, but sent nothing at once.

        Note for how long the follower throttles the client. `walk` is None if the response is the same as the
        last one without records.
        """
        if not self.watched:
            return
        state, fetch = self._state, handler.fetch
        if fetch is not None and fetch.frame:  # a fetch of the fast path has none, and is like the last one
            self._waits = fetch.min_bytes > 0
        throttle_ms = 0 if walk is None else walk.throttle_time_ms
        if throttle_ms > 0:
            self._muted_until = state.now + throttle_ms / 1e3
        request = state.queue.expected[0]
        empty = walk is None or not (walk.record_bytes or walk.failed or walk.redirects or walk.error_code)
        at_once = state.now - request.sent_at < min(MAX_HOLD_SECONDS, handler.wait / 2)
        if not (empty and at_once and self._waits) or throttle_ms or fetch is None:
            self._hold = 0.0
            return
        self._hold = min(2 * self._hold or HOLD_SECONDS, MAX_HOLD_SECONDS)
        due = request.sent_at + self._hold
        self._holds.append((due, state.queue.claim(request)))
        self._shared.held += 1
        self.forget()
        self._alarm(due)

    def _respond(self, now: float) -> None:
        state, holds = self._state, self._holds
        while holds and holds[0][0] <= now:
            state.to_client += state.queue.respond(holds.popleft()[1])

    # The follower's health

    def _watch(self) -> None:
        """Begin to look whether the follower answers. No empty response takes the fast path early."""
        if not self.watched:
            self.watched = True
            self._state.plans.no_sooner = MAX_HOLD_SECONDS
            self._look_at(self._state.now + OVERDUE_SECONDS)

    def hurry(self, now: float) -> None:
        if self._shared.distrust.is_late(self._node_id(), now):
            self._look_at(now)

    def _look_at(self, due: float) -> None:
        self._due = due
        self._alarm(due)

    def _look(self, now: float) -> None:
        """If the follower does not answer, end the connection."""
        state, silent = self._state, self._shared.distrust.is_late(self._node_id(), now)
        if not (self.watched or silent or self._may_fail) or now < self._due:
            return
        if state.fault is not None or state.phase is Phase.CLOSING:
            return
        head = state.queue.expected[0] if state.queue.expected else None
        soon = late = self._late_at() if self.watched else inf
        if head is not None and head.api_key in _AT_ONCE:
            asked = max(head.sent_at, self._muted_until)
            late = min(late, asked + OVERDUE_SECONDS) if self._may_fail else late
            soon = min(late, asked + SILENT_SECONDS) if silent else late
        if soon == inf:
            self._look_at(now + OVERDUE_SECONDS)
            return
        bytes_in = state.plans.count().broker.bytes_in
        if now >= soon and bytes_in == self._bytes_in:
            if now >= late:
                self._shared.failed(self._node_id(), "overdue", now)
            self.fail("does not respond")
            return
        self._bytes_in = bytes_in
        self._look_at(soon if soon > now else now + _LOOK_SECONDS)

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

    def fail(self, why: str) -> None:
        """End the connection, because the client has to leave and can't be told so."""
        self._state.fail("broker", f"a replica in the rack {why}, so its client asks the leader")

    # The connection

    def forget(self) -> None:
        self._state.plans.forget_fetch()

    def attach(self, _wake: Callable[[], None], alarm: Callable[[float], None]) -> None:
        self._alarm = alarm

    def tick(self, now: float) -> None:
        self._respond(now)
        self._look(now)
        # From time to time, the broker is asked before the next fetch.
        if now >= self._tells_at or (self._followed and now >= self._ask_at):
            self.forget()

    def release(self) -> None:
        self._respond(inf)

    def lose(self) -> None:
        # The broker has closed the connection: it may be about to stop.
        if self.watched and self._state.phase is not Phase.CLOSING and self._state.fault is None:
            self._shared.failed(self._node_id(), "closed", self._state.now)

    def end(self) -> None:
        self._holds.clear()
        self._shared.remove(self)
