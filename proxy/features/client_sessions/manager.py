"""Gives sessions to clients: decides the context of a fetch (fetch-semantics 2.2 and 2.3). Sans-IO."""

from typing import Final

from proxy.features.client_sessions.cache import FetchSessionCache
from proxy.features.client_sessions.contexts import (
    FetchContext,
    FinalContext,
    FullFetchContext,
    IncrementalFetchContext,
    SessionlessFetchContext,
)
from proxy.features.client_sessions.requests import full_fetch, sessionless
from proxy.features.client_sessions.session import FetchSession
from proxy.protocol.api import ErrorCode
from proxy.protocol.fetch_layout import SESSION_VERSION
from proxy.protocol.fetch_request import (
    INITIAL_EPOCH,
    MAX_PARTITIONS,
    SESSIONLESS_EPOCH,
    FetchRequest,
    next_epoch,
)

_NOT_A_CONSUMER: Final = "not a consumer"
_IGNORED: Final = "forgets without a session"
"""A reason that does not matter for a full fetch: a broker ignores the forgotten topics there
(fetch-semantics 2.3)."""


class FetchManager:
    """Gives sessions to clients. All connections of a process share it, because sessions survive connections.

    With `asks_broker`, the gateway gives a session only if the broker gives none.
    """

    __slots__ = ("asks_broker", "cache", "raised")

    def __init__(self, cache: FetchSessionCache, *, asks_broker: bool = False) -> None:
        self.cache = cache
        self.asks_broker = asks_broker
        self.raised = False
        """Whether a client was offered v7 although the broker supports only v5 or v6."""

    def __repr__(self) -> str:
        return f"<FetchManager {self.cache!r}>"

    def serves(self, session_id: int, epoch: int, broker: str) -> bool:
        """Return whether the gateway handles the session of a fetch. If not, the broker may know it."""
        return not self.asks_broker or epoch == INITIAL_EPOCH or self._find(session_id, broker) is not None

    def takes_over(self, session_id: int, epoch: int, broker: str) -> bool:
        """Return whether the gateway handles the session of a fetch, of which only the session is read.

        If it is a session of the gateway, it is removed: the fetch's changes to it are unknown.
        """
        session = self._find(session_id, broker)
        if session is not None:
            self.cache.remove(session)
        return session is not None or (epoch == INITIAL_EPOCH and not self.asks_broker)

    def context(
        self, fetch: FetchRequest, now_ms: int, *, broker: str = "", version: int = 0, gives: bool = True
    ) -> FetchContext | FinalContext | None:
        """Return the context of a client's fetch (v7 and later), and apply its changes to the session.

        Only sessions for this `broker` are found. `version` is the version to send, or 0 for that of the
        fetch: v7 can be sent as v5 or v6. If the gateway `gives`, the client may get a session.

        Return None if the fetch has to be forwarded unchanged: a follower's fetch (fetch-semantics, trap 2),
        or a request for a session that the gateway can't give but the broker may, such as one with tags.
        """
        if fetch.unsupported_reason == _NOT_A_CONSUMER:
            return None
        version = version or fetch.layout.version
        session = self._find(fetch.session_id, broker)
        if fetch.session_epoch in (INITIAL_EPOCH, SESSIONLESS_EPOCH):
            return self._full(fetch, session, broker, version, gives=gives)
        if session is None:
            return FinalContext(fetch, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != fetch.session_epoch:
            return FinalContext(fetch, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_ids != fetch.layout.topic_ids:
            return FinalContext(fetch, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        return self._incremental(fetch, session, now_ms, version)

    def _find(self, session_id: int, broker: str) -> FetchSession | None:
        session = self.cache.get(session_id)
        return session if session is not None and session.broker == broker else None

    def _full(
        self, fetch: FetchRequest, session: FetchSession | None, broker: str, version: int, *, gives: bool
    ) -> FetchContext | FinalContext | None:
        if session is not None:
            self.cache.remove(session)
        asks = self.asks_broker and version >= SESSION_VERSION
        if gives and fetch.session_epoch == INITIAL_EPOCH and fetch.unsupported_reason in ("", _IGNORED):
            if asks:
                # A session that was not found here may be the broker's own: keep its id.
                request = fetch.with_session(0 if session is not None else fetch.session_id, INITIAL_EPOCH)
            else:
                request = sessionless(fetch, version)
            return FullFetchContext(fetch, request, version, self.cache, broker)
        if fetch.session_epoch == INITIAL_EPOCH and asks:
            return None
        if fetch.session_id and not fetch.partitions:
            # The fetch only closes a session (fetch-semantics, trap 42).
            return FinalContext(fetch)
        return SessionlessFetchContext(sessionless(fetch, version), version)

    def _incremental(
        self, fetch: FetchRequest, session: FetchSession, now_ms: int, version: int
    ) -> FetchContext | FinalContext:
        if fetch.unsupported_reason:
            return self._lost(fetch, session)
        partitions = session.partitions
        if fetch.partitions:
            partitions.update(fetch.topics.listing(fetch.frame))
            session.silent = b""
        if fetch.forgotten:
            partitions.forget(fetch.forgotten)
            session.silent = b""
        if not len(partitions):
            # The last response of this session reports the partitions that this fetch added or forgot (cases
            # 38 and 40).
            self.cache.remove(session)
            if not fetch.partitions:
                return FinalContext(fetch)
            return SessionlessFetchContext(sessionless(fetch, version), version)
        if len(partitions) > MAX_PARTITIONS or not self.cache.room_for(session):
            return self._lost(fetch, session)
        request = full_fetch(fetch, partitions, version)
        if request is None:
            return self._lost(fetch, session)
        self.cache.touch(session, now_ms)
        session.epoch = next_epoch(session.epoch)
        return IncrementalFetchContext(fetch, session, request, version, self.cache)

    def _lost(self, fetch: FetchRequest, session: FetchSession) -> FinalContext:
        """End a session that can't continue. The client gets the error of an eviction, and asks anew."""
        self.cache.remove(session)
        return FinalContext(fetch, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
