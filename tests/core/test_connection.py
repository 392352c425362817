"""One client connection, step by step: order of responses, forwarded and changed bytes, and its end."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.budget import RequestBudget
from proxy.core.connection import Connection
from proxy.core.events import ClientNamed, Fault, Passthrough, SessionClosed
from proxy.core.in_flight import MAX_IN_FLIGHT
from proxy.protocol.api import ApiKey
from proxy.protocol.produce import READ_WITHIN
from tests.examples import examples
from tests.frames import Want, entry, fetch, fetch_response, framed
from tests.playbook import SESSION_ID, Playbook, api_versions, asks, full, request, response, split

T: list[Want] = [("t", 0), ("t", 1), ("u", 0)]
METADATA = 3
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36


def produce(correlation: int, acks: int, size: int = 40) -> bytes:
    """Build a Produce v3 request without a transaction."""
    return request(0, 3, correlation, b"\xff\xff" + acks.to_bytes(2, signed=True) + bytes(size))


# --- what its limits of time ask ------------------------------------------------------------------


HALVES = {
    "fetch": fetch(11, *T, correlation=2),
    "metadata": request(METADATA, 9, 2, bytes(100)),
    "produce": produce(2, -1),
    "unanswered produce": produce(2, 0),
    "old handshake": request(SASL_HANDSHAKE, 0, 2, b"\x00\x05PLAIN"),
    "GSSAPI": b"\x00\x00\x02\x5c" + b"\x60\x82" + bytes(602),
}


def seen(connection: Connection) -> tuple[bool, bool]:
    """Return whether the client has sent a first request, and whether the client waits for a response."""
    return connection.status().begun, connection.status().busy


@pytest.mark.parametrize("said", HALVES)
@pytest.mark.parametrize("size", [3, 4, 11, 12, 14])
def test_half_a_request_is_none_that_a_client_waits_for(said: str, size: int) -> None:
    connection = Playbook().connection
    connection.receive_client(HALVES[said][:size], 0.0)
    assert seen(connection) == (False, False)
    connection.receive_client(HALVES[said][size:], 0.0)
    assert seen(connection) == (True, said in {"fetch", "metadata", "produce", "old handshake"})


def test_half_a_request_behind_a_whole_one_leaves_the_client_waiting_for_that() -> None:
    play = Playbook()
    first, half = request(12, 0, 1), request(METADATA, 9, 2, bytes(100))[:50]
    play.client(first + half).to_broker(first + half)
    assert seen(play.connection) == (True, True)
    play.broker(response(1, b"one")).to_client(response(1, b"one"))
    assert seen(play.connection) == (True, False)


def test_half_a_request_that_is_answered_is_none_to_wait_for() -> None:
    play = Playbook()
    half = request(METADATA, 9, 2, bytes(100))[:50]
    play.client(half).to_broker(half)
    play.broker(response(2, b"no")).to_client(response(2, b"no"))
    assert seen(play.connection) == (False, False)


def test_of_a_large_first_request_a_part_will_do() -> None:
    """A large first Produce counts as received when a part of it has come, because it may take long on a slow
    line. A fetch counts only when it is complete.
    """
    play = Playbook()
    sent = produce(1, -1, 10_000_000)[: READ_WITHIN + 1]
    play.client(sent).to_broker(sent)
    assert seen(play.connection) == (True, False)
    collected = Playbook().connection
    collected.receive_client((1_000_000).to_bytes(4) + b"\0\1\0\x0b" + bytes(READ_WITHIN), 0.0)
    assert seen(collected) == (False, False)


# --- what is kept of half a fetch -----------------------------------------------------------------


MANY: list[Want] = [("t", number) for number in range(1000)]


def test_a_fetch_for_which_there_is_no_room_until_it_is_whole_passes_as_it_comes() -> None:
    request_budget = RequestBudget(1000)
    asked = fetch(11, *MANY, correlation=4)
    play = Playbook(request_budget=request_budget).knows()
    play.client(asked[:300]).nothing()
    assert request_budget.total == 600
    play.client(asked[300:599]).nothing()
    play.client(asked[599:700]).to_broker(asked[:700])
    assert request_budget.total == 0
    play.client(asked[700:]).to_broker(asked[700:])
    told = fetch_response(11, correlation_id=4)
    play.broker(told).to_client(told)
    assert play.connection.tally.passthrough["not looked into"] == 1


@pytest.mark.parametrize("chunk", [1, 7, 300])
def test_what_was_kept_of_a_fetch_is_given_back_when_it_is_whole(chunk: int) -> None:
    request_budget = RequestBudget(100_000)
    asked = fetch(11, *MANY, correlation=4)
    play = Playbook(request_budget=request_budget).knows()
    for at in range(0, len(asked), chunk):
        play.client(asked[at : at + chunk])
        assert request_budget.total <= 2 * (at + chunk) or at + chunk >= len(asked)
    play.to_broker(asks(11, MANY, (0, 0), correlation=4))
    assert request_budget.total == play.connection.session_table.memory  # the list is remembered
    play.connection.ended()
    assert request_budget.total == 0


def test_what_was_kept_of_a_fetch_is_given_back_with_its_client() -> None:
    request_budget = RequestBudget(100_000)
    play = Playbook(request_budget=request_budget).knows()
    play.client(fetch(11, *MANY, correlation=4)[:300]).nothing()
    assert request_budget.total == 600
    play.connection.ended()
    assert request_budget.total == 0


# --- what is not a fetch passes, in order ---------------------------------------------------------


PASSING = set(ApiKey) - {ApiKey.API_VERSIONS, ApiKey.CONTROLLED_SHUTDOWN}


@pytest.mark.parametrize("api_key", sorted(PASSING | {93, 500, 0x7FFF}))
def test_what_is_not_understood_passes_byte_for_byte(api_key: int) -> None:
    """Requests with an unknown version or API key are forwarded unchanged.

    Requests of share groups (trap 35) and of telemetry (trap 36) are among them.
    """
    asked = request(api_key, 99, 7, b"anything at all, whatever")
    Playbook().exchange(asked, response(7, b"as it came"))


@pytest.mark.parametrize("correlation", [0, 1, -1, 2**31 - 1, 2**31 - 8, -(2**31)])
def test_correlation_ids_stay(correlation: int) -> None:
    """Trap 17: the gateway does not change correlation ids.

    Java uses ids from 2^31-8 on for re-authentication.
    """
    Playbook().exchange(request(METADATA, 9, correlation), response(correlation, b"x"))


@pytest.mark.parametrize("correlation", [0, -5, 2**31 - 1])
@pytest.mark.parametrize("version", [4, 7, 12, 16])
def test_fetches_through_a_session_keep_theirs(version: int, correlation: int) -> None:
    """Trap 17: a fetch in a session keeps its correlation id."""
    play = Playbook().established(version, T)
    play.client(fetch(version, *T, correlation=correlation))
    play.to_broker(asks(version, [], (SESSION_ID, 1), correlation=correlation))
    told = fetch_response(max(version, 7), session_id=SESSION_ID, correlation_id=correlation)
    play.broker(told).to_client(full(version, T, correlation_id=correlation))


def test_responses_come_in_the_order_of_the_requests() -> None:
    """Traps 16 and 37: responses are sent in the order of the requests."""
    play = Playbook()
    asked = [request(METADATA, 9, 5), produce(6, -1), request(12, 0, 7)]
    play.client(*asked).to_broker(*asked)
    told = [response(5, b"one"), response(6, b"two"), response(7, b"three")]
    play.broker(*told).to_client(*told)


def test_produce_without_acks_is_not_waited_for() -> None:
    """Case 86, trap 32: a Produce with acks=0 has no response. So no other response has to wait for it."""
    play = Playbook()
    frames = [produce(1, 0), produce(2, 1), produce(3, 0), produce(4, 0), produce(5, -1)]
    play.client(*frames).to_broker(*frames)
    play.broker(response(2, b"two"), response(5, b"five")).to_client(
        response(2, b"two"), response(5, b"five")
    )
    play.close()
    assert play.connection.done


@pytest.mark.parametrize("version", [0, 2, 3, 8, 9, 13])
@pytest.mark.parametrize("chunk", [1, 5, 17, 1000])
def test_acks_are_found_however_the_bytes_come(version: int, chunk: int) -> None:
    """Case 86, trap 32: acks=0 is recognised in any Produce version, for any split of the bytes."""
    transactional = b"" if version < 3 else b"\xff\xff" if version < 9 else b"\x00"
    tags = b"\0" if version >= 9 else b""
    frames = [
        request(0, version, number, tags + transactional + acks.to_bytes(2, signed=True) + bytes(30))
        for number, acks in ((1, 0), (2, -1), (3, 0), (4, 1))
    ]
    play = Playbook().client(*frames, chunk=chunk)
    assert play.takes_broker() == b"".join(frames)
    play.broker(response(2, b"two"), response(4, b"four")).to_client(
        response(2, b"two"), response(4, b"four")
    )


def test_a_transactional_id_that_never_ends_is_not_waited_for() -> None:
    """Case 86: the gateway looks for acks in the first 128 KiB of a Produce request.

    If acks is not there, the gateway expects a response.
    """
    head = request(0, 3, 1, b"\x7f\xff" + bytes(40_000))[4:]
    play = Playbook().client(framed(head), chunk=1000)
    assert play.takes_broker() == framed(head)


def test_metadata_behind_a_parked_fetch() -> None:
    """Case 84, traps 16 and 37: a Metadata response comes after the response to an earlier fetch, which still
    waits at the broker.
    """
    play = Playbook().established(16, T)
    metadata = request(METADATA, 8, 11)
    play.client(fetch(16, *T, correlation=10)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=10))
    play.client(metadata).to_broker(metadata).nothing()
    play.broker(fetch_response(16, session_id=SESSION_ID, correlation_id=10))
    play.to_client(full(16, T, correlation_id=10))
    play.broker(response(11, b"brokers")).to_client(response(11, b"brokers"))


@pytest.mark.parametrize("code", [70, 71, 106])
def test_metadata_behind_a_fetch_that_is_resent(code: int) -> None:
    """Cases 84 and 71, traps 6 and 17: after an error, a fetch is sent again, and later responses wait.

    They are sent to the client after the response to the repeated fetch.
    """
    play = Playbook().established(16, T)
    later = [request(METADATA, 8, 11), request(2, 3, 12)]
    play.client(fetch(16, *T, correlation=10), *later)
    play.to_broker(asks(16, [], (SESSION_ID, 1), correlation=10), *later)
    play.broker(fetch_response(16, error_code=code, correlation_id=10))
    play.to_broker(asks(16, T, (0 if code == 70 else SESSION_ID, 0), correlation=10))
    play.broker(response(11, b"brokers"), response(12, b"offsets")).nothing()
    waiting = len(response(11, b"brokers") + response(12, b"offsets"))
    assert (play.connection.buffered, play.connection.reads_client) == (waiting, False)
    play.broker(full(16, T, hw=6, session_id=78, correlation_id=10))
    play.to_client(full(16, T, hw=6, correlation_id=10), response(11, b"brokers"), response(12, b"offsets"))
    assert (play.connection.buffered, play.connection.reads_client) == (0, True)
    assert (play.connection.session_id, play.connection.session_epoch) == (78, 1)


def test_a_repeated_response_streams_past_what_waits() -> None:
    """The response to a fetch that was sent again is forwarded chunk by chunk.

    A later response that was already received follows it.
    """
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=10), request(METADATA, 8, 11)).takes_broker()
    play.broker(fetch_response(16, error_code=70, correlation_id=10)).takes_broker()
    later = response(11, bytes(100))
    play.broker(later[:50]).nothing()
    play.broker(later[50:])
    told = full(16, T, hw=6, session_id=78, correlation_id=10)
    play.broker(told[:40])
    first = play.takes_client()
    play.broker(told[40:])
    assert first + play.takes_client() == full(16, T, hw=6, correlation_id=10) + later


def test_our_own_frames_wait_for_the_end_of_a_request_that_is_being_passed() -> None:
    """A fetch is sent again only after the current Produce request is complete.

    Otherwise the broker would read the fetch as a part of the Produce request.
    """
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=10)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=10))
    whole = produce(11, -1, 500)
    play.client(whole[:100]).to_broker(whole[:100])
    play.broker(fetch_response(16, error_code=70, correlation_id=10)).nothing()
    assert play.connection.reads_client
    play.client(whole[100:300]).to_broker(whole[100:300])
    play.client(whole[300:]).to_broker(whole[300:], asks(16, T, (0, 0), correlation=10))
    play.broker(response(11, b"written")).nothing()
    play.broker(full(16, T, session_id=78, correlation_id=10))
    play.to_client(full(16, T, correlation_id=10), response(11, b"written"))


def test_a_client_with_too_much_in_flight_is_not_read() -> None:
    """Trap 14: the gateway stops reading a client that has too many requests in flight."""
    play = Playbook()
    for number in range(MAX_IN_FLIGHT):
        assert play.connection.reads_client
        play.client(request(12, 0, number)).takes_broker()
    assert not play.connection.reads_client
    play.broker(response(0)).takes_client()
    assert play.connection.reads_client


# --- bytes cut anywhere ---------------------------------------------------------------------------


def script(version: int) -> list[tuple[bytes, bytes]]:
    """Return requests of a client with a session, and the broker's responses to what the gateway sends."""
    spoken = max(version, 7)
    changes = fetch_response(
        spoken, ("t", [entry(1, 9, records=b"r" * 90)]), correlation_id=10, session_id=SESSION_ID
    )
    return [
        (fetch(version, *T, correlation=10), changes),
        (request(METADATA, 5, 11, b"topics"), response(11, b"brokers")),
        (produce(12, 0), b""),
        (
            fetch(version, *T[:2], correlation=13),
            fetch_response(spoken, correlation_id=13, session_id=SESSION_ID),
        ),
        (produce(14, 1), response(14, b"written")),
    ]


