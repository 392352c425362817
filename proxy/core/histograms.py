"""Distributions of durations and sizes, as the metrics show them. Sans-IO.

A distribution is a list of counters, one for each bucket. The values of a thousand fetches are counted at
once: counting each fetch separately costs five times as much.
"""

from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Final

import numpy as np
import numpy.typing as npt

from proxy.core.events import Tally
from proxy.protocol.api import ApiKey

ADDED_SECONDS: Final = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.1, 0.5, 2.5),
)
BROKER_SECONDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(0.6, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""The bounds include 0.6, because a fetch waits for fetch.max.wait.ms (500 by default), and the response
comes a little later."""
RESPONSE_BYTES: Final = (
    *(64, 128, 256, 512, 1024, 4096, 16_384, 65_536, 262_144),
    *(1_048_576, 4_194_304, 16_777_216, 67_108_864),
)
PARTITIONS: Final = (0, 1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)

NO_RESPONSE_TIME: Final = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.SHARE_FETCH})
"""APIs whose responses the broker delays on purpose, so that they do not show how fast the broker is."""
NOT_COUNTED: Final = -1
_TOGETHER: Final = 1024
"""How many fetches are collected before their values are counted together."""


class Distribution:
    """How many values are in each bucket of a histogram.

    Args:
        bounds: the highest value of each bucket, ascending. The last bucket has no bound.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def __repr__(self) -> str:
        return f"<Distribution of {self.count}, mean {self.mean:.6g}, 99 % up to {self.below(0.99):.6g}>"

    def note(self, values: npt.ArrayLike) -> None:
        """Add values. Values below 0 are ignored."""
        given = np.asarray(values, np.float64)
        given = given[given >= 0]
        found = np.bincount(np.searchsorted(self.bounds, given), minlength=len(self.counts))
        self._add(found.tolist(), float(given.sum()))

    def add(self, other: "Distribution") -> None:
        """Add the values of another distribution with the same bounds."""
        self._add(other.counts, other.total)

    def _add(self, counts: list[int], total: float) -> None:
        self.counts = [mine + more for mine, more in zip(self.counts, counts, strict=True)]
        self.total += total

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float:
        return self.total / (self.count or 1)

    def below(self, share: float) -> float:
        """Return the upper bound of the bucket that contains this quantile, or 0 if there are no values."""
        wanted = share * self.count
        if not wanted:
            return 0
        within = next(place for place, seen in enumerate(accumulate(self.counts)) if seen >= wanted)
        return (*self.bounds, inf)[within]


class Measured:
    """The measurements of all connections to one broker."""

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
    """The names of all distributions. The first five are the columns of `fetches`."""

    __slots__ = (*DISTRIBUTIONS, "fetches", "others", "requests", "responses")

    def __init__(self) -> None:
        self.broker_fetch = Distribution(BROKER_SECONDS)
        """Seconds from a fetch's last byte to the first byte of the response, with the client's
        max_wait_ms."""
        self.response_bytes_broker = Distribution(RESPONSE_BYTES)
        """The size of the broker's response to a fetch, with the length field."""
        self.response_bytes_client = Distribution(RESPONSE_BYTES)
        """The size of the client's response to a fetch, with the length field."""
        self.partitions_broker = Distribution(PARTITIONS)
        """How many partitions a fetch to the broker listed."""
        self.partitions_client = Distribution(PARTITIONS)
        """How many partitions a client's fetch listed, or its session with the gateway has."""
        self.broker_other = Distribution(BROKER_SECONDS)
        """Seconds from a request to its response. Fetches and the APIs in `NO_RESPONSE_TIME` do not count."""
        self.added_repeat = Distribution(BROKER_SECONDS)
        """Seconds that a client waited longer because its fetch was sent again (for example after error 70,
        71 or 106)."""
        self.added_request = Distribution(ADDED_SECONDS)
        """Seconds from reading a client's bytes to writing all resulting bytes. Each read adds a value."""
        self.added_response = Distribution(ADDED_SECONDS)
        """Seconds from reading a broker's bytes to writing all resulting bytes, for each read. A buffered
        response is written after its last read."""
        self.fetches: list[float] = []
        """The values of fetches that were not counted yet, five for each fetch."""
        self.others: list[float] = []
        self.requests: list[float] = []
        self.responses: list[float] = []

    def note_fetch(
        self, seconds: float, received: int, sent: int, partitions_sent: int, partitions_asked: int
    ) -> None:
        """Add a fetch to the first five of `DISTRIBUTIONS`. A value below 0 is not counted."""
        waiting = self.fetches
        waiting += (seconds, received, sent, partitions_sent, partitions_asked)
        if len(waiting) >= 5 * _TOGETHER:
            self.settle()

    def note_other(self, seconds: float) -> None:
        self.others.append(seconds)
        if len(self.others) >= _TOGETHER:
            self.settle()

    def settle(self) -> None:
        """Count the values that were collected since the last call."""
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
        for name in self.DISTRIBUTIONS:
            mine: Distribution = getattr(self, name)
            mine.add(getattr(other, name))

    def _note(self, name: str, values: npt.ArrayLike) -> None:
        distribution: Distribution = getattr(self, name)
        distribution.note(values)


@dataclass(slots=True, eq=False, repr=False)
class Meter:
    """Measures one connection.

    The size of a response is the difference between the tally before and after it.
    """

    _measured: Measured
    _tally: Tally
    _received: int = 0
    _sent: int = 0
    began: float = 0.0
    """When the first byte of the current response arrived, in seconds."""

    def note_fetch(
        self, sent_at: float, *, sent: int = NOT_COUNTED, asked: int = NOT_COUNTED, unseen: bool = False
    ) -> None:
        """Note a fetch whose response is complete.

        It was sent at `sent_at`, in seconds, with `sent` partitions. The client's fetch lists `asked`. If it
        is `unseen`, the client gets no byte of the response.
        """
        tally = self._tally
        received, to_client = tally.broker.fetch_response_bytes, tally.client.fetch_response_bytes
        self._measured.note_fetch(
            self.began - sent_at,
            received - self._received,
            NOT_COUNTED if unseen else to_client - self._sent,
            sent,
            asked,
        )
        self._received, self._sent = received, to_client

    def note_repeat(self, seconds: float) -> None:
        self._measured.added_repeat.note(seconds)

    def skip(self, received: int, sent: int) -> None:
        """Do not count these bytes, because the responses with them were measured elsewhere."""
        self._received += received
        self._sent += sent

    def note_other(self, api_key: int, sent_at: float) -> None:
        if api_key not in NO_RESPONSE_TIME:
            self._measured.note_other(self.began - sent_at)
