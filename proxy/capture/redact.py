"""Selects the bytes of a connection that a capture without record contents keeps. Sans-IO.

It keeps the length and header of every frame, and the bodies that have neither records nor credentials
(`KEPT`). Of a fetch response it keeps all but the contents of the `records` fields. It leaves out all that it
does not understand: a capture without contents must have none.
"""

from typing import Final

from proxy.capture.pcap import Piece
from proxy.protocol.api import (
    API_KEY,
    API_VERSION,
    LENGTH_BYTES,
    REQUEST_CORRELATION_ID,
    REQUEST_START_BYTES,
    RESPONSE_CORRELATION_ID,
    RESPONSE_START_BYTES,
    ApiKey,
)
from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.protocol.primitives import ProtocolError

KEPT: Final = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.JOIN_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.API_VERSIONS,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    }
)
"""The API keys whose bodies are kept."""

_MAX_FRAME: Final = 1 << 30
"""No Kafka frame is this long."""
_MIN_LENGTH: Final = 4
_OPAQUE_FROM: Final = (ApiKey.SASL_HANDSHAKE, 0)
"""After this request, tokens are sent without Kafka's framing."""


class Redactor:
    """Both directions of one connection. Bytes come in as they are sent, and leave in pieces."""

    __slots__ = ("_streams",)

    def __init__(self) -> None:
        open_requests: dict[bytes, tuple[int, int]] = {}
        self._streams = (_Requests(open_requests), _Responses(open_requests))

    def redact(self, by: int, data: bytes) -> list[Piece]:
        """Redact the next bytes of one direction; `by` is `pcap.CLIENT` or `pcap.BROKER`."""
        return self._streams[by].feed(data)


class _Stream:
    """One direction: frames, each with a head, which is kept, and a body."""

    __slots__ = ("_head", "_last", "_left", "_opaque", "_open", "_runs", "_to_keep", "_wanted")

    head_size = 0
    """Bytes that decide what is kept of the body."""

    def __init__(self, open_requests: dict[bytes, tuple[int, int]]) -> None:
        self._open = open_requests
        """Open requests whose response may be kept: correlation id -> api_key, api_version."""
        self._head = b""
        self._wanted = LENGTH_BYTES
        self._left = 0
        """Bytes of the body that have not come yet."""
        self._to_keep = 0
        """How many of them are kept. The rest is left out."""
        self._last = False
        """No more frames come after this one."""
        self._opaque = False
        self._runs: list[int] = []
        """Of the current bytes: a number of bytes kept, then a number left out, and so on in turn."""

    def begin(self, head: bytes) -> None:
        """Decide what is kept of the body."""
        raise NotImplementedError

    def body(self, part: bytes) -> None:
        """Sort bytes of the body."""
        kept = min(self._to_keep, len(part))
        self._to_keep -= kept
        self.keep(kept)
        self.leave_out(len(part) - kept)

    def feed(self, data: bytes) -> list[Piece]:
        """Sort the next bytes into those kept and those left out."""
        self._runs = []
        at = 0
        while at < len(data):
            self._opaque = self._opaque or (self._last and not self._left)
            if self._opaque:
                self.leave_out(len(data) - at)
                break
            part = data[at : at + (self._left or self._wanted - len(self._head))]
            at += len(part)
            if self._left:
                self._left -= len(part)
                self.body(part)
            else:
                self.keep(len(part))
                self._head += part
                if len(self._head) == self._wanted:
                    self._head_grown()
        return _pieces(data, self._runs)

    def keep(self, size: int) -> None:
        """Keep bytes."""
        if len(self._runs) % 2:
            self._runs[-1] += size
        elif size:
            self._runs.append(size)

    def leave_out(self, size: int) -> None:
        """Leave bytes out."""
        if not size:
            return
        if len(self._runs) % 2:
            self._runs.append(size)
        elif self._runs:
            self._runs[-1] += size
        else:
            self._runs += (0, size)

    def _head_grown(self) -> None:
        """Go on after the length, or begin the body after the whole head."""
        length = int.from_bytes(self._head[:LENGTH_BYTES])
        if len(self._head) == LENGTH_BYTES:
            self._opaque = not _MIN_LENGTH <= length < _MAX_FRAME
            self._wanted = min(self.head_size, LENGTH_BYTES + length)
            return
        self._left = LENGTH_BYTES + length - len(self._head)
        self.begin(self._head)
        self._head, self._wanted = b"", LENGTH_BYTES


class _Requests(_Stream):
    __slots__ = ()

    head_size = REQUEST_START_BYTES + 2
    """The head ends with the length of client_id."""

    def begin(self, head: bytes) -> None:
        """Keep the body, or only the client id."""
        api_key, version = int.from_bytes(head[API_KEY]), int.from_bytes(head[API_VERSION])
        self._last = (api_key, version) == _OPAQUE_FROM
        if api_key in KEPT:
            self._open[head[REQUEST_CORRELATION_ID]] = api_key, version
            self._to_keep = self._left
        else:  # a response may never come: Produce with acks=0
            self._to_keep = max(int.from_bytes(head[REQUEST_START_BYTES:], signed=True), 0)


class _Responses(_Stream):
    __slots__ = ("_at", "_walk")

    head_size = RESPONSE_START_BYTES
    """The head ends with correlation_id."""

    def __init__(self, open_requests: dict[bytes, tuple[int, int]]) -> None:
        super().__init__(open_requests)
        self._walk: FetchResponseWalk | None = None
        self._at = 0
        """Offset in the frame, while it is walked."""

    def begin(self, head: bytes) -> None:
        """Keep the body, leave it out, or look for records in it."""
        api_key, version = self._open.pop(head[RESPONSE_CORRELATION_ID], (-1, -1))
        self._last = (api_key, version) == _OPAQUE_FROM
        self._walk = None
        self._to_keep = self._left if api_key >= 0 else 0
        if api_key == ApiKey.FETCH:
            self._to_keep = 0
            if version in LAYOUTS:
                self._walk = FetchResponseWalk(LAYOUTS[version], 0, keep=False, spans=True)
                self._walk.feed(head)
                self._at = len(head)

    def body(self, part: bytes) -> None:
        """Sort bytes of the body. Those of a fetch response are walked."""
        if self._walk is None:
            super().body(part)
            return
        try:
            self._walk.feed(part)
        except ProtocolError:
            self._walk = None
            self.leave_out(len(part))
            return
        self._leave_records_out(self._walk, self._at + len(part))

    def _leave_records_out(self, walk: FetchResponseWalk, end: int) -> None:
        """Sort the bytes of the frame up to an offset. Those of records are left out."""
        spans, at, passed = walk.record_spans or [], self._at, 0
        for start, stop in spans:
            if start >= end:
                break
            self.keep(max(start - at, 0))
            at = max(start, at)
            self.leave_out(min(stop, end) - at)
            at = min(stop, end)
            if stop > end:
                break
            passed += 1
        self.keep(end - at)
        del spans[:passed]
        self._at = end


def _pieces(data: bytes, runs: list[int]) -> list[Piece]:
    pieces: list[Piece] = []
    view, at = memoryview(data), 0
    for number in range(0, len(runs), 2):
        kept, cut = (*runs[number : number + 2], 0)[:2]
        pieces.append((view[at : at + kept], cut))
        at += kept + cut
    return pieces
