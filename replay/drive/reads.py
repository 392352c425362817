"""Fetches whose reads end where the captured ones ended (`replay drive --read-to captured`). Sans-IO.

At the target, a partition may have more records behind an offset than in the captured moment. Then each fetch
would read on to its limit, and a client that follows the end of a partition would read its records again and
again.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

from proxy.protocol.fetch_layout import LAYOUTS
from replay.drive.topics import Topic

Place: TypeAlias = tuple[bytes, bytes]
"""A topic's key and a partition, as on the wire."""

_OFFSET_BYTES: Final = 8
_MAX_BYTES: Final = 4


class Reads:
    """What a captured response had, to limit the entries of its fetch.

    Args:
        found: the record bytes of each partition that had records. -1 for a partition that had an error, or
            that sent the client elsewhere.
        growing: the partitions to which the run writes.
    """

    def __init__(
        self,
        version: int,
        found: Mapping[Place, int],
        topics: Mapping[bytes, Topic],
        growing: Mapping[bytes, frozenset[int]],
    ) -> None:
        layout = LAYOUTS[version]
        self.found = found
        self._topics = topics
        self._growing = growing
        self._offset = layout.request_offset
        self._limit = layout.request_entry - _MAX_BYTES - layout.flexible  # tags follow in flexible versions

    def limited(self, place: Place, entry: bytes) -> bytes:
        """Return an entry that reads what the captured response had, and no more.

        If it had no records, the entry reads from the end of the partition. If it had some, their bytes are
        the limit of the partition.
        """
        key, partition = place[0], int.from_bytes(place[1])
        topic = self._topics.get(key)
        size = self.found.get(place, 0)
        if size < 0 or topic is None or partition >= topic.partitions:
            return entry
        growing = partition in self._growing.get(key, ())
        at = self._offset
        offset, end = (
            int.from_bytes(entry[at : at + _OFFSET_BYTES], signed=True),
            int(topic.latest[partition]),
        )
        if size:
            if not growing and offset >= end:
                return entry  # there is nothing to read
            return entry[: self._limit] + size.to_bytes(_MAX_BYTES) + entry[self._limit + _MAX_BYTES :]
        if growing or not topic.earliest[partition] <= offset < end:
            return entry
        return entry[:at] + end.to_bytes(_OFFSET_BYTES) + entry[at + _OFFSET_BYTES :]
