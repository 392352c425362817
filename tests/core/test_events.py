"""The session id and the epoch of a fetch determine its kind (`fetch_kind`). What a fetch adds to a tally."""

import pytest

from proxy.core.events import FetchKind, SideTally, fetch_kind


@pytest.mark.parametrize(
    ("session_id", "epoch", "kind"),
    [
        (0, 0, FetchKind.FULL),
        (77, 0, FetchKind.FULL),
        (77, 1, FetchKind.INCREMENTAL),
        (77, 2**31 - 1, FetchKind.INCREMENTAL),
        (0, -1, FetchKind.SESSIONLESS),
        (77, -1, FetchKind.CLOSE),
    ],
)
def test_the_kind_of_a_fetch(session_id: int, epoch: int, kind: FetchKind) -> None:
    assert fetch_kind(session_id, epoch) is kind


def test_many_exchanges_count_as_one_by_one() -> None:
    each, together = SideTally(), SideTally()
    for _ in range(3):
        each.add_fetches(FetchKind.INCREMENTAL, 50, 2)
        each.add_responses(1, 10)
    together.add_fetches(FetchKind.INCREMENTAL, 150, 6, times=3)
    together.add_responses(3, 30)
    assert (
        each
        == together
        == SideTally(
            fetch_request_bytes=150,
            fetch_record_bytes=30,
            fetches=[0, 3, 0, 0],
            partitions_requested=6,
            partitions_answered=3,
        )
    )
