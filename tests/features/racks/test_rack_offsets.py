"""What only a leader answers, if replicas are named: rules 4 to 8 of proxy/features/racks/README.md."""

from typing import Any, Final

import pytest

from proxy.core.asking.repeat import ANSWER_SECONDS, MAX_BYTES
from proxy.core.asking.role import QUIET_SECONDS
from proxy.core.asking.siblings import ClientIdentity, Siblings
from proxy.core.connection import Connection
from proxy.core.connection_state import ConnectionState
from proxy.core.eligibility import BrokerVersions
from proxy.core.events import Noticed
from proxy.core.own import TakeReply
from proxy.features.racks.distrust import AGAIN_SECONDS, AWAY_SECONDS, HOUR_SECONDS, TRUE_SECONDS
from proxy.features.racks.rack_leaders import RackLeaders
from proxy.features.racks.rack_offsets import RackOffsetsStage, no_consumer
from proxy.features.racks.raise_fetch import RaiseFetch
from proxy.protocol.api_versions import Features
from tests.core.offsets import FOR_EPOCH, LIST_OFFSETS, VERSIONS, Place, asks, tells
from tests.features.racks.replica import Known
from tests.frames import entry, fetch, fetch_response, framed
from tests.playbook import Playbook, full, request, response
from tests.protocol.replicas import Part, body
from tests.twin import Twin

LEADER, HERE, OTHER = 1, 2, 3
"""Broker 2 is in the gateway's rack. It leads partition 1; the others lead partitions 0 and 2."""
TOPIC: Final = "orders"
CLIENT: Final = "app"
HOST: Final = "10.0.0.7"
OURS: Final = 0x6667_666C
NOW: Final = 1000.0
PLACES: Final = [Place(TOPIC, at, 70 + at) for at in range(3)]
REFUSED: Final = [Place(TOPIC, at, -1, error=6, epoch=-1) for at in range(3)]
TRUE: Final = body(7, {TOPIC: [Part(leader=1), Part(leader=2), Part(leader=3)]})
NAMED: Final = body(7, {TOPIC: [Part(leader=2), Part(leader=2), Part(leader=2)]})


class Gateway:
    """A gateway that has named broker 2 as the leader of all partitions."""

    def __init__(self, *, fetch_max: int = 18) -> None:
        self.siblings = Siblings()
        self.clients = {CLIENT}
        self.leaders = self.new_leaders()
        self.stages: list[RackOffsetsStage] = []
        self.versions = BrokerVersions()
        self.versions.features = Features(fetch_max=fetch_max, offset_fetch_max=9, find_coordinator_max=6)
        self.alarms: list[float] = []
        self.plays: list[Playbook] = []

    def new_leaders(self) -> RackLeaders:
        leaders = RackLeaders(Known(HERE), lambda: self.clients)
        assert leaders.name_replicas(TRUE, 7, CLIENT, HOST, NOW) == NAMED
        return leaders

    def metadata(self, now: float, client: str = CLIENT) -> bytes:
        """Return the Metadata that a client gets."""
        return self.leaders.name_replicas(TRUE, 7, client, HOST, now)

    def connect(
        self, node_id: int, *, client: str = CLIENT, core: Any = Connection, idle: bool = True
    ) -> Playbook:
        """Return a connection of a client that has asked for versions. Other connections know the broker's.

        If it is `idle`, the client has got another response some time ago.
        """
        stages: list[RackOffsetsStage] = []

        def first(state: ConnectionState) -> RackOffsetsStage:
            # Of two cores that are compared, each needs its own leaders.
            leaders = self.leaders if core is Connection else self.new_leaders()
            stages.append(RackOffsetsStage(leaders, lambda: node_id, state))
            self.stages.append(stages[-1])
            return stages[-1]

        def second(state: ConnectionState) -> RaiseFetch:
            return RaiseFetch(stages[-1].raises, stages[-1].may_raise, state)

        play = Playbook(
            resolve=lambda at, _host, _port: (f"broker-{at}", 9092),
            core=core,
            siblings=self.siblings,
            host=HOST,
            node_id=node_id,
            stages=(first, second),
            versions=self.versions,
        )
        self.plays.append(play)
        play.now = NOW - QUIET_SECONDS
        asked = request(18, 0, 1, client=client.encode())
        play.client(asked).to_broker(asked).broker(told := response(1, b"\0\x23" + bytes(4))).to_client(told)
        if idle:
            play.exchange(request(12, 0, 1, client=client.encode()), response(1, b"\0\0"))
        play.now = NOW
        for core_ in (play.connection,) if core is Connection else play.connection.cores:
            core_.attach(lambda: None, self.alarms.append)
        return play


