import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dashboard.figures import fitting, moment, scaled, share, span, sparkline, volume


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (7, "7 B"),
        (999, "999 B"),
        (999.4, "999 B"),
        (999.5, "1.00 kB"),
        (1000, "1.00 kB"),
        (1234, "1.23 kB"),
        (12_345, "12.3 kB"),
        (123_456, "123 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (26_300_000_000, "26.3 GB"),
        (1.5, "1.50 B"),
        (-1234, "-1.23 kB"),
        (9.2e18, "9200 PB"),
    ],
)
def test_volumes(value: float, text: str) -> None:
    assert volume(value) == text


def test_counts_have_no_unit() -> None:
    shown = [scaled(97), scaled(97.3), scaled(1130), scaled(33_000), scaled(99_999), scaled(100_000)]
    assert shown == ["97", "97.3", "1,130", "33,000", "99,999", "100 k"]
    assert [scaled(1130.4), scaled(-1130), scaled(999.5)] == ["1,130", "-1,130", "1,000"]


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [
        (7, 4, "7"),
        (1130, 5, "1,130"),
        (1130, 4, "1130"),
        (33_000, 5, "33000"),
        (33_000, 4, "33k"),
        (999_600, 5, "1.00M"),
        (123_456, 5, "123 k"),
        (1_234_567, 6, "1.23 M"),
        (1_234_567, 5, "1.23M"),
        (1_234_567, 4, "1.2M"),
    ],
)
def test_a_count_is_never_cut(value: int, width: int, text: str) -> None:
    assert fitting(value, width) == text


@given(st.integers(min_value=0, max_value=10**17))
def test_a_figure_is_short_and_within_half_a_per_cent(value: int) -> None:
    for text in (volume(value), scaled(value)):
        number, _, unit = text.removesuffix("B").partition(" ")
        factor = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}[unit]
        assert len(number) <= (6 if "," in number else 4)
        assert float(number.replace(",", "")) * factor == pytest.approx(value, rel=0.0051)
    if value < 100_000:
        assert scaled(value).replace(",", "") == str(value)


@given(st.integers(min_value=0, max_value=10**17), st.integers(min_value=4, max_value=8))
def test_a_count_fits_its_column(value: int, width: int) -> None:
    text = fitting(value, width)
    assert len(text) <= width
    number, unit = re.fullmatch(r"([0-9.,]+) ?([kMGTP]?)", text).groups()  # type: ignore[union-attr] # it is one
    factor = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}[unit]
    assert float(number.replace(",", "")) * factor == pytest.approx(value, rel=0.0051 if width > 4 else 0.051)


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 0, "-"),
        (0, 5, "0.0 %"),
        (1, 3, "33.3 %"),
        (2, 3, "66.6 %"),
        (999, 1000, "99.90 %"),
        (999_999, 1_000_000, "99.99 %"),
        (5, 5, "100 %"),
        (-1, 4, "-25.0 %"),
    ],
)
def test_shares_are_cut_not_rounded_up(part: float, whole: float, text: str) -> None:
    assert share(part, whole) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59, "59 s"),
        (60, "1 min 0 s"),
        (3599, "59 min 59 s"),
        (8000, "2 h 13 min"),
        (180_000, "2 d 2 h"),
    ],
)
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0 ms"),
        (0.00009, "0.09 ms"),
        (0.00123, "1.2 ms"),
        (0.01, "10 ms"),
        (0.503, "503 ms"),
        (0.9994, "999 ms"),
        (1.26, "1.3 s"),
    ],
)
def test_moments(seconds: float | None, text: str) -> None:
    assert moment(seconds) == text


def test_sparklines() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7, 8], 9) == "▁▂▃▄▅▆▇██"
    assert sparkline([0, 4, 8], 9, plain=True) == "_=#"
    assert sparkline([1, 2, 3], 2) == "▆█", "the latest are kept"
    assert sparkline([-5, 0], 2) == "▁▁"
    assert sparkline([1], 0) == ""
    assert sparkline([], 5) == ""
