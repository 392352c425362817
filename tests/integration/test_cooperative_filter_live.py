"""The filter of cooperative consuming, on batches that librdkafka wrote and a real broker stored."""

from collections.abc import Iterator
from typing import Final

import confluent_kafka
import pytest

from proxy.features.cooperative.batches import read_header
from proxy.features.cooperative.filtered import split_records
from proxy.features.cooperative.key_hash import SPACE, murmur2, offset_hash
from proxy.features.cooperative.ranges import Split
from tests.features.cooperative.batch import Record, read
from tests.integration.fetching import Fetcher
from tests.integration.mirror import LIVE_PROPERTIES, Live
from tests.integration.producing import CONTROL
from tools.kafka import Broker

pytestmark = pytest.mark.integration

CODECS: Final = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
LANES: Final = 4
RECORDS: Final = 2_000
PART: Final = SPACE // LANES
TIMESTAMP: Final = 1_700_000_000_000


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    # Its records are years old: from its first look on, 30 s after the start, retention would delete them.
    kept = {**LIVE_PROPERTIES, "log.retention.ms": "-1"}
    with Broker("4.3.0", properties=kept) as broker, Live(broker) as live:
        yield live


def produce(address: str, topic: str, codec: str, *, transactions: bool) -> list[Record]:
    """Write records, and return them with their offsets. Every third transaction is aborted."""
    config: dict[str, str | int | bool] = {
        "bootstrap.servers": address,
        "compression.type": codec,
        "linger.ms": 50,
        "enable.idempotence": True,
    }
    if transactions:
        config["transactional.id"] = topic
    producer = confluent_kafka.Producer(config)
    if transactions:
        producer.init_transactions(30)
    offsets: list[int] = []
    sent: list[Record] = []

    def note(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        assert error is None
        offsets.append(message.offset() or 0)

    for number in range(RECORDS):
        if transactions and number % 100 == 0:
            producer.begin_transaction()
        key = None if number % 10 == 0 else b"" if number % 10 == 1 else b"key-%d" % (number % 173)
        value = None if number % 50 == 0 else b"value %d" % number * (number % 7)
        headers = (("h", b"%d" % number),) if number % 3 == 0 else ()
        sent.append(Record(0, key, value, headers, TIMESTAMP + number))
        producer.produce(
            topic, value, key, 0, on_delivery=note, timestamp=TIMESTAMP + number, headers=list(headers)
        )
        if transactions and number % 100 == 99:
            producer.flush(30)
            if number // 100 % 3:
                producer.commit_transaction(30)
            else:
                producer.abort_transaction(30)
    assert not producer.flush(30)
    return [record._replace(offset=offset) for record, offset in zip(sent, offsets, strict=True)]


@pytest.mark.parametrize("transactions", [False, True], ids=["plain", "transactions"])
@pytest.mark.parametrize("codec", CODECS)
def test_each_lane_gets_its_records(live: Live, codec: str, transactions: bool) -> None:
    topic = f"filter-{codec}-{transactions}"
    live.create_topic(topic, 1)
    written = produce(live.broker.address, topic, codec, transactions=transactions)
    split = Split([((lane * PART, (lane + 1) * PART - 1),) for lane in range(LANES)])
    got: list[list[Record]] = [[] for _ in range(LANES)]
    at, end = 0, written[-1].offset + 1 + transactions  # the last marker
    with Fetcher(live.broker.address, topic, 1).hello() as fetcher:
        while at < end:
            fetcher.seek([at])
            (entry,) = fetcher.fetch().topics[0].partitions
            records = entry.records or b""
            assert read_header(records, 0).attributes & 7 in {CODECS[codec], 0}  # a marker is not compressed
            found = split_records(records, split, [0] * len(split.starts), [0] * len(split.lanes))
            for share, lane in zip(found.lanes, got, strict=True):
                for data in share.batches:
                    if not read_header(data, 0).attributes & CONTROL:
                        lane.extend(read(data))
            at = found.end

    assert at == end
    for number, lane in enumerate(got):
        assert lane == [record for record in written if hash_of(record) // PART == number]


def hash_of(record: Record) -> int:
    return offset_hash(record.offset) if record.key is None else murmur2(record.key)