def true_until(gateway: Gateway, now: float) -> bool:
    """Return whether the client gets true Metadata until a time, and no longer."""
    until = gateway.metadata(now - 0.001) == TRUE
    return until and gateway.metadata(now) == NAMED


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_rule_22_the_leaders_are_asked_for_what_the_replica_does_not_know(api_key: int, version: int) -> None:
    """Each is asked for its partitions, in the client's own words. Their entries take the place of errors."""
    gateway = Gateway()
    here, leader, other = (gateway.connect(node_id) for node_id in (HERE, LEADER, OTHER))
    asked = asks(api_key, version, *PLACES, tag=True)
    here.client(asked).to_broker(asked)
    here.broker(tells(api_key, version, REFUSED[0], PLACES[1], REFUSED[2], throttle_ms=7)).nothing()
    leader.to_broker(asks(api_key, version, PLACES[0], correlation=OURS, tag=True))
    other.to_broker(asks(api_key, version, PLACES[2], correlation=OURS, tag=True))
    leader.broker(tells(api_key, version, PLACES[0], correlation=OURS)).nothing()
    here.nothing()
    other.broker(tells(api_key, version, PLACES[2], correlation=OURS, throttle_ms=9)).nothing()
    here.to_client(tells(api_key, version, *PLACES, throttle_ms=7))
    assert gateway.metadata(NOW) == NAMED
    assert here.connection.tally.leaders_followed["offsets"] == 2


def test_rule_22_a_request_of_several_topics_is_asked_in_part() -> None:
    """Topics of which the broker has answered all partitions are left out."""
    gateway = Gateway()
    gateway.leaders.name_replicas(
        body(7, {TOPIC: [Part(leader=1)], "led": [Part(leader=2)], "more": [Part(leader=1), Part(leader=2)]}),
        7,
        CLIENT,
        HOST,
        NOW,
    )
    here, leader = gateway.connect(HERE), gateway.connect(LEADER)
    places = [Place("led", 0, 1), Place("more", 0, 2), Place("more", 1, 3), Place(TOPIC, 0, 4)]
    missing = [places[1], places[3]]
    told = [each._replace(error=6, value=-1) if each in missing else each for each in places]
    here.client(asked := asks(LIST_OFFSETS, 7, *places)).to_broker(asked)
    here.broker(tells(LIST_OFFSETS, 7, *told)).nothing()
    leader.to_broker(asks(LIST_OFFSETS, 7, *missing, correlation=OURS))
    leader.broker(tells(LIST_OFFSETS, 7, *missing, correlation=OURS)).nothing()
    here.to_client(tells(LIST_OFFSETS, 7, *places))


def test_rule_22_other_errors_of_the_leader_are_for_the_client() -> None:
    """What the leader says of the client's epoch, for example."""
    gateway = Gateway()
    here, leader = gateway.connect(HERE), gateway.connect(LEADER)
    here.client(asked := asks(LIST_OFFSETS, 5, PLACES[0])).to_broker(asked)
    here.broker(tells(LIST_OFFSETS, 5, REFUSED[0])).nothing()
    leader.takes_broker()
    fenced = PLACES[0]._replace(error=74)
    leader.broker(tells(LIST_OFFSETS, 5, fenced, correlation=OURS)).nothing()
    here.to_client(tells(LIST_OFFSETS, 5, fenced))
    assert gateway.metadata(NOW) == NAMED


