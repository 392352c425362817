"""The client's side of a connection: requests as they come, whole, in pieces, or wrong."""

import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from proxy.core.budget import RequestBudget
from proxy.core.connection_state import Stream
from proxy.core.events import ClientNamed, Fault, LoginRefused, Passthrough
from proxy.core.in_flight import MAX_IN_FLIGHT
from proxy.protocol.api import ApiKey
from proxy.protocol.primitives import encode_string
from tests.core import metadata
from tests.examples import examples
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


TOKENS = {
    "PLAIN": [b"\0alice\0secret", b""],
    "OAUTHBEARER": [b"n,,\1auth=Bearer x\1\1", b""],
    "SCRAM-SHA-256": [b"n,,n=a,r=fy", b"r=fyHa,s=c2E=,i=4096", b"c=biws,r=fyHa,p=cHI=", b"v=dmVy"],
    "SCRAM-SHA-512": [b"n,,n=a,r=fy", b"r=fyHa,s=c2E=,i=4096", b"c=biws,r=fyHa,p=cHI=", b"v=dm"],
}
"""Tokens of client and broker in turn."""
METADATA = request(ApiKey.METADATA, 7, 2, b"\xff\xff\xff\xff\0")


def handshake_v0(mechanism: str, *, error: int = 0, chunk: int = 1 << 30) -> Playbook:
    """Play a SaslHandshake v0. Broker addresses are rewritten."""
    asked = request(ApiKey.SASL_HANDSHAKE, 0, 1, encode_string(mechanism.encode()))
    told = response(1, error.to_bytes(2) + b"\0\0\0\0")
    play = Playbook(resolve=lambda node_id, _host, _port: ("gateway", 19_000 + node_id))
    play.client(asked, chunk=chunk).to_broker(asked)
    return play.broker(told, chunk=chunk).to_client(told)


def log_in(mechanism: str, *, chunk: int = 1 << 30) -> Playbook:
    """Play a login after a SaslHandshake v0."""
    play = handshake_v0(mechanism, chunk=chunk)
    tokens = iter(map(framed, TOKENS[mechanism]))
    for token in tokens:
        play.client(token, chunk=chunk).to_broker(token)
        told = next(tokens)
        play.broker(told, chunk=chunk).to_client(told)
    return play


def stays_a_wire(play: Playbook) -> None:
    """Check that further bytes are forwarded unread, whatever they are."""
    for number in (2, 3, 4, 5):
        play.exchange(fetch(11, *T, correlation=number), full(11, T, correlation_id=number))
    named = response(2, metadata.body(7, {}))
    play.exchange(METADATA, named).exchange(b"???", b"!")
    assert play.events(Passthrough) == [Passthrough(reason="SASL handshake v0")]
    assert play.connection.fault is None


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
@pytest.mark.parametrize("mechanism", TOKENS)
def test_requests_after_the_tokens_of_a_handshake_v0_are_read(mechanism: str, chunk: int) -> None:
    """Case 87, trap 33: tokens without Kafka's header are forwarded unchanged, then requests are read."""
    play = log_in(mechanism, chunk=chunk)
    play.client(METADATA, chunk=chunk).to_broker(METADATA)
    play.broker(response(2, metadata.body(7, {})), chunk=chunk)
    told = play.takes_client()
    assert b"broker-1" not in told
    assert told.count(b"gateway") == len(metadata.BROKERS)
    play.established(11, T)
    assert play.events(Passthrough) == []


def test_requests_in_the_same_bytes_after_a_token_are_read() -> None:
    play = log_in("PLAIN")
    later = request(ApiKey.METADATA, 7, 3, b"\xff\xff\xff\xff\0")
    play.client(METADATA + later).to_broker(METADATA, later)


def test_a_token_in_flight_counts_as_a_request() -> None:
    """SIGTERM waits for the broker's token, so that the client can read it."""
    token = framed(TOKENS["PLAIN"][0])
    play = handshake_v0("PLAIN").client(token).to_broker(token).close()
    assert (play.connection.busy, play.connection.done) == (True, False)
    play.broker(framed(b"")).to_client(framed(b""))
    assert (play.connection.busy, play.connection.done) == (False, True)


@pytest.mark.parametrize("mechanism", ["PLAIN", "GSSAPI"])
def test_no_session_is_closed_between_tokens(mechanism: str) -> None:
    """A request would be taken for a token. The broker closes the session with the connection."""
    play = Playbook().established(11, T)
    asked = request(ApiKey.SASL_HANDSHAKE, 0, 9, encode_string(mechanism.encode()))
    play.exchange(asked, response(9, b"\0\0\0\0\0\0")).close().nothing()


@pytest.mark.parametrize("mechanism", ["GSSAPI", "AWS_MSK_IAM", ""])
def test_tokens_that_cant_be_counted_make_a_wire(mechanism: str) -> None:
    """Trap 33: after the last token of GSSAPI, the broker may send none."""
    for token in (framed(b"\x60\x82token"), METADATA):
        play = handshake_v0(mechanism).client(token, chunk=3).to_broker(token)
        stays_a_wire(play.broker(token, chunk=3).to_client(token))


