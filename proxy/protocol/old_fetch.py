"""Sets max_bytes in fetches of v2 and v3.

v3 added max_bytes and changed nothing else in requests and responses (KIP-74; fetch-semantics 1.3, 1.4). If a
broker supports both versions, it converts records to the same format for both. So a fetch of v2 can be sent
as v3. Fetches of v0 and v1 can't be sent as v3, because their records have an older format (fetch-semantics
1.6).
"""

from typing import Final

from proxy.protocol.api import API_KEY, REQUEST_CORRELATION_ID
from proxy.protocol.primitives import Malformed, Truncated, read_count, read_int16, read_int32

LIMITED: Final = 3
"""The first version with max_bytes."""
UNLIMITED: Final = 2
"""The last Fetch version without max_bytes."""

_CONSUMER: Final = -1
_MIN_BYTES_AT: Final = 8
"""Offset in the body, after replica_id and max_wait_ms."""
_TOPICS_AT: Final = 12
"""Offset in the body of v2."""
_ENTRY: Final = 16


def limit_old_fetch(frame: bytes, body: int, limit: int, turn: int) -> bytes:
    """Return a consumer's fetch of v2 or v3 as v3 with a max_bytes of at most `limit` bytes.

    If max_bytes is added or lowered, min_bytes becomes `limit` at most, too. A follower's fetch, and one of
    v3 with a max_bytes within the limit, are returned unchanged.

    With a limit, the partitions at the end of the list may get no records. Clients of v2 do not expect a
    limit, and may always list partitions in the same order. So lists of v2 are rotated, and each partition
    comes first in turn (fetch-semantics 4). Each topic stays in one element, because Sarama reads only the
    last element of a topic. `turn` is the number of earlier calls for this connection.

    Raises:
        ProtocolError: the fetch does not match the schema of its version.
    """
    version, _ = read_int16(frame, API_KEY.stop)
    replica_id, _ = read_int32(frame, body)
    min_bytes, at = read_int32(frame, body + _MIN_BYTES_AT)
    lowered = min(min_bytes, limit).to_bytes(4, signed=True) + limit.to_bytes(4)
    if replica_id != _CONSUMER:
        return frame
    if version == LIMITED:
        max_bytes, end = read_int32(frame, at)
        return frame if max_bytes <= limit else frame[: body + _MIN_BYTES_AT] + lowered + frame[end:]
    topics = _topics(frame, body + _TOPICS_AT)
    content = b"".join(
        (
            frame[API_KEY],
            LIMITED.to_bytes(2),
            frame[REQUEST_CORRELATION_ID.start : body + _MIN_BYTES_AT],
            lowered,
            len(topics).to_bytes(4),
            *_turned(topics, turn),
        )
    )
    return len(content).to_bytes(4) + content


def _topics(frame: bytes, at: int) -> list[tuple[bytes, bytes]]:
    """Return the topic elements of a fetch of v2: the bytes before the entries, and those of the entries."""
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
    if not topics:
        return []
    # Topics are rotated first. After each full round, the entries are rotated by one more.
    rounds, first = divmod(turn, len(topics))
    found = []
    for head, entries in topics[first:] + topics[:first]:
        count = len(entries) // _ENTRY
        at = rounds % count * _ENTRY if count else 0
        found.append(head + entries[at:] + entries[:at])
    return found