def played(version: int, client_chunk: int, broker_chunk: int) -> tuple[bytes, bytes]:
    play = Playbook().established(version, T)
    to_broker = to_client = b""
    for asked, told in script(version):
        play.client(asked, chunk=client_chunk)
        to_broker += play.takes_broker()
        if told:
            play.broker(told, chunk=broker_chunk)
            to_client += play.takes_client()
    assert play.connection.buffered == 0
    assert play.connection.fault is None
    return to_broker, to_client


@pytest.mark.parametrize("version", [4, 7, 11, 12, 16])
def test_either_sides_bytes_may_be_cut_anywhere(version: int) -> None:
    expected = played(version, 1 << 20, 1 << 20)
    assert len(split(expected[0])) == 5
    for chunk in (1, 2, 3, 5, 7, 11, 13, 29, 64, 97):
        assert played(version, chunk, 1 << 20) == expected
        assert played(version, 1 << 20, chunk) == expected


PASSED = st.tuples(
    st.sampled_from([2, 3, 8, 9, 12, 36, 75, 1000]), st.binary(max_size=60), st.binary(max_size=90)
)


@examples(40)
@given(st.lists(PASSED, min_size=1, max_size=8), st.integers(1, 40), st.integers(1, 40))
def test_frames_pass_whatever_they_hold_and_however_they_come(
    frames: list[tuple[int, bytes, bytes]], client_chunk: int, broker_chunk: int
) -> None:
    asked = b"".join(request(key, 1, number, body) for number, (key, body, _) in enumerate(frames))
    told = b"".join(response(number, body) for number, (_, _, body) in enumerate(frames))
    play = Playbook().client(asked, chunk=client_chunk)
    assert play.takes_broker() == asked
    play.broker(told, chunk=broker_chunk)
    assert play.takes_client() == told
    tally = play.connection.tally
    assert (tally.client.bytes_in, tally.broker.bytes_out) == (len(asked), len(asked))
    assert (tally.broker.bytes_in, tally.client.bytes_out) == (len(told), len(told))


