"""Measures what the options of racks cost and save, in at most 15 minutes.

- `zone_cpu`: the gateway's CPU with and without a rack.
- `zone_bytes`: the bytes that cross zones, before and after, for six clients.
- `zone_latency`: from produce to consume, at the leader and at a follower.
- `zone_returns`: how long clients need to come back from a replica that fails.
- `zone_others`: what such a client does to other clients of the gateway.

All but the first have real brokers in racks (`zone_brokers`). `zone_reader` is the program that reads.
"""

import time
from typing import Final

from tools.bench import zone_brokers, zone_bytes, zone_cpu, zone_latency, zone_others, zone_returns
from tools.bench.figures import FigureTable
from tools.bench.stage import BenchStage

FAILS_UNTIL: Final = 12 * 60.0
"""The time from the start, in seconds, after which the replica fails no more. The rest takes two minutes."""


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure everything."""
    until = time.monotonic() + FAILS_UNTIL
    tables = zone_cpu.run(stage)
    stage.report("zones: starting three brokers in three racks ...")
    with zone_brokers.cluster() as brokers:
        tables += zone_bytes.run(stage, brokers)
        tables += zone_latency.run(stage, brokers)
        tables += zone_returns.run(stage, brokers, until)
    return [*tables, *zone_others.run(stage)]
