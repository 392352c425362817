"""Two model brokers with the same topics, for the scripts of conformance cases 14 to 48."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.features.client_sessions.serving import Finish
from tests.model.broker import ModelBroker
from tests.model.wire import decode_request, encode_response


class Modelled:
    """Two model brokers that share their topics. The first has sessions, the second has none."""

    def __init__(self, release: str = "4.3") -> None:
        self.native = ModelBroker(release=release)
        self.bare = ModelBroker(
            release=release, slots=0, topics=self.native.topics, denied=self.native.denied
        )

    def create(self, name: str, partitions: int) -> bytes:
        return self.native.create_topic(name, partitions).topic_id

    def delete(self, name: str) -> None:
        self.native.delete_topic(name)

    def full(self, name: str) -> str:
        return name

    def produce(self, name: str, partition: int, size: int = 10) -> None:
        self.native.partition(name, partition).append(bytes(size))

    @contextmanager
    def hold(self, name: str, partition: int) -> Iterator[None]:
        self.native.partition(name, partition).append(b"open", producer=9)
        yield
        self.native.partition(name, partition).end_transaction(9, commit=True)

    def delete_records(self, name: str, partition: int, before: int) -> None:
        self.native.partition(name, partition).delete_records(before)

    def parked(self) -> None:
        """Do nothing. A model broker receives a request at once, so there is nothing to wait for."""

    @contextmanager
    def throttled(self, name: str, partition: int) -> Iterator[None]:
        self.produce(name, partition, 1000)
        self.native.throttle_ms = self.bare.throttle_ms = 40
        yield
        self.native.throttle_ms = self.bare.throttle_ms = 0


def parked(broker: ModelBroker, message: bytes) -> Finish:
    """Let a model broker receive a request. The broker reads the log only when it is told to respond.

    Return the function that makes the broker read the log and respond.
    """
    pending = broker.arrive(decode_request(message), 0.0)
    return lambda: encode_response(broker.response(pending, 0.0))
