"""Stages: each stage implements one option for a connection. Sans-IO.

Each stage gets the client's requests, in the order of `ConnectionState.stages`. A stage may change a request,
make it wait, or wrap its handler in another handler (`proxy.core.in_flight`).
"""

from collections.abc import Callable

from proxy.core.in_flight import ClientFetch, FetchHandler, Handler, InFlight
from proxy.protocol.api_versions import NO_RANGES, Ranges
from proxy.protocol.fetch_request import FetchRequest


class Stage:
    """The base class of stages. Its methods change nothing.

    For a request on the fast path, no method of a stage is called. If its response does not match the plan,
    the response is processed as usual: `around_fetch` is called then, followed by `on_answered` and
    `on_fetched`.
    """

    __slots__ = ()

    holds: bool = False
    """Whether the client's next request has to wait for this stage."""
    gives_sessions: bool = False
    """Whether the stage gives the client sessions, even if the broker supports none. Then the client is
    offered Fetch v7."""
    versions: Ranges = NO_RANGES
    """The versions of APIs that this stage reads. The client is offered no others of these APIs. They are
    asked for when the client gets an ApiVersions response."""

    # Requests

    @property
    def busy(self) -> bool:
        """Whether the stage still has work for the client, even with no request in flight."""
        return False

    @property
    def longest_wait(self) -> float:
        """How long a request may wait in the stage, in seconds."""
        return 0.0

    def reads_on(self, _waiting: int) -> bool:
        """Return whether to read more from the client while this many bytes of its requests wait."""
        return False

    def on_frame(self, _data: bytes, _size: int, _api_key: int, _version: int) -> bool | None:
        """Process a request before the other parts of the connection core.

        Return True if the stage has used the request. Return False if the request has to wait (see
        `on_request`). Return None to leave the request to the other stages. `_data` is the request, of
        `_size` bytes, or its beginning.
        """
        return None

    def on_request(self, data: bytes, _size: int, _api_key: int, _version: int) -> bytes | None:
        """Process a request other than a fetch, or a fetch that is forwarded without being parsed.

        `data` is the request, of `_size` bytes, or its beginning. Return the bytes to forward in place of it.
        Return None if the request has to wait: then the stage sets `need` or `held` of
        `ConnectionState.from_client`. Also return None if the stage ends the connection.
        """
        return data

    def on_token(self, _token: bytes) -> None:
        """Note a SASL token of the client without a header, or b"" if it was too large to be kept."""

    def before_fetch(self, frame: bytes, version: int, _body: int) -> tuple[bytes, int] | None:
        """Process a complete fetch before it is parsed.

        Return the fetch to process instead, and its version. Return None if the fetch has to wait, if it was
        answered, or if it ends the connection. The stage must not move the body, which begins at `_body`.
        """
        return frame, version

    def on_fetch(self, fetch: FetchRequest) -> FetchRequest:
        """Return a fetch with the changes of this stage.

        The method is not called for a fetch that the gateway must not rewrite
        (`FetchRequest.unsupported_reason`). `on_request` gets the fetches that are below v4, above v18, above
        1 MiB, or for which there is no memory.

        A stage must not change the entries or their offset. The fast path makes the same change to later
        fetches that differ only in the offsets and epochs of their entries, and in the entries' order. If a
        change depends on these, or on more than the fetch and the client id, the stage must return False from
        `repeats`.
        """
        return fetch

    def on_asked(self, _api_key: int) -> None:
        """Note a request of the client that will get a response.

        This is called again if a fetch had to wait. A stage may also answer a fetch itself.
        """

    def on_answered(self, _api_key: int) -> None:
        """Note that a response is complete."""

    def on_fetched(self, _handler: FetchHandler) -> None:
        """Note that the response to a fetch is complete. The gateway may still send this fetch again."""

    def on_versions(self) -> None:
        """Note that the client gets an ApiVersions response. `Eligibility.features` has the features."""

    def around(self, request: InFlight) -> Handler:
        """Return the handler for a request other than a fetch. A stage may wrap it in its own handler.

        This is called right after `on_request` has accepted the request.
        """
        return request.handler

    def around_fetch(self, request: InFlight, _client_fetch: ClientFetch) -> Handler:
        """Return the handler of a fetch. A stage may wrap the handler from the earlier stages in its own.

        This is called once, before the fetch is parsed. The innermost handler is put in later, each time that
        the fetch is sent (`Handler.put`).
        """
        return request.handler

    def repeats(self, _api_key: int, _version: int, *, in_session: bool = False) -> bool:  # noqa: ARG002 - for others
        """Return whether requests like this one may take the fast path, so that the stage does not see them.

        The fast path forwards requests other than fetches unchanged. `in_session` is true for a fetch of the
        session. If the broker's response to this fetch has errors, it does not take the fast path.
        """
        return True

    # The life of the connection

    def connect_core(
        self,
        process: Callable[[bytes, int, int, int], bool],
        resume: Callable[[], None],
        settle: Callable[[], None],
    ) -> None:
        """Get the functions of the core, for stages that change or hold requests or responses.

        Args:
            process: see `ClientSide.process`.
            resume: makes the core process the client's waiting request again.
            settle: must be called after the stage has sent a response on its own, outside of a call of the
                core.
        """

    def attach(self, wake: Callable[[], None], alarm: Callable[[float], None]) -> None:
        """Attach the I/O shell. See `Connection.attach`."""

    def tick(self, now: float) -> None:
        """Do the work that is due at this time, in seconds."""

    def settle(self) -> None:
        """Process the complete responses for which the stage has called `ResponseQueue.claim`."""

    def close(self) -> None:
        """Accept no more requests, and finish the requests in flight."""

    def release(self) -> None:
        """Send all responses that the stage holds back, because the connection is about to end."""

    def lose(self) -> None:
        """Note that the connection to the broker is lost, so no more responses will come."""

    def end(self) -> None:
        """Note that the connection has ended."""
