"""The sessions that one process gives to clients."""

import random
from collections.abc import Iterable, Sequence
from functools import partial

from proxy.core.connection import MakeStage
from proxy.features.client_sessions.cache import FetchSessionCache
from proxy.features.client_sessions.figures import ClientSessionFigures
from proxy.features.client_sessions.manager import FetchManager
from proxy.features.client_sessions.options import ClientSessionOptions
from proxy.features.client_sessions.stage import ClientSessions
from proxy.features.feature import LinkInfo, Running


class RunningClientSessions(Running[ClientSessionOptions, ClientSessionFigures]):
    """The sessions of all clients. They survive a reconnect, but not a restart of this process."""

    def __init__(self, options: ClientSessionOptions) -> None:
        # The session ids are random, because another client could use a guessed id.
        cache = FetchSessionCache(
            random.SystemRandom().randint,
            slots=options.max_incremental_fetch_session_cache_slots,
            eviction_ms=options.min_incremental_fetch_session_eviction_ms,
        )
        self.manager = FetchManager(cache, asks_broker=options.client_sessions == "auto")
        self._on = options.client_sessions != "off"

    def stages(self, _link: LinkInfo) -> Sequence[MakeStage]:
        return (partial(ClientSessions, self.manager),) if self._on else ()

    def counted(self, _links: Iterable[LinkInfo]) -> ClientSessionFigures:
        cache = self.manager.cache
        return ClientSessionFigures(
            sessions=len(cache), partitions=cache.partitions, evictions=cache.evictions
        )
