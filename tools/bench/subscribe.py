"""Measures how many fetch bytes are saved while a client starts, and while its list of partitions changes.

The client's side of the same run shows the bytes of direct traffic. The possible saving depends on what the
client lists and when, and on the speed of the machine. So each run is captured, and its lowest possible cost
is computed from the capture (`tools.bench.oracle`).
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from proxy.core.plans import FetchTemplate
from proxy.protocol.api import ApiKey
from replay.capture.files import sources
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.capture.kafka.exchanges import read_exchanges
from replay.capture.packets import segments
from replay.simulate.outcome import CapturedFetch, Outcome, read_fetch
from tools.bench.counting import CountedFetches, saved
from tools.bench.figures import GATEWAY, FigureRow, FigureTable
from tools.bench.oracle import ABSENT, Exchanged, least
from tools.bench.processes import BenchGateway, Load
from tools.bench.stage import BenchStage
from tools.bench.wire import passed

SECONDS: Final = 20.0
"""The duration of a measurement, in seconds from the subscribe on. It does not depend on the length of other
windows, because the start is a part of the measurement."""
QUICK_SECONDS: Final = 5.0
AWAY_SECONDS: Final = 5.0
"""The time in seconds that the second member of a group stays. It is also the time that it stays away."""
BACKLOG_BYTES: Final = 100_000_000
RECORD_BYTES: Final = 1000
OF_THE_BEST: Final = 2.0
"""The largest distance of a saving from the best possible saving, in percent of the direct bytes."""
_FRESH: Final[dict[str, Any]] = {"totals": {"passthrough": {}}}
_SEGMENT: Final = 1 << 30
_OFFSET_AT: Final = {True: slice(8, 16), False: slice(4, 12)}
"""The position of fetch_offset in the entry of a fetch request, for versions from v9 on (True) and for older
versions (False)."""


@dataclass(frozen=True, slots=True)
class SubscribeWorkload:
    """One workload: the records to read, and the required saving."""

    name: str
    partitions: int
    run: Callable[["SubscribeRun"], None]
    saved: float | None
    """The required saving in percent of all fetch bytes, records included. None if only the limit
    `OF_THE_BEST` applies."""
    active: int = 1
    rate: float = 50
    """Records a second in all active partitions together; 0 for none."""


@dataclass(slots=True)
class SubscribeRun:
    """One workload while it runs."""

    workload: SubscribeWorkload
    stage: BenchStage
    stack: ExitStack
    topic: str
    gateway: BenchGateway
    seconds: float

    def subscribe(self) -> Load:
        """Start a member of the group."""
        settings = (f"--set=group.id={self.topic}", f"--partitions={self.workload.partitions}")
        load = Load("tools.bench.load", "subscribe", self.gateway.address, self.topic, *settings)
        return self.stack.enter_context(load).ready()


def _alone(run: SubscribeRun) -> None:
    """Measure one member alone. It reads from the earliest record on."""
    run.subscribe()
    time.sleep(run.seconds)


def _backlog(run: SubscribeRun) -> None:
    """Measure one member that has many old records to read."""
    records = BACKLOG_BYTES // RECORD_BYTES // (20 if run.stage.quick else 1)
    run.stage.report(f"subscribe: filling a topic with {records:,} records ...")
    command = ["tools.bench.load", "fill", run.stage.broker.address, run.topic]
    size = [f"--partitions={run.workload.partitions}", f"--records={records}", f"--bytes={RECORD_BYTES}"]
    with Load(*command, *size) as load:
        load.ready().result()
    _alone(run)


def _second_member(run: SubscribeRun) -> None:
    """Measure one member, while a second member joins and leaves the group several times."""
    run.subscribe()
    until = time.monotonic() + run.seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(AWAY_SECONDS, left))
        if (left := until - time.monotonic()) > 0:
            second = run.subscribe()
            time.sleep(min(AWAY_SECONDS, left))
            second.finish()


WORKLOADS: Final = (
    SubscribeWorkload("100 partitions, one with 50 records/s", 100, _alone, 93.0),
    SubscribeWorkload("1,000 partitions, one with 50 records/s", 1000, _alone, 99.3),
    SubscribeWorkload("100 partitions with 5 records/s each", 100, _alone, 93.0, active=100, rate=500),
    SubscribeWorkload("100 MB of backlog in 100 partitions", 100, _backlog, None, rate=0),
    SubscribeWorkload(
        "a second member for 5 of 10 s, 100 partitions", 100, _second_member, None, active=100, rate=100
    ),
)


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure all workloads."""
    rows: list[FigureRow] = []
    notes = [
        f"Requests and responses of all fetches, records included, {SECONDS:.0f} s from the subscribe on.",
        "Direct: what the same gateway exchanged with the clients.",
        "Best: the least that this run could have cost, had every list and record been known beforehand.",
    ]
    for workload in WORKLOADS:
        stage.report(f"subscribe: {workload.name} ...")
        more, why = _measured(stage, workload)
        rows += more
        notes.append(f"{workload.name}, passed: {why}.")
    return [FigureTable(part="subscribe", title="From the subscribe on", rows=rows, notes=notes)]


