"""The ages of the connections of one process."""

from collections.abc import Iterable, Sequence
from random import uniform
from time import monotonic
from typing import Final, NamedTuple

from proxy.core.connection import MakeStage
from proxy.features.connection_age.options import AgeOptions
from proxy.features.feature import LinkInfo, Reports, Running
from proxy.prometheus.figure import COUNTER, Figure

REASON: Final = "it has its maximum age"
SLACK_SECONDS: Final = 30.0
"""How long a connection may take to end, in seconds, beside what its requests in flight may wait."""
SPREAD: Final = 0.1
"""By which part of the age connections end earlier or later. So clients that came together do not all come
again together."""


class Aged(NamedTuple):
    """What is counted: the connections that have reached their age."""

    ended: int


REPORTS: Final[Reports[AgeOptions, Aged]] = Reports(
    kind=Aged,
    figures=(
        Figure(
            COUNTER,
            "connections_aged",
            "Connections of clients that the gateway ended at --max-connection-age.",
            lambda it: it.ended,
        ),
    ),
)


class _Since(NamedTuple):
    """The begin of a connection, in seconds, and the part of the age after which it ends: about 1."""

    at: float
    part: float


class Ages(Running[AgeOptions, Aged]):
    """Ends connections at their age. A reload changes the age of open connections, too.

    A connection that is forwarded because it is not plain Kafka stays: nobody knows where its requests end.
    One with a request that is not complete yet has its next turn when `look` is called again.
    """

    def __init__(self, options: AgeOptions) -> None:
        self._age = options.max_connection_age
        self._since: dict[LinkInfo, _Since] = {}
        """The connections that were not told to end."""
        self._ended = 0

    def stages(self, link: LinkInfo) -> Sequence[MakeStage]:
        self._since[link] = _Since(monotonic(), uniform(1 - SPREAD, 1 + SPREAD))  # noqa: S311 - it hides nothing
        return ()

    def reloaded(self, options: AgeOptions) -> None:
        self._age = options.max_connection_age
        now = monotonic()
        # Connections that are older already do not all end at once.
        for link, (at, part) in self._since.items():
            if now - at >= self._age * part:
                later = uniform(0, 2 * SPREAD * self._age)  # noqa: S311 - it hides nothing
                self._since[link] = _Since(now + later - self._age * part, part)

    def look(self, links: Iterable[LinkInfo]) -> None:
        if not self._age:
            return
        now = monotonic()
        for link in links:
            since = self._since.get(link)
            if since is None or now - since.at < self._age * since.part or not link.may_end:
                continue
            del self._since[link]
            self._ended += 1
            link.close_session(REASON, link.core.state.longest_wait + SLACK_SECONDS)

    def closed(self, link: LinkInfo) -> None:
        self._since.pop(link, None)

    def counted(self, _links: Iterable[LinkInfo]) -> Aged:
        return Aged(self._ended)
