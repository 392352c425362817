"""The responses of the broker: in order, and those that no broker sends."""

import random

import pytest

from proxy.core.events import Fault
from proxy.protocol.api import ApiKey
from tests.frames import fetch, fetch_response, framed
from tests.playbook import SESSION_ID, Playbook, T, asks, full, produce, request, response


def test_responses_come_in_the_order_of_the_requests() -> None:
    """Traps 16 and 37: responses are sent in the order of the requests."""
    play = Playbook()
    asked = [request(ApiKey.METADATA, 9, 5), produce(6, -1), request(12, 0, 7)]
    play.client(*asked).to_broker(*asked)
    told = [response(5, b"one"), response(6, b"two"), response(7, b"three")]
    play.broker(*told).to_client(*told)


def test_metadata_behind_a_parked_fetch() -> None:
    """Case 84, traps 16 and 37: a later response waits for that of a fetch that waits at the broker."""
    play = Playbook().established(16, T)
    metadata = request(ApiKey.METADATA, 8, 11)
    play.client(fetch(16, *T, correlation=10)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=10))
    play.client(metadata).to_broker(metadata).nothing()
    play.broker(fetch_response(16, session_id=SESSION_ID, correlation_id=10))
    play.to_client(full(16, T, correlation_id=10))
    play.broker(response(11, b"brokers")).to_client(response(11, b"brokers"))


@pytest.mark.parametrize("code", [70, 71, 106])
def test_metadata_behind_a_fetch_that_is_resent(code: int) -> None:
    """Cases 84 and 71, traps 6 and 17: later responses wait for a fetch that is sent again after an error."""
    play = Playbook().established(16, T)
    later = [request(ApiKey.METADATA, 8, 11), request(2, 3, 12)]
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
    """The repeated response is forwarded chunk by chunk. A later one that has come already follows."""
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=10), request(ApiKey.METADATA, 8, 11)).takes_broker()
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
    """Otherwise the broker would read the repeated fetch as a part of the Produce request."""
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


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (response(9), "a response to request 9 before that to request 5"),
        (bytes(8), "a response of 0 bytes"),
        (b"\xff\xff\xff\xff" + bytes(4), "a response of -1 bytes"),
    ],
)
def test_a_broker_that_answers_nonsense(data: bytes, reason: str) -> None:
    asked = request(ApiKey.METADATA, 1, 5)
    play = Playbook().client(asked).to_broker(asked).broker(data).nothing()
    assert play.connection.fault == Fault(side="broker", reason=reason)
    play.broker(response(5)).nothing()


def test_a_broker_that_answers_what_nobody_asked() -> None:
    play = Playbook().broker(response(5)).nothing()
    assert play.connection.fault == Fault(side="broker", reason="a response without a request")


def test_a_fault_lets_earlier_responses_go() -> None:
    asked = [request(ApiKey.METADATA, 1, 5), request(ApiKey.METADATA, 1, 6)]
    play = Playbook().client(*asked).to_broker(*asked).broker(response(5, b"good"), response(9))
    play.to_client(response(5, b"good"))
    assert play.connection.fault is not None


def test_api_versions_is_cut_to_what_is_understood() -> None:
    """Trap 5: in the ApiVersions response, clients are offered only versions that the gateway can read."""
    body = bytes.fromhex("0000 00000003 0001 0004 0014 0063 0000 7fff 0012 0000 0005")
    less = bytes.fromhex("0000 00000003 0001 0004 0012 0063 0000 7fff 0012 0000 0004")
    asked = request(18, 0, 1)
    play = Playbook().client(asked).to_broker(asked)
    play.broker(response(1, body), chunk=3).to_client(response(1, less))
