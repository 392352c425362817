"""Fetch responses are parsed in chunks of any size. They are also truncated and damaged.

Some responses come from live brokers, and others are generated.
"""

import contextlib
import json
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader

from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_response import _MAX_UNIT, FetchResponseWalk, response_head
from proxy.protocol.primitives import MAX_TAGS, Malformed, ProtocolError
from tests.examples import examples
from tests.frames import (
    DATA,
    EVERY_VERSION,
    VERSIONS,
    LiveExchange,
    entry,
    fetch_response,
    framed,
    live,
    named,
    walked,
)
from tests.model import wire

SCHEMA = json.loads((DATA / "fetch-schema.json").read_text())["responses"]

Found = list[tuple[bytes, int, int, bytes]]
"""For each entry: topic, partition, error code, and bytes. The list is sorted, because single entries and
runs (equal entries in a row) are found separately."""


def walk_chunks(chunks: list[bytes], version: int, isolation: int = 0) -> FetchResponseWalk:
    walk = FetchResponseWalk(LAYOUTS[version], isolation, keep=True)
    for chunk in chunks:
        walk.feed(chunk)
    return walk


def found(walk: FetchResponseWalk, frame: bytes) -> Found:
    """Return the entries that the gateway's parser found in a frame."""
    layout = walk.layout
    end = b"\0" if layout.flexible else b""
    single = [(one.key, one.partition, one.error_code, frame[one.start : one.end]) for one in walk.entries]
    runs = [
        (run.key, int.from_bytes(item.tobytes()[:4], signed=True), int(fields["error"]), item.tobytes())
        for run in walk.runs
        for item, fields in zip(run.entries, run.entries.view(layout.response_fields), strict=True)
    ]
    assert all(raw.endswith(end) for _, _, _, raw in runs)
    return sorted(single + runs)


def told(frame: bytes, version: int) -> Found:
    """Return the entries that the test's own codec finds in a frame."""
    decoded = wire.decode_response(frame[4:], version)
    bare = len(fetch_response(version, correlation_id=1))
    entries = []
    for topic in decoded.topics:
        key = topic.topic_id if version >= 13 else topic.topic.encode()
        prefix = len(LAYOUTS[version].prefix(key, 1))
        for data in topic.partitions:
            alone = wire.TopicData(topic=topic.topic, topic_id=topic.topic_id, partitions=(data,))
            whole = framed(
                wire.encode_response(wire.FetchResponse(version=version, correlation_id=1, topics=(alone,)))
            )
            ends = 2 if version >= 12 else 0
            raw = whole[bare - ends // 2 + prefix : len(whole) - ends]
            entries.append((key, data.partition_index, data.error_code, raw))
    return sorted(entries)


def summary(walk: FetchResponseWalk, frame: bytes) -> tuple[Any, ...]:
    heads = (walk.throttle_time_ms, walk.error_code, walk.session_id, walk.session_id_at)
    tags = (walk.tags, walk.tags_at)
    return heads, tags, walk.partitions, walk.record_bytes, walk.done, walk.offset, found(walk, frame)


# --- bytes that are known -------------------------------------------------------------------------


@pytest.mark.parametrize("version", [int(version) for version in SCHEMA])
def test_bodies_of_the_schemas(version: int) -> None:
    head = bytes.fromhex("00000007") + (b"\0" if version >= 12 else b"")
    frame = framed(head + bytes.fromhex(SCHEMA[str(version)]))
    walk = walked(frame, version, isolation_level=1)
    assert (walk.throttle_time_ms, walk.error_code) == (0, 0)
    assert walk.session_id == (77 if version >= 7 else 0)
    assert (walk.partitions, walk.record_bytes) == (2, 3)
    good, bad = walk.entries
    assert (good.partition, good.error_code, good.ends_empty) == (0, 0, False)
    assert (bad.partition, bad.error_code) == (3, 6)
    fixed = "00000000 0000 0000000000000064 0000000000000063" + ("0000000000000001" if version >= 5 else "")
    assert good.fixed == bytes.fromhex(fixed)
    assert frame[good.start : good.end].startswith(good.fixed)
    assert found(walk, frame) == told(frame, version)
    if version == 16:
        ((tag, start, end),) = walk.tags
        assert tag == 0
        payload = bytes.fromhex("020000000203623200002384 0000")
        assert frame[walk.tags_at + start : walk.tags_at + end] == payload


def found_at_every_cut(exchange: LiveExchange) -> None:
    frame, version = exchange.response, exchange.version
    isolation = wire.decode_request(exchange.request[4:]).isolation_level
    decoded = wire.decode_response(frame[4:], version)
    whole = walked(frame, version, isolation)
    assert found(whole, frame) == told(frame, version)
    assert (whole.throttle_time_ms, whole.error_code) == (decoded.throttle_time_ms, decoded.error_code)
    assert (whole.session_id, whole.done, whole.offset) == (decoded.session_id, True, len(frame))
    assert whole.record_bytes == sum(
        len(data.records or b"") for topic in decoded.topics for data in topic.partitions
    )
    assert [
        (tag, frame[whole.tags_at + start : whole.tags_at + end]) for tag, start, end in whole.tags
    ] == list(decoded.tags)
    expected = summary(whole, frame)
    step = max(1, len(frame) // 400)
    for cut in range(1, len(frame), step):
        assert summary(walk_chunks([frame[:cut], frame[cut:]], version, isolation), frame) == expected, cut
    bytewise = [frame[at : at + 1] for at in range(len(frame))]
    assert summary(walk_chunks(bytewise, version, isolation), frame) == expected


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_live_responses_at_every_cut(version: int) -> None:
    """Trap 49: a response gives the same result as a whole, byte by byte, and cut anywhere in two."""
    for exchange in live(version):
        found_at_every_cut(exchange)


# --- generated ------------------------------------------------------------------------------------

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.sampled_from(["a", "b", "topic-1", "n" * 126, "n" * 127, "n" * 249])
TAGS = st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=4)), max_size=2).map(
    lambda tags: tuple(sorted(dict(tags).items()))
)


