"""What a connection says of itself: for `/state`, for metrics, and for the shell's look around. Sans-IO.

Nobody acts on these when bytes come. The shell asks every few seconds, or while memory is short. So they are
read from the connection's parts when somebody asks, and no command tells of them.
"""

from typing import Final

from proxy.core.broker_side import BrokerSide
from proxy.core.client_side import ClientSide
from proxy.core.connection_state import ConnectionState, Phase, Stream
from proxy.core.fast_path import FastPath
from proxy.core.fetches import Fetches
from proxy.core.in_flight import MAX_IN_FLIGHT, REQUEST_BYTES
from proxy.protocol.produce import READ_WITHIN

QUEUED_FREE: Final = 65_536
"""If a connection's requests have fewer bytes than this, they are not counted."""


class ConnectionStatus:
    """A view of a connection: each property is as things are when it is read. It keeps nothing.

    Args:
        state: the state of the connection.
        client_side: knows the client's software.
        broker_side: knows how many bytes of responses wait.
        fetches: knows the session at the broker.
        fast_path: knows when bytes of the broker last arrived.
    """

    __slots__ = ("_broker_side", "_client_side", "_fast_path", "_fetches", "_state")

    def __init__(
        self,
        state: ConnectionState,
        client_side: ClientSide,
        broker_side: BrokerSide,
        fetches: Fetches,
        fast_path: FastPath,
    ) -> None:
        self._state = state
        self._client_side = client_side
        self._broker_side = broker_side
        self._fetches = fetches
        self._fast_path = fast_path

    # The client and its session at the broker

    @property
    def client_id(self) -> str:
        """The client id, or "" before the client has sent it."""
        return self._state.client_id

    @property
    def software_name(self) -> str:
        """The name of the client's software (KIP-511), or "" if the client did not send it."""
        return self._client_side.software_name

    @property
    def software_version(self) -> str:
        """The version of that software, or "" if the client did not send it."""
        return self._client_side.software_version

    @property
    def fetch_version(self) -> int:
        """The version of the last fetch, or -1 before the first."""
        return self._fetches.version

    @property
    def session_id(self) -> int:
        """The session id at the broker, or 0 without a session."""
        return self._fetches.handler.session_id if self._fetches.handler.has_session else 0

    @property
    def session_epoch(self) -> int:
        """The epoch of the next incremental fetch, or 0 without a session."""
        return self._fetches.handler.epoch

    @property
    def session_partitions(self) -> int:
        """How many partitions the session has, or 0 without a session."""
        handler = self._fetches.handler
        return handler.table.size if handler.has_session and handler.table is not None else 0

    # What is in flight

    @property
    def begun(self) -> bool:
        """Whether a complete request was received, or more than READ_WITHIN bytes of a forwarded one.

        It is also true when the connection is not Kafka.
        """
        large = self._state.from_client.left > 0 and self._state.plans.count().client.bytes_in > READ_WITHIN
        return self._state.phase is not Phase.NEW or large or self._state.stream is Stream.WIRE

    @property
    def busy(self) -> bool:
        """Whether the client waits for a response. A partial request does not count.

        If it is not Kafka, the client counts as waiting once both sides have sent something, because it is
        unknown which side sends next.
        """
        if self._state.stream is Stream.WIRE:
            tally = self._state.plans.count()
            return tally.client.bytes_in > 0 and tally.broker.bytes_in > 0
        if self._state.from_client.left:
            return len(self._state.responses.expected) > (self._state.forwarding is not None)
        state = self._state
        return bool(state.responses.owed) or any(stage.busy for stage in state.stages)

    @property
    def full(self) -> bool:
        """Whether the limit of requests in flight is reached."""
        return len(self._state.responses.owed) >= MAX_IN_FLIGHT

    @property
    def outstanding(self) -> int:
        """How many requests the broker has not answered, including the gateway's own."""
        return len(self._state.responses.expected)

    @property
    def longest_wait(self) -> float:
        """How many seconds the requests in flight let the broker wait, at most: see `Handler.wait`.

        So may a request wait in a stage.
        """
        waits = [request.handler.wait for request in self._state.responses.expected]
        return max([0.0, *waits, *(stage.longest_wait for stage in self._state.stages)])

    @property
    def due_at(self) -> float | None:
        """The latest time for the broker's next response, in seconds. None if it owes no response.

        A broker answers one request after the other, so the first one counts. Its time starts when it was
        sent, or when the last bytes arrived, whichever is later. The wait that the request allows is added.
        """
        if not self._state.responses.expected:
            return None
        request = self._state.responses.expected[0]
        return max(request.sent_at, self._fast_path.began) + request.handler.wait

    @property
    def awaits_client(self) -> bool:
        """Whether the client has not completely sent the request that the broker answers next."""
        state, expected = self._state, self._state.responses.expected
        return bool(state.from_client.left and expected) and expected[0] is state.forwarding

    @property
    def completes_soon(self) -> bool:
        """Whether the incoming response is small enough to buffer even when memory is short."""
        expected = self._state.responses.expected
        if not self._state.from_broker.left or not expected:
            return False
        return self._state.response_size <= expected[0].handler.small

    @property
    def queued(self) -> int:
        """The bytes of the client's requests that are in flight or waiting, if there are many.

        Waiting bytes of their responses count, too.
        """
        state = self._state
        kept = len(state.from_client) + self._broker_side.waiting
        kept += len(state.responses.owed) * REQUEST_BYTES
        return kept if kept > QUEUED_FREE else 0
