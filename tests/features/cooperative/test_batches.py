"""Splits of batches by key ranges. Results are compared with fixed bytes and read by client libraries."""

import random
from contextlib import suppress

import lz4.frame
import pytest
import zstandard
from aiokafka.record.memory_records import MemoryRecords  # type: ignore[import-untyped]  # it has no types
from hypothesis import given
from hypothesis import strategies as st

from proxy.features.cooperative.batches import BatchError, placeholder, read_header, split_batch
from proxy.features.cooperative.codecs import GZIP, LZ4, MOST_BYTES, SNAPPY, ZSTD
from proxy.features.cooperative.key_hash import SPACE, murmur2, offset_hash
from proxy.features.cooperative.ranges import KeyRanges, Split
from tests.features.cooperative.batch import Record, at_most_allocated, batch, crc, read

TOP = SPACE - 1
HALF = SPACE // 2
CODECS = [0, GZIP, SNAPPY, LZ4, ZSTD]
VECTOR = bytes.fromhex(
    "00000000000003e80000005a00000007029770d0440000000000030000018bcfe568000000018bcfe56803ffffffffffffffffff"
    "ffffffffff00000004120000000432310261001a0002020c666f6f6261720262000c00040401010012000606043231026300"
)
OF_21 = bytes.fromhex(
    "00000000000003e800000045000000070283078f6b0000000000030000018bcfe568000000018bcfe56803ffffffffffffffffff"
    "ffffffffff000000021200000004323102610012000606043231026300"
)
OF_21_FROM_1002 = bytes.fromhex(
    "00000000000003e80000003b0000000702fc54a9950000000000030000018bcfe568000000018bcfe56803ffffffffffffffffff"
    "ffffffffff0000000112000606043231026300"
)
WITHOUT_KEY = bytes.fromhex(
    "00000000000003e800000038000000070238287b6c0000000000030000018bcfe568000000018bcfe56803ffffffffffffffffff"
    "ffffffffff000000010c000404010100"
)
PLACEHOLDER = bytes.fromhex(
    "00000000000003e8000000420000000702060c52050020000000030000018bcfe568000000018bcfe56803ffffffffffffffffff"
    "ffffffffff000000012000000608000000010c00000000000000"
)
TALKATIVE = [
    Record(100, b"a", b"x" * 300),
    Record(101, None, b"no key"),
    Record(102, b"", b"an empty key"),
    Record(103, b"b", None, tuple((f"h{place}", b"value") for place in range(200))),
    Record(104, b"k" * 300, b"", (("null", None),), 1_600_000_000_000),
    Record(40_000, b"late", b"y" * 20_000),
]


def only(hashed: int) -> KeyRanges:
    return ((hashed, hashed),)


def split(data: bytes, *lanes: KeyRanges, least: int = 0) -> list[bytes | None]:
    lane = Split(lanes)
    least_of = [least] * len(lane.starts)
    found = split_batch(data, read_header(data, 0), lane, least_of)
    return [share for share, _ in found]


def hash_of(record: Record) -> int:
    return offset_hash(record.offset) if record.key is None else murmur2(record.key)


@pytest.mark.parametrize(
    ("hashed", "least", "expected"),
    [
        (murmur2(b"21"), 0, OF_21),
        (murmur2(b"21"), 1002, OF_21_FROM_1002),
        (0x45224ECA, 0, WITHOUT_KEY),
    ],
)
def test_vectors(hashed: int, least: int, expected: bytes) -> None:
    """Case C2: split batches equal the byte vectors in appendix A of the specification."""
    assert split(VECTOR, only(hashed), least=least) == [expected]


def test_the_vector_of_a_placeholder() -> None:
    """Case C2: a placeholder for skipped offsets equals the published bytes, except its marker."""
    assert placeholder(1000, 1003, read_header(VECTOR, 0)) == PLACEHOLDER


