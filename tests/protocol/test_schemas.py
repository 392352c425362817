"""The tables: which versions are known, and what becomes of a table at one of them."""

import pytest

from proxy.protocol.api import FIRST_FLEXIBLE
from proxy.protocol.primitives import UnknownVersion
from proxy.protocol.schemas import ENDPOINTS, REWRITTEN, Kind, Struct, layout


def names(struct: Struct) -> list[str]:
    return [field.name for field in struct.fields]


def element(struct: Struct, name: str) -> Struct:
    [found] = [field.struct for field in struct.fields if field.name == name]
    assert found is not None
    return found


def at(api_key: int, version: int) -> Struct:
    struct = layout(api_key, version)
    assert struct is not None
    return struct


def test_what_is_rewritten() -> None:
    assert REWRITTEN == {0: 13, 3: 13, 10: 6, 55: 2, 60: 2, 78: 2, 79: 2}


def test_a_message_has_the_fields_of_its_version() -> None:
    assert names(at(10, 0)) == ["error_code", "node_id", "host", "port"]
    assert names(at(10, 3)) == ["throttle_time_ms", "error_code", "error_message", "node_id", "host", "port"]
    assert names(at(10, 4)) == ["throttle_time_ms", "coordinators"]
    assert names(element(at(3, 0), "brokers")) == ["node_id", "host", "port"]
    assert names(element(at(3, 13), "brokers")) == ["node_id", "host", "port", "rack"]


@pytest.mark.parametrize("api_key", [0, 3, 10, 60])
def test_structs_are_flexible_from_the_keys_own_version_on(api_key: int) -> None:
    for version in range(10 if api_key == 0 else 0, REWRITTEN[api_key] + 1):
        struct = at(api_key, version)
        assert struct.flexible is (version >= FIRST_FLEXIBLE[api_key])
        for field in struct.fields:
            assert field.struct is None or field.struct.flexible is struct.flexible


def test_fixed_fields_without_addresses_are_taken_in_one_step() -> None:
    partition = element(element(at(0, 13), "responses"), "partition_responses")
    assert not partition.addressed
    assert [(field.kind, field.size) for field in partition.fields] == [
        (Kind.FIXED, 4 + 2 + 8 + 8 + 8),
        (Kind.ARRAY, 0),
        (Kind.STRING, 0),
    ]


def test_what_holds_addresses_keeps_its_fields_apart() -> None:
    assert names(element(at(60, 2), "brokers")) == ["node_id", "host", "port", "rack", "is_fenced"]
    assert at(0, 10).addressed
    assert ENDPOINTS.struct is not None
    assert ENDPOINTS.struct.addressed


def test_versions() -> None:
    assert layout(0, 9) is None
    assert layout(55, 1) is None
    for api_key, version in [(0, 14), (3, -1), (78, 0), (1, 16)]:
        with pytest.raises(UnknownVersion):
            layout(api_key, version)
