"""The README's picture shows the real output of its command, and needs no other file."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tools.picture import MANY, PICTURE


@pytest.mark.parametrize(("file", "sort"), [(PICTURE, "bytes/s"), (MANY, "state")])
def test_it_is_an_image_that_asks_nobody_for_anything(file: Path, sort: str) -> None:
    drawn = file.read_text(encoding="utf-8")
    root = ET.fromstring(drawn)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    shown = "".join(root.itertext()).replace("\xa0", " ")
    assert f"by {sort}" in shown
    assert "orders-1" in shown
    others = set(re.findall(r"https?://[^\"' )<]+", drawn)) - {"http://www.w3.org/2000/svg"}
    assert others <= {"https://www.textualize.io"}, "the mark of what drew it"
    assert "@font-face" not in drawn
    assert "@import" not in drawn
