"""Exchanges of one connection as frames. Responses are those of the broker, in sessions only changes."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tools.bench.frames import OFFSET, Key, fetch_request, fetch_response, rotated
from tools.kafka.raw import compact_array, compact_string, frame, request, uvarint

SESSION_ID: Final = 77
RECORDS: Final = bytes(290)
"""Zeros in place of records. They have the size that a record of 200 bytes has on the wire."""
DELTA_BYTES: Final = 200
"""The limit of a session's fetch that changes at most one partition, in bytes."""
CLIENT_ID: Final = "rdkafka"
PRODUCE, PRODUCE_VERSION = 0, 10
HEARTBEAT, HEARTBEAT_VERSION = 12, 4
_TOPIC: Final = compact_string("events")

Topics = list[tuple[bytes, list[int]]]
Frames = Callable[[int], tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Exchanges of one kind."""

    listed: Topics
    frames: Frames
    session: bool = False
    most: int = DELTA_BYTES


def listing(topics: int, partitions: int) -> Topics:
    """Return topic ids, the same on every run, each with its partitions."""
    chance = random.Random(topics)  # noqa: S311 - not a secret
    return [(chance.randbytes(16), list(range(partitions))) for _ in range(topics)]


def fetches(
    topics: int, partitions: int, *, busy: bool = False, size: int = len(RECORDS), wait_ms: int = 500
) -> Traffic:
    """Return fetches of all partitions in turned order; if `busy`, the first has `size` bytes of records."""
    listed = listing(topics, partitions)
    hot: Key = (listed[0][0], 0)
    session = topics * partitions > 1
    records = {hot: bytes(size)} if busy else {}
    changed = [(hot[0], [hot[1]])] if busy else []

    def frames(number: int) -> tuple[bytes, bytes]:
        turned = rotated(listed, number % (topics * partitions))
        sent = fetch_request(number, turned, offsets={hot: OFFSET + number} if busy else {}, wait_ms=wait_ms)
        answered = changed if session else listed
        response = fetch_response(number, answered, session_id=SESSION_ID if session else 0, records=records)
        return sent, response

    return Traffic(listed, frames, session=session)


def produces() -> Traffic:
    """Return produce requests with acks=all, each with one batch of some 290 bytes."""

    def frames(number: int) -> tuple[bytes, bytes]:
        batch = bytes(4) + uvarint(len(RECORDS) + 1) + RECORDS + b"\0"
        body = b"\0\xff\xff\0\0\x75\x30" + compact_array([_TOPIC + compact_array([batch]) + b"\0"]) + b"\0"
        entry = bytes(4 + 2) + number.to_bytes(8) + b"\xff" * 8 + bytes(8) + b"\1\0\0"
        answer = compact_array([_TOPIC + compact_array([entry]) + b"\0"]) + bytes(4) + b"\0"
        sent = frame(request(PRODUCE, PRODUCE_VERSION, body, CLIENT_ID, number))
        return sent, frame(number.to_bytes(4) + b"\0" + answer)

    return Traffic(listing(1, 1), frames, most=2 * len(RECORDS))


def heartbeats() -> Traffic:
    """Return heartbeats of a group member to its coordinator."""

    def frames(number: int) -> tuple[bytes, bytes]:
        body = compact_string("group") + bytes(4) + compact_string("member") + b"\0\0"
        sent = frame(request(HEARTBEAT, HEARTBEAT_VERSION, body, CLIENT_ID, number))
        return sent, frame(number.to_bytes(4) + b"\0" + bytes(4 + 2) + b"\0")

    return Traffic(listing(1, 1), frames)
