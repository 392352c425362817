"""Connections end at `--max-connection-age` while librdkafka produces and reads."""

from contextlib import ExitStack
from typing import Any

import pytest

from tests.integration.bystander import PARTITIONS, Bystander, until
from tests.integration.test_drain import LOADS
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

pytestmark = [pytest.mark.integration, pytest.mark.nightly]
AGE_SECONDS = 2
ENDED = 40
"""How many connections end in a test."""


def test_no_record_is_lost_or_doubled_while_connections_end(broker: Broker) -> None:
    topics: dict[str, Any] = {f"aged-{number}": settings for number, settings in enumerate(LOADS)}
    with Admin(broker.address) as admin:
        for topic in topics:
            admin.create_topic(topic, partitions=PARTITIONS)
    with ExitStack() as stack:
        gateway = stack.enter_context(
            GatewayProcess(broker.address, "--max-connection-age", f"{AGE_SECONDS}s")
        )
        at = gateway.address
        loads = [
            stack.enter_context(Bystander(at, at, topic, rate=100, settings=settings))
            for topic, settings in topics.items()
        ]

        def ended() -> bool:
            for load in loads:
                load.check()
            return gateway.metric("fetchgate_connections_aged_total") >= ENDED

        until(ended, "connections do not end", patience=240)
        for load in loads:
            load.finish()
            assert load.errors == []
        assert "Traceback" not in gateway.log()
