"""With a million connections, a Spark driver of 512 MB is enough, for Java's heap and for Python."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from replay.measure.collected import TOP
from replay.measure.spark.jobs import collected, parts_of
from tests.replay.measure.spark.many import many_connections

ROOT: Final = Path(__file__).parents[4]
CONNECTIONS: Final = int(os.environ.get("MANY_CONNECTIONS", "1000000"))


@pytest.mark.nightly
@pytest.mark.integration
def test_the_driver_gets_what_the_report_shows(spark: SparkSession) -> None:
    found = collected(parts_of(many_connections(spark, 1000, 4), 4), 4)

    assert found.kafka_connections == found.whole.connections == 1000
    assert TOP <= len(found.connections) <= 4 * TOP
    assert (len(found.brokers), len(found.clients), len(found.topics)) == (30, 100, 50)
    assert found.sessions == []
    assert {use.requested_at_once for use in found.slots.values()} == {33, 34}


@pytest.mark.integration
@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_million_connections_fit_into_a_driver_of_512_mb() -> None:
    command = [sys.executable, "-m", "tests.replay.measure.spark.many", str(CONNECTIONS)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)

    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["connections"] == CONNECTIONS
    assert found["peak_bytes"] < 512 << 20
