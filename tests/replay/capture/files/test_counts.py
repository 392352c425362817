"""The counts of the parts of a file add up to the counts of the file."""

from collections.abc import Iterable
from itertools import accumulate, permutations

import numpy as np
import pytest

from replay.capture.files.counts import MOST_PROBLEMS, MOST_STRETCHES, PAUSE, FileCounts, joined_stretches
from replay.capture.files.window import FileWindow, Records
from replay.capture.packets.tcp import EVERYTHING, decode


def part(*problems: str) -> FileCounts:
    counts = FileCounts(file="a.pcap")
    for line in problems:
        counts.add_problem(line)
    return counts


def test_problems_do_not_depend_on_which_part_was_read_first() -> None:
    parts = [["no record at byte 900"], ["no record at byte 10000"], ["ends within a record"]]
    for order in permutations(parts):
        whole = part()
        for problems in order:
            whole.add(part(*problems))
        assert whole.problems == ["ends within a record", "no record at byte 900", "no record at byte 10000"]


def test_problems_that_are_too_many_do_not_either() -> None:
    parts = [[f"no record at byte {place}" for place in range(start, start + 12)] for start in (0, 100, 200)]
    for order in permutations(parts):
        whole = part()
        for problems in order:
            whole.add(part(*problems))
        assert whole.problems == [*parts[0][:MOST_PROBLEMS], "and more of this kind"]


def test_each_captured_interval_is_joined_once_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined: list[int] = []

    def counted(stretches: Iterable[list[int]], pause: int) -> list[list[int]]:
        given = list(stretches)
        joined.append(len(given))
        return joined_stretches(given, pause)

    monkeypatch.setattr("replay.capture.files.counts.joined_stretches", counted)
    whole, window = part(), FileWindow(0)
    times = np.arange(1, 5001, dtype=np.int64) * 2 * PAUSE
    empty = np.zeros(len(times), np.int64)
    records = Records(at=empty, captured=empty, length=empty, time=times, offset=empty, link=empty)
    decode(window, records, EVERYTHING, whole)

    assert joined == [5000]


def test_only_the_longest_pauses_are_kept() -> None:
    whole = part()
    starts = accumulate(PAUSE * 2 + number for number in range(MOST_STRETCHES + 2))
    found = [[start, start + 5] for start in starts]
    whole.add_stretches(found)

    assert whole.stretches == [[found[0][0], found[2][1]], *found[3:]]
    assert (whole.first_time, whole.last_time) == (found[0][0], found[-1][1])
