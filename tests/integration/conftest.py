"""Marks the tests of this folder `integration`, because they need a real broker. `make test` runs those that
`chosen.txt` names; the others are `nightly`: `make test-all` runs them.
"""

from pathlib import Path
from typing import Final

import pytest

_HERE: Final = Path(__file__).parent
CHOSEN: Final = frozenset((_HERE / "chosen.txt").read_text().splitlines())
"""Tests as pytest names them, without this folder: a file, a test with all its cases, or one case."""
MISSING: Final = pytest.StashKey[frozenset[str]]()
"""The lines of `chosen.txt` that are no tests. Only a run of all tests can tell, and has this."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    found: set[str] = set()
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)
            case = item.nodeid.removeprefix("tests/integration/")
            names = CHOSEN & {item.path.name, case.partition("[")[0], case}
            if not names:
                item.add_marker(pytest.mark.nightly)
            found |= names
    if config.args == config.getini("testpaths"):
        config.stash[MISSING] = CHOSEN - found
