"""The report's plots: inline SVG, and boxes sized by CSS. CSS classes give the colours."""

from collections.abc import Sequence
from datetime import UTC, datetime
from math import ceil, floor, log10
from typing import Final

from replay.report.markup import Markup, element, joined
from replay.report.model import Bucket, Where
from replay.report.wording import SHARES, ShareKey, percent, seconds_between, size

WIDTH: Final = 900
HEIGHT: Final = 240
LEFT: Final = 66
RIGHT: Final = 34
TOP: Final = 10
BOTTOM: Final = 28
TICKS: Final = 7
"""Most ticks on the time axis."""
_TIMES: Final = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1_800),
    *(3_600, 7_200, 10_800, 21_600, 43_200),
)
"""Seconds between two ticks; for longer times whole days."""


def over_time(buckets: Sequence[Bucket]) -> Markup:
    """Draw fetch bytes a second, as captured and as predicted: two stepped areas, one before the other.

    Args:
        buckets: in order of time, at least one.

    Returns:
        an SVG. Pointing at a bucket shows its figures.
    """
    begin = buckets[0]["time"]
    span = seconds_between(begin, buckets[-1]["time"]) + buckets[-1]["seconds"]
    top = max(
        max(bucket["actual_bytes"], bucket["predicted_bytes"]) / bucket["seconds"] for bucket in buckets
    )
    step = _nice_step(top)
    scale = _Scale(begin=begin, span=span, top=max(1, ceil(top / step)) * step)
    return element(
        "svg",
        _rate_axis(scale, step),
        _area(scale, buckets, "actual_bytes", "captured"),
        _area(scale, buckets, "predicted_bytes", "predicted"),
        _time_axis(scale),
        [_spot(scale, bucket) for bucket in buckets],
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label="Fetch bytes a second over time, as captured and as predicted",
    )


class _Scale:
    """Converts seconds, and bytes a second, to coordinates."""

    def __init__(self, *, begin: str, span: float, top: float) -> None:
        self.begin = begin
        self.span = span
        self.top = top

    def x(self, seconds: float) -> float:
        return round(LEFT + seconds / self.span * (WIDTH - LEFT - RIGHT), 1)

    def y(self, rate: float) -> float:
        return round(HEIGHT - BOTTOM - rate / self.top * (HEIGHT - TOP - BOTTOM), 1)

    def sides(self, bucket: Bucket) -> tuple[float, float]:
        start = seconds_between(self.begin, bucket["time"])
        return self.x(start), self.x(start + bucket["seconds"])


def _nice_step(top: float) -> float:
    """Choose 1, 2 or 5 times a power of ten (at least 1), so that at most five steps reach the top."""
    if top <= 5:
        return 1
    rough = top / 5
    power = 10 ** floor(log10(rough))
    return float(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9)))


def _area(scale: _Scale, buckets: Sequence[Bucket], key: str, name: str) -> Markup:
    ground = scale.y(0)
    path = [f"M{LEFT} {ground}"]
    right: float = LEFT
    for bucket in buckets:
        first, last = scale.sides(bucket)
        if first - right > 0.2:  # nothing was fetched in between
            path.append(f"V{ground}H{first}")
        count = bucket["actual_bytes"] if key == "actual_bytes" else bucket["predicted_bytes"]
        path.append(f"V{scale.y(count / bucket['seconds'])}H{last}")
        right = last
    return element("path", d="".join([*path, f"V{ground}Z"]), class_=f"area {name}")


def _spot(scale: _Scale, bucket: Bucket) -> Markup:
    first, last = scale.sides(bucket)
    words = (
        f"{_clock(bucket['time'], '%Y-%m-%d %H:%M:%S')} UTC, {bucket['seconds']:g} s: "
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


def _rate_axis(scale: _Scale, step: float) -> Markup:
    return joined(
        joined(
            (
                element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=scale.y(rate), y2=scale.y(rate), class_="grid"),
                element("text", f"{size(round(rate))}/s", x=LEFT - 8, y=scale.y(rate) + 4, text_anchor="end"),
            )
        )
        for rate in (place * step for place in range(round(scale.top / step) + 1))
    )


def _time_axis(scale: _Scale) -> Markup:
    begin = datetime.fromisoformat(scale.begin).timestamp()
    step = _time_step(scale.span)
    form = "%b %d" if step >= 86_400 else "%b %d %H:%M" if scale.span > 86_400 else "%H:%M:%S"
    first, last = ceil(round(begin / step, 6)), floor(round((begin + scale.span) / step, 6))
    labels = []
    for tick in range(first, last + 1):
        time = datetime.fromtimestamp(tick * step, UTC)
        words = f"{time:{form}}" if step >= 1 else f"{time:%H:%M:%S.%f}"[:-4]
        labels.append(
            element("text", words, x=scale.x(tick * step - begin), y=HEIGHT - 8, text_anchor="middle")
        )
    return joined(labels)


def _time_step(span: float) -> float:
    """Choose a usual number of seconds, so that at most `TICKS` ticks are on the axis."""
    days = ceil(span / 86_400 / (TICKS - 1)) * 86_400
    return next((step for step in _TIMES if span / step <= TICKS - 1), days)


def _clock(time: str, form: str) -> str:
    return datetime.fromisoformat(time).astimezone(UTC).strftime(form)


def where(split: Where) -> Markup:
    """Draw where the bytes go: a bar for the capture, and below it one for the prediction."""
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
    """Draw the bar of a row: captured bytes, and over them predicted bytes.

    Args:
        actual: bytes as captured.
        predicted: bytes as predicted.
        most: bytes for the full width.
    """
    return element(
        "div",
        element("i", class_="captured", style=f"width:{_of(actual, most)}"),
        element("i", class_="predicted", style=f"width:{_of(predicted, most)}"),
        class_="pair",
    )


def share(ratio: float) -> Markup:
    """Draw a ratio as a bar that is filled to this part."""
    return element(
        "div",
        element("i", class_="predicted", style=f"width:{min(max(ratio, 0.0), 1.0):.3%}"),
        class_="pair whole",
        title=percent(ratio),
    )


def _of(count: int, most: int) -> str:
    return f"{min(max(count, 0) / max(most, 1), 1.0):.3%}"
