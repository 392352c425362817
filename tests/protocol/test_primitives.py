"""Basic types that are written and read again have the same value. Readers refuse invalid bytes."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol import primitives
from proxy.protocol.primitives import (
    Buffer,
    Malformed,
    ProtocolError,
    TooMany,
    Truncated,
    UnknownVersion,
    encode_compact_count,
    encode_compact_string,
    encode_count,
    encode_string,
    encode_uvarint,
)

Reader = Callable[[Buffer, int], tuple[Any, int]]
READERS: dict[str, Reader] = {
    name: getattr(primitives, name) for name in vars(primitives) if name.startswith(("read_", "skip_"))
}

VALUES = [
    ("read_int16", "8000", -32768),
    ("read_int32", "fffffffe", -2),
    ("read_uvarint", "00", 0),
    ("read_uvarint", "7f", 127),
    ("read_uvarint", "8001", 128),
    ("read_uvarint", "ff7f", 16_383),
    ("read_uvarint", "808001", 16_384),
    ("read_uvarint", "ffff7f", 2_097_151),
    ("read_uvarint", "80808001", 2_097_152),
    ("read_uvarint", "ffffffff0f", 0xFFFF_FFFF),
    ("read_uvarint", "8000", 0),
    ("read_string", "ffff", None),
    ("read_string", "0000", b""),
    ("read_string", "00026869", b"hi"),
    ("read_compact_string", "00", None),
    ("read_compact_string", "01", b""),
    ("read_compact_string", "036869", b"hi"),
    ("read_count", "ffffffff", None),
    ("read_count", "00000000", 0),
    ("read_compact_count", "00", None),
    ("read_compact_count", "01", 0),
    ("skip_tags", "00", None),
    ("skip_tags", "0200016109026262", None),
    ("read_tags", "00", []),
    ("read_tags", "0200016109026262", [(0, 3, 4), (9, 6, 8)]),
]


@pytest.mark.parametrize(("reader", "wire", "value"), VALUES)
def test_readers(reader: str, wire: str, value: object) -> None:
    data = bytes.fromhex(wire)
    for buffer in (data, bytearray(data), memoryview(data)):
        assert READERS[reader](buffer, 0) == (value, len(data))
    for size in range(len(data)):
        with pytest.raises(Truncated):
            READERS[reader](data[:size], 0)


@pytest.mark.parametrize(("reader", "wire", "value"), [one for one in VALUES if one[0] != "read_tags"])
def test_readers_start_anywhere_and_leave_what_follows(reader: str, wire: str, value: object) -> None:
    data = bytes.fromhex(wire)
    assert READERS[reader](b"\x81\x82" + data + b"\x83", 2) == (value, 2 + len(data))


def test_every_reader_has_a_value_above() -> None:
    assert {reader for reader, _, _ in VALUES} == set(READERS)


@pytest.mark.parametrize(
    ("reader", "wire"), [("read_count", "00000003 616263"), ("read_compact_count", "04 616263")]
)
def test_counts_are_believed_up_to_a_byte_per_element(reader: str, wire: str) -> None:
    data = bytes.fromhex(wire)
    assert READERS[reader](data, 0) == (3, len(data) - 3)
    with pytest.raises(Truncated, match="array"):
        READERS[reader](data[:-1], 0)


@pytest.mark.parametrize(
    ("reader", "wire", "message"),
    [
        ("read_string", "fffe", "string at 0 has length -2"),
        ("read_string", "8000", "string at 0 has length -32768"),
        ("read_count", "fffffffe", "array at 0 has -2 elements"),
        ("read_uvarint", "ffffffff10", "beyond 32 bits"),
        ("read_uvarint", "808080808000", "more than 5 bytes"),
        ("skip_tags", "ffffffffff01", "more than 5 bytes"),
        ("skip_tags", "8108", "1025 tags"),
        ("read_tags", "8108", "1025 tags"),
    ],
)
def test_values_that_kafka_does_not_write(reader: str, wire: str, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        READERS[reader](bytes.fromhex(wire), 0)


@pytest.mark.parametrize("wire", ["ffffffff0f", "01 00 ffffffff0f", "ffffffff0f 0000 0000"])
def test_hostile_sizes_are_not_allocated(wire: str) -> None:
    for name in ("read_tags", "skip_tags", "read_compact_string", "read_compact_count"):
        if (name, wire[:2]) not in {("read_compact_string", "01"), ("read_compact_count", "01")}:
            with pytest.raises(ProtocolError):
                READERS[name](bytes.fromhex(wire), 0)


@given(st.sampled_from(sorted(READERS)), st.binary(max_size=40), st.integers(0, 45))
def test_readers_raise_protocol_errors_only_and_stay_within(name: str, data: bytes, offset: int) -> None:
    try:
        _, end = READERS[name](data, offset)
    except ProtocolError:
        return
    assert offset < end <= len(data)


@given(st.integers(0, 0xFFFF_FFFF))
def test_uvarints_both_ways(value: int) -> None:
    data = encode_uvarint(value)
    assert READERS["read_uvarint"](data, 0) == (value, len(data))
    assert len(data) == max(1, -(-value.bit_length() // 7))


@given(st.none() | st.binary(max_size=300))
def test_strings_both_ways(value: bytes | None) -> None:
    for encode, name in ((encode_string, "read_string"), (encode_compact_string, "read_compact_string")):
        data = encode(value)
        assert READERS[name](data, 0) == (value, len(data))


@pytest.mark.parametrize("count", [None, 0, 1, 126, 127, 16_382, 16_383])
def test_counts_both_ways(count: int | None) -> None:
    elements = bytes(count or 0)
    for encode, name in ((encode_count, "read_count"), (encode_compact_count, "read_compact_count")):
        data = encode(count)
        assert READERS[name](data + elements, 0) == (count, len(data))


@pytest.mark.parametrize(
    ("count", "size"), [(126, 1), (127, 2), (16_382, 2), (16_383, 3), (2_097_150, 3), (2_097_151, 4)]
)
def test_compact_counts_change_width_where_kafkas_do(count: int, size: int) -> None:
    assert len(encode_compact_count(count)) == size


def test_what_does_not_fit_is_refused() -> None:
    assert encode_string(b"x" * 0x7FFF)[:2] == b"\x7f\xff"
    with pytest.raises(Malformed, match="32768 bytes"):
        encode_string(b"x" * 0x8000)
    for value in (-1, 0x1_0000_0000):
        with pytest.raises(Malformed, match="does not fit"):
            encode_uvarint(value)


def test_the_tree_of_exceptions() -> None:
    assert issubclass(ProtocolError, ValueError)
    assert {Truncated, Malformed, UnknownVersion, TooMany} == set(ProtocolError.__subclasses__())
