"""Plots: positions in the drawing match the figures."""

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from replay.report import plots
from replay.report.model import Bucket, SlotsNeeded, Stretch
from tests.replay.report import sample

GROUND, LEFT, RIGHT = plots.HEIGHT - plots.BOTTOM, plots.LEFT, plots.WIDE - plots.RIGHT


def bucket(second: int, actual: int, predicted: int, seconds: float = 1.0) -> Bucket:
    return {
        "time": f"2026-11-20T22:30:{second:02}+00:00",
        "seconds": seconds,
        "actual_bytes": actual,
        "predicted_bytes": predicted,
    }


def drawn(*buckets: Bucket) -> ET.Element:
    return ET.fromstring(plots.over_time(buckets, ()))


def paths(svg: ET.Element) -> list[str]:
    return [path.attrib["d"] for path in svg.iter("path")]


def test_two_stepped_areas() -> None:
    svg = drawn(bucket(0, 400, 100), bucket(1, 1_000, 0))
    middle = (LEFT + RIGHT) / 2
    height = GROUND - plots.TOP
    top = GROUND - 0.4 * height
    assert paths(svg) == [
        f"M{LEFT} {GROUND}.0V{top:.1f}H{middle}V{plots.TOP}.0H{RIGHT}.0V{GROUND}.0Z",
        f"M{LEFT} {GROUND}.0V{GROUND - 0.1 * height:.1f}H{middle}V{GROUND}.0H{RIGHT}.0V{GROUND}.0Z",
    ]


def test_a_pause_is_drawn_as_nothing() -> None:
    (captured, _) = paths(drawn(bucket(0, 1_000, 0), bucket(3, 1_000, 0)))
    quarter = (RIGHT - LEFT) / 4
    assert f"H{LEFT + quarter}V{GROUND}.0H{LEFT + 3 * quarter}V{plots.TOP}.0" in captured


def test_rates_are_bytes_a_second() -> None:
    texts = [text.text for text in drawn(bucket(0, 4_000, 0, seconds=2.0)).iter("text")]
    assert texts[:5] == ["0 B/s", "500 B/s", "1.00 kB/s", "1.50 kB/s", "2.00 kB/s"]


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (1.0, ["22:30:00.00", "22:30:00.20", "22:30:00.40", "22:30:00.60", "22:30:00.80", "22:30:01.00"]),
        (11.2, ["22:30:00", "22:30:02", "22:30:04", "22:30:06", "22:30:08", "22:30:10"]),
        (3_600.0, ["22:30:00", "22:40:00", "22:50:00", "23:00:00", "23:10:00", "23:20:00", "23:30:00"]),
        (7_300.0, ["22:30:00", "23:00:00", "23:30:00", "00:00:00", "00:30:00"]),
        (93_600.0, ["Nov 21 00:00", "Nov 21 06:00", "Nov 21 12:00", "Nov 21 18:00", "Nov 22 00:00"]),
        (864_000.0, ["Nov 21", "Nov 23", "Nov 25", "Nov 27", "Nov 29"]),
    ],
)
def test_time_is_told_at_round_times(seconds: float, labels: list[str]) -> None:
    svg = drawn(bucket(0, 0, 0, seconds=seconds))
    assert [text.text for text in svg.iter("text")][2:] == labels


def test_a_time_stands_where_it_is() -> None:
    svg = drawn(bucket(3, 0, 0, seconds=10.0))
    places = {text.text: float(text.attrib["x"]) for text in svg.iter("text")}
    assert places["22:30:04"] == pytest.approx(LEFT + 0.1 * (RIGHT - LEFT), abs=0.1)
    assert places["22:30:12"] == pytest.approx(LEFT + 0.9 * (RIGHT - LEFT), abs=0.1)


def stretches(*pairs: tuple[int, int]) -> list[Stretch]:
    return [
        {"first": bucket(first, 0, 0)["time"], "last": bucket(last, 0, 0)["time"]} for first, last in pairs
    ]


def test_what_was_not_captured_takes_no_room_and_is_marked() -> None:
    buckets = [bucket(0, 1_000, 0), bucket(1, 1_000, 0), bucket(50, 1_000, 0)]
    svg = ET.fromstring(plots.over_time(buckets, stretches((0, 2), (50, 51))))
    second = (RIGHT - LEFT - 16) / 3
    (gap,) = (rect for rect in svg.iter("rect") if rect.attrib["class"] == "gap")
    assert float(gap.attrib["x"]) == pytest.approx(LEFT + 2 * second, abs=0.1)
    assert [title.text for title in gap.iter("title")] == ["48.0 s not captured"]
    (captured, _) = paths(svg)
    assert captured.endswith(
        f"V{GROUND}.0H{round(LEFT + 2 * second + 16, 1)}V{plots.TOP}.0H{RIGHT}.0V{GROUND}.0Z"
    )
    labels = [text.text for text in svg.iter("text")]
    assert {"22:30:00.00", "22:30:50.00"} <= set(labels)