def test_rule_22_the_first_request_of_a_connection_is_asked_again() -> None:
    """The response to it shows that the client needs no further authentication."""
    gateway = Gateway()
    here, leader = gateway.connect(HERE, idle=False), gateway.connect(LEADER)
    here.client(asked := asks(LIST_OFFSETS, 5, PLACES[0])).to_broker(asked)
    here.broker(tells(LIST_OFFSETS, 5, REFUSED[0])).nothing()
    leader.to_broker(asks(LIST_OFFSETS, 5, PLACES[0], correlation=OURS))


def test_rule_22_later_responses_wait_for_the_leader() -> None:
    gateway = Gateway()
    here, leader = gateway.connect(HERE), gateway.connect(LEADER)
    here.client(asked := asks(LIST_OFFSETS, 5, PLACES[0])).to_broker(asked)
    here.client(beat := request(12, 0, 9, client=b"app")).to_broker(beat)
    here.broker(tells(LIST_OFFSETS, 5, REFUSED[0])).nothing()
    here.broker(response(9, b"\0\0")).nothing()
    leader.takes_broker()
    leader.broker(tells(LIST_OFFSETS, 5, PLACES[0], correlation=OURS)).nothing()
    here.to_client(tells(LIST_OFFSETS, 5, PLACES[0]), response(9, b"\0\0"))


def test_rule_22_a_leader_that_is_not_known_is_asked_for() -> None:
    """The Metadata may have passed in another gateway. The broker tells the true leader."""
    gateway = Gateway()
    here, leader = gateway.connect(HERE), gateway.connect(LEADER)
    places = [Place("new", 0, 7), Place("new", 1, 8)]
    told = [each._replace(error=6, value=-1) for each in places]
    here.client(asked := asks(LIST_OFFSETS, 7, *places)).to_broker(asked)
    here.broker(tells(LIST_OFFSETS, 7, *told))
    here.to_broker(request(3, 7, OURS, b"\0\0\0\1" + b"\0\3new" + b"\0", b"app"))
    here.broker(response(OURS, body(7, {"new": [Part(leader=LEADER), Part(leader=-1, error=5)]}))).nothing()
    leader.to_broker(asks(LIST_OFFSETS, 7, places[0], correlation=OURS))
    leader.broker(tells(LIST_OFFSETS, 7, places[0], correlation=OURS)).nothing()
    here.nothing().connection.tick(NOW + ANSWER_SECONDS)
    here.to_client(tells(LIST_OFFSETS, 7, places[0], told[1]))
    assert gateway.leaders.distrust.returns["offsets"] == 1


def test_rule_22_a_broker_that_says_it_leads_is_asked_again() -> None:
    """A new leader knows its Metadata a moment before it can serve, and refuses in between."""
    gateway = Gateway()
    here, place = gateway.connect(HERE), Place("new", 0, 7)
    here.client(asked := asks(LIST_OFFSETS, 7, place)).to_broker(asked)
    here.broker(tells(LIST_OFFSETS, 7, place._replace(error=6, value=-1)))
    here.to_broker(request(3, 7, OURS, b"\0\0\0\1" + b"\0\3new" + b"\0", b"app"))
    here.broker(response(OURS, body(7, {"new": [Part(leader=HERE)]})))
    here.to_broker(asks(LIST_OFFSETS, 7, place, correlation=OURS))
    here.broker(tells(LIST_OFFSETS, 7, place, correlation=OURS)).to_client(tells(LIST_OFFSETS, 7, place))
    assert gateway.metadata(NOW) == NAMED


def test_rule_22_what_needs_no_leader_passes() -> None:
    """Answers, other errors, partitions that the broker leads, and other clients."""
    gateway = Gateway()
    here, _leader = gateway.connect(HERE), gateway.connect(LEADER)
    for places in ([PLACES[1]], [PLACES[0]._replace(error=3)], [REFUSED[1]]):
        here.exchange(asks(LIST_OFFSETS, 7, *places), tells(LIST_OFFSETS, 7, *places))
    asked = asks(LIST_OFFSETS, 7, PLACES[0], client=b"another")
    here.exchange(asked, tells(LIST_OFFSETS, 7, REFUSED[0]))
    assert gateway.metadata(NOW) == NAMED


