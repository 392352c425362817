"""The docs' picture of the HTML report is made as its page says."""

import zlib
from pathlib import Path

import pytest

from tests.replay.report.browser import PROGRAM
from tools.report_picture import HEIGHT, OPTIONS, PICTURE, ROOT, WIDTH, main, stamp, write_report


def size(picture: bytes) -> tuple[int, int]:
    """Return the width and the height of a PNG, from its first chunk."""
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])


def test_the_page_names_the_options_of_the_picture() -> None:
    assert f"`{' '.join(OPTIONS)}`" in (ROOT / "docs" / "users" / "report.md").read_text(encoding="utf-8")
    assert size(PICTURE.read_bytes()) == (WIDTH, HEIGHT)


def test_the_picture_is_of_the_report_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert write_report(page) == 0
    assert stamp(page.read_bytes()) in PICTURE.read_bytes(), "the report has changed: run make pictures"


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium or Chrome here: python -m tools.debian fetches it")
def test_the_picture_is_drawn(tmp_path: Path) -> None:
    out = tmp_path / "report.png"
    assert main(out) == 0
    drawn = out.read_bytes()
    assert size(drawn) == (WIDTH, HEIGHT)
    assert zlib.crc32(drawn[-8:-4]).to_bytes(4) == drawn[-4:], "its last chunk is whole"
