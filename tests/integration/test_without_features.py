"""A gateway without some of its features serves a real client.

The other tests of this are in `tests/features/test_deletable.py`.
"""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from proxy.features.declared import FEATURES, NAMES
from proxy.telemetry.metrics import FIGURES
from tests.features.deleted import CHOICES, copy_without, environment_of
from tests.integration.producing import Producer
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

pytestmark = [pytest.mark.integration, pytest.mark.nightly]
TOPIC = "without-features"
RECORDS = 100


@pytest.fixture(scope="module", autouse=True)
def topic(broker: Broker) -> None:
    with Admin(broker.address) as admin, closing(Producer(broker.host, broker.port)) as producer:
        admin.create_topic(TOPIC, partitions=1)
        producer.produce(TOPIC, 0, [b"%d" % number for number in range(RECORDS)])


@pytest.mark.parametrize("names", CHOICES.values(), ids=CHOICES)
def test_a_client_reads_all_and_nothing_tells_of_the_features(
    names: tuple[str, ...], broker: Broker, tmp_path: Path
) -> None:
    copy_without(names, tmp_path)
    gone = [FEATURES[NAMES.index(name)] for name in names]
    options = [option.name for feature in gone for option in feature.options.declared()]
    figures = {figure.name for feature in gone if feature.reports for figure in feature.reports().figures} - {
        figure.name for figure in FIGURES
    }

    with GatewayProcess(broker.address, environment=environment_of(tmp_path)) as gateway:
        consumer = Consumer(
            {
                "bootstrap.servers": gateway.address,
                "group.id": f"without-{'-'.join(names)}",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([TOPIC])
        found = [message.value() for message in consumer.consume(RECORDS, timeout=60)]
        state, metrics = json.dumps(gateway.state()), " ".join(gateway.metrics())
        screen = subprocess.run(
            [sys.executable, "-m", "proxy", "top", "--once", "--admin", gateway.admin],
            env=os.environ | environment_of(tmp_path),
            text=True,
            capture_output=True,
            check=False,
        )
        consumer.close()
        assert gateway.stop() == 0

    assert (screen.returncode, screen.stderr) == (0, "")
    assert found == [b"%d" % number for number in range(RECORDS)]
    assert not [name for name in options if f'"{name}"' in state]
    assert not [name for name in figures if f"fetchgate_{name}" in metrics]
