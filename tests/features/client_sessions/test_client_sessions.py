"""Tests of the sessions that the gateway gives to clients, through the complete core.

Some brokers have sessions, others have none.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from proxy.core.connection import Connection
from proxy.core.eligibility import SessionLimits
from proxy.features.client_sessions.cache import MAX_LEFT, FetchSessionCache
from proxy.features.client_sessions.manager import FetchManager
from proxy.features.client_sessions.stage import ClientSessions
from proxy.protocol.fetch_request import MAX_TOPICS
from tests.connections import connect
from tests.features.client_sessions.cases import Case, every_case
from tests.features.client_sessions.modelled import Modelled, parked
from tests.features.client_sessions.script import Script, Server
from tests.features.client_sessions.serving import Finish
from tests.frames import fetch, fetch_response
from tests.model.asker import Requests, Want, entries, sizes, summary
from tests.model.broker import FETCH_SESSION_ID_NOT_FOUND, ModelBroker
from tests.model.gate import Gate, count, framed, unframed
from tests.model.wire import (
    FetchRequest,
    FetchResponse,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from tests.playbook import Playbook, full
from tests.sessionless import API_VERSIONS


@dataclass
class Gateway:
    """The connections of one gateway process to one broker."""

    broker: ModelBroker
    asks_broker: bool = False
    slots: int = 1000
    chance: random.Random | None = None
    asks_versions: bool = True
    gates: list[Gate] = field(default_factory=list)
    idle: list[Gate] = field(default_factory=list)

    def __post_init__(self) -> None:
        cache = FetchSessionCache(random.Random(0).randint, slots=self.slots)
        self.manager = FetchManager(cache, asks_broker=self.asks_broker)
        self.limits = SessionLimits(max_sessions=10)

    def connect(self) -> Gate:
        stages = (partial(ClientSessions, self.manager),)
        connection = connect(sessions=self.limits, resolve=None, stages=stages, name="b:1")
        gate = Gate(connection, self.broker, self.chance)
        if self.asks_versions:
            gate.exchange([API_VERSIONS], 0.0)
        self.gates.append(gate)
        return gate

    def begin(self, message: bytes) -> Finish:
        """Send a fetch on an idle connection.

        Returns:
            A function that waits for the response and returns it.
        """
        gate = self.idle.pop() if self.idle else self.connect()
        gate.connection.receive_client(framed(message), 0.0)

        def finish() -> bytes:
            (response,) = unframed(gate.settle(0.0))
            count(gate.counted.client, message, response)
            self.idle.append(gate)
            return response

        return finish

    def check(self) -> None:
        """Check the byte counts of all connections, and that no connection is busy after it is closed."""
        for gate in self.gates:
            gate.check_tally()
            gate.close(0.0)
            assert not gate.connection.state.busy


def script(world: Modelled, gateway: Gateway, version: int) -> Script:
    return Script(
        version=version,
        world=world,
        expected=Server(lambda message: parked(world.native, message), "native"),
        ours=Server(gateway.begin, "ours"),
    ).with_topics()


@every_case()
@pytest.mark.parametrize("asks_broker", [False, True])
def test_over_a_broker_without_slots(case: Case, version: int, *, asks_broker: bool) -> None:
    """Cases 14 to 48: the gateway gives sessions to clients although the broker has no session slots."""
    world = Modelled()
    gateway = Gateway(world.bare, asks_broker=asks_broker)

    case(script(world, gateway, version))

    gateway.check()
    assert not world.bare.cache.sessions


@every_case()
def test_in_pieces_of_any_size(case: Case, version: int) -> None:
    world = Modelled()
    gateway = Gateway(world.bare, chance=random.Random(version))

    case(script(world, gateway, version))

    gateway.check()


@every_case()
def test_over_sessions_with_the_broker(case: Case, version: int) -> None:
    """A client has a session with the gateway while the gateway has a session with the broker.

    Section 6.11: the two sessions are independent.
    """
    world = Modelled()
    world.bare = ModelBroker(topics=world.native.topics, denied=world.native.denied)
    gateway = Gateway(world.bare)

    case(script(world, gateway, version))

    gateway.check()


OTHERWISE_IN_1 = (
    *("names_and_ids_do_not_mix", "versions_may_change_within_names_or_ids"),  # v7 alone
    *("a_throttled_full_fetch_makes_nothing", "what_was_throttled_comes_next"),  # late, and not empty
    # Errors without a read have null aborted transactions, or stand elsewhere.
    *("an_error_while_it_lasts", "a_deleted_topic_by_name", "order_of_the_request_then_of_the_session"),
)


@pytest.mark.parametrize("release", ["1.0", "1.1"])
@every_case(7)
def test_v7_over_kafka_1_0_and_1_1(case: Case, version: int, release: str) -> None:
    """Trap 4: a v7 client gets a session from the gateway, although the broker gives none.

    The broker is Kafka 1.0 with v6, or Kafka 1.1 without session slots.
    """
    if case.__name__ in OTHERWISE_IN_1:
        return
    world = Modelled()
    world.bare = ModelBroker(release=release, slots=0, topics=world.native.topics)
    gateway = Gateway(world.bare, asks_broker=True)
    made = script(world, gateway, version)
    made.isolation_level = 1  # up to 2.0 the LSO is -1 for read_uncommitted

    case(made)

    gateway.check()
    assert gateway.manager.raised == (release == "1.0")


class Client(Requests):
    """A client with one Fetch version and one open connection."""

    def __init__(self, gateway: Gateway, version: int = 12) -> None:
        super().__init__(version=version)
        self.gateway = gateway
        self.ids = {name: topic.topic_id for name, topic in gateway.broker.topics.items()}
        self.gate = gateway.connect()

    def send(self, request: FetchRequest) -> FetchResponse:
        (response,) = self.gate.exchange([encode_request(request)], 0.0)
        return decode_response(response, request.version)


def broker(release: str = "4.3", slots: int = 0) -> ModelBroker:
    made = ModelBroker(release=release, slots=slots)
    made.create_topic("foo", 3)
    return made


FOO: tuple[Want, ...] = (("foo", 0), ("foo", 1), ("foo", 2))


def served(slots: int = 0) -> tuple[Gateway, Client, int]:
    """Return a client with a session that the gateway gives, and its id. The broker has `slots`."""
    gateway = Gateway(broker(slots=slots))
    client = Client(gateway)
    return gateway, client, client.fetch(*FOO, session=(0, 0)).session_id


def test_a_brokers_own_session_passes() -> None:
    """Trap 43: with `auto`, the fetches of a session between client and broker are forwarded.

    The gateway keeps no session of its own for the client.
    """
    gateway = Gateway(broker(slots=1000), asks_broker=True)
    client = Client(gateway)
    first = client.fetch(*FOO, session=(0, 0))
    assert first.session_id in gateway.broker.cache.sessions
    for epoch in (1, 2):
        assert summary(client.fetch(session=(first.session_id, epoch))) == (0, first.session_id, 0)
    assert summary(client.fetch(session=(first.session_id, 9))) == (71, 0, 0)
    assert summary(client.fetch(session=(first.session_id, -1))) == (0, 0, 0)

    assert (len(gateway.manager.cache), gateway.broker.cache.sessions) == (0, {})
    gateway.check()


def test_a_session_of_the_brokers_and_then_one_of_the_gateways() -> None:
    """A client changes from a broker's session to a gateway's session, and back to a broker's session.

    The gateway gives the client a session while the broker has no free slots.
    """
    gateway = Gateway(broker(slots=1000), asks_broker=True)
    client = Client(gateway)
    native = client.fetch(*FOO, session=(0, 0)).session_id
    gateway.broker.cache.remove(gateway.broker.cache.sessions[native])
    for shard in gateway.broker.cache.shards:
        shard.slots = 0
    assert summary(client.fetch(session=(native, 1))) == (70, 0, 0)

    ours = client.fetch(*FOO, session=(native, 0)).session_id
    assert gateway.manager.cache.get(ours) is not None
    assert summary(client.fetch(session=(ours, 1))) == (0, ours, 0)
    for shard in gateway.broker.cache.shards:
        shard.slots = 10
    native = client.fetch(*FOO, session=(ours, 0)).session_id
    assert (len(gateway.manager.cache), list(gateway.broker.cache.sessions)) == (0, [native])
    assert summary(client.fetch(session=(native, 1))) == (0, native, 0)
    gateway.check()


def test_with_on_the_brokers_sessions_are_not_the_clients() -> None:
    gateway, client, made = served(slots=1000)

    assert gateway.manager.cache.get(made) is not None
    assert not gateway.broker.cache.sessions
    assert summary(client.fetch(session=(made ^ 1, 1))) == (70, 0, 0)


def test_a_session_outlives_its_connection() -> None:
    """Trap 20: a client can continue its session with the gateway on another connection.

    The Java client does this.
    """
    gateway, client, made = served()
    assert summary(client.fetch(session=(made, 1))) == (0, made, 0)
    client.gate.close(0.0)

    client.gate = gateway.connect()
    gateway.broker.partition("foo", 1).append(b"data")
    assert sizes(client.fetch(session=(made, 2))) == [4]


def test_v7_before_the_versions_are_known_on_this_connection() -> None:
    """A client may use v7 although the broker's versions are not known on its connection.

    The condition is that the gateway has offered v7 on an earlier connection to this broker.
    """
    gateway = Gateway(broker("1.0"), asks_broker=True)
    Client(gateway, 7)
    assert gateway.manager.raised
    gateway.asks_versions = False

    client = Client(gateway, 7)
    seen: list[bytes] = []
    client.gate.before = seen.append
    made = client.fetch(*FOO, session=(0, 0)).session_id
    assert summary(client.fetch(session=(made, 1))) == (0, made, 0)
    assert summary(client.fetch(("foo", 0), session=(0, -1))) == (0, 0, 1)
    assert summary(client.fetch(session=(5, 1))) == (70, 0, 0)
    assert {int.from_bytes(fetch[2:4]) for fetch in seen} == {6}  # each broker since 1.0 has v6


def test_before_a_broker_without_sessions_who_floods_still_gets_them() -> None:
    """The broker can give no session, and a client that was refused one may never ask again (franz-go)."""
    gateway = Gateway(broker("1.0"), asks_broker=True)
    client = Client(gateway, 7)

    assert all(client.fetch(*FOO, session=(0, 0)).session_id for _ in range(6))
    assert len(gateway.manager.cache) == 1


def test_a_client_without_sessions_before_a_broker_without() -> None:
    """Law 1: a v7 client without a session gets the broker's partitions unchanged from a v6 broker.

    The gateway sends v6 fetches to the broker, and the client gets v7 responses.
    """
    gateway = Gateway(broker("1.0"), asks_broker=True)
    client = Client(gateway, 7)
    for number in range(5):
        gateway.broker.partition("foo", number % 3).append(b"data")
        told = client.fetch(*FOO, session=(0, -1))
        assert told.topics == gateway.broker.fetch(client.request(*FOO), 0.0).topics
    assert (len(gateway.manager.cache), client.gate.connection.state.fetch_version) == (0, 6)
    gateway.check()


@pytest.mark.parametrize("message", ["followers", "too large", "not read"])
def test_what_can_not_be_taken_to_v6_ends_the_connection(message: str) -> None:
    """The connection is closed if a v7 fetch can't be converted to v6. A broker would also close it."""
    gateway = Gateway(broker("1.0"), asks_broker=True)
    client = Client(gateway, 7)
    sent = framed(encode_request(client.request(*FOO, session=(0, 0), replica_id=3)))
    if message == "too large":
        sent = (1 << 21).to_bytes(4) + sent[4:]
    elif message == "not read":
        sent = framed(encode_request(client.request(*FOO, session=(0, 0)))[:-2])
    client.gate.connection.receive_client(sent, 0.0)

    fault = client.gate.connection.state.fault
    assert fault is not None
    assert "broker without sessions" in fault.reason


