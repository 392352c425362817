"""fetchgate's schemas have the right versions, and read and write the same bytes as kio."""

from typing import Any

import pytest
from hypothesis import given

from proxy.protocol import schemas
from proxy.protocol.addresses import rewrite
from proxy.protocol.api import is_flexible
from proxy.protocol.messages import Struct, encode_fields, fields_at, read, structs
from proxy.protocol.primitives import ProtocolError, UnknownVersion
from proxy.protocol.schemas import ADDRESSED, CONFINED, REWRITTEN
from tests.examples import examples
from tests.protocol.kio_messages import UNKNOWN_TAGS, encode, messages, response_class

VERSIONS = [
    pytest.param(key, version, id=f"{key}-v{version}")
    for key, message in ADDRESSED.items()
    for version in range(max(message.oldest, 3 if key == 0 else 0), message.last + 1)
]


def test_what_is_rewritten() -> None:
    assert REWRITTEN == {0: 13, 3: 13, 10: 6, 55: 2, 60: 2, 78: 2, 79: 2}
    assert CONFINED[78] == (1, 2)


def test_a_message_has_the_fields_of_its_version() -> None:
    def names(version: int) -> list[str]:
        return [field.name for field in fields_at(schemas.FIND_COORDINATOR, version)]

    assert names(0) == ["error_code", "node_id", "host", "port"]
    assert names(3) == ["throttle_time_ms", "error_code", "error_message", "node_id", "host", "port"]
    assert names(4) == ["throttle_time_ms", "coordinators"]


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_every_byte_of_a_message_is_read_and_written_again(key: int, version: int) -> None:
    """Every byte of a message is read, and written again as the same byte.

    For Produce this includes versions without addresses.
    """
    message_of, flexible = ADDRESSED[key], bool(is_flexible(key, version))
    if version < message_of.first and key == 55:
        return  # its schema has v2 alone

    @examples(20)
    @given(messages(response_class(key, version)))
    def check(message: Any) -> None:
        body = encode(message, UNKNOWN_TAGS)
        found = read(message_of.schema, key, version, body, 0)
        written = encode_fields(fields_at(message_of.schema, version), found, flexible=flexible)
        assert written == body
        assert all(struct.span[1] <= len(body) for struct, _ in structs(found))
        for size in range(len(body)):
            with pytest.raises(ProtocolError):
                read(message_of.schema, key, version, body[:size], 0)

    check()


def test_versions() -> None:
    def no_address(node_id: int, host: str, port: int) -> None:
        raise AssertionError(node_id, host, port)

    assert rewrite(0, 9, b"whatever", no_address) == b"whatever"
    assert rewrite(55, 1, b"whatever", no_address) == b"whatever"
    for api_key, version in [(0, 14), (3, -1), (78, 0), (1, 16)]:
        with pytest.raises(UnknownVersion):
            rewrite(api_key, version, b"", no_address)


def test_a_message_shows_its_fields() -> None:
    found = read(schemas.FIND_COORDINATOR, 10, 0, bytes.fromhex("0000 00000007 0002 6231 00002384"), 0)
    assert isinstance(found, Struct)
    assert found == {"error_code": 0, "node_id": 7, "host": b"b1", "port": 9092}
    assert found.spans == {"error_code": (0, 2), "node_id": (2, 6), "host": (6, 10), "port": (10, 14)}
