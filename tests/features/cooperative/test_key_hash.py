"""The hashes of keys and offsets, compared with Kafka's values and with another implementation."""

import pytest
from aiokafka.partitioner import murmur2 as theirs  # type: ignore[import-untyped]  # it has no types
from hypothesis import given
from hypothesis import strategies as st

from proxy.features.cooperative import key_hash
from proxy.features.cooperative.key_hash import SPACE, murmur2, murmur2_of, offset_hash


@pytest.mark.parametrize(("key", "hashed"), [(b"", 0x106E08D9), (b"21", 0xC5F2F8EC), (b"foobar", 0xD0E47BBE)])
def test_vectors(key: bytes, hashed: int) -> None:
    """Case C1: the hashes of keys equal Kafka's."""
    assert murmur2(key) == hashed


@given(st.binary(max_size=70))
def test_it_is_kafkas(key: bytes) -> None:
    assert murmur2(key) == theirs(key) % SPACE


@pytest.mark.parametrize("few", [1, 100])
@given(keys=st.sets(st.binary(max_size=70), min_size=1, max_size=20))
def test_many_keys_at_once_have_the_same_hashes(few: int, keys: set[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_hash, "_MANY", few)
        assert murmur2_of(keys) == {key: theirs(key) % SPACE for key in keys}


def test_many_keys_of_all_lengths() -> None:
    keys = {bytes(range(size)) for size in range(256)}
    assert murmur2_of(keys) == {key: murmur2(key) for key in keys}


@pytest.mark.parametrize(("offset", "hashed"), [(0, 0), (1, 0x9E3779B1), (2, 0x3C6EF362)])
def test_vectors_of_records_without_a_key(offset: int, hashed: int) -> None:
    """Case C1: records without a key have the documented hashes (the vectors). Offsets are hashed."""
    assert offset_hash(offset) == hashed


def test_any_run_of_offsets_is_spread_evenly() -> None:
    quarters = [0] * 4
    for offset in range(123_456_789, 123_456_789 + 4000):
        quarters[offset_hash(offset) >> 30] += 1
    assert all(990 <= count <= 1010 for count in quarters)
