"""Selects the bytes of a connection that go into a capture without record contents. Sans-IO.

The head of a frame is kept. Bodies are kept, too, if their API transfers neither records nor credentials
(`KEPT`). Of a fetch response, only the contents of the `records` fields are omitted. Bytes that can't be
interpreted are omitted, because such a capture must never have record contents.
"""

from collections import deque
from typing import Final, TypeAlias

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
from proxy.protocol.fetch_layout import LAYOUTS, MAX_VERSION
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.protocol.framing import Framer, frame_size
from proxy.protocol.primitives import (
    ProtocolError,
    read_compact_count,
    read_compact_string,
    read_count,
    read_string,
    skip_tags,
)
from proxy.protocol.produce import wants_response

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
"""Requests and responses whose bodies are kept."""

_MAX_REQUEST: Final = 1 << 28
"""Kafka requests are shorter. The first bytes of text or of TLS, read as a length, give a larger number."""
_MAX_RESPONSE: Final = 1 << 30
_MAX_OPEN: Final = 1 << 14
"""The maximum number of requests without a response. If there are more, the order is in doubt."""
_MAX_HELD: Final = 1 << 24
"""A fetch response that is longer without its records is omitted."""
_OPAQUE_FROM: Final = (ApiKey.SASL_HANDSHAKE, 0)
"""After this request (SaslHandshake v0), the tokens are sent without Kafka's framing."""

_Kind: TypeAlias = tuple[int, int]
"""The API key and the version of a request."""
_LEFT_OUT: Final[_Kind] = (-1, -1)
"""A request whose body is always omitted, as is that of its response."""
_PRODUCE: Final[_Kind] = (ApiKey.PRODUCE, -1)
"""The bodies of Produce requests and of their responses are omitted, although responses have no records."""
_PRIVATE: Final = (_LEFT_OUT[0], ApiKey.FETCH, ApiKey.SASL_AUTHENTICATE)
"""API keys of requests whose responses may have records or credentials."""
_HARMLESS: Final = frozenset(
    {
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.PUSH_TELEMETRY,
    }
)
"""APIs whose responses have no records and no credentials, but are omitted, too."""
_MAX_SASL: Final = 1 << 16
"""A longer SaslAuthenticate response is not parsed."""


class Redactor:
    """Redacts both directions of one connection: gets the bytes as they are sent, returns what to record."""

    __slots__ = ("_streams",)

    def __init__(self) -> None:
        open_requests = _OpenRequests()
        self._streams = (_Requests(open_requests), _RedactedResponses(open_requests))

    def redact(self, by: int, data: bytes) -> list[Piece]:
        """Return the pieces to record of the next bytes. `by` is their sender, `CLIENT` or `BROKER`."""
        return self._streams[by].feed(data)

    def end(self, by: int) -> list[Piece]:
        return self._streams[by].end()


# A response does not contain the API key, so each response is paired with a request, in order, as in the
# core (fetch-semantics, trap 16). If the order is in doubt, the body is omitted. If the order is lost, the
# body and all later bytes of responses are omitted.
class _OpenRequests:
    """The requests that wait for a response, in the order in which the broker must respond."""

    __slots__ = ("_by_id", "_queue", "ordered", "private", "unread")

    def __init__(self) -> None:
        self._queue: deque[tuple[bytes, _Kind]] = deque()
        self.private = 0
        """The number of open requests whose responses may have records or credentials."""
        self._by_id: dict[bytes, tuple[int, _Kind, bool]] = {}
        """By correlation id: the number of open requests, the kind of the first, and whether kinds differ."""
        self.ordered = True
        """If the order of responses is not known, no later response can be paired with its request."""
        self.unread = False
        """Whether a response that may have records could not be parsed to its end. Then the next response may
        contain the rest of its records."""

    def add(self, correlation_id: bytes, kind: _Kind) -> None:
        if len(self._queue) >= _MAX_OPEN:
            self.lose_order()
        if self.ordered:
            self._queue.append((correlation_id, kind))
            self.private += kind[0] in _PRIVATE
            count, first, differ = self._by_id.get(correlation_id, (0, kind, False))
            self._by_id[correlation_id] = count + 1, first, differ or kind != first

    def pair(self, correlation_id: bytes) -> tuple[_Kind, bool]:
        """Return the kind of the request that belongs to the next response, and whether this is in doubt.

        It is in doubt if open requests of different kinds had the same correlation id. Then the correlation
        id does not prove that the order is right.
        """
        if not self._queue or self._queue[0][0] != correlation_id:
            self.lose_order()
            return _LEFT_OUT, True
        _, kind = self._queue.popleft()
        self.private -= kind[0] in _PRIVATE
        count, first, differ = self._by_id.pop(correlation_id)
        if count > 1:
            self._by_id[correlation_id] = count - 1, first, differ
        return kind, differ

    def lose_order(self) -> None:
        self.ordered = False
        self._queue.clear()
        self._by_id.clear()


