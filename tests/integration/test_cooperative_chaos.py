"""The chaos run of cooperative groups, as in `make soak`, but with only a few kills (case 41)."""

import pytest

from tools.soak.groups.chaos import chaos, summary

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

KILLS = 12
GROUPS = 4


def test_nothing_is_lost_while_members_and_the_gateway_are_killed() -> None:
    lines: list[str] = []
    outcome = chaos(KILLS, GROUPS, 1, lines.append)
    assert outcome.problems == [], "\n".join([*lines, *summary(outcome)])
    assert outcome.done["killed"] == KILLS
    assert outcome.verdict.counts["records"] > 1000
