"""What an idle consumer of few partitions repeats: its fetch and the answer, byte for byte. Sans-IO.

Only the correlation id differs. One comparison then takes the place of reading either again; with hundreds of
such connections that is most of what a gateway does.
"""

from typing import Final

from proxy.protocol.fetch_request import FetchRequest
from proxy.protocol.fetch_response import FetchResponseWalk

_MAX_ANSWER: Final = 512
_ANSWER_BODY: Final = 8
"""Where an answer goes on behind its correlation id."""
_BODY: Final = 12
"""Where a request goes on behind its correlation id."""
_KIND: Final = slice(4, 8)
"""API key and version of a request."""


class Repeated:
    """The last fetch that passed and the last small answer without news."""

    __slots__ = ("_answer", "_partitions", "_request", "_tail", "_version")

    def __init__(self) -> None:
        self._request: FetchRequest | None = None
        self._tail = b""
        self._answer = b""
        self._version = -1
        self._partitions = 0

    def request(self, frame: bytes) -> FetchRequest | None:
        """Return the last fetch with another correlation id, if that is what the frame is."""
        last = self._request
        if last is None or frame[_BODY:] != self._tail or frame[_KIND] != last.frame[_KIND]:
            return None
        return last.again(frame)

    def note_request(self, request: FetchRequest) -> None:
        """Keep a fetch that passed as it came and will do so if it comes again."""
        self._request = request
        self._tail = request.frame[_BODY:]

    def answer(self, frame: bytes, version: int) -> int:
        """Return how many partitions an answer names that repeats the last one, or -1."""
        return self._partitions if version == self._version and frame[_ANSWER_BODY:] == self._answer else -1

    def note_answer(self, frame: bytes, version: int, walk: FetchResponseWalk) -> None:
        """Keep an answer if there is nothing in it that must be looked at again."""
        plain = not walk.record_bytes and not walk.tags and not walk.session_id and not walk.error_code
        if plain and len(frame) <= _MAX_ANSWER:
            self._answer, self._version, self._partitions = frame[_ANSWER_BODY:], version, walk.partitions
