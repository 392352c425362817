"""The docs' picture of the HTML report is made as its page says."""

from pathlib import Path

import pytest

from tests.replay.report.browser import PROGRAM
from tools.report_picture import HEIGHT, OPTIONS, PICTURE, ROOT, WIDTH, main


def size(picture: bytes) -> tuple[int, int]:
    """Return the width and the height of a PNG, from its first chunk."""
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])


def test_the_page_names_the_options_of_the_picture() -> None:
    assert f"`{' '.join(OPTIONS)}`" in (ROOT / "docs" / "users" / "report.md").read_text(encoding="utf-8")
    assert size(PICTURE.read_bytes()) == (WIDTH, HEIGHT)


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium or Chrome here: python -m tools.debian fetches it")
def test_the_picture_is_drawn(tmp_path: Path) -> None:
    out = tmp_path / "report.png"
    assert main(["--out", str(out)]) == 0
    assert size(out.read_bytes()) == (WIDTH, HEIGHT)
