"""The version ranges in a broker's ApiVersions response are limited to versions that the gateway supports.

The rest of the response does not change.
"""

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol.api import request_header, response_header
from proxy.protocol.api_versions import (
    REWRITABLE,
    UNDERSTOOD,
    ClientSoftware,
    Features,
    clamp,
    read_client_software,
    request,
)
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

VERSIONS = [0, 1, 2, 3, 4]
LIVE = json.loads((Path(__file__).parents[1] / "data" / "fetch-live.json").read_text())


def hexed(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


def with_known_keys(message: Any) -> Any:
    """Add API keys whose version ranges the gateway limits.

    Without this, hypothesis rarely generates such keys.
    """
    keys = (0, 1, 3, 18)
    api_keys = tuple(
        dataclasses.replace(one, api_key=key, min_version=key % 7, max_version=13 + place * 3)
        for place, (one, key) in enumerate(zip(message.api_keys, keys, strict=False))
    )
    return dataclasses.replace(message, api_keys=api_keys + message.api_keys)


def expected(message: Any) -> Any:
    def cut(one: Any) -> Any:
        lowest, highest = REWRITABLE.get(one.api_key, (one.min_version, one.max_version))
        return dataclasses.replace(
            one, min_version=max(one.min_version, lowest), max_version=min(one.max_version, highest)
        )

    kept = [cut(one) for one in message.api_keys]
    return dataclasses.replace(
        message,
        api_keys=tuple(
            one
            for one, before in zip(kept, message.api_keys, strict=True)
            if one == before or one.min_version <= one.max_version
        ),
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_the_client_reads_the_message_it_should(version: int) -> None:
    cls = message_class(18, version)

    @examples(40)
    @given(messages(cls).map(with_known_keys))
    def check(message: Any) -> None:
        assert encode(message) == kio_encode(message)
        after, features = clamp(kio_encode(message), version)
        assert kio_decode(cls, after) == expected(message)
        assert (features is None) is (message.error_code.value != 0)
        tagged, _ = clamp(encode(message, UNKNOWN_TAGS), version)
        assert tagged == encode(expected(message), UNKNOWN_TAGS)

    check()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_cut_response_is_refused(version: int) -> None:
    @examples(10)
    @given(messages(message_class(18, version)))
    def check(message: Any) -> None:
        body = encode(message, UNKNOWN_TAGS)
        for size in range(len(body)):
            with contextlib.suppress(ProtocolError):
                # What is left of an error 35 can be one in v0 form.
                assert clamp(body[:size], version) == (body[:size], None)
                assert body[:2] == hexed("0023")

    check()


@given(st.binary(max_size=50), st.integers(-1, 5))
def test_noise_raises_protocol_errors_only(body: bytes, version: int) -> None:
    with contextlib.suppress(ProtocolError):
        clamp(body, version)


# --- byte for byte --------------------------------------------------------------------------------


def test_v0() -> None:
    """Trap 5: the gateway reduces the version ranges in a v0 response to the versions that it supports."""
    body = hexed("0000 00000004 0000 0000 000d 0001 0004 0014 0063 0000 7fff 0012 0000 0005")
    assert clamp(body, 0) == (
        hexed("0000 00000004 0000 0000 000d 0001 0004 0012 0063 0000 7fff 0012 0000 0004"),
        Features(fetch_max=20, offset_fetch_max=-1, find_coordinator_max=-1),
    )


def test_v3_keeps_tags_of_elements_and_of_the_body() -> None:
    """Trap 31: the gateway keeps the tags of elements and of the body in a v3 response."""
    features = "02 00 02 6161 05 00"
    body = hexed(f"0000 03 0001 0000 0013 01 07 01 ff 0003 0000 000e 00 00000000 {features}")
    after, _ = clamp(body, 3)
    assert after == hexed(f"0000 03 0001 0000 0012 01 07 01 ff 0003 0000 000d 00 00000000 {features}")


def test_of_the_share_groups_of_4_0_nothing_is_offered() -> None:
    """The gateway does not offer ShareFetch v0 and ShareAcknowledge v0.

    They were early access in Kafka 4.0, so the places of addresses in their responses are unknown.
    """
    body = hexed("0000 00000003 004e 0000 0000 004f 0000 0001 0050 0000 0000 00000000")
    after, _ = clamp(body, 1)
    assert after == hexed("0000 00000002 004f 0001 0001 0050 0000 0000 00000000")


def test_versions_in_which_controllers_name_each_other_are_not_offered() -> None:
    """KIP-853: the gateway does not offer versions whose responses contain the addresses of controllers."""
    offered = "0034 0000 0002 0035 0000 0001 0036 0000 0001 003b 0000 0001 0052 0000 0000"
    kept = "0034 0000 0000 0035 0000 0000 0036 0000 0000 003b 0000 0000"
    after, _ = clamp(hexed(f"0000 00000005 {offered} 00000000"), 1)
    assert after == hexed(f"0000 00000004 {kept} 00000000")


def test_where_no_address_is_rewritten_only_what_else_is_read_is_cut() -> None:
    rest = "0003 0000 000e 004e 0000 0000 0034 0000 0002 00000000"
    after, _ = clamp(hexed(f"0000 00000004 0001 0000 0013 {rest}"), 1, rewrites=False)
    assert after == hexed(f"0000 00000004 0001 0000 0012 {rest}")
    assert set(UNDERSTOOD) == {0, 1, 18}


def test_a_range_without_a_version_passes_where_the_key_is_not_cut() -> None:
    body = hexed("0000 00000002 0006 0005 0001 0003 0005 0001")
    assert clamp(body, 0)[0] == body


def test_a_key_beyond_what_is_understood_is_left_out() -> None:
    """Trap 5: if the gateway supports no version of an API, it removes the API from the response."""
    after, features = clamp(hexed("0000 00000002 0001 0013 0014 0003 0000 000d 00000000"), 1)
    assert after == hexed("0000 00000001 0003 0000 000d 00000000")
    assert features is not None
    assert features.fetch_max == 20
    after, _ = clamp(hexed("0000 03 0001 0013 0014 00 0003 0000 000d 00 00000000 00"), 4)
    assert after == hexed("0000 02 0003 0000 000d 00 00000000 00")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0000 00000001 0001 0000 0012 00000000", 2),
        ("0000 8200 0001 0000 0012 00 00000000 00", 3),
        ("0000 01 00000000 00", 4),
        ("0000 ffffffff", 0),
    ],
)
def test_what_needs_no_cut_comes_back_as_it_is(text: str, version: int) -> None:
    body = hexed(text)
    after, _ = clamp(body, version)
    assert after is body


