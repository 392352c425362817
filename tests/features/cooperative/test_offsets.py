"""A group message with an unknown field is refused, because the gateway would lose this field.

The gateway encodes group messages again.
"""

import pytest

from proxy.features.cooperative.offsets import read_commit
from proxy.features.cooperative.wire import string
from proxy.protocol.api import ApiKey
from proxy.protocol.messages import Struct, request
from proxy.protocol.primitives import Malformed
from proxy.protocol.schemas import OFFSET_COMMIT_REQUEST

TAG = b"\x01\x63\x02ab"


def commit(entry_tags: bytes = b"\0", end: bytes = b"\0") -> bytes:
    entry = Struct((), flexible=True)
    entry |= {
        "partition_index": 3,
        "committed_offset": 5,
        "committed_leader_epoch": -1,
        "committed_metadata": None,
    }
    entry.tags = entry_tags
    frame = request(
        OFFSET_COMMIT_REQUEST,
        ApiKey.OFFSET_COMMIT,
        8,
        1,
        b"me",
        group_id=b"g",
        generation_id=1,
        member_id=b"m",
        group_instance_id=None,
        topics=[{"name": b"t", "partitions": [entry]}],
    )
    content = frame[4:-1] + end
    return len(content).to_bytes(4) + content


def test_a_tag_that_is_not_known_stays_where_the_message_ends() -> None:
    read = read_commit(commit(end=TAG))
    assert read.with_entries(read.entries) == commit(end=TAG)


def test_a_tag_of_an_entry_which_would_be_lost_is_refused() -> None:
    with pytest.raises(Malformed, match="an element with tags"):
        read_commit(commit(entry_tags=TAG))


def test_a_string_that_must_not_be_null() -> None:
    fields = Struct((), flexible=False)
    fields["group_id"] = None
    with pytest.raises(Malformed, match="group_id is null"):
        string(fields, "group_id")
