"""The tables and checks of `make demo-cooperative`: pure functions of the members' logs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from rich.table import Table

from tools.work_log import COMMITTED, Entries, handled, last, rate, records, rewound

MIN_TIMES = 3.0
"""The demo fails if four members that share a partition are not this many times as fast as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOutcome:
    """The result of one group."""

    produced: int
    members: int
    working: int
    """The number of members that got records before the kill."""
    shares: tuple[int, ...]
    rate: float
    """Records per second, from the first one to the kill."""
    still: float
    """Seconds from the kill until another member went on with the killed member's keys."""
    seconds: float
    read: int
    again: int
    needless: int
    """Of them, those that the killed member had committed, or had not handled."""
    disordered: int
    """The number of records handled after a later record of the same key."""
    together: int
    """The number of records whose handling began while another record of the same key was being handled."""

    @classmethod
    def of(cls, members: Sequence[Entries], *, killed: int, killed_at: int, produced: int) -> Self:
        """Read the logs. `killed` is the index of the killed member; it was killed at `killed_at` (ns)."""
        order = [members[killed], *(each for number, each in enumerate(members) if number != killed)]
        done = [records(each) for each in order]
        found = handled(order)
        first = min(int(each["began"][0]) for each in done if len(each))
        before = [each[each["ended"] <= killed_at] for each in done]
        after = np.concatenate([each[each["began"] > killed_at] for each in done[1:]])
        taken = after[np.isin(after["key"], before[0]["key"])]
        committed = last(order[0], COMMITTED) or 0
        open_offsets = set(done[0]["offset"][done[0]["offset"] >= committed].tolist())
        return cls(
            produced=produced,
            members=len(members),
            working=sum(bool(len(each)) for each in before),
            shares=tuple(len(each) for each in done),
            rate=rate(before, first, killed_at),
            still=(int(taken["began"].min()) - killed_at) / 1e9 if len(taken) else float("inf"),
            seconds=(max(int(each["ended"].max()) for each in done if len(each)) - first) / 1e9,
            read=found.records,
            again=len(found.again),
            needless=sum(offset not in open_offsets for offset in found.again),
            disordered=found.disordered + sum(rewound(each) for each in order),
            together=found.together,
        )

    @property
    def complaints(self) -> list[str]:
        """Return the problems; empty if there are none."""
        problems = {
            f"{self.produced - self.read:,} of {self.produced:,} records were not handled": self.produced
            != self.read,
            f"{self.disordered:,} records came behind a later one of their key": bool(self.disordered),
            f"{self.together:,} records were begun while another one of their key was in work": bool(
                self.together
            ),
            f"{self.needless:,} records came again that were no uncommitted ones of the killed member": bool(
                self.needless
            ),
        }
        return [complaint for complaint, holds in problems.items() if holds]


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeOutcome:
    """The result of one demo."""

    plain: GroupOutcome
    cooperative: GroupOutcome

    @property
    def times(self) -> float:
        """The rate of the cooperative group as a multiple of the plain group's."""
        return self.cooperative.rate / self.plain.rate

    @property
    def verdict(self) -> str:
        """Describe how much faster the cooperative group was: until the kill, and over the whole run."""
        whole = self.plain.seconds / self.cooperative.seconds
        return (
            f"Until one was killed, the cooperative group was {self.times:.2f} times as fast (records/s).\n"
            f"With the pause after the kill, all records took it {self.cooperative.seconds:.1f} s, the plain "
            f"group {self.plain.seconds:.1f} s: {whole:.2f} times."
        )

    @property
    def complaints(self) -> list[str]:
        """Return the problems; empty if there are none."""
        groups = {"plain": self.plain, "cooperative": self.cooperative}
        found = [f"{name}: {each}" for name, group in groups.items() for each in group.complaints]
        if self.cooperative.working != self.cooperative.members:
            found.append(f"cooperative: only {self.cooperative.working} members got records before the kill")
        if self.times < MIN_TIMES:
            found.append(f"the cooperative group is {self.times:.2f} times as fast, less than {MIN_TIMES:g}")
        return found


def cooperative_table(outcome: CooperativeOutcome) -> Table:
    """Make a table that compares the plain group with the cooperative group."""
    shown = Table(title="Four members, one partition", title_justify="left")
    shown.add_column("")
    for heading in ("plain group", "cooperative"):
        shown.add_column(heading, justify="right")
    groups = (outcome.plain, outcome.cooperative)
    for name, cells in (
        ("records/s until one was killed", [f"{each.rate:,.0f}" for each in groups]),
        ("members at work until then", [f"{each.working} of {each.members}" for each in groups]),
        ("records: the killed one | others", [_shares(each) for each in groups]),
        ("its keys stood still for", [f"{each.still:.1f} s" for each in groups]),
        ("all records were done after", [f"{each.seconds:.1f} s" for each in groups]),
        ("records lost", [f"{each.produced - each.read:,}" for each in groups]),
        ("out of order within their key", [f"{each.disordered + each.together:,}" for each in groups]),
        ("again: uncommitted at the kill", [f"{each.again - each.needless:,}" for each in groups]),
        ("again: without need", [f"{each.needless:,}" for each in groups]),
    ):
        shown.add_row(name, *cells)
    return shown


def _shares(group: GroupOutcome) -> str:
    killed, *others = group.shares
    return f"{killed:,} | " + ", ".join(f"{share:,}" for share in others)
