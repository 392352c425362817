"""Measures fetch bytes at the broker of the same records: direct, by the gateway, Java's own sessions."""

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.bench.figures import GATEWAY, FigureRow, FigureTable
from tools.bench.processes import BenchGateway, Load
from tools.bench.stage import BenchStage
from tools.counting import CountedFetches, saved
from tools.kafka import LATEST
from tools.kafka.jars import classpath
from tools.kafka.process import JavaProcess

WIRE: Final = ("--sessions", "off")
SETTLED_FETCHES: Final = 50
SETTLE_SECONDS: Final = 60.0
CONSOLE_CONSUMER: Final = "org.apache.kafka.tools.consumer.ConsoleConsumer"


@dataclass(frozen=True, slots=True)
class WireWorkload:
    """The records to produce, and the required saving."""

    name: str
    partitions: int
    active: int
    rate: float
    saved: float
    saved_all: float
    mark: bool
    """Whether the Java consumer's bytes are the limit for the gateway's bytes."""


WORKLOADS: Final = (
    WireWorkload("100 partitions, one with 50 records/s", 100, 1, 50, 97.5, 94.0, mark=True),
    WireWorkload("1,000 partitions, one with 50 records/s", 1000, 1, 50, 99.7, 99.3, mark=True),
    WireWorkload("100 partitions with 5 records/s each", 100, 100, 500, 96.0, 93.0, mark=False),
)


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure all workloads."""
    return [_table(workload, *_measured(stage, workload)) for workload in WORKLOADS]


def _measured(stage: BenchStage, workload: WireWorkload) -> tuple[dict[str, CountedFetches], dict[str, int]]:
    """Return the broker's side of each route in one window, and the reasons of fetches without session."""
    stage.report(f"bytes: {workload.name}, direct, Java and through at once ...")
    with ExitStack() as stack:
        topic = stack.enter_context(stage.topic(workload.partitions))
        routes = {
            "direct": stack.enter_context(stage.gateway(*WIRE)),
            "Java": stack.enter_context(stage.gateway(*WIRE)),
            GATEWAY: stack.enter_context(stage.gateway()),
        }
        rate = f"--rate={workload.rate}"
        arguments = ["tools.bench.load", "produce", stage.broker.address, topic, rate]
        stack.enter_context(Load(*arguments, f"--partitions={workload.active}")).ready()
        java = stack.enter_context(console_consumer(routes["Java"].address, topic))
        for name in ("direct", GATEWAY):
            stack.enter_context(consumer(routes[name].address, topic, workload.partitions)).ready()
        if java is None or not settled(routes["Java"], java):
            stage.report("The Java consumer did not start: nothing to compare with.")
            del routes["Java"]
        for name in ("direct", GATEWAY):
            settle(routes[name], workload.partitions)
        states = {name: gateway.state() for name, gateway in routes.items()}
        time.sleep(stage.seconds)
        later = {name: gateway.state() for name, gateway in routes.items()}
    counted = {
        name: CountedFetches.of(later[name]["totals"], "broker")
        - CountedFetches.of(states[name]["totals"], "broker")
        for name in routes
    }
    return counted, passed(states[GATEWAY], later[GATEWAY])


def passed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of fetches without a session between two states, by reason."""
    earlier = before["totals"]["passthrough"]
    counts = {
        reason: count - earlier.get(reason, 0) for reason, count in after["totals"]["passthrough"].items()
    }
    return {reason: count for reason, count in counts.items() if count}


def consumer(address: str, topics: str, partitions: int) -> Load:
    """Start a confluent-kafka consumer of all partitions. It is ready when it has a record."""
    return Load("tools.bench.load", "consume", address, topics, f"--partitions={partitions}", "--first")


@contextmanager
def console_consumer(address: str, topic: str) -> Iterator[JavaProcess | None]:
    """Run Kafka's own console consumer. Yield None if its jars can't be downloaded."""
    try:
        class_path = classpath(LATEST, tools=True)
    except RuntimeError:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        arguments = [CONSOLE_CONSUMER, "--bootstrap-server", address, "--topic", topic]
        arguments += ["--command-property", "client.id=rdkafka"]  # as long as the other client id
        process = JavaProcess(class_path, arguments, log=Path(folder) / "console-consumer", heap="256m")
        try:
            yield process
        finally:
            process.end(kill=True)


def settled(gateway: BenchGateway, java: JavaProcess) -> bool:
    """Wait until the Java consumer has a session. Return False if it takes too long."""
    until = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < until and java.running:
        if CountedFetches.of(gateway.state()["totals"], "broker").kinds["incremental"] >= SETTLED_FETCHES:
            return True
        time.sleep(0.2)
    return False


def settle(gateway: BenchGateway, partitions: int) -> None:
    """Wait, within a limit, until a client lists all its partitions in every fetch."""
    until = time.monotonic() + SETTLE_SECONDS
    before = CountedFetches.of(gateway.state()["totals"], "client")
    while time.monotonic() < until:
        time.sleep(1)
        now = CountedFetches.of(gateway.state()["totals"], "client")
        last_second, before = now - before, now
        if last_second.fetches and last_second.partitions >= last_second.fetches * partitions:
            return


def _table(
    workload: WireWorkload, counted: Mapping[str, CountedFetches], without: Mapping[str, int]
) -> FigureTable:
    direct, mark = counted["direct"], counted.get("Java")
    others = {name: each for name, each in counted.items() if each is not direct}
    bare = {name: each.bare for name, each in counted.items()}
    rows = [
        FigureRow("fetches", "", {name: each.fetches for name, each in counted.items()}),
        FigureRow("request", "bytes", {name: each.request for name, each in counted.items()}),
        FigureRow("response", "bytes", {name: each.response for name, each in counted.items()}),
        FigureRow("both", "bytes", bare, limit=mark.bare if mark is not None and workload.mark else None),
        FigureRow(
            "below direct",
            "%",
            {name: saved(direct.bare, each.bare) for name, each in others.items()},
            limit=workload.saved,
            least=True,
        ),
        FigureRow("records", "bytes", {name: each.carried for name, each in counted.items()}),
        FigureRow(
            "records included",
            "%",
            {name: saved(direct.whole, each.whole) for name, each in others.items()},
            limit=workload.saved_all,
            least=True,
        ),
    ]
    notes = [
        "Averages over the fetches of one window, records left out unless said. One record takes 270 bytes;",
        "where a busy machine has a fetch bring several, sessions save less of the whole.",
        "Direct and Java are counted by a gateway with --sessions off, a plain wire.",
    ]
    if without:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in without.items())
        notes.append(f"Fetches that the gateway passed without a session: {reasons}.")
    if mark is None:
        notes.append("Java: not there, nothing to compare with.")
    return FigureTable(f"Broker's side: {workload.name}", rows, notes)