def test_fetches_that_come_together_are_served_one_after_the_other() -> None:
    """Trap 16: if several fetches arrive in one read, the gateway answers them in order, as a broker does."""
    gateway, client, made = served()
    gateway.broker.partition("foo", 1).append(b"data")

    requests = [client.request(session=(made, epoch)) for epoch in (1, 2, 3)]
    requests[1] = client.request(("foo", 1, 1), session=(made, 2))
    together = b"".join(framed(encode_request(request)) for request in requests)
    client.gate.connection.receive_client(together[:-3], 0.0)
    assert not client.gate.connection.state.reads_client
    client.gate.connection.receive_client(together[-3:], 0.0)
    responses = unframed(client.gate.settle(0.0))

    told = [decode_response(response, 12) for response in responses]
    assert [summary(each) for each in told] == [(0, made, 1), (0, made, 0), (0, made, 0)]
    assert [each.correlation_id for each in told] == [request.correlation_id for request in requests]
    assert client.gate.connection.state.reads_client


@pytest.mark.parametrize("last", ["fetch", "versions"])
def test_what_a_client_sent_before_it_closed_its_writing_half_is_answered(last: str) -> None:
    """Section 1.7: a client gets all responses to requests that it sent before it half-closed its connection.

    A broker does the same. The second fetch waits for the response to the first.
    """
    gateway, client, made = served()
    gateway.broker.partition("foo", 1).append(b"data")
    requests = [
        encode_request(client.request(session=(made, 1))),
        encode_request(client.request(("foo", 1, 1), session=(made, 2))),
        *([API_VERSIONS] if last == "versions" else []),
    ]
    connection = client.gate.connection
    connection.receive_client(b"".join(map(framed, requests)), 0.0)
    connection.client_ended()
    connection.close_session(0.0)
    assert not connection.state.done

    responses = unframed(client.gate.settle(0.0))

    assert [response[:4] for response in responses] == [request[4:8] for request in requests]
    told = [decode_response(response, 12) for response in responses[:2]]
    assert [summary(each) for each in told] == [(0, made, 1), (0, made, 0)]
    assert connection.state.done
    assert not connection.state.busy


