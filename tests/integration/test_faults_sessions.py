"""Slots that are all taken, sessions that vanish, memory that is short: clients see nothing of it."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.integration.bystander import Scene, scene, until
from tests.integration.fetching import FETCHES_TO_SESSION, Fetcher, contents
from tests.integration.producing import Producer
from tools.kafka import Broker
from tools.kafka.admin import Admin

TOPIC = "slots"
PARTITIONS = 12
SLOTS = 8
LARGE = "slots-large"
LARGE_RECORD = 900_000
LARGE_RECORDS = 20
FOLLOWER = 77
Answers = list[dict[tuple[str, int], object]]


@pytest.fixture(scope="module")
def stage() -> Iterator[Scene]:
    """A broker with so few slots: eight shards of one each, as 3.8 and later have them."""
    with Broker(properties={"max.incremental.fetch.session.cache.slots": SLOTS}) as broker:
        with Admin(broker.address) as admin, closing(Producer(broker.host, broker.port)) as producer:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
            admin.create_topic(LARGE, partitions=2)
            producer.produce(TOPIC, 2, [b"two"])
            for number in range(LARGE_RECORDS):
                producer.produce(LARGE, number % 2, [b"l" * LARGE_RECORD])
        with scene(broker, "slots-bystander") as stage:
            yield stage


@pytest.fixture
def expected(stage: Scene) -> Answers:
    """What every fetch answers: nothing changes meanwhile."""
    with Fetcher(stage.broker.address, TOPIC, PARTITIONS) as direct:
        return contents([direct.fetch()])


def through(stage: Scene, client_id: str) -> Fetcher:
    return Fetcher(stage.gateway.address, TOPIC, PARTITIONS, client_id=client_id).hello()


def link(stage: Scene, client_id: str) -> dict[str, object]:
    (found,) = [link for link in stage.gateway.state()["connections"] if link["client_id"] == client_id]
    assert isinstance(found, dict)
    return found


def session_of(stage: Scene, client_id: str) -> int:
    number = link(stage, client_id)["session_id"]
    assert isinstance(number, int)
    return number


def close_at_broker(stage: Scene, session_id: int) -> None:
    """KIP-227: (id, -1) from any connection drops a session."""
    with Fetcher(stage.broker.address, TOPIC, 1) as other:
        other.fetch(session_id=session_id, session_epoch=-1)


def test_a_session_closed_by_someone_else_is_made_again_unseen(stage: Scene, expected: Answers) -> None:
    with stage.unharmed() as said, through(stage, "closed") as client:
        client.fetches()
        lost = session_of(stage, "closed")
        assert lost > 0
        close_at_broker(stage, lost)
        answers = client.fetches()
        made = session_of(stage, "closed")
    assert contents(answers) == expected * FETCHES_TO_SESSION
    assert made not in {0, lost}
    assert said().count("session lost") == 1
    assert "code=70" in said()


def test_the_bystanders_own_session_may_be_closed_in_mid_stream(stage: Scene) -> None:
    until(lambda: any(_sessions(stage, "bystander")), "it has no session")
    with stage.unharmed() as said:
        for _ in range(3):
            stage.bystander.check()
            for number in _sessions(stage, "bystander"):
                close_at_broker(stage, number)
        stage.bystander.check()
        assert said().count("session lost") >= 1


def _sessions(stage: Scene, client_id: str) -> list[int]:
    links = [link for link in stage.gateway.state()["connections"] if link["client_id"] == client_id]
    return [link["session_id"] for link in links if link["session_id"]]


def test_more_clients_than_slots_all_get_what_they_ask_for(stage: Scene, expected: Answers) -> None:
    with stage.unharmed() as said:
        with ExitStack() as stack:
            clients = [stack.enter_context(through(stage, f"many-{number}")) for number in range(2 * SLOTS)]
            for _ in range(3):
                for client in clients:
                    answers = contents(client.fetches(2))
                    assert answers == expected * 2
            sessions = [session_of(stage, f"many-{number}") for number in range(2 * SLOTS)]
            assert 0 < sum(map(bool, sessions)) <= SLOTS
            assert said().count("session refused") == sessions.count(0)  # once for each, not once a fetch
        until(lambda: stage.gateway.state()["sessions"]["held"] <= 1, "slots stay taken")
    with through(stage, "afterwards") as client:
        client.fetches()
        assert session_of(stage, "afterwards") > 0


def test_sessions_evicted_by_followers_are_given_up_and_had_again(stage: Scene, expected: Answers) -> None:
    """A follower's session is privileged: it takes the slot of any consumer at any age (KIP-227)."""
    with stage.unharmed() as said, through(stage, "evicted") as client:
        client.fetches()
        assert session_of(stage, "evicted") > 0
        with Fetcher(stage.broker.address, TOPIC, PARTITIONS, client_id="follower") as follower:
            taken = [follower.fetch(replica_id=FOLLOWER, session_epoch=0).session_id for _ in range(SLOTS)]
            assert all(taken)
            assert contents(client.fetches(6)) == expected * 6
            assert session_of(stage, "evicted") == 0
            stage.bystander.check()
            for number in taken:
                follower.fetch(replica_id=FOLLOWER, session_id=number, session_epoch=-1)
        assert contents(client.fetches(6)) == expected * 6
        assert session_of(stage, "evicted") > 0
        assert said().count("code=70") == 1 + ("client_id=bystander code=70" in said())


@pytest.fixture
def narrow(stage: Scene) -> Iterator[Scene]:
    """A gateway that may hold one large answer, hardly more."""
    options = ("--max-inflight-bytes", "1000000")
    with scene(stage.broker, "slots-narrow", *options) as narrow:
        yield narrow


def test_large_answers_under_a_small_budget_reach_all_clients(narrow: Scene) -> None:
    """Case 91: answers that need no expansion stream; those that do wait for each other under the budget."""
    got: dict[int, list[tuple[int, int]]] = {}
    with narrow.unharmed():
        before = peak = narrow.rss()
        threads = [
            threading.Thread(target=_read_large, args=(narrow, got.setdefault(number, [])))
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            peak = max(peak, narrow.rss())
            threads[0].join(0.05)
            assert narrow.gateway.state()["inflight_bytes"] < 8_000_000
    want = sorted((number % 2, number // 2) for number in range(LARGE_RECORDS))
    assert [sorted(each) for each in got.values()] == [want] * 4
    assert peak - before < 64 << 20


def _read_large(narrow: Scene, got: list[tuple[int, int]]) -> None:
    """Read both large partitions beside a dozen small ones."""
    consumer = Consumer(
        {
            "bootstrap.servers": narrow.gateway.address,
            "group.id": "large",
            "client.id": "large",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    places = [TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)]
    consumer.assign([*places, *(TopicPartition(LARGE, partition, 0) for partition in range(2))])
    while len(got) < LARGE_RECORDS:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        if message.topic() == LARGE:
            got.append((message.partition() or 0, message.offset() or 0))
    consumer.close()
