import bz2
import errno
import gzip
import io
import lzma
import os
import pickle
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from pyarrow.fs import LocalFileSystem

from replay.capture.files.counts import FileCounts
from replay.capture.files.sources import InputError, Source, TaskInput, expand, plan, spool
from replay.capture.files.streams import open_stream
from replay.capture.packets.segments import read
from replay.measure.typed import Packed
from tests.replay.capture.crafting import RAW, Talk, capture, pcap, pcapng, relink, section, take_apart
from tests.replay.capture.slow import runs, told

Dress = Callable[[bytes], bytes]
TALK = Talk().open().segment(b"question").segment(b"answer", broker=True).close()
FRAMES = TALK.frames


CONVERT = "convert it first: editcap -F pcap FILE NEW.pcap"
CUT = "cut within its compression; what precedes the cut was read"


def lz4(data: bytes) -> bytes:
    """Compress as the program lz4 does."""
    with pa.CompressedOutputStream(packed := pa.BufferOutputStream(), "lz4") as writer:
        writer.write(data)
    return bytes(packed.getvalue())


def counted(shares: list[TaskInput]) -> list[FileCounts]:
    return told(batch for share in shares for batch in read(share))[1]


def names(sources: list[Source], base: Path) -> list[str]:
    return [os.path.relpath(source.name, base) for source in sources]


@pytest.fixture(name="folder")
def folder_of_captures(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    for place, name in enumerate(("x.pcap", "x.pcap1", "x.pcap2", "deep/x.pcap10.gz", "nameless")):
        data = pcap(FRAMES[place:], RAW)
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    (tmp_path / "README.md").write_text("about these captures")
    (tmp_path / "x.truth.json").write_text("{}")
    return tmp_path


def test_a_directory_gives_what_is_called_or_begins_like_a_capture(folder: Path) -> None:
    sources = expand([str(folder)])

    assert names(sources, folder) == ["x.pcap", "x.pcap1", "x.pcap2", "deep/x.pcap10.gz", "nameless"]
    assert [source.number for source in sources] == [0, 1, 2, 3, 4]
    assert [source.first_time for source in sources] == [frame.time for frame in FRAMES[:5]]


def test_files_are_ordered_by_their_first_packets(folder: Path) -> None:
    inputs = [str(folder / "x.pcap2"), str(folder / "x.pcap"), str(folder / "x.pcap1")]

    assert names(expand(inputs), folder) == ["x.pcap", "x.pcap1", "x.pcap2"]


def test_patterns_and_repeated_names(folder: Path) -> None:
    sources = expand([str(folder / "x.pcap*"), str(folder / "**" / "*.gz"), str(folder / "x.pcap")])

    assert names(sources, folder) == ["x.pcap", "x.pcap1", "x.pcap2", "deep/x.pcap10.gz"]


def test_captures_that_begin_at_once_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 9, 2, 1):
        (tmp_path / f"x.pcap{number}").write_bytes(pcap(FRAMES, RAW))

    assert names(expand([str(tmp_path)]), tmp_path) == ["x.pcap1", "x.pcap2", "x.pcap9", "x.pcap10"]


def test_a_name_with_brackets_is_a_name_first(tmp_path: Path) -> None:
    path = tmp_path / "host[1].pcap"
    path.write_bytes(pcap(FRAMES, RAW))

    assert names(expand([str(path)]), tmp_path) == ["host[1].pcap"]


def test_a_capture_is_known_by_its_first_packets_under_any_name_and_when_it_grows(tmp_path: Path) -> None:
    def fingerprint(name: str, data: bytes) -> str:
        (tmp_path / name).write_bytes(data)
        return expand([str(tmp_path / name)])[0].fingerprint

    whole = pcap(FRAMES * 10, RAW)
    assert len(whole) > 1024
    known = fingerprint("x.pcap", whole)
    assert known.startswith(f"{FRAMES[0].time}-")
    assert fingerprint("y.pcap.gz", gzip.compress(whole)) == known
    assert fingerprint("z.pcap", pcap(FRAMES * 20, RAW)) == known
    assert fingerprint("x.pcap", pcap(FRAMES[1:] * 10, RAW)) != known
    assert fingerprint("empty.pcap", pcap([], RAW)) == ""  # it has nothing that could count twice


