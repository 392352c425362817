"""The README's picture of a fetch has the figures of BENCHMARKS.md, and can be read on any page."""

import re
from xml.etree import ElementTree as ET

import pytest

from tools.diagram import BENCHMARKS, DARK, LIGHT, picture

PAGE = """# Benchmarks

**Broker's side: 100 partitions, one with 50 records/s**

|  | unit | direct | gateway | target |  |
| --- | --- | ---: | ---: | ---: | ---: |
| request | bytes | 3,000 | 30 |  |  |
| response | bytes | 6,000 | 60 |  |  |
| below direct | % | - | 99.0 |  |  |
"""
NAMESPACE = "{http://www.w3.org/2000/svg}"
READABLE = 4.5
"""The least contrast of text, by WCAG 2.1, level AA."""


def test_it_has_the_figures_of_the_page() -> None:
    root = ET.fromstring(picture(PAGE))
    assert root.tag == f"{NAMESPACE}svg"
    shown = [text.text for text in root.iter(f"{NAMESPACE}text")]
    assert {"→ request: 3,000 bytes", "← response: 6,000 bytes", "→ request: 30 bytes"} <= set(shown)
    assert "9,000 bytes become 90: 99.0 % fewer" in shown


def test_bars_are_to_scale() -> None:
    bars = [
        float(bar.attrib["width"])
        for bar in ET.fromstring(picture(PAGE)).iter(f"{NAMESPACE}rect")
        if bar.attrib["class"] in {"before", "after"}
    ]
    assert bars == pytest.approx([92, 184, 0.9, 1.8], abs=0.05)


def test_it_loads_nothing() -> None:
    drawn = picture(BENCHMARKS.read_text(encoding="utf-8"))
    assert set(re.findall(r"https?://[^\"' )<]+", drawn)) == {"http://www.w3.org/2000/svg"}
    assert "@font-face" not in drawn
    assert "@import" not in drawn


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("role", ["text", "quiet", "before", "after"])
def test_each_colour_can_be_read_on_the_ground(colours: dict[str, str], role: str) -> None:
    lighter, darker = sorted((luminance(colours[role]), luminance(colours["ground"])), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= READABLE


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour such as `#1f2328`, as WCAG 2.1 defines it."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
