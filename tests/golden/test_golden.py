"""What a gateway tells, on which scripts depend, does not change unnoticed.

After an intended change, run `python -m tests.golden`.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from proxy.features.declared import NAMES
from tests.golden.made import account, added, added_lines, base, metrics, piece, state


def assert_kept(texts: Mapping[Path, str]) -> None:
    """Compare texts with the files that have them. The order of fields in JSON does not matter."""
    for path, text in texts.items():
        read = json.loads if path.suffix == ".json" else str
        assert read(text) == read(path.read_text()), (
            f"if this is intended: python -m tests.golden {path.name}"
        )


def test_what_a_gateway_tells() -> None:
    assert_kept(base())


@pytest.mark.parametrize("name", NAMES)
def test_what_a_feature_adds(name: str) -> None:
    texts = piece(name)
    assert_kept(texts)
    (folder,) = {path.parent for path in texts}
    assert {*folder.glob("*.txt"), *folder.glob("*.json")} == texts.keys()


@pytest.mark.parametrize("name", NAMES)
def test_all_features_together_tell_what_each_tells(name: str) -> None:
    """These raise if something is missing, or has another value."""
    added_lines(metrics(account(name)), metrics(account(*NAMES)))
    added(state(name), state(*NAMES))
