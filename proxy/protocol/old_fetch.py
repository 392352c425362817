"""Fetch v2 and v3, the last versions before v4: a response limit for clients that have one or none.

v3 brought max_bytes, and changed nothing else in requests and responses (KIP-74; fetch-semantics 1.3, 1.4). A
broker that takes both converts records for both to the same format. So a fetch of v2 can go as v3. Fetches of
v0 and v1 can't: their records have an older format (fetch-semantics 1.6).
"""

from typing import Final

from proxy.protocol.api import API_KEY, REQUEST_CORRELATION_ID
from proxy.protocol.fetch_request import lower_max_bytes
from proxy.protocol.primitives import Malformed, Truncated, read_count, read_int16, read_int32

LIMITED: Final = 3
"""The first version with max_bytes."""
UNLIMITED: Final = 2
"""The last version without it."""

_CONSUMER: Final = -1
_MIN_BYTES_AT: Final = 8
"""Offset of min_bytes in the body, behind replica_id and max_wait_ms."""
_TOPICS_AT: Final = 12
"""Offset of ``topics`` in the body of v2."""
_ENTRY: Final = 16


def limit_old_fetch(frame: bytes, body: int, most: int, turn: int) -> bytes:
    """Return a consumer's fetch of v2 or v3 as v3 with a max_bytes of at most `most`.

    What a response limit cuts are the partitions listed last. A client of v2 does not know that, and may list
    them in the same order each time. So the lists of v2 are turned: each partition is the first one in turn,
    and nobody starves (fetch-semantics 4). A topic stays in one element, since Sarama reads only the last
    element of a topic.

    Args:
        frame: a whole frame of v2 or v3.
        body: offset of its body.
        most: bytes.
        turn: how many fetches were turned before on the connection.

    Raises:
        ProtocolError: it is not as its version says.
    """
    version, _ = read_int16(frame, API_KEY.stop)
    replica_id, _ = read_int32(frame, body)
    min_bytes, _ = read_int32(frame, body + _MIN_BYTES_AT)
    if replica_id != _CONSUMER:
        return frame
    if version == LIMITED:
        return lower_max_bytes(frame, body + _MIN_BYTES_AT, most)
    topics = _topics(frame, body + _TOPICS_AT)
    content = b"".join(
        (
            frame[API_KEY],
            LIMITED.to_bytes(2),
            frame[REQUEST_CORRELATION_ID.start : body + _MIN_BYTES_AT],
            min(min_bytes, most).to_bytes(4, signed=True),
            most.to_bytes(4),
            len(topics).to_bytes(4),
            *_turned(topics, turn),
        )
    )
    return len(content).to_bytes(4) + content


def _topics(frame: bytes, at: int) -> list[tuple[bytes, bytes]]:
    """Return the topic elements of v2: what stands before the entries, and the entries."""
    topics, at = read_count(frame, at)
    found = []
    for _ in range(topics or 0):
        start = at
        name, at = read_int16(frame, at)
        count, at = read_count(frame, at + max(name, 0))
        end = at + _ENTRY * (count or 0)
        if end > len(frame):
            raise Truncated("fetch request", at)
        found.append((frame[start:at], frame[at:end]))
        at = end
    if at != len(frame):
        raise Malformed(f"{len(frame) - at} bytes after a fetch request")
    return found


def _turned(topics: list[tuple[bytes, bytes]], turn: int) -> list[bytes]:
    """Return topic elements, another one first in each turn, and in each round another entry of each."""
    if not topics:
        return []
    rounds, first = divmod(turn, len(topics))
    found = []
    for head, entries in topics[first:] + topics[:first]:
        count = len(entries) // _ENTRY
        at = rounds % count * _ENTRY if count else 0
        found.append(head + entries[at:] + entries[:at])
    return found
