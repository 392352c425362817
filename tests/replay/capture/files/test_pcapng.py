import struct
from pathlib import Path

import pytest

from replay.capture.files import pcapng
from replay.capture.files.counts import FileCounts
from replay.capture.files.pcapng import PcapngRecords
from replay.capture.files.reading import windows
from replay.capture.files.sources import FilePiece, expand
from replay.capture.files.window import Column, FileWindow, Records
from tests.replay.capture.crafting import ETHERNET, RAW, Frame, block, enhanced, interface, section

_TIME = 1_700_000_000_000_000_000
_PACKET = enhanced(Frame(_TIME, b"abcd", 4))
_SIMPLE = block(3, struct.pack("<I", 4) + b"abcd")
_EMPTY = block(5, b"")


def _read(path: Path, data: bytes) -> tuple[list[Records], FileCounts]:
    path.write_bytes(data)
    (source,) = expand([str(path)])
    counts = FileCounts(file="x")
    return [records for _, records in windows(FilePiece(source=source), counts)], counts


@pytest.mark.parametrize(
    ("unit", "packets"),
    [
        (_PACKET + _SIMPLE, 2),
        (_PACKET + _EMPTY * 2 + b"\xff" * 9, 1),
        (section() + interface(RAW) + _PACKET, 1),
        (section(">") + interface(RAW, ">") + enhanced(Frame(_TIME, b"abcd", 4), order=">"), 1),
        (interface(RAW) + _PACKET, 1),
    ],
    ids=["kinds", "broken", "sections", "other order", "interfaces"],
)
def test_a_window_is_one_result_whatever_is_between_its_packets(
    tmp_path: Path, unit: bytes, packets: int
) -> None:
    found, _ = _read(tmp_path / "x", section() + interface(RAW) + unit * 500)

    assert [len(records.at) for records in found] == [packets * 500]
    assert set(found[0].captured.tolist()) == {4}
    assert set(found[0].time.tolist()) == {_TIME}
    assert set(found[0].link.tolist()) == {RAW}


def test_packets_have_the_interface_that_is_described_before_them(tmp_path: Path) -> None:
    second = enhanced(Frame(_TIME, b"abcd", 4), 1)
    found, _ = _read(
        tmp_path / "x",
        section() + interface(RAW) + second + interface(ETHERNET) + second + section() + second + _PACKET,
    )

    assert [records.link.tolist() for records in found] == [[-1, ETHERNET, -1, -1]]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("comment", [b"caf\xe9", b"caf\xe9s", b"\xff\xfe\0\xd8 \0", b"caf\xc3\xa9"])
def test_options_may_have_any_bytes_and_any_length(tmp_path: Path, order: str, comment: bytes) -> None:
    """As in Wireshark, a block whose length does not count its padding is read to the end of its padding."""
    option = struct.pack(f"{order}HH", 1, len(comment)) + comment
    blocks = []
    for kind, body in (
        (0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1)),
        (1, struct.pack(f"{order}HHI", RAW, 0, 0)),
        (6, struct.pack(f"{order}5I", 0, *divmod(_TIME // 1000, 1 << 32), 4, 4) + b"abcd"),
    ):
        size = struct.pack(f"{order}I", 12 + len(body) + len(option))
        padding = bytes(-len(option) % 4)
        blocks.append(struct.pack(f"{order}I", kind) + size + body + option + padding + size)

    found, counts = _read(tmp_path / "x", blocks[0] + blocks[1] + blocks[2] * 3)

    assert ([one.link.tolist() for one in found], counts.problems) == ([[RAW] * 3], [])
    assert (found[0].captured.tolist(), found[0].time.tolist()) == ([4] * 3, [_TIME] * 3)


def test_interfaces_after_the_most_that_are_known_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pcapng, "_MOST_INTERFACES", 2)
    packets = b"".join(enhanced(Frame(_TIME, b"abcd", 4), number) for number in range(4))
    found, counts = _read(tmp_path / "x", section() + interface(RAW) * 4 + packets)

    assert found[0].link.tolist() == [RAW, RAW, -1, -1]
    assert counts.problems == ["describes more than 2 interfaces; those after them are left out"]


@pytest.mark.parametrize("between", [b"\xff" * 9, b"\xff" * 301, b"\xff" * 100_001])
def test_the_search_looks_at_few_bytes_more_than_it_skips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: bytes
) -> None:
    likely, looked = PcapngRecords._likely, 0

    def counted(self: PcapngRecords, window: FileWindow, begin: int, end: int) -> list[int]:
        nonlocal looked
        looked += end - begin
        return likely(self, window, begin, end)

    monkeypatch.setattr(PcapngRecords, "_likely", counted)
    breaks = 1_000_000 // (len(between) + 24)
    _, counts = _read(tmp_path / "x", section() + (_EMPTY * 2 + between) * breaks)

    assert counts.bad_records >= breaks - 1
    assert looked < 5 * counts.skipped_bytes + 300 * counts.bad_records + 200_000


@pytest.mark.parametrize("described", [0, 1000])
def test_times_are_computed_once_for_each_unit_not_for_each_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, described: int
) -> None:
    computed, calls = pcapng._nanoseconds, []

    def counted(stamp: Column, units: int, offset: Column) -> Column:
        calls.append(units)
        return computed(stamp, units, offset)

    monkeypatch.setattr(pcapng, "_nanoseconds", counted)
    packets = b"".join(enhanced(Frame(_TIME, b"abcd", 4), number) for number in range(1000))
    (found,), _ = _read(tmp_path / "x", section() + interface(RAW) * described + packets)

    assert found.time.tolist() == [_TIME] * 1000
    # Two are for the head of the file: it is read for secrets and for the first time before.
    assert calls == [1_000_000] * 3
