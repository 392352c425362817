"""`make test` runs each test, although it names the folders of integration tests. Its processes share what
Python compiles.
"""

import os
import re
import subprocess
from pathlib import Path

from tests.conftest import OneSparkSession

ROOT = Path(__file__).parents[1]
MARK = re.compile(r"\bmark\.integration\b")


def test_each_integration_test_is_in_a_folder_that_make_test_names() -> None:
    (named,) = re.findall(r"^INTEGRATION := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    folders = [ROOT / folder for folder in named.split()]
    marked = [path for path in (ROOT / "tests").rglob("*.py") if MARK.search(path.read_text())]
    assert [path for path in marked if not any(map(path.is_relative_to, folders))] == []
    for folder in folders:
        assert any(path.is_relative_to(folder) for path in marked), folder


def test_processes_of_tests_keep_what_they_compile() -> None:
    command = ["make", "--no-print-directory", "-f", "Makefile", "-f", "-", "variables"]
    variables = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHON": "python3"}
    done = subprocess.run(
        command,
        input="variables:; @env\n",
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "PYTHON=python3\n" in done.stdout
    assert "PYTHONDONTWRITEBYTECODE" not in done.stdout


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
