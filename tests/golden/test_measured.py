"""What `replay measure` prints does not change unnoticed.

After an intended change, run `python -m tests.golden`.
"""

from pathlib import Path

import pytest

from tests.golden.measured import CAPTURES, REPORTS, file_of, measured, reports


def test_what_measure_says_first() -> None:
    assert reports() == REPORTS.read_text()


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda capture: capture.stem)
def test_what_measure_tells_of_a_capture(capture: Path) -> None:
    assert measured(capture) == file_of(capture).read_text()
