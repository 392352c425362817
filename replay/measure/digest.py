"""What rows of exchanges do not say of a connection: bytes by topic and over time, sessions, limits. Sans-IO.

The `detail` of each `connection` row holds one digest. Its size depends on the number of topics, not of
fetches.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final

from replay.measure.limits import LimitLog
from replay.simulate.outcome import Outcome, TopicKey, TopicShare
from replay.simulate.session_cache import SessionLog

_SECOND: Final = 1_000_000_000
WIDTHS: Final = tuple(
    int(seconds * _SECOND)
    for seconds in (0.1, 0.2, 1, 2, 10, 20, 60, 120, 600, 1200, 3600, 7200, 14400, 43200, 86400)
)
"""Widths of buckets, in ns. Each divides the next, so that timelines can be merged."""
BUCKETS: Final = 120
"""Most buckets in a timeline."""


class Timeline:
    """Fetch bytes over time, in buckets. The more of them have bytes, the wider they are.

    So a time without fetches does not make the others coarse: it may not have been captured.
    """

    def __init__(self) -> None:
        self.width = WIDTHS[0]
        self.buckets: dict[int, list[int]] = {}

    def __repr__(self) -> str:
        return f"<Timeline buckets={len(self.buckets)} width={self.width / _SECOND}s>"

    def add(self, time: int, actual: int, predicted: int) -> None:
        """Add bytes. `time` is in ns."""
        bucket = self.buckets.get(time // self.width)
        if bucket is None:
            self.buckets[time // self.width] = [actual, predicted]
            while len(self.buckets) > BUCKETS:
                self._widen(self._wider())
            return
        bucket[0] += actual
        bucket[1] += predicted

    def merge(self, width: int, buckets: Iterable[tuple[int, int, int]]) -> None:
        """Add another timeline's buckets: number, actual bytes, predicted bytes."""
        if width > self.width:
            self._widen(width)
        for number, actual, predicted in buckets:
            self.add(number * width, actual, predicted)

    def fit(self, span: int) -> None:
        """Make the buckets as wide as fits to a captured time, in ns."""
        while span > BUCKETS * self.width:
            self._widen(self._wider())

    def _wider(self) -> int:
        at = WIDTHS.index(self.width) + 1 if self.width in WIDTHS else len(WIDTHS)
        return WIDTHS[at] if at < len(WIDTHS) else 2 * self.width

    def _widen(self, width: int) -> None:
        factor = width // self.width
        self.width, before, self.buckets = width, self.buckets, {}
        for number, (actual, predicted) in before.items():
            bucket = self.buckets.setdefault(number // factor, [0, 0])
            bucket[0] += actual
            bucket[1] += predicted


_SHARE: Final = tuple(field.name for field in fields(TopicShare))
_values_of: Final = attrgetter(*_SHARE)
_ELIGIBLE: Final = ("request_bytes", "response_bytes", "record_bytes")


class Digest:
    """The sums of one connection's outcomes.

    Args:
        connection: its name.
        max_fetch_bytes: see `LimitLog`.
    """

    def __init__(self, connection: str, max_fetch_bytes: int = 0) -> None:
        self._connection = connection
        self._topics: dict[TopicKey, list[int]] = defaultdict(lambda: [0] * len(_SHARE))
        self._eligible: dict[TopicKey, list[int]] = defaultdict(lambda: [0] * len(_SHARE))
        self._shares: dict[TopicKey, TopicShare] = {}
        """Of the last fetches, which repeat one another; they are added up when others come."""
        self._repeated = self._repeated_eligible = 0
        """How many fetches have these shares, and how many of them were eligible."""
        self._native: dict[str, int] = {}
        self.timeline = Timeline()
        self.log = SessionLog()
        self.limits = LimitLog(max_fetch_bytes)

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of a fetch that is counted."""
        exchange = outcome.exchange
        actual = exchange.request_bytes + exchange.response_bytes
        through = outcome.session_request_bytes + outcome.session_response_bytes
        self.timeline.add(exchange.request_time, actual, through + (0 if outcome.eligible else actual))
        if outcome.topics is not self._shares:
            self._add_shares()
            self._shares = outcome.topics
        self._repeated += 1
        self._repeated_eligible += outcome.eligible
        self._note_session(outcome)
        self.limits.add(outcome)

    def close(self, closing: Outcome) -> None:
        """Add the close of the session that the gateway had for the connection."""
        predicted = closing.session_request_bytes + closing.session_response_bytes
        self.timeline.add(closing.exchange.request_time, 0, predicted)
        self.log.close(closing.exchange.request_time, self._connection)

    def detail(self) -> dict[str, Any]:
        """Return the digest as plain values, for JSON."""
        self._add_shares()
        buckets = self.timeline.buckets.items()
        return {
            "topics": [self._topic_values(key) for key in self._topics],
            "width": self.timeline.width,
            "over_time": [[number, *values] for number, values in sorted(buckets)],
            "sessions": self.log.drain(),
            "limits": self.limits.detail(),
        }

    def _add_shares(self) -> None:
        for key, share in self._shares.items():
            values = _values_of(share)
            _add(self._topics[key], values, self._repeated)
            if self._repeated_eligible:
                _add(self._eligible[key], values, self._repeated_eligible)
        self._shares, self._repeated, self._repeated_eligible = {}, 0, 0

    def _topic_values(self, key: TopicKey) -> dict[str, Any]:
        """Return a topic's sums with its name, or its id as hexadecimal digits."""
        eligible = dict(zip(_SHARE, self._eligible[key], strict=True))
        return {
            **({"topic": key} if isinstance(key, str) else {"id": key.hex()}),
            **dict(zip(_SHARE, self._topics[key], strict=True)),
            **{f"eligible_{name}": eligible[name] for name in _ELIGIBLE},
        }

    def _note_session(self, outcome: Outcome) -> None:
        time = outcome.exchange.response_time or outcome.exchange.request_time
        if outcome.closes:
            self.log.close(time, self._connection)
        if not outcome.eligible:
            self._note_native(outcome, time)
        elif outcome.full:
            self.log.make(time, self._connection, outcome.session_size)
        elif outcome.incremental:
            self.log.touch(time, self._connection, outcome.session_size)

    def _note_native(self, outcome: Outcome, time: int) -> None:
        """Note a session that the client itself has. Its id is the broker's, and any connection may use it.

        Its size stays that of its first response: the later responses of a session do not say it.
        """
        requested, returned = str(outcome.session_id), str(outcome.answer_session_id)
        if outcome.session_id > 0 and outcome.kind in {"full", "close"}:
            self.log.close(time, requested)
        elif outcome.kind == "incremental":
            self.log.touch(time, requested, self._native.get(requested, 0))
        if outcome.kind == "full" and outcome.answer_session_id:
            self._native[returned] = outcome.partitions_answered
            self.log.make(time, returned, outcome.partitions_answered)


def _add(sums: list[int], values: Iterable[int], times: int) -> None:
    for at, value in enumerate(values):
        sums[at] += value * times
