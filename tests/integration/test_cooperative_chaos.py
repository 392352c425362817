"""The chaos run of cooperative groups, as in `make soak`, but with only a few kills (case C41).

A run has a problem if a group does not share its partitions after the last disturbance. How much a group
shares before that depends on the machine's load.
"""

import pytest

from tools.soak.groups.chaos import chaos, summary

pytestmark = pytest.mark.integration

KILLS = 12
GROUPS = 4
SEVERAL = 3
UP_SECONDS = (4.0, 12.0)


def test_nothing_is_lost_while_members_and_the_gateway_are_killed() -> None:
    lines: list[str] = []
    outcome = chaos(KILLS, GROUPS, 1, lines.append)
    assert outcome.problems == [], "\n".join([*lines, *summary(outcome)])
    assert outcome.done["killed"] == KILLS
    assert outcome.verdict.counts["records"] > 1000


def test_nothing_is_lost_with_several_gateways() -> None:
    """The gateways are killed, cut off from the broker, and restarted one by one (case C67)."""
    lines: list[str] = []
    outcome = chaos(KILLS, GROUPS - 1, 1, lines.append, gateways=SEVERAL, up_seconds=UP_SECONDS)
    told = "\n".join([*lines, *summary(outcome)])
    assert outcome.problems == [], told
    assert outcome.done["killed"] == KILLS
    assert outcome.done["gateway killed"] > 0, told
    assert outcome.done["gateway cut off"] > 0, told
    assert outcome.done["gateway restarted"] >= SEVERAL, told
    assert outcome.verdict.counts["records"] > 1000
