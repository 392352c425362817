"""In responses, only hosts and ports are changed.

The tests compare rewritten responses with kio's messages, with live responses, and with fixed bytes.
"""

import contextlib
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from proxy.protocol.addresses import (
    REWRITTEN,
    Resolve,
    rewrite,
    rewrite_endpoints,
)
from proxy.protocol.api import response_header
from proxy.protocol.primitives import Malformed, ProtocolError, UnknownVersion
from tests.examples import examples
from tests.protocol.kio_messages import (
    UNKNOWN_TAGS,
    encode,
    kio_decode,
    kio_encode,
    message_class,
    messages,
)

OLDEST = {0: 3, 78: 1, 79: 1}
ANSWERS = [
    pytest.param(key, version, id=f"{key}-v{version}")
    for key, last in REWRITTEN.items()
    for version in range(OLDEST.get(key, 0), last + 1)
]
FEW = examples(15)
LIVE = json.loads((Path(__file__).parents[1] / "data" / "fetch-live.json").read_text())


def identity(node_id: int, host: str, port: int) -> tuple[str, int]:
    return host, port


def gateway(node_id: int, host: str, port: int) -> tuple[str, int] | None:
    """Return the address for clients: none for node 2, the broker's own for node 3, and the gateway's for all
    others.
    """
    if node_id == 2:
        return None
    return (host, port) if node_id == 3 else ("gate", 19093 + node_id % 1000)


def expected(entity: Any, resolve: Resolve, outer_id: int = -1) -> Any:
    """Return the kio message that the client should get.

    Return None for a broker that has no address for clients, so that it is left out. If its entry has an
    error code, return the entry with COORDINATOR_NOT_AVAILABLE and without an address.
    """
    node_id = getattr(entity, "node_id", getattr(entity, "broker_id", outer_id))
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(entity):
        value = getattr(entity, field.name)
        if isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            kept = (expected(one, resolve, node_id) for one in value)
            changes[field.name] = tuple(one for one in kept if one is not None)
    if getattr(entity, "host", ""):
        told = resolve(node_id, entity.host, entity.port)
        if told is not None:
            changes["host"], changes["port"] = told
        elif hasattr(entity, "error_code"):
            changes |= {
                "host": "",
                "port": -1,
                "node_id": -1,
                "error_code": ErrorCode.coordinator_not_available,
            }
        else:
            return None
    return dataclasses.replace(entity, **changes)


@pytest.mark.parametrize(("key", "version"), ANSWERS)
def test_the_client_reads_the_message_it_should(key: int, version: int) -> None:
    """Trap 35: a client can read the rewritten message. Only the addresses differ.

    Messages of share groups are included.
    """
    cls = message_class(key, version)

    @FEW
    @given(messages(cls))
    def check(message: Any) -> None:
        body = kio_encode(message)
        assert encode(message) == body
        assert kio_decode(cls, rewrite(key, version, body, gateway)) == expected(message, gateway)

    check()


@pytest.mark.parametrize(("key", "version"), ANSWERS)
def test_unknown_tags_of_every_struct_stay(key: int, version: int) -> None:
    @FEW
    @given(messages(message_class(key, version)))
    def check(message: Any) -> None:
        body = encode(message, UNKNOWN_TAGS)
        assert rewrite(key, version, body, identity) is body
        after = rewrite(key, version, body, gateway)
        # Endpoints that have lost their last one stay as an empty tag; the encoder leaves it out.
        assert after == encode(expected(message, gateway), UNKNOWN_TAGS) or not all_told(message)

    check()


def all_told(message: Any) -> bool:
    endpoints = getattr(message, "node_endpoints", ())
    return not endpoints or bool(expected(message, gateway).node_endpoints)


@pytest.mark.parametrize(("key", "version"), ANSWERS)
def test_a_cut_response_is_refused_and_nothing_else_is_raised(key: int, version: int) -> None:
    @examples(3)
    @given(messages(message_class(key, version)))
    def check(message: Any) -> None:
        body = encode(message, UNKNOWN_TAGS)
        whole = rewrite(key, version, body, gateway)
        for size in range(len(body)):
            try:
                after = rewrite(key, version, body[:size], gateway)
            except ProtocolError:
                continue
            # Metadata is not walked beyond its brokers; a response without addresses is not walked at all.
            assert key == 3 or (key == 0 and version < 10) or (key == 55 and version < 2)
            assert after == whole[: len(whole) - (len(body) - size)]

    check()


