"""Turns the exchanges of connections into groups, or into rows of the table. Sans-IO.

Tasks of Spark run this code, or this process without Spark. The memory it needs does not grow with the
capture.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from proxy.session.partitions import PartitionTable
from replay.capture.files.counts import FileCounts
from replay.capture.kafka.both_sides import Sample
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.capture.kafka.exchanges import Event
from replay.measure.digest import Digest
from replay.measure.floors import NO_FLOORS, Floors
from replay.measure.groups import Group, GroupWriter
from replay.measure.racks import NO_RACKS, Racks
from replay.measure.table import FETCH, KEYS, RowWriter
from replay.measure.zone_log import Newest, ZoneLog
from replay.simulate.engine import Engine, Policy
from replay.simulate.outcome import Outcome, TopicKey

if TYPE_CHECKING:
    from replay.measure.keys import KeyLog


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """Decides which fetches are counted, and how exchanges become rows."""

    policy: Policy = "gateway"
    errors: bool = False
    """Whether the errors of responses are also written into the table."""
    clients: frozenset[str] = frozenset()
    """The chosen client ids. Empty for all clients."""
    topics: frozenset[TopicKey] = frozenset()
    """The names and ids of the chosen topics. Empty for all topics."""
    max_fetch_bytes: int = 0
    floors: Floors = NO_FLOORS
    members: int = 0
    """The number of members over which the keys of records are spread. 0 if keys are not counted."""
    racks: Racks = NO_RACKS
    without: frozenset[str] = frozenset()
    """The names of connections that are left out, with all uses of their ports."""
    plain: bool = False
    """Whether every exchange is read and added on its own. Then each has a row of its own, and this takes
    longer. The sums are the same."""

    def has_client(self, outcome: Outcome) -> bool:
        return not self.clients or outcome.exchange.client_id in self.clients

    def counts(self, outcome: Outcome) -> bool:
        # A fetch that could not be read (below v4, for example) lists no topic.
        has_topic = not self.topics or not self.topics.isdisjoint(outcome.topics)
        return has_topic and self.has_client(outcome)


def rows(
    events: Iterable[Event], choice: RowFilter, files: Iterable[FileCounts] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield batches of rows from the events of connections, which come one connection after the other.

    The rows of `files` come last. They may be added while the events are read.
    """
    writer = RowWriter(errors=choice.errors)
    for _ in _written(events, choice, writer):
        if writer.full:
            yield writer.drain()
    for counts in files:
        writer.detail("file", counts)
    yield writer.drain()


def groups(events: Iterable[Event], choice: RowFilter, files: Iterable[FileCounts] = ()) -> Iterator[Group]:
    """Like `rows`, but yield the groups of each connection."""
    writer = GroupWriter()
    for ended in _written(events, choice, writer):
        if ended:
            yield from writer.drain()
    for counts in files:
        writer.detail("file", counts)
    yield from writer.drain()


def _written(events: Iterable[Event], choice: RowFilter, writer: RowWriter | GroupWriter) -> Iterator[bool]:
    """Write what is known of connections. Yield after each step, and whether a connection has ended."""
    newest = Newest()
    connection = _ConnectionRows(choice, newest, writer)
    for event in events:
        if isinstance(event, Exchange):
            connection.add(event)
        else:
            connection.end(event)
            connection = _ConnectionRows(choice, newest, writer)
        yield isinstance(event, ConnectionEnd)


class _ConnectionRows:
    def __init__(self, choice: RowFilter, newest: Newest, writer: RowWriter | GroupWriter) -> None:
        self._choice = choice
        self._engine: Engine | None = None
        """None before the first exchange: most connections of a port scan have none."""
        self._digest = Digest(choice.max_fetch_bytes, choice.floors)
        self._exchanges = 0
        self._version = -1
        self._counted = False
        self._counts = False
        """Whether the last fetch is counted."""
        self._saved_by_other = 0
        self._sample = Sample()
        self._zones = ZoneLog(choice.racks, newest)
        self._keys = _key_log(choice.members) if choice.members else None
        self._writer = writer

    def add(self, exchange: Exchange) -> None:
        exchange.place, self._exchanges = self._exchanges, self._exchanges + 1
        if exchange.api_key == FETCH:
            self._version = exchange.api_version
        else:
            self._writer.exchange(exchange)
            self._zones.add(exchange)
            if self._keys is not None and exchange.group:
                self._keys.delivered.groups.add(exchange.group)
        self._sample.add(exchange)
        if self._engine is None:
            self._engine = Engine(
                self._choice.policy,
                plain=self._choice.plain,
                merges=isinstance(self._writer, GroupWriter),
                takes_news=self._takes_news,
            )
        if outcomes := self._engine.add(exchange):
            self._settle(outcomes)
            self._settle_other(self._engine)

    def _takes_news(self, table: PartitionTable) -> bool:
        """Whether fetches of a run are counted without their parsed responses, even if these have news."""
        if self._zones.takes_fetches or self._keys is not None:
            return False
        return not self._counts or self._digest.limits.is_calm(table)

    def end(self, end: ConnectionEnd) -> None:
        engine, self._engine = self._engine, None  # which refers to this object
        if engine is not None:
            self._end_engine(engine, end)
        summary = self._digest.summary(end)
        summary.differing = engine.differing if engine is not None else 0
        summary.zones = self._zones.seen(end)
        summary.saved_by_other = self._saved_by_other
        summary.exchanges, summary.sample = self._sample.exchanges, self._sample.values()
        self._writer.detail("connection", summary, end)
        if self._keys is not None:
            self._writer.detail(KEYS, self._keys.delivered, end)

    def _end_engine(self, engine: Engine, end: ConnectionEnd) -> None:
        """Write the rows of the last fetches."""
        outcomes, closing = engine.end(end)
        self._settle(outcomes)
        if closing is not None and self._counted:
            self._close(closing)
        self._settle_other(engine)

    def _close(self, closing: Outcome) -> None:
        """Write a row for the fetch with which the gateway ends its session, after the client has left."""
        closing.exchange.api_version, closing.exchange.place = self._version, self._exchanges
        self._digest.close(closing)
        self._writer.exchange(closing.exchange, closing, counted=True, row="closing")

    def _settle(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            exchange = outcome.exchange
            counted = self._counts = self._choice.counts(outcome)
            self._writer.exchange(exchange, outcome, counted=counted)
            if counted:
                self._counted = True
                self._digest.add(outcome)
                if self._zones.takes_fetches:
                    self._zones.add_fetch(outcome)
            # Also of other topics: a fetch may bring records of topics that it does not list. The report
            # leaves out keys of other topics.
            if self._keys is not None and not outcome.run and self._choice.has_client(outcome):
                self._keys.add(outcome)

    def _settle_other(self, engine: Engine) -> None:
        for outcome in engine.drain_other():
            self._add_saved(outcome)

    def _add_saved(self, outcome: Outcome) -> None:
        """Add the bytes that the other policy would save."""
        exchange = outcome.exchange
        closes = not exchange.request_bytes  # the gateway's close, when the client is gone
        if self._counted if closes else self._choice.counts(outcome):
            if outcome.eligible:
                self._saved_by_other += exchange.request_bytes + exchange.response_bytes
            self._saved_by_other -= outcome.session_request_bytes + outcome.session_response_bytes


def _key_log(members: int) -> "KeyLog":
    from replay.measure.keys import KeyLog  # noqa: PLC0415 - it needs the extra `cooperative`

    return KeyLog(members)
