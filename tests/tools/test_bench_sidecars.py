"""Given fixed measurements, the benchmark of gateways beside members prints the correct table.

Its counting proxy forwards all bytes, and counts the requests.
"""

import socket
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.tools.test_work_log import entries
from tools.bench import sidecars
from tools.bench.counted import CountingProxy, Passed, RequestCounter
from tools.bench.figures import ONE_EACH, ONE_FOR_ALL, PLAIN_GROUP, FigureRow
from tools.bench.processes import HOST
from tools.bench.sidecars import GroupWindow, Kill
from tools.kafka.ports import free_ports
from tools.work_log import COMMITTED, PARTITION_BIT, SUBSCRIBED

SECOND = 1_000_000_000


def request(key: int, size: int) -> bytes:
    return struct.pack(">ih", size, key) + bytes(size - 2)


REQUESTS = request(1, 40) + request(8, 2) + request(1, 300)


def window(rate: float, *, again: int | None = None, disordered: int = 0) -> GroupWindow:
    return GroupWindow(
        rate=rate,
        commits=8.0,
        reads=1.0,
        requests=200.0,
        bytes=3e6,
        cpu=20.0,
        resident=64.0,
        joined=0.5,
        disordered=disordered,
        needless=0,
        kill=None if again is None else Kill(again=again, lost=0, still=6.5),
    )


FOUND: Mapping[int, Mapping[str, Sequence[GroupWindow]]] = {
    1: {PLAIN_GROUP: [window(900), window(800)], ONE_FOR_ALL: [window(880), window(780)]},
    2: {
        PLAIN_GROUP: [window(1800, again=100), window(1600, again=0)],
        ONE_FOR_ALL: [window(1700, again=80), window(1500, again=90)],
        ONE_EACH: [window(1700, again=70, disordered=1), window(1200, again=300)],
    },
}


def rows() -> dict[str, FigureRow]:
    return {row.name: row for row in sidecars.table(FOUND, seconds=10, rounds=2).rows}


def test_rates_are_compared_with_one_gateway_within_a_round() -> None:
    found = rows()
    assert found["1 member, processed"].values == {PLAIN_GROUP: 850, ONE_FOR_ALL: 830}
    assert found["2 members, processed"].values == {PLAIN_GROUP: 1700, ONE_FOR_ALL: 1600, ONE_EACH: 1450}
    times = found["2 members, beside one gateway"]
    assert (times.values, times.met) == ({ONE_EACH: 0.9}, False)
    assert "1 member, beside one gateway" not in found
    assert found["2 members, from the broker"].values[ONE_EACH] == 3.0


def test_of_orders_and_kills_the_worst_counts() -> None:
    found = rows()
    order = found["2 members, out of order by key"]
    assert (order.values[ONE_EACH], order.met) == (1, False)
    again = found["2 members, a kill: seen again"]
    assert again.values == {PLAIN_GROUP: 100, ONE_FOR_ALL: 90, ONE_EACH: 300}
    assert found["2 members, a kill: lost"].met is True
    assert not [name for name in found if name.startswith("1 member, a kill")]


def test_a_killed_members_keys_are_those_of_the_window(tmp_path: Path) -> None:
    """Key 3 was the killed member's before the window. Now it is another member's."""
    killed = entries(tmp_path, (0, 3, 1, 2), (1, 5, 11 * SECOND, 12 * SECOND), (5, SUBSCRIBED, 1, 1))
    other = entries(tmp_path, (2, 3, 21 * SECOND, 22 * SECOND), (1, 5, 26 * SECOND, 27 * SECOND))
    assert sidecars._kill([other, killed], 1, (10 * SECOND, 20 * SECOND), 4) == Kill(
        again=1, lost=1, still=6.0
    )


def test_what_was_not_committed_may_come_again(tmp_path: Path) -> None:
    """Of partition 1, offsets 6 and 7 come again. Up to 7 was committed by then, up to 8 later."""
    partition = 1 << PARTITION_BIT
    first = entries(
        tmp_path,
        (partition + 5, 3, 1, 2),
        (partition + 6, 4, 2, 3),
        (partition + 7, 5, 3, 4),
        (partition + 7, COMMITTED, 5, 5),
        ((2 << PARTITION_BIT) + 9, COMMITTED, 6, 6),
        (partition + 8, COMMITTED, 30, 30),
    )
    assert sidecars._needless([first]) == 0
    again = entries(tmp_path, (partition + 6, 4, 20, 21), (partition + 7, 5, 21, 22))
    assert sidecars._needless([again, first]) == 1
    assert sidecars._needless([again, first[:3]]) == 0


def test_a_join_begins_with_the_subscribe(tmp_path: Path) -> None:
    log = entries(tmp_path, (0, SUBSCRIBED, SECOND, SECOND), (7, 1, 3 * SECOND, 4 * SECOND))
    assert sidecars._joined(log) == 2.0


@pytest.mark.parametrize("step", [1, 5, 7, 44, 1000])
def test_requests_are_counted_in_whatever_pieces_they_come(step: int) -> None:
    requests = Counter[int]()
    counter = RequestCounter(requests)
    for at in range(0, len(REQUESTS), step):
        counter.feed(REQUESTS[at : at + step])
    assert requests == {1: 2, 8: 1}


def test_the_proxy_forwards_and_counts() -> None:
    with socket.create_server((HOST, 0)) as broker:
        broker.settimeout(10)
        listen = f"{HOST}:{free_ports()}"
        with CountingProxy(listen, f"{HOST}:{broker.getsockname()[1]}") as proxy:
            proxy.ready()
            port = int(listen.rpartition(":")[2])
            with socket.create_connection((HOST, port), timeout=30) as client:
                client.sendall(REQUESTS)
                far, _ = broker.accept()
                with far:
                    far.settimeout(10)
                    assert far.recv(len(REQUESTS), socket.MSG_WAITALL) == REQUESTS
                    before = proxy.passed()
                    assert before == Passed(Counter({1: 2, 8: 1}), 0)
                    far.sendall(bytes(1000))
                    assert len(client.recv(1000, socket.MSG_WAITALL)) == 1000
                    assert proxy.passed() - before == Passed(Counter(), 1000)
