"""The benchmark of what it takes to set fetchgate up."""

from pathlib import Path

import pytest

from tools.bench import set_up
from tools.bench.figures import INSTALLED
from tools.bench.set_up import Installed, disk_usage

MIB = 1 << 20


def file(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(1 + index % 255 for index in range(4096)) * (size // 4096))
    return path


def test_a_file_with_two_names_counts_once(tmp_path: Path) -> None:
    one = file(tmp_path / "a" / "one", MIB)
    before = disk_usage(tmp_path)
    assert before >= MIB / 1e6
    (tmp_path / "two").hardlink_to(one)
    (tmp_path / "three").symlink_to(one)
    assert disk_usage(tmp_path) - before < 0.1


def test_the_demo_is_judged_by_its_size_and_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tmp_path / ".venv" / "lib" / "python3.11" / "site-packages"
    file(packages / "numpy" / "a.so", 2 * MIB)
    file(packages / "numpy.libs" / "b.so", 2 * MIB)
    file(packages / "rich" / "a.py", MIB)
    file(tmp_path / ".cache" / "kafka" / "a.jar", 3 * MIB)
    monkeypatch.setattr(set_up, "_timed", lambda *_: Installed(0.0, 130.0))
    table = set_up._demo(tmp_path, tmp_path / "maven")
    size, seconds = table.rows
    assert size.values[INSTALLED] == pytest.approx(8 * MIB / 1e6, rel=0.1)
    assert (size.met, seconds.met) == (True, False)
    assert "numpy 4 MB, rich 1 MB, and Kafka's jars 3 MB." in table.notes[1]


def test_a_program_that_fails_is_told_with_its_output(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="sh -c echo no network"):
        set_up._run(["sh", "-c", "echo no network >&2; exit 1"], cwd=tmp_path)
