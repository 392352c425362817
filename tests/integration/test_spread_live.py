"""The result of `measure --cooperative` for real traffic equals a count of the keys themselves."""

from collections import Counter
from pathlib import Path
from random import Random

from confluent_kafka import Consumer, Producer

from tests.features.cooperative.batch import member_of
from tests.integration.sniffing import sniffed
from tests.replay.measure.consumers import counts, measured
from tools.kafka import Broker
from tools.kafka.admin import Admin

RECORDS, MEMBERS = 1000, 5
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def consumed(bootstrap: str) -> list[tuple[int, bytes]]:
    """Read everything as the only member of a group. Return each record's partition and key."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "billing",
            "client.id": "billing.1",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["spread"])
    seen: list[tuple[int, bytes]] = []
    while len(seen) < len(CODECS) * RECORDS:
        message = consumer.poll(1)
        if message is not None and not message.error():
            seen.append((message.partition() or 0, message.key() or b""))
    consumer.close()
    return seen


def test_shares_are_those_of_the_keys(tmp_path: Path) -> None:
    chance = Random(1)
    with Broker() as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("spread", partitions=2)
        for codec in CODECS:
            producer = Producer({"bootstrap.servers": broker.address, "compression.type": codec})
            for _ in range(RECORDS):
                producer.produce("spread", b"v" * 50, key=f"customer-{int(30 * chance.random() ** 3)}")
            assert producer.flush(30) == 0
        with sniffed(tmp_path / "traffic.pcap", broker.port):
            seen = consumed(broker.address)
    (told,) = measured(tmp_path / "traffic.pcap", MEMBERS)["cooperative"]["groups"]

    expected: Counter[int] = Counter()
    for partition, key in seen:  # three members share partition 0, and two partition 1
        expected[partition + 2 * member_of(key, 3 - partition)] += 1
    assert (told["group"], told["records"]) == ("billing", len(CODECS) * RECORDS)
    assert (told["partitions"], told["unread_bytes"]) == (2, 0)
    assert counts(told) == [expected[member] for member in range(MEMBERS)]
    assert told["hottest_key"] is not None
    assert told["hottest_key"]["records"] == max(Counter(seen).values()) / len(seen)
