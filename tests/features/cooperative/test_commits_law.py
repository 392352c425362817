"""The committed offset of a key hash never decreases, whatever the order of events.

Events are commits, rebalances, lost connections and restarts of the gateway. Once a member was told that an
offset of a hash is committed, Kafka never stores a lower offset for this hash, and no member begins below it.

`test_group_law.py` checks records. The tests here check each hash after each commit, also with incremental
rebalancing, and while members ask for offsets.
"""

import random
from collections.abc import Iterable
from typing import Final

import pytest

from proxy.features.cooperative import member as member_module
from proxy.features.cooperative.group import SLOTS
from proxy.features.cooperative.key_hash import SPACE
from proxy.features.cooperative.member import Member
from proxy.features.cooperative.membership import assignment, read_assignment, read_sync, read_synced
from proxy.features.cooperative.offsets import read_answered, read_commit, read_fetched_offsets
from proxy.features.cooperative.positions import read_committed
from proxy.features.cooperative.ranges import FULL, KeyRanges
from proxy.features.cooperative.slots import read_slot, resolved
from tests.features.cooperative.coordinator import SYNC_GROUP, Client, Coordinator, got, sent
from tests.features.cooperative.fields import Writer
from tests.features.cooperative.test_member_stage import Shared, asks, commit, committed, offsets
from tests.model.gate import framed

