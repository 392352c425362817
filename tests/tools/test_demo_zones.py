"""The demo of zones checks each record and adds up bytes. Only the parts that need no broker are tested."""

import io
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from tools.demo.zones_report import (
    WRONG,
    ClientOutcome,
    Period,
    ZonesOutcome,
    by_zone,
    checked,
    crossing,
    records_table,
    zones_table,
)
from tools.zones.outcome import Findings

GOOD = Counter(produced=4)
LED = ClientOutcome(
    name="leads 1.0",
    periods={
        Period.BEFORE: Counter(same=1_000, other=2_000),
        Period.AFTER: Counter(same=3_000, other=0),
        Period.KILLED: Counter(same=0, other=3_000),
        Period.BACK: Counter(same=2_900, other=100),
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


def test_what_is_wrong_with_records_is_told_for_each_client() -> None:
    """The check itself is that of `tools.zones`."""
    assert checked(Findings(), 4) == GOOD
    found = checked(Findings(lost=1, missing_here=1, doubled=3, disordered=4, changed=5), 4)
    assert [found[column] for column in WRONG] == [2, 3, 4, 5]
    outcome = ZonesOutcome(clients=(replace(LED, checked=found), NAMED))
    assert outcome.complaints == [
        f"{LED.name}: {count} of 4 records {how}"
        for count, how in zip((2, 3, 4, 5), WRONG.values(), strict=True)
    ]


def test_bytes_are_read_from_the_state() -> None:
    state = {
        zone: {"records": count, "listing": 7} for zone, count in (("same", 5), ("other", 3), ("unknown", 1))
    }
    assert by_zone(state) == Counter(same=5, other=3, unknown=1)
    assert (crossing(Counter()), crossing(Counter(same=1, other=3))) == (0.0, 0.75)


def test_nothing_is_wrong_with_a_good_run() -> None:
    assert OUTCOME.complaints == []
    assert OUTCOME.verdict == "Record bytes from other zones, of all four: 66.7% before, 0.0% after."


@pytest.mark.parametrize(
    ("period", "counts", "complaint"),
    [
        (Period.BEFORE, Counter(same=3_000), "no record came from another zone before"),
        (Period.AFTER, Counter(same=1_000, other=2_000), "66.7% of its record bytes came from other zones"),
        (Period.BACK, Counter(same=800, other=200), "20.0% of its record bytes came from other zones"),
        (Period.KILLED, Counter(unknown=10), "10 record bytes are from an unknown zone"),
    ],
)
def test_what_is_wrong_is_told(period: Period, counts: Counter[str], complaint: str) -> None:
    client = replace(LED, periods={**LED.periods, period: counts})
    (found,) = client.complaints
    assert complaint in found
    while_killed = replace(LED, periods={**LED.periods, Period.KILLED: Counter(same=0, other=1)})
    assert while_killed.complaints == []


def test_the_tables_have_a_row_for_each_client_and_period() -> None:
    text = shown(zones_table(OUTCOME))
    assert text.count(LED.name) == text.count(NAMED.name) == 1
    assert [text.count(f"  {period} ") for period in Period] == [2, 2, 2, 2]
    assert "66.7%" in text
    assert "0.0%" in text
    assert "│ named 2.0 │        4 │    0 │     0 │" in shown(records_table(OUTCOME))