def test_files_are_opened_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pcap(FRAMES * 2000, RAW)
    for number in range(4):
        (tmp_path / f"{number}").write_bytes(data)
    wanted = expand([str(tmp_path)])
    half = wanted[0].size * 2 // 3
    shares = plan(wanted, half)
    assert len(shares) == 8
    together = threading.Barrier(4)

    def opened(name: str, start: int = 0) -> tuple[io.RawIOBase, str]:
        together.wait(30)
        return open_stream(name, start)

    monkeypatch.setattr("replay.capture.files.sources.open_stream", opened)
    assert expand([str(tmp_path)]) == wanted
    assert plan(wanted, half) == shares


@pytest.mark.parametrize("name", ["none.pcap", "none*.pcap", "file:///none/x.pcap", "nofs://x/y.pcap"])
def test_what_is_not_there_is_said_in_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError) as error:
        expand([name if "://" in name else str(tmp_path / name)])

    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_a_directory_without_captures_is_said(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("nothing here")

    with pytest.raises(InputError, match="no capture in this directory"):
        expand([str(tmp_path)])


def problems(sources: list[Source], base: Path) -> dict[str, str]:
    return dict(zip(names(sources, base), (source.problem for source in sources), strict=True))


def test_no_capture_in_a_directory_is_left_out_silently(tmp_path: Path) -> None:
    (tmp_path / "good.pcap").write_bytes(WHOLE)
    (tmp_path / "notes.txt.xz").write_bytes(lzma.compress(b"these are no packets"))
    (tmp_path / "a.pcap.xz").write_bytes(lzma.compress(WHOLE))
    (tmp_path / "b.pcap3.bz2").write_bytes(bz2.compress(WHOLE))
    (tmp_path / "c.pcap.zip").write_bytes(zipped(WHOLE))
    (tmp_path / "gone.pcap").symlink_to("nothing")
    (tmp_path / "lock").symlink_to("nothing")
    (tmp_path / "loop.pcap").symlink_to("loop.pcap")

    assert problems(expand([str(tmp_path)]), tmp_path) == {
        "a.pcap.xz": "compressed with xz, which is not read; unpack it first: xz -dk FILE",
        "b.pcap3.bz2": "compressed with bzip2, which is not read; unpack it first: bzip2 -dk FILE",
        "c.pcap.zip": "a zip archive, which is not read; unpack it first: unzip FILE",
        "gone.pcap": "No such file or directory",
        "loop.pcap": "Too many levels of symbolic links",
        "good.pcap": "",
    }


def test_what_the_system_refuses_costs_no_other_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests may run as root, whom nothing is refused. So the functions of `os` refuse it."""
    for name in ("good.pcap", "closed/x.pcap", "listed/nameless"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(WHOLE)

    def refused(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(path: Any, *given: Any, **more: Any) -> Any:
            if os.fspath(path) == str(tmp_path / name):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
            return function(path, *given, **more)

        return call

    monkeypatch.setattr(os, "scandir", refused(os.scandir, "closed"))
    monkeypatch.setattr(os, "stat", refused(os.stat, "listed/nameless"))
    opened = LocalFileSystem.open_input_file

    class Refusing:
        """A file system that refuses to open two paths."""

        get_file_info = staticmethod(LocalFileSystem().get_file_info)

        def open_input_file(self, path: str) -> Any:
            if path in {str(tmp_path / "closed"), str(tmp_path / "listed" / "nameless")}:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return opened(LocalFileSystem(), path)

    monkeypatch.setattr("replay.capture.files.streams.fs.LocalFileSystem", Refusing)
    for text in (str(tmp_path), str(tmp_path / "listed" / "nameless"), str(tmp_path / "closed")):
        found = problems(expand([text]), tmp_path)
        assert found.pop("good.pcap", "") == ""
        assert {*found.values()} == {"Permission denied"}
        assert {*found} <= {"closed", "listed/nameless"}


def test_a_name_that_is_not_utf_8_is_told_with_the_remedy(tmp_path: Path) -> None:
    """Arrow opens no such file, and no report could have the name."""
    (tmp_path / "good.pcap").write_bytes(WHOLE)
    bad = tmp_path / os.fsdecode(b"bad\xff.pcap")
    bad.write_bytes(WHOLE)
    told = {r"bad\xff.pcap": "the name is not UTF-8; rename the file"}

    assert problems(expand([str(bad)]), tmp_path) == told
    sources = expand([str(tmp_path)])
    assert problems(sources, tmp_path) == told | {"good.pcap": ""}
    assert Packed(TaskInput).read(Packed(TaskInput).write(plan(sources, 1 << 30))) == plan(sources, 1 << 30)


def test_an_empty_name_is_not_the_current_directory() -> None:
    """`measure "$FOLDER"`, where the variable is not set."""
    with pytest.raises(InputError, match="an input has an empty name"):
        expand([""])


@pytest.mark.parametrize("pattern", ["", "/x.pcap", "/x.pcap?", "/*/*.gz"])
def test_uris_are_opened_by_arrow(folder: Path, pattern: str) -> None:
    local = expand([f"{folder}{pattern}"])
    sources = expand([folder.as_uri() + pattern])

    assert [source.name for source in sources] == [f"file://{source.name}" for source in local]
    assert [source.size for source in sources] == [source.size for source in local]
    found, _ = told(batch for share in plan(sources, 1 << 30) for batch in read(share))
    wanted, _ = told(batch for share in plan(local, 1 << 30) for batch in read(share))
    assert found == wanted


class Stdin:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


@pytest.mark.parametrize("dress", [bytes, gzip.compress, zstandard.compress, lz4])
@pytest.mark.parametrize("form", [pcap, pcapng])
def test_standard_input_is_read_once(
    monkeypatch: pytest.MonkeyPatch, dress: Dress, form: Callable[..., bytes]
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(dress(form(FRAMES, RAW))))
    sources = expand(["-"])

    found, (counts,) = told(batch for share in plan(sources, 1) for batch in read(share))

    assert found == runs(FRAMES)
    assert (counts.file, counts.packets) == ("-", len(FRAMES))


def test_standard_input_is_spooled_for_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = pcap(FRAMES, RAW)
    monkeypatch.setattr(sys, "stdin", Stdin(data))
    (source,) = expand(["-"])

    kept = spool(source, str(tmp_path))

    assert Path(kept.path).read_bytes() == data
    assert (source.once, kept.once) == (True, False)
    assert (kept.name, kept.number, kept.size) == ("-", source.number, len(data))
    (counts,) = counted(plan([kept], 1 << 30))
    assert (counts.file, counts.packets) == ("-", len(FRAMES))


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(gzip.compress(pcap(FRAMES, RAW)),))
    writer.start()

    sources = expand([str(pipe)])
    (counts,) = counted(plan(sources, 1 << 30))

    writer.join()
    assert sources[0].once
    assert (counts.packets, counts.problems) == (len(FRAMES), [])


def test_shares_join_small_files_and_split_large_ones(folder: Path) -> None:
    sizes = [source.size for source in expand([str(folder)])]

    (everything,) = plan(expand([str(folder)]), sum(sizes))
    assert [piece.source.number for piece in everything.pieces] == [0, 1, 2, 3, 4]
    halves = plan(expand([str(folder)]), sizes[0] + sizes[1])
    assert [[piece.source.number for piece in share.pieces] for share in halves] == [[0, 1], [2, 3, 4]]
    (folder / "x.pcap").write_bytes(capture("librdkafka-midstream"))
    split = plan(expand([str(folder / "x.pcap")]), 130_000)
    assert len(split) == 4
    pieces = [piece for share in split for piece in share.pieces]
    assert [piece.start for piece in pieces[1:]] == [piece.stop for piece in pieces[:-1]]
    assert pickle.loads(pickle.dumps(split)) == split


@pytest.mark.parametrize("dress", [gzip.compress, zstandard.compress, lz4])
def test_what_is_compressed_is_not_split(tmp_path: Path, dress: Dress) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(dress(capture("librdkafka-midstream")))

    assert [len(share.pieces) for share in plan(expand([str(path)]), 1000)] == [1]


def zipped(content: bytes) -> bytes:
    with zipfile.ZipFile(archive := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as writer:
        writer.writestr("a.pcap", content)
    return archive.getvalue()


def tarred(content: bytes) -> bytes:
    with tarfile.open(fileobj=(archive := io.BytesIO()), mode="w") as writer:
        (member := tarfile.TarInfo("a.pcap")).size = len(content)
        writer.addfile(member, io.BytesIO(content))
    return archive.getvalue()


WHOLE = pcap(FRAMES, RAW)
BLOCKS = pcapng(FRAMES, RAW)
HOSTILE = {
    "empty": (b"", 0, "the file is empty"),
    "text": (b"this is no capture at all, is it?", 0, "neither pcap nor pcapng"),
    "xz": (
        lzma.compress(WHOLE),
        0,
        "compressed with xz, which is not read; unpack it first: xz -dk FILE",
    ),
    "bzip2": (
        bz2.compress(WHOLE),
        0,
        "compressed with bzip2, which is not read; unpack it first: bzip2 -dk FILE",
    ),
    "zip": (zipped(WHOLE), 0, "a zip archive, which is not read; unpack it first: unzip FILE"),
    "tar": (tarred(WHOLE), 0, "a tar archive, which is not read; unpack it first: tar -xf FILE"),
    "tar in gzip": (
        gzip.compress(tarred(WHOLE)),
        0,
        "a tar archive, which is not read; unpack it first: tar -xf FILE",
    ),
    "short text": (b"hi", 0, "neither pcap nor pcapng"),
    "cut in the file header": (WHOLE[:13], 0, "cut within the file header, after 13 bytes"),
    "cut in the section header": (BLOCKS[:9], 0, "cut within the section header, after 9 bytes"),
    "odd section": (
        BLOCKS[:8] + b"wxyz" + BLOCKS[12:],
        0,
        "begins like a pcapng file, but has no known byte order",
    ),
    "cut in a record header": (WHOLE[:30], 0, "ends within a record, whose 6 bytes are left out"),
    "cut in a packet": (WHOLE[:-1], 7, "ends within a record, whose 55 bytes are left out"),
    "cut in a block": (BLOCKS[:-1], 8, "ends within a block, whose 23 bytes are left out"),
    "4 GB": (
        WHOLE[:32] + b"\xff" * 4 + WHOLE[36:],
        7,
        "at byte 24 a record claims 4294967295 bytes; reading continued at the next one found",
    ),
    "4 GB to the end": (
        WHOLE[:32] + b"\xff" * 4 + bytes(5000),
        0,
        "at byte 24 a record claims 4294967295 bytes; reading continued at the next one found",
    ),
    "4 GB block": (
        section() + b"\6\0\0\0\xfc\xff\xff\xff" + BLOCKS[len(section()) :],
        8,
        f"at byte {len(section())} a block claims 4294967292 bytes; reading continued at the next one found",
    ),
    "cut gzip": (gzip.compress(os.urandom(70_000), 0)[:66_000], 0, "neither pcap nor pcapng"),
    "broken gzip": (gzip.compress(WHOLE)[:12], 0, CUT),
    "broken zstd": (zstandard.compress(WHOLE)[:30], 0, CUT),
    "broken lz4": (lz4(WHOLE)[:30], 0, CUT),
    "more behind gzip": (
        gzip.compress(WHOLE) + b"more",
        len(FRAMES),
        "has bytes behind its compressed contents, which are left out",
    ),
    "snoop": (
        b"snoop\0\0\0\0\0\0\2",
        0,
        f"a snoop file, which is not read; {CONVERT}",
    ),
    "Network Monitor 1": (
        b"RTSS\1\1\1\0",
        0,
        f"a file of Microsoft Network Monitor, which is not read; {CONVERT}",
    ),
    "Network Monitor 2": (
        b"GMBU\0\2\1\0",
        0,
        f"a file of Microsoft Network Monitor, which is not read; {CONVERT}",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_can_not_be_read_is_one_line_and_the_others_stand(tmp_path: Path, name: str) -> None:
    data, packets, line = HOSTILE[name]
    bad, good = tmp_path / "bad.pcap", tmp_path / "good.pcap"
    bad.write_bytes(data)
    good.write_bytes(pcap(relink(take_apart(capture("java-100p")), "sll")[0], 113))

    counts = {Path(one.file).name: one for one in counted(plan(expand([str(tmp_path)]), 1 << 30))}

    assert counts["good.pcap"].packets == 2426
    assert counts["good.pcap"].problems == []
    assert counts["bad.pcap"].problems == [line]
    assert counts["bad.pcap"].packets == packets


def test_a_capture_cut_within_its_compression_gives_what_precedes(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap.gz"
    data = capture("librdkafka-100p")
    path.write_bytes(gzip.compress(data, 1)[:-20_000])

    (counts,) = counted(plan(expand([str(path)]), 1 << 30))

    assert counts.problems[0] == CUT
    assert counts.problems[1].startswith("ends within a record")
    assert len(data) - 250_000 < counts.file_bytes < len(data)


@pytest.mark.parametrize("lost", [1, 8, 9, 40])
def test_a_small_capture_cut_within_its_compression_gives_what_precedes(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "x.pcap.gz"
    path.write_bytes(gzip.compress(WHOLE)[:-lost])

    (counts,) = counted(plan(expand([str(path)]), 1 << 30))

    assert CUT in counts.problems
    assert counts.packets >= (len(FRAMES) if lost < 9 else len(FRAMES) // 2)


@pytest.mark.parametrize("behind", [b"\0", bytes(512), bytes(200_000)])
@pytest.mark.parametrize("members", [1, 3])
def test_zeros_behind_gzip_do_no_harm(tmp_path: Path, behind: bytes, members: int) -> None:
    path = tmp_path / "x.pcap.gz"
    size = -(-len(WHOLE) // members)
    parts = [gzip.compress(WHOLE[at : at + size]) for at in range(0, len(WHOLE), size)]
    path.write_bytes(behind.join(parts) + behind)

    (counts,) = counted(plan(expand([str(path)]), 1 << 30))

    assert (counts.packets, counts.problems) == (len(FRAMES), [])


def test_gzip_of_several_large_members_is_read_once(tmp_path: Path) -> None:
    data = capture("librdkafka-100p")
    parts = data[:200_000], data[200_000:400_000], data[400_000:]
    path = tmp_path / "x.pcap.gz"
    path.write_bytes(b"".join(map(gzip.compress, parts)))

    (counts,) = counted(plan(expand([str(path)]), 1 << 30))

    assert (counts.file_bytes, counts.problems) == (len(data), [])


def test_a_file_that_is_gone_or_closed_to_us_is_a_problem_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(WHOLE)
    shares = plan(expand([str(path)]), 1 << 30)
    path.unlink()

    (counts,) = counted(shares)

    assert len(counts.problems) == 1
    assert "No such file" in counts.problems[0]
