from collections.abc import Sequence

import pytest

from proxy.protocol.primitives import encode_compact_count, encode_compact_string
from replay.capture.kafka.pairing import learn_topics

_ID = bytes(range(16))


def _partition(*replicas: int, tags: bytes = b"\0") -> bytes:
    nodes = (encode_compact_count(count) + bytes(4 * count) for count in replicas or (2, 2, 2))
    return bytes(14) + b"".join(nodes) + tags


def _topic(name: bytes | None, topic_id: bytes, error: int = 0, partitions: Sequence[bytes] = ()) -> bytes:
    each = partitions or [_partition()] * 2
    listed = encode_compact_count(len(each)) + b"".join(each)
    return error.to_bytes(2) + encode_compact_string(name) + topic_id + b"\0" + listed + bytes(4) + b"\0"


def _response(*topics: bytes) -> bytes:
    broker = bytes(4) + encode_compact_string(b"host") + bytes(4) + encode_compact_string(None) + b"\0"
    head = b"\0" + bytes(4) + encode_compact_count(1) + broker + encode_compact_string(b"cluster") + bytes(4)
    return bytes(8) + head + encode_compact_count(len(topics)) + b"".join(topics) + b"\0"


def test_names_go_with_ids() -> None:
    topics: dict[bytes, str] = {}
    learn_topics(_response(_topic(b"a", _ID), _topic(b"b", _ID[::-1])), 12, topics)
    assert topics == {_ID: "a", _ID[::-1]: "b"}


@pytest.mark.parametrize(
    "partitions",
    [
        [_partition()],
        [_partition(3, 1, 2)] * 50,
        [_partition(3, 3, 0), _partition(3, 2, 1), _partition(3, 3, 0)],
        [_partition(1, 1, 0), _partition(1, 1, 1)],
        [_partition(200, 200, 0)] * 3,
        [_partition(127, 1, 0), _partition(128, 1, 0)],
        [_partition(128, 1, 0), _partition(256, 1, 0)],
        [_partition(2, 2, 0, tags=b"\1\0\1x"), _partition(2, 2, 0, tags=b"\1\0\5abcde")],
        [_partition(2, 2, 0), _partition(2, 2, 0, tags=b"\1\0\1x"), _partition()],
    ],
)
def test_topics_follow_partitions_of_any_form(partitions: list[bytes]) -> None:
    topics: dict[bytes, str] = {}
    learn_topics(_response(_topic(b"a", _ID, partitions=partitions), _topic(b"b", _ID[::-1])), 12, topics)
    assert topics == {_ID: "a", _ID[::-1]: "b"}


def test_topics_that_err_or_lack_one_of_both_teach_nothing() -> None:
    topics: dict[bytes, str] = {}
    learn_topics(
        _response(_topic(b"a", _ID, error=3), _topic(None, _ID), _topic(b"c", bytes(16))), 13, topics
    )
    assert topics == {}


def test_other_versions_and_half_a_response_teach_what_they_can() -> None:
    topics: dict[bytes, str] = {}
    frame = _response(_topic(b"a", _ID), _topic(b"b", _ID[::-1]))
    learn_topics(frame, 9, topics)
    assert topics == {}
    learn_topics(frame[:-40], 12, topics)
    assert topics == {_ID: "a"}
