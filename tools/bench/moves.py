"""Measures how fast clients turn to new leaders: like KIP-951's own benchmark, but smaller.

There are three brokers and 100 partitions. A client produces and consumes, in turns directly and through the
gateway. In each window all leaders move several times, all at the same time. `tools.bench.gaps` reads from
the captured packets how long the client takes to use a new leader. The consumer reports the latency of the
slowest record of each move.

Everything is observed at the brokers. Through the gateway, a gap begins when the error reaches the gateway,
and ends when the new leader gets a request. So the gateway's own time is included, and a request that the
gateway retries (``--follow-leader``) counts.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Final

from proxy.protocol.api import ApiKey
from tools.bench import gaps
from tools.bench.figures import DIRECT, FOLLOW, GATEWAY, FigureRow, FigureTable
from tools.bench.moving import BYTES, CONSUMER, GO, PARTITIONS, PRODUCER, RATE, VERSIONS, build_go
from tools.bench.processes import BenchGateway, Load
from tools.bench.stage import BenchStage
from tools.bench.windows import Rounds, compared, turned, without
from tools.kafka import LATEST, Cluster, jars, reaper
from tools.kafka.admin import Admin

NODES: Final = 3
TOPIC: Final = "moving"
PROPERTIES: Final = {"replica.fetch.wait.max.ms": 20}
"""The settings of the brokers. With the default of 500 ms, most of the clients' behaviour could not be seen,
because followers would wait."""
MOVES: Final = 5
"""How many times all leaders move in a window."""
QUICK_MOVES: Final = 2
SECONDS: Final = 2.0
"""Seconds between two moves of leaders."""
SETTLE_SECONDS: Final = 1.5
"""The wait before the first leader move, in seconds. It begins when records arrive."""
QUICK_CLIENTS: Final = ("librdkafka",)
HINTED: Final = ("librdkafka", "Java", "franz-go")
"""The clients that use KIP-951: an error response names the new leader."""
TIMES_LIMIT: Final = 1.1
"""The limit for the median gap of a client with KIP-951 through the gateway, divided by its median gap when
it connects directly."""
FOLLOWED_LIMIT, FOLLOWED_MOST = 10.0, 70.0
"""The limits for gaps with ``--follow-leader``, in ms: the median and the longest gap. Java 4.3 has the same
gaps without a gateway."""
KINDS: Final = {"produce": ApiKey.PRODUCE, "fetch": ApiKey.FETCH}


@dataclass(frozen=True, slots=True)
class MovesWindow:
    """The measurements of one window, for one client on one route."""

    gaps: Mapping[str, Sequence[float]]
    """The gaps in ms. The keys are those of `KINDS`."""
    worst: Sequence[float]
    """The latency of the slowest record of each move, from produce to consume, in ms."""


@dataclass(slots=True)
class Found:
    """The results of all clients."""

    rounds: dict[str, Rounds[MovesWindow]] = field(default_factory=dict)
    """The measured rounds, by client and then by route."""
    notes: list[str] = field(default_factory=list)
    follows: Sequence[str] = ()
    """The kinds of requests (keys of `KINDS`) that the gateway retries at the new leader."""


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure all clients."""
    return [table(measured(stage))]


def measured(stage: BenchStage) -> Found:
    """Measure all clients that can run here, in rounds of all routes."""
    found = Found()
    rounds, moves = stage.rounds(quick=1, usual=2, long=3), QUICK_MOVES if stage.quick else MOVES
    with ExitStack() as stack:
        stage.report(f"moves: starting {NODES} brokers ...")
        cluster = stack.enter_context(Cluster(LATEST, nodes=NODES, properties=PROPERTIES))
        admin = stack.enter_context(Admin(cluster.bootstrap))
        pairs = {at: [at % NODES + 1, (at + 1) % NODES + 1] for at in range(PARTITIONS)}
        admin.create_topic(TOPIC, assignment=pairs)
        routes = {DIRECT: cluster.bootstrap, **_gateways(stack, cluster, found)}
        for client in _clients(stage, found):
            chosen = [name for name in routes if name != FOLLOW or client not in HINTED]
            windows: dict[str, list[MovesWindow]] = {name: [] for name in chosen}
            for number in range(rounds):
                stage.report(f"moves: {client}, round {number + 1} of {rounds} of {', '.join(chosen)} ...")
                for name in turned(chosen, number):
                    windows[name].append(_window(client, routes[name], cluster, admin, moves))
            found.rounds[client] = windows
    found.notes += _notes(rounds, moves)
    return found


