"""Computes the lowest cost of fetches that is possible if the future is known, as a standard for policies.

Before each exchange there is no session, or a session with the list and the offsets of an earlier exchange.
There are three choices: the exchange is sent without the session (which then does not change), as a delta, or
in full for a new session. The cheapest sequence of choices is found step by step. Some fetches must be
forwarded by the gateway (the response is large, or the session is busy). They count like all other fetches,
so the true minimum is a little higher.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from proxy.protocol.fetch_layout import FetchLayout, session_layout

ABSENT: Final = -1
"""The position of a partition that a fetch does not list."""
BAND: Final = 400
"""The age, in exchanges, from which a session is not considered any more, because it is useless."""
_CLOSE_RESPONSE: Final = 20

Column = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Exchanged:
    """One fetch and its response. Its columns have one item for each partition of the client."""

    position: Column
    """The fetch offset of each partition, or `ABSENT` if the fetch does not list the partition."""
    order: npt.NDArray[np.intp]
    """The partitions that the fetch lists, in its order."""
    high: Column
    """The high watermarks of the partitions that the fetch lists."""
    records: Column
    """The size of the records in the response, in bytes."""
    request: int
    """The size of the client's request in bytes."""
    response: int
    """The size of the full response in bytes."""
    bare: int
    """The size of the request without its list of partitions, in bytes."""


def least(exchanges: Iterable[Exchanged], narrow: FetchLayout, owner: npt.NDArray[np.intp], key: int) -> int:
    """Return the lowest possible cost of the exchanges: the bytes of all requests and responses.

    Args:
        exchanges: the exchanges of one connection.
        narrow: the layout of the client's fetches.
        owner: for each partition, the number of its topic.
        key: the size of a topic's name or id in bytes.
    """
    wide = session_layout(narrow.version)
    entry, answer = wide.request_entry, wide.response_entry
    prefix = wide.prefix_size(bytes(key), 1) + (1 if wide.flexible else 0)
    raised_head = wide.response_head - narrow.response_head
    done: list[Exchanged] = []
    costs: list[float] = []
    """For each exchange in `done`: the lowest cost so far if the connection now has the session with this
    exchange's list and offsets."""
    none = 0.0
    bare = 0
    for each in exchanges:
        count = len(each.order)
        whole = each.request + each.response
        bare = each.bare + wide.request_head - narrow.request_head + (wide.version - narrow.version and 4)
        response = 8 + wide.response_head + (3 if wide.flexible else 4) + int(each.records.sum())
        raised = count * (entry - narrow.request_entry + answer - narrow.response_entry)
        raised += bare - each.bare + raised_head
        into = min([none, *costs]) + whole + raised
        if done:
            deltas = np.array(costs) + bare + response + _delta(each, done, owner, entry, answer, prefix)
            into = min(into, float(deltas.min()))
        costs = [cost + whole for cost in costs] + [into]
        none += whole
        done.append(each)
        if len(done) > BAND:
            del done[0], costs[0]
    close = bare + _CLOSE_RESPONSE
    return round(min([none, *(cost + close for cost in costs)]))


def _delta(
    each: Exchanged,
    done: list[Exchanged],
    owner: npt.NDArray[np.intp],
    entry: int,
    answer: int,
    prefix: int,
) -> Column:
    """Return the size of a delta's list and of the entries in its response, for each earlier exchange.

    The delta is against that earlier exchange. Sizes are in bytes.
    """
    listed = each.position >= 0
    then = np.stack([one.position for one in done])
    high = np.stack([one.high for one in done])
    altered, forgotten = listed & (then != each.position), ~listed & (then >= 0)
    news = listed & ((each.records > 0) | (then < 0) | (high != each.high))
    sent = altered.sum(1) * entry + forgotten.sum(1) * 4 + news.sum(1) * answer
    for topic in range(int(owner.max()) + 1):
        for what in (altered, forgotten):
            sent = sent + what[:, owner == topic].any(1) * prefix
    elements = _elements(news[:, each.order], owner[each.order])
    return np.array(sent + elements * prefix, np.int64)


def _elements(included: Mask, owner: npt.NDArray[np.intp]) -> Column:
    """Return the number of topic elements that each fetch in `included` needs.

    Neighbouring partitions of one topic share an element.
    """
    if len(np.unique(owner)) < 2:
        return np.array(included.any(1), np.int64)
    runs = [np.count_nonzero(np.diff(owner[row])) + 1 if row.any() else 0 for row in included]
    return np.array(runs, np.int64)
