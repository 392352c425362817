"""The sums of hosts are those that plain dicts would have, in any split, and need little memory."""

import gc
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from replay.capture.files.counts import joined_stretches
from replay.measure import hosts
from replay.measure.collected import Collected
from replay.measure.hosts import Hosts
from replay.measure.net import AddressSums, client_hash
from replay.measure.sums import FetchSums
from replay.measure.typed import Packed, codec
from replay.report.decision import CaptureApart, ClientKey
from tests.examples import examples

LOOPBACK: Final = "127.0.0.1", "[::1]"
LARGEST: Final = 2**63 - 1
HOSTS: Final = 20_000
MOST_BYTES_OF_A_HOST: Final = 400
PACKED: Final = Packed(Hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """A connection with counted fetches."""

    host: str
    rack: str = ""
    broker: str = "b1:9092"
    clients: frozenset[ClientKey] = frozenset()
    requests: int = 2
    listed: int = 3
    record_bytes: int = 0
    saved_bytes: int = 0
    fetch_bytes: int = 0
    first: int = 0
    lasted: int = 0

    def fetches(self) -> FetchSums:
        found = FetchSums()
        actual = found.sums["actual"]
        actual["requests"], actual["partitions_requested"] = self.requests, self.listed
        actual["record_bytes"], actual["request_bytes"] = self.record_bytes, self.fetch_bytes
        found.sums["eligible"]["request_bytes"] = max(self.saved_bytes, 0)
        found.sums["sessions"]["request_bytes"] = max(-self.saved_bytes, 0)
        return found

    def sums(self) -> AddressSums:
        return AddressSums(
            connections=1,
            requests=self.requests,
            partitions=-(-self.listed // self.requests),
            partitions_requested=self.listed,
            record_bytes=self.record_bytes,
            saved_bytes=self.saved_bytes,
            saved_between=Counter({(self.rack, self.broker): self.saved_bytes}),
            clients=set(map(client_hash, self.clients)) if self.saved_bytes > 0 else set(),
        )


TALKS: Final = st.builds(
    Talk,
    host=st.sampled_from(("10.0.0.1", "10.0.0.10", "[2001:db8::1]", *LOOPBACK)),
    rack=st.sampled_from(("", "a", "b")),
    broker=st.sampled_from(("b1:9092", "b2:9092", "b10:9092")),
    clients=st.frozensets(st.sampled_from([("x", "", 11), ("y", "", 11), ("y", "é", 12)])),
    requests=st.integers(1, 9),
    listed=st.integers(0, 99),
    record_bytes=st.integers(0, 10**15),
    saved_bytes=st.integers(-(10**15), 10**15) | st.just(0),
    fetch_bytes=st.integers(0, 10**15),
    first=st.integers(-5, 40),
    lasted=st.integers(0, 4),
)


def added(talks: Iterable[Talk]) -> Hosts:
    found = Hosts()
    for one in talks:
        times = one.first, one.first + one.lasted
        found.add_connection(one.host, one.rack, one.broker, one.clients, one.fetches(), times)
    return found


def merged(parts: Iterable[Sequence[Talk]]) -> Hosts:
    """Merge the hosts of parts as Spark does."""
    whole = Hosts()
    for found in PACKED.read(PACKED.write([added(part) for part in parts])):
        whole.merge(found)
    return whole


@given(st.lists(st.lists(TALKS, max_size=9), max_size=7))
def test_the_sums_are_those_of_plain_dicts(parts: list[list[Talk]]) -> None:
    expected: dict[str, AddressSums] = defaultdict(AddressSums)
    between: Counter[tuple[str, str]] = Counter()
    for one in (talk for part in parts for talk in part):
        expected[one.host].add(one.sums())
        between[one.rack, one.broker] += one.saved_bytes

    with patch.object(hosts, "MOST_ROWS", 3):
        found = merged(parts)

        assert found.addresses() == expected
    assert found.saved_between() == between
    assert set(found.names()) == expected.keys()
    assert found.on_loopback() == (bool(expected) and not expected.keys() - {*LOOPBACK})


def apart(talks: Iterable[Talk], stretches: list[tuple[int, int]]) -> list[CaptureApart]:
    """Return the captures that have no host in common, computed from all hosts as objects."""
    hosts: dict[tuple[str, str], list[Talk]] = defaultdict(list)
    for one in talks:
        hosts[one.host, one.broker if one.host in LOOPBACK else ""].append(one)
    seen = {
        key: [min(one.first for one in own), max(one.first + one.lasted for one in own)]
        for key, own in hosts.items()
    }
    found = []
    for begin, end in joined_stretches([*map(list, stretches), *seen.values()], 0):
        inside = {key for key, (first, _) in seen.items() if begin <= first <= end}
        captured = sum(last - first for first, last in stretches if begin <= first <= end)
        capture = CaptureApart(
            seconds=captured / 1e9,
            fetch_bytes=sum(one.fetch_bytes for key in inside for one in hosts[key]),
            saved_bytes=sum(one.saved_bytes for key in inside for one in hosts[key]),
            addresses={host for host, _ in inside if host in LOOPBACK},
        )
        found += [capture] if inside else []
    return found


@given(st.lists(TALKS, max_size=9), st.sets(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=4))
def test_captures_apart_are_those_of_all_hosts_as_objects(
    talks: list[Talk], files: set[tuple[int, int]]
) -> None:
    stretches = [(5 * first, 5 * first + lasted) for first, lasted in files]

    assert Collected(hosts=added(talks)).apart(stretches) == apart(talks, stretches)


@examples(30)
@given(st.lists(st.lists(TALKS, max_size=3).map(added), max_size=5), st.integers(0, 5), st.integers(0, 5))
def test_a_column_of_hosts_is_read_whole_and_in_a_slice(values: list[Hosts], begin: int, end: int) -> None:
    column = codec(Hosts)
    array = column.write(values)
    array.validate(full=True)

    assert array.type == column.type
    tables = [one.table() for one in values]
    assert [one.table() for one in column.read(array)] == tables
    assert [one.table() for one in column.read(array[begin : max(begin, end)])] == tables[begin:end]


def test_a_sum_that_is_too_large_becomes_the_largest_number() -> None:
    large = Talk(host="a", saved_bytes=2**62 + 1, fetch_bytes=2**62 - 1)
    found = merged([[large, Talk(host="b", saved_bytes=7)], [large], [Talk(host="b", saved_bytes=-2)]])

    rows: list[dict[str, Any]] = found.table().to_pylist()
    assert [row["saved_bytes"] for row in rows] == [LARGEST, 5]
    assert [row["fetch_bytes"] for row in rows] == [2**63 - 2, 0]
    assert found.saved_between() == {("", "b1:9092"): LARGEST}


def held() -> int:
    """Return the memory of Python objects and of Arrow in bytes."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0] + int(pa.total_allocated_bytes())


def test_many_hosts_need_little_memory_and_the_first_part_is_not_copied() -> None:
    names = [f"10.0.{number >> 8}.{number & 255}" for number in range(HOSTS)]
    talks = [Talk(host=host, clients=frozenset({("x", "", 11)}), saved_bytes=5) for host in names]
    written = PACKED.write([added(talks[place::4]) for place in range(4)])

    tracemalloc.start()
    try:
        before = held()
        first, *others = PACKED.read(written)
        whole = Hosts()
        whole.merge(first)
        assert held() - before < 20 * HOSTS
        for other in others:
            whole.merge(other)
        table = whole.table()
        del first, others, other
        assert held() - before < MOST_BYTES_OF_A_HOST * HOSTS
    finally:
        tracemalloc.stop()
    assert table.num_rows == HOSTS
    assert whole.saved_between() == {("", "b1:9092"): 5 * HOSTS}
