"""A real broker and a model broker that get the same changes, so that their responses can be compared."""

import struct
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from tests.integration.producing import CONTROL, TRANSACTIONAL, Producer, Transaction
from tests.model.broker import ModelBroker
from tests.model.log import Partition
from tests.model.wire import (
    ZERO_ID,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    decode_response,
    encode_request,
)
from tools.kafka import Broker
from tools.kafka.admin import Admin
from tools.kafka.raw import RawConnection, frame

PATIENCE = 60.0
"""The time limit until a broker shows a change, in seconds."""

LIVE_PROPERTIES: Final = {"transaction.state.log.num.partitions": 1}


def until(ready: Callable[[], bool], what: str) -> None:
    """Wait until a change is visible at the broker.

    Raises:
        TimeoutError: the change was not visible within `PATIENCE`.
    """
    deadline = time.monotonic() + PATIENCE
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.01)


class Live:
    """A real broker. Requests and responses use the codec of the model broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.connection = RawConnection(broker.host, broker.port)
        self.producer = Producer(broker.host, broker.port)
        self.admin = Admin(broker.address)
        self.fetch_versions = self.connection.versions()[1]

    def __enter__(self) -> Self:
        self.admin.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.admin.__exit__(kind, error, traceback)
        self.producer.close()
        self.connection.close()

    def fetch(self, request: FetchRequest) -> FetchResponse:
        self.connection.socket.sendall(frame(encode_request(request)))
        return decode_response(self.connection.receive(), request.version)

    def peek(self, topic: str, partition: int, offset: int = 0, *, isolation_level: int = 0) -> PartitionData:
        """Fetch up to 64 MiB of one partition, from `offset` on, by topic name and without a session."""
        entry = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 26)
        request = FetchRequest(
            version=5,
            isolation_level=isolation_level,
            topics=(FetchTopic(topic=topic, partitions=(entry,)),),
        )
        return self.fetch(request).topics[0].partitions[0]

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic, and wait until all of its partitions have leaders."""
        self.admin.create_topic(name, partitions=partitions)
        self.settle(name, partitions)

    def settle(self, name: str, partitions: int) -> None:
        """Wait until all partitions of a topic can be read."""
        until(lambda: all(self.peek(name, index).error_code in (0, 1) for index in range(partitions)), name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until the broker returns error 3 (unknown topic) for it."""
        self.admin.delete_topic(name)
        until(lambda: self.peek(name, 0).error_code == 3, f"{name} gone")

    def end_transaction(self, transaction: Transaction, topic: str, partition: int, *, commit: bool) -> None:
        """End a transaction, and wait until its marker is in the log of one partition."""
        before = self.admin.offsets(topic)[partition]
        self.producer.end(transaction, commit=commit)
        until(lambda: self.admin.offsets(topic)[partition] > before, "transaction marker")

    def topic_id(self, name: str) -> bytes:
        """Return a topic's id, or zeros if the broker has no ids."""
        return self.admin.topic_id(name).bytes if self.fetch_versions[1] >= 13 else ZERO_ID


def absorb(partition: Partition, records: bytes) -> None:
    """Append a live broker's batches to a model's partition."""
    at = 0
    while at < len(records):
        base, length = struct.unpack_from(">qi", records, at)
        data = records[at : at + 12 + length]
        attributes, delta = struct.unpack_from(">hi", data, 21)
        (producer,) = struct.unpack_from(">q", data, 43)
        at += len(data)
        if base + delta < partition.log_end:
            continue
        if attributes & CONTROL:
            # At 61: the record's length, attributes, two deltas, its key's length, the key's version.
            (kind,) = struct.unpack_from(">h", data, 61 + 5 + 2)
            partition.end_transaction(producer, commit=kind == 1, marker=data)
            continue
        partition.append(data, count=delta + 1, producer=producer if attributes & TRANSACTIONAL else None)


class Mirror:
    """Applies the same changes to a real broker and to the model.

    The model gets the batches that the real broker wrote.
    """

    def __init__(self, live: Live, model: ModelBroker) -> None:
        self.live = live
        self.model = model

    def create_topic(self, name: str, partitions: int) -> None:
        self.live.create_topic(name, partitions)
        self.model.create_topic(name, partitions).topic_id = self.live.topic_id(name)

    def delete_topic(self, name: str) -> None:
        self.live.delete_topic(name)
        self.model.delete_topic(name)

    def add_partition(self, name: str) -> None:
        partitions = self.model.topics[name].partitions
        self.live.admin.add_partitions(name, len(partitions) + 1)
        partitions[len(partitions)] = Partition(self.model.node_id)
        self.live.settle(name, len(partitions))

    def delete_records(self, name: str, index: int, before: int) -> None:
        self.live.admin.delete_records(name, {index: before})
        self.model.partition(name, index).delete_records(before)

    def produce(
        self, name: str, index: int, values: list[bytes], transaction: Transaction | None = None
    ) -> None:
        self.live.producer.produce(name, index, values, transaction)
        self.catch_up(name, index)

    def catch_up(self, name: str, index: int) -> None:
        """Add the new batches in the real broker's partition to the model's partition."""
        partition = self.model.partition(name, index)
        absorb(partition, self.live.peek(name, index, partition.log_end).records or b"")
