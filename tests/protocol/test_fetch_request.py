"""Fetch requests are parsed and rebuilt to the same bytes.

Truncated requests are refused. For damaged requests, the only possible error is ProtocolError. Some requests
come from live clients, and others are generated.
"""

import contextlib
import json
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kio.serial import entity_reader

from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_request import (
    FetchRequest,
    Listing,
    _TopicsWalk,
    build_fetch_request,
    parse_fetch_request,
)
from proxy.protocol.primitives import Malformed, ProtocolError, Truncated
from tests.examples import examples
from tests.frames import (
    DATA,
    EVERY_VERSION,
    SESSION_VERSIONS,
    VERSIONS,
    LiveExchange,
    fetch,
    framed,
    live,
    named,
    parsed,
    topic_id,
    wire_key,
)
from tests.model import wire

SCHEMA = json.loads((DATA / "fetch-schema.json").read_text())["requests"]
OUT_OF_BOUNDS = 0x7FFF_FFFF


def listed(listing: Listing) -> list[tuple[bytes, int, bytes]]:
    """Return the entries of a listing as tuples of topic, partition number and bytes of the entry."""
    partitions = listing.entries.view(listing.layout.request_fields)["partition"].tolist()
    keys = [key for key, count in zip(listing.keys, listing.counts, strict=True) for _ in range(count)]
    entries = [item.tobytes() for item in listing.entries]
    return list(zip(keys, partitions, entries, strict=True))


def told(request: wire.FetchRequest) -> list[tuple[bytes, int]]:
    """Return (topic, partition) for each entry of a request that the test's own codec has decoded."""
    return [
        (topic.topic_id if request.version >= 13 else topic.topic.encode(), part.partition)
        for topic in request.topics
        for part in topic.partitions
    ]


def forgotten(request: wire.FetchRequest) -> list[tuple[bytes, bytes]]:
    return [
        (
            topic.topic_id if request.version >= 13 else topic.topic.encode(),
            np.array(topic.partitions, ">i4").tobytes(),
        )
        for topic in request.forgotten
    ]


def rebuilt(view: FetchRequest, decoded: wire.FetchRequest) -> bytes:
    assert view.listing is not None
    session = (view.session_id, view.session_epoch)
    return build_fetch_request(view, view.layout, session, view.listing.topics(), forgotten(decoded))


def header(version: int) -> bytes:
    """Build a request header with a null client id."""
    return b"\0\1" + version.to_bytes(2) + b"\0\0\0\7\xff\xff" + (b"\0" if version >= 12 else b"")


# --- bytes that are known -------------------------------------------------------------------------


@pytest.mark.parametrize("version", [int(version) for version in SCHEMA])
def test_bodies_of_the_schemas(version: int) -> None:
    frame = framed(header(version) + bytes.fromhex(SCHEMA[str(version)]))
    view = parsed(frame)
    assert (view.max_wait_ms, view.isolation_level, view.unsupported_reason) == (500, 1, "")
    assert (view.session_id, view.session_epoch, view.partitions) == (0, -1, 2)
    assert view.listing is not None
    key = bytes(range(1, 17)) if version >= 13 else b"tt"
    assert [(topic, partition) for topic, partition, _ in listed(view.listing)] == [(key, 0), (key, 3)]
    if version >= 7:
        assert rebuilt(view, wire.decode_request(frame[4:])) == frame


def test_an_incremental_fetch_to_the_byte() -> None:
    """The v13 incremental fetch of session 77, epoch 3, is built byte for byte.

    It sets partition 3 to offset 10, and forgets partition 0.
    """
    key = bytes(range(1, 17))
    full = parsed(framed(header(13) + bytes.fromhex(SCHEMA["13"])))
    entry = bytes.fromhex("00000003 00000005 000000000000000a ffffffff ffffffffffffffff 00100000 00")
    frame = build_fetch_request(full, full.layout, (77, 3), [(key, entry)], [(key, bytes(4))])
    body = (
        "ffffffff000001f40000000103200000010000004d00000003020102030405060708090a0b0c0d0e0f100200000003000000"
        "05000000000000000affffffffffffffffffffffff001000000000020102030405060708090a0b0c0d0e0f10020000000000"
        "027200"
    )
    assert frame == framed(header(13) + bytes.fromhex(body))