def test_what_waits_is_dropped_with_a_client_that_is_gone() -> None:
    _, client, made = served()
    requests = [encode_request(client.request(session=(made, epoch))) for epoch in (1, 2)]
    client.gate.connection.receive_client(b"".join(map(framed, requests)), 0.0)
    client.gate.connection.close_session(0.0)

    assert len(unframed(client.gate.settle(0.0))) == 1
    assert client.gate.connection.state.done


def test_a_whole_read_waits_and_other_requests_behind_it() -> None:
    _, client, made = served()
    connection = client.gate.connection
    connection.receive_client(framed(encode_request(client.request(session=(made, 1)))), 0.0)
    connection.receive_client(framed(encode_request(client.request(session=(made, 2)))), 0.0)
    connection.receive_client(framed(API_VERSIONS), 0.0)
    assert len(b"".join(map(bytes, connection.to_broker))) < 300

    first, second, third = unframed(client.gate.settle(0.0))
    assert summary(decode_response(first, 12)) == summary(decode_response(second, 12)) == (0, made, 0)
    assert third[:4] == API_VERSIONS[4:8]


def test_errors_leave_in_their_turn() -> None:
    """An error response of the gateway waits until the responses to earlier requests are sent.

    The gateway knows this response at once, without the broker.
    """
    gateway = Gateway(broker())
    client = Client(gateway)
    requests = [
        API_VERSIONS,
        encode_request(client.request(session=(7, 1))),
        encode_request(client.request(*FOO, session=(0, 0))),
    ]
    versions, error, full = client.gate.exchange(requests, 0.0)

    assert versions[:4] == API_VERSIONS[4:8]
    assert summary(decode_response(error, 12)) == (70, 0, 0)
    assert len(entries(decode_response(full, 12))) == 3