def test_an_error_tells_no_features() -> None:
    body = hexed("002a 01 00000000 00")
    assert clamp(body, 3) == (body, None)


# --- a version that the broker does not know ------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 99])
@pytest.mark.parametrize(
    "body", ["0023 00000000", "0023 00000001 0012 0000 0003"], ids=["before 2.4", "since 2.4"]
)
def test_error_35_comes_in_v0_form(version: int, body: str) -> None:
    """Trap 31: the gateway leaves a refusal (error 35) in the form of v0, whatever version was requested."""
    assert clamp(hexed(body), version) == (hexed(body), None)


def test_error_35_promises_no_more_than_is_understood() -> None:
    assert clamp(hexed("0023 00000001 0012 0000 0007"), 9)[0] == hexed("0023 00000001 0012 0000 0004")


def test_v0_form_without_error_35_is_no_response_to_another_version() -> None:
    v0 = hexed("0000 00000001 0012 0000 0003")
    with pytest.raises(ProtocolError):
        clamp(v0, 1)
    with pytest.raises(UnknownVersion, match="api key 18 at version 5"):
        clamp(v0, 5)


def test_bytes_left_over() -> None:
    with pytest.raises(Malformed, match="1 bytes are left over"):
        clamp(hexed("0000 00000000 00"), 0)


@pytest.mark.parametrize(
    "exchange", [one for one in LIVE if one["api_key"] == 18], ids=lambda one: one["broker"]
)
def test_live_responses_to_an_unknown_version(exchange: dict[str, Any]) -> None:
    frame = bytes.fromhex(exchange["response_hex"])
    correlation_id, start = response_header(frame, 0, 18, exchange["api_version"])
    assert correlation_id == request_header(bytes.fromhex(exchange["request_hex"]), 0)[2]
    assert clamp(frame[start:], exchange["api_version"]) == (frame[start:], None)


# --- what the ranges tell -------------------------------------------------------------------------

# release: Fetch min and max, OffsetFetch max, FindCoordinator max; sessions, leader epoch kept
RELEASES = {
    "1.0": (0, 6, 3, 1, False, False),
    "1.1": (0, 7, 3, 1, True, False),
    "2.0": (0, 8, 4, 2, True, False),
    "2.1": (0, 10, 5, 2, True, False),
    "2.3": (0, 11, 5, 2, True, False),
    "2.4": (0, 11, 6, 3, True, False),
    "2.5": (0, 11, 7, 3, True, True),
    "2.8": (0, 12, 7, 3, True, True),
    "3.0": (0, 12, 8, 4, True, True),
    "3.9": (0, 17, 9, 6, True, True),
    "4.0": (4, 17, 9, 6, True, True),
    "4.3": (4, 18, 10, 6, True, True),
}


@pytest.mark.parametrize("release", RELEASES)
def test_features(release: str) -> None:
    fetch_min, fetch_max, offset_fetch, find_coordinator, *told = RELEASES[release]
    body = b"\0\0\0\0\0\3" + b"".join(
        key.to_bytes(2) + low.to_bytes(2) + high.to_bytes(2)
        for key, low, high in ((9, 0, offset_fetch), (1, fetch_min, fetch_max), (10, 0, find_coordinator))
    )
    _, features = clamp(body, 0)
    assert features == Features(
        fetch_max=fetch_max,
        offset_fetch_max=offset_fetch,
        find_coordinator_max=find_coordinator,
    )
    assert [features.has_sessions, features.keeps_leader_epoch] == told


def test_a_broker_without_fetch_has_no_sessions() -> None:
    _, features = clamp(hexed("0000 00000000"), 0)
    assert features == Features(fetch_max=-1, offset_fetch_max=-1, find_coordinator_max=-1)
    assert not features.has_sessions


# --- requests -------------------------------------------------------------------------------------


def test_client_software() -> None:
    body = b"\x0blibrdkafka\x072.16.0\x00"
    assert read_client_software(b"head" + body, 4) == (
        ClientSoftware(name="librdkafka", version="2.16.0"),
        4 + len(body),
    )
    assert read_client_software(b"\x00\x02\xff\x01\x05\x01x", 0) == (
        ClientSoftware(name="", version="\ufffd"),
        7,
    )
    for size in range(len(body)):
        with pytest.raises(ProtocolError):
            read_client_software(body[:size], 0)


def test_live_client_software() -> None:
    [frame, *_] = (bytes.fromhex(one["request_hex"]) for one in LIVE if one["api_key"] == 18)
    assert read_client_software(frame, request_header(frame, 0)[4]) == (
        ClientSoftware(name="a", version="b"),
        len(frame),
    )


def test_a_request_of_the_gateways_own() -> None:
    frame = request(7, b"fetchgate")
    assert frame == hexed("00000013 0012 0000 00000007 0009") + b"fetchgate"
    assert request_header(frame, 4) == (18, 0, 7, b"fetchgate", len(frame))