def test_an_incremental_fetch_without_changes_to_the_byte() -> None:
    full = parsed(framed(header(7) + bytes.fromhex(SCHEMA["7"])))
    frame = build_fetch_request(full, full.layout, (77, 3))
    body = "ffffffff000001f40000000103200000010000004d000000030000000000000000"
    assert frame == framed(header(7) + bytes.fromhex(body))


def read_and_rebuilt(exchange: LiveExchange) -> None:
    decoded = wire.decode_request(exchange.request[4:])
    view = parsed(exchange.request)
    assert (view.session_id, view.session_epoch) == (decoded.session_id, decoded.session_epoch)
    assert (view.max_wait_ms, view.isolation_level) == (decoded.max_wait_ms, decoded.isolation_level)
    if view.listing is None:
        assert view.unsupported_reason == "not a consumer"
        return
    assert [(key, partition) for key, partition, _ in listed(view.listing)] == told(decoded)
    assert view.partitions == len(told(decoded))
    if exchange.version >= 7:
        assert rebuilt(view, decoded) == exchange.request
        assert view.with_session(view.session_id, view.session_epoch) == exchange.request


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_live_requests_are_read_and_rebuilt(version: int) -> None:
    for exchange in live(version):
        read_and_rebuilt(exchange)


# --- generated ------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "topic-1", "n" * 126, "n" * 127, "n" * 249])
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TAGS = st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=4)), max_size=2).map(
    lambda tags: tuple(sorted(dict(tags).items()))
)


@st.composite
def requests(draw: st.DrawFn, version: int, *, tags: bool = False) -> wire.FetchRequest:
    """Generate requests of a version.

    With `tags`, some requests have tags, at any place where tags are possible.
    """

    def extra() -> Any:
        return draw(TAGS) if tags and version >= 12 else ()

    def part() -> wire.FetchPartition:
        return wire.FetchPartition(
            partition=draw(st.integers(0, 2**31 - 1)),
            fetch_offset=draw(INT64),
            partition_max_bytes=draw(INT32),
            current_leader_epoch=draw(INT32) if version >= 9 else -1,
            last_fetched_epoch=draw(INT32) if version >= 12 else -1,
            log_start_offset=draw(INT64) if version >= 5 else -1,
            tags=extra(),
        )

    size = st.integers(0, 4)
    topics = tuple(
        wire.FetchTopic(
            **named(version, draw(NAMES)[:16]),
            partitions=tuple(part() for _ in range(draw(size))),
            tags=extra(),
        )
        for _ in range(draw(size))
    )
    return wire.FetchRequest(
        version=version,
        client_id=draw(st.sampled_from([None, "", "client"])),
        header_tags=extra(),
        max_wait_ms=draw(INT32),
        min_bytes=draw(INT32),
        max_bytes=draw(INT32),
        isolation_level=draw(st.integers(0, 1)),
        session_id=draw(INT32) if version >= 7 else 0,
        session_epoch=draw(INT32) if version >= 7 else -1,
        topics=topics,
        forgotten=draw(
            st.just(()) | st.just((wire.ForgottenTopic(**named(version, "f"), partitions=(1, 2)),))
        )
        if version >= 7
        else (),
        rack_id=draw(st.sampled_from(["", "rack"])) if version >= 11 else "",
        tags=extra(),
    )


