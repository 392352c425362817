"""The law of ``--rack-clients``: whatever replicas do, each client gets each record once and in order.

A model of one partition with three replicas: the leader moves, followers lag, leave the ISR, come back, are
stopped and killed, and brokers hear of that late. Between them and a model of a client is the gateway's core.
The client knows Metadata only. It fetches from the broker that Metadata calls the leader.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.connection_state import ConnectionState
from proxy.core.eligibility import SessionLimits
from proxy.features.racks.rack_clients import RackClientsStage
from proxy.features.racks.rack_leaders import RackLeaders
from proxy.protocol.metadata import read_replicas
from tests.connections import Asked, connect
from tests.examples import examples
from tests.features.racks.replica import Known
from tests.frames import entry, fetch, fetch_response, framed
from tests.model import wire
from tests.playbook import split
from tests.protocol.replicas import Part, body

VERSION: Final = 12
METADATA_VERSION: Final = 7
NODES: Final = (1, 2, 3)
HERE: Final = 2
"""The broker in the gateway's rack."""
RECORD_BYTES: Final = 8
OUT_OF_RANGE: Final = 1
FENCED, UNKNOWN_EPOCH, NOT_LEADER = 74, 75, 6
PARK_SECONDS: Final = 0.5


class Heard(NamedTuple):
    """What a broker has heard of the partition."""

    leader: int = 1
    epoch: int = 5
    isr: frozenset[int] = frozenset(NODES)


@dataclass
class Replicas:
    """One partition, its records, and what each broker has and has heard of them.

    A record is its offset in 8 bytes.
    """

    leader: int = 1
    end: dict[int, int] = field(default_factory=lambda: dict.fromkeys(NODES, 0))
    high: dict[int, int] = field(default_factory=lambda: dict.fromkeys(NODES, 0))
    isr: set[int] = field(default_factory=lambda: set(NODES))
    dead: set[int] = field(default_factory=set)
    stopped: set[int] = field(default_factory=set)
    epoch: int = 5
    heard: dict[int, Heard] = field(default_factory=lambda: dict.fromkeys(NODES, Heard()))

    def hear(self, node: int) -> None:
        self.heard[node] = Heard(self.leader, self.epoch, frozenset(self.isr))

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
            moved, self.leader = node != self.leader, node
            for other in NODES:
                self.end[other] = min(self.end[other], self.end[node])
                self.high[other] = min(self.high[other], self.end[other])
            self.settle()
            if moved:
                self.epoch += 1
                self.hear(node)

    def metadata(self, node: int) -> bytes:
        """Return what a broker says of the partition. It lists the brokers that are alive."""
        heard = self.heard[node]
        part = Part(leader=heard.leader, epoch=heard.epoch, isr=tuple(sorted(heard.isr)))
        racks = {each: f"R{each}" for each in NODES if each not in self.dead}
        return body(METADATA_VERSION, {"t": [part]}, racks=racks)

    def answer(self, node: int, asked: wire.FetchRequest) -> wire.PartitionData:
        """Return what a broker answers to a fetch of the partition."""
        wanted, heard = asked.topics[0].partitions[0], self.heard[node]
        if 0 <= wanted.current_leader_epoch < heard.epoch:
            return entry(0, error=FENCED)
        if wanted.current_leader_epoch > heard.epoch:
            return entry(0, error=UNKNOWN_EPOCH)
        if wanted.fetch_offset > self.end[node]:
            return entry(0, error=OUT_OF_RANGE)
        until = max(self.high[node], wanted.fetch_offset)
        records = b"".join(each.to_bytes(RECORD_BYTES) for each in range(wanted.fetch_offset, until))
        return entry(0, self.high[node], records=records)


def from_client(core: Asked, data: bytes, now: float) -> bytes:
    """Give a core bytes of the client, as the link does. Return what the broker gets."""
    done, out = core.fast_path.request(data, now)
    if done < len(data):
        core.receive_client(data[done:], now)
    return b"".join((out, *map(bytes, core.drain_broker())))


