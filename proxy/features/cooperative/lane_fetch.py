"""A member's fetch: the request to the broker, and the member's part of the response. Sans-IO.

This is for Fetch v4 to v12. Later versions name topics by id, and are not offered to a client with a lane.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from operator import itemgetter
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from proxy.features.cooperative.batches import BatchError
from proxy.features.cooperative.filtered import Filtered, LaneRecords, Scan, end_of, split_records
from proxy.features.cooperative.member import Member
from proxy.features.cooperative.members import Members
from proxy.features.cooperative.positions import TopicPartition
from proxy.features.cooperative.ranges import Split
from proxy.features.cooperative.responses import Reply, Send
from proxy.features.cooperative.shared_fetch import Key, Share, Subscriber, within_limit
from proxy.features.cooperative.tally import FilterTally
from proxy.protocol.api import LENGTH_BYTES, REQUEST_CORRELATION_ID, ErrorCode
from proxy.protocol.fetch_layout import (
    ABORTED_BYTES,
    ERROR_CODE,
    HIGH_WATERMARK,
    SESSION_VERSION,
    FetchLayout,
)
from proxy.protocol.fetch_request import SESSIONLESS_EPOCH, FetchRequest, Topics
from proxy.protocol.fetch_response import FetchResponseWalk, PartitionResponse, response_head
from proxy.protocol.primitives import NO_TAGS, Buffer, Malformed, encode_uvarint, read_count, read_uvarint

_PLACEHOLDERS_SINCE: Final = 12
"""The lowest Fetch version whose responses get batches without data. Clients of older versions do not accept
batches without data, or were not tested."""
_SCANNED_LIMITS: Final = 8
"""How many bytes the broker may send for one fetch, in multiples of max_bytes, while none of the records
belongs to the member. After that, the member gets an empty response."""
_LOG_STARTS_SINCE: Final = 5
_EPOCHS_SINCE: Final = 9
_REPLICAS_SINCE: Final = 11
_NOWHERE: Final = (-1).to_bytes(8, signed=True)
HELD_SECONDS: Final = 0.25
"""The least delay of a fetch response that has only errors made by the gateway, in seconds. Some clients
retry at once. With the delay they send fewer than five fetches a second, even if their max_wait_ms is
shorter."""
_UNSPLIT: Final = 44
"""POLICY_VIOLATION: a batch can't be split by lane, so it must not go to a member."""


_Edit: TypeAlias = tuple[int, int, list[Buffer]]
"""A change to a response: start and end of the bytes to replace, and the new bytes."""


class Verdict(Enum):
    """What to do after a response to a member's fetch."""

    SEND = "send"
    """Send the response to the client now."""
    GO_ON = "go on"
    """The response has no record for the member, or an error that may concern only a later offset than the
    member's. Fetch again, from the next offsets or from the member's own."""
    WAIT = "wait"
    """Records were withheld from the member, and the response has nothing else for it. Send the response at
    `LaneFetch.refuse_at`. If it came at once, some clients would retry hundreds of times a second."""


