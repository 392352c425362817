"""The client's side of a connection: requests as they come, whole, in pieces, or wrong."""

import random

import pytest

from proxy.core.budget import RequestBudget
from proxy.core.events import ClientNamed, Fault, Passthrough
from proxy.core.in_flight import MAX_IN_FLIGHT
from proxy.protocol.api import ApiKey
from tests.frames import Want, fetch, fetch_response, framed
from tests.playbook import SESSION_ID, Playbook, T, asks, full, produce, request, response

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


PASSING = set(ApiKey) - {ApiKey.API_VERSIONS, ApiKey.CONTROLLED_SHUTDOWN}


@pytest.mark.parametrize("api_key", sorted(PASSING | {93, 500, 0x7FFF}))
def test_what_is_not_understood_passes_byte_for_byte(api_key: int) -> None:
    """An unknown version or API key, share groups (trap 35) and telemetry (trap 36) among them."""
    asked = request(api_key, 99, 7, b"anything at all, whatever")
    Playbook().exchange(asked, response(7, b"as it came"))


@pytest.mark.parametrize("correlation", [0, 1, -1, 2**31 - 1, 2**31 - 8, -(2**31)])
def test_correlation_ids_stay(correlation: int) -> None:
    """Trap 17: Java uses ids from 2^31-8 on for re-authentication."""
    Playbook().exchange(request(ApiKey.METADATA, 9, correlation), response(correlation, b"x"))


@pytest.mark.parametrize("correlation", [0, -5, 2**31 - 1])
@pytest.mark.parametrize("version", [4, 7, 12, 16])
def test_fetches_through_a_session_keep_theirs(version: int, correlation: int) -> None:
    """Trap 17: a fetch in a session keeps its correlation id."""
    play = Playbook().established(version, T)
    play.client(fetch(version, *T, correlation=correlation))
    play.to_broker(asks(version, [], (SESSION_ID, 1), correlation=correlation))
    told = fetch_response(max(version, 7), session_id=SESSION_ID, correlation_id=correlation)
    play.broker(told).to_client(full(version, T, correlation_id=correlation))


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
    """Case 86: the gateway looks for acks in the first 128 KiB. If it is not there, it expects a response."""
    head = request(0, 3, 1, b"\x7f\xff" + bytes(40_000))[4:]
    play = Playbook().client(framed(head), chunk=1000)
    assert play.takes_broker() == framed(head)


def test_a_client_with_too_much_in_flight_is_not_read() -> None:
    """Trap 14: the gateway stops reading a client that has too many requests in flight."""
    play = Playbook()
    for number in range(MAX_IN_FLIGHT):
        assert play.connection.reads_client
        play.client(request(12, 0, number)).takes_broker()
    assert not play.connection.reads_client
    play.broker(response(0)).takes_client()
    assert play.connection.reads_client


@pytest.mark.parametrize("seed", range(40))
def test_noise_from_the_client_ends_at_worst_the_connection(seed: int) -> None:
    noise = random.Random(seed).randbytes(400)
    play = Playbook().established(16, T)
    good = fetch(16, *T, correlation=9)
    at = seed * 3 % len(good)
    play.client(good[:at] + noise, chunk=1 + seed).takes_broker()
    play.takes_client()
    play.close().takes_broker()


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
        play.client(request(ApiKey.METADATA, 1, 1)).nothing()


def test_the_longest_frame_that_is_taken() -> None:
    frame = request(ApiKey.METADATA, 1, 1, bytes(1000 - 11))
    assert len(frame) == 4 + 1000
    Playbook(max_request_bytes=1000).client(frame).to_broker(frame)


def test_tls_on_a_plaintext_port_is_named() -> None:
    """Trap 34: if a client speaks TLS on a plaintext port, the error message says so."""
    play = Playbook().client(bytes.fromhex("16030100f5010000f10303")).nothing()
    assert play.connection.fault == Fault(side="client", reason="TLS on a plaintext listener")


