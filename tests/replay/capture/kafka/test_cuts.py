from functools import cache

import pytest

from proxy.protocol.primitives import Buffer
from replay.capture.kafka.exchange import (
    CUT,
    Exchange,
    before_cut,
    cut,
    cuts_in,
    is_cut,
    records_alone_are_cut,
)
from tests.replay.capture.packets_of import packets, read


@cache
def _response_with_records() -> tuple[bytes, int, int, int]:
    """Return a captured fetch response (v16), its version, and the offset and size of its records."""
    size = 270
    for one in read(packets("librdkafka-100p")):
        if isinstance(one, Exchange) and one.response_bytes == 4010:
            frame = b"".join(one.response)
            for start in range(len(frame) - size):
                if records_alone_are_cut([frame[:start], *cut(size), frame[start + size :]], 16):
                    return frame, one.api_version, start, size
    raise AssertionError


@pytest.mark.parametrize(
    ("first", "last", "readable"), [(0, 0, True), (10, 10, True), (-1, 0, False), (0, -2, False)]
)
def test_only_contents_of_records_may_be_missing(first: int, last: int, readable: bool) -> None:
    frame, version, start, size = _response_with_records()
    begin, end = start + first, start + size - last
    pieces: list[Buffer] = [frame[:begin], *cut(end - begin), frame[end:]]
    assert records_alone_are_cut(pieces, version) is readable


def test_a_version_that_is_not_known_cannot_be_read() -> None:
    assert not records_alone_are_cut([bytes(20)], 3)


def test_a_cut_of_any_size_is_made_of_slices() -> None:
    pieces = list(cut(2 * len(CUT) + 5))
    assert [len(piece) for piece in pieces] == [len(CUT), len(CUT), 5]
    assert all(map(is_cut, pieces))


def test_cuts_are_counted_by_place() -> None:
    assert cuts_in([b"a", *cut(2 * len(CUT)), b"b", *cut(3)]) == 2
    assert cuts_in([b"a"]) == 0


def test_before_the_first_cut() -> None:
    assert before_cut([b"a", b"b", *cut(3), b"c"]) == [b"a", b"b"]
