"""Replay counts the responses, and the percentiles of response times are correct."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.drive.tally import DriveTotals, percentile
from replay.protocol.fetches import FetchSummary, read_fetch
from tests.frames import entry, fetch_response, live


@pytest.mark.parametrize("version", [4, 7, 11, 12, 16, 18])
def test_a_fetch_response_tells_records_partitions_and_errors(version: int) -> None:
    head = {"session_id": 77} if version >= 7 else {}
    frame = fetch_response(
        version,
        ("t", [entry(0, 5, records=b"12345"), entry(1, error=3), entry(2, error=3), entry(3)]),
        **head,
    )
    tally = DriveTotals()
    response = read_fetch(version, 0, [frame])
    tally.fetched(response)

    key = b"t".ljust(16, b"\0") if version >= 13 else b"t"
    reads = ((key, 0, 5, 5), (key, 1, -1, -1), (key, 2, -1, -1))
    assert response == FetchSummary(0, head.get("session_id", 0), 5, 4, (3, 3), reads)
    counts = tally.of(1)
    assert (counts.record_bytes, counts.partitions_answered) == (5, 4)
    assert (counts.errors, counts.partition_errors) == ({}, {3: 2})


def test_an_error_of_the_whole_response_is_counted_by_itself() -> None:
    tally = DriveTotals()
    response = read_fetch(12, 0, [fetch_response(12, error_code=70)])
    tally.fetched(response)

    assert response == FetchSummary(70, 0, 0, 0, ())
    assert (tally.of(1).errors, tally.of(1).partition_errors) == ({70: 1}, {})


@pytest.mark.parametrize("damage", [lambda f: f[:-1], lambda f: f + b"\0"], ids=["short", "long"])
def test_what_does_not_parse_is_counted(damage: "type[bytes]") -> None:
    tally = DriveTotals()
    response = read_fetch(12, 0, [damage(fetch_response(12, ("t", [entry(0)])))])
    tally.fetched(response)

    assert response is None
    assert tally.of(1).unreadable == 1
    assert tally.of(1).partitions_answered == 0


def test_pieces_are_as_good_as_the_whole() -> None:
    for exchange in live():
        frame = exchange.response
        whole = read_fetch(exchange.version, 0, [frame])

        assert whole is not None
        assert whole == read_fetch(
            exchange.version, 0, [frame[:9], memoryview(frame)[9:20], bytearray(frame[20:])]
        )


def test_the_total_is_the_sum() -> None:
    tally = DriveTotals()
    tally.sent(1, 10)
    tally.answered(1, 20, 0.5)
    tally.sent(3, 5)

    total = tally.total()

    assert (total.sent, total.answered, total.request_bytes, total.response_bytes) == (2, 1, 15, 20)
    assert list(total.seconds) == [0.5]


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(n) for n in range(1, 11)]

    assert [percentile(values, p) for p in (50, 90, 99, 100)] == [5.0, 9.0, 10.0, 10.0]
    assert percentile([], 50) == 0.0


@given(st.lists(st.floats(0, 1e6), min_size=1), st.integers(1, 100))
def test_a_percentile_is_reached_by_so_many_and_by_no_fewer(values: list[float], percent: int) -> None:
    found = percentile(sorted(values), percent)

    assert found in values
    assert sum(value <= found for value in values) * 100 >= percent * len(values)
    assert sum(value < found for value in values) * 100 < percent * len(values)
