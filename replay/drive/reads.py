"""Fetches whose reads end where the captured ones ended (`replay drive --read-to captured`). Sans-IO.

At the target, a partition may have more records behind an offset than in the captured moment. Then each fetch
would read on to its limit, and a client that follows the end of a partition would read its records again and
again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from proxy.protocol.fetch_layout import LAYOUTS
from replay.drive.topics import Topic

Place: TypeAlias = tuple[bytes, bytes]
"""A topic's key and a partition, as on the wire."""

_OFFSET_BYTES: Final = 8
_MAX_BYTES: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class Reads:
    """What a captured response had, to limit the entries of its fetch."""

    version: int
    found: Mapping[Place, int]
    """The record bytes of each partition that had records. -1 for a partition that had an error, or that sent
    the client elsewhere."""
    topics: Mapping[bytes, Topic]
    growing: Mapping[bytes, frozenset[int]]
    """The partitions to which the run writes."""

    def limited(self, place: Place, entry: bytes) -> bytes:
        """Return an entry that reads what the captured response had, and no more.

        If it had no records, the entry reads from the end of the partition. If it had some, their bytes are
        the limit of the partition.
        """
        key, partition = place[0], int.from_bytes(place[1])
        topic = self.topics.get(key)
        size = self.found.get(place, 0)
        if size < 0 or topic is None or partition >= topic.partitions:
            return entry
        growing = partition in self.growing.get(key, ())
        layout = LAYOUTS[self.version]
        at = layout.request_offset
        offset = int.from_bytes(entry[at : at + _OFFSET_BYTES], signed=True)
        end = int(topic.latest[partition])
        if size:
            if not growing and offset >= end:
                return entry  # there is nothing to read
            limit = layout.request_entry - _MAX_BYTES - layout.flexible  # tags follow in flexible versions
            return entry[:limit] + size.to_bytes(_MAX_BYTES) + entry[limit + _MAX_BYTES :]
        if growing or not topic.earliest[partition] <= offset < end:
            return entry
        return entry[:at] + end.to_bytes(_OFFSET_BYTES) + entry[at + _OFFSET_BYTES :]
