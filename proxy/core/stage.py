"""What an option adds to a connection: a stage. Sans-IO.

Each stage sees the requests of the client, in the order of `ConnectionState.stages`. It may change them, have
one wait, and put a handler of its own around that of a request: see `proxy.core.in_flight`.
"""

from collections.abc import Callable

from proxy.core.in_flight import FetchHandler, Handler, InFlight
from proxy.protocol.fetch_request import FetchRequest


class Stage:
    """A stage that changes nothing."""

    __slots__ = ()

    holds: bool = False
    """The client's next request waits for this stage."""

    # Requests

    @property
    def busy(self) -> bool:
        """Whether the stage has something to do for the client that may not be in flight."""
        return False

    @property
    def longest_wait(self) -> float:
        """How long a request may wait in the stage, in seconds."""
        return 0.0

    def reads_on(self, _waiting: int) -> bool:
        """Whether the client is read on although so many bytes of its requests wait."""
        return False

    def on_frame(self, _data: bytes, _size: int, _api_key: int, _version: int) -> int | None:
        """See a request before all else.

        Return how many bytes were used: 0 if the request has to wait, as with `on_request`. None: the stage
        leaves the request to the others.

        Args:
            _data: the request, or its beginning.
            _size: of the whole request.
            _api_key: its kind.
            _version: of the request.
        """
        return None

    def on_request(self, data: bytes, _size: int, _api_key: int, _version: int) -> bytes | None:
        """See a request that is no fetch, or a fetch that is not read.

        Args:
            data: the request, or its beginning.
            _size: of the whole request.
            _api_key: its kind.
            _version: of the request.

        Returns:
            what is forwarded in place of `data`. None: the request has to wait, for what
            `ConnectionState.from_client` says: more of its bytes, or something else.
        """
        return data

    def before_fetch(self, frame: bytes, version: int, _body: int) -> tuple[bytes, int] | None:
        """See a whole fetch before it is parsed.

        Args:
            frame: the fetch.
            version: of the request.
            _body: offset of the body, which stays where it is.

        Returns:
            the fetch to go on with, and its version. None: it goes no further. It has to wait, the client has
            its response, or the connection ends.
        """
        return frame, version

    def on_fetch(self, fetch: FetchRequest) -> FetchRequest:
        """Return a plain consumer's fetch as it is to be sent, or to go through the session.

        Its entries have to stay, and the size of what stands before them. The fast path makes the same change
        to later fetches that differ only in their entries. So if a change depends on more than the fetch and
        the client id, return False from `repeats`.
        """
        return fetch

    def on_asked(self, _api_key: int) -> None:
        """Note that the broker is asked something that it will answer."""

    def on_answered(self, _api_key: int) -> None:
        """Note that a response is whole."""

    def on_fetched(self, _fetching: FetchHandler) -> None:
        """Note that the response to a fetch is whole. The fetch may be sent again."""

    def on_versions(self) -> None:
        """Note that the client is told what the broker can do: `Eligibility.features`."""

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

    def repeats(self, _api_key: int, _version: int, *, in_session: bool = False) -> bool:  # noqa: ARG002 - for others
        """Whether the fast path may take the next request that is like the last one.

        Args:
            _api_key: its kind.
            _version: of the request.
            in_session: it is a fetch that goes through the session, where no error takes the fast path.
        """
        return True

    # The life of the connection

    def begin(self, process: Callable[[bytes, int, int, int], int], resume: Callable[[], None]) -> None:
        """Get what a stage needs that changes or holds requests.

        Args:
            process: see `ClientSide.process`.
            resume: has the core take the request again that waits.
        """

    def attach(self, wake: Callable[[], None], alarm: Callable[[float], None]) -> None:
        """Attach the I/O shell: see `Connection.attach`."""

    def tick(self, now: float) -> None:
        """Do what is due."""

    def settle(self) -> None:
        """Process the responses that the stage has claimed and that are whole (`ResponseQueue.claim`)."""

    def close(self) -> None:
        """Take no more requests; finish what is in flight."""

    def release(self) -> None:
        """Hold no response any more: the connection is about to end."""

    def lose(self) -> None:
        """Note that the broker sends no more."""

    def end(self) -> None:
        """Note that the connection has ended."""
