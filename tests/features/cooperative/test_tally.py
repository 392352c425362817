"""What each process reports about cooperative groups, and the sum of these reports."""

import pytest

from proxy.features.cooperative.ranges import FULL, KeyRanges
from proxy.features.cooperative.tally import GroupSeen, LaneSeen, MemberSeen


def group(*ranges: KeyRanges, name: str = "g", partition: int = 0) -> GroupSeen:
    return GroupSeen(
        name=name,
        exclusive="",
        members=[
            MemberSeen(
                client_id=f"g.{number}",
                host="h",
                state="shares",
                lanes=[LaneSeen(topic="t", partition=partition, ranges=each, position=None, lag=None)],
            )
            for number, each in enumerate(ranges)
        ],
    )


@pytest.mark.parametrize(
    ("ranges", "gaps"),
    [
        ([], 0),
        ([FULL], 0),
        ([((0, 9),), ((10, 0xFFFF_FFFF),)], 0),
        ([((10, 0xFFFF_FFFF),), ((0, 9),)], 0),
        ([((1, 0xFFFF_FFFF),)], 1),
        ([((0, 0xFFFF_FFFE),)], 1),
        ([((5, 9), (20, 30))], 3),
    ],
)
def test_gaps_between_lanes_are_counted(ranges: list[KeyRanges], gaps: int) -> None:
    assert group(*ranges).unowned() == gaps
