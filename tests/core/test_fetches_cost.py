"""Rules for the use of sessions: the switch, the limit of sessions, and their cost.

A session must never cost more than it saves.
"""

from typing import Any

import pytest

from proxy.core.eligibility import LASTING_SECONDS, SessionLimits
from proxy.core.events import FetchKind, Passthrough, SessionClosed
from proxy.core.savings import CREDIT_EXCHANGES, PLAIN_PER_LOST
from proxy.core.sent_fetch import STREAM_FROM
from tests.frames import Want, entry, fetch, fetch_response
from tests.model import wire
from tests.playbook import HOT, SESSION_ID, Playbook, T, asks, full, passes, split

# --- the switch and the slots ---------------------------------------------------------------------


def test_sessions_off_from_the_beginning() -> None:
    play = Playbook(SessionLimits(max_sessions=10, on=False)).knows()
    for number in range(1, 7):
        passes(play, 16, T, number)
    assert play.connection.tally.passthrough["sessions off"] == 6


@pytest.mark.parametrize("by_client", [False, True])
def test_sessions_off_and_on_again_at_run_time(by_client: bool) -> None:
    play = Playbook().established(16, T)
    if by_client:
        play.sessions.reload(off_for=frozenset({"c"}))
    else:
        play.sessions.reload(on=False)
    asked = fetch(16, *T, correlation=10)
    play.client(asked).to_broker(asks(16, [], (SESSION_ID, -1), correlation=3), asked)
    play.broker(fetch_response(16, correlation_id=3)).nothing()
    play.broker(full(16, T, correlation_id=10)).to_client(full(16, T, correlation_id=10))
    assert play.sessions.used == 0
    assert play.events(SessionClosed) == [SessionClosed(session_id=SESSION_ID, reason="sessions off")]
    passes(play, 16, T, 11)
    play.sessions.reload()
    play.client(fetch(16, *T, correlation=14)).to_broker(asks(16, T, (0, 0), correlation=14))


def test_sessions_off_while_one_is_outstanding() -> None:
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=10)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=10))
    play.sessions.reload(on=False)
    second = fetch(16, *T, correlation=11)
    play.client(second).to_broker(second)
    play.broker(fetch_response(16, session_id=SESSION_ID, correlation_id=10)).to_client(
        full(16, T, correlation_id=10)
    )
    play.broker(full(16, T, correlation_id=11)).to_client(full(16, T, correlation_id=11))
    third = fetch(16, *T, correlation=12)
    play.client(third).to_broker(asks(16, [], (SESSION_ID, -1), correlation=3), third)


def test_another_client_id_is_not_switched_off() -> None:
    play = Playbook(SessionLimits(max_sessions=10, off_for=frozenset({"other"})))
    play.established(16, T)


def test_slots_are_shared_and_bounded() -> None:
    """Trap 22: the gateway limits the number of its sessions, because clients share the broker's slots."""
    sessions = SessionLimits(max_sessions=1)
    first, second = Playbook(sessions).established(16, T), Playbook(sessions).knows()
    for number in range(1, 6):
        passes(second, 16, T, number)
    assert second.connection.tally.passthrough["no slot left"] >= 1
    first.close().takes_broker()
    assert sessions.used == 0
    second.client(fetch(16, *T, correlation=9)).to_broker(asks(16, T, (0, 0), correlation=9))


@pytest.mark.parametrize("code", [70, 71, 106])
def test_a_repaired_session_holds_one_slot(code: int) -> None:
    """Trap 22: a session that replaces a lost one does not take a second slot."""
    play = Playbook(SessionLimits(max_sessions=1)).established(16, T)
    for number in range(1, 4):
        play.now += LASTING_SECONDS  # or it would wait before it requests another one
        play.client(fetch(16, *T, correlation=4)).takes_broker()
        play.broker(fetch_response(16, error_code=code, correlation_id=4)).takes_broker()
        play.broker(full(16, T, session_id=90 + number, correlation_id=4)).takes_client()
        assert play.sessions.used == 1
    play.connection.ended()
    assert play.sessions.used == 0


