"""Compares the model broker with real ones.

Both get random states and the same random requests in sessions, and must send equal responses.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.examples import share
from tests.integration.mirror import LIVE_PROPERTIES, Live, Mirror
from tests.model.asker import lines
from tests.model.broker import ModelBroker
from tests.model.wire import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    decode_response,
    encode_request,
)
from tools.kafka import Broker

pytestmark = pytest.mark.integration

RELEASES = {
    "4.4.0": (4, 7, 12, 18),
    "4.3.0": (4, 7, 11, 12, 16, 18),
    "3.9.1": (4, 9, 12, 17),
    "2.8.2": (4, 8, 10, 12),
    "2.4.1": (7, 10, 11),
    "1.1.1": (4, 6, 7),
}
"""The Fetch versions to test with each release."""
STEPS = share(50)
"""The number of requests at each version."""


@dataclass
class Pair:
    """The same session at the real broker and at the model broker. Each broker has given it another id."""

    version: int
    live_id: int
    model_id: int
    epoch: int = 1
    held: set[tuple[str, int]] = field(default_factory=set)


class Walk:
    """A random walk over both brokers at one Fetch version."""

    def __init__(self, mirror: Mirror, version: int, seed: int) -> None:
        self.mirror = mirror
        self.version = version
        self.random = random.Random(seed)
        self.pairs: list[Pair] = []
        self.prefix = f"v{version}-s{seed}-"
        self.made = 0
        self.names: list[str] = []
        self.ids: dict[str, bytes] = {}
        self.correlation = 0
        for _ in range(3):
            self.create()

    # The world

    def create(self, name: str | None = None) -> None:
        if name is None:
            self.made += 1
            name = f"{self.prefix}{self.made}"
            self.names.append(name)
        self.mirror.create_topic(name, self.random.randint(1, 3))
        self.ids[name] = self.mirror.model.topics[name].topic_id

    def change(self) -> None:
        """Apply a random change to topics."""
        name = self.random.choice(self.names)
        topic = self.mirror.model.topics.get(name)
        if topic is None:
            self.create(name)
            return
        index = self.random.choice(list(topic.partitions))
        roll = self.random.random()
        if roll < 0.6:
            values = [self.random.randbytes(self.random.choice([1, 40, 900])) for _ in range(3)]
            self.mirror.produce(name, index, values[: self.random.randint(1, 3)])
        elif roll < 0.75:
            self.transact(name, index)
        elif roll < 0.9:
            partition = topic.partitions[index]
            before = self.random.randint(partition.log_start, partition.high_watermark)
            self.mirror.delete_records(name, index, before)
        elif roll < 0.94:
            self.mirror.add_partition(name)
        elif roll < 0.97:
            self.create()
        else:
            self.mirror.delete_topic(name)

    def transact(self, name: str, index: int) -> None:
        live = self.mirror.live
        transaction = live.producer.begin(f"{name}-{index}")
        live.producer.join(transaction, name, index)
        for _ in range(self.random.randint(1, 2)):
            self.mirror.produce(name, index, [b"in transaction"], transaction)
        self.ask()
        live.end_transaction(transaction, name, index, commit=self.random.random() < 0.5)
        self.mirror.catch_up(name, index)

    # Requests

    def entry(self, name: str, index: int) -> FetchPartition:
        topic = self.mirror.model.topics.get(name)
        partition = topic.partitions.get(index) if topic is not None else None
        end = partition.log_end if partition is not None else 3
        offset = end if self.random.random() < 0.5 else self.random.randint(0, end + 1)
        return FetchPartition(
            partition=index,
            fetch_offset=offset,
            partition_max_bytes=self.random.choice([1 << 20, 1 << 20, 100, 0]),
            current_leader_epoch=self.random.choice([-1, -1, 0, 1]) if self.version >= 9 else -1,
        )

    def wants(self, most: int) -> tuple[FetchTopic, ...]:
        elements = []
        for _ in range(self.random.randint(0, most)):
            name = self.random.choice(self.names)
            entries = tuple(
                self.entry(name, self.random.randint(0, 3)) for _ in range(self.random.randint(1, 3))
            )
            elements.append(FetchTopic(**self.key(name), partitions=entries))
        return tuple(elements)

    def key(self, name: str) -> dict[str, Any]:
        return {"topic": name} if self.version <= 12 else {"topic_id": self.ids[name]}

    def ask(self) -> None:
        """Send one request to both brokers. Their responses must be equal."""
        self.correlation += 1
        base = FetchRequest(
            version=self.version,
            correlation_id=self.correlation,
            isolation_level=self.random.randint(0, 1),
            max_bytes=self.random.choice([1 << 26, 1 << 26, 1000, 150]),
        )
        roll = self.random.random()
        if self.version >= 7 and self.pairs and roll < 0.65:
            self.incremental(base, self.random.choice(self.pairs))
        elif self.version >= 7 and roll < 0.85:
            self.full(replace(base, topics=self.wants(4)))
        else:
            self.both(replace(base, topics=self.wants(4)), None)

    def full(self, request: FetchRequest) -> None:
        old = self.random.choice([None, *self.pairs])
        live, model = self.both(replace(request, session_epoch=0), old)
        if old is not None:
            self.pairs.remove(old)
        if model.session_id:
            self.pairs.append(Pair(self.version, live.session_id, model.session_id))

    def incremental(self, request: FetchRequest, pair: Pair) -> None:
        roll = self.random.random()
        epoch = pair.epoch if roll < 0.9 else self.random.choice([-1, pair.epoch + 1, -7])
        forgotten = tuple(
            ForgottenTopic(
                **self.key(self.random.choice(self.names)), partitions=(self.random.randint(0, 2),)
            )
            for _ in range(self.random.choice([0, 0, 0, 1, 2]))
        )
        if epoch != -1:
            request = replace(request, topics=self.wants(2), forgotten=forgotten)
        _, model = self.both(replace(request, session_epoch=epoch), pair)
        if model.error_code == 0 and model.session_id:
            pair.epoch += 1
        elif model.error_code == 0:
            self.pairs.remove(pair)

    def both(self, request: FetchRequest, pair: Pair | None) -> tuple[FetchResponse, FetchResponse]:
        """Send a request to both brokers, with their own session ids. Check that the responses are equal.

        Only the session ids may differ.
        """
        asked = [replace(request, session_id=i) for i in ((pair.live_id, pair.model_id) if pair else (0, 0))]
        live = self.mirror.live.fetch(asked[0])
        model = decode_response(self.mirror.model.handle(encode_request(asked[1]), 0.0), self.version)
        assert bool(live.session_id) == bool(model.session_id), (asked[0], live, model)
        assert lines(live) == lines(model), asked[0]
        assert replace(live, session_id=0) == replace(model, session_id=0), asked[0]
        return live, model


@pytest.fixture(scope="module", params=RELEASES)
def live(request: pytest.FixtureRequest) -> Iterator[Live]:
    with Broker(request.param, properties=LIVE_PROPERTIES) as broker, Live(broker) as connected:
        yield connected


def test_the_model_answers_as_the_broker_does(live: Live) -> None:
    release = live.broker.version
    model = ModelBroker(release=release)
    mirror = Mirror(live, model)
    assert model.quirks.fetch_versions == live.fetch_versions

    for version in RELEASES[release]:
        walk = Walk(mirror, version, seed=1)
        for _ in range(STEPS):
            if walk.random.random() < 0.4:
                walk.change()
            walk.ask()
