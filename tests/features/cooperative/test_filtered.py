"""Filtered responses: the records that each lane (the key ranges of one member) gets, and skipped offsets."""

import pytest
from aiokafka.record.legacy_records import (  # type: ignore[import-untyped]  # it has no types
    LegacyRecordBatchBuilder,
)
from hypothesis import given
from hypothesis import strategies as st

from proxy.features.cooperative.batches import HEADER_BYTES, BatchError, read_header
from proxy.features.cooperative.filtered import Filtered, LaneRecords, Scan, split_records
from proxy.features.cooperative.key_hash import SPACE, murmur2
from proxy.features.cooperative.ranges import Split
from tests.features.cooperative.batch import Record, batch, crc, read

TOP = SPACE - 1
MINE, OTHER = b"21", b"foobar"
LANE = Split([((murmur2(MINE), murmur2(MINE)),)])
ALL = [0] * len(LANE.starts)


def of(*keys: bytes, base: int) -> bytes:
    return batch([Record(base + place, key) for place, key in enumerate(keys)])


def shares(records: bytes) -> tuple[LaneRecords, Filtered]:
    found = split_records(records, LANE, ALL, [0])
    return found.lanes[0], found


def test_batches_without_a_record_for_a_lane_are_dropped() -> None:
    first, second, third = of(OTHER, OTHER, base=10), of(MINE, base=12), of(OTHER, base=13)
    lane, found = shares(first + second + third)
    assert lane.batches == [second]
    assert (lane.last_kept, found.end, found.leader_epoch) == (12, 14, 7)


def test_a_batch_that_is_cut_goes_to_nobody() -> None:
    """Case C12: no member gets an incomplete batch at the end of a response.

    Here the gateway differs from the specification, because kafka-go would read the records before the cut.
    """
    first, second = of(MINE, base=10), of(OTHER, MINE, base=11)
    for cut in range(1, len(second)):
        lane, found = shares(first + second[:cut])
        assert (lane.batches, found.end, found.alone) == ([first], 11, b"")


def test_a_batch_that_is_cut_and_alone_shows_its_header() -> None:
    """Case C12: if a response has only an incomplete batch, the client gets only the header of the batch.

    So the client learns that its limit is too small, and gets no record.
    """
    data = of(OTHER, MINE, base=11)
    for cut in range(1, len(data)):
        lane, found = shares(data[:cut])
        assert (lane.batches, found.end) == ([], -1)
        assert found.alone == data[: min(cut, 61)]


def test_what_can_not_be_split_is_told_with_its_offset() -> None:
    """Cases C13 and C15: if a batch can't be split, the error message has the offset of the batch.

    No part of the response is sent, so the client's offset does not change.
    """
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
    """Case C15: message sets of the old formats are refused, also if they are shorter than a batch header."""
    builder = LegacyRecordBatchBuilder(magic, 0, 1 << 20)
    builder.append(0, 1_700_000_000_000, OTHER, value)
    old = bytes(builder.build())
    told = f"^the batch at offset 0: magic {magic} is older than Kafka 0.11$"
    for cut in range(17, len(old) + 1):
        with pytest.raises(BatchError, match=told):
            shares(old[:cut])
    assert shares(old[:16])[1].alone == old[:16]  # not yet the magic, nor anything of a record


def test_transactions_keep_their_markers_and_producers() -> None:
    """Case C9: the markers and producer fields of interleaved transactions are kept.

    With these fields, clients distinguish committed and aborted records.
    """
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
    scan = scan.learned(10, found, lane)
    made = scan.placeholder(max(10, lane.end))
    if first is None:
        assert made == b""
    else:
        header = read_header(made, 0)
        assert (header.base_offset, header.last_offset, header.records) == (first, last, 1)
        assert read(made) == []


def marker(offset: int) -> bytes:
    """Build a transaction marker: a batch that commits or aborts a transaction."""
    made = bytearray(of(b"\0\0\0\1", base=offset))
    made[21:23] = (0x30).to_bytes(2)
    made[17:21] = crc(bytes(made))
    return bytes(made)


def emptied(first: int, last: int) -> bytes:
    """Build an empty batch.

    Compaction leaves such a batch if all records of a producer's last batch are removed.
    """
    made = bytearray(batch([Record(first, OTHER)], last=last)[:HEADER_BYTES])
    made[8:12], made[57:61] = (HEADER_BYTES - 12).to_bytes(4), bytes(4)
    made[17:21] = crc(bytes(made))
    return bytes(made)


def test_no_placeholder_ends_where_a_marker_does() -> None:
    """No placeholder (a batch in place of dropped records) ends at the offset of a transaction marker.

    Sarama skips one offset for each batch without new records. So it would miss the record after the marker.
    """
    scan = Scan()
    lane, found = shares(of(OTHER, OTHER, base=8))
    scan = scan.learned(8, found, lane)
    lane, found = shares(marker(10))
    scan = scan.learned(10, found, lane)
    assert (lane.batches, lane.end) == ([marker(10)], 11)
    assert scan.placeholder(max(10, lane.end)) == b""
    assert [scan.after(offset) for offset in (8, 10)] == [10, 10]


def test_a_client_that_asks_again_gets_a_marker_again() -> None:
    """A client that repeats a fetch gets the same transaction marker again, as from a broker.

    kafka-go closes a connection whose response is late, and repeats the request. It counts markers as
    records, so it needs the marker. Before the fix, the second response had no marker.
    """
    scan, log = Scan(), of(OTHER, OTHER, base=8) + marker(10) + of(OTHER, base=11)
    for _ in range(2):
        assert scan.after(8) == 8
        lane, found = shares(log)
        scan = scan.learned(8, found, lane)
        assert lane.batches == [marker(10)]
    assert [scan.after(offset) for offset in (8, 10, 11, 12)] == [8, 10, 12, 12]


