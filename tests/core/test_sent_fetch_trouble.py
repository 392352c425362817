"""The broker loses or refuses a session, or throttles its responses.

The client gets what it would get without a session.
"""

from typing import Any, Final

import pytest

from proxy.core import expanded_fetch
from proxy.core.connection import Connection
from proxy.core.events import Passthrough, SessionLost, SessionMade
from proxy.protocol.fetch_request import Topics
from proxy.protocol.primitives import Buffer
from proxy.session.decision import Rotated
from proxy.session.expand import Expansion, expand
from proxy.session.handler import FetchSessionHandler
from proxy.session.state import Loss
from tests.frames import VERSIONS, Want, entry, fetch, fetch_response, framed, named
from tests.model import wire
from tests.playbook import HOT, SESSION_ID, Playbook, T, asks, full, passes, request, response, turn

# --- the broker loses or refuses sessions ---------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("code", [70, 71, 106])
def test_session_errors_are_not_for_the_client(version: int, code: int) -> None:
    """Case 71, trap 6: errors 70, 71 and 106 never reach a client without sessions."""
    play = Playbook().established(version, T)
    play.events()
    spoken = max(version, 7)
    play.client(fetch(version, *HOT, correlation=4)).to_broker(
        asks(version, [HOT[1]], (SESSION_ID, 1), correlation=4)
    )
    play.broker(fetch_response(spoken, error_code=code, correlation_id=4))
    play.to_broker(asks(version, HOT, (0 if code == 70 else SESSION_ID, 0), correlation=4))
    play.broker(full(spoken, HOT, hw=6, session_id=78, correlation_id=4))
    play.to_client(full(version, HOT, hw=6, correlation_id=4))
    assert play.events() == [
        SessionLost(session_id=SESSION_ID, error_code=code, reason=f"error {code}"),
        SessionMade(session_id=78, partitions=3),
    ]
    assert play.connection.tally.session_errors == {code: 1}
    play.client(fetch(version, *HOT, correlation=5)).to_broker(asks(version, [], (78, 1), correlation=5))
    assert play.sessions.used == 1


@pytest.mark.parametrize("second", [70, 71, 106, -1])
def test_a_second_failure_goes_without_a_session(second: int) -> None:
    """Trap 6: if a fetch fails twice in a session, it is sent a third time without a session."""
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    play.broker(fetch_response(16, error_code=71, correlation_id=4))
    play.to_broker(asks(16, T, (SESSION_ID, 0), correlation=4))
    play.broker(fetch_response(16, error_code=second, correlation_id=4)).to_broker(
        fetch(16, *T, correlation=4)
    )
    play.broker(full(16, T, hw=6, correlation_id=4)).to_client(full(16, T, hw=6, correlation_id=4))
    assert play.sessions.used == 0
    play.client(fetch(16, *T, correlation=5)).to_broker(asks(16, T, (0, 0), correlation=5))


@pytest.mark.parametrize("code", [-1, 2, 42])
def test_another_error_is_told_as_without_a_session(code: int) -> None:
    """Traps 11 and 4: any other top-level error (not 70, 71 or 106) makes the gateway repeat the fetch.

    The second fetch has no session. The client gets its response.
    """
    play = Playbook().established(11, T)
    play.client(fetch(11, *T, correlation=4)).to_broker(asks(11, [], (SESSION_ID, 1), correlation=4))
    play.broker(fetch_response(11, error_code=code, session_id=SESSION_ID, correlation_id=4))
    play.to_broker(fetch(11, *T, correlation=4))
    failed = [entry(index, error=code, aborted=()) for index in (0, 1)]
    told = fetch_response(11, ("t", failed), ("u", failed[:1]), error_code=code, correlation_id=4)
    play.broker(told).to_client(told)


