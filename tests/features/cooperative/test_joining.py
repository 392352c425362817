"""Members of a cooperative group, as the gateway sees them: which records they get, and which commits it
accepts.
"""

from dataclasses import replace

import pytest

from proxy.features.cooperative.key_hash import SPACE, murmur2
from proxy.features.cooperative.member_stage import MAX_READ
from proxy.features.cooperative.membership import assignment, read_owned, read_synced, without_owned
from proxy.features.cooperative.offsets import read_answered, read_commit
from proxy.features.cooperative.positions import Positions, TopicPartition, committed_metadata, read_committed
from proxy.features.cooperative.presence import ABSENT_SECONDS
from proxy.features.cooperative.ranges import FULL, KeyRanges
from proxy.features.cooperative.slots import read_slot
from proxy.features.cooperative.tally import GroupNotice
from tests.features.cooperative.batch import RECORDS, read
from tests.features.cooperative.coordinator import (
    GROUP,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OWN,
    SYNC_GROUP,
    Client,
    Coordinator,
    got,
    owned_of,
    request,
    sent,
    subscription,
)
from tests.features.cooperative.fields import Writer
from tests.features.cooperative.test_member_stage import Shared, asks, commit, committed, fetch, offsets
from tests.model.broker import ModelBroker
from tests.model.gate import Gate, framed
from tests.model.wire import decode_response