def from_broker(core: Asked, data: bytes, now: float) -> bytes:
    """Give a core bytes of the broker, as the link does. Return what the client gets."""
    done, out = core.fast_path.response(data, now, now)
    if done < len(data):
        core.receive_broker(data[done:], now)
    return b"".join((out, *map(bytes, core.drain_client())))


class Reader:
    """A client of the partition. It checks that it gets each record once and in order.

    Args:
        replicas: the brokers.
        epochs: whether its fetches have leader epochs (KIP-320).
    """

    def __init__(self, replicas: Replicas, *, epochs: bool) -> None:
        self.replicas, self.epochs = replicas, epochs
        self.shared = RackLeaders(Known(HERE), lambda: {"c"})
        self.sessions = SessionLimits(max_sessions=10)
        self.connections: dict[int, Asked] = {}
        self.position, self.now, self.number = 0, 1000.0, 0
        self.known: tuple[int, int] | None = None
        """The leader and its epoch, as Metadata has told the client. None if it has to ask."""
        self.troubles = 0
        """How many fetches failed."""

    def ask(self) -> None:
        """Ask a broker that answers for Metadata."""
        replicas = self.replicas
        node = next((node for node in (1, 3, 2) if replicas.lives(node)), None)
        if node is None:
            return
        told = self.shared.name_replicas(replicas.metadata(node), METADATA_VERSION, "c", "h", self.now)
        found = read_replicas(told, METADATA_VERSION)
        self.known = int(found.leader[0]), int(found.epoch[0])

    def fetch(self) -> None:
        """Fetch once, where the client believes that it should."""
        if self.known is None:
            self.now += 0.1
            self.ask()
        if self.known is None:
            return
        node, epoch = self.known
        if node in self.replicas.dead:
            self.shared.unreachable(node, self.now)
            self.trouble()
            return
        core = self.connections.get(node)
        if core is None:
            core = self.connections[node] = self.connect(node)
        self.number += 1
        values = {"current_leader_epoch": epoch if self.epochs else -1}
        asked = fetch(VERSION, ("t", 0, self.position), correlation=self.number, values=values)
        sent = split(from_client(core, asked, self.now))
        if node in self.replicas.stopped:
            self.wait(core, node)
            return
        for frame in sent[:-1]:  # the gateway's question for Metadata
            assert int.from_bytes(frame[4:6]) == 3
            assert not from_broker(core, framed(frame[8:12] + self.replicas.metadata(node)), self.now)
        request = wire.decode_request(sent[-1][4:])
        told = self.replicas.answer(node, request)
        begun = self.now
        position = request.topics[0].partitions[0].fetch_offset
        above = told.high_watermark < position and not told.error_code
        waits = not (told.records or told.error_code or above) and request.max_wait_ms > 0
        self.now += PARK_SECONDS if waits else 0.001
        given = fetch_response(VERSION, ("t", [told]), correlation_id=self.number)
        answer = from_broker(core, given, self.now)
        core.tick(self.now)  # as the shell does when an alarm is due
        while not answer and core.fault is None:
            self.now += 0.005
            core.tick(self.now)
            answer = b"".join(map(bytes, core.drain_client()))
        if core.fault is not None:
            self.close(node)
            self.trouble()
        else:
            self.take(node, answer, self.now - begun)

    def take(self, node: int, answer: bytes, seconds: float) -> None:
        """Check a response, and do what it says."""
        data = wire.decode_response(answer[4:], VERSION).topics[0].partitions[0]
        records = data.records or b""
        if data.error_code:
            assert data.error_code != OUT_OF_RANGE or self.is_at_leader(node)
            assert not records
            self.trouble()
            return
        if not records:
            assert self.is_at_leader(node) or seconds >= 0.01, "a tight loop"
        for at in range(0, len(records), RECORD_BYTES):
            assert int.from_bytes(records[at : at + RECORD_BYTES]) == self.position
            self.position += 1

    def is_at_leader(self, node: int) -> bool:
        """Return whether a broker led the partition when a Metadata response last told the gateway.

        What comes from it is the client's own affair, as without a gateway.
        """
        return node != HERE or self.shared.leads((b"t", 0), node) is True

    def trouble(self) -> None:
        self.troubles += 1
        self.known = None
        self.now += 0.1

    def wait(self, core: Asked, node: int) -> None:
        """Wait for a stopped broker, until the gateway or the client itself closes the connection."""
        for _ in range(60):
            self.now += 0.5
            core.tick(self.now)
            if core.fault is not None:
                break
        self.close(node)
        self.trouble()

    def close(self, node: int, *, by_broker: bool = False) -> None:
        core = self.connections.pop(node, None)
        if core is not None:
            if by_broker:
                core.broker_ended()
                self.known = None
            core.ended()

    def connect(self, node: int) -> Asked:
        def make(state: ConnectionState) -> RackClientsStage:
            return RackClientsStage(self.shared, lambda: node, state)

        core = connect(self.sessions, stages=(make,), host="h")
        core.attach(lambda: None, lambda _: None)
        return core


