"""Counts the bytes with brokers by zone: ``--rack``. Also has what ``--rack-clients`` needs of a process."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from time import monotonic

from proxy.addresses import Address
from proxy.core.connection import MakeStage
from proxy.core.connection_state import ConnectionState
from proxy.features.feature import LinkInfo, Process, Running
from proxy.features.racks.figures import WHAT, ReplicaFigures, Zones, kinds_of
from proxy.features.racks.options import RackOptions
from proxy.features.racks.rack_clients import RackClientsStage
from proxy.features.racks.rack_leaders import RackLeaders
from proxy.features.racks.rack_offsets import RackOffsetsStage
from proxy.features.racks.rack_stage import RackStage
from proxy.features.racks.racks import BrokerRacks, Zone
from proxy.features.racks.raise_fetch import RaiseFetch
from proxy.protocol.brokers import Broker

_RECORDS = WHAT.index("records")


class _Counted:
    """The bytes of an open link that are counted already."""

    __slots__ = ("kinds", "records_other_zone")

    def __init__(self) -> None:
        self.kinds = [0] * len(WHAT)
        """In the order of `WHAT`."""
        self.records_other_zone = 0


class RackAudit(Running[RackOptions, Zones]):
    """Counts the bytes with brokers by zone, for one process.

    The core counts bytes by kind anyway, so nothing is done for each frame. Every few seconds, the audit
    reads the counts of each link, and adds the new bytes to the zone of the link's broker. A byte counts for
    the zone that is known then. If the rack becomes known only later, earlier bytes stay `unknown`.
    """

    def __init__(self, process: Process, options: RackOptions) -> None:
        self._process = process
        self._options = options
        self.racks = BrokerRacks(options.rack)
        self.racks.changed = self._changed
        self._leaders = RackLeaders(self.racks, lambda: self._options.rack_clients)
        """For ``--rack-clients``. So are `_offsets` and `_clients`."""
        self._offsets: dict[LinkInfo, RackOffsetsStage] = {}
        self._clients: dict[LinkInfo, RackClientsStage] = {}
        self._byte_counts = Counter[tuple[str, str]]()
        """See `Zones.byte_counts`."""
        self._counted: dict[LinkInfo, _Counted] = {}
        self._unresolved: list[Broker] = []
        """Brokers whose host names could not be looked up. `look` tries again."""
        self._warned = False

    @property
    def asks_brokers(self) -> bool:
        return bool(self._options.rack_clients)  # only leaders have the offsets

    def stages(self, link: LinkInfo) -> Sequence[MakeStage]:
        learns = partial(RackStage, self.racks)
        if self._process.transparent:
            return (learns,)
        # The stages are made even if no client is named yet: a reload may name the client of this connection.
        node_id = partial(self.node_of, link)

        def offsets(state: ConnectionState) -> RackOffsetsStage:
            stage = self._offsets[link] = RackOffsetsStage(self._leaders, node_id, state)
            return stage

        def raises(state: ConnectionState) -> RaiseFetch:
            return RaiseFetch(self._offsets[link].raises, self._offsets[link].may_raise, state)

        def clients(state: ConnectionState) -> RackClientsStage:
            stage = self._clients[link] = RackClientsStage(self._leaders, node_id, state)
            return stage

        return offsets, raises, clients, learns

    def reloaded(self, options: RackOptions) -> None:
        self._options = options
        for stage in self._offsets.values():
            stage.forget_plans()

    def node_of(self, link: LinkInfo) -> int | None:
        """Return the node id of a link's broker. None while no response has named a bootstrap broker.

        Only ``--rack-clients`` asks for it, which does not work in transparent mode.
        """
        if link.node_id is not None:
            return link.node_id
        address = link.broker_address
        broker = self.racks.at(address.host, address.port) if address is not None else None
        return broker.node_id if broker is not None else None

    def unreachable(self, link: LinkInfo) -> None:
        if self._names:  # a broker in the rack: nobody can read from it
            self._leaders.unreachable(self.node_of(link), monotonic())

    def zone_of(self, link: LinkInfo) -> Zone:
        """Return the zone of a link's broker.

        In transparent mode, and on links to the bootstrap, only the broker's address is known.
        """
        if not self._process.transparent and link.node_id is not None:
            return self.racks.zone(link.node_id)
        address = link.broker_address
        return self.racks.zone_at(address.host, address.port) if address is not None else Zone.UNKNOWN

    def described(self, link: LinkInfo) -> dict[str, object]:
        self._count(link)
        client = self._clients.get(link)
        return {
            "zone": self.zone_of(link),
            "record_bytes_other_zone": self._counted[link].records_other_zone,
            **({"replica": client.watched} if self._names and client is not None else {}),
        }

    def look(self, links: Iterable[LinkInfo]) -> None:
        for link in links:
            self._count(link)
        self._warn()
        unresolved, self._unresolved = self._unresolved, []
        self._look_up(unresolved)

    def closed(self, link: LinkInfo) -> None:
        self._count(link)  # its last bytes
        del self._counted[link]
        self._clients.pop(link, None)
        self._offsets.pop(link, None)

    def counted(self, links: Iterable[LinkInfo]) -> Zones:
        self.look(links)
        return Zones(
            rack=self._options.rack,
            byte_counts=self._byte_counts.copy(),
            racks=self._racks,
            racks_of_known=self._racks_of_known,
            reads=self._replicas(),
        )

    def _replicas(self) -> ReplicaFigures | None:
        if not self._names:
            return None
        leaders = self._leaders
        return ReplicaFigures(named=leaders.named, held=leaders.held, returns=leaders.distrust.returns.copy())

    @property
    def _names(self) -> bool:
        return bool(self._options.rack_clients)

    @property
    def _racks(self) -> dict[str, str]:
        if not self._process.transparent:
            return {str(node_id): rack for node_id, rack in self.racks.by_node.items()}
        return {str(Address(host, port)): each.rack for (host, port), each in self.racks.by_address.items()}

    @property
    def _racks_of_known(self) -> dict[int, str]:
        if not self._process.transparent:
            return self.racks.by_node.copy()
        known = ((node_id, broker.address) for node_id, broker in self._process.brokers_known.items())
        found = ((node_id, self.racks.at(address.host, address.port)) for node_id, address in known)
        return {node_id: broker.rack for node_id, broker in found if broker is not None}

    def _count(self, link: LinkInfo) -> None:
        if (counted := self._counted.get(link)) is None:
            counted = self._counted[link] = _Counted()
        zone, before = self.zone_of(link), counted.kinds
        kinds = kinds_of(link.core.tally, link.core.state.arriving)
        for at, what in enumerate(WHAT):
            # A request is counted before it is written. So the rest, `other`, may be too low for a moment.
            if (more := kinds[at] - before[at]) > 0:
                self._byte_counts[zone, what] += more
                before[at] += more
                if at == _RECORDS and zone is Zone.OTHER:
                    counted.records_other_zone += more

    def _changed(self, brokers: Iterable[Broker]) -> None:
        """Note brokers that are new, or have a new rack or address."""
        self._look_up(brokers)
        self._leaders.changed()

    def _look_up(self, brokers: Iterable[Broker]) -> None:
        for broker in brokers:
            self._process.spawn(self._resolve(broker))

    async def _resolve(self, broker: Broker) -> None:
        # Transparent mode knows only the IP of a link's broker.
        try:
            ips = await self._process.ips(broker.host)
        except OSError:
            self._unresolved.append(broker)
        except ValueError:
            pass  # it is no host name
        else:
            for ip in ips:
                self.racks.found_at(ip, broker)

    def _warn(self) -> None:
        rack, known = self._options.rack, sorted({each for each in self._racks.values() if each})
        if self._warned or not known or rack in known:
            return
        self._warned = True
        remedy = "set --rack to the broker.rack of brokers in the gateway's zone"
        self._process.log.warning(
            "no broker is in the gateway's rack", rack=rack, racks=", ".join(known), remedy=remedy
        )
        text = f"no broker is in the gateway's rack {rack}; the racks are {', '.join(known)}; {remedy}"
        self._process.note("rack", text, warning=True)
