"""The site of the documentation is built without a warning, and loads nothing from the network."""

import re
from pathlib import Path

import pytest

from tests.replay.report.browser import PROGRAM, Browser
from tools.docs_site import ROOT, main, pages

pytestmark = pytest.mark.nightly

LOADED = re.compile(
    r"<(?:script|img|iframe)\b[^>]*\bsrc=[\"']?(https?:[^\"' >]+)"
    r"|<link\b(?![^>]*rel=[\"']?canonical)[^>]*\bhref=[\"']?(https?:[^\"' >]+)"
    r"|url\([\"']?(https?:[^\"')]+)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert main(folder) == 0
    return folder


def test_each_page_is_in_the_site(site: Path) -> None:
    for page in pages():
        path = page.relative_to(ROOT)
        name = path.parent / "index.md" if path.name == "README.md" else path
        assert (site / name.with_suffix(".html")).exists(), path


def test_nothing_is_loaded_from_the_network(site: Path) -> None:
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        assert not LOADED.findall(file.read_text(encoding="utf-8")), file


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: python -m tools.debian fetches it")
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_the_width_and_ask_nobody_for_anything(site: Path, tmp_path: Path, width: int) -> None:
    with Browser(tmp_path) as browser:
        browser.emulate(width=width)
        for page in ("index", "docs/reference/options", "docs/users/zones", "proxy/features/racks/index"):
            browser.open((site / f"{page}.html").as_uri())
            assert browser.evaluate("document.documentElement.scrollWidth") == width, page
            assert [each for each in browser.requests if not each.startswith(("file:", "data:"))] == []
