"""Cuts the client's direction of a connection into requests."""

from collections.abc import Iterator
from typing import Final

from proxy.protocol.api import (
    API_KEY,
    LENGTH_BYTES,
    REQUEST_CORRELATION_ID,
    REQUEST_START,
    REQUEST_START_BYTES,
    RESPONSE_CORRELATION_ID,
    RESPONSE_START_BYTES,
    ApiKey,
)
from proxy.protocol.primitives import Buffer
from replay.capture.kafka.framing import Framing
from replay.capture.kafka.plausible import (
    HEAD,
    MORE,
    NO,
    is_request_start,
    request_candidates,
    request_size,
)
from replay.capture.kafka.resync import Plausibility, Search

_NO_CLIENT_ID: Final = 2
"""The size of an empty or null client id, in bytes."""


class RequestFraming(Framing):
    """Cuts the client's direction into requests."""

    minimum = REQUEST_START_BYTES

    @property
    def overlap(self) -> int:
        return self.minimum + 2 + len(self.conversation.client_id)

    def open(self, view: memoryview, at: int, time: int) -> bool:
        length, api_key, version, _ = REQUEST_START.unpack_from(view, at)
        if not is_request_start(length, api_key, version):
            return False
        self._size = self._left = size = LENGTH_BYTES + length
        self._wanted = size if self.conversation.wants_request(api_key) else min(size, HEAD)
        self._time = time
        return True

    def close(self, pieces: list[Buffer], size: int, missing: int) -> None:
        frame = bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
        self.conversation.request_seen(frame, size, missing, self._time)
        self.in_tokens = self.conversation.tokens

    def is_frame(self, buffer: bytearray) -> bool:
        # The first bytes of tokens are too large for an API key and a version.
        return request_size(bytes(buffer[:HEAD]), cut=False) > 0

    def resync(self, *, boundary: bool) -> None:
        if self.conversation.client not in {None, self}:
            # The other direction has the requests.
            return
        if self.search is not None and self._begins(self.search):
            self.start_at(0)
        else:
            super().resync(boundary=boundary)

    def start_at(self, place: int) -> None:
        self.conversation.requests_found(self)
        super().start_at(place)

    def pass_over(self, size: int) -> None:  # noqa: ARG002 - see `Framing`
        # The bytes after a gap are of no use.
        self._wanted = 0

    def mark_broken(self) -> None:
        self.conversation.request_broken = True

    def candidates(self, buffer: bytearray, start: int) -> Iterator[int]:
        client_id = self.conversation.client_id
        if not client_id and start == 0:
            yield 0
        # Until it is known which side is the client, `judge` accepts only requests with a client id.
        nameless = self.conversation.client is not None
        yield from request_candidates(buffer, start, client_id, nameless=nameless)

    def judge(self, search: Search, at: int, *, boundary: bool) -> Plausibility:
        """See `resync.Judge`.

        A broker's response can look like a request, for example if its correlation id looks like key and
        version. So while the client is unknown, two consecutive requests of one client are needed. Once the
        client is known, one request is enough if the client stopped sending after it, to wait for a response.
        """
        size = _size(search, at)
        if size in {NO, MORE}:
            return Plausibility.NO if size == NO else Plausibility.WAIT
        if len(_client_id(search.head(at, HEAD))) <= _NO_CLIENT_ID and not self._is_enough(search, at):
            return Plausibility.NO
        end = at + size
        if end == len(search) and boundary and self.conversation.client is not None:
            return Plausibility.HERE
        follower = _size(search, end)
        if follower == MORE:
            return Plausibility.WAIT
        together = follower != NO and _go_together(search.head(at, HEAD), search.head(end, HEAD))
        return Plausibility.HERE if together else Plausibility.NO

    def _begins(self, search: Search) -> bool:
        if not self.from_start or search.dropped:
            return False
        if self.conversation.client is self:
            # It is enough that the first bytes may be a request.
            head = search.head(0, self.minimum)
            return len(head) == self.minimum and is_request_start(*REQUEST_START.unpack(head)[:3])
        return _size(search, 0) not in {NO, MORE} and _api_key(search, 0) != ApiKey.PRODUCE

    def _is_enough(self, search: Search, at: int) -> bool:
        """Return whether a header without a client id is accepted for `judge`."""
        # Zeros in a row look like it. So the client must be known, and must have started to send here.
        known = self.conversation.client is not None and at in search.row_starts
        return known and _api_key(search, at) != ApiKey.PRODUCE


def is_no_request(search: Search) -> bool:
    """Return whether the buffered bytes certainly do not begin with a request."""
    return _size(search, 0) == NO


def is_one_exchange(asked: Search, answered: Search) -> bool:
    """Return whether one side is a single request with a client id, and the other ends with its response."""
    request = asked.head(0, HEAD)
    if _size(asked, 0) != len(asked) or len(_client_id(request)) <= _NO_CLIENT_ID:
        return False
    at, ids = 0, []
    while len(head := answered.head(at, RESPONSE_START_BYTES)) == RESPONSE_START_BYTES:
        ids.append(head[RESPONSE_CORRELATION_ID])
        at += LENGTH_BYTES + int.from_bytes(head[:LENGTH_BYTES])
    whole = not asked.dropped and not answered.dropped and at == len(answered)
    return whole and ids[-1:] == [request[REQUEST_CORRELATION_ID]]


def _size(search: Search, at: int) -> int:
    head = search.head(at, HEAD)
    return request_size(head, cut=len(head) < HEAD and at + len(head) < len(search))


def _api_key(search: Search, at: int) -> int:
    return int.from_bytes(search.head(at + API_KEY.start, 2))


def are_of_one_client(one: bytes, other: bytes) -> bool:
    """Return whether two consecutive requests show by their client id that they are from one client."""
    return len(_client_id(one)) > _NO_CLIENT_ID and _go_together(one, other)


def _go_together(one: bytes, other: bytes) -> bool:
    """Return whether two consecutive requests, or their first bytes, may be from the same client."""
    _, api_key, version, correlation_id = REQUEST_START.unpack_from(one)
    _, next_key, next_version, next_id = REQUEST_START.unpack_from(other)
    if api_key == next_key and (version != next_version or correlation_id >= next_id):
        return False
    return _client_id(one) == _client_id(other)


def _client_id(head: bytes) -> bytes:
    end = REQUEST_START_BYTES + 2
    size = max(int.from_bytes(head[REQUEST_START_BYTES:end], signed=True), 0)
    return head[REQUEST_START_BYTES : end + size]
