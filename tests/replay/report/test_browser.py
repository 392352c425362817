"""The HTML report in a real browser, if one is installed: it sends no request, and is readable."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from replay.report import html
from replay.report.model import Report
from tests.replay.report import hostile, sample
from tests.replay.report.browser import PROGRAM, Browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PROGRAM is None, reason="no Chromium or Chrome here: python -m tools.debian fetches it"
    ),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def opened(browser: Browser, folder: Path, report: Report) -> str:
    """Write a report, open it, and return its address."""
    file = folder / "report.html"
    file.write_text(html.render(report))
    browser.open(file.as_uri())
    return file.as_uri()


def test_the_check_sees_a_request(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("<!doctype html><title>x</title><img src='http://127.0.0.1:9/x.png'>")
    browser.open(file.as_uri())
    assert browser.requests == [file.as_uri(), "http://127.0.0.1:9/x.png"]


@pytest.mark.parametrize("report", [sample.report(), sample.empty(), hostile.report()])
def test_no_request_leaves_the_page(browser: Browser, tmp_path: Path, report: Report) -> None:
    address = opened(browser, tmp_path, report)
    assert [url for url in browser.requests if not url.startswith("data:")] == [address]
    assert browser.evaluate("document.title") == "What fetch sessions would save - fetchgate"
    assert (
        "Log.entryAdded" not in browser.events
    )  # nothing was refused either, nor is there a fault in the page
    assert "Runtime.exceptionThrown" not in browser.events


@pytest.mark.parametrize("width", [360, 768, 1280])
@pytest.mark.parametrize("report", [sample.report(), hostile.report()])
def test_no_width_makes_the_page_itself_scroll_sideways(
    browser: Browser, tmp_path: Path, report: Report, width: int
) -> None:
    browser.emulate(width=width)
    opened(browser, tmp_path, report)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("media", ["screen", "print"])
@pytest.mark.parametrize("width", [360, 390])
def test_no_column_is_cut_on_a_phone_or_on_paper(
    browser: Browser, tmp_path: Path, width: int, media: str
) -> None:
    browser.emulate(width=width if media == "screen" else 720, media=media)
    opened(browser, tmp_path, sample.report())
    cut = "[...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth).length"
    assert browser.evaluate(cut) == 0
    beyond = (
        "[...document.querySelectorAll('td, i, svg')].filter("
        "e => e.getBoundingClientRect().right > window.innerWidth).length"
    )
    assert browser.evaluate(beyond) == 0


TILES = "new Set([...document.querySelectorAll('.card')].map(e => e.getBoundingClientRect().left)).size"
"""The number of columns that the tiles have."""


@pytest.mark.parametrize(("width", "columns"), [(390, 2), (768, 3), (960, 6), (1280, 6)])
def test_tiles_stand_in_columns(browser: Browser, tmp_path: Path, width: int, columns: int) -> None:
    browser.emulate(width=width)
    opened(browser, tmp_path, sample.report())
    assert browser.evaluate(TILES) == columns


def test_the_sums_of_a_month_and_of_a_year_stay_pairs_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    browser.emulate(width=390)
    opened(browser, tmp_path, sample.report())
    rows = browser.evaluate(
        "[...document.querySelector('.pairs tbody tr').children].map(e => e.getBoundingClientRect().top)"
    )
    services, sidecars, *sums = rows
    months, years = sums[:3], sums[3:]
    assert (services, months) == (sidecars, years)
    assert services < months[0] < months[1] < months[2]


def test_text_is_as_wide_as_its_card(browser: Browser, tmp_path: Path) -> None:
    browser.emulate(width=1280)
    opened(browser, tmp_path, sample.report())
    narrow = (
        "[...document.querySelectorAll('section > p')].filter("
        "e => e.clientWidth < e.parentElement.clientWidth - 42).length"
    )
    assert browser.evaluate(narrow) == 0


@pytest.mark.parametrize(("media", "shown"), [("screen", False), ("print", True)])
def test_how_to_read_it_is_folded_but_not_on_paper(
    browser: Browser, tmp_path: Path, media: str, shown: bool
) -> None:
    browser.emulate(width=720, media=media)
    opened(browser, tmp_path, sample.report())
    assert browser.evaluate("document.querySelector('details p').checkVisibility()") is shown


CONTRAST = """
(() => {
  const light = text => {
    const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (!colour.endsWith(", 0)")) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  let worst = 21;
  for (const e of document.querySelectorAll("h1, h2, p, b, td, th, li, span, footer, text")) {
    const style = getComputedStyle(e);
    const ink = light(e.tagName === "text" ? style.fill : style.color), paper = light(ground(e));
    worst = Math.min(worst, (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05));
  }
  return worst;
})()
"""
"""The worst contrast of text with its background, as defined by WCAG 2."""


@pytest.mark.parametrize(("scheme", "media"), [("light", "screen"), ("dark", "screen"), ("dark", "print")])
def test_text_is_readable_in_light_and_dark_and_on_paper(
    browser: Browser, tmp_path: Path, scheme: str, media: str
) -> None:
    browser.emulate(width=1180, scheme=scheme, media=media)
    opened(browser, tmp_path, sample.report())
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(251, 251, 249)", "dark": "rgb(20, 23, 28)"}.get(
        scheme if media == "screen" else "", "rgb(255, 255, 255)"
    )
    assert browser.evaluate(CONTRAST) >= 4.5


def test_bars_are_as_long_as_their_figures(browser: Browser, tmp_path: Path) -> None:
    browser.emulate(width=1180)
    opened(browser, tmp_path, sample.report())
    widths = browser.evaluate(
        "[...document.querySelectorAll('.stack')].map(e => [...e.children]"
        ".map(i => i.getBoundingClientRect().width).reduce((a, b) => a + b))"
    )
    ratio = sample.report()["fetch"]["saved_ratio"]
    assert widths[1] / widths[0] == pytest.approx(1 - ratio, abs=0.005)


def test_a_page_of_it_can_be_taken(browser: Browser, tmp_path: Path) -> None:
    browser.emulate(width=1180)
    opened(browser, tmp_path, sample.report())
    assert len(browser.screenshot()) > 50_000  # a blank one has a tenth
    assert len(browser.call("Page.printToPDF")["data"]) > 50_000
