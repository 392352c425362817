"""A view of a connection's state, for `/state`, metrics, and the shell's regular checks. Sans-IO.

The shell reads these values every few seconds, while memory is short, or when a side ends. No value is needed
to process bytes. So each value is computed from the parts of the connection when it is read.
"""

from typing import Final

from proxy.core.broker_side import BrokerSide
from proxy.core.client_side import ClientSide
from proxy.core.connection_state import ConnectionState, Phase, Stream
from proxy.core.fast_path import FastPath
from proxy.core.fetches import Fetches
from proxy.core.in_flight import MAX_IN_FLIGHT, REQUEST_BYTES
from proxy.protocol.api import ApiKey
from proxy.protocol.produce import READ_WITHIN
from proxy.session.decision import Reason

QUEUED_FREE: Final = 65_536
"""The largest number of bytes for which `queued` is 0."""


class ConnectionStatus:
    """A view of a connection. Each property is computed when it is read."""

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

    @property
    def between_requests(self) -> bool:
        return self._state.between_requests

    # The client and its session at the broker

    @property
    def client_id(self) -> str:
        return self._state.client_id

    @property
    def software_name(self) -> str:
        """The name of the client's software (KIP-511)."""
        return self._client_side.software_name

    @property
    def software_version(self) -> str:
        return self._client_side.software_version

    @property
    def fetch_version(self) -> int:
        """The version of the client's last fetch that was read, or -1 before the first one."""
        return self._state.client_version or self._fetches.version

    @property
    def session_id(self) -> int:
        return self._fetches.session.session_id if self._fetches.session.has_session else 0

    @property
    def session_epoch(self) -> int:
        """The epoch of the next incremental fetch, or 0 without a session."""
        return self._fetches.session.epoch

    @property
    def session_partitions(self) -> int:
        handler = self._fetches.session
        return handler.table.size if handler.has_session and handler.table is not None else 0

    @property
    def lacks_slot(self) -> bool:
        """Whether the last fetch has no session because all slots of the gateway are used."""
        return self._fetches.decided is Reason.NO_SLOT

    # What is in flight

    @property
    def begun(self) -> bool:
        """Whether `Phase.NEW` is over, or more than READ_WITHIN bytes of a forwarded request were received.

        Also true if the protocol is not Kafka.
        """
        large = self._state.from_client.left > 0 and self._state.plans.count().client.bytes_in > READ_WITHIN
        return self._state.phase is not Phase.NEW or large or self._state.stream is Stream.WIRE

    @property
    def busy(self) -> bool:
        """Whether the client waits for a response, or a stage still has work for it.

        An incomplete request does not count. If the protocol is not Kafka, it is unknown which side sends
        next. Then the client counts as waiting once both sides have sent something.
        """
        if self._state.stream is Stream.WIRE:
            tally = self._state.plans.count()
            return tally.client.bytes_in > 0 and tally.broker.bytes_in > 0
        if self._state.from_client.left:
            return len(self._state.queue.expected) > (self._state.forwarding is not None)
        state = self._state
        return bool(state.queue.owed) or any(stage.busy for stage in state.stages)

    @property
    def full(self) -> bool:
        return len(self._state.queue.owed) >= MAX_IN_FLIGHT

    @property
    def outstanding(self) -> int:
        """The number of requests that the broker has not answered, including the gateway's own requests."""
        return len(self._state.queue.expected)

    @property
    def longest_wait(self) -> float:
        """The longest time for which a request in flight may wait at the broker or in a stage, in seconds."""
        waits = [request.handler.wait for request in self._state.queue.expected]
        return max([0.0, *waits, *(stage.longest_wait for stage in self._state.stages)])

    @property
    def due_at(self) -> float | None:
        """The time until which the broker may delay its next response, in seconds, if one is expected.

        A broker answers requests one by one, so the oldest request counts. Its wait starts when it was sent,
        or when the broker's last bytes arrived, whichever is later.
        """
        if not self._state.queue.expected:
            return None
        request = self._state.queue.expected[0]
        return max(request.sent_at, self._fast_path.began) + request.handler.wait

    @property
    def awaits_client(self) -> bool:
        """Whether the client has sent only a part of the request that the broker answers next."""
        state, expected = self._state, self._state.queue.expected
        return bool(state.from_client.left and expected) and expected[0] is state.forwarding

    @property
    def completes_soon(self) -> bool:
        """Whether the incoming response is small enough to buffer even when memory is short."""
        expected = self._state.queue.expected
        if not self._state.from_broker.left or not expected:
            return False
        return self._state.response_size <= expected[0].handler.small

    @property
    def arriving(self) -> tuple[int, int]:
        """The received bytes of an incomplete fetch response, and the received bytes that wait in the core.

        Not all of these bytes are in the counts of fetches and records yet.
        """
        responses, expected = self._state.from_broker, self._state.queue.expected
        fetched = responses.left and expected and expected[0].api_key == ApiKey.FETCH
        return (self._state.response_size - responses.left if fetched else 0), len(responses)

    @property
    def queued(self) -> int:
        """The memory of requests in flight and of waiting bytes of both sides. 0 up to `QUEUED_FREE`."""
        state = self._state
        kept = len(state.from_client) + self._broker_side.waiting
        kept += len(state.queue.owed) * REQUEST_BYTES
        return kept if kept > QUEUED_FREE else 0
