"""Several gateways: what each has reported last, as rows of a table. Sans-IO."""

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from proxy.dashboard.choice import Selection
from proxy.dashboard.reports import READY, Report
from proxy.dashboard.snapshot import NOW_SECONDS

UNREACHABLE: Final = "unreachable"
ASKING: Final = "asking"
_SEVERITY: Final = {UNREACHABLE: 0, "starting": 1, "degraded": 2, "draining": 4, ASKING: 6, READY: 7}
_UNKNOWN: Final = 3
"""The place of a state that this version does not know."""
_READY_BUT: Final = 5
"""The place of a gateway that is ready, with something wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRow:
    """A row of the table: a gateway."""

    name: str
    address: str
    command: str
    """The command that shows the gateway from within its pod. Empty if it is in no pod."""
    state: str
    wrong: tuple[str, ...]
    """The most important first."""
    seconds: float | None
    """For how long the gateway has not been reachable. None if it is reachable, or was not asked."""
    report: Report | None
    """None if the gateway is not reachable."""
    cpu: float | None
    """The CPU in the last ten seconds, as a share of one core. Before there are two reports: since its start.
    None if unknown."""
    saved_now: float | None
    """The bytes saved per second at present. None if unknown."""

    @property
    def severity(self) -> int:
        """The place of the gateway in the order of what is wrong, 0 for the worst."""
        if self.state == READY and self.wrong:
            return _READY_BUT
        return _SEVERITY.get(self.state, _UNKNOWN)


_NUMBERS: Final = re.compile(r"([0-9]+)")
_NOTHING: Final = float("-inf")
SORTS: Final[dict[str, Callable[[GatewayRow], list[tuple[float, str]] | float]]] = {
    "gateway": lambda row: _numbered(row.name),
    "state": lambda row: row.severity,
    "conns": lambda row: row.report.connections if row.report else _NOTHING,
    "saved/s": lambda row: _NOTHING if row.saved_now is None else row.saved_now,
    "saved": lambda row: row.report.saved if row.report else _NOTHING,
    "CPU": lambda row: _NOTHING if row.cpu is None else row.cpu,
    "memory": lambda row: row.report.memory if row.report else _NOTHING,
}
"""In the order of the table."""
WORST_FIRST: Final = Selection(sort="state")
_NOT_HERE: Final = frozenset({"\t", "g", "x"})
"""Keys of the screen of one gateway that mean nothing in the table."""


@dataclass(slots=True)
class _Member:
    address: str
    command: str
    reports: deque[tuple[float, Report]] = field(default_factory=deque)
    """The reports of the last ten seconds, with their times. Empty while the gateway is not reachable."""
    problem: str = ""
    since: float = 0.0
    """The time when the gateway was last reachable, or was first asked."""


class Fleet:
    """Several gateways, and what each has reported last.

    `members` has the name of each, its address, and the command that shows it from within its pod.
    """

    def __init__(self, members: Iterable[tuple[str, str, str]]) -> None:
        self._members = {name: _Member(address, command) for name, address, command in members}

    def add(self, name: str, report: Report, now: float) -> None:
        member = self._members[name]
        reports = member.reports
        if reports and report.cpu_seconds < reports[-1][1].cpu_seconds:
            reports.clear()  # it was restarted
        reports.append((now, report))
        while len(reports) > 2 and now - reports[0][0] > NOW_SECONDS:
            reports.popleft()
        member.problem, member.since = "", now

    def fail(self, name: str, problem: str, now: float) -> None:
        member = self._members[name]
        if not member.problem and not member.reports:
            member.since = now
        member.reports.clear()
        member.problem = problem

    def is_reachable(self, name: str) -> bool:
        """Return whether a gateway has responded last, or has not been asked yet."""
        return not self._members[name].problem

    @property
    def asked(self) -> bool:
        return all(member.reports or member.problem for member in self._members.values())

    def row(self, name: str, now: float) -> GatewayRow:
        member = self._members[name]
        last = member.reports[-1][1] if member.reports else None
        wrong = (member.problem,) if member.problem else last.wrong if last else ()
        if without := _without_slot(member.reports):
            wrong = (*wrong, f"no session slot at the broker: {without:,} fetches")
        return GatewayRow(
            name=name,
            address=member.address,
            command=member.command,
            state=UNREACHABLE if member.problem else last.state if last else ASKING,
            wrong=wrong,
            seconds=now - member.since if member.problem else None,
            report=last,
            cpu=_cpu(member.reports),
            saved_now=_saved_now(member.reports),
        )

    def every(self, now: float) -> list[GatewayRow]:
        return [self.row(name, now) for name in self._members]


def chosen(rows: Iterable[GatewayRow], choice: Selection) -> list[GatewayRow]:
    """Return the rows that the user wants to see, sorted by a column and then by name.

    A gateway matches if its name, address, state or what is wrong contains the filter.
    """
    wanted = choice.filter.casefold()
    found = [
        row for row in rows if wanted in "\n".join((row.name, row.address, row.state, *row.wrong)).casefold()
    ]
    found.sort(key=lambda row: _numbered(row.name))
    found.sort(key=SORTS[choice.sort], reverse=choice.descending)
    return found


def states(rows: Iterable[GatewayRow]) -> list[tuple[str, int]]:
    """Return each state with its number of gateways, the worst first."""
    counts = Counter(row.state for row in rows)
    return sorted(counts.items(), key=lambda it: (_SEVERITY.get(it[0], _UNKNOWN), it[0]))


def has_meaning(key: str, choice: Selection) -> bool:
    """Return whether a key means anything in the table."""
    return choice.typing or key not in _NOT_HERE


def _numbered(name: str) -> list[tuple[float, str]]:
    # 10.0.0.9 is before 10.0.0.10.
    return [
        (float(part), "") if part.isdecimal() else (_NOTHING, part) for part in _NUMBERS.split(name) if part
    ]


def _cpu(reports: Sequence[tuple[float, Report]]) -> float | None:
    if not reports:
        return None
    (before, first), (now, last) = reports[0], reports[-1]
    if now > before:
        return (last.cpu_seconds - first.cpu_seconds) / (now - before)
    return last.cpu_seconds / last.uptime if last.uptime else None


def _without_slot(reports: Sequence[tuple[float, Report]]) -> int:
    """Return how many fetches a broker had no session slot for in the last ten seconds. 0 if unknown."""
    return max(0, reports[-1][1].without_slot - reports[0][1].without_slot) if reports else 0


def _saved_now(reports: Sequence[tuple[float, Report]]) -> float | None:
    if not reports:
        return None
    (before, first), (now, last) = reports[0], reports[-1]
    if last.saved_now is not None or now <= before:
        return last.saved_now
    return (last.saved - first.saved) / (now - before)
