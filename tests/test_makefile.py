"""What `make` runs: with which Python, which tests, and what their processes share."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import OneSparkSession
from tests.integration.conftest import MISSING

ROOT = Path(__file__).parents[1]


def make(*arguments: str, folder: Path = ROOT, rule: str = "", **variables: str) -> str:
    """Run make in a folder, with this repository's Makefile and one more rule. Return what it prints."""
    command = ["make", "--no-print-directory", "-f", str(ROOT / "Makefile"), "-f", "-", *arguments]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MAKE"))}
    done = subprocess.run(
        command,
        input=rule,
        cwd=folder,
        env=kept | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_processes_of_tests_keep_what_they_compile() -> None:
    told = make("variables", rule="variables:; @env\n", PYTHONDONTWRITEBYTECODE="1", PYTHON="python3")
    assert "PYTHON=python3\n" in told
    assert "PYTHONDONTWRITEBYTECODE" not in told


OWN: Final = "python{}.{}".format(*sys.version_info[:2])


@pytest.mark.parametrize(
    ("of_venv", "asked", "environment"),
    [
        ("", sys.executable, ".venv"),
        (OWN, sys.executable, ".venv"),
        ("python3.9", sys.executable, f".venv-{OWN.removeprefix('python')}"),
        ("python3.9", "", ".venv"),
        ("python3.9", "/nowhere/python3", ".venv"),
    ],
)
def test_another_python_has_an_environment_of_its_own(
    tmp_path: Path, of_venv: str, asked: str, environment: str
) -> None:
    if of_venv:
        (tmp_path / ".venv" / "bin").mkdir(parents=True)
        for name in ("python", of_venv):
            (tmp_path / ".venv" / "bin" / name).touch()
    told = make(
        *([f"PYTHON={asked}"] if asked else []), "which", folder=tmp_path, rule="which:; @echo $(VENV)\n"
    )
    assert told == f"{environment}\n"


def test_the_tests_without_brokers_run_with_each_other_python_that_works(tmp_path: Path) -> None:
    """Here, python3.12 on PATH does not run, as that of pyenv, and .venv has Python 3.11."""
    works, fails = "#!/bin/sh\n", "#!/bin/sh\nexit 127\n"
    programs = {
        ".venv/bin/python3.11": works,
        "bin/python3.11": works,
        "bin/python3.12": fails,
        "home/.pyenv/versions/3.12.1/bin/python": works,
        "bin/python3.13": works,
        "home/.pyenv/versions/3.13.0/bin/python": works,
        "bin/python3.14": fails,
        "home/.pyenv/versions/3.14.0/bin/python": fails,
    }
    for name, text in programs.items():
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / ".venv" / ".installed").touch()
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    told = make("pythons", "MAKE=echo", folder=tmp_path, HOME=str(tmp_path / "home"), PATH=path)
    assert [line.split("PYTHON=")[1] for line in told.splitlines()] == [
        str(tmp_path / "home/.pyenv/versions/3.12.1/bin/python"),
        "python3.13",
    ]


def test_each_line_of_chosen_txt_is_a_test(request: pytest.FixtureRequest) -> None:
    if MISSING not in request.config.stash:
        pytest.skip("only a run of all tests can tell")
    assert not request.config.stash[MISSING]


def test_what_shares_a_spark_session_runs_in_one_process_and_any_other_file_in_one_of_its_own() -> None:
    scheduler = OneSparkSession.__new__(OneSparkSession)  # a run of xdist would make it
    folder = "tests/replay/measure/spark/"
    scopes = [
        scheduler._split_scope(f"{file}::test_x[a::b]")
        for file in (
            f"{folder}test_ways.py",
            f"{folder}test_jobs.py",
            f"{folder}test_session.py",
            "tests/test_x.py",
        )
    ]
    assert scopes == [folder, folder, f"{folder}test_session.py", "tests/test_x.py"]