@pytest.mark.parametrize("seed", range(40))
def test_noise_from_the_client_ends_at_worst_the_connection(seed: int) -> None:
    noise = random.Random(seed).randbytes(400)
    play = Playbook().established(16, T)
    good = fetch(16, *T, correlation=9)
    at = seed * 3 % len(good)
    play.client(good[:at] + noise, chunk=1 + seed).takes_broker()
    play.takes_client()
    play.close().takes_broker()


@pytest.mark.parametrize("seed", range(60))
def test_noise_from_the_broker_ends_at_worst_the_connection(seed: int) -> None:
    """A fetch response with five damaged bytes never crashes the gateway. It can only end the connection."""
    chance = random.Random(seed)
    play = Playbook().established(16, T)
    if seed % 3 == 0:
        play.client(fetch(16, *T, correlation=9))  # incremental
    elif seed % 3 == 1:
        play.client(fetch(16, *T, correlation=9, isolation_level=1))  # sessionless: another isolation
    else:
        play.client(fetch(16, ("x", 0), correlation=9))  # one partition
    play.takes_broker()
    good = full(16, T, session_id=SESSION_ID, correlation_id=9)
    content = bytearray(good[8:])
    for _ in range(5):
        content[chance.randrange(len(content))] = chance.randrange(256)
    play.broker(framed(good[4:8] + bytes(content)), chunk=1 + seed)
    play.takes_client()
    play.takes_broker()
    play.close().takes_broker()


