"""Which requests follow a leader that has moved."""

from proxy.features.feature import Running
from proxy.features.leaders.options import LeaderOptions


class Leaders(Running[LeaderOptions, None]):
    """Has the core repeat fetches at new leaders: see `proxy.core.leader_retry`."""

    @property
    def repeats(self) -> frozenset[str]:
        return frozenset({"fetch"})
