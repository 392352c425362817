"""Members of one group behind several gateways, each beside its own one: what a commit writes, and where the
next owner of a key begins.
"""

from dataclasses import replace

import pytest

from proxy.features.cooperative import group as group_module
from proxy.features.cooperative import joining
from proxy.features.cooperative.assignment import Assignment
from proxy.features.cooperative.commits import CommitRequest, Steps
from proxy.features.cooperative.group import SLOTS, Group, Read, with_positions
from proxy.features.cooperative.identity import MemberIdentity
from proxy.features.cooperative.key_hash import SPACE
from proxy.features.cooperative.member import Member
from proxy.features.cooperative.members import TOO_LARGE, Members
from proxy.features.cooperative.membership import LAYOUT, MARKER, assignment, read_given, read_sync
from proxy.features.cooperative.offsets import (
    Entry,
    FetchedGroup,
    read_answered,
    read_commit,
    read_fetched_offsets,
)
from proxy.features.cooperative.plan import Lanes
from proxy.features.cooperative.positions import (
    Committed,
    Plan,
    Positions,
    TopicPartition,
    committed_metadata,
    read_committed,
)
from proxy.features.cooperative.presence import Presence
from proxy.features.cooperative.ranges import FULL, KeyRanges
from proxy.features.cooperative.slots import Seat, Slot, Stored, read_slot, resolved, slot_metadata
from proxy.features.cooperative.tally import FilterTally, GroupNotice
from tests.features.cooperative.coordinator import (
    GROUP,
    OFFSET_FETCH,
    REBALANCE_IN_PROGRESS,
    SYNC_GROUP,
    Client,
    Coordinator,
    got,
    request,
)
from tests.features.cooperative.fields import Writer
from tests.features.cooperative.test_member_stage import Shared, commit, committed, offsets
from tests.features.cooperative.world import OFFSET_COMMIT, TOPIC, Wire, World
from tests.features.cooperative.world import Client as Consumer

PLACE: TopicPartition = TOPIC.encode(), 0
KEYS = [b"k%d" % number for number in range(12)]


class Pair(World):
    """Two members of one partition, each behind its own gateway."""

    def __init__(self, *, shares: bool = True) -> None:
        super().__init__(seed=1, members=2, partitions=1, gateways=2)
        self.append(0, KEYS)
        self.clients += [Consumer(self, "0"), Consumer(self, "1")]
        if shares:
            self.until(lambda: self.shared and all(len(each.places) == 1 for each in self.clients))

    @property
    def shared(self) -> bool:
        """Whether the group shares its partition in the present generation."""
        if self.coordinator.state != "stable":
            return False
        given = [read_given(each) for each in self.coordinator.assigned.values()]
        return len(given) > 1 and all(each and each.seat and PLACE in each.lanes for each in given)

    @property
    def committed(self) -> Committed:
        offset, metadata = self.coordinator.stored[PLACE]
        return read_committed(offset, metadata.decode())

    @property
    def written(self) -> dict[int, Slot]:
        stored = self.coordinator.stored.items()
        return {number: read_slot(text.decode()) for (topic, number), (_, text) in stored if topic == SLOTS}

    @property
    def truth(self) -> Positions:
        """The committed offset of each hash, as the next owners read it."""
        return resolved(PLACE, self.committed, self.written)

    def all_processed(self) -> bool:
        return {(each.partition, each.offset) for each in self.processed} >= self.log.keys()

    def reset(self, offset: int, metadata: bytes = b"") -> None:
        """Commit as a tool does, or a consumer without a gateway."""
        self.coordinator.stored[PLACE] = offset, metadata

    def exclusive(self) -> set[str]:
        groups = [gateway.members.group(GROUP) for gateway in self.gateways]
        return {group.exclusive for group in groups if group is not None}


def test_members_behind_two_gateways_have_disjoint_lanes_and_get_all_records() -> None:
    """Case C54."""
    world = Pair()
    world.append(0, KEYS * 3)
    world.until(world.all_processed)
    later = [each for each in world.processed if each.offset >= len(KEYS)]
    by_client = [{each.key for each in later if each.client is client} for client in world.clients]
    assert all(by_client)
    assert by_client[0].isdisjoint(by_client[1])
    assert not world.twice()
    assert not world.lost()


