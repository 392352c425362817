"""The value of acks is read from the first bytes of a Produce request of any version.

If there are too few bytes, the reader returns None.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol.api import request_header
from proxy.protocol.primitives import Malformed, ProtocolError
from proxy.protocol.produce import READ_WITHIN, acks, wants_response
from tests.playbook import request

HEADER = b"header"
REST = b"\x00\x00\x75\x30 and topics"
LIVE = json.loads((Path(__file__).parents[1] / "data" / "fetch-live.json").read_text())

BODIES = [
    pytest.param(0, b"", id="v0"),
    pytest.param(2, b"", id="v2"),
    pytest.param(3, b"\xff\xff", id="v3 not transactional"),
    pytest.param(3, b"\x00\x00", id="v3 empty id"),
    pytest.param(8, b"\x00\x02tx", id="v8 transactional"),
    pytest.param(9, b"\x00", id="v9 not transactional"),
    pytest.param(9, b"\x01", id="v9 empty id"),
    pytest.param(13, b"\x03tx", id="v13 transactional"),
    pytest.param(13, b"\xc9\x01" + b"t" * 200, id="v13 long id"),
]


@pytest.mark.parametrize(("version", "transactional_id"), BODIES)
@pytest.mark.parametrize(("wire", "value"), [(b"\xff\xff", -1), (b"\0\0", 0), (b"\0\1", 1)])
def test_acks(version: int, transactional_id: bytes, wire: bytes, value: int) -> None:
    """Trap 32: acks is found in a Produce request, because a Produce with acks=0 has no response."""
    first = HEADER + transactional_id + wire
    assert acks(first + REST, version, len(HEADER)) == value
    assert acks(first, version, len(HEADER)) == value
    for size in range(len(HEADER), len(first)):
        assert acks(first[:size], version, len(HEADER)) is None


def test_no_byte_at_all() -> None:
    assert acks(b"", 9, 12) is None


def test_an_id_that_is_none() -> None:
    with pytest.raises(Malformed, match="length -2"):
        acks(b"\xff\xfe\0\0", 3, 0)
    with pytest.raises(Malformed, match="more than 5 bytes"):
        acks(b"\xff" * 6, 9, 0)


@given(st.binary(max_size=20), st.integers(0, 13))
def test_noise(frame: bytes, version: int) -> None:
    try:
        assert acks(frame, version, 0) in (None, *range(-0x8000, 0x8000))
    except ProtocolError:
        assert version >= 3


@pytest.mark.parametrize(
    "exchange", [one for one in LIVE if one["api_key"] == 0], ids=lambda one: one["name"]
)
def test_live_requests(exchange: dict[str, Any]) -> None:
    frame = bytes.fromhex(exchange["request_hex"])
    api_key, version, _, _, body_offset = request_header(frame, 0)
    assert (api_key, version) == (0, exchange["api_version"])
    assert acks(frame, version, body_offset) == 1


@pytest.mark.parametrize(("acks", "wants"), [(0, False), (1, True), (-1, True)])
@pytest.mark.parametrize("version", [0, 2, 3, 8, 9, 13])
def test_acks_and_whether_there_are_bytes_enough(version: int, acks: int, wants: bool) -> None:
    transactional = b"" if version < 3 else b"\xff\xff" if version < 9 else b"\x00"
    tags = b"\0" if version >= 9 else b""
    head = tags + transactional + acks.to_bytes(2, signed=True)
    frame = request(0, version, 1, head + bytes(40))
    known_at = len(frame) - 40
    for size in range(12, len(frame)):
        assert wants_response(frame[:size], len(frame)) is (wants if size >= known_at else None)


def test_a_produce_that_tells_nothing_is_taken_as_answered() -> None:
    short = request(0, 3, 1, b"\x7f\xff")
    assert wants_response(short, len(short)) is True
    broken = request(0, 3, 1, b"\xff\xfe" + bytes(20))
    assert wants_response(broken, len(broken)) is True
    long = request(0, 9, 1, b"\0\xff\xff\xff\x7f" + bytes(READ_WITHIN))
    assert wants_response(long[:1000], len(long) * 9) is None
    assert wants_response(long, len(long) * 9) is True
