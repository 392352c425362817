"""A client with key ranges of its own: refused requests, delayed responses, and the order of commits."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pytest

from proxy.core.connection import Connection
from proxy.core.eligibility import SessionLimits
from proxy.core.in_flight import AT_ONCE, MAX_IN_FLIGHT
from proxy.features.cooperative.declared import NamedLane
from proxy.features.cooperative.key_hash import murmur2
from proxy.features.cooperative.member_stage import MAX_HELD, MAX_READ, MemberStage
from proxy.features.cooperative.members import Members
from proxy.features.cooperative.offsets import (
    Entry,
    read_answered,
    read_commit,
    read_fetched_offsets,
    read_offset_fetch,
)
from proxy.features.cooperative.positions import Positions, committed_metadata, read_committed
from proxy.features.cooperative.ranges import FULL
from proxy.features.cooperative.tally import GroupNotice
from proxy.protocol.primitives import Buffer
from tests.connections import connect
from tests.features.cooperative.batch import Record, batch, read
from tests.model.broker import ModelBroker
from tests.model.gate import Gate, framed, unframed
from tests.model.wire import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    decode_request,
    decode_response,
    encode_request,
)

ALL = "x.kr-0-ffffffff"
LOW, HIGH = "x.kr-0-7fffffff", "x.kr-80000000-ffffffff"
TOPIC = b"orders"
WAIT_MS = 500


class Shared:
    """One gateway, and the connections of its clients."""

    def __init__(self) -> None:
        self.told: list[str] = []
        """Messages about refused clients."""
        self.groups: list[tuple[GroupNotice, str, str]] = []
        """Events of groups that the gateway reported."""
        self.members = Members(["billing", "audit"], tell=self._tell)
        self.woken: list[float] = []

    def _tell(self, what: GroupNotice, who: str, text: str) -> None:
        if what is GroupNotice.REFUSED:
            self.told.append(text)
        else:
            self.groups.append((what, who, text))

    def connection(self, host: str = "h") -> Connection:
        made = connect(
            sessions=SessionLimits(max_sessions=0),
            resolve=None,
            host=host,
            stages=(partial(MemberStage, self.members),),
        )
        self.alarms: list[float] = []
        made.attach(lambda: self.woken.append(1), self.alarms.append)
        return made


@pytest.fixture
def shared() -> Shared:
    return Shared()


def fetch(client_id: str, version: int = 11, offset: int = 0, session: tuple[int, int] = (0, -1)) -> bytes:
    return framed(
        encode_request(
            FetchRequest(
                version=version,
                client_id=client_id,
                max_wait_ms=WAIT_MS,
                session_id=session[0],
                session_epoch=session[1],
                topics=(
                    FetchTopic(
                        topic=TOPIC.decode(),
                        partitions=(
                            FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20),
                        ),
                    ),
                ),
            )
        )
    )


def header(key: int, version: int, client_id: str, correlation: int = 7) -> bytes:
    name = client_id.encode()
    return key.to_bytes(2) + version.to_bytes(2) + correlation.to_bytes(4) + len(name).to_bytes(2) + name


def string(text: bytes) -> bytes:
    return len(text).to_bytes(2) + text


def commit(client_id: str, offset: int, group: bytes = b"billing", correlation: int = 7) -> bytes:
    """Build an OffsetCommit v3 request of generation 1. v3 has the field retention_time_ms."""
    entries = (1).to_bytes(4) + string(TOPIC) + (1).to_bytes(4)
    entries += bytes(4) + offset.to_bytes(8, signed=True) + string(b"")
    body = string(group) + (1).to_bytes(4) + string(b"m") + (-1).to_bytes(8, signed=True) + entries
    return framed(header(8, 3, client_id, correlation) + body)


def sent(connection: Connection) -> list[bytes]:
    """Return the complete frames that the gateway sends to the broker."""
    return list(map(framed, unframed(b"".join(connection.drain_broker()))))


def got(connection: Connection) -> list[bytes]:
    return list(map(framed, unframed(b"".join(connection.drain_client()))))


def offsets(
    request: bytes, offset: int, metadata: bytes = b"", slots: Mapping[int, bytes] | None = None
) -> bytes:
    """Build the response to an OffsetFetch v2 of the gateway. Each slot has its metadata."""
    (asked,) = read_offset_fetch(request).groups
    assert asked.group == b"billing"
    body = len(asked.entries).to_bytes(4)
    for each in asked.entries:
        at, text = (offset, metadata) if each.topic == TOPIC else (-1, (slots or {}).get(each.partition, b""))
        body += string(each.topic) + (1).to_bytes(4) + each.partition.to_bytes(4)
        body += at.to_bytes(8, signed=True) + string(text) + bytes(2)
    return framed(request[8:12] + body + bytes(2))


def committed(request: bytes, error: int = 0) -> bytes:
    """Build the response to an OffsetCommit v3."""
    said = read_commit(request)
    return said.response([error] * len(said.entries))


def entry(request: bytes) -> Entry:
    """Return what a commit writes for the partition of the topic."""
    (found,) = (each for each in read_commit(request).entries if each.topic == TOPIC)
    return found


# Who has a lane


def test_a_client_without_ranges_is_none_of_its_business(shared: Shared) -> None:
    one = shared.connection()
    frame = fetch("plain", 13, session=(5, 3))
    for at in range(len(frame)):
        one.receive_client(frame[at : at + 1], 1.0)
    assert b"".join(one.drain_broker()) == frame
    assert one.state.client_id == "plain"


@pytest.mark.parametrize("cut", [1, 7, 1 << 20])
def test_without_the_option_nothing_is_read_of_it(cut: int) -> None:
    """Case C46: without `--cooperative`, a client.id has no meaning, and all requests are forwarded
    unchanged.
    """
    one = connect(sessions=SessionLimits(max_sessions=0), resolve=None)
    frames = fetch("billing.kr-9-1") + commit(LOW, 5) + framed(header(11, 2, LOW) + b"whatever") + fetch(LOW)
    passed: list[Buffer] = []
    for at in range(0, len(frames), cut):
        one.receive_client(frames[at : at + cut], 1.0)
        passed += one.drain_broker()
    assert b"".join(passed) == frames


def test_bytes_of_another_protocol_are_passed_on() -> None:
    one = connect(
        sessions=SessionLimits(max_sessions=0),
        resolve=None,
        maybe_not_kafka=True,
        stages=(partial(MemberStage, Members(["g"])),),
    )
    one.receive_client(b"GET / HTTP/1.1\r\n\r\n", 1.0)
    assert b"".join(one.drain_broker()) == b"GET / HTTP/1.1\r\n\r\n"
    assert one.wire


def test_tokens_without_frames_pass_for_a_client_without_a_lane(shared: Shared) -> None:
    """KIP-43: SASL tokens of a client without key ranges are forwarded. After SaslHandshake v0 they have only
    a length prefix.
    """
    one = shared.connection()
    handshake = framed(header(17, 0, "plain") + string(b"PLAIN"))
    one.receive_client(handshake, 1.0)
    assert sent(one) == [handshake]
    one.receive_broker(framed(handshake[8:12] + bytes(6)), 1.0)
    token = framed(b"\0alice\0secret")
    one.receive_client(token, 1.0)
    assert (b"".join(one.drain_broker()), one.state.fault) == (token, None)
    one.receive_broker(framed(b""), 1.0)
    assert b"".join(one.drain_client()).endswith(framed(b""))


@pytest.mark.parametrize("client_id", ["plain", ALL])
def test_a_broker_may_wait_as_long_as_a_join_says_that_passes(shared: Shared, client_id: str) -> None:
    one = shared.connection()
    timeouts = (6_000).to_bytes(4) + (7_000).to_bytes(4)
    join = header(11, 2, client_id) + string(b"of others") + timeouts + string(b"") + string(b"connect")
    one.receive_client(framed(join + bytes(4)), 1.0)
    assert len(sent(one)) == 1
    assert one.state.longest_wait == 7.0


def test_the_broker_gets_the_clients_own_id(shared: Shared) -> None:
    one = shared.connection()
    body = b"abc"
    one.receive_client(framed(header(3, 1, ALL) + body) + framed(header(3, 1, ALL, 8) + body), 1.0)
    assert sent(one) == [framed(header(3, 1, "x") + body), framed(header(3, 1, "x", 8) + body)]
    assert one.state.client_id in {"", "x"}


def test_another_client_id_on_the_same_connection_ends_it(shared: Shared) -> None:
    one = shared.connection()
    one.receive_client(framed(header(3, 1, LOW)) + framed(header(3, 1, HIGH)), 1.0)
    assert one.state.fault is not None
    assert "the client.id changed" in one.state.fault.reason


@pytest.mark.parametrize(("key", "version"), [(1, 3), (1, 13), (8, 1), (8, 10), (9, 0), (9, 10)], ids=str)
def test_a_version_that_is_not_offered_ends_the_connection(shared: Shared, key: int, version: int) -> None:
    one = shared.connection()
    one.receive_client(framed(header(key, version, LOW)), 1.0)
    assert one.state.fault is not None
    assert "a client of a cooperative group sent " in one.state.fault.reason
    assert f" v{version}: the version is not offered" in one.state.fault.reason
    assert one.drain_broker() == []


def test_what_is_too_large_to_be_read_does_not_pass(shared: Shared) -> None:
    one = shared.connection()
    one.receive_client((MAX_READ + 1).to_bytes(4) + header(1, 11, LOW), 1.0)
    assert one.state.fault is not None
    assert one.drain_broker() == []


@pytest.mark.parametrize(
    ("client_id", "fetch_max"),
    [(LOW, 12), ("billing.a", 12), ("x.kr-9-1", 12), ("", 12), ("plain", 17), ("billing", 17)],
    ids=str,
)
def test_api_versions_offers_what_is_read(shared: Shared, client_id: str, fetch_max: int) -> None:
    """Case C33: ApiVersions offers only versions of OffsetCommit and OffsetFetch that the gateway reads. For
    Fetch this holds only for clients that may have key ranges.
    """
    one = shared.connection()
    one.receive_client(framed(header(18, 0, client_id)), 1.0)
    (request,) = sent(one)
    ranges = [(1, 4, 17), (8, 2, 10), (9, 1, 10), (3, 0, 13)]
    body = bytes(2) + len(ranges).to_bytes(4)
    body += b"".join(b"".join(number.to_bytes(2) for number in each) for each in ranges)
    one.receive_broker(framed(request[8:12] + body), 1.0)
    (response,) = got(one)
    assert response[14:] == b"".join(
        b"".join(number.to_bytes(2) for number in each)
        for each in [(1, 4, fetch_max), (8, 2, 9), (9, 1, 9), (3, 0, 13)]
    )


# Fetches


def test_a_long_client_id_is_not_told_in_full(shared: Shared) -> None:
    name = "x" * 30_000
    shared.connection().receive_client(fetch(f"{name}.kr-9-1"), 1.0)
    shared.connection().receive_client(fetch(f"{name}.lane-nobody"), 1.0)
    assert len(shared.told) == 2
    assert all(text.startswith(f"client.id {'x' * 256}...: ") and len(text) < 400 for text in shared.told)


def test_ranges_that_can_not_be_are_refused_when_the_client_has_waited(shared: Shared) -> None:
    one = shared.connection()
    one.receive_client(fetch("x.kr-9-1"), 1.0)
    assert shared.alarms == [1.5]
    assert (one.drain_client(), one.drain_broker(), one.state.busy) == ([], [], True)
    one.tick(1.4)
    assert one.drain_client() == []
    one.tick(1.5)
    (response,) = got(one)
    (data,) = decode_response(response[4:], 11).topics[0].partitions
    assert (data.error_code, data.records) == (42, b"")
    assert not one.state.busy
    assert shared.members.tally.refused == {42: 1}


def test_ranges_that_can_not_be_are_refused_after_another_client_id_of_the_group(shared: Shared) -> None:
    """A fetch gets error 42, if its client id has invalid ranges.

    The client's first id on this connection had no ranges.
    """
    one = shared.connection()
    heartbeat = header(12, 0, "billing.a") + string(b"of others") + bytes(4) + string(b"m")
    one.receive_client(framed(heartbeat), 1.0)
    one.receive_broker(framed(heartbeat[4:8] + bytes(2)), 1.0)
    assert len(got(one)) == 1
    one.receive_client(fetch("billing.a.kr-zz"), 1.0)
    one.tick(1.5)
    (response,) = got(one)
    (data,) = decode_response(response[4:], 11).topics[0].partitions
    assert (data.error_code, shared.members.tally.refused) == (42, {42: 1})
    assert shared.told


def test_what_is_known_of_partitions_has_a_limit(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of partitions that are stored for all members together has a limit.

    A client may use another id on each connection, and name partitions that do not exist.
    """
    monkeypatch.setattr("proxy.features.cooperative.members.MAX_PLACES", 5)
    one = shared.connection()
    one.receive_client(fetch(LOW), 1.0)
    known = [1]
    for number in range(4):
        request = decode_request(fetch(f"{number}.kr-0-1")[4:])
        entry = request.topics[0].partitions[0]
        entries = tuple(replace(entry, partition=at) for at in range(2 + number % 2))
        topics = (replace(request.topics[0], partitions=entries),)
        other = shared.connection()
        other.receive_client(framed(encode_request(replace(request, topics=topics))), 1.0)
        known.append(shared.members.places)
        other.ended()
    assert known == [1, 3, 3, 5, 5]
    found = shared.members.declared("h", LOW.encode())
    assert found is not None
    assert len(found[1].first) == 1