def test_a_commit_writes_the_map_and_the_slot_of_its_member_in_one_request() -> None:
    """Case C54. The client is told of its own partitions alone."""
    world = Pair()
    world.append(0, KEYS * 3)
    world.until(world.all_processed)
    world.until(lambda: not any(each.done for each in world.clients))
    assert world.committed.plan is not None
    assert {number: set(slot) for number, slot in world.written.items()} == {0: {PLACE}, 1: {PLACE}}
    assert {slot[PLACE].plan for slot in world.written.values()} == {world.committed.plan.id}
    told = {(partition, offset) for client in world.clients for _, partition, offset, _ in client.commits}
    assert {partition for partition, _ in told} == {0}


def test_each_generation_has_a_plan_of_its_own() -> None:
    """Else slots of an earlier generation would count in the next one."""
    world = Pair()
    plans: list[int] = []
    for _ in range(3):
        given = [each.seat for data in world.coordinator.assigned.values() if (each := read_given(data))]
        (found,) = {seat.plan for seat in given if seat is not None}
        plans.append(found)
        world.coordinator.rebalance(world.now)
        world.until(lambda: world.shared)
    assert len({*plans}) == len(plans)


def test_what_another_gateway_has_committed_is_not_put_back() -> None:
    """Case C55. The map has an older offset of it. The next owner reads the slot."""
    world = Pair()
    world.append(0, KEYS * 3)
    world.until(world.all_processed)
    world.until(lambda: not any(each.done for each in world.clients))
    before = world.truth
    plan = world.committed.plan
    assert plan is not None
    world.reset(5, Positions.all_at(5).encoded(plan).encode())
    assert world.truth == before
    world.clients[0].end()
    world.clients[0].crashes.append(world.step)
    world.append(0, KEYS)
    world.until(world.all_processed)
    assert world.twice() == []


def test_a_member_that_the_group_has_removed_writes_neither_map_nor_slot() -> None:
    """Case C56. That is no refusal of slots: its group goes on to share."""
    world = Pair()
    zombie = world.clients[0]
    world.append(0, KEYS * 2)
    world.until(lambda: zombie.done)
    zombie.gateway.cut_until = world.now + 20
    zombie.crashes.append(world.step)
    stored: dict[TopicPartition, tuple[int, bytes]] = {}
    world.until(lambda: len(world.coordinator.members) == 1)
    stored |= world.coordinator.stored
    world.until(lambda: world.shared, steps=4000)
    group = zombie.gateway.members.group(GROUP)
    assert group is not None
    assert not group.slots_error
    world.append(0, KEYS)
    world.until(world.all_processed)
    assert not world.twice()
    assert not world.lost()


def test_a_reset_by_a_tool_holds() -> None:
    """Case C58: slots of before do not count, neither those above nor those below."""
    world = Pair()
    world.append(0, KEYS * 3)
    world.until(world.all_processed)
    world.until(lambda: not any(each.done for each in world.clients))
    for client in world.clients:
        client.leaving = True
    world.until(lambda: not any(each.alive for each in world.clients))
    world.reset(20)
    world.processed.clear()
    world.clients[:] = [Consumer(world, "0"), Consumer(world, "1")]
    world.until(lambda: {each.offset for each in world.processed} == set(range(20, len(world.log))))
    assert len(world.processed) == len(world.log) - 20


def test_without_a_committed_offset_a_partition_is_not_shared_until_its_owner_has_begun() -> None:
    """Case C59. The gateway commits where the owner began. Nobody else can know that."""
    world = Pair(shares=False)
    world.until(lambda: world.coordinator.stored)
    assert world.exclusive() == {"", "uncommitted"}
    assert world.coordinator.stored.keys() == {PLACE}
    world.until(lambda: world.shared)
    world.until(world.all_processed)
    assert world.exclusive() == {""}
    assert not world.twice()
    assert not world.lost()


