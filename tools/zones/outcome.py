"""What is wrong with the records of a client, and its longest gap: pure functions."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from tools.zones.brokers import led_elsewhere
from tools.zones.readers import Received

TIGHT: Final = 300
"""The number of fetches without records in one second from which on a client is in a tight loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What became of the records at one client."""

    lost: int = 0
    """Records that the client did not get, but has got later ones of the partition."""
    missing_elsewhere: int = 0
    """Records at the end that did not come, of partitions led elsewhere: the client starved."""
    missing_here: int = 0
    doubled: int = 0
    disordered: int = 0
    """Records that came after a later one, for the first time."""
    changed: int = 0
    gap_elsewhere: float = 0.0
    """The longest time without a new record of a partition that is led in another rack, in seconds."""
    gap_here: float = 0.0

    @property
    def missing(self) -> int:
        """The number of records that had not come when the run ended."""
        return self.missing_elsewhere + self.missing_here


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One client in one run."""

    release: str
    fault: str
    mode: str
    client: str
    findings: Findings = Findings()
    in_group: bool = False
    from_zone: float | None = None
    out_of_range: int = 0
    busiest: int = 0
    """The number of fetches without records in the second that has most of them."""
    in_vain: int = 0
    """The same for fetches to the broker in the rack.

    Other leaders may answer at once and with nothing for a while, whatever the gateway does. A new leader
    does not know the high watermark yet, and the client is above it.
    """
    errors: int = 0
    note: str = ""
    ran: bool = True

    @property
    def problems(self) -> dict[str, int]:
        """What must not be, by its name: with the number of records or fetches."""
        found = self.findings
        numbers = {
            "lost": found.lost,
            "twice": found.doubled,
            "out of order": found.disordered,
            "changed": found.changed,
            "starved, missing": found.missing,
            "out of range": self.out_of_range,
            "fetches a second": self.in_vain if self.in_vain >= TIGHT else 0,
        }
        return {name: number for name, number in numbers.items() if number}


def judge(
    received: Sequence[Received], written: Mapping[tuple[int, int], str], began: float, ended: float
) -> Findings:
    """Compare a client's records with those written. The gap of a starved client lasts until `ended`."""
    found = Findings()
    places: dict[int, list[Received]] = defaultdict(list)
    for record in received:
        places[record.partition].append(record)
    for partition, offsets in _offsets(written).items():
        records = places[partition]
        seen: set[int] = set()
        highest, disordered, times = -1, 0, []
        for record in records:
            if record.offset not in seen:
                disordered += record.offset < highest
                times.append(record.at)
            seen.add(record.offset)
            highest = max(highest, record.offset)
        absent = offsets - seen
        missing = sum(offset > highest for offset in absent)
        changed = sum(written.get((partition, each.offset)) != each.value for each in records)
        gap = longest_gap([*times, ended] if missing else times, began)
        elsewhere = led_elsewhere(partition)
        found = replace(
            found,
            lost=found.lost + len(absent) - missing,
            missing_elsewhere=found.missing_elsewhere + missing * elsewhere,
            missing_here=found.missing_here + missing * (not elsewhere),
            doubled=found.doubled + len(records) - len(seen),
            disordered=found.disordered + disordered,
            changed=found.changed + changed,
            gap_elsewhere=max(found.gap_elsewhere, gap) if elsewhere else found.gap_elsewhere,
            gap_here=found.gap_here if elsewhere else max(found.gap_here, gap),
        )
    return found


def longest_gap(times: Sequence[float], began: float) -> float:
    """Return the longest time between two of the times, in order, of which the later one is after `began`."""
    return max((later - earlier for earlier, later in pairwise(times) if later > began), default=0.0)


def _offsets(written: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = defaultdict(set)
    for partition, offset in written:
        found[partition].add(offset)
    return found


def failures(rows: Sequence[Row], control: str) -> list[str]:
    """Return what is worse than in the control. Members of groups may get records again."""
    like = {(row.release, row.fault, row.client): row for row in rows if row.mode == control}
    found = []
    for row in rows:
        own = like.get((row.release, row.fault, row.client))
        known = own.problems if own is not None else {}
        problems = {name: number for name, number in row.problems.items() if name not in known}
        if row.in_group:
            problems.pop("twice", None)
        if row.mode != control and problems:
            told = ", ".join(f"{name} {number}" for name, number in problems.items())
            found.append(f"{row.release}, {row.fault}, {row.mode}: {row.client}: {told}")
    return found
