"""Replays earlier findings of the fuzzers, then tries some new inputs for each target.

`make soak` tries millions.
"""

from pathlib import Path

import pytest

from tests.examples import share
from tools.fuzz.findings import REGRESSIONS, regressions
from tools.fuzz.plain import plain
from tools.fuzz.target import FuzzTarget, examine
from tools.fuzz.targets import TARGETS

FRESH = share(400)
SECONDS = 10.0
"""The time for the new inputs of one target, in seconds. A slow or busy machine tries fewer inputs in this
time."""
FILES = [(target, file) for target in TARGETS.values() for file in regressions(target)]


def test_each_regression_file_belongs_to_a_target() -> None:
    assert {file.parent.name for file in REGRESSIONS.glob("*/*")} <= TARGETS.keys()


@pytest.mark.parametrize(
    ("target", "file"), [pytest.param(*each, id=f"{each[0].name}-{each[1].name}") for each in FILES]
)
def test_what_was_found_once_is_found_no_more(target: FuzzTarget, file: Path) -> None:
    found = examine(target, file.read_bytes())
    assert found is None, found


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
def test_fresh_inputs_raise_nothing(target: FuzzTarget) -> None:
    watch = plain(target, FRESH, SECONDS, 1, lambda *_: None)
    crashes = {name: data.hex() for name, data in watch.suspects.items() if name.startswith("crash")}
    assert crashes == {}
    assert watch.inputs > 0
