"""All leaders (current_leader) in Produce v13, ShareFetch and ShareAcknowledge responses are found, as by
kio.
"""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given

from proxy.protocol.leader_requests import read_leaders
from proxy.protocol.metadata import MAX_LEADERS, LeaderHint
from proxy.protocol.primitives import ProtocolError
from tests.examples import examples
from tests.protocol.kio_messages import UNKNOWN_TAGS, encode, message_class, messages

NAMING = [(0, 13), (78, 1), (78, 2), (79, 1), (79, 2)]


def named(message: Any) -> list[LeaderHint]:
    """Return the leaders that kio's object names."""
    found = []
    for topic in message.responses:
        partitions: Any = getattr(topic, "partition_responses", ()) or getattr(topic, "partitions", ())
        for partition in partitions:
            leader = partition.current_leader
            index = partition.index if hasattr(partition, "index") else partition.partition_index
            if (
                not hasattr(partition, "index") or leader != type(leader)()
            ):  # the tag of Produce may be absent
                topic_id = (topic.topic_id or UUID(int=0)).bytes
                found.append(LeaderHint(topic_id, index, leader.leader_id, leader.leader_epoch))
    return found


@pytest.mark.parametrize(("key", "version"), NAMING)
def test_all_leaders_are_found_and_unknown_tags_are_skipped(key: int, version: int) -> None:
    """Case 66: all leaders are found, and unknown tags are skipped. A truncated response is refused."""

    @examples(30)
    @given(messages(message_class(key, version)))
    def check(message: Any) -> None:
        body = encode(message, UNKNOWN_TAGS)
        assert read_leaders(key, version, body) == named(message)
        for size in range(len(body)):
            try:
                read_leaders(key, version, body[:size])
            except ProtocolError:
                continue
            raise AssertionError(size)

    check()


@pytest.mark.parametrize(("key", "version"), [(0, 10), (0, 12), (0, 14), (3, 12), (10, 4), (18, 0), (99, 0)])
def test_others_name_no_leader_by_topic_id(key: int, version: int) -> None:
    assert read_leaders(key, version, b"") == []


def test_no_more_are_read_than_anybody_needs() -> None:
    entry = bytes(4 + 2) + b"\1" + bytes(8) + b"\0\0"
    count = MAX_LEADERS + 10
    partitions = bytes([(count + 1) & 0x7F | 0x80, (count + 1) >> 7]) + count * entry
    body = bytes(4 + 2) + b"\1" + bytes(4) + b"\2" + bytes(16) + partitions + b"\0" + b"\1\0"
    assert len(read_leaders(79, 2, body)) == MAX_LEADERS
