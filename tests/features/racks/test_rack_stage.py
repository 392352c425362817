"""Responses with racks are forwarded unchanged, whatever the stage reads in them."""

import struct

import pytest

from proxy.features.racks.rack_stage import MAX_READ
from proxy.features.racks.racks import BrokerRacks
from tests.features.racks.racks import METADATA, brokers, play, told
from tests.playbook import request, response


def test_rule_1_each_response_is_read_though_requests_repeat() -> None:
    """Without the stage, the fast path would forward them unread."""
    racks = BrokerRacks("R2")
    one = play(racks)
    for number in range(5):
        one.exchange(request(METADATA, 5, number), told(METADATA, 5, brokers(5, {number: "R1"}), number))
    assert len(racks.by_node) == 5


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
