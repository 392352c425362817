"""Sets the number of examples that hypothesis tries. The profiles are in `tests/conftest.py`."""

from typing import Any

from hypothesis import settings


def examples(number: int, **more: Any) -> settings:
    """Return settings of hypothesis with a number of examples.

    `make check` tries only a part of the examples. The profile sets how many.

    Args:
        number: the number of examples with `make test`.
        more: other settings of hypothesis.
    """
    per_cent = settings().max_examples
    return settings(max_examples=max(1, number * per_cent // 100), **more)