@pytest.mark.parametrize("early", [marker(10), emptied(6, 10)], ids=["marker", "emptied"])
def test_no_batch_ends_before_the_fetch_offset(early: bytes) -> None:
    """A response has no batch that ends before the fetch offset. A broker does not send such batches either.

    Such batches could come from another member's fetch that began at a lower offset. For each of them, Sarama
    would skip an offset. KafkaJS skips an offset for a response with only such batches.
    """
    data = of(OTHER, MINE, base=11)
    found = split_records(early + data, LANE, [12] * len(LANE.starts), [12])
    assert [record.offset for record in read(b"".join(found.lanes[0].batches))] == [12]
    assert len(found.lanes[0].batches) == 1
    for offset in (9, 10):
        found = split_records(early + data, LANE, [offset] * len(LANE.starts), [offset])
        assert found.lanes[0].batches[0] == early


@given(
    parts=st.lists(
        st.one_of(
            st.lists(st.sampled_from([MINE, OTHER]), min_size=1, max_size=4),
            st.sampled_from(["marker", "emptied", "removed"]),
        ),
        min_size=1,
        max_size=30,
    ),
    most=st.integers(1, 6),
    before=st.integers(0, 8),
)
def test_sarama_reads_each_record_of_its_lane(parts: list[list[bytes] | str], most: int, before: int) -> None:
    """Sarama gets every record of its key ranges.

    The test simulates Sarama's `partitionConsumer.parseRecords`.

    Sarama continues after the last new record or marker, and skips one more offset for each batch without a
    new record.
    """
    log, mine, at = [], [], 0
    for part in parts:
        if isinstance(part, list):
            log.append(of(*part, base=at))
            mine += [at + place for place, key in enumerate(part) if key == MINE]
            at += len(part)
        elif part == "marker":
            log.append(marker(at))
            at += 1
        elif part == "emptied":
            log.append(emptied(at, at + 2))
            at += 3
        else:
            log.append(batch([Record(at, OTHER)], last=at + 2))
            at += 3
    scan, offset, got = Scan(), 0, list[int]()
    while offset < at:
        began = offset
        wanted = scan.after(offset)
        # What another member's fetch brought may begin before that.
        first = sum(read_header(each, 0).last_offset < wanted for each in log)
        fetched = log[max(first - before, 0) : first + most]
        found = split_records(b"".join(fetched), LANE, [offset] * len(LANE.starts), [offset])
        scan = scan.learned(offset, found, found.lanes[0])
        batches = [*found.lanes[0].batches, scan.placeholder(max(offset, found.lanes[0].end))]
        for each in filter(None, batches):
            header = read_header(each, 0)
            new = [record.offset for record in read(each) if record.offset >= offset]
            got += new
            last = header.last_offset if header.attributes & 0x20 else new[-1] if new else -1
            offset = last + 1 if last >= offset else offset + 1
        assert offset > began or scan.after(offset) > wanted, "it gets no further"
        if not batches[-1] and scan.after(offset) >= at:
            break
    assert got == mine


def test_what_holds_nothing_is_skipped() -> None:
    scan = Scan()
    lane, found = shares(of(OTHER, OTHER, base=10))
    scan = scan.learned(10, found, lane)
    assert [scan.after(offset) for offset in (9, 10, 11, 12)] == [9, 12, 12, 12]
    lane, found = shares(of(OTHER, base=12) + of(OTHER, base=13))  # it asked for 10 again
    scan = scan.learned(10, found, lane)
    assert [scan.after(offset) for offset in (9, 10, 13, 14)] == [9, 14, 14, 14]
    lane, found = shares(of(MINE, OTHER, base=14))
    scan = scan.learned(10, found, lane)
    assert [scan.after(offset) for offset in (10, 14, 15, 16)] == [10, 14, 16, 16]


def test_what_holds_nothing_before_a_record_does_not_reach_behind_it() -> None:
    """After a client has moved back, only offsets without a record for this client are skipped.

    In this test offset 2 is skipped. Offset 3 has a record for the client, so it is not skipped.
    """
    scan = Scan()
    lane, found = shares(of(MINE, base=3) + of(OTHER, base=4))
    scan = scan.learned(3, found, lane)
    lane, found = shares(of(MINE, base=1) + of(OTHER, base=2))
    scan = scan.learned(1, found, lane)
    assert [scan.after(offset) for offset in (2, 3)] == [3, 3]


def test_the_leader_epoch_is_that_of_the_last_batch() -> None:
    scan = Scan()
    early = batch([Record(1, OTHER)], leader_epoch=5)
    late = batch([Record(2, OTHER)], leader_epoch=6)
    lane, found = shares(early + late)
    scan = scan.learned(1, found, lane)
    lane, found = shares(early)
    scan = scan.learned(1, found, lane)
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
    """No record of a member is skipped, whatever offsets it fetches.

    A client gets the next records of its key ranges, whatever it has fetched before.
    """
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
        found = split_records(b"".join(fetched), LANE, [offset] * len(LANE.starts), [offset])
        scan = scan.learned(offset, found, found.lanes[0])
        got = [record.offset for record in read(b"".join(found.lanes[0].batches))]
        end = max(found.end, from_offset)
        assert got == [place for place in range(offset, min(end, len(keys))) if keys[place] == MINE]
