"""Tests that the bytes of one direction are split into the same frames, however they arrive in chunks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol.framing import Framer, frame_size, is_frame
from tests.frames import framed

FRAMES = [framed(bytes(size)) for size in (4, 0, 300, 1, 70_000)]
STREAM = b"".join(FRAMES)


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 50, 1 << 20])
def test_frames_are_whole_however_they_come(chunk: int) -> None:
    framer, got = Framer(), []
    for at in range(0, len(STREAM), chunk):
        framer.feed(STREAM[at : at + chunk])
        while framer.ready:
            data = framer.next()
            if len(data) < 4 or len(data) < frame_size(data):
                framer.need = 4 if len(data) < 4 else frame_size(data)
                framer.keep(data)
            else:
                got.append(data)
    assert got == FRAMES
    assert framer.idle


@given(st.lists(st.integers(1, 90_000), max_size=20))
def test_a_frame_is_used_as_it_comes(cuts: list[int]) -> None:
    """A frame can be read while it comes: first its beginning, then the rest in chunks. No chunk contains
    bytes of the next frame.
    """
    framer, got = Framer(), [bytearray()]
    at = 0
    for end in sorted({*(each for each in cuts if each < len(STREAM)), len(STREAM)}):
        framer.feed(STREAM[at:end])
        at = end
        while framer:
            if not framer.left:
                if len(framer) < 4:
                    break
                framer.left = frame_size(framer.peek(4))
            got[-1] += framer.next()
            if not framer.left:
                got.append(bytearray())
    assert got == [*FRAMES, b""]


def test_a_read_that_is_one_frame_is_not_copied() -> None:
    framer, frame = Framer(), framed(b"told")
    framer.feed(frame)
    assert framer.next() is frame
    framer.left = len(frame)
    framer.feed(frame)
    assert framer.next() is frame
    assert is_frame(frame)
    assert not any(map(is_frame, (b"", frame[:3], frame[:-1], frame * 2)))


def test_what_is_kept_stays_before_what_comes() -> None:
    framer = Framer()
    framer.feed(FRAMES[0] * 2 + b"rest")
    framer.keep(framer.next())
    framer.feed(b" and more")
    assert framer.next() == FRAMES[0]
    assert framer.rest() == FRAMES[0] + b"rest and more"
    assert (framer.rest(), len(framer), framer.idle) == (b"", 0, True)


def test_a_part_is_not_worth_a_look_before_enough_of_it_has_come() -> None:
    framer, ready = Framer(), []
    framer.feed(b"\0\0")
    ready.append(framer.ready)
    framer.keep(framer.next())
    framer.need = 4
    for more in (b"", b"\0", b"\1"):
        framer.feed(more)
        ready.append(framer.ready)
    assert ready == [True, False, False, True]