@pytest.mark.parametrize("seconds", [1.3, 8, 11.2, 25, 59, 61, 900, 4_000, 90_000, 400_000])
def test_a_plot_for_phones_has_two_labels_of_time(seconds: float) -> None:
    """The captured time begins 5 s before a full minute, so that few round times are in it."""
    begin = datetime(2026, 11, 20, 22, 29, 55, tzinfo=UTC)
    stretch: Stretch = {"first": begin.isoformat(), "last": (begin + timedelta(seconds=seconds)).isoformat()}
    svg = ET.fromstring(plots.over_time([bucket(0, 400, 100)], [stretch], plots.NARROW))
    labels = [text for text in svg.iter("text") if text.attrib["y"] == str(plots.HEIGHT - 8)]
    places = [float(text.attrib["x"]) for text in labels]

    assert len(labels) > 1
    assert min(right - left for left, right in pairwise(places)) > 6.5 * len(labels[0].text or "")


def test_labels_do_not_overlap_however_many_gaps_there_are() -> None:
    pairs = [(second, second + 1) for second in range(0, 58, 2)]
    for width in (plots.WIDE, plots.NARROW):
        svg = ET.fromstring(plots.over_time([bucket(0, 1, 1)], stretches(*pairs), width))
        places = [
            float(text.attrib["x"]) for text in svg.iter("text") if text.attrib["text-anchor"] == "middle"
        ]
        assert len(places) > 1
        assert min(second - first for first, second in pairwise(places)) >= 8 * 6.5
        assert max(places) <= width


def test_slots_are_drawn_against_their_limit() -> None:
    periods: list[SlotsNeeded] = [
        {"time": bucket(0, 0, 0)["time"], "needed": 500},
        {"time": bucket(5, 0, 0)["time"], "needed": 2_000},
    ]
    svg = ET.fromstring(plots.slots(periods, 1_000, stretches((0, 10))))
    middle, height = (LEFT + RIGHT) / 2, GROUND - plots.TOP
    assert paths(svg) == [
        f"M{LEFT} {GROUND}.0V{GROUND - height / 4:.1f}H{middle}V{plots.TOP}.0H{RIGHT}.0V{GROUND}.0Z"
    ]
    (limit,) = (line for line in svg.iter("line") if line.attrib["class"] == "limit")
    assert float(limit.attrib["y1"]) == GROUND - height / 2


def test_a_bucket_tells_its_figures() -> None:
    titles = [title.text for title in drawn(bucket(7, 12_345, 678)).iter("title")]
    assert titles == ["2026-11-20 22:30:07 UTC, 1 s: 12.3 kB captured, 678 B predicted"]


@pytest.mark.parametrize("top", [0, 1, 3, 7, 10, 49, 50, 51, 999, 123_456_789])
def test_everything_stays_in_the_frame(top: int) -> None:
    svg = drawn(bucket(0, top, top // 2), bucket(1, 0, top))
    for path in paths(svg):
        assert all(plots.TOP <= float(y) <= GROUND for y in re.findall(r"V([\d.]+)", path))
        assert all(LEFT <= float(x) <= RIGHT for x in re.findall(r"H([\d.]+)", path))
    assert 2 <= sum(1 for line in svg.iter("line")) <= 6


def test_shares_have_one_scale() -> None:
    split = sample.report()["where"]
    widths = [
        sum(float(width) for width in re.findall(r"width:([\d.]+)%", half))
        for half in plots.where(split).split("predicted", 1)
    ]
    assert widths[0] == pytest.approx(100, abs=0.01)
    ratio = sample.report()["fetch"]["saved_ratio"]
    assert widths[1] == pytest.approx((1 - ratio) * 100, abs=0.01)


def test_bars_of_nothing_and_of_more_than_was_captured() -> None:
    assert plots.pair(0, 0, 0).count("width:0.000%") == 2
    assert 'predicted" style="width:100.000%' in plots.pair(50, 100, 100)
    assert "width:100.000%" in plots.share(1.0)