def merged(request: wire.FetchRequest) -> wire.FetchRequest:
    """Merge consecutive elements of a topic, and leave out empty elements, as a broker does."""
    topics: list[wire.FetchTopic] = []
    for topic in request.topics:
        if not topic.partitions:
            continue
        if topics and (topics[-1].topic, topics[-1].topic_id) == (topic.topic, topic.topic_id):
            topics[-1] = replace(topics[-1], partitions=topics[-1].partitions + topic.partitions)
        else:
            topics.append(topic)
    return replace(request, topics=tuple(topics))


@pytest.mark.parametrize("version", VERSIONS)
def test_build_then_parse_is_the_identity(version: int) -> None:
    @examples(15)
    @given(requests(version))
    def check(request: wire.FetchRequest) -> None:
        view = parsed(framed(wire.encode_request(request)))
        if request.forgotten and request.session_id == 0 and request.session_epoch <= 0:
            assert (view.listing, view.unsupported_reason) == (None, "forgets without a session")
            return
        assert view.unsupported_reason == ""
        assert view.listing is not None
        assert [(key, partition) for key, partition, _ in listed(view.listing)] == told(request)
        assert (view.session_id, view.session_epoch) == (request.session_id, request.session_epoch)
        if version >= 7:
            assert rebuilt(view, request) == framed(wire.encode_request(merged(request)))

    check()


@pytest.mark.parametrize("version", [12, 14, 15, 18])
def test_requests_with_tags_are_noted_and_not_taken(version: int) -> None:
    """Trap 46: a request with tags is marked as unsupported and has no listing.

    From v15 on, tag 1 is ``replica_state`` (KIP-903): any replica in it but -1 is named first.
    """

    @examples(40)
    @given(requests(version, tags=True))
    @example(wire.FetchRequest(version=version, tags=((1, bytes(4)),)))
    @example(wire.FetchRequest(version=version, tags=((1, b"\xff" * 4),)))
    def check(request: wire.FetchRequest) -> None:
        tagged = bool(request.tags) or any(
            topic.tags or any(part.tags for part in topic.partitions) for topic in request.topics
        )
        view = parsed(framed(wire.encode_request(request)))
        assert view.partitions == len(told(request))
        state = dict(request.tags).get(1, b"") if version >= 15 else b""
        replica = len(state) >= 4 and state[:4] != b"\xff" * 4
        assert (view.unsupported_reason == "not a consumer") is replica
        assert (view.unsupported_reason == "tags") is (tagged and not replica)
        assert (view.listing is None) is bool(view.unsupported_reason)

    check()


@pytest.mark.parametrize("version", [4, 7, 9, 11, 12, 13, 16, 18])
def test_cut_anywhere_is_refused(version: int) -> None:
    frame = fetch(version, ("a", 0, 5), ("a", 1), ("b", 0), rack_id="r" if version >= 11 else "")
    body = len(header(version)) + 1 + 4
    for size in range(body, len(frame)):
        with pytest.raises(ProtocolError):
            parse_fetch_request(frame[:size], version, body)
    with pytest.raises(Malformed, match="1 bytes after"):
        parse_fetch_request(frame + b"\0", version, body)


@pytest.mark.parametrize("version", VERSIONS)
def test_noise_raises_protocol_errors_only(version: int) -> None:
    good = fetch(version, *((name, index) for name in "abcdefghij" for index in range(2)))
    body = len(header(version)) + 1 + 4

    @examples(40)
    @given(st.binary(max_size=120), st.integers(body, len(good)), st.integers(0, 8))
    def check(noise: bytes, at: int, cut: int) -> None:
        for frame in (good[:body] + noise, good[:at] + noise, good[:at] + noise + good[at + cut :]):
            with contextlib.suppress(ProtocolError):
                view = parse_fetch_request(frame, version, body)
                assert view.partitions <= len(frame)

    check()


