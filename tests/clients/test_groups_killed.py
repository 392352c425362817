"""Members of seven libraries in one cooperative group lose no record when members and the gateway are killed.

`make soak` runs the same for longer. The processed records are compared with the log.
"""

import pytest

from tools.soak.groups.mixed import Plan, run

pytestmark = pytest.mark.clients


def test_no_record_is_lost_while_members_of_seven_libraries_are_killed() -> None:
    lines: list[str] = []
    outcome = run(Plan(seconds=40, seed=1), lines.append)
    told = "\n".join([*lines, *outcome.verdict.lines(), *outcome.defects, f"left out: {outcome.left_out}"])
    assert outcome.verdict.records > 1000, told
    assert not outcome.verdict.lost, told
    assert not outcome.verdict.unordered, told
    assert not outcome.verdict.invented, told
    assert not outcome.defects, told