@pytest.mark.parametrize(("key", "version"), ANSWERS)
def test_noise_raises_protocol_errors_only(key: int, version: int) -> None:
    @examples(50)
    @given(st.binary(max_size=60))
    def check(body: bytes) -> None:
        with contextlib.suppress(ProtocolError):
            rewrite(key, version, body, gateway)

    check()


# --- byte for byte --------------------------------------------------------------------------------

BROKER = "00000001 0002 6231 00002384 ffff"
METADATA_V1 = "00000002" + BROKER + "00000002 0002 6232 00002384 0001 72" + "00000001" + "00000000"
TAGGED = "01 64 01 ee"


def hexed(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


def test_metadata_v1() -> None:
    after = rewrite(3, 1, hexed(METADATA_V1), lambda node_id, _host, _port: ("gateway", 19093 + node_id))
    assert after == hexed(
        "00000002 00000001 0007 67617465776179 00004a96 ffff 00000002 0007 67617465776179 00004a97 0001 72"
        "00000001 00000000"
    )


def test_a_broker_left_out_takes_its_bytes_along_and_the_count_is_right() -> None:
    assert rewrite(3, 1, hexed(METADATA_V1), gateway) == hexed(
        "00000001 00000001 0004 67617465 00004a96 ffff 00000001 00000000"
    )


def test_metadata_topics_are_not_walked() -> None:
    tail = b"\xff not topics at all"
    body = hexed("00000001 00000001 0002 6231 00002384") + tail
    assert rewrite(3, 0, body, gateway) == hexed("00000001 00000001 0004 67617465 00004a96") + tail


def test_metadata_v9_keeps_a_brokers_tags() -> None:
    body = hexed(f"00000000 02 00000001 03 6231 00002384 00 {TAGGED} 00 00000001 01 80000000 00")
    assert rewrite(3, 9, body, gateway) == hexed(
        f"00000000 02 00000001 05 67617465 00004a96 00 {TAGGED} 00 00000001 01 80000000 00"
    )


def test_an_overlong_count_stays_as_the_broker_wrote_it() -> None:
    body = hexed("00000000 8200 00000001 03 6231 00002384 00 00")
    assert rewrite(3, 9, body, gateway) == hexed("00000000 8200 00000001 05 67617465 00004a96 00 00")


def test_find_coordinator_v0() -> None:
    body = hexed("0000 00000001 0002 6231 00002384")
    assert rewrite(10, 0, body, gateway) == hexed("0000 00000001 0004 67617465 00004a96")


def test_a_coordinator_that_cannot_be_told_is_not_available() -> None:
    body = hexed("00000000 0000 0000 00000002 0002 6231 00002384")
    assert rewrite(10, 1, body, gateway) == hexed("00000000 000f 0000 ffffffff 0000 ffffffff")


def test_coordinators_keep_their_places_in_the_array() -> None:
    head, last = "00000000 03 0261", f"0000 00 {TAGGED} 0262 00000001"
    body = hexed(f"{head} 00000002 03 6231 00002384 {last} 03 6231 00002384 0000 00 00 00")
    assert rewrite(10, 4, body, gateway) == hexed(
        f"{head} ffffffff 01 ffffffff 000f 00 {TAGGED} 0262 00000001 05 67617465 00004a96 0000 00 00 00"
    )


@pytest.mark.parametrize(
    "address",
    ["00000001 0000 00002384", "00000001 ffff 00002384"],
    ids=["no host", "null host"],
)
def test_an_address_that_is_none_is_left_alone(address: str) -> None:
    def never(node_id: int, host: str, port: int) -> None:
        pytest.fail("asked")

    body = hexed("000f" + address)
    assert rewrite(10, 0, body, never) == body


def test_describe_cluster_of_controllers_is_rewritten_as_well() -> None:
    body = hexed(f"00000000 0000 00 02 02 63 00000001 02 00000001 03 6231 00002384 00 00 80000000 {TAGGED}")
    assert rewrite(60, 1, body, gateway) == hexed(
        f"00000000 0000 00 02 02 63 00000001 02 00000001 05 67617465 00004a96 00 00 80000000 {TAGGED}"
    )


def test_describe_quorum_has_uint16_ports_and_a_node_id_further_out() -> None:
    body = hexed("0000 00 01 02 00000001 03 02 43 03 6231 ffff 00 02 44 03 6231 2384 00 00 00")
    asked = []

    def resolve(node_id: int, host: str, port: int) -> tuple[str, int] | None:
        asked.append((node_id, host, port))
        return ("gate", 0xFFFE) if port == 0xFFFF else None

    assert rewrite(55, 2, body, resolve) == hexed("0000 00 01 02 00000001 02 02 43 05 67617465 fffe 00 00 00")
    assert asked == [(1, "b1", 0xFFFF), (1, "b1", 0x2384)]


def test_null_records_and_null_arrays_stay_null() -> None:
    partition = "00000000 0000 00 0000 00 00000001 00000002 00 00 00 00"
    topic = "0102030405060708090a0b0c0d0e0f10 02" + partition + "00"
    body = hexed("00000000 0000 00 00007530 02" + topic + "00 00")
    assert rewrite(78, 2, body, gateway) == body


ENDPOINTS = hexed("03 00000001 03 6231 00002384 00 00 00000002 03 6232 00002384 02 72" + TAGGED)


def test_node_endpoints() -> None:
    assert rewrite_endpoints(ENDPOINTS, identity) == ENDPOINTS
    assert rewrite_endpoints(ENDPOINTS, gateway) == hexed("02 00000001 05 67617465 00004a96 00 00")
    assert rewrite_endpoints(b"\x01", gateway) == b"\x01"
    assert rewrite_endpoints(b"\x00", gateway) == b"\x00"
    with pytest.raises(Malformed, match="left over"):
        rewrite_endpoints(ENDPOINTS + b"\0", gateway)
    for size in range(len(ENDPOINTS)):
        with pytest.raises(ProtocolError):
            rewrite_endpoints(ENDPOINTS[:size], gateway)


def test_produce_has_the_endpoints_among_other_tags_and_their_size_follows() -> None:
    endpoints = "02 00000001 03 6231 00002384 00 00"
    body = hexed(f"01 00000000 02 00 0e {endpoints} 64 01 ee")
    assert rewrite(0, 10, body, gateway) == hexed(
        "01 00000000 02 00 10 02 00000001 05 67617465 00004a96 00 00 64 01 ee"
    )


def test_a_tag_that_goes_on_after_the_end_is_refused() -> None:
    with pytest.raises(ProtocolError, match="tag"):
        rewrite(0, 10, hexed("01 00000000 01 00 0f 02"), gateway)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "version"),
    [(key, last + 1) for key, last in REWRITTEN.items()] + [(3, -1), (78, 0), (79, 0), (1, 16)],
)
def test_unknown_versions(key: int, version: int) -> None:
    with pytest.raises(UnknownVersion, match=f"api key {key} at version {version} "):
        rewrite(key, version, b"", gateway)


