from collections.abc import Iterable

from replay.capture.kafka.resync import LIMIT, Plausibility, Search


class Marks:
    """Finds frames for tests. Each "F" begins a frame, which is accepted if the buffer ends with "."."""

    overlap = 0

    def candidates(self, buffer: bytearray, start: int) -> Iterable[int]:
        return [at for at in range(start, len(buffer)) if buffer[at : at + 1] == b"F"]

    def judge(self, search: Search, at: int, *, boundary: bool) -> Plausibility:
        return Plausibility.HERE if boundary and search.buffer.endswith(b".") else Plausibility.WAIT


def _data(search: Search, payload: bytes, *, turned: bool = False) -> None:
    search.data(memoryview(payload), 1, 2, turned=turned)


def test_a_place_is_found_when_the_sender_stops() -> None:
    search = Search(Marks())
    _data(search, b"....F" + b"x" * 20)
    _data(search, b".")
    assert search.look(boundary=False) == -1
    assert search.look(boundary=True) == 4
    assert [(run.start, run.size) for run in search.split(4)] == [(0, 22 - 1), (25, 1)]


def test_a_header_in_which_a_gap_lies_is_none() -> None:
    search = Search(Marks())
    _data(search, b"..F...")
    search.gap(10)
    _data(search, b"F.......")
    _data(search, b".")
    assert search.look(boundary=True) == 16
    assert search.seen_before(16) == 6
    assert not search.is_whole(0, 7)
    assert search.head(2, 100) == b"F..."


def test_what_was_searched_in_vain_is_let_go_until_the_next_turn() -> None:
    search = Search(Marks())
    _data(search, b"x" * (LIMIT + 1))
    _data(search, b"F.......")
    assert (search.look(boundary=True), len(search), search.dropped) == (-1, 0, LIMIT + 9)
    _data(search, b"F.......", turned=True)
    assert search.look(boundary=True) == 0
    assert search.row_starts == {0}


def test_a_long_gap_leaves_nothing_to_search() -> None:
    search = Search(Marks())
    _data(search, b"F.......")
    search.gap(LIMIT + 1)
    assert (len(search), search.dropped) == (0, 8)
