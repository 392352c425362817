"""A replica as leader (`RackLeaders`): rules 1 to 3 of proxy/features/racks/README.md."""

from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.connection_state import ConnectionState
from proxy.core.leaders import Leaders
from proxy.features.racks.distrust import LEAVES_SECONDS, MAX_CLIENTS, MAX_PLACES
from proxy.features.racks.rack_clients import RackClientsStage
from proxy.features.racks.rack_leaders import RackLeaders
from proxy.features.racks.rack_stage import RackStage
from proxy.features.racks.racks import BrokerRacks
from proxy.protocol.metadata import read_replicas
from tests.examples import examples
from tests.features.racks.replica import Known
from tests.frames import framed
from tests.playbook import Playbook, request, response
from tests.protocol.kio_messages import UNKNOWN_TAGS
from tests.protocol.replicas import ORDERS, RACKS, VERSIONS, Part, body

LEADER, HERE, OTHER = 1, 2, 3
CLIENT: Final = "app"
HOST: Final = "h"
WHO: Final = CLIENT, HOST
NOW: Final = 1000.0
LED_HERE: Final = Part(leader=HERE)


def leaders(*here: int, **options: Any) -> RackLeaders:
    return RackLeaders(Known(*(here or (HERE,))), lambda: {CLIENT}, **options)


def named(
    shared: RackLeaders, topics: Mapping[str, Iterable[Part]], version: int = 7, **fields: Any
) -> bytes:
    """Return what a client gets of a response."""
    return shared.name_replicas(body(version, topics, **fields), version, CLIENT, HOST, NOW)


@pytest.mark.parametrize("version", VERSIONS)
def test_rule_20_the_replica_in_the_rack_becomes_leader(version: int) -> None:
    """All else, the leader epoch as well, stays as it was."""
    shared = leaders()
    parts = [Part(leader=at % 3 + 1, epoch=at) for at in range(9)]
    expected = body(version, {"orders": [part._replace(leader=HERE) for part in parts]})
    assert named(shared, {"orders": parts}, version) == expected
    assert shared.named == 6


@pytest.mark.parametrize(
    "part",
    [
        Part(isr=(1, 3)),
        Part(offline=(2,)),
        Part(error=9),
        Part(leader=-1, error=5),
        Part(leader=-1),
        Part(replicas=(1, 3), isr=(1, 3)),
        Part(isr=()),
        LED_HERE,
    ],
    ids=repr,
)
@pytest.mark.parametrize("version", [5, 7, 13])
def test_rule_20_a_replica_that_may_not_serve_is_not_named(version: int, part: Part) -> None:
    """Out of sync, offline, an error, no leader, no replica here, or the leader is here already."""
    shared = leaders()
    topics = {"orders": [part]}
    assert named(shared, topics, version) == body(version, topics)
    assert shared.named == 0


def test_rule_20_a_broker_that_the_response_does_not_list_is_not_named() -> None:
    topics = {"orders": [Part()]}
    racks = {1: "R1", 3: "R3"}
    assert named(leaders(), topics, racks=racks) == body(7, topics, racks=racks)


def test_rule_20_several_replicas_share_the_partitions_and_each_client_keeps_its_own() -> None:
    """A broker that leaves the in-sync replicas moves only its own partitions."""
    shared = leaders(2, 3)
    parts = [Part() for _ in range(300)]
    data = body(7, {"orders": parts})

    def choice(client_id: str, told: bytes = data) -> Any:
        given = shared.name_replicas(told, 7, client_id, HOST, NOW)
        return read_replicas(given, 7).leader.tolist()

    first, other = choice("app"), choice("another")
    assert set(first) == set(other) == {2, 3}
    assert 100 < first.count(2) < 200
    assert first != other
    assert choice("app") == first
    without = body(
        7, {"orders": [part._replace(isr=(1, 3, 4)) if at % 2 else part for at, part in enumerate(parts)]}
    )
    assert choice("app", without) == [3 if at % 2 else node for at, node in enumerate(first)]


def test_rule_19_a_response_that_is_not_understood_passes_unchanged() -> None:
    shared = leaders()
    whole = body(7, {"orders": [Part()]})
    for data in (whole[:-1], whole + b"\0", b""):
        assert shared.name_replicas(data, 7, CLIENT, HOST, NOW) is data
    assert shared.leader_of(b"orders", 0) is None