class Own:
    """A connection of the gateway's own."""

    def __init__(self, who: ClientIdentity, node_id: int) -> None:
        self.who, self.node_id = who, node_id
        self.asked = b""
        self.take: TakeReply = lambda *_: None

    def identity(self) -> ClientIdentity | None:
        return self.who

    def wait_left(self, _now: float) -> float:
        return 0.0

    def quiet(self, _now: float) -> bool:
        return True

    def ask(self, frame: bytes, take: TakeReply, _now: float, *, partitions: int = -1) -> None:
        assert partitions == 1
        self.asked, self.take = frame, take

    def count(self, _partitions: int, _record_bytes: int) -> None:
        pass


def own_connections(gateway: Gateway) -> list[Own]:
    """Let the gateway open connections of its own. Return a list that gets them."""
    own: list[Own] = []

    def connect(who: ClientIdentity, node_id: int) -> Own:
        own.append(Own(who, node_id))
        return own[-1]

    gateway.siblings.connect = connect
    return own


def test_rule_22_the_gateway_connects_if_the_client_has_not_authenticated() -> None:
    """Nothing tells its connection from one of the client's. Without a response, rule 5 holds."""
    for answers in (True, False):
        gateway = Gateway()
        own = own_connections(gateway)
        here = gateway.connect(HERE)
        here.client(asked := asks(LIST_OFFSETS, 5, PLACES[0])).to_broker(asked)
        here.broker(tells(LIST_OFFSETS, 5, REFUSED[0])).nothing()
        assert own[0].who == ClientIdentity(HOST, CLIENT, b"")
        assert own[0].node_id == LEADER
        assert own[0].asked == asks(LIST_OFFSETS, 5, PLACES[0], correlation=OURS)
        if answers:
            own[0].take(tells(LIST_OFFSETS, 5, PLACES[0], correlation=OURS), NOW)
            here.to_client(tells(LIST_OFFSETS, 5, PLACES[0]))
            assert gateway.metadata(NOW) == NAMED
        else:
            own[0].take(None, NOW)
            here.to_client(tells(LIST_OFFSETS, 5, REFUSED[0]))
            assert true_until(gateway, NOW + TRUE_SECONDS)


def test_rule_22_a_connection_of_the_client_comes_first_if_it_is_not_in_use() -> None:
    """A fetch that may wait for longer than the client would wait is in the way."""
    gateway = Gateway()
    own = own_connections(gateway)
    here, leader = gateway.connect(HERE), gateway.connect(LEADER)
    here.client(asked := asks(LIST_OFFSETS, 5, PLACES[0])).to_broker(asked)
    here.broker(tells(LIST_OFFSETS, 5, REFUSED[0])).nothing()
    leader.to_broker(asks(LIST_OFFSETS, 5, PLACES[0], correlation=OURS))
    leader.broker(tells(LIST_OFFSETS, 5, PLACES[0], correlation=OURS)).nothing()
    here.to_client(tells(LIST_OFFSETS, 5, PLACES[0]))
    assert own == []
    parked = fetch(12, (TOPIC, 0), max_wait_ms=5000, client="app")
    leader.client(parked).to_broker(parked)
    here.client(asked).to_broker(asked)
    here.broker(tells(LIST_OFFSETS, 5, REFUSED[0])).nothing()
    assert [each.node_id for each in own] == [LEADER]


@pytest.mark.parametrize("client", ["app", "other"])
def test_rule_23_without_a_connection_the_error_passes_and_metadata_is_true(client: str) -> None:
    """The connection of another client is none."""
    gateway = Gateway()
    here = gateway.connect(HERE)
    if client != CLIENT:
        gateway.connect(LEADER, client=client)
    here.exchange(asks(LIST_OFFSETS, 7, *PLACES), tells(LIST_OFFSETS, 7, REFUSED[0], PLACES[1], REFUSED[2]))
    assert true_until(gateway, NOW + TRUE_SECONDS)
    assert gateway.leaders.distrust.returns["offsets"] == 1