def test_other_libraries_read_a_placeholder_as_the_end_of_a_transaction() -> None:
    found = MemoryRecords(placeholder(1000, 1003, read_header(VECTOR, 0))).next_batch()
    assert (found.is_control_batch, found.is_transactional, found.next_offset) == (True, False, 1004)
    assert found.validate_crc()
    (record,) = found
    assert (record.offset, record.key, record.value) == (1003, bytes((0, 0, 0, 1)), bytes(6))


def test_a_placeholder_reaches_as_far_as_its_field() -> None:
    header = read_header(placeholder(0, 1 << 40, read_header(VECTOR, 0)), 0)
    assert (header.base_offset, header.last_offset) == ((1 << 40) - (1 << 31) + 1, 1 << 40)


@pytest.mark.parametrize("codec", CODECS)
@given(
    keys=st.lists(st.none() | st.binary(max_size=5), min_size=1, max_size=30),
    gaps=st.lists(st.integers(1, 100), min_size=30, max_size=30),
    bounds=st.lists(st.integers(1, TOP), max_size=5, unique=True),
)
def test_lanes_are_together_what_came(
    codec: int, keys: list[bytes | None], gaps: list[int], bounds: list[int]
) -> None:
    """Case C3: a batch is split for key ranges that cover all keys. Each record is in exactly one part."""
    offset, records = 500, []
    for key, gap in zip(keys, gaps, strict=False):
        records.append(Record(offset, key, b"%d" % offset))
        offset += gap
    starts = [0, *sorted(bounds)]
    ends = [start - 1 for start in starts[1:]] + [TOP]
    lanes = [(pair,) for pair in zip(starts, ends, strict=True)]
    data = batch(records, codec)
    shares = split(data, *lanes)
    for ((low, high),), share in zip(lanes, shares, strict=True):
        expected = [record for record in records if low <= hash_of(record) <= high]
        assert (read(share) if share is not None else []) == expected
        assert share is None or read_header(share, 0)[5:8] == read_header(data, 0)[5:8]


@pytest.mark.parametrize("codec", CODECS)
def test_all_pass_and_none_pass(codec: int) -> None:
    """Cases C4 and C5: if all records of a batch belong to a member, the batch is unchanged.

    If no record belongs to the member, the batch is left out.
    """
    data = batch(TALKATIVE, codec)
    (whole,) = split(data, ((0, TOP),))
    assert whole is data
    assert split(data, only(hash_of(TALKATIVE[0]) + 1)) == [None]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("record", TALKATIVE, ids=lambda record: str(record.offset))
def test_one_record_alone(codec: int, record: Record) -> None:
    """Cases C6, C7 and C10: if one record of a batch is left, its offsets and producer do not change."""
    data = batch(TALKATIVE, codec, producer=(9, 8, 7), transactional=1)
    (share,) = split(data, only(hash_of(record)))
    assert share is not None
    assert read(share) == [record]
    before, after = read_header(data, 0), read_header(share, 0)
    assert after[0] == before[0] == 100
    assert after.last_offset == before.last_offset == 40_000
    assert share[12:17] == data[12:17]  # leader epoch, magic
    assert share[21:57] == data[21:57]  # attributes to base sequence
    assert after.records == 1


@pytest.mark.parametrize("codec", CODECS)
def test_the_time_of_the_log_is_kept(codec: int) -> None:
    """Case C7: with LogAppendTime, each record keeps the timestamp of the batch header."""
    data = bytearray(batch(TALKATIVE, codec))
    data[22] |= 0x08
    data[35:43] = (1_800_000_000_000).to_bytes(8)
    data[17:21] = crc(bytes(data))
    (share,) = split(bytes(data), only(hash_of(TALKATIVE[0])))
    assert share is not None
    assert read(share) == [TALKATIVE[0]._replace(timestamp=1_800_000_000_000)]