def test_an_id_outside_the_shards() -> None:
    """Case 96: after an error for a session id outside all shards, the next session begins with (0, 0)."""
    play = Playbook().established(16, T, session_id=2147483640)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (2147483640, 1), correlation=4))
    play.broker(fetch_response(16, error_code=-1, session_id=2147483640, correlation_id=4))
    play.to_broker(fetch(16, *T, correlation=4))
    play.broker(full(16, T, correlation_id=4)).to_client(full(16, T, correlation_id=4))
    play.client(fetch(16, *T, correlation=5)).to_broker(asks(16, T, (0, 0), correlation=5))


@pytest.mark.parametrize("version", [4, 11, 16])
@pytest.mark.parametrize("session_id", [-1, -77, -(2**31)])
def test_a_negative_id_is_a_refusal(version: int, session_id: int) -> None:
    """The gateway never uses such an id."""
    spoken = max(version, 7)
    refused = full(spoken, T, correlation_id=3, session_id=session_id)
    others = full(spoken, T[:2], correlation_id=3, session_id=session_id)
    for told in (refused, others, refused[:-1] + b"\1"):
        play = Playbook().knows()
        for correlation in (1, 2):
            passes(play, version, T, correlation)
        play.client(fetch(version, *T, correlation=3)).to_broker(asks(version, T, (0, 0), correlation=3))
        play.broker(told).takes_client()
        if resent := play.takes_broker():
            assert resent == fetch(version, *T, correlation=3)
            play.broker(full(version, T, correlation_id=3)).takes_client()
        assert play.connection.session_id == 0
        assert play.sessions.used == 0
        play.close().nothing()


def test_a_negative_id_for_a_fetch_of_the_clients_own() -> None:
    """A negative id means that there is no session, so the gateway closes none."""
    play = Playbook().knows()
    for correlation in range(1, 5):
        asked = fetch(16, *T, correlation=correlation, session=(0, 0))
        play.exchange(asked, full(16, T, correlation_id=correlation, session_id=-5))
    play.close().nothing()


def test_a_negative_id_continues_a_session() -> None:
    """Section 3.2: the session continues with its known id. Java ends a session only for id 0."""
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    play.broker(fetch_response(16, session_id=-5, correlation_id=4)).to_client(full(16, T, correlation_id=4))
    play.client(fetch(16, *T, correlation=5)).to_broker(asks(16, [], (SESSION_ID, 2), correlation=5))
    play.broker(fetch_response(16, session_id=SESSION_ID, correlation_id=5)).takes_client()
    play.close().to_broker(asks(16, [], (SESSION_ID, -1), correlation=3))


@pytest.mark.parametrize("version", [4, 11, 16])
@pytest.mark.parametrize("what", ["others", "not understood"])
def test_a_session_that_can_not_be_used_is_not_left_behind(version: int, what: str) -> None:
    """Case 53, trap 21: the gateway closes the session, or replaces it with a new one."""
    spoken = max(version, 7)
    told = full(spoken, T[:2], correlation_id=3, session_id=SESSION_ID)
    if what == "not understood":
        told = framed(full(spoken, T, correlation_id=3, session_id=SESSION_ID)[4:] + b"?")

    def dropped() -> Playbook:
        play = Playbook().knows()
        for correlation in (1, 2):
            passes(play, version, T, correlation)
        play.client(fetch(version, *T, correlation=3)).to_broker(asks(version, T, (0, 0), correlation=3))
        play.broker(told).takes_client()
        if version == 4:
            play.to_broker(fetch(version, *T, correlation=3))
            play.broker(full(version, T, correlation_id=3)).takes_client()
        return play

    play = dropped()
    play.close().to_broker(asks(version, [], (SESSION_ID, -1), correlation=3))
    play = dropped()
    asked = fetch(version, *T, correlation=6)
    while (sent := play.client(asked).takes_broker()) == asked:
        play.broker(full(version, T, correlation_id=6)).takes_client()
    assert sent == asks(version, T, (SESSION_ID, 0), correlation=6)


