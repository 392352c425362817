"""Transparent mode beside explicit mode: the same broker, the same clients, the same gateway otherwise.

Clients and gateways share a network namespace, the broker is in another. It is a stub that answers at once
(`tools.bench.stub`), so that clients ask as fast as the gateway goes: small answers in sessions of 100
partitions, and large ones. Short windows follow each other, one of each mode in every round; the rules of
netfilter are there in the windows of their mode alone.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from tests.integration.sidecar import USER, as_user
from tools.bench.figures import EXPLICIT, Row, Table
from tools.bench.latency import turned
from tools.bench.processes import HOST, Load, Proxy
from tools.bench.stage import Stage
from tools.bench.stub import NODE_ID, PARTITIONS, TOPIC_ID
from tools.bench.windows import beside, medians
from tools.netns import Namespace, missing, veth
from tools.netns.rules import rules

BROKER: Final = "10.84.0.2"
PORT: Final = 9092
LISTEN: Final = {EXPLICIT: 19092, "redirect": 29092, "tproxy": 39092}
ADMIN: Final = 100
"""The admin endpoint's port, from that of the listener."""
CONNECTIONS: Final = 4
ROUNDS: Final = 12
QUICK_ROUNDS: Final = 2
SHARE: Final = 10
"""A window is so many times shorter than those of other parts: two seconds."""
CPU_LIMIT, PACE_LIMIT = 1.03, 0.97
"""CPU seconds at most, and throughput at least, in explicit mode's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What is fetched."""

    name: str
    size: int
    """Bytes of records in an answer."""
    counted: str
    """What of a load's counts time and CPU are held against: ``answers`` or ``bytes``."""
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
        name="answers of 1 MB",
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
    return [_table(kind, _measured(stage, kind)) for kind in KINDS]


def _measured(stage: Stage, kind: Kind) -> Rounds:
    rounds = QUICK_ROUNDS if stage.quick else ROUNDS
    stage.say(f"transparent: {rounds} rounds of all modes, {kind.name} ...")
    found: dict[str, list[Window]] = {mode: [] for mode in LISTEN}
    with ExitStack() as stack:
        near, far = stack.enter_context(Namespace()), stack.enter_context(Namespace())
        veth(near, far, "wire", [("10.84.0.1/24", f"{BROKER}/24")])
        with far.inside():
            stub = [sys.executable, "-m", "tools.bench.stub", f"{BROKER}:{PORT}", str(kind.size)]
            stack.enter_context(Proxy(stub, PORT, host=BROKER))
        with near.inside():
            gateways = {mode: stack.enter_context(_gateway(mode)) for mode in LISTEN}
        for number in range(rounds):
            for mode in turned(list(LISTEN), number):
                found[mode].append(_window(near, mode, gateways[mode], kind, stage.seconds / SHARE))
    return found


def _gateway(mode: str) -> Proxy:
    """Start a gateway as the user whose connections the rules leave alone."""
    port = LISTEN[mode]
    way = ["--bootstrap", f"{BROKER}:{PORT}"] if mode == EXPLICIT else ["--transparent", mode]
    command = [sys.executable, "-m", "proxy", "proxy", *way, "--listen", f"{HOST}:{port}"]
    user = as_user(USER, ("net_raw",) if mode == "tproxy" else ())
    return Proxy([*user, *command, "--admin", f"{HOST}:{port + ADMIN}"], port)


def _window(near: Namespace, mode: str, gateway: Proxy, kind: Kind, seconds: float) -> Window:
    before = gateway.meter.cpu
    target = f"{HOST}:{gateway.port + 1 + NODE_ID}" if mode == EXPLICIT else f"{BROKER}:{PORT}"
    with _brought(near, mode), near.inside():
        command = ["tools.bench.connections", target, TOPIC_ID.hex(), str(CONNECTIONS), "0", str(PARTITIONS)]
        with Load(*command) as load:
            load.ready().go()
            time.sleep(seconds)
            told = load.finish()
    done, spent = told[kind.counted], gateway.meter.cpu - before
    return Window(spent / done * kind.cpu[1], done / told["seconds"] * kind.pace[1])


@contextmanager
def _brought(near: Namespace, mode: str) -> Iterator[None]:
    """Bring clients to the gateway of a mode."""
    if mode == EXPLICIT:
        yield
        return
    with rules(near, mode, ports=str(PORT), to=LISTEN[mode], user=USER):
        yield


def _table(kind: Kind, rounds: Rounds) -> Table:
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
        "Medians; ratios are those of windows of the same round. CPU user and system.",
        "One stub of a broker in another network namespace, which answers at once; rules of netfilter in the",
        "windows of their mode alone.",
    ]
    return Table(part="transparent", title=f"Transparent mode: {kind.name}", rows=rows, notes=notes)
