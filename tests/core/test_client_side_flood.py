"""A client sends thousands of requests at once. Two limits still hold.

They are the limits of the requests in flight and of the work in one call.
"""

import struct

import pytest

from proxy.core.connection import Connection
from proxy.core.connection_state import QUEUED_FREE
from proxy.core.eligibility import SessionLimits
from proxy.core.in_flight import AT_ONCE, MAX_IN_FLIGHT, REQUEST_BYTES
from proxy.net.endpoint import RECEIVE_BYTES
from tests.connections import connect
from tests.frames import fetch, fetch_response
from tests.playbook import SESSION_ID, Playbook, T, asks, full, request, response, split

HEARTBEAT, SASL_HANDSHAKE, API_VERSIONS = 12, 17, 18
SMALL = 14
UNKNOWN = 99
"""A version of ApiVersions that no broker has, so that the gateway answers it."""


def small(api_key: int, version: int, number: int) -> bytes:
    """Build the shortest possible request: it has no client id and no body."""
    return struct.pack(">ihhih", SMALL - 4, api_key, version, number, -1)


def one_read(api_key: int = HEARTBEAT, version: int = 0) -> list[bytes]:
    return [small(api_key, version, number) for number in range(RECEIVE_BYTES // SMALL)]


def core(*, fast: bool = True, foreign: bool = False) -> Connection:
    limits = SessionLimits(max_sessions=10)
    return connect(sessions=limits, resolve=None, fast=fast, maybe_not_kafka=foreign)


def goes_on(connection: Connection) -> None:
    while connection.state.goes_on:
        connection.go_on(0.0)


@pytest.mark.parametrize("fast", [True, False])
def test_of_one_read_no_more_are_in_flight_than_of_many(fast: bool) -> None:
    """The limit of requests in flight also holds if all requests come in one read.

    Before the fix, 18,700 requests in one read took 13.5 MB of memory.
    """
    connection, asked = core(fast=fast), one_read()
    connection.receive_client(b"".join(asked), 0.0)
    goes_on(connection)
    sent = b"".join(connection.drain_broker())
    assert sent == b"".join(asked[:MAX_IN_FLIGHT])
    assert connection.state.outstanding == MAX_IN_FLIGHT
    assert not connection.state.reads_client
    assert connection.state.queued == MAX_IN_FLIGHT * REQUEST_BYTES + (len(asked) - MAX_IN_FLIGHT) * SMALL


@pytest.mark.parametrize("at_once", [1, 50, MAX_IN_FLIGHT])
@pytest.mark.parametrize("fast", [True, False])
def test_all_of_one_read_are_answered_in_order(fast: bool, at_once: int) -> None:
    connection, asked = core(fast=fast), one_read()[:3000]
    connection.receive_client(b"".join(asked), 0.0)
    sent, received, answered = b"", b"", 0
    while answered < len(asked):
        goes_on(connection)
        sent += b"".join(connection.drain_broker())
        assert connection.state.outstanding <= MAX_IN_FLIGHT
        due = min(at_once, len(sent) // SMALL - answered)
        connection.receive_broker(b"".join(response(answered + each) for each in range(due)), 0.0)
        answered += due
        goes_on(connection)
        received += b"".join(connection.drain_client())
    assert sent == b"".join(asked)
    assert received == b"".join(map(response, range(len(asked))))
    assert connection.state.reads_client
    assert connection.state.queued == 0


def test_responses_are_processed_in_steps_too() -> None:
    """Responses are also processed in steps, so that they do not block the event loop.

    Before the fix, hundreds of responses in one read blocked it for 40 ms.
    """
    connection, asked = core(fast=False), one_read()[:100]
    connection.receive_client(b"".join(asked), 0.0)
    goes_on(connection)
    told = [response(number, b"told") for number in range(100)]
    connection.receive_broker(b"".join(told)[:-3], 0.0)
    received = connection.drain_client()
    assert b"".join(received) == b"".join(told[:AT_ONCE])
    while connection.state.responses_wait:
        connection.go_on(0.0)
        got = connection.drain_client()
        assert len(got) <= AT_ONCE
        received += got
    connection.receive_broker(b"".join(told)[-3:], 0.0)
    assert b"".join(received + connection.drain_client()) == b"".join(told)


@pytest.mark.parametrize("cut", [0, 1, 9, 500])
def test_what_comes_behind_responses_that_wait_is_processed_behind_them(cut: int) -> None:
    connection, asked = core(), one_read()[:200]
    connection.receive_client(b"".join(asked), 0.0)
    goes_on(connection)
    told = b"".join(response(number, bytes(number % 7)) for number in range(200))
    connection.receive_broker(told[: len(told) // 2], 0.0)
    connection.receive_broker(told[len(told) // 2 : len(told) - cut], 0.0)
    goes_on(connection)
    if cut:
        connection.receive_broker(told[-cut:], 0.0)
        goes_on(connection)
    assert b"".join(connection.drain_client()) == told


def test_what_a_broker_has_sent_before_it_closes_goes_to_the_client() -> None:
    connection, asked = core(fast=False), one_read()[:100]
    connection.receive_client(b"".join(asked), 0.0)
    goes_on(connection)
    told = b"".join(map(response, range(100)))
    connection.receive_broker(told, 0.0)
    connection.broker_ended()
    assert b"".join(connection.drain_client()) == told
    assert not connection.state.responses_wait


def test_a_client_with_few_requests_is_not_counted() -> None:
    play = Playbook().client(*one_read()[: QUEUED_FREE // REQUEST_BYTES])
    play.takes_broker()
    assert play.connection.queued == 0
    play.client(small(HEARTBEAT, 0, 7)).takes_broker()
    assert play.connection.queued > QUEUED_FREE


def test_what_the_gateway_answers_itself_is_answered_in_steps() -> None:
    """Requests that the gateway answers itself are processed in steps, so they do not block the event loop.

    Before the fix, the requests of one read blocked the event loop for 0.2 s.
    """
    connection, asked = core(), one_read(API_VERSIONS, UNKNOWN)
    connection.receive_client(b"".join(asked), 0.0)
    answered = 0
    while connection.state.goes_on:
        assert not connection.state.reads_client
        got = len(split(b"".join(connection.drain_client())))
        assert got == AT_ONCE
        answered += got
        connection.go_on(0.0)
    assert answered + len(split(b"".join(connection.drain_client()))) == len(asked)
    assert connection.state.reads_client
    assert not connection.drain_broker()


def test_the_fast_path_takes_a_bounded_number_at_once() -> None:
    """Produce with acks=0 has no response, so responses do not limit these requests."""
    produce = request(0, 3, 0, struct.pack(">hhii", -1, 0, 1000, 0))
    play = Playbook().client(small(HEARTBEAT, 0, 1)).to_broker(small(HEARTBEAT, 0, 1))
    play.broker(response(1)).to_client(response(1)).client(produce).to_broker(produce)
    flood = produce * (RECEIVE_BYTES // len(produce))
    fast_path = play.connection.fast_path
    done, _ = fast_path.request(flood, 0.0)
    assert 0 < done <= MAX_IN_FLIGHT * len(produce)


def test_what_comes_behind_what_waits_is_processed_behind_it() -> None:
    asked = one_read()[: MAX_IN_FLIGHT + 5]
    play = Playbook().client(b"".join(asked[:-1])).to_broker(*asked[:MAX_IN_FLIGHT])
    play.client(asked[-1][:6]).client(asked[-1][6:]).nothing()
    play.broker(response(0)).to_broker(asked[MAX_IN_FLIGHT], more=True).to_client(response(0))
    play.broker(*map(response, range(1, 5))).to_broker(*asked[-4:], more=True)
    play.to_client(*map(response, range(1, 5)))


def test_a_large_request_behind_those_that_wait_is_forwarded_whole() -> None:
    asked = one_read()[: MAX_IN_FLIGHT + 1]
    large = request(1000, 0, 5, bytes(5000))
    play = Playbook().client(*asked, large[:100]).to_broker(*asked[:-1])
    play.client(large[100:200]).nothing()
    play.broker(response(0)).to_broker(asked[-1], more=True).to_client(response(0))
    play.broker(response(1)).to_broker(large[:200], more=True).to_client(response(1))
    play.client(large[200:]).to_broker(large[200:])
    assert play.connection.fault is None


def test_a_fetch_that_waits_goes_through_the_session() -> None:
    play = Playbook().established(16, T)
    asked = [small(HEARTBEAT, 0, number) for number in range(100, 100 + MAX_IN_FLIGHT)]
    play.client(*asked, fetch(16, *T, correlation=10)).to_broker(*asked)
    play.broker(response(100)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=10), more=True)
    play.to_client(response(100))
    play.broker(*map(response, range(101, 100 + MAX_IN_FLIGHT))).takes_client()
    play.broker(fetch_response(16, session_id=SESSION_ID, correlation_id=10))
    play.to_client(full(16, T, correlation_id=10))


def test_what_waits_behind_the_end_of_framing_is_forwarded() -> None:
    """After SaslHandshake v0, SASL tokens have no Kafka header."""
    asked = one_read()[:AT_ONCE]
    handshake = request(SASL_HANDSHAKE, 0, 3, b"\0\5PLAIN")
    connection = core()
    connection.receive_client(b"".join(asked) + handshake + b"\0token" * 9, 0.0)
    goes_on(connection)
    assert b"".join(connection.drain_broker()) == b"".join(asked) + handshake + b"\0token" * 9


@pytest.mark.parametrize("fast", [True, False])
def test_tokens_behind_many_responses_go_to_a_client_that_sends_no_more(fast: bool) -> None:
    """After SaslHandshake v0, SASL tokens of the broker have no Kafka header either (KIP-43)."""
    asked = one_read()[: 2 * AT_ONCE - 1]
    handshake = request(SASL_HANDSHAKE, 0, 99, b"\0\5PLAIN")
    connection = core(fast=fast)
    connection.receive_client(b"".join(asked) + handshake + b"\0token", 0.0)
    goes_on(connection)
    connection.drain_broker()
    connection.client_ended()
    connection.close_session(0.0)
    told = b"".join(map(response, range(len(asked)))) + response(99) + b"\0a token of the broker"
    connection.receive_broker(told, 0.0)
    got = b""
    while not connection.state.done:
        got += b"".join(connection.drain_client())
        connection.go_on(0.0)
    got += b"".join(connection.drain_client())
    assert got == told


def test_what_a_client_sent_before_its_end_is_answered_in_steps() -> None:
    """Requests sent before a client's end are answered in steps, if the gateway answers them itself."""
    connection, asked = core(), one_read(API_VERSIONS, UNKNOWN)
    connection.receive_client(b"".join(asked), 0.0)
    connection.client_ended()
    connection.close_session(0.0)
    answered = 0
    assert connection.state.goes_on
    while not connection.state.done:
        got = len(split(b"".join(connection.drain_client())))
        assert got <= 2 * AT_ONCE
        answered += got
        connection.go_on(0.0)
    assert answered + len(split(b"".join(connection.drain_client()))) == len(asked)


def test_what_waits_of_a_client_that_is_not_kafka_is_forwarded() -> None:
    asked, other = one_read()[: AT_ONCE + 3], b"\xff" * 40
    connection = core(foreign=True)
    connection.receive_client(b"".join(asked) + other + asked[0], 0.0)
    goes_on(connection)
    assert b"".join(connection.drain_broker()) == b"".join(asked) + other + asked[0]
    assert connection.state.wire


def test_a_broker_that_is_not_kafka_ends_the_waiting() -> None:
    asked = one_read()[: MAX_IN_FLIGHT + 50]
    connection = core(foreign=True)
    connection.receive_client(b"".join(asked), 0.0)
    goes_on(connection)
    connection.receive_broker(b"\xff" * 20, 0.0)
    assert b"".join(connection.drain_broker()) == b"".join(asked)
    assert connection.state.reads_client


def test_what_waits_is_dropped_when_the_connection_closes() -> None:
    connection = core()
    connection.receive_client(b"".join(one_read()), 0.0)
    goes_on(connection)
    connection.close_session(0.0)
    connection.receive_broker(response(0), 0.0)
    assert len(connection.drain_broker()) == MAX_IN_FLIGHT
    assert not connection.state.goes_on
    assert connection.state.queued < QUEUED_FREE + MAX_IN_FLIGHT * REQUEST_BYTES
