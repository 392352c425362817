"""With brokers other than Kafka, entries that the gateway fills in look like the broker's own entries.

franz-go's kfake, for example, sends null for a fetch without aborted transactions, even for read_committed.
"""

from typing import Any

import pytest

from proxy.core.eligibility import SessionLimits
from tests.model.asker import Requests, Want
from tests.model.broker import ModelBroker
from tests.model.compare import check
from tests.model.gate import Gate
from tests.model.wire import FetchRequest, FetchResponse, decode_response, encode_request
from tests.sessionless import API_VERSIONS
from tests.twin import Twin

WANTS: list[Want] = [(name, index) for name in ("t", "u") for index in range(8)]


class Client(Requests):
    """A client without sessions whose responses are compared with those of direct fetches."""

    def __init__(
        self,
        version: int,
        *,
        wants: list[Want] = WANTS,
        model: type[ModelBroker] = ModelBroker,
        **broker: Any,
    ) -> None:
        super().__init__(version=version)
        self.broker = model(**broker)
        for name in ("t", "u"):
            self.ids[name] = self.broker.create_topic(name, 8).topic_id
        self.wants = list(wants)
        self.now = 0.0
        self.offsets: dict[tuple[str, int], int] = {}
        self.gate = Gate(
            Twin(sessions=SessionLimits(max_sessions=10), resolve=None),
            self.broker,
        )
        self.gate.exchange([API_VERSIONS], 0.0)

    def send(self, request: FetchRequest) -> FetchResponse:
        direct = decode_response(self.broker.handle(encode_request(request), self.now), self.version)
        told = self.through(request)
        check(request, told, direct)
        return told

    def through(self, request: FetchRequest) -> FetchResponse:
        (response,) = self.gate.exchange([encode_request(request)], self.now)
        return decode_response(response, self.version)

    def poll(self, isolation_level: int, **fields: int) -> FetchResponse:
        wants = [(name, index, self.offsets.get((name, index), 0)) for name, index, *_ in self.wants]
        told = self.fetch(*wants, isolation_level=isolation_level, **fields)
        self.wants = self.wants[1:] + self.wants[:1]
        return told

    def read_to_the_end(self) -> None:
        for name, index, *_ in self.wants:
            self.offsets[name, index] = self.broker.partition(name, index).log_end


@pytest.mark.parametrize("version", [4, 7, 11, 12, 16])
@pytest.mark.parametrize("dialect", ["", "null", "list"])
@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("wants", [WANTS, WANTS[:8]], ids=["two topics", "one topic"])
def test_filled_in_entries_end_as_this_broker_writes_them(
    version: int, dialect: str, isolation_level: int, wants: list[Want]
) -> None:
    """Entries that the gateway fills in end like this broker's own entries without records.

    The partition is idle, gets records, then an aborted transaction, and is idle again.
    """
    client = Client(version, wants=wants, dialect=dialect)
    partition = client.broker.partition("t", 2)
    partition.append(b"in transaction", producer=1)
    partition.end_transaction(1, commit=False)
    client.poll(isolation_level)
    client.read_to_the_end()
    for step in range(12):
        if step == 4:
            client.broker.partition("t", 3).append(b"data")
        elif step == 6:
            partition.append(b"in transaction", producer=1)
            partition.end_transaction(1, commit=False)
        client.poll(isolation_level)
        if step % 2:
            client.read_to_the_end()
    assert client.gate.connection.tally.broker.fetches[1] > 8


@pytest.mark.parametrize("version", [4, 7, 11, 12, 16])
def test_records_are_null_only_where_the_broker_wrote_so_itself(version: int) -> None:
    """The gateway fills in null records only for a partition in which the broker itself sent null records.

    For other partitions, null records would crash librdkafka (section 6.2).
    """
    client = Client(version, dialect="null records")
    for step in range(8):
        if step == 5:
            client.broker.partition("t", 3).append(b"data")
        client.poll(0)
        client.read_to_the_end()
    assert client.gate.connection.tally.broker.fetches[1] > 4


@pytest.mark.parametrize("version", [7, 12])
@pytest.mark.parametrize("dialect", ["", "null"])
def test_a_batch_that_does_not_fit_says_nothing_of_later_entries(version: int, dialect: str) -> None:
    """Section 1.4: the entry of a batch that did not fit has null instead of a list of aborted transactions.

    The gateway does not copy this null into later entries: filled-in entries have a list again.
    """
    client = Client(version, wants=WANTS[:8], dialect=dialect)
    for _ in range(3):
        client.poll(1)
    for index in (1, 5):
        client.broker.partition("t", index).append(b"r" * 300)
    client.poll(1, max_bytes=450)
    client.offsets["t", 1] = 1
    client.poll(1, max_bytes=450)
    client.offsets["t", 5] = 1
    for _ in range(3):
        client.poll(1)


@pytest.mark.parametrize("version", [4, 7, 12])
def test_a_broker_that_throttles_without_emptying_loses_no_entries(version: int) -> None:
    """Trap 13: a broker without KIP-219 throttles and still sends entries, and no entry is lost.

    The gateway sees this in the first throttled response, and completes all later ones.
    """
    client = Client(version, empties=False)
    client.broker.throttle_ms = 30
    for _ in range(6):
        told = client.poll(0)
        assert told.throttle_time_ms == 30
        assert sum(len(topic.partitions) for topic in told.topics) == len(WANTS)
    assert client.gate.connection.tally.broker.fetches[1] > 3
