"""Measures how much later records reach a member of a cooperative group than a direct client, at 10 MB/s."""

from contextlib import ExitStack
from typing import Final

from tools.bench.figures import DIRECT, GATEWAY, MEMBER, FigureRow, FigureTable
from tools.bench.latency import LatencyWindow, windows
from tools.bench.processes import Load
from tools.bench.stage import BenchStage
from tools.bench.windows import Rounds, beyond, medians, without

GROUP: Final = "billing"
HALF: Final = "kr-00000000-7fffffff"
RATE: Final = 10_000
BYTES: Final = 1_000
"""The number of records a second (`RATE`), and the size of each record in bytes (`BYTES`). Together they are
10 MB/s."""
KEYS: Final = 5_000
LINGER_MS: Final = 5
"""How long the producer waits for more records, in milliseconds. Without this wait, 10,000 requests a second
would take a whole core of the broker."""
LEAST_SECONDS: Final = 5.0
WARM_UP: Final = 2.0
P50_LIMIT, P99_LIMIT = 1.0, 5.0
"""The limits for a member's delay at the 50th and the 99th percentile, in milliseconds."""


def latency(stage: BenchStage) -> FigureTable:
    """Measure three consumers of one topic at the same time: direct, through a gateway, and a member.

    The member belongs to a cooperative group, and gets the records of half of the keys.
    """
    seconds = max(stage.seconds / 4, LEAST_SECONDS)
    rounds = stage.rounds(quick=2, usual=4, long=8)
    with ExitStack() as stack:
        topic = stack.enter_context(stage.topic(1))
        plain = stack.enter_context(stage.gateway()).ready()
        cooperative = stack.enter_context(stage.gateway("--cooperative", GROUP)).ready()
        routes = {
            DIRECT: (stage.broker.address, "bench"),
            GATEWAY: (plain.address, "bench"),
            MEMBER: (cooperative.address, f"{GROUP}.{HALF}"),
        }
        consumers = {
            name: stack.enter_context(
                Load("tools.bench.load", "consume", address, topic, f"--set=client.id={client_id}")
            ).ready()
            for name, (address, client_id) in routes.items()
        }
        command = ["tools.bench.load", "produce", stage.broker.address, topic, f"--rate={RATE}"]
        command += [f"--bytes={BYTES}", f"--keys={KEYS}", f"--set=linger.ms={LINGER_MS}"]
        command += [f"--seconds={WARM_UP + seconds}", f"--warm-up={WARM_UP}"]
        cpu = []
        for number in range(rounds):
            stage.report(
                f"cooperative: latency at {RATE * BYTES / 1e6:g} MB/s, window {number + 1} of {rounds} ..."
            )
            before = cooperative.meter.cpu
            with Load(*command, f"--window={number}") as load:
                load.ready().result()
            cpu.append(100 * (cooperative.meter.cpu - before) / (WARM_UP + seconds))
        found = {name: load.finish()["windows"] for name, load in consumers.items()}
    return table({name: windows(each, cpu) for name, each in found.items()}, seconds=seconds)


def table(found: Rounds[LatencyWindow], *, seconds: float) -> FigureTable:
    """Make the table of the measured latencies.

    Args:
        found: the windows of each route. The CPU in them is that of the member's gateway.
        seconds: the length of a window in seconds.
    """
    rows = []
    for what, limit in (("p50", P50_LIMIT), ("p99", P99_LIMIT)):
        later = without(beyond(found, DIRECT, what), DIRECT)
        rows += [
            FigureRow(name=what, unit="ms", values=medians(found, what)),
            FigureRow(name=f"added to {what}", unit="ms", values=later, limit=limit, judged=(MEMBER,)),
        ]
    cpu = medians({MEMBER: found[MEMBER]}, "cpu")
    rows.append(FigureRow(name="CPU of the gateway", unit="% of a core", values=cpu))
    notes = [
        f"Medians of {len(found[MEMBER])} windows of {seconds:g} s; all three consumers at the same time.",
        f"{RATE:,} records/s of {BYTES:,} bytes, linger {LINGER_MS} ms, straight to the broker.",
        "The member has half of the keys.",
    ]
    return FigureTable(
        part="cooperative", title="Latency of a member: produce to consume", rows=rows, notes=notes
    )
