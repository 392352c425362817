"""The client of a model broker. Tests pass short arguments. The client sends complete frames and decodes the
responses.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.model.broker import ModelBroker
from tests.model.wire import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    decode_response,
    encode_request,
)

Want = tuple[str, int] | tuple[str, int, int] | tuple[str, int, int, int]
"""One wanted partition: topic, partition, fetch offset (default 0), partition_max_bytes (default 1 MiB)."""


@dataclass
class Requests:
    """Requests to a broker at one Fetch version. A subclass defines the broker, in `send`."""

    version: int = 11
    ids: dict[str, bytes] = field(default_factory=dict)
    correlation: int = 0

    def key(self, name: str) -> dict[str, Any]:
        return {"topic": name} if self.version <= 12 else {"topic_id": self.ids[name]}

    def topics(self, wants: Iterable[Want], **values: Any) -> tuple[FetchTopic, ...]:
        """Return the topic elements of a request. Consecutive partitions of a topic share an element."""
        elements: list[FetchTopic] = []
        for name, index, *rest in wants:
            offset, size = [*rest, 0, 1 << 20][0], [*rest[1:], 1 << 20][0]
            part = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=size, **values)
            element = FetchTopic(**self.key(name), partitions=(part,))
            if elements and (elements[-1].topic, elements[-1].topic_id) == (element.topic, element.topic_id):
                element = FetchTopic(**self.key(name), partitions=(*elements.pop().partitions, part))
            elements.append(element)
        return tuple(elements)

    def request(
        self,
        *wants: Want,
        session: tuple[int, int] = (0, -1),
        forget: Iterable[tuple[str, int]] = (),
        values: dict[str, int] | None = None,
        **fields: Any,
    ) -> FetchRequest:
        self.correlation += 1
        return FetchRequest(
            version=self.version,
            correlation_id=self.correlation,
            session_id=session[0],
            session_epoch=session[1],
            topics=self.topics(wants, **(values or {})),
            forgotten=tuple(ForgottenTopic(**self.key(name), partitions=(index,)) for name, index in forget),
            **fields,
        )

    def send(self, request: FetchRequest) -> FetchResponse:
        raise NotImplementedError

    def fetch(self, *wants: Want, **options: Any) -> FetchResponse:
        """Fetch the partitions `wants`. `options` are the options of `request`."""
        return self.send(self.request(*wants, **options))

    def names(self, response: FetchResponse) -> list[tuple[str, int]]:
        """Return (topic name, partition) for each entry of a response, in the response's order."""
        by_id = {topic_id: name for name, topic_id in self.ids.items()}
        return [
            (topic.topic or by_id.get(topic.topic_id, "?"), data.partition_index)
            for topic in response.topics
            for data in topic.partitions
        ]


@dataclass
class Asker(Requests):
    """Sends requests to a model broker. It remembers topic ids, so that it can request deleted topics."""

    broker: ModelBroker = field(default_factory=ModelBroker)
    now: float = 0.0

    def learn(self) -> "Asker":
        """Read the broker's current topic ids, and return this asker."""
        self.ids |= {name: topic.topic_id for name, topic in self.broker.topics.items()}
        return self

    def send(self, request: FetchRequest) -> FetchResponse:
        response = decode_response(self.broker.handle(encode_request(request), self.now), request.version)
        assert response.correlation_id == request.correlation_id
        return response


class Session:
    """A fetch session of an asker. `fetch` and `names` both send the next incremental fetch."""

    def __init__(self, asker: Asker, *wants: Any, **options: Any) -> None:
        self.asker = asker
        self.first = asker.fetch(*wants, session=(0, 0), **options)
        self.id = self.first.session_id
        self.epoch = 0
        self.options = options

    def fetch(self, *wants: Any, **options: Any) -> FetchResponse:
        self.epoch += 1
        return self.asker.fetch(*wants, session=(self.id, self.epoch), **(self.options | options))

    def names(self, *wants: Any, **options: Any) -> list[tuple[str, int]]:
        """Send the next incremental fetch. Return the partitions in its response."""
        return self.asker.names(self.fetch(*wants, **options))

    @property
    def order(self) -> list[tuple[str, int]]:
        session = self.asker.broker.cache.sessions[self.id]
        return [(held.topic or "", held.entry.partition) for held in session.partitions.values()]


def entries(response: FetchResponse) -> list[PartitionData]:
    return [data for topic in response.topics for data in topic.partitions]


def errors(response: FetchResponse) -> list[int]:
    return [data.error_code for data in entries(response)]


def sizes(response: FetchResponse) -> list[int]:
    return [len(data.records or b"") for data in entries(response)]


def lines(response: FetchResponse) -> list[str]:
    """Format a response as text for readable diffs, with one entry on each line.

    The text does not have the session id.
    """
    head = f"error={response.error_code} throttle={response.throttle_time_ms} tags={response.tags}"
    return [head] + [
        f"{topic.topic or topic.topic_id.hex()}-{data.partition_index} in element {number}: "
        f"error={data.error_code} hw={data.high_watermark} lso={data.last_stable_offset} "
        f"start={data.log_start_offset} aborted={data.aborted} preferred={data.preferred_read_replica} "
        f"records={'null' if data.records is None else data.records.hex()} tags={data.tags}"
        for number, topic in enumerate(response.topics)
        for data in topic.partitions
    ]


def summary(response: FetchResponse) -> tuple[int, int, int]:
    """Return (error, session id, number of entries) of a response."""
    return response.error_code, response.session_id, len(entries(response))
