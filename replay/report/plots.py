"""The report's plots: inline SVG, and boxes whose size is set in CSS. Colours are set by CSS classes."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from math import ceil, floor, log10
from typing import Final

from replay.report.markup import Markup, element, joined
from replay.report.model import Bucket, SlotsNeeded, Stretch, Where
from replay.report.wording import SHARES, ShareKey, duration, moment, percent, size

WIDE: Final = 900
NARROW: Final = 360
"""The width of plots for phones. `WIDE` is the width for wide screens and paper. The text has the same size
in both."""
HEIGHT: Final = 240
LEFT: Final = 66
RIGHT: Final = 34
TOP: Final = 10
BOTTOM: Final = 28
_TICK: Final = 130
"""The smallest distance between two ticks of the time axis, in pixels (approximate)."""
_CHARACTER: Final = 6.5
"""The width of a character in a label, in pixels (approximate)."""
_GAP: Final = 16
"""The width of the mark for a gap in the capture, in pixels. If there are many gaps, all marks share the
width `_GAPS`."""
_GAPS: Final = 160
_TIMES: Final = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1_800),
    *(3_600, 7_200, 10_800, 21_600, 43_200),
)
"""Possible distances between two ticks of the time axis, in seconds. Longer distances are whole days."""


def over_time(buckets: Sequence[Bucket], stretches: Sequence[Stretch], width: int = WIDE) -> Markup:
    """Draw the captured and the predicted fetch bytes per second, as two stepped areas.

    There is at least one bucket. The time between the captured intervals is drawn as a narrow gap. When the
    mouse points at a bucket, its figures are shown.
    """
    begin, end = buckets[0]["time"], buckets[-1]["time"]
    times = _times(stretches) or [(_seconds(begin), _seconds(end) + buckets[-1]["seconds"])]
    top = max(
        max(bucket["actual_bytes"], bucket["predicted_bytes"]) / bucket["seconds"] for bucket in buckets
    )
    step = _nice_step(top)
    scale = _Scale(times, top=max(1, ceil(top / step)) * step, width=width)
    return _svg(
        scale,
        "Fetch bytes a second over time, as captured and as predicted",
        _rate_axis(scale, step, lambda rate: f"{size(round(rate))}/s"),
        _area(scale, [_step(bucket, bucket["actual_bytes"]) for bucket in buckets], "captured"),
        _area(scale, [_step(bucket, bucket["predicted_bytes"]) for bucket in buckets], "predicted"),
        *(_spot(scale, bucket) for bucket in buckets),
    )


def slots(
    periods: Sequence[SlotsNeeded], limit: int, stretches: Sequence[Stretch], width: int = WIDE
) -> Markup:
    """Draw how many session slots a broker needs over time, and a line at the number of its slots."""
    begins = [_seconds(period["time"]) for period in periods]
    times = _times(stretches) or [(begins[0], begins[-1] + 1)]
    ends = [*begins[1:], max(times[-1][1], begins[-1])]
    most = max(limit, *(period["needed"] for period in periods))
    step = _nice_step(most)
    scale = _Scale(times, top=ceil(most / step) * step, width=width)
    steps = [
        (begin, end, float(period["needed"]))
        for begin, end, period in zip(begins, ends, periods, strict=True)
    ]
    line = element("line", x1=LEFT, x2=width - RIGHT, y1=scale.y(limit), y2=scale.y(limit), class_="limit")
    axis = _rate_axis(scale, step, lambda count: f"{count:,.0f}")
    words = f"Session slots needed over time, against {limit}"
    return _svg(scale, words, axis, _area(scale, steps, "predicted"), line)


def _svg(scale: "_Scale", words: str, *drawn: Markup) -> Markup:
    """Return a plot: what was drawn, with the gaps of the capture and the times below."""
    return element(
        "svg",
        *drawn,
        _gaps(scale),
        _time_axis(scale),
        viewBox=f"0 0 {scale.width} {HEIGHT}",
        role="img",
        aria_label=words,
        class_="narrow" if scale.width == NARROW else "broad",
    )


def _times(stretches: Sequence[Stretch]) -> list[tuple[float, float]]:
    """Return the captured intervals in seconds since 1970. Return no interval if their total length is 0."""
    times = [(_seconds(stretch["first"]), _seconds(stretch["last"])) for stretch in stretches]
    return times if sum(last - first for first, last in times) > 0 else []


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


class _Scale:
    """Converts times and values, up to `top` at the upper edge, to coordinates. Gaps are narrow."""

    def __init__(self, times: Sequence[tuple[float, float]], *, top: float, width: int) -> None:
        self.times = times
        self.top = top
        self.width = width
        self.span = sum(last - first for first, last in times)
        self.gap = min(_GAP, _GAPS / max(len(times) - 1, 1))
        room = width - LEFT - RIGHT - self.gap * (len(times) - 1)
        self._second = room / self.span
        self._firsts = [first for first, _ in times]
        self._begins = [LEFT + self.gap * place + self._second * before for place, before in self._before()]

    def _before(self) -> Iterator[tuple[int, float]]:
        before = 0.0
        for place, (first, last) in enumerate(self.times):
            yield place, before
            before += last - first

    def x(self, time: float) -> float:
        """Return the x coordinate of a time. A time in a gap has that of the beginning of the gap."""
        place = max(bisect_right(self._firsts, time) - 1, 0)
        first, last = self.times[place]
        return round(self._begins[place] + (min(max(time, first), last) - first) * self._second, 1)

    def y(self, rate: float) -> float:
        return round(HEIGHT - BOTTOM - rate / self.top * (HEIGHT - TOP - BOTTOM), 1)

    def sides(self, begin: float, end: float) -> tuple[float, float]:
        """Return the sides of a period. If it begins in a gap, it is drawn from the end of the gap."""
        place = max(bisect_right(self._firsts, begin) - 1, 0)
        if begin > self.times[place][1] and place + 1 < len(self.times) and end > self._firsts[place + 1]:
            begin = self._firsts[place + 1]
        return self.x(begin), self.x(end)

    def gaps(self) -> Iterator[tuple[float, float]]:
        """Yield the x coordinate of each gap in the capture, and the length of the gap in seconds."""
        for place in range(1, len(self.times)):
            yield self._begins[place] - self.gap, self.times[place][0] - self.times[place - 1][1]


def _nice_step(top: float) -> float:
    """Return 1, 2 or 5 times a power of ten (at least 1). At most five steps of this size reach `top`."""
    if top <= 5:
        return 1
    rough = top / 5
    power = 10 ** floor(log10(rough))
    return float(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9)))


def _step(bucket: Bucket, count: int) -> tuple[float, float, float]:
    begin = _seconds(bucket["time"])
    return begin, begin + bucket["seconds"], count / bucket["seconds"]


def _area(scale: _Scale, steps: Sequence[tuple[float, float, float]], name: str) -> Markup:
    """Draw an area with steps. Each step is a start time, an end time and a value."""
    ground = scale.y(0)
    path = [f"M{LEFT} {ground}"]
    right: float = LEFT
    for begin, end, value in steps:
        first, last = scale.sides(begin, end)
        if first - right > 0.2:  # nothing in between
            path.append(f"V{ground}H{first}")
        path.append(f"V{scale.y(value)}H{last}")
        right = last
    return element("path", d="".join([*path, f"V{ground}Z"]), class_=f"area {name}")


def _spot(scale: _Scale, bucket: Bucket) -> Markup:
    begin = _seconds(bucket["time"])
    first, last = scale.sides(begin, begin + bucket["seconds"])
    words = (
        f"{moment(bucket['time'])}, {bucket['seconds']:g} s: "
        f"{size(bucket['actual_bytes'])} captured, {size(bucket['predicted_bytes'])} predicted"
    )
    return element(
        "rect",
        element("title", words),
        x=first,
        y=TOP,
        width=round(max(last - first, 0.1), 1),
        height=HEIGHT - TOP - BOTTOM,
        class_="spot",
    )


def _gaps(scale: _Scale) -> Markup:
    return joined(
        element(
            "rect",
            element("title", f"{duration(seconds)} not captured"),
            x=round(begin, 1),
            y=TOP,
            width=round(scale.gap, 1),
            height=HEIGHT - TOP - BOTTOM + 4,
            class_="gap",
        )
        for begin, seconds in scale.gaps()
    )


def _rate_axis(scale: _Scale, step: float, words: Callable[[float], str]) -> Markup:
    right = scale.width - RIGHT
    return joined(
        joined(
            (
                element("line", x1=LEFT, x2=right, y1=scale.y(rate), y2=scale.y(rate), class_="grid"),
                element("text", words(rate), x=LEFT - 8, y=scale.y(rate) + 4, text_anchor="end"),
            )
        )
        for rate in (place * step for place in range(round(scale.top / step) + 1))
    )


def _time_axis(scale: _Scale) -> Markup:
    """Draw labels of ticks, and of the captured intervals if there are several. They do not overlap."""
    most = (scale.width - LEFT - RIGHT) // _TICK
    # A plot for phones has room for few labels. Two are needed to see how much time is between them.
    tries = (_time_labels(scale, _time_step(scale.span, ticks)) for ticks in range(most, most + 4))
    labels = next(
        (found for found in tries if len(found) > 1), _time_labels(scale, _time_step(scale.span, most))
    )
    return joined(
        element("text", words, x=middle, y=HEIGHT - 8, text_anchor="middle") for middle, words in labels
    )


def _time_labels(scale: _Scale, step: float) -> list[tuple[float, str]]:
    days = scale.times[-1][1] - scale.times[0][0] > 86_400
    form = "%b %d" if step >= 86_400 else "%b %d %H:%M" if days else "%H:%M:%S"
    begins = [first for first, _ in scale.times] if len(scale.times) > 1 else []
    ticks = [
        tick * step
        for first, last in scale.times
        for tick in range(ceil(round(first / step, 6)), floor(round(last / step, 6)) + 1)
    ]
    labels: list[tuple[float, str, float]] = []
    for tick in begins + ticks:
        time = datetime.fromtimestamp(tick, UTC)
        words = f"{time:{form}}" if step >= 1 else f"{time:%H:%M:%S.%f}"[:-4]
        half = len(words) * _CHARACTER / 2
        middle = min(scale.x(tick), scale.width - half)
        if all(abs(middle - other) >= half + taken + 2 * _CHARACTER for other, _, taken in labels):
            labels.append((middle, words, half))
    return [(middle, words) for middle, words, _ in sorted(labels)]


def _time_step(span: float, ticks: int) -> float:
    """Return a usual distance of ticks in seconds, with which there are at most about `ticks`."""
    days = ceil(span / 86_400 / max(ticks, 1)) * 86_400
    return next((step for step in _TIMES if span / step <= ticks), days)


def where(split: Where) -> Markup:
    """Draw two bars with the parts of the fetch bytes: one as captured, and below it one as predicted."""
    rows = (("captured", split["actual"]), ("predicted", split["predicted"]))
    whole = max(sum(shares[key] for key in SHARES) for _, shares in rows)
    return joined(
        element(
            "div",
            element("span", name, class_="label"),
            element("div", [_segment(key, shares[key], whole) for key in SHARES], class_="stack"),
            class_="stacked",
        )
        for name, shares in rows
    )


def _segment(key: ShareKey, count: int, whole: int) -> Markup:
    return element(
        "i",
        class_=f"key {key}",
        style=f"width:{_of(count, whole)}",
        title=f"{SHARES[key][0]}: {size(count)}",
    )


def pair(actual: int, predicted: int, most: int) -> Markup:
    """Draw the bar of a row: captured bytes, with predicted ones in front. `most` fills the width."""
    return element(
        "div",
        element("i", class_="captured", style=f"width:{_of(actual, most)}"),
        element("i", class_="predicted", style=f"width:{_of(predicted, most)}"),
        class_="pair",
    )


def share(ratio: float) -> Markup:
    """Draw a bar. `ratio` is the filled part, from 0 to 1."""
    return element(
        "div",
        element("i", class_="predicted", style=f"width:{min(max(ratio, 0.0), 1.0):.3%}"),
        class_="pair whole",
        title=percent(ratio),
    )


def _of(count: int, most: int) -> str:
    return f"{min(max(count, 0) / max(most, 1), 1.0):.3%}"
