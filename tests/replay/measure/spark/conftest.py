"""A Spark session that all tests here use together, because it takes seconds to start."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from replay.measure.spark.session import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with session("local[2]") as spark:
        yield spark
