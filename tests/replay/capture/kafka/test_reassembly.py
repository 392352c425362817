from random import Random

from hypothesis import given
from hypothesis import strategies as st

from replay.capture.kafka.reassembly import LATE, TURNS, WINDOW, Reassembly


class Stream:
    """Stores everything that the reassembly delivers. Gaps are stored as `(size, cut)`."""

    def __init__(self) -> None:
        self.parts: list[bytes | tuple[int, bool]] = []
        self.begun = False
        self.position = -1

    def begin(self, sequence: int, *, whole: bool) -> None:
        self.begun = whole
        self.position = sequence

    def data(self, view: memoryview, time: int, end_time: int, ack: int, end: int) -> None:
        self._advance(len(view), end)
        if self.parts and isinstance(last := self.parts[-1], bytes):
            self.parts[-1] = last + bytes(view)
        else:
            self.parts.append(bytes(view))

    def gap(self, size: int, end: int, *, cut: bool) -> None:
        self._advance(size, end)
        self.parts.append((size, cut))

    def _advance(self, size: int, end: int) -> None:
        self.position = self.position + size & 0xFFFF_FFFF
        assert self.position == end


def _started(sequence: int = 100) -> tuple[Reassembly, Stream]:
    stream = Stream()
    reassembly = Reassembly(stream)
    assert reassembly.syn(sequence - 1)
    return reassembly, stream


def _push(reassembly: Reassembly, sequence: int, payload: bytes, missing: int = 0) -> bool:
    return reassembly.push(sequence & 0xFFFF_FFFF, memoryview(payload), missing, 1, 2, -1, 1)


def test_in_order() -> None:
    reassembly, stream = _started()
    _push(reassembly, 100, b"abc")
    _push(reassembly, 103, b"def")
    assert stream.parts == [b"abcdef"]
    assert stream.begun


def test_an_early_segment_waits() -> None:
    reassembly, stream = _started()
    _push(reassembly, 103, b"def")
    assert (stream.parts, reassembly.waiting) == ([], True)
    _push(reassembly, 100, b"abc")
    assert (stream.parts, reassembly.waiting) == ([b"abcdef"], False)
    assert reassembly.reordered_segments == 1


def test_a_retransmission_is_counted_and_let_go() -> None:
    reassembly, stream = _started()
    for _ in range(2):
        _push(reassembly, 100, b"abc")
    assert stream.parts == [b"abc"]
    assert (reassembly.repeated_segments, reassembly.repeated_bytes) == (1, 3)


def test_of_an_overlap_the_first_copy_counts() -> None:
    reassembly, stream = _started()
    _push(reassembly, 100, b"abc")
    _push(reassembly, 101, b"XYde")
    assert (stream.parts, reassembly.repeated_bytes) == ([b"abcde"], 2)


def test_sequence_numbers_wrap() -> None:
    reassembly, stream = _started(0xFFFF_FFFE)
    _push(reassembly, 0xFFFF_FFFE, b"abcd")
    _push(reassembly, 2, b"ef")
    assert stream.parts == [b"abcdef"]


def test_a_hole_is_given_up_when_the_other_side_goes_on() -> None:
    reassembly, stream = _started()
    _push(reassembly, 110, b"later")
    for _ in range(TURNS):
        assert stream.parts == []
        reassembly.other_spoke(10, LATE + 2, turned=True)
    assert stream.parts == [(10, False), b"later"]


def test_a_hole_is_not_given_up_before_what_is_captured_late_can_have_come() -> None:
    reassembly, stream = _started()
    _push(reassembly, 103, b"def")
    for _ in range(2 * TURNS):
        reassembly.other_spoke(10, LATE, turned=True)
    _push(reassembly, 100, b"abc")
    assert stream.parts == [b"abcdef"]


def test_a_hole_is_given_up_after_a_window_of_bytes() -> None:
    reassembly, stream = _started()
    _push(reassembly, 101, bytes(WINDOW))
    assert stream.parts == []
    _push(reassembly, 101 + WINDOW, b"x")
    assert stream.parts == [(1, False), bytes(WINDOW) + b"x"]


def test_what_the_snap_length_cut_is_a_gap_at_once() -> None:
    reassembly, stream = _started()
    _push(reassembly, 100, b"ab", missing=8)
    _push(reassembly, 110, b"cd")
    assert stream.parts == [b"ab", (8, True), b"cd"]


def test_without_a_syn_the_lowest_number_is_the_start() -> None:
    stream = Stream()
    reassembly = Reassembly(stream)
    _push(reassembly, 500, b"later")
    _push(reassembly, 495, b"first")
    reassembly.finish()
    assert (stream.parts, stream.begun) == ([b"firstlater"], False)


def test_a_syn_captured_late_is_the_start_still() -> None:
    stream = Stream()
    reassembly = Reassembly(stream)
    _push(reassembly, 103, b"def")
    assert reassembly.syn(99)
    _push(reassembly, 100, b"abc")
    assert (stream.parts, stream.begun) == ([b"abcdef"], True)


def test_another_syn_or_a_far_segment_is_another_connections() -> None:
    reassembly, stream = _started()
    _push(reassembly, 100, b"abc")
    assert reassembly.syn(99)
    assert not reassembly.syn(5_000_000)
    assert not _push(reassembly, 0x9000_0000, b"abc")
    assert stream.parts == [b"abc"]


@given(
    data=st.binary(min_size=1, max_size=300),
    start=st.integers(0, 0xFFFF_FFFF),
    seed=st.integers(0, 1 << 30),
    copies=st.integers(1, 3),
)
def test_any_segments_in_any_order_give_the_stream(data: bytes, start: int, seed: int, copies: int) -> None:
    rng = Random(seed)
    segments = []
    for _ in range(copies):
        at = 0
        while at < len(data):
            end = at + rng.randrange(1, 40)
            segments.append((at, data[at:end]))
            at = end
    rng.shuffle(segments)
    reassembly, stream = _started(start)
    for at, payload in segments:
        assert _push(reassembly, start + at, payload)
    reassembly.finish()
    assert stream.parts == [data]
    assert reassembly.repeated_bytes == len(data) * (copies - 1)
