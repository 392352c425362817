"""The response limit that the gateway puts into fetches of v2 and v3. The frames are those of KIP-74."""

import pytest

from proxy.protocol.old_fetch import limit_old_fetch
from proxy.protocol.primitives import ProtocolError
from tests.frames import framed

HEADER = b"\0\0\0\x09\0\1c"
"""The end of a request header: correlation id and client id."""
BODY = 4 + 4 + len(HEADER)

Topics = dict[str, list[int]]


def asked(
    version: int, topics: Topics, *, min_bytes: int = 1, max_bytes: int = 0, replica: int = -1
) -> bytes:
    """Build a fetch of v2 or v3. The fetch offset of an entry is its partition + 7."""
    limits = replica.to_bytes(4, signed=True) + (500).to_bytes(4) + min_bytes.to_bytes(4)
    limits += max_bytes.to_bytes(4, signed=True) if version == 3 else b""
    elements = b"".join(
        len(name).to_bytes(2)
        + name.encode()
        + len(partitions).to_bytes(4)
        + b"".join(map(_entry, partitions))
        for name, partitions in topics.items()
    )
    return framed(b"\0\1" + version.to_bytes(2) + HEADER + limits + len(topics).to_bytes(4) + elements)


def _entry(partition: int) -> bytes:
    return partition.to_bytes(4) + (partition + 7).to_bytes(8) + (1 << 20).to_bytes(4)


def test_v2_becomes_v3() -> None:
    topics = {"t": [0, 1], "u": [5]}

    assert limit_old_fetch(asked(2, topics), BODY, 900, 0) == asked(3, topics, max_bytes=900)


def test_min_bytes_is_lowered_with_it() -> None:
    """min_bytes is lowered together with max_bytes. Otherwise brokers up to 2.4 would always wait for
    max_wait_ms (section 4).
    """
    topics = {"t": [0]}
    for version in (2, 3):
        given = asked(version, topics, min_bytes=1_000, max_bytes=5_000)
        assert limit_old_fetch(given, BODY, 900, 0) == asked(3, topics, min_bytes=900, max_bytes=900)


@pytest.mark.parametrize("max_bytes", [-1, 0, 1, 899, 900])
def test_v3_is_never_made_larger(max_bytes: int) -> None:
    given = asked(3, {"t": [0]}, min_bytes=5_000, max_bytes=max_bytes)

    assert limit_old_fetch(given, BODY, 900, 3) == given


@pytest.mark.parametrize("version", [2, 3])
def test_a_followers_fetch_stays_as_it_is(version: int) -> None:
    """Trap 2: a follower's fetch is not changed."""
    given = asked(version, {"t": [0]}, replica=1, max_bytes=5_000)

    assert limit_old_fetch(given, BODY, 900, 0) == given


def test_each_partition_of_v2_is_the_first_in_turn() -> None:
    topics = {"t": [0, 1, 2], "u": [5], "v": [3, 4]}
    firsts = []
    for turn in range(18):
        order = ["t", "u", "v"][turn % 3 :] + ["t", "u", "v"][: turn % 3]
        turned = {}
        for name in order:
            at = turn // 3 % len(topics[name])
            turned[name] = topics[name][at:] + topics[name][:at]
        assert limit_old_fetch(asked(2, topics), BODY, 900, turn) == asked(3, turned, max_bytes=900)
        firsts.append((order[0], turned[order[0]][0]))
    assert {first: firsts.count(first) for first in firsts} == {
        ("t", 0): 2, ("t", 1): 2, ("t", 2): 2, ("u", 5): 6, ("v", 3): 3, ("v", 4): 3,
    }  # fmt: skip


def test_no_topics_and_a_topic_without_partitions() -> None:
    for topics in (Topics(), {"t": list[int](), "u": [1]}):
        assert limit_old_fetch(asked(2, topics), BODY, 900, 0) == asked(3, topics, max_bytes=900)


def test_what_is_not_as_v2_says_is_refused() -> None:
    whole = asked(2, {"t": [0, 1]})
    for broken in (whole + b"\0", *(whole[:at] for at in range(BODY, len(whole)))):
        with pytest.raises(ProtocolError):
            limit_old_fetch(broken, BODY, 900, 0)
