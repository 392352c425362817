"""The options ``--cooperative``, ``--cooperative-lanes`` and ``--cooperative-slots``."""

import re
import sys
from pathlib import Path

import pytest

from proxy.command.config import changes, load
from proxy.features.cooperative import options
from proxy.features.cooperative.options import CooperativeOptions
from proxy.text.environment import environment
from proxy.text.options import ConfigError
from tests.command.loading import NEEDED, error_of


def test_by_default_no_group_is_cooperative() -> None:
    assert load(NEEDED, {}, None).of(CooperativeOptions) == CooperativeOptions(
        cooperative=frozenset(), cooperative_lanes={}, cooperative_slots=""
    )


def test_lanes_are_tables_of_the_file_or_json(tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text(
        'bootstrap = "a:1"\ncooperative = "billing"\n[cooperative_lanes.billing.blue."orders.eu"]\n'
        "0 = [[0x00000000, 0x3fffffff]]\n1 = []\n"
    )
    config = load({}, {}, str(file))
    lane = config.of(CooperativeOptions).cooperative_lanes["blue"]
    assert lane.group == b"billing"
    assert lane.ranges == {
        (b"orders.eu", 0): ((0, 0x3FFF_FFFF),),
        (b"orders.eu", 1): ((0, 0xFFFF_FFFF),),
    }
    text = '{"billing": {"blue": {"orders.eu": {"0": [[0, 1073741823]], "1": []}}}}'
    flags = {"bootstrap": "a:1", "cooperative": "billing", "cooperative_lanes": text}
    assert load(flags, {}, None) == config
    other = load(flags | {"cooperative_lanes": None}, {}, None)
    assert changes(config, other) == (["cooperative_lanes"], [])


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({}, "--cooperative-lanes has no effect alone: give --cooperative GROUP[,GROUP] as well"),
        ({"cooperative": "audit"}, "lane blue is of group billing, which --cooperative does not name"),
    ],
)
def test_lanes_of_other_groups_are_a_mistake(flags: dict[str, str | None], told: str) -> None:
    lanes = '{"billing": {"blue": {"orders": {"0": []}}}}'
    with pytest.raises(ConfigError, match=re.escape(told)):
        load({"bootstrap": "a:1", "cooperative_lanes": lanes, **flags}, {}, None)


def test_lanes_that_overlap_are_a_mistake() -> None:
    lanes = '{"g": {"blue": {"t": {"0": []}}, "red": {"t": {"0": [[5, 9]]}}}}'
    told = "--cooperative-lanes: lanes blue, red on t-0: the range 5-9 overlaps"
    with pytest.raises(ConfigError, match=told):
        load({"bootstrap": "a:1", "cooperative": "g", "cooperative_lanes": lanes}, {}, None)


@pytest.mark.parametrize(
    ("file", "how"),
    [("", f"{sys.executable} -m pip"), ("uv-receipt.toml", "uv tool"), ("pipx_metadata.json", "pipx")],
)
def test_cooperative_says_how_to_install_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, how: str
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(options, "_READ_RECORDS", ("absent",))
    if file:
        (tmp_path / file).touch()
    command = environment().command_for_extra("cooperative")
    assert command.startswith(f"{how} install ")
    with pytest.raises(ConfigError) as told:
        load({"bootstrap": "kafka:9092", "cooperative": "billing"}, {}, None)
    assert str(told.value) == (
        f"--cooperative needs absent, not installed; in fetchgate's source folder: {command}"
    )


def test_a_table_with_a_number_of_thousands_of_digits_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text(f"[cooperative_lanes]\na = 0x{'1' * 5000}\n")
    assert error_of(NEEDED, {}, str(file)) == f"--config {file}: a number has thousands of digits"
