"""What the golden files here are made of: see `tests/golden/made.py`."""

from typing import Final

OPTIONS: Final = {"follow_leader": "on"}
COUNTED: Final = None
