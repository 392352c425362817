"""Compares two clients without sessions: one direct to a model broker, one behind the gateway's core."""

from dataclasses import dataclass, field
from typing import Any

from proxy.core.connection import Connection
from proxy.core.eligibility import SessionLimits
from tests.model.asker import Asker, Want, lines
from tests.model.broker import ModelBroker
from tests.model.gate import Gate
from tests.model.log import Partition
from tests.model.wire import (
    FetchRequest,
    FetchResponse,
    NodeEndpoint,
    decode_response,
    encode_request,
)

API_VERSIONS = bytes.fromhex("00120000000000630001") + b"c"
B2 = NodeEndpoint(node_id=2, host="b2", port=9092)
UNTIL_A_SESSION = 3


@dataclass
class Client:
    """A test setup: a client without sessions, the gateway's core, and a model broker of a chosen release."""

    version: int = 16
    release: str = "4.3"
    partitions: int = 5
    slots: int = 1000
    sessions: SessionLimits = field(default_factory=lambda: SessionLimits(max_sessions=10))
    now: float = 0.0

    def __post_init__(self) -> None:
        self.broker = ModelBroker(release=self.release, slots=self.slots)
        for name in ("t", "u"):
            self.broker.create_topic(name, self.partitions if name == "t" else 5)
        self.connect()

    def connect(self) -> None:
        """Open a new connection for the same client."""
        self.connection = Connection(sessions=self.sessions, resolve=None)
        self.gate = Gate(self.connection, self.broker)
        self.gate.exchange([API_VERSIONS], self.now)
        self.asker = Asker(version=self.version, broker=self.broker).learn()

    def part(self, name: str = "t", index: int = 0) -> Partition:
        return self.broker.partition(name, index)

    def through(self, request: FetchRequest) -> FetchResponse:
        (response,) = self.gate.exchange([encode_request(request)], self.now)
        return decode_response(response, request.version)

    def fetch(self, *wants: Want, **fields: Any) -> FetchResponse:
        """Send a fetch through the gateway. Do not compare the response with a direct fetch."""
        return self.through(self.asker.request(*wants, **fields))

    def same(self, *wants: Want, **fields: Any) -> FetchResponse:
        """Send a fetch both through the gateway and directly, and check that the responses are equal."""
        request = self.asker.request(*wants, **fields)
        direct = self.broker.handle(encode_request(request), self.now)
        (got,) = self.gate.exchange([encode_request(request)], self.now)
        response = decode_response(got, self.version)
        assert lines(response) == lines(decode_response(direct, self.version))
        assert got == direct
        return response

    def established(self, *wants: Want, **fields: Any) -> "Client":
        """Repeat the same fetch until the broker has given the gateway a session."""
        for _ in range(UNTIL_A_SESSION):
            self.same(*wants, **fields)
            if self.connection.state.session_epoch:
                break
        assert self.connection.state.session_epoch == 1
        return self

    @property
    def incremental(self) -> int:
        """Return the number of fetches that were sent as incremental fetches."""
        return self.connection.tally.broker.fetches[1]


def all_of(partitions: int = 5, offset: int = 0, size: int = 1 << 20) -> list[Want]:
    return [("t", index, offset, size) for index in range(partitions)]


IDLE: list[Want] = [("u", index) for index in range(5)]
"""Idle partitions. There are enough of them to make an incremental fetch smaller than a full fetch."""


def filled(batches: list[int], *, version: int = 16, partitions: int = 5) -> Client:
    """Return a client with a session, which has read all partitions to their end.

    `batches` gives the sizes of the batches in each partition of the first topic.
    """
    client = Client(version, partitions=partitions)
    for index in range(partitions):
        for size in batches:
            client.part("t", index).append(bytes(size))
    return client.established(*all_of(partitions, len(batches)), *IDLE)
