"""The client's direction of a connection, cut into requests."""

from collections.abc import Iterator

from proxy.protocol.primitives import Buffer
from replay.capture.framing import Framing
from replay.capture.plausible import (
    HEAD,
    MORE,
    NO,
    REQUEST_START,
    is_request_start,
    request_candidates,
    request_size,
)
from replay.capture.resync import Search, Verdict


class RequestFraming(Framing):
    """The client's direction."""

    minimum = REQUEST_START.size

    @property
    def overlap(self) -> int:
        """See `resync.Judge`: the client id is part of what is searched."""
        return self.minimum + 2 + len(self.conversation.client_id)

    def open(self, view: memoryview, at: int, time: int) -> bool:
        """See `Framing`."""
        length, api_key, version, _ = REQUEST_START.unpack_from(view, at)
        if not is_request_start(length, api_key, version):
            return False
        self._size = self._left = size = 4 + length
        self._wanted = size if self.conversation.wants_request(api_key) else min(size, HEAD)
        self._time = time
        return True

    def close(self, pieces: list[Buffer], size: int, missing: int) -> None:
        """See `Framing`."""
        frame = bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
        self.conversation.request_seen(frame, size, missing, self._time)
        self.ignored = self.conversation.opaque_from_client

    def start_at(self, place: int) -> None:
        """See `Framing`."""
        self.conversation.requests_found(self)
        super().start_at(place)

    def pass_over(self, size: int) -> None:  # noqa: ARG002 - see `Framing`
        """See `Framing`: what follows is of no use."""
        self._wanted = 0

    def mark_broken(self) -> None:
        """See `Framing`."""
        self.conversation.request_broken = True

    def candidates(self, buffer: bytearray, start: int) -> Iterator[int]:
        """See `resync.Judge`."""
        client_id = self.conversation.client_id
        if not client_id and start == 0:
            yield 0
        yield from request_candidates(buffer, start, client_id)

    def judge(self, search: Search, at: int, *, boundary: bool) -> tuple[Verdict, int]:
        """See `resync.Judge`: two requests of one client in a row, or one that ends where it waits."""
        size = _size(search, at)
        if size in {NO, MORE}:
            return (Verdict.NO if size == NO else Verdict.WAIT), at
        if at == 0 and self.from_start and not search.dropped:
            return Verdict.HERE, at
        end = at + size
        if end == len(search):
            known = self.conversation.client_id or at in search.row_starts
            return (Verdict.HERE if boundary and known else Verdict.WAIT), at
        follower = _size(search, end)
        if follower == MORE:
            return Verdict.WAIT, at
        same = follower != NO and _client_id(search, at) == _client_id(search, end)
        return (Verdict.HERE if same else Verdict.NO), at


def is_no_request(search: Search) -> bool:
    """Tell whether what is held begins with anything but a request."""
    return _size(search, 0) == NO


def _size(search: Search, at: int) -> int:
    head = search.head(at, HEAD)
    return request_size(head, cut=len(head) < HEAD and at + len(head) < len(search))


def _client_id(search: Search, at: int) -> bytes:
    head = search.head(at + REQUEST_START.size, HEAD)
    return head[: 2 + max(int.from_bytes(head[:2], signed=True), 0)]
