"""One client connection, step by step: bytes in pieces, counted bytes, and how it ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.events import SessionClosed
from proxy.protocol.api import ApiKey
from tests.examples import examples
from tests.frames import VERSIONS, entry, fetch, fetch_response
from tests.playbook import SESSION_ID, Playbook, T, asks, full, produce, request, response, split

# --- bytes cut anywhere ---------------------------------------------------------------------------


def script(version: int) -> list[tuple[bytes, bytes]]:
    """Return requests of a client with a session, and the broker's responses to what the gateway sends."""
    spoken = max(version, 7)
    changes = fetch_response(
        spoken, ("t", [entry(1, 9, records=b"r" * 90)]), correlation_id=10, session_id=SESSION_ID
    )
    return [
        (fetch(version, *T, correlation=10), changes),
        (request(ApiKey.METADATA, 5, 11, b"topics"), response(11, b"brokers")),
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


# --- how it ends ----------------------------------------------------------------------------------


def test_closing_without_a_session() -> None:
    play = Playbook().knows().close().nothing()
    assert play.connection.done
    assert play.events(SessionClosed) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_is_closed_at_the_broker(version: int) -> None:
    """Case 88, trap 21: when a client leaves, the gateway closes its session at the broker."""
    play = Playbook().established(version, T)
    play.events()
    play.close().to_broker(asks(version, [], (SESSION_ID, -1), correlation=3))
    assert (play.connection.done, play.sessions.used) == (False, 0)
    play.broker(fetch_response(max(version, 7), correlation_id=3)).nothing()
    assert (play.connection.done, play.sessions.used) == (True, 0)
    assert play.events() == [SessionClosed(session_id=SESSION_ID, reason="the connection ends")]


def test_a_session_is_closed_once_though_another_response_comes_before_its_own() -> None:
    """The other response is that of an earlier fetch, which was forwarded unchanged."""
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
    play.close().nothing()
    play.client(fetch(16, *T, correlation=9)).nothing()


def test_closing_with_a_fetch_parked() -> None:
    """The client still gets the response, completed from the session."""
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
    """Trap 21: the gateway closes the session as soon as the response with it has come."""
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
    """The fetch is sent again without a session, so the client gets its response."""
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
    """The broker would read a fetch that closes the session as the rest of the request."""
    play = Playbook().established(16, T)
    whole = produce(9, -1)
    play.client(whole[:30]).to_broker(whole[:30])
    play.close().nothing()
    assert play.connection.done
    assert play.events(SessionClosed) == []


@pytest.mark.parametrize("acks", [-1, 0])
def test_closing_in_the_middle_of_a_request_waits_for_earlier_responses(acks: int) -> None:
    play = Playbook().established(16, T)
    metadata, half = request(ApiKey.METADATA, 8, 8), produce(9, acks)[:30]
    play.client(metadata, half).to_broker(metadata, half)
    play.close().nothing()
    assert not play.connection.done
    play.broker(response(8, b"brokers")).to_client(response(8, b"brokers"))
    assert play.connection.done


def test_closing_in_the_middle_of_a_fetch_that_has_not_been_sent() -> None:
    """The broker has got nothing of the fetch, because a fetch is sent only when it is complete."""
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=9)[:50]).nothing()
    play.close().to_broker(asks(16, [], (SESSION_ID, -1), correlation=3))


def test_a_connection_that_is_gone_gives_its_slot_back() -> None:
    play = Playbook().established(16, T)
    assert play.sessions.used == 1
    play.connection.ended()
    play.connection.ended()
    assert play.sessions.used == 0


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
