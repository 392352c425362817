"""Adds up fetches, in the format of the report. Sans-IO."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from replay.measure.digest import TopicTotals
from replay.measure.typed import bounded
from replay.report.model import (
    PARTS,
    Actual,
    Eligible,
    FetchesRow,
    FetchReport,
    Passed,
    SessionsReport,
    Shares,
    Where,
    actual_bytes,
    eligible_bytes,
    sessions_bytes,
)

_Sums = TypeVar("_Sums")
_CAPTURED: Final = ("request_bytes", "response_bytes", "record_bytes")
_LISTED: Final = ("partitions_requested", "partitions_answered")
_OF_BOTH: Final = frozenset({*_CAPTURED, *_LISTED})
"""The figures of fetches as captured. Those with sessions are in columns that begin with ``session_``."""
_SPLIT: Final = ("listing_bytes", "empty_entry_bytes", "entry_bytes", "record_bytes")
SUMMED: Final = frozenset(
    {
        *_LISTED,
        *_SPLIT,
        *(f"session_{name}" for name in ("request_bytes", "response_bytes", *_LISTED, *_SPLIT)),
        *(SessionsReport.__annotations__.keys() - _OF_BOTH),
        "closes",
    }
)
"""The columns of fetches that are added up in a group."""


def empty() -> FetchReport:
    """Return a report on fetches in which all sums are 0."""
    return FetchReport(
        actual=_zeros(Actual),
        eligible=_zeros(Eligible),
        sessions=_zeros(SessionsReport),
        saved_bytes=0,
        saved_ratio=0.0,
    )


def _zeros(kind: type[_Sums]) -> _Sums:
    return cast("_Sums", dict.fromkeys(kind.__annotations__, 0))


def _nowhere() -> Where:
    return Where(actual=_zeros(Shares), predicted=_zeros(Shares))


@dataclass(slots=True, repr=False)
class FetchSums:
    """The sums of groups of fetches. The groups of one connection must be added directly after each other."""

    sums: FetchReport = field(default_factory=empty)
    """The sums of the captured and the predicted traffic, without the savings: see `fetch`."""
    where: Where = field(default_factory=_nowhere)
    """The fetch bytes divided into five parts, as captured and as predicted."""
    connections: int = 0
    lasted: int = 0
    """How long the connections were captured, in ns. It is set only in the sums of a client."""
    closes: int = 0
    passed: dict[str, Passed] = field(default_factory=dict)
    """Captured fetches that did not go through a session of the gateway, by reason."""
    _last: tuple[str, ...] = ()
    """The connection of the last group, to count each connection once."""

    def __repr__(self) -> str:
        return f"<FetchSums requests={self.sums['actual']['requests']} bytes={self.actual_bytes}>"

    @property
    def actual_bytes(self) -> int:
        return actual_bytes(self.sums)

    def add(self, group: Mapping[str, Any]) -> None:
        """Add a group of fetches, which all have the same kind of row and the same eligibility."""
        if (group["connection"],) != self._last:
            self.connections += 1
            self._last = (group["connection"],)
        self.closes += group["closes"]
        captured = group["row"] != "closing"
        if captured:
            self._add_actual(group)
        if captured and group["eligible"]:
            self._add_eligible(group)
        if captured and (group["reason"] or not group["eligible"]):
            add_passed(self.passed, *passed_in(group))
        self._add_sessions(group)
        self._add_where(group)

    def merge(self, other: "FetchSums") -> None:
        self.connections += other.connections
        self.lasted = bounded(self.lasted + other.lasted)
        self.closes += other.closes
        for reason, passed in other.passed.items():
            add_passed(self.passed, reason, passed)
        add(self.sums, other.fetch())
        for way in ("actual", "predicted"):
            for name, count in other.where[way].items():
                self.where[way][name] += count  # type: ignore[literal-required]  # keys of Shares

    def fetch(self) -> FetchReport:
        return with_savings(self.sums)

    def row(self) -> FetchesRow:
        return FetchesRow(fetch=self.fetch(), passed=dict(sorted(self.passed.items())))

    def _add_actual(self, group: Mapping[str, Any]) -> None:
        actual = self.sums["actual"]
        actual["requests"] += group["count"]
        actual["responses"] += group["count"] if group["row"] == "exchange" else 0
        for name in (*_CAPTURED, *_LISTED):
            actual[name] += group[name]

    def _add_eligible(self, group: Mapping[str, Any]) -> None:
        eligible = self.sums["eligible"]
        eligible["exchanges"] += group["count"]
        for name in _CAPTURED:
            eligible[name] += group[name]

    def _add_sessions(self, group: Mapping[str, Any]) -> None:
        sessions = self.sums["sessions"]
        for name in sessions:
            sessions[name] += group[f"session_{name}" if name in _OF_BOTH else name]  # type: ignore[literal-required]  # its own names

    def _add_where(self, group: Mapping[str, Any]) -> None:
        actual, predicted = self.where["actual"], self.where["predicted"]
        captured = group["request_bytes"] + group["response_bytes"]
        _add_shares(actual, group, "", captured)
        if not group["eligible"]:
            _add_shares(predicted, group, "", captured)
        _add_shares(
            predicted, group, "session_", group["session_request_bytes"] + group["session_response_bytes"]
        )


def with_savings(fetch: FetchReport) -> FetchReport:
    """Return the sums, completed by `saved_bytes` and `saved_ratio`."""
    saved = eligible_bytes(fetch) - sessions_bytes(fetch)
    whole = actual_bytes(fetch)
    return {**fetch, "saved_bytes": saved, "saved_ratio": saved / whole if whole else 0.0}


def add_passed(passed: dict[str, Passed], reason: str, more: Passed) -> None:
    """Add fetches that did not use a session."""
    row = passed.setdefault(reason, Passed(exchanges=0, bytes=0))
    row["exchanges"] += more["exchanges"]
    row["bytes"] += more["bytes"]


def passed_in(group: Mapping[str, Any]) -> tuple[str, Passed]:
    """Return the reason why the fetches of a group did not use a session, and their counts."""
    size = group["request_bytes"] + group["response_bytes"]
    return group["reason"] or "not understood", Passed(exchanges=group["count"], bytes=size)


def add_topic(fetch: FetchReport, totals: TopicTotals) -> None:
    """Add the sums of one topic on one connection to the sums of fetches."""
    for prefix, part in (
        ("", fetch["actual"]),
        ("eligible_", fetch["eligible"]),
        ("session_", fetch["sessions"]),
    ):
        for name in part:
            part[name] += getattr(totals, prefix + name, 0)  # type: ignore[literal-required]  # its own names


def add(fetch: FetchReport, other: FetchReport) -> None:
    """Add other sums to the sums in `fetch`, without computing the savings."""
    for part in PARTS:
        for name, count in other[part].items():  # type: ignore[literal-required]  # its parts
            fetch[part][name] += count  # type: ignore[literal-required]  # keys of its parts


def subtract(whole: FetchReport, parts: Iterable[FetchReport]) -> FetchReport:
    """Return the sums of `whole` minus the sums of all `parts`."""
    rest = empty()
    for part in PARTS:
        for name in rest[part]:  # type: ignore[literal-required]  # its parts
            parts_sum = sum(one[part][name] for one in parts)  # type: ignore[literal-required]  # keys of Fetch
            rest[part][name] = whole[part][name] - parts_sum  # type: ignore[literal-required]  # keys of Fetch
    return with_savings(rest)


def _add_shares(shares: Shares, group: Mapping[str, Any], prefix: str, whole: int) -> None:
    rest = whole
    for name in _SPLIT:
        shares[name] += group[prefix + name]
        rest -= group[prefix + name]
    shares["other_bytes"] += rest