class _KeptBytes:
    """The bytes of a stream in order: pieces of kept bytes. After each piece, some bytes may be omitted."""

    __slots__ = ("_pieces", "kept", "size")

    def __init__(self) -> None:
        self._pieces: list[tuple[bytearray, int]] = []
        self.kept = 0
        self.size = 0

    def keep(self, part: bytes | bytearray) -> None:
        self.kept += len(part)
        self.size += len(part)
        if self._pieces and not self._pieces[-1][1]:
            self._pieces[-1][0].extend(part)
        elif part:
            self._pieces.append((bytearray(part), 0))

    def leave_out(self, size: int) -> None:
        self.size += size
        if size:
            kept, cut = self._pieces.pop() if self._pieces else (bytearray(), 0)
            self._pieces.append((kept, cut + size))

    def add(self, selection: "_KeptBytes") -> None:
        for kept, cut in selection._pieces:  # noqa: SLF001 - of its own class
            self.keep(kept)
            self.leave_out(cut)

    def pieces(self) -> list[Piece]:
        return list(self._pieces)


class _RedactedDirection:
    """One direction of a connection. The head of each frame is kept."""

    __slots__ = ("_framer", "_last", "_opaque", "_open", "_out", "_to_keep")

    head_size = 0
    """The size of the head of a frame, in bytes. The head decides which bytes of the body are kept."""
    lengths = range(0)
    """The valid values in the length field of a frame."""

    def __init__(self, open_requests: _OpenRequests) -> None:
        self._open = open_requests
        self._framer = Framer()
        """Its `left` is the number of bytes of the body that have not arrived yet."""
        self._to_keep = 0
        """How many of the next bytes of the body are kept."""
        self._last = False
        """Whether the bytes after this frame can't be read as frames."""
        self._opaque = False
        self._out = _KeptBytes()

    def begin(self, head: bytes) -> None:
        """Decide from the head of a frame which bytes of its body to keep."""
        raise NotImplementedError

    def body(self, part: bytes) -> None:
        kept = min(self._to_keep, len(part))
        self._to_keep -= kept
        self._out.keep(part[:kept])
        self._out.leave_out(len(part) - kept)

    def feed(self, data: bytes) -> list[Piece]:
        # The head of a frame is buffered until it is complete.
        self._out, framer = _KeptBytes(), self._framer
        framer.feed(data)
        while framer.ready and not self._opaque:
            if framer.left:
                self.body(framer.next())
            elif self._last:
                self._opaque = True
            else:
                self._head(framer.peek(self.head_size))
        if self._opaque:
            self._out.leave_out(len(framer.rest()))
        return self._out.pieces()

    def end(self) -> list[Piece]:
        self._opaque = True
        self._out = _KeptBytes()
        self._out.keep(self._framer.rest())
        return self._out.pieces()

    def _head(self, head: bytes) -> None:
        framer, size = self._framer, LENGTH_BYTES
        if len(head) >= LENGTH_BYTES:
            self._opaque = frame_size(head) - LENGTH_BYTES not in self.lengths
            size = LENGTH_BYTES if self._opaque else min(self.head_size, frame_size(head))
        if len(head) < size:
            framer.need = size
            return
        framer.left = size
        self._out.keep(framer.next())
        if not self._opaque:
            framer.left = frame_size(head) - size
            self.begin(head[:size])


