"""Wheel and sdist have the files of git, and a build leaves nothing in the clone."""

import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final

import pytest

from tools import dist

ROOT: Final = Path(__file__).parent.parent
IN_SDIST: Final = {".gitignore", "LICENSE", "README.md", "pyproject.toml"}
"""Its files beside the packages: to build a wheel needs no others."""


def tracked(*folders: str) -> set[str]:
    """Return the files that git has and that are in this working copy."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return {name for name in listed.split("\0") if name and (ROOT / name).is_file()}


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no commit here")
def test_packed_is_what_git_has_and_nothing_of_an_earlier_build(tmp_path: Path) -> None:
    """setuptools left `build/lib` in the clone, and the next wheel had modules that were gone."""
    source, into = tmp_path / "source", tmp_path / "into"
    left_over = {
        "build/lib/proxy/gone.py",
        "build/lib/replay/gone.py",
        "kafka_fetchgate.egg-info/SOURCES.txt",
        "proxy/__pycache__/gone.cpython-311.pyc",
    }
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    for name in left_over:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("build/lib/proxy/gone.py\n")
    before = files_in(source)
    into.mkdir()

    built = dist.build(source, into, Path(sys.executable), 1_800_000_000)

    assert files_in(source) == before, "built outside of the clone"
    (wheel,) = (data for name, data in built.items() if name.endswith(".whl"))
    (sdist,) = (data for name, data in built.items() if name.endswith(".tar.gz"))
    with zipfile.ZipFile(io.BytesIO(wheel)) as packed:
        names = {name for name in packed.namelist() if ".dist-info/" not in name}
    assert names == tracked("proxy", "replay")
    with tarfile.open(fileobj=io.BytesIO(sdist)) as unpacked:
        names = {member.name.partition("/")[2] for member in unpacked.getmembers() if member.isfile()}
    assert names - {"PKG-INFO"} == tracked("proxy", "replay") | IN_SDIST
