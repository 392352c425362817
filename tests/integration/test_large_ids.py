"""A cluster whose broker has an id of nine digits, as in Redpanda Cloud and WarpStream."""

import urllib.error
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, Producer

from tests.integration.bystander import until
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin
from tools.kafka.ports import free_ports

pytestmark = pytest.mark.integration

NODE_ID: Final = 600_000_123
TOPIC: Final = "events"


def _passes(gateway: GatewayProcess, value: str) -> bool:
    """Write a record through the gateway, and return whether a consumer gets it there."""
    reach = {"bootstrap.servers": gateway.address}
    producer = Producer(reach)
    producer.produce(TOPIC, value)
    assert producer.flush(60) == 0
    consumer = Consumer(reach | {"group.id": value, "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    try:
        while (message := consumer.poll(60)) is not None:
            if message.value() == value.encode():
                return True
        return False
    finally:
        consumer.close()


def test_a_broker_with_an_id_of_nine_digits_has_a_port_of_the_range_and_keeps_it(tmp_path: Path) -> None:
    first = free_ports(3)
    with Broker(node_id=NODE_ID) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic(TOPIC)
        with GatewayProcess(broker.address, ready=False) as gateway:
            until(lambda: "broker left out" in gateway.log(), "the broker has a port")
            with pytest.raises(urllib.error.HTTPError, match="503"):
                gateway._get("/readyz")
            assert gateway.state()["state"] == "starting"
            assert "all brokers with --listen-ports" in gateway.state()["reasons"][0]
        options = tmp_path / "fetchgate.toml"
        options.write_text(f'listen_ports = "{first + 1}-{first + 2}"')
        kept = ("--state", str(tmp_path / "brokers.json"), "--config", str(options))
        with GatewayProcess(broker.address, *kept) as gateway:
            assert _passes(gateway, "first")
            assert gateway.state()["state"] == "ready"
            gateway.stop()
            options.write_text(f'listen_ports = "{first}-{first + 2}"')
            gateway.start()
            assert _passes(gateway, "second")
            (known,) = gateway.state()["brokers"]
            assert (known["id"], known["listener"]) == (NODE_ID, f"127.0.0.1:{first + 1}")