class _Requests(_RedactedDirection):
    __slots__ = ("_need", "_produce", "_size")

    head_size = REQUEST_START_BYTES + 2
    """The head ends with the length of client_id, a 2-byte number."""
    lengths = range(REQUEST_START_BYTES - LENGTH_BYTES, _MAX_REQUEST)
    """The shortest request is ControlledShutdown v0, which has no client_id."""

    def __init__(self, open_requests: _OpenRequests) -> None:
        super().__init__(open_requests)
        self._produce = bytearray()
        """The first bytes of a Produce request, until they show whether it gets a response (acks)."""
        self._need = 0
        self._size = 0

    def begin(self, head: bytes) -> None:
        # After the head all is kept, only the client_id, or nothing.
        api_key, version = int.from_bytes(head[API_KEY]), int.from_bytes(head[API_VERSION])
        client_id = int.from_bytes(head[REQUEST_START_BYTES:], signed=True)
        self._last = (api_key, version) == _OPAQUE_FROM
        read = -1 <= client_id <= self._framer.left
        understood = read and api_key in KEPT and not (api_key == ApiKey.FETCH and version > MAX_VERSION)
        if understood:
            self._to_keep = self._framer.left
        else:
            self._to_keep = max(client_id, 0) if read else 0
        if api_key == ApiKey.PRODUCE:
            self._produce = bytearray(head)
            self._size = len(head) + self._framer.left
            self._need = len(head)
            self._look_for_acks()
        else:
            known = understood or api_key in _HARMLESS or api_key == ApiKey.SASL_AUTHENTICATE
            self._open.add(head[REQUEST_CORRELATION_ID], (api_key, version) if known else _LEFT_OUT)

    def body(self, part: bytes) -> None:
        super().body(part)
        if self._produce:
            self._produce += part
            self._look_for_acks()

    def _look_for_acks(self) -> None:
        if len(self._produce) < self._need:
            return
        wants = wants_response(self._produce, self._size)
        if wants is None:
            self._need = min(self._size, 2 * len(self._produce))
            return
        if wants:
            self._open.add(bytes(self._produce[REQUEST_CORRELATION_ID]), _PRODUCE)
        self._produce = bytearray()