# --- hostile lengths ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "reason"),
    [
        (0, "a request of 0 bytes"),
        (7, "a request of 7 bytes"),
        (-1, "a request of -1 bytes"),
        (1001, "a request of 1001 bytes; max_request_bytes is 1000"),
        (2**31 - 1, "a request of 2147483647 bytes; max_request_bytes is 1000"),
    ],
)
def test_a_length_that_no_broker_takes(length: int, reason: str) -> None:
    data = length.to_bytes(4, signed=True) + bytes(20)
    for sent in (data[:4], data):
        play = Playbook(max_request_bytes=1000).client(sent).nothing()
        assert play.connection.fault == Fault(side="client", reason=reason)
        assert play.events(Fault) == [play.connection.fault]
        play.client(request(METADATA, 1, 1)).nothing()


def test_the_longest_frame_that_is_taken() -> None:
    frame = request(METADATA, 1, 1, bytes(1000 - 11))
    assert len(frame) == 4 + 1000
    Playbook(max_request_bytes=1000).client(frame).to_broker(frame)


def test_tls_on_a_plaintext_port_is_named() -> None:
    """Trap 34: if a client speaks TLS on a plaintext port, the error message says so."""
    play = Playbook().client(bytes.fromhex("16030100f5010000f10303")).nothing()
    assert play.connection.fault == Fault(side="client", reason="TLS on a plaintext listener")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (response(9), "a response to request 9 before that to request 5"),
        (bytes(8), "a response of 0 bytes"),
        (b"\xff\xff\xff\xff" + bytes(4), "a response of -1 bytes"),
    ],
)
def test_a_broker_that_answers_nonsense(data: bytes, reason: str) -> None:
    asked = request(METADATA, 1, 5)
    play = Playbook().client(asked).to_broker(asked).broker(data).nothing()
    assert play.connection.fault == Fault(side="broker", reason=reason)
    play.broker(response(5)).nothing()


