"""Measures how long clients need to come back from a replica that is killed or stopped.

Clients read a long partition slowly, all of whose records were committed long ago. So only the way of the
fetches decides how long a client gets no record. At the end of a partition all readers wait, also those at
the leader: it commits nothing until it has given the replica up. So one client also reads new records.

A broker leads the partitions. Another one, the replica in the clients' zone, is killed (SIGKILL) or stopped
(SIGSTOP). At the same time these readers of each kind of client run:

- direct without a rack: it reads from the leader. This is the control.
- direct with its own client.rack: this is what the client needs by itself.
- through a gateway with ``--rack-reads client``, if it follows.
- through a gateway with ``--rack-clients``.
"""

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from statistics import median
from typing import Final

from tools.bench import zone_brokers
from tools.bench.figures import NAMED, NO_RACK, OWN_RACK, WRITTEN, FigureRow, FigureTable
from tools.bench.processes import Load
from tools.bench.stage import BenchStage
from tools.bench.zone_brokers import LEADER, NAMES, OWN, REPLICA, WRITES
from tools.bench.zone_reader import CLIENTS
from tools.kafka import Broker, Cluster

TOPIC, NEW = "long", "new"
"""The topic that is read slowly, and one that gets records all the time."""
NEW_RATE: Final = 50
"""New records per second."""
AT_END: Final = "librdkafka, new records"
"""The reader of new records."""
PACE: Final = 0.01
"""The pause of a reader after each record, in seconds."""
RECORDS: Final = 10_000
"""More records than a reader reads in a window."""
BATCH: Final = ("--bytes=100", "--set=batch.size=1500")
"""Small records in small batches, because a fetch gets at least a batch."""
SETTLE: Final = 1.0
WATCHED: Final = {"killed": 14.0, "stopped": 16.0}
"""How long the readers are watched, in seconds. A stopped replica goes on after that time."""
MORE_LIMIT: Final = 100.0
"""The limit of milliseconds that a client behind a gateway may need longer, if its replica is killed."""
STOPPED_LIMIT: Final = 3000.0
"""The limit of milliseconds without a record, if the replica is stopped."""
FOLLOWERS: Final = ("librdkafka", "kafka-python")
"""The clients that follow if the rack is written into their fetches."""

Gaps = Mapping[tuple[str, str], float]
"""The longest time without a record in one event, in ms, by client and route."""


def run(stage: BenchStage, brokers: Cluster, until: float) -> list[FigureTable]:
    """Kill the replica several times, and stop it several times.

    Args:
        stage: says how many times.
        brokers: the brokers.
        until: the time after which it fails no more, monotonic in seconds. It fails in each way once.
    """
    zone_brokers.create(brokers, TOPIC, [LEADER, REPLICA, 3])
    command = ["tools.bench.load", "fill", brokers.bootstrap, TOPIC, f"--records={RECORDS}", *BATCH]
    with Load(*command) as load:
        load.ready().result()
    zone_brokers.create(brokers, NEW, [LEADER, REPLICA, 3])
    found: dict[str, list[Gaps]] = {how: [] for how in WATCHED}
    times = stage.rounds(quick=1, usual=4, long=5)
    for number in range(times):
        if number and time.monotonic() > until:
            break
        for how, events in found.items():
            stage.report(f"zones: the replica is {how}, {number + 1} of {times} ...")
            events.append(measured(brokers, how))
    return [table(found)]


