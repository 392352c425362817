"""How long and how large: what every fetch adds to a distribution. Sans-IO.

A distribution is a list of counters, one a bucket. What a fetch tells is appended as bare numbers to one list
and counted a thousand fetches at a time: to look up five buckets on each costs five times as much.
"""

from itertools import accumulate
from math import inf
from typing import Final

import numpy as np
import numpy.typing as npt

from proxy.core.events import Tally
from proxy.core.in_flight import Disposition, InFlightRequest
from proxy.protocol.api import ApiKey

ADDED_SECONDS: Final = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.1, 0.5, 2.5),
)
BROKER_SECONDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(0.6, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""0.6: a fetch waits fetch.max.wait.ms, 500 by default, and comes back a little later."""
RESPONSE_BYTES: Final = (
    *(64, 128, 256, 512, 1024, 4096, 16_384, 65_536, 262_144),
    *(1_048_576, 4_194_304, 16_777_216, 67_108_864),
)
PARTITIONS: Final = (0, 1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)

_WAIT_FOR_OTHERS: Final = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.SHARE_FETCH})
"""Their responses are late on purpose: they say nothing of how the broker is."""
_NOT_COUNTED: Final = -1
_TOGETHER: Final = 1024
"""Fetches that are counted together."""


class Distribution:
    """How often a value fell into each bucket.

    Args:
        bounds: the highest value of each bucket, ascending; there is one more bucket, without a bound.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        """All values together."""

    def __repr__(self) -> str:
        return f"<Distribution of {self.count}, mean {self.mean:.6g}, 99 % up to {self.below(0.99):.6g}>"

    def note(self, values: npt.ArrayLike) -> None:
        """Add values; those below 0 are left out."""
        given = np.asarray(values, np.float64)
        given = given[given >= 0]
        found = np.bincount(np.searchsorted(self.bounds, given), minlength=len(self.counts))
        self._add(found.tolist(), float(given.sum()))

    def add(self, other: "Distribution") -> None:
        """Add all values of another with the same bounds."""
        self._add(other.counts, other.total)

    def _add(self, counts: list[int], total: float) -> None:
        self.counts = [mine + more for mine, more in zip(self.counts, counts, strict=True)]
        self.total += total

    @property
    def count(self) -> int:
        """Give the number of values."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Give the mean, 0 of nothing."""
        return self.total / (self.count or 1)

    def below(self, share: float) -> float:
        """Give the bound of the bucket within which this share of all values is reached; 0 of nothing."""
        wanted = share * self.count
        if not wanted:
            return 0
        within = next(place for place, seen in enumerate(accumulate(self.counts)) if seen >= wanted)
        return (*self.bounds, inf)[within]


class Measured:
    """What is measured between clients and one broker; all their connections share it."""

    DISTRIBUTIONS: Final = (
        "broker_fetch",
        "response_bytes_broker",
        "response_bytes_client",
        "partitions_broker",
        "partitions_client",
        "broker_other",
        "added_repeat",
        "added_request",
        "added_response",
    )
    """The first five are the columns of `fetches`."""

    __slots__ = (*DISTRIBUTIONS, "fetches", "others", "requests", "responses")

    def __init__(self) -> None:
        self.broker_fetch = Distribution(BROKER_SECONDS)
        """Seconds from a fetch's last byte to its response's first, the client's max_wait_ms included."""
        self.response_bytes_broker = Distribution(RESPONSE_BYTES)
        """Size of a fetch's response as the broker sent it, whole frames."""
        self.response_bytes_client = Distribution(RESPONSE_BYTES)
        """Size of a fetch's response as the client got it."""
        self.partitions_broker = Distribution(PARTITIONS)
        """Partitions that a fetch to the broker listed; as all of these, once it is answered."""
        self.partitions_client = Distribution(PARTITIONS)
        """Partitions that a fetch of a client listed."""
        self.broker_other = Distribution(BROKER_SECONDS)
        """As `broker_fetch`, for all other requests."""
        self.added_repeat = Distribution(BROKER_SECONDS)
        """Seconds that a client waited longer because its fetch was sent once more (70, 71, 106)."""
        self.added_request = Distribution(ADDED_SECONDS)
        """Seconds from bytes of a client until all they called for was written; one value a read."""
        self.added_response = Distribution(ADDED_SECONDS)
        """The same for bytes of a broker. A response that has to be whole is written with its last read."""
        self.fetches: list[float] = []
        """Five numbers for each fetch that is not counted yet."""
        self.others: list[float] = []
        self.requests: list[float] = []
        self.responses: list[float] = []
        """Seconds that are not counted yet."""

    def settle(self) -> None:
        """Count what has come since the last time."""
        if self.fetches:
            columns = np.array(self.fetches).reshape(-1, 5).T
            for name, values in zip(self.DISTRIBUTIONS, columns, strict=False):
                self._note(name, values)
            self.fetches.clear()
        for name, waiting in (
            ("broker_other", self.others),
            ("added_request", self.requests),
            ("added_response", self.responses),
        ):
            if waiting:
                self._note(name, waiting)
                waiting.clear()

    def add(self, other: "Measured") -> None:
        """Add all that another has counted."""
        for name in self.DISTRIBUTIONS:
            mine: Distribution = getattr(self, name)
            mine.add(getattr(other, name))

    def _note(self, name: str, values: npt.ArrayLike) -> None:
        distribution: Distribution = getattr(self, name)
        distribution.note(values)


class Meter:
    """Measures one connection.

    Args:
        measured: where values are added.
        tally: that of the connection: what it grew by from one response to the next is that answer's.
    """

    __slots__ = ("_came", "_measured", "_tally", "_told", "began")

    def __init__(self, measured: Measured, tally: Tally) -> None:
        self._measured = measured
        self._tally = tally
        self._came = 0
        self._told = 0
        self.began = 0.0
        """When the first byte of the response came that is coming in, in seconds."""

    def note_fetch(self, request: InFlightRequest, now: float, *, again: bool) -> None:
        """Note a fetch whose response has come whole.

        Args:
            request: the fetch.
            now: in seconds.
            again: the response was none for the client; the fetch is sent once more.
        """
        tally, fetch, waiting = self._tally, request.fetch, self._measured.fetches
        came, told = tally.broker.fetch_response_bytes, tally.client.fetch_response_bytes
        ours = again or request.disposition is Disposition.OURS
        waiting += (
            self.began - request.sent_at,
            came - self._came,
            _NOT_COUNTED if ours else told - self._told,
            request.sent_partitions,
            _NOT_COUNTED if ours or fetch is None else fetch.partitions,
        )
        self._came, self._told = came, told
        if again:
            self._measured.added_repeat.note(now - request.sent_at)
        if len(waiting) >= 5 * _TOGETHER:
            self._measured.settle()

    def note_other(self, request: InFlightRequest) -> None:
        """Note any other request whose response has come."""
        if request.api_key not in _WAIT_FOR_OTHERS:
            waiting = self._measured.others
            waiting.append(self.began - request.sent_at)
            if len(waiting) >= _TOGETHER:
                self._measured.settle()