NO_REQUESTS = {
    "one more token": framed(b"\0alice\0secret"),
    "a short token": framed(b"\1"),
    "an empty token": framed(b""),
    "a token like a key": framed(b"\0A\0xyz" + bytes(20)),
    "an unknown key": request(500, 0, 2, bytes(20)),
    "an unknown version": request(ApiKey.METADATA, 99, 2, bytes(20)),
    "a negative id": request(ApiKey.METADATA, 1, -2, bytes(20)),
    "a long client id": framed(b"\0\3\0\1\0\0\0\2\0\x0b" + bytes(10)),
    "a negative length": b"\xff\xff\xff\xff?",
    "text": b"GET / HTTP/1.1\r\n",
}


@pytest.mark.parametrize("kind", NO_REQUESTS)
@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_what_is_no_request_after_the_tokens_makes_a_wire(kind: str, chunk: int) -> None:
    play = log_in("PLAIN").client(NO_REQUESTS[kind], chunk=chunk).to_broker(NO_REQUESTS[kind])
    stays_a_wire(play.broker(framed(b"{}")).to_client(framed(b"{}")))


@pytest.mark.parametrize("length", [-1, -(2**31), (1 << 20) + 1, 2**31 - 1])
def test_a_length_that_no_token_has_makes_a_wire(length: int) -> None:
    data = length.to_bytes(4, signed=True) + b"?" * 20
    stays_a_wire(handshake_v0("PLAIN").client(data).to_broker(data))
    token = framed(TOKENS["PLAIN"][0])
    play = handshake_v0("PLAIN").client(token).to_broker(token)
    play.broker(data).to_client(data)
    assert play.connection.tally.passthrough["SASL handshake v0"] == 1
    stays_a_wire(play)


def test_a_client_that_does_not_wait_for_the_last_token_makes_a_wire() -> None:
    """A broker could have sent no token. Its next response would be taken for one."""
    token = framed(TOKENS["PLAIN"][0])
    play = handshake_v0("PLAIN").client(token + METADATA).to_broker(token, METADATA)
    told = response(2, metadata.body(7, {}))
    stays_a_wire(play.broker(told).to_client(told))


def test_a_token_that_answers_none_makes_a_wire() -> None:
    for play in (handshake_v0("PLAIN"), log_in("PLAIN")):
        stays_a_wire(play.broker(b"\0\0").to_client(b"\0\0"))


@pytest.mark.parametrize("mechanism", ["PLAIN", "GSSAPI"])
def test_after_a_refused_handshake_v0_requests_are_read(mechanism: str) -> None:
    """A listener without SASL responds with error 34, and the client may go on without SASL."""
    play = handshake_v0(mechanism, error=34)
    assert play.events(LoginRefused, Passthrough) == [LoginRefused(error_code=34, mechanism=mechanism)]
    play.established(11, T)


def test_a_client_that_ignores_a_refused_handshake_v0_makes_a_wire() -> None:
    token = framed(TOKENS["PLAIN"][0])
    stays_a_wire(handshake_v0("PLAIN", error=33).client(token).to_broker(token))


@pytest.mark.parametrize("chunk", [1, 7, 50])
def test_tokens_in_the_same_bytes_as_the_handshake(chunk: int) -> None:
    """Case 87, trap 33: SASL tokens may come in the same read as the handshake."""
    asked = request(ApiKey.SASL_HANDSHAKE, 0, 1, b"\0\x05PLAIN") + framed(b"\0user\0password")
    play = Playbook().client(asked, chunk=chunk)
    assert play.takes_broker() == asked
    told = response(1, b"\0\0") + framed(b"") + b"rest"
    play.broker(told, chunk=chunk)
    assert play.takes_client() == told


@given(
    mechanism=st.sampled_from([*TOKENS, "GSSAPI"]),
    said=st.lists(
        st.tuples(
            st.booleans(),
            st.one_of(st.binary(max_size=40), st.binary(max_size=12).map(framed), st.just(framed(b""))),
        )
    ),
)
@examples(400)
def test_whatever_follows_a_handshake_v0_is_forwarded(mechanism: str, said: list[tuple[bool, bytes]]) -> None:
    """Only the start of a request or of a token, which is not complete yet, may wait."""
    play = handshake_v0(mechanism)
    sent, got = {True: b"", False: b""}, {True: b"", False: b""}
    for by_client, data in said:
        (play.client if by_client else play.broker)(data)
        sent[by_client] += data
        got[True] += play.takes_broker()
        got[False] += play.takes_client()
    assume(play.connection.state.stream is not Stream.FRAMES)  # no request was found
    for by_client, most in ((True, 13), (False, 3)):
        assert sent[by_client].startswith(got[by_client])
        assert len(sent[by_client]) - len(got[by_client]) <= most
    assert play.connection.fault is None


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