class LaneFetch:
    """One fetch of a member, from the request until the member has its response.

    Raises:
        Malformed: the request is not a consumer's fetch.
        TooMany: the member has fetched from too many partitions.
    """

    __slots__ = (
        "_asked",
        "_began",
        "_closing",
        "_epoch",
        "_fetch",
        "_goes_on",
        "_kept",
        "_member",
        "_members",
        "_own",
        "_refused",
        "_scanned",
        "_send",
        "_subscriber",
        "failed",
        "offsets",
        "refuse_at",
        "wait_until",
        "waits",
    )

    def __init__(
        self,
        fetch: FetchRequest,
        member: Member,
        subscriber: Subscriber,
        members: Members,
        send: Send,
        now: float,
    ) -> None:
        if fetch.unsupported_reason:
            raise Malformed(f"the fetch is not from a plain consumer: {fetch.unsupported_reason}")
        self._fetch, self._members, self._send = fetch, members, send
        self.waits = False
        """Whether the fetch is parked: another member's fetch at the broker will bring its records."""
        self._closing = False
        """Whether the connection is closing, so that the member gets the next response in any case."""
        self._member = member
        self._subscriber = subscriber
        self._began = now
        self._epoch = member.presence.epoch
        self.wait_until = now + max(fetch.max_wait_ms, 0) / 1e3
        """The time at which the client must have a response, in seconds: its `max_wait_ms` is over then."""
        self.refuse_at = max(self.wait_until, now + HELD_SECONDS)
        """The time from which on the client may get an error made by the gateway, in seconds."""
        self._scanned = 0
        """How many bytes of records the broker has sent for this fetch, and for the shares that it used."""
        self.offsets: dict[TopicPartition, int] = {}
        """The member's own fetch offset of each partition."""
        for topic, entries in _elements(fetch.topics, fetch.frame):
            for partition, offset in zip(
                entries["partition"].tolist(), entries["offset"].tolist(), strict=True
            ):
                self.offsets[topic, partition] = offset
        member.fetches(self.offsets.items(), now)
        self._goes_on = member.goes_on(self.offsets)
        """Whether the member has requested the committed offsets of all partitions of the fetch (see
        `Progress.jumped`)."""
        self.failed: set[TopicPartition] = set()
        """The partitions whose entry has an error, or names another broker. Their log may have changed."""
        self._asked: set[TopicPartition] = set()
        """The partitions that the gateway requests from a later offset than the member did."""
        self._own: set[TopicPartition] = set()
        """The partitions to request from the member's own offset, because a later offset got an error."""
        self._kept = self._refused = False
        """Whether the last response has something for the member (`_kept`), and whether records were withheld
        from the member (`_refused`)."""

    def _wants(self) -> dict[Key, int] | None:
        """Return the offsets to fetch from, by what other fetches must have in common. None: not shared."""
        fetch, member = self._fetch, self._member
        if self._own or len(self.offsets) < fetch.partitions:
            return None
        found: dict[Key, int] = {}
        limits = fetch.min_bytes, fetch.max_bytes, fetch.isolation_level
        for topic, entries in _elements(fetch.topics, fetch.frame):
            known = fetch.layout.version >= _EPOCHS_SINCE
            epochs = entries["epoch"].tolist() if known else [-1] * len(entries)
            columns = [entries[name].tolist() for name in ("partition", "offset", "max_bytes")]
            for partition, offset, limit, epoch in zip(*columns, epochs, strict=True):
                place = topic, partition
                key = Key(place, member.group, self._subscriber.broker, limits, limit, epoch)
                found[key] = member.at(place).scan.after(offset)
        return found

    def go(self, now: float) -> Reply | None:
        """Take records from other members' fetches, wait for another member's fetch, or send this fetch.

        Return the client's response, or None if there is none yet.
        """
        self.waits = False
        while (shares := self._find(now)) is not None:
            if not shares:
                self.waits = True
                return None
            verdict, pieces = self._served(within_limit(shares, self._fetch.max_bytes), now)
            if verdict is Verdict.SEND:
                return Reply(pieces)
        self._send(self._request(now), self.response)
        return None

    def response(self, frame: bytes, now: float) -> Reply | None:
        """Process the broker's response. Return the client's, or None if the fetch goes on or is parked.

        Raises:
            ProtocolError: the frame is not a response of this version, or has partitions that were not
                requested.
        """
        verdict, pieces = self._judged(frame, now)
        waiting = self._subscriber.arrived()
        if (group := self._members.group(self._member.group)) is not None:
            group.forget(self.failed)
        if verdict is Verdict.GO_ON:
            reply = self.go(now)
        else:
            reply = Reply(pieces, self.refuse_at if verdict is Verdict.WAIT else 0.0)
        for subscriber in waiting:
            subscriber.wake(now)
        return reply

    def close(self, now: float) -> None:
        """Send a parked fetch now, so that the client gets a response before its connection closes."""
        self._closing = True
        if self.waits:
            self.waits = False
            self._subscriber.goes(now)
            self._send(self._request(self.wait_until), self.response)  # with a wait of 0 ms at the broker

    def end(self, now: float) -> None:
        """Do nothing when the connection has ended."""

    def _find(self, now: float) -> dict[TopicPartition, Share] | None:
        gets = self._gets(now)  # if not, the broker is asked, and the member gets no records
        return self._subscriber.find(self._member, self._wants() if gets else None, self.wait_until, now)

    def _gets(self, now: float) -> bool:
        return self._goes_on and self._member.presence.gets(self._epoch, now)

    def _request(self, now: float) -> bytes:
        fetch = self._fetch
        frame = bytearray(fetch.frame)
        layout = fetch.layout
        if layout.version >= SESSION_VERSION:
            at = fetch.body + layout.request_session
            frame[at : at + 8] = bytes(4) + SESSIONLESS_EPOCH.to_bytes(4, signed=True)
        wait = max(round((self.wait_until - now) * 1e3), 0) if now > self._began else fetch.max_wait_ms
        at = fetch.body + layout.request_limits
        frame[at : at + 4] = wait.to_bytes(4, signed=True)
        self._asked.clear()
        if not self._gets(now):  # the member must not be moved past records
            return bytes(frame)
        for topic, entries in _elements(fetch.topics, frame):
            for index, (partition, offset) in enumerate(
                zip(entries["partition"].tolist(), entries["offset"].tolist(), strict=True)
            ):
                place = topic, partition
                scan = self._member.at(place).scan
                if place not in self._own and (after := scan.after(offset)) != offset:
                    entries["offset"][index] = after
                    if layout.flexible and entries["last_epoch"][index] >= 0:
                        entries["last_epoch"][index] = scan.leader_epoch
                    self._asked.add(place)
                    self._member.tally.skipped_offsets += after - offset
        return bytes(frame)

    def _judged(self, frame: bytes, now: float) -> tuple[Verdict, list[Buffer]]:
        """Return what to do with a complete response, and the member's part of it."""
        fetch, tally = self._fetch, self._member.tally
        walk = FetchResponseWalk(fetch.layout, fetch.isolation_level, keep=True, spans=True)
        walk.feed(frame)
        if not walk.done:
            raise Malformed("a fetch response with bytes after its end")
        if self._forget_failed(walk.entries):
            return (Verdict.SEND if self._closing else Verdict.GO_ON), []
        self._scanned += walk.record_bytes
        tally.upstream_bytes += walk.record_bytes
        self._note(walk)
        self._kept, self._refused = self._closing, False
        edits = [*self._filtered(frame, walk, now), *(self._placeholders(walk) if self._gets(now) else ())]
        edits.sort(key=itemgetter(0))
        view, at = memoryview(frame), LENGTH_BYTES
        pieces: list[Buffer] = []
        for start, end, new in edits:
            pieces += [view[at:start], *new]
            at = end
        pieces.append(view[at:])
        return self._verdict(walk, now), [sum(map(len, pieces)).to_bytes(4), *pieces]

    def _filtered(self, frame: bytes, walk: FetchResponseWalk, now: float) -> Iterator[_Edit]:
        """Yield the changes that leave only the member's records in the entries with records."""
        member, view = self._member, memoryview(frame)
        spans = iter(walk.record_spans or ())
        gets = self._gets(now)
        for entry in walk.entries:
            self._kept = self._kept or bool(entry.error_code) or entry.redirects
            if entry.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                member.tracked((entry.key, entry.partition)).resets()
            if not entry.records:
                continue
            start, end = next(spans)
            begin = start - len(self._length(end - start))
            offset, place = self._offset(entry), (entry.key, entry.partition)
            if not gets or not member.has(place):
                self._refused = True
                yield begin, end, [self._length(0)]
                continue
            progress = member.tracked(place)
            progress.end = int.from_bytes(entry.fixed[HIGH_WATERMARK], signed=True)
            split = member.lane(place, offset)
            if split is None:
                self._kept = True
                progress.sends(end_of(view[start:end]))
                continue
            try:
                found = self._split(frame, entry, view[start:end], split, now)
            except BatchError:
                self._refused = True
                member.tally.refused[_UNSPLIT] += 1
                at = entry.start + ERROR_CODE.start
                yield at, at + 2, [_UNSPLIT.to_bytes(2)]
                yield begin, end, [self._length(0)]
                continue
            batches = self._batches(place, offset, found)
            self._refused = self._refused or place in self._own  # such records would only be requested again
            yield begin, end, [self._length(sum(map(len, batches))), *batches]

    def _split(
        self,
        frame: bytes,
        entry: PartitionResponse,
        records: Buffer,
        split: tuple[Split, list[int]],
        now: float,
    ) -> Filtered:
        """Split the records of an entry for all members that share it. Return the member's part."""
        subscriber, offset, found = self._subscriber, self._offset(entry), None
        if (shared := subscriber.fetching.get((entry.key, entry.partition))) is not None:
            aborted = _aborted(frame, entry, self._fetch.layout) if self._fetch.isolation_level else ()
            found = shared.split(subscriber, self._member, records, offset, aborted, now)
        return split_records(records, *split, [offset]) if found is None else found

    def _batches(self, place: TopicPartition, offset: int, found: Filtered) -> list[bytes]:
        """Return the member's batches of a partition, and note the last offset that the member has got."""
        member, lane = self._member, found.lanes[0]
        progress = member.tracked(place)
        progress.scan = progress.scan.learned(offset, found, lane)
        progress.sends(found.end)
        _count(member.tally, found, lane)
        if lane.last_kept >= 0:
            progress.delivered = lane.last_kept
        batches = [*lane.batches, found.alone] if found.alone else lane.batches
        self._kept = self._kept or bool(batches)
        if empty := self._placeholder(progress.scan, max(offset, lane.end)):
            batches = [*batches, empty]
        return batches

    def _note(self, walk: FetchResponseWalk) -> None:
        """Note the watermarks and log start of shared partitions in a response, for all members."""
        shared = self._subscriber.fetching
        if not shared:
            return
        layout = self._fetch.layout
        state = slice(HIGH_WATERMARK.start, layout.aborted)
        for entry in walk.entries:
            if (entry.key, entry.partition) in shared and not (entry.error_code or entry.redirects):
                shared[entry.key, entry.partition].note(entry.fixed[state])
        for run in walk.runs:
            numbers = run.entries.view(layout.response_fields)["partition"].tolist()
            for number, item in zip(numbers, run.entries.tolist(), strict=True):
                if (run.key, number) in shared:
                    shared[run.key, number].note(item[state])

    def _served(self, shares: Mapping[TopicPartition, Share], now: float) -> tuple[Verdict, list[Buffer]]:
        """Build a response from shares of others' fetches. A partition without a share gets no records."""
        self._kept = self._refused = False
        pieces = _response(self._fetch, lambda place: self._shared(place, shares.get(place)))
        verdict = Verdict.SEND
        if not (self._kept or now >= self.wait_until or self._scanned_enough):
            verdict = Verdict.GO_ON
        return verdict, pieces

    def _shared(self, place: TopicPartition, share: Share | None) -> list[Buffer]:
        """Return the bytes of an entry after the partition, with the records of a share."""
        offset, aborted = self.offsets[place], () if share is None else share.aborted
        if share is not None:
            batches = self._batches(place, offset, share.found)
            self._scanned += share.fetched
        else:
            empty = self._placeholder(self._member.at(place).scan, offset)
            batches = [empty] if empty else []
        end = NO_TAGS if self._fetch.layout.flexible else b""
        head = [bytes(2), self._state(place), self._aborted(aborted), self._length(sum(map(len, batches)))]
        return [*head, *batches, end]

    def _state(self, place: TopicPartition) -> bytes:
        """Return high_watermark, last_stable_offset and log_start_offset (if the version has it) as bytes."""
        size = self._fetch.layout.aborted - HIGH_WATERMARK.start
        return (self._subscriber.state(place) + _NOWHERE)[:size]

    def _aborted(self, aborted: Sequence[bytes]) -> bytes:
        """Return the bytes of the fields aborted_transactions and preferred_read_replica."""
        layout = self._fetch.layout
        tags = NO_TAGS if layout.flexible else b""
        replica = b"\xff\xff\xff\xff" if layout.version >= _REPLICAS_SINCE else b""
        if not self._fetch.isolation_level:
            return (b"\x00" if layout.flexible else b"\xff\xff\xff\xff") + replica
        return b"".join((layout.count(len(aborted)), *(each + tags for each in aborted), replica))

    def _placeholders(self, walk: FetchResponseWalk) -> Iterator[_Edit]:
        """For each empty entry with skipped offsets, yield the change that adds a batch without data."""
        if self._fetch.layout.version < _PLACEHOLDERS_SINCE or not self._asked:
            return
        layout = self._fetch.layout
        ends = {(entry.key, entry.partition): entry.end for entry in walk.entries if entry.ends_empty}
        for run in walk.runs:
            numbers = run.entries.view(layout.response_fields)["partition"].tolist()
            for count, number in enumerate(numbers, 1):
                ends[run.key, number] = run.start + count * layout.response_entry
        for place in self._asked:
            end = ends.get(place)
            if end is None:
                continue
            if empty := self._placeholder(self._member.at(place).scan, self.offsets[place]):
                # The entry ends with its empty records and its tags, a byte each.
                yield end - 2, end - 1, [self._length(len(empty)), empty]

    def _placeholder(self, scan: Scan, offset: int) -> bytes:
        if self._fetch.layout.version < _PLACEHOLDERS_SINCE:
            return b""
        empty = scan.placeholder(offset)
        self._member.tally.batches["placeholder"] += bool(empty)
        return empty

    def _verdict(self, walk: FetchResponseWalk, now: float) -> Verdict:
        if self._kept or now >= self.wait_until or walk.throttle_time_ms or walk.error_code:
            return Verdict.SEND
        if self._refused:
            return Verdict.WAIT
        return Verdict.GO_ON if walk.record_bytes and not self._scanned_enough else Verdict.SEND

    @property
    def _scanned_enough(self) -> bool:
        return self._scanned >= _SCANNED_LIMITS * max(self._fetch.max_bytes, 1)

    def _forget_failed(self, entries: list[PartitionResponse]) -> bool:
        """Note partitions with an error or a redirect. Return whether to request the member's own offsets."""
        due = False
        for entry in entries:
            if entry.error_code or entry.redirects:
                place = entry.key, entry.partition
                self.failed.add(place)
                self._member.at(place).forget()
                if (shared := self._subscriber.fetching.get(place)) is not None:
                    shared.forget()
                # The gateway had requested a later offset than the member: the error may concern only this.
                if place in self._asked:
                    self._own.add(place)
                    due = True
        return due

    def _offset(self, entry: PartitionResponse) -> int:
        try:
            return self.offsets[entry.key, entry.partition]
        except KeyError:
            raise Malformed("a fetch response with a partition that was not asked for") from None

    def _length(self, size: int) -> bytes:
        return encode_uvarint(size + 1) if self._fetch.layout.flexible else size.to_bytes(4)


