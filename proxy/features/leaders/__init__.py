"""Fetches follow a leader that has moved: ``--follow-leader``."""

from typing import TYPE_CHECKING, Final

from proxy.features.feature import Feature, Process
from proxy.features.leaders.options import LeaderOptions

if TYPE_CHECKING:
    from proxy.features.leaders.running import Leaders


def _begin(_process: Process, options: LeaderOptions) -> "Leaders | None":
    if not options.follow_leader:
        return None
    from proxy.features.leaders.running import Leaders  # noqa: PLC0415 - as `Feature.begin` asks

    return Leaders()


FEATURE: Final = Feature(options=LeaderOptions, after="max_sessions", begin=_begin)
