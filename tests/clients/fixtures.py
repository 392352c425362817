"""Fixtures for the tests of all clients: three brokers with filled topics, and a gateway before them."""

from collections.abc import Iterator

import pytest

from tests.clients import dataset
from tests.clients.dataset import Expected
from tests.clients.runner import Program, Ways, python_programs
from tools.gateway import GatewayProcess
from tools.kafka import Cluster
from tools.kafka.admin import Admin


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Admin]:
    """An admin client of the three brokers."""
    with Admin(cluster.bootstrap) as admin:
        yield admin


@pytest.fixture(scope="module")
def cluster_gateway(cluster: Cluster) -> Iterator[GatewayProcess]:
    """A gateway before the three brokers."""
    with GatewayProcess(cluster.bootstrap) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def ways(cluster: Cluster, cluster_gateway: GatewayProcess) -> Ways:
    """The address of the brokers, and the address of the gateway."""
    return Ways(direct=cluster.bootstrap, gateway=cluster_gateway.address)


@pytest.fixture(scope="module")
def expected(cluster: Cluster) -> Expected:
    """Fill the topics of `tests.clients.dataset`. Return the records expected in them."""
    return dataset.fill(cluster.bootstrap)


@pytest.fixture(scope="module", params=["confluent-kafka", "aiokafka", "kafka-python-2.0.2", "kafka-python"])
def program(request: pytest.FixtureRequest) -> Program:
    """The consumer program of each Python client, one after the other."""
    name: str = request.param
    return python_programs()[name]
