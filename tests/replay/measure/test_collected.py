"""The result of many tasks, merged, equals the result of a single task.

The size of a result does not depend on the number of connections.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest

from replay.measure.collected import TOP, Collected, collect, collect_part
from replay.measure.groups import SUMMED, Group
from replay.measure.limits import WORST
from replay.measure.racks import broker_rack, client_rack, racks
from replay.measure.report import About, report
from replay.measure.rows import RowFilter
from replay.measure.typed import codec
from replay.simulate.session_cache import CacheEvent, simulate
from tests.examples import few
from tests.replay.measure.synthetic import complete, connection_rows
from tests.replay.tables import CAPTURES, NO_FILTERS, rows_of, single, table

_COLLECTED = codec(Collected)
FETCH = {"api_key": 1, "api_version": 11}
ABOUT = About(version="1", policy="gateway", filters=NO_FILTERS, price_per_gb=2.0)


def parts(groups: Iterable[Group], count: int) -> Iterator[list[Group]]:
    """Distribute groups over tasks. All groups of one connection go to one task."""
    found: dict[int, list[Group]] = defaultdict(list)
    for number, (_, own) in enumerate(groupby(groups, key=lambda group: group["connection"])):
        found[number % count] += own
    yield from found.values()


def put_together(tasks: Iterable[Iterable[Group]]) -> Collected:
    """Merge the results of tasks as Spark does."""
    whole, events = Collected(), defaultdict(list)
    for task in tasks:
        for found in collect_part(task, 3):
            if isinstance(found, Collected):
                whole.merge(*_COLLECTED.read(_COLLECTED.write([found])))
                continue
            for broker, event in found:
                events[broker].append(event)
    whole.slots = {broker: simulate(sorted(own), in_order=True) for broker, own in events.items()}
    return whole


@pytest.mark.parametrize("count", few((1, 2, 7), 2))
def test_parts_add_up_to_the_same_report(count: int) -> None:
    named = racks([broker_rack("1=R1")], [client_rack("127.0.0.0/8=R2")])
    groups = list(single(rows_of(table(RowFilter(racks=named), *sorted(CAPTURES.glob("*.pcap"))))))
    about = replace(ABOUT, racks=named)

    assert report(put_together(parts(groups, count)), about) == report(collect(groups), about)


def groups_of(connections: int) -> Iterator[Group]:
    rows = (row for number in range(connections) for row in connection_rows(number))
    return single(map(complete, rows))


def test_what_is_collected_does_not_grow_with_the_connections() -> None:
    def size(connections: int) -> int:
        *events, found = collect_part(groups_of(connections), 100)
        assert isinstance(found, Collected)
        assert found.kafka_connections == found.whole.connections == connections
        assert all(len(some) < 200 for some in events if isinstance(some, list))
        return int(_COLLECTED.write([found]).nbytes)

    assert size(4000) < 1.1 * size(1000)


def test_those_with_the_most_bytes_and_the_longest_are_kept() -> None:
    found = collect(groups_of(1000))

    assert [one.rank for one in found.largest()] == sorted(one.rank for one in found.connections)[:TOP]
    assert found.largest()[0].fetches.actual_bytes == 2 * (1000 + 976 + 5000)
    assert WORST <= len(found.starving) < 3 * WORST
    made = report(found, ABOUT)
    longest = [row["seconds"] for row in made["limits"]["longest"]]
    assert longest == sorted(longest, reverse=True)
    assert longest[0] == 0.996


def test_a_connection_counts_once_for_each_client_that_it_had() -> None:
    def fetch(connection: str, client_id: str, reason: str) -> dict[str, Any]:
        named = {"client": "a:1", "broker": "b:2", "client_id": client_id, "software": "", **FETCH}
        own = {"connection": connection, "row": "exchange", "counted": True, "eligible": False}
        return {**dict.fromkeys(SUMMED, 0), "count": 1, "details": [], **own, **named, "reason": reason}

    found = collect([fetch("c", "x", "r"), fetch("c", "y", "r"), fetch("c", "x", "s"), fetch("d", "x", "r")])

    assert found.whole.connections == found.brokers["b:2"].connections == 2
    assert {key[0]: one.connections for key, one in found.clients.items()} == {"x": 2, "y": 1}


def test_events_keep_their_order_of_time() -> None:
    events = [CacheEvent(2, "close", "s", 0), CacheEvent(1, "make", "s", 5)]

    assert simulate(events) == simulate(sorted(events), in_order=True)