def measured(brokers: Cluster, how: str) -> dict[tuple[str, str], float]:
    """Let the replica fail once. Return the gaps.

    Each time there is a new gateway, because a gateway leaves the rack out for some time after a failure.
    """
    direct = brokers.bootstrap
    with ExitStack() as stack:
        writes = stack.enter_context(zone_brokers.gateway(brokers, *WRITES)).ready()
        names = stack.enter_context(zone_brokers.gateway(brokers, *NAMES, ",".join(CLIENTS))).ready()
        ways = {
            NO_RACK: (direct, ()),
            OWN_RACK: (direct, ("--rack", OWN)),
            WRITTEN: (writes.address, ()),
            NAMED: (names.address, ()),
        }
        produce = ("tools.bench.load", "produce", direct, NEW, f"--rate={NEW_RATE}", "--set=acks=1")
        stack.enter_context(Load(*produce)).ready()
        readers = {
            (client, route): stack.enter_context(_reader(client, address, *options))
            for client in (*CLIENTS, AT_END)
            for route, (address, options) in ways.items()
            if route != WRITTEN or client in (*FOLLOWERS, AT_END)
        }
        for reader in readers.values():
            reader.ready()
        zone_brokers.follows(writes, len(FOLLOWERS) + 1)
        zone_brokers.named(names, len(CLIENTS) + 1)
        time.sleep(SETTLE)
        with failed(brokers.broker(REPLICA), how) as began:
            time.sleep(WATCHED[how])
            ends = time.monotonic()
            found = {key: reader.finish()["records"] for key, reader in readers.items()}
    zone_brokers.in_sync(brokers, TOPIC, len(brokers.brokers))
    return {
        key: gap([came / 1e9 for came, _ in records], began, ends) * 1e3 for key, records in found.items()
    }


def _reader(client: str, address: str, *options: str) -> Load:
    if client == AT_END:
        return Load("tools.bench.zone_reader", "librdkafka", address, NEW, *options)
    return Load("tools.bench.zone_reader", client, address, TOPIC, f"--pace={PACE}", *options)


@contextmanager
def failed(broker: Broker, how: str) -> Iterator[float]:
    """Kill or stop a broker. Yield the time of this, monotonic in seconds. At the end the broker goes on."""
    pid = broker.pid
    began = time.monotonic()
    if how == "killed":
        broker.kill()
    else:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield began
    finally:
        if how == "killed":
            broker.start()
        else:
            os.kill(pid, signal.SIGCONT)


def gap(times: Sequence[float], began: float, ends: float) -> float:
    """Return the longest time without a record between two moments, in seconds.

    Args:
        times: when records came, in order.
        began: the first moment. A gap may begin with the last record before it.
        ends: the last moment, at which a gap ends.
    """
    before = [each for each in times if each <= began]
    inside = [each for each in times if began < each < ends]
    points = [*before[-1:], *inside, ends]
    return max((later - earlier for earlier, later in pairwise(points)), default=ends - began)


def table(found: Mapping[str, Sequence[Gaps]]) -> FigureTable:
    """Make the table of all events."""
    rows = [
        row
        for client in (*CLIENTS, AT_END)
        for how, events in found.items()
        for row in _rows(f"{client}, replica {how}", client, how, events)
    ]
    each = len(next(iter(found.values())))
    watched = ", ".join(f"{seconds:g} s ({how})" for how, seconds in WATCHED.items())
    notes = [
        f"The longest time in which a reader gets no record; {each} times each, all readers at once.",
        "no rack: direct, from the leader. client.rack: direct, with the client's own rack.",
        f"Readers are watched for {watched}; such a value means at least that long.",
        "new records: at the end of a partition. The leader commits none until it has given the replica up.",
    ]
    return FigureTable(
        part="zones", title="Zones, time back to the leader: a replica fails", rows=rows, notes=notes
    )


def _rows(label: str, client: str, how: str, events: Sequence[Gaps]) -> Iterator[FigureRow]:
    gaps = {route: [event[client, route] for event in events] for of, route in events[0] if of == client}
    yield FigureRow(name=f"{label}: median", unit="ms", values={name: median(g) for name, g in gaps.items()})
    yield FigureRow(
        name=f"{label}: worst",
        unit="ms",
        values={name: max(g) for name, g in gaps.items()},
        limit=STOPPED_LIMIT if how == "stopped" and client != AT_END else None,
    )
    if client != AT_END and how == "killed":
        yield FigureRow(
            name=f"{label}: more than the client by itself, median",
            unit="ms",
            values={
                name: median(own - alone for own, alone in zip(g, gaps[OWN_RACK], strict=True))
                for name, g in gaps.items()
                if name in (WRITTEN, NAMED)
            },
            limit=MORE_LIMIT,
        )
