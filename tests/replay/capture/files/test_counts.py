"""The counts of the parts of a file add up to the counts of the file."""

from itertools import permutations

from replay.capture.files.counts import MOST_PROBLEMS, FileCounts


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