def test_a_response_with_id_0_ends_the_session() -> None:
    """Trap 10: a response with session id 0 ends the session. The fetch is sent again in full.

    The repeated fetch requests a new session. Tansu sends id 0 and no partition instead of error 70. Without
    the repeated fetch, the client would get no records.
    """
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    play.broker(fetch_response(16, correlation_id=4)).to_broker(asks(16, T, (0, 0), correlation=4))
    assert play.connection.session_id == 0
    play.broker(full(16, T, 6, session_id=78, correlation_id=4)).to_client(full(16, T, 6, correlation_id=4))
    assert play.connection.session_id == 78
    assert play.connection.tally.sessions_lost == {Loss.NO_ID: 1}
    (lost,) = play.events(SessionLost)
    assert lost == SessionLost(
        session_id=SESSION_ID, error_code=0, reason="the broker does not have the session"
    )


@pytest.mark.parametrize("code", [0, 70, 71, -1])
@pytest.mark.parametrize("version", [0, 1])
def test_a_fetch_that_is_sent_again_does_not_come_amid_an_authentication(code: int, version: int) -> None:
    """KIP-368, trap 33: meanwhile a broker refuses all other requests (error 34)."""
    play = Playbook().established(16, T)
    handshake = request(17, version, 5, b"\0\5PLAIN")
    token = request(36, 1, 6, b"\0\0\0\1t") if version else b"\0\0\0\1t"
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    play.client(handshake[:14]).nothing().client(handshake[14:]).nothing().client(token).nothing()
    if code:
        play.broker(fetch_response(16, error_code=code, correlation_id=4))
        again = play.takes_broker()
        assert again != handshake
        assert again[8:12] == (4).to_bytes(4)
        told = {"session_id": 78} if code != -1 else {}
        play.broker(full(16, T, correlation_id=4, **told))
    else:
        play.broker(fetch_response(16, session_id=SESSION_ID, correlation_id=4))
    play.to_client(full(16, T, correlation_id=4), more=True).to_broker(handshake, token)
    told_of_both = response(5, b"\0\0\0\0\0\0")
    play.broker(told_of_both).to_client(told_of_both)


def test_what_the_broker_has_not_described_is_asked_for_in_full() -> None:
    play = Playbook().established(16, T)
    wants: list[Want] = [*T, ("v", 0)]
    play.client(fetch(16, *wants, correlation=4))
    play.to_broker(asks(16, [("v", 0)], (SESSION_ID, 1), correlation=4))
    play.broker(fetch_response(16, session_id=SESSION_ID, correlation_id=4))
    play.to_broker(asks(16, wants, (SESSION_ID, 0), correlation=4))
    play.broker(full(16, wants, session_id=78, correlation_id=4)).to_client(full(16, wants, correlation_id=4))


@pytest.mark.parametrize("code", [3, 103])
def test_a_recreated_topic_is_had_again_in_full(code: int) -> None:
    """Case 80, trap 8: for a topic that was deleted and created again, the client gets error 100, never 103.

    Without a session it would get the same error.
    """
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    play.broker(fetch_response(16, ("u", [entry(0, error=code)]), session_id=SESSION_ID, correlation_id=4))
    play.to_broker(asks(16, T, (SESSION_ID, 0), correlation=4))
    gone = entry(0, error=100, aborted=())
    elements = (("t", [entry(0, 5), entry(1, 5)]), ("u", [gone]))
    play.broker(fetch_response(16, *elements, session_id=78, correlation_id=4))
    play.to_client(fetch_response(16, *elements, correlation_id=4))
    play.client(fetch(16, *T, correlation=5)).to_broker(asks(16, [], (78, 1), correlation=5))
    play.broker(fetch_response(16, ("u", [gone]), session_id=78, correlation_id=5))
    play.to_client(fetch_response(16, *elements, correlation_id=5))


