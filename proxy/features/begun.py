"""The features of one process, all together."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from proxy.features.declared import FEATURES
from proxy.features.feature import Feature, LinkInfo, Process, Running
from proxy.text.options import Section

if TYPE_CHECKING:
    from proxy.core.asking.siblings import Siblings
    from proxy.core.connection import MakeStage


class Begun:
    """The features that options ask for, in the order of their stages. `of` is `Config.of`.

    Its methods call those of each `Running`.
    """

    def __init__(self, process: Process, of: Callable[[type[Section]], Section]) -> None:
        begun = ((each, each.begin(process, of(each.options))) for each in FEATURES)
        self._all: list[tuple[Feature[Any, Any], Running[Any, Any]]] = [
            (each, running) for each, running in begun if running is not None
        ]
        self.running = [running for _, running in self._all]
        self._ask: Callable[[int | None], tuple[MakeStage, ...]] = lambda _node_id: ()

    def stages(self, link: LinkInfo) -> "tuple[MakeStage, ...]":
        own = (each for running in self.running for each in running.stages(link))
        return (*own, *self._ask(link.node_id))

    def ask_through(self, siblings: "Siblings") -> None:
        """Ask other brokers on these connections, for the features with `Running.asks_brokers`."""
        # With the first client, this file may be that of another version: an upgrade may be under way.
        from proxy.core.asking.asker import Asker  # noqa: PLC0415 - most gateways do not need it

        self._ask = lambda node_id: (partial(Asker, siblings, node_id),)

    @property
    def ask_brokers(self) -> bool:
        return any(running.asks_brokers for running in self.running)

    def reloaded(self, of: Callable[[type[Section]], Section]) -> None:
        for feature, running in self._all:
            running.reloaded(of(feature.options))

    def unreachable(self, link: LinkInfo) -> None:
        for running in self.running:
            running.unreachable(link)

    def look(self, links: Iterable[LinkInfo]) -> None:
        for running in self.running:
            running.look(links)

    def closed(self, link: LinkInfo) -> None:
        for running in self.running:
            running.closed(link)

    def described(self, link: LinkInfo) -> Mapping[str, object]:
        return {name: value for running in self.running for name, value in running.described(link).items()}

    def counted(self, links: Iterable[LinkInfo]) -> dict[type, object]:
        found = (running.counted(links) for running in self.running)
        return {type(each): each for each in found if each is not None}

    def problems(self) -> list[str]:
        return [problem for running in self.running for problem in running.problems()]