def test_the_partitions_of_a_fetch_that_ends_its_connection_count(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch of more partitions than a member may have ends its connection.

    The partitions that were noted before the limit still count, for the member and for all members together.
    """
    monkeypatch.setattr("proxy.features.cooperative.member.MAX_PARTITIONS", 2)
    monkeypatch.setattr("proxy.features.cooperative.members.MAX_PLACES", 5)
    request = decode_request(fetch(LOW)[4:])
    entry = request.topics[0].partitions[0]
    topics = (replace(request.topics[0], partitions=tuple(replace(entry, partition=at) for at in range(4))),)
    known = []
    for client_id in ("a.kr-0-1", "b.kr-0-1", "b.kr-0-1", "c.kr-0-1"):
        one = shared.connection()
        asked = replace(request, client_id=client_id, topics=topics)
        one.receive_client(framed(encode_request(asked)), 1.0)
        assert one.state.fault is not None
        found = shared.members.declared("h", client_id.encode())
        assert found is not None
        known.append((shared.members.places, len(found[1].first)))
        one.ended()
    assert known == [(2, 2), (4, 2), (4, 2), (4, 2)], "partitions of all members, and of this one"


def test_a_session_of_the_clients_own_does_not_exist(shared: Shared) -> None:
    one = shared.connection()
    one.receive_client(fetch(LOW, 12, session=(9, 4)), 1.0)
    (response,) = got(one)
    assert decode_response(response[4:], 12).error_code == 70
    one.receive_client(fetch(LOW, 12, session=(0, 0)), 1.0)
    (request,) = sent(one)
    asked = decode_request(request[4:])
    assert (asked.session_id, asked.session_epoch, asked.client_id) == (0, -1, "x")


@pytest.fixture
def broker() -> ModelBroker:
    broker = ModelBroker(release="4.3.0", slots=100, seed=1)
    broker.create_topic(TOPIC.decode(), 1)
    return broker


def test_a_batch_that_can_not_be_split_does_not_pass(shared: Shared, broker: ModelBroker) -> None:
    """Case C13: if a batch can't be split, the client gets error 44 after its longest wait. Its offset does
    not change.
    """
    data = bytearray(batch([Record(0, b"21"), Record(1, b"foobar")]))
    data[-1] ^= 1
    broker.topics[TOPIC.decode()].partitions[0].append(bytes(data), count=2)
    one = shared.connection()
    gate = Gate(one, broker)
    one.receive_client(fetch(LOW), 1.0)
    assert one.drain_client() == []
    gate._response(1.0)
    assert one.drain_client() == []
    assert shared.alarms == [1.5]
    one.tick(1.5)
    (response,) = got(one)
    (entry,) = decode_response(response[4:], 11).topics[0].partitions
    assert (entry.error_code, entry.records, entry.high_watermark) == (44, b"", 2)


def test_an_offset_that_the_broker_refuses_is_not_asked_for_again(
    shared: Shared, broker: ModelBroker
) -> None:
    """If the broker refuses an offset to which the gateway advanced, the gateway uses the client's offset.

    Here the broker refuses the fetch after a batch of leader epoch 7, because it does not know this epoch.
    """
    broker.topics[TOPIC.decode()].partitions[0].append(batch([Record(0, b"foobar")], leader_epoch=7))
    one = shared.connection()
    request = decode_request(fetch(LOW, 12)[4:])
    entries = tuple(replace(each, last_fetched_epoch=0) for each in request.topics[0].partitions)
    topics = (replace(request.topics[0], partitions=entries),)
    one.receive_client(framed(encode_request(replace(request, topics=topics))), 1.0)
    gate = Gate(one, broker)
    asked: list[bytes] = []
    gate.before = asked.append
    while gate._response(1.0):
        assert len(asked) < 5
    offsets = [decode_request(each).topics[0].partitions[0].fetch_offset for each in asked]
    assert offsets == [0, 1, 0]
    assert one.drain_client() == []
    one.tick(1.5)
    (response,) = got(one)
    (data,) = decode_response(response[4:], 12).topics[0].partitions
    assert data.error_code == 0


def test_what_follows_a_fetch_waits_for_its_response(shared: Shared, broker: ModelBroker) -> None:
    one = shared.connection()
    one.receive_client(fetch(LOW) + framed(header(3, 1, LOW, 9)), 1.0)
    assert len(sent(one)) == 1
    one.receive_client(framed(header(3, 1, LOW, 10) + bytes(MAX_HELD)), 1.0)
    assert not one.state.reads_client


# The end of what a client sends (fetch-semantics 1.7)


def is_done(connection: Connection) -> bool:
    return connection.state.done


def half_close(connection: Connection) -> None:
    connection.client_ended()
    connection.close_session(1.0)


def answers(request: bytes) -> bytes:
    """Build a response. Only its correlation id counts."""
    return framed(request[8:12] + b"told")


def test_what_was_sent_behind_a_fetch_before_the_end_is_answered(shared: Shared, broker: ModelBroker) -> None:
    one = shared.connection()
    behind = framed(header(3, 1, LOW, 9))
    one.receive_client(fetch(LOW, offset=1) + behind + fetch(LOW), 1.0)
    half_close(one)
    (asked,) = sent(one)
    one.receive_broker(framed(broker.handle(asked[4:], 1.0)), 1.0)
    assert len(got(one)) == 1
    asked, last = sent(one)
    assert asked == framed(header(3, 1, "x", 9))
    one.receive_broker(answers(asked), 1.0)
    assert got(one) == [answers(asked)]
    assert not is_done(one)
    one.receive_broker(framed(broker.handle(last[4:], 1.0)), 1.0)
    assert len(got(one)) == 1
    assert is_done(one)
    assert not one.state.busy


def test_a_response_of_the_gateways_own_that_is_due_later_does_not_end_a_connection(shared: Shared) -> None:
    one = shared.connection()
    behind = framed(header(3, 1, "x.kr-9-1", 9))
    one.receive_client(fetch("x.kr-9-1") + behind, 1.0)
    half_close(one)
    assert (one.drain_client(), one.drain_broker(), is_done(one)) == ([], [], False)
    one.tick(1.5)
    assert len(got(one)) == 1
    (asked,) = sent(one)
    one.receive_broker(answers(asked), 1.5)
    assert got(one) == [answers(asked)]
    assert is_done(one)


def test_a_commit_that_was_sent_before_the_end_is_taken(shared: Shared) -> None:
    """A commit is processed, even if the client half-closes its connection right after sending it.

    The gateway first asks the broker for the committed offsets. Meanwhile the member's later requests wait.
    """
    one = shared.connection()
    one.receive_client(commit(LOW, 50) + framed(header(3, 1, LOW, 9)), 1.0)
    half_close(one)
    one.receive_broker(offsets(sent(one)[0], 30), 1.0)
    (request,) = sent(one)
    assert entry(request).offset == 30
    one.receive_broker(committed(request), 1.0)
    assert got(one) == [committed(request)]
    (asked,) = sent(one)
    one.receive_broker(answers(asked), 1.0)
    assert got(one) == [answers(asked)]
    assert is_done(one)


def test_a_commit_that_waits_for_its_turn_is_taken_after_the_end(shared: Shared) -> None:
    low, high = shared.connection(), shared.connection()
    low.receive_client(commit(LOW, 50), 1.0)
    high.receive_client(commit(HIGH, 70), 1.0)
    half_close(high)
    assert not is_done(high)
    low.receive_broker(offsets(sent(low)[0], 30), 1.0)
    low.receive_broker(committed(sent(low)[0]), 1.0)
    (request,) = sent(high)
    assert entry(request).offset == 50
    high.receive_broker(committed(request), 1.0)
    assert got(high) == [committed(request)]
    assert is_done(high)


def test_half_a_request_behind_a_fetch_does_not_hold_up_the_end(shared: Shared, broker: ModelBroker) -> None:
    one = shared.connection()
    one.receive_client(fetch(LOW) + fetch(LOW)[:-1], 1.0)
    half_close(one)
    (asked,) = sent(one)
    one.receive_broker(framed(broker.handle(asked[4:], 1.0)), 1.0)
    assert len(got(one)) == 1
    assert is_done(one)


# Many requests at once


def many(number: int) -> list[bytes]:
    return [framed(header(3, 1, LOW, each)) for each in range(number)]


def reads(connection: Connection) -> bool:
    return connection.state.reads_client


def test_what_a_member_sends_at_once_is_processed_in_steps(shared: Shared) -> None:
    """Many requests of a member in one read are processed in steps. In between, the event loop serves other
    clients.
    """
    one, asked = shared.connection(), many(300)
    one.receive_client(b"".join(asked), 1.0)
    passed = sent(one)
    assert len(passed) == AT_ONCE
    assert not reads(one)
    while one.state.goes_on:
        one.go_on(1.0)
        step = sent(one)
        assert len(step) <= AT_ONCE
        passed += step
    assert passed == [framed(header(3, 1, "x", each)) for each in range(300)]
    assert reads(one)


def test_responses_to_a_member_begin_no_more_than_a_step(shared: Shared) -> None:
    one, asked = shared.connection(), many(MAX_IN_FLIGHT + 300)
    one.receive_client(b"".join(asked), 1.0)
    passed = sent(one)
    while one.state.goes_on:
        one.go_on(1.0)
        passed += sent(one)
    assert len(passed) == MAX_IN_FLIGHT
    one.receive_broker(b"".join(map(answers, passed[:200])), 1.0)
    told: list[bytes] = []
    while step := sent(one):
        assert len(step) <= AT_ONCE
        passed += step
        told += got(one)
        one.go_on(1.0)
    told += got(one)
    assert told == list(map(answers, passed[:200]))
    assert len(passed) == MAX_IN_FLIGHT + 200


def test_all_of_many_requests_of_a_member_are_answered_after_its_end(shared: Shared) -> None:
    one = shared.connection()
    one.receive_client(b"".join(many(300)), 1.0)
    half_close(one)
    passed, told = sent(one), 0
    while not is_done(one):
        one.receive_broker(b"".join(map(answers, passed[told:])), 1.0)
        told = len(passed)
        while one.state.goes_on:
            one.go_on(1.0)
            step = sent(one)
            assert len(step) <= 2 * AT_ONCE
            passed += step
    assert len(got(one)) == told == 300


# Commits


def test_commits_of_another_group_are_refused(shared: Shared) -> None:
    one = shared.connection()
    request = commit(LOW, 5, b"other")
    one.receive_client(request, 1.0)
    assert one.drain_broker() == []
    (response,) = got(one)
    assert [each.error_code for each in read_answered(response, read_commit(request))] == [35]


def test_the_first_commit_asks_what_kafka_has(shared: Shared) -> None:
    one = shared.connection()
    one.receive_client(commit(LOW, 50), 1.0)
    (asked,) = sent(one)
    one.receive_broker(offsets(asked, 30), 1.0)
    (request,) = sent(one)
    said = entry(request)
    assert said.offset == 30
    positions = read_committed(said.offset, (said.metadata or b"").decode()).positions
    assert (positions.at(0), positions.at(1 << 31)) == (50, 30)
    one.receive_broker(committed(request), 1.0)
    assert got(one) == [committed(request)]
    one.receive_client(commit(LOW, 60), 1.0)
    (request,) = sent(one)  # it is known now
    positions = read_committed(30, (entry(request).metadata or b"").decode()).positions
    assert positions.at(0) == 60


@pytest.mark.parametrize("error", [22, 25, 16])
def test_a_commit_that_the_broker_refuses_changes_nothing(shared: Shared, error: int) -> None:
    """Case C26: if the broker refuses a commit, the known offsets do not change."""
    one = shared.connection()
    one.receive_client(commit(LOW, 50), 1.0)
    one.receive_broker(offsets(sent(one)[0], 30), 1.0)
    (request,) = sent(one)
    one.receive_broker(committed(request, error), 1.0)
    (response,) = got(one)
    assert response == committed(request, error)
    one.receive_client(commit(LOW, 40), 1.0)
    positions = read_committed(30, (entry(sent(one)[0]).metadata or b"").decode()).positions
    assert (positions.at(0), positions.base) == (40, 30)


def test_a_map_that_the_broker_has_no_room_for_is_left_out(shared: Shared) -> None:
    one = shared.connection()
    one.receive_client(commit(LOW, 50), 1.0)
    one.receive_broker(offsets(sent(one)[0], 30), 1.0)
    (request,) = sent(one)
    one.receive_broker(committed(request, 12), 1.0)
    assert one.drain_client() == []
    (request,) = sent(one)
    assert (entry(request).offset, entry(request).metadata) == (30, b"")
    one.receive_broker(committed(request), 1.0)
    assert got(one) == [committed(request)]


def test_one_commits_at_a_time(shared: Shared) -> None:
    low, high = shared.connection(), shared.connection()
    low.receive_client(commit(LOW, 50), 1.0)
    high.receive_client(commit(HIGH, 70), 1.0)
    assert high.drain_broker() == []
    low.receive_broker(offsets(sent(low)[0], 30), 1.0)
    (request,) = sent(low)
    low.receive_broker(committed(request), 1.0)
    assert shared.woken == [1]
    (request,) = sent(high)
    said = entry(request)
    assert said.offset == 50
    assert read_committed(50, (said.metadata or b"").decode()).positions.at(1 << 31) == 70


@pytest.mark.parametrize("ends", ["with a commit", "in the queue", "closing"])
def test_a_member_that_leaves_holds_up_nobody(shared: Shared, ends: str) -> None:
    low, high, third = shared.connection(), shared.connection(), shared.connection()
    low.receive_client(commit(LOW, 50), 1.0)
    high.receive_client(commit(HIGH, 70), 1.0)
    third.receive_client(commit(LOW, 90), 1.0)
    first = sent(low)
    if ends == "with a commit":
        low.ended()
        assert len(sent(high)) == 1
        return
    if ends == "closing":
        high.close_session(1.0)
        assert high.state.done
    else:
        high.ended()
    low.receive_broker(offsets(first[0], 30), 1.0)
    low.receive_broker(committed(sent(low)[0]), 1.0)
    assert len(sent(third)) == 1


def test_a_commit_that_is_refused_when_its_turn_comes_holds_up_nobody(shared: Shared) -> None:
    """A commit waits for its turn, and is then refused, because another client took the key ranges. Later
    commits are not blocked.
    """
    one, two, other = shared.connection(), shared.connection(), shared.connection("other")
    one.receive_client(commit(LOW, 50), 1.0)
    two.receive_client(commit(HIGH, 60), 1.0)
    other.receive_client(fetch("billing.kr-80000000-ffffffff"), 1.0)
    (asked,) = sent(one)
    one.receive_broker(offsets(asked, 30), 1.0)
    (request,) = sent(one)
    one.receive_broker(committed(request), 1.0)
    (response,) = got(two)
    assert [each.error_code for each in read_answered(response, read_commit(commit(HIGH, 60)))] == [44]
    one.receive_client(commit(LOW, 70), 1.0)
    assert len(sent(one)) == 1


def test_a_map_that_the_broker_has_no_room_for_may_be_forgotten_meanwhile(shared: Shared) -> None:
    one = shared.connection()
    one.receive_client(commit(LOW, 50), 1.0)
    (asked,) = sent(one)
    one.receive_broker(offsets(asked, 30), 1.0)
    (request,) = sent(one)
    group = shared.members.group(b"billing")
    assert group is not None
    group.positions.clear()  # a member of the next generation has come
    one.receive_broker(committed(request, 12), 1.0)
    assert one.state.fault is None
    assert got(one)[-1] == committed(request, 12)


def asks(client_id: str) -> bytes:
    """Build an OffsetFetch v2 request."""
    body = string(b"billing") + (1).to_bytes(4) + string(TOPIC) + (1).to_bytes(4) + bytes(4)
    return framed(header(9, 2, client_id) + body)


def commits(connection: Connection, client_id: str, offset: int) -> Positions:
    """Let a client commit, and let the broker accept it. The gateway does not ask for the committed offsets
    first.

    Return the positions in the request to the broker.
    """
    connection.receive_client(commit(client_id, offset), 1.0)
    (request,) = sent(connection)
    said = entry(request)
    connection.receive_broker(committed(request), 1.0)
    got(connection)
    return read_committed(said.offset, (said.metadata or b"").decode()).positions


def test_what_is_said_of_a_time_before_a_commit_does_not_undo_it(shared: Shared) -> None:
    """An OffsetFetch response from before a commit does not undo this commit.

    With two connections, such a response may arrive late.
    """
    low, high, late = shared.connection(), shared.connection(), shared.connection()
    low.receive_client(commit(LOW, 50), 1.0)
    low.receive_broker(offsets(sent(low)[0], 30), 1.0)
    low.receive_broker(committed(sent(low)[0]), 1.0)
    stored = committed_metadata(Positions([0, 1 << 31], [50, 30]), "").encode()
    late.receive_client(asks(HIGH), 1.0)
    commits(low, LOW, 90)
    late.receive_broker(offsets(sent(late)[0], 30, stored), 1.0)
    assert commits(high, HIGH, 60) == Positions([0, 1 << 31], [90, 60])


def test_what_was_committed_before_the_offsets_were_deleted_is_forgotten(shared: Shared) -> None:
    """If the broker has no committed offset any more, the gateway forgets what was committed before. The
    topic or the offsets may have been deleted.

    A later commit must not restore the old offsets of other members.
    """
    low = shared.connection()
    low.receive_client(commit(LOW, 50), 1.0)
    low.receive_broker(offsets(sent(low)[0], 50), 1.0)
    low.receive_broker(committed(sent(low)[0]), 1.0)
    low.receive_client(asks(LOW), 1.0)
    low.receive_broker(offsets(sent(low)[0], -1), 1.0)
    low.receive_client(commit(LOW, 5), 1.0)
    low.receive_broker(offsets(sent(low)[0], -1), 1.0)
    said = entry(sent(low)[0])
    assert read_committed(said.offset, (said.metadata or b"").decode()).positions.at(1 << 31) == 0


def test_what_was_committed_is_asked_for_again_when_the_log_may_be_another_one(
    shared: Shared, broker: ModelBroker
) -> None:
    """If the log may be a new one, the gateway asks for the committed offsets again. Here the topic was
    deleted and created again, and its offsets were deleted with it.
    """
    low, fetches = shared.connection(), shared.connection()
    low.receive_client(commit(LOW, 50), 1.0)
    low.receive_broker(offsets(sent(low)[0], 50), 1.0)
    low.receive_broker(committed(sent(low)[0]), 1.0)
    fetches.receive_client(fetch(LOW, offset=50), 1.0)
    gate = Gate(fetches, broker)
    while gate._response(1.0):
        pass
    (response,) = got(fetches)
    assert decode_response(response[4:], 11).topics[0].partitions[0].error_code == 1
    low.receive_client(commit(LOW, 5), 1.0)
    assert [frame[4:6] for frame in sent(low)] == [(9).to_bytes(2)]  # OffsetFetch


def test_an_offset_below_all_is_no_matter_of_the_others(shared: Shared) -> None:
    one, other = shared.connection(), shared.connection()
    other.receive_client(commit(HIGH, -1), 1.0)
    (response,) = got(other)
    assert [each.error_code for each in read_answered(response, read_commit(commit(HIGH, -1)))] == [42]
    asker = shared.connection()
    asker.receive_client(asks(HIGH), 1.0)
    asker.receive_broker(offsets(sent(asker)[0], -1), 1.0)
    fetches = shared.connection()
    fetches.receive_client(fetch(HIGH, offset=-1), 1.0)
    one.receive_client(commit(LOW, 50), 1.0)
    one.receive_broker(offsets(sent(one)[0], -1), 1.0)
    assert one.state.fault is None
    assert entry(sent(one)[0]).offset == 0


def test_what_others_had_done_comes_again_to_a_client_that_goes_back(
    shared: Shared, broker: ModelBroker
) -> None:
    """A client that seeks back gets all records from there, even records that other members have processed.

    A client that does not seek back does not get those records.
    """
    high = [b"%d" % number for number in range(200) if murmur2(b"%d" % number) >> 31][:30]
    log = broker.topics[TOPIC.decode()].partitions[0]
    for at in range(0, 30, 10):
        log.append(batch([Record(at + place, high[at + place]) for place in range(10)]), count=10)
    stored = committed_metadata(Positions([0, 1 << 31], [10, 30]), "").encode()
    asker = shared.connection()
    asker.receive_client(asks(ALL), 1.0)
    asker.receive_broker(offsets(sent(asker)[0], 10, stored), 1.0)
    found: list[list[int]] = []
    for offset in (10, 5, 12):
        one = shared.connection()
        gate = Gate(one, broker)
        one.receive_client(fetch(ALL, offset=offset), 1.0)
        while gate._response(1.0):
            pass
        one.tick(1.5)
        (response,) = got(one)
        (data,) = decode_response(response[4:], 11).topics[0].partitions
        found.append([record.offset for record in read(data.records or b"") if record.offset >= offset])
    assert found == [[], list(range(5, 30)), list(range(12, 30))]


def test_the_member_is_told_its_own_offset(shared: Shared) -> None:
    one = shared.connection()
    one.receive_client(commit(LOW, 50), 1.0)
    one.receive_broker(offsets(sent(one)[0], 30), 1.0)
    (request,) = sent(one)
    stored = entry(request).metadata or b""
    one.receive_broker(committed(request), 1.0)
    got(one)
    for client_id, own in ((LOW, 50), (HIGH, 30)):
        other = shared.connection()
        other.receive_client(asks(client_id), 1.0)
        (request,) = sent(other)
        other.receive_broker(offsets(request, 30, stored), 1.0)
        (response,) = got(other)
        ((said,),) = [each.entries for each in read_fetched_offsets(response, 2).groups]
        assert (said.offset, said.metadata) == (own, b"")


# Lanes that overlap

LOW_OF_BILLING, FULL_OF_BILLING = "billing.a.kr-0-7fffffff", "billing.b.kr-0-ffffffff"


def refused(connection: Connection) -> int:
    """Return the error code of the only partition in the response to a fetch.

    Return 0 if the fetch went to the broker.
    """
    if connection.drain_broker():
        return 0
    connection.tick(1.5)
    (response,) = got(connection)
    return decode_response(response[4:], 11).topics[0].partitions[0].error_code


def commit_error(connection: Connection, request: bytes) -> int:
    connection.receive_client(request, 1.0)
    (response,) = got(connection)
    (each,) = read_answered(response, read_commit(request))
    return each.error_code


def test_who_came_first_keeps_its_lane(shared: Shared) -> None:
    first, second = shared.connection("one"), shared.connection("two")
    first.receive_client(fetch(LOW_OF_BILLING), 1.0)
    assert refused(first) == 0
    second.receive_client(fetch(FULL_OF_BILLING), 1.0)
    assert second.drain_client() == []  # it waits as long as it would for records
    assert refused(second) == 44
    second.receive_client(fetch(FULL_OF_BILLING), 2.0)
    assert len(shared.told) == 1
    assert shared.told[0] == (
        "client.id billing.b.kr-0-ffffffff at two overlaps client.id billing.a.kr-0-7fffffff at one "
        "on orders-0 of group billing; the first one keeps the lane"
    )
    assert shared.members.tally.refused == {44: 2}
    third = shared.connection("two")
    assert commit_error(third, commit(FULL_OF_BILLING, 5)) == 44


def test_a_lane_is_free_when_the_last_connection_of_its_client_is_closed(shared: Shared) -> None:
    first, again, second = shared.connection("one"), shared.connection("one"), shared.connection("two")
    first.receive_client(fetch(LOW_OF_BILLING), 1.0)
    again.receive_client(fetch(LOW_OF_BILLING), 1.0)
    assert (refused(first), refused(again)) == (0, 0)
    first.ended()
    second.receive_client(fetch(FULL_OF_BILLING), 1.0)
    assert refused(second) == 44
    again.ended()
    second.receive_client(fetch(FULL_OF_BILLING), 1.0)
    assert refused(second) == 0


@pytest.mark.parametrize(
    "other", ["audit.a.kr-0-7fffffff", "x.kr-0-7fffffff", "billing.a.kr-80000000-ffffffff"]
)
def test_what_does_not_overlap_passes(shared: Shared, other: str) -> None:
    """Two clients may have the same keys if their groups differ, or if one has no group.

    Two clients in one group may have different keys.
    """
    first, second = shared.connection("one"), shared.connection("two")
    first.receive_client(fetch(LOW_OF_BILLING), 1.0)
    second.receive_client(fetch(other), 1.0)
    assert (refused(first), refused(second)) == (0, 0)


def test_the_group_is_known_by_what_is_committed_as_well(shared: Shared) -> None:
    first, second = shared.connection("one"), shared.connection("two")
    for each in (first, second):
        each.receive_client(commit(LOW, 5), 1.0)
        each.drain_broker()
        each.ended()
    first, second = shared.connection("one"), shared.connection("two")
    first.receive_client(fetch(LOW), 1.0)
    second.receive_client(fetch(LOW), 1.0)
    assert (refused(first), refused(second)) == (0, 44)


def test_a_lane_of_another_group_is_refused(shared: Shared) -> None:
    one = shared.connection()
    assert commit_error(one, commit(LOW_OF_BILLING, 5, b"audit")) == 44
    body = string(b"audit") + (1).to_bytes(4) + string(TOPIC) + (1).to_bytes(4) + bytes(4)
    one.receive_client(framed(header(9, 2, LOW_OF_BILLING) + body), 1.0)
    (request,) = sent(one)
    metadata = string(b"fg1:whatever")
    answer = (1).to_bytes(4) + string(TOPIC) + (1).to_bytes(4) + bytes(4)
    answer += (30).to_bytes(8) + metadata + bytes(2) + bytes(2)
    one.receive_broker(framed(request[8:12] + answer), 1.0)
    assert got(one) == [framed(request[8:12] + answer)]


def test_a_lane_that_can_not_be_read_is_told(shared: Shared) -> None:
    shared.connection("one").receive_client(fetch("x.kr-9-1"), 1.0)
    assert shared.told == ["client.id x.kr-9-1: the low end of the range 9-1 is above its high end"]


# Lanes with names

LANES = "the file of options names elsewhere, low"


@pytest.fixture
def named(shared: Shared) -> Shared:
    shared.members.lanes = {
        "low": NamedLane(b"billing", {(TOPIC, 0): ((0, 0x7FFF_FFFF),)}),
        "elsewhere": NamedLane(b"billing", {(TOPIC, 1): FULL}),
        "of-no-group": NamedLane(b"unknown", {(TOPIC, 0): FULL}),
    }
    return shared


def test_a_named_lane_gets_its_records(named: Shared, broker: ModelBroker) -> None:
    data = batch([Record(0, b"21"), Record(1, b"foobar"), Record(2, b"d")])
    broker.topics[TOPIC.decode()].partitions[0].append(data, count=3)
    responses = []
    for client_id in ("x.lane-low", "x.kr-0-7fffffff"):
        one = named.connection()
        one.receive_client(fetch(client_id), 1.0)
        Gate(one, broker)._response(1.0)
        one.tick(1.5)
        responses += got(one)
        one.ended()
    assert responses[0] == responses[1]
    assert b"foobar" not in responses[0]


@pytest.mark.parametrize(
    ("lane", "told"),
    [
        (
            "unknown",
            "client.id x.lane-unknown: no lane has the name unknown; " + LANES,
        ),
        (
            "of-no-group",
            "client.id x.lane-of-no-group: no lane has the name of-no-group; " + LANES,
        ),
        ("elsewhere", "client.id x.lane-elsewhere at one: its lane has no range of orders-0"),
    ],
)
def test_what_a_named_lane_has_not_is_refused(named: Shared, lane: str, told: str) -> None:
    one = named.connection("one")
    one.receive_client(fetch(f"x.lane-{lane}"), 1.0)
    assert refused(one) == 42
    assert commit_error(one, commit(f"x.lane-{lane}", 5)) == 42
    assert named.told == [told]


def test_a_named_lane_is_of_its_group_alone(named: Shared) -> None:
    one = named.connection()
    assert commit_error(one, commit("x.lane-low", 5, b"audit")) == 44


def test_a_named_lane_overlaps_like_any_other(named: Shared) -> None:
    first, second = named.connection("one"), named.connection("two")
    first.receive_client(fetch("x.lane-low"), 1.0)
    second.receive_client(fetch("y.lane-low"), 1.0)
    assert (refused(first), refused(second)) == (0, 44)


def test_a_client_keeps_its_named_lane_as_it_was_until_it_has_left(named: Shared) -> None:
    first, again, second = named.connection("one"), named.connection("one"), named.connection("two")
    first.receive_client(fetch("x.lane-low"), 1.0)
    named.members.lanes = {
        "low": NamedLane(b"billing", {(TOPIC, 0): ((0, 0x3FFF_FFFF),)}),
        "high": NamedLane(b"billing", {(TOPIC, 0): ((0x4000_0000, 0xFFFF_FFFF),)}),
    }
    again.receive_client(fetch("x.lane-low"), 1.0)
    second.receive_client(fetch("x.lane-high"), 1.0)
    assert (refused(first), refused(again), refused(second)) == (0, 0, 44)
    first.ended()
    again.ended()
    first = named.connection("one")
    second.receive_client(fetch("x.lane-high"), 1.0)
    first.receive_client(fetch("x.lane-low"), 1.0)
    assert (refused(first), refused(second)) == (0, 0)