parts = st.builds(
    Part,
    leader=st.sampled_from([-1, 1, 2, 3, 4]),
    isr=st.lists(st.sampled_from([1, 2, 3, 4]), unique=True).map(tuple),
    offline=st.lists(st.sampled_from([1, 2, 3, 4]), max_size=2, unique=True).map(tuple),
    replicas=st.just((1, 2, 3, 4)),
    epoch=st.integers(-1, 9),
    error=st.sampled_from([0, 0, 0, 5, 9]),
    number=st.none(),
)
alike = st.builds(lambda part, count: [part] * count, parts, st.integers(0, 12))
topics = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.lists(parts, max_size=6) | alike)


@examples(300)
@given(
    version=st.sampled_from(VERSIONS),
    topics=topics,
    here=st.sets(st.sampled_from([2, 3, 4])),
    true=st.sets(st.sampled_from(["a", "b"])),
)
def test_rules_19_and_20_all_else_is_byte_for_byte_as_it_was(
    version: int, topics: dict[str, list[Part]], here: set[int], true: set[str]
) -> None:
    """Where a leader is replaced, the replica may serve, and nothing else is another one."""
    shared = RackLeaders(Known(*here), lambda: {CLIENT})
    racks = dict.fromkeys([1, 2, 3], "R")
    tags = UNKNOWN_TAGS if version >= 9 else ()
    for topic in true:
        shared.distrust.needs(WHO, topic.encode(), "offsets", NOW)
    before = body(version, topics, racks=racks, tags=tags)
    after = shared.name_replicas(before, version, CLIENT, HOST, NOW)
    may = {
        (topic, at): here & set(racks) & set(part.isr) - (set(part.offline) if version >= 5 else set())
        for topic, told in topics.items()
        for at, part in enumerate(told)
        if topic not in true and not part.error and part.leader >= 0 and part.leader not in here & set(racks)
    }
    one_of = {place: nodes for place, nodes in may.items() if nodes}
    assert shared.named == len(one_of)
    expected = [
        body(
            version,
            _with(topics, {place: pick(nodes) for place, nodes in one_of.items()}),
            racks=racks,
            tags=tags,
        )
        for pick in (min, max)
    ]
    assert len(after) == len(before)
    if all(len(nodes) == 1 for nodes in one_of.values()):
        assert after == expected[0]
    for at, byte in enumerate(after):
        assert byte == before[at] or byte in {expected[0][at], expected[1][at]}


def _with(topics: dict[str, list[Part]], named: dict[tuple[str, int], int]) -> dict[str, list[Part]]:
    return {
        topic: [part._replace(leader=named.get((topic, at), part.leader)) for at, part in enumerate(told)]
        for topic, told in topics.items()
    }


# What the process knows of leaders


def test_the_true_leaders_are_known_by_name_and_by_id() -> None:
    shared = leaders()
    told = [
        Part(leader=3, epoch=8, number=4),
        Part(leader=2, epoch=9, number=1),
        Part(leader=-1, error=5, number=2),
    ]
    named(shared, {"orders": told}, 12)
    for key in (b"orders", ORDERS.bytes):
        assert [shared.leader_of(key, partition) for partition in range(6)] == [None, 2, None, None, 3, None]
        assert [shared.epoch_of(key, partition) for partition in (1, 4, 5)] == [9, 8, None]
        assert [shared.leads((key, 4), node) for node in (1, 3, None)] == [False, True, False]
        assert shared.leads((key, 0), 3) is None
    assert shared.leader_of(b"other", 4) is None


def test_the_newest_response_counts() -> None:
    """So it does if the topic was deleted and made again: its epochs begin anew."""
    shared = leaders()
    named(shared, {"orders": [Part(leader=1, epoch=8)]}, 12, ids={"orders": ORDERS})
    again = UUID(int=0xC3)
    named(shared, {"orders": [Part(leader=3, epoch=0)]}, 12, ids={"orders": again})
    assert shared.leader_of(b"orders", 0) == shared.leader_of(again.bytes, 0) == 3
    assert shared.leader_of(ORDERS.bytes, 0) is None


def test_below_v7_the_epoch_is_not_known() -> None:
    shared = leaders()
    named(shared, {"orders": [Part(leader=3)]}, 5)
    assert (shared.leader_of(b"orders", 0), shared.epoch_of(b"orders", 0)) == (3, None)


def test_topics_that_were_in_no_response_for_longest_are_forgotten() -> None:
    shared = leaders(max_bytes=20_000)
    for number in range(200):
        named(shared, {f"t{number}": [Part()]}, 12, ids={f"t{number}": UUID(int=number + 1)})
        assert shared.buffered <= 20_000
    assert shared.leader_of(b"t199", 0) == LEADER
    assert shared.leader_of(b"t0", 0) is None


