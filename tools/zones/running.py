"""One run: all clients behind one gateway, a producer, and a fault."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.clients.runner import Program
from tools.gateway import GatewayProcess
from tools.zones.brokers import HERE, RACKS, Brokers
from tools.zones.outcome import Row, judge
from tools.zones.readers import Reader, Readers, client_id_of
from tools.zones.traffic import Traffic, traffic
from tools.zones.written import Written

CONTROL: Final = "control"
MODES: Final = (CONTROL, "named")
"""In the second one, the gateway has `--rack-clients` with the client ids of all clients."""
RATE: Final = 20.0
FAULT_SECONDS: Final = 15.0
STEP_SECONDS: Final = 0.2
BEGIN_SECONDS: Final = 90.0
SETTLE_SECONDS: Final = 4.0
AFTER_SECONDS: Final = 5.0
CATCH_UP_SECONDS: Final = 30.0


@dataclass(slots=True)
class _Times:
    """When the parts of a run began, in seconds since 1970."""

    steady: float = 0.0
    fault: float = 0.0
    end: float = 0.0


@dataclass(slots=True)
class ZoneRun:
    """One run of all clients, with a steady part of some `seconds`. `keep` gets captures and log."""

    brokers: Brokers
    fault: str
    mode: str
    seconds: float
    programs: Mapping[str, Program]
    keep: Path | None = None
    _times: _Times = field(default_factory=_Times)

    def rows(self) -> list[Row]:
        """Make the run. Return a row for each client."""
        topic = f"zones-{self.brokers.release}-{self.fault}-{self.mode}"
        self.brokers.create(topic)
        with ExitStack() as stack:
            if self.keep is None:
                folder = Path(stack.enter_context(TemporaryDirectory(prefix="fetchgate-zones-")))
            else:
                folder = self.keep / topic
                folder.mkdir(parents=True)
            ids = ",".join(client_id_of(name, program) for name, program in self.programs.items())
            named = [] if self.mode == CONTROL else ["--rack-clients", ids]
            options = ["--rack", RACKS[HERE], *named, "--capture", str(folder)]
            gateway = stack.enter_context(GatewayProcess(self.brokers.bootstrap, *options))
            written = stack.enter_context(Written(self.brokers.bootstrap, topic, RATE))
            readers = stack.enter_context(Readers(self.programs, gateway.address, topic))
            self._watch(topic, written, readers)
            readers.stop()
            if gateway.stop():
                raise RuntimeError(f"the gateway failed:\n{gateway.log()[-2000:]}")
            ports: dict[int, int | None] = {gateway.port + 1 + node_id: node_id for node_id in RACKS}
            fetched = traffic(folder, ports | {gateway.port: None})
            if self.keep is not None:
                (folder / "log").write_text(gateway.log())
                (folder / "times").write_text(f"{self._times}\n")
        return [self._row(each, written, fetched.get(each.client_id, Traffic())) for each in readers.all]

    def _watch(self, topic: str, written: Written, readers: Readers) -> None:
        times = self._times
        _until(readers.reading, BEGIN_SECONDS)
        time.sleep(SETTLE_SECONDS)
        times.steady = time.time()
        time.sleep(self.seconds)
        times.fault = time.time()
        with self.brokers.fault(self.fault):
            time.sleep(FAULT_SECONDS)
        self.brokers.settle(topic)
        time.sleep(AFTER_SECONDS)
        written.stop()
        ends = written.ends()
        _until(lambda: readers.have(ends), CATCH_UP_SECONDS)
        times.end = time.time()

    def _row(self, reader: Reader, written: Written, fetched: Traffic) -> Row:
        times = self._times
        row = Row(
            release=self.brokers.release,
            fault=self.fault,
            mode=self.mode,
            client=reader.name,
            in_group=reader.in_group,
            errors=reader.errors.total(),
            note=reader.ended,
        )
        if not reader.reads:
            told = ", ".join(f"{code} {count}" for code, count in reader.errors.items())
            return replace(row, ran=False, note=f"it reads nothing: {told}" if told else reader.ended)
        return replace(
            row,
            findings=judge(reader.records, written.values, times.fault, times.end),
            from_zone=fetched.share(HERE, times.steady, times.fault),
            out_of_range=fetched.out_of_range,
            busiest=fetched.busiest,
            in_vain=fetched.in_vain(HERE),
        )


def _until(holds: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(STEP_SECONDS)
