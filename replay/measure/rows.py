"""One connection's exchanges in, its rows of the table out, through the session engine, in bounded memory.

Sans-IO, and picklable: this is what Spark's workers run.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.measure.digest import Digest
from replay.measure.table import FETCH, LAST, Writer, end_to_json
from replay.simulate.engine import Engine, Policy
from replay.simulate.outcome import Outcome, TopicKey


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """What is made of exchanges, and which of them are counted."""

    policy: Policy = "gateway"
    raw: bool = False
    """Keep the frames in the table."""
    clients: frozenset[str] = frozenset()
    """Client ids; none: all."""
    topics: frozenset[TopicKey] = frozenset()
    """Topics' names and ids; none: all."""

    def counts(self, outcome: Outcome) -> bool:
        """Whether a fetch is counted: its client is meant, and it names one of the topics."""
        if self.clients and outcome.exchange.client_id not in self.clients:
            return False
        return not self.topics or not self.topics.isdisjoint(outcome.topics)


def rows(events: Iterable[Exchange | ConnectionEnd], choice: RowFilter) -> Iterator[pa.RecordBatch]:
    """Give the rows of one pair of ports, whose uses follow upon each other."""
    connection = _Connection(choice)
    for event in events:
        if isinstance(event, Exchange):
            connection.take(event)
        else:
            connection.end(event)
            connection = _Connection(choice, connection.writer)
        if connection.writer.full:
            yield connection.writer.take()
    yield connection.writer.take()


def file_rows(details: Iterable[str], choice: RowFilter) -> pa.RecordBatch:
    """Return the rows of what was found in capture files."""
    writer = Writer(raw=choice.raw)
    for detail in details:
        writer.detail("file", "", None, detail)
    return writer.take()


class _Connection:
    """One use of a pair of ports."""

    def __init__(self, choice: RowFilter, writer: Writer | None = None) -> None:
        self._choice = choice
        self._engine = Engine(choice.policy)
        self._digest: Digest | None = None
        self._places: dict[int, int] = {}
        self._taken = 0
        self._version = -1
        self._counted = False
        self.writer = writer or Writer(raw=choice.raw)

    def take(self, exchange: Exchange) -> None:
        """Take the next exchange; a fetch is written when its outcome is known."""
        place, self._taken = self._taken, self._taken + 1
        if exchange.api_key == FETCH:
            self._places[id(exchange)] = place
            self._version = exchange.api_version
        else:
            self.writer.exchange(exchange, place)
        self._settle(self._engine.take(exchange))

    def end(self, end: ConnectionEnd) -> None:
        """Write what is left, and the row of the whole connection."""
        outcomes, ending = self._engine.end(end)
        self._settle(outcomes)
        digest = self._of(end.connection)
        if ending.closing is not None and self._counted:
            self._close(digest, ending.closing)
        detail: dict[str, Any] = {"end": end_to_json(end), **digest.detail(), "differing": ending.differing}
        self.writer.detail("connection", end.connection, end, json.dumps(detail, separators=(",", ":")))

    def _close(self, digest: Digest, closing: Outcome) -> None:
        """Write the close of the session that the connection held, for the client that held it."""
        closing.exchange.api_version = self._version
        digest.close(closing)
        self.writer.exchange(closing.exchange, LAST - 1, closing, counted=True, row="closing")

    def _settle(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            exchange = outcome.exchange
            counted = self._choice.counts(outcome)
            self.writer.exchange(exchange, self._places.pop(id(exchange)), outcome, counted=counted)
            if counted:
                self._counted = True
                self._of(exchange.connection).add(outcome)

    def _of(self, connection: str) -> Digest:
        if self._digest is None:
            self._digest = Digest(connection)
        return self._digest
