import struct

import pytest

from proxy.protocol.primitives import encode_compact_string, encode_string
from replay.capture.kafka.connection import NO_REQUESTS, NOT_KAFKA, OPAQUE
from replay.capture.kafka.exchange import UNSEEN, ConnectionEnd, Exchange
from replay.capture.packets.tcp import FIN, RST, SYN
from replay.capture.tls.reasons import TLS
from tests.replay.capture.packets_of import read, row
from tests.replay.capture.talk import Talk, framed, request, response


def _ids(exchanges: list[Exchange]) -> list[tuple[int, bool, bool]]:
    return [(one.correlation_id, one.request_bytes > 0, one.response_bytes > 0) for one in exchanges]


def test_a_request_and_its_response_are_an_exchange() -> None:
    asked, told = request(12, 1, 5, b"\0" * 8), response(5)
    (one,), end = Talk().client(asked).broker(told).read()
    assert one == Exchange(
        connection="10.0.0.1:50000 > 10.0.0.2:9092 #0",
        client="10.0.0.1:50000",
        broker="10.0.0.2:9092",
        number=0,
        client_id="me",
        software="",
        api_key=12,
        api_version=1,
        correlation_id=5,
        request_time=1_000_001,
        response_time=2_000_001,
        request_bytes=len(asked),
        response_bytes=len(told),
    )
    assert (end.client_bytes, end.broker_bytes, end.syn_seen) == (len(asked), len(told), True)


def test_frames_that_are_read_are_handed_on() -> None:
    asked, told = request(3, 1, 5, b"\0" * 4), response(5)
    (one,), _ = Talk().client(asked).broker(told).read()
    assert (one.request, b"".join(one.response)) == (asked, told)


def test_responses_that_are_asked_for_are_handed_on_and_metadata_in_any_case() -> None:
    talk = Talk().client(request(18, 0, 0)).broker(response(0)).client(request(12, 1, 1)).broker(response(1))
    talk.client(request(3, 1, 2, b"\0" * 4)).broker(response(2))
    found = [one for one in read(talk.rows, responses=frozenset({12})) if isinstance(one, Exchange)]
    assert [b"".join(one.response) for one in found] == [b"", response(1), response(2)]


def test_software_is_what_the_client_says() -> None:
    body = b"\0" + encode_compact_string(b"lib") + encode_compact_string(b"1.2") + b"\0"
    talk = Talk().client(request(18, 3, 0, body)).broker(response(0))
    exchanges, end = talk.client(request(12, 1, 1)).broker(response(1)).read()
    assert [one.software for one in exchanges] == ["lib 1.2", "lib 1.2"]
    assert end.software == "lib 1.2"


def test_pipelined_requests_are_paired_in_order() -> None:
    asked = b"".join(request(12, 1, place) for place in range(5))
    exchanges, _ = Talk().client(asked).broker(b"".join(response(place) for place in range(5))).read()
    assert _ids(exchanges) == [(place, True, True) for place in range(5)]


def test_produce_without_acks_waits_for_no_response() -> None:
    produce = request(0, 7, 1, b"\xff\xff\0\0" + b"\0" * 8)
    exchanges, _ = Talk().client(request(18, 0, 0)).broker(response(0)).client(produce).read()
    assert [(one.api_key, one.answer_due) for one in exchanges] == [(18, True), (0, False)]


def test_a_lost_response_leaves_its_request_unanswered_and_the_next_one_paired() -> None:
    talk = Talk().client(request(12, 1, 1)).broker(response(1)).client(request(12, 1, 2))
    talk.broker(response(2), lost=True).client(request(12, 1, 3)).broker(response(3)).client(
        request(12, 1, 4)
    )
    exchanges, end = talk.broker(response(4)).read()
    assert _ids(exchanges) == [(1, True, True), (2, True, False), (3, True, True), (4, True, True)]
    assert (end.gaps, end.gap_bytes, end.frame_gap_bytes) == (1, 14, 0)


def test_a_lost_request_leaves_its_response_unpaired() -> None:
    talk = Talk().client(request(12, 1, 1)).broker(response(1)).client(request(12, 1, 2), lost=True)
    talk.broker(response(2)).client(request(12, 1, 3)).broker(response(3))
    exchanges, end = talk.read()
    assert sorted(_ids(exchanges)) == [(1, True, True), (2, False, True), (3, True, True)]
    unpaired = next(one for one in exchanges if one.correlation_id == 2)
    assert (unpaired.api_key, unpaired.api_version) == (UNSEEN, UNSEEN)
    assert end.gaps == 1