@pytest.mark.parametrize("code", [76, 35])
def test_errors_that_a_session_forgets_end_sessions_for_good(code: int) -> None:
    """Trap 7: after error 76 or 35 in an entry, the connection never uses a session again."""
    play = Playbook().knows("3.9")
    for number in (1, 2):
        passes(play, 9, T, number)
    play.client(fetch(9, *T, correlation=3)).to_broker(asks(9, T, (0, 0), correlation=3))
    bad = entry(0, error=code, records=None, aborted=())
    elements = (("t", [bad, entry(1, 5)]), ("u", [entry(0, 5)]))
    play.broker(fetch_response(9, *elements, session_id=SESSION_ID, correlation_id=3))
    play.to_client(fetch_response(9, *elements, correlation_id=3))
    asked = fetch(9, *T, correlation=4)
    close = asks(9, [], (SESSION_ID, -1), correlation=3)
    play.client(asked).to_broker(close, asked)
    play.broker(fetch_response(9, correlation_id=3), full(9, T, correlation_id=4)).to_client(
        full(9, T, correlation_id=4)
    )
    for number in range(5, 9):
        passes(play, 9, T, number)
    assert play.events(Passthrough) == [Passthrough(reason="errors that a session forgets")]


# --- throttling -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 5, 6, 8, 11, 12, 16])
def test_a_throttled_response_is_handed_on_empty(version: int) -> None:
    """Cases 81 and 97, traps 4 and 13: throttled responses without entries are forwarded, each time.

    They have no session id, and are those of the client's version.
    """
    play = Playbook().established(version, T)
    for number in (1, 2, 3):
        turn(
            play,
            version,
            T,
            asks(version, [], (SESSION_ID, number), correlation=9),
            fetch_response(max(version, 7), session_id=SESSION_ID, throttle_time_ms=300, correlation_id=9),
            fetch_response(version, throttle_time_ms=300, correlation_id=9),
            correlation=9,
        )
    assert play.connection.session_epoch == 4


def test_a_throttled_request_for_a_session() -> None:
    """Trap 13: the throttled response without entries is forwarded unchanged, and there is no session."""
    play = Playbook().knows()
    for number in (1, 2):
        passes(play, 16, T, number)
    play.client(fetch(16, *T, correlation=3)).to_broker(asks(16, T, (0, 0), correlation=3))
    told = fetch_response(16, throttle_time_ms=300, correlation_id=3)
    play.broker(told).to_client(told)
    assert (play.connection.session_id, play.sessions.used) == (0, 0)


def test_a_masked_session_error() -> None:
    """Section 2.8, trap 10: a throttled response with error 0 and id 0 may hide a session error.

    The gateway's next fetch is full. It has the id of the earlier session, because this session may still
    exist.
    """
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    told = fetch_response(16, throttle_time_ms=300, correlation_id=4)
    play.broker(told).to_client(told)
    play.client(fetch(16, *T, correlation=5)).to_broker(asks(16, T, (SESSION_ID, 0), correlation=5))


def test_a_throttled_response_of_1_1_is_a_whole_one() -> None:
    play = Playbook().established(7, T, release="1.1")
    play.client(fetch(7, *T, correlation=4)).to_broker(asks(7, [], (SESSION_ID, 1), correlation=4))
    play.broker(fetch_response(7, session_id=SESSION_ID, throttle_time_ms=300, correlation_id=4))
    play.to_client(full(7, T, throttle_time_ms=300, correlation_id=4))


# --- tags that nobody knows -------------------------------------------------------------------------

UNKNOWN: Final = ((7, b"new"),)


def tagged_topics(wants: list[Want], **fields: Any) -> bytes:
    """Build a response with an unknown tag in each topic element."""
    elements = tuple(
        wire.TopicData(**named(16, name), partitions=(entry(index, 6),), tags=UNKNOWN)
        for name, index, *_ in wants
    )
    return framed(wire.encode_response(wire.FetchResponse(version=16, topics=elements, **fields)))