class Greedy(Consumer):
    """A consumer that gives all partitions to the first member, if it leads."""

    def deal(self, places: list[TopicPartition]) -> dict[bytes, list[TopicPartition]]:
        return {member_id: [] if at else places for at, member_id in enumerate(self.leads)}


def test_a_first_offset_is_not_committed_of_a_partition_for_which_the_member_has_committed() -> None:
    """Case C59. The member has two partitions, and has committed for one before its next heartbeat."""
    world = World(seed=1, members=3, partitions=2, gateways=2)
    world.clients += [Greedy(world, str(number)) for number in range(3)]
    world.until(lambda: len(world.coordinator.members) == 3 and world.coordinator.state == "stable")
    world.coordinator.stored.clear()
    world.coordinator.rebalance(world.now)
    world.append(0, KEYS * 5)
    world.until(lambda: (TOPIC.encode(), 1) in world.coordinator.stored)
    acknowledged = [
        offset for each in world.clients for _, partition, offset, _ in each.commits if not partition
    ]
    assert acknowledged
    assert world.coordinator.stored[PLACE][0] >= max(acknowledged)


def test_a_first_offset_is_committed_although_the_partition_has_no_records() -> None:
    """Case C59."""
    world = World(seed=1, members=2, partitions=1, gateways=2)
    world.clients += [Consumer(world, "0"), Consumer(world, "1")]
    world.until(lambda: PLACE in world.coordinator.stored)
    assert world.coordinator.stored[PLACE] == (0, b"")


def test_an_idle_member_of_another_gateway_does_not_hold_back_the_lowest_offset() -> None:
    """Case C60. All records are for one member."""
    world = Pair()
    world.until(world.all_processed)
    busy = world.processed[-1]
    for _ in range(5):
        world.append(0, [busy.key] * 5)
        world.run(60, disturbed=False)
    assert world.all_processed()
    assert world.committed.positions.base > len(world.log) - 10


def test_a_heartbeat_does_not_wait_for_the_commit_of_another_member() -> None:
    """The broker may take seconds for it, or its connection may hang. So an idle member commits later."""
    world = Pair()
    world.until(world.all_processed)
    busy = world.processed[-1]
    idle = next(each for each in world.clients if each is not busy.client)
    group = idle.gateway.members.group(GROUP)
    assert group is not None
    assert group.takes(world, lambda _: None)
    for _ in range(5):
        world.append(0, [busy.key] * 5)
        world.run(60, disturbed=False)
    assert world.shared
    assert not idle.crashes
    group.release(world, world.now)
    world.run(60, disturbed=False)
    assert world.committed.positions.base > len(world.log) - 10


def test_a_first_offset_that_is_refused_starts_no_rebalance() -> None:
    """Case C59. Each heartbeat tries again."""
    world = Pair(shares=False)
    world.until(lambda: world.coordinator.state == "stable" and len(world.coordinator.members) == 2)
    world.coordinator.refused[TOPIC.encode()] = 29
    world.run(60, disturbed=False)
    generation = world.coordinator.generation
    world.run(200, disturbed=False)
    assert world.coordinator.generation == generation
    world.coordinator.refused.clear()
    world.until(lambda: world.shared)


def test_a_topic_whose_offsets_the_leader_may_not_read_is_not_shared() -> None:
    """Another member may subscribe to it, with other rights. The group does not join again and again."""
    world = Pair(shares=False)
    world.append(0, KEYS)
    world.coordinator.unread[TOPIC.encode()] = 29
    world.run(100, disturbed=False)
    generation = world.coordinator.generation
    world.run(200, disturbed=False)
    assert world.coordinator.generation == generation
    assert world.coordinator.state == "stable"
    assert "uncommitted" in world.exclusive()
    assert world.all_processed()