def test_a_broker_that_answers_what_nobody_asked() -> None:
    play = Playbook().broker(response(5)).nothing()
    assert play.connection.fault == Fault(side="broker", reason="a response without a request")


def test_a_fault_lets_earlier_responses_go() -> None:
    asked = [request(METADATA, 1, 5), request(METADATA, 1, 6)]
    play = Playbook().client(*asked).to_broker(*asked).broker(response(5, b"good"), response(9))
    play.to_client(response(5, b"good"))
    assert play.connection.fault is not None


def test_what_a_fetch_header_lacks() -> None:
    """A fetch whose client id is longer than the request is forwarded. The broker decides what to do."""
    frame = framed(b"\0\1\0\x10" + bytes(4) + b"\x7f\xff" + bytes(10))
    Playbook().exchange(frame, response(0, b"closed"))


# --- ApiVersions ----------------------------------------------------------------------------------


def test_api_versions_is_cut_to_what_is_understood() -> None:
    """Trap 5: in the ApiVersions response, clients are offered only versions that the gateway can read."""
    body = bytes.fromhex("0000 00000003 0001 0004 0014 0063 0000 7fff 0012 0000 0005")
    less = bytes.fromhex("0000 00000003 0001 0004 0012 0063 0000 7fff 0012 0000 0004")
    asked = request(18, 0, 1)
    play = Playbook().client(asked).to_broker(asked)
    play.broker(response(1, body), chunk=3).to_client(response(1, less))


def test_an_unknown_version_is_refused_as_brokers_do() -> None:
    """Case 85, trap 31: the gateway refuses an ApiVersions version that it does not know.

    As a broker does, it sends error 35 in a v0 response. The client then asks again.
    """
    play = Playbook()
    play.client(request(18, 5, 1, b"\0\x01a\x01b\0"))
    own = bytes.fromhex("0023 00000001 0012 0000 0004")
    play.to_client(response(1, own))
    assert seen(play.connection) == (True, False)
    play.knows()


def test_a_brokers_own_refusal_passes() -> None:
    """Case 85, trap 31: a broker's own refusal of ApiVersions is forwarded unchanged."""
    asked = request(18, 4, 1, b"\0\x02a\x02b\0")
    told = response(1, bytes.fromhex("0023 00000001 0012 0000 0003"))
    Playbook().exchange(asked, told).knows()


def test_a_refusal_keeps_its_place() -> None:
    """Case 85, trap 31: if the gateway itself refuses ApiVersions, its response waits for its turn.

    The responses to earlier requests are sent first.
    """
    first = request(METADATA, 1, 1)
    play = Playbook().client(first, request(18, 9, 2, b"\0\x01\x01\0")).to_broker(first)
    play.broker(response(1, b"brokers"))
    play.to_client(response(1, b"brokers"), response(2, bytes.fromhex("0023 00000001 0012 0000 0004")))


def test_the_client_names_its_software() -> None:
    asked = request(18, 3, 1, b"\0" + b"\x0blibrdkafka" + b"\x062.5.0" + b"\0", client=b"rdkafka")
    play = Playbook().client(asked).to_broker(asked)
    named = ClientNamed(client_id="rdkafka", software_name="librdkafka", software_version="2.5.0")
    assert play.events(ClientNamed) == [named]
    assert play.connection.software_name == "librdkafka"
    assert play.connection.software_version == "2.5.0"