def test_offsets_count_for_each_step() -> None:
    low, high = ((0, HALF - 1),), ((HALF, TOP),)
    lane = Split([low, high])
    records = [Record(offset, b"%d" % (offset % 7)) for offset in range(100)]
    data = batch(records)
    for (_, (low_hash, high_hash)), (share, last), least in zip(
        enumerate((low[0], high[0])),
        split_batch(data, read_header(data, 0), lane, [90, 50]),
        (90, 50),
        strict=True,
    ):
        expected = [one for one in records if low_hash <= hash_of(one) <= high_hash and one.offset >= least]
        assert share is not None
        assert read(share) == expected
        assert last == expected[-1].offset


@pytest.mark.parametrize("changed", [{"attributes": 0x20}, {"count": 0}])
def test_markers_and_empty_batches_are_untouched(changed: dict[str, int]) -> None:
    """Case C8: markers and empty batches are not changed. Even their CRC is not checked."""
    data = bytearray(VECTOR)
    if "attributes" in changed:
        data[22] |= changed["attributes"]
    else:
        data[57:61] = bytes(4)
    whole = bytes(data)
    (share,) = split(whole, only(1))
    assert share is whole


def test_lz4_blocks_are_independent() -> None:
    """Case C11: the LZ4 blocks of a batch are independent of each other, because Java can't read others."""
    (share,) = split(batch(TALKATIVE, LZ4), only(hash_of(TALKATIVE[0])))
    assert share is not None
    assert share[61 + 4] & 0x20
    assert lz4.frame.get_frame_info(share[61:])["block_linked"] is False


@pytest.mark.parametrize("codec", CODECS)
def test_a_wrong_crc_is_refused(codec: int) -> None:
    """Case C13: a batch with a wrong CRC is refused."""
    data = bytearray(batch(TALKATIVE, codec))
    data[-2] ^= 1
    with pytest.raises(BatchError, match="its CRC is wrong"):
        split(bytes(data), only(1))


def test_a_batch_that_expands_to_too_much_is_refused() -> None:
    """Case C14: a batch of 1 MiB that would become 1 GiB is refused."""
    whole = zstandard.ZstdCompressor(level=1).compressobj()
    parts = [whole.compress(random.Random(14).randbytes(1 << 20))]
    parts += [whole.compress(bytes(1 << 20)) for _ in range(1 << 10)]
    payload = b"".join((*parts, whole.flush()))
    assert 1 << 20 < len(payload) < 1.2 * (1 << 20)
    data = bytearray(VECTOR[:61] + payload)
    data[8:12] = (len(data) - 12).to_bytes(4)
    data[22] = ZSTD
    data[17:21] = crc(bytes(data))
    with (
        at_most_allocated(2 * MOST_BYTES),
        pytest.raises(BatchError, match="it is too large after decompression"),
    ):
        split(bytes(data), only(1))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_refused(codec: int) -> None:
    data = bytearray(VECTOR)
    data[22] = codec
    data[17:21] = crc(bytes(data))
    with pytest.raises(BatchError, match=f"^codec {codec} is unknown$"):
        split(bytes(data), only(1))


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_message_set_is_refused(magic: int) -> None:
    """Case C15: a message set in the format of before Kafka 0.11 is refused."""
    data = bytearray(VECTOR)
    data[16] = magic
    with pytest.raises(BatchError, match=f"^magic {magic} is older than Kafka 0.11$"):
        split(bytes(data), only(1))


@given(place=st.integers(61, len(VECTOR) - 1), value=st.integers(0, 255), count=st.integers(1, 6))
def test_records_that_are_not_whole_are_refused_and_nothing_else(place: int, value: int, count: int) -> None:
    data = bytearray(VECTOR)
    data[place] = value
    data[57:61] = count.to_bytes(4)
    data[17:21] = crc(bytes(data))
    with suppress(BatchError):
        split(bytes(data), ((0, HALF),), ((HALF + 1, TOP),))


@pytest.mark.parametrize("end", range(61, len(VECTOR)))
def test_a_batch_whose_records_are_cut_is_refused(end: int) -> None:
    data = bytearray(VECTOR[:end])
    data[8:12] = (end - 12).to_bytes(4)
    data[17:21] = crc(bytes(data))
    with pytest.raises(BatchError, match="its records do not match its header"):
        split(bytes(data), only(1))