def ask(world: World, client: Consumer, topics: list[bytes]) -> tuple[Wire, list[FetchedGroup]]:
    """Ask for the committed offsets of partition 0 of topics, on a connection of its own."""
    body = Writer(OFFSET_FETCH, 2)
    body.string(GROUP)
    body.count(len(topics))
    for topic in topics:
        body.string(topic)
        body.count(1)
        body.number(0)
    wire = world.wire(client.gateway)
    wire.ask(request(OFFSET_FETCH, 2, client.client_id, body.content))
    while wire.upstream:
        world._serve(wire)
    return wire, [group for frame in got(wire.connection) for group in read_fetched_offsets(frame, 2).groups]


def test_a_partition_whose_offset_can_not_be_read_takes_no_other_one_with_it() -> None:
    world = Pair()
    world.append(0, KEYS * 3)
    world.until(world.all_processed)
    world.until(lambda: not any(each.done for each in world.clients))
    world.coordinator.unread[b"secret"] = 29
    client = world.clients[0]
    _, (group,) = ask(world, client, [TOPIC.encode(), b"secret"])
    own, secret = group.entries
    assert (own.offset, own.metadata, own.error_code) == (world.truth.lowest(client_ranges(client)), b"", 0)
    assert secret.error_code == 29


def client_ranges(client: Consumer) -> KeyRanges:
    member = client.gateway.members.bound("h", client.client_id.encode())
    ranges = member.ranges(PLACE)
    assert ranges is not None
    return ranges


def test_an_error_of_the_group_is_told_where_clients_look_for_it() -> None:
    """Clients take error 16 of a partition for a mistake: Java's consumer ends."""
    world = Pair()
    world.append(0, KEYS * 3)
    world.until(lambda: world.committed.plan)
    handle, asked = world.coordinator.offsets, []

    def moves(wire: Wire, frame: bytes, now: float) -> bytes:
        asked.append(frame)
        world.coordinator.unread = {b"": 16} if len(asked) > 1 else {}
        return handle(wire, frame, now)

    world.coordinator.offsets = moves  # type: ignore[method-assign]
    _, (group,) = ask(world, world.clients[0], [TOPIC.encode()])
    assert len(asked) == 2
    assert (group.error_code, group.entries) == (16, ())


@pytest.mark.parametrize("error", [29, 3, TOO_LARGE])
def test_a_group_whose_slots_are_refused_shares_nothing_across_gateways(error: int) -> None:
    """Case C61. The commits themselves are accepted, so nothing is lost."""
    world = Pair(shares=False)
    world.coordinator.refused[SLOTS] = error
    world.append(0, KEYS)
    world.until(lambda: "slots" in world.exclusive(), steps=4000)
    world.append(0, KEYS)
    world.until(world.all_processed)
    world.run(100, disturbed=False)
    assert not world.shared
    assert world.lost() == []
    stored = world.coordinator.stored
    assert [topic for topic, _ in stored if topic == SLOTS] == []


def test_refused_slots_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case C61. What refused them may have changed since: an ACL, the topic, the brokers' limit."""
    monkeypatch.setattr(group_module, "AGAIN_SECONDS", 10.0)
    world = Pair()
    world.coordinator.refused[SLOTS] = TOO_LARGE
    world.append(0, KEYS * 3)
    world.until(lambda: "slots" in world.exclusive(), steps=4000)
    world.until(lambda: world.shared)
    world.append(0, KEYS)
    world.until(lambda: not world.shared)  # and they are refused again
    del world.coordinator.refused[SLOTS]
    world.until(lambda: world.shared)
    generation = world.coordinator.generation
    world.append(0, KEYS)
    world.until(world.all_processed)
    world.run(300, disturbed=False)
    assert world.coordinator.generation == generation
    assert not twice_though_committed(world)
    assert not world.lost()


def twice_though_committed(world: World) -> list[str]:
    return [each for each in world.twice() if not each.endswith("committed at []")]


def test_no_commit_is_accepted_whose_slot_is_refused() -> None:
    """Case C61. Only the map would have it, and the next commit of another member would put it back."""
    world = Pair()
    world.coordinator.refused[SLOTS] = 3
    world.append(0, KEYS * 3)
    world.until(lambda: "slots" in world.exclusive(), steps=4000)
    world.append(0, KEYS)
    world.until(world.all_processed)
    assert not twice_though_committed(world)
    assert not world.lost()


