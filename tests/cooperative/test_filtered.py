"""The records of a response for each lane, and what is skipped after it."""

import pytest
from aiokafka.record.legacy_records import (  # type: ignore[import-untyped]  # it has no types
    LegacyRecordBatchBuilder,
)
from hypothesis import given
from hypothesis import strategies as st

from proxy.cooperative.batches import BatchError, read_header
from proxy.cooperative.filtered import Filtered, LaneRecords, split_records
from proxy.cooperative.key_hash import SPACE, murmur2
from proxy.cooperative.ranges import Split
from proxy.cooperative.scan import Scan
from tests.cooperative.batch import Record, batch, read

TOP = SPACE - 1
MINE, OTHER = b"21", b"foobar"
LANE = Split([((murmur2(MINE), murmur2(MINE)),)])
ALL = [0] * len(LANE.starts)


def of(*keys: bytes, base: int) -> bytes:
    return batch([Record(base + place, key) for place, key in enumerate(keys)])


def shares(records: bytes) -> tuple[LaneRecords, Filtered]:
    found = split_records(records, LANE, ALL)
    return found.lanes[0], found


def test_batches_without_a_record_for_a_lane_are_dropped() -> None:
    first, second, third = of(OTHER, OTHER, base=10), of(MINE, base=12), of(OTHER, base=13)
    lane, found = shares(first + second + third)
    assert lane.batches == [second]
    assert (lane.last_kept, found.end, found.leader_epoch) == (12, 14, 7)


def test_a_batch_that_is_cut_goes_to_nobody() -> None:
    """Case 12, but for what the specification would let through: records before the cut, to kafka-go."""
    first, second = of(MINE, base=10), of(OTHER, MINE, base=11)
    for cut in range(1, len(second)):
        lane, found = shares(first + second[:cut])
        assert (lane.batches, found.end, found.alone) == ([first], 11, b"")


def test_a_batch_that_is_cut_and_alone_shows_its_header() -> None:
    """Case 12: by it a client sees that its limit is too small. None of its records goes."""
    data = of(OTHER, MINE, base=11)
    for cut in range(1, len(data)):
        lane, found = shares(data[:cut])
        assert (lane.batches, found.end) == ([], -1)
        assert found.alone == data[: min(cut, 61)]


def test_what_can_not_be_split_is_told_with_its_offset() -> None:
    """Cases 13 and 15. Nothing of the response passes, so the client's offset does not either."""
    damaged = bytearray(of(OTHER, base=4711))
    damaged[-1] ^= 1
    with pytest.raises(BatchError, match=r"^the batch at offset 4711: its CRC is wrong$"):
        shares(of(MINE, base=1) + damaged)
    damaged[16] = 1
    with pytest.raises(BatchError, match=r"^the batch at offset 4711: magic 1 is older than Kafka 0.11$"):
        shares(of(MINE, base=1) + damaged)


@pytest.mark.parametrize("value", [b"", b"v" * 100], ids=["shorter than a header", "longer"])
@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_message_set_is_refused(magic: int, value: bytes) -> None:
    """Case 15: also where all of it is shorter than the header of a batch, and where it is cut."""
    builder = LegacyRecordBatchBuilder(magic, 0, 1 << 20)
    builder.append(0, 1_700_000_000_000, OTHER, value)
    old = bytes(builder.build())
    told = f"^the batch at offset 0: magic {magic} is older than Kafka 0.11$"
    for cut in range(17, len(old) + 1):
        with pytest.raises(BatchError, match=told):
            shares(old[:cut])
    assert shares(old[:16])[1].alone == old[:16]  # not yet the magic, nor anything of a record


def test_transactions_keep_their_markers_and_producers() -> None:
    """Case 9: committed and aborted ones interleaved. Clients tell them apart by what is kept here."""
    marker = bytearray(of(b"\0\0\0\1", base=14))
    marker[22] |= 0x30
    data = [
        batch([Record(10, MINE), Record(11, OTHER)], transactional=1, producer=(1, 0, 0)),
        batch([Record(12, OTHER), Record(13, MINE)], transactional=1, producer=(2, 0, 0)),
        bytes(marker),
        batch([Record(15, OTHER)], transactional=1, producer=(1, 0, 2)),
    ]
    lane, found = shares(b"".join(data))
    first, second, control = lane.batches
    assert [record.offset for record in read(first + second)] == [10, 13]
    assert (first[21:57], second[21:57]) == (data[0][21:57], data[1][21:57])
    assert control == marker
    assert (lane.last_kept, found.end) == (13, 16)  # the marker at 14 is no record


