"""How many examples hypothesis tries. The profiles are in `tests/conftest.py`."""

from typing import Any

from hypothesis import settings


def examples(number: int, **more: Any) -> settings:
    """Ask for a number of examples; `make check` tries as small a part of them as its profile says.

    Args:
        number: how many with `make test`.
        more: other settings of hypothesis.
    """
    per_cent = settings().max_examples
    return settings(max_examples=max(1, number * per_cent // 100), **more)
