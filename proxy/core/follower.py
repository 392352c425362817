"""Keeps a client from harm while it reads from a follower: ``--rack-reads``, ``--rack-clients``. Sans-IO.

A follower learns the high watermark later than its leader. If a client is above it, the follower answers at
once with nothing, and again and again. Such responses are held back for some milliseconds.

A follower that is stopped answers nothing, and its leader does not know. Its connections are ended, so that
clients ask the leader. Some clients connect to it again. These connections are ended sooner.

A follower may answer with an error that the leader would not give. Some clients would begin at another offset
then. They get NOT_LEADER_OR_FOLLOWER instead, and ask the leader.
"""

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Final, TypeAlias

from proxy.core.connection_state import ConnectionState, Phase
from proxy.core.in_flight import Around, Claim, FetchHandler, Handler, InFlight, Kept, Walked
from proxy.protocol.api import ApiKey, ErrorCode
from proxy.protocol.fetch_layout import ERROR_CODE, LAYOUTS
from proxy.protocol.fetch_response import FetchResponseWalk, HintAt, PartitionError
from proxy.protocol.primitives import Buffer

OVERDUE_SECONDS: Final = 2.0
"""A follower has failed if the response to a fetch is this late, in seconds, after max_wait_ms."""
SILENT_SECONDS: Final = 0.5
"""How long a follower that was late with a fetch may take for a request that brokers answer at once, in
seconds. Clients that connect to it again would wait for their own time limits: 10 s and more."""
HOLD_SECONDS: Final = 0.01
"""How long the first empty response of a follower is held back after its fetch, in seconds. The next ones are
held back for twice as long as the one before."""
MAX_HOLD_SECONDS: Final = 0.05
"""The longest time for which an empty response is held back after its fetch, in seconds."""
_LOOK_SECONDS: Final = 0.5
"""How often a late response is looked at while its bytes still arrive, in seconds."""
_FETCH: Final = int(ApiKey.FETCH)
_AT_ONCE: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.FIND_COORDINATOR})
"""The requests that brokers answer at once."""
_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)

Edit: TypeAlias = tuple[int, bytes]
"""An offset in a response, and the bytes that replace as many bytes there."""


