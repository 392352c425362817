"""A frame can be received in many reads.

Taking a part of the frame costs the same after few large reads and after many small ones.
"""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol.fetch_response import _JOINED, _SMALL, Received


@given(st.lists(st.binary(min_size=1, max_size=5), min_size=1, max_size=5), st.data())
def test_a_span_is_what_lies_between(chunks: list[bytes], data: st.DataObject) -> None:
    frame, joined, kept = b"".join(chunks), Received(*chunks), Received()
    for chunk in chunks:
        kept.keep(chunk)
    points = sorted(data.draw(st.lists(st.integers(0, len(frame)), min_size=2, max_size=4)))
    for start, end in pairwise(points):
        assert b"".join(joined.span(start, end)) == frame[start:end]
        assert b"".join(kept.span(start, end)) == frame[start:end]
    assert joined.size == kept.size == len(frame)


@given(st.lists(st.sampled_from([1, 1448, _SMALL - 1, _SMALL, _JOINED + 1]), max_size=30), st.data())
def test_more_may_come_between_two_spans(sizes: list[int], data: st.DataObject) -> None:
    frame = b""
    received = Received()
    for number, size in enumerate(sizes):
        chunk = bytes([number]) * size
        received.append(chunk)
        frame += chunk
        start = data.draw(st.integers(0, len(frame)))
        assert b"".join(received.span(start, len(frame))) == frame[start:]
        assert received.settled == received.size == len(frame)


def test_small_reads_become_few_pieces() -> None:
    """Small reads are joined into few pieces. 50 MB in reads of one TCP segment are 36,000 reads."""
    received = Received()
    for _ in range(36_000):
        received.append(bytes(1_448))
    pieces = received.span(0, received.size)
    assert len(pieces) <= received.size // _JOINED + 1
    assert sum(map(len, pieces)) == received.size


def test_small_reads_wait_until_they_are_asked_for() -> None:
    received = Received(b"a" * 100, b"b" * 100)
    assert received.settled == 0
    assert received.span(50, 150) == [b"a" * 50 + b"b" * 50]
    assert received.settled == 200
    assert repr(received) == "<Received 200 bytes in 1 pieces>"


def test_large_reads_are_not_copied() -> None:
    chunk = bytes(_SMALL)
    received = Received(b"small", chunk, b"small")
    assert [view.obj is chunk for view in received.span(0, received.size)] == [False, True, False]


def test_a_span_of_nothing() -> None:
    assert Received().span(0, 0) == []
    assert Received(b"abc").span(3, 3) == []
