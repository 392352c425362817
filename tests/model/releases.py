"""Differences between broker releases on the fetch path, by name."""

from dataclasses import dataclass

FETCH_VERSIONS = {
    (1, 0): (0, 6),
    (1, 1): (0, 7),
    (2, 0): (0, 8),
    (2, 1): (0, 10),
    (2, 3): (0, 11),
    (2, 7): (0, 12),
    (3, 1): (0, 13),
    (3, 5): (0, 15),
    (3, 7): (0, 16),
    (3, 9): (0, 17),
    (4, 0): (4, 17),
    (4, 1): (4, 18),
}
"""First broker release -> lowest and highest Fetch version from this release on."""


@dataclass(frozen=True, slots=True)
class Release:
    """A broker's release, as (major, minor)."""

    version: tuple[int, int]

    @classmethod
    def parse(cls, text: str) -> "Release":
        major, minor = text.split(".")[:2]
        return cls((int(major), int(minor)))

    @property
    def fetch_versions(self) -> tuple[int, int]:
        return FETCH_VERSIONS[max(first for first in FETCH_VERSIONS if first <= self.version)]

    @property
    def sharded(self) -> bool:
        """Whether the session cache has eight shards. If so, an id outside all shards gets error -1."""
        return self.version >= (3, 8)

    @property
    def rotates_all_answered(self) -> bool:
        """Whether each partition in a response moves to the end of the session's list.

        In later releases only partitions with records move (KAFKA-12330).
        """
        return self.version <= (2, 8)

    @property
    def touches_on_resize_only(self) -> bool:
        """Whether a session counts as used only when its number of partitions changes (KAFKA-9137)."""
        return self.version <= (2, 4)

    @property
    def fences_in_sessions(self) -> bool:
        """Whether sessions check current_leader_epoch. Older releases do not store it in a session
        (KAFKA-9338).
        """
        return self.version >= (2, 5)

    @property
    def tells_lso_always(self) -> bool:
        """Whether read_uncommitted fetches get the last stable offset.

        Releases for which this is false send -1.
        """
        return self.version >= (2, 1)

    @property
    def throttles_empty(self) -> bool:
        """Whether a throttled fetch gets an empty response at once. Release 1.1 sends the complete response
        later.
        """
        return self.version >= (2, 0)

    @property
    def refuses_zstd(self) -> bool:
        """Whether a topic with ``compression.type`` zstd gives error 76 below Fetch v10."""
        return (2, 1) <= self.version < (4, 0)

    @property
    def knows_partitions_beforehand(self) -> bool:
        """Whether an unknown partition of a known topic is found before reading. Up to 1.1, it is found while
        reading.
        """
        return self.version >= (2, 0)

    @property
    def caps_fetch_bytes(self) -> bool:
        """Whether the broker's ``fetch.max.bytes`` limits a response (KIP-541)."""
        return self.version >= (2, 5)

    @property
    def cuts_batches(self) -> bool:
        """Whether a batch that does not fit is cut for Fetch v2 and below."""
        return self.version <= (2, 8)

    @property
    def unread_records(self) -> bytes | None:
        """The ``records`` field of an entry after a failed conversion or an unexpected failure."""
        return None if (3, 0) <= self.version < (4, 0) else b""

    @property
    def unread_aborted(self) -> tuple[()] | None:
        """The ``aborted_transactions`` field of an error entry whose partition was not read."""
        return () if self.version >= (3, 0) else None