def _measured(stage: BenchStage, workload: SubscribeWorkload) -> tuple[list[FigureRow], str]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fetchgate-")))
        topic = stack.enter_context(stage.topic(workload.partitions))
        gateway = stack.enter_context(stage.gateway("--capture", str(folder), "--capture-records", "no"))
        if workload.rate:
            command = ["tools.bench.load", "produce", stage.broker.address, topic, f"--rate={workload.rate}"]
            stack.enter_context(Load(*command, f"--partitions={workload.active}")).ready()
        seconds = QUICK_SECONDS if stage.quick else SECONDS
        with ExitStack() as members:
            workload.run(SubscribeRun(workload, stage, members, topic, gateway, seconds))
            after = gateway.state()
        direct, through = (CountedFetches.of(after, side).total for side in ("client", "broker"))
        why = ", ".join(f"{reason} ({count})" for reason, count in passed(_FRESH, after).items()) or "none"
        rows = [
            FigureRow(
                name=workload.name,
                unit="kB",
                values={"direct": direct / 1e3, GATEWAY: through / 1e3},
            ),
            FigureRow(
                name="below direct",
                unit="%",
                values={GATEWAY: saved(direct, through)},
                limit=workload.saved,
                least=True,
            ),
        ]
        gateway.close()
        rows += _against_the_best(folder, gateway)
        figures = ", ".join(f"{row.name} {row.values[GATEWAY]:,.2f} {row.unit}" for row in rows)
        stage.report(f"subscribe: {figures}; passed: {why}")
    return rows, why


def _against_the_best(folder: Path, gateway: BenchGateway) -> list[FigureRow]:
    """Compare the gateway's saving with the best possible saving, by the captured traffic of both sides."""
    ports = {str(gateway.port), str(gateway.node_port)}
    direct = through = best = 0
    for events in _connections(folder).values():
        fetches = [event for event in events if isinstance(event, Exchange) and event.api_key == ApiKey.FETCH]
        # Requests without a response at the end are left out: their saving is unknown.
        fetches = [event for event in fetches if event.request and event.response]
        spent = sum(event.request_bytes + event.response_bytes for event in fetches)
        if events[0].broker.rpartition(":")[2] not in ports:
            through += spent
            continue
        direct += spent
        best += cheapest(fetches)
    return [
        FigureRow(name="best possible", unit="%", values={GATEWAY: saved(direct, best)}),
        FigureRow(
            name="missed by",
            unit="% of direct",
            values={GATEWAY: saved(direct, best) - saved(direct, through)},
            limit=OF_THE_BEST,
        ),
    ]


def _connections(folder: Path) -> dict[str, list[Exchange | ConnectionEnd]]:
    shares = sources.plan(sources.expand([str(folder)]), _SEGMENT)
    grouped: dict[str, list[Exchange | ConnectionEnd]] = defaultdict(list)
    for event in read_exchanges(batch for share in shares for batch in segments.read(share)):
        grouped[event.connection].append(event)
    return grouped


def cheapest(fetches: list[Exchange]) -> int:
    """Return the lowest possible number of bytes for a connection's fetches.

    Fetches that can't be read count with their real bytes.
    """
    read: list[CapturedFetch] = []
    other = 0
    template: FetchTemplate | None = None
    for exchange in fetches:
        fetch, template = read_fetch(Outcome(exchange), template)
        whole = fetch is not None and fetch.response is not None and fetch.listed
        if fetch is None or not whole or (read and fetch.request.layout is not read[0].request.layout):
            other += exchange.request_bytes + exchange.response_bytes
        else:
            read.append(fetch)
    if not read:
        return other
    numbers: dict[tuple[bytes, int], int] = {}
    for fetch in read:
        for part in _listed(fetch):
            numbers.setdefault(part[0], len(numbers))
    keys = list(dict.fromkeys(key for key, _ in numbers))
    owner = np.array([keys.index(key) for key, _ in numbers])
    columns = (_columns(fetch, numbers) for fetch in read)
    return other + least(columns, read[0].request.layout, owner, len(keys[0]))


def _listed(fetch: CapturedFetch) -> Iterator[tuple[tuple[bytes, int], int]]:
    """Yield topic, partition and offset of each entry of a fetch."""
    listing = fetch.request.listing
    if listing is None:
        return
    layout = fetch.request.layout
    bytes_ = listing.entries.view(np.uint8).reshape(len(listing), layout.request_entry)
    partitions = np.ascontiguousarray(bytes_[:, :4]).view(">i4").ravel().tolist()
    at = _OFFSET_AT[layout.version >= 9]
    offsets = np.ascontiguousarray(bytes_[:, at]).view(">i8").ravel().tolist()
    keys = [key for key, count in zip(listing.keys, listing.counts, strict=True) for _ in range(count)]
    for key, partition, offset in zip(keys, partitions, offsets, strict=True):
        yield (key, partition), offset


def _columns(fetch: CapturedFetch, numbers: dict[tuple[bytes, int], int]) -> Exchanged:
    """Return a fetch and its response in columns."""
    size = len(numbers)
    position, high, records = np.full(size, ABSENT), np.zeros(size, np.int64), np.zeros(size, np.int64)
    order: list[int] = []
    for part, offset in _listed(fetch):
        order.append(numbers[part])
        position[order[-1]] = offset
    response, layout = fetch.response, fetch.request.layout
    if response is None:
        raise RuntimeError("only a fetch with its response was read")
    for run_ in response.walk.runs:
        fields = run_.entries.view(layout.response_fields)
        rows = [numbers[run_.key, partition] for partition in fields["partition"].tolist()]
        high[rows] = fields["high_watermark"]
    for entry in response.walk.entries:
        row = numbers[entry.key, entry.partition]
        high[row] = int.from_bytes(entry.fixed[6:14], signed=True)
        records[row] = entry.records
    listed = sum(length for _, _, length in fetch.elements)
    exchange = fetch.outcome.exchange
    return Exchanged(
        position,
        np.array(order, np.intp),
        high,
        records,
        exchange.request_bytes,
        exchange.response_bytes,
        exchange.request_bytes - listed,
    )
