"""The racks of brokers and their zones (`--rack`; proxy/features/racks/README.md)."""

import pytest

from proxy.features.racks.racks import BrokerRacks, Zone
from proxy.protocol.brokers import Broker, read_brokers
from tests.features.racks.racks import DESCRIBE_CLUSTER, METADATA, brokers, play, told
from tests.playbook import request


@pytest.mark.parametrize("resolves", [False, True])
@pytest.mark.parametrize("chunk", [1, 13, 1 << 20])
@pytest.mark.parametrize(
    ("key", "version"),
    [*((METADATA, each) for each in range(1, 14)), *((DESCRIBE_CLUSTER, v) for v in range(3))],
)
def test_rule_1_racks_come_from_metadata_and_describe_cluster(
    key: int, version: int, chunk: int, *, resolves: bool
) -> None:
    """The response reaches the client unchanged, in whatever pieces it comes."""
    racks = BrokerRacks("R2")
    one = play(racks, resolves=resolves)
    head = b"\0" if key == DESCRIBE_CLUSTER or version >= 9 else b""
    asked = request(key, version, 7, head)
    one.client(asked).to_broker(asked)
    answer = told(key, version, brokers(version, key=key))
    one.broker(answer, chunk=chunk).to_client(answer)
    assert racks.by_node == {1: "R1", 2: "R2", 3: ""}
    zones = [Zone.OTHER, Zone.SAME, Zone.UNKNOWN, Zone.UNKNOWN]
    assert [racks.zone(node_id) for node_id in (1, 2, 3, 4)] == zones
    assert [racks.zone_at(f"kafka-{node_id}", 9092) for node_id in (1, 2, 3, 4)] == zones
    racks.found_at("10.0.0.2", Broker(2, "kafka-2", 9092, "R2"))
    assert racks.zone_at("10.0.0.2", 9092) is Zone.SAME
    assert racks.zone_at("10.0.0.2", 9093) is Zone.UNKNOWN


def test_rule_1_the_newest_response_wins() -> None:
    racks = BrokerRacks("R2")
    one = play(racks)
    responses: list[dict[int, str | None]] = [{1: "R1"}, {1: "R2", 4: "R1"}, {4: None}]
    for number, told_racks in enumerate(responses, 1):
        one.exchange(request(METADATA, 5, number), told(METADATA, 5, brokers(5, told_racks), number))
    assert racks.by_node == {1: "R2", 4: ""}
    assert racks.is_here(1)


def test_rule_1_the_newest_response_wins_though_an_older_one_had_the_same_bytes() -> None:
    """Clients with other versions see changes of the cluster between these two."""
    racks = BrokerRacks("R2")
    one = play(racks)
    for number, (version, rack) in enumerate([(5, "R1"), (4, "R2"), (5, "R1"), (4, "R1"), (4, "R2")], 1):
        answer = told(METADATA, version, brokers(version, {1: rack}), number)
        one.exchange(request(METADATA, version, number), answer)
        assert racks.by_node == {1: rack}


def test_brokers_that_a_response_names_again_are_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing them took a fourth of the gateway's time for a Metadata response."""
    parsed: list[tuple[int, int]] = []

    def parse(api_key: int, version: int, body: bytes) -> tuple[list[Broker], int]:
        parsed.append((api_key, version))
        return read_brokers(api_key, version, body)

    monkeypatch.setattr("proxy.features.racks.racks.read_brokers", parse)
    one = play(BrokerRacks("R2"))
    for number, version in enumerate((5, 5, 4, 5, 4), 1):
        answer = told(METADATA, version, brokers(version), number)
        one.exchange(request(METADATA, version, number), answer)
    assert parsed == [(METADATA, 5), (METADATA, 4)]
    one.exchange(request(METADATA, 5, 9), told(METADATA, 5, brokers(5, {1: "R1"}), 9))
    assert len(parsed) == 3


@pytest.mark.parametrize("version", [0, 14])
def test_rule_6_versions_without_racks_tell_nothing(version: int) -> None:
    racks = BrokerRacks("R2")
    one = play(racks)
    head = b"\0" if version >= 9 else b""
    one.exchange(request(METADATA, version, 7, head), told(METADATA, version, brokers(version)))
    assert racks.by_node == {}


def test_a_change_is_told_once() -> None:
    racks = BrokerRacks("R2")
    changes: list[int] = []
    racks.changed = lambda brokers: changes.append(len(list(brokers)))
    one = play(racks)
    for number in range(3):
        one.exchange(request(METADATA, 5, number), told(METADATA, 5, brokers(5), number))
    assert changes == [3]
