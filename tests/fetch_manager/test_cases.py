"""Conformance cases 14 to 49: the gateway as a server of sessions, against a model broker with sessions.

The broker behind the gateway has no session slots. Both brokers have the same topics.
`tests/integration/test_fetch_manager_live.py` runs the same scripts with a live broker.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.fetch_manager.cases import Case, every_case
from tests.fetch_manager.script import Script, Server
from tests.fetch_manager.serving import Finish, Serving
from tests.model.broker import ModelBroker
from tests.model.wire import decode_request, encode_response


class Modelled:
    """Two model brokers that share their topics. The first has sessions, the second has none."""

    def __init__(self, release: str = "4.3") -> None:
        self.native = ModelBroker(release=release)
        self.bare = ModelBroker(
            release=release, slots=0, topics=self.native.topics, denied=self.native.denied
        )

    def create(self, name: str, partitions: int) -> bytes:
        return self.native.create_topic(name, partitions).topic_id

    def delete(self, name: str) -> None:
        self.native.delete_topic(name)

    def full(self, name: str) -> str:
        return name

    def produce(self, name: str, partition: int, size: int = 10) -> None:
        self.native.partition(name, partition).append(bytes(size))

    @contextmanager
    def hold(self, name: str, partition: int) -> Iterator[None]:
        self.native.partition(name, partition).append(b"open", producer=9)
        yield
        self.native.partition(name, partition).end_transaction(9, commit=True)

    def delete_records(self, name: str, partition: int, before: int) -> None:
        self.native.partition(name, partition).delete_records(before)

    def parked(self) -> None:
        """Do nothing. A model broker receives a request at once, so there is nothing to wait for."""

    @contextmanager
    def throttled(self, name: str, partition: int) -> Iterator[None]:
        self.produce(name, partition, 1000)
        self.native.throttle_ms = self.bare.throttle_ms = 40
        yield
        self.native.throttle_ms = self.bare.throttle_ms = 0


def parked(broker: ModelBroker, message: bytes) -> Finish:
    """Let a model broker receive a request. The broker reads the log only when it is told to respond.

    Return the function that makes the broker read the log and respond.
    """
    pending = broker.arrive(decode_request(message), 0.0)
    return lambda: encode_response(broker.response(pending, 0.0))


def script(version: int, *, broker_max: int = 18, chance: random.Random | None = None) -> Script:
    """Return a script with the two topics that the cases use."""
    world = Modelled()
    ours = Serving(lambda message: parked(world.bare, message), broker_max=broker_max, chance=chance)
    return Script(
        version=version,
        world=world,
        expected=Server(lambda message: parked(world.native, message), "native"),
        ours=Server(ours.arrive, "ours"),
    ).with_topics()


@every_case()
def test_responses_are_those_of_a_broker_with_sessions(case: Case, version: int) -> None:
    """Cases 14 to 27, 30 to 43, and 45 to 48: the gateway responds like a broker with sessions."""
    case(script(version))


@every_case()
def test_pieces_may_have_any_size(case: Case, version: int) -> None:
    case(script(version, chance=random.Random(version)))


@pytest.mark.parametrize("broker_max", [5, 6])
@every_case(7)
def test_a_broker_without_sessions_gets_what_it_knows(case: Case, version: int, broker_max: int) -> None:
    """Trap 4: the gateway converts fetches if the client uses v7 and the broker supports only v5 or v6."""
    if case.__name__ not in ("names_and_ids_do_not_mix", "versions_may_change_within_names_or_ids"):
        case(script(version, broker_max=broker_max))
