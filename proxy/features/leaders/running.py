"""Fetches that follow a leader that has moved."""

from collections.abc import Sequence

from proxy.core.connection import MakeStage
from proxy.features.feature import LinkInfo, Running
from proxy.features.leaders.options import LeaderOptions
from proxy.features.leaders.stage import LeadersStage


class Leaders(Running[LeaderOptions, None]):
    """Has new leaders asked for fetches: see `LeadersStage`."""

    asks_brokers = True

    def stages(self, _link: LinkInfo) -> Sequence[MakeStage]:
        return (LeadersStage,)
