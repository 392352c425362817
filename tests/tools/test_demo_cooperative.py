"""The demo of cooperative groups reads the members' logs, and fails on bad results.

Only the parts that need no broker are tested.
"""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.tools.test_work_log import entries
from tools.demo.cooperative_report import CooperativeOutcome, GroupOutcome, cooperative_table
from tools.work_log import COMMITTED

SECOND = 1_000_000_000
GOOD = GroupOutcome(
    produced=6_000,
    members=4,
    working=4,
    shares=(800, 1_700, 1_700, 1_850),
    rate=790.0,
    still=6.2,
    seconds=14.0,
    read=6_000,
    again=50,
    needless=0,
    disordered=0,
    together=0,
)
PLAIN = replace(GOOD, working=1, shares=(3_000, 3_020, 0, 0), rate=195.0, again=20)


def outcome(**changes: Any) -> CooperativeOutcome:
    return replace(CooperativeOutcome(plain=PLAIN, cooperative=GOOD), **changes)


def test_logs_of_a_group(tmp_path: Path) -> None:
    """The outcome of a group is read from the logs of its members.

    The killed member has handled offset 4 without committing it. Another member handles offset 4 again, and
    then the next records with the same key.
    """
    other = entries(
        tmp_path,
        (1, 1, 1 * SECOND, 2 * SECOND),
        (3, 1, 2 * SECOND, 3 * SECOND),
        (4, 0, 10 * SECOND, 11 * SECOND),
        (6, 0, 11 * SECOND, 13 * SECOND),
    )
    killed = entries(
        tmp_path,
        (0, 0, 1 * SECOND, 2 * SECOND),
        (2, 0, 2 * SECOND, 3 * SECOND),
        (4, COMMITTED, 3 * SECOND, 3 * SECOND),
        (4, 0, 3 * SECOND, 4 * SECOND),
    )
    found = GroupOutcome.of([other, killed, entries(tmp_path)], killed=1, killed_at=5 * SECOND, produced=6)
    assert found == GroupOutcome(
        produced=6,
        members=3,
        working=2,
        shares=(3, 4, 0),
        rate=5 / 4,
        still=5.0,
        seconds=12.0,
        read=6,
        again=1,
        needless=0,
        disordered=0,
        together=0,
    )
    assert found.complaints == []


def test_a_committed_record_that_comes_again_is_needless(tmp_path: Path) -> None:
    other = entries(tmp_path, (1, 1, 1, 2), (0, 0, 10, 11), (3, 1, 11, 12), (3, 1, 12, 13))
    killed = entries(tmp_path, (0, 0, 1, 2), (1, COMMITTED, 3, 3))
    found = GroupOutcome.of([other, killed], killed=1, killed_at=5, produced=3)
    assert (found.again, found.needless) == (2, 2)
    assert found.complaints == ["2 records came again that were no uncommitted ones of the killed member"]


def test_all_well_has_no_complaints() -> None:
    assert outcome().complaints == []
    assert f"{outcome().times:.2f}" == "4.05"


def test_how_much_faster_is_said_of_each_part_of_the_time() -> None:
    plain, cooperative = replace(PLAIN, rate=196.0, seconds=38.7), replace(GOOD, rate=770.0, seconds=16.0)
    assert CooperativeOutcome(plain=plain, cooperative=cooperative).verdict == (
        "Until one was killed, the cooperative group was 3.93 times as fast (records/s).\n"
        "With the pause after the kill, all records took it 16.0 s, the plain group 38.7 s: 2.42 times."
    )


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"read": 5_999}, "cooperative: 1 of 6,000 records were not handled"),
        ({"disordered": 2}, "cooperative: 2 records came behind a later one of their key"),
        ({"together": 3}, "cooperative: 3 records were begun while another one of their key was in work"),
        (
            {"again": 5, "needless": 4},
            "cooperative: 4 records came again that were no uncommitted ones of the killed member",
        ),
        ({"working": 3}, "cooperative: only 3 members got records before the kill"),
        ({"rate": 584.0}, "the cooperative group is 2.99 times as fast, less than 3"),
    ],
    ids=["lost", "out of order", "at the same time", "needless", "exclusive", "slow"],
)
def test_what_is_not_as_promised_is_said(changes: dict[str, Any], complaint: str) -> None:
    assert outcome(cooperative=replace(GOOD, **changes)).complaints == [complaint]


def test_the_table_lays_the_groups_side_by_side() -> None:
    out = io.StringIO()
    Console(file=out, width=110, color_system=None).print(cooperative_table(outcome()))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.getvalue().splitlines()]
    assert [row for row in rows if row] == [
        ["records/s until one was killed", "195", "790"],
        ["members at work until then", "1 of 4", "4 of 4"],
        [
            "records: the killed one | others",
            "3,000 | 3,020, 0, 0",
            "800 | 1,700, 1,700, 1,850",
        ],
        ["its keys stood still for", "6.2 s", "6.2 s"],
        ["all records were done after", "14.0 s", "14.0 s"],
        ["records lost", "0", "0"],
        ["out of order within their key", "0", "0"],
        ["again: uncommitted at the kill", "20", "50"],
        ["again: without need", "0", "0"],
    ]
