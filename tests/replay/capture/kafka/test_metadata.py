from proxy.protocol.primitives import encode_compact_count, encode_compact_string
from replay.capture.kafka.pairing import learn_topics

_ID = bytes(range(16))


def _partition() -> bytes:
    nodes = encode_compact_count(2) + bytes(8)
    return bytes(14) + nodes * 3 + b"\0"


def _topic(name: bytes | None, topic_id: bytes, error: int = 0, partitions: int = 2) -> bytes:
    listed = encode_compact_count(partitions) + _partition() * partitions
    return error.to_bytes(2) + encode_compact_string(name) + topic_id + b"\0" + listed + bytes(4) + b"\0"


def _response(*topics: bytes) -> bytes:
    broker = bytes(4) + encode_compact_string(b"host") + bytes(4) + encode_compact_string(None) + b"\0"
    head = b"\0" + bytes(4) + encode_compact_count(1) + broker + encode_compact_string(b"cluster") + bytes(4)
    return bytes(8) + head + encode_compact_count(len(topics)) + b"".join(topics) + b"\0"


def test_names_go_with_ids() -> None:
    topics: dict[bytes, str] = {}
    learn_topics(_response(_topic(b"a", _ID), _topic(b"b", _ID[::-1])), 12, topics)
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
