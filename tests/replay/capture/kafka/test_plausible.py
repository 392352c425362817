import struct

import pytest

from proxy.protocol.primitives import encode_string
from replay.capture.kafka.plausible import (
    MORE,
    NO,
    first_topic,
    is_fetch_response,
    request_candidates,
    request_size,
)


def _request(
    key: int = 3, version: int = 1, correlation_id: int = 7, client_id: bytes | None = b"me"
) -> bytes:
    body = struct.pack(">hhi", key, version, correlation_id) + encode_string(client_id) + b"\0\0\0\0"
    return len(body).to_bytes(4) + body


def test_a_request_tells_its_size() -> None:
    assert request_size(_request(), cut=False) == len(_request())


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(_request(key=93), id="no such key"),
        pytest.param(_request(version=25), id="no such version"),
        pytest.param(_request(version=-1), id="negative version"),
        pytest.param(_request(correlation_id=-3), id="negative id"),
        pytest.param(_request(client_id=b"\x01\x02"), id="client id that nobody can print"),
        pytest.param(_request(client_id=b"\xff\xfe"), id="client id that is no UTF-8"),
        pytest.param(b"\0\0\0\x05" + _request()[4:], id="too short"),
        pytest.param(b"\x7f\0\0\0" + _request()[4:], id="too long"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="HTTP"),
        pytest.param(bytes(64), id="zeros"),
    ],
)
def test_other_bytes_do_not(frame: bytes) -> None:
    assert request_size(frame, cut=False) == NO


@pytest.mark.parametrize("size", [1, 13, 15])
def test_half_a_header_may_become_one_unless_the_rest_is_missing(size: int) -> None:
    assert request_size(_request()[:size], cut=False) == MORE
    assert request_size(_request()[:size], cut=True) == NO


@pytest.mark.parametrize("client_id", [b"me", b""])
def test_a_request_is_a_candidate_wherever_it_stands(client_id: bytes) -> None:
    buffer = bytearray(b"\xee" * 33 + _request() + b"\xee" * 20)
    assert 33 in request_candidates(buffer, 0, client_id, nameless=True)
    assert 33 not in request_candidates(buffer, 34, client_id, nameless=True)


def test_a_client_id_that_is_known_leaves_no_other_candidates() -> None:
    assert list(
        request_candidates(bytearray(bytes(33) + _request() + bytes(20)), 0, b"me", nameless=True)
    ) == [33]


@pytest.mark.parametrize("client_id", [b"", None])
def test_a_header_without_a_client_id_is_a_candidate_only_if_it_may_be(client_id: bytes | None) -> None:
    buffer = bytearray(b"\xee" * 33 + _request(client_id=client_id) + b"\xee" * 20)
    assert 33 in request_candidates(buffer, 0, None, nameless=True)
    assert list(request_candidates(buffer, 0, None, nameless=False)) == []


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(_request(correlation_id=-3), id="negative id"),
        pytest.param(_request(client_id=b"c" * 1025), id="client id that is too long"),
        pytest.param(_request(client_id=b"\x01\x02"), id="client id that nobody can print"),
        pytest.param(b"\x7f\0\0\0" + _request()[4:], id="too long"),
        pytest.param(b"\0\0\0\x09" + _request()[4:], id="too short"),
        pytest.param(_request()[:13], id="cut before the client id's length"),
    ],
)
def test_what_is_no_header_is_no_candidate(frame: bytes) -> None:
    assert 0 not in request_candidates(bytearray(frame), 0, None, nameless=True)


@pytest.mark.parametrize("size", [14, 15])
def test_half_a_header_is_a_candidate(size: int) -> None:
    assert 0 in request_candidates(bytearray(_request()[:size]), 0, None, nameless=False)


@pytest.mark.parametrize("key", [0, 1, 18, 92])
@pytest.mark.parametrize("client_id", [None, b"", b"m", b"c" * 255, b"c" * 256, b"c" * 1024])
def test_every_header_is_a_candidate(key: int, client_id: bytes | None) -> None:
    frame = bytearray(_request(key=key, version=0, client_id=client_id))
    assert 0 in request_candidates(frame, 0, None, nameless=True)
    assert (0 in request_candidates(frame, 0, None, nameless=False)) == bool(client_id)
    assert request_size(bytes(frame), cut=False) == len(frame)


_TOPIC = bytes(range(1, 17))


def _fetch_response(*, topics: bool = True) -> bytes:
    entry = bytes(4) + bytes(2) + bytes(24) + b"\0\xff\xff\xff\xff\x01\0"
    listed = b"\x02" + _TOPIC + b"\x02" + entry + b"\0" if topics else b"\x01"
    body = b"\0\0\0\x07" + b"\0" + bytes(10) + listed + b"\0"
    return len(body).to_bytes(4) + body


def test_a_fetch_response_is_known_by_a_topic_that_was_asked_for() -> None:
    frame = _fetch_response()
    assert first_topic(frame, 16) == _TOPIC
    assert is_fetch_response(frame, whole=True, version=16, request=b"...." + _TOPIC, body=0) is True
    assert is_fetch_response(frame[:60], whole=False, version=16, request=b"...." + _TOPIC, body=0) is True


def test_without_a_topic_that_was_asked_for_it_cannot_be_told() -> None:
    assert is_fetch_response(_fetch_response(), whole=True, version=16, request=b"", body=0) is None
    assert (
        is_fetch_response(_fetch_response(topics=False), whole=True, version=16, request=b"", body=0) is None
    )


def test_what_does_not_parse_is_none() -> None:
    frame = _fetch_response()
    assert is_fetch_response(frame + b"\0", whole=True, version=16, request=_TOPIC, body=0) is False
    assert is_fetch_response(frame[:-3], whole=True, version=16, request=_TOPIC, body=0) is False
