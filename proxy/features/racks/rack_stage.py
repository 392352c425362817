"""Learns the racks of brokers from the responses of one connection. Sans-IO."""

from typing import Final

from proxy.core.connection_state import ConnectionState
from proxy.core.in_flight import Handler, InFlight, Over
from proxy.core.stage import Stage
from proxy.features.racks.racks import BrokerRacks
from proxy.protocol.api import LENGTH_BYTES, response_header
from proxy.protocol.brokers import VERSIONS
from proxy.protocol.primitives import Buffer, ProtocolError, Truncated

MAX_READ: Final = 1 << 18
"""The brokers must be in the first bytes of a response, to be read: 1,000 brokers take 100 KB."""


class LearnRacks(Over):
    """Reads the brokers at the beginning of a response. `inner` makes the client's response."""

    __slots__ = ("_begins", "_next", "_racks", "_size", "api_key", "version")

    def __init__(self, inner: Handler, racks: BrokerRacks, api_key: int, version: int) -> None:
        super().__init__(inner)
        self._racks = racks
        self.api_key, self.version = api_key, version
        self._begins: list[bytes] | None = []
        """The received bytes, until the brokers are read. Then None."""
        self._size = 0
        self._next = 1
        """The number of bytes at which reading is tried again. It doubles, so that the cost is linear."""

    @property
    def buffered(self) -> int:  # type: ignore[override]  # of both handlers
        return self._inner.buffered + self._size

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        if (begins := self._begins) is not None:
            if not begins and self._racks.knows((self.api_key, self.version), chunk):
                self._begins = None
            else:
                begins.append(chunk)
                self._size += len(chunk)
                if last or self._size >= self._next:
                    self._read(b"".join(begins), last=last)
        return self._inner.feed(chunk, last=last)

    def _read(self, frame: bytes, *, last: bool) -> None:
        try:
            _, body = response_header(frame, LENGTH_BYTES, self.api_key, self.version)
            self._racks.read(self.api_key, self.version, frame, body)
        except Truncated:
            if not last and self._size < MAX_READ:
                self._begins, self._next = [frame], 2 * self._size
                return
        except ProtocolError:
            pass  # the inner handler decides what becomes of it
        self._begins, self._size = None, 0

    def passes(self, size: int) -> bool:
        return self._begins is None and self._inner.passes(size)


class RackStage(Stage):
    """Reads the racks of brokers in the responses of one connection."""

    __slots__ = ("_racks",)

    def __init__(self, racks: BrokerRacks, _state: ConnectionState) -> None:
        self._racks = racks

    def around(self, request: InFlight) -> Handler:
        if request.version not in VERSIONS.get(request.api_key, ()):
            return request.handler
        return LearnRacks(request.handler, self._racks, request.api_key, request.version)

    def repeats(self, api_key: int, _version: int, *, in_session: bool = False) -> bool:  # noqa: ARG002
        return api_key not in VERSIONS  # their responses are read
