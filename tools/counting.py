"""Counts fetches on both sides of a gateway. With `--sessions off` these are those of a direct client."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class CountedFetches:
    """The fetches on one side of a gateway. Bytes are those of complete frames with their length."""

    requests: int
    responses: int
    records: int
    fetches: int
    partitions: int
    kinds: Mapping[str, int]
    """The number of fetches by kind: full, incremental, sessionless, close."""

    @classmethod
    def of(cls, totals: Mapping[str, Any], side: str) -> Self:
        """Read one side (`client` or `broker`) from `totals` in a gateway's /state."""
        own = totals[side]
        return cls(
            own["fetch_request_bytes"],
            own["fetch_response_bytes"],
            own["fetch_record_bytes"],
            sum(own["fetches"].values()),
            own["partitions_requested"],
            own["fetches"],
        )

    def __sub__(self, before: "CountedFetches") -> "CountedFetches":
        return CountedFetches(
            self.requests - before.requests,
            self.responses - before.responses,
            self.records - before.records,
            self.fetches - before.fetches,
            self.partitions - before.partitions,
            {kind: count - before.kinds[kind] for kind, count in self.kinds.items()},
        )

    @property
    def total(self) -> int:
        """All bytes of fetches: requests and responses with records."""
        return self.requests + self.responses

    @property
    def listing(self) -> int:
        """All bytes except records: the names and states of partitions."""
        return self.total - self.records

    @property
    def request(self) -> float:
        """The average size of a request in bytes."""
        return self.requests / max(self.fetches, 1)

    @property
    def response(self) -> float:
        """The average size of a response without its records, in bytes."""
        return (self.responses - self.records) / max(self.fetches, 1)

    @property
    def carried(self) -> float:
        """The average size of the records in a response, in bytes."""
        return self.records / max(self.fetches, 1)

    @property
    def whole(self) -> float:
        """The average size of a request and its response with records, in bytes."""
        return self.total / max(self.fetches, 1)

    @property
    def bare(self) -> float:
        """The average size of a request and its response without records, in bytes."""
        return self.request + self.response


def saved(direct: float, through: float) -> float:
    """Return by how many percent `through` is smaller than `direct`."""
    return 100 * (1 - through / direct) if direct else 0.0
