"""Conformance cases on live brokers, by their numbers: a client without sessions through the connection core.

Each response from the session is compared with a direct one, byte for byte. test_cases_live.py has the
client's own sessions.
"""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from proxy.core.connection import Connection
from tests.integration.lockstep import SansIO
from tests.integration.mirror import Live, until
from tests.integration.producing import Producer, record_batch
from tests.model.asker import Requests, Want, entries, errors, lines, sizes
from tests.model.wire import ZERO_ID, FetchRequest, FetchResponse, decode_response, encode_request, find_tag
from tools.kafka import Broker, Cluster

pytestmark = pytest.mark.integration

UNTIL_A_SESSION = 4
"""Fetches until a session. The first one comes before the broker's versions are known."""
VERSIONS = [4, 7, 11, 12, 16, 18]


@dataclass
class Client(Requests):
    """A client without sessions, through the core, and compared directly. Topics have short names."""

    live: Live = field(kw_only=True)
    through: SansIO = field(kw_only=True)
    suffix: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    unlimited: bool = False
    """The client requests 50 MiB each time. --max-fetch-bytes lowers that to the direct limit."""

    def full(self, name: str) -> str:
        return f"{name}-{self.suffix}"

    def learn(self, name: str) -> None:
        self.ids[name] = self.live.topic_id(self.full(name)) if self.version >= 13 else ZERO_ID

    def create(self, name: str, batches: list[list[int]]) -> None:
        """Create a topic with a partition for each list of batch sizes (bytes of the only record's value)."""
        self.live.create_topic(self.full(name), len(batches))
        self.learn(name)
        for index, values in enumerate(batches):
            for size in values:
                self.live.producer.produce(self.full(name), index, [bytes(size)])

    def key(self, name: str) -> dict[str, Any]:
        return {"topic": self.full(name)} if self.version <= 12 else {"topic_id": self.ids[name]}

    def send(self, request: FetchRequest) -> FetchResponse:
        if self.unlimited and request.max_bytes:
            self.through.ceilings.max_bytes = {"": request.max_bytes}
            self.through.sessions.generation += 1
            request = replace(request, max_bytes=50 << 20)
        return decode_response(self.through.exchange(encode_request(request)), request.version)

    def same(self, *wants: Want, **options: Any) -> FetchResponse:
        """Fetch through the core. Check that the broker gives the same response directly."""
        request = self.request(*wants, **options)
        got = self.send(request)
        assert lines(got) == lines(self.live.fetch(request))
        return got

    def established(self, *wants: Want, **options: Any) -> None:
        for _ in range(UNTIL_A_SESSION):
            self.same(*wants, **options)
            if self.through.connection.state.session_epoch:
                break
        assert self.through.connection.state.session_epoch == 1

    @property
    def incremental(self) -> int:
        return self.through.connection.tally.broker.fetches[1]


def batch(size: int) -> int:
    """Return the size of a batch with one record whose value has this many bytes."""
    return len(record_batch([bytes(size)]))


# --- 58 to 63: limits and order are kept as sent --------------------------------------------------

BROKER_LIMIT = 1024


@pytest.fixture(scope="module")
def small() -> Iterator[Live]:
    """A broker whose responses have at most 1024 bytes of records, or one larger first batch."""
    with Broker(properties={"fetch.max.bytes": BROKER_LIMIT}) as broker, Live(broker) as live:
        yield live


@pytest.fixture(params=[*((version, False) for version in VERSIONS), (4, True), (11, True), (18, True)])
def client(request: pytest.FixtureRequest, small: Live) -> Iterator[Client]:
    version, unlimited = request.param
    through = SansIO(small.broker.host, small.broker.port)
    yield Client(version=version, live=small, through=through, unlimited=unlimited)
    through.close()


IDLE: list[Want] = [("idle", index) for index in range(5)]


def seek(client: Client, batches: list[list[int]], *wants: Want, **options: Any) -> FetchResponse:
    """Seek to `wants` in a session that has read everything. Return the next response."""
    client.create("t", batches)
    client.create("idle", [[]] * len(IDLE))
    client.established(*(("t", index, len(values)) for index, values in enumerate(batches)), *IDLE)
    response = client.same(*wants, *IDLE, **options)
    assert client.incremental == 1
    return response


