"""What the golden files here are made of: see `tests/golden/made.py`."""

from typing import Final

from proxy.features.connection_age.running import Aged

OPTIONS: Final = {"max_connection_age": "3600"}
COUNTED: Final = Aged(ended=7)
