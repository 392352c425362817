"""The fast reader of leaders and replicas finds what the reader that uses the schema finds."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol.api import ApiKey
from proxy.protocol.messages import read
from proxy.protocol.metadata import (
    IDS_VERSION,
    LAST_VERSION,
    MAX_STEPS,
    layout_of,
    read_replicas,
    with_leaders,
)
from proxy.protocol.primitives import ProtocolError, TooMany
from proxy.protocol.schemas import METADATA
from tests.examples import examples
from tests.protocol.kio_messages import UNKNOWN_TAGS, encode, message_class, messages
from tests.protocol.replicas import VERSIONS, Part, body


def same_as_schema(data: bytes, version: int) -> None:
    """Check that both readers find the same in a response."""
    found = read_replicas(data, version)
    says = read(METADATA, ApiKey.METADATA, version, data, 0)
    assert found.brokers == {broker["node_id"] for broker in says["brokers"]}
    topics = [topic for topic in says["topics"] if not topic["error_code"]]
    assert [topic.name for topic, _ in found.topics] == [topic["name"] or b"" for topic in topics]
    ids = [topic["topic_id"] if version >= 10 and any(topic["topic_id"]) else b"" for topic in topics]
    assert [topic.topic_id for topic, _ in found.topics] == ids
    ends = np.cumsum([len(topic["partitions"]) for topic in topics]).tolist()
    starts = [0, *ends[:-1]][: len(ends)]
    assert [rows for _, rows in found.topics] == [*map(slice, starts, ends)]
    parts: list[Any] = [part for topic in topics for part in topic["partitions"]]
    assert found.partition.tolist() == [part["partition_index"] for part in parts]
    assert found.error.tolist() == [part["error_code"] for part in parts]
    assert found.leader.tolist() == [part["leader_id"] for part in parts]
    assert found.epoch.tolist() == [part.get("leader_epoch", -1) for part in parts]
    assert found.at.tolist() == [part.spans["leader_id"][0] for part in parts]
    for row, part in zip(found.in_sync.tolist(), parts, strict=True):
        offline = part.get("offline_replicas") or []
        assert [each for each in row if each != -1] == [
            each for each in part["isr_nodes"] if each not in offline and each != -1
        ]


def test_topics_with_ids_are_alike_in_all_versions() -> None:
    """So what one version has told can be compared with what another one tells."""
    assert len({layout_of(version) for version in range(IDS_VERSION, LAST_VERSION + 1)}) == 1


@pytest.mark.parametrize("count", [0, 1, 3, 4, 40])
@pytest.mark.parametrize("version", VERSIONS)
def test_partitions_that_are_alike(version: int, count: int) -> None:
    parts = [Part(leader=at % 3 + 1, epoch=at, replicas=(at, 2, 3), offline=(3,)) for at in range(count)]
    same_as_schema(body(version, {"orders": parts, "t": parts}), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions_with_different_replicas(version: int) -> None:
    """One partition of many has fewer in-sync replicas, another one more, and one has none."""
    parts = [Part() for _ in range(20)]
    parts[7], parts[9], parts[19] = (
        Part(isr=(1,)),
        Part(replicas=(1, 2, 3, 4), isr=(4, 2, 1, 3)),
        Part(isr=()),
    )
    same_as_schema(body(version, {"orders": parts, "t": parts[::-1]}), version)


@pytest.mark.parametrize("version", [5, 13])
def test_partitions_with_many_replicas(version: int) -> None:
    """From 127 on, a compact count has two bytes."""
    for counts in ([127, 1, 127, 1, 1], [126, 127, 128, 256], [200] * 5):
        parts = [Part(replicas=(1, 2), isr=tuple(range(count)), offline=(count - 1,)) for count in counts]
        same_as_schema(body(version, {"orders": parts}), version)


@pytest.mark.parametrize("version", range(9, 14))
def test_unknown_tags_are_skipped(version: int) -> None:
    same_as_schema(body(version, {"orders": [Part() for _ in range(9)]}, tags=UNKNOWN_TAGS), version)


def test_topics_with_an_error_are_left_out() -> None:
    data = body(7, {"a": [Part()], "b": [Part()]}, errors={"a": 5})
    assert [topic.name for topic, _ in read_replicas(data, 7).topics] == [b"b"]


@pytest.mark.parametrize("version", VERSIONS)
@examples(20)
@given(data=st.data())
def test_any_response_is_read_as_the_schema_reads_it(version: int, data: st.DataObject) -> None:
    message = data.draw(messages(message_class(3, version)))
    tags = data.draw(st.sampled_from([(), UNKNOWN_TAGS])) if version >= 9 else ()
    same_as_schema(encode(message, tags), version)


@pytest.mark.parametrize("version", [1, 5, 8, 9, 13])
def test_what_is_cut_off_or_longer_is_refused(version: int) -> None:
    whole = body(version, {"orders": [Part() for _ in range(6)], "t": [Part(isr=(1,)), Part()]})
    for size in range(len(whole)):
        with pytest.raises(ProtocolError):
            read_replicas(whole[:size], version)
    with pytest.raises(ProtocolError):
        read_replicas(whole + b"\0", version)


@pytest.mark.parametrize("version", [1, 9])
@examples(200)
@given(data=st.data())
def test_damaged_bytes_raise_nothing_else(version: int, data: st.DataObject) -> None:
    whole = bytearray(body(version, {"orders": [Part() for _ in range(5)], "t": [Part(isr=(1,))]}))
    for at in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=4)):
        whole[at] = data.draw(st.integers(0, 255))
    with suppress(ProtocolError):
        read_replicas(bytes(whole), version)


def test_a_response_that_would_cost_too_much_is_refused() -> None:
    """Ten thousand partitions that are alike cost little. So do not as many topics."""
    read_replicas(body(9, {"orders": [Part() for _ in range(10_000)]}), 9)
    with pytest.raises(TooMany):
        read_replicas(body(9, {f"t{number}": [Part()] for number in range(MAX_STEPS // 16)}), 9)
    with pytest.raises(TooMany):  # partitions of different sizes are read one by one
        read_replicas(body(9, {"orders": [Part(), Part(isr=(1, 2))] * (MAX_STEPS // 2 + 1)}), 9)
    with pytest.raises(TooMany):
        read_replicas(body(9, {"orders": [Part(isr=tuple(range(257)))]}), 9)
    with pytest.raises(TooMany):
        read_replicas(body(9, {"orders": [Part()] * 10_000, "t": [Part(isr=tuple(range(256)))]}), 9)


@pytest.mark.parametrize("version", [1, 13])
def test_leaders_are_replaced_and_nothing_else(version: int) -> None:
    parts = [Part(leader=at % 3 + 1) for at in range(5)]
    found = read_replicas(before := body(version, {"orders": parts}), version)
    after = with_leaders(before, found.at[1:3], np.array([7, -1], np.int32))
    parts[1:3] = [parts[1]._replace(leader=7), parts[2]._replace(leader=-1)]
    assert after == body(version, {"orders": parts})