def test_partitions_fill_the_response_in_order(client: Client) -> None:
    """Case 58: partitions fill the response in the order of the list, up to its limit.

    A direct fetch gets the same response.
    """
    wants: list[Want] = [("t", index, 0, 190) for index in range(5)]
    response = seek(client, [[10] * 10] * 5, *wants, max_bytes=800)
    assert batch(10) < 190
    assert sizes(response)[:5] == [190] * 4 + [0]


def test_starvation_ends_by_the_sessions_own_order(client: Client) -> None:
    """Case 58: a session serves the partitions in its own order, so that none starves."""
    client.create("t", [[50]] * 5)
    wants: list[Want] = [("t", index) for index in range(5)]
    client.established(*wants, max_bytes=batch(50))
    got = [sizes(client.fetch(*wants, max_bytes=batch(50))) for _ in range(5)]
    assert got == [[batch(50) * (turn == index) for index in range(5)] for turn in range(5)]


@pytest.mark.parametrize(("size", "limit"), [(100, 800), (900, 100), (0, 0)])
def test_a_first_batch_comes_whole(client: Client, size: int, limit: int) -> None:
    """Case 59: the first batch of a response is sent completely, even if it exceeds the limit."""
    wants: list[Want] = [("t", index, 0, size) for index in range(3)]
    response = seek(client, [[500, 20]] * 3, *wants, max_bytes=limit)
    assert sizes(response)[:3] == [batch(500), 0, 0]


def test_the_same_batch_later_is_left_out(client: Client) -> None:
    """Case 60: a batch that does not fit is left out if it is not the first one of the response."""
    response = seek(client, [[10], [500]], ("t", 0, 0, 100), ("t", 1, 0, 100))
    assert sizes(response)[:2] == [batch(10), 0]
    assert entries(response)[1].high_watermark == 1


@pytest.mark.parametrize(
    ("offset", "size"), [(0, BROKER_LIMIT), (2, batch(980)), (3, batch(440) + batch(10))]
)
def test_the_brokers_own_limit(client: Client, offset: int, size: int) -> None:
    """Case 61: the broker's fetch.max.bytes limits the response, except its first batch."""
    values = [30, 1400, 980, 440, 10]
    assert batch(980) > BROKER_LIMIT > batch(440) + batch(10)
    response = seek(client, [values, []], ("t", 0, offset), ("t", 1))
    assert sizes(response)[:2] == [size, 0]


def test_caught_up_partitions_leave_the_first_batch_to_others(client: Client) -> None:
    """Case 62: a partition without new records does not count as the first one of the response.

    The first batch of the next partition is sent completely, although it exceeds the limit.
    """
    wants: list[Want] = [("t", 0, 1, 100), ("t", 1, 0, 100), ("t", 2, 0, 100)]
    assert sizes(seek(client, [[500]] * 3, *wants))[:3] == [0, batch(500), 0]


def test_errors_cost_nothing(client: Client) -> None:
    """Case 63: after entries with errors, the first batch is still returned completely."""
    wants: list[Want] = [("t", 0, 99, 100), ("t", 1, 0, 100)]
    response = seek(client, [[500]] * 2, *wants, max_bytes=10)
    assert (errors(response)[:2], sizes(response)[:2]) == ([1, 0], [0, batch(500)])


def test_changes_through_a_session(client: Client) -> None:
    """Cases 22 to 27: after one change, the response through a session equals the direct response.

    The changes come one at a time: records, log start, offsets, an error and its end, one more partition. The
    test runs at all versions.
    """
    client.create("t", [[10]] * 3)
    client.create("idle", [[]] * len(IDLE))
    wants: list[Want] = [("t", 0, 1), ("t", 1, 1), *IDLE]
    client.established(*wants)
    client.live.producer.produce(client.full("t"), 1, [b"news"])
    assert sizes(client.same(*wants))[:2] == [0, len(record_batch([b"news"]))]
    client.live.admin.delete_records(client.full("t"), {0: 1})
    assert entries(client.same(*wants))[0].log_start_offset == (1 if client.version >= 5 else -1)
    wants[1] = ("t", 1, 2)
    assert sizes(client.same(*wants))[:2] == [0, 0]
    assert errors(client.same(("t", 0, 0), *wants[1:]))[:2] == [1, 0]
    for _ in range(2):
        assert errors(client.same(*wants))[:2] == [0, 0]
    for _ in range(2):
        client.same(*wants, ("t", 2, 1))
    assert client.incremental == 8


