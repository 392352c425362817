"""Compares a client's records in lanes with the records that it gets without a lane."""

from proxy.features.cooperative.key_hash import SPACE, murmur2, offset_hash
from proxy.features.cooperative.ranges import KeyRange
from tests.clients.comparing import count_of
from tests.clients.dataset import PARTITIONS, Expected
from tests.clients.runner import Line, Place, Program, Run, Ways
from tests.features.cooperative.batch import suffix

QUARTER = SPACE // 4
LANES = [(number * QUARTER, (number + 1) * QUARTER - 1) for number in range(4)]
MARKERS = ("00000000", "00000001")
"""The keys of transaction markers, in hexadecimal. Each member gets all markers, and some clients deliver
them as records."""


def assert_lanes(program: Program, ways: Ways, expected: Expected, isolation: str) -> None:
    """Divide all keys into four lanes. Check that the client gets exactly the records of each lane, in order.

    Raises:
        AssertionError: a record is missing, out of order, or belongs to another lane.
    """
    with Run(program, ways.direct, assign=PARTITIONS, isolation=isolation) as whole:
        whole.wait_records(count_of(program, expected, isolation), seconds=90)
    for lane in LANES:
        mine = _owned(whole, lane)
        with Run(
            program, ways.gateway, assign=PARTITIONS, isolation=isolation, suffix=suffix((lane,))
        ) as run:
            run.wait_records(sum(map(len, mine.values())), seconds=90)
            run.stop()
            assert run.records() == mine
            assert run.errors() == []


def _owned(run: Run, lane: KeyRange) -> dict[Place, list[Line]]:
    """Return a run's records whose hash is in the range `lane`. In the run, one client reads all records."""
    low, high = lane
    places = {
        place: [line for line in lines if low <= _hash(line) <= high or _is_marker(run.program, line)]
        for place, lines in run.records().items()
    }
    return {place: lines for place, lines in places.items() if lines}


def _hash(line: Line) -> int:
    return offset_hash(line["offset"]) if line["key"] is None else murmur2(bytes.fromhex(line["key"]))


def _is_marker(program: Program, line: Line) -> bool:
    return not program.markers and line["key"] in MARKERS
