"""API keys and flexible versions compared with kio's schemas, and headers compared with fixed bytes."""

import contextlib
import importlib
import pkgutil
from collections.abc import Iterator

import kio.schema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode

from proxy.protocol.api import (
    API_KEY,
    API_KEY_AND_VERSION,
    API_VERSION,
    FIRST_FLEXIBLE,
    LENGTH_BYTES,
    REQUEST_CORRELATION_ID,
    REQUEST_START,
    REQUEST_START_BYTES,
    RESPONSE_CORRELATION_ID,
    RESPONSE_START,
    RESPONSE_START_BYTES,
    ApiKey,
    ErrorCode,
    is_flexible,
    request_header,
    response_header,
)
from proxy.protocol.primitives import Malformed, ProtocolError, Truncated


def kio_flexibility() -> Iterator[tuple[str, int, int, bool, bool]]:
    """Yield (name, API key, version, flexible, tags in the response header) for each request and response of
    kio.
    """
    for message in pkgutil.iter_modules(kio.schema.__path__):
        if not message.ispkg or message.name in {"data", "request_header", "response_header"}:
            continue
        package = importlib.import_module(f"kio.schema.{message.name}")
        for version in pkgutil.iter_modules(package.__path__):
            path = f"kio.schema.{message.name}.{version.name}"
            if {"request", "response"} - {
                one.name for one in pkgutil.iter_modules(importlib.import_module(path).__path__)
            }:
                continue
            title = "".join(word.title() for word in message.name.split("_"))
            request = getattr(importlib.import_module(f"{path}.request"), title + "Request")
            response = getattr(importlib.import_module(f"{path}.response"), title + "Response")
            assert response.__flexible__ == request.__flexible__
            tagged = response.__header_schema__.__flexible__
            yield message.name, request.__api_key__, request.__version__, request.__flexible__, tagged


def test_keys_are_kafkas() -> None:
    assert list(ApiKey) == list(range(93))
    assert set(FIRST_FLEXIBLE) == set(range(93))


@pytest.mark.slow
def test_names_and_flexible_versions_agree_with_kio() -> None:
    checked = 0
    for name, api_key, version, flexible, tagged in kio_flexibility():
        assert ApiKey(api_key).name == name.upper()
        assert is_flexible(api_key, version) is flexible, (name, version)
        assert response_header(bytes(5), 0, api_key, version) == (0, 5 if tagged else 4), (name, version)
        checked += 1
    assert checked > 200


def test_error_codes_agree_with_kio() -> None:
    for code in ErrorCode:
        assert KioErrorCode(code.value).name == code.name.lower()


@pytest.mark.parametrize(
    ("api_key", "version", "flexible"),
    [
        (1, 11, False),
        (1, 12, True),
        (17, 1, False),
        (17, 32767, False),
        (47, 0, False),
        (45, 0, True),
        (7, 2, False),
        (49, 0, False),
        (49, 1, True),
        (54, 0, False),
        (55, 0, True),
        (92, 0, True),
        (3, -1, False),
    ],
)
def test_is_flexible(api_key: int, version: int, flexible: bool) -> None:
    assert is_flexible(api_key, version) is flexible


@pytest.mark.parametrize("api_key", [-1, 93, 500])
def test_of_an_unknown_key_nobody_can_tell(api_key: int) -> None:
    assert is_flexible(api_key, 0) is None
    assert response_header(bytes(5), 0, api_key, 0) == (0, 4)


def test_api_versions_responses_have_no_tags_in_the_header() -> None:
    assert is_flexible(18, 4) is True
    assert response_header(bytes.fromhex("00000007 0023"), 0, 18, 4) == (7, 4)


REQUESTS = [
    pytest.param("0007 0000 00000007", (7, 0, 7, None, 8), id="header v0: ControlledShutdown v0"),
    pytest.param("0001 000b 00000007 0001 63", (1, 11, 7, b"c", 11), id="header v1"),
    pytest.param("0001 000b ffffffff ffff", (1, 11, -1, None, 10), id="header v1, no client id"),
    pytest.param("0001 0010 00000007 0000 00", (1, 16, 7, b"", 11), id="header v2"),
    pytest.param(
        "0001 0010 00000007 0001 63 02 00 02 abcd 64 00", (1, 16, 7, b"c", 18), id="header v2 with tags"
    ),
    pytest.param(
        "0012 0003 00000007 0001 63 00", (18, 3, 7, b"c", 12), id="ApiVersions request has header v2"
    ),
    pytest.param(
        "01f4 0000 00000007 0001 63", (500, 0, 7, b"c", 11), id="unknown key: as far as can be told"
    ),
]


@pytest.mark.parametrize(("text", "header"), REQUESTS)
def test_request_header(text: str, header: tuple[int, int, int, bytes | None, int]) -> None:
    frame = bytes.fromhex(text)
    assert request_header(frame, 0) == header
    # The same in the middle of a buffer, and with a body behind it.
    assert request_header(b"\0\0\0\x63" + frame + b"body", 4) == (*header[:4], header[4] + 4)
    for size in range(len(frame)):
        with pytest.raises(Truncated):
            request_header(frame[:size], 0)


def test_a_client_id_with_a_length_below_null() -> None:
    with pytest.raises(Malformed, match="length -2"):
        request_header(bytes.fromhex("0001 000b 00000007 fffe"), 0)


def test_how_frames_begin() -> None:
    request = bytes.fromhex("0000000e 0001 0010 00000007 0004") + b"name"
    assert REQUEST_START.unpack_from(request) == (14, ApiKey.FETCH, 16, 7)
    assert (request[API_KEY], request[API_VERSION]) == (b"\x00\x01", b"\x00\x10")
    assert request[API_KEY_AND_VERSION] == request[API_KEY] + request[API_VERSION]
    assert request[REQUEST_CORRELATION_ID] == (7).to_bytes(4)
    assert request[REQUEST_START_BYTES:] == b"\x00\x04name"

    response = bytes.fromhex("00000005 00000007 61")
    assert RESPONSE_START.unpack_from(response) == (LENGTH_BYTES + 1, 7)
    assert response[RESPONSE_CORRELATION_ID] == (7).to_bytes(4)
    assert response[RESPONSE_START_BYTES:] == b"a"


def test_response_header() -> None:
    assert response_header(bytes.fromhex("00000007"), 0, 1, 11) == (7, 4)
    assert response_header(bytes.fromhex("00000007 00"), 0, 1, 12) == (7, 5)
    assert response_header(bytes.fromhex("00000007 01 05 01 aa"), 0, 1, 12) == (7, 8)
    assert response_header(bytes.fromhex("00000007 01 05 01 aa"), 0, 500, 12) == (7, 4)
    with pytest.raises(Truncated):
        response_header(bytes.fromhex("00000007 01 05 02 aa"), 0, 1, 12)
    with pytest.raises(Truncated):
        response_header(bytes.fromhex("000000"), 0, 1, 11)


@given(st.binary(max_size=40), st.integers(0, 45))
def test_noise_raises_protocol_errors_only(frame: bytes, offset: int) -> None:
    for read in (lambda: request_header(frame, offset), lambda: response_header(frame, offset, 1, 16)):
        with contextlib.suppress(ProtocolError):
            read()
