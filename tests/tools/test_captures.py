"""Tests for the parts of the capture generator `tools.captures` that need no broker."""

import json
import shutil
from pathlib import Path

import pytest

from tools.captures import RECIPES, main, tcpdump

CAPTURES = Path(__file__).parents[2] / "captures"


def test_the_list_tells_all_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [recipe.name for recipe in RECIPES]


def test_a_name_that_there_is_not_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["sarama-gateway"])

    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .startswith(
            "python -m tools.captures: error: there is no capture sarama-gateway; there are "
            "librdkafka-rebalance, "
        )
    )


def test_every_recipe_has_its_capture_and_says_how_it_was_made() -> None:
    for recipe in RECIPES:
        manifest = json.loads((CAPTURES / f"{recipe.name}.manifest.json").read_text())
        assert manifest["made_by"] == f"python -m tools.captures {recipe.name}"
        assert recipe.what in manifest["what"]
        assert manifest["taken_by"].startswith(
            "tcpdump -i lo" if recipe.taken_by == "tcpdump" else "fetchgate proxy --capture DIR"
        )
        assert manifest["expected"].keys() >= {"records_read", "connections", "client"}


def test_without_tcpdump_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)

    with pytest.raises(RuntimeError, match="tcpdump is not installed"), tcpdump(tmp_path / "file", [1]):
        pass
