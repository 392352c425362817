"""How long and how large: what every fetch adds to a distribution. Sans-IO.

A distribution is a list of counters, one a bucket; nothing is made per fetch.
"""

from bisect import bisect_left
from itertools import accumulate
from math import inf
from typing import Final

from proxy.events import Tally
from proxy.exchange import Becomes, Exchange
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
ANSWER_BYTES: Final = (
    *(64, 128, 256, 512, 1024, 4096, 16_384, 65_536, 262_144),
    *(1_048_576, 4_194_304, 16_777_216, 67_108_864),
)
PARTITIONS: Final = (0, 1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)

_WAIT_FOR_OTHERS: Final = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.SHARE_FETCH})
"""Their answers are late on purpose: they say nothing of how the broker is."""


class Distribution:
    """How often a value fell into each bucket.

    Args:
        bounds: the highest value of each bucket, ascending; there is one more bucket, without a bound.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total: float = 0
        """All values together."""

    def __repr__(self) -> str:
        return f"<Distribution of {self.count}, mean {self.mean:.6g}, 99 % up to {self.below(0.99):.6g}>"

    def note(self, value: float) -> None:
        """Add one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, other: "Distribution") -> None:
        """Add all values of another with the same bounds."""
        self.counts = [mine + more for mine, more in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

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

    __slots__ = (
        "added_repeat",
        "added_request",
        "added_response",
        "answer_bytes_broker",
        "answer_bytes_client",
        "broker_fetch",
        "broker_other",
        "partitions_broker",
        "partitions_client",
    )

    def __init__(self) -> None:
        self.added_request = Distribution(ADDED_SECONDS)
        """Seconds from bytes of a client until all they called for was written; one value a read."""
        self.added_response = Distribution(ADDED_SECONDS)
        """The same for bytes of a broker. An answer that has to be whole is written with its last read."""
        self.added_repeat = Distribution(BROKER_SECONDS)
        """Seconds that a client waited longer because its fetch was sent once more (70, 71, 106)."""
        self.broker_fetch = Distribution(BROKER_SECONDS)
        """Seconds from a fetch's last byte to its answer's first, the client's max_wait_ms included."""
        self.broker_other = Distribution(BROKER_SECONDS)
        """The same for all other requests."""
        self.answer_bytes_client = Distribution(ANSWER_BYTES)
        """Size of a fetch's answer as the client got it, whole frames."""
        self.answer_bytes_broker = Distribution(ANSWER_BYTES)
        """Size of a fetch's answer as the broker sent it."""
        self.partitions_client = Distribution(PARTITIONS)
        """Partitions that a fetch of a client lists."""
        self.partitions_broker = Distribution(PARTITIONS)
        """Partitions that a fetch to the broker lists."""

    def add(self, other: "Measured") -> None:
        """Add all that another has."""
        for name in Measured.__slots__:
            mine: Distribution = getattr(self, name)
            mine.add(getattr(other, name))


class Meter:
    """Measures one connection.

    Args:
        measured: where values are added.
        tally: that of the connection: what it grew by from one fetch to the next is that fetch's.
    """

    __slots__ = ("_came", "_measured", "_sent", "_tally", "_told")

    def __init__(self, measured: Measured, tally: Tally) -> None:
        self._measured = measured
        self._tally = tally
        self._sent = 0
        self._came = 0
        self._told = 0

    def asked(self, partitions: int) -> None:
        """Note a fetch of the client."""
        self._measured.partitions_client.note(partitions)

    def sent(self) -> None:
        """Note a fetch to the broker, which the tally has already."""
        sent = self._tally.broker.partitions_requested
        self._measured.partitions_broker.note(sent - self._sent)
        self._sent = sent

    def answer_begins(self, exchange: Exchange, now: float) -> None:
        """Note how long a broker took."""
        if exchange.api_key == ApiKey.FETCH:
            self._measured.broker_fetch.note(now - exchange.sent_at)
        elif exchange.api_key not in _WAIT_FOR_OTHERS:
            self._measured.broker_other.note(now - exchange.sent_at)

    def answered(self, exchange: Exchange, now: float, *, again: bool) -> None:
        """Note a fetch's answer that has come whole, and what the client got of it.

        Args:
            exchange: the fetch.
            now: in seconds.
            again: the answer was none for the client; the fetch is sent once more.
        """
        came, told = self._tally.broker.fetch_response_bytes, self._tally.client.fetch_response_bytes
        self._measured.answer_bytes_broker.note(came - self._came)
        if again:
            self._measured.added_repeat.note(now - exchange.sent_at)
        elif exchange.becomes is not Becomes.OURS:
            self._measured.answer_bytes_client.note(told - self._told)
        self._came, self._told = came, told