def test_who_asks_each_time_and_uses_none_has_no_session() -> None:
    """Section 6.7: a client that requests a session with each fetch, and uses none, gets no more of them.

    Otherwise this client would fill the slots.
    """
    gateway = Gateway(broker(), asks_broker=True)
    client = Client(gateway)
    ids = [client.fetch(*FOO, session=(0, 0)).session_id for _ in range(6)]

    assert [bool(session_id) for session_id in ids] == [True] * 3 + [False] * 3
    assert len(gateway.manager.cache) == 0
    # Another connection, another client.
    assert Client(gateway).fetch(*FOO, session=(0, 0)).session_id > 0


@pytest.mark.parametrize("ended", ["closed", "emptied"])
def test_who_ends_its_sessions_gets_others(ended: str) -> None:
    """Section 6.7: a client that closes its sessions gets new ones, because it does not fill the slots."""
    gateway = Gateway(broker(), asks_broker=True)
    client = Client(gateway)
    for _ in range(6):
        made = client.fetch(*FOO, session=(0, 0)).session_id
        assert made > 0
        if ended == "closed":
            client.fetch(session=(made, -1))
        else:
            client.fetch(session=(made, 1), forget=[("foo", index) for index in range(3)])
    assert len(gateway.manager.cache) == 0


@pytest.mark.parametrize("steps", [(), ("data",), ("evicted",), ("data", "evicted")])
def test_a_session_with_the_broker_below_one_with_the_client(steps: tuple[str, ...]) -> None:
    """Section 6.11: if the broker evicts its session with the gateway, the client's session continues."""
    gateway, client, made = served(slots=1000)
    for epoch in range(1, 12):
        if "data" in steps and epoch % 3 == 0:
            gateway.broker.partition("foo", 2).append(b"data")
        if "evicted" in steps and epoch % 4 == 0:
            for session in list(gateway.broker.cache.sessions.values()):
                gateway.broker.cache.remove(session)
        told = client.fetch(session=(made, epoch))
        assert (told.error_code, told.session_id) == (0, made)
        assert {data.partition_index for data in entries(told)} <= {2}
    tally = client.gate.connection.tally
    assert tally.client.fetches[1] == 11
    assert tally.broker.fetches[1] > 0
    gateway.check()


