"""The layouts have the sizes and offsets of docs/developers/fetch-semantics.md, section 1.5.

The tests include the numbers of elements at which a uvarint gets one byte longer.
"""

from dataclasses import replace

import numpy as np
import pytest

from proxy.protocol.fetch_layout import (
    ERROR_CODE,
    HIGH_WATERMARK,
    LAYOUTS,
    LOG_START_OFFSET,
    MAX_VERSION,
    MIN_VERSION,
    PARTITION_BYTES,
    SESSION,
)
from proxy.protocol.fetch_request import MAX_PARTITIONS
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.protocol.primitives import TooMany
from tests.frames import (
    EVERY_VERSION,
    VERSIONS,
    entry,
    fetch,
    fetch_response,
    framed,
    parsed,
    walked,
    wire_key,
)

REQUEST_ENTRY = {4: 16} | dict.fromkeys(range(5, 9), 24) | dict.fromkeys(range(9, 12), 28)
ANSWER_ENTRY = {4: 30} | dict.fromkeys(range(5, 11), 38) | {11: 42}
WIDE_COUNTS = [0, 1, 125, 126, 127, 128, 16_381, 16_382, 16_383, 16_384, 2_097_150, 2_097_151]


def test_versions() -> None:
    assert (MIN_VERSION, MAX_VERSION) == (4, 18)
    assert list(LAYOUTS) == list(EVERY_VERSION)


def test_a_version_that_other_tests_leave_out_has_the_layout_of_the_one_before() -> None:
    changed = [
        version
        for version in EVERY_VERSION
        if version == MIN_VERSION or LAYOUTS[version] != replace(LAYOUTS[version - 1], version=version)
    ]
    assert (*changed, MAX_VERSION) == VERSIONS


def test_sizes_of_entries() -> None:
    for version, layout in LAYOUTS.items():
        assert layout.request_entry == REQUEST_ENTRY.get(version, 33)
        assert layout.response_entry == ANSWER_ENTRY.get(version, 37)
        assert layout.request_item.itemsize == layout.request_fields.itemsize == layout.request_entry
        assert layout.response_item.itemsize == layout.response_fields.itemsize == layout.response_entry


@pytest.mark.parametrize("version", VERSIONS)
def test_one_more_entry_is_so_many_bytes_more(version: int) -> None:
    layout = LAYOUTS[version]
    one, two = fetch(version, ("t", 0)), fetch(version, ("t", 0), ("t", 1))
    assert len(two) - len(one) == layout.request_entry
    none = fetch_response(version, ("t", [entry(0)]))
    more = fetch_response(version, ("t", [entry(0), entry(1)]))
    assert len(more) - len(none) == layout.response_entry


@pytest.mark.parametrize("version", VERSIONS)
def test_offsets_in_the_body_of_a_request(version: int) -> None:
    layout = LAYOUTS[version]
    session = (5, 6) if version >= 7 else (0, -1)
    frame = fetch(version, ("t", 3), session=session, max_wait_ms=77, isolation_level=1)
    body = frame[parsed(frame).body :]
    assert body[layout.request_limits :].startswith((77).to_bytes(4))
    assert body[layout.request_isolation] == 1
    sent = SESSION.pack(*session) if version >= 7 else b""
    assert body[layout.request_session : layout.request_head] == sent
    assert body[layout.request_head :].startswith(layout.count(1) + layout.prefix(wire_key(version, "t"), 1))


@pytest.mark.parametrize("version", VERSIONS)
def test_offsets_in_an_entry_of_a_response(version: int) -> None:
    told = entry(1, 9, log_start_offset=7, records=b"r")
    frame = fetch_response(version, ("t", [replace(told, error_code=3)]))
    (found,) = walked(frame, version).entries
    assert found.fixed[:PARTITION_BYTES] == (1).to_bytes(4)
    assert found.fixed[ERROR_CODE] == (3).to_bytes(2)
    assert found.fixed[HIGH_WATERMARK] == (9).to_bytes(8)
    assert found.fixed[LOG_START_OFFSET] == ((7).to_bytes(8) if version >= 5 else b"")