Step: TypeAlias = tuple[str, int]
STEPS: Final = st.one_of(
    st.tuples(st.just("fetch"), st.integers(1, 4)),
    st.tuples(st.just("produce"), st.integers(1, 5)),
    st.tuples(st.sampled_from(["copy", "leave", "join", "move", "hear"]), st.sampled_from(NODES)),
    st.tuples(st.sampled_from(["stop", "kill", "start"]), st.sampled_from(NODES)),
    st.tuples(st.sampled_from(["pass", "refresh"]), st.sampled_from([1, 11, 70])),
    st.tuples(st.sampled_from(["ahead", "outrun"]), st.integers(1, 3)),
)


def outrun(reader: Reader, count: int, *, leaves: bool) -> None:
    """Let the client read new records from the leader, and the replica in the rack stay behind.

    It has the records, but has not heard that they are committed. If it leaves the ISR, it has none of them.
    """
    replicas = reader.replicas
    if leaves:
        replicas.leave(HERE)
    replicas.produce(count)
    for node in sorted(replicas.isr):  # 2 before 3, so that it hears of the old high watermark
        replicas.copy(node)
    reader.known = replicas.leader, replicas.epoch
    reader.fetch()


def do(reader: Reader, step: Step) -> None:
    """Do one step: something happens at the replicas, or the client does something."""
    what, value = step
    replicas = reader.replicas
    if what == "fetch":
        for _ in range(value):
            reader.fetch()
    elif what == "pass":
        reader.now += value
    elif what == "refresh":
        reader.ask()
    elif what in {"ahead", "outrun"}:
        outrun(reader, value, leaves=what == "outrun")
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
        replicas.hear(value)
    else:
        getattr(replicas, what)(value)


@examples(300)
@given(steps=st.lists(STEPS, max_size=60), epochs=st.booleans(), lags=st.booleans())
def test_each_record_comes_once_and_in_order(steps: list[Step], *, epochs: bool, lags: bool) -> None:
    """No record is lost, doubled or out of order, and no follower's OFFSET_OUT_OF_RANGE is seen.

    In the end the replica in the rack is as it happens to be, or it lags out of the ISR. When brokers have
    heard of that, the client reads all that is committed, after few errors.
    """
    reader = Reader(Replicas(), epochs=epochs)
    for step in steps:
        do(reader, step)
    replicas = reader.replicas
    for node in NODES:
        if not replicas.lives(node) or (lags and node == HERE):
            replicas.leave(node)
    replicas.produce(3)
    for node in 2 * tuple(node for node in NODES if node in replicas.isr):
        replicas.copy(node)
    for node in NODES:
        replicas.hear(node)
    if reader.known is not None and reader.is_at_leader(reader.known[0]):
        reader.ask()  # a former leader may serve it as a follower, which only old Metadata ends
    troubles, until = reader.troubles, reader.now + 20
    while reader.now < until:
        reader.fetch()
    assert reader.position == replicas.high[replicas.leader]
    assert reader.troubles - troubles <= 5