@pytest.mark.parametrize(("key", "version"), [(0, 0), (0, 9), (55, 0), (55, 1)])
def test_versions_without_addresses_are_not_even_read(key: int, version: int) -> None:
    assert rewrite(key, version, b"anything", gateway) == b"anything"


def test_bytes_left_over() -> None:
    with pytest.raises(Malformed, match="1 bytes are left over"):
        rewrite(10, 0, hexed("0000 00000001 0002 6231 00002384 00"), gateway)


def test_a_host_that_is_no_text() -> None:
    with pytest.raises(Malformed, match=re.escape(r"b'\xff' is not UTF-8")):
        rewrite(10, 0, hexed("0000 00000001 0001 ff 00002384"), gateway)


# --- live responses ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "exchange", [one for one in LIVE if one["api_key"] == 0], ids=lambda one: one["name"]
)
def test_live_produce_responses(exchange: dict[str, Any]) -> None:
    version, frame = exchange["api_version"], bytes.fromhex(exchange["response_hex"])
    _, start = response_header(frame, 0, 0, version)
    body = frame[start:]
    seen: list[tuple[int, str, int]] = []

    def resolve(node_id: int, host: str, port: int) -> tuple[str, int] | None:
        seen.append((node_id, host, port))
        return "gate.example", 19094

    after = rewrite(0, version, body, resolve)
    assert rewrite(0, version, body, identity) == body
    if version < 10:
        assert after == body
        assert seen == []
        return
    [(node_id, host, port)] = seen
    cls = message_class(0, version)
    before, told = kio_decode(cls, body), kio_decode(cls, after)
    assert [(one.node_id, one.host, one.port) for one in before.node_endpoints] == [(node_id, host, port)]
    assert [(one.node_id, one.host, one.port) for one in told.node_endpoints] == [
        (node_id, "gate.example", 19094)
    ]
    assert dataclasses.replace(told, node_endpoints=before.node_endpoints) == before
