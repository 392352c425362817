"""A captured fetch response that was parsed, and its conversion to v7. Sans-IO."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import Final

import numpy as np

from proxy.protocol.fetch_layout import LAYOUTS, SESSION_VERSION, Entries
from proxy.protocol.fetch_request import Listing
from proxy.protocol.fetch_response import FetchResponseWalk, PartitionResponse, Received
from proxy.protocol.primitives import Buffer, Malformed
from replay.capture.kafka.exchange import is_cut, walk_pieces

_ABORTED_SIZE: Final = 16


class CapturedResponse:
    """A captured fetch response, parsed to its end.

    `pieces` are the whole frame. The contents of records may be cut (see `is_cut`), and still have their
    length.

    Raises:
        ProtocolError: the bytes are not a fetch response of that version.
    """

    def __init__(self, pieces: Sequence[Buffer], version: int, isolation_level: int) -> None:
        self.pieces = joined(pieces)
        self.cut = len(self.pieces) > 1
        """Whether the contents of records are missing, because they were not stored."""
        self.layout = LAYOUTS[version]
        self.isolation_level = isolation_level
        self.size = sum(map(len, pieces))
        self.walk = FetchResponseWalk(self.layout, isolation_level, keep=True)
        self._compared: Listing | None = None
        """The listing of the last call of `lists`."""
        self._alike = False
        self._frame = Received()
        for piece in self.pieces:
            self._frame.keep(piece)
        if not (walk_pieces(self.walk, self.pieces) and self.walk.done):
            raise Malformed("a fetch response that ends early")

    def part(self, start: int, end: int) -> list[memoryview]:
        return self._frame.span(start, end)

    @cached_property
    def as_v7(self) -> "CapturedResponse":
        """The response. If it is older than v7, it is converted to v7."""
        if self.layout.version >= SESSION_VERSION:
            return self
        return CapturedResponse([_raised(self)], SESSION_VERSION, self.isolation_level)

    @property
    def correlation_id(self) -> bytes:
        return b"".join(self.part(4, 8))

    @property
    def tags(self) -> list[memoryview]:
        """The body's tags, from v12 on."""
        return self.part(self.walk.tags_at, self.size) if self.walk.tags_at >= 0 else []

    @property
    def empty_entry_bytes(self) -> int:
        """The size of all empty entries in bytes. An empty entry is one that is not in `other_entries`."""
        return self.layout.response_entry * (self.walk.partitions - len(self.other_entries))

    @property
    def entry_bytes(self) -> int:
        """The size of all entries in `other_entries` in bytes, without their records."""
        return sum(entry.end - entry.start for entry in self.other_entries) - self.walk.record_bytes

    @cached_property
    def other_entries(self) -> list[PartitionResponse]:
        """The entries with an error, or without `ends_empty`: with records, a preferred replica or tags."""
        return [entry for entry in self.walk.entries if not entry.ends_empty or entry.error_code]

    @cached_property
    def empty_entries(self) -> list[tuple[bytes, Entries]]:
        found: dict[bytes, list[bytes]] = {}
        end = self.layout.empty_ends[1 if self.isolation_level else 0]
        for run in self.walk.runs:
            found.setdefault(run.key, []).append(run.entries.tobytes())
        for entry in self.walk.entries:
            if entry.ends_empty and not entry.error_code:
                found.setdefault(entry.key, []).append(entry.fixed + end)
        item = self.layout.response_item
        return [(key, np.frombuffer(b"".join(entries), item)) for key, entries in found.items()]

    @property
    def entries(self) -> Entries:
        """All entries in their order. For one of `other_entries`, its end is that of an empty entry."""
        return self._ordered[0]

    @property
    def placed_entries(self) -> Iterator[tuple[int, PartitionResponse]]:
        """Yield `other_entries`, each with its place in `entries`."""
        for at, entry in zip(self._ordered[1], self.walk.entries, strict=True):
            if not entry.ends_empty or entry.error_code:
                yield at, entry

    @cached_property
    def _ordered(self) -> tuple[Entries, list[int]]:
        """Return `entries`, and the place in it of each entry that is not part of a run."""
        end = self.layout.empty_ends[1 if self.isolation_level else 0]
        found = [(run.start, run.entries.tobytes(), len(run.entries)) for run in self.walk.runs]
        found += [(entry.start, entry.fixed + end, 0) for entry in self.walk.entries]
        found.sort()
        places, at = [], 0
        for _, _, run in found:
            if not run:
                places.append(at)
            at += run or 1
        return np.frombuffer(b"".join([each for _, each, _ in found]), self.layout.response_item), places

    @property
    def errors(self) -> bool:
        return any(entry.error_code for entry in self.walk.entries)

    def lists(self, listing: Listing) -> bool:
        """Return whether the response has the partitions of a fetch, in the same order, and no others."""
        if self._compared is not listing:
            self._compared, self._alike = listing, self._is_like(listing)
        return self._alike

    def _is_like(self, listing: Listing) -> bool:
        if self.walk.elements != [*zip(listing.keys, listing.counts, strict=True)]:
            return False
        listed = listing.entries.view(listing.layout.request_fields)["partition"]
        answered = self.entries.view(self.layout.response_fields)["partition"]
        return listed.tobytes() == answered.tobytes()

    def with_session(self, session_id: int) -> list[Buffer]:
        """Return the frame with its session id replaced by this one (v7 and later)."""
        at = self.walk.session_id_at
        return [*self.part(0, at), session_id.to_bytes(4), *self.part(at + 4, self.size)]


def joined(pieces: Sequence[Buffer]) -> list[Buffer]:
    """Join neighbouring pieces of a frame, except the pieces that stand for cut contents of records."""
    if len(pieces) == 1 and isinstance(pieces[0], bytes):
        return list(pieces)
    whole: list[Buffer] = []
    for cut, group in groupby(pieces, is_cut):
        stretch = list(group)
        whole += stretch if cut else [b"".join(stretch)]
    return whole


def _raised(response: CapturedResponse) -> bytes:
    """Return a response of v4 to v6 as v7: with error code and session id, for v4 with log start offsets."""
    frame = b"".join(response.pieces)
    head = frame[4:12] + bytes(6)
    body = frame[12:]
    if response.layout.version == 4:
        # The walk does not keep where each empty entry begins, so this goes through all entries again.
        body = b"".join(_widened(body))
    content = head + body
    return len(content).to_bytes(4) + content


def _widened(body: bytes) -> Iterator[bytes]:
    topics, at = int.from_bytes(body[:4]), 4
    yield body[:4]
    for _ in range(topics):
        name = int.from_bytes(body[at : at + 2])
        count = int.from_bytes(body[at + 2 + name : at + 6 + name])
        yield body[at : at + 6 + name]
        at += 6 + name
        for _ in range(count):
            aborted = max(int.from_bytes(body[at + 22 : at + 26], signed=True), 0)
            records_at = at + 26 + aborted * _ABORTED_SIZE
            end = records_at + 4 + max(int.from_bytes(body[records_at : records_at + 4], signed=True), 0)
            yield body[at : at + 22] + bytes(8)
            yield body[at + 22 : end]
            at = end
