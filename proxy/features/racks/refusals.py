"""What becomes of the errors in a replica's response to a fetch: ``--rack-clients``. Sans-IO."""

from collections.abc import Sequence
from typing import Final, TypeAlias

from proxy.protocol.api import LENGTH_BYTES, ErrorCode
from proxy.protocol.fetch_layout import ERROR_CODE, HIGH_WATERMARK, FetchLayout
from proxy.protocol.fetch_response import FetchResponseWalk, PartitionError
from proxy.protocol.leader_requests import Place

NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)

Edit: TypeAlias = tuple[int, bytes]
"""An offset in a response, and the bytes that replace as many bytes there."""


def not_leader(error: PartitionError) -> Edit:
    """Return the change that makes an error NOT_LEADER_OR_FOLLOWER."""
    return error.start + ERROR_CODE.start, NOT_LEADER.to_bytes(2)


def edited(data: bytes, begins: int, edits: Sequence[Edit]) -> bytes:
    """Return bytes of a response with changes. Their offset in the response is `begins`."""
    if not edits:
        return data
    changed = bytearray(data)
    for at, new in edits:
        changed[at - begins : at - begins + len(new)] = new
    return bytes(changed)


def with_errors(
    frame: bytes, walk: FetchResponseWalk, places: set[Place], isolation_level: int
) -> tuple[bytes, set[Place]]:
    """Return a response in which some partitions have an error, and which of them it has."""
    layout, found = walk.layout, set[Place]()
    spans: list[tuple[int, int, int]] = []
    for entry in walk.entries:
        if (place := (entry.key, entry.partition)) in places:
            spans.append((entry.start, entry.end, entry.partition))
            found.add(place)
    for run in walk.runs:
        numbers = run.entries.view(layout.response_fields)["partition"].tolist()
        for number, partition in enumerate(numbers):
            if (place := (run.key, partition)) in places:
                start = run.start + number * layout.response_entry
                spans.append((start, start + layout.response_entry, partition))
                found.add(place)
    parts: list[bytes] = []
    at = LENGTH_BYTES
    for start, end, partition in sorted(spans):
        parts += (frame[at:start], _refusal(layout, partition, isolation_level))
        at = end
    body = b"".join((*parts, frame[at:]))
    return len(body).to_bytes(LENGTH_BYTES) + body, found


def _refusal(layout: FetchLayout, partition: int, isolation_level: int) -> bytes:
    """Return an entry of a response with NOT_LEADER_OR_FOLLOWER, as brokers send it."""
    offsets = b"\xff" * (layout.aborted - HIGH_WATERMARK.start)
    code = NOT_LEADER.to_bytes(ERROR_CODE.stop - ERROR_CODE.start)
    ends = layout.empty_ends[1 if isolation_level else 0]
    return partition.to_bytes(ERROR_CODE.start, signed=True) + code + offsets + ends
