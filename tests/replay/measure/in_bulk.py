"""Turns exchanges into bulk events.

Successive fetches become one event, if each was answered before the next one was sent.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from replay.capture.kafka.exchange import Exchange
from replay.capture.kafka.exchanges import BulkEvent
from replay.capture.kafka.pairs import Pairs
from replay.measure.collected import Collected, collect
from replay.measure.rows import RowFilter, groups
from replay.measure.table import FETCH


def pairs_of(exchanges: Sequence[Exchange]) -> Pairs:
    """Return fetches of one client as one event. Each was answered before the next one was sent."""
    frames = [frame for one in exchanges for frame in (one.request, b"".join(one.response))]
    edges = [0]
    for frame in frames:
        edges.append(edges[-1] + len(frame))
    first = exchanges[0]
    return Pairs(
        connection=first.connection,
        client=first.client,
        broker=first.broker,
        client_id=first.client_id,
        software=first.software,
        number=first.number,
        payload=memoryview(b"".join(frames)),
        edges=edges,
        versions=[one.api_version for one in exchanges],
        correlation_ids=[one.correlation_id for one in exchanges],
        request_times=[one.request_time for one in exchanges],
        response_times=[one.response_time for one in exchanges],
        keeps_responses=True,
    )


def in_bulk(exchanges: Sequence[Exchange]) -> Iterator[BulkEvent]:
    """Yield the exchanges of one connection.

    Fetches in a row become one event, if each was answered before the next one was sent.
    """
    alone = {id(one) for one in exchanges if one.api_key != FETCH or not one.response}
    for before, after in pairwise(exchanges):
        if after.request_time <= before.response_time:
            alone |= {id(before), id(after)}
    for single, group in groupby(exchanges, key=lambda one: id(one) in alone):
        found = [*group]
        yield from found if single else [pairs_of(found)]


def collected(events: Sequence[BulkEvent], choice: RowFilter) -> Collected:
    """Return the figures of a report."""
    return collect(groups(events, choice))