class Follower:
    """The broker of a connection on which a client reads from a follower.

    Args:
        state: the state of the connection.
        failed: called if the follower does not serve its client: ``closed`` or ``overdue``, and the time in
            seconds.
        held: called if a response is held back.
        silent: returns whether the broker was late with a fetch of any client a short time ago. Its argument
            is the time in seconds.
    """

    __slots__ = (
        "_alarm",
        "_bytes_in",
        "_due",
        "_failed",
        "_held",
        "_holds",
        "_muted_until",
        "_silent",
        "_state",
        "_waits",
        "early",
        "watched",
    )

    def __init__(
        self,
        state: ConnectionState,
        failed: Callable[[str, float], None],
        held: Callable[[], None],
        silent: Callable[[float], bool] = lambda _: False,
    ) -> None:
        self._state = state
        self._failed = failed
        self._held = held
        self._silent = silent
        self.watched = False
        """Whether the client reads partitions here that another broker leads."""
        self.early = 0
        """The number of responses in a row that were held back."""
        self._waits = True
        """Whether the client's last fetch was to wait for records."""
        self._muted_until = 0.0
        """The time until which the broker reads no request, because it throttles the client (KIP-219), in
        seconds."""
        self._holds: deque[tuple[float, Claim]] = deque()
        """The responses that are held back, each with the time until which it is, in seconds."""
        self._bytes_in = 0
        """The number of bytes that the broker had sent at the last call of `tick`."""
        self._due = 0.0
        """The time at which `tick` next looks at the follower, in seconds."""
        self._alarm: Callable[[float], None] = lambda _: None

    def attach(self, alarm: Callable[[float], None]) -> None:
        """Attach the I/O shell. See `Connection.attach`."""
        self._alarm = alarm

    # Empty responses

    def is_early(self, fetching: FetchHandler, walk: FetchResponseWalk | None) -> bool:
        """Return whether the follower had to wait, but has answered at once with nothing.

        Note for how long it throttles the client.

        Args:
            fetching: the fetch.
            walk: the parsed response. None if the response is the same as the last one without records.
        """
        state, fetch = self._state, fetching.fetch
        if fetch is not None and fetch.frame:  # a fetch of the fast path has none, and is like the last one
            self._waits = fetch.min_bytes > 0
        empty = walk is None or not (walk.record_bytes or walk.failed or walk.replicas or walk.error_code)
        throttle_ms = 0 if walk is None else walk.throttle_time_ms
        if throttle_ms > 0:
            self._muted_until = state.now + throttle_ms / 1e3
        if not empty or throttle_ms or fetch is None or not self._waits:
            self.early = 0
            return False
        early = state.now - state.queue.expected[0].sent_at < min(MAX_HOLD_SECONDS, fetching.wait / 2)
        self.early = self.early + 1 if early else 0
        return early

    def hold(self) -> None:
        """Hold the response that now ends back, for some milliseconds after its fetch."""
        queue = self._state.queue
        request = queue.expected[0]
        due = request.sent_at + min(HOLD_SECONDS * 2 ** (self.early - 1), MAX_HOLD_SECONDS)
        self._holds.append((due, queue.claim(request)))
        self._held()
        self._state.plans.forget_fetch()
        self._alarm(due)

    def _respond(self, now: float) -> None:
        """Send the responses that were held back for long enough."""
        state, holds = self._state, self._holds
        while holds and holds[0][0] <= now:
            state.to_client += state.queue.respond(holds.popleft()[1])

    def release(self) -> None:
        """Send all responses that are held back, because the connection is about to end."""
        self._respond(inf)

    # The follower's health

    def watch(self) -> None:
        """Begin to look whether the follower answers, and let no empty response take the fast path early."""
        if not self.watched:
            self.watched = True
            self._state.plans.no_sooner = MAX_HOLD_SECONDS
            self._look_at(self._state.now + OVERDUE_SECONDS)

    def asked(self, api_key: int) -> None:
        """Note a request of the client that is not a fetch."""
        now = self._state.now
        if api_key in _AT_ONCE and self._silent(now):
            self._look_at(now + SILENT_SECONDS)

    def hurry(self, now: float) -> None:
        """Look at the broker now: a broker was late with a fetch of another client."""
        if self._silent(now):
            self._look_at(now)

    def _look_at(self, due: float) -> None:
        self._due = due
        self._alarm(due)

    def tick(self, now: float) -> None:
        """Send responses that were held back. Look whether the follower answers.

        If it does not, end the connection. The client then asks the leader.
        """
        self._respond(now)
        state, silent = self._state, self._silent(now)
        if not (self.watched or silent) or now < self._due:
            return
        if state.fault is not None or state.phase is Phase.CLOSING:
            return
        head = state.queue.expected[0] if state.queue.expected else None
        due = now + OVERDUE_SECONDS
        fetches = head is not None and head.api_key == _FETCH and self.watched
        if head is not None and (fetches or (silent and head.api_key in _AT_ONCE)):
            due = max(head.sent_at, self._muted_until)
            due += head.handler.wait + OVERDUE_SECONDS if fetches else SILENT_SECONDS
            bytes_in = state.plans.count().broker.bytes_in
            if now >= due and bytes_in == self._bytes_in:
                if fetches:
                    self._failed("overdue", now)
                state.fail("broker", "a replica in the rack does not respond, so its client asks the leader")
                return
            self._bytes_in = bytes_in
        self._look_at(due if due > now else now + _LOOK_SECONDS)

    def lose(self) -> None:
        """Note that the broker has closed the connection: it may be about to stop."""
        if self.watched and self._state.phase is not Phase.CLOSING and self._state.fault is None:
            self._failed("closed", self._state.now)

    def end(self) -> None:
        """Forget the responses that are held back, because the connection has ended."""
        self._holds.clear()


