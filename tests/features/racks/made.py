"""What the golden files here are made of: see `tests/golden/made.py`."""

import itertools
from collections import Counter
from typing import Final

from proxy.features.racks.figures import WHAT, ReplicaFigures, Zones
from proxy.features.racks.racks import RETURNS, Zone

_NUMBER: Final = itertools.count(200_001)
OPTIONS: Final = {"rack": "R2", "rack_clients": "c,b"}
COUNTED: Final = Zones(
    byte_counts=Counter({(zone.value, what): next(_NUMBER) for zone in Zone for what in WHAT}),
    racks={"1": "R1", "2": "R2", "3": ""},
    racks_of_known={1: "R1", 2: "R2"},
    rack="R2",
    reads=ReplicaFigures(
        held=next(_NUMBER),
        named=next(_NUMBER),
        returns=Counter({how: next(_NUMBER) for how in RETURNS}),
    ),
)
