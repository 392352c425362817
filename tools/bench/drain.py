"""Measures how long a gateway with 500 busy connections takes to stop, and how many responses it cuts."""

import time
from contextlib import ExitStack
from statistics import median
from typing import Final

from tools.bench.figures import GATEWAY, FigureRow, FigureTable
from tools.bench.processes import Load
from tools.bench.stage import BenchStage
from tools.kafka.admin import Admin

CONNECTIONS: Final = 500
WAIT_MS: Final = 500
"""max_wait_ms of each fetch. Without new records, responses take this long."""
BUSY_SECONDS: Final = 2.0
ROUNDS: Final = 5
LIMIT: Final = 2.0
"""The limit for the time to stop, in seconds."""


def run(stage: BenchStage) -> list[FigureTable]:
    """Stop gateways while their connections are busy."""
    rounds = 1 if stage.quick else ROUNDS
    with stage.topic(1) as topic:
        with Admin(stage.broker.address) as admin:
            topic_id = admin.topic_id(topic).hex
        stage.report(f"drain: {rounds} gateways leave {CONNECTIONS} busy connections ...")
        left = [_leave(stage, topic_id) for _ in range(rounds)]
    rows = [
        FigureRow(
            name="from SIGTERM to its end",
            unit="s",
            values={GATEWAY: median(seconds for seconds, _ in left)},
            limit=LIMIT,
        ),
        FigureRow(
            name="connections cut inside a response",
            unit="",
            values={GATEWAY: sum(cut for _, cut in left)},
            limit=0,
        ),
    ]
    notes = [f"Each fetch waits {WAIT_MS} ms at the broker; median of {rounds}."]
    return [
        FigureTable(part="drain", title=f"Leaving {CONNECTIONS} busy connections", rows=rows, notes=notes)
    ]


def _leave(stage: BenchStage, topic_id: str) -> tuple[float, int]:
    """Stop a busy gateway. Return the seconds it took, and how many connections were cut in a response."""
    with ExitStack() as stack:
        gateway = stack.enter_context(stage.gateway())
        command = ["tools.bench.connections", gateway.address, topic_id, str(CONNECTIONS), str(WAIT_MS)]
        load = stack.enter_context(Load(*command)).ready()
        load.go()
        time.sleep(BUSY_SECONDS)
        seconds = gateway.end()
        return seconds, load.finish()["cut"]