class FromFollower(Around):
    """Makes the client's response to a fetch that may go to a follower.

    Args:
        follower: the broker.
        inner: makes the response.
        fetching: the fetch, which is the innermost handler.
    """

    __slots__ = ("_follower", "_hinted", "_pieces", "_sent", "_size", "_told")

    def __init__(self, follower: Follower, inner: Handler, fetching: FetchHandler) -> None:
        super().__init__(inner, fetching)
        self._follower = follower
        self._pieces: list[Buffer] = []
        """The beginning of an entry whose rest has not come."""
        self._size = 0
        """The size of `_pieces` in bytes."""
        self._sent = 0
        """The number of the client's bytes that were returned so far."""
        self._told = self._hinted = 0
        """The numbers of errors, and of newer leaders, that were seen so far."""

    @property
    def _kept(self) -> int:
        return self._size

    def concerns(self) -> bool:
        """Return whether the response comes from a follower, and may be changed."""
        return self._follower.watched

    def edits(self, _errors: Sequence[PartitionError], _hints: Sequence[HintAt]) -> list[Edit]:
        """Return the changes in the entries of a response that have errors.

        This is called once for each of these errors and newer leaders (KIP-951).
        """
        return []

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        """Return the client's bytes that are ready now."""
        pieces = self._inner.feed(chunk, last=last)
        fetching, response = self._fetching, self._fetching.response
        if fetching.resend is not None or not response.understood or not self.concerns():
            pieces, self._pieces, self._size = [*self._pieces, *pieces], [], 0
            return pieces
        if response.walk is not None:
            pieces = self._without_errors(pieces, response, response.walk, last=last)
        if last and pieces and self._follower.is_early(fetching, response.walk):
            self._follower.hold()
        return pieces

    def _without_errors(
        self, pieces: list[Buffer], response: Walked | Kept, walk: FetchResponseWalk, *, last: bool
    ) -> list[Buffer]:
        """Replace errors in the next bytes.

        The beginning of an entry is kept until its rest comes.
        """
        if isinstance(response, Kept):
            if not (last and walk.errors):
                return pieces
            # The client's response is another one than the broker's, and it is whole.
            told = FetchResponseWalk(LAYOUTS[self._fetching.version], 0, keep=False, noted=walk.noted)
            frame = b"".join(pieces)
            told.feed(frame)
            return [_edited(frame, 0, self.edits(told.errors, told.hints))]
        errors, hints = walk.errors[self._told :], walk.hints[self._hinted :]
        self._told, self._hinted = len(walk.errors), len(walk.hints)
        # The client's response has the broker's offsets up to its tags, which come last.
        size = self._size + sum(map(len, pieces))
        left = 0 if last else max(self._sent + size - walk.offset, 0)
        begins, self._sent = self._sent, self._sent + size - left
        if not (self._pieces or left or errors or hints):
            return pieces
        edits = self.edits(errors, hints) if errors or hints else []
        data = _edited(b"".join((*self._pieces, *pieces)), begins, edits)
        ready = size - left
        self._pieces, self._size = [data[ready:]] if left else [], left
        return [data[:ready]] if ready else []

    def end(self, request: InFlight) -> bool:
        """See `Handler.end`."""
        return self._inner.end(request)

    def passes(self, size: int) -> bool:
        """Return whether the next bytes are only records, so that they may be forwarded unchanged."""
        if self._pieces or not self._inner.passes(size):
            return False
        self._sent += size
        return True


def not_leader(error: PartitionError) -> Edit:
    """Return the change that makes an error NOT_LEADER_OR_FOLLOWER."""
    return error.start + ERROR_CODE.start, _NOT_LEADER.to_bytes(2)


def _edited(data: bytes, begins: int, edits: Sequence[Edit]) -> bytes:
    """Return bytes of a response with changes.

    Args:
        data: the bytes.
        begins: their offset in the response.
        edits: the changes.
    """
    if not edits:
        return data
    changed = bytearray(data)
    for at, new in edits:
        changed[at - begins : at - begins + len(new)] = new
    return bytes(changed)
