"""Spans of files are read again by their offsets. A file that changed meanwhile is an error."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.capture.files import spans as module
from replay.capture.files.sources import Source, expand
from replay.capture.files.spans import SpanReader, Spans, joined
from replay.capture.files.streams import STDIN
from tests.examples import examples
from tests.replay.capture.crafting import RAW, Talk, capture, pcap

WHOLE = capture("java-100p")
REMEDY = "while it was measured; measure a copy, or measure it when nothing writes to it"


def of(*rows: tuple[int, int, int]) -> Spans:
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    return Spans(columns[0], columns[1], columns[2])


def read(sources: list[Source], *rows: tuple[int, int, int]) -> bytes:
    with SpanReader(sources) as reader:
        return bytes(reader.read(of(*rows)))


@pytest.fixture(name="source")
def source_of_one_capture(tmp_path: Path) -> Source:
    (tmp_path / "x.pcap").write_bytes(WHOLE)
    [found] = expand([str(tmp_path / "x.pcap")])
    return found


@examples(50)
@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30_000), st.integers(1, 9_000)), max_size=12),
    most_open=st.sampled_from([1, 64]),
)
def test_any_spans_of_any_files(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]], most_open: int
) -> None:
    folder = tmp_path_factory.mktemp("spans")
    datas = [WHOLE[:24] + WHOLE[24 + number : 50_000] for number in range(3)]
    sources = []
    for number, data in enumerate(datas):
        (path := folder / f"{number}.pcap").write_bytes(data)
        at = path.stat()
        sources.append(
            Source(
                name=str(path),
                number=number,
                size=at.st_size,
                modified=at.st_mtime_ns,
                located=str(path),
            )
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MOST_OPEN", most_open)
        found = read(sources, *rows)

    assert found == b"".join(datas[file][begin : begin + size] for file, begin, size in rows)


def test_near_spans_are_read_at_once(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, preadv = [], os.preadv

    def noted(file: int, buffers: list[memoryview], offset: int) -> int:
        calls.append((offset, len(buffers[0])))
        return preadv(file, buffers, offset)

    monkeypatch.setattr(os, "preadv", noted)
    read([source], (0, 100, 50), (0, 150, 10), (0, 300, 20), (0, 10_000, 5), (0, 200, 5))

    assert calls == [(100, 220), (10_000, 5), (200, 5)]


def test_a_read_may_return_less_than_was_asked_for(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, buffers, at: preadv(file, [buffers[0][:7]], at))

    assert read([source], (0, 100, 50)) == WHOLE[100:150]


def test_joined_copies_parts_in_any_order() -> None:
    data = np.frombuffer(b"abcdefgh", np.uint8)
    begin, size = np.array([0, 3, 5]), np.array([2, 1, 3])

    assert joined(data, begin, size).to_pybytes() == b"abdfgh"
    assert joined(data, begin, size, np.array([2, 0])).to_pybytes() == b"fghab"
    assert joined(data, begin[:0], size[:0]).to_pybytes() == b""


def shrink(path: Path) -> None:
    os.truncate(path, len(WHOLE) // 2)


def overwrite(path: Path) -> None:
    path.write_bytes(pcap(Talk().open().frames, RAW) + WHOLE)


def edit(path: Path) -> None:
    path.write_bytes(WHOLE[:-1] + b"x")
    os.utime(path, ns=(0, path.stat().st_atime_ns + 1_000_000))


@pytest.mark.parametrize(
    ("change", "how"), [(shrink, "shrank"), (overwrite, "was changed"), (edit, "was changed")]
)
@pytest.mark.parametrize("opened", [True, False])
def test_a_file_that_changed_is_an_error(
    source: Source, change: Callable[[Path], None], how: str, opened: bool
) -> None:
    with SpanReader([source]) as reader:
        if opened:
            reader.read(of((0, 100, 50)))
        change(Path(source.path))
        for at in (100, len(WHOLE) - 50):
            with pytest.raises(OSError, match=f"^{source.name}: {how} {REMEDY}$"):
                reader.read(of((0, at, 50)))


def test_a_file_that_grew_has_what_it_had(source: Source) -> None:
    with Path(source.path).open("ab") as file:
        file.write(WHOLE[24:])

    assert read([source], (0, 100, 50)) == WHOLE[100:150]


def test_a_file_that_is_gone_is_an_error(source: Source) -> None:
    Path(source.path).unlink()
    with pytest.raises(OSError, match=f"^{source.name}: can't be read again: No such file or directory$"):
        read([source], (0, 100, 50))


def test_another_machine_needs_the_same_files(source: Source) -> None:
    Path(source.path).unlink()
    with (
        SpanReader([source], elsewhere=True) as reader,
        pytest.raises(FileNotFoundError, match="put captures where the driver and all workers see them"),
    ):
        reader.read(of((0, 100, 50)))


def test_what_can_be_read_at_offsets(tmp_path: Path, source: Source) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty.pcap").touch()

    assert source.at_offsets
    assert not any(one.at_offsets for one in expand([STDIN, str(tmp_path / "pipe")]))
    assert not expand([str(tmp_path / "empty.pcap")])[0].at_offsets
