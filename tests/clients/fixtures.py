"""Three brokers, the gateway before them, topics with one of everything: for the tests of all clients."""

from collections.abc import Iterator

import pytest

from tests.clients import dataset
from tests.clients.dataset import Expected
from tests.clients.runner import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, Program, old_kafka_python
from tools.kafka import Cluster
from tools.kafka.admin import Admin

BROKER_SETTINGS = {
    "log.cleaner.backoff.ms": 200,
    "message.max.bytes": 6_000_000,
    "quota.window.num": 2,
    "quota.window.size.seconds": 1,
    "replica.fetch.wait.max.ms": 50,
}


@pytest.fixture(scope="session")
def three_brokers() -> Iterator[Cluster]:
    """Three brokers of the newest release."""
    with Cluster(nodes=3, properties=BROKER_SETTINGS) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def admin(three_brokers: Cluster) -> Iterator[Admin]:
    """An admin client of those brokers."""
    with Admin(three_brokers.bootstrap) as admin:
        yield admin


@pytest.fixture(scope="session")
def expected(three_brokers: Cluster) -> Expected:
    """The topics of `tests.clients.dataset`, filled, and what must be found in them."""
    return dataset.fill(three_brokers.bootstrap)


@pytest.fixture(params=["confluent-kafka", "aiokafka", "kafka-python-2.0.2", "kafka-python"])
def program(request: pytest.FixtureRequest) -> Program:
    """Each Python client in turn."""
    programs = {each.name: each for each in (CONFLUENT, AIOKAFKA, KAFKA_PYTHON)}
    name: str = request.param
    return programs[name] if name in programs else old_kafka_python()