def test_a_client_that_does_not_ask_for_versions_is_asked_for() -> None:
    """Trap 14: if a client sends no ApiVersions request, the gateway sends one, with the client's client.id.

    The gateway asks once. KafkaJS sends ApiVersions requests. kafka-go's Conn does not always.
    """
    play = Playbook()
    for number in (1, 2):
        asked = fetch(11, *T, correlation=number)
        play.exchange(asked, full(11, T, correlation_id=number))
    third = fetch(11, *T, correlation=3)
    probe = framed(b"\0\x12\0\0" + b"fgat" + b"\0\1c")
    play.client(third).to_broker(probe, third)
    told = api_versions("4.3", 0)[1]
    play.broker(framed(b"fgat" + told[8:])).nothing()
    play.broker(full(11, T, correlation_id=3)).to_client(full(11, T, correlation_id=3))
    play.client(fetch(11, *T, correlation=4)).to_broker(asks(11, T, (0, 0), correlation=4))


# --- SASL -----------------------------------------------------------------------------------------


def test_handshake_v0_goes_opaque() -> None:
    """Case 87, trap 33: after SaslHandshake v0, SASL tokens without Kafka's header follow.

    They follow in both directions. Then everything is forwarded unchanged, even a later fetch.
    """
    asked = request(SASL_HANDSHAKE, 0, 1, b"\0\x05PLAIN")
    play = Playbook().client(asked).to_broker(asked)
    token = framed(b"\0user\0password")
    play.client(token, chunk=3).to_broker(token)
    play.broker(response(1, b"\0\0")).to_client(response(1, b"\0\0"))
    play.broker(b"\0\0\0\0").to_client(b"\0\0\0\0")
    for number in (2, 3, 4, 5):
        frame = fetch(11, *T, correlation=number)
        play.exchange(frame, full(11, T, correlation_id=number))
    assert play.events(Passthrough) == [Passthrough(reason="SASL handshake v0")]


@pytest.mark.parametrize("chunk", [1, 7, 50])
def test_tokens_in_the_same_bytes_as_the_handshake(chunk: int) -> None:
    """Case 87, trap 33: SASL tokens may come in the same read as the handshake."""
    asked = request(SASL_HANDSHAKE, 0, 1, b"\0\x05PLAIN") + framed(b"\0user\0password")
    play = Playbook().client(asked, chunk=chunk)
    assert play.takes_broker() == asked
    told = response(1, b"\0\0") + framed(b"") + b"rest"
    play.broker(told, chunk=chunk)
    assert play.takes_client() == told


def test_handshake_v1_keeps_its_frames() -> None:
    """Case 87, trap 33: after SaslHandshake v1, the gateway still reads the client's requests.

    A client may authenticate again later, with the correlation ids that Java reserves for this.
    """
    play = Playbook()
    for base in (1, 2**31 - 8):
        play.exchange(request(SASL_HANDSHAKE, 1, base, b"\0\x05PLAIN"), response(base, b"\0\0"))
        play.exchange(request(SASL_AUTHENTICATE, 1, base + 1, b"token"), response(base + 1, b"\0\0ok"))
        play.knows()
    assert play.events(Passthrough) == []


def test_a_bare_gssapi_token_goes_opaque() -> None:
    """Trap 33: if a connection begins with a GSSAPI token, the token and all later bytes are forwarded."""
    token = framed(bytes.fromhex("6082011006092a864886f71201020201006e"))
    play = Playbook().client(token).to_broker(token)
    play.broker(framed(b"\x60reply")).to_client(framed(b"\x60reply"))
    assert play.events(Passthrough) == [Passthrough(reason="GSSAPI token")]


# --- how it ends ----------------------------------------------------------------------------------


def test_closing_without_a_session() -> None:
    play = Playbook().knows().close().nothing()
    assert play.connection.done
    assert play.events(SessionClosed) == []


@pytest.mark.parametrize("version", range(4, 19))
def test_a_session_is_closed_at_the_broker(version: int) -> None:
    """Case 88, trap 21: when a client leaves, the gateway closes its session at the broker."""
    play = Playbook().established(version, T)
    play.events()
    play.close().to_broker(asks(version, [], (SESSION_ID, -1), correlation=3))
    assert (play.connection.done, play.sessions.used) == (False, 0)
    play.broker(fetch_response(max(version, 7), correlation_id=3)).nothing()
    assert (play.connection.done, play.sessions.used) == (True, 0)
    assert play.events() == [SessionClosed(session_id=SESSION_ID, reason="the connection ends")]


def test_closing_twice_says_it_once() -> None:
    play = Playbook().established(16, T)
    play.close().to_broker(asks(16, [], (SESSION_ID, -1), correlation=3))
    play.close().nothing()


