"""Law 6, never dearer than the wire: workloads that save little, by both sides of the same gateways."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from tools.bench.figures import GATEWAY, FigureRow, FigureTable
from tools.bench.processes import BenchGateway, Load
from tools.bench.stage import BenchStage
from tools.counting import CountedFetches

WINDOWS: Final = 3
"""A run takes as long as this many windows of the other parts: a minute by default."""
LOOKS: Final = 5
NARROW, WIDE = 10, 60
"""Spans in seconds in which the bytes on the broker's side are compared with the client's."""
LONG_NAME: Final = (
    "a-topic-whose-name-is-as-long-as-names-of-departments-and-their-systems-get-when-nobody-says-no" * 2
)
SMALL_QUEUE: Final = (
    "--set=queued.min.messages=10",
    "--set=queued.max.messages.kbytes=16",
    "--set=fetch.message.max.bytes=4096",
)
SINGLES: Final = 20

Sample = tuple[int, int]
"""The fetch bytes that a gateway has exchanged so far: first with the client, then with the broker."""


@dataclass(slots=True)
class Running:
    """A workload that runs through its own gateway."""

    name: str
    gateway: BenchGateway
    samples: list[Sample]

    def look(self) -> Sample:
        """Return the number of fetch bytes so far, on the client's and on the broker's side."""
        state = self.gateway.state()
        return CountedFetches.of(state["totals"], "client").total, CountedFetches.of(
            state["totals"], "broker"
        ).total


def run(stage: BenchStage) -> list[FigureTable]:
    """Run all workloads at the same time. Return the table of the benchmark."""
    seconds = round(WINDOWS * stage.seconds)
    stage.report(f"law6: five clients for whom sessions hardly pay, {seconds} s ...")
    with ExitStack() as stack:
        running = _start(stage, stack)
        for _ in range(seconds):
            _note_second(running)
        kinds = {
            each.name: CountedFetches.of(each.gateway.state()["totals"], "broker").kinds for each in running
        }
    rows = [row for workload in running for row in _rows(workload)]
    made = sum(each["full"] for each in kinds.values())
    notes = [
        f"Direct: what the same gateway exchanged with the client. Sessions requested in all: {made}.",
        "Worst: of all stretches of that length, in steps of one second.",
    ]
    return [FigureTable("Never dearer than the wire", rows, notes)]


def _note_second(running: Sequence[Running]) -> None:
    """Take several samples in one second. Keep the one with the largest difference for each workload.

    The difference is the bytes on the broker's side minus the bytes on the client's side. While a response is
    forwarded, its bytes are counted on the client's side first. Only a sample without a response in flight
    has the true difference, and this difference is the largest.
    """
    looks = []
    for _ in range(LOOKS):
        looks.append([workload.look() for workload in running])
        time.sleep(1 / LOOKS)
    for number, workload in enumerate(running):
        workload.samples.append(max((each[number] for each in looks), key=lambda each: each[1] - each[0]))


def _start(stage: BenchStage, stack: ExitStack) -> list[Running]:
    mixed = stack.enter_context(stage.topic(50))
    long_names = ",".join(stack.enter_context(stage.topic(50, name=LONG_NAME)) for _ in range(2))
    for topics, rate in ((mixed, 500), (long_names, 500)):
        command = ["tools.bench.load", "produce", stage.broker.address, topics]
        stack.enter_context(Load(*command, "--partitions=50", f"--rate={rate}")).ready()
    running = []
    for name, command in (
        ("slow confluent-kafka", ["tools.bench.load", "slow", "", mixed, "--partitions=50", "--pause=0.004"]),
        ("slow aiokafka", ["tools.bench.slow_aiokafka", "", mixed, "50", "0.05"]),
        (f"{SINGLES} of one partition", ["tools.bench.load", "single", "", mixed, f"--partitions={SINGLES}"]),
        ("two topics, confluent-kafka", ["tools.bench.load", "consume", "", long_names, "--partitions=50"]),
        ("two topics, aiokafka", ["tools.bench.slow_aiokafka", "", long_names, "50", "0"]),
    ):
        gateway = stack.enter_context(stage.gateway())
        filled = [part or gateway.address for part in command]
        settings = SMALL_QUEUE if name.startswith("slow c") else ()
        stack.enter_context(Load(*filled, *settings)).ready()
        running.append(Running(name, gateway, [(0, 0)]))
    return running


def _rows(workload: Running) -> list[FigureRow]:
    direct, through = workload.samples[-1]
    rows = [
        FigureRow(workload.name, "kB", {"direct": direct / 1e3, GATEWAY: through / 1e3}, limit=direct / 1e3)
    ]
    for width in (NARROW, WIDE):
        if len(workload.samples) > width:
            worst = 100 * dearest(workload.samples, width)
            values = {GATEWAY: worst}
            rows.append(FigureRow(f"worst {width} s", "% of direct", values, limit=100))
    return rows


def dearest(samples: Sequence[Sample], width: int) -> float:
    """Return the highest ratio of broker bytes to client bytes in any span of `width` samples."""
    ratios = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for earlier, later in zip(samples, samples[width:], strict=False)
        if later[0] > earlier[0]
    ]
    return max(ratios, default=0.0)