PLACE: Final = (b"orders", 0)
SAMPLES: Final = [number * SPACE // 48 + 5 for number in range(48)]
OFFSET_FETCH: Final = 9
REBALANCING: Final = 27
COMMITS: Final = 8
"""The correlation id of commits. Other requests use 7."""
STEPS: Final = 200
MOST_CUTS: Final = 4
"""The number of rounds of a rebalance in which connections may end."""


class World:
    """A gateway, a coordinator with the committed offsets of one partition, and the members of a group."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.incremental = seed % 3 == 0
        self.shared = Shared()
        self.coordinator = Coordinator()
        self.clients: list[Client] = []
        self.born = 0
        self.offset, self.metadata = -1, b""
        self.slots: dict[int, bytes] = {}
        self.told = dict.fromkeys(SAMPLES, 0)
        """For some key hashes, the highest offset that a member was told is committed."""
        self.at: dict[str, int] = {}
        """Client id -> position of the member."""
        self.commits: dict[str, tuple[int, KeyRanges]] = {}
        """Client id -> offset and ranges of a commit that has no response yet."""
        self.sent: dict[str, list[bytes]] = {}
        """Client id -> requests that have not reached the broker yet."""
        self.answers: dict[str, list[bytes]] = {}
        """Client id -> responses of the broker that have not reached the gateway yet."""
        self.counts = {"commits": 0, "asked": 0}

    # What Kafka has

    def check(self) -> None:
        if self.offset >= 0:
            slots = {number: read_slot(text.decode()) for number, text in self.slots.items()}
            positions = resolved(PLACE, read_committed(self.offset, self.metadata.decode()), slots)
            for each, offset in self.told.items():
                assert positions.at(each) >= offset, f"{each:x} was at {offset}"

    def take(self, frame: bytes) -> bytes:
        """Let the broker process a request. Return its response."""
        if frame[5] == OFFSET_FETCH:
            return offsets(frame, self.offset, self.metadata, self.slots)
        for entry in read_commit(frame).entries:
            if entry.topic == SLOTS:
                self.slots[entry.partition] = entry.metadata or b""
            else:
                self.offset, self.metadata = entry.offset, entry.metadata or b""
        self.check()
        return committed(frame)

    # Members

    def member(self, client: Client) -> Member:
        return self.shared.members.bound("h", client.client_id.encode())

    def connect(self, client: Client) -> None:
        """Let a client reconnect. The broker may have processed one more of its requests, or not."""
        if self.sent[client.client_id] and self.random.random() < 0.5:
            self.take(self.sent[client.client_id][0])
        self.sent[client.client_id], self.answers[client.client_id] = [], []
        self.commits.pop(client.client_id, None)
        client.connection.ended()
        client.connection = self.shared.connection()
        self.collect()

    def collect(self) -> None:
        for client in self.clients:
            self.sent[client.client_id] += sent(client.connection)

    def broker(self, client: Client) -> None:
        """Let the broker process the next request of a client."""
        if under_way := self.sent[client.client_id]:
            self.answers[client.client_id].append(self.take(under_way.pop(0)))

    def answer(self, client: Client) -> None:
        """Deliver the broker's next response to the gateway."""
        if not (under_way := self.answers[client.client_id]):
            return
        client.connection.receive_broker(under_way.pop(0), 1.0)
        self.collect()
        for said in got(client.connection):
            self.said(client, said)

    def said(self, client: Client, response: bytes) -> None:
        """Process the response to a client's commit."""
        if int.from_bytes(response[4:8]) != COMMITS:
            return
        offset, ranges = self.commits.pop(client.client_id)
        (entry,) = read_answered(response, read_commit(commit(client.client_id, 0)))
        if entry.error_code:
            assert entry.error_code == REBALANCING
            return
        self.counts["commits"] += 1
        for each in SAMPLES:
            if any(low <= each <= high for low, high in ranges):
                self.told[each] = max(self.told[each], offset)
        self.check()

    def settle(self) -> None:
        while any(self.sent[each.client_id] or self.answers[each.client_id] for each in self.clients):
            self.random.choice([self.broker, self.answer])(self.random.choice(self.clients))

    def commit(self, client: Client) -> None:
        """Let a client process some records, and commit."""
        if client.client_id not in self.at or client.client_id in self.commits:
            return
        self.at[client.client_id] += self.random.randrange(20)
        offset, ranges = self.at[client.client_id], self.member(client).ranges(PLACE) or FULL
        self.commits[client.client_id] = offset, ranges
        self.member(client).tracked(PLACE).sends(offset)
        client.connection.receive_client(commit(client.client_id, offset, correlation=COMMITS), 1.0)
        self.collect()
        for said in got(client.connection):
            self.said(client, said)

    def look(self, client: Client) -> None:
        """Let a client ask for the committed offset, and ignore the response."""
        client.connection.receive_client(asks(client.client_id), 1.0)
        self.collect()

    def ask(self, client: Client) -> None:
        """Let a client ask for the committed offset, and begin there."""
        self.counts["asked"] += 1
        client.connection.receive_client(asks(client.client_id), 1.0)
        while frames := sent(client.connection):  # the second one asks for slots
            (frame,) = frames
            client.connection.receive_broker(self.take(frame), 1.0)
        (said,) = got(client.connection)
        (entry,) = read_fetched_offsets(said, 2).groups[0].entries
        self.at[client.client_id] = offset = max(entry.offset, 0)
        member = self.member(client)
        ranges, lane = member.ranges(PLACE), member.lane(PLACE, offset)
        for each in SAMPLES:
            if ranges is not None and not any(low <= each <= high for low, high in ranges):
                continue
            begins = offset if lane is None else lane[1][lane[0].step_of(each)]
            assert begins >= self.told[each], f"{client.client_id} begins at {begins} with {each:x}"

    # Rebalances

    def rebalance(self) -> None:
        """Let all members join again and again, until no member has to. Meanwhile connections may end."""
        self.settle()
        for number in range(12):
            self.random.shuffle(self.clients)
            for client in self.clients:
                client.owned = client.places if self.incremental and client.places else []
                if client.synced:
                    self.coordinator.beat(client, REBALANCING)
            self.coordinator.join(self.clients)
            for client in self.clients:
                if number < MOST_CUTS and self.random.random() < 0.1:
                    self.connect(client)
            if number < MOST_CUTS and self.random.random() < 0.05:
                self.restart()
            if self.sync() and all(not self.coordinator.beat(client) for client in self.clients):
                return
        pytest.fail("the group does not come to rest")

    def sync(self) -> bool:
        """Let all members sync. Return whether no member has to join again."""
        given: dict[bytes, bytes] = {}
        for client in self.clients:
            body = self.coordinator.sync_body(client)
            leads = client is self.clients[0]
            body.count(len(self.clients) if leads else 0)
            for each in self.clients if leads else ():
                body.string(each.member_id)
                body.data(assignment([PLACE] if each is client else []))
            frames = client.ask(SYNC_GROUP, 3, body.content)
            if not frames:
                (said,) = got(client.connection)
                assert read_synced(said, 3).error_code == REBALANCING
                return False
            given |= dict(read_sync(frames[0]).assignments)
            self.synced(client, given[client.member_id])
        return True

    def synced(self, client: Client, given: bytes) -> None:
        said = Writer(SYNC_GROUP, 3)
        said.content += (7).to_bytes(4) + bytes(4) + bytes(2)
        said.data(given)
        had = client.places if self.incremental else []
        found = read_synced(client.answered(framed(bytes(said.content))), 3)
        client.places, client.synced = read_assignment(found.assignment)[0], True
        if client.places != had or client.client_id not in self.at:
            self.at.pop(client.client_id, None)
            if client.places:
                self.ask(client)

    def restart(self) -> None:
        """Replace the gateway by a new one, and reconnect all members."""
        self.shared = Shared()
        for client in self.clients:
            self.connect(client)

    def comes(self) -> None:
        self.born += 1
        name = f"m{self.born}"
        client = Client(self.shared.connection(), f"billing.{name}", name.encode(), keeps=True)
        self.sent[client.client_id], self.answers[client.client_id] = [], []
        self.clients.append(client)
        self.rebalance()

    def goes(self) -> None:
        """Kill a random member."""
        if len(self.clients) > 1:
            client = self.clients[self.random.randrange(len(self.clients))]
            self.connect(client)
            client.connection.ended()
            self.clients.remove(client)
            self.rebalance()

    def step(self) -> None:
        do = self.random.choices(
            ["commit", "look", "broker", "answer", "connect", "rebalance", "restart", "comes", "goes"],
            [30, 4, 30, 30, 3, 3, 2, 2, 2],
        )[0]
        if do in {"commit", "look", "broker", "answer", "connect"}:
            getattr(self, do)(self.random.choice(self.clients))
        elif do == "comes" and len(self.clients) > 4:
            self.goes()
        elif do == "restart":
            self.restart()
            if self.random.random() < 0.5:
                self.some(self.clients)
            self.rebalance()
        else:
            getattr(self, do)()

    def some(self, clients: Iterable[Client]) -> None:
        """Let members commit to a restarted gateway that does not know them yet."""
        for client in clients:
            self.commit(client)
        self.settle()


@pytest.fixture(autouse=True)
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "ABSENT_SECONDS", 0.0)


@pytest.mark.parametrize("seed", range(15))
def test_no_hash_goes_back(seed: int) -> None:
    world = World(seed)
    world.comes()
    world.comes()
    for _ in range(STEPS):
        world.step()
    world.settle()
    assert world.counts["commits"] > 3
    assert world.counts["asked"] > 3
