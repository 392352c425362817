"""With the extra `measure`, which does not install Spark, the report is the same to the byte."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from replay import cli
from replay.measure.spark import run
from tests.extras import with_extras
from tests.replay.tables import CAPTURES

ARGUMENTS = ["measure", str(CAPTURES), "--json"]


@pytest.mark.nightly
@pytest.mark.integration
def test_the_report_of_all_captures_is_that_of_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def running(*_: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(run, "session", running)
    code = cli.main([*ARGUMENTS, "--master", "local[2]"])
    expected = capsys.readouterr()
    assert code == 0
    assert "Spark started in" in expected.err

    command = [sys.executable, "-m", "proxy", "replay", *ARGUMENTS]
    environment = with_extras(tmp_path, "measure")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected.out
