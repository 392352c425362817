"""Measures what a client whose replica fails does to other clients of the same gateway.

Two of three brokers are in the clients' zone. One client reads from the first of them, which is killed or
stopped. The bystanders read another partition from the second one. Both partitions have the same leader, in
another zone, and get the same records.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, TypeAlias

from tools.bench import zone_brokers
from tools.bench.figures import BEFORE, KILLED, STOPPED, FigureRow, FigureTable
from tools.bench.processes import BenchGateway, Load
from tools.bench.stage import BenchStage
from tools.bench.zone_brokers import LEADER, OWN, REPLICA, WRITES
from tools.bench.zone_returns import FOLLOWERS, failed
from tools.kafka import Cluster

RACKS: Final = {LEADER: "R1", REPLICA: OWN, 3: OWN}
FAILS, HEALTHY = "fails", "healthy"
"""The topics: that of the client whose replica fails, and that of the bystanders."""
RATE: Final = 100
"""Records per second, to both topics in turn."""
SHARE: Final = 0.4
"""The length of a window as a share of those in other parts: eight seconds."""
SETTLE: Final = 2.0

Bystanders: TypeAlias = Mapping[str, Mapping[str, Mapping[str, float]]]
"""The figures of one failure: by client, by `BEFORE` or the failure, and by name."""


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure both failures. This starts brokers of its own."""
    stage.report("zones: starting three brokers in two racks ...")
    with zone_brokers.cluster(RACKS) as brokers:
        zone_brokers.create(brokers, FAILS, [LEADER, REPLICA])
        zone_brokers.create(brokers, HEALTHY, [LEADER, 3])
        found = {how: measured(stage, brokers, how) for how in (KILLED, STOPPED)}
    return [table(found, stage.seconds * SHARE)]


def measured(stage: BenchStage, brokers: Cluster, how: str) -> dict[str, dict[str, dict[str, float]]]:
    """Measure one failure. Return the figures of each bystander before and after it."""
    seconds = stage.seconds * SHARE
    stage.report(f"zones: bystanders of a reader whose replica is {how} ...")
    topics = f"{FAILS},{HEALTHY}"
    with ExitStack() as stack:
        gateway = stack.enter_context(zone_brokers.gateway(brokers, *WRITES)).ready()
        produce = ["tools.bench.load", "produce", brokers.bootstrap, topics, f"--rate={RATE}"]
        stack.enter_context(Load(*produce, "--set=acks=1", "--bytes=200")).ready()
        program = ("tools.bench.zone_reader",)
        victim = Load(*program, "librdkafka", gateway.address, FAILS, "--client-id=victim")
        readers = [stack.enter_context(victim)]
        bystanders = {
            client: stack.enter_context(Load(*program, client, gateway.address, HEALTHY))
            for client in FOLLOWERS
        }
        for reader in (*readers, *bystanders.values()):
            reader.ready()
        zone_brokers.follows(gateway, len(bystanders) + 1)
        time.sleep(SETTLE)
        crossed = [_crossed(gateway)]
        windows = [(time.monotonic(), time.monotonic() + seconds)]
        time.sleep(seconds)
        crossed.append(_crossed(gateway))
        with failed(brokers.broker(REPLICA), how) as began:
            windows.append((began, began + seconds))
            time.sleep(began + seconds - time.monotonic())
            crossed.append(_crossed(gateway))
            found = {client: reader.finish()["records"] for client, reader in bystanders.items()}
    zone_brokers.in_sync(brokers, FAILS, 2)
    return {
        client: {
            name: figures(records, *windows[at])
            | {"crossed": (crossed[at + 1].get(client, 0) - crossed[at].get(client, 0)) / 1e3}
            for at, name in enumerate((BEFORE, how))
        }
        for client, records in found.items()
    }


def _crossed(gateway: BenchGateway) -> dict[str, int]:
    """Return by client id the record bytes from other zones on open connections."""
    found: dict[str, int] = {}
    connections: list[dict[str, Any]] = gateway.state()["connections"]
    for each in connections:
        name = each["client_id"]
        found[name] = found.get(name, 0) + each["record_bytes_other_zone"]
    return found


def figures(records: Sequence[tuple[int, int]], begins: float, ends: float) -> dict[str, float]:
    """Return the latencies in ms of the records that were made between two moments.

    Args:
        records: for each record when it came and when it was made, in ns.
        begins: the first moment, in seconds.
        ends: the last moment, in seconds.
    """
    took = sorted((came - made) / 1e6 for came, made in records if begins * 1e9 <= made < ends * 1e9)
    if not took:
        return {}
    return {"p50": took[len(took) // 2], "p99": took[len(took) * 99 // 100], "worst": took[-1]}


def table(
    found: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]], seconds: float
) -> FigureTable:
    """Make the table of both failures.

    Args:
        found: the results of `measured`, by kind of failure.
        seconds: the length of a window.
    """
    rows = [row for client in FOLLOWERS for row in _rows(client, found)]
    notes = [
        f"Windows of {seconds:g} s before and after another client's replica fails; {RATE // 2} records/s.",
        "The bystanders read from another replica in the zone. kafka-python asks the leader after each",
        "response; while the gateway leaves the rack out, it reads from there.",
    ]
    title = "Zones, others: what a failing replica does to clients that read from another one"
    return FigureTable(part="zones", title=title, rows=rows, notes=notes)


def _rows(client: str, found: Mapping[str, Bystanders]) -> Iterator[FigureRow]:
    first = found[KILLED][client][BEFORE]
    after = {how: each[client][how] for how, each in found.items()}
    for what in ("p50", "p99", "worst"):
        values = {BEFORE: first} | after
        yield FigureRow(
            name=f"{client}: {what}",
            unit="ms",
            values={name: each[what] for name, each in values.items() if what in each},
        )
    added = {
        how: each["p99"] - found[how][client][BEFORE]["p99"]
        for how, each in after.items()
        if "p99" in each and "p99" in found[how][client][BEFORE]
    }
    yield FigureRow(name=f"{client}: added to p99", unit="ms", values=added)
    yield FigureRow(
        name=f"{client}: records from other zones",
        unit="kB",
        values={BEFORE: first["crossed"]} | {how: each["crossed"] for how, each in after.items()},
    )