@pytest.mark.parametrize("version", [4, 7, 11, 12, 13, 18])
@pytest.mark.parametrize("count", [OUT_OF_BOUNDS, 0x0010_0000, -2])
def test_hostile_counts(version: int, count: int) -> None:
    """A request is refused if a count in it is negative, or too high for the received bytes."""
    layout = LAYOUTS[version]
    frame = fetch(version, ("a", 0))
    at = len(header(version)) + 1 + 4 + layout.request_head
    written = count.to_bytes(4, signed=True)
    if layout.flexible:
        written = layout.count(count) if count > 0 else b"\xff\xff\xff\xff\xff\x01"
    spoilt = frame[:at] + written + frame[at + len(layout.count(1)) :]
    with pytest.raises(ProtocolError):
        parse_fetch_request(spoilt, version, at - layout.request_head)
    at += len(layout.count(1)) + len(layout.prefix(wire_key(version, "a"), 1)) - len(layout.count(1))
    spoilt = frame[:at] + written + frame[at + len(layout.count(1)) :]
    with pytest.raises(ProtocolError):
        parse_fetch_request(spoilt, version, len(header(version)) + 1 + 4)


# --- uniform topics are read at once --------------------------------------------------------------


def walk_one_by_one(view: FetchRequest) -> Listing:
    """Read the topics of a request with the slow method, which works for topics of any lengths."""
    assert view.listing is not None
    walk = _TopicsWalk(view.frame, view.layout)
    topics = len(view.listing.keys)
    at = view.body + view.layout.request_head + len(view.layout.count(topics))
    for _ in range(topics):
        at = walk.element(at)
    return walk.topics.listing(view.frame)


@pytest.mark.parametrize("version", [4, 7, 9, 11, 12, 13, 18])
@pytest.mark.parametrize("each", [1, 2, 3])
def test_uniform_topics_give_what_the_general_walk_gives(version: int, each: int) -> None:
    """Trap 46: topics of equal length are parsed by a faster method.

    Its result equals that of the slow method.
    """
    wants = [(f"t{number:02}", index, number * index) for number in range(20) for index in range(each)]
    view = parsed(fetch(version, *wants))
    assert view.listing is not None
    assert len(view.listing.keys) == 20
    assert listed(view.listing) == listed(walk_one_by_one(view))
    assert [(key, partition) for key, partition, _ in listed(view.listing)] == [
        (wire_key(version, name), index) for name, index, _ in wants
    ]


@pytest.mark.parametrize("version", [7, 12, 16])
@pytest.mark.parametrize("odd_one", range(9))
@pytest.mark.parametrize("names", [["t", "tt"], ["t", "u"]])
def test_one_topic_of_another_shape(version: int, odd_one: int, names: list[str]) -> None:
    """The topics of a request are parsed correctly if one of them, at any place, differs from the rest.

    This topic has another name length, or another number of partitions.
    """
    topics = [f"{names[number == odd_one]}{number}" for number in range(9)]
    more = names[1] == "u"
    wants = [
        (name, index)
        for number, name in enumerate(topics)
        for index in range(3 if more and number == odd_one else 2)
    ]
    view = parsed(fetch(version, *wants))
    assert view.listing is not None
    assert [(key, partition) for key, partition, _ in listed(view.listing)] == [
        (wire_key(version, name), index) for name, index in wants
    ]


@pytest.mark.parametrize("version", [7, 12, 16])
def test_topics_that_come_twice(version: int) -> None:
    """Trap 48: consecutive elements of the same topic are merged into one element.

    If the topic is listed again after another topic, that is a separate element with the same key.
    """
    layout = LAYOUTS[version]
    frame = fetch(version, *((name, 0) for name in "abcdefghija"))
    view = parsed(frame)
    assert view.listing is not None
    assert view.listing.keys == [wire_key(version, name) for name in "abcdefghija"]
    element = layout.prefix(wire_key(version, "a"), 1) + bytes(layout.request_entry)
    element += b"\0" if layout.flexible else b""
    at = view.body + layout.request_head
    twins = frame[:at] + layout.count(10) + element * 10 + frame[view.tail - len(layout.count(0)) :]
    view = parsed(twins)
    assert view.listing is not None
    assert (view.listing.keys, view.listing.counts) == ([wire_key(version, "a")], [10])