@st.composite
def responses(draw: st.DrawFn, version: int) -> wire.FetchResponse:
    """Generate responses of a version.

    Often several neighbouring entries are equal and have no records, as in practice.
    """
    tags = TAGS if version >= 12 else st.just(())

    def some() -> wire.PartitionData:
        aborted = st.tuples(INT64, INT64).map(
            lambda pair: wire.AbortedTransaction(producer_id=pair[0], first_offset=pair[1])
        )
        return wire.PartitionData(
            partition_index=draw(INT32),
            error_code=draw(INT16),
            high_watermark=draw(INT64),
            last_stable_offset=draw(INT64),
            log_start_offset=draw(INT64) if version >= 5 else -1,
            aborted=draw(st.none() | st.lists(aborted, max_size=3).map(tuple)),
            preferred_read_replica=draw(INT32) if version >= 11 else -1,
            records=draw(st.none() | st.binary(max_size=200)),
            tags=draw(tags),
        )

    def element() -> wire.TopicData:
        entries: list[wire.PartitionData] = []
        for _ in range(draw(st.integers(0, 3))):
            entries += [some()] if draw(st.booleans()) else [entry(draw(INT32), 5)] * draw(st.integers(1, 9))
        if version < 5:
            entries = [wire_without_log_start(one) for one in entries]
        return wire.TopicData(**named(version, draw(NAMES)[:16]), partitions=tuple(entries), tags=draw(tags))

    return wire.FetchResponse(
        version=version,
        correlation_id=draw(INT32),
        header_tags=draw(tags),
        throttle_time_ms=draw(INT32),
        error_code=draw(INT16) if version >= 7 else 0,
        session_id=draw(INT32) if version >= 7 else 0,
        topics=tuple(element() for _ in range(draw(st.integers(0, 3)))),
        tags=draw(tags),
    )


def wire_without_log_start(data: wire.PartitionData) -> wire.PartitionData:
    fields = {name: getattr(data, name) for name in wire.PartitionData.__slots__}
    return wire.PartitionData(**fields | {"log_start_offset": -1})


@pytest.mark.parametrize("version", VERSIONS)
def test_build_then_walk_is_the_identity_whatever_the_chunks(version: int) -> None:
    """Trap 49: an encoded response is parsed to the same values, for any division into chunks."""

    @examples(15)
    @given(responses(version), st.lists(st.integers(1, 300), max_size=8), st.integers(0, 1))
    def check(message: wire.FetchResponse, sizes: list[int], isolation: int) -> None:
        frame = framed(wire.encode_response(message))
        whole = walked(frame, version, isolation)
        assert whole.done
        assert (whole.throttle_time_ms, whole.error_code) == (message.throttle_time_ms, message.error_code)
        assert whole.session_id == message.session_id
        assert found(whole, frame) == told(frame, version)
        cuts = [0, *sorted({min(sum(sizes[: n + 1]), len(frame)) for n in range(len(sizes))}), len(frame)]
        chunks = [frame[start:end] for start, end in pairwise(cuts)]
        assert summary(walk_chunks(chunks, version, isolation), frame) == summary(whole, frame)
        counted = FetchResponseWalk(LAYOUTS[version], isolation, keep=False, spans=True)
        for chunk in chunks:
            counted.feed(chunk)
        assert whole.record_spans is None
        assert counted.record_spans is not None
        records = [data.records for topic in message.topics for data in topic.partitions if data.records]
        assert [frame[start:end] for start, end in counted.record_spans] == records
        assert (counted.partitions, counted.record_bytes) == (whole.partitions, whole.record_bytes)
        assert (counted.entries, counted.runs, counted.done) == ([], [], True)

    check()