def test_one_id_for_all_requests_is_paired_only_while_nothing_is_lost() -> None:
    talk = Talk().client(request(12, 1, 7)).broker(response(7)).client(request(12, 1, 7))
    talk.broker(response(7, b"1" * 40), lost=True).client(request(12, 1, 7)).broker(response(7, b"2" * 20))
    exchanges, _ = talk.client(request(12, 1, 7)).broker(response(7, b"3" * 30)).read()
    assert 20 + 8 not in [one.response_bytes for one in exchanges if one.number == 1]


def test_a_frame_goes_on_over_a_gap_that_lies_within_it() -> None:
    talk = Talk().client(request(12, 1, 1)).broker(response(1, b"x" * 500), cut_to=100)
    exchanges, end = talk.client(request(12, 1, 2)).broker(response(2)).read()
    assert [(one.response_bytes, one.response_missing) for one in exchanges] == [(508, 408), (14, 0)]
    assert (end.cut_bytes, end.frame_gap_bytes, end.resyncs) == (408, 408, 0)


def test_contents_of_produce_that_were_cut_are_left_out_and_others_are_gaps() -> None:
    produce = request(0, 7, 2, b"\xff\xff\0\1" + b"\0" * 500)
    talk = Talk().client(request(12, 1, 1)).broker(response(1)).client(produce, cut_to=60).broker(response(2))
    _, end = talk.client(request(12, 1, 3)).broker(response(3)).read()
    assert (end.left_out_gaps, end.left_out_bytes) == (end.gaps, end.gap_bytes) == (1, len(produce) - 60)

    talk = Talk().client(request(12, 1, 1)).broker(response(1, b"x" * 500), cut_to=100)
    _, end = talk.client(produce, cut_to=60).broker(response(2)).read()
    assert (end.gaps, end.left_out_gaps, end.left_out_bytes) == (2, 1, len(produce) - 60)


def test_a_frame_of_which_only_the_length_is_there_is_gone_over() -> None:
    talk = Talk().client(request(12, 1, 1)).broker(response(1)).client(request(12, 1, 2), cut_to=5)
    exchanges, end = talk.broker(response(2)).client(request(12, 1, 3)).broker(response(3)).read()
    assert _ids(exchanges) == [(1, True, True), (2, False, True), (3, True, True)]
    assert (end.headerless_requests, end.headerless_bytes, end.token_bytes) == (1, 5, 0)


def test_a_port_used_again_is_another_connection() -> None:
    talk = Talk().client(request(12, 1, 1)).broker(response(1))
    talk.rows.append(row(client=True, sequence=talk.next[True], flags=FIN, time=talk.time))
    again = Talk()
    again.next = {True: 70_001, False: 80_001}
    again.rows = [row(client=True, sequence=70_000, flags=SYN), row(client=False, sequence=80_000, flags=SYN)]
    again.client(request(12, 1, 1)).broker(response(1))
    events = read([*talk.rows, *again.rows])
    ends = [one for one in events if isinstance(one, ConnectionEnd)]
    assert [end.connection[-2:] for end in ends] == ["#0", "#1"]
    assert [end.closed for end in ends] == [True, False]
    assert [one.correlation_id for one in events if isinstance(one, Exchange)] == [1, 1]


def test_a_reset_by_the_client_closes() -> None:
    talk = Talk().client(request(12, 1, 1)).broker(response(1))
    talk.rows.append(row(client=True, sequence=talk.next[True], flags=RST, time=77))
    assert talk.read()[1].closed_time == 77


def test_a_fin_beyond_what_was_captured_tells_of_a_gap() -> None:
    talk = Talk().client(request(12, 1, 1)).broker(response(1)).client(request(12, 1, 2), lost=True)
    talk.rows.append(row(client=True, sequence=talk.next[True], flags=FIN))
    assert talk.read()[1].gap_bytes == len(request(12, 1, 2))


def handshake_v0(mechanism: bytes = b"PLAIN") -> Talk:
    return Talk().client(request(17, 0, 1, encode_string(mechanism))).broker(response(1))


TOKENS = {
    "PLAIN": [b"\0alice\0secret", b""],
    "short PLAIN": [b"\0a\0b", b""],
    "SCRAM": [b"n,,n=alice,r=fyko", b"r=fykoHa,s=c2FsdA==,i=4096", b"c=biws,r=fykoHa,p=cHJvb2Y=", b"v=dmVy"],
    "refused token": [b"n,,\1auth=Bearer x\1\1", b'{"status":"invalid_token"}', b"\1", b""],
    "GSSAPI": [b"\x60\x82\2\x57" + bytes(599), b"\x60\x81\x99" + bytes(153), b"", b"\5\4\5\xff" * 8],
}
"""Tokens of client and broker in turn. The broker does not answer the last token of GSSAPI."""


