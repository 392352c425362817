"""TLS to the broker: a client reads 1 KB records in plain text through proxies that use TLS to the broker.

It has its own broker, with a TLS listener for each proxy. The gateway is compared with haproxy. If haproxy is
not installed, it is compared with a proxy on uvloop that only forwards, and the table says so.
"""

import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

from tools.bench.bulk import PARTITIONS, RECORD_BYTES, drain, fill_at
from tools.bench.figures import GATEWAY, Row, Table
from tools.bench.processes import HOST, Gateway, Proxy, haproxy_command
from tools.bench.stage import Stage
from tools.certificates import Authority
from tools.kafka import Broker
from tools.kafka.admin import Admin
from tools.kafka.ports import free_ports
from tools.kafka.settings import PROTOCOL_MAP

FLOOR: Final = "floor"
HAPROXY: Final = "haproxy"
TOPIC: Final = "secured"
GIGABYTES: Final = 2.0
QUICK_GIGABYTES: Final = 0.25
ROUNDS: Final = 3
CPU_LIMIT: Final = 1.3
"""Most CPU of the gateway, relative to haproxy."""


def run(stage: Stage) -> list[Table]:
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
        spent: dict[str, list[float]] = {name: [] for name in proxies}
        pace: dict[str, list[float]] = {name: [] for name in proxies}
        for number in range(1 if stage.quick else ROUNDS):
            stage.report(f"tls: draining by {', '.join(proxies)}, round {number + 1} ...")
            for name, proxy in proxies.items():
                before = proxy.meter.cpu
                with drain(proxy.address, TOPIC, records) as load:
                    result = load.ready().result()
                spent[name].append((proxy.meter.cpu - before) / (result["bytes"] / 1e9))
                pace[name].append(result["bytes"] / 1e6 / result["seconds"])
    return [_table(_medians(spent), _medians(pace), gigabytes)]


def _broker(stack: ExitStack, folder: Path) -> tuple[Broker, dict[str, int], Authority]:
    """Start a broker with a listener for each proxy, which advertises the proxy's own port."""
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
            Gateway(f"{HOST}:{broker.port_of('SSL')}", *options, node_id=broker.node_id)
        ),
    }
    if (program := shutil.which(HAPROXY)) is not None:
        port = ports[HAPROXY]
        # haproxy checks names, not IPs.
        tls = f" ssl verify required ca-file {ca.file} sni str(localhost) verifyhost localhost"
        command = haproxy_command(program, folder, port, broker.port_of("HAPROXY"), tls)
        found[HAPROXY] = stack.enter_context(Proxy(command, port))
    return found


def _medians(rounds: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: median(values) for name, values in rounds.items()}


def _table(cpu: Mapping[str, float], pace: Mapping[str, float], gigabytes: float) -> Table:
    against = HAPROXY if HAPROXY in cpu else FLOOR
    rows = [
        Row(name="CPU of the proxy", unit="s/GB", values=cpu),
        Row(
            name=f"in {'haproxy' if against == HAPROXY else 'the floor'}'s",
            unit="times",
            values={name: value / cpu[against] for name, value in cpu.items()},
            limit=CPU_LIMIT,
        ),
        Row(name="throughput", unit="MB/s", values=pace),
    ]
    title = f"TLS toward the broker: {gigabytes:g} GB of 1 KB records, {PARTITIONS} partitions, one consumer"
    notes = ["Medians of rounds that follow each other; CPU user and system; clients in plain text, TLS 1.3."]
    if against == FLOOR:
        notes.append(
            "haproxy is not installed here: a bare pass-through with TLS on uvloop stands in for it."
        )
    return Table(part="tls", title=title, rows=rows, notes=notes)