@pytest.mark.parametrize("where", ["header", "topic"])
def test_tags_that_an_expanded_response_would_lose(where: str) -> None:
    """Law 2: the fetch is sent again without a session. Later fetches use none either."""
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    fields: dict[str, Any] = {"session_id": SESSION_ID, "correlation_id": 4}
    if where == "header":
        play.broker(fetch_response(16, ("t", [entry(0, 6)]), header_tags=UNKNOWN, **fields))
    else:
        play.broker(tagged_topics([T[0]], **fields))
    play.to_broker(fetch(16, *T, correlation=4))
    assert play.connection.buffered == 0
    told = tagged_topics(T, correlation_id=4, header_tags=UNKNOWN)
    play.broker(told).to_client(told)
    for correlation in range(5, 68):
        passes(play, 16, T, correlation)
    asked = fetch(16, *T, correlation=68)
    play.client(asked).to_broker(asks(16, [], (SESSION_ID, -1), correlation=3), asked)
    play.broker(fetch_response(16, correlation_id=3)).nothing()
    play.broker(full(16, T, correlation_id=68)).takes_client()
    assert play.connection.tally.passthrough["tags"] == 64
    assert play.sessions.used == 0


def test_unknown_tags_in_the_response_that_makes_a_session() -> None:
    """The response is forwarded without the session id. Later fetches use no session."""
    play = Playbook().knows()
    for correlation in (1, 2):
        passes(play, 16, T, correlation)
    play.client(fetch(16, *T, correlation=3)).to_broker(asks(16, T, (0, 0), correlation=3))
    play.broker(tagged_topics(T, correlation_id=3, session_id=SESSION_ID))
    play.to_client(tagged_topics(T, correlation_id=3))
    passes(play, 16, T, 4)
    play.close().to_broker(asks(16, [], (SESSION_ID, -1), correlation=3))


def test_a_response_that_ends_too_early_is_not_kept() -> None:
    """A response that is too short for its contents is dropped at once, and the fetch is sent again.

    If the response were kept, its bytes would count for ``--max-inflight-bytes`` until the client leaves.
    """
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=4)).takes_broker()
    whole = fetch_response(16, ("t", [entry(0, 6)]), session_id=SESSION_ID, correlation_id=4)
    play.broker(framed(whole[4:-5])).to_broker(fetch(16, *T, correlation=4))
    assert play.connection.buffered == 0
    play.broker(full(16, T, hw=6, correlation_id=4)).to_client(full(16, T, hw=6, correlation_id=4))
    assert play.connection.buffered == 0


@pytest.mark.parametrize(("version", "error"), [(12, 3), (12, 29), (16, 29), (16, 100)])
@pytest.mark.parametrize("ill", [1, 20])
def test_lasting_errors_stay_on_the_short_way(
    version: int, error: int, ill: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors that last do not slow the gateway down.

    A broker sends these errors with each response, after all entries that it read (section 2.4).
    """
    count = 40
    ways: list[str] = []
    rotated = FetchSessionHandler.rotated

    def counted(self: FetchSessionHandler, frame: bytes, topics: Topics) -> Rotated | None:
        found = rotated(self, frame, topics)
        ways.append("short" if found is not None else "long")
        return found

    def gathered(what: Expansion) -> tuple[list[Buffer], int]:
        ways.append("gathered")
        return expand(what)

    monkeypatch.setattr(FetchSessionHandler, "rotated", counted)
    monkeypatch.setattr(expanded_fetch, "expand", gathered)
    play = Playbook(core=Connection).established(version, [("t", number) for number in range(count)])
    errors = [entry(count - 1 - number, error=error) for number in range(ill)]
    for step in range(6):
        order = [(step * 7 + number) % count for number in range(count)]
        hot = entry(3, 6 + step, records=b"new")
        play.client(
            fetch(version, *(("t", number, step if number == 3 else 0) for number in order), correlation=step)
        )
        assert len(play.takes_broker()) < 200
        play.broker(
            fetch_response(version, ("t", [hot, *errors]), session_id=SESSION_ID, correlation_id=step)
        )
        late = [each for number in order for each in errors if each.partition_index == number]
        read = [number for number in order if number < count - ill]
        told = [hot if number == 3 else entry(number, 5) for number in read]
        play.to_client(fetch_response(version, ("t", told + late), correlation_id=step))
        if step == 0:  # it makes the short way
            ways.clear()
    assert ways == ["short"] * 5