@pytest.mark.parametrize("version", [7, 11, 12])
def test_topics_without_names(version: int) -> None:
    """Topics with an empty name are parsed like other topics, although no broker has such topics."""
    layout = LAYOUTS[version]
    frame = fetch(version, *(("", index) for index in range(9)))
    view = parsed(frame)
    element = layout.prefix(b"", 1) + bytes(layout.request_entry) + (b"\0" if layout.flexible else b"")
    at = view.body + layout.request_head
    frame = frame[:at] + layout.count(9) + element * 9 + frame[view.tail - len(layout.count(0)) :]
    listing = parsed(frame).listing
    assert listing is not None
    assert (listing.keys, listing.counts) == ([b""], [9])


@pytest.mark.parametrize("version", [12, 13, 18])
@pytest.mark.parametrize("tagged", range(10))
def test_one_tag_among_uniform_topics(version: int, tagged: int) -> None:
    """Trap 46: if one entry among topics of equal length has a tag, the gateway finds it.

    The whole request then counts as having tags.
    """
    part = wire.FetchPartition(partition=0, fetch_offset=1)
    topics = tuple(
        wire.FetchTopic(
            **named(version, f"t{number}"),
            partitions=(part, replace(part, partition=1, tags=((7, b"x"),) if number == tagged else ())),
        )
        for number in range(10)
    )
    view = parsed(framed(wire.encode_request(wire.FetchRequest(version=version, topics=topics))))
    assert (view.unsupported_reason, view.listing, view.partitions) == ("tags", None, 20)


# --- who is not a consumer ------------------------------------------------------------------------

REPLICA_STATE = (1, bytes.fromhex("00000003 0000000000000007 00"))
CLUSTER_ID = (0, b"\x02k")
MARKS = (
    (REPLICA_STATE,),
    (CLUSTER_ID, REPLICA_STATE),  # a controller's (KRaft)
    (CLUSTER_ID,),
    ((1, b"\xff" * 12 + b"\0"),),
    ((1, b"\0\0"),),
)


@pytest.mark.parametrize("version", range(4, 15))
@pytest.mark.parametrize("replica_id", [0, 1, -2])
def test_replicas_are_not_taken(version: int, replica_id: int) -> None:
    """Trap 2: a fetch with any replica id other than -1 has no listing, so it is forwarded."""
    view = parsed(fetch(version, ("a", 0), replica_id=replica_id))
    assert (view.listing, view.unsupported_reason) == (None, "not a consumer")


@pytest.mark.parametrize("version", range(15, 19))
@pytest.mark.parametrize("session", [(0, -1), (0, 0), (77, 3)])
def test_from_v15_on_the_replica_id_is_in_a_tag(version: int, session: tuple[int, int]) -> None:
    """Trap 2: a follower's fetch is forwarded. So is one with another tag, or a consumer's tag."""
    views = [parsed(fetch(version, ("a", 0), session=session, tags=tags)) for tags in MARKS]
    assert [view.listing for view in views] == [None] * len(MARKS)
    assert [view.unsupported_reason for view in views] == [*["not a consumer"] * 2, *["tags"] * 3]


def test_null_is_no_rack_no_topic_no_partitions() -> None:
    frame = fetch(11, ("a", 0))
    with pytest.raises(Malformed, match="rack_id"):
        parsed(framed(frame[4:-2] + b"\xff\xff"))
    at = 4 + 10 + 1 + LAYOUTS[11].request_head + 4
    with pytest.raises(Malformed, match="topic is null"):
        parsed(frame[:at] + b"\xff\xff" + frame[at + 3 :])
    with pytest.raises(Malformed, match="partitions are null"):
        parsed(frame[: at + 3] + b"\xff\xff\xff\xff" + frame[at + 7 :])