@pytest.mark.parametrize("name", TOKENS)
@pytest.mark.parametrize("most", [1, 3, 1000])
def test_requests_after_the_tokens_of_a_handshake_v0_are_read(name: str, most: int) -> None:
    talk, client = handshake_v0(), True
    tokens = [*TOKENS[name], *([b"\5\4\4\xff" * 8] if name == "GSSAPI" else [])]
    for token in tokens:
        for at in range(0, 4 + len(token), most):
            talk.say(framed(token)[at : at + most], client=client)
        client = not client
    for number in range(2, 5):
        talk.client(request(12, 1, number)).broker(response(number))

    exchanges, end = talk.read()

    assert _ids(exchanges) == [(number, True, True) for number in range(1, 5)]
    assert (end.reason, end.unframed_bytes, end.partial_bytes) == ("", 0, 0)
    assert end.headerless_bytes == end.token_bytes == sum(4 + len(token) for token in tokens)
    assert (end.headerless_requests, end.headerless_responses) == (len(tokens) + 1 >> 1, len(tokens) >> 1)


def test_requests_behind_the_last_token_in_one_packet_are_read() -> None:
    talk = handshake_v0().client(framed(b"\0a\0b")).broker(framed(b""))
    talk.client(request(12, 1, 2) + request(12, 1, 3)).broker(response(2) + response(3))
    late = handshake_v0().client(framed(b"\0a\0b") + request(12, 1, 2)).broker(framed(b"") + response(2))

    assert _ids(talk.read()[0]) == [(number, True, True) for number in (1, 2, 3)]
    assert _ids(late.read()[0]) == [(number, True, True) for number in (1, 2)]


def test_a_token_is_no_response_to_a_later_request() -> None:
    """Its first bytes may be a correlation id. Responses come in order."""
    talk = handshake_v0().client(framed(b"\0a\0b") + request(12, 1, 2) + request(12, 1, 3))
    talk.broker(framed(b"\0\0\0\3") + response(2) + response(3))

    assert _ids(talk.read()[0]) == [(number, True, True) for number in (1, 2, 3)]


def test_many_fetches_after_a_handshake_v0_are_read_at_once() -> None:
    talk = handshake_v0().client(framed(b"\0a\0b")).broker(framed(b""))
    for number in range(2, 80):
        talk.client(request(1, 4, number, bytes(40))).broker(response(number, bytes(20)))

    exchanges, _ = talk.read()

    assert _ids(exchanges) == [(number, True, True) for number in range(1, 80)]


@pytest.mark.parametrize("lost", ["client", "broker", "both"])
def test_a_lost_token_of_a_handshake_v0_does_not_hide_the_requests(lost: str) -> None:
    talk = handshake_v0()
    talk.client(framed(b"\0a\0b"), lost=lost != "broker").broker(framed(b""), lost=lost != "client")
    for number in range(2, 6):
        talk.client(request(12, 1, number)).broker(response(number))

    exchanges, end = talk.read()

    assert _ids(exchanges) == [(number, True, True) for number in range(1, 6)]
    assert end.reason == ""


def test_a_login_that_fails_after_a_handshake_v0_is_read_to_its_end() -> None:
    exchanges, end = handshake_v0().client(framed(b"\0alice\0wrong")).read()

    assert _ids(exchanges) == [(1, True, True)]
    assert (end.reason, end.headerless_bytes, end.unframed_bytes) == ("", 16, 0)


def test_a_handshake_v0_that_is_refused_may_be_repeated() -> None:
    talk = handshake_v0(b"NONE").client(request(17, 0, 2, encode_string(b"PLAIN"))).broker(response(2))
    talk.client(framed(b"\0a\0b")).broker(framed(b"")).client(request(12, 1, 3)).broker(response(3))

    assert _ids(talk.read()[0]) == [(number, True, True) for number in (1, 2, 3)]


def test_what_is_neither_token_nor_request_after_a_handshake_v0_is_opaque() -> None:
    talk = handshake_v0().client(b"\x7f\xff\xff\xff" + b"?" * 20).broker(framed(b""))
    exchanges, end = talk.read()
    assert (_ids(exchanges), end.reason) == ([(1, True, True)], OPAQUE)
    assert (end.unframed_bytes, end.headerless_bytes) == (24, 4)


def test_tls_is_named() -> None:
    talk = (
        Talk().client(b"\x16\x03\x01\x02\x00\x01" + b"a" * 511).broker(b"\x16\x03\x03\x00\x7a" + b"b" * 122)
    )
    exchanges, end = talk.read()
    assert (exchanges, end.reason, end.unframed_bytes) == ([], TLS, 517 + 127)


def test_tls_is_named_in_mid_stream() -> None:
    record = b"\x17\x03\x03\x00\x20" + b"c" * 32
    assert Talk(syn=False).client(record * 2).broker(record).client(record).read()[1].reason == TLS


