"""The tables and checks of `make demo-zones`: pure functions of records and counters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final, Self, TypeAlias

from rich.table import Table

MAX_CROSSING: Final = 0.1
"""The largest part of a client's record bytes that may come from other zones with fetchgate while nothing
fails. The demo fails above it."""

ByOffset: TypeAlias = Mapping[int, Mapping[int, str]]
"""The digest of each record's value, by partition and offset."""


class Period(StrEnum):
    """A time of the demo in which bytes are counted."""

    BEFORE = "before"
    AFTER = "after"
    KILLED = "the zone's broker is killed"
    BACK = "it is back"


@dataclass(frozen=True, slots=True, kw_only=True)
class ByZone:
    """Record bytes by the zone of the broker that sent them, as counted by the gateway of one client."""

    same: int = 0
    other: int = 0
    unknown: int = 0

    @classmethod
    def of(cls, zones: Mapping[str, Mapping[str, int]]) -> Self:
        """Read the counts in `zones.bytes` of /state."""
        return cls(**{zone: counts["records"] for zone, counts in zones.items()})

    def __add__(self, more: "ByZone") -> "ByZone":
        return ByZone(
            same=self.same + more.same, other=self.other + more.other, unknown=self.unknown + more.unknown
        )

    def since(self, earlier: "ByZone") -> "ByZone":
        """Return how much the counts grew since an earlier reading."""
        return ByZone(
            same=self.same - earlier.same,
            other=self.other - earlier.other,
            unknown=self.unknown - earlier.unknown,
        )

    @property
    def total(self) -> int:
        """All record bytes."""
        return self.same + self.other + self.unknown

    @property
    def crossing(self) -> float:
        """The part of the bytes that is not from the own zone. 0 if there are no bytes."""
        return 1 - self.same / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result of the check of each record that one client got of one topic."""

    produced: int
    lost: int
    """The records that the brokers have, but the client did not get."""
    doubled: int
    """The records that the client got once more."""
    disordered: int
    """The records that came after a later record of their partition."""
    altered: int
    """The records with another value than the produced one."""

    @classmethod
    def of(cls, produced: ByOffset, received: Mapping[int, Sequence[tuple[int, str]]]) -> Self:
        """Compare the records of a client with the produced ones.

        `received` has the offsets and digests by partition, in the order in which they came.
        """
        lost = doubled = disordered = altered = 0
        for partition in produced.keys() | received.keys():
            records, wanted = received.get(partition, ()), produced.get(partition, {})
            offsets = [offset for offset, _ in records]
            lost += len(wanted.keys() - set(offsets))
            doubled += len(offsets) - len(set(offsets))
            disordered += sum(later < offset for offset, later in pairwise(offsets))
            altered += sum(wanted.get(offset) != digest for offset, digest in records)
        return cls(
            produced=sum(map(len, produced.values())),
            lost=lost,
            doubled=doubled,
            disordered=disordered,
            altered=altered,
        )

    def __add__(self, more: "Checked") -> "Checked":
        return Checked(
            produced=self.produced + more.produced,
            lost=self.lost + more.lost,
            doubled=self.doubled + more.doubled,
            disordered=self.disordered + more.disordered,
            altered=self.altered + more.altered,
        )

    @property
    def complaints(self) -> list[str]:
        """Return the problems; empty if there are none."""
        found = {
            "were lost": self.lost,
            "came twice": self.doubled,
            "came after a later one of their partition": self.disordered,
            "had another value": self.altered,
        }
        return [f"{count:,} of {self.produced:,} records {how}" for how, count in found.items() if count]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOutcome:
    """The result of one client."""

    name: str
    periods: Mapping[Period, ByZone]
    checked: Checked
    """The records of both halves."""

    @property
    def complaints(self) -> list[str]:
        """Return the problems; empty if there are none."""
        found = self.checked.complaints
        if unknown := sum(each.unknown for each in self.periods.values()):
            found.append(f"{unknown:,} record bytes are from an unknown zone")
        if not self.periods[Period.BEFORE].other:
            found.append("no record came from another zone before")
        for period in (Period.AFTER, Period.BACK):
            if self.periods[period].crossing > MAX_CROSSING:
                share = f"{self.periods[period].crossing:.1%} of its record bytes"
                found.append(f"{share} came from other zones, more than {MAX_CROSSING:.0%} ({period})")
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
            sum((client.periods[period] for client in self.clients), ByZone()).crossing
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
            shown.add_row(f"  {period}", f"{counts.same:,}", f"{counts.other:,}", f"{counts.crossing:.1%}")
    return shown


def records_table(outcome: ZonesOutcome) -> Table:
    """Make a table of the checks of records, with a row for each client."""
    shown = Table(title="Records of both halves, each one checked", title_justify="left")
    shown.add_column("")
    for heading in ("produced", "lost", "twice", "out of order", "altered"):
        shown.add_column(heading, justify="right")
    for client in outcome.clients:
        checked = client.checked
        counts = (checked.produced, checked.lost, checked.doubled, checked.disordered, checked.altered)
        shown.add_row(client.name, *(f"{count:,}" for count in counts))
    return shown
