"""Imports without what is only imported for looks."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(name: str) -> Iterator[None]:
    """Have a package that nobody has imported yet not be found meanwhile.

    Args:
        name: of a package that others do without where it is not installed.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # "the import system": such an entry is an ImportError
    try:
        yield
    finally:
        del sys.modules[name]
