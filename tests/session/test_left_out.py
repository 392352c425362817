"""A partition that the broker has lost is found: a response lacks it, although a check has shown news of it.

`tests/core/test_session_keeper_left_out.py` shows what the gateway does about it.
"""

import pytest

from proxy.session.state import Action, Loss
from tests.frames import entry, fetch_response, walked
from tests.session.handling import again, established, give


@pytest.mark.parametrize("count", [3, 8])
@pytest.mark.parametrize("version", [7, 16])
def test_a_partition_that_is_sent_without_records_is_not_left_out(version: int, count: int) -> None:
    """The broker has a partition in its session if it sends it, be it alone or in a run of empty entries."""
    wants = [("t", index) for index in range(count)]
    handler = established(version, *wants)
    for _ in range(2):
        handler.waits()
    records = [entry(index, 5, records=b"r" if index == 1 else b"") for index in range(count)]
    handler.check(walked(fetch_response(version, ("t", records)), version))
    again(handler, version, *wants)
    result = give(handler, version, ("t", [entry(index, 5) for index in range(count)]), session_id=77)
    assert (result.action, result.loss) == (Action.EXPAND, None)


def test_a_partition_that_is_not_sent_is_left_out() -> None:
    """Its neighbours in a run do not stand for it."""
    wants = [("t", index) for index in range(8)]
    handler = established(16, *wants)
    for _ in range(2):
        handler.waits()
    records = [entry(index, 5, records=b"r" if index == 1 else b"") for index in range(8)]
    handler.check(walked(fetch_response(16, ("t", records)), 16))
    again(handler, 16, *wants)
    result = give(handler, 16, ("t", [entry(index, 5) for index in range(2, 8)]), session_id=77)
    assert result.loss is Loss.LEFT_OUT


def test_who_does_not_advance_changes_nothing() -> None:
    """`advances` notes a look like `waits`, unless the client is at the offset of the last look."""
    handler = established()
    expected, table = handler.expected, handler.table
    assert expected.advances(table)
    before = repr(expected)
    assert not expected.advances(table)
    assert repr(expected) == before
    assert handler.waits()
