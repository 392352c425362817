"""Measures what the options of racks cost the gateway: its CPU for each response, and for each GB.

Gateways with and without a rack forward the same traffic in turn, as fast as they can. A second gateway
without a rack shows how far two gateways that do the same differ. The broker is a stub that responds at once
(`tools.bench.stub`). It has no replica selector, so a leader that gets a rack serves all the same, and the
rack is written into every fetch.

These options add less than a busy machine changes from one window to the next. So what they add is measured
inside the gateway, without sockets (`tools.bench.inside`): exchanges of all gateways alternate, and each is
compared with its neighbour. The judged figure is the CPU of the gateway without a rack, with this added.
"""

import random
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from operator import truediv
from statistics import median, quantiles
from typing import Final

from tools.bench.connections import METADATA
from tools.bench.figures import AGAIN, AUDIT, NAMED, NO_RACK, REPLICA, WRITTEN, FigureRow, FigureTable
from tools.bench.frames import metadata_request, metadata_response
from tools.bench.inside import Inside
from tools.bench.processes import HOST, BenchGateway, Load, Proxy
from tools.bench.stage import BenchStage
from tools.bench.stub import MANY, NODE_ID, PARTITIONS, TOPIC_ID
from tools.bench.traffic import CLIENT_ID, Topics, Traffic, fetches
from tools.bench.windows import Rounds, medians, turned
from tools.kafka.metadata import request_metadata
from tools.kafka.ports import free_ports
from tools.kafka.raw import RawConnection

RACKS: Final = ("R1", "R2")
"""The racks of the brokers, from `NODE_ID` on. The stub is the first broker."""
REPLICA_ID: Final = NODE_ID + 1
"""The broker in R2."""
MODES: Final[Mapping[str, Mapping[str, str]]] = {
    NO_RACK: {},
    AGAIN: {},
    AUDIT: {"rack": "R2"},
    WRITTEN: {"rack": "R2", "rack_reads": "client"},
    REPLICA: {"rack": "R1", "rack_reads": "client"},
    NAMED: {"rack": "R1", "rack_clients": CLIENT_ID},
}
"""The options of the gateway in each column. In the last two, the stub is in the gateway's rack."""
AUDIT_LIMIT, READS_LIMIT = 1.01, 1.03
"""The limits of CPU relative to a gateway without a rack."""
SHARE: Final = 40
"""Windows are this many times shorter than in other parts: half a second."""
REPEATS: Final = 5
"""How many times the gateways are made anew, because the place of objects in memory changes their speed."""
MEGABYTE: Final = 1_000_000


def _metadata() -> Traffic:
    listed: Topics = [(TOPIC_ID, [0])]
    return Traffic(listed, lambda number: _metadata_of(TOPIC_ID, MANY, number))


def _metadata_of(topic: bytes, partitions: int, number: int = 0) -> tuple[bytes, bytes]:
    """Return a Metadata request and its response. Each broker leads every other partition."""
    racks = dict(enumerate(RACKS, NODE_ID))
    response = metadata_response(number, racks, topic, partitions, host=HOST, port=9092)
    return metadata_request(number, topic), response


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneTraffic:
    """A kind of traffic to measure."""

    name: str
    listed: str
    """The last argument of `tools.bench.connections`: the number of partitions in a fetch, or `METADATA`."""
    exchanges: Traffic
    """The same traffic for `tools.bench.inside`. Its fetches do not wait: the gateway holds back empty
    responses of a replica that come early."""
    count: int
    """The number of exchanges inside each gateway."""
    size: int = 0
    """Bytes of records in a response."""
    connections: int = 8
    per: float = 1.0
    """The CPU is that for this many responses: 1,000 of 1 MB are a GB."""
    unit: tuple[str, float] = ("µs a response", 1e6)
    """The unit of CPU, and the factor from seconds to that unit."""