def test_the_clients_of_hostile_bytes_only_hurt_themselves() -> None:
    """One client sends random fetches, with any session and any list. They cause no fault.

    Another client of the gateway is not affected.
    """
    gateway = Gateway(broker(), asks_broker=True, slots=16)
    chance = random.Random(3)
    client = Client(gateway)
    other = Client(gateway)
    made = other.fetch(*FOO, session=(0, 0)).session_id
    other.fetch(session=(made, 1))
    for _ in range(300):
        numbers = [chance.choice([0, 1, -1, 2**31 - 1]) for _ in range(chance.randint(0, 3))]
        wants: list[Any] = [("foo", number) for number in numbers]
        session = (chance.choice([0, 0, made, 5, -1]), chance.choice([0, 0, 1, -1, 7, 2**31 - 1, -9]))
        forget = [("foo", chance.choice([0, -1]))] if chance.random() < 0.3 else []
        if session == (made, 2) or (session[0] == made and session[1] in (0, -1)):
            continue
        client.fetch(*wants, session=session, forget=forget)
    assert len(gateway.manager.cache) <= 16
    assert summary(other.fetch(session=(made, 2))) == (0, made, 0)


def test_requests_are_those_of_a_client_without_sessions() -> None:
    """The gateway sends sessionless fetches (0, -1), so that the broker's responses are full.

    With `auto`, the client's own first fetch (0, 0) is forwarded.
    """
    for asks_broker, epoch in ((False, -1), (True, 0)):
        gateway = Gateway(broker(), asks_broker=asks_broker)
        client = Client(gateway)
        seen: list[FetchRequest] = []

        def note(message: bytes, seen: list[FetchRequest] = seen) -> None:
            seen.append(decode_request(message))

        before: Callable[[bytes], None] = note
        client.gate.before = before
        made = client.fetch(*FOO, session=(0, 0)).session_id
        client.fetch(session=(made, 1))
        assert [(each.session_id, each.session_epoch) for each in seen] == [(0, epoch), (0, -1)]
        assert seen[0].topics == seen[1].topics


LONG: tuple[Want, ...] = tuple((f"t{number}", 0) for number in range(MAX_TOPICS + 1))
"""A list with more topics than the gateway parses. The gateway forwards such a fetch unparsed."""


@pytest.mark.parametrize(
    ("version", "large", "seed"),
    [(7, False, None), (12, False, 5), (15, False, None), (7, True, None), (12, True, 5)],
)
def test_with_on_a_list_that_is_not_read_gets_no_session_of_the_brokers(
    version: int, large: bool, seed: int | None
) -> None:
    """With `on`, a fetch whose list is too long gets no session from the broker.

    If the client got one, each of its next fetches would get error 70, and leave a new session at the broker.
    """
    gateway = Gateway(broker(slots=1000), chance=None if seed is None else random.Random(seed))
    client = Client(gateway, version)
    names = [f"{'x' * 240 if large else ''}{number}" for number in range(4096 if large else MAX_TOPICS + 1)]
    client.ids |= {name: number.to_bytes(16) for number, name in enumerate(names, 1)}
    wants: list[Want] = [(name, 0) for name in names]
    request = client.request(*wants, session=(0, 0))
    assert (len(encode_request(request)) > 1 << 20) == large

    told = client.send(request)

    assert (told.error_code, told.session_id, len(entries(told))) == (0, 0, len(wants))
    assert not gateway.broker.cache.sessions


def test_a_session_that_grows_beyond_what_is_read_ends_and_its_client_begins_again() -> None:
    gateway, client, made = served(slots=1000)

    told = client.fetch(*LONG, session=(made, 1))

    assert (told.error_code, told.session_id, len(entries(told))) == (0, 0, len(LONG))
    assert len(gateway.manager.cache) == len(gateway.broker.cache.sessions) == 0
    assert client.fetch(*FOO, session=(0, 0)).session_id > 0


