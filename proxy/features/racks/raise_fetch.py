"""Sends fetches of v10 as v11, so that a follower answers them: ``--rack-clients`` (KIP-392). Sans-IO.

This stage comes before all others, and the response is turned back after all others. So to everything between
them, the client uses v11.
"""

from collections.abc import Callable
from typing import Final

from proxy.core.connection_state import ConnectionState
from proxy.core.events import Refusal
from proxy.core.in_flight import Around, ClientFetch, Handler, InFlight
from proxy.core.plans import FetchTemplate
from proxy.core.stage import Stage
from proxy.protocol.api import ApiKey
from proxy.protocol.fetch_layout import RACK_VERSION
from proxy.protocol.fetch_request import FetchRequest, parse_fetch_request
from proxy.protocol.fetch_v10 import RACK_BYTES, RAISED, LoweredResponse, raised
from proxy.protocol.primitives import Buffer, ProtocolError

_FETCH: Final = int(ApiKey.FETCH)


class Lower:
    """Turns the response to a raised fetch back into v10, and counts the bytes that the client gets."""

    __slots__ = ("_response", "_stage", "_state")

    def __init__(self, stage: "RaiseFetch", state: ConnectionState, isolation_level: int) -> None:
        self._stage = stage
        self._state = state
        self._response = LoweredResponse(isolation_level)

    @property
    def buffered(self) -> int:
        return self._response.buffered

    def feed(self, pieces: list[Buffer]) -> list[Buffer]:
        buffered = self.buffered
        ready = self._response.feed(pieces)
        kept = sum(map(len, ready)) + self.buffered - buffered
        self._state.tally.client.fetch_response_bytes -= sum(map(len, pieces)) - kept
        if self._response.redirects:
            self._stage.is_off = True
        return ready


class Raised(Around):
    """Ends the connection if the response to a raised fetch is not understood: it can't be lowered."""

    __slots__ = ("_state",)

    def __init__(self, state: ConnectionState, inner: Handler, client_fetch: ClientFetch) -> None:
        super().__init__(inner, client_fetch)
        self._state = state

    @property
    def _kept(self) -> int:
        return 0

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        pieces = self._inner.feed(chunk, last=last)
        response = self._innermost
        cut_off = last and response.walk is not None and not response.walk.done
        if response.resend is None and (cut_off or not response.understood):
            self._state.refuse_response(
                Refusal.NOT_UNDERSTOOD, f"a FETCH v{RACK_VERSION} response that is not understood"
            )
            return []
        return pieces

    def end(self, request: InFlight) -> bool:
        return self._inner.end(request)


class RaiseFetch(Stage):
    """Raises the fetches of one connection from v10 to v11.

    Args:
        raises: whether a fetch is the first one to be raised. It gets the fetch as v11.
        may_raise: whether any fetch of the client may have to be raised.
        state: the state of the connection.
    """

    __slots__ = ("_has_raised", "_may_raise", "_raised", "_raises", "_state", "_template", "is_off")

    def __init__(
        self,
        raises: Callable[[FetchRequest], bool],
        may_raise: Callable[[], bool],
        state: ConnectionState,
    ) -> None:
        self._raises = raises
        self._may_raise = may_raise
        self._state = state
        self._template: FetchTemplate | None = None
        """Of the last raised fetch, to parse the next one faster."""
        self._raised: FetchRequest | None = None
        """The raised fetch that is being processed, up to `around_fetch`."""
        self._has_raised = False
        """Whether any fetch was raised. Then all are, since leaders answer v11 without a rack like v10."""
        self.is_off = False
        """Whether no more fetches are raised, because the broker has led the client to another replica. A
        client of v10 can't follow, and gets its records if it asks in v10. Only a replica selector that needs
        no rack does this."""

    def before_fetch(self, frame: bytes, version: int, body: int) -> tuple[bytes, int] | None:
        self._raised = None
        self._state.client_version = 0
        if version == RAISED and not self.is_off and self._may_raise():
            sent = raised(frame)
            fetch = self._read(sent, body)
            # An incremental fetch does not list the partitions of its session.
            if fetch is not None and (self._has_raised or self._raises(fetch)):
                self._raised = fetch
                self._has_raised = True
                self._state.client_version = version
                return sent, RACK_VERSION
        return frame, version

    def _read(self, sent: bytes, body: int) -> FetchRequest | None:
        """Return a raised fetch in its parsed form, or None if it must not be raised."""
        if self._template is not None and (fetch := self._template.read(sent)) is not None:
            return fetch
        try:
            fetch = parse_fetch_request(sent, RACK_VERSION, body)
        except ProtocolError:
            return None
        if fetch.unsupported_reason or fetch.rack_id:  # bytes after a fetch of v10 would be its rack
            return None
        self._template = FetchTemplate.of(fetch)
        return fetch

    def around_fetch(self, request: InFlight, client_fetch: ClientFetch) -> Handler:
        fetch, self._raised = self._raised, None
        if fetch is None:
            return request.handler
        self._state.tally.client.fetch_request_bytes -= RACK_BYTES
        request.form = Lower(self, self._state, fetch.isolation_level)
        return Raised(self._state, request.handler, client_fetch)

    def repeats(self, api_key: int, version: int, *, in_session: bool = False) -> bool:  # noqa: ARG002
        if api_key != _FETCH:
            return True
        return not (self._has_raised if version == RACK_VERSION else version == RAISED and self._may_raise())