def test_what_is_not_kept_is_not_named() -> None:
    """Whatever only a leader answers would come to the replica, and would never find the leader."""
    shared = leaders(max_bytes=2_000)
    told = {"a": [Part()] * 50, "b": [Part()] * 50}
    assert named(shared, told) == body(7, told | {"b": [LED_HERE] * 50})
    assert [shared.leader_of(key, 0) for key in (b"a", b"b")] == [None, LEADER]


# True Metadata


def test_a_client_can_get_true_metadata_of_some_topics_for_some_time() -> None:
    shared = leaders()
    told = {"a": [Part()], "b": [Part()]}
    ids: dict[str, UUID | None] = {"a": ORDERS, "b": None}
    named(shared, told, 12, ids=ids)
    shared.distrust.needs(WHO, ORDERS.bytes, "offsets", NOW)
    data = body(12, told, ids=ids)
    only_b = body(12, told | {"b": [LED_HERE]}, ids=ids)
    both = body(12, {"a": [LED_HERE], "b": [LED_HERE]}, ids=ids)
    assert shared.name_replicas(data, 12, CLIENT, HOST, NOW + 59) == only_b
    assert shared.name_replicas(data, 12, CLIENT, "another", NOW + 59) == both
    assert shared.name_replicas(data, 12, CLIENT, HOST, NOW + 60) == both
    assert +shared.distrust.returns == {"offsets": 1}


def test_a_client_can_get_true_metadata_of_all_topics() -> None:
    shared = leaders()
    shared.distrust.needs(WHO, None, "offsets", NOW, 3600)
    shared.distrust.needs(WHO, None, "offsets", NOW)
    assert named(shared, {"a": [Part()]}) == body(7, {"a": [Part()]})
    later = shared.name_replicas(body(7, {"a": [Part()]}), 7, CLIENT, HOST, NOW + 3599)
    assert later == body(7, {"a": [Part()]})


def test_what_is_remembered_of_clients_is_bounded() -> None:
    shared = leaders()
    for at in range(MAX_PLACES + 1):
        shared.distrust.needs(WHO, b"t%d" % at, "offsets", NOW)
    assert named(shared, {"another": [Part()]}) == body(7, {"another": [Part()]})
    for number in range(MAX_CLIENTS):
        shared.distrust.needs((CLIENT, str(number)), None, "offsets", NOW)
    assert named(shared, {"another": [Part()]}) == body(7, {"another": [LED_HERE]})


def test_a_client_with_more_partitions_than_are_remembered_gets_their_errors_after_ten_seconds() -> None:
    """It has asked for Metadata by then. If no leader is known, the broker itself may lead."""
    shared = leaders()
    places = [(b"t", at) for at in range(MAX_PLACES + 1)]

    def distrusted(now: float) -> set[bool]:
        return {shared.distrust.holds(WHO, place, now) for place in places}

    for second in range(60):
        now = NOW + second
        shared.distrust.refused(WHO, places, "refused", now)
        assert distrusted(now) == {second >= LEAVES_SECONDS}
    assert distrusted(NOW + 60) == {False}
    shared.distrust.refused(WHO, places, "refused", NOW + 60)
    assert distrusted(NOW + 60 + LEAVES_SECONDS) == distrusted(NOW + 359) == {True}


def test_errors_that_pass_go_on_to_pass_while_true_metadata_is_made_longer() -> None:
    shared = leaders()
    for second in range(30):
        shared.distrust.needs(WHO, None, "offsets", NOW + second)
        assert shared.distrust.holds(WHO, (b"t", 0), NOW + second) == (second >= LEAVES_SECONDS)


def test_errors_pass_also_if_more_topics_than_are_remembered_are_noted_again_and_again() -> None:
    """As with a client whose questions for the offsets of more than 1,000 topics are not answered."""
    shared = leaders()
    topics = [b"t%d" % at for at in range(MAX_PLACES + 1)]
    for second in range(0, 60, 5):
        for topic in topics:
            shared.distrust.needs(WHO, topic, "offsets", NOW + second)
        passes = shared.distrust.holds(WHO, (b"t0", 0), NOW + second)
        assert passes == (second >= LEAVES_SECONDS)


# One connection


def gateway(node_id: int, host: str, port: int) -> tuple[str, int]:
    return ("gw", port + node_id)