def test_a_body_that_ends_before_its_lists() -> None:
    frame = fetch(16, ("a", 0))
    with pytest.raises(Truncated):
        parse_fetch_request(frame[:20], 16, 16)


# --- a second opinion -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_kio_reads_what_is_built(version: int) -> None:
    view = parsed(fetch(version, ("a", 0, 5), ("a", 1, 6), ("b", 2, 7)))
    assert view.listing is not None
    key = wire_key(version, "gone")
    frame = build_fetch_request(
        view, view.layout, (77, 3), view.listing.topics(), [(key, np.array([4, 5], ">i4").tobytes())]
    )
    message = kio_request(frame, version)
    assert (message.session_id, message.session_epoch) == (77, 3)
    assert [[part.fetch_offset for part in topic.partitions] for topic in message.topics] == [[5, 6], [7]]
    (dropped,) = message.forgotten_topics_data
    assert (dropped.topic_id.bytes if version >= 13 else dropped.topic.encode()) == key
    assert dropped.partitions == (4, 5)


def kio_request(frame: bytes, version: int) -> Any:
    module = import_module(f"kio.schema.fetch.v{version}.request")
    headers = import_module(f"kio.schema.request_header.v{2 if version >= 12 else 1}.header")
    _, at = entity_reader(headers.RequestHeader)(frame[4:], 0)
    body = frame[4 + at :]
    message, size = entity_reader(module.FetchRequest)(body, 0)
    assert size == len(body)
    return message


def test_topic_ids_keep_their_zeros() -> None:
    listing = parsed(fetch(16, *((name, 0) for name in "abcdefghij"))).listing
    assert listing is not None
    assert listing.keys == [topic_id(name) for name in "abcdefghij"]


@pytest.mark.parametrize("version", [7, 12, 16])
def test_topics_without_partitions(version: int) -> None:
    """A request with a few topics without partitions is parsed. A request with many is refused.

    No client has a reason to send many.
    """
    layout = LAYOUTS[version]
    view = parsed(fetch(version))
    element = layout.prefix(wire_key(version, "t"), 0) + (b"\0" if layout.flexible else b"")
    at = view.body + layout.request_head

    def with_bare(count: int) -> bytes:
        head, tail = view.frame[:at], view.frame[at + len(layout.count(0)) :]
        return head + layout.count(count) + element * count + tail

    few = parsed(with_bare(256))
    assert few.listing is not None
    assert (few.partitions, few.listing.keys) == (0, [])
    with pytest.raises(Malformed, match="without partitions"):
        parsed(with_bare(257))


def test_forgotten_topics_that_go_beyond_the_end() -> None:
    frame = fetch(7, ("a", 0), forget=[("b", 1)], session=(5, 1))
    assert parsed(frame).unsupported_reason == ""
    with pytest.raises(Truncated, match="forgotten"):
        parsed(frame[:-8] + b"\0\0\0\3" + frame[-4:])


def test_forgetting_without_a_session_is_odd() -> None:
    view = parsed(fetch(16, ("a", 0), forget=[("b", 1)]))
    assert (view.unsupported_reason, view.listing) == ("forgets without a session", None)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "limits", [{}, {"max_wait_ms": 9}, {"max_bytes": 900, "min_bytes": -1}, {"min_bytes": 2_147_483_647}]
)
def test_other_limits_change_nothing_else(version: int, limits: dict[str, int]) -> None:
    given: dict[str, Any] = {"max_wait_ms": 500, "min_bytes": 5_000, "max_bytes": 1 << 20}
    changed = parsed(fetch(version, ("t", 0, 3), isolation_level=1, **given)).with_limits(**limits)
    due = parsed(fetch(version, ("t", 0, 3), isolation_level=1, **given | limits))
    assert changed.frame == due.frame
    assert (changed.max_wait_ms, changed.isolation_level) == (due.max_wait_ms, 1)