# A fetch response is buffered. It is kept only if it is complete and matches its version.
#
# Two rules protect against responses with a wrong length. If a response is shorter than its length says,
# bytes of the next response follow in it. So bodies of other APIs, and fetch responses with tagged fields,
# are kept only if no other open request can have records or credentials in its response. If a response is
# longer than its length says, its rest looks like the next response. So bodies of other APIs are kept only
# if every earlier response with possible contents could be read to its end.
class _RedactedResponses(_RedactedDirection):
    __slots__ = ("_at", "_held", "_sasl", "_sasl_version", "_walk")

    head_size = RESPONSE_START_BYTES
    """The head ends with the correlation id."""
    lengths = range(RESPONSE_START_BYTES - LENGTH_BYTES, _MAX_RESPONSE)

    def __init__(self, open_requests: _OpenRequests) -> None:
        super().__init__(open_requests)
        self._walk: FetchResponseWalk | None = None
        self._at = 0
        """The offset of the next byte in the frame that is being read."""
        self._held = _KeptBytes()
        """The body of a fetch response, without records, until the response is complete."""
        self._sasl = b""
        """The body of a SaslAuthenticate response. It is parsed, but not recorded."""
        self._sasl_version = -1
        """Of the SaslAuthenticate response that is being read. -1 if the response is of another API."""

    def begin(self, head: bytes) -> None:
        (api_key, version), in_doubt = self._open.pair(head[RESPONSE_CORRELATION_ID])
        self._last = (api_key, version) == _OPAQUE_FROM or not self._open.ordered
        self._to_keep, self._walk, self._sasl, self._sasl_version = 0, None, b"", -1
        if in_doubt:
            return
        if api_key == ApiKey.FETCH and version in LAYOUTS:
            self._walk = FetchResponseWalk(LAYOUTS[version], 0, keep=False, spans=True)
            self._walk.feed(head)
            self._at = len(head)
        elif api_key == ApiKey.SASL_AUTHENTICATE and self._framer.left <= _MAX_SASL:
            self._sasl_version = version
        elif api_key in _PRIVATE:
            self._open.unread = True
        elif api_key in KEPT and not self._open.unread:
            self._to_keep = self._framer.left

    def body(self, part: bytes) -> None:
        # Bytes that may belong to the next response are omitted.
        walk, held = self._walk, self._held
        if walk is None:
            if self._open.private or not self._open.ordered:
                self._to_keep = 0
            super().body(part)
            if self._sasl_version >= 0:
                self._read_sasl(part)
            return
        try:
            walk.feed(part)
            # Tagged fields at the end of the body may hide anything, even the beginning of the next response.
            in_doubt = bool(walk.tags) and self._open.private > 0
            understood = (walk.done or self._framer.left > 0) and held.kept <= _MAX_HELD and not in_doubt
        except ProtocolError:
            understood = False
        if not understood:
            self._open.unread = True
            self._out.leave_out(held.size + len(part))
        else:
            self._leave_records_out(walk, part)
            if self._framer.left:
                return
            self._out.add(held)
        self._walk, self._held = None, _KeptBytes()

    def _read_sasl(self, part: bytes) -> None:
        # Its fields must end where its length says.
        self._sasl += part
        if not self._framer.left and not _is_sasl(self._sasl, self._sasl_version):
            self._open.unread = True

    def end(self) -> list[Piece]:
        # The body of a fetch response is omitted if it is incomplete.
        pieces = super().end()
        if self._held.size:
            pieces.append((b"", self._held.size))
            self._held = _KeptBytes()
        return pieces

    def _leave_records_out(self, walk: FetchResponseWalk, part: bytes) -> None:
        spans, at, passed = walk.record_spans or [], 0, 0
        base, end = self._at, len(part)
        for start, stop in spans:
            if start - base >= end:
                break
            self._held.keep(part[at : max(start - base, at)])
            at = max(start - base, at)
            cut = min(stop - base, end)
            self._held.leave_out(cut - at)
            at = cut
            if stop - base > end:
                break
            passed += 1
        self._held.keep(part[at:])
        del spans[:passed]
        self._at = base + end


def _is_sasl(body: bytes, version: int) -> bool:
    """Return whether `body` is a complete SaslAuthenticateResponse, v0 to v2, without further bytes."""
    try:
        if version < _SASL_FLEXIBLE:
            _, at = read_string(body, _SASL_ERROR_BYTES)
            size, at = read_count(body, at)
        else:
            _, at = read_compact_string(body, _SASL_ERROR_BYTES)
            size, at = read_compact_count(body, at)
        at += (size or 0) + (_SASL_LIFETIME_BYTES if version >= 1 else 0)
        return (skip_tags(body, at)[1] if version >= _SASL_FLEXIBLE else at) == len(body)
    except ProtocolError:
        return False


_SASL_FLEXIBLE: Final = 2
"""The first version of SaslAuthenticate with compact fields and tagged fields."""
_SASL_ERROR_BYTES: Final = 2
_SASL_LIFETIME_BYTES: Final = 8
"""The size of session_lifetime_ms, which exists from v1 on (KIP-368)."""
