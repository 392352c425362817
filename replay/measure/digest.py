"""Sums up a connection by topic, over time, by session and by limit. Sans-IO.

The sums are in the column `summary` of the connection's row of the kind `connection`. Their size depends on
the number of topics, not on the number of fetches.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Final, NamedTuple

from replay.capture.kafka.both_sides import SampledExchange
from replay.capture.kafka.exchange import ConnectionEnd
from replay.measure.floors import NO_FLOORS, FloorFigures, FloorLog, Floors
from replay.measure.limits import LimitLog, Starved, VersionFigures
from replay.measure.zone_log import ZonesSeen
from replay.simulate.outcome import Outcome, TopicKey, TopicShare
from replay.simulate.session_cache import CacheEvent, SessionLog

_SECOND: Final = 1_000_000_000
WIDTHS: Final = tuple(
    int(seconds * _SECOND)
    for seconds in (0.1, 0.2, 1, 2, 10, 20, 60, 120, 600, 1200, 3600, 7200, 14400, 43200, 86400)
)
"""Widths of buckets, in ns. Each divides the next one, so timelines can be merged."""
BUCKETS: Final = 120


class BytesOfPeriod(NamedTuple):
    """The bytes of fetches in one period: captured, and predicted with sessions."""

    time: int
    """The start of the period, in ns since 1970."""
    actual_bytes: int
    """Captured, in both directions."""
    predicted_bytes: int
    """With sessions, in both directions."""


@dataclass(slots=True, repr=False)
class Timeline:
    """Fetch bytes over time, in at most `BUCKETS` buckets. Times without fetches have no buckets.

    So while fetches are added, a long time without any does not make the timeline coarse. `fit` later makes
    it as coarse as the captured time requires.
    """

    width: int = WIDTHS[0]
    """The width of a bucket, in ns."""
    buckets: dict[int, list[int]] = field(default_factory=dict)
    """The actual and the predicted bytes of each bucket, by its start time divided by the width."""

    def __repr__(self) -> str:
        return f"<Timeline buckets={len(self.buckets)} width={self.width / _SECOND}s>"

    def add(self, time: int, actual: int, predicted: int) -> None:
        """Add the bytes of a fetch to the bucket of `time`, which is in ns."""
        bucket = self.buckets.get(time // self.width)
        if bucket is None:
            self.buckets[time // self.width] = [actual, predicted]
            while len(self.buckets) > BUCKETS:
                self._widen(self._wider())
            return
        bucket[0] += actual
        bucket[1] += predicted

    def over_time(self) -> list[BytesOfPeriod]:
        return [BytesOfPeriod(number * self.width, *sizes) for number, sizes in sorted(self.buckets.items())]

    def merge(self, width: int, buckets: Iterable[BytesOfPeriod]) -> None:
        if width > self.width:
            self._widen(width)
        for time, actual, predicted in buckets:
            self.add(time, actual, predicted)

    def fit(self, span: int) -> None:
        """Widen the buckets until `BUCKETS` of them cover `span`, the captured time in ns."""
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


@dataclass(slots=True, kw_only=True)
class TopicTotals(TopicShare):
    """The figures of one topic in all counted fetches of a connection."""

    topic: str | None = None
    """Its name. None if fetches have topic ids."""
    topic_id: bytes | None = None
    """The topic id, in place of `topic`, if the fetches have topic ids (v13 and later)."""
    eligible_request_bytes: int = 0
    """The part of `request_bytes` of eligible fetches."""
    eligible_response_bytes: int = 0
    """The part of `response_bytes` of eligible fetches."""
    eligible_record_bytes: int = 0
    """The part of `record_bytes` of eligible fetches."""


@dataclass(slots=True, kw_only=True)
class Summary:
    """The figures of a connection that are not in the rows of its exchanges."""

    end: ConnectionEnd
    """The counts of the captured connection."""
    topics: list[TopicTotals] = field(default_factory=list)
    """The figures of each topic."""
    bucket_ns: int = WIDTHS[0]
    """The length of the periods in `over_time`."""
    over_time: list[BytesOfPeriod] = field(default_factory=list)
    """The fetch bytes of each period with fetches."""
    sessions: list[CacheEvent] = field(default_factory=list)
    """The events of fetch sessions."""
    limits: dict[int, VersionFigures] = field(default_factory=dict)
    """The figures of response limits, by Fetch version."""
    starved: list[Starved] = field(default_factory=list)
    """The partitions that got no records for the longest time, while others did."""
    floors: dict[int, FloorFigures] = field(default_factory=dict)
    """What floors of min_bytes and max_wait_ms would save, by Fetch version. Empty without floors."""
    differing: int = 0
    """How many responses the session has expanded to another size than the captured one."""
    saved_by_other: int = 0
    """How many bytes the policy that was not chosen would have saved."""
    exchanges: int = 0
    """How many exchanges have both a request and a response."""
    sample: list[SampledExchange] = field(default_factory=list)
    """Some exchanges, to recognise the same traffic on both sides of a gateway. Empty if there are few."""
    zones: ZonesSeen | None = None
    """What the connection tells about zones. None if it tells nothing."""


_SHARE: Final = tuple(field.name for field in fields(TopicShare))
_values_of: Final = attrgetter(*_SHARE)
_ELIGIBLE: Final = ("request_bytes", "response_bytes", "record_bytes")


class Digest:
    """Sums up the outcomes of one connection."""

    def __init__(self, max_fetch_bytes: int = 0, floors: Floors = NO_FLOORS) -> None:
        self._topics: dict[TopicKey, list[int]] = defaultdict(lambda: [0] * len(_SHARE))
        self._eligible: dict[TopicKey, list[int]] = defaultdict(lambda: [0] * len(_SHARE))
        self._native: dict[str, int] = {}
        self.timeline = Timeline()
        self.log = SessionLog()
        self.limits = LimitLog(max_fetch_bytes)
        self.floors = FloorLog(floors)

    def add(self, outcome: Outcome) -> None:
        for fetch in outcome.fetches:
            self.timeline.add(fetch.request_time, fetch.captured, fetch.predicted)
        self._note_shares(outcome)
        self._note_session(outcome)
        self.limits.add(outcome)
        self.floors.add(outcome)

    def close(self, closing: Outcome) -> None:
        """Add the closing fetch with which the gateway ends its session for the connection."""
        predicted = closing.session_request_bytes + closing.session_response_bytes
        self.timeline.add(closing.exchange.request_time, 0, predicted)
        self.log.close(closing.exchange.request_time, closing.exchange.connection)

    def summary(self, end: ConnectionEnd) -> Summary:
        """Return the summary of the connection, which has ended. Forget the sessions of the connection."""
        return Summary(
            end=end,
            topics=[self._topic_totals(key) for key in self._topics],
            bucket_ns=self.timeline.width,
            over_time=self.timeline.over_time(),
            sessions=self.log.drain(),
            limits=self.limits.by_version(),
            starved=self.limits.longest(),
            floors=self.floors.by_version(end.last_time - end.first_time),
        )

    def _note_shares(self, outcome: Outcome) -> None:
        for key, share in outcome.topics.items():
            values = _values_of(share)
            _add(self._topics[key], values)
            if outcome.eligible:
                _add(self._eligible[key], values)

    def _topic_totals(self, key: TopicKey) -> TopicTotals:
        eligible = dict(zip(_SHARE, self._eligible[key], strict=True))
        return TopicTotals(
            topic=key if isinstance(key, str) else None,
            topic_id=key if isinstance(key, bytes) else None,
            **dict(zip(_SHARE, self._topics[key], strict=True)),
            **{f"eligible_{name}": eligible[name] for name in _ELIGIBLE},
        )

    def _note_session(self, outcome: Outcome) -> None:
        exchange = outcome.exchange
        name, time = exchange.connection, exchange.response_time or exchange.request_time
        if outcome.closes:
            self.log.close(time, name)
        if not outcome.eligible:
            self._note_native(outcome, time)
        elif outcome.full:
            self.log.make(time, name, outcome.session_size)
        elif outcome.incremental:
            for fetch in outcome.fetches:
                self.log.touch(fetch.response_time or fetch.request_time, name, outcome.session_size)

    def _note_native(self, outcome: Outcome, time: int) -> None:
        """Record an event of the client's own session, under the session id that the broker gave.

        Any connection may use this session, so the connection's name can't identify it. The session's size is
        taken from its first response, because later responses do not show it.
        """
        requested, returned = str(outcome.session_id), str(outcome.answer_session_id)
        if outcome.session_id > 0 and outcome.kind in {"full", "close"}:
            self.log.close(time, requested)
        elif outcome.kind == "incremental":
            self.log.touch(time, requested, self._native.get(requested, 0))
        if outcome.kind == "full" and outcome.answer_session_id:
            self._native[returned] = outcome.partitions_answered
            self.log.make(time, returned, outcome.partitions_answered)


def _add(sums: list[int], values: Iterable[int]) -> None:
    for at, value in enumerate(values):
        sums[at] += value
