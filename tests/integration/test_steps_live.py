"""Compares a gateway before a broker with 0 slots with a broker that has slots.

Clients with sessions send the same random requests to both.
"""

import logging
import os
import random

import pytest

from tests.integration.mirror import LIVE_PROPERTIES, Live
from tests.integration.steps import Side, Steps
from tools.gateway import GatewayProcess
from tools.kafka import Broker

log = logging.getLogger(__name__)

STEPS = int(os.environ.get("STEPS", "400"))
SEED = int(os.environ.get("STEPS_SEED", "1"))
SLOTS = 16
ONE_CACHE = "3.7.2"
"""The last minor release whose session cache has no shards, as that of the gateway."""

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600 + STEPS // 5)]


def test_any_steps_are_those_of_a_broker_with_sessions() -> None:
    """Cases 2 to 48, in random order, give the same responses as a broker with sessions.

    If the test runs for more than two minutes, it also covers section 2.7 with real ages of sessions.
    """
    slots = "max.incremental.fetch.session.cache.slots"
    with (
        Broker(ONE_CACHE, properties=LIVE_PROPERTIES | {slots: SLOTS}) as native,
        Broker(ONE_CACHE, properties=LIVE_PROPERTIES | {slots: 0}) as bare,
        Live(native) as expected,
        Live(bare) as behind,
        GatewayProcess(bare.address, "--max-incremental-fetch-session-cache-slots", str(SLOTS)) as gateway,
    ):
        steps = Steps(
            expected=Side(expected, native.host, native.port),
            ours=Side(behind, gateway.host, gateway.port),
            chance=random.Random(SEED),
        )
        steps.run(STEPS)
        steps.close()
        evictions = gateway.state()["client_sessions"]["evictions"]

    log.info("%s, %s evictions", dict(steps.counts), evictions)
    assert {"error 0", "error 70", "error 71", "error 106", "outside"} <= set(steps.counts)
    assert evictions > 0 or STEPS < 50_000
    for kind in ("incremental with entries", "incremental without", "sessions", "refused"):
        assert steps.counts[kind] > STEPS // 50, kind
