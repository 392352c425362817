"""What the golden files here are made of: see `tests/golden/made.py`."""

from typing import Final

from proxy.features.client_sessions.figures import ClientSessionFigures

OPTIONS: Final = {"client_sessions": "on"}
COUNTED: Final = ClientSessionFigures(sessions=241, partitions=242, evictions=161)
