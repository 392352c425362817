"""The limits of fetches in one process."""

from collections.abc import Sequence
from functools import partial

from proxy.core.connection import MakeStage
from proxy.features.feature import LinkInfo, Running
from proxy.features.limits.fetch_floors import FetchFloorsStage, FetchLimits
from proxy.features.limits.max_fetch_bytes import MaxFetchBytes
from proxy.features.limits.options import LimitOptions


class Limits(Running[LimitOptions, None]):
    """The limits of all clients."""

    def __init__(self, options: LimitOptions) -> None:
        self.limits = FetchLimits()
        self.reloaded(options)

    def stages(self, _link: LinkInfo) -> Sequence[MakeStage]:
        # The ceiling comes first, because min_bytes must not exceed it.
        return partial(MaxFetchBytes, self.limits), partial(FetchFloorsStage, self.limits)

    def reloaded(self, options: LimitOptions) -> None:
        self.limits.max_bytes = options.max_fetch_bytes
        self.limits.min_bytes = options.fetch_min_bytes
        self.limits.max_wait_ms = {
            client_id: round(wait * 1e3) for client_id, wait in options.fetch_max_wait.items()
        }
