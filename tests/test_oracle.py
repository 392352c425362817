"""The oracle computes the lowest possible cost of fetches, with which policies are compared."""

import numpy as np

from proxy.protocol.fetch_layout import LAYOUTS
from tests import oracle

LAYOUT = LAYOUTS[11]
BARE = 70


def exchanged(offsets: list[int], high: list[int]) -> oracle.Exchanged:
    """Return a fetch of a topic with its response.

    Args:
        offsets: the fetch offset of each partition. -1 means that the fetch does not list the partition.
        high: the high watermark of each partition. Each record from the fetch offset to the high
            watermark has 100 bytes.
    """
    position = np.array(offsets)
    order = np.array([number for number, offset in enumerate(offsets) if offset >= 0])
    records = np.where(position >= 0, (np.array(high) - position) * 100, 0)
    request = BARE + 9 + len(order) * LAYOUT.request_entry
    response = 22 + 9 + len(order) * LAYOUT.response_entry + int(records.sum())
    return oracle.Exchanged(position, order, np.array(high), records, request, response, BARE)


def least(*exchanges: oracle.Exchanged) -> int:
    owner = np.zeros(len(exchanges[0].position), np.intp)
    return oracle.least(exchanges, LAYOUT, owner, 3)


def test_one_exchange_costs_what_it_costs() -> None:
    one = exchanged([0] * 50, [0] * 50)
    assert least(one) == one.request + one.response


def test_what_repeats_costs_its_head_and_a_close_at_the_end() -> None:
    one = exchanged([0] * 50, [0] * 50)
    again = BARE + 22
    assert least(one, one, one) == one.request + one.response + 2 * again + BARE + 20


def test_a_record_costs_its_entry_and_then_its_offset() -> None:
    idle = exchanged([0] * 50, [0] * 50)
    hot = exchanged([0] * 50, [1] + [0] * 49)
    moved = exchanged([1] + [0] * 49, [1] + [0] * 49)
    cost = least(idle, hot, moved) - least(idle, idle, idle)
    assert cost == 9 + LAYOUT.response_entry + 100 + 9 + LAYOUT.request_entry


def test_a_list_that_comes_back_at_once_is_not_dropped() -> None:
    whole = exchanged([0] * 50, [0] * 50)
    two = exchanged([0, 0] + [-1] * 48, [0] * 50)
    assert least(whole, two, whole) == least(whole, whole) + two.request + two.response
