"""The connections of a gateway whose clients read from a replica (`--rack-clients`), for tests."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final
from uuid import UUID

from proxy.core.connection_state import ConnectionState
from proxy.features.racks.rack_clients import RackClientsStage
from proxy.features.racks.rack_leaders import RackLeaders
from proxy.features.racks.racks import BrokerRacks
from proxy.protocol.brokers import Broker
from proxy.protocol.leader_requests import metadata_request
from proxy.protocol.metadata import read_replicas
from tests.frames import Want, fetch, framed, topic_id
from tests.playbook import SESSION_ID, Playbook, full
from tests.protocol.replicas import Part, body
from tests.twin import Twin

LEADER, REPLICA = 1, 2
CLIENT: Final = "c"
HOST: Final = "h"
NOW: Final = 1000.0
IDS: Final = {name: UUID(bytes=topic_id(name)) for name in ("t", "u")}
LED_HERE: Final = Part(leader=REPLICA)
TOPICS: Final = {"t": [Part()] * 40, "u": [LED_HERE] * 2}
"""Broker 1 leads all partitions of t, and broker 2, which is in the rack, those of u."""


class Known(BrokerRacks):
    """The racks of the brokers, as far as the gateway has heard of them.

    Args:
        here: the brokers that are in the gateway's rack.
    """

    def __init__(self, *here: int) -> None:
        super().__init__("R2")
        self.nodes: Collection[int] = here

    def is_here(self, node_id: int | None) -> bool:
        return node_id in self.nodes

    may_be_here = is_here

    def learn(self, brokers: Iterable[Broker]) -> None:
        """See `BrokerRacks.learn`."""


class Gateway:
    """The connections of one gateway in a rack with broker 2.

    Each connection is played by two cores, with and without the fast path. Each of them has a `RackLeaders`
    of its own, which it shares with its like of the other connections.
    """

    def __init__(
        self, *, knows: bool = True, racks: Callable[[], BrokerRacks] = lambda: Known(REPLICA)
    ) -> None:
        self.shared = [RackLeaders(racks(), lambda: {CLIENT}) for _ in range(2)]
        if knows:
            self.learn(TOPICS)

    def learn(self, topics: dict[str, list[Part]], now: float = NOW) -> None:
        """Let a Metadata response pass."""
        for shared in self.shared:
            shared.learn(body(12, topics, ids=IDS), 12, now)

    def connect(self, node_id: int = REPLICA, *, begins: bool = True, **options: Any) -> Playbook:
        """Return a connection of a client. It has asked for the broker's versions, if it `begins`."""
        made = 0

        def make(state: ConnectionState) -> RackClientsStage:
            nonlocal made
            made += 1
            return RackClientsStage(self.shared[made - 1], lambda: node_id, state)

        stages = (make, *options.pop("stages", ()))
        play = Playbook(stages=stages, host=HOST, **options)
        play.now = NOW
        for core in cores(play):
            core.attach(lambda: None, lambda _: None)
        return play.knows() if begins else play

    @property
    def returns(self) -> Counter[str]:
        first, second = (shared.distrust.returns for shared in self.shared)
        assert first == second
        return +first

    def leaders(self, now: float, *, client: str = CLIENT, host: str = HOST) -> list[int]:
        """Return the leaders of t-0 and t-1 that a client is told."""
        told = body(12, TOPICS, ids=IDS)
        both = {shared.name_replicas(told, 12, client, host, now) for shared in self.shared}
        assert len(both) == 1
        found: list[int] = read_replicas(both.pop(), 12).leader.tolist()
        return found[:2]


def parks(play: Playbook, asked: bytes, told: bytes, *, sent: bytes | None = None) -> None:
    """Play a fetch and its response, which comes after 500 ms."""
    play.client(asked).to_broker(sent or asked)
    play.now += 0.5
    play.broker(told).to_client(told)


def cores(play: Playbook) -> list[Any]:
    core = play.connection
    return list(core.cores) if isinstance(core, Twin) else [core]


def question(version: int) -> bytes:
    by_id = version >= 13
    topic = topic_id("t") if by_id else b"t"
    return metadata_request(0x6667_7263, b"c", [topic], by_id=by_id)


def answers_question(play: Playbook, told: bytes) -> None:
    """Let the broker answer the gateway's question for Metadata. The client gets nothing of it."""
    head = (0x6667_7263).to_bytes(4)
    flexible = told.count(topic_id("t")) > 0
    play.broker(framed(head + (b"\0" if flexible else b"") + told)).nothing()


def in_session(play: Playbook, wants: list[Want]) -> None:
    """Let the client fetch until the broker has given the gateway a session."""
    asked = fetch(12, *wants, correlation=3)
    while play.client(asked).takes_broker() == asked:
        play.now += 0.5
        play.broker(full(12, wants, correlation_id=3)).takes_client()
    play.now += 0.5
    play.broker(full(12, wants, correlation_id=3, session_id=SESSION_ID)).takes_client()
