"""The tables and checks of `make demo-zones`: pure functions of records and counters."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rich.table import Table

from tools.zones.outcome import Findings

MAX_CROSSING: Final = 0.1
"""The largest part of a client's record bytes that may cross while nothing fails."""

WRONG: Final = {
    "lost": "were lost",
    "twice": "came twice",
    "out of order": "came after a later one of their partition",
    "altered": "had another value",
}


class Period(StrEnum):
    """A time of the demo in which bytes are counted."""

    BEFORE = "before"
    AFTER = "after"
    KILLED = "the zone's broker is killed"
    BACK = "it is back"


def by_zone(zones: Mapping[str, Mapping[str, int]]) -> Counter[str]:
    """Return the record bytes in `zones.bytes` of /state, by the zone of the broker that sent them."""
    return Counter({zone: counts["records"] for zone, counts in zones.items()})


def crossing(counts: Counter[str]) -> float:
    """Return which part of the bytes is not from the own zone. 0 if there are no bytes."""
    return 1 - counts["same"] / counts.total() if counts.total() else 0.0


def checked(found: Findings, produced: int) -> Counter[str]:
    """Return the result of the check of a client's records, by column of the table."""
    wrong = (found.lost + found.missing, found.doubled, found.disordered, found.changed)
    return Counter({"produced": produced, **dict(zip(WRONG, wrong, strict=True))})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOutcome:
    """The result of one client."""

    name: str
    periods: Mapping[Period, Counter[str]]
    """Record bytes by zone, as counted by the gateway of the client."""
    checked: Counter[str]

    @property
    def complaints(self) -> list[str]:
        """Return the problems; empty if there are none."""
        produced = self.checked["produced"]
        found = [
            f"{self.checked[what]:,} of {produced:,} records {how}"
            for what, how in WRONG.items()
            if self.checked[what]
        ]
        if unknown := sum(each["unknown"] for each in self.periods.values()):
            found.append(f"{unknown:,} record bytes are from an unknown zone")
        if not self.periods[Period.BEFORE]["other"]:
            found.append("no record came from another zone before")
        for period in (Period.AFTER, Period.BACK):
            if (share := crossing(self.periods[period])) > MAX_CROSSING:
                most = f"more than {MAX_CROSSING:.0%} ({period})"
                found.append(f"{share:.1%} of its record bytes came from other zones, {most}")
        return [f"{self.name}: {each}" for each in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZonesOutcome:
    """The result of one demo."""

    clients: tuple[ClientOutcome, ...]

    @property
    def complaints(self) -> list[str]:
        """Return the problems; empty if there are none."""
        return [complaint for client in self.clients for complaint in client.complaints]

    @property
    def verdict(self) -> str:
        """Say which part of the record bytes crossed zones, before and after."""
        before, after = (
            crossing(sum((client.periods[period] for client in self.clients), Counter()))
            for period in (Period.BEFORE, Period.AFTER)
        )
        return f"Record bytes from other zones, of all four: {before:.1%} before, {after:.1%} after."


def zones_table(outcome: ZonesOutcome) -> Table:
    """Make a table of record bytes by zone, for each client and each period."""
    shown = Table(title="Record bytes by the zone of the broker that sent them", title_justify="left")
    shown.add_column("")
    for heading in ("own zone", "other zones", "crossing"):
        shown.add_column(heading, justify="right")
    for client in outcome.clients:
        shown.add_section()
        shown.add_row(client.name, style="bold")
        for period, counts in client.periods.items():
            shown.add_row(
                f"  {period}", f"{counts['same']:,}", f"{counts['other']:,}", f"{crossing(counts):.1%}"
            )
    return shown


def records_table(outcome: ZonesOutcome) -> Table:
    """Make a table of the checks of records, with a row for each client."""
    shown = Table(title="Records of both halves, each one checked", title_justify="left")
    shown.add_column("")
    columns = ("produced", *WRONG)
    for heading in columns:
        shown.add_column(heading, justify="right")
    for client in outcome.clients:
        shown.add_row(client.name, *(f"{client.checked[column]:,}" for column in columns))
    return shown
