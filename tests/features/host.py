"""A process that runs one feature, for tests without a server."""

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from proxy.addresses import Broker
from proxy.logger import Logger
from proxy.server.acceptor import Acceptor
from proxy.server.conditions import Repeated
from proxy.server.process import Process
from proxy.server.registry import brokers_of


class Host:
    """What a feature gets of a process: see `proxy.features.feature.Process`."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.log: Logger = process.log
        self.transparent = process.config.is_transparent
        self.brokers_known: Mapping[int, Broker] = brokers_of(process, Acceptor(process)).known

    def note(self, kind: str, text: str, *, warning: bool = False) -> None:
        self.process.note(kind, text, warning=warning)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.process.spawn(work)

    def repeated(self, event: str) -> Repeated:
        return Repeated(self.log, event)

    async def ips(self, host: str) -> Sequence[str]:
        return await self.process.resolver.ips(host)
