"""The processes of tests share what Python compiles, and a Spark session."""

import os
import subprocess
from pathlib import Path

from tests.conftest import OneSparkSession

ROOT = Path(__file__).parents[1]


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
