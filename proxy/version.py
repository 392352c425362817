"""The version of fetchgate."""

from typing import Final

VERSION: Final = "0.2.0"
"""The same as in pyproject.toml. `importlib.metadata` knows it, too, but takes 4 MB of memory."""