def test_a_session_is_closed_once_though_another_response_comes_before_its_own() -> None:
    """The session is closed only once, even if the response to an earlier fetch arrives in between.

    The earlier fetch was forwarded unchanged.
    """
    play = Playbook().established(16, T)
    twice = [*T, T[0]]
    play.client(fetch(16, *twice, correlation=8)).to_broker(fetch(16, *twice, correlation=8))
    play.client(fetch(16, *T, correlation=9)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=9))
    play.close().to_broker(asks(16, [], (SESSION_ID, -1), correlation=3))
    play.broker(full(16, T, correlation_id=8)).to_client(full(16, T, correlation_id=8))
    play.broker(fetch_response(16, session_id=SESSION_ID, correlation_id=9)).to_client(
        full(16, T, correlation_id=9)
    )
    play.broker(fetch_response(16, correlation_id=3)).nothing()
    assert (play.connection.done, play.sessions.used) == (True, 0)
    assert len(play.events(SessionClosed)) == 1


def test_after_closing_nothing_is_taken_from_the_client() -> None:
    play = Playbook().established(16, T)
    play.close().takes_broker()
    assert not play.connection.reads_client
    play.client(fetch(16, *T, correlation=9)).nothing()


def test_closing_with_a_fetch_parked() -> None:
    """When the connection is closed while a fetch waits at the broker, the client still gets the response.

    The response is also completed from the session.
    """
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=9)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=9))
    play.close().to_broker(asks(16, [], (SESSION_ID, -1), correlation=3))
    play.broker(fetch_response(16, session_id=SESSION_ID, correlation_id=9)).to_client(
        full(16, T, correlation_id=9)
    )
    assert not play.connection.done
    play.broker(fetch_response(16, correlation_id=3)).nothing()
    assert (play.connection.done, play.sessions.used) == (True, 0)


def test_closing_while_a_session_is_asked_for() -> None:
    """Trap 21: if the client leaves while the gateway requests a session, the gateway closes this session.

    It does so as soon as the broker's response with the session arrives.
    """
    play = Playbook().knows()
    for number in (1, 2):
        play.exchange(fetch(16, *T, correlation=number), full(16, T, correlation_id=number))
    play.client(fetch(16, *T, correlation=3)).to_broker(asks(16, T, (0, 0), correlation=3))
    play.close().nothing()
    play.broker(full(16, T, session_id=78, correlation_id=3)).to_client(
        full(16, T, correlation_id=3), more=True
    )
    play.to_broker(asks(16, [], (78, -1), correlation=3))
    play.broker(fetch_response(16, correlation_id=3)).nothing()
    assert (play.connection.done, play.sessions.used) == (True, 0)


@pytest.mark.parametrize("code", [70, 71, 106])
def test_closing_with_a_fetch_parked_that_fails(code: int) -> None:
    """If a connection is closed while a fetch waits, the client gets a response even if the session is lost.

    The fetch is sent again without a session.
    """
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=9)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=9))
    play.close().to_broker(asks(16, [], (SESSION_ID, -1), correlation=3))
    play.broker(fetch_response(16, error_code=code, correlation_id=9)).to_broker(fetch(16, *T, correlation=9))
    play.broker(fetch_response(16, correlation_id=3)).nothing()
    assert not play.connection.done
    play.broker(full(16, T, correlation_id=9)).to_client(full(16, T, correlation_id=9))
    assert (play.connection.done, play.sessions.used) == (True, 0)


def test_closing_with_a_full_fetch_parked_that_fails() -> None:
    play = Playbook().knows()
    for number in (1, 2):
        play.exchange(fetch(16, *T, correlation=number), full(16, T, correlation_id=number))
    play.client(fetch(16, *T, correlation=3)).to_broker(asks(16, T, (0, 0), correlation=3))
    play.close().nothing()
    play.broker(fetch_response(16, error_code=70, correlation_id=3)).to_broker(fetch(16, *T, correlation=3))
    play.broker(full(16, T, hw=6, correlation_id=3)).to_client(full(16, T, hw=6, correlation_id=3))
    assert (play.connection.done, play.sessions.used) == (True, 0)


def test_closing_in_the_middle_of_a_request_says_nothing() -> None:
    """If the connection is closed in the middle of a request, no fetch to close the session is sent.

    The broker would read this fetch as the rest of the request.
    """
    play = Playbook().established(16, T)
    whole = produce(9, -1)
    play.client(whole[:30]).to_broker(whole[:30])
    play.close().nothing()
    assert play.connection.done
    assert play.events(SessionClosed) == []