def test_rule_23_the_entries_of_one_leader_remain_if_another_does_not_answer() -> None:
    """Its connection ends, or it leads no more, or it takes too long."""
    for ending in ("closed", "moved", "late"):
        gateway = Gateway()
        here, leader, other = (gateway.connect(node_id) for node_id in (HERE, LEADER, OTHER))
        here.client(asked := asks(LIST_OFFSETS, 7, *PLACES)).to_broker(asked)
        here.broker(tells(LIST_OFFSETS, 7, REFUSED[0], PLACES[1], REFUSED[2])).nothing()
        leader.takes_broker()
        other.takes_broker()
        leader.broker(tells(LIST_OFFSETS, 7, PLACES[0], correlation=OURS)).nothing()
        if ending == "closed":
            other.connection.ended()
        elif ending == "moved":
            other.broker(tells(LIST_OFFSETS, 7, REFUSED[2], correlation=OURS)).nothing()
        else:
            here.connection.tick(NOW + ANSWER_SECONDS)
        here.to_client(tells(LIST_OFFSETS, 7, PLACES[0], PLACES[1], REFUSED[2]))
        assert gateway.metadata(NOW + TRUE_SECONDS - 0.001) == TRUE, ending


def test_rule_23_epochs_as_well() -> None:
    gateway = Gateway()
    here = gateway.connect(HERE)
    for _ in range(9):
        here.exchange(asks(FOR_EPOCH, 3, PLACES[0]), tells(FOR_EPOCH, 3, REFUSED[0]))
    assert true_until(gateway, NOW + TRUE_SECONDS)


def test_rule_23_a_client_that_authenticates_begins_at_the_leaders() -> None:
    """Until it fetches, it has no connection to them. The next Metadata names the replica."""
    gateway = Gateway()
    leader = gateway.connect(LEADER)
    handshake = request(17, 1, 5, b"\0\5PLAIN", b"app"), response(5, b"\0\0" + bytes(4))
    leader.exchange(*handshake)
    assert gateway.metadata(NOW, "another") == NAMED
    assert true_until(gateway, NOW + TRUE_SECONDS)
    leader.exchange(fetch(12, (TOPIC, 0), client="app"), full(12, [(TOPIC, 0)]))
    leader.now = NOW + TRUE_SECONDS
    gateway.connect(OTHER).exchange(*handshake)
    assert gateway.metadata(leader.now) == NAMED
    leader.connection.ended()
    other = gateway.connect(OTHER)
    other.now = leader.now
    other.exchange(*handshake)
    assert true_until(gateway, leader.now + TRUE_SECONDS)


@pytest.mark.parametrize("what", ["version", "question", "large question", "response", "large response"])
def test_rule_23_what_is_not_read_leads_to_the_leaders(what: str) -> None:
    """The error of the replica passes. Without true Metadata, the client would ask the replica for ever."""
    gateway = Gateway()
    here = gateway.connect(HERE)
    asked, told = asks(LIST_OFFSETS, 7, PLACES[0]), tells(LIST_OFFSETS, 7, REFUSED[0])
    if what == "version":
        asked = asked[:6] + (99).to_bytes(2) + asked[8:]
    elif what == "question":
        asked = framed(asked[4:] + b"?")
    elif what == "large question":
        asked = framed(asked[4:] + bytes(MAX_BYTES))
    else:
        told = framed(told[4:] + bytes(1 if what == "response" else MAX_BYTES))
    here.exchange(asked, told)
    assert true_until(gateway, NOW + TRUE_SECONDS)