def _gateways(stack: ExitStack, cluster: Cluster, found: Found) -> dict[str, str]:
    """Start a gateway for each route. Return the gateways' addresses by route."""
    options: dict[str, Sequence[str]] = {GATEWAY: ()}
    if choice := follow_choice(_help()):
        options[FOLLOW] = ("--follow-leader", choice)
        found.follows = ("fetch",) if choice == "fetch" else tuple(KINDS)
        found.notes.append(f"follow: a gateway with --follow-leader {choice}, for clients without KIP-951.")
    started = {
        name: stack.enter_context(BenchGateway(cluster.bootstrap, *more, node_id=NODES)).ready()
        for name, more in options.items()
    }
    return {name: gateway.address for name, gateway in started.items()}


def _help() -> str:
    command = [sys.executable, "-m", "proxy", "proxy", "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def follow_choice(text: str) -> str:
    """Return the choice of ``--follow-leader`` that follows the most requests. Empty without such an option.

    Args:
        text: the help of the command line, in which this choice is the last one.
    """
    found = re.search(r"--follow-leader ([a-z|]+)", text)
    return found[1].rpartition("|")[2] if found else ""


def _clients(stage: BenchStage, found: Found) -> list[str]:
    """Return the clients that can run here. Add a note to `found` about each client that can't."""
    clients = list(QUICK_CLIENTS if stage.quick else VERSIONS)
    absent: dict[str, str] = {}
    if "Java" in clients:
        try:
            jars.classpath(LATEST, tools=True)
        except RuntimeError:
            absent["Java"] = "its tools could not be downloaded"
    if not GO.keys().isdisjoint(clients):
        try:
            build_go()
        except FileNotFoundError:
            absent |= dict.fromkeys(GO, "there is no go here")
        except subprocess.SubprocessError as error:
            stage.report(f"moves: {error}")
            absent |= dict.fromkeys(GO, "it could not be built")
    found.notes += [f"{client}: left out, {why}." for client, why in absent.items()]
    return [client for client in clients if client not in absent]


def _window(client: str, address: str, cluster: Cluster, admin: Admin, moves: int) -> MovesWindow:
    """Start a producer and a consumer, move all leaders several times, and return the measurements."""
    ports = frozenset(broker.port for broker in cluster.brokers)
    moved: list[int] = []
    with tempfile.TemporaryDirectory(prefix="fetchgate-") as folder:
        file = Path(folder) / "moves.pcap"
        program = ("tools.bench.moving", client)
        with (
            tcpdump(file, ports) as captures,
            Load(*program, "produce", address, TOPIC) as producer,
            Load(*program, "consume", address, TOPIC) as consumer,
        ):
            producer.ready()
            consumer.ready()
            time.sleep(SETTLE_SECONDS)
            for _ in range(moves):
                turned_round = {
                    at: replicas[::-1] for at, replicas in admin.state(TOPIC).topics[TOPIC].replicas.items()
                }
                admin.reorder_all(TOPIC, turned_round)
                moved.append(time.time_ns())
                admin.elect(TOPIC, {at: replicas[0] for at, replicas in turned_round.items()})
                time.sleep(SECONDS)
            records = consumer.finish()["records"]
            producer.finish()
        exchanges = gaps.read(file, ports, frozenset({PRODUCER, CONSUMER})) if captures else []
    return MovesWindow(
        {name: gaps.gaps(exchanges, key) for name, key in KINDS.items()}, worst(records, moved)
    )


@contextmanager
def tcpdump(file: Path, ports: frozenset[int]) -> Iterator[bool]:
    """Capture loopback packets of these ports to a file.

    Yields:
        Whether the capture runs. False if tcpdump is missing, or if this user may not capture.
    """
    # Stay root: tcpdump's own user only exists where its package is installed.
    command = ["tcpdump", "-Z", "root", "-i", "lo", "-s", "0", "-B", "32768", "--immediate-mode"]
    command += ["-w", str(file), "tcp and (" + " or ".join(f"port {port}" for port in sorted(ports)) + ")"]
    try:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    except FileNotFoundError:
        yield False
        return
    reaper.watch(process.pid)
    try:
        # Its first lines say that it listens. If there are none, it has ended.
        yield any("listening on" in line for line in process.stderr or ())
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        reaper.forget(process.pid)


def worst(records: Sequence[tuple[int, int]], moved: Sequence[int]) -> list[float]:
    """Return the latency of the slowest record of each move, in ms.

    Args:
        records: for each record, when it was produced (ns since 1970) and its latency (ns).
        moved: when each move began (ns since 1970). The records of a move are produced before the next move.
    """
    ends = [*moved[1:], sys.maxsize]
    return [
        max((took for made, took in records if begin <= made < end), default=0) / 1e6
        for begin, end in zip(moved, ends, strict=True)
    ]


def table(found: Found) -> FigureTable:
    """Make the table of the results for moving leaders."""
    rows = [row for client, rounds in found.rounds.items() for row in _rows(client, rounds, found.follows)]
    title = (
        f"Leaders that move: {PARTITIONS} partitions on {NODES} brokers, {RATE} records/s of {BYTES} bytes"
    )
    return FigureTable(part="moves", title=title, rows=rows, notes=[*_without(found), *found.notes])


def _rows(client: str, rounds: Rounds[MovesWindow], follows: Sequence[str]) -> Iterator[FigureRow]:
    label = f"{client} {VERSIONS[client]()}"
    for kind in KINDS:
        seen = {
            name: [one.gaps[kind] for one in windows]
            for name, windows in rounds.items()
            if all(one.gaps[kind] for one in windows)
        }
        yield from _gap_rows(
            f"{label}, {kind}", seen, hinted=client in HINTED, followed=kind in follows and FOLLOW in seen
        )
    slowest = {name: [took for one in windows for took in one.worst] for name, windows in rounds.items()}
    yield FigureRow(
        name=f"{label}: slowest record of a move, median",
        unit="ms",
        values={name: median(values) for name, values in slowest.items()},
    )


def _gap_rows(
    label: str, seen: Rounds[Sequence[float]], *, hinted: bool, followed: bool
) -> Iterator[FigureRow]:
    """Yield the table rows about the gaps of one client and one kind of requests."""
    gaps_of = {name: [gap for window in windows for gap in window] for name, windows in seen.items()}
    yield FigureRow(
        name=f"{label}: gap, median",
        unit="ms",
        values={name: median(values) for name, values in gaps_of.items()},
        limit=FOLLOWED_LIMIT if followed else None,
        judged=(FOLLOW,),
    )
    yield FigureRow(
        name=f"{label}: gap, longest",
        unit="ms",
        values={name: max(values) for name, values in gaps_of.items()},
        limit=FOLLOWED_MOST if followed else None,
        judged=(FOLLOW,),
    )
    if hinted and {DIRECT, GATEWAY} <= seen.keys():
        medians = {name: [median(window) for window in windows] for name, windows in seen.items()}
        yield FigureRow(
            name=f"{label}: median gap in the direct one's",
            unit="times",
            values=without(compared(medians, DIRECT, truediv), DIRECT),
            limit=TIMES_LIMIT,
        )


def _without(found: Found) -> Iterator[str]:
    """Describe the windows in which no gap was seen."""
    windows = [one for rounds in found.rounds.values() for each in rounds.values() for one in each]
    if not any(gap for one in windows for gap in one.gaps.values()):
        yield "Gaps: there is no tcpdump here, or this user may not use it."
        return
    for client, rounds in found.rounds.items():
        for kind in KINDS:
            names = [name for name, each in rounds.items() if not all(one.gaps[kind] for one in each)]
            if names:
                yield f"{client}, {kind}, {', '.join(names)}: a window without any error to turn away from."


def _notes(rounds: int, moves: int) -> list[str]:
    return [
        f"{rounds} windows of each client and route, in turns, with {moves} moves of all leaders in each;",
        "the median gap in the direct one's is the median of the ratios of one round.",
        "Gap: from the error (Produce 6; Fetch 6 or 74) to the first request for the partition at the new",
        "leader, seen at the brokers. Before the error, brokers themselves need some 100 ms for a move.",
        "acks=all, linger 0, idempotent producers; brokers with replica.fetch.wait.max.ms=20; replication 2.",
        "Brokers, clients, gateway and tcpdump share the cores of one machine, and loopback has no delay:",
        "a gap of few ms, the longest gap and the slowest record are noisy.",
        f"For the last 5 minutes {os.getloadavg()[1]:.0f} processes wanted to run on {os.cpu_count()} cores.",
        "If these are many more than the cores, gaps show how busy the machine was.",
    ]