@pytest.mark.parametrize(
    ("batches", "first", "last"),
    [
        ([of(OTHER, OTHER, base=10)], 10, 11),
        ([of(MINE, OTHER, base=10)], None, None),  # the batch itself reaches to the end
        ([of(MINE, base=10), of(OTHER, base=11), of(OTHER, OTHER, base=12)], 11, 13),
        ([of(OTHER, base=10), of(MINE, base=11)], None, None),
        ([], None, None),
    ],
)
def test_a_placeholder_stands_for_what_was_dropped_last(
    batches: list[bytes], first: int | None, last: int | None
) -> None:
    lane, found = shares(b"".join(batches))
    scan = Scan()
    scan.learn(10, found, lane)
    made = scan.placeholder(max(10, lane.last_kept + 1))
    if first is None:
        assert made == b""
    else:
        header = read_header(made, 0)
        assert (header.base_offset, header.last_offset, header.records) == (first, last, 1)
        assert read(made) == []


def test_what_holds_nothing_is_skipped() -> None:
    scan = Scan()
    lane, found = shares(of(OTHER, OTHER, base=10))
    scan.learn(10, found, lane)
    assert [scan.after(offset) for offset in (9, 10, 11, 12)] == [9, 12, 12, 12]
    lane, found = shares(of(OTHER, base=12) + of(OTHER, base=13))  # it asked for 10 again
    scan.learn(10, found, lane)
    assert [scan.after(offset) for offset in (9, 10, 13, 14)] == [9, 14, 14, 14]
    lane, found = shares(of(MINE, OTHER, base=14))
    scan.learn(10, found, lane)
    assert [scan.after(offset) for offset in (10, 14, 15, 16)] == [10, 14, 16, 16]
    scan.forget()
    assert scan.after(15) == 15


def test_what_holds_nothing_before_a_record_does_not_reach_behind_it() -> None:
    """A client that goes back: what was learned behind offset 3 says nothing about offset 3 itself."""
    scan = Scan()
    lane, found = shares(of(MINE, base=3) + of(OTHER, base=4))
    scan.learn(3, found, lane)
    lane, found = shares(of(MINE, base=1) + of(OTHER, base=2))
    scan.learn(1, found, lane)
    assert [scan.after(offset) for offset in (2, 3)] == [3, 3]


def test_the_leader_epoch_is_that_of_the_last_batch() -> None:
    scan = Scan()
    early = batch([Record(1, OTHER)], leader_epoch=5)
    late = batch([Record(2, OTHER)], leader_epoch=6)
    lane, found = shares(early + late)
    scan.learn(1, found, lane)
    lane, found = shares(early)
    scan.learn(1, found, lane)
    assert (scan.after(1), scan.leader_epoch) == (3, 6)


@given(
    keys=st.lists(st.sampled_from([MINE, OTHER]), min_size=1, max_size=40),
    sizes=st.lists(st.integers(1, 5), min_size=40, max_size=40),
    asked=st.lists(st.integers(0, 45), max_size=12),
    most=st.integers(1, 4),
)
def test_no_record_of_a_lane_is_ever_skipped(
    keys: list[bytes], sizes: list[int], asked: list[int], most: int
) -> None:
    """A client that asks for any offsets gets the next records of its lane, whatever was learned before."""
    log, at = [], 0
    for size in sizes:
        if part := keys[at : at + size]:
            log.append(of(*part, base=at))
            at += size
    scan = Scan()
    for offset in asked:
        from_offset = scan.after(offset)
        assert MINE not in keys[offset:from_offset]
        fetched = [data for data in log if read_header(data, 0).last_offset >= from_offset][:most]
        found = split_records(b"".join(fetched), LANE, [offset] * len(LANE.starts))
        scan.learn(offset, found, found.lanes[0])
        got = [record.offset for record in read(b"".join(found.lanes[0].batches))]
        end = max(found.end, from_offset)
        assert got == [place for place in range(offset, min(end, len(keys))) if keys[place] == MINE]
