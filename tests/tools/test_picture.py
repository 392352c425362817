"""The README's picture shows the real output of its command, and needs no other file."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tools.picture import MANY, PICTURE, main


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


def test_of_no_gateway_there_is_no_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "top.svg"
    assert main(["--admin", "127.0.0.1:1", "--out", str(out)]) == 1
    assert capsys.readouterr().err == "picture: 127.0.0.1:1: Connection refused\n"
    bad = tmp_path / "state.json"
    bad.write_text("{}")
    assert main(["--state", str(bad), "--out", str(out)]) == 1
    assert not out.exists()
    assert main(["--out", str(out)]) == 0
    assert out.exists()