def test_no_slots_at_all() -> None:
    play = Playbook(SessionLimits(max_sessions=0)).knows()
    for number in range(1, 6):
        passes(play, 16, T, number)


# --- law 6 ----------------------------------------------------------------------------------------


MANY: list[Want] = [("t", index) for index in range(20)]
MOVED: list[Want] = [("t", index, 9) for index in range(20)]


@pytest.mark.parametrize("version", [7, 11, 16])
def test_the_first_fetch_of_a_long_list_asks_for_the_session(version: int) -> None:
    """With a long list, the first fetch already requests a session. The session costs only a close at the
    end.

    Partitions that are added later cost only their entries.
    """
    play = Playbook().knows()
    play.client(fetch(version, *MANY[:15])).to_broker(asks(version, MANY[:15], (0, 0)))
    play.broker(full(version, MANY[:15], session_id=SESSION_ID)).takes_client()
    play.client(fetch(version, *MANY)).to_broker(asks(version, MANY[15:], (SESSION_ID, 1)))


def test_a_short_list_waits_until_a_close_is_little_of_what_it_has_cost() -> None:
    play = Playbook().knows()
    passes(play, 16, T[:2], 1)
    passes(play, 16, T[:2], 2)
    play.client(fetch(16, *T[:2], correlation=3)).to_broker(asks(16, T[:2], (0, 0), correlation=3))


@pytest.mark.parametrize("version", [7, 11, 16])
def test_a_delta_of_all_entries_goes_though_it_is_as_large_as_the_fetch(version: int) -> None:
    """An incremental fetch with all entries is sent, although it is as large as the full fetch.

    At the start of a group, or in a rebalance, each fetch may change every offset. The incremental fetch
    costs no extra bytes, and later incremental fetches are small again.
    """
    play = Playbook().established(version, MANY)
    for epoch in range(1, 30):
        moved = [(name, index, epoch) for name, index, *_ in MANY]
        play.client(fetch(version, *moved, correlation=epoch))
        play.to_broker(asks(version, moved, (SESSION_ID, epoch), correlation=epoch))
        news = ("t", [entry(index, epoch + 9, records=b"r" * 20) for index in range(20)])
        told = fetch_response(version, news, session_id=SESSION_ID, correlation_id=epoch)
        play.broker(told).to_client(fetch_response(version, news, correlation_id=epoch))
    assert not play.connection.tally.passthrough
    play.client(fetch(version, *moved)).to_broker(asks(version, [], (SESSION_ID, 30)))


def test_a_dearer_request_goes_for_a_response_that_spares_more() -> None:
    """An incremental fetch may be larger than the client's v4 fetch, if its response saves more.

    In v7 each entry is larger than in v4. So the incremental fetch is larger once 69 of 100 offsets have
    changed.
    """
    hundred: list[Want] = [("t", index) for index in range(100)]
    moved: list[Want] = [("t", index, 9 if index < 70 else 0) for index in range(100)]
    play = Playbook().established(4, hundred)
    asked = fetch(4, *moved, correlation=9)
    sent = asks(4, moved[:70], (SESSION_ID, 1), correlation=9)
    assert len(sent) > len(asked)
    play.client(asked).to_broker(sent)


def test_a_delta_that_would_cost_more_than_it_spares_goes_as_it_came() -> None:
    """A v4 fetch is forwarded unchanged if an incremental fetch costs more than its response saves.

    Here each fetch changes all offsets, and each response has changes of all partitions.
    """
    play = Playbook().established(4, MANY)
    for number in range(1, 8):
        moved = [(name, index, number) for name, index, *_ in MANY]
        asked = fetch(4, *moved, correlation=number)
        sent = play.client(asked).takes_broker()
        news = ("t", [entry(index, number, records=b"r" * 20, **V4) for index in range(20)])
        spoken = int.from_bytes(sent[6:8])
        given = SESSION_ID if spoken == 7 else 0
        raised = ("t", [entry(index, number, records=b"r" * 20) for index in range(20)])
        play.broker(
            fetch_response(spoken, raised if spoken == 7 else news, session_id=given, correlation_id=number)
        ).takes_client()
    assert sent == asked
    assert play.connection.tally.passthrough["delta not smaller"] >= 2
    assert play.connection.session_id == SESSION_ID