TRAFFICS: Final = (
    ZoneTraffic(
        name="small fetches of one partition, 64 connections",
        listed="1",
        exchanges=fetches(1, 1, wait_ms=0),
        count=3000,
        connections=64,
    ),
    ZoneTraffic(
        name=f"fetches of {PARTITIONS} idle partitions",
        listed=str(PARTITIONS),
        exchanges=fetches(1, PARTITIONS, wait_ms=0),
        count=3000,
    ),
    ZoneTraffic(
        name="responses of 1 MB",
        listed=str(PARTITIONS),
        exchanges=fetches(1, PARTITIONS, busy=True, size=MEGABYTE, wait_ms=0),
        count=300,
        size=MEGABYTE,
        connections=4,
        per=1000,
        unit=("s/GB", 1),
    ),
    ZoneTraffic(
        name=f"Metadata of {MANY:,} partitions, without a pause",
        listed=METADATA,
        exchanges=_metadata(),
        count=500,
        connections=4,
    ),
)


@dataclass(frozen=True, slots=True)
class CpuWindow:
    """The result of one window with one gateway."""

    cpu: float
    """The gateway's CPU time, in the unit of the `ZoneTraffic`."""


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure all kinds of traffic."""
    return [
        _table(traffic, measured(stage, traffic), added(stage, traffic), stage.seconds / SHARE)
        for traffic in TRAFFICS
    ]


def measured(stage: BenchStage, traffic: ZoneTraffic) -> dict[str, list[CpuWindow]]:
    """Return the windows of each gateway, in turns."""
    rounds = stage.rounds(quick=2, usual=10, long=10)
    stage.report(f"zones: CPU, {rounds} rounds of {len(MODES)} gateways, {traffic.name} ...")
    found: dict[str, list[CpuWindow]] = {name: [] for name in MODES}
    with ExitStack() as stack:
        port = free_ports(len(RACKS))
        stub = [sys.executable, "-m", "tools.bench.stub", f"{HOST}:{port}", str(traffic.size), *RACKS]
        broker = stack.enter_context(Proxy(stub, port)).address
        gateways = {
            name: stack.enter_context(BenchGateway(broker, *_flags(options), node_id=REPLICA_ID)).ready()
            for name, options in MODES.items()
        }
        for gateway in gateways.values():
            _introduce(stack, gateway)
        load = (TOPIC_ID.hex(), str(traffic.connections), "0", traffic.listed)
        loads = {
            name: stack.enter_context(Load("tools.bench.connections", gateway.address, *load)).ready()
            for name, gateway in gateways.items()
        }
        for number in range(-1, rounds):
            for name in turned(list(MODES), number):
                window = _window(gateways[name], loads[name], traffic, stage.seconds / SHARE)
                if number >= 0:  # before that, sessions and plans are made
                    found[name].append(window)
    return found


def _flags(options: Mapping[str, str]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]


def _introduce(stack: ExitStack, gateway: BenchGateway) -> None:
    """Have the gateway learn the broker's versions and racks, as from any client that connects.

    It forgets the versions when the connection ends. So `stack` keeps it open.
    """
    connection = stack.enter_context(RawConnection(HOST, gateway.port))
    connection.versions()
    request_metadata(connection)


def _window(gateway: Proxy, load: Load, traffic: ZoneTraffic, seconds: float) -> CpuWindow:
    before = gateway.meter.cpu
    load.go()
    time.sleep(seconds)
    responses = load.pause()["responses"]
    return CpuWindow((gateway.meter.cpu - before) / responses * traffic.per * traffic.unit[1])


def added(stage: BenchStage, traffic: ZoneTraffic) -> dict[str, list[float]]:
    """Measure exchanges inside each gateway. Return what each adds to that without a rack, for each repeat.

    The values are in the unit of the `ZoneTraffic`.
    """
    count = traffic.count // (10 if stage.quick else 1)
    frames = [traffic.exchanges.frames(number) for number in range(1, count + 1)]
    found: dict[str, list[float]] = {name: [] for name in MODES}
    chance = random.Random(1)  # noqa: S311 - not a secret
    order = list(MODES)
    for _ in range(1 if stage.quick else REPEATS):
        took: dict[str, list[float]] = {name: [] for name in MODES}
        with ExitStack() as stack:
            gateways = {name: _inside(stack, name, traffic.exchanges) for name in MODES}
            for request, response in frames:
                chance.shuffle(order)
                for name in order:
                    took[name].append(gateways[name].exchange(request, response)[0])
        for name, each in took.items():
            more = median(own - base for own, base in zip(each, took[NO_RACK], strict=True))
            found[name].append(more * traffic.per * traffic.unit[1])
    return found


def _inside(stack: ExitStack, name: str, traffic: Traffic) -> Inside:
    """Return a connection to a broker outside the rack, or to the replica to which that broker has led it."""
    options = dict(MODES[name])
    if at_replica := name in (REPLICA, NAMED):
        options["rack"] = RACKS[1]
    (topic, partitions), *_ = traffic.listed
    one = stack.enter_context(Inside(gateway=True, options=options, node_id=NODE_ID))
    one.introduce(_metadata_of(topic, len(partitions)))
    if name == REPLICA:
        one.lead(traffic.listed, REPLICA_ID)
    if at_replica:
        one = stack.enter_context(Inside(gateway=True, node_id=REPLICA_ID, beside=one))
        one.introduce()
    one.begin(traffic.listed, session=traffic.session, wait_ms=0)
    return one


def ratios(rounds: Rounds[CpuWindow]) -> dict[str, list[float]]:
    """Return each gateway's CPU in that of the one without a rack, for each round."""
    base = [window.cpu for window in rounds[NO_RACK]]
    return {
        name: list(map(truediv, (window.cpu for window in windows), base))
        for name, windows in rounds.items()
        if name != NO_RACK
    }


