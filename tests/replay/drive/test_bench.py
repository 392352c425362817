"""Tests that the benchmark's stub broker responds like a broker to each request of `drive`."""

import sys

import pytest

from proxy.addresses import Address
from replay.drive.target import read_metadata
from tools.bench.drive import PARTITIONS, TOPIC, fetches_per_second, metadata
from tools.bench.processes import HOST, Proxy
from tools.kafka.ports import free_ports


def test_its_metadata_names_itself_and_the_captures_topic() -> None:
    address = Address("127.0.0.1", 1234)

    brokers, _, topics = read_metadata(metadata(address), 12)

    assert brokers == {1: address}
    assert topics.keys() == {TOPIC}
    assert topics[TOPIC].partitions == PARTITIONS
    assert set(topics[TOPIC].leaders) == {1}


@pytest.mark.slow
def test_the_capture_can_be_played_at_it() -> None:
    port = free_ports(1)
    with Proxy([sys.executable, "-m", "tools.bench.drive", f"{HOST}:{port}"], port):
        assert fetches_per_second(Address(HOST, port), rounds=1) > 0