@pytest.mark.parametrize("version", [4, 7, 11, 12, 16])
def test_an_entry_without_news_is_told_from_one_with_some(version: int) -> None:
    aborted = (wire.AbortedTransaction(producer_id=1, first_offset=2),)
    changes = [
        entry(1, 5, records=b"r"),
        entry(1, error=6),
        entry(1, 5, aborted=aborted),
        entry(1, 5, aborted=()),
    ]
    if version >= 11:
        changes.append(entry(1, 5, preferred_read_replica=2))
    if version >= 12:
        changes.append(entry(1, 5, tags=(wire.diverging_epoch_tag(1, 2),)))
    for one in changes:
        walk = walked(fetch_response(version, ("t", [entry(0, 5)] * 5 + [one] + [entry(2, 5)] * 5)), version)
        (told_apart,) = (found for found in walk.entries if found.partition == 1)
        assert told_apart.ends_empty is bool(one.error_code)
        assert [len(run.entries) for run in walk.runs][:1] == [5]
        assert {found.ends_empty for found in walk.entries if found.partition != 1} <= {True}


@pytest.mark.parametrize("version", [4, 7, 11, 12, 16])
@pytest.mark.parametrize("aborted", [None, ()])
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_entries_without_news_are_runs_whatever_the_isolation_level_if_none_are_kept(
    version: int, aborted: tuple[()] | None, isolation_level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no entries are kept, unchanged entries are parsed in runs at any isolation level.

    The fetch may not have been parsed, so its level may be unknown. If entries were parsed one by one, this
    would take ten times as long.
    """
    singly: list[int] = []
    read = FetchResponseWalk._entry

    def counted(walk: FetchResponseWalk, buffer: bytes, at: int, base: int) -> int:
        end = read(walk, buffer, at, base)
        singly.append(walk.partitions)
        return end

    monkeypatch.setattr(FetchResponseWalk, "_entry", counted)
    data = [entry(number, 5, aborted=aborted) for number in range(1_000)]
    walk = FetchResponseWalk(LAYOUTS[version], isolation_level, keep=False)
    walk.feed(fetch_response(version, ("t", data), ("u", data[:300]), correlation_id=7))

    assert (walk.done, walk.partitions, len(singly)) == (True, 1_300, 2)


@pytest.mark.parametrize("version", [4, 11, 12])
def test_null_records_are_no_records(version: int) -> None:
    walk = walked(fetch_response(version, ("t", [entry(0, error=76, records=None)])), version)
    assert (walk.done, walk.record_bytes, walk.entries[0].ends_empty) == (True, 0, False)


@pytest.mark.parametrize("version", [4, 12])
@pytest.mark.parametrize(("size", "skipped"), [(0, True), (99, True), (100, True), (101, False)])
def test_bytes_are_skipped_only_if_all_of_them_are_records(version: int, size: int, skipped: bool) -> None:
    frame = fetch_response(version, ("t", [entry(0, 9, records=bytes(100))]))
    rest = frame[len(frame) - (3 if version == 12 else 0) - 100 :]
    walk = FetchResponseWalk(LAYOUTS[version], 0, keep=False)
    walk.feed(frame[: -len(rest)])

    assert walk.skip_records(size) is skipped
    walk.feed(rest[size if skipped else 0 :])
    assert (walk.done, walk.offset) == (True, len(frame))


@pytest.mark.parametrize("version", [4, 7, 12, 16])
def test_records_are_skipped(version: int) -> None:
    """Trap 49: the parser skips the contents of records.

    Of 3 MB of records that arrive in chunks of 64 KB, it buffers at most 200 bytes.
    """
    frame = fetch_response(version, ("t", [entry(0, 9, records=bytes(3 << 20)), entry(1, 9)]))
    walk = FetchResponseWalk(LAYOUTS[version], 0, keep=True)
    for at in range(0, len(frame), 65_536):
        walk.feed(frame[at : at + 65_536])
        assert len(walk._tail) < 200
    assert (walk.done, walk.record_bytes, walk.partitions) == (True, 3 << 20, 2)


# --- spoilt ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_cut_anywhere_is_not_done(version: int) -> None:
    tags = (
        (wire.node_endpoints_tag([wire.NodeEndpoint(node_id=1, host="h", port=1)]),) if version >= 16 else ()
    )
    frame = fetch_response(
        version, ("t", [entry(0, 1, records=b"abc"), entry(1, error=6), entry(2, 1)]), tags=tags
    )
    for size in range(len(frame)):
        assert not walked(frame[:size], version).done


@pytest.mark.parametrize("version", VERSIONS)
def test_cut_within_the_last_records_is_not_done(version: int) -> None:
    frame = fetch_response(version, ("t", [entry(0, 1, records=b"abc")]))
    for size in range(len(frame)):
        assert not walked(frame[:size], version).done


@pytest.mark.parametrize("version", VERSIONS)
def test_more_than_a_response_is_refused(version: int) -> None:
    frame = fetch_response(version, ("t", [entry(0, 1)]))
    with pytest.raises(Malformed, match="1 bytes after"):
        walked(frame + b"\0", version)
    walk = walked(frame, version)
    with pytest.raises(Malformed, match="1 bytes after"):
        walk.feed(b"\0")


@pytest.mark.parametrize("version", VERSIONS)
def test_noise_raises_protocol_errors_only(version: int) -> None:
    good = fetch_response(
        version, ("t", [entry(0, 1)] * 5 + [entry(1, error=3), entry(2, 5, records=b"abc")])
    )

    @examples(50)
    @given(st.binary(max_size=150), st.integers(0, len(good)), st.integers(0, 9), st.integers(1, 80))
    def check(noise: bytes, at: int, cut: int, size: int) -> None:
        for frame in (noise, good[:at] + noise, good[:at] + noise + good[at + cut :]):
            walk = FetchResponseWalk(LAYOUTS[version], 0, keep=True)
            with contextlib.suppress(ProtocolError):
                for start in range(0, len(frame), size):
                    walk.feed(frame[start : start + size])
                assert walk.offset <= len(frame)

    check()


@pytest.mark.parametrize("version", [4, 11, 12, 16])
def test_hostile_counts_allocate_nothing(version: int) -> None:
    """If a count claims two billion topics, entries or transactions, the parser allocates no memory for them.

    It waits for more bytes.
    """
    layout = LAYOUTS[version]
    most = layout.count(0x7FFF_FFFF)
    at = 4 + 4 + (1 if layout.flexible else 0) + layout.response_head
    head = fetch_response(version)[:at]
    topic = head + layout.count(1) + layout.prefix(b"t" * (16 if layout.topic_ids else 1), 0)
    topic = topic[: -len(layout.count(0))]
    transactions = topic + layout.count(1) + bytes(layout.aborted) + most
    for frame in (head + most, topic + most, transactions):
        walk = walked(frame, version)
        assert not walk.done
        assert len(walk._tail) < 100
        assert (walk.entries, walk.runs) == ([], [])


def test_an_entry_that_never_ends_is_refused() -> None:
    """An entry with a count of a hundred million aborted transactions is refused.

    The parser refuses it when too many bytes are buffered for this entry.
    """
    layout = LAYOUTS[11]
    frame = fetch_response(11)
    frame = (
        frame[:18] + layout.count(1) + layout.prefix(b"t", 1) + bytes(layout.aborted) + (10**8).to_bytes(4)
    )
    walk = FetchResponseWalk(layout, 0, keep=True)
    walk.feed(frame)
    chunk = bytes(_MAX_UNIT // 4)
    for _ in range(3):
        walk.feed(chunk)
    with pytest.raises(Malformed, match="no end"):
        walk.feed(chunk)


@pytest.mark.parametrize(("version", "name"), [(12, b"\x00"), (11, b"\xff\xff"), (11, b"\x80\x00")])
def test_a_topic_without_a_name_is_refused(version: int, name: bytes) -> None:
    layout = LAYOUTS[version]
    at = 4 + 4 + (1 if layout.flexible else 0) + layout.response_head
    with pytest.raises(Malformed, match="no name"):
        walked(fetch_response(version)[:at] + layout.count(1) + name + bytes(8), version)


# --- long units -----------------------------------------------------------------------------------

LONG = bytes(400_000)
TAG = ((9, LONG),)


def long_units() -> list[tuple[str, bytes]]:
    """Return v16 responses with a long part that does not consist of records, such as tags."""
    many = tuple(wire.AbortedTransaction(producer_id=9, first_offset=at) for at in range(25_000))
    topic = wire.TopicData(topic_id=b"t" * 16, partitions=(entry(0, 5), entry(1, 5)), tags=TAG)
    tagged = wire.FetchResponse(version=16, correlation_id=1, topics=(topic, replace(topic, tags=())))
    return [
        ("header tags", fetch_response(16, ("t", [entry(0, 5)]), header_tags=TAG)),
        ("topic tags", framed(wire.encode_response(tagged))),
        ("entry tags", fetch_response(16, ("t", [entry(0, 5, tags=TAG), entry(1, 5)]))),
        ("aborted transactions", fetch_response(16, ("t", [entry(0, 5, aborted=many), entry(1, 5)]))),
        ("body tags", fetch_response(16, ("t", [entry(0, 5)]), tags=((9, LONG),))),
    ]


class Counting(FetchResponseWalk):
    """A parser that counts the bytes that it parses. Bytes that are parsed twice count twice."""

    __slots__ = ("read",)

    def _walk(self, buffer: bytes, at: int) -> int:
        self.read = getattr(self, "read", 0) + len(buffer) - at
        return super()._walk(buffer, at)


@pytest.mark.parametrize("size", [16, 1_448])
@pytest.mark.parametrize(("what", "frame"), long_units(), ids=[what for what, _ in long_units()])
def test_a_long_unit_that_drips_in_is_read_a_few_times(what: str, frame: bytes, size: int) -> None:
    """A long part of a response that arrives in small chunks is parsed only a few times, not for each chunk.

    Its end is found at once, even if no further bytes follow.
    """
    walk = Counting(LAYOUTS[16], 0, keep=True)
    for at in range(0, len(frame), size):
        walk.feed(frame[at : at + size])
    assert walk.done, what
    assert walk.read < 8 * len(frame)
    assert summary(walk, frame) == summary(walked(frame, 16), frame)


@pytest.mark.parametrize("size", [1 << 20, 1_448])
def test_more_tags_than_any_schema_has_are_not_read(size: int) -> None:
    """An entry with more tags than any schema has is refused, because reading each tag takes time."""
    tags = tuple((number, b"") for number in range(MAX_TAGS + 1))
    frame = fetch_response(16, ("t", [entry(0, 5, tags=tags)]))
    with pytest.raises(Malformed, match="1025 tags"):
        walk_chunks([frame[at : at + size] for at in range(0, len(frame), size)], 16)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_aborted_transaction_with_tags_is_not_understood(which: int) -> None:
    """Law 2: a response is refused if an aborted transaction has unknown tags.

    The length of such a transaction is unknown.
    """
    aborted = [wire.AbortedTransaction(producer_id=9, first_offset=at) for at in range(3)]
    aborted[which] = replace(aborted[which], tags=((3, b"new"),))
    with pytest.raises(Malformed, match="aborted"):
        walked(fetch_response(16, ("t", [entry(0, 5, aborted=tuple(aborted), records=bytes(99))])), 16)


# --- small parts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_response_head_is_how_responses_begin(version: int) -> None:
    layout = LAYOUTS[version]
    frame = fetch_response(
        version, correlation_id=9, throttle_time_ms=300, session_id=77 if version >= 7 else 0
    )
    head = response_head(layout, frame[4:8], 300, 77)
    assert frame == framed(head + layout.count(0) + (b"\0" if layout.flexible else b""))


@pytest.mark.parametrize("exchange", [one for one in live() if one.version in (4, 11, 13, 18)], ids=str)
def test_kio_finds_the_same(exchange: LiveExchange) -> None:
    module = import_module(f"kio.schema.fetch.v{exchange.version}.response")
    body = exchange.response[9 if exchange.version >= 12 else 8 :]
    message, size = entity_reader(module.FetchResponse)(body, 0)
    assert size == len(body)
    walk = walked(exchange.response, exchange.version)
    partitions = [
        (one.partition_index, one.error_code.value) for topic in message.responses for one in topic.partitions
    ]
    assert sorted((partition, error) for _, partition, error, _ in found(walk, exchange.response)) == sorted(
        partitions
    )
    assert walk.session_id == getattr(message, "session_id", 0)