def test_rule_25_who_often_asks_for_offsets_gets_true_metadata_for_an_hour() -> None:
    """Three times in five minutes. Several consumers of one client that start together count once."""
    gateway = Gateway()
    here = gateway.connect(HERE)
    for number in range(3):
        here.now = NOW + number * (TRUE_SECONDS + 1)
        for _ in range(4):
            assert gateway.metadata(here.now + TRUE_SECONDS) == NAMED
            here.exchange(asks(LIST_OFFSETS, 7, PLACES[0]), tells(LIST_OFFSETS, 7, REFUSED[0]))
            assert gateway.metadata(here.now) == TRUE
            if number == 2:
                break
    assert true_until(gateway, here.now + HOUR_SECONDS)


def test_rule_25_who_seldom_asks_does_not() -> None:
    gateway = Gateway()
    here = gateway.connect(HERE)
    for number in range(9):
        here.now = NOW + number * AGAIN_SECONDS / 2
        here.exchange(asks(LIST_OFFSETS, 7, PLACES[0]), tells(LIST_OFFSETS, 7, REFUSED[0]))
        assert true_until(gateway, here.now + TRUE_SECONDS)


def produce(acks: int, correlation: int = 5, client: bytes = b"app") -> bytes:
    part = b"\0\0\0\0" + b"\0\0\0\1" + b"r"
    topic = b"\0\0\0\1" + b"\0\6orders" + b"\0\0\0\1" + part
    return request(0, 7, correlation, b"\xff\xff" + acks.to_bytes(2, signed=True) + bytes(4) + topic, client)


def produced(error: int, partition: int = 0, correlation: int = 5) -> bytes:
    part = partition.to_bytes(4) + error.to_bytes(2) + b"\xff" * 24
    return response(correlation, b"\0\0\0\1" + b"\0\6orders" + b"\0\0\0\1" + part + bytes(4))


def test_rule_24_a_producer_gets_true_metadata_for_an_hour() -> None:
    """The error passes. Nothing is repeated, and one warning is given."""
    gateway = Gateway()
    here, leader = gateway.connect(HERE), gateway.connect(LEADER)
    here.exchange(produce(1), produced(0))
    here.exchange(produce(1), produced(6, partition=1))
    assert gateway.metadata(NOW) == NAMED
    for _ in range(3):
        here.exchange(produce(1), produced(6))
    leader.nothing()
    assert here.events(Noticed) == [no_consumer("PRODUCE")]
    assert true_until(gateway, NOW + HOUR_SECONDS)
    assert gateway.leaders.distrust.returns["no_consumer"] == 1


def test_rule_24_a_producer_that_is_here_again_has_to_connect_anew() -> None:
    """Another gateway at the same address has led it here. Another partition may have a new leader."""
    gateway = Gateway()
    here = gateway.connect(HERE)
    for now, partition in ((NOW, 0), (NOW + AWAY_SECONDS - 0.5, 0), (NOW + AWAY_SECONDS, 2)):
        here.now = now
        here.exchange(produce(1), produced(6, partition))
    assert here.connection.fault is None
    here.client(produce(1)).to_broker(produce(1)).broker(produced(6))
    assert here.connection.fault is not None


def test_rule_24_records_without_an_answer_show_it_themselves() -> None:
    """A follower would close the connection, and the producer would come back to it."""
    gateway = Gateway()
    here, leader = gateway.connect(HERE), gateway.connect(LEADER)
    leader.client(produce(0)).to_broker(produce(0))
    assert gateway.metadata(NOW) == NAMED
    here.client(produce(0)).to_broker(produce(0))
    assert here.events(Noticed) == [no_consumer("PRODUCE")]
    assert true_until(gateway, NOW + HOUR_SECONDS)


def test_rule_24_a_version_that_is_not_read_shows_it_itself() -> None:
    gateway = Gateway()
    here = gateway.connect(HERE)
    asked = request(21, 3, 5, b"\0?", b"app")
    here.client(asked).to_broker(asked)
    assert here.events(Noticed) == [no_consumer("DELETE_RECORDS")]
    assert true_until(gateway, NOW + HOUR_SECONDS)


