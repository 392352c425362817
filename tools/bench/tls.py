"""TLS to the broker (one with a TLS listener for each proxy): the gateway is compared with haproxy."""

import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tools.bench.bulk import PARTITIONS, RECORD_BYTES, Drained, drained, fill_at
from tools.bench.figures import FLOOR, GATEWAY, HAPROXY, FigureRow, FigureTable
from tools.bench.processes import HOST, BenchGateway, Proxy, haproxy_command, haproxy_program
from tools.bench.stage import BenchStage
from tools.bench.windows import Rounds, beside, medians, turned
from tools.certificates import Authority
from tools.kafka import Broker
from tools.kafka.admin import Admin
from tools.kafka.ports import free_ports
from tools.kafka.settings import PROTOCOL_MAP

TOPIC: Final = "secured"
GIGABYTES: Final = 2.0
QUICK_GIGABYTES: Final = 0.25
CPU_LIMIT: Final = 1.3


def run(stage: BenchStage) -> list[FigureTable]:
    """Fill a topic, then read it through every proxy in turn."""
    gigabytes = QUICK_GIGABYTES if stage.quick else GIGABYTES
    records = round(gigabytes * 1e9 / RECORD_BYTES)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stage.report("tls: starting a broker with TLS ...")
        broker, ports, ca = _broker(stack, folder)
        stage.report(f"tls: producing {gigabytes:g} GB ...")
        fill_at(broker.address, TOPIC, records)
        proxies = _proxies(stack, folder, broker, ports, ca)
        found: dict[str, list[Drained]] = {name: [] for name in proxies}
        rounds = stage.rounds(quick=1, usual=3, long=5)
        for number in range(rounds):
            stage.report(f"tls: draining by {', '.join(proxies)}, round {number + 1} of {rounds} ...")
            for name in turned(list(proxies), number):
                found[name].append(drained(proxies[name].address, TOPIC, records, proxies[name]))
    return [_table(found, gigabytes)]


def _broker(stack: ExitStack, folder: Path) -> tuple[Broker, dict[str, int], Authority]:
    """Start a broker with one listener for each proxy. Each listener advertises the port of its proxy."""
    ca = Authority(folder)
    pair = ca.sign("kafka")
    both = folder / "broker.pem"
    both.write_text(pair.private + pair.chain)
    first = free_ports(2)
    ports = {FLOOR: first, HAPROXY: first + 1}
    names = ("FLOOR", "HAPROXY", "SSL")
    properties: dict[str, object] = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": both,
        PROTOCOL_MAP: ",".join(
            ["PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT", *(f"{name}:SSL" for name in names)]
        ),
    }
    listeners = {"FLOOR": (HOST, ports[FLOOR]), "HAPROXY": (HOST, ports[HAPROXY]), "SSL": None}
    broker = stack.enter_context(Broker(listeners=listeners, properties=properties, heap="1g"))
    with Admin(broker.address) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS)
    return broker, ports, ca


def _proxies(
    stack: ExitStack, folder: Path, broker: Broker, ports: Mapping[str, int], ca: Authority
) -> dict[str, Proxy]:
    port, target = ports[FLOOR], f"{HOST}:{broker.port_of('FLOOR')}"
    floor = [sys.executable, "-m", "tools.bench.passthrough", f"{HOST}:{port}", target, str(ca.file)]
    options = ["--broker-tls", "on", "--broker-tls-ca", str(ca.file)]
    found: dict[str, Proxy] = {
        FLOOR: stack.enter_context(Proxy(floor, port)),
        GATEWAY: stack.enter_context(
            BenchGateway(f"{HOST}:{broker.port_of('SSL')}", *options, node_id=broker.node_id)
        ),
    }
    port = ports[HAPROXY]
    # haproxy checks names, not IPs.
    tls = f" ssl verify required ca-file {ca.file} sni str(localhost) verifyhost localhost"
    command = haproxy_command(haproxy_program(), folder, port, broker.port_of("HAPROXY"), tls)
    found[HAPROXY] = stack.enter_context(Proxy(command, port))
    return found


def _table(rounds: Rounds[Drained], gigabytes: float) -> FigureTable:
    rows = [
        FigureRow("CPU of the proxy", "s/GB", medians(rounds, "cpu")),
        FigureRow("CPU in haproxy's", "times", beside(rounds, HAPROXY, "cpu"), limit=CPU_LIMIT),
        FigureRow("throughput", "MB/s", medians(rounds, "pace")),
    ]
    title = f"TLS toward the broker: {gigabytes:g} GB of 1 KB records, {PARTITIONS} partitions, one consumer"
    notes = [
        f"Medians of {len(rounds[HAPROXY])} rounds; ratios within a round; CPU user and system.",
        "Clients in plain text, TLS 1.3.",
    ]
    return FigureTable(title, rows, notes)
