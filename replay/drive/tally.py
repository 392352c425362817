"""Counts the requests and responses of a capture or of a run. Sans-IO."""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from proxy.adding import Figures
from proxy.protocol.api import ApiKey
from replay.protocol.errors import Errors
from replay.protocol.fetches import FetchSummary

PERCENTILES: Final = (50, 90, 99)


@dataclass(slots=True, kw_only=True)
class RequestCounts(Figures):
    """The counts of one API on one side. Bytes are those of whole frames, including the 4-byte length."""

    sent: int = 0
    answered: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    record_bytes: int = 0
    """Those in the `records` fields of fetch responses. `response_bytes` includes them."""
    partitions_answered: int = 0
    failed: int = 0
    errors: Counter[int] = field(default_factory=Counter)
    """Errors of whole responses, by error code."""
    partition_errors: Counter[int] = field(default_factory=Counter)
    """Errors of single entries in responses (partitions, topics, groups, members), by error code."""
    unreadable: int = 0
    seconds: "array[float]" = field(default_factory=lambda: array("d"))


class DriveTotals:
    """The counts of requests and responses on one side, by API key."""

    def __init__(self) -> None:
        self.by_key: dict[int, RequestCounts] = {}

    def total(self) -> RequestCounts:
        total = RequestCounts()
        for counts in self.by_key.values():
            total.add(counts)
        return total

    def sent(self, api_key: int, size: int) -> None:
        counts = self.of(api_key)
        counts.sent += 1
        counts.request_bytes += size

    def answered(self, api_key: int, size: int, seconds: float) -> None:
        counts = self.of(api_key)
        counts.answered += 1
        counts.response_bytes += size
        counts.seconds.append(seconds)

    def fetched(self, response: FetchSummary | None) -> None:
        """Count the fields of a fetch response. `response` is None if it could not be parsed."""
        if response is None:
            self.failed(ApiKey.FETCH, None)
            return
        counts = self.of(ApiKey.FETCH)
        counts.record_bytes += response.record_bytes
        counts.partitions_answered += response.partitions
        whole = (response.error_code,) if response.error_code else ()
        self.failed(ApiKey.FETCH, Errors(whole, response.partition_errors))

    def failed(self, api_key: int, errors: Errors | None) -> None:
        """Count the errors of a response. `errors` is None if the response could not be parsed."""
        counts = self.of(api_key)
        if errors is None:
            counts.unreadable += 1
            return
        counts.failed += bool(errors.whole or errors.entries)
        counts.errors.update(errors.whole)
        counts.partition_errors.update(errors.entries)

    def of(self, api_key: int) -> RequestCounts:
        counts = self.by_key.get(api_key)
        if counts is None:
            counts = self.by_key[api_key] = RequestCounts()
        return counts


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest value with at least `percent` % (above 0) of the values at or below it, or 0.0."""
    if not ordered:
        return 0.0
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank), 1) - 1]
