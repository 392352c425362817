"""Each folder of `proxy.features` can be deleted, and all of them. In a copy without it, the rest runs.

The tests of a feature are in the folder of its name here, and are deleted with it. A real client is in
`tests/integration/test_without_features.py`.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from proxy.command.config import OPTIONS
from proxy.features.declared import FEATURES, NAMES
from tests.features.deleted import CHOICES, copy_without, environment_of

QUICK: Final = (
    *("-m", "not (integration or clients or slow or nightly or soak)", "--hypothesis-profile", "check"),
    *("-q", "-p", "no:cacheprovider", "--ignore", "tests/command/test_completion.py"),
)
"""The tests of completion also ask `fetchgate replay`, which uses the rules of some features."""
BASE: Final = (
    *("core", "protocol", "session", "text", "prometheus", "telemetry", "net", "server", "command"),
    *("features", "golden/test_golden.py", "golden/test_each_count.py", "test_imports.py"),
)
"""The tests that pass without any feature. Other tests are of `replay` and of tools, which use some."""


def flags(names: tuple[str, ...]) -> set[str]:
    """Return the flags of features."""
    declared = dict(zip(NAMES, FEATURES, strict=True))
    return {option.flag for name in names for option in declared[name].options.declared()}


@pytest.fixture(params=CHOICES)
def names(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return CHOICES[request.param]


@pytest.fixture
def copy(names: tuple[str, ...], tmp_path: Path) -> Path:
    copy_without(names, tmp_path)
    return tmp_path


def run(copy: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=copy,
        env=os.environ | environment_of(copy),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_the_options_of_a_feature_go_with_its_folder(names: tuple[str, ...], copy: Path) -> None:
    gone, others = flags(names), {option.flag for option in OPTIONS} - flags(names)

    words = set(run(copy, "proxy", "proxy", "--help").replace("]", " ").replace("[", " ").split())

    assert not gone & words
    assert others <= words


@pytest.mark.slow
def test_nothing_names_the_folder(names: tuple[str, ...], copy: Path) -> None:
    named = [f"features.{name}" for name in names]

    assert not [
        path for path in (copy / "proxy").rglob("*.py") if any(name in path.read_text() for name in named)
    ]


@pytest.mark.nightly
def test_nothing_uses_what_was_in_the_folder(copy: Path) -> None:
    run(copy, "mypy", "proxy", "--cache-dir", str(copy / ".mypy_cache"))


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_tests_of_the_rest_pass_without_the_folder(names: tuple[str, ...], copy: Path) -> None:
    """Without one folder all are collected (they import nothing that is gone), and those of golden files run.

    Without any folder, all run.
    """
    more = () if names == NAMES else ("-k", "golden")
    run(copy, "pytest", *QUICK, *more, *(f"tests/{name}" for name in BASE))
