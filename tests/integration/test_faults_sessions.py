"""Clients get correct responses if slots are full, sessions vanish, or memory is short."""

import math
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import islice
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from proxy.core.savings import CREDIT_EXCHANGES, PLAIN_PER_LOST
from tests.integration.bystander import Scene, fill, scene, until
from tests.integration.fetching import FETCHES_TO_SESSION, Fetcher, contents
from tests.integration.producing import Producer
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin
from tools.kafka.ports import free_ports

TOPIC = "slots"
PARTITIONS = 12
SLOTS = 8
LARGE = "slots-large"
LARGE_RECORD = 900_000
LARGE_RECORDS = 20
LARGE_PARTITIONS = 40
FILLED = 10
"""The number of partitions with records. There are so many that a delta is as large as a full fetch if all of
them are read again."""
ROUNDS = 30
FOLLOWER = 77
Responses = list[dict[tuple[str, int], object]]


@pytest.fixture(scope="module")
def stage() -> Iterator[Scene]:
    """Start a broker with few session slots, a gateway and a bystander.

    In 3.8 and later, the eight slots are in eight shards with one slot each.
    """
    with Broker(properties={"max.incremental.fetch.session.cache.slots": SLOTS}) as broker:
        with Admin(broker.address) as admin, closing(Producer(broker.host, broker.port)) as producer:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
            admin.create_topic(LARGE, partitions=LARGE_PARTITIONS)
            producer.produce(TOPIC, 2, [b"two"])
        fill(broker.address, LARGE, LARGE_RECORDS, FILLED, LARGE_RECORD)
        with scene(broker, "slots-bystander") as stage:
            yield stage


@pytest.fixture
def expected(stage: Scene) -> Responses:
    """Return the contents of the broker's response to a full fetch.

    They are the same for every fetch in this test, because nobody writes.
    """
    with Fetcher(stage.broker.address, TOPIC, PARTITIONS) as direct:
        return contents([direct.fetch()])


def through(stage: Scene, client_id: str) -> Fetcher:
    return Fetcher(stage.gateway.address, TOPIC, PARTITIONS, client_id=client_id).hello()


def session_of(stage: Scene, client_id: str) -> int:
    (found,) = [link for link in _links(stage, client_id) if link["client_id"] == client_id]
    return int(found["session_id"])


def close_at_broker(stage: Scene, session_id: int) -> None:
    """Close a session directly at the broker, from another connection.

    KIP-227: (id, -1) on any connection removes the session.
    """
    with Fetcher(stage.broker.address, TOPIC, 1) as other:
        other.fetch(session_id=session_id, session_epoch=-1)


def test_a_session_closed_by_someone_else_is_made_again_unseen(stage: Scene, expected: Responses) -> None:
    with stage.unharmed() as said, through(stage, "closed") as client:
        client.fetches()
        lost = session_of(stage, "closed")
        assert lost > 0
        close_at_broker(stage, lost)
        responses = client.fetches()
        made = session_of(stage, "closed")
    assert contents(responses) == expected * FETCHES_TO_SESSION
    assert made not in {0, lost}
    assert said().count("session lost") == 1
    assert "code=70" in said()


def test_the_bystanders_own_session_may_be_closed_in_mid_stream(stage: Scene) -> None:
    until(lambda: any(_sessions(stage, "bystander")), "it has no session")
    with stage.unharmed() as said:

        def lost() -> bool:  # a session that does not pay rests for a while: then there is none to close
            for number in _sessions(stage, "bystander"):
                close_at_broker(stage, number)
            stage.bystander.check()
            return said().count("session lost") >= 3

        until(lost, "no session was lost")


def _links(stage: Scene, client_id: str) -> list[dict[str, Any]]:
    return [link for link in stage.gateway.state()["connections"] if link["client_id"].startswith(client_id)]


def _sessions(stage: Scene, client_id: str) -> list[int]:
    return [link["session_id"] for link in _links(stage, client_id) if link["session_id"]]


