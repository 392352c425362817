"""A coordinator, and a broker with the records that members read."""

import pytest

from tests.features.cooperative.batch import RECORDS, batch
from tests.features.cooperative.coordinator import Coordinator
from tests.model.broker import ModelBroker


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def broker() -> ModelBroker:
    broker = ModelBroker(release="4.3.0", slots=100, seed=1)
    broker.create_topic("orders", 1)
    broker.topics["orders"].partitions[0].append(batch(RECORDS), count=len(RECORDS))
    return broker