def test_other_protocols_are_told_apart() -> None:
    talk = Talk().client(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").broker(b"HTTP/1.1 200 OK\r\n\r\n")
    exchanges, end = talk.read()
    assert (exchanges, end.reason) == ([], NOT_KAFKA)
    assert end.unframed_bytes == end.client_bytes + end.broker_bytes


def test_zookeepers_first_words_are_no_produce_request() -> None:
    connect = framed(struct.pack(">iqiq", 0, 0, 30_000, 0) + (16).to_bytes(4) + bytes(17))
    told = framed(struct.pack(">iiq", 0, 30_000, 0x100) + (16).to_bytes(4) + bytes(17))
    exchanges, end = Talk().client(connect).broker(told).read()
    assert (exchanges, end.reason) == ([], NOT_KAFKA)


def test_a_response_that_fits_nothing_shows_that_it_is_no_kafka() -> None:
    exchanges, end = Talk().client(request(12, 1, 1)).broker(response(9)).read()
    assert (exchanges, end.reason) == ([], NOT_KAFKA)


def test_responses_alone_are_not_taken_for_requests() -> None:
    """Responses without requests are not read as requests, even if they look like them.

    A response to Produce can look like a Produce request: its correlation id like the API key and the
    version, and its topic like the client id.
    """
    told = [response(place, b"\0\0\0\1" + encode_string(b"orders") + b"\0" * 30) for place in range(3, 9)]
    talk = Talk(syn=False)
    for one in told:
        talk.broker(one)
    exchanges, end = talk.read()
    assert (exchanges, end.reason) == ([], NO_REQUESTS)


def test_in_mid_stream_two_requests_tell_who_is_the_client() -> None:
    talk = Talk(syn=False).broker(response(8, b"y" * 50))
    for place in (9, 10):
        talk.client(request(12, 1, place)).broker(response(place))
    exchanges, end = talk.read()
    assert _ids(exchanges) == [(8, False, True), (9, True, True), (10, True, True)]
    assert (end.client, end.syn_seen, end.gaps) == ("10.0.0.1:50000", False, 0)


@pytest.mark.parametrize("before", [b"", response(8, b"y" * 50)], ids=["alone", "behind a response"])
def test_in_mid_stream_one_exchange_tells_who_is_the_client(before: bytes) -> None:
    talk = Talk(syn=False)
    if before:
        talk.broker(before)
    exchanges, end = talk.client(request(12, 1, 9)).broker(response(9, b"z" * 40)).read()
    assert _ids(exchanges) == [(8, False, True)] * bool(before) + [(9, True, True)]
    assert (end.client, end.reason, end.unframed_bytes) == ("10.0.0.1:50000", "", 0)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (request(12, 1, 9), response(8)),
        (request(12, 1, 9), response(9) + b"more"),
        (request(12, 1, 9), response(9)[:-1]),
        (request(12, 1, 9, client_id=b"\0\0"), response(9)),
        (request(12, 1, 9) + b"m", response(9)),
        (request(12, 1, 9), b"\0\0\0"),
    ],
)
def test_what_is_like_an_exchange_is_none(asked: bytes, told: bytes) -> None:
    exchanges, end = Talk(syn=False).client(asked).broker(told).read()
    assert (exchanges, end.reason) == ([], NOT_KAFKA)


def test_a_port_that_is_told_needs_no_proof() -> None:
    talk = Talk(syn=False).client(request(12, 1, 9)).broker(response(9))
    assert _ids(talk.read(ports=frozenset({9092}))[0]) == [(9, True, True)]


def test_on_a_port_that_is_told_any_client_id_will_do() -> None:
    for client_id in (b"\x1b[2J\r\n", b"\xff\xfe", b"x" * 32_000):
        talk = Talk()
        for place in (1, 2):
            talk.client(request(3, 1, place, client_id=encode_string(client_id))).broker(response(place))
        assert talk.read()[1].reason == NOT_KAFKA
        exchanges, end = talk.read(ports=frozenset({9092}))
        assert _ids(exchanges) == [(1, True, True), (2, True, True)]
        assert (end.client_id, end.unframed_bytes) == (client_id.decode(errors="replace"), 0)


def test_the_clients_half_alone() -> None:
    talk = Talk()
    for place in range(6):
        talk.client(request(12, 1, place))
    exchanges, end = talk.read()
    assert _ids(exchanges) == [(place, True, False) for place in range(6)]
    assert end.broker_bytes == 0


def test_the_start_of_a_frame_at_the_end_is_counted() -> None:
    _, end = Talk().client(request(12, 1, 1)).broker(response(1)).client(request(12, 1, 2)[:9]).read()
    assert end.partial_bytes == 9
