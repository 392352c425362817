"""Whole answers with addresses or versions rewritten: the length prefix follows, the header stays."""

import pytest

from proxy.protocol.primitives import ProtocolError
from proxy.rewriting import clamped, readdressed
from tests.playbook import answer, api_versions

METADATA = 3
DESCRIBE_QUORUM = 55


def gateway(node_id: int, _host: str, _port: int, /) -> tuple[str, int]:
    return "gw", 19_092 + node_id


def metadata(host: bytes, port: int) -> bytes:
    """Metadata v0 that names broker 2 and no topic."""
    body = b"\0\0\0\1" + b"\0\0\0\2" + len(host).to_bytes(2) + host + port.to_bytes(4) + b"\0\0\0\0"
    return answer(7, body)


def test_a_host_of_another_length() -> None:
    got = b"".join(readdressed(metadata(b"broker-2.example", 9092), METADATA, 0, gateway))
    assert got == metadata(b"gw", 19_094)


def test_nobody_to_tell_leaves_no_address() -> None:
    got = b"".join(readdressed(metadata(b"broker-2.example", 9092), METADATA, 0, None))
    assert b"broker-2.example" not in got
    assert len(got) == 4 + int.from_bytes(got[:4])


def test_what_is_no_such_answer_is_refused() -> None:
    with pytest.raises(ProtocolError):
        readdressed(metadata(b"b", 1)[:-5], METADATA, 0, gateway)


def test_api_versions_are_cut_and_read() -> None:
    _, told = api_versions("4.3")
    pieces, features = clamped(told, 0)
    assert b"".join(pieces) == told
    assert features is not None
    assert (features.fetch_min, features.fetch_max) == (4, 18)
    more = answer(1, bytes.fromhex("0000 00000001 0001 0004 0014"))
    assert b"".join(clamped(more, 0)[0]) == answer(1, bytes.fromhex("0000 00000001 0001 0004 0012"))


def test_api_versions_that_are_not_understood_pass() -> None:
    told = answer(1, b"nonsense")
    assert clamped(told, 3) == ([told], None)
