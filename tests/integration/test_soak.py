"""The soak (`make soak`), for seconds."""

import pytest

from tools.gateway import GatewayProcess
from tools.kafka import Cluster
from tools.soak import LEAST_MOVES, soak

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

SECONDS = 16


def test_groups_get_what_was_produced_while_leaders_move_and_a_broker_restarts(cluster: Cluster) -> None:
    with GatewayProcess(cluster.bootstrap) as gateway:
        outcome = soak(cluster, gateway.address, SECONDS, lambda *_: None)
        totals = gateway.state()["totals"]
    assert outcome.problems() == []
    assert len(outcome.groups) == 8
    assert len(outcome.produced) > SECONDS * 100
    assert outcome.moves >= LEAST_MOVES
    assert outcome.restarts >= 1
    ours = totals["broker"]["fetches"]["incremental"] - totals["client"]["fetches"]["incremental"]
    assert ours > SECONDS, "librdkafka, aiokafka and kafka-python 2.0.2 were given sessions"
