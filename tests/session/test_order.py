"""Which partitions have records that a response in the session's order left out (`--keep-order`)."""

import numpy as np
import pytest

from proxy.protocol.fetch_layout import LAYOUTS
from proxy.session.handler import SessionResult
from proxy.session.order import serves_in_order
from proxy.session.partitions import PartitionTable
from proxy.session.state import Action
from tests.frames import entry, fetch, fetch_response, parsed, walked


@pytest.mark.parametrize(("isolation", "serves"), [(0, False), (1, True)])
@pytest.mark.parametrize("version", [7, 9, 12])
def test_read_committed_waits_for_committed_records_only(version: int, isolation: int, serves: bool) -> None:
    """The first partition has records from offset 5 on, none of them committed. The second one was served."""
    request = parsed(fetch(version, ("t", 0, 5), ("t", 1, 5), isolation_level=isolation))
    table = PartitionTable(LAYOUTS[version], isolation)
    assert request.listing is not None
    assert table.add(request.listing, np.arange(2))
    rows = table.locate(request.listing)
    table.place(rows)
    none = () if isolation else None
    data = [entry(0, 9, last_stable_offset=5, aborted=none), entry(1, 9, aborted=none, records=b"r" * 700)]
    walk = walked(fetch_response(version, ("t", data)), version, isolation)
    first, second = walk.entries
    table.apply_entry(first, 0)
    table.apply_entry(second, 1)

    result = SessionResult(Action.COMPLETE, entries=[second], rows=[1])

    assert serves_in_order(request, table, rows, walk, result) is serves
