"""Marks the tests of this folder `integration`, because they need a real broker. `make test` runs those that
`chosen.txt` names; the others are `nightly`: `make test-all` runs them.
"""

from pathlib import Path
from typing import Final

import pytest

_HERE: Final = Path(__file__).parent
CHOSEN: Final = frozenset((_HERE / "chosen.txt").read_text().splitlines())
"""Tests as pytest names them, without this folder: a file, a test with all its cases, or one case."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of this folder.

    Raises:
        pytest.UsageError: a line of `chosen.txt` is no test. Only a run of all tests can tell.
    """
    found: set[str] = set()
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)
            case = item.nodeid.removeprefix("tests/integration/")
            names = CHOSEN & {item.path.name, case.partition("[")[0], case}
            if not names:
                item.add_marker(pytest.mark.nightly)
            found |= names
    if config.args == config.getini("testpaths") and found != CHOSEN:
        raise pytest.UsageError(f"tests/integration/chosen.txt: no such test: {', '.join(CHOSEN - found)}")
