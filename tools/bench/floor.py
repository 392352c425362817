"""The table that compares fetchgate with the floor and haproxy, and a profile for each missed limit.

The other benchmark parts mark rows of their tables for this comparison (`FigureRow.figure`). If such a row
misses its limit, the exchanges of that part in `PROFILED` are profiled: the time of each of the gateway's
functions (`tools.bench.inside`).
"""

import cProfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from types import CodeType
from typing import Final

from tools.bench.figures import FLOOR, GATEWAY, HAPROXY, JUDGED, FigureRow, FigureTable
from tools.bench.inside import Inside
from tools.bench.page import PROFILE
from tools.bench.traffic import Traffic, fetches, produces

TITLE: Final = "To the floor"
PEERS: Final = (FLOOR, HAPROXY)
FUNCTIONS: Final = 15
"""The number of functions that a profile shows."""
EXCHANGES: Final = 100
MEGABYTE: Final = 1_000_000
PROFILED: Final[Mapping[str, Mapping[str, Traffic]]] = {
    "micro": {"unchanged fetch of 1,000 partitions": fetches(1, 1_000)},
    "bulk": {"fetch of 12 partitions, 1 MB of records": fetches(1, 12, busy=True, size=MEGABYTE)},
    "latency": {
        "produce": produces(),
        "fetch of one partition with records": fetches(1, 1, busy=True),
    },
    "connections": {"fetch of one partition": fetches(1, 1)},
    "idle": {"fetch of 1,000 partitions, records in one": fetches(1, 1_000, busy=True)},
    "workers": {"unchanged fetch of 100 partitions": fetches(1, 100)},
    "transparent": {"unchanged fetch of 100 partitions": fetches(1, 100)},
}
"""The exchanges that are profiled, by benchmark part and by name."""
_MEASURING: Final = (
    "<built-in method time.perf_counter>",
    "<method 'disable' of '_lsprof.Profiler' objects>",
)
"""Functions that belong to the measurement. The profile leaves them out."""
_ROOT: Final = Path(__file__).parents[2]


def to_floor(tables: Iterable[FigureTable]) -> FigureTable:
    """Return the comparison: the rows marked for it, each with the values of floor, haproxy and fetchgate."""
    rows = [
        FigureRow(name=row.figure, unit=row.unit, values=_values(row), limit=row.limit, least=row.least)
        for table in tables
        for row in table.rows
        if row.figure
    ]
    notes = ["All three in the same run, in turns. Of two modes, the dearer one is shown."]
    return FigureTable(part="floor", title=TITLE, rows=rows, notes=notes, always=(*PEERS, GATEWAY))


def _values(row: FigureRow) -> dict[str, float]:
    own = [row.values[name] for name in JUDGED if name in row.values]
    peers = {name: row.values[name] for name in PEERS if name in row.values}
    return peers | {GATEWAY: min(own) if row.least else max(own)}


def where(part: str, tables: Sequence[FigureTable]) -> list[FigureTable]:
    """Return the profiles of a part, or an empty list if the part has kept the limits of its figures."""
    if not any(row.figure and row.met is False for table in tables for row in table.rows):
        return []
    return [_profiled(part, name, traffic) for name, traffic in PROFILED.get(part, {}).items()]


def _profiled(part: str, name: str, traffic: Traffic) -> FigureTable:
    """Measure how much time each function of the gateway itself takes in one exchange.

    A busy machine disturbs some exchanges, so medians are used.
    """
    own: defaultdict[str, list[float]] = defaultdict(list)
    before: dict[str, float] = {}
    profile = cProfile.Profile()
    with Inside(gateway=True) as inside:
        inside.begin(traffic.listed, session=traffic.session)
        for request, response in [traffic.frames(number) for number in range(1, EXCHANGES + 1)]:
            inside.exchange(request, response, profile)
            after = {_label(entry.code): entry.inlinetime for entry in profile.getstats()}
            for label in after.keys() - _MEASURING:
                own[label].append(after[label] - before.get(label, 0.0))
            before = after
    calls = {_label(entry.code): entry.callcount for entry in profile.getstats()}
    times = {label: median(found) * len(found) / EXCHANGES * 1e6 for label, found in own.items()}
    dearest = sorted(times, key=times.__getitem__, reverse=True)[:FUNCTIONS]
    listed = [("all", sum(times.values()), sum(calls[label] for label in times))]
    listed += [(label, times[label], calls[label]) for label in dearest]
    rows = [
        FigureRow(name=f"{label}, {count / EXCHANGES:.1f} calls", unit="µs", values={GATEWAY: spent})
        for label, spent, count in listed
    ]
    notes = [
        f"Own time of {len(times)} functions in one exchange, in a tight loop; without event loop, kernel.",
        "The profiler makes calls dearer than they are. In cold caches their number counts.",
    ]
    return FigureTable(part=part, title=f"{PROFILE}{part}, {name}", rows=rows, notes=notes)


def _label(code: CodeType | str) -> str:
    """Return the name of a function for the profile, with its file and line.

    Built-in functions have no file.
    """
    if isinstance(code, str):
        return code
    path = Path(code.co_filename)
    place = path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else path.name
    return f"{place}:{code.co_firstlineno} {code.co_name}"
