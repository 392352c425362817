"""What the golden files here are made of: see `tests/golden/made.py`."""

from typing import Final

OPTIONS: Final = {"max_fetch_bytes": "10m,a=5"}
COUNTED: Final = None
