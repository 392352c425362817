"""Records are counted by the hash of their keys. The counts can be added in any order.

The number of records of each gateway lane is a sum of these counts.
"""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.features.cooperative.key_hash import SPACE
from proxy.features.cooperative.plan import Joined, cut, plan
from replay.measure.options import MEMBERS
from replay.measure.spread import MOST_KEYS, Delivered, KeyCounts, spread_row, stretches
from replay.measure.typed import codec
from tests.examples import examples

HASHES = st.integers(0, SPACE - 1)
_DELIVERED = codec(Delivered)
PIECES = st.lists(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 4), HASHES, st.booleans(), st.integers(1, 99)),
        max_size=12,
    ),
    min_size=1,
    max_size=6,
)


def delivered(records: list[tuple[str, int, int, bool, int]], members: int) -> Delivered:
    """Count the records as `measure` does, for a group of `members` members.

    Each record has a topic, a partition, a hash, whether the hash is that of a key, and its size in bytes.
    """
    found, split = Delivered(), stretches(members)
    for topic, partition, hashed, has_key, size in records:
        counts = found.topic(("topic", topic))
        counts.partitions.add(partition)
        for by_step, count in ((counts.records, 1), (counts.sizes, size)):
            by_step.setdefault(partition, [0] * len(split.starts))[split.step_of(hashed)] += count
        if has_key:
            counts.keys.add(partition, hashed, 1, size)
    return found


def test_each_lane_that_may_be_cut_is_made_of_whole_stretches() -> None:
    for members in MEMBERS:
        starts = set(stretches(members).starts)
        for partitions in range(1, members + 1):
            for sharing in (members // partitions, -(-members // partitions)):
                assert starts >= {low for low, _ in cut(sharing)}
        assert len(starts) < 200


@given(pieces=PIECES, order=st.randoms(use_true_random=False), members=st.sampled_from(MEMBERS))
@examples(100)
def test_all_records_are_some_members_and_the_order_makes_no_difference(
    pieces: list[list[tuple[str, int, int, bool, int]]], order: Random, members: int
) -> None:
    records = [record for piece in pieces for record in piece]
    told = spread_row(members, delivered(records, members), group="g")
    order.shuffle(pieces)
    merged = Delivered()
    for piece in pieces:
        merged.merge(*_DELIVERED.read(_DELIVERED.write([delivered(piece, members)])))

    assert spread_row(members, merged, group="g") == told
    assert (told["records"], told["bytes"]) == (len(records), sum(record[-1] for record in records))
    assert told["records_without_key"] == sum(not has_key for *_, has_key, _ in records)
    assert len(told["spread"]) == (members if records else 0)
    assert sum(share["records"] for share in told["spread"]) == pytest.approx(1 if records else 0)
    assert sum(share["bytes"] for share in told["spread"]) == pytest.approx(1 if records else 0)
    keys = Counter((topic, partition, hashed) for topic, partition, hashed, has_key, _ in records if has_key)
    if keys and told["hottest_key"] is not None:
        assert told["hottest_key"]["records"] == max(keys.values()) / len(records)
    assert (told["hottest_key"] is None) == (not keys)


@given(
    records=st.lists(st.tuples(st.just("a"), st.integers(0, 9), HASHES, st.just(True), st.just(1))),
    members=st.sampled_from(MEMBERS),
)
@examples(100)
def test_a_member_has_the_records_of_its_lanes(
    records: list[tuple[str, int, int, bool, int]], members: int
) -> None:
    """The share of a member equals the records in its lanes, divided by all records.

    The records are counted one by one, with the lanes from the gateway's own plan.
    """
    partitions = {partition for _, partition, *_ in records}
    told = spread_row(members, delivered(records, members), group="g")
    if not 0 < len(partitions) < members:
        return
    names = [b"%02d" % number for number in range(members)]
    lanes = plan(
        [Joined(name, frozenset({b"a"})) for name in names],
        {names[0]: [(b"a", partition) for partition in partitions]},
        shares=True,
    )

    for name, share in zip(names, told["spread"], strict=True):
        own = sum(
            low <= hashed <= high
            for _, partition, hashed, *_ in records
            for low, high in lanes[name].get((b"a", partition), ())
        )
        assert share["records"] == own / len(records)


@pytest.mark.parametrize("seed", range(5))
def test_many_keys_take_little_memory_and_the_hottest_is_still_known(seed: int) -> None:
    chance = Random(seed)
    keys = [(chance.randrange(3), chance.randrange(SPACE)) for _ in range(5 * MOST_KEYS)]
    hottest = keys[0]
    counts = [(*key, 1, 10) for key in keys] + [(*hottest, 9 * MOST_KEYS, 1)]
    alone = KeyCounts()
    for one in counts:
        alone.add(*one)
    chance.shuffle(counts)
    parts = [KeyCounts() for _ in range(7)]
    for place, one in enumerate(counts):
        parts[place % 7].add(*one)
    merged = KeyCounts()
    for part in parts:
        merged.merge(part)

    assert merged.counts == alone.counts
    assert merged.shift == alone.shift > 0
    assert len(merged.counts) <= MOST_KEYS
    assert sum(records for records, _ in merged.counts.values()) == 14 * MOST_KEYS
    most = max(records for records, _ in merged.counts.values())
    assert 9 * MOST_KEYS < most < 9 * MOST_KEYS + MOST_KEYS // 16
    assert repr(merged).startswith("<KeyCounts keys=")


def test_where_keys_are_too_many_the_report_says_so() -> None:
    chance = Random(1)
    records = [("a", 0, chance.randrange(SPACE), True, 10) for _ in range(2 * MOST_KEYS)]
    told = spread_row(2, delivered(records, 2), group="g")

    assert told["hottest_key"] is not None
    assert not told["hottest_key"]["exact"]
    assert told["hottest_key"]["records"] < 0.01


def test_a_key_in_two_partitions_is_two() -> None:
    records = [("a", partition, 77, True, 10) for partition in (0, 0, 1)]
    told = spread_row(2, delivered(records, 2), group="g")

    assert told["hottest_key"] == {"records": 2 / 3, "bytes": 2 / 3, "exact": True}


def test_members_that_share_no_partition_of_a_topic_share_those_of_another() -> None:
    records = [("a", partition, 1 << 30, True, 1) for partition in range(4)] + [("b", 0, 3 << 30, True, 1)]
    told = spread_row(4, delivered(records, 4), group="g")

    assert [share["records"] for share in told["spread"]] == [0.2, 0.2, 0.2, 0.4]
    assert (told["partitions"], told["shared_partitions"]) == (5, 1)