def test_more_clients_than_slots_all_get_what_they_ask_for(stage: Scene, expected: Responses) -> None:
    with stage.unharmed() as said:
        with ExitStack() as stack:
            clients = [stack.enter_context(through(stage, f"many-{number}")) for number in range(2 * SLOTS)]
            for _ in range(3):
                for client in clients:
                    responses = contents(client.fetches(2))
                    assert responses == expected * 2
            names = [f"many-{number}" for number in range(2 * SLOTS)]
            without = {name for name in names if not session_of(stage, name)}
            assert 0 < len(names) - len(without) <= SLOTS
            # Once for each, not once a fetch. One that was refused can get a slot that becomes free later.
            refused = re.findall(r"session refused .*?client_id=(many-\d+)", said())
            assert without <= set(refused)
            assert len(refused) == len(set(refused))
        until(lambda: stage.gateway.state()["sessions"]["held"] <= 1, "slots stay taken")
    with through(stage, "afterwards") as client:
        client.fetches()
        assert session_of(stage, "afterwards") > 0


def test_check_asks_the_broker_for_its_slots(stage: Scene) -> None:
    command = [sys.executable, "-m", "proxy", "proxy", "-b", stage.broker.address, "--admin", "off"]
    command += ["--listen", f"127.0.0.1:{free_ports(3)}", "--check", "--max-sessions", "2"]
    for gateways, code, last in (
        ("3", 0, "gateways should use at most 6: enough."),
        ("4", 1, "6: give the gateways --max-sessions 1, or the brokers"),
    ):
        done = subprocess.run(
            [*command, "--gateways", gateways], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert f"Of the {SLOTS} slots of a broker" in done.stdout
        assert last in done.stdout


def test_gateways_with_more_sessions_than_slots_request_few(stage: Scene, expected: Responses) -> None:
    """Trap 22: clients of three gateways without a session send few full fetches, and lose no bytes.

    The number of full fetches depends on the time only: after a second refusal, the waits are 1 s, 2 s, 4 s,
    and so on, each up to a fifth shorter.
    """
    began = time.monotonic()
    with ExitStack() as stack:
        gateways = [stack.enter_context(GatewayProcess(stage.broker.address)) for _ in range(3)]
        clients = [
            stack.enter_context(Fetcher(gateway.address, TOPIC, PARTITIONS, client_id=f"shares-{number}"))
            for gateway in gateways
            for number in range(SLOTS // 2)
        ]
        for client in clients:
            client.hello()
        for _ in range(ROUNDS):
            for client in clients:
                assert contents([client.fetch()]) == expected
        links = [link for gateway in gateways for link in gateway.state()["connections"]]
        most = 2 + math.log2(1 + (time.monotonic() - began) / 0.8)
    assert len(links) == len(clients)
    without = [link for link in links if not link["session_id"]]
    assert len(without) >= len(clients) - SLOTS
    for link in without:
        fetches = link["broker"]["fetches"]
        assert 2 <= fetches["full"] <= most
        assert fetches["sessionless"] >= ROUNDS - 2 - most
        assert link["passthrough"]["no slot at the broker"] > 0
    for link in links:
        plain = link["client"]["fetch_request_bytes"] + link["client"]["fetch_response_bytes"]
        assert -link["saved_bytes"] <= plain / PLAIN_PER_LOST + CREDIT_EXCHANGES * plain / ROUNDS


def test_sessions_evicted_by_followers_are_given_up_and_had_again(stage: Scene, expected: Responses) -> None:
    """If followers evict a client's session, the gateway gives the session up, and gets a new one later.

    KIP-227: a follower's session is privileged. It takes the slot of any consumer's session, however new.
    """
    with stage.unharmed() as said, through(stage, "evicted") as client:
        client.fetches()
        assert session_of(stage, "evicted") > 0
        with Fetcher(stage.broker.address, TOPIC, PARTITIONS, client_id="follower") as follower:
            # Shards are asked in turn, by others too: some refuse, for they have a follower's already.
            asked = (
                follower.fetch(replica_id=FOLLOWER, session_epoch=0).session_id for _ in range(10 * SLOTS)
            )
            taken = list(islice(filter(None, asked), SLOTS))
            assert len(taken) == SLOTS
            assert contents(client.fetches(6)) == expected * 6
            assert session_of(stage, "evicted") == 0
            stage.bystander.check()
            for number in taken:
                follower.fetch(replica_id=FOLLOWER, session_id=number, session_epoch=-1)

        def has_session_again() -> bool:  # after evictions and refusals, it is requested after some seconds
            assert contents(client.fetches(6)) == expected * 6
            return session_of(stage, "evicted") > 0

        until(has_session_again, "it has no session again")
        # The bystander may be evicted, too, and more than once while the followers take slot after slot.
        by_client = [said().count(f"client_id={name} code=70") for name in ("evicted", "bystander")]
        assert by_client[0] == 1
        assert said().count("code=70") == sum(by_client)


@pytest.fixture(scope="module")
def narrow(stage: Scene) -> Iterator[Scene]:
    """Start a gateway with a budget of 1 MB for buffered responses (`--max-inflight-bytes`)."""
    options = ("--max-inflight-bytes", "1000000")
    with scene(stage.broker, "slots-narrow", *options) as narrow:
        yield narrow


def test_large_responses_of_sessions_wait_for_each_other_under_the_budget(narrow: Scene) -> None:
    """Case 91: with a budget of 1 MB, six session responses of 18 MB are buffered one after the other.

    Each response is buffered until it is complete. All clients get their records.
    """
    starts = [0] * LARGE_PARTITIONS
    ends = [LARGE_RECORDS // FILLED] * FILLED + starts[FILLED:]
    with Fetcher(narrow.broker.address, LARGE, LARGE_PARTITIONS) as direct:
        expected = contents([direct.fetch()])
    with narrow.unharmed(), ExitStack() as stack:
        clients = [stack.enter_context(_at_the_end(narrow, number, ends)) for number in range(6)]
        established = sum(map(bool, _sessions(narrow, "large-")))
        assert established >= 4
        incremental = _incremental(narrow)
        before = peak = narrow.rss()
        responses: list[Responses] = [[] for _ in clients]
        # All come before the first response does: a later one would find no room, and go without a session.
        with narrow.suspended():
            for client in clients:
                client.seek(starts)
                client.send()
        threads = [
            threading.Thread(target=lambda client=client, got=got: got.extend(contents([client.receive()])))
            for client, got in zip(clients, responses, strict=True)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            peak = max(peak, narrow.rss())
            threads[0].join(0.02)
        assert responses == [expected] * 6
        assert peak - before < 96 << 20  # 108 MB and their copies for the sockets, were all held at once
        assert _incremental(narrow) == incremental + established


def _incremental(narrow: Scene) -> int:
    return sum(link["broker"]["fetches"]["incremental"] for link in _links(narrow, "large-"))


def _at_the_end(narrow: Scene, number: int, ends: list[int]) -> Fetcher:
    """Return a client with a session whose fetch offsets are at the ends of all partitions."""
    client = Fetcher(narrow.gateway.address, LARGE, LARGE_PARTITIONS, client_id=f"large-{number}").hello()
    client.seek(ends)
    client.fetches()
    return client


def test_large_responses_under_a_small_budget_reach_all_clients(narrow: Scene) -> None:
    """Case 91: clients get all large records, although the gateway may buffer little.

    Clients that are catching up use no session, and their responses are forwarded as they arrive.
    """
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
    want = sorted((number % FILLED, number // FILLED) for number in range(LARGE_RECORDS))
    assert [sorted(each) for each in got.values()] == [want] * 4
    assert peak - before < 64 << 20


def _read_large(narrow: Scene, got: list[tuple[int, int]]) -> None:
    """Read the two partitions with large records together with a dozen partitions with small records."""
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
    consumer.assign(
        [*places, *(TopicPartition(LARGE, partition, 0) for partition in range(LARGE_PARTITIONS))]
    )
    while len(got) < LARGE_RECORDS:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        if message.topic() == LARGE:
            got.append((message.partition() or 0, message.offset() or 0))
    consumer.close()
