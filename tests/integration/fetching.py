"""A client that sends fetches without sessions to a broker or to the gateway, and compares the bytes."""

import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from tests.model.wire import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    decode_response,
    encode_request,
)
from tools.kafka.raw import API_VERSIONS, RawConnection, frame

FETCHES_TO_SESSION = 4
"""The number of equal fetches in a row after which a gateway uses a session."""


class Fetcher:
    """Fetches all partitions of one topic repeatedly, by default from offset 0.

    Args:
        address: the broker's or the gateway's address, "host:port".
        topic: the name of the topic.
        partitions: the number of partitions to fetch.
        client_id: the client id in every request.
        version: the version of Fetch, up to 12 (with topic names).
    """

    def __init__(
        self, address: str, topic: str, partitions: int, *, client_id: str = "fetcher", version: int = 11
    ) -> None:
        host, port = address.rsplit(":", 1)
        self.connection = RawConnection(host, int(port))
        self.template = FetchRequest(
            version=version, client_id=client_id, max_bytes=1 << 26, topics=_topics(topic, [0] * partitions)
        )
        self._correlation_id = 100

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def socket(self) -> socket.socket:
        """The socket of the connection."""
        return self.connection.socket

    def seek(self, offsets: Sequence[int]) -> None:
        """From now on, fetch from these offsets. There is one offset for each partition."""
        self.template = replace(self.template, topics=_topics(self.template.topics[0].topic, offsets))

    def close(self) -> None:
        """Close the socket."""
        self.connection.close()

    def hello(self) -> Self:
        """Request ApiVersions, the first request of every client."""
        self.connection.call(API_VERSIONS, 0, b"", self.template.client_id)
        return self

    def request(self, **changes: object) -> FetchRequest:
        """Return the next fetch, without sending it."""
        self._correlation_id += 1
        return replace(self.template, correlation_id=self._correlation_id, **changes)  # type: ignore[arg-type]  # the fields of FetchRequest

    def bytes_of(self, request: FetchRequest) -> bytes:
        """Return the complete frame of a request."""
        return frame(encode_request(request))

    def send(self, **changes: object) -> FetchRequest:
        """Send a fetch without waiting for its response."""
        request = self.request(**changes)
        self.socket.sendall(self.bytes_of(request))
        return request

    def receive(self) -> FetchResponse:
        """Receive the next response to a fetch."""
        return decode_response(self.connection.receive(), self.template.version)

    def fetch(self, **changes: object) -> FetchResponse:
        """Send a fetch and receive its response.

        Raises:
            ValueError: the response has another correlation id.
        """
        request = self.send(**changes)
        response = self.receive()
        if response.correlation_id != request.correlation_id:
            raise ValueError(f"asked {request.correlation_id}, answered {response.correlation_id}")
        return replace(response, correlation_id=0)

    def fetches(self, count: int = FETCHES_TO_SESSION) -> list[FetchResponse]:
        """Send `count` fetches in sequence. The default is enough for the gateway to use a session."""
        return [self.fetch() for _ in range(count)]


def _topics(topic: str, offsets: Sequence[int]) -> tuple[FetchTopic, ...]:
    partitions = tuple(
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 26)
        for index, offset in enumerate(offsets)
    )
    return (FetchTopic(topic=topic, partitions=partitions),)


def same_content(response: FetchResponse) -> dict[tuple[str, int], object]:
    """Return a response's entries by partition, because their order is not guaranteed."""
    return {
        (topic.topic, data.partition_index): data for topic in response.topics for data in topic.partitions
    }


def contents(responses: Sequence[FetchResponse]) -> list[dict[tuple[str, int], object]]:
    """Return the entries of several responses."""
    return [same_content(response) for response in responses]
