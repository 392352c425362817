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
"""By the first release: the lowest and highest accepted Fetch version."""


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
        """The session cache has eight shards, and ids outside of them throw."""
        return self.version >= (3, 8)

    @property
    def rotates_all_answered(self) -> bool:
        """Every answered partition moves to the tail, not only those with records (KAFKA-12330)."""
        return self.version <= (2, 8)

    @property
    def touches_on_resize_only(self) -> bool:
        """A session in use looks stale unless its size changes (KAFKA-9137)."""
        return self.version <= (2, 4)

    @property
    def fences_in_sessions(self) -> bool:
        """Older releases forget current_leader_epoch in a session (KAFKA-9338)."""
        return self.version >= (2, 5)

    @property
    def tells_lso_always(self) -> bool:
        """Older releases send -1 to read_uncommitted."""
        return self.version >= (2, 1)

    @property
    def throttles_empty(self) -> bool:
        """A throttled fetch is answered at once and empty. 1.1 sends the complete response late."""
        return self.version >= (2, 0)

    @property
    def refuses_zstd(self) -> bool:
        """A topic configured with zstd gives error 76 below Fetch v10."""
        return (2, 1) <= self.version < (4, 0)

    @property
    def knows_partitions_beforehand(self) -> bool:
        """Up to 1.1, only an unknown topic is found before reading."""
        return self.version >= (2, 0)

    @property
    def caps_fetch_bytes(self) -> bool:
        """``fetch.max.bytes`` of the broker limits a response (KIP-541)."""
        return self.version >= (2, 5)

    @property
    def cuts_batches(self) -> bool:
        """Fetch v2 and below gets the first bytes of a batch that does not fit."""
        return self.version <= (2, 8)

    @property
    def unread_records(self) -> bytes | None:
        """``records`` of entries made by a conversion error or an unexpected failure."""
        return None if (3, 0) <= self.version < (4, 0) else b""

    @property
    def unread_aborted(self) -> tuple[()] | None:
        """``aborted_transactions`` of error entries without a read."""
        return () if self.version >= (3, 0) else None
