"""Racks of brokers are read from passing responses (rules 1, 2 and 6 of docs/developers/zones.md)."""

import struct
from collections.abc import Mapping
from functools import partial

import pytest

from proxy.core.rack_stage import MAX_READ, RackStage
from proxy.core.racks import BrokerRack, BrokerRacks, Zone, read_racks
from tests.model.primitives import NO_TAGS, Writer
from tests.playbook import Playbook, request, response

METADATA, DESCRIBE_CLUSTER = 3, 60
RACKS: Mapping[int, str | None] = {1: "R1", 2: "R2", 3: None}


def brokers(version: int, racks: Mapping[int, str | None] = RACKS, *, key: int = METADATA) -> bytes:
    """Build the body of a Metadata or DescribeCluster response without topics, up to its brokers and on."""
    flexible = key == DESCRIBE_CLUSTER or version >= 9
    out = Writer(flexible=flexible)
    if key == DESCRIBE_CLUSTER or version >= 3:
        out.number("i", 0)
    if key == DESCRIBE_CLUSTER:
        out.number("h", 0)
        out.string(None)
        if version >= 1:
            out.number("b", 1)
        out.string("cluster")
        out.number("i", 1)

    def one(out: Writer, node_id: int) -> None:
        out.number("i", node_id)
        out.string(f"kafka-{node_id}")
        out.number("i", 9092)
        if key == DESCRIBE_CLUSTER or version >= 1:
            out.string(racks[node_id])
        if key == DESCRIBE_CLUSTER and version >= 2:
            out.number("b", 0)
        if flexible:
            out.tags(NO_TAGS)

    out.array(list(racks), one)
    if key == DESCRIBE_CLUSTER:
        out.number("i", 0)
    else:
        if version >= 2:
            out.string("cluster")
        if version >= 1:
            out.number("i", 1)
        out.array([], one)
        if 8 <= version <= 10:
            out.number("i", 0)
        if version >= 13:
            out.number("h", 0)
    if flexible:
        out.tags(NO_TAGS)
    return bytes(out.data)


def play(racks: BrokerRacks, *, resolves: bool = False) -> Playbook:
    resolve = (lambda _, host, port: (host, port)) if resolves else None
    return Playbook(stages=(partial(RackStage, racks),), resolve=resolve)


def told(key: int, version: int, body: bytes, correlation: int = 7) -> bytes:
    tags = b"\0" if key == DESCRIBE_CLUSTER or version >= 9 else b""
    return response(correlation, tags + body)


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
    racks.found_at("10.0.0.2", BrokerRack(2, "kafka-2", 9092, "R2"))
    assert racks.zone_at("10.0.0.2", 9092) is Zone.SAME
    assert racks.zone_at("10.0.0.2", 9093) is Zone.UNKNOWN


def test_rule_1_the_newest_response_wins() -> None:
    racks = BrokerRacks("R2")
    one = play(racks)
    responses: list[dict[int, str | None]] = [{1: "R1"}, {1: "R2", 4: "R1"}, {4: None}]
    for number, told_racks in enumerate(responses, 1):
        one.exchange(request(METADATA, 5, number), told(METADATA, 5, brokers(5, told_racks), number))
    assert racks.by_node == {1: "R2", 4: ""}
    assert racks.here


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

    def parse(api_key: int, version: int, body: bytes) -> tuple[list[BrokerRack], int]:
        parsed.append((api_key, version))
        return read_racks(api_key, version, body)

    monkeypatch.setattr("proxy.core.racks.read_racks", parse)
    one = play(BrokerRacks("R2"))
    for number, version in enumerate((5, 5, 4, 5, 4), 1):
        answer = told(METADATA, version, brokers(version), number)
        one.exchange(request(METADATA, version, number), answer)
    assert parsed == [(METADATA, 5), (METADATA, 4)]
    one.exchange(request(METADATA, 5, 9), told(METADATA, 5, brokers(5, {1: "R1"}), 9))
    assert len(parsed) == 3


def test_rule_1_each_response_is_read_though_requests_repeat() -> None:
    """Without the stage, the fast path would forward them unread."""
    racks = BrokerRacks("R2")
    one = play(racks)
    for number in range(5):
        one.exchange(request(METADATA, 5, number), told(METADATA, 5, brokers(5, {number: "R1"}), number))
    assert len(racks.by_node) == 5


@pytest.mark.parametrize("version", [0, 14])
def test_rule_6_versions_without_racks_tell_nothing(version: int) -> None:
    racks = BrokerRacks("R2")
    one = play(racks)
    head = b"\0" if version >= 9 else b""
    one.exchange(request(METADATA, version, 7, head), told(METADATA, version, brokers(version)))
    assert racks.by_node == {}
    assert not racks.here


@pytest.mark.parametrize("body", [b"", b"\0\0\0\0\xff", b"\0\0\0\0" + struct.pack(">i", 1 << 30) + bytes(99)])
def test_what_is_no_metadata_teaches_nothing_and_passes(body: bytes) -> None:
    racks = BrokerRacks("R2")
    play(racks).exchange(request(METADATA, 5, 7), response(7, body))
    assert racks.by_node == {}


def test_no_more_is_kept_than_brokers_can_take() -> None:
    """A response that goes on and on without its brokers is forwarded as it arrives."""
    racks = BrokerRacks("R2")
    one = play(racks)
    one.client(request(METADATA, 5, 7)).to_broker(request(METADATA, 5, 7))
    many = dict.fromkeys(range(3000), "R" * 200)
    answer = told(METADATA, 5, brokers(5, many))
    assert len(answer) > 2 * MAX_READ
    one.broker(answer, chunk=10_000).to_client(answer)
    assert racks.by_node == {}
    assert one.connection.buffered == 0


def test_a_change_is_told_once() -> None:
    racks = BrokerRacks("R2")
    changes: list[int] = []
    racks.changed = lambda brokers: changes.append(len(list(brokers)))
    one = play(racks)
    for number in range(3):
        one.exchange(request(METADATA, 5, number), told(METADATA, 5, brokers(5), number))
    assert changes == [3]