class Gateway:
    """Connections of a gateway in rack R2, each played by a core with and one without the fast path."""

    def __init__(self, *clients: str) -> None:
        self.clients = set(clients)
        self.racks = BrokerRacks("R2")
        self.shared = RackLeaders(self.racks, lambda: self.clients)

    def connect(self, **options: Any) -> Playbook:
        def learns(state: ConnectionState) -> RackStage:
            return RackStage(self.racks, state)

        def names(state: ConnectionState) -> RackClientsStage:
            return RackClientsStage(self.shared, lambda: None, state)

        play = Playbook(stages=(names, learns), resolve=gateway, **options)
        play.now = NOW
        return play


def through(told: bytes) -> bytes:
    """Return a body with the gateway's addresses: those of `gateway`."""
    for node_id in RACKS:
        host = b"broker-%d" % node_id
        told = told.replace(b"\0\x08" + host + (9092).to_bytes(4), b"\0\2gw" + (9092 + node_id).to_bytes(4))
    return told


def asks(play: Playbook, told: bytes, expected: bytes, *, client: str = CLIENT, **how: Any) -> None:
    asked = request(3, 7, 1, client=client.encode())
    play.client(asked, **how).to_broker(asked)
    play.broker(response(1, told), **how).to_client(response(1, expected))


@pytest.mark.parametrize("chunk", [1 << 30, 1, 7])
def test_rule_19_only_clients_that_are_named_get_the_replica(chunk: int) -> None:
    """The client id is that of the Metadata request, which may come first on a connection, and in pieces."""
    gateway = Gateway(CLIENT)
    told, replica = body(7, {"orders": [Part()]}), body(7, {"orders": [LED_HERE]})
    for client, expected in ((CLIENT, replica), ("other", told), ("", told)):
        for _ in range(3):
            asks(gateway.connect(), told, through(expected), client=client, chunk=chunk)
    play = gateway.connect()
    for client, expected in ((CLIENT, replica), ("other", told), (CLIENT, replica)):
        asks(play, told, through(expected), client=client, chunk=chunk)
    gateway.clients.clear()
    asks(play, told, through(told), chunk=chunk)


def test_rule_19_below_v1_there_are_no_racks() -> None:
    """The response has no in-sync replicas that could be trusted either."""
    play = Gateway(CLIENT).connect()
    asked = request(3, 0, 1, client=CLIENT.encode())
    play.client(asked).to_broker(asked)
    topic = b"\0\0\0\1a" + (1).to_bytes(4) + b"\0\0" + bytes(4) + (1).to_bytes(4)
    nodes = (2).to_bytes(4) + (1).to_bytes(4) + (2).to_bytes(4)
    told = response(1, bytes(4) + (1).to_bytes(4) + topic + nodes + nodes)
    play.broker(told).to_client(told)


def test_rule_21_what_is_known_of_leaders_comes_first_and_learns_only_the_brokers_bytes() -> None:
    """A leader of a newer epoch is put in before a replica is named. The table never learns the replica."""
    gateway, table = Gateway(CLIENT), Leaders()
    play = gateway.connect(leaders=table)
    new = {"orders": [Part(leader=HERE, epoch=6), Part(leader=1, epoch=6)]}
    old = {"orders": [Part(leader=1, epoch=5), Part(leader=3, epoch=5)]}

    def ask(told: dict[str, list[Part]], expected: dict[str, list[Part]], client: str) -> None:
        head = (1).to_bytes(4) + b"\0"
        asked = request(3, 12, 1, b"\0", client=client.encode())
        play.client(asked).to_broker(asked)
        play.broker(framed(head + body(12, told, racks=RACKS)))
        got = play.takes_client()
        data = body(12, expected)
        assert got[-len(data) + data.index(b"orders") :] == data[data.index(b"orders") :]

    ask(new, {"orders": [Part(leader=HERE, epoch=6), Part(leader=HERE, epoch=6)]}, CLIENT)
    ask(old, {"orders": [Part(leader=HERE, epoch=6), Part(leader=HERE, epoch=6)]}, CLIENT)
    ask(old, new, "other")
    assert gateway.shared.leader_of(b"orders", 1) == 1


def test_a_response_that_waits_for_a_listener_names_the_replica_as_well() -> None:
    opening = {HERE}
    play = Gateway(CLIENT).connect(opening=opening.__contains__)
    asked = request(3, 7, 1, client=CLIENT.encode())
    play.client(asked).to_broker(asked)
    play.broker(response(1, body(7, {"orders": [Part()]}))).to_client()
    opening.clear()
    play.connection.brokers_opened(frozenset({HERE}))
    play.to_client(response(1, through(body(7, {"orders": [LED_HERE]}))))