V4: dict[str, Any] = {"log_start_offset": -1}


def test_a_list_that_shrinks_and_comes_back_is_not_dropped_at_once() -> None:
    """A list shrinks and grows back. The session is kept, because adding the partitions again would cost more
    than one full fetch of the short list.
    """
    play = Playbook().established(16, MANY)
    passes(play, 16, MANY[:2], 9)
    assert (play.connection.session_epoch, play.connection.session_partitions) == (1, 20)
    play.client(fetch(16, *MANY, correlation=10)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=10))


def test_a_list_that_stays_short_gets_a_session_of_its_own() -> None:
    """If a client lists few partitions for a long time, fetchgate requests a smaller session with (id, 0).

    This request costs as much as the fetch, and drops the old session.
    """
    many: list[Want] = [("t", index) for index in range(200)]
    play = Playbook().established(16, many)
    asked = fetch(16, *MANY[:2], correlation=9)
    for _ in range(40):
        sent = play.client(asked).takes_broker()
        if sent != asked:
            break
        play.broker(full(16, MANY[:2], correlation_id=9)).takes_client()
    assert sent == asks(16, MANY[:2], (SESSION_ID, 0), correlation=9)
    play.broker(full(16, MANY[:2], correlation_id=9, session_id=78))
    play.to_client(full(16, MANY[:2], correlation_id=9))
    play.client(fetch(16, *MANY[:2])).to_broker(asks(16, [], (78, 1)))
    assert play.sessions.used == 1


def test_lists_that_churn_do_not_make_sessions_over_and_over() -> None:
    """If each fetch lists other topics, only a few sessions are requested."""
    play = Playbook().knows()
    for number in range(1, 400):
        wants: list[Want] = [(f"t{number}-{index}", index) for index in range(12)]
        sent = play.client(fetch(11, *wants, correlation=number)).takes_broker()
        for frame in split(sent):
            spoken = wire.decode_request(frame[4:])
            given = SESSION_ID if spoken.session_epoch >= 0 else 0
            listed: list[Want] = wants if spoken.session_epoch != -1 or not spoken.session_id else []
            play.broker(full(11, listed, session_id=given, correlation_id=spoken.correlation_id))
        play.takes_client()
    fetches = play.connection.tally.broker.fetches
    assert fetches[FetchKind.FULL] <= 8


def test_a_session_whose_responses_are_torn_to_pieces_is_left_before_it_costs_much() -> None:
    """The broker's response has every partition, and each in a topic element of its own."""
    wants: list[Want] = [(name, index) for name in ("1" * 200, "2" * 200) for index in range(9)]
    play = Playbook().established(12, wants)
    asked = fetch(12, *wants, correlation=9)
    told = full(12, wants, hw=6, correlation_id=9)
    lost = high = 0
    while (sent := play.client(asked).takes_broker()) != asked:
        high += 1
        mixed = [("1" * 200, [entry(index, high)]) for index in range(9)]
        others = [("2" * 200, [entry(index, high)]) for index in range(9)]
        torn = [element for pair in zip(mixed, others, strict=True) for element in pair]
        got = fetch_response(12, *torn, session_id=SESSION_ID, correlation_id=9)
        play.broker(got)
        lost += len(sent) + len(got) - len(asked) - len(play.takes_client())
    assert 0 < lost <= (CREDIT_EXCHANGES + 1) * (len(asked) + len(told))


