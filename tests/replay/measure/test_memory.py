"""How much memory `measure --in-process` may use."""

from pathlib import Path

import pytest

from replay.measure.memory import room

GIB = 1 << 30


def told(folder: Path, *, free: int, limit: str, used: int, cached: int) -> tuple[Path, Path]:
    meminfo = folder / "meminfo"
    meminfo.write_text(f"MemTotal: {64 << 20} kB\nMemAvailable: {free >> 10} kB\nHugePages_Total: 0\n")
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon {used - cached}\ninactive_file {cached}\n")
    return meminfo, folder


@pytest.mark.parametrize(
    ("free", "limit", "expected"),
    [
        (4 * GIB, "max", GIB),
        (4 * GIB, f"{3 * GIB}", GIB // 2),  # a container with 3 GiB, of which 1 GiB is in use
        (4 * GIB, f"{64 * GIB}", GIB),
        (4 * GIB, "0", 0),
        (64 * GIB, "max", 2 * GIB - 1),  # the most that Arrow has in a column
    ],
)
def test_it_is_a_quarter_of_what_the_machine_and_the_container_have_free(
    tmp_path: Path, free: int, limit: str, expected: int
) -> None:
    assert room(*told(tmp_path, free=free, limit=limit, used=2 * GIB, cached=GIB)) == expected


def test_without_these_files_it_is_little(tmp_path: Path) -> None:
    assert room(tmp_path / "meminfo", tmp_path) == GIB // 4
