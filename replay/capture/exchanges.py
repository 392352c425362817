"""SEGMENTS rows in, exchanges out: for one connection, or for all connections of a capture at once."""

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import pyarrow as pa

from replay.capture.exchange import ConnectionEnd as ConnectionEnd
from replay.capture.exchange import Exchange as Exchange

Event: TypeAlias = Exchange | ConnectionEnd


def read_exchanges(
    batches: Iterable[pa.RecordBatch], *, ports: frozenset[int] = frozenset(), keep_requests: bool = False
) -> Iterator[Event]:
    """Read the exchanges of one connection.

    Args:
        batches: its SEGMENTS rows, in capture order.
        ports: those on which brokers listen; none: Kafka is found by what the bytes say.
        keep_requests: keep the frames of all requests, not only of those in `READ`.

    Yields:
        Exchanges in the order of their requests, each as soon as nothing more can be learnt of it; last, for
        each use of the pair of ports, a ConnectionEnd.
    """
    raise NotImplementedError