def refusal(fetch: FetchRequest, code: int) -> bytes:
    """Return a response that has this error for each partition of a fetch."""
    layout = fetch.layout
    fixed = code.to_bytes(2) + _NOWHERE * (3 if layout.version >= _LOG_STARTS_SINCE else 2)
    entry: list[Buffer] = [fixed + layout.empty_ends[0]]
    return b"".join(_response(fetch, lambda _: entry))


def _response(fetch: FetchRequest, entry: Callable[[TopicPartition], list[Buffer]]) -> list[Buffer]:
    """Return a response with an entry for each partition of a fetch: its number, and what `entry` returns."""
    layout = fetch.layout
    end = NO_TAGS if layout.flexible else b""
    elements = list(_elements(fetch.topics, fetch.frame))
    content: list[Buffer] = [response_head(layout, fetch.frame[REQUEST_CORRELATION_ID], 0)]
    content.append(layout.count(len(elements)))
    for topic, entries in elements:
        content.append(layout.prefix(topic, len(entries)))
        for partition in entries["partition"].tolist():
            content += [partition.to_bytes(4), *entry((topic, partition))]
        content.append(end)
    content.append(end)
    return [sum(map(len, content)).to_bytes(4), *content]


def _aborted(frame: bytes, entry: PartitionResponse, layout: FetchLayout) -> list[bytes]:
    """Return the aborted transactions of an entry in wire format, without tags."""
    at = entry.start + layout.aborted
    if layout.flexible:
        count, at = read_uvarint(frame, at)
        count, size = max(count - 1, 0), ABORTED_BYTES + 1
    else:
        listed, at = read_count(frame, at)
        count, size = listed or 0, ABORTED_BYTES
    return [frame[place : place + ABORTED_BYTES] for place in range(at, at + count * size, size)]


def _elements(topics: Topics, frame: Buffer) -> Iterator[tuple[bytes, npt.NDArray[Any]]]:
    """Yield each topic element of a fetch: the topic, and its partitions as an array over the frame's bytes.

    `Topics.keys` joins neighbouring elements of the same topic. Here each element is separate.
    """
    fields = topics.layout.request_fields
    if topics.element:
        at, count = topics.blocks[0]
        for number, key in enumerate(topics.keys):
            yield key, np.frombuffer(frame, fields, count, at + number * topics.element)
        return
    blocks = iter(topics.blocks)
    for key, count in zip(topics.keys, topics.counts, strict=True):
        left = count
        while left:
            at, some = next(blocks)
            yield key, np.frombuffer(frame, fields, some, at)
            left -= some


def _count(tally: FilterTally, found: Filtered, lane: LaneRecords) -> None:
    tally.records["kept"] += lane.records
    tally.records["filtered"] += found.records - lane.records
    tally.batches["untouched"] += lane.untouched
    tally.batches["thinned"] += len(lane.batches) - lane.untouched
    tally.batches["dropped"] += found.batches - len(lane.batches)
    tally.client_bytes += sum(map(len, lane.batches))
