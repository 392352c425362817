"""`make demo`: compares a client with the gateway and one without it, on a real broker.

A topic has 100 partitions, and one of them gets records. Two consumers of confluent-kafka (librdkafka, which
has no fetch sessions) read it at the same time from the same offsets. One uses the gateway. The other one
uses a gateway with `--sessions off`, which changes nothing and counts bytes. So no figure is estimated.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from tools.counting import CountedFetches
from tools.demo.frame import SAME_RECORDS, RunningStep, Steps, add_seconds, fetch, parser, perform, say, start
from tools.demo.reading import (
    PARTITIONS,
    RECORD_BYTES,
    RECORDS_PER_SECOND,
    SETTLE_SECONDS,
    TOPIC,
    DemoReader,
    catch_up,
    check,
    produce,
)
from tools.demo.report import DemoOutcome, Prediction, claim, compare, first_lines, table
from tools.gateway import GatewayProcess
from tools.kafka import LATEST, Broker
from tools.kafka.admin import Admin

MEASURE_SECONDS = 180.0
NEXT = """\
Try next:
  .venv/bin/fetchgate proxy --bootstrap YOUR-BROKER:9092
      then start one of your clients with bootstrap.servers=127.0.0.1:19092
  .venv/bin/fetchgate top                shows live what the gateway does (curl http://127.0.0.1:9464/metrics)
  .venv/bin/fetchgate replay measure captures/many-clients-any.pcap --html report.html
      computes what sessions would have saved in captures;
      docs/users/captures.md: how to make your own with tcpdump
  .venv/bin/fetchgate proxy --help       lists all options
  make demo-link                         a client, two gateways in a row, and a broker that gives no sessions
  make demo-cooperative                  four consumers on one partition, as a plain group and cooperative
  make demo-zones                        three brokers in three zones, four clients: the bytes that cross
  make test                              runs everything that CI runs, on real brokers
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReading:
    """The result of reading with both consumers."""

    seconds: float
    produced: int
    read: int
    differences: tuple[str, ...]
    picture: str


def read_side_by_side(
    broker: str, wire: GatewayProcess, gateway: GatewayProcess, seconds: float, step: RunningStep
) -> DemoReading:
    """Let both consumers read the same topic, and compare their records."""
    readers = [
        DemoReader(wire.address, "direct", wire.outstanding),
        DemoReader(gateway.address, "demo-client", gateway.outstanding),
    ]
    began = time.monotonic()
    try:
        for reader in readers:
            reader.start()
        time.sleep(SETTLE_SECONDS)
        produced = produce(broker, seconds, step, readers)
        catch_up(readers, produced)
        ended = time.monotonic()
        picture = top(gateway)
    finally:
        for reader in readers:
            reader.stop()
    check(readers)
    same, differences = compare(*(reader.records for reader in readers))
    return DemoReading(
        seconds=ended - began, produced=produced, read=same, differences=differences, picture=picture
    )


def top(gateway: GatewayProcess) -> str:
    """Return the output of `fetchgate top --once` for a gateway."""
    command = [sys.executable, "-m", "proxy", "top", "--once", "--admin", gateway.admin]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


def predict(captures: Path, ports: Sequence[int]) -> tuple[Prediction, str]:
    """Predict the broker's traffic from the clients' captures. Return it, and the report's first lines."""
    command = [sys.executable, "-m", "proxy", "replay", "measure", str(captures), "--in-process", "--json"]
    command += [word for port in ports for word in ("--port", str(port))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MEASURE_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"fetchgate replay measure ended with exit code {done.returncode}:\n{done.stderr}")
    report = json.loads(done.stdout)
    return Prediction.of(report["fetch"]), first_lines(report)


def run(seconds: float, steps: Steps) -> DemoOutcome:
    """Start broker, gateways and consumers, read, and stop all of them."""
    fetch(steps, LATEST)
    with ExitStack() as stack:
        broker = start(stack, steps, f"Kafka {LATEST}: starting a broker", Broker(LATEST))
        with steps.step(f"Topic of {PARTITIONS} partitions, gateway, and a gateway without sessions"):
            with Admin(broker.address) as admin:
                admin.create_topic(TOPIC, partitions=PARTITIONS)
            captures = Path(stack.enter_context(TemporaryDirectory(prefix="fetchgate-")))
            gateway = stack.enter_context(GatewayProcess(broker.address, "--capture", str(captures)))
            wire = stack.enter_context(GatewayProcess(broker.address, "--sessions", "off"))
        with steps.step(f"Reading for {seconds:g} s", total=seconds) as step:
            reading = read_side_by_side(broker.address, wire, gateway, seconds, step)
            totals, direct = gateway.totals(), wire.totals()
        gateway.stop()
        with steps.step("Predicting from the client's side (replay measure)"):
            predicted, lines = predict(captures, gateway.ports)
    return DemoOutcome(
        seconds=reading.seconds,
        direct=CountedFetches.of(direct, "broker"),
        client=CountedFetches.of(totals, "client"),
        broker=CountedFetches.of(totals, "broker"),
        produced=reading.produced,
        read=reading.read,
        differences=reading.differences,
        predicted=predicted,
        measured=Prediction.counted(totals["broker"]),
        picture=reading.picture,
        first_lines=lines,
    )


def show(outcome: DemoOutcome, console: Console) -> None:
    """Print the result."""
    console.print()
    console.print(table(outcome))
    say(
        console,
        f"Topic of {PARTITIONS} partitions, one of them with {RECORDS_PER_SECOND} records/s of "
        f"{RECORD_BYTES} bytes. Both clients read it at the same time, each at its own pace, for "
        f"{outcome.seconds:.0f} s. Bytes are counted on whole Kafka frames. Those of the direct "
        "client were counted by a gateway with --sessions off, which forwards all bytes unchanged.",
        SAME_RECORDS.format(read=outcome.read, produced=outcome.produced),
        f"The gateway's own counters: {outcome.client.total:,} bytes with the client, "
        f"{outcome.broker.total:,} with the broker. Saved: {outcome.saved:.1%}, records included. Without "
        f"records: {outcome.client.listing:,} bytes with the client, {outcome.broker.listing:,} "
        f"with the broker, {outcome.listing_saved:.1%}.",
    )
    console.print()
    console.print(claim(outcome))
    say(console, "\nfetchgate top --once, while the clients were reading:\n")
    console.print(outcome.picture, highlight=False, markup=False, soft_wrap=True)
    say(console, "fetchgate replay measure, of what was captured meanwhile on the client's side:\n")
    console.print(outcome.first_lines, highlight=False, markup=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo. Return 0 if the records are the same and enough was saved, else 1."""
    options = parser("tools.demo", "Compare a client without the gateway and one with it, on a real broker.")
    add_seconds(options, "to read", 20.0)
    return perform(partial(run, options.parse_args(argv).seconds), show, NEXT)


if __name__ == "__main__":
    sys.exit(main())
