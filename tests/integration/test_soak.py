"""A short version of the soak test (`make soak`): it runs for seconds, with a few kinds of disturbances."""

import pytest

from tools.soak.chaos import NODES, soak

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore:read_text is deprecated"),  # in kafka-python
]

SECONDS = 16
KINDS = frozenset({"broker killed", "gateway taken over"})


def test_everybody_gets_what_was_produced_while_brokers_gateway_and_network_fail() -> None:
    lines: list[str] = []
    outcome = soak(SECONDS, 1, lines.append, KINDS)
    assert outcome.problems == [], "\n".join(lines)
    assert len(outcome.readers) == 10
    assert len(outcome.produced.sent) > SECONDS * 20
    assert len(outcome.sessions) == NODES
    assert outcome.disturbances.done.keys() >= KINDS
    assert outcome.gateways.fetches["broker"] > 0
