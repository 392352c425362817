"""Transparent mode beside explicit mode: the same broker, the same clients, the same gateway otherwise.

For each mode there is a network namespace with clients and a gateway, and all lead to one broker in another.
It is a stub that answers at once (`tools.bench.stub`), so that clients ask as fast as the gateway goes: small
responses in sessions of 100 partitions, and large ones. Short windows of the modes follow each other in
rounds.
"""

import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from tests.integration.sidecar import USER, as_user
from tools.bench.figures import EXPLICIT, TRANSPARENT, Row, Table
from tools.bench.latency import turned
from tools.bench.processes import HOST, Load, Proxy
from tools.bench.stage import Stage
from tools.bench.stub import PARTITIONS, TOPIC_ID
from tools.bench.windows import beside, medians
from tools.netns import Namespace, missing, veth
from tools.netns.rules import rules

MODES: Final = (EXPLICIT, *TRANSPARENT)
BROKER: Final = "10.84.9.9"
PORT, LISTEN_PORT = 9092, 19092
CONNECTIONS: Final = 4
ROUNDS: Final = 24
QUICK_ROUNDS: Final = 4
SHARE: Final = 20
"""A window is so many times shorter than those of other parts: one second."""
CPU_LIMIT, PACE_LIMIT = 1.03, 0.97
"""CPU seconds at most, and throughput at least, in explicit mode's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What is fetched."""

    name: str
    size: int
    """Bytes of records in a response."""
    counted: str
    """What of a load's counts time and CPU are held against: ``responses`` or ``bytes``."""
    cpu: tuple[str, float]
    """The unit of CPU for what is counted, and how many of it a second is for one."""
    pace: tuple[str, float]
    """The unit of what is counted in a second, and how many of it one is."""


KINDS: Final = (
    Kind(
        name=f"fetches of {PARTITIONS} partitions without news",
        size=0,
        counted="answers",
        cpu=("µs a fetch", 1e6),
        pace=("1/s", 1.0),
    ),
    Kind(
        name="responses of 1 MB",
        size=1_000_000,
        counted="bytes",
        cpu=("s/GB", 1e9),
        pace=("MB/s", 1e-6),
    ),
)


@dataclass(frozen=True, slots=True)
class Window:
    """One window of one mode, in the units of its kind."""

    cpu: float
    pace: float


Rounds = Mapping[str, list[Window]]


def run(stage: Stage) -> list[Table]:
    """Measure both kinds, where namespaces can be made."""
    if lacking := missing("nft", "setpriv"):
        stage.say(f"transparent: not measured, {lacking}")
        return []
    return [_table(kind, _measured(stage, kind), stage.seconds / SHARE) for kind in KINDS]


@dataclass(frozen=True, slots=True)
class Mode:
    """A gateway of one mode, and its clients."""

    gateway: Proxy
    load: Load


def _measured(stage: Stage, kind: Kind) -> dict[str, list[Window]]:
    rounds = QUICK_ROUNDS if stage.quick else ROUNDS
    stage.say(f"transparent: {rounds} rounds of all modes, {kind.name} ...")
    found: dict[str, list[Window]] = {name: [] for name in MODES}
    with ExitStack() as stack:
        far = stack.enter_context(_namespace())
        far.run("ip", "address", "add", f"{BROKER}/32", "dev", "lo")
        with far.inside():
            stub = [sys.executable, "-m", "tools.bench.stub", f"{BROKER}:{PORT}", str(kind.size)]
            stack.enter_context(Proxy(stub, PORT, host=BROKER))
        modes = {name: _mode(stack, far, number, name) for number, name in enumerate(MODES)}
        for number in range(rounds):
            for name in turned(MODES, number):
                found[name].append(_window(modes[name], kind, stage.seconds / SHARE))
    return found


def _namespace() -> Namespace:
    """Make one where the kernel does not pace what is sent, as it does where BBR is its default."""
    place = Namespace()
    place.run("sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno")
    return place


def _mode(stack: ExitStack, far: Namespace, number: int, name: str) -> Mode:
    """Make the namespace of a mode, a gateway in it whose connections the rules leave alone, and clients."""
    near = stack.enter_context(_namespace())
    veth(near, far, f"wire{number}", [(f"10.84.{number}.1/24", f"10.84.{number}.2/24")])
    near.run("ip", "route", "add", "default", "via", f"10.84.{number}.2")
    explicit = name == EXPLICIT
    way = ["--bootstrap", f"{BROKER}:{PORT}"] if explicit else ["--transparent", name]
    command = [sys.executable, "-m", "proxy", "proxy", *way, "--listen", f"{HOST}:{LISTEN_PORT}"]
    target = f"{HOST}:{LISTEN_PORT}" if explicit else f"{BROKER}:{PORT}"
    load = ["tools.bench.connections", target, TOPIC_ID.hex(), str(CONNECTIONS), "0", str(PARTITIONS)]
    user = as_user(USER, ("net_raw",) if name == "tproxy" else ())
    if not explicit:
        stack.enter_context(rules(near, name, ports=str(PORT), to=LISTEN_PORT, user=USER))
    with near.inside():
        gateway = stack.enter_context(Proxy([*user, *command], LISTEN_PORT))
        return Mode(gateway, stack.enter_context(Load(*load)).ready())


def _window(mode: Mode, kind: Kind, seconds: float) -> Window:
    before = mode.gateway.meter.cpu
    mode.load.go()
    time.sleep(seconds)
    told = mode.load.rest()
    done, spent = told[kind.counted], mode.gateway.meter.cpu - before
    return Window(spent / done * kind.cpu[1], done / told["seconds"] * kind.pace[1])


def _table(kind: Kind, rounds: Rounds, seconds: float) -> Table:
    rows = [
        Row(
            name="CPU of the gateway",
            unit=kind.cpu[0],
            values=medians(rounds, "cpu"),
        ),
        Row(
            name="in explicit mode's",
            unit="times",
            values=beside(rounds, EXPLICIT, "cpu"),
            limit=CPU_LIMIT,
        ),
        Row(
            name="throughput",
            unit=kind.pace[0],
            values=medians(rounds, "pace"),
        ),
        Row(
            name="in explicit mode's",
            unit="times",
            values=beside(rounds, EXPLICIT, "pace"),
            limit=PACE_LIMIT,
            least=True,
        ),
    ]
    notes = [
        f"Medians of {len(rounds[EXPLICIT])} rounds of windows of {seconds:g} s; ratios within a round.",
        "CPU user and system.",
        "One stub of a broker in another network namespace, which answers at once; MTU 1,500, TCP Reno.",
    ]
    return Table(part="transparent", title=f"Transparent mode: {kind.name}", rows=rows, notes=notes)
