"""Where addresses stand, to the byte; what holds none is gone over in one piece."""

import pytest

from proxy.protocol.address_walk import AddressSpan, AddressWalk, Array, decode, skip
from proxy.protocol.primitives import Malformed, Truncated
from proxy.protocol.schemas import Struct, layout


def hexed(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


def walked(api_key: int, version: int, text: str) -> tuple[AddressWalk, int, int]:
    body = hexed(text)
    struct = layout(api_key, version)
    assert struct is not None
    walk = AddressWalk(body)
    return walk, walk.struct(struct, 0), len(body)


def test_an_element_of_an_array() -> None:
    walk, end, size = walked(3, 0, "00000001 00000007 0002 6231 00002384")
    assert end == size
    assert walk.addresses == [
        AddressSpan(
            node_id=7,
            host="b1",
            port=9092,
            spans={"node_id": (4, 8), "host": (8, 12), "port": (12, 16)},
            struct=(4, 16),
            array=Array(1, (0, 4), flexible=False),
            flexible=False,
        )
    ]


def test_an_address_in_the_message_itself() -> None:
    walk, end, size = walked(10, 0, "0000 00000007 0002 6231 00002384")
    assert end == size
    [address] = walk.addresses
    assert (address.array, address.struct, address.spans["error_code"]) == (None, (0, 14), (0, 2))


def test_a_node_id_further_out() -> None:
    walk, end, size = walked(55, 2, "0000 00 01 02 00000007 02 02 43 03 6231 ffff 00 00 00")
    assert end == size
    [address] = walk.addresses
    assert (address.node_id, address.port) == (7, 0xFFFF)
    assert (address.spans["node_id"], address.struct) == ((5, 9), (10, 18))
    assert address.array == Array(1, (9, 10), flexible=True)


def test_the_payload_of_a_tag() -> None:
    walk, end, size = walked(0, 10, "01 00000000 02 00 01 01 64 00")
    assert end == size
    assert walk.endpoints == [(7, 8, 9)]
    assert walk.addresses == []


def test_what_holds_no_address_is_gone_over() -> None:
    share = layout(78, 2)
    assert share is not None
    [topics] = [field.struct for field in share.fields if field.name == "responses"]
    assert isinstance(topics, Struct)
    partition = "00000000 0000 00 0000 00 00000001 00000002 00 04 abcdef 02" + "00" * 18 + "00 00"
    body = hexed("0102030405060708090a0b0c0d0e0f10 02" + partition + "01 05 01 ee")
    assert skip(topics, body, 0) == len(body)
    for size in range(len(body)):
        with pytest.raises(Truncated):
            skip(topics, body[:size], 0)


def test_hosts() -> None:
    assert decode(None) == decode(b"") == ""
    assert decode("b\u00fccher.example".encode()) == "b\u00fccher.example"
    with pytest.raises(Malformed, match="no UTF-8"):
        decode(b"\xff")