PLACE = (b"orders", 0)
LOW: KeyRanges = ((0, SPACE // 2 - 1),)
HIGH: KeyRanges = ((SPACE // 2, SPACE - 1),)
REBALANCING = 27


@pytest.fixture
def shared() -> Shared:
    return Shared()


def client(shared: Shared, name: str = "a") -> Client:
    return Client(shared.connection(), f"billing.{name}", name.encode())


def of(ranges: KeyRanges) -> list[int]:
    """Return the offsets of the records whose keys are in the given key ranges."""
    hashes = [murmur2(record.key or b"") for record in RECORDS]
    return [at for at, each in enumerate(hashes) if any(low <= each <= high for low, high in ranges)]


def fetched(shared: Shared, client: Client, broker: ModelBroker, offset: int = 0) -> list[int]:
    """Let a client fetch on a new connection. Return the offsets of the records that it gets."""
    one = shared.connection()
    one.receive_client(fetch(client.client_id, offset=offset), 1.0)
    gate = Gate(one, broker)
    gate._response(1.0)
    one.tick(100.0)
    (response,) = got(one)
    (entry,) = decode_response(response[4:], 11).topics[0].partitions
    return [record.offset for record in read(entry.records or b"")]


def commits(client: Client, offset: int) -> list[bytes]:
    """Let a client commit. Return the frames that the gateway sends to the broker."""
    client.connection.receive_client(commit(client.client_id, offset), 1.0)
    return sent(client.connection)


def refused(client: Client, offset: int) -> int:
    """Let a client commit, check that the commit does not reach the broker, and return the error code."""
    assert commits(client, offset) == []
    (said,) = got(client.connection)
    (entry,) = read_answered(said, read_commit(commit(client.client_id, offset)))
    return entry.error_code


def test_each_member_gets_its_own(shared: Shared, coordinator: Coordinator, broker: ModelBroker) -> None:
    one, two = client(shared), client(shared, "b")
    coordinator.rebalance([one, two])
    assert one.places == two.places == [PLACE]
    assert fetched(shared, one, broker) == of(LOW)
    assert fetched(shared, two, broker) == of(HIGH)


def test_a_member_gets_nothing_of_a_partition_that_it_does_not_have(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    """A member gets no records of a partition that it has lost.

    With incremental rebalancing, a client continues to fetch its old partitions until it learns its new ones.
    """
    one, two = client(shared), client(shared, "b")
    coordinator.rebalance([one])
    assert fetched(shared, one, broker) == of(FULL)
    one.owned = [PLACE]
    coordinator.rebalance([one, two])
    assert one.places == two.places == []
    assert fetched(shared, one, broker) == fetched(shared, two, broker) == []
    assert coordinator.beat(one) == coordinator.beat(two) == REBALANCING
    one.owned = []
    coordinator.rebalance([one, two])
    assert fetched(shared, one, broker) == of(LOW)
    assert fetched(shared, two, broker) == of(HIGH)
    assert coordinator.beat(one) == coordinator.beat(two) == 0


def test_what_a_client_gives_up_after_a_rebalance_it_commits_for_what_it_had(
    shared: Shared, coordinator: Coordinator
) -> None:
    one, two, three = (client(shared, name) for name in "abc")
    coordinator.rebalance([one, two])
    one.owned = two.owned = [PLACE]
    coordinator.rebalance([one, two, three])
    assert one.places == two.places == three.places == []
    (asked,) = commits(one, 30)
    one.connection.receive_broker(offsets(asked, 10), 1.0)
    (request,) = sent(one.connection)
    entry, slot = read_commit(request).entries
    assert entry.offset == 10
    assert {place: stored.ranges for place, stored in read_slot((slot.metadata or b"").decode()).items()} == {
        PLACE: LOW
    }
    positions = read_committed(10, (entry.metadata or b"").decode()).positions
    assert (positions.lowest(LOW), positions.highest(LOW)) == (30, 30)
    assert positions.highest(HIGH) == 10
    one.connection.receive_broker(committed(request), 1.0)


def test_a_commit_for_what_a_member_does_not_have_is_refused(
    shared: Shared, coordinator: Coordinator
) -> None:
    """A commit for a partition that the member does not have is refused.

    Such a commit would count for all keys, so the positions of other members would be lost.
    """
    one, two = client(shared), client(shared, "b")
    coordinator.rebalance([one, two])
    two.topic = b"other"
    coordinator.rebalance([two, one])
    assert PLACE not in two.places
    assert refused(two, 30) == REBALANCING


def test_a_commit_of_a_client_that_is_joining_for_the_first_time_here_is_refused(
    shared: Shared, coordinator: Coordinator
) -> None:
    """A commit is refused if its client is still joining the group for the first time.

    While the group waits for other members, a broker would accept the commit for all keys.
    """
    one = client(shared)
    coordinator.join([one])
    assert refused(one, 30) == REBALANCING


def test_who_has_not_come_along_gets_nothing_more(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    """Case C42: a stopped member that missed a rebalance gets no more records.

    The member does not know yet that it has lost its partition. The gateway uses no clock to find this out.
    """
    one, two = client(shared), client(shared, "b")
    coordinator.rebalance([one, two])
    coordinator.rebalance([one])
    assert fetched(shared, two, broker) == []
    assert fetched(shared, one, broker) == []  # it first gives up its position
    coordinator.rebalance([one])
    assert fetched(shared, one, broker) == of(FULL)
    assert fetched(shared, two, broker) == []


@pytest.mark.parametrize("owned", [[PLACE], []], ids=["incremental", "eager"])
def test_a_join_that_is_sent_twice_to_a_new_gateway_is_of_a_client_that_may_have_anything(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker, owned: list[TopicPartition]
) -> None:
    """A client gets no partition at first, if it joins a restarted gateway twice before its first SyncGroup.

    Either the first response was lost, or the next rebalance began. In both cases the client may keep its old
    position, which the gateway does not know.
    """
    one = client(shared)
    one.joined, one.owned = True, owned
    coordinator.join([one])
    coordinator.rebalance([one])
    assert one.places == []
    assert fetched(shared, one, broker) == []
    one.owned = []
    coordinator.rebalance([one])
    assert fetched(shared, one, broker) == of(FULL)


def test_a_new_client_that_has_to_join_twice_gets_its_partition_at_once(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    """A new client that has to join twice gets its partition at once.

    It got its member id in this rebalance, so it can't have a position yet.
    """
    one = client(shared)
    coordinator.join([one])
    coordinator.rebalance([one])
    assert fetched(shared, one, broker) == of(FULL)


@pytest.mark.parametrize(("beats", "knows"), [(0, False), (1, False), (2, True)])
def test_a_client_that_may_not_have_got_its_assignment_may_be_where_it_was(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker, beats: int, knows: bool
) -> None:
    """If the connection ends after the SyncGroup response, the client may not have received its assignment.

    So its position is unknown, and it gets no partition at first. With two heartbeats, the client has proved
    that the response has arrived. Then it gets its partition at once.
    """
    one, two = client(shared), client(shared, "b")
    coordinator.rebalance([one, two])
    coordinator.rebalance([one])
    assert one.places == []  # it first gives up its position
    for _ in range(beats):
        coordinator.beat(one)
    again = client(shared)
    again.joined = True
    coordinator.rebalance([again])
    assert again.places == [PLACE] * knows
    coordinator.rebalance([again])
    assert fetched(shared, again, broker) == of(FULL)


@pytest.mark.parametrize("beats", [False, True])
def test_a_client_that_joins_again_without_a_heartbeat_may_be_where_it_was(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker, beats: bool
) -> None:
    """A client gets no partition at first, if it has sent no heartbeat before it joins again.

    Its position is unknown. kafka-python 3 drops an assignment that arrives between two polls, so such a
    client may still have its old position. It gets the partition in the next rebalance.
    """
    one, two = client(shared), client(shared, "b")
    coordinator.rebalance([one, two])
    coordinator.rebalance([one])
    assert one.places == []  # it first gives up its position
    if beats:
        assert coordinator.beat(one) == REBALANCING
    coordinator.join([one])
    coordinator.sync([one], {b"a": [PLACE]})
    assert one.places == [PLACE] * beats
    coordinator.rebalance([one])
    assert one.places == [PLACE]
    assert fetched(shared, one, broker) == of(FULL)


def test_a_client_that_had_nothing_and_joins_again_without_a_heartbeat_gets_its_partition(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    """A new client that joins again without a heartbeat gets its partition again.

    At that time, its only possible position is that of its first assignment. After a third join its position
    is unknown, because its key ranges have changed meanwhile.
    """
    one, two = client(shared), client(shared, "b")
    for _ in range(2):
        coordinator.join([one, two])
        coordinator.sync([one, two], {b"a": [PLACE], b"b": []})
        assert one.places == two.places == [PLACE]
    assert fetched(shared, one, broker) == of(LOW)
    coordinator.join([one, two])
    coordinator.sync([one, two], {b"a": [PLACE], b"b": []})
    assert one.places == two.places == []


@pytest.mark.parametrize(("name", "keeps"), [(b"kafka-python", True), (b"librdkafka", False)])
def test_a_client_that_keeps_what_it_has_in_hand_gives_up_a_partition_before_it_gets_less_of_it(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker, name: bytes, keeps: bool
) -> None:
    """A client gives up a partition before it gets fewer keys of it, if the client keeps fetched records.

    kafka-python 3 delivers such records after a rebalance. If it only got fewer keys of the partition, it
    might deliver records of another member.
    """
    one, two = client(shared), client(shared, "b")
    said = bytes([0, len(name) + 1]) + name + b"\x023" + bytes(1)
    versions = request(18, 3, one.client_id, said)
    connection = shared.connection()
    connection.receive_client(versions[:-1], 1.0)
    connection.receive_client(versions[-1:], 1.0)
    coordinator.rebalance([one])
    assert one.places == [PLACE]
    coordinator.rebalance([one, two])
    assert (one.places, two.places) == ([] if keeps else [PLACE], [PLACE])
    coordinator.rebalance([one, two])
    assert one.places == two.places == [PLACE]
    assert (fetched(shared, one, broker), fetched(shared, two, broker)) == (of(LOW), of(HIGH))
    coordinator.rebalance([one, two])
    assert one.places == two.places == [PLACE]  # nothing changes, and it goes on


@pytest.mark.parametrize("keeps", [True, False])
def test_a_client_that_learns_from_joining_that_it_was_removed_gives_up_what_it_keeps(
    shared: Shared, coordinator: Coordinator, keeps: bool
) -> None:
    """The gateway was away for a session timeout, and tells its members to join again.

    kafka-python 3 forgets its partitions if a heartbeat says that it was removed, not if JoinGroup does. It
    processed fetched records again that another member had committed.
    """
    one = client(shared)
    shared.members.bound("h", one.client_id.encode()).keeps = keeps
    one.joined = True
    assert coordinator.beat(one) == REBALANCING
    coordinator.removed(one)
    coordinator.rebalance([one])
    assert one.places == ([] if keeps else [PLACE])
    assert coordinator.beat(one) == 0
    later = 1.1 + ABSENT_SECONDS
    if keeps:
        assert coordinator.beat(one, now=later) == REBALANCING
        coordinator.rebalance([one], now=later)
        assert one.places == [PLACE]
    assert coordinator.beat(one, now=later) == 0


def test_what_others_have_done_does_not_come_to_a_client_that_keeps_its_position(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    """A client that keeps its position and its key ranges gets no records that other members have processed.

    Such a client does not ask for the committed offset again, so the gateway must leave out these records.
    """
    one, two = client(shared), client(shared, "b")
    member = shared.members.bound("h", one.client_id.encode())
    member.keeps = True
    coordinator.rebalance([one, two])
    member.tracked(PLACE).start(Positions((0, SPACE // 4), (0, 30)), member.ranges(PLACE))
    one.keeps = True
    coordinator.rebalance([one, two])
    assert one.places == [PLACE]
    got_records = fetched(shared, one, broker)
    assert got_records
    assert set(of(LOW)) - set(got_records)


def test_heartbeats_on_another_connection_count(shared: Shared, coordinator: Coordinator) -> None:
    """A heartbeat on one connection of a client is valid for all its connections.

    franz-go uses a separate connection for its group. Before the fix, franz-go never got records, and the
    group rebalanced forever.
    """
    one, two = client(shared), client(shared, "b")
    coordinator.rebalance([one, two])
    coordinator.rebalance([one])
    assert one.places == []  # it first gives up its position
    beats = client(shared)
    assert coordinator.beat(beats) == REBALANCING
    one.synced = False  # it sends none itself
    coordinator.rebalance([one])
    assert one.places == [PLACE]


def test_a_client_that_takes_a_new_connection_for_each_generation_gets_its_lanes(
    shared: Shared, coordinator: Coordinator
) -> None:
    """A client that opens a new connection for each generation gets its key ranges.

    Before the fix, the gateway told kafka-go at each first heartbeat to join again, so nobody read its
    records.
    """
    one, two = client(shared), client(shared, "b")
    coordinator.rebalance([one, two])

    def again() -> Client:
        moved = replace(one, connection=client(shared).connection, synced=False)
        coordinator.rebalance([moved])
        return moved

    assert coordinator.beat(one, REBALANCING) == REBALANCING
    one = again()
    assert one.places == []  # it may be where it was
    beats = 1
    while coordinator.beat(one, now=1.0 + 3 * beats) != REBALANCING:
        beats += 1
        assert beats < 5
    one = again()
    assert one.places == [PLACE]
    assert [coordinator.beat(one) for _ in range(3)] == [0, 0, 0]


def forgot(coordinator: Coordinator, shared: Shared, *, keeps: bool = True) -> Client:
    """Return a client that had the lower half of the keys, missed an empty assignment, and then got all keys.

    It may still have an old position. The same happens to a client that sends a heartbeat while it waits for
    its assignment, and then drops the assignment.
    """
    one, two = client(shared), client(shared, "b")
    coordinator.rebalance([one, two])
    coordinator.rebalance([one])
    assert one.places == []
    one.keeps = keeps
    coordinator.rebalance([one])
    assert one.places == [PLACE]
    return one


def test_who_goes_on_where_it_was_gets_nothing_of_ranges_that_are_new_to_it(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    """A client that keeps its position gets no records of key ranges that are new to it.

    The client would miss the records before its position, and its commit would mark them as processed.
    """
    one = forgot(coordinator, shared)
    assert fetched(shared, one, broker, 20) == []
    assert refused(one, 30) == REBALANCING


def test_nor_does_it_in_a_group_that_shares_nothing_any_more(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    one, two = client(shared), client(shared, "b")
    coordinator.rebalance([one, two])
    coordinator.rebalance([one])
    one.keeps = True
    coordinator.rebalance([one], outsider=True)
    assert one.places == [PLACE]
    assert fetched(shared, one, broker, 20) == []
    one.keeps = False
    Coordinator.offsets(one)
    assert fetched(shared, one, broker, 20) == of(FULL)


def test_who_goes_on_where_it_was_first_gives_all_up(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    one = forgot(coordinator, shared)
    fetched(shared, one, broker, 20)  # it may have been on its way
    assert coordinator.beat(one) == coordinator.beat(one) == 0
    fetched(shared, one, broker, 20)
    assert coordinator.beat(one) == REBALANCING
    coordinator.rebalance([one])
    assert one.places == []
    one.keeps = False  # it has no position any more
    assert [coordinator.beat(one, now=now) for now in (3.0, 6.0)] == [0, REBALANCING]
    coordinator.rebalance([one])
    assert one.places == [PLACE]
    assert fetched(shared, one, broker) == of(FULL)


def test_an_application_that_says_itself_where_it_begins_gets_what_it_asks_for(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    """An application that sets its own position gets the records from this position on.

    The gateway must first know that the client has received an empty assignment, and that no other process
    serves it. After that, the position in a fetch can't be an old one.
    """
    one = forgot(coordinator, shared)
    for _ in range(2):
        coordinator.beat(one)
    fetched(shared, one, broker, 20)
    coordinator.rebalance([one])
    for _ in range(2):
        coordinator.beat(one)
    coordinator.rebalance([one], now=1.0 + ABSENT_SECONDS)
    assert one.places == [PLACE]
    assert fetched(shared, one, broker, 20) == of(FULL)


def test_who_asks_for_its_offset_begins_at_once(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    one = forgot(coordinator, shared, keeps=False)
    assert fetched(shared, one, broker) == of(FULL)
    assert coordinator.beat(one) == coordinator.beat(one) == 0


def test_after_a_restart_of_the_gateway_a_client_that_joins_anew_may_have_kept_its_position(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    """After a restart of the gateway, a client that may have kept its position gets no records at first.

    The group has forgotten this client while it joined. So the client has no member id, but still has its
    partition.
    """
    one, two = client(shared), client(shared, "b")
    one.keeps = True
    coordinator.rebalance([one, two])
    assert fetched(shared, one, broker, 20) == []
    assert fetched(shared, two, broker) == of(HIGH)


@pytest.mark.parametrize("restarted", [True, False])
def test_who_syncs_where_it_has_not_joined_joins_again(
    shared: Shared, coordinator: Coordinator, restarted: bool
) -> None:
    """A client whose connection ended between JoinGroup and SyncGroup has to join again.

    The gateway no longer knows the members' offers.
    """
    one, two = client(shared), client(shared, "b")
    coordinator.rebalance([one, two])
    coordinator.join([one, two])
    for each in one, two:
        each.connection = (Shared() if restarted else shared).connection()
        body = coordinator.sync_body(each)
        body.count(each is one)
        if each is one:
            body.string(each.member_id)
            body.data(assignment([PLACE]))
        assert each.ask(SYNC_GROUP, 3, body.content) == []
        (said,) = got(each.connection)
        assert read_synced(said, 3).error_code == REBALANCING
    coordinator.rebalance([one, two])
    coordinator.rebalance([one, two])
    assert one.places == two.places == [PLACE]


def test_who_takes_the_place_of_a_static_member_has_it_alone(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    """If a client replaces a static member, it gets all records of the member's key ranges.

    The old member gets no more records. The generation stays the same (KIP-345), and the old member does not
    know yet that it is fenced.
    """
    one, two = client(shared), client(shared, "b")
    two.instance = b"second"
    coordinator.join([one, two])
    made = coordinator.sync([one, two], {b"a": [PLACE], b"b": []})
    new = client(shared, "c")
    new.instance = two.instance
    coordinator.generation -= 1
    coordinator.join([new])
    body = coordinator.sync_body(new)
    body.count(0)
    new.ask(SYNC_GROUP, 3, body.content)
    coordinator.synced(new, made[b"b"])
    assert fetched(shared, two, broker) == []
    assert fetched(shared, new, broker) == of(HIGH)
    assert fetched(shared, one, broker) == of(LOW)


def test_who_is_late_gets_nothing_until_it_has_joined_again(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    """A member whose SyncGroup response is late gets no records until it joins again.

    Meanwhile the group has continued without this member.
    """
    one, two = client(shared), client(shared, "b")
    coordinator.join([one, two])
    body = coordinator.sync_body(two)
    body.count(0)
    two.ask(14, 3, body.content)
    made = coordinator.sync([one], {b"a": [PLACE], b"b": []})
    coordinator.rebalance([one])
    coordinator.rebalance([one])
    coordinator.synced(two, made[b"b"])
    assert two.places == []
    assert fetched(shared, two, broker) == []
    assert fetched(shared, one, broker) == of(FULL)
    assert coordinator.beat(two) == REBALANCING


def test_a_group_that_was_deleted_begins_anew(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    """If a group is deleted, its generations begin at 1 again, and a new member gets all records."""
    one, two = client(shared), client(shared, "b")
    for _ in range(5):
        coordinator.rebalance([one])
    coordinator.beat(one, 25)
    coordinator.generation = 0
    coordinator.rebalance([two])
    assert fetched(shared, two, broker) == of(FULL)


def test_a_heartbeat_of_another_client_with_the_same_id_freezes_nobody(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    """The heartbeat of a fenced static member does not affect the client that has replaced it.

    The fenced member gets error 82 for its heartbeat. The new client has the same id, and still gets its
    records.
    """
    old, new = client(shared), client(shared)
    coordinator.rebalance([old])
    new.member_id = b"a-2"
    coordinator.rebalance([new])
    coordinator.rebalance([new])
    assert coordinator.beat(old, 82) == 82
    assert fetched(shared, new, broker) == of(FULL)


def test_another_client_with_the_same_id_that_the_group_refuses_takes_nothing_away(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    """If a second client has the same id and the group refuses it, the first client keeps its key ranges.

    A client is refused, for example, if its session timeout is not allowed. No rebalance follows, so the
    first client would have no chance to join again.
    """
    one, two = client(shared), client(shared, "b")
    coordinator.rebalance([one, two])
    other = client(shared)
    body = Writer(JOIN_GROUP, 0)
    body.string(GROUP)
    body.number(1)
    body.string(b"")
    body.string(b"consumer")
    body.count(1)
    body.string(OWN)
    body.data(subscription(b"orders"))
    other.ask(JOIN_GROUP, 0, body.content)
    refused = (7).to_bytes(4) + (26).to_bytes(2) + (-1).to_bytes(4, signed=True) + bytes(3 * 2 + 4)
    other.answered(framed(refused))
    assert coordinator.beat(one) == 0
    assert fetched(shared, one, broker) == of(LOW)


def test_while_another_client_with_the_same_id_lives_nothing_is_shared(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    """Case C39: while two clients with the same id are connected, the group shares no partitions.

    The gateway can't tell the fetches of the two clients apart, even if the group knows only one of them.
    """
    old, other, new = client(shared), client(shared, "b"), client(shared)
    coordinator.rebalance([old, other])
    new.member_id = b"a-2"
    for _ in range(2):
        coordinator.rebalance([new, other])
    assert (new.places, other.places) == ([PLACE], [])
    old.connection.ended()
    for _ in range(2):
        coordinator.rebalance([new, other])
    assert new.places == other.places == [PLACE]


def test_a_heartbeat_counts_from_when_it_was_sent(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    """The session timeout counts from the time at which the client sent the heartbeat.

    It does not count from the response, because the response may have waited in the gateway.
    """
    one = client(shared)
    coordinator.rebalance([one], now=1.0)
    member = shared.members.bound("h", b"billing.a")
    assert member.presence.expires_at == 7.0
    assert coordinator.beat(one, now=3.0) == 0
    assert member.presence.expires_at == 9.0


@pytest.mark.parametrize("error", [14, 15, 16])
def test_while_a_group_moves_to_another_coordinator_its_members_go_on(
    shared: Shared, coordinator: Coordinator, error: int
) -> None:
    """A new coordinator gives each member its whole session timeout again.

    Until this timeout is over, nobody else gets the member's lanes.
    """
    one = client(shared)
    coordinator.rebalance([one], now=1.0)
    member = shared.members.bound("h", b"billing.a")
    assert coordinator.beat(one, error, now=3.0) == error
    assert member.presence.expires_at == 9.0


def test_in_a_plain_group_the_metadata_is_the_applications(shared: Shared, coordinator: Coordinator) -> None:
    one = client(shared)
    coordinator.rebalance([one], outsider=True)
    one.connection.receive_client(asks(one.client_id), 1.0)
    (asked,) = sent(one.connection)
    stored = committed_metadata(Positions([0, 1 << 31], [10, 30]), "mine").encode()
    one.connection.receive_broker(offsets(asked, 10, stored), 1.0)
    assert got(one.connection) == [offsets(asked, 10, b"mine")]


def test_in_a_plain_group_a_client_first_gives_up_the_part_that_it_had(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    """If a group stops sharing partitions, each client gives up its part before one client gets all.

    Some clients keep their position, and the other members may not have read up to this position.
    """
    one, two = client(shared), client(shared, "b")
    coordinator.rebalance([one, two])
    coordinator.rebalance([one, two], outsider=True)
    assert (one.places, two.places) == ([], [])
    assert coordinator.beat(one) == REBALANCING
    coordinator.rebalance([one, two], outsider=True)
    assert (one.places, two.places) == ([PLACE], [])
    assert fetched(shared, one, broker) == of(FULL)
    (request,) = commits(one, 30)
    assert request == commit(one.client_id, 30)


def test_the_leaders_assignor_hears_of_no_partition_that_several_have(
    shared: Shared, coordinator: Coordinator
) -> None:
    one, two = client(shared), client(shared, "b")
    one.owned, two.owned = [PLACE, (b"orders", 1)], [PLACE]
    coordinator.join([one, two])
    assert owned_of(one.leads) == [[(b"orders", 1)], []]


@pytest.mark.parametrize("heartbeat", [68, 88])
def test_a_member_of_a_group_that_brokers_assign_gets_all(
    shared: Shared, broker: ModelBroker, heartbeat: int
) -> None:
    """Case C45: if brokers assign a group's partitions (KIP-848, KIP-1071), its members share no partition.

    This does not depend on the group's name. Each member gets all records of its partitions.
    """
    one = client(shared)
    assert fetched(shared, one, broker) == []
    (asked,) = one.ask(heartbeat, 0, b"what is in it passes unread")
    assert asked.endswith(b"what is in it passes unread")
    assert fetched(shared, one, broker) == of(FULL)
    (request,) = commits(client(shared), 30)
    assert request == commit(one.client_id, 30)


def test_a_subscription_may_end_before_what_its_client_has() -> None:
    """A subscription without owned partitions is valid, even if its version requires them.

    kafka-go writes version 1, but only the fields of version 0.
    """
    own = (1).to_bytes(2) + subscription(b"orders")[2:-4]
    assert read_owned(own) == (frozenset(), len(own), len(own))
    assert without_owned(own, [PLACE]) == own


# What the process tells of it


def test_the_first_commit_leaves_others_where_the_first_of_them_began(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    """Nobody has committed: a member that has not committed yet loses nothing, and gets no older records."""
    one, two = client(shared), client(shared, "b")
    coordinator.rebalance([one, two])
    fetched(shared, one, broker, 20)
    fetched(shared, two, broker, 10)
    (asked,) = commits(one, 30)
    one.connection.receive_broker(offsets(asked, -1), 1.0)
    (request,) = sent(one.connection)
    entry = read_commit(request).entries[0]
    positions = read_committed(10, (entry.metadata or b"").decode()).positions
    assert (entry.offset, positions.lowest(LOW), positions.highest(HIGH)) == (10, 30, 10)


def test_members_are_seen_with_their_lanes_and_positions(
    shared: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    one, two = client(shared), client(shared, "b")
    coordinator.rebalance([one, two])
    (asked,) = commits(one, 30)
    one.connection.receive_broker(offsets(asked, 10), 1.0)
    (request,) = sent(one.connection)
    one.connection.receive_broker(committed(request), 1.0)
    seen = shared.members.seen(1.0)
    (group,) = (group for group in seen.groups if group.name == "billing")
    assert (group.exclusive, group.unowned()) == ("", 0)
    assert [(member.client_id, member.state) for member in group.members] == [
        ("billing.a", "shares"),
        ("billing.b", "shares"),
    ]
    lanes = [lane for member in group.members for lane in member.lanes]
    assert [(lane.topic, lane.partition, lane.ranges, lane.position, lane.lag) for lane in lanes] == [
        ("orders", 0, LOW, 30, None),
        ("orders", 0, HIGH, 10, None),
    ]
    assert fetched(shared, one, broker, 39) == [at for at in of(LOW) if at >= 39]
    fetched(shared, two, broker)
    (group,) = (group for group in shared.members.seen(1.0).groups if group.name == "billing")
    # The second one's records begin later than its position, and end before the log does.
    assert group.lags() == [10, 30]
    assert seen.tally.commits == {"ok": 1}


def test_a_key_range_without_a_member_is_seen(shared: Shared, coordinator: Coordinator) -> None:
    one, two = client(shared), client(shared, "b")
    coordinator.rebalance([one, two])
    two.connection.ended()
    later = shared.members.seen(1e9)
    assert [member.client_id for group in later.groups for member in group.members] == ["billing.a"]
    assert [group.unowned() for group in later.groups if group.name == "billing"] == [1]


def test_why_a_group_shares_nothing_is_told_once(shared: Shared, coordinator: Coordinator) -> None:
    old, other, new = client(shared), client(shared, "b"), client(shared)
    coordinator.rebalance([old, other])
    new.member_id = b"a-2"
    for _ in range(2):
        coordinator.rebalance([new, other])
    (group,) = (group for group in shared.members.seen(1.0).groups if group.name == "billing")
    assert group.exclusive == "client_id"
    assert shared.members.tally.exclusive == {"client_id": 1}
    told = [(what, group) for what, group, _ in shared.groups]
    assert told.count((GroupNotice.EXCLUSIVE, "billing")) == 1


def test_how_a_group_shares_its_partitions_is_told(shared: Shared, coordinator: Coordinator) -> None:
    coordinator.rebalance([client(shared), client(shared, "b")])
    (what, group, text) = shared.groups[-1]
    assert (what, group) == (GroupNotice.REBALANCED, "billing")
    assert text.startswith("2 members, 1 of 1 partitions shared, generation ")
    coordinator.rebalance([client(shared)])
    assert shared.groups[-1][2].startswith("1 member, 0 of 1 partitions shared, generation ")


@pytest.mark.parametrize("key", [JOIN_GROUP, SYNC_GROUP, HEARTBEAT, LEAVE_GROUP])
@pytest.mark.parametrize("flexible", [False, True])
def test_what_members_of_other_groups_say_is_not_read(shared: Shared, key: int, flexible: bool) -> None:
    """Requests of members of other groups are forwarded unread.

    They may be very long, or have an unknown form.
    """
    one = client(shared).connection
    version = {JOIN_GROUP: 9, SYNC_GROUP: 5, HEARTBEAT: 4, LEAVE_GROUP: 5}[key] if flexible else 1
    body = b"\0\x06other" if flexible else b"\0\5other"
    frame = request(key, version, "billing.a", body + bytes(MAX_READ))
    for at in range(64):
        one.receive_client(frame[at : at + 1], 1.0)
    one.receive_client(frame[64:], 1.0)
    assert one.state.fault is None
    assert b"".join(one.drain_broker()) == frame


def test_a_group_that_has_no_name_is_the_brokers_to_refuse(shared: Shared) -> None:
    one = client(shared).connection
    frame = request(JOIN_GROUP, 1, "billing.a", (300).to_bytes(2) + bytes(5))
    one.receive_client(frame, 1.0)
    assert one.state.fault is None
    assert sent(one) == [frame]
