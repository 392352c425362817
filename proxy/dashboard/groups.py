"""Draws the page of cooperative groups: a line for each member's part of each partition. Pure functions.

A bar in a line stands for all key hashes, from the lowest to the highest.
"""

from collections.abc import Iterator
from itertools import pairwise
from textwrap import wrap
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from proxy.dashboard.figures import NOTHING, scaled, share
from proxy.dashboard.screen import LABEL, WARNING, line, section
from proxy.dashboard.snapshot import SPACE, GroupFigures, LaneFigures, Snapshot
from proxy.features.declared import WORDS

_PICTURE: Final = 16
"""How many cells the bar of key hashes has. A wide terminal has twice as many, a narrow one half."""
_USUAL: Final = 80
_CELLS: Final = ("·▒█", ".+#")
"""A cell in which the member has no hash, some, or all. The second text is for ASCII terminals."""
_STATE, _PARTITION, _SHARE, _LAG = 8, 18, 6, 8
_WIDE_PARTITION, _HOST = 40, 24


def lines(snapshot: Snapshot, width: int, *, wide: bool, plain: bool) -> list[Text]:
    """Draw the page: a title, the column names, and lines for each group and each member's lanes."""
    groups = snapshot.groups
    records = snapshot.records_kept + snapshot.records_filtered
    title = [f"{sum(not group.exclusive for group in groups)} of {len(groups)} share"]
    if records:
        title.append(f"{share(snapshot.records_filtered, records)} of all records filtered")
    if snapshot.detached:
        title.append(f"{scaled(snapshot.detached)} times detached")
    layout = _Layout(width, wide=wide)
    drawn = [section(" Cooperative groups ", ", ".join(title))]
    names = layout.row("member", "state", "partition", "keys", "share", "lag", "host")
    drawn.append(line((names, LABEL)))
    for group in groups:
        drawn += _head(group, width)
        drawn += _lanes(group, layout, plain=plain)
    return drawn


class _Layout:
    # The names of members get the room that is left.

    def __init__(self, width: int, *, wide: bool) -> None:
        self.picture = _PICTURE * 2 if wide else _PICTURE if width >= _USUAL else _PICTURE // 2
        self._partition = _WIDE_PARTITION if wide else _PARTITION
        self._host = _HOST if wide else 0
        others = (_STATE, self._partition, self.picture, _SHARE, _LAG, *((self._host,) if wide else ()))
        self._member = max(1, width - sum(others) - len(others))

    def place(self, lane: LaneFigures) -> str:
        number = f"/{lane.partition}"
        room = self._partition - len(number)
        return (lane.topic if cell_len(lane.topic) <= room else f"{lane.topic[: room - 1]}~") + number

    def row(self, member: str, state: str, partition: str, keys: str, part: str, lag: str, host: str) -> str:
        cells = [
            set_cell_size(member, self._member),
            set_cell_size(state, _STATE),
            set_cell_size(partition, self._partition),
            set_cell_size(keys, self.picture),
            part.rjust(_SHARE),
            lag.rjust(_LAG),
        ]
        return " ".join([*cells, host[: self._host]] if self._host else cells)


def _head(group: GroupFigures, width: int) -> list[Text]:
    if group.exclusive:
        why = WORDS.get(group.exclusive, group.exclusive)  # a newer gateway may send other reasons
        lines = wrap(f"shares nothing: {why}", width - 2)
        return [line((group.name, LABEL)), *(line("  ", (text, WARNING)) for text in lines)]
    members = len(group.members)
    lags = [lane.lag for member in group.members for lane in member.lanes if lane.lag is not None]
    summary = f"  {members} member{'s' * (members != 1)}"
    if lags:
        summary += (
            f", lag {scaled(min(lags))} to {scaled(max(lags))}"
            if len(lags) > 1
            else f", lag {scaled(lags[0])}"
        )
    if not group.unowned:
        return [line((group.name, LABEL), summary)]
    gaps = "1 range of keys has" if group.unowned == 1 else f"{group.unowned} ranges of keys have"
    return [line((group.name, LABEL), summary, "  ", (f"{gaps} no member", WARNING))]


def _lanes(group: GroupFigures, layout: _Layout, *, plain: bool) -> Iterator[Text]:
    for member in sorted(group.members, key=lambda member: (member.client_id, member.host)):
        name, state, host = f" {member.client_id or NOTHING}", member.state, member.host
        style = WARNING if state in {"frozen", "away"} else ""
        if not member.lanes:
            yield line((layout.row(name, state, NOTHING, "", "", "", host), style))
        for lane in sorted(member.lanes, key=lambda lane: (lane.topic, lane.partition)):
            keys = _picture(lane, layout.picture, plain=plain)
            part = f"{round(100 * _owned(lane, 0, SPACE) / SPACE)} %"
            lag = NOTHING if lane.lag is None else scaled(lane.lag)
            yield line((layout.row(name, state, layout.place(lane), keys, part, lag, host), style))


def _picture(lane: LaneFigures, cells: int, *, plain: bool) -> str:
    nothing, some, all_ = _CELLS[plain]
    edges = [SPACE * number // cells for number in range(cells + 1)]
    owned = (_owned(lane, low, high) / (high - low) for low, high in pairwise(edges))
    return "".join(nothing if not part else all_ if part >= 1 else some for part in owned)


def _owned(lane: LaneFigures, low: int, high: int) -> int:
    """Return how many hashes from `low` to `high` - 1 belong to the lane."""
    return sum(max(0, min(high, last + 1) - max(low, first)) for first, last in lane.ranges)
