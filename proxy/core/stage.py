"""What an option adds to a connection: a stage. Sans-IO.

A connection without options has no stage. Each stage sees the requests of the client, may have one wait, and
may put a handler of its own around that of a request: see `proxy.core.in_flight`.
"""

from collections.abc import Callable

from proxy.core.fetch_in_flight import FetchHandler
from proxy.core.in_flight import Handler, InFlight


class Stage:
    """A stage that changes nothing."""

    __slots__ = ()

    # Requests

    def on_request(self, _data: bytes, _size: int, _api_key: int, _version: int) -> bool:
        """See a request that is no fetch, or a fetch that is not read; return False if it has to wait.

        A stage that returns False says in `ConnectionState.from_client` what the request waits for: more of
        its bytes, or something else.

        Args:
            _data: the request, or its beginning.
            _size: of the whole request.
            _api_key: its kind.
            _version: of the request.
        """
        return True

    def on_asked(self, _api_key: int) -> None:
        """Note that the broker is asked something that it will answer."""

    def on_answered(self, _api_key: int) -> None:
        """Note that a response is whole."""

    def around(self, request: InFlight) -> Handler:
        """Return the handler of a request that is no fetch and was given to `on_request` just now."""
        return request.handler

    def around_fetch(self, request: InFlight, _fetching: FetchHandler) -> Handler:
        """Return the handler of a fetch.

        Args:
            request: the fetch in flight, with the handler of the stages before this one.
            _fetching: the innermost handler.
        """
        return request.handler

    def repeats(self, _api_key: int, _version: int) -> bool:
        """Whether the next request like one that was forwarded need not be seen."""
        return True

    # The life of the connection

    def attach(self, wake: Callable[[], None], alarm: Callable[[float], None]) -> None:
        """Attach the I/O shell: see `Connection.attach`."""

    def tick(self, now: float) -> None:
        """Do what is due."""

    def release(self) -> None:
        """Hold no response any more: the connection is about to end."""

    def lose(self) -> None:
        """Note that the broker sends no more."""

    def end(self) -> None:
        """Note that the connection has ended."""
