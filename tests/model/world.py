"""The setup for tests of the model: one broker with three topics, and one client."""

from typing import Any

from tests.model.asker import Asker
from tests.model.broker import ModelBroker

TOPICS = {"foo": 3, "bar": 2, "zar": 2}


def fresh(version: int = 11, release: str = "4.3", **options: Any) -> tuple[ModelBroker, Asker]:
    broker = ModelBroker(release=release, **options)
    for name, count in TOPICS.items():
        broker.create_topic(name, count)
    return broker, Asker(broker=broker, version=version).learn()
