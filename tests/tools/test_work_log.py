"""The members' logs show which records were handled, handled again, or handled out of order."""

from pathlib import Path

import numpy as np
import pytest

from tools.work_log import (
    ASSIGNED,
    COMMITTED,
    Entries,
    WorkLog,
    handled,
    last,
    rate,
    read,
    records,
    rewound,
)


def entries(tmp_path: Path, *each: tuple[int, int, int, int]) -> Entries:
    """Write entries to a log file, and read them back. An entry is (offset, key, begin, end)."""
    path = tmp_path / f"log-{len(list(tmp_path.iterdir()))}"
    log = WorkLog(path, 100)
    for entry in each:
        log.add(*entry)
    return read(path)


def test_a_log_is_read_while_it_is_written(tmp_path: Path) -> None:
    found = entries(tmp_path, (7, 3, 10, 20), (8, COMMITTED, 21, 21), (2, ASSIGNED, 5, 5))
    assert found.tolist() == [(7, 3, 10, 20), (8, COMMITTED, 21, 21), (2, ASSIGNED, 5, 5)]
    assert records(found).tolist() == [(7, 3, 10, 20)]
    assert (last(found, COMMITTED), last(found, ASSIGNED)) == (8, 2)
    assert last(found[:1], ASSIGNED) is None


@pytest.mark.parametrize("written", [False, True], ids=["no file yet", "no entry yet"])
def test_a_log_without_entries(tmp_path: Path, written: bool) -> None:
    if written:
        WorkLog(tmp_path / "log", 10)
    found = read(tmp_path / "log")
    assert len(found) == 0
    assert handled([found]).records == 0


def test_records_in_order_by_key(tmp_path: Path) -> None:
    one = entries(tmp_path, (0, 0, 10, 20), (2, 0, 20, 30), (4, 0, 30, 40))
    other = entries(tmp_path, (1, 1, 11, 12), (3, 1, 12, 13))
    found = handled([one, other])
    assert (found.records, found.again, found.disordered, found.together) == (5, (), 0, 0)


def test_a_record_behind_a_later_one_of_its_key_is_out_of_order(tmp_path: Path) -> None:
    one = entries(tmp_path, (0, 0, 10, 20), (4, 0, 20, 30), (2, 0, 30, 40), (3, 1, 50, 60))
    assert handled([one]).disordered == 1
    assert rewound(one) == 1


def test_what_comes_again_is_told_once_for_each_time_and_is_not_out_of_order(tmp_path: Path) -> None:
    killed = entries(tmp_path, (0, 0, 10, 20), (2, 0, 20, 30))
    other = entries(tmp_path, (2, 0, 100, 110), (4, 0, 110, 120))
    third = entries(tmp_path, (2, 0, 200, 210))
    found = handled([killed, other, third])
    assert (found.records, found.again, found.disordered, found.together) == (3, (2, 2), 0, 0)
    assert rewound(other) == 0


def test_two_records_of_a_key_in_work_at_the_same_time(tmp_path: Path) -> None:
    one, other = entries(tmp_path, (0, 0, 10, 20)), entries(tmp_path, (1, 0, 19, 30), (2, 1, 19, 30))
    assert handled([one, other]).together == 1


def test_the_rate_counts_what_was_finished_in_between(tmp_path: Path) -> None:
    log = entries(tmp_path, *((number, 0, number * 10, number * 10 + 10) for number in range(10)))
    assert rate([log, log], 20, 60) == pytest.approx(8 / 40e-9)
    assert isinstance(log, np.ndarray)
