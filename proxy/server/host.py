"""What features get of the process: see `proxy.features.feature.Process`."""

from collections.abc import Mapping, Sequence

from proxy.addresses import Broker
from proxy.net.transparent import Destinations
from proxy.server.conditions import Repeated
from proxy.server.process import Process
from proxy.server.registry import BrokerRegistry


class Host:
    """The process, as far as features use it."""

    def __init__(self, process: Process, brokers: BrokerRegistry | Destinations) -> None:
        self._process = process
        self._brokers = brokers
        self.log, self.note, self.spawn = process.log, process.note, process.spawn
        self.transparent = process.config.is_transparent

    @property
    def brokers_known(self) -> Mapping[int, Broker]:
        return self._brokers.known

    def repeated(self, event: str) -> Repeated:
        return Repeated(self.log, event)

    async def ips(self, host: str) -> Sequence[str]:
        return await self._process.resolver.ips(host)
