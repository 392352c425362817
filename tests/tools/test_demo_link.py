"""Tests of the demo of two gateways in a row, without a broker: its table, and the failures it reports."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from tests.tools.test_demo import counted
from tools.demo.link_report import LinkOutcome, link_table

LINK = counted(600, 400)


def outcome(**changes: Any) -> LinkOutcome:
    good = LinkOutcome(
        direct=counted(33_640, 40_360),
        near=LINK,
        far=LINK,
        native=LINK,
        produced=5,
        read=5,
        differences=(),
    )
    return replace(good, **changes)


def test_all_well_has_no_complaints() -> None:
    assert outcome().complaints == []
    assert f"{outcome().saved:.4f}" == "0.9865"


def test_two_percent_more_than_a_native_session_are_allowed() -> None:
    link = counted(620, 400)
    assert outcome(near=link, far=link).complaints == []


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"read": 4}, "5 records were produced, 4 were read"),
        ({"read": 4, "differences": ("one",)}, "one"),
        (
            {"near": counted(621, 400), "far": counted(621, 400)},
            "a fetch on the link takes 102.1 bytes, a native session's 100.0",
        ),
        ({"far": counted(601, 400)}, "the two ends of the link counted 100.0 and 100.1 bytes"),
        ({"direct": counted(5_000, 4_999)}, "90.0% of the bytes were saved, less than 90%"),
        (
            {"direct": counted(33_640, 40_360, records=7)},
            "direct: 10 fetches with 7 bytes of records, none was idle",
        ),
    ],
    ids=["too few", "different", "more than native", "other at the far end", "too little saved", "not idle"],
)
def test_what_is_not_as_promised_is_said(changes: dict[str, Any], complaint: str) -> None:
    assert outcome(**changes).complaints == [complaint]


def test_nothing_counted_is_said_and_not_taken_for_a_saving() -> None:
    nothing = counted(0, 0, fetches=0)
    complaints = outcome(direct=nothing, near=nothing, far=nothing, native=nothing).complaints
    assert complaints[0] == "direct: 0 fetches with 0 bytes of records, none was idle"
    assert len(complaints) == 5


def test_the_table_lays_the_ways_side_by_side() -> None:
    out = io.StringIO()
    Console(file=out, width=100, color_system=None).print(link_table(outcome()))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.getvalue().splitlines()]
    assert [row for row in rows if row] == [
        ["request", "3,364", "60", "60", "98.2%"],
        ["response", "4,036", "40", "40", "99.0%"],
        ["both", "7,400", "100", "100", "98.6%"],
        ["fetches that were counted", "10", "10", "10", ""],
    ]
