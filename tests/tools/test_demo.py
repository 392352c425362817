"""The parts of the demo that need no broker: it reads counters, compares records, and fails on a
difference.
"""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from tests.replay.report import sample
from tools.counting import CountedFetches
from tools.demo.report import (
    MAX_DIFFERENCES,
    DemoOutcome,
    DemoRecord,
    Prediction,
    claim,
    compare,
    first_lines,
    saved,
    table,
)

FIRST = DemoRecord(
    topic="events",
    partition=3,
    offset=7,
    key=b"k",
    value=b"v" * 200,
    timestamp=(1, 1_700_000_000_000),
    headers=(("h", b"1"),),
)
MEASURED = Prediction(request_bytes=1_000, response_bytes=3_900, full=1, incremental=7, sessionless=2)
OTHER_PARTITION = replace(FIRST, partition=1, offset=0)


def counted(request: int, response: int, *, fetches: int = 10, records: int = 0) -> CountedFetches:
    return CountedFetches(request, response, records, fetches, 0, {})


def outcome(**changes: Any) -> DemoOutcome:
    good = DemoOutcome(
        seconds=2.0,
        direct=counted(33_640, 40_620, records=3_220),
        client=counted(33_640, 40_620, records=3_220),
        broker=counted(1_000, 3_900, records=3_220),
        produced=5,
        read=5,
        differences=(),
        predicted=MEASURED,
        measured=MEASURED,
        picture="",
        first_lines="Sessions would save 1 GB a day",
    )
    return replace(good, **changes)


def test_the_prediction_adds_what_was_not_eligible_as_it_was() -> None:
    fetch = {
        "actual": {"request_bytes": 500, "response_bytes": 700},
        "eligible": {"request_bytes": 400, "response_bytes": 650},
        "sessions": {
            "request_bytes": 60,
            "response_bytes": 90,
            "full": 1,
            "incremental": 8,
            "sessionless": 2,
        },
    }
    assert Prediction.of(fetch) == Prediction(
        request_bytes=160, response_bytes=140, full=1, incremental=8, sessionless=2
    )


def test_measured_is_read_from_one_side_of_the_state() -> None:
    side = {
        "fetches": {"full": 1, "incremental": 20, "sessionless": 2, "close": 1},
        "fetch_request_bytes": 300,
        "fetch_response_bytes": 4_000,
    }
    assert Prediction.counted(side) == Prediction(
        request_bytes=300, response_bytes=4_000, full=1, incremental=20, sessionless=2
    )


def test_a_prediction_that_is_off_by_a_byte_is_said() -> None:
    (complaint,) = outcome(predicted=replace(MEASURED, response_bytes=3_901)).complaints
    assert complaint.startswith("predicted Prediction(request_bytes=1000, response_bytes=3901")


def test_the_claim_lays_both_side_by_side() -> None:
    shown = io.StringIO()
    Console(file=shown, width=100).print(claim(outcome(predicted=replace(MEASURED, full=3))))
    assert [line.split() for line in shown.getvalue().splitlines() if "full fetches" in line] == [
        ["│", "full", "fetches", "│", "3", "│", "1", "│"]
    ]


def test_the_claim_says_which_fetches_have_no_row() -> None:
    shown = io.StringIO()
    Console(file=shown, width=100).print(claim(outcome()))
    assert "fetches that only close a session" in " ".join(shown.getvalue().split())


def test_nothing_counted_is_nothing_saved() -> None:
    assert saved(0, 0) == 0.0
    assert counted(0, 0, fetches=0).whole == 0.0


def test_same_records_are_the_same_however_partitions_interleave() -> None:
    later = replace(FIRST, offset=8)
    assert compare([FIRST, OTHER_PARTITION, later], [OTHER_PARTITION, FIRST, later]) == (3, ())


def test_order_within_a_partition_counts() -> None:
    later = replace(FIRST, offset=8)
    same, differences = compare([FIRST, later], [later, FIRST])
    assert same == 0
    assert len(differences) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "others"},
        {"partition": 4},
        {"offset": 8},
        {"key": None},
        {"value": b""},
        {"timestamp": (1, 1_700_000_000_001)},
        {"headers": (("h", None),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_record_that_differs_anywhere_is_a_difference(change: dict[str, Any]) -> None:
    same, differences = compare([FIRST], [replace(FIRST, **change)])
    assert same == 0
    assert len(differences) == 1


def test_a_missing_record_is_a_difference() -> None:
    assert compare([FIRST, OTHER_PARTITION], [OTHER_PARTITION]) == (
        1,
        (
            (
                "direct: events-3 offset 7, key b'k', value 200 bytes, timestamp 1700000000000, 1 headers; "
                "through the gateway: no record"
            ),
        ),
    )


def test_only_the_first_differences_are_described() -> None:
    records = [replace(FIRST, offset=number) for number in range(20)]
    same, differences = compare(records, [])
    assert (same, len(differences)) == (0, MAX_DIFFERENCES)


def test_all_well_has_no_complaints() -> None:
    assert outcome().complaints == []
    assert f"{outcome().saved:.4f}" == "0.9340"


def test_exactly_ninety_percent_is_enough() -> None:
    assert outcome(client=counted(500, 500), broker=counted(60, 40)).complaints == []


def test_records_are_not_asked_to_be_saved() -> None:
    assert (
        outcome(client=counted(500, 900, records=400), broker=counted(60, 440, records=400)).complaints == []
    )


def test_less_than_ninety_percent_is_said() -> None:
    found = outcome(client=counted(500, 540, records=40), broker=counted(60, 85, records=40)).complaints
    assert found == ["89.5% of the bytes without records were saved, less than 90%"]


def test_records_that_neither_consumer_got_are_said() -> None:
    assert outcome(read=4).complaints == ["5 records were produced, 4 were read"]


def test_differences_are_said_and_not_repeated_as_a_count() -> None:
    assert outcome(read=4, differences=("one", "two")).complaints == ["one", "two"]


def test_the_table_lays_both_runs_side_by_side() -> None:
    out = io.StringIO()
    Console(file=out, width=100, color_system=None).print(table(outcome()))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.getvalue().splitlines()]
    assert [row for row in rows if row] == [
        ["fetches", "10", "10", ""],
        ["request bytes per fetch", "3,364", "100", "97.0%"],
        ["response bytes per fetch", "4,062", "390", "90.4%"],
        ["both, without records", "7,104", "168", "97.6%"],
        ["bytes per second", "37,130", "2,450", "93.4%"],
    ]


def test_the_first_lines_are_those_of_the_report() -> None:
    lines = first_lines(sample.report()).splitlines()
    assert lines[0].startswith("Sessions would save 12.0 GB a day, 83.6 % of the fetch bytes")
    assert lines[1].startswith("How sure: estimated from 1 h captured")
    assert lines[2].startswith("billing-enricher: Put it behind a gateway: that saves 92.7 %")
