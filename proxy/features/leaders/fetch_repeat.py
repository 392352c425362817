"""A fetch that the gateway sends again to a partition's new leader. Sans-IO."""

from collections.abc import Sequence
from contextlib import suppress
from struct import Struct
from typing import Final

from proxy.core.asking.repeat import CORRELATION_ID, MAX_BYTES, Failed, Repeat
from proxy.core.asking.siblings import Sibling
from proxy.core.asking.state import Event
from proxy.protocol.api import REQUEST_CORRELATION_ID, REQUEST_START_BYTES, ErrorCode
from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_request import SESSIONLESS_EPOCH, FetchRequest, Listing, build_fetch_request
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.protocol.leader_requests import Place
from proxy.protocol.primitives import ProtocolError, read_string

FIRST_VERSION: Final = 9
"""The first version of Fetch that is retried. Its brokers support the gateway's own requests, too
(`proxy.protocol.leader_requests`)."""
HOLD_SECONDS: Final = 0.1
"""The longest time for which a fetch response is kept back. If the retry fails, the client learns this much
later that the leader has moved."""
WAIT_MS: Final = 75
"""The limit of max_wait_ms in a retried fetch. It slows down a client that asks a former leader again and
again."""
_MARGIN_SECONDS: Final = 0.025
"""How long before the end of `HOLD_SECONDS` the new leader should answer."""
_LIMITS = Struct(">iii")  # max_wait_ms, min_bytes, max_bytes
_EPOCH: Final = slice(4, 8)
"""The bytes of current_leader_epoch in an entry of a request."""


class FetchRepeat(Repeat):
    """The failed partitions of a fetch, which the gateway fetches again from their new leaders.

    Raises:
        ProtocolError: the response does not match its schema.
    """

    name = "fetch"
    seconds = HOLD_SECONDS
    beyond = 0.9
    """The time for which the client's own fetch at the new leader may block the retry, at worst. While
    records arrive, it seldom blocks."""

    def __init__(self, fetch: FetchRequest, frame: bytes) -> None:
        self.frame = frame
        self._fetch = fetch
        walk = FetchResponseWalk(LAYOUTS[fetch.layout.version], fetch.isolation_level, keep=True)
        walk.feed(frame)
        listing = fetch.listing
        self.failed = _failed(walk, listing) if listing is not None and walk.done else {}
        self._record_bytes = walk.record_bytes
        self.client_id = read_string(fetch.frame, REQUEST_START_BYTES)[0] or b""
        self.by_id = fetch.layout.topic_ids

    def wait(self, seconds: float) -> float:
        if self._record_bytes:  # what the client has got must not wait
            return 0.0
        # Nor must what it sends behind a repeat that comes too late.
        return min(max(self._fetch.max_wait_ms, 0), WAIT_MS, max(seconds - _MARGIN_SECONDS, 0) * 1e3) / 1e3

    def ask(self, failed: Sequence[Failed], wait: float) -> bytes:
        """Return a fetch of the failed partitions, without a session, for the new leader.

        It has the new leader's epoch where the client's fetch has an epoch, and lower limits if needed.
        """
        fetch = self._fetch
        layout = fetch.layout
        by_topic: dict[bytes, list[bytes]] = {}
        for each in failed:
            fields = each.fields
            if each.epoch >= 0 and each.leader is not None:
                epoch = each.leader.leader_epoch.to_bytes(4, signed=True)
                fields = fields[: _EPOCH.start] + epoch + fields[_EPOCH.stop :]
            by_topic.setdefault(each.place[0], []).append(fields)
        topics = ((key, b"".join(entries)) for key, entries in by_topic.items())
        frame = bytearray(build_fetch_request(fetch, layout, (0, SESSIONLESS_EPOCH), topics))
        frame[REQUEST_CORRELATION_ID] = CORRELATION_ID.to_bytes(4)
        at = fetch.body + layout.request_limits
        _, min_bytes, max_bytes = _LIMITS.unpack_from(frame, at)
        room = max(min(max_bytes - self._record_bytes, MAX_BYTES), 1)
        _LIMITS.pack_into(frame, at, int(wait * 1e3 + 0.5), min(min_bytes, 1), room)
        return bytes(frame)

    def read(self, frame: bytes, sibling: Sibling) -> dict[Place, tuple[bytes, int]]:
        walk = FetchResponseWalk(self._fetch.layout, self._fetch.isolation_level, keep=True)
        with suppress(ProtocolError):
            walk.feed(frame)
        sibling.count(walk.partitions, walk.record_bytes)
        entries: dict[Place, tuple[bytes, int]] = {}
        if not walk.done or walk.error_code:
            return entries
        for entry in walk.entries:
            # One that leads the client elsewhere is left out: it is for a request that it has not sent.
            if not (entry.error_code or entry.redirects):
                entries[entry.key, entry.partition] = frame[entry.start : entry.end], entry.records
        for run in walk.runs:
            for item in run.entries:
                data = item.tobytes()
                entries[run.key, int.from_bytes(data[:4])] = data, 0
        return entries

    def settle(self) -> None:
        # The first batch may exceed max_bytes (KIP-74).
        most = self._fetch.max_bytes
        got = self._record_bytes
        for each in self.failed.values():
            if got and each.record_bytes and got + each.record_bytes > most:
                each.on(Event.NO_ROOM)
                each.record_bytes = 0
            got += each.record_bytes


def _failed(walk: FetchResponseWalk, listing: Listing) -> dict[Place, Failed]:
    errors = {
        (entry.key, entry.partition): entry
        for entry in walk.entries
        if entry.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
    }
    topics = {key for key, _ in errors}
    fields = listing.entries.view(listing.layout.request_fields)
    asked: dict[Place, int] = {}
    done = 0
    for key, count in zip(listing.keys, listing.counts, strict=True):
        if key in topics:
            numbers = fields["partition"][done : done + count].tolist()
            asked.update(((key, number), done + row) for row, number in enumerate(numbers))
        done += count
    return {
        place: Failed(
            place,
            entry.start,
            entry.end,
            listing.entries[asked[place]].tobytes(),
            int(fields["epoch"][asked[place]]),
            int(fields["offset"][asked[place]]),
        )
        for place, entry in errors.items()
        if place in asked
    }
