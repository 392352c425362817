"""A broker hangs. Within 13 seconds all reports show that it hangs.

With the broker's next response, the reports show that it has recovered.
"""

import json
import os
import re
import signal
import urllib.request
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import confluent_kafka
import pytest

from tests.integration.bystander import until
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

pytestmark = pytest.mark.integration

TOPIC: Final = "hung"
WITHIN: Final = 13.0
"""The time limit in seconds for the report, by the gateway's clock. A response is too late after ten seconds,
and the check runs every two seconds."""
OLDEST: Final = "fetchgate_broker_oldest_request_seconds"
OUTSTANDING: Final = "fetchgate_broker_outstanding_requests"
HUNG: Final = re.compile(r"no response for [1-9]\d+ s")
"""The reason: at least ten seconds."""


def _ready(gateway: GatewayProcess) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{gateway.admin}/readyz", timeout=30) as response:
        told: dict[str, Any] = json.loads(response.read())
    return told


def _is_degraded(gateway: GatewayProcess) -> bool:
    return bool(_ready(gateway)["reasons"])


def _is_well(gateway: GatewayProcess) -> bool:
    return not _is_degraded(gateway)


def _fetches(gateway: GatewayProcess) -> bool:
    return gateway.metric("fetchgate_fetches_total", side="client", kind="sessionless") > 2


def _logged(gateway: GatewayProcess, line: str) -> bool:
    return line in gateway.log()


def _brokers(gateway: GatewayProcess) -> list[dict[str, Any]]:
    brokers: list[dict[str, Any]] = gateway.state()["brokers"]
    return brokers


def _consuming(address: str, stack: ExitStack) -> confluent_kafka.Consumer:
    """Return a consumer that fetches in the background."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "hung"})
    stack.callback(consumer.close)
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, index, 0) for index in range(2)])
    return consumer


def test_a_broker_that_stands_still_is_told_of_and_well_when_it_goes_on(
    broker: Broker, gateway: GatewayProcess
) -> None:
    with ExitStack() as stack:
        stack.enter_context(Admin(broker.address)).create_topic(TOPIC, partitions=2)
        consumer = _consuming(gateway.address, stack)
        node = str(_brokers(gateway)[0]["id"])
        until(partial(_fetches, gateway), "fetches")
        # Each response is late for a moment, until it arrives.
        until(lambda: gateway.metric(OLDEST, broker=node) == 0, "no late response")

        os.kill(broker.pid, signal.SIGSTOP)
        try:
            until(partial(_is_degraded, gateway), "a reason")
            told = _ready(gateway)
            assert told["state"] == "degraded"
            assert any(f"broker {node} at " in reason for reason in told["reasons"]), told
            assert any(HUNG.search(reason) for reason in told["reasons"]), told
            of_node = next(each for each in _brokers(gateway) if str(each["id"]) == node)
            assert HUNG.match(of_node["problem"])
            assert of_node["problem_seconds"] > 10
            assert gateway.metric(OUTSTANDING, broker=node) >= 1
            assert gateway.metric(OLDEST, broker=node) > 10
            until(partial(_logged, gateway, "broker does not respond"), "the line")
            (event,) = (each for each in gateway.state()["events"] if each["kind"] == "no response")
            late = re.match(rf"broker {node} has not responded for (\d+) s", event["text"])
            assert late is not None, event
            assert 10 <= int(late[1]) < WITHIN
        finally:
            os.kill(broker.pid, signal.SIGCONT)

        until(partial(_is_well, gateway), "all to be well")
        assert {each["problem"] for each in _brokers(gateway)} == {""}
        assert gateway.metric(OLDEST, broker=node) < 10
        until(partial(_logged, gateway, "broker responds again"), "the line")
        for line in ("broker does not respond", "broker responds again"):
            assert gateway.log().count(line) == 1, gateway.log()
        assert consumer.poll(0) is None
