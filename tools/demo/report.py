"""The comparisons and tables of the demo: pure functions of records and counters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any, Self

from rich.table import Table

from proxy.text.printable import printable
from replay.report.model import Report
from replay.report.wording import decided, how_sure
from tools.counting import CountedFetches

MIN_SAVED = 0.9
"""The smallest part of all fetch bytes except records that sessions must save. The demo fails below it."""
MAX_DIFFERENCES = 5


@dataclass(frozen=True, slots=True, order=True)
class DemoRecord:
    """A record with all fields that an application can see."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: tuple[int, int]
    """The timestamp's type, and its value in milliseconds."""
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Figures of fetches at the broker: predicted by `fetchgate replay measure`, or counted."""

    request_bytes: int
    response_bytes: int
    full: int
    incremental: int
    sessionless: int

    @classmethod
    def of(cls, fetch: Mapping[str, Any]) -> Self:
        """Read JSON of `replay measure`: sessions, and what can't use one (actual minus eligible)."""
        actual, eligible, sessions = fetch["actual"], fetch["eligible"], fetch["sessions"]
        return cls(
            request_bytes=sessions["request_bytes"] + actual["request_bytes"] - eligible["request_bytes"],
            response_bytes=sessions["response_bytes"] + actual["response_bytes"] - eligible["response_bytes"],
            full=sessions["full"],
            incremental=sessions["incremental"],
            sessionless=sessions["sessionless"],
        )

    @classmethod
    def counted(cls, side: Mapping[str, Any]) -> Self:
        """Read the counts of a gateway on the broker's side: `totals` in /state."""
        return cls(
            request_bytes=side["fetch_request_bytes"],
            response_bytes=side["fetch_response_bytes"],
            full=side["fetches"]["full"],
            incremental=side["fetches"]["incremental"],
            sessionless=side["fetches"]["sessionless"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """The result of one demo."""

    seconds: float
    direct: CountedFetches
    client: CountedFetches
    """Of the run with the gateway, between client and gateway."""
    broker: CountedFetches
    produced: int
    read: int
    differences: tuple[str, ...]
    predicted: Prediction
    measured: Prediction
    picture: str
    first_lines: str

    @property
    def saved(self) -> float:
        """The part of the fetch bytes that sessions saved, by the counters of both sides of one gateway."""
        return saved(self.client.total, self.broker.total)

    @property
    def listing_saved(self) -> float:
        """Which part of all bytes except records was saved."""
        return saved(self.client.listing, self.broker.listing)

    @property
    def complaints(self) -> list[str]:
        """Return the problems; empty if there are none."""
        found = list(self.differences)
        if self.read != self.produced and not found:
            found.append(f"{self.produced:,} records were produced, {self.read:,} were read")
        if self.predicted != self.measured:
            found.append(f"predicted {self.predicted}, measured {self.measured}")
        # Records can't be saved. On a busy machine there are fewer fetches, each with more records.
        if self.listing_saved < MIN_SAVED:
            found.append(
                f"{self.listing_saved:.1%} of the bytes without records were saved, less than {MIN_SAVED:.0%}"
            )
        return found


def saved(before: float, after: float) -> float:
    """Return which part of an amount was saved. Return 0 if the amount is 0."""
    return 1 - after / before if before else 0.0


def compare(direct: Sequence[DemoRecord], through: Sequence[DemoRecord]) -> tuple[int, tuple[str, ...]]:
    """Compare the records partition by partition. Return how many are equal, and first differences."""
    same = 0
    differences: list[str] = []
    for one, other in zip_longest(_by_partition(direct), _by_partition(through)):
        if one == other:
            same += 1
        elif len(differences) < MAX_DIFFERENCES:
            differences.append(f"direct: {_show(one)}; through the gateway: {_show(other)}")
    return same, tuple(differences)


def claim(outcome: DemoOutcome) -> Table:
    """Return a table that compares the figures predicted by replay with those counted at the broker."""
    shown = Table(
        title="Predicted from a capture of the client's side, and measured",
        title_justify="left",
        caption="The bytes include fetches that only close a session; these fetches have no row.",
        caption_justify="left",
    )
    shown.add_column("")
    for heading in ("predicted", "measured"):
        shown.add_column(heading, justify="right")
    for field in fields(Prediction):
        values = (getattr(side, field.name) for side in (outcome.predicted, outcome.measured))
        name = field.name.replace("_", " ")
        shown.add_row(name if "bytes" in name else f"{name} fetches", *(f"{value:,}" for value in values))
    return shown


def first_lines(report: Report) -> str:
    """Return of a report the first statement, how sure it is, and the advice for each client."""
    to_do = [
        f"{printable(row['client_id']) or '(none)'}: {row['sentence']}" for row in report["decision"]["to_do"]
    ]
    return "\n".join([decided(report), how_sure(report), *to_do])


def _by_partition(records: Sequence[DemoRecord]) -> list[DemoRecord]:
    """Sort records by partition only: within one they stay as they were read."""
    return sorted(records, key=lambda record: (record.topic, record.partition))


def _show(record: DemoRecord | None) -> str:
    if record is None:
        return "no record"
    size = "null" if record.value is None else f"{len(record.value)} bytes"
    return (
        f"{record.topic}-{record.partition} offset {record.offset}, key {record.key!r}, value {size}, "
        f"timestamp {record.timestamp[1]}, {len(record.headers)} headers"
    )


def table(outcome: DemoOutcome) -> Table:
    """Make a table of fetches without and with the gateway, on the broker's side."""
    direct, through, seconds = outcome.direct, outcome.broker, outcome.seconds
    shown = Table(title="Fetches on the broker's side", title_justify="left")
    shown.add_column("")
    for heading in ("direct", "through fetchgate", "saved"):
        shown.add_column(heading, justify="right")
    shown.add_row("fetches", f"{direct.fetches:,}", f"{through.fetches:,}", "")
    for name, before, after in (
        ("request bytes per fetch", direct.request, through.request),
        ("response bytes per fetch", direct.whole - direct.request, through.whole - through.request),
        ("both, without records", direct.bare, through.bare),
        ("bytes per second", direct.total / seconds, through.total / seconds),
    ):
        shown.add_row(name, f"{before:,.0f}", f"{after:,.0f}", f"{saved(before, after):.1%}")
    return shown