def test_sessions_that_cost_more_rest_until_many_times_as_many_bytes_have_passed() -> None:
    """The broker loses the session each time, so every fetch is sent twice."""
    play = Playbook().established(16, T)
    asked, told = fetch(16, *T, correlation=9), full(16, T, correlation_id=9)
    credit = CREDIT_EXCHANGES * (len(asked) + len(told))
    lost = passed = 0
    while (sent := play.client(asked).takes_broker()) != asked:
        error = fetch_response(16, error_code=71, correlation_id=9)
        play.broker(error).to_broker(asks(16, T, (SESSION_ID, 0), correlation=9))
        play.broker(full(16, T, correlation_id=9, session_id=SESSION_ID)).to_client(told)
        lost += len(sent) + len(error)
    reasons = [event.reason for event in play.events(Passthrough) if isinstance(event, Passthrough)]
    assert reasons == ["resting: sessions cost more than they saved"]
    # What may be lost before: four full exchanges, and the one that was on its way.
    assert 0 < lost <= credit + len(sent) + len(error)
    while sent == asked:
        play.broker(told).to_client(told)
        passed += len(asked) + len(told)
        sent = play.client(asked).takes_broker()
        for frame in split(sent)[:-1]:  # nothing has used the session for long: it was closed
            play.broker(fetch_response(16, correlation_id=int.from_bytes(frame[8:12])))
        sent = split(sent)[-1]
    assert passed >= PLAIN_PER_LOST * (lost - credit)
    assert play.connection.tally.passthrough["resting"] >= 2


def test_a_session_that_nothing_uses_any_more_is_closed() -> None:
    """After 64 fetches in a row. Another connection may need the slot."""
    play = Playbook().established(16, T)
    for number in range(10, 73):
        passes(play, 16, [], number)
    asked = fetch(16, correlation=73)
    play.client(asked).to_broker(asks(16, [], (SESSION_ID, -1), correlation=3), asked)
    play.broker(fetch_response(16, correlation_id=3), full(16, [], correlation_id=73))
    play.to_client(full(16, [], correlation_id=73))
    assert play.sessions.used == 0


def test_fetches_pass_while_the_process_holds_all_that_it_may() -> None:
    """While the process is at its memory limit, fetches are forwarded unchanged, and responses are not
    buffered. The session is kept.
    """
    play = Playbook().established(16, T)
    play.sessions.crowded = True
    for number in range(10, 30):
        passes(play, 16, T, number)
    play.sessions.crowded = False
    play.client(fetch(16, *T, correlation=30)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=30))
    assert play.connection.tally.passthrough["memory"] == 20


def test_a_client_that_is_catching_up_goes_without_and_streams() -> None:
    """Case 91: the client's fetches are forwarded without the session. The responses are not buffered."""
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    big = entry(1, 9, records=bytes(STREAM_FROM))
    play.broker(fetch_response(16, ("t", [big]), session_id=SESSION_ID, correlation_id=4))
    play.to_client(fetch_response(16, ("t", [entry(0, 5), big]), ("u", [entry(0, 5)]), correlation_id=4))
    asked = fetch(16, *HOT, correlation=5)
    play.client(asked).to_broker(asked)
    told = fetch_response(16, ("t", [entry(0, 5), big]), ("u", [entry(0, 5)]), correlation_id=5)
    for at in range(0, len(told), 1 << 18):
        play.broker(told[at : at + (1 << 18)])
        assert play.connection.buffered < 1000
        play.to_client(told[at : at + (1 << 18)])
    assert play.connection.tally.passthrough["catching up"] == 1
    passes(play, 16, HOT, 6)
    play.client(fetch(16, *HOT, correlation=7)).to_broker(asks(16, [HOT[1]], (SESSION_ID, 2), correlation=7))


def test_an_expanded_response_is_held_until_it_is_whole() -> None:
    """Case 91: a response that is completed from the session is held until its last byte has come."""
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    big = entry(1, 9, records=bytes(100_000))
    told = fetch_response(16, ("t", [big]), session_id=SESSION_ID, correlation_id=4)
    play.broker(told[:60_000]).nothing()
    assert play.connection.buffered == 60_000
    play.broker(told[60_000:-1]).nothing()
    play.broker(told[-1:])
    play.to_client(fetch_response(16, ("t", [entry(0, 5), big]), ("u", [entry(0, 5)]), correlation_id=4))
    assert play.connection.buffered == 0
