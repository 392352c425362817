"""Measures what reading in the zone saves and costs, with three brokers in three racks (`zone_brokers`).

- `zone_bytes`: the bytes that cross zones, before and after, for six clients.
- `zone_latency`: from produce to consume, at the leader and at a follower.
"""

from tools.bench import zone_brokers, zone_bytes, zone_latency
from tools.bench.figures import FigureTable
from tools.bench.stage import BenchStage


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure everything."""
    stage.report("zones: starting three brokers in three racks ...")
    with zone_brokers.cluster() as brokers:
        return [*zone_bytes.run(stage, brokers), *zone_latency.run(stage, brokers)]
