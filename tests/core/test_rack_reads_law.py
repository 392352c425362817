"""The law of ``--rack-reads client``: whatever replicas do, each client gets each record once and in order.

A model of one partition with three replicas: the leader moves, followers lag, leave the ISR, come back, are
stopped and killed. Between them and a model of a client is the gateway's core. The followers answer as
docs/developers/zones.md says that real ones do, also where that is harmful.
"""

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.connection_state import ConnectionState
from proxy.core.eligibility import BrokerVersions, SessionLimits
from proxy.core.follower import ASK_SECONDS
from proxy.core.rack_reads import RackReads, RackReadsStage
from proxy.protocol.api_versions import Features
from tests.connections import Asked, connect
from tests.core.replicas import Part, body
from tests.examples import examples
from tests.frames import entry, fetch, fetch_response, framed
from tests.model import wire

VERSION: Final = 12
NODES: Final = (1, 2, 3)
HERE: Final = 2
"""The broker in the gateway's rack."""
RECORD_BYTES: Final = 8
OUT_OF_RANGE: Final = 1
NOT_LEADER: Final = 6
METADATA: Final = 3


class Known:
    """Broker 2 is in the gateway's rack."""

    here = True

    def is_here(self, node_id: int | None) -> bool:
        return node_id == HERE


@dataclass
class Replicas:
    """One partition, its records, and what each replica has of them. A record is its offset in 8 bytes."""

    leader: int = 1
    end: dict[int, int] = field(default_factory=lambda: dict.fromkeys(NODES, 0))
    high: dict[int, int] = field(default_factory=lambda: dict.fromkeys(NODES, 0))
    isr: set[int] = field(default_factory=lambda: set(NODES))
    dead: set[int] = field(default_factory=set)
    stopped: set[int] = field(default_factory=set)

    def lives(self, node: int) -> bool:
        return node not in self.dead and node not in self.stopped

    def produce(self, count: int) -> None:
        if self.lives(self.leader):
            self.end[self.leader] += count
            self.settle()

    def copy(self, node: int) -> None:
        """Let a follower fetch from the leader. It learns the high watermark that the leader has now."""
        if node != self.leader and self.lives(node) and self.lives(self.leader):
            self.high[node] = self.high[self.leader]
            self.end[node] = self.end[self.leader]
            self.settle()

    def settle(self) -> None:
        high = min(self.end[node] for node in self.isr)
        self.high[self.leader] = max(self.high[self.leader], high)

    def leave(self, node: int) -> None:
        if node != self.leader:
            self.isr.discard(node)
            self.settle()

    def join(self, node: int) -> None:
        """Let a replica into the ISR, if it has all committed records."""
        if self.lives(node) and self.end[node] >= self.high[self.leader]:
            self.isr.add(node)

    def move(self, node: int) -> None:
        """Make a replica of the ISR the leader. The others drop what it lacks."""
        if node in self.isr and self.lives(node):
            self.leader = node
            for other in NODES:
                self.end[other] = min(self.end[other], self.end[node])
                self.high[other] = min(self.high[other], self.end[other])
            self.settle()

    def described(self, correlation: bytes) -> bytes:
        """Return the response to Metadata v7."""
        part = Part(leader=self.leader, isr=tuple(self.isr))
        return framed(correlation + body(7, {"t": [part]}))

    def answer(self, node: int, asked: wire.FetchRequest) -> wire.PartitionData:
        """Return what a broker answers to a fetch of the partition."""
        offset = asked.topics[0].partitions[0].fetch_offset
        if node == self.leader and asked.rack_id and self.leader != HERE and HERE in self.isr:
            return entry(0, self.high[node], preferred_read_replica=HERE)
        if offset > self.end[node]:
            return entry(0, error=OUT_OF_RANGE)
        until = max(self.high[node], offset)
        records = b"".join(each.to_bytes(RECORD_BYTES) for each in range(offset, until))
        return entry(0, self.high[node], records=records)