def test_rule_24_delete_records_and_share_fetch_as_well() -> None:
    gateway = Gateway()
    here = gateway.connect(HERE)
    part = b"\0\0\0\0" + b"\xff" * 8 + b"\0\6"
    told = response(5, bytes(4) + b"\0\0\0\1" + b"\0\6orders" + b"\0\0\0\1" + part)
    here.exchange(request(21, 0, 5, b"?", b"app"), told)
    assert here.events(Noticed) == [no_consumer("DELETE_RECORDS")]
    for api_key, version, name in ((78, 1, "SHARE_FETCH"), (61, 0, "DESCRIBE_PRODUCERS")):
        gateway = Gateway()
        here = gateway.connect(HERE)
        asked = request(api_key, version, 5, b"\0?", b"app")
        here.client(asked).to_broker(asked)
        assert here.events(Noticed) == [no_consumer(name)]
        assert true_until(gateway, NOW + HOUR_SECONDS)


def test_rule_24_other_clients_produce_on_the_fast_path() -> None:
    """Until a reload names them."""
    gateway = Gateway()
    here = gateway.connect(HERE, client="producer", core=Twin)
    for number in range(6):
        here.exchange(produce(1, number, b"producer"), produced(6, correlation=number))
    assert here.connection.passed > 5
    assert gateway.metadata(NOW) == NAMED
    gateway.clients.add("producer")
    for stage in gateway.stages:
        stage.forget_plans()
    here.exchange(produce(1, 9, b"producer"), produced(6, correlation=9))
    assert here.events(Noticed) == [no_consumer("PRODUCE")]


def test_rule_26_the_replica_gets_v11_for_v10() -> None:
    """On connections to it only, and for named clients."""
    gateway = Gateway()
    here, leader = gateway.connect(HERE), gateway.connect(LEADER)
    wants = (TOPIC, 0)
    here.client(fetch(10, wants, client="app")).to_broker(fetch(11, wants, client="app"))
    here.broker(fetch_response(11, (TOPIC, [entry(0, 9, records=b"r" * 99)])))
    here.to_client(fetch_response(10, (TOPIC, [entry(0, 9, records=b"r" * 99)])))
    leader.exchange(fetch(10, wants, client="app"), full(10, [wants]))
    gateway.connect(HERE).exchange(fetch(10, (TOPIC, 1), client="app"), full(10, [(TOPIC, 1)]))
    not_known = fetch(10, ("new", 1), client="app"), fetch(11, ("new", 1), client="app")
    gateway.connect(HERE).client(not_known[0]).to_broker(not_known[1])
    gateway.connect(HERE, client="b").exchange(fetch(10, wants, client="b"), full(10, [wants]))


def test_rule_26_a_broker_without_v11_gets_v10() -> None:
    here = Gateway(fetch_max=10).connect(HERE)
    here.exchange(fetch(10, (TOPIC, 0), client="app"), full(10, [(TOPIC, 0)]))


def test_rule_26_a_broker_whose_release_is_not_known_gets_v11() -> None:
    """kafka-python 2 asks only the bootstrap for versions. Followers serve consumers from Kafka 2.4 on."""
    gateway = Gateway()
    here = gateway.connect(HERE)
    gateway.versions.features = None
    here.client(fetch(10, (TOPIC, 0), client="app")).to_broker(fetch(11, (TOPIC, 0), client="app"))
    here.broker(full(11, [(TOPIC, 0)])).to_client(full(10, [(TOPIC, 0)]))


@pytest.mark.parametrize("version", [0, 3, 4, 9])
def test_rule_26_a_client_of_older_fetches_gets_true_metadata(version: int) -> None:
    """No follower answers them."""
    gateway = Gateway()
    here, leader = gateway.connect(HERE), gateway.connect(LEADER)
    asked = fetch(version, (TOPIC, 0), client="app") if version >= 4 else request(1, version, 1, b"?", b"app")
    told = full(version, [(TOPIC, 0)]) if version >= 4 else response(1, b"?")
    leader.exchange(asked, told)
    assert gateway.metadata(NOW) == NAMED
    here.exchange(asked, told).exchange(asked, told)
    assert true_until(gateway, NOW + HOUR_SECONDS)
    assert gateway.leaders.distrust.returns["old_fetch"] == 1
