"""Copies of the project without some features, as somebody makes them who deletes these."""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from proxy.features.declared import NAMES

ROOT: Final = Path(__file__).parents[2]
CHOICES: Final = {**{name: (name,) for name in NAMES}, "all": NAMES}
"""The features to delete: each alone, and all."""


def copy_without(names: Iterable[str], to: Path) -> None:
    """Copy the project, and delete the folders of features, their tests, and their names in the list."""
    ignored = shutil.ignore_patterns("__pycache__", "clients", "corpus")
    for name in ("proxy", "replay", "tests", "tools", "docs"):
        shutil.copytree(ROOT / name, to / name, ignore=ignored)
    for name in ("README.md", "CHANGELOG.md", "Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, to)
    shutil.rmtree(to / "tests" / "features" / "together")
    listed = to / "proxy" / "features" / "declared.py"
    text = listed.read_text()
    for name in names:
        shutil.rmtree(to / "proxy" / "features" / name)
        shutil.rmtree(to / "tests" / "features" / name)
        text, found = re.subn(rf'\s*"{name}",?', "", text)
        assert found == 1, f"{name} is in no list, or in several"
    listed.write_text(text)


def environment_of(copy: Path) -> dict[str, str]:
    """Return the variables with which Python imports the copy, whatever folder it is started in."""
    return {"PYTHONPATH": str(copy), "PYTHONSAFEPATH": "1", "COLUMNS": "100"}
