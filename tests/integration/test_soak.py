"""The soak (`make soak`), for half a minute: each disturbance once."""

import pytest

from tools.soak.chaos import NODES, soak

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(1200)]

SECONDS = 30


def test_everybody_gets_what_was_produced_while_everything_fails_in_turn() -> None:
    lines: list[str] = []
    outcome = soak(SECONDS, 1, lines.append)
    assert outcome.problems == [], "\n".join(lines)
    assert len(outcome.readers) == 10
    assert len(outcome.produced.sent) > SECONDS * 20
    assert len(outcome.sessions) == NODES
    assert outcome.fetches["broker"] > 0
