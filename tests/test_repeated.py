"""A fetch and an answer that repeat the last ones but for the correlation id are known by one comparison."""

import pytest

from proxy.repeated import Repeated
from tests.frames import entry, fetch, parsed, response, walked
from tests.model.wire import NodeEndpoint, node_endpoints_tag


def noted(frame: bytes) -> Repeated:
    repeated = Repeated()
    repeated.note_request(parsed(frame))
    return repeated


def test_the_same_fetch_with_another_correlation_id() -> None:
    repeated = noted(fetch(16, ("t", 0), correlation=1))
    again = repeated.request(fetch(16, ("t", 0), correlation=2))
    assert again is not None
    assert (again.partitions, again.session_epoch) == (1, -1)
    repeated.note_request(again)
    third = repeated.request(fetch(16, ("t", 0), correlation=3))
    assert third is not None
    assert third.frame == fetch(16, ("t", 0), correlation=3)


@pytest.mark.parametrize(
    "other",
    [
        fetch(16, ("t", 0, 1)),
        fetch(16, ("t", 1)),
        fetch(17, ("t", 0)),
        fetch(16, ("t", 0), session=(0, 0)),
        fetch(16, ("t", 0), client="d"),
        fetch(16, ("t", 0), max_wait_ms=1),
        fetch(16, ("t", 0), ("t", 1)),
    ],
)
def test_any_other_fetch_is_another(other: bytes) -> None:
    assert noted(fetch(16, ("t", 0))).request(other) is None


def test_nothing_is_known_at_first() -> None:
    assert Repeated().request(fetch(16, ("t", 0))) is None
    assert Repeated().answer(response(16, ("t", [entry(0, 5)])), 16) == -1


def answered(frame: bytes, version: int = 16) -> Repeated:
    repeated = Repeated()
    repeated.note_answer(frame, version, walked(frame, version))
    return repeated


def test_the_same_answer_with_another_correlation_id() -> None:
    repeated = answered(response(16, ("t", [entry(0, 5), entry(1, error=3)])))
    assert repeated.answer(response(16, ("t", [entry(0, 5), entry(1, error=3)]), correlation_id=9), 16) == 2
    assert repeated.answer(response(16, ("t", [entry(0, 6), entry(1, error=3)])), 16) == -1
    assert repeated.answer(response(16, ("t", [entry(0, 5), entry(1, error=3)])), 17) == -1


@pytest.mark.parametrize(
    "frame",
    [
        response(16, ("t", [entry(0, 5, records=b"r")])),
        response(16, ("t", [entry(0, 5)]), session_id=7),
        response(16, error_code=70),
        response(
            16, ("t", [entry(0, 5)]), tags=(node_endpoints_tag([NodeEndpoint(node_id=1, host="b", port=1)]),)
        ),
        response(16, ("t", [entry(index, 5) for index in range(20)])),
    ],
)
def test_what_must_be_looked_at_each_time_is_not_kept(frame: bytes) -> None:
    assert answered(frame).answer(frame, 16) == -1
