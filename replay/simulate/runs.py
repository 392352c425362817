"""Runs of fetches in a steady session of the gateway, added one after the other. Sans-IO.

A session is steady when the core has nothing to decide for the next fetch (`Fetches.steady`). Most fetches of
a capture are like this: they list the session's partitions, a few with other offsets, and few entries of the
response are new. Their bytes are compared with the session's table. The core's own functions then change the
session as they do for the gateway's fast path, so a run leaves the state that single fetches leave.

What is not fully understood here is no part of a run. The core processes it, as it processes all fetches with
``FETCHGATE_REPLAY=plain``.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from proxy.core.events import FetchKind
from proxy.core.fetches import Fetches
from proxy.core.sent_fetch import STREAM_FROM
from proxy.protocol.api import LENGTH_BYTES, RESPONSE_START_BYTES
from proxy.protocol.fetch_layout import ERROR_CODE, HIGH_WATERMARK, LAST_STABLE_OFFSET, LOG_START_OFFSET
from proxy.protocol.fetch_response import response_head
from proxy.protocol.primitives import ProtocolError, read_uvarint
from proxy.session.partitions import PartitionTable
from replay.capture.kafka.exchange import Exchange
from replay.simulate.captured_broker import SESSION_ID, CapturedBroker, NewEntry
from replay.simulate.lists import Listed, ListedTopic, OneTopic, SeveralTopics, alike, listing_size
from replay.simulate.outcome import FetchBytes, Outcome, TopicShare, topic_name

TakesNews: TypeAlias = Callable[[PartitionTable], bool]
_SECOND: Final = 1_000_000_000
Elements: TypeAlias = list[tuple[bytes, list[int]]]
"""The topic elements of an incremental response: the key of each, and the rows of its entries."""


class RunStep(NamedTuple):
    """A fetch of a run, and what becomes of it."""

    listed: Listed
    news: list[NewEntry]
    elements: list[tuple[bytes, list[NewEntry]]]
    """`news` in the topic elements of the incremental response."""
    sizes: list[int]
    """The size of each topic element."""
    got: int
    """The size of the incremental response."""
    records: int
    """The bytes of records in the response."""


class OtherSession(NamedTuple):
    """The session of the policy that was not asked, in the same state except for its order."""

    table: PartitionTable
    broker: CapturedBroker
    rows: Sequence[int]
    """For each row of the table of the policy that was asked, the row in this table."""


class SteadySession:
    """What the fetches of a steady session are compared with."""

    def __init__(self, fetches: Fetches, lists: OneTopic | SeveralTopics, broker: CapturedBroker) -> None:
        self.fetches, self.lists, self.broker = fetches, lists, broker
        self.other: OtherSession | None = None
        """None if its response has the same size in any order: that of one topic."""
        table = self.table = lists.table
        layout = self.layout = table.layout
        self._tail = b"\0" if layout.flexible else b""
        """The empty tags of a topic element, or of the body."""
        self.tail = len(self._tail)
        self._head = response_head(layout, b"", 0)
        self._count, self._prefix = cache(layout.count), cache(layout.prefix)
        self._no_records = layout.empty_ends[1 if table.isolation_level else 0]
        self._with_records = self._no_records[: layout.response_records - layout.aborted]
        self._head_sent = LENGTH_BYTES + len(response_head(layout, bytes(4), 0, SESSION_ID))

    def step(self, request: bytes, response: bytes) -> RunStep | None:
        """Return what becomes of the next fetch. None if the core has to decide. This changes nothing."""
        listed = self.lists.read(request)
        news = self._news(response, listed.topics) if listed is not None else None
        elements = self._elements(news) if news is not None else None
        if listed is None or news is None or elements is None:
            return None
        records = sum([entry.records for entry in news])
        sizes = [self.element(*each) for each in elements]
        return RunStep(listed, news, elements, sizes, self.received(sizes), records)

    def costs(self, fetch: Exchange) -> Sequence[int]:
        """Return what the next fetch costs in a run, as `costs_of` does. () if it may be part of none."""
        if fetch.request_time / _SECOND >= self.fetches.check_at:
            return ()
        step = self.step(fetch.request, b"".join(fetch.response))
        return () if step is None else (step.listed.sent, step.got, len(step.listed.altered), len(step.news))

    def received(self, sizes: Sequence[int]) -> int:
        """Return the size of an incremental response with topic elements of these sizes."""
        return self._head_sent + len(self._count(len(sizes))) + sum(sizes) + self.tail

    def element(self, key: bytes, news: list[NewEntry]) -> int:
        """Return the size of a topic element in an incremental response."""
        entries = sum([entry.end - entry.start for entry in news])
        return self.layout.prefix_size(key, len(news)) + entries + self.tail

    def full_element(self, key: bytes, count: int) -> int:
        """Return the size of a topic element in a full response with nothing new."""
        return self.layout.prefix_size(key, count) + count * self.layout.response_entry + self.tail

    def _elements(self, news: list[NewEntry]) -> list[tuple[bytes, list[NewEntry]]] | None:
        """Return the topic elements of the incremental response.

        None if those of the other session have other sizes: its order may be another one.
        """
        if not news:
            return []
        other, rows = self.other, [entry.row for entry in news]
        if other is None:
            return [(self.table.key(int(self.table.topic[rows[0]])), news)]
        elements = _in_order(self.table, self.broker, rows)
        in_other = _in_order(other.table, other.broker, [other.rows[row] for row in rows])
        if _shape(in_other) != _shape(elements):
            return None
        found = dict(zip(rows, news, strict=True))
        return [(key, [found[row] for row in part]) for key, part in elements]

    def _news(self, frame: bytes, topics: Sequence[ListedTopic]) -> list[NewEntry] | None:
        """Return the entries of a full response that differ from the table. None if it may have other news.

        The entries are in the order of the fetch, which lists these topics.
        """
        head = self._head + self._count(len(topics))
        if not frame.startswith(head, RESPONSE_START_BYTES):
            return None
        found: list[NewEntry] = []
        at, item = RESPONSE_START_BYTES + len(head), self.layout.response_entry
        known, suspects = self.table.cached_bytes, self.lists.suspects
        for topic in topics:
            prefix = self._prefix(topic.key, topic.partitions)
            if not frame.startswith(prefix, at):
                return None
            at += len(prefix)
            for begin, stop in topic.pieces:
                row = begin
                while row < stop:
                    same = alike(known, item, frame, at, row, stop, suspects)
                    at, row = at + same * item, row + same
                    if row < stop:
                        entry = self._entry(frame, at, row)
                        if entry is None:
                            return None
                        found.append(entry)
                        at, row = entry.end, row + 1
            if not frame.startswith(self._tail, at):
                return None
            at += self.tail
        return found if frame[at:] == self._tail else None

    def _entry(self, frame: bytes, at: int, row: int) -> NewEntry | None:
        """Read an entry that differs from the table's. None if a broker's session would not send it so."""
        layout, place = self.layout, row * self.layout.response_entry
        known = self.table.cached_bytes[place : place + layout.aborted]
        if not frame.startswith(known[: ERROR_CODE.stop], at):
            return None
        end = at + layout.response_entry
        if frame.startswith(self._no_records, at + layout.aborted):
            fixed = frame[at : at + layout.aborted]
            shown = any(fixed[field] != known[field] for field in (HIGH_WATERMARK, LOG_START_OFFSET))
            return NewEntry(row, at, end, 0) if shown else None
        if not frame.startswith(self._with_records, at + layout.aborted):
            return None
        records_at = at + layout.response_records
        if not layout.flexible:
            size = int.from_bytes(frame[records_at : records_at + LENGTH_BYTES], signed=True)
            return NewEntry(row, at, end + size, size) if size > 0 else None
        try:
            size, start = read_uvarint(frame, records_at)
        except ProtocolError:
            return None
        end = start + size  # the records have one byte less than `size`, and no tags follow
        return NewEntry(row, at, end, size - 1) if size > 1 and frame.startswith(b"\0", end - 1) else None


def costs_of(outcome: Outcome) -> Sequence[int]:
    """Return the bytes and entries of a fetch in the session: those of its request and of its response."""
    return (
        outcome.session_request_bytes,
        outcome.session_response_bytes,
        outcome.session_partitions_requested,
        outcome.session_partitions_answered,
    )


class SessionRun:
    """Fetches in a row of a steady session, with the sums of what they cost. `add` adds the next one.

    Before a fetch is added whose response has news, `takes_news` is asked whether the caller needs the parsed
    response of such a fetch. Then the run ends before it. It also ends after `most` fetches. `first` is the
    fetch that is added first.
    """

    def __init__(self, steady: SteadySession, first: Exchange, takes_news: TakesNews, most: int) -> None:
        self._steady, self._takes_news, self._most = steady, takes_news, most
        self._first = self.last = first
        self._news_taken = False
        self.over = False
        """Whether no fetch can be added any more."""
        self._listed_last: Listed | None = None
        self._fetches: list[FetchBytes] = []
        self._told = self._sent = self._entries = self._with_records = 0
        self._listed = Counter[tuple[bytes, int]]()
        """How many topic elements of fetches had this key and this number of partitions."""
        self._shares = defaultdict[bytes, TopicShare](TopicShare)
        self._altered, self._answered = set[int](), set[int]()
        """The rows whose entries differed in requests, and in responses."""

    def __repr__(self) -> str:
        return f"<SessionRun fetches={len(self._fetches)}>"

    @property
    def in_both(self) -> bool:
        """Whether the session of the other policy has got the fetches, too."""
        return self._steady.other is not None

    def add(self, exchange: Exchange) -> bool:
        """Add a fetch whose response came before anything else. Return False if it is no part of the run."""
        request, response = exchange.request, b"".join(exchange.response)
        step = self._steady.step(request, response)
        if step is None or not self._apply(step, request, response, exchange.request_time / _SECOND):
            return False
        self.last, self._listed_last = exchange, step.listed
        asked, told, sent, got = len(request), len(response), step.listed.sent, step.got
        times = exchange.request_time, exchange.response_time
        self._fetches.append(FetchBytes(*times, asked + told, sent + got, step.records))
        self._told += told
        self._sent += sent
        self._share(step)
        self.over = self.over or len(self._fetches) >= self._most
        return True

    def _share(self, step: RunStep) -> None:
        """Count the topics of a fetch and of its response."""
        steady, listed = self._steady, step.listed
        for topic in listed.topics:
            self._listed[topic.key, topic.partitions] += 1
        for key, count in listed.counts.items():
            share = self._shares[key]
            share.session_partitions_requested += count
            share.session_request_bytes += listing_size(steady.layout, key, count)
        for (key, news), size in zip(step.elements, step.sizes, strict=True):
            share = self._shares[key]
            share.session_partitions_answered += len(news)
            share.session_response_bytes += size
            for entry in news:
                if entry.records:
                    share.record_bytes += entry.records
                    share.response_bytes += entry.end - entry.start - steady.layout.response_entry
                    self._with_records += 1
                    self._entries += entry.end - entry.start - entry.records

    def _apply(self, step: RunStep, request: bytes, response: bytes, now: float) -> bool:
        """Bring gateway and broker to the state after a fetch.

        Return False, with nothing changed, if the core has more to do.
        """
        steady, fetches = self._steady, self._steady.fetches
        table, item, altered = steady.table, steady.layout.request_entry, step.listed.altered
        news = step.news
        if news and not (self._news_taken or self._takes_news(table)):
            return False
        before = [(row, bytes(table.request_bytes[row * item : (row + 1) * item])) for row, _ in altered]
        _alter(table, altered)
        leaves_out = step.records > 0 and self._leaves_out(step, response)
        if leaves_out or (now >= fetches.check_at and not fetches.look_quietly(now)):
            _alter(table, before)
            return False
        self._news_taken = bool(news) or self._news_taken
        if not self._fetches:
            fetches.state.plans.forget_fetch()
        fetches.session.ask_rotated(())
        for entry in news:
            table.describe(entry.row, response[entry.start : entry.start + steady.layout.aborted])
        fetches.session.continue_session()
        rests = steady.lists.count(request, step.listed.sent, len(response) - step.got, news)
        if len(request) + len(response) > step.listed.sent + step.got:
            fetches.unused = 0
        large = fetches.eligibility.large = step.got >= STREAM_FROM
        self.over = rests or large
        rows, filled = [entry.row for entry in news], [entry.row for entry in news if entry.records]
        steady.broker.sent(rows, filled)
        if steady.other is not None:
            own = steady.other.rows
            steady.other.broker.sent([own[row] for row in rows], [own[row] for row in filled])
        self._altered.update([row for row, _ in altered])
        self._answered.update(rows)
        return True

    def _leaves_out(self, step: RunStep, response: bytes) -> bool:
        """Return whether the response has no records of a partition of which the client may read some."""
        table, layout = self._steady.table, self._steady.layout
        unread = table.behind if table.isolation_level else table.unread()[0].tolist()
        if not {entry.row for entry in step.news}.issuperset(unread):
            return True
        end = LAST_STABLE_OFFSET if table.isolation_level else HIGH_WATERMARK
        for row, start, _, records in step.news:
            at = row * layout.request_entry + layout.request_offset
            # Offsets that are not negative have the order of their bytes.
            if not records and response[start:][end] > bytes(table.request_bytes[at : at + 8]):
                return True
        return False

    def finish(self) -> Outcome:
        """Count the fetches in the core's tally, and return their sums."""
        self._bring_up_to_date()
        steady, times, sent = self._steady, len(self._fetches), self._sent
        asked = sum(fetch.captured for fetch in self._fetches) - self._told
        got = sum(fetch.predicted for fetch in self._fetches) - sent
        shares, requested = self._topics(), times * steady.table.size
        records = sum(fetch.records for fetch in self._fetches)
        altered = sum(share.session_partitions_requested for share in shares.values())
        included = sum(share.session_partitions_answered for share in shares.values())
        tally = steady.fetches.state.tally
        tally.client.add_fetches(FetchKind.SESSIONLESS, asked, requested, times=times)
        tally.client.fetch_response_bytes += self._told
        tally.client.add_responses(requested, records)
        tally.broker.add_fetches(FetchKind.INCREMENTAL, sent, altered, times=times)
        tally.broker.fetch_response_bytes += got
        tally.broker.add_responses(included, records)
        if self._listed_last is not None and len(self._listed_last.topics) > 1:
            steady.table.place(self._listed_last.rows)
        exchange = self._first
        if times > 1:
            exchange = replace(
                exchange, request_bytes=asked, response_bytes=self._told, request=b"", response=[]
            )
        return Outcome(
            exchange,
            kind="sessionless",
            topics={topic_name(key, steady.layout): share for key, share in shares.items()},
            partitions_requested=requested,
            partitions_answered=requested,
            record_bytes=records,
            listing_bytes=sum(share.request_bytes for share in shares.values()),
            empty_entry_bytes=(requested - self._with_records) * steady.layout.response_entry,
            entry_bytes=self._entries,
            eligible=True,
            session_kind="incremental",
            session_request_bytes=sent,
            session_response_bytes=got,
            incremental=times,
            altered=altered,
            session_partitions_requested=altered,
            session_partitions_answered=included,
            session_listing_bytes=sum(share.session_request_bytes for share in shares.values()),
            session_entry_bytes=sum(share.session_response_bytes for share in shares.values()) - records,
            session_record_bytes=records,
            session_size=steady.table.size,
            request=steady.lists.fetch(self.last.request),
            run=self._fetches,
        )

    def _bring_up_to_date(self) -> None:
        """Bring what no fetch of the run needed to the state after the last one."""
        steady, other, table = self._steady, self._steady.other, self._steady.table
        answered = np.array([*self._answered], np.intp)
        entries = table.cached_entries[answered]
        steady.broker.note_offsets(answered, entries)
        if other is None:
            return
        rows = [other.rows[row] for row in self._answered]
        other.broker.note_offsets(np.array(rows, np.intp), entries)
        item = steady.layout.request_entry
        for row in self._altered:
            other.table.alter_row(other.rows[row], bytes(table.request_bytes[row * item : (row + 1) * item]))

    def _topics(self) -> dict[bytes, TopicShare]:
        """Return the figures of each topic, in the order of the first fetch."""
        steady = self._steady
        found = dict[bytes, TopicShare]()
        for (key, count), times in self._listed.items():
            share = found[key] = self._shares[key]
            share.partitions_requested += times * count
            share.partitions_answered += times * count
            share.request_bytes += times * listing_size(steady.layout, key, count)
            share.response_bytes += times * steady.full_element(key, count)
        return found


def _alter(table: PartitionTable, altered: Sequence[tuple[int, bytes]]) -> None:
    for row, entry in altered:
        table.alter_row(row, entry)


def _in_order(table: PartitionTable, broker: CapturedBroker, rows: Sequence[int]) -> Elements:
    """Return the topic elements in which a broker's session sends the entries of these rows."""
    ordered = groupby(broker.in_order(rows), table.topic.item)
    return [(table.key(number), [*part]) for number, part in ordered]


def _shape(elements: Elements) -> list[tuple[bytes, int]]:
    return sorted((key, len(part)) for key, part in elements)
