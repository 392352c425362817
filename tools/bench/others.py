"""Measures the harm that a misbehaving client does to another client of the same gateway.

The other client, the bystander, sends heartbeats to a real broker: first alone, then while each `Nuisance`
runs. The bystander's latency may rise only a little. The gateway's memory must stay below the figures of
docs/users/run.md. Each round measures both cases, because a busy machine affects both.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Final

from proxy.server.server import TICK_SECONDS, TRIM_SECONDS
from tools.bench.figures import GATEWAY, FigureRow, FigureTable
from tools.bench.flood import ANSWERED, BUSY, MOVED, PARKED, QUEUED, REMEMBERED, UNREAD
from tools.bench.processes import HOST, BenchGateway, Load
from tools.bench.stage import BenchStage
from tools.kafka import LATEST, Cluster
from tools.kafka.admin import Admin

SHARE: Final = 4
SETTLE_SECONDS: Final = 1.0
IDLE_CLIENTS: Final = 300
"""Fewer would not be visible, since the process keeps up to 16 MB of free memory (`TRIM_BYTES`)."""
IDLE_SECONDS: Final = TRIM_SECONDS + 2 * TICK_SECONDS
"""The time until all idle clients count as idle and the gateway has returned free memory, in seconds."""
P99_LIMIT: Final = 5.0
"""The limit for the rise of the bystander's p99 latency while a nuisance runs, in milliseconds."""
BUSY_LIMIT: Final = 20.0
"""The same, while more work comes than the gateway can do."""
CLIENTS: Final = 30
LEAVE_LIMIT: Final = 80.0
"""Until the connections of clients that left are closed: twice 30 s, and the time to notice it."""
WAIT_SECONDS: Final = 120.0
KEPT_LIMIT: Final = 1.1
IDLE_LIMIT: Final = 0.1
"""The limit of memory for an idle connection, in MB: 32 KB and a share of the heap's free memory."""
MOVED_CLIENTS: Final = 100
BUSY_CLIENTS: Final = 140
BUSY_SECONDS: Final = 5.0
"""Until each of them has had its first turn, in seconds."""
UNREAD_CLIENTS: Final = 60
PARKED_CLIENTS: Final = 60
OTHER_ID: Final = "another"
DIRECT: Final = "direct"
_APART: Final = {OTHER_ID: "one of another name, p99", DIRECT: "one directly at the broker, p99"}
NODES: Final = 2
QUIET: Final = "quiet"


@dataclass(frozen=True, slots=True)
class Nuisance:
    """A kind of misbehaviour that runs at the same time as the bystander."""

    name: str
    clients: int
    start: Callable[[str, str], AbstractContextManager[Load]]
    """Starts a program with the gateway's address and the id or name of an empty topic. The program waits for
    `Load.go`, and ends with `Load.pause`."""
    most: float
    """The limit of memory for each of these connections in the gateway, in MB."""
    settles: float = SETTLE_SECONDS
    apart: str = ""
    """Where a second bystander is, or "": directly at the broker (`DIRECT`), or behind the gateway with a
    client id of its own (`OTHER_ID`). The added latency is then the difference between the two."""


@dataclass(frozen=True, slots=True)
class BystanderWindow:
    """The figures of one measured window: latency of the bystander, and memory of the gateway."""

    p50: float
    p99: float
    resident: float
    buffered: int | None
    """What the system has buffered for the gateway's sockets, in bytes. None if it is not known."""
    apart: float | None = None
    """The p99 latency of a second bystander with another client id, in ms; None without one."""


def _flood(kind: str, clients: int) -> Callable[[str, str], Load]:
    return lambda address, topic_id: Load("tools.bench.flood", address, kind, str(clients), topic_id)


NUISANCES: Final[Sequence[Nuisance]] = (
    Nuisance("one that asks for unknown versions, 1.7 MB/s", 1, _flood(ANSWERED, 1), KEPT_LIMIT),
    Nuisance(
        f"{CLIENTS} with 18,700 requests behind a long fetch", CLIENTS, _flood(QUEUED, CLIENTS), KEPT_LIMIT
    ),
    Nuisance(
        f"{IDLE_CLIENTS} idle ones that sent headers of 200 kB",
        IDLE_CLIENTS,
        _flood(REMEMBERED, IDLE_CLIENTS),
        IDLE_LIMIT,
        settles=IDLE_SECONDS,
    ),
    Nuisance(
        f"{BUSY_CLIENTS} busy ones",
        BUSY_CLIENTS,
        _flood(BUSY, BUSY_CLIENTS),
        KEPT_LIMIT,
        settles=BUSY_SECONDS,
        apart=DIRECT,
    ),
    Nuisance(
        f"{UNREAD_CLIENTS} that send 42 MB and read nothing",
        UNREAD_CLIENTS,
        _flood(UNREAD, UNREAD_CLIENTS),
        KEPT_LIMIT,
        apart=DIRECT,
    ),
    Nuisance(
        f"{PARKED_CLIENTS} that send 16 MB behind a fetch that waits",
        PARKED_CLIENTS,
        _flood(PARKED, PARKED_CLIENTS),
        KEPT_LIMIT,
        settles=BUSY_SECONDS,
    ),
)


