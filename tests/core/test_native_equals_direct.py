"""Tests that a client with its own sessions gets the same bytes through the gateway as directly.

Two model brokers have the same seed and the same history. The client sends each request to one of them
directly, and to the other one through the gateway.
"""

import random
from typing import Any

import pytest

from proxy.core.connection import Connection
from proxy.core.eligibility import SessionLimits
from tests.frames import SESSION_VERSIONS
from tests.model.asker import Asker
from tests.model.broker import ModelBroker
from tests.model.gate import Gate
from tests.model.wire import decode_response, encode_request

STEPS = 40
TOPICS = {"a": 3, "b": 3}


class Native:
    """A client that uses fetch sessions itself: it creates, continues, loses and closes them."""

    def __init__(self, asker: Asker, chance: random.Random) -> None:
        self.asker = asker
        self.random = chance
        self.id = 0
        self.epoch = 0

    def request(self) -> bytes:
        wants = [(name, i, 0) for name, count in TOPICS.items() for i in range(count)]
        roll = self.random.random()
        options: dict[str, Any] = {"isolation_level": self.random.randint(0, 1)}
        if self.epoch:
            wants = self.random.sample(wants, self.random.choice([0, 0, 1, 2]))
            if roll < 0.1:
                self.epoch += 1  # one too far: 71
            elif roll < 0.2:
                self.epoch = 0  # close and make another
                wants = [("a", 0, 0), ("b", 1, 0)]
            elif roll < 0.3:
                options["forget"] = [("a", 2)]
            elif roll < 0.35:
                self.epoch, wants = -1, []
        return encode_request(self.asker.request(*wants, session=(self.id, self.epoch), **options))

    def take(self, response: bytes) -> None:
        """Process a response by Kafka's rules. They decide the session id and epoch of the next request."""
        told = decode_response(response, self.asker.version)
        if told.error_code == 70 or self.epoch == -1 or not told.session_id:
            # Not (0, 0) once more: that is what clients send that mean no session (6.7).
            self.id, self.epoch = (0, 0) if told.error_code == 70 or self.epoch == -1 else (self.id, 0)
        elif told.error_code:
            self.epoch = 0
        else:
            self.id = told.session_id
            self.epoch += 1


def change(brokers: list[ModelBroker], chance: random.Random) -> None:
    name, index = chance.choice(list(TOPICS)), chance.randrange(3)
    roll = chance.random()
    for broker in brokers:
        partition = broker.partition(name, index)
        if roll < 0.5:
            partition.append(b"records")
        elif roll < 0.6:
            broker.throttle_ms = 40 - broker.throttle_ms
        elif roll < 0.7:
            partition.error = 56 - partition.error
        elif roll < 0.75:
            for session in list(broker.cache.sessions.values()):
                broker.cache.remove(session)


@pytest.mark.parametrize("version", SESSION_VERSIONS)
@pytest.mark.parametrize("seed", range(2))
def test_a_session_of_the_clients_own_is_left_alone(version: int, seed: int) -> None:
    brokers = [ModelBroker(seed=seed) for _ in range(2)]
    for broker in brokers:
        for name, count in TOPICS.items():
            broker.create_topic(name, count)
    chance = random.Random(seed)
    connection = Connection(sessions=SessionLimits(max_sessions=10), resolve=None)
    gate = Gate(connection, brokers[1], chance)
    client = Native(Asker(broker=brokers[0], version=version).learn(), chance)

    for step in range(STEPS):
        request = client.request()
        direct = brokers[0].handle(request, step)
        assert gate.exchange([request], step) == [direct]
        client.take(direct)
        change(brokers, chance)

    assert {n: s.epoch for n, s in brokers[0].cache.sessions.items()} == {
        n: s.epoch for n, s in brokers[1].cache.sessions.items()
    }
    assert connection.tally.passthrough["native session"] == STEPS