def test_closing_in_the_middle_of_a_request_waits_for_earlier_responses() -> None:
    play = Playbook().established(16, T)
    metadata, whole = request(METADATA, 8, 8), produce(9, -1)
    play.client(metadata, whole[:30]).to_broker(metadata, whole[:30])
    play.close().nothing()
    assert not play.connection.done
    play.broker(response(8, b"brokers")).to_client(response(8, b"brokers"))
    assert play.connection.done


def test_closing_in_the_middle_of_a_produce_without_acks_waits_for_earlier_responses() -> None:
    play = Playbook().established(16, T)
    metadata, whole = request(METADATA, 8, 8), produce(9, 0)
    play.client(metadata, whole[:30]).to_broker(metadata, whole[:30])
    play.close().nothing()
    assert not play.connection.done


def test_closing_in_the_middle_of_a_fetch_that_has_not_been_sent() -> None:
    """If the connection is closed in the middle of a fetch, the session is closed at the broker.

    The received part of the fetch is dropped. The broker got nothing of it, because a fetch is sent only when
    it is complete.
    """
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=9)[:50]).nothing()
    play.close().to_broker(asks(16, [], (SESSION_ID, -1), correlation=3))


def test_a_connection_that_is_gone_gives_its_slot_back() -> None:
    play = Playbook().established(16, T)
    assert play.sessions.used == 1
    play.connection.ended()
    play.connection.ended()
    assert play.sessions.used == 0


def test_it_tells_how_it_is() -> None:
    play = Playbook().established(16, T)
    state = (play.connection.session_id, play.connection.session_epoch, play.connection.session_partitions)
    assert (*state, play.connection.fetch_version) == (SESSION_ID, 1, 3, 16)
    assert repr(play.connection) == (
        "<Connection 'c' in_flight=0 <FetchSessionHandler 77 epoch=1 partitions=3>>"
    )
    new = Playbook().connection
    assert (new.session_id, new.session_epoch, new.session_partitions, new.fetch_version) == (0, 0, 0, -1)


def test_bytes_are_counted_on_both_sides() -> None:
    play = Playbook().established(16, T)
    tally = play.connection.tally
    before = (tally.client.bytes_in, tally.client.bytes_out, tally.broker.bytes_in, tally.broker.bytes_out)
    asked, told = fetch(16, *T, correlation=9), fetch_response(16, session_id=SESSION_ID, correlation_id=9)
    play.client(asked).to_broker(asks(16, [], (SESSION_ID, 1), correlation=9))
    play.broker(told).to_client(full(16, T, correlation_id=9))
    after = (tally.client.bytes_in, tally.client.bytes_out, tally.broker.bytes_in, tally.broker.bytes_out)
    grown = [now - then for then, now in zip(before, after, strict=True)]
    sent = len(asks(16, [], (SESSION_ID, 1), correlation=9))
    assert grown == [len(asked), len(full(16, T)), len(told), sent]


# --- addresses in other answers -------------------------------------------------------------------


def metadata(correlation: int, host: bytes, port: int) -> bytes:
    """Build a Metadata v0 response with the address of broker 2 and without topics."""
    body = b"\0\0\0\1" + b"\0\0\0\2" + len(host).to_bytes(2) + host + port.to_bytes(4) + b"\0\0\0\0"
    return response(correlation, body)


@pytest.mark.parametrize("chunk", [1, 9, 1000])
def test_addresses_lead_through_the_gateway(chunk: int) -> None:
    play = Playbook(resolve=lambda node_id, _host, _port, /: ("gw", 19_092 + node_id))
    asked = request(METADATA, 0, 5, b"\0\0\0\0")
    play.client(asked).to_broker(asked)
    play.broker(metadata(5, b"broker-2.example", 9092), chunk=chunk).to_client(metadata(5, b"gw", 19_094))
    assert play.connection.buffered == 0


def test_addresses_that_are_not_understood_end_the_connection() -> None:
    """A response whose addresses can't be read ends the connection, so that no broker address leaks."""
    play = Playbook(resolve=lambda node_id, _host, _port, /: ("gw", 19_092 + node_id))
    asked = request(METADATA, 0, 5, b"\0\0\0\0") + request(12, 0, 6)
    play.client(asked).to_broker(asked)
    play.broker(response(5, b"\0\0\0\1nonsense") + response(6, b"ok")).nothing()
    assert play.connection.fault is not None
    assert play.connection.fault.side == "broker"
    assert "METADATA v0 response that is not understood" in play.connection.fault.reason
    assert play.connection.tally.refused == {"response not understood": 1}