PILE_UP: Final = Nuisance(
    f"{MOVED_CLIENTS} with its client id whose fetches are repeated to the new leader (--follow-leader)",
    MOVED_CLIENTS,
    _flood(MOVED, MOVED_CLIENTS),
    KEPT_LIMIT,
    apart=OTHER_ID,
)


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure the bystander alone and with each nuisance, in several rounds."""
    rounds = stage.rounds(quick=2, usual=5, long=9)
    with ExitStack() as stack:
        topic = stack.enter_context(stage.topic(1, name=QUIET))
        with Admin(stage.broker.address) as admin:
            topic_id = admin.topic_id(topic).hex
        tables = []
        for nuisance in NUISANCES:
            with stage.gateway() as gateway:  # a new one: it has no free memory yet
                tables.append(_table(nuisance, *_measured(stage, gateway, nuisance, topic_id, rounds)))
    return [*tables, _piled_up(stage, rounds)]


def _piled_up(stage: BenchStage, rounds: int) -> FigureTable:
    """Measure the harm of clients whose fetches the gateway repeats at the leader, the second broker."""
    stage.report(f"others: starting {NODES} brokers ...")
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(LATEST, nodes=NODES))
        admin = stack.enter_context(Admin(cluster.bootstrap))
        # A broker that has never led responds like one that no longer leads.
        admin.create_topic(QUIET, assignment={0: [NODES]})
        options = ("--follow-leader", "on")
        gateway = stack.enter_context(BenchGateway(cluster.bootstrap, *options, node_id=NODES)).ready()
        leader = f"{HOST}:{gateway.node_port}"
        return _table(PILE_UP, *_measured(stage, gateway, PILE_UP, QUIET, rounds, leader))


def _measured(
    stage: BenchStage, gateway: BenchGateway, nuisance: Nuisance, topic: str, rounds: int, address: str = ""
) -> tuple[list[BystanderWindow], list[BystanderWindow], float]:
    """Measure without and with the nuisance. Return the windows, and the seconds until it was gone."""
    clients = 2 if nuisance.apart == OTHER_ID else 1
    alone, beside = [], []
    address = address or gateway.address
    with ExitStack() as stack:
        bystander = stack.enter_context(Load("tools.bench.bystander", address)).ready()
        apart = None
        if nuisance.apart:
            where = stage.broker.address if nuisance.apart == DIRECT else address
            apart = stack.enter_context(Load("tools.bench.bystander", where, OTHER_ID)).ready()
        load = stack.enter_context(nuisance.start(address, topic)).ready()
        for number in range(rounds):
            stage.report(f"others: {nuisance.name}, round {number + 1} of {rounds} ...")
            alone.append(_window(stage, gateway, bystander))
            load.go()
            time.sleep(nuisance.settles)
            beside.append(_window(stage, gateway, bystander, apart))
            load.pause()
            time.sleep(SETTLE_SECONDS)
        return alone, beside, SETTLE_SECONDS + _let_go(gateway, clients)


def _window(
    stage: BenchStage, gateway: BenchGateway, bystander: Load, apart: Load | None = None
) -> BystanderWindow:
    measured = [each for each in (bystander, apart) if each is not None]
    for each in measured:
        each.go()
    time.sleep(stage.seconds / SHARE)
    resident, buffered = gateway.meter.resident / 1e6, gateway.meter.buffered
    seen, *other = (each.pause() for each in measured)
    return BystanderWindow(seen["p50"], seen["p99"], resident, buffered, other[0]["p99"] if other else None)


def _let_go(gateway: BenchGateway, clients: int) -> float:
    """Wait until `clients` connections are left. Return the seconds, at most `WAIT_SECONDS`."""
    began = time.monotonic()
    while (waited := time.monotonic() - began) < WAIT_SECONDS and len(
        gateway.state()["connections"]
    ) > clients:
        time.sleep(0.1)
    return waited


def _table(
    nuisance: Nuisance, alone: Sequence[BystanderWindow], beside: Sequence[BystanderWindow], left: float
) -> FigureTable:
    pairs = list(zip(alone, beside, strict=True))
    added = [each.p99 - (own.p99 if each.apart is None else each.apart) for own, each in pairs]
    before, grown = alone[0].resident, beside[0].resident - alone[0].resident
    held = beside[0].buffered
    rows = [
        _row("bystander alone, p50", "ms", median(window.p50 for window in alone)),
        _row("bystander alone, p99", "ms", median(window.p99 for window in alone)),
        _row("beside it, p50", "ms", median(window.p50 for window in beside)),
        _row("beside it, p99", "ms", median(window.p99 for window in beside)),
        *(_row(_APART[nuisance.apart], "ms", each) for each in _apart(beside)),
        _row("added to p99", "ms", median(added), BUSY_LIMIT if nuisance.apart == DIRECT else P99_LIMIT),
        _row("resident before", "MB", before),
        _row("resident beside it", "MB", beside[0].resident),
        *([] if held is None else [_row("buffered by the system", "MB", held / 1e6)]),
        _row("more for each of its clients", "MB", grown / nuisance.clients, nuisance.most),
        _row("its clients are let go after", "s", left, LEAVE_LIMIT),
    ]
    every = "The bystander sends a heartbeat every 10 ms to a real broker."
    notes = [f"Medians of {len(pairs)} rounds; memory: the first. {every}"]
    return FigureTable(f"One against the others: {nuisance.name}", rows, notes, brief=True)


def _apart(beside: Sequence[BystanderWindow]) -> list[float]:
    """Return the median p99 of the second bystander, in a list; empty if there was none."""
    found = [window.apart for window in beside if window.apart is not None]
    return [median(found)] if found else []


def _row(name: str, unit: str, value: float, limit: float | None = None) -> FigureRow:
    return FigureRow(name, unit, {GATEWAY: value}, limit=limit)
