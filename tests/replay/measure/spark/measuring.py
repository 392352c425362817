"""Reports of captures, made in the way in which `measure` makes them."""

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from replay.capture.files.sources import expand
from replay.capture.packets.tcp import Filter
from replay.measure.here import measure_here
from replay.measure.rows import RowFilter
from replay.measure.spark.run import measure
from replay.measure.work import Work
from replay.report.model import Report
from replay.simulate.engine import Policy
from tests.replay.tables import reported

CAPTURES = Path(__file__).parents[4] / "captures"


def work(*inputs: Path | str, policy: Policy = "gateway", **more: Any) -> Work:
    """Return the work for `measure`."""
    settings: dict[str, Any] = {"keep": Filter(), "topics": frozenset()} | more
    clients = settings.pop("clients", frozenset())
    return Work(
        sources=tuple(expand(map(str, inputs))), choice=RowFilter(policy=policy, clients=clients), **settings
    )


def measured(spark: SparkSession, asked: Work) -> Report:
    """Measure on Spark and return the report."""
    return reported(measure(spark, asked), asked.choice)


def here(asked: Work) -> Report:
    """Measure without Spark and return the report."""
    found = measure_here(asked)
    assert found is not None
    return reported(found, asked.choice)
