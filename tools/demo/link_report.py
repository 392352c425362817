"""The tables and checks of `make demo-link`: pure functions of records and counters."""

from dataclasses import dataclass

from rich.table import Table

from tools.counting import CountedFetches
from tools.demo.report import saved

MIN_SAVED = 0.9
"""The least share of an idle fetch's bytes that must be saved between the gateways."""
MAX_ABOVE_NATIVE = 0.02
"""The demo fails if a fetch between the two gateways is over 2 % larger than in a broker's native session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOutcome:
    """The result of one demo. Only idle fetches are counted: their responses had no records."""

    direct: CountedFetches
    """At the broker without sessions, for the client without the two gateways."""
    near: CountedFetches
    """Between the two gateways, as counted by the gateway beside the client."""
    far: CountedFetches
    """The same, as counted by the gateway beside the broker."""
    native: CountedFetches
    """The counts between one gateway and a broker that gives it a session."""
    produced: int
    read: int
    differences: tuple[str, ...]

    @property
    def saved(self) -> float:
        """Return the share of an idle fetch's bytes that is saved between the two gateways, from 0 to 1."""
        return saved(self.direct.whole, self.near.whole)

    @property
    def complaints(self) -> list[str]:
        """Return the problems; empty if there are none."""
        found = list(self.differences)
        if self.read != self.produced and not found:
            found.append(f"{self.produced:,} records were produced, {self.read:,} were read")
        counted = {"direct": self.direct, "near": self.near, "far": self.far, "native": self.native}
        for name, side in counted.items():
            if not side.fetches or side.records:
                found.append(
                    f"{name}: {side.fetches} fetches with {side.records} bytes of records, none was idle"
                )
        link, native = self.near.whole, self.native.whole
        if link != self.far.whole:
            found.append(f"the two ends of the link counted {link:,.1f} and {self.far.whole:,.1f} bytes")
        if link > native * (1 + MAX_ABOVE_NATIVE):
            found.append(f"a fetch on the link takes {link:,.1f} bytes, a native session's {native:,.1f}")
        if self.saved < MIN_SAVED:
            found.append(f"{self.saved:.1%} of the bytes were saved, less than {MIN_SAVED:.0%}")
        return found


def link_table(outcome: LinkOutcome) -> Table:
    """Return a table of idle fetches: direct, between the gateways, and in a native session."""
    direct, link, native = outcome.direct, outcome.near, outcome.native
    shown = Table(title="One idle fetch, in bytes", title_justify="left")
    shown.add_column("")
    for heading in ("direct", "on the link", "native session", "saved"):
        shown.add_column(heading, justify="right")
    sides = (direct, link, native)
    for name, values in (
        ("request", [side.request for side in sides]),
        ("response", [side.whole - side.request for side in sides]),
        ("both", [side.whole for side in sides]),
    ):
        shown.add_row(name, *(f"{value:,.0f}" for value in values), f"{saved(values[0], values[1]):.1%}")
    shown.add_row("fetches that were counted", *(f"{side.fetches:,}" for side in sides), "")
    return shown
