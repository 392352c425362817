"""Sets how much of a long test a run does: `make check` a tenth, `make test` a quarter, `make test-all` all.

The profiles of hypothesis in `tests/conftest.py` hold the share, as the number of examples for each hundred.
"""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings


def share(number: int) -> int:
    """Return how many of `number` seeds, steps or examples this run does, at least one."""
    return max(1, number * settings().max_examples // 100)


def examples(number: int, **more: Any) -> settings:
    """Return settings of hypothesis with a number of examples.

    Args:
        number: the number of examples with `make test-all`.
        more: other settings of hypothesis.
    """
    return settings(max_examples=share(number), **more)


def few(values: Iterable[Any], *chosen: Any) -> list[Any]:
    """Return the cases of a test for `parametrize`. Those that are not in `chosen` are nightly.

    Args:
        values: all cases, for `make test-all`.
        chosen: the cases that `make test` runs, too.

    Raises:
        ValueError: one of `chosen` is no case, so `make test` would leave it out without a word.
    """
    values = list(values)
    if missing := [each for each in chosen if each not in values]:
        raise ValueError(f"no such cases: {missing}")
    return [each if each in chosen else pytest.param(each, marks=pytest.mark.nightly) for each in values]