@pytest.mark.parametrize("version", VERSIONS)
def test_fields_of_entries(version: int) -> None:
    layout = LAYOUTS[version]
    values = {"current_leader_epoch": 7} if version >= 9 else {}
    frame = fetch(version, ("t", 3, 9), values=values)
    listing = parsed(frame).listing
    assert listing is not None
    fields = listing.entries.view(layout.request_fields)
    assert fields["partition"].tolist() == [3]
    if version >= 9:
        assert fields["epoch"].tolist() == [7]


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("version", VERSIONS)
def test_an_entry_without_news_ends_as_the_layout_says(version: int, isolation: int) -> None:
    layout = LAYOUTS[version]
    told = entry(5, 12, aborted=() if isolation else None)
    frame = fetch_response(version, ("t", [told] * 4))
    walk = walked(frame, version, isolation)
    (run,) = walk.runs
    fields = run.entries.view(layout.response_fields)
    assert walk.entries == []
    assert fields["partition"].tolist() == [5] * 4
    assert fields["error"].tolist() == [0] * 4
    assert fields["high_watermark"].tolist() == [12] * 4
    assert {end.tobytes() for end in fields["end"]} == {layout.empty_ends[isolation]}


@pytest.mark.parametrize("count", WIDE_COUNTS)
@pytest.mark.parametrize("version", [4, 11, 12, 13])
def test_prefix_at_every_width(version: int, count: int) -> None:
    """Trap 51: the start of a topic element has the right length for any count and name."""
    layout = LAYOUTS[version]
    for name in ("t", "n" * 13, "n" * 126, "n" * 127, "n" * 249):
        key = wire_key(version, name[:16] if version >= 13 else name)
        prefix = layout.prefix(key, count)
        assert len(prefix) == layout.prefix_size(key, count)
        assert key in prefix


@pytest.mark.parametrize(
    ("version", "count", "prefix"),
    [
        (11, 16_383, "000174 00003fff"),
        (12, 126, "0274 7f"),
        (12, 127, "0274 8001"),
        (12, 16_382, "0274 ff7f"),
        (12, 16_383, "0274 808001"),
        (12, 2_097_150, "0274 ffff7f"),
        (12, 2_097_151, "0274 80808001"),
        (13, 16_383, "74000000000000000000000000000000 808001"),
    ],
)
def test_prefix_to_the_byte(version: int, count: int, prefix: str) -> None:
    assert LAYOUTS[version].prefix(wire_key(version, "t"), count) == bytes.fromhex(prefix)


def many(version: int, count: int) -> tuple[bytes, bytes]:
    """Build a request and a response with `count` partitions of one topic.

    The entries are made all at once, because there may be millions.
    """
    layout = LAYOUTS[version]
    prefix = layout.prefix(wire_key(version, "t"), count)
    end = b"\x00" if layout.flexible else b""
    outer = fetch(version)
    at = 4 + 10 + 1 + (1 if layout.flexible else 0) + layout.request_head  # "c" is the client id
    entries = np.zeros(count, layout.request_item)
    entries.view(layout.request_fields)["partition"] = np.arange(count)
    head, tail = outer[4:at] + layout.count(1), outer[at + len(layout.count(0)) :]
    request = framed(b"".join((head, prefix, entries.tobytes(), end, tail)))
    empty = fetch_response(version)
    response_at = 4 + 4 + (1 if layout.flexible else 0) + layout.response_head
    told = np.zeros(count, layout.response_item)
    fields = told.view(layout.response_fields)
    fields["partition"], fields["end"] = np.arange(count), np.void(layout.empty_ends[0])
    head, tail = empty[4:response_at] + layout.count(1), empty[response_at + len(layout.count(0)) :]
    return request, framed(b"".join((head, prefix, told.tobytes(), end, tail)))


@pytest.mark.parametrize(
    ("version", "count"), [(11, 127), (12, 126), (12, 127), (16, 16_382), (16, 16_383), (16, 2_097_151)]
)
def test_partitions_where_counts_grow(version: int, count: int) -> None:
    """Case 94, trap 51: requests and responses are read correctly when their count needs one more byte.

    A count is a uvarint, which gets longer, for example, at 127 elements. A request with more than
    `MAX_PARTITIONS` partitions is refused.
    """
    request, response = many(version, count)
    if count > MAX_PARTITIONS:
        with pytest.raises(TooMany):
            parsed(request)
    else:
        view = parsed(request)
        assert view.listing is not None
        assert (len(view.listing), view.partitions, view.listing.counts) == (count, count, [count])
    walk = FetchResponseWalk(LAYOUTS[version], 0, keep=False)
    walk.feed(response)
    assert (walk.done, walk.partitions) == (True, count)
