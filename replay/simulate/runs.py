"""Runs of fetches in a steady session of the gateway, added one after the other. Sans-IO.

A session is steady when the core has nothing to decide for the next fetch (`Fetches.steady`). Most fetches of
a capture are like this: they list the session's partitions, a few with other offsets, and few entries of the
response are new. Their bytes are compared with the session's table. The core's own functions then change the
session as they do for the gateway's fast path, so a run leaves the state that single fetches leave.

What is not fully understood here is no part of a run. The core processes it, as it processes all fetches with
``FETCHGATE_REPLAY=plain``.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from proxy.core.events import FetchKind
from proxy.core.fetches import Fetches
from proxy.core.plans import FetchTemplate
from proxy.core.sent_fetch import STREAM_FROM
from proxy.protocol.api import LENGTH_BYTES, RESPONSE_START_BYTES
from proxy.protocol.fetch_layout import ERROR_CODE, HIGH_WATERMARK, LAST_STABLE_OFFSET, LOG_START_OFFSET
from proxy.protocol.fetch_response import response_head
from proxy.protocol.primitives import ProtocolError, read_uvarint
from proxy.session.partitions import PartitionTable
from proxy.session.rotation import Rotation
from replay.capture.kafka.exchange import Exchange
from replay.simulate.captured_broker import SESSION_ID, CapturedBroker, NewEntry
from replay.simulate.outcome import Outcome, RunFetches, TopicShare, head_size, topic_name

TakesNews: TypeAlias = Callable[[PartitionTable], bool]
_SECOND: Final = 1_000_000_000


class RunStep(NamedTuple):
    """A fetch of a run, and what becomes of it."""

    altered: list[tuple[int, bytes]]
    """The changed entries of the fetch, each with its row."""
    news: list[NewEntry]
    sent: int
    """The size of the incremental request."""
    got: int
    """The size of its response."""


class SteadySession:
    """What the fetches of a steady session of one topic are compared with."""

    def __init__(
        self, fetches: Fetches, template: FetchTemplate, rotation: Rotation, broker: CapturedBroker
    ) -> None:
        self.fetches, self.template, self.rotation, self.broker = fetches, template, rotation, broker
        table = self.table = rotation.table
        layout = self.layout = table.layout
        self.key = template.request.topics.keys[0]
        self._tail = b"\0\0" if layout.flexible else b""
        """The empty tags of the topic element and of the body."""
        self.tail = len(self._tail) // 2
        """The size of one of them."""
        self._head = response_head(layout, b"", 0) + layout.count(1) + layout.prefix(self.key, table.size)
        self._no_records = layout.empty_ends[1 if table.isolation_level else 0]
        self._with_records = self._no_records[: layout.response_records - layout.aborted]
        head = response_head(layout, bytes(4), 0, SESSION_ID) + layout.count(1)
        self._head_sent = LENGTH_BYTES + len(head)

    def step(self, request: bytes, response: bytes) -> RunStep | None:
        """Return what becomes of the next fetch. None if the core has to decide. This changes nothing."""
        rotation, session = self.rotation, self.fetches.session
        if not self.template.surrounds(request):
            return None
        first = rotation.first(request)
        altered = rotation.altered(request, first) if first >= 0 else None
        news = self._news(response, first) if altered is not None else None
        if altered is None or news is None:
            return None
        sent = len(rotation.delta(request, altered, session.pair))
        return RunStep(altered, news, sent, self.received(news))

    def costs(self, request: bytes, response: bytes, request_time: int) -> Sequence[int]:
        """Return what the next fetch costs in a run, as `costs_of` does. () if it may be part of none."""
        if request_time / _SECOND >= self.fetches.check_at:
            return ()
        step = self.step(request, response)
        return () if step is None else (step.sent, step.got, len(step.altered), len(step.news))

    def received(self, news: list[NewEntry]) -> int:
        """Return the size of an incremental response."""
        return self._head_sent + self.element(news) + self.tail

    def element(self, news: list[NewEntry]) -> int:
        """Return the size of the topic element in an incremental response."""
        if not news:
            return 0
        entries = sum(entry.end - entry.start for entry in news)
        return self.layout.prefix_size(self.key, len(news)) + entries + self.tail

    def listing(self, count: int) -> int:
        """Return the size of the topic element in a request that lists so many partitions."""
        size = self.layout.prefix_size(self.key, count) + count * self.layout.request_entry
        return size + self.tail if count else 0

    def _news(self, frame: bytes, first: int) -> list[NewEntry] | None:
        """Return the entries of a full response that differ from the table. None if it may have other news.

        The entries are in the order of the fetch, which begins at the row `first`.
        """
        end = len(frame) - len(self._tail)
        if not (frame.startswith(self._head, RESPONSE_START_BYTES) and frame.endswith(self._tail)):
            return None
        found: list[NewEntry] = []
        at, item = RESPONSE_START_BYTES + len(self._head), self.layout.response_entry
        for begin, stop in ((first, self.table.size), (0, first)):
            row = begin
            while row < stop:
                alike = self._alike(frame, at, row, stop)
                at, row = at + alike * item, row + alike
                if row < stop:
                    entry = self._entry(frame, at, row)
                    if entry is None:
                        return None
                    found.append(entry)
                    at, row = entry.end, row + 1
        return found if at == end else None

    def _alike(self, frame: bytes, at: int, row: int, stop: int) -> int:
        """Return how many entries from `at` on are those of the table, from `row` to before `stop`."""
        cached, item = self.table.cached_bytes, self.layout.response_entry
        if frame.startswith(cached[row * item : stop * item], at):
            return stop - row
        alike, different = 0, stop - row
        # So many are alike, and among so many is a different one.
        while different - alike > 1:
            middle = (alike + different) // 2
            if frame.startswith(cached[(row + alike) * item : (row + middle) * item], at + alike * item):
                alike = middle
            else:
                different = middle
        return alike

    def _entry(self, frame: bytes, at: int, row: int) -> NewEntry | None:
        """Read an entry that differs from the table's. None if a broker's session would not send it so."""
        layout, cached = self.layout, self.table.cached_bytes
        known = bytes(cached[row * layout.response_entry : row * layout.response_entry + layout.aborted])
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
    response of such a fetch. Then the run ends before it.
    """

    def __init__(self, steady: SteadySession, takes_news: TakesNews) -> None:
        self._steady, self._takes_news = steady, takes_news
        self._news_taken = False
        self._over = False
        self._frame = b""
        self._fetches = RunFetches()
        self._sent = self._full = 0
        self._altered = self._included = self._with_records = 0
        self._listing = self._element = self._entries = 0

    def __len__(self) -> int:
        return len(self._fetches.actual)

    def __repr__(self) -> str:
        return f"<SessionRun fetches={len(self)}>"

    def add(self, request: bytes, response: bytes, request_time: int, response_time: int) -> bool:
        """Add a fetch whose response came before anything else. Return False if it is no part of the run."""
        if self._over:
            return False
        step = self._steady.step(request, response)
        if step is None or not self._apply(step, len(request), response, request_time / _SECOND):
            return False
        records = sum(entry.records for entry in step.news)
        self._frame = request
        fetches = self._fetches
        fetches.request_times.append(request_time)
        fetches.response_times.append(response_time)
        fetches.actual.append(len(request) + len(response))
        fetches.predicted.append(step.sent + step.got)
        fetches.records.append(records)
        self._full += len(response)
        self._sent += step.sent
        if step.altered:
            self._altered += len(step.altered)
            self._listing += self._steady.listing(len(step.altered))
        if step.news:
            self._included += len(step.news)
            self._element += self._steady.element(step.news)
            with_records = [entry for entry in step.news if entry.records]
            self._with_records += len(with_records)
            self._entries += sum(entry.end - entry.start for entry in with_records) - records
        return True

    def _apply(self, step: RunStep, size: int, response: bytes, now: float) -> bool:
        """Bring gateway and broker to the state after a fetch.

        Return False, with nothing changed, if the core has more to do.
        """
        steady, fetches = self._steady, self._steady.fetches
        table, rotation, item = steady.table, steady.rotation, steady.layout.request_entry
        news, filled = step.news, [entry.row for entry in step.news if entry.records]
        if news and not (self._news_taken or self._takes_news(table)):
            return False
        before = [(row, bytes(table.request_bytes[row * item : (row + 1) * item])) for row, _ in step.altered]
        rotation.apply(step.altered)
        leaves_out = bool(filled) and self._leaves_out(step, response)
        if leaves_out or (now >= fetches.check_at and not fetches.look_quietly(now)):
            rotation.apply(before)
            return False
        self._news_taken = bool(news) or self._news_taken
        if not len(self):
            fetches.state.plans.forget_fetch()
        fetches.session.ask_rotated(())
        for entry in news:
            table.describe(entry.row, response[entry.start : entry.start + steady.layout.aborted])
        rotation.suspect(filled)
        fetches.session.continue_session()
        saved = size - step.sent + len(response) - step.got
        rests = fetches.eligibility.savings.answered(saved, len(news))
        fetches.unused = 0 if saved > 0 else fetches.unused
        large = fetches.eligibility.large = step.got >= STREAM_FROM
        self._over = rests or large
        steady.broker.sent(response, news)
        return True

    def _leaves_out(self, step: RunStep, response: bytes) -> bool:
        """Return whether the response has no records of a partition of which the client may read some."""
        table, layout = self._steady.table, self._steady.layout
        rows, _ = table.unread()
        if set(rows.tolist()).difference([entry.row for entry in step.news]):
            return True
        end = LAST_STABLE_OFFSET if table.isolation_level else HIGH_WATERMARK
        for row, start, _, records in step.news:
            at = row * layout.request_entry + layout.request_offset
            # Offsets that are not negative have the order of their bytes.
            if not records and response[start:][end] > bytes(table.request_bytes[at : at + 8]):
                return True
        return False

    def finish(self, exchange: Exchange) -> Outcome:
        """Count the fetches in the core's tally, and return their sums.

        The exchange stands for all of them. Its sizes are sums.
        """
        steady, times, sent = self._steady, len(self), self._sent
        count, request = steady.table.size, steady.template.request
        got, records, requested = (
            sum(self._fetches.predicted) - sent,
            sum(self._fetches.records),
            times * count,
        )
        tally, size = steady.fetches.state.tally, times * steady.template.size
        tally.client.add_fetches(FetchKind.SESSIONLESS, size, requested, times=times)
        tally.client.fetch_response_bytes += self._full
        tally.client.add_responses(requested, records)
        tally.broker.add_fetches(FetchKind.INCREMENTAL, sent, self._altered, times=times)
        tally.broker.fetch_response_bytes += got
        tally.broker.add_responses(self._included, records)
        listing = times * steady.listing(count)
        around = head_size(steady.layout) + steady.tail
        share = TopicShare(
            partitions_requested=requested,
            partitions_answered=requested,
            request_bytes=listing,
            response_bytes=self._full - times * around,
            record_bytes=records,
            session_request_bytes=self._listing,
            session_response_bytes=self._element,
            session_partitions_requested=self._altered,
            session_partitions_answered=self._included,
        )
        outcome = Outcome(
            exchange,
            kind="sessionless",
            partitions_requested=requested,
            partitions_answered=requested,
            record_bytes=records,
            listing_bytes=listing,
            empty_entry_bytes=(requested - self._with_records) * steady.layout.response_entry,
            entry_bytes=self._entries,
            eligible=True,
            session_kind="incremental",
            session_request_bytes=sent,
            session_response_bytes=got,
            incremental=times,
            altered=self._altered,
            session_partitions_requested=self._altered,
            session_partitions_answered=self._included,
            session_listing_bytes=self._listing,
            session_entry_bytes=self._element - records,
            session_record_bytes=records,
            session_size=count,
            request=request.with_frame(self._frame),
            run=self._fetches,
        )
        outcome.topics[topic_name(steady.key, steady.layout)] = share
        return outcome
