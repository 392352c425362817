"""The demo of zones checks each record and adds up bytes. Only the parts that need no broker are tested."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from tools.demo.zones_report import (
    ByZone,
    Checked,
    ClientOutcome,
    Period,
    ZonesOutcome,
    records_table,
    zones_table,
)

PRODUCED = {0: {0: "a", 1: "b", 2: "c"}, 1: {0: "d"}}
RIGHT = {0: [(0, "a"), (1, "b"), (2, "c")], 1: [(0, "d")]}
GOOD = Checked(produced=4, lost=0, doubled=0, disordered=0, altered=0)
LED = ClientOutcome(
    name="leads 1.0",
    periods={
        Period.BEFORE: ByZone(same=1_000, other=2_000),
        Period.AFTER: ByZone(same=3_000, other=0),
        Period.KILLED: ByZone(same=0, other=3_000),
        Period.BACK: ByZone(same=2_900, other=100),
    },
    checked=GOOD,
)
NAMED = replace(LED, name="named 2.0")
OUTCOME = ZonesOutcome(clients=(LED, NAMED))


def shown(of: Any) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(of)
    text = console.file
    assert isinstance(text, io.StringIO)
    return text.getvalue()


def test_a_client_that_got_each_record_once_and_in_order() -> None:
    assert Checked.of(PRODUCED, RIGHT) == GOOD
    assert GOOD.complaints == []


@pytest.mark.parametrize(
    ("received", "wrong"),
    [
        ({0: RIGHT[0]}, {"lost": 1}),
        ({**RIGHT, 0: [(0, "a"), (2, "c")]}, {"lost": 1}),
        ({**RIGHT, 1: [(0, "d"), (0, "d")]}, {"doubled": 1}),
        ({**RIGHT, 0: [(0, "a"), (2, "c"), (1, "b")]}, {"disordered": 1}),
        ({**RIGHT, 0: [*RIGHT[0], *RIGHT[0]]}, {"doubled": 3, "disordered": 1}),
        ({**RIGHT, 1: [(0, "e")]}, {"altered": 1}),
        ({**RIGHT, 1: [(0, "d"), (1, "never produced")]}, {"altered": 1}),
    ],
)
def test_each_wrong_record_is_found(
    received: dict[int, list[tuple[int, str]]], wrong: dict[str, int]
) -> None:
    found = Checked.of(PRODUCED, received)
    assert found == replace(GOOD, **wrong)
    assert len(found.complaints) == len(wrong)
    outcome = ZonesOutcome(clients=(replace(LED, checked=found + GOOD), NAMED))
    assert [complaint.split(":")[0] for complaint in outcome.complaints] == [LED.name] * len(wrong)


def test_bytes_are_read_from_the_state() -> None:
    state = {
        zone: {"records": count, "listing": 7} for zone, count in (("same", 5), ("other", 3), ("unknown", 1))
    }
    found = ByZone.of(state)
    assert found == ByZone(same=5, other=3, unknown=1)
    assert found.since(ByZone(same=2, other=3)) == ByZone(same=3, unknown=1)
    assert (ByZone().crossing, ByZone(same=1, other=3).crossing) == (0.0, 0.75)


def test_nothing_is_wrong_with_a_good_run() -> None:
    assert OUTCOME.complaints == []
    assert OUTCOME.verdict == "Record bytes from other zones, of all four: 66.7% before, 0.0% after."


@pytest.mark.parametrize(
    ("period", "counts", "complaint"),
    [
        (Period.BEFORE, ByZone(same=3_000), "no record came from another zone before"),
        (Period.AFTER, ByZone(same=1_000, other=2_000), "66.7% of its record bytes came from other zones"),
        (Period.BACK, ByZone(same=800, other=200), "20.0% of its record bytes came from other zones"),
        (Period.KILLED, ByZone(unknown=10), "10 record bytes are from an unknown zone"),
    ],
)
def test_what_is_wrong_is_told(period: Period, counts: ByZone, complaint: str) -> None:
    client = replace(LED, periods={**LED.periods, period: counts})
    (found,) = client.complaints
    assert complaint in found
    while_killed = replace(LED, periods={**LED.periods, Period.KILLED: ByZone(same=0, other=1)})
    assert while_killed.complaints == []


def test_the_tables_have_a_row_for_each_client_and_period() -> None:
    text = shown(zones_table(OUTCOME))
    assert text.count(LED.name) == text.count(NAMED.name) == 1
    assert [text.count(f"  {period} ") for period in Period] == [2, 2, 2, 2]
    assert "66.7%" in text
    assert "0.0%" in text
    assert "│ named 2.0 │        4 │    0 │     0 │" in shown(records_table(OUTCOME))