# --- 64 to 69: three brokers ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def first(cluster: Cluster) -> Iterator[Live]:
    """Broker 1 of three."""
    with Live(cluster.broker(1)) as live:
        yield live


@pytest.fixture
def by_leader(first: Live, request: pytest.FixtureRequest) -> Iterator[Client]:
    """A topic whose partition N is only on broker N + 1, fetched from broker 1."""
    version = getattr(request, "param", 16)
    through = SansIO(first.broker.host, first.broker.port)
    client = Client(version=version, live=first, through=through)
    name = client.full("t")
    first.admin.create_topic(name, assignment={0: [1], 1: [2], 2: [3], 3: [1], 4: [1]})
    client.learn("t")
    errors = [0, 6, 6, 0, 0]
    until(lambda: [first.peek(name, index).error_code for index in range(5)] == errors, name)
    yield client
    through.close()


ALL: list[Want] = [("t", index) for index in range(5)]


@pytest.mark.parametrize("by_leader", [11, 12, 15, 16, 17, 18], indirect=True)
def test_leaders_and_endpoints_through_a_session(by_leader: Client, cluster: Cluster) -> None:
    """Case 64: entries with error 6 name the new leader in a session, as in direct fetches."""
    client = by_leader
    client.established(*ALL)
    for _ in range(3):
        response = client.same(*ALL)
        assert errors(response) == [0, 6, 6, 0, 0]
        endpoints = find_tag(response.tags, 0)
        hinted = [find_tag(data.tags, 1) is not None for data in entries(response)]
        assert hinted == [client.version >= 16 and bool(error) for error in errors(response)]
        assert (endpoints is not None) is (client.version >= 16)
    assert client.incremental == 3
    assert errors(client.same(*ALL, ("t", 9)))[-1] == 3


def test_endpoints_lead_through_the_gateway(by_leader: Client, cluster: Cluster) -> None:
    """Case 66: the endpoints in responses lead clients to the gateway's listeners, not to the brokers."""
    client = by_leader
    client.through.connection = Connection(
        sessions=client.through.sessions,
        resolve=lambda node_id, _host, _port, /: ("gateway", 20_000 + node_id),
    )
    for _ in range(UNTIL_A_SESSION + 2):
        payload = find_tag(client.fetch(*ALL).tags, 0)
        assert payload is not None
        assert payload.count(b"gateway") == 2
        assert (20_002).to_bytes(4) in payload
        assert all(broker.host.encode() not in payload for broker in cluster.brokers)
    assert client.incremental == 2


def told_leader(client: Client, index: int) -> tuple[int, int, bool]:
    """Return (leader id, epoch, whether there is an endpoint), read directly without the core."""
    response = client.fetch(*ALL)
    hint = find_tag(entries(response)[index].tags, 1)
    assert hint is not None
    leader, epoch = int.from_bytes(hint[:4], signed=True), int.from_bytes(hint[4:8], signed=True)
    endpoints = find_tag(response.tags, 0) or b""
    return leader, epoch, (leader.to_bytes(4, signed=True) in endpoints)


def test_a_dead_leader_is_named_until_it_is_missed(by_leader: Client, cluster: Cluster) -> None:
    """Case 65: errors name a stopped leader until the controller misses it. Then they name no leader."""
    client = by_leader
    client.established(*ALL)
    leader, epoch, found = told_leader(client, 2)
    assert (leader, found) == (3, True)
    cluster.broker(3).kill()
    try:
        assert told_leader(client, 2) == (3, epoch, True)
        until(lambda: told_leader(client, 2)[0] == -1, "the controller misses broker 3")
        leader, later, found = told_leader(client, 2)
        assert (leader, found) == (-1, False)
        assert later > epoch
        client.same(*ALL)
    finally:
        cluster.broker(3).restart()
    until(lambda: told_leader(client, 2)[::2] == (3, True), "broker 3 leads again")
    assert client.incremental >= 4
    client.same(*ALL)


