"""Fetch bytes that a gateway counts in a period of time, on the broker's side and on the client's.

With `--sessions off` the gateway changes nothing: its two sides equal a connection without it. So direct runs
and those of Java are counted by a gateway as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class CountedFetches:
    """Fetches on one side. Bytes are complete frames with their length."""

    requests: int
    responses: int
    records: int
    fetches: int
    partitions: int
    """Entries of requests."""
    kinds: Mapping[str, int]
    """Fetches by kind: full, incremental, sessionless, close."""

    @classmethod
    def of(cls, state: Mapping[str, Any], side: str) -> Self:
        """Read a side, `client` or `broker`, of a gateway's /state."""
        totals = state["totals"][side]
        kinds = totals["fetches"]
        return cls(
            totals["fetch_request_bytes"],
            totals["fetch_response_bytes"],
            totals["fetch_record_bytes"],
            sum(kinds.values()),
            totals["partitions_requested"],
            kinds,
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
        """All bytes of fetches, records included."""
        return self.requests + self.responses

    @property
    def request(self) -> float:
        """Bytes of a request on average."""
        return self.requests / max(self.fetches, 1)

    @property
    def response(self) -> float:
        """Bytes of a response without its records, on average."""
        return (self.responses - self.records) / max(self.fetches, 1)

    @property
    def carried(self) -> float:
        """Bytes of records in a response, on average."""
        return self.records / max(self.fetches, 1)

    @property
    def whole(self) -> float:
        """Bytes of a fetch, request and response with records, on average."""
        return self.total / max(self.fetches, 1)

    @property
    def bare(self) -> float:
        """Bytes of a fetch, request and response without records, on average."""
        return self.request + self.response


def saved(direct: float, through: float) -> float:
    """Return by how many percent `through` is smaller than `direct`."""
    return 100 * (1 - through / direct) if direct else 0.0
