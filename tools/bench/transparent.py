"""Compares transparent mode with explicit mode. Everything else is the same.

Each mode has a network namespace with clients and a gateway. One broker for all is in another namespace. It
is a stub that responds at once (`tools.bench.stub`), so that clients fetch as fast as the gateway allows:
small responses in sessions of 100 partitions, and large ones. Short windows of the modes follow each other in
rounds.
"""

import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from tests.integration.sidecar import USER, as_user
from tools.bench.figures import EXPLICIT, TRANSPARENT, FigureRow, FigureTable
from tools.bench.processes import HOST, Load, Proxy
from tools.bench.stage import BenchStage
from tools.bench.stub import PARTITIONS, TOPIC_ID
from tools.bench.windows import Rounds, beside, medians, turned
from tools.netns import Namespace, missing, veth
from tools.netns.rules import rules

MODES: Final = (EXPLICIT, *TRANSPARENT)
BROKER: Final = "10.84.9.9"
PORT, LISTEN_PORT = 9092, 19092
CONNECTIONS: Final = 4
SHARE: Final = 20
"""Windows are this many times shorter than in other parts: one second."""
CPU_LIMIT, PACE_LIMIT = 1.03, 0.97
"""Limits relative to explicit mode: maximum CPU, minimum throughput."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseKind:
    """A kind of responses to measure."""

    name: str
    size: int
    """Bytes of records in a response."""
    counted: str
    """Which count of a load to use: ``responses`` or ``bytes``."""
    cpu: tuple[str, float]
    """The unit of CPU for one of `counted`, and the factor from seconds to that unit."""
    pace: tuple[str, float]
    """The unit for `counted` per second, and the factor from one per second to that unit."""


KINDS: Final = (
    ResponseKind(
        name=f"fetches of {PARTITIONS} partitions with nothing new",
        size=0,
        counted="responses",
        cpu=("µs a fetch", 1e6),
        pace=("1/s", 1.0),
    ),
    ResponseKind(
        name="responses of 1 MB",
        size=1_000_000,
        counted="bytes",
        cpu=("s/GB", 1e9),
        pace=("MB/s", 1e-6),
    ),
)


@dataclass(frozen=True, slots=True)
class ModeWindow:
    """The results of one window of one mode, in the units of its `ResponseKind`."""

    cpu: float
    pace: float


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure both kinds of responses (`KINDS`), if network namespaces can be made."""
    if lacking := missing("nft", "setpriv"):
        stage.report(f"transparent: not measured, {lacking}")
        return []
    return [_table(kind, *_measured(stage, kind), stage.seconds / SHARE) for kind in KINDS]


@dataclass(frozen=True, slots=True)
class Mode:
    """A gateway of one mode, and its clients."""

    gateway: Proxy
    load: Load


def _measured(stage: BenchStage, kind: ResponseKind) -> tuple[dict[str, list[ModeWindow]], dict[str, float]]:
    """Return the windows of each mode, and the kernel's part of its CPU, in percent."""
    rounds = stage.rounds(quick=4, usual=24, long=48)
    stage.report(f"transparent: {rounds} rounds of all modes, {kind.name} ...")
    found: dict[str, list[ModeWindow]] = {name: [] for name in MODES}
    with ExitStack() as stack:
        far = stack.enter_context(_namespace())
        far.run("ip", "address", "add", f"{BROKER}/32", "dev", "lo")
        with far.inside():
            stub = [sys.executable, "-m", "tools.bench.stub", f"{BROKER}:{PORT}", str(kind.size)]
            stack.enter_context(Proxy(stub, PORT, host=BROKER))
        modes = {name: _mode(stack, far, number, name) for number, name in enumerate(MODES)}
        before = {name: mode.gateway.meter.times for name, mode in modes.items()}
        for number in range(rounds):
            for name in turned(MODES, number):
                found[name].append(_window(modes[name], kind, stage.seconds / SHARE))
        kernel = {name: mode.gateway.meter.times.kernel_since(before[name]) for name, mode in modes.items()}
    return found, kernel


def _namespace() -> Namespace:
    """Make a namespace with Reno congestion control. With BBR, the kernel would pace the traffic."""
    place = Namespace()
    place.run("sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno")
    return place


def _mode(stack: ExitStack, far: Namespace, number: int, name: str) -> Mode:
    """Make the namespace of a mode, with clients, and a gateway whose connections are not redirected."""
    near = stack.enter_context(_namespace())
    veth(near, far, f"wire{number}", [(f"10.84.{number}.1/24", f"10.84.{number}.2/24")])
    near.run("ip", "route", "add", "default", "via", f"10.84.{number}.2")
    explicit = name == EXPLICIT
    options = ["--bootstrap", f"{BROKER}:{PORT}"] if explicit else ["--transparent", name]
    command = [sys.executable, "-m", "proxy", "proxy", *options, "--listen", f"{HOST}:{LISTEN_PORT}"]
    target = f"{HOST}:{LISTEN_PORT}" if explicit else f"{BROKER}:{PORT}"
    load = ["tools.bench.connections", target, TOPIC_ID.hex(), str(CONNECTIONS), "0", str(PARTITIONS)]
    user = as_user(USER, ("net_raw",) if name == "tproxy" else ())
    if not explicit:
        stack.enter_context(rules(near, name, ports=str(PORT), to=LISTEN_PORT, user=USER))
    with near.inside():
        gateway = stack.enter_context(Proxy([*user, *command], LISTEN_PORT))
        return Mode(gateway, stack.enter_context(Load(*load)).ready())


def _window(mode: Mode, kind: ResponseKind, seconds: float) -> ModeWindow:
    before = mode.gateway.meter.cpu
    mode.load.go()
    time.sleep(seconds)
    result = mode.load.pause()
    done, spent = result[kind.counted], mode.gateway.meter.cpu - before
    return ModeWindow(spent / done * kind.cpu[1], done / result["seconds"] * kind.pace[1])


def _table(
    kind: ResponseKind, rounds: Rounds[ModeWindow], kernel: Mapping[str, float], seconds: float
) -> FigureTable:
    rows = [
        FigureRow(
            name="CPU of the gateway",
            unit=kind.cpu[0],
            values=medians(rounds, "cpu"),
        ),
        FigureRow(name="of it in the kernel", unit="%", values=kernel),
        FigureRow(
            name="CPU in explicit mode's",
            unit="times",
            values=beside(rounds, EXPLICIT, "cpu"),
            limit=CPU_LIMIT,
            figure=f"transparent, {kind.name}: CPU in explicit mode's",
        ),
        FigureRow(
            name="throughput",
            unit=kind.pace[0],
            values=medians(rounds, "pace"),
        ),
        FigureRow(
            name="throughput in explicit mode's",
            unit="times",
            values=beside(rounds, EXPLICIT, "pace"),
            limit=PACE_LIMIT,
            least=True,
        ),
    ]
    notes = [
        f"Medians of {len(rounds[EXPLICIT])} rounds of windows of {seconds:g} s; ratios within a round.",
        "CPU user and system.",
        "One stub of a broker in another network namespace, which responds at once; MTU 1,500, TCP Reno.",
    ]
    return FigureTable(part="transparent", title=f"Transparent mode: {kind.name}", rows=rows, notes=notes)
