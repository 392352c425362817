"""``--capture-records no`` omits the contents of records, but keeps all bytes that measuring needs.

The result does not depend on how the bytes are split into reads.
"""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.capture.no_tap import BROKER, CLIENT
from proxy.capture.pcap import Piece
from proxy.capture.redact import KEPT, Redactor
from proxy.protocol.api import ApiKey
from tests.frames import (
    EVERY_VERSION,
    SESSION_VERSIONS,
    VERSIONS,
    LiveExchange,
    entry,
    fetch,
    fetch_response,
    framed,
    live,
)
from tests.model import wire
from tests.playbook import request, response

SECRET = b"\xc3SECRET\xc3"


def _redacted(redactor: Redactor, by: int, chunks: Iterable[bytes]) -> bytes:
    """Return the captured form of some chunks as its reader sees it. Omitted bytes are zeros."""
    pieces: list[Piece] = [piece for chunk in chunks for piece in redactor.redact(by, chunk)]
    return b"".join(bytes(kept) + bytes(cut) for kept, cut in pieces)


def _whole(by: int, frame: bytes, redactor: Redactor | None = None) -> bytes:
    return _redacted(redactor or Redactor(), by, [frame])


def _with_records(version: int) -> bytes:
    return fetch_response(
        version,
        ("a", [entry(0, 5), entry(1, 7, records=SECRET), entry(2, 5)] + [entry(n) for n in range(3, 40)]),
        ("b", [entry(0, 9, records=SECRET * 40_000), entry(1, 9, records=SECRET)]),
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fetch_response_is_without_its_records_and_else_as_it_was(version: int) -> None:
    redactor, frame = Redactor(), _with_records(version)
    asked = fetch(version, ("a", 0), correlation=1)

    assert _whole(CLIENT, asked, redactor) == asked
    assert _whole(BROKER, frame, redactor) == frame.replace(SECRET, bytes(len(SECRET)))


@given(
    st.sampled_from(SESSION_VERSIONS),
    st.lists(st.binary(max_size=3).map(SECRET.join([b"", b""]).__add__), max_size=6),
    st.data(),
)
def test_it_does_not_matter_how_the_bytes_come(
    version: int, records: list[bytes], data: st.DataObject
) -> None:
    entries = [entry(number, 5, records=some) for number, some in enumerate(records)]
    frames = [fetch_response(version, ("a", entries), ("b", entries), correlation_id=n) for n in (1, 2)]
    asked = [fetch(version, ("a", 0), correlation=n) for n in (1, 2)]
    redactor, by_chunks = Redactor(), Redactor()
    for some in (redactor, by_chunks):
        _redacted(some, CLIENT, asked)
    stream = b"".join(frames)
    at = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    chunks = [stream[start:end] for start, end in zip([0, *at], [*at, len(stream)], strict=True)]

    assert _redacted(by_chunks, BROKER, chunks) == _redacted(redactor, BROKER, frames)


def _keeps_all_but_its_records(exchange: LiveExchange) -> None:
    redactor = Redactor()
    correlation = exchange.request[8:12]

    assert _whole(CLIENT, exchange.request, redactor) == exchange.request
    frame = correlation.join([exchange.response[:4], exchange.response[8:]])
    seen = _redacted(redactor, BROKER, [frame[n : n + 7] for n in range(0, len(frame), 7)])
    expected = frame
    for topic in wire.decode_response(frame[4:], exchange.version).topics:
        for data in topic.partitions:
            if data.records:
                expected = expected.replace(data.records, bytes(len(data.records)))
    assert seen == expected


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_live_fetches_keep_all_but_their_records(version: int) -> None:
    for exchange in live(version):
        _keeps_all_but_its_records(exchange)


@pytest.mark.parametrize("version", [0, 3, 19])
def test_a_response_of_a_version_that_is_not_understood_has_its_head_alone(version: int) -> None:
    redactor, frame = Redactor(), response(1, SECRET * 9)
    _whole(CLIENT, request(ApiKey.FETCH, version, 1), redactor)

    assert _whole(BROKER, frame, redactor) == frame[:8] + bytes(len(frame) - 8)


def test_from_where_a_response_is_not_understood_it_is_left_out() -> None:
    redactor = Redactor()
    _whole(CLIENT, fetch(12, ("a", 0), correlation=1), redactor)
    frame = fetch_response(12, ("a", [entry(0, 5)]))
    bad = framed(frame[4:] + SECRET)  # bytes after the end of the response

    assert SECRET not in _redacted(redactor, BROKER, [bad[:30], bad[30:]])
    _has_its_head_alone(redactor)


def _has_its_head_alone(redactor: Redactor) -> None:
    """Check that only the header of the next response is kept, and its body is replaced by zeros.

    The bytes look like a Metadata response, but they may be the contents of the previous response.
    """
    following = response(2, SECRET)
    _whole(CLIENT, request(ApiKey.METADATA, 1, 2), redactor)
    assert _whole(BROKER, following, redactor) == following[:8] + bytes(len(SECRET))


@pytest.mark.parametrize(("api_key", "version"), [(ApiKey.FETCH, 3), (ApiKey.FETCH, 19), (9_999, 0)])
def test_behind_a_response_that_nobody_can_read_there_are_no_bodies(api_key: int, version: int) -> None:
    """After an unreadable response, the bodies of later responses are not kept in the capture.

    The length field of the unreadable response may be too small. Then its records are where the next body is
    expected.
    """
    redactor = Redactor()
    _whole(CLIENT, request(api_key, version, 1), redactor)
    _whole(BROKER, response(1, SECRET), redactor)
    _has_its_head_alone(redactor)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_behind_a_whole_response_to_sasl_authenticate_there_are(version: int) -> None:
    lifetime = bytes(8) if version else b""
    told = b"\0\0" + (b"\0\x07SECRET\0" if version == 2 else b"\xff\xff\0\0\0\x06SECRET")
    told = told[:-1] + lifetime + b"\0" if version == 2 else told + lifetime
    for body, follows in ((told, True), (told[:-1], False), (told + b"\0", False)):
        redactor, following = Redactor(), response(2, b"kept")
        _whole(CLIENT, request(ApiKey.SASL_AUTHENTICATE, version, 1), redactor)
        assert SECRET not in _redacted(redactor, BROKER, [response(1, body)[:14], response(1, body)[14:]])
        _whole(CLIENT, request(ApiKey.METADATA, 1, 2), redactor)
        assert (_whole(BROKER, following, redactor) == following) is follows


def test_behind_a_response_to_a_transaction_there_are() -> None:
    redactor, following = Redactor(), response(2, b"kept")
    _whole(CLIENT, request(ApiKey.END_TXN, 3, 1), redactor)
    assert _whole(BROKER, response(1, b"12345"), redactor) == response(1, bytes(5))
    _whole(CLIENT, request(ApiKey.METADATA, 1, 2), redactor)
    assert _whole(BROKER, following, redactor) == following


@pytest.mark.parametrize("api_key", sorted(KEPT - {ApiKey.FETCH, ApiKey.SASL_HANDSHAKE}))
def test_bodies_that_hold_no_records_stay(api_key: ApiKey) -> None:
    redactor = Redactor()
    asked, answered = request(api_key, 1, 7, b"body" * 9), response(7, b"body" * 9)

    assert _whole(CLIENT, asked, redactor) == asked
    assert _whole(BROKER, answered, redactor) == answered


@pytest.mark.parametrize(
    "api_key",
    [
        ApiKey.PRODUCE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.SHARE_FETCH,
        ApiKey.ALTER_CONFIGS,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        9_999,
    ],
)
def test_other_bodies_are_left_out_and_headers_stay(api_key: int) -> None:
    redactor = Redactor()
    asked, answered = request(api_key, 1, 7, SECRET, client=b"who"), response(7, SECRET)

    chunks = [asked[:3], asked[3:13], asked[13:16], asked[16:20], asked[20:]]
    assert _redacted(redactor, CLIENT, chunks) == asked[: -len(SECRET)] + bytes(len(SECRET))
    assert _whole(BROKER, answered, redactor) == answered[:8] + bytes(len(SECRET))


def test_requests_that_are_never_answered_take_no_memory() -> None:
    """Produce requests with acks=0, which have no response (trap 32), are not remembered."""
    redactor = Redactor()
    for correlation in range(1_000):
        _whole(CLIENT, request(ApiKey.PRODUCE, 2, correlation, b"\0\0" + SECRET), redactor)

    assert not redactor._streams[CLIENT]._open._queue


def test_requests_that_a_broker_does_not_answer_take_some_memory_and_no_more() -> None:
    redactor = Redactor()
    for correlation in range(20_000):
        _whole(CLIENT, request(ApiKey.METADATA, 1, correlation), redactor)

    assert not redactor._streams[CLIENT]._open._queue
    answered = response(0, SECRET)
    assert _whole(BROKER, answered, redactor) == answered[:8] + bytes(len(SECRET))


def test_a_response_that_nothing_asked_for_is_left_out() -> None:
    frame = response(5, SECRET)

    assert _whole(BROKER, frame) == frame[:8] + bytes(len(SECRET))


def test_tokens_after_sasl_handshake_v0_are_left_out() -> None:
    redactor = Redactor()
    handshake, shaken = request(ApiKey.SASL_HANDSHAKE, 0, 1, b"\0\5PLAIN"), response(1, b"\0\0\0\0\0\0")
    token = framed(b"\0user\0" + SECRET)

    assert _redacted(redactor, CLIENT, [handshake + token, token]) == handshake + bytes(2 * len(token))
    assert _redacted(redactor, BROKER, [shaken, token]) == shaken + bytes(len(token))


@pytest.mark.parametrize("by", [CLIENT, BROKER])
@pytest.mark.parametrize("first", [b"\x60\x82\x02\x00", b"\xff\xff\xff\xff", b"\0\0\0\3"])
def test_what_is_no_frame_is_left_out_but_for_its_length(by: int, first: bytes) -> None:
    assert _redacted(Redactor(), by, [first + SECRET, SECRET]) == first + bytes(2 * len(SECRET))


def test_a_request_without_a_client_id() -> None:
    frame = framed(b"\0\0\0\3\0\0\0\1\xff\xff" + SECRET)

    assert _whole(CLIENT, frame) == frame[:14] + bytes(len(SECRET))


def test_the_shortest_request_there_is_stays() -> None:
    frame = framed(b"\0\7\0\0\0\0\0\1")  # ControlledShutdown v0 has header v0

    assert _redacted(Redactor(), CLIENT, [frame[:5], frame[5:] + frame]) == frame + frame


def test_pieces_are_few() -> None:
    redactor = Redactor()
    _whole(CLIENT, fetch(12, ("a", 0), correlation=1), redactor)

    frame = _with_records(12)

    assert (
        len(redactor.redact(BROKER, frame + frame)) == 4
    )  # one for each stretch left out, the second frame one
