"""Outputs that scripts depend on do not change unnoticed.

After an intended change, run `python -m tests.golden`.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.golden.made import CAPTURES, FILES, FOLDER, measured


@pytest.mark.parametrize(("name", "make"), FILES.items())
def test_what_a_gateway_tells(name: str, make: Callable[[], str]) -> None:
    kept = (FOLDER / name).read_text()
    if name.endswith(".json"):  # the order of its fields is nobody's business
        assert json.loads(make()) == json.loads(kept)
    else:
        assert make() == kept


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda capture: capture.stem)
def test_what_measure_tells_of_a_capture(capture: Path) -> None:
    assert measured(capture) == (FOLDER / f"{capture.stem}.json").read_text()