def test_followers_keep_what_they_say_of_their_session() -> None:
    """Trap 2: the session fields of a follower's fetch are forwarded unchanged.

    This is also true if the gateway does not parse the fetch's list.
    """
    gateway = Gateway(broker(slots=1000))
    client = Client(gateway, 12)
    seen: list[bytes] = []
    client.gate.before = seen.append
    request = client.request(*LONG, session=(0, 0), replica_id=3)

    client.send(request)

    assert seen == [encode_request(request)]


def test_with_on_who_floods_once_is_not_led_to_a_session_of_the_brokers() -> None:
    """Section 6.7: with `on`, a client that requests too many sessions gets none from the broker either.

    The client sends (0, 0) each time. If it got a session of the broker, the gateway would refuse the fetches
    of that session.
    """
    gateway = Gateway(broker(slots=1000))
    client = Client(gateway)
    ids = [client.fetch(*FOO, session=(0, 0)).session_id for _ in range(6)]

    assert [bool(session_id) for session_id in ids] == [True] * 3 + [False] * 3
    gateway.check()
    assert not gateway.broker.cache.sessions


def test_a_broker_and_the_gateway_never_give_one_id_to_two_clients() -> None:
    """If a broker has given a session id to one client, the gateway never gives this id to another.

    An incremental fetch contains only the id, so one client would get the other client's partitions.
    """
    ids = iter([5, 5, 6])
    gateway = Gateway(broker(slots=1000), asks_broker=True)
    gateway.manager.cache = FetchSessionCache(lambda first, last: next(ids, last))
    native = Client(gateway)
    theirs = native.fetch(*FOO, session=(0, 0)).session_id
    ids = iter([theirs] * 8 + [6])
    for shard in gateway.broker.cache.shards:
        shard.slots = 0

    served = Client(gateway)
    ours = served.fetch(("foo", 2), session=(0, 0)).session_id

    assert ours == 6
    assert summary(served.fetch(session=(ours, 1))) == (0, ours, 0)
    gateway.broker.partition("foo", 0).append(b"data")
    assert sizes(native.fetch(session=(theirs, 1))) == [4]


def test_a_session_gives_way_to_one_of_the_brokers_that_has_its_id() -> None:
    gateway = Gateway(broker(slots=0), asks_broker=True)
    served = Client(gateway)
    ours = served.fetch(("foo", 2), session=(0, 0)).session_id
    native = Client(gateway)
    broken = gateway.broker.cache
    request = native.request(*FOO, session=(0, 0))
    connection = native.gate.connection
    connection.receive_client(framed(encode_request(request)), 0.0)
    connection.drain_broker()
    full = gateway.broker.handle(encode_request(native.request(*FOO)), 0.0)
    told = replace(decode_response(full, 12), session_id=ours, correlation_id=request.correlation_id)
    connection.receive_broker(framed(encode_response(told)), 0.0)

    assert not broken.sessions
    assert gateway.manager.cache.get(ours) is None
    assert summary(served.fetch(session=(ours, 1)))[0] == 70


def test_the_ids_of_brokers_sessions_are_remembered_within_bounds() -> None:
    cache = FetchSessionCache(lambda first, last: last)
    for session_id in [1, *range(2, MAX_LEFT + 1), 1, *range(MAX_LEFT + 1, MAX_LEFT + 9)]:
        cache.leave(session_id)
    assert len(cache._left) == MAX_LEFT
    assert 1 in cache._left
    assert 2 not in cache._left


def test_what_the_gateway_answers_itself_is_in_no_size() -> None:
    """A session error of the gateway is not a part of the next response's size."""
    manager = FetchManager(FetchSessionCache(random.Random(0).randint, slots=10))
    stages = (partial(ClientSessions, manager),)
    play = Playbook(stages=stages, name="b:1", core=Connection).knows()
    play.client(fetch(12, session=(7, 3), correlation=2))
    error = fetch_response(12, error_code=FETCH_SESSION_ID_NOT_FOUND, correlation_id=2)
    assert play.takes_client() == error
    asked, told = fetch(12, ("t", 0), correlation=3), full(12, [("t", 0)], correlation_id=3)
    play.exchange(asked, told)
    play.measured.settle()
    assert play.measured.response_bytes_client.total == len(told)
