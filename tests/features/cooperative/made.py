"""What the golden files here are made of: see `tests/golden/made.py`."""

import itertools
from collections import Counter
from typing import Any, Final

from proxy.features.cooperative.tally import Cooperative, FilterTally, GroupSeen, LaneSeen, MemberSeen

_NUMBER: Final = itertools.count(187)


def _counted(*names: Any) -> Counter[Any]:
    return Counter({name: next(_NUMBER) for name in names})


OPTIONS: Final = {"cooperative": "g,h"}
_LANES: Final = [
    LaneSeen(topic="t", partition=0, ranges=((0, 0x7FFF_FFFF),), position=next(_NUMBER), lag=next(_NUMBER)),
    LaneSeen(topic="t", partition=1, ranges=((0, 0xFFFF_FFFF),), position=None, lag=None),
]
COUNTED: Final = Cooperative(
    tally=FilterTally(
        records=_counted("kept", "filtered"),
        batches=_counted("untouched", "thinned", "dropped", "placeholder"),
        upstream_bytes=next(_NUMBER),
        client_bytes=next(_NUMBER),
        skipped_offsets=next(_NUMBER),
        commits=_counted("ok", "error"),
        refused=_counted(6, 25),
        exclusive=_counted("outsider", "instances"),
    ),
    reader_fetches=next(_NUMBER),
    buffered_bytes=next(_NUMBER),
    detached=_counted("full", "wait"),
    groups=[
        GroupSeen(
            name="g",
            exclusive="",
            members=[MemberSeen(client_id="g.1", host="127.0.0.1", state="shares", lanes=_LANES)],
        ),
        GroupSeen(name="h", exclusive="outsider", members=[]),
    ],
)