def test_what_a_fetch_header_lacks() -> None:
    """A fetch whose client id is longer than the request is forwarded. The broker decides what to do."""
    frame = framed(b"\0\1\0\x10" + bytes(4) + b"\x7f\xff" + bytes(10))
    Playbook().exchange(frame, response(0, b"closed"))


def test_an_unknown_version_is_refused_as_brokers_do() -> None:
    """Case 85, trap 31: the gateway sends error 35 in a v0 response, and the client asks again."""
    play = Playbook()
    play.client(request(18, 5, 1, b"\0\x01a\x01b\0"))
    own = bytes.fromhex("0023 00000001 0012 0000 0004")
    play.to_client(response(1, own))
    assert (play.connection.begun, play.connection.busy) == (True, False)
    play.knows()


def test_a_brokers_own_refusal_passes() -> None:
    """Case 85, trap 31: a broker's own refusal of ApiVersions is forwarded unchanged."""
    asked = request(18, 4, 1, b"\0\x02a\x02b\0")
    told = response(1, bytes.fromhex("0023 00000001 0012 0000 0003"))
    Playbook().exchange(asked, told).knows()


def test_a_refusal_keeps_its_place() -> None:
    """Case 85, trap 31: the gateway's own refusal comes after the responses to earlier requests."""
    first = request(ApiKey.METADATA, 1, 1)
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


def test_handshake_v0_goes_opaque() -> None:
    """Case 87, trap 33: SASL tokens without Kafka's header follow both ways. All bytes are forwarded."""
    asked = request(ApiKey.SASL_HANDSHAKE, 0, 1, b"\0\x05PLAIN")
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
    asked = request(ApiKey.SASL_HANDSHAKE, 0, 1, b"\0\x05PLAIN") + framed(b"\0user\0password")
    play = Playbook().client(asked, chunk=chunk)
    assert play.takes_broker() == asked
    told = response(1, b"\0\0") + framed(b"") + b"rest"
    play.broker(told, chunk=chunk)
    assert play.takes_client() == told


def test_handshake_v1_keeps_its_frames() -> None:
    """Case 87, trap 33: a client may authenticate again later, with ids that Java reserves for this."""
    play = Playbook()
    for base in (1, 2**31 - 8):
        play.exchange(request(ApiKey.SASL_HANDSHAKE, 1, base, b"\0\x05PLAIN"), response(base, b"\0\0"))
        play.exchange(request(ApiKey.SASL_AUTHENTICATE, 1, base + 1, b"token"), response(base + 1, b"\0\0ok"))
        play.knows()
    assert play.events(Passthrough) == []


def test_a_bare_gssapi_token_goes_opaque() -> None:
    """Trap 33: if a connection begins with a GSSAPI token, the token and all later bytes are forwarded."""
    token = framed(bytes.fromhex("6082011006092a864886f71201020201006e"))
    play = Playbook().client(token).to_broker(token)
    play.broker(framed(b"\x60reply")).to_client(framed(b"\x60reply"))
    assert play.events(Passthrough) == [Passthrough(reason="GSSAPI token")]


@pytest.mark.parametrize("chunk", [1, 50, 1 << 20])
def test_bytes_of_produce_are_counted_apart(chunk: int) -> None:
    """They are counted on the broker's side, whole or in pieces, with a response or without, on the fast path
    and before it.
    """
    play, sent = Playbook().knows(), 0
    for number in range(1, 9):
        asked, told = produce(number, 1, 100), response(number, bytes(60))
        play.client(asked, chunk=chunk).to_broker(asked)
        play.broker(told, chunk=chunk).to_client(told)
        sent += len(asked) + len(told)
        play.exchange(request(ApiKey.HEARTBEAT, 0, 50 + number), response(50 + number, b"\0\0"))
    asked = produce(30, 0)
    play.client(asked).to_broker(asked)
    assert play.connection.tally.produce_bytes == sent + len(asked)
    if chunk > 1000:
        assert play.connection.passed > 5