class Reader:
    """A client of the partition. It checks that it gets each record once and in order.

    Args:
        replicas: the brokers.
        follows: whether the client goes where a leader sends it.
        asks_again: after how many fetches from a follower it asks the leader again.
    """

    def __init__(self, replicas: Replicas, *, follows: bool, asks_again: int) -> None:
        self.replicas, self.follows, self.asks_again = replicas, follows, asks_again
        self.shared = RackReads("R2", Known())
        self.versions = BrokerVersions()
        self.versions.features = Features(fetch_max=18, offset_fetch_max=9, find_coordinator_max=6)
        self.sessions = SessionLimits(max_sessions=10)
        self.connections: dict[int, Asked] = {}
        self.position, self.now, self.number = 0, 1000.0, 0
        self.follower: int | None = None
        self.at_follower = 0
        self.led_away = 0
        """How many answers in a row have led the client away from the leader and given it nothing."""

    def fetch(self) -> None:
        """Fetch once, where the client believes that it should."""
        self.at_follower += 1
        if self.at_follower > self.asks_again:
            self.follower = None
        node = self.follower if self.follower is not None else self.replicas.leader
        if node in self.replicas.dead:
            self.refused(node)
            return
        core = self.connections.get(node)
        if core is None:
            core = self.connections[node] = self.connect(node)
        self.number += 1
        core.receive_client(fetch(VERSION, ("t", 0, self.position), correlation=self.number), self.now)
        sent = b"".join(map(bytes, core.drain_broker()))
        if node in self.replicas.stopped:
            self.wait(core, node)
            return
        self.now += 0.001
        size = 4 + int.from_bytes(sent[:4])
        if int.from_bytes(sent[4:6]) == METADATA:  # the gateway's question which replicas are in sync
            core.receive_broker(self.replicas.described(correlation=sent[8:12]), self.now)
            sent = sent[size:]
        told = self.replicas.answer(node, wire.decode_request(sent[4:]))
        core.receive_broker(fetch_response(VERSION, ("t", [told]), correlation_id=self.number), self.now)
        self.now += 0.1
        core.tick(self.now)  # what was held back comes
        self.take(node, b"".join(map(bytes, core.drain_client())))

    def take(self, node: int, answer: bytes) -> None:
        """Check a response, and do what it says."""
        data = wire.decode_response(answer[4:], VERSION).topics[0].partitions[0]
        if data.error_code:
            assert data.error_code != OUT_OF_RANGE
            assert node != self.replicas.leader
            self.follower = None
            return
        if data.preferred_read_replica >= 0:
            self.led_away += 1
            assert self.follows or self.led_away == 1, "at most one empty answer in a row"
            if self.follows:
                self.follower, self.at_follower = data.preferred_read_replica, 0
            return
        if node == self.replicas.leader:
            self.led_away = 0
        records = data.records or b""
        for at in range(0, len(records), RECORD_BYTES):
            assert int.from_bytes(records[at : at + RECORD_BYTES]) == self.position
            self.position += 1

    def wait(self, core: Asked, node: int) -> None:
        """Wait for a stopped broker, until the gateway or the client itself closes the connection."""
        for _ in range(60):
            self.now += 0.5
            core.tick(self.now)
            if core.fault is not None:
                break
        self.close(node)
        self.follower = None

    def refused(self, node: int) -> None:
        """Fail to connect to a dead broker, as the client and the gateway do."""
        self.shared.unreachable(node, self.now)
        self.now += 1.0
        self.follower = None

    def close(self, node: int, *, by_broker: bool = False) -> None:
        core = self.connections.pop(node, None)
        if core is not None:
            if by_broker:
                core.broker_ended()
            core.ended()
            self.follower = None if self.follower == node else self.follower

    def connect(self, node: int) -> Asked:
        def make(state: ConnectionState) -> RackReadsStage:
            return RackReadsStage(self.shared, lambda: node, self.versions, state)

        core = connect(self.sessions, stages=(make,), host="h")
        core.attach(lambda: None, lambda _: None)
        return core


Step: TypeAlias = tuple[str, int]
STEPS: Final = st.one_of(
    st.tuples(st.just("fetch"), st.integers(1, 4)),
    st.tuples(st.just("produce"), st.integers(1, 5)),
    st.tuples(st.sampled_from(["copy", "leave", "join", "move"]), st.sampled_from(NODES)),
    st.tuples(st.sampled_from(["stop", "kill", "start"]), st.sampled_from(NODES)),
    st.tuples(st.just("pass"), st.sampled_from([1, 11, 40])),
)


def do(reader: Reader, step: Step) -> None:
    """Do one step: something happens at the replicas, or the client fetches."""
    what, value = step
    replicas = reader.replicas
    if what == "fetch":
        for _ in range(value):
            if replicas.lives(replicas.leader) or reader.follower is not None:
                reader.fetch()
    elif what == "pass":
        reader.now += value
    elif what == "produce":
        replicas.produce(value)
    elif what == "stop":
        if value != replicas.leader:
            replicas.stopped.add(value)
    elif what == "kill":
        if value != replicas.leader:
            replicas.dead.add(value)
            reader.close(value, by_broker=True)
    elif what == "start":
        replicas.dead.discard(value)
        replicas.stopped.discard(value)
    elif what == "move":
        before = replicas.leader
        replicas.move(value)
        if replicas.leader != before and reader.follower == replicas.leader:
            reader.follower = None
    else:
        getattr(replicas, what)(value)


@examples(300)
@given(
    steps=st.lists(STEPS, max_size=60),
    follows=st.booleans(),
    asks_again=st.sampled_from([1, 3, 1000]),
    lags=st.booleans(),
)
def test_each_record_comes_once_and_in_order(
    steps: list[Step], *, follows: bool, asks_again: int, lags: bool
) -> None:
    """No record is lost, doubled or out of order, and no follower's OFFSET_OUT_OF_RANGE is seen.

    A client that does not follow gets at most one empty answer in a row. In the end, with the follower as it
    happens to be, the client reads all that is committed. That is so as well if the follower lives, but has
    left the ISR and copies nothing.
    """
    reader = Reader(Replicas(), follows=follows, asks_again=asks_again)
    for step in steps:
        do(reader, step)
    replicas = reader.replicas
    if not replicas.lives(replicas.leader):
        return
    for node in NODES:
        if not replicas.lives(node):
            replicas.leave(node)
    lags = lags and replicas.leader != HERE
    if lags:
        replicas.leave(HERE)
    for node in 2 * NODES:
        if not (lags and node == HERE):
            replicas.copy(node)
            replicas.join(node)
    for _ in range(2):  # the client may only now come to the follower, which is asked ten seconds later
        reader.now += ASK_SECONDS
        for _ in range(12):
            reader.fetch()
    assert reader.position == replicas.high[replicas.leader]
