"""Frames that list the same entries in a rotated order are recognised. All other frames are not."""

from hypothesis import given
from hypothesis import strategies as st

from replay.simulate.turned import Turned

HEAD, END = b"size" + b"corr" + b"head", b"end"
"""The bytes before and after the entries."""
ITEM = 8
entries = st.lists(st.integers(0, 50), min_size=1, max_size=9, unique=True)


def entry(partition: int, offset: int = 0) -> bytes:
    return partition.to_bytes(4) + offset.to_bytes(4)


def frame(listed: list[bytes], correlation_id: bytes = b"corr") -> bytes:
    return HEAD.replace(b"corr", correlation_id) + b"".join(listed) + END


def turned(listed: list[bytes]) -> Turned:
    return Turned(frame(listed), 8, len(HEAD), len(HEAD) + len(listed) * ITEM, ITEM)


@given(entries, st.integers(0, 8), st.binary(min_size=4, max_size=4))
def test_a_frame_that_begins_at_another_entry_is_like_it(
    partitions: list[int], first: int, correlation_id: bytes
) -> None:
    listed = [entry(partition) for partition in partitions]
    first %= len(listed)

    assert turned(listed).matches(frame(listed[first:] + listed[:first], correlation_id))


@given(entries, st.data())
def test_a_frame_of_the_same_entries_in_another_order_is_not(
    partitions: list[int], data: st.DataObject
) -> None:
    listed = [entry(partition) for partition in partitions]
    other = data.draw(st.permutations(listed))
    rotations = [listed[first:] + listed[:first] for first in range(len(listed))]

    assert turned(listed).matches(frame(other)) == (other in rotations)


@given(entries, st.data())
def test_a_frame_with_one_other_byte_is_not(partitions: list[int], data: st.DataObject) -> None:
    listed = [entry(partition) for partition in partitions]
    changed = bytearray(frame(listed))
    at = data.draw(st.integers(8, len(changed) - 1))
    changed[at] ^= data.draw(st.integers(1, 255))

    assert not turned(listed).matches(bytes(changed))


def test_partitions_whose_numbers_are_found_amid_others() -> None:
    """A frame with the listed entries in rotated order matches, even if the first entry's bytes occur twice.

    The second occurrence lies across the border of two other entries.
    """
    listed = [entry(1, 0), entry(0, 1), entry(256, 0), entry(0x00000100 << 8, 5)]

    for first in range(len(listed)):
        assert turned(listed).matches(frame(listed[first:] + listed[:first]))