def _table(
    traffic: ZoneTraffic,
    rounds: Rounds[CpuWindow],
    more: Mapping[str, Sequence[float]],
    seconds: float,
) -> FigureTable:
    cpu = medians(rounds, "cpu")
    quarters = {name: quantiles(each, n=4, method="inclusive") for name, each in ratios(rounds).items()}
    inside = {name: median(each) for name, each in more.items() if name != NO_RACK}
    whole = {name: 1 + each / cpu[NO_RACK] for name, each in inside.items()}
    rows = [
        FigureRow(name="CPU of the gateway", unit=traffic.unit[0], values=cpu),
        FigureRow(
            name="in that without a rack: median",
            unit="times",
            values={name: each[1] for name, each in quarters.items()},
        ),
        FigureRow(
            name="first quartile", unit="times", values={name: each[0] for name, each in quarters.items()}
        ),
        FigureRow(
            name="third quartile", unit="times", values={name: each[2] for name, each in quarters.items()}
        ),
        FigureRow(name="added inside: median", unit=traffic.unit[0], values=inside),
        FigureRow(
            name="most of all repeats",
            unit=traffic.unit[0],
            values={name: max(each) for name, each in more.items() if name != NO_RACK},
        ),
        FigureRow(
            name="CPU with what is added: audit",
            unit="times",
            values={name: whole[name] for name in (AGAIN, AUDIT)},
            limit=AUDIT_LIMIT,
        ),
        FigureRow(
            name="CPU with what is added: rack written",
            unit="times",
            values={name: whole[name] for name in (WRITTEN, REPLICA)},
            limit=READS_LIMIT,
        ),
        FigureRow(name="CPU with what is added: replica named", unit="times", values={NAMED: whole[NAMED]}),
    ]
    notes = [
        f"CPU: medians of {len(rounds[NO_RACK])} rounds of windows of {seconds:g} s; ratios within a round.",
        f"Inside: {len(more[NO_RACK])} repeats of {traffic.count:,} exchanges of each gateway, in turns.",
        "again: a second gateway without a rack. --rack-reads: the rack is written into each fetch, and the",
        "leader serves. at the replica, --rack-clients: the client reads at the broker in the rack.",
    ]
    return FigureTable(part="zones", title=f"Zones, CPU: {traffic.name}", rows=rows, notes=notes)
