"""Messages are read by schema. Unneeded fields are skipped, and replacing a field changes no other byte."""

import pytest

from proxy.protocol.messages import body, fields_at, read, request, splice, structs
from proxy.protocol.primitives import Malformed, Truncated, encode_uvarint

PLAIN = "error:int16 members:[id:string data:bytes@1+] tail:int32"
PLAIN_V1 = bytes.fromhex("0007 00000002 0001 61 00000002 aabb ffff ffffffff 00000009")
OLD, FLEXIBLE = (0, 1), (1, 16)
"""(API key, version) without compact strings, and with compact strings."""
TAGGED = "name:string #0 leader:(id:int32) #3 nodes:[id:int16]"


def test_fields_are_read_with_their_spans() -> None:
    found = read(PLAIN, *OLD, PLAIN_V1, 0)

    assert found == {
        "error": 7,
        "members": [{"id": b"a", "data": b"\xaa\xbb"}, {"id": None, "data": None}],
        "tail": 9,
    }
    assert found.spans == {"error": (0, 2), "members": (2, 21), "tail": (21, 25)}
    assert found.counts == {"members": (2, 6)}
    assert [struct.span for struct, depth in structs(found) if depth] == [(6, 15), (15, 21)]


def test_a_version_has_its_own_fields() -> None:
    assert [field.name for field in fields_at(PLAIN, 0)] == ["error", "members", "tail"]
    assert [field.name for field in fields_at("a:int8@2 b:int8@2-3 c:int8@3+ d:int8", 3)] == ["b", "c", "d"]
    with pytest.raises(ValueError, match="not a schema from 6"):
        fields_at("a:int8 -b", 0)


def test_a_replaced_field_changes_nothing_else() -> None:
    found = read(PLAIN, *OLD, PLAIN_V1, 0)
    first, second = found["members"]

    assert splice(PLAIN_V1, found.edits(error=3, nothing=1)) == b"\0\3" + PLAIN_V1[2:]
    assert splice(PLAIN_V1, second.edits(id=b"bc")) == PLAIN_V1[:15] + b"\0\2bc" + PLAIN_V1[17:]
    assert splice(PLAIN_V1, found.without("members", [first])) == (PLAIN_V1[:2] + b"\0\0\0\1" + PLAIN_V1[15:])
    assert splice(PLAIN_V1, found.without("members", [])) is PLAIN_V1
    assert body(PLAIN, *OLD, **found) == PLAIN_V1


def test_some_fields_are_read_and_the_others_skipped() -> None:
    only = frozenset({"members.id"})
    found = read(PLAIN, *OLD, PLAIN_V1, 0, only=only)
    assert found == {"members": [{"id": b"a"}, {"id": None}]}

    fixed: list[tuple[int, int]] = []
    assert read(PLAIN, *OLD, PLAIN_V1, 0, only=frozenset({"members"}), fixed=fixed)["members"][0]["data"]
    assert fixed == [(0, 2), (21, 25)]

    cut = PLAIN_V1[:21]
    assert read(PLAIN, *OLD, cut, 0, only=only, whole=False) == found
    with pytest.raises(Truncated):
        read(PLAIN, *OLD, cut, 0, only=only)


def test_neighbours_of_fixed_size_that_nobody_reads_are_skipped_in_one_step() -> None:
    fields = fields_at("a:int32 b:int16@1+ c:uuid d:string e:int8 f:int64", 1, frozenset({"d"}))
    assert [(field.name, field.kind == "string", field.size) for field in fields] == [
        ("", False, 22),
        ("d", True, 0),
        ("", False, 9),
    ]


def test_tags_are_read_and_those_that_are_unknown_are_kept() -> None:
    tags = bytes.fromhex("03 00 05 00000007 00 01 02 beef 03 04 02 0009 00")
    frame = b"\x02n" + tags
    found = read(TAGGED, *FLEXIBLE, frame, 0)

    assert found == {"name": b"n", "leader": {"id": 7}, "nodes": [{"id": 9}]}
    assert (found.tags, found.spans["nodes"], found.tagged["nodes"]) == (tags, (16, 20), (15, 20))
    assert splice(frame, found.edits(name=b"longer")) == b"\x07longer" + tags
    assert body(TAGGED, *FLEXIBLE, name=b"n") == b"\x02n\x00"


def test_the_size_of_a_tag_is_found_however_it_is_written() -> None:
    payload = b"\x02\x00\x09\x00"
    frame = b"\x00\x01\x03" + b"\x84\x80\x00" + payload
    found = read(TAGGED, *FLEXIBLE, frame, 0)
    assert (found.spans["nodes"], found.tagged["nodes"]) == ((6, 10), (3, 10))


def test_a_tag_holds_its_value_and_no_more() -> None:
    with pytest.raises(Malformed, match="tag 0 at 4 has 6 bytes"):
        read(TAGGED, *FLEXIBLE, b"\x00\x01\x00\x06\x00\x00\x00\x07\x00\xff", 0)


def test_arrays_of_scalars_structs_and_structs_that_can_be_null() -> None:
    schema = "ids:int32[] names:string[] in:(x:int8) null:?(x:int8) one:?(x:bool) id:uuid port:uint16"
    frame = bytes.fromhex("03 00000001 ffffffff 02 02 61 ff00 ff 01 01 00" + "11" * 16 + "ffff 00")
    found = read(schema, *FLEXIBLE, frame, 0)
    assert found == {
        "ids": [1, -1],
        "names": [b"a"],
        "in": {"x": -1},
        "null": None,
        "one": {"x": 1},
        "id": b"\x11" * 16,
        "port": 0xFFFF,
    }
    assert body(schema, *FLEXIBLE, **found) == frame
    for size in range(len(frame)):
        with pytest.raises(Truncated):
            read(schema, *FLEXIBLE, frame[:size], 0)


def test_an_array_without_a_name_that_has_names_in_it_is_called_by_its_place() -> None:
    found = read("int16 [name:string int8]", *OLD, bytes.fromhex("0000 00000001 0001 61 05"), 0)
    assert found == {"1": [{"name": b"a"}]}


@pytest.mark.parametrize("skipped", [False, True])
def test_lengths_that_no_peer_sends(skipped: bool) -> None:
    only = frozenset[str]() if skipped else None
    with pytest.raises(Malformed, match="bytes at 0 have length -2"):
        read("a:bytes", *OLD, b"\xff\xff\xff\xfe", 0, only=only)
    with pytest.raises(Truncated):
        read("a:bytes", *OLD, b"\x00\x00\x00\x09a", 0, only=only)
    with pytest.raises(Truncated):
        read("a:[b:int8]", *OLD, b"\x7f\xff\xff\xffa", 0, only=only)
    with pytest.raises(Malformed, match="1 bytes are left over"):
        read("a:int8", *OLD, b"\x00\x00", 0, only=only)


def test_requests_have_a_header_without_tags() -> None:
    assert (
        request("a:int8", 3, 1, 7, b"me", a=5).hex()
        == "0000000d" + "00030001" + "00000007" + "00026d65" + "05"
    )
    assert (
        request("a:int8", 3, 9, 7, None, a=5).hex()
        == "0000000d" + "00030009" + "00000007" + "ffff" + "00" + "05" + "00"
    )
    assert encode_uvarint(0) == b"\0"
