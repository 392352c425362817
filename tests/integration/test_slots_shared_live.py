"""Four gateways whose clients need twice as many session slots as the broker has, for some minutes.

`test_faults_sessions.py` has a short form of it, and `tests/core/test_eligibility_backoff.py` one in
simulated time.
"""

import logging
import os
import random
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Final

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its types do not export these names
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from proxy.core.savings import CREDIT_EXCHANGES, PLAIN_PER_LOST
from tests.integration.fetching import Fetcher
from tools.gateway import GatewayProcess
from tools.kafka import LATEST, Broker
from tools.kafka.admin import Admin
from tools.kafka.ports import free_ports

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(1200)]

MINUTES: Final = int(os.environ.get("SLOTS_MINUTES", "6"))
SLOTS: Final = 8
GATEWAYS: Final = 4
CLIENTS: Final = 4
"""The number of clients of each gateway."""
PARTITIONS: Final = 20

log = logging.getLogger(__name__)


@pytest.mark.parametrize(
    ("release", "fewest"),
    [
        # A consumer's session in use is evicted only for a larger one: each minute, the sizes change.
        (LATEST, 12),
        # KAFKA-9137: two minutes after it was created, any session is evicted although it is in use.
        ("2.4.1", PARTITIONS),
    ],
)
def test_gateways_that_share_too_few_slots(release: str, fewest: int) -> None:
    """Trap 22: there are few full fetches a minute, and law 6 holds for each connection."""
    drawn = random.Random(7)
    with ExitStack() as stack:
        slots = {"max.incremental.fetch.session.cache.slots": SLOTS}
        broker = stack.enter_context(Broker(release, properties=slots))
        with Admin(broker.address) as admin:
            admin.create_topic("shared", partitions=PARTITIONS)
        gateways = [stack.enter_context(GatewayProcess(broker.address)) for _ in range(GATEWAYS)]
        clients = [
            stack.enter_context(Fetcher(gateway.address, "shared", PARTITIONS)).hello()
            for gateway in gateways
            for _ in range(CLIENTS)
        ]
        topics = clients[0].template.topics[0]
        began = time.monotonic()
        counts: list[int] = []
        for minute in range(1, MINUTES + 1):
            listed = [drawn.randint(fewest, PARTITIONS) for _ in clients]
            while time.monotonic() < began + 60 * minute:
                for client, size in zip(clients, listed, strict=True):
                    some = topics.partitions[:size]
                    client.fetch(topics=(type(topics)(topic=topics.topic, partitions=some),), max_wait_ms=0)
                time.sleep(0.5)
            links = [link for gateway in gateways for link in gateway.state()["connections"]]
            counts.append(sum(link["broker"]["fetches"]["full"] for link in links))
    full = [after - before for before, after in zip([0, *counts], counts, strict=False)]
    spent = [
        sum(sum(link[side][f"fetch_{way}_bytes"] for way in ("request", "response")) for link in links)
        for side in ("client", "broker")
    ]
    errors = sum(link["session_errors"].get("70", 0) for link in links)
    log.info("%s: full fetches a minute: %s; evictions: %d; bytes: %s", release, full, errors, spent)
    assert max(full[1:]) <= 3 * len(clients)  # 45 each, if each fetch requested a session
    for link in links:
        plain = link["client"]["fetch_request_bytes"] + link["client"]["fetch_response_bytes"]
        fetches = sum(link["client"]["fetches"].values())
        assert -link["saved_bytes"] <= plain / PLAIN_PER_LOST + CREDIT_EXCHANGES * plain / fetches


def test_a_broker_that_may_not_be_asked_for_its_slots() -> None:
    """``--check --gateways`` assumes Kafka's default if DescribeConfigs of the cluster is denied."""
    rules = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with Broker(properties=rules) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        for operation, permission in (
            (AclOperation.ALL, AclPermissionType.ALLOW),  # the broker itself is of the same user
            (AclOperation.DESCRIBE_CONFIGS, AclPermissionType.DENY),
        ):
            resource = (ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL)
            rule = AclBinding(*resource, "User:ANONYMOUS", "*", operation, permission)
            admin.create_acls([rule])[rule].result(60)
        command = [sys.executable, "-m", "proxy", "proxy", "-b", broker.address, "--admin", "off"]
        command += ["--listen", f"127.0.0.1:{free_ports(3)}", "--max-sessions", "10", "--check"]
        done = subprocess.run(
            [*command, "--gateways", "20"], capture_output=True, text=True, check=False, timeout=60
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1,000 are assumed: DescribeConfigs of the cluster is not allowed here" in done.stdout