@pytest.fixture
def moved(first: Live, cluster: Cluster) -> Iterator[tuple[Client, int]]:
    """A partition led by broker 1, then 2, then 1 again, with two records each time.

    Return its first epoch.
    """
    through = SansIO(first.broker.host, first.broker.port)
    client = Client(version=16, live=first, through=through)
    name = client.full("t")
    with ExitStack() as stack:
        stack.callback(through.close)
        first.admin.create_topic(name, assignment={index: [1, 2] for index in range(4)})
        client.learn("t")
        for node in (1, 2, 1):
            if first.admin.leaders(name)[0] != node:
                first.admin.move_leader(name, 0, node)
            producer = Producer(cluster.broker(node).host, cluster.broker(node).port)
            stack.callback(producer.close)
            for _ in range(2):
                producer.produce(name, 0, [b"x"])
        until(lambda: first.peek(name, 0, 6).high_watermark == 6, "all six replicated")
        yield client, epochs_of(client)[0]


def epochs_of(client: Client) -> list[int]:
    """Return the leader epochs in the batches of partition 0."""
    records = client.live.peek(client.full("t"), 0).records or b""
    found, at = [], 0
    while at < len(records):
        found.append(int.from_bytes(records[at + 12 : at + 16]))
        at += 12 + int.from_bytes(records[at + 8 : at + 12])
    return list(dict.fromkeys(found))


def test_fencing_in_one_session(moved: tuple[Client, int]) -> None:
    """Case 68: a wrong leader epoch gets its error in each fetch of a session, as in direct fetches."""
    client, _ = moved
    epochs = epochs_of(client)
    assert len(epochs) == 3
    rest: list[Want] = [("t", index) for index in (1, 2, 3)]

    def asked(epoch: int) -> list[int]:
        """Fetch partition 0 with this leader epoch, and the other partitions without an epoch."""
        request = client.request(("t", 0, 6), *rest)
        (topic,) = request.topics
        part, *others = topic.partitions
        fenced = replace_epoch(part, epoch)
        return errors(through_and_direct(client, replace_topics(request, topic, (fenced, *others))))

    for _ in range(UNTIL_A_SESSION):
        assert asked(epochs[-1]) == [0, 0, 0, 0]
    assert asked(epochs[-1] - 1) == [74, 0, 0, 0]
    assert asked(epochs[-1] + 1) == [75, 0, 0, 0]
    assert asked(epochs[-1]) == [0, 0, 0, 0]
    assert client.incremental == 3


def test_divergence_in_a_session(moved: tuple[Client, int]) -> None:
    """Cases 29 and 69: a session returns diverging epochs and leader epoch errors as a direct fetch does."""
    client, first_epoch = moved
    wants: list[Want] = [("t", 0, 6), ("t", 1), ("t", 2), ("t", 3)]

    def asked(epoch: int) -> FetchResponse:
        request = client.request(*wants)
        (topic,) = request.topics
        part, *others = topic.partitions
        return through_and_direct(
            client, replace_topics(request, topic, (replace_epoch(part, -1, fetched=epoch), *others))
        )

    for _ in range(UNTIL_A_SESSION + 3):
        told = entries(asked(first_epoch))[0]
        assert (told.error_code, told.records, told.high_watermark) == (0, b"", 6)
        assert find_tag(told.tags, 0) == first_epoch.to_bytes(4) + (2).to_bytes(8) + b"\0"
    assert errors(asked(99))[0] == 1
    assert client.incremental == 4


def through_and_direct(client: Client, request: FetchRequest) -> FetchResponse:
    got = client.send(request)
    assert lines(got) == lines(client.live.fetch(request))
    return got


def replace_epoch(part: Any, epoch: int, *, fetched: int = -1) -> Any:
    return replace(part, current_leader_epoch=epoch, last_fetched_epoch=fetched)


def replace_topics(request: FetchRequest, topic: Any, partitions: tuple[Any, ...]) -> FetchRequest:
    return replace(request, topics=(replace(topic, partitions=partitions),))
