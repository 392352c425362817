"""Retries the fetches of one connection at new leaders, for clients without KIP-951. Sans-IO.

A fetch response with error 6 or 74 is held back, and the new leader is asked for the failed part
(`proxy.core.asking`). If a fetch has a leader epoch, the new leader rejects an older epoch (KIP-320). So the
gateway replaces the epoch, but only after a proof that no lost records are hidden: the new leader's log has
records of the client's epoch, and they reach the client's offset. Two logs with the same record of an epoch
are equal up to that record.
"""

from proxy.core.asking.asker import Hold, asker_of
from proxy.core.asking.repeat import MAX_BYTES
from proxy.core.connection_state import ConnectionState
from proxy.core.events import NotFollowed
from proxy.core.in_flight import Around, ClientFetch, FetchHandler, Handler, InFlight
from proxy.core.stage import Stage
from proxy.features.leaders.fetch_repeat import FIRST_VERSION, FetchRepeat
from proxy.protocol.api import ApiKey
from proxy.protocol.fetch_layout import HINTS_VERSION
from proxy.protocol.primitives import Buffer, ProtocolError


class FollowFetch(Around):
    """Buffers a fetch response, and holds it back if it has errors because of a moved leader.

    Large responses, and responses for a session with the gateway, are neither buffered nor held back.
    """

    __slots__ = ("_pieces", "_size", "_stage", "hold")

    def __init__(self, stage: "LeadersStage", inner: Handler, client_fetch: ClientFetch) -> None:
        super().__init__(inner, client_fetch)
        self._stage = stage
        self._pieces: list[Buffer] = []
        """The client's bytes that are buffered until it is known whether the response is held back."""
        self._size = 0
        self.hold: Hold | None = None
        """See `Holding.hold`."""

    @property
    def _kept(self) -> int:
        return self._size

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        pieces = self._inner.feed(chunk, last=last)
        if not last:
            if not pieces or not self._client_fetch.direct or self._stage.is_large:
                return pieces
            self._pieces += pieces
            self._size += sum(map(len, pieces))
            return []
        if self._pieces:
            pieces, self._pieces, self._size = [*self._pieces, *pieces], [], 0
        return self._stage.receive(self, self._innermost, pieces)

    def end(self, request: InFlight) -> bool:
        return self._inner.end(request) and not (self.hold and self.hold.is_held)

    def passes(self, size: int) -> bool:
        return not self._pieces and self._client_fetch.direct and self._inner.passes(size)


class LeadersStage(Stage):
    """Has new leaders asked for the partitions of fetches that have moved."""

    __slots__ = ("_state",)

    def __init__(self, state: ConnectionState) -> None:
        self._state = state

    def around_fetch(self, request: InFlight, client_fetch: ClientFetch) -> Handler:
        # From v16 on, clients learn new leaders by KIP-951 instead.
        if request.version >= HINTS_VERSION or not client_fetch.follows:
            return request.handler
        return FollowFetch(self, request.handler, client_fetch)

    def repeats(self, api_key: int, version: int, *, in_session: bool = False) -> bool:
        # They take the fast path if no error in their responses needs this stage.
        return api_key != ApiKey.FETCH or in_session or version >= HINTS_VERSION

    @property
    def is_large(self) -> bool:
        """Whether the arriving response is too large to be buffered."""
        return self._state.response_size > MAX_BYTES

    def receive(self, handler: FollowFetch, innermost: FetchHandler, pieces: list[Buffer]) -> list[Buffer]:
        """Hold back a fetch's response if it has errors of moved leaders. Return the bytes to send now."""
        walk, fetch = innermost.walk, innermost.fetch
        not_followed = self._state.tally.leaders_not_followed
        if walk is None or not walk.moved or innermost.resend is not None:
            return pieces
        reason = _against(innermost)
        if reason is not None or fetch is None:
            not_followed[reason or NotFollowed.NOT_UNDERSTOOD] += walk.moved
            return pieces
        try:
            repeat = FetchRepeat(fetch, b"".join(pieces))
        except ProtocolError:
            not_followed[NotFollowed.NOT_UNDERSTOOD] += walk.moved
            return pieces
        # An incremental fetch of the client's own session does not list unchanged partitions.
        if walk.moved > len(repeat.failed):
            not_followed[NotFollowed.NOT_LISTED] += walk.moved - len(repeat.failed)
        asker = asker_of(self._state)
        return asker.follow(handler, repeat) if asker is not None and repeat.failed else pieces


def _against(handler: FetchHandler) -> NotFollowed | None:
    """Return the reason why the failed partitions of a fetch can't be retried, or None if they can."""
    if not handler.client_fetch.direct:
        return NotFollowed.SESSION
    if handler.client_fetch.version < FIRST_VERSION:
        return NotFollowed.VERSION
    if handler.received > MAX_BYTES:
        return NotFollowed.TOO_LARGE
    return None if handler.understood and handler.fetch is not None else NotFollowed.NOT_UNDERSTOOD
