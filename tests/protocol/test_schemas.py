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
from tests.protocol.kio_messages import UNKNOWN_TAGS, encode, message_class, messages

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


READ = {
    "API_VERSIONS_REQUEST": (18, 3, 4),
    "API_VERSIONS": (18, 0, 4),
    "METADATA_REQUEST": (3, 1, 13),
    "OFFSET_FOR_LEADER_EPOCH_REQUEST": (23, 2, 4),
    "OFFSET_FOR_LEADER_EPOCH": (23, 2, 4),
    "LIST_OFFSETS_REQUEST": (2, 1, 10),
    "LIST_OFFSETS": (2, 1, 10),
    "DELETE_RECORDS": (21, 0, 2),
    "DESCRIBE_CONFIGS_REQUEST": (32, 1, 3),
    "DESCRIBE_CONFIGS": (32, 1, 3),
    "HEARTBEAT_REQUEST": (12, 0, 4),
    "HEARTBEAT": (12, 0, 4),
    "JOIN_GROUP_REQUEST": (11, 0, 9),
    "JOIN_GROUP": (11, 0, 9),
    "SYNC_GROUP_REQUEST": (14, 0, 5),
    "SYNC_GROUP": (14, 0, 5),
    "OFFSET_COMMIT_REQUEST": (8, 2, 9),
    "OFFSET_COMMIT": (8, 2, 9),
    "TXN_OFFSET_COMMIT_REQUEST": (28, 0, 5),
    "TXN_OFFSET_COMMIT": (28, 0, 5),
    "OFFSET_FETCH_REQUEST": (9, 1, 9),
    "OFFSET_FETCH": (9, 1, 9),
}
"""The other messages: the API key, and the versions that are compared."""
READ_VERSIONS = [
    pytest.param(name, key, version, id=f"{name}-v{version}")
    for name, (key, first, last) in READ.items()
    for version in range(first, last + 1)
]
PARTS = {"NODE_ENDPOINTS", "SUBSCRIPTION", "OWNED_PARTITIONS", "ASSIGNMENT"}
"""Schemas of parts of messages."""


def test_each_schema_is_compared() -> None:
    of_addressed = {message.schema for message in ADDRESSED.values()}
    found = {
        name
        for name, schema in vars(schemas).items()
        if name.isupper() and name[0] != "_" and isinstance(schema, str) and schema not in of_addressed
    }

    assert found == READ.keys() | PARTS


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_every_byte_of_a_message_is_read_and_written_again(key: int, version: int) -> None:
    """For Produce this includes versions without addresses."""
    message_of = ADDRESSED[key]
    if version < message_of.first and key == 55:
        return  # its schema has v2 alone
    assert_same(message_of.schema, key, version, message_class(key, version))


@pytest.mark.parametrize(("name", "key", "version"), READ_VERSIONS)
def test_every_byte_of_other_messages_is_read_and_written_again(name: str, key: int, version: int) -> None:
    kind = "request" if name.endswith("_REQUEST") else "response"
    assert_same(getattr(schemas, name), key, version, message_class(key, version, kind))


def assert_same(schema: str, key: int, version: int, of_kio: type[Any]) -> None:
    """Compare what is read with what kio has written, in full and cut off."""
    flexible = bool(is_flexible(key, version))

    @examples(20)
    @given(messages(of_kio))
    def check(message: Any) -> None:
        body = encode(message, UNKNOWN_TAGS)
        found = read(schema, key, version, body, 0)
        assert encode_fields(fields_at(schema, version), found, flexible=flexible) == body
        assert all(struct.span[1] <= len(body) for struct, _ in structs(found))
        for size in range(len(body)):
            with pytest.raises(ProtocolError):
                read(schema, key, version, body[:size], 0)

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
