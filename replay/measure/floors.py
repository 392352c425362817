"""How many fetches fewer there would be with floors of min_bytes and max_wait_ms. Sans-IO.

``fetchgate proxy --fetch-min-bytes --fetch-max-wait`` raises these two, so that brokers gather records. What
that would save is modelled (`replay.report.floors`): records arrive evenly in the captured time.
"""

from dataclasses import dataclass
from math import ceil
from typing import Final

from proxy.features.limits.fetch_floors import raised, smallest_partition
from replay.report.floors import fetches_left
from replay.simulate.outcome import Outcome

_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """The floors for all fetches. 0 means none."""

    min_bytes: int = 0
    max_wait_ms: int = 0

    def __bool__(self) -> bool:
        return bool(self.min_bytes or self.max_wait_ms)


NO_FLOORS: Final = Floors()


@dataclass(slots=True)
class FloorFigures:
    """What floors would save, modelled. In a `FloorLog`, for the fetches of one version."""

    fewer: int = 0
    """How many fetches would be saved. All fields are 0 without floors."""
    saved_bytes: int = 0
    """The bytes of these fetches and of their responses, without records, with sessions."""
    gathered_bytes: int = 0
    """The bytes of records for which brokers would wait. Only these come later."""
    later: int = 0
    """By how much records would come later: their bytes times ms."""
    later_at_most_ms: int = 0
    """The longest delay of a record."""

    def add(self, other: "FloorFigures") -> None:
        self.fewer += other.fewer
        self.saved_bytes += other.saved_bytes
        self.gathered_bytes += other.gathered_bytes
        self.later += other.later
        self.later_at_most_ms = max(self.later_at_most_ms, other.later_at_most_ms)


@dataclass(slots=True)
class _Fetches:
    """The sums of a connection's fetches of one version."""

    count: int = 0
    changed: int = 0
    """How many of them the floors raise."""
    gathering: int = 0
    """How many of them have a raised min_bytes."""
    filled: int = 0
    """How many of them got records."""
    record_bytes: int = 0
    other_bytes: int = 0
    """The bytes without records, with sessions."""
    wait_ms: int = 0
    """The sum of max_wait_ms, raised."""
    min_bytes: int = 0
    """The sum of min_bytes, raised."""


class FloorLog:
    """Adds up the fetches of one connection, and what floors would do to them."""

    __slots__ = ("_fetches", "_floors", "_partition_bytes")

    def __init__(self, floors: Floors) -> None:
        self._floors = floors
        self._fetches: dict[int, _Fetches] = {}
        self._partition_bytes = 0

    def __repr__(self) -> str:
        return f"<FloorLog {self._floors} versions={len(self._fetches)}>"

    def add(self, outcome: Outcome) -> None:
        """Add a fetch, or a run. Only consumers' fetches with a response count."""
        request, times = outcome.request, outcome.times
        if not self._floors or request is None or request.unsupported_reason:
            return
        if outcome.response is None and not outcome.run:
            return
        self._partition_bytes = smallest_partition(request, self._partition_bytes)
        floors, before = self._floors, (request.max_wait_ms, request.min_bytes)
        after = raised(request, floors.min_bytes, floors.max_wait_ms, self._partition_bytes)
        exchange, records = outcome.exchange, outcome.record_bytes
        whole = (
            outcome.session_request_bytes + outcome.session_response_bytes
            if outcome.eligible
            else exchange.request_bytes + exchange.response_bytes
        )
        sums = self._fetches.setdefault(exchange.api_version, _Fetches())
        sums.count += times
        sums.changed += times * (after != before)
        sums.gathering += times * (after[1] > before[1])
        sums.filled += sum(fetch.records > 0 for fetch in outcome.fetches)
        sums.record_bytes += records
        sums.other_bytes += whole - records
        sums.wait_ms += times * max(after[0], 0)
        sums.min_bytes += times * max(after[1], 0)

    def by_version(self, lasted: int) -> dict[int, FloorFigures]:
        """Return the figures by Fetch version. `lasted` is the captured time of the connection, in ns."""
        return {version: _figures(sums, lasted / _SECOND) for version, sums in self._fetches.items()}


def _figures(sums: _Fetches, seconds: float) -> FloorFigures:
    if not sums.changed or not sums.wait_ms:
        return FloorFigures()
    # No more fetches get records than do without floors.
    gathered = min(sums.filled, sums.record_bytes * sums.count / max(sums.min_bytes, 1))
    wait = sums.wait_ms / sums.count / 1e3
    left = ceil(fetches_left(sums.count, seconds, wait=wait, filled=gathered))
    fewer = sums.count - left
    found = FloorFigures(fewer=fewer, saved_bytes=sums.other_bytes * fewer // sums.count)
    if sums.gathering and fewer:
        # On average, a record waits for half of the time between two responses.
        between = min(seconds / left, wait) if left else wait
        found.gathered_bytes = sums.record_bytes
        found.later = round(between / 2 * 1e3) * sums.record_bytes
        found.later_at_most_ms = round(wait * 1e3)
    return found