@pytest.mark.parametrize("number", [0, 1])
def test_slots_that_can_be_read_count_although_another_one_is_refused(number: int) -> None:
    """Case C61. The member behind the gateway whose slot was refused may be their next owner."""
    world = Pair()
    world.append(0, KEYS * 3)
    world.until(world.all_processed)
    world.until(lambda: not any(each.done for each in world.clients))
    world.reset(5, Positions.all_at(5).encoded(world.committed.plan).encode())
    group = world.gateways[number].members.group(GROUP)
    assert group is not None
    group.slots_error = 3
    world.until(lambda: "slots" in world.exclusive(), steps=4000)
    world.append(0, KEYS)
    world.until(world.all_processed)
    assert not world.twice()
    assert not world.lost()


def test_a_group_of_more_members_than_slots_are_read_shares_nothing_across_gateways(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case C61. What the other members commit would not be read."""
    monkeypatch.setattr(joining, "MAX_SLOTS", 1)
    world = Pair(shares=False)
    world.until(world.all_processed)
    world.run(100, disturbed=False)
    assert world.exclusive() == {"", "slots"}
    assert not world.shared


def test_gateways_with_different_topics_of_slots_share_nothing() -> None:
    """Case C61. Each would miss what members behind the other one have committed."""
    world = Pair(shares=False)
    group = world.gateways[1].members.group(GROUP)
    assert group is not None
    group.slots_topic = b"slots"
    world.append(0, KEYS)
    world.until(world.all_processed)
    world.run(100, disturbed=False)
    assert world.exclusive() == {"", "slots"}
    assert not world.shared


def test_the_topic_of_slots_is_assigned_to_nobody() -> None:
    """A pattern of topics may match it. It has no records, and a commit for it would overwrite a slot."""
    world = World(seed=1, members=2, partitions=1, gateways=2)
    for gateway in world.gateways:
        group = gateway.members.group(GROUP)
        assert group is not None
        group.slots_topic = TOPIC.encode()
    world.clients += [Consumer(world, "0"), Consumer(world, "1")]
    world.until(lambda: len(world.coordinator.members) == 2 and world.coordinator.state == "stable")
    world.run(100, disturbed=False)
    assert [each.places for each in world.clients] == [[], []]
    assert world.coordinator.stored == {}
    assert world.coordinator.generation < 5


def test_a_gateway_that_began_anew_reads_what_its_member_has_committed() -> None:
    """Case C65."""
    world = Pair()
    world.append(0, KEYS * 3)
    world.until(world.all_processed)
    world.until(lambda: not any(each.done for each in world.clients))
    world._restart(world.clients[0].gateway)
    world.append(0, KEYS)
    world.until(world.all_processed)
    assert not world.twice()
    assert not world.lost()


def test_a_commit_of_a_generation_whose_lanes_are_not_known_here_is_refused() -> None:
    """The coordinator takes it as soon as the client has joined. The seat is of the generation before."""
    world = Pair()
    world.append(0, KEYS)
    world.until(world.all_processed)
    world.until(lambda: not any(each.done for each in world.clients))
    client = world.clients[0]
    world.coordinator.generation += 1
    client.generation += 1
    before = dict(world.coordinator.stored)
    client.done[0] = len(world.log) + 1
    world.until(lambda: client.asked.get("c", b"")[4:6] == OFFSET_COMMIT.to_bytes(2))
    world.until(lambda: client.asked.get("c", b"")[4:6] != OFFSET_COMMIT.to_bytes(2))
    assert world.coordinator.stored == before
    assert not client.commits or client.commits[-1][2] <= len(world.log)


def test_an_owner_may_go_back_although_other_gateways_have_its_higher_offset() -> None:
    """Case C57. The others write the higher offset into the map again. The slot has the lower one."""
    world = Pair()
    world.append(0, KEYS * 3)
    world.until(world.all_processed)
    world.until(lambda: not any(each.done for each in world.clients))
    back, other = world.clients
    keys = {each.key for each in world.processed if each.client is back and each.offset >= len(KEYS)}
    back.done[0] = 5
    world.until(lambda: not back.done)
    other.done[0] = len(world.log)
    world.until(lambda: not other.done)
    world.processed.clear()
    back.end()
    world.clients.append(Consumer(world, "0"))
    again = {offset for (_, offset), key in world.log.items() if offset >= 5 and key in keys}
    world.until(lambda: {each.offset for each in world.processed} == again)


@pytest.mark.parametrize(
    ("error", "remedy"), [(29, "clients need READ"), (TOO_LARGE, "offset.metadata.max.bytes")]
)
def test_a_group_behind_one_gateway_shares_without_slots_if_they_are_refused(error: int, remedy: str) -> None:
    """Case C61. Then commits are as exact as one process can keep them."""
    world = World(seed=1, members=2, partitions=1)
    world.append(0, KEYS)
    world.coordinator.refused[SLOTS] = error
    world.clients += [Consumer(world, "0"), Consumer(world, "1")]
    group = world.gateways[0].members.group(GROUP)
    assert group is not None
    told: list[tuple[GroupNotice, str]] = []
    world.gateways[0].members.tell = lambda what, _, text: told.append((what, text))
    world.until(lambda: group.slots_error)
    (text,) = [text for what, text in told if what is GroupNotice.SLOT]
    assert text.startswith(f"error {error} for the topic __consumer_offsets: ")
    assert remedy in text
    generation = world.coordinator.generation
    world.until(lambda: world.coordinator.generation > generation and world.coordinator.state == "stable")
    given = [read_given(each) for each in world.coordinator.assigned.values()]
    assert [(each.seat, PLACE in each.lanes) for each in given if each] == [(None, True)] * 2
    world.append(0, KEYS * 3)
    world.until(lambda: {(each.partition, each.offset) for each in world.processed} >= world.log.keys())
    assert not world.twice()
    assert not world.lost()


def test_a_member_whose_gateway_has_another_layout_gets_nothing_and_no_record_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cases C44 and C62. If the assignment counted as whole partitions, a key would have two owners."""
    world = Pair()
    other, here, there = world.gateways[1], MARKER + LAYOUT, MARKER + b"2"
    sync, answer = world.coordinator.sync, Wire.answer

    def syncs(wire: Wire, frame: bytes, now: float) -> bytes | None:
        return sync(wire, frame.replace(here, there) if wire.gateway is other else frame, now)

    def answers(wire: Wire, frame: bytes) -> None:
        swapped = (
            frame.replace(here, b"").replace(there, here) if there in frame else frame.replace(here, there)
        )
        answer(wire, swapped if wire.gateway is other else frame)

    with monkeypatch.context() as patched:
        patched.setattr(world.coordinator, "sync", syncs)
        patched.setattr(Wire, "answer", answers)
        world.coordinator.rebalance(world.now)
        world.until(lambda: "instances" in world.exclusive())
        for _ in range(20):
            world.append(0, KEYS)
            world.run(20, disturbed=False)
    world.until(world.all_processed)
    assert world.shared
    assert world.exclusive() == {""}
    assert not world.twice()
    assert not world.lost()


# The state of one gateway

LOW: KeyRanges = ((0, SPACE // 2 - 1),)
SEAT = Seat(7, 2, 1, frozenset([PLACE]))


def seated() -> tuple[Group, Member]:
    """Return a group, and a member with the low half of a partition and slot 1."""
    presence = Presence(session_seconds=6.0, rebalance_seconds=10.0)
    group, member = Group("billing"), Member(FilterTally(), group=GROUP, presence=presence)
    assert group.enters(member, 1, None, 0.0)
    member.synced(Assignment(lanes={PLACE: LOW}, planned={PLACE: LOW}, seat=SEAT), 0.0)
    return group, member


def read(offset: int, low: int, slot: Slot) -> Read:
    """Return what a gateway reads: a map, and slot 1."""
    text = committed_metadata(Positions([0, SPACE // 2], [low, offset]), "", plan=Plan(SEAT.plan, SEAT.slots))
    base = min(low, offset)
    entries = [
        Entry(*PLACE, base, metadata=text.encode()),
        Entry(SLOTS, 1, metadata=slot_metadata(slot).encode()),
    ]
    return Read(entries, SLOTS, SEAT.slots)


def test_a_slot_keeps_what_an_earlier_member_has_left_of_other_partitions() -> None:
    """Case C63. It counts until the map of that partition has the new plan."""
    group, member = seated()
    left = Stored(3, LOW, Positions.all_at(900))
    other = b"orders", 5
    group.learn(read(40, 50, {other: left, PLACE: Stored(3, LOW, Positions.all_at(1))}))
    slot = group.slot(member, SEAT, {PLACE: Positions([0, SPACE // 2], [60, 40])})
    assert slot == {other: left, PLACE: Stored(7, LOW, Positions.all_at(60))}
    assert list(slot) == [other, PLACE]


def test_a_slot_is_read_before_it_is_written_although_the_map_names_none() -> None:
    """Case C63. What the client has asked for shows no slots, but the slot has another partition."""
    group, member = seated()
    group.learn(Read([Entry(*PLACE, 40, metadata=b"")], SLOTS))
    assert not group.positions[PLACE].lowest(LOW) < 40
    assert group.is_stale(SEAT, [PLACE], 0.0)
    left = Stored(3, LOW, Positions.all_at(900))
    group.learn(read(40, 50, {(b"orders", 5): left}))
    assert not group.is_stale(SEAT, [PLACE], 0.0)
    assert group.slot(member, SEAT, {})[b"orders", 5] == left


def test_a_client_is_not_told_of_its_slot() -> None:
    """Case C54."""
    group, member = seated()
    group.learn(read(40, 50, {}))
    steps = committing(group, member, 60)
    frame = next(steps)
    assert {entry.topic for entry in read_commit(frame).entries} == {TOPIC.encode(), SLOTS}
    with pytest.raises(StopIteration) as ends:
        steps.send((committed(frame), 1.0))
    said = b"".join(ends.value.value.pieces)
    made = read_commit(commit("billing.a", 60))
    assert [(entry.topic, entry.error_code) for entry in read_answered(said, made)] == [(TOPIC.encode(), 0)]


def test_only_partitions_that_are_shared_have_a_plan_and_are_in_the_slot() -> None:
    group, member = seated()
    alone = b"other", 0
    both: Lanes = {PLACE: LOW, alone: FULL}
    member.synced(Assignment(lanes=both, planned=both, seat=SEAT), 0.0)
    moved = {PLACE: Positions.all_at(60), alone: Positions.all_at(70)}
    made = read_commit(commit("billing.a", 60))
    made = replace(made, entries=(Entry(*PLACE, 60, metadata=b""), Entry(*alone, 70, metadata=b"")))
    shared, whole = with_positions(made, moved, SEAT)
    assert read_committed(60, (shared.metadata or b"").decode()).plan == Plan(SEAT.plan, SEAT.slots)
    assert whole == Entry(*alone, 70, metadata=b"")
    assert group.slot(member, SEAT, moved).keys() == {PLACE}


def test_offsets_that_a_new_coordinator_returns_too_early_undo_nothing_here() -> None:
    """Case C66. It may answer before it has read all commits that were accepted."""
    group, _ = seated()
    old, new = (Stored(7, LOW, Positions.all_at(offset)) for offset in (50, 80))
    group.learn(read(40, 50, {PLACE: old}))
    group.positions[PLACE] = Positions([0, SPACE // 2], [80, 40])
    group.slots[1] = {PLACE: new}
    group.learn(read(70, 50, {PLACE: old}))
    assert group.positions[PLACE] == Positions([0, SPACE // 2], [80, 70])
    assert group.slots[1] == {PLACE: new}


def test_the_offsets_of_a_partition_are_read_although_those_of_another_one_were_just_read() -> None:
    """Else they would never be read for a member that commits right after another one each time."""
    group, _ = seated()
    seat, other = SEAT._replace(several=True), (b"orders", 5)
    group.slots[seat.number] = {}
    group.learned([PLACE], 10.0)
    assert not group.is_stale(seat, [PLACE], 10.5)
    assert group.is_stale(seat, [PLACE, other], 10.5)
    assert group.is_stale(seat, [PLACE], 11.0)


def committing(group: Group, member: Member, offset: int) -> Steps:
    """Let a member commit. Return the requests of the gateway."""
    made = read_commit(commit("billing.a", offset))
    identity = MemberIdentity(Members(["billing"]), "h")
    request = CommitRequest(made, identity, Members(["billing"]), lambda *_: None, lambda _: None)
    return request._committed(group, member, 1.0)


def test_what_was_committed_in_an_earlier_generation_is_read_again() -> None:
    """Another member has its lanes of the next generation before the response to a commit arrives here. What
    members of other gateways had committed since the map was read is in neither of them.
    """
    group, member = seated()
    group.learn(read(40, 50, {PLACE: Stored(7, LOW, Positions.all_at(50))}))
    steps = committing(group, member, 60)
    frame = next(steps)
    assert [entry.offset for entry in read_commit(frame).entries] == [40, -1]
    group.enters(Member(FilterTally()), 2, None, 1.0)
    with pytest.raises(StopIteration):
        steps.send((committed(frame), 1.0))
    assert PLACE not in group.positions
    assert group.slots == {}


def test_offsets_that_were_read_in_an_earlier_generation_are_read_again() -> None:
    group, member = seated()
    steps = committing(group, member, 60)
    first = next(steps)
    group.enters(Member(FilterTally()), 2, None, 1.0)
    again = steps.send((offsets(first, 40), 1.0))
    assert again == first
    frame = steps.send((offsets(again, 70), 1.0))
    assert group.positions[PLACE] == Positions.all_at(70)
    assert [entry.offset for entry in read_commit(frame).entries] == [60, -1]


def test_a_member_that_does_not_join_a_rebalance_in_time_gets_nothing_more() -> None:
    """Case C64. Its heartbeats are answered until the coordinator removes it."""
    _, member = seated()
    for beat in range(1, 12):
        member.presence.confirm(float(beat), settled=beat < 3)
    assert member.presence.lives(12.0)
    assert not member.presence.lives(12.1)
    member.presence.confirm(12.0)
    assert member.presence.lives(18.0)


def test_heartbeats_that_tell_of_a_rebalance_do_not_keep_a_member_that_does_not_join() -> None:
    """Case C64. The rebalance timeout of these members is 60 s."""
    shared, coordinator = Shared(), Coordinator()
    client = Client(shared.connection(), "billing.a", b"a")
    coordinator.rebalance([client])
    member = shared.members.bound("h", b"billing.a")
    for now in range(5, 66, 5):
        coordinator.beat(client, REBALANCE_IN_PROGRESS, float(now))
    assert member.presence.lives(61.0)
    assert not member.presence.lives(61.1)


def test_offsets_of_an_earlier_generation_are_not_known_in_the_next_one() -> None:
    """Case C55. Members of other gateways may have committed in between."""
    group, _ = seated()
    group.learn(read(40, 50, {PLACE: Stored(7, LOW, Positions.all_at(50))}))
    group.enters(Member(FilterTally()), 2, None, 1.0)
    assert group.positions == {}
    assert group.slots == {}


def test_a_response_to_a_sync_that_was_on_its_way_for_long_gives_no_records() -> None:
    """Case C64. The session timeout counts from when the request was sent."""
    shared, coordinator = Shared(), Coordinator()
    client = Client(shared.connection(), "billing.a", b"a")
    coordinator.join([client])
    body = coordinator.sync_body(client)
    body.count(1)
    body.string(b"a")
    body.data(assignment([PLACE]))
    (frame,) = client.ask(SYNC_GROUP, 3, body.content, 1.0)
    coordinator.synced(client, dict(read_sync(frame).assignments)[b"a"], 60.0)
    member = shared.members.bound("h", b"billing.a")
    assert client.places == [PLACE]
    assert not member.presence.lives(60.0)
    coordinator.beat(client, 0, 61.0)
    assert member.presence.lives(61.0)
