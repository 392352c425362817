"""Fetches in a session and their responses, played step by step on one connection."""

from typing import Any

import pytest

from proxy.core.connection import Connection
from proxy.core.eligibility import SessionLimits
from proxy.core.events import FetchKind, SessionMade
from proxy.core.fetches import Fetches
from proxy.core.session_keeper import CHECK_SECONDS, SUSPECT_SECONDS
from proxy.protocol.fetch_request import Listing
from proxy.session.decision import Delta
from proxy.session.handler import FetchSessionHandler
from proxy.session.partitions import PartitionTable
from tests.frames import VERSIONS, Want, entry, fetch, fetch_response, parsed
from tests.model import wire
from tests.playbook import HOT, SESSION_ID, Playbook, T, asks, full, passes, turn

NO_LOG_START: dict[str, Any] = {"log_start_offset": -1}
"""The value of `log_start_offset` for an entry of v4, which has no such field."""


# --- a session from its beginning to its next fetches ---------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_full_fetches_in_and_incremental_ones_out(version: int) -> None:
    """Trap 3: fetches of v4 to v6 are sent as v7, and their responses are converted back."""
    play = Playbook().established(version, T)
    assert play.events(SessionMade) == [SessionMade(session_id=SESSION_ID, partitions=3)]
    spoken = max(version, 7)
    records = entry(1, 9, records=b"r" * 20)
    play.client(fetch(version, *T, correlation=4)).to_broker(
        asks(version, [], (SESSION_ID, 1), correlation=4)
    )
    play.broker(fetch_response(spoken, ("t", [records]), session_id=SESSION_ID, correlation_id=4))
    shown = records if version >= 5 else entry(1, 9, records=b"r" * 20, log_start_offset=-1)
    rest = [entry(0, 5, **({} if version >= 5 else NO_LOG_START))]
    play.to_client(fetch_response(version, ("t", [*rest, shown]), ("u", rest), correlation_id=4))
    play.client(fetch(version, *HOT, correlation=5)).to_broker(
        asks(version, [HOT[1]], (SESSION_ID, 2), correlation=5)
    )
    play.broker(fetch_response(spoken, session_id=SESSION_ID, correlation_id=5))
    shown = entry(1, 9) if version >= 5 else entry(1, 9, log_start_offset=-1)
    play.to_client(fetch_response(version, ("t", [*rest, shown]), ("u", rest), correlation_id=5))


@pytest.mark.parametrize("version", [7, 12, 16])
def test_a_rotated_list_is_the_same_list(version: int) -> None:
    """Trap 47: a rotated list counts as unchanged. Changes are found by content, not by position."""
    play = Playbook().established(version, T)
    for number, wants in enumerate(([T[1], T[2], T[0]], [T[2], T[0], T[1]], T), 1):
        turn(
            play,
            version,
            wants,
            asks(version, [], (SESSION_ID, number), correlation=9),
            fetch_response(version, session_id=SESSION_ID, correlation_id=9),
            full(version, wants, correlation_id=9),
            correlation=9,
        )


ONE: list[Want] = [("t", 0), ("t", 1), ("t", 2)]
"""A list with one topic, whose rotations use the fast path."""


@pytest.mark.parametrize("version", [7, 11, 12, 16])
def test_rotations_of_one_topic_are_not_compared_column_by_column(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Playbook(core=Connection).established(version, ONE)
    compared: list[Listing] = []
    compare = FetchSessionHandler.compare

    def noted(handler: FetchSessionHandler, listing: Listing) -> Delta | None:
        compared.append(listing)
        return compare(handler, listing)

    monkeypatch.setattr(FetchSessionHandler, "compare", noted)
    hot: Want = ("t", 1, 9)
    records = entry(1, 9, records=b"r" * 20)
    script: list[tuple[list[Want], list[Want], list[wire.PartitionData]]] = [
        ([ONE[0], ONE[1], ONE[2]], [], []),
        ([ONE[1], ONE[2], ONE[0]], [], [records]),
        ([ONE[2], ONE[0], hot], [hot], []),
        ([ONE[0], hot, ONE[2]], [], []),
    ]
    high = {0: 5, 1: 5, 2: 5}
    for number, (wants, altered, changes) in enumerate(script, 1):
        high[1] = 9 if number > 1 else 5
        rest = {index: entry(index, high[index]) for index in high} | {
            each.partition_index: each for each in changes
        }
        turn(
            play,
            version,
            wants,
            asks(version, altered, (SESSION_ID, number), correlation=number),
            fetch_response(
                version, *([("t", changes)] if changes else []), session_id=SESSION_ID, correlation_id=number
            ),
            fetch_response(version, ("t", [rest[index] for _, index, *_ in wants]), correlation_id=number),
            correlation=number,
        )
    assert not compared


def test_a_rotation_is_left_where_a_response_has_another_order() -> None:
    play = Playbook().established(11, ONE)
    play.client(fetch(11, *ONE)).to_broker(asks(11, [], (SESSION_ID, 1)))
    play.broker(fetch_response(11, session_id=SESSION_ID)).to_client(full(11, ONE))
    turned = [ONE[2], ONE[0], ONE[1]]
    play.client(fetch(11, *turned)).to_broker(asks(11, [], (SESSION_ID, 2)))
    gone = entry(0, error=3)
    play.broker(fetch_response(11, ("t", [gone]), session_id=SESSION_ID))
    play.to_client(fetch_response(11, ("t", [entry(2, 5), entry(1, 5), gone])))


@pytest.mark.parametrize("code", [70, 71])
def test_a_rotation_survives_the_loss_of_its_session(code: int) -> None:
    play = Playbook().established(16, ONE)
    for epoch in (1, 2):
        play.client(fetch(16, *ONE)).to_broker(asks(16, [], (SESSION_ID, epoch)))
        play.broker(fetch_response(16, session_id=SESSION_ID)).to_client(full(16, ONE))
    turned = [ONE[2], ONE[0], ONE[1]]
    play.client(fetch(16, *turned)).to_broker(asks(16, [], (SESSION_ID, 3)))
    named = 0 if code == 70 else SESSION_ID
    play.broker(fetch_response(16, error_code=code)).to_broker(fetch(16, *turned, session=(named, 0)))
    play.broker(full(16, turned, session_id=9)).to_client(full(16, turned))
    play.client(fetch(16, *ONE)).to_broker(asks(16, [], (9, 1)))
    play.broker(fetch_response(16, session_id=9)).to_client(full(16, ONE))


@pytest.mark.parametrize("version", [7, 12, 16])
def test_a_rotation_is_left_when_its_rows_become_others(version: int) -> None:
    old: list[Want] = [("t", number) for number in range(9)]
    new: list[Want] = [*old[1:], ("t", 9)]
    back = [*old[1:], old[0]]
    play = Playbook().established(version, old)
    play.client(fetch(version, *old)).to_broker(asks(version, [], (SESSION_ID, 1)))
    play.broker(fetch_response(version)).to_broker(asks(version, old, (0, 0)))  # id 0: the session is gone
    play.broker(full(version, old)).to_client(full(version, old))  # and there is no free slot
    play.client(fetch(version, *new)).to_broker(asks(version, new, (0, 0)))
    play.broker(full(version, new, session_id=9)).to_client(full(version, new))
    # The table's freed row still has the bytes of t-0.
    play.client(fetch(version, *back)).to_broker(asks(version, [("t", 0)], (9, 1), forget=[("t", 9)]))


@pytest.mark.parametrize("version", [7, 16])
def test_a_response_that_was_not_understood_is_not_known_again(version: int) -> None:
    play = Playbook().established(version, T)
    good = fetch_response(version, session_id=SESSION_ID)
    longer = (len(good) - 3).to_bytes(4) + good[4:] + b"\0"
    for _ in range(2):
        play.client(fetch(version, *T)).to_broker(asks(version, [], (SESSION_ID, 1)))
        play.broker(longer).to_broker(fetch(version, *T))
        play.broker(full(version, T)).to_client(full(version, T))
        play.client(fetch(version, *T)).to_broker(asks(version, T, (SESSION_ID, 0)))
        play.broker(full(version, T, session_id=SESSION_ID)).to_client(full(version, T))


def test_added_altered_and_forgotten() -> None:
    play = Playbook().established(16, T)
    wants: list[Want] = [("v", 0), ("t", 1, 7), ("t", 0)]
    told = fetch_response(16, ("v", [entry(0, 2)]), session_id=SESSION_ID, correlation_id=9)
    turn(
        play,
        16,
        wants,
        asks(16, [("v", 0), ("t", 1, 7)], (SESSION_ID, 1), forget=[("u", 0)], correlation=9),
        told,
        fetch_response(16, ("v", [entry(0, 2)]), ("t", [entry(1, 5), entry(0, 5)]), correlation_id=9),
        correlation=9,
    )
    assert play.connection.session_partitions == 3


def test_limits_rack_and_isolation_are_this_requests_own() -> None:
    """Traps 14, 26 and 30: limits, rack and isolation level are those of the client's current fetch."""
    play = Playbook().established(16, T)
    fields: dict[str, Any] = {
        "max_wait_ms": 7,
        "min_bytes": 8,
        "max_bytes": 9,
        "rack_id": "r2",
        "client": "other",
    }
    play.client(fetch(16, *T, correlation=9, **fields))
    play.to_broker(asks(16, [], (SESSION_ID, 1), correlation=9, **fields))


def test_another_isolation_makes_another_session() -> None:
    """Trap 26: another isolation level needs a new session.

    The entries that are filled in for unchanged partitions depend on the level. The request names the old
    session, so that the broker drops it.
    """
    play = Playbook().established(16, T)
    committed: dict[str, Any] = {"isolation_level": 1}
    play.client(fetch(16, *T, correlation=12, **committed))
    play.to_broker(asks(16, T, (SESSION_ID, 0), correlation=12, **committed))
    assert play.sessions.used == 1


@pytest.mark.parametrize("version", [12, 17])
def test_another_version_makes_another_session(version: int) -> None:
    """Trap 27: a fetch of another version, with or without topic ids, needs a new session."""
    play = Playbook().established(16, T)
    play.client(fetch(version, *T, correlation=12)).to_broker(
        asks(version, T, (SESSION_ID, 0), correlation=12)
    )


# --- two at a time --------------------------------------------------------------------------------


def test_a_second_fetch_in_flight_goes_without_the_session() -> None:
    """Trap 18: a second fetch in flight is sent without the session."""
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    second = fetch(16, *HOT, correlation=5)
    play.client(second).to_broker(second)
    play.broker(fetch_response(16, session_id=SESSION_ID, correlation_id=4)).to_client(
        full(16, T, correlation_id=4)
    )
    play.broker(full(16, HOT, hw=8, correlation_id=5)).to_client(full(16, HOT, hw=8, correlation_id=5))
    # The table is as it was: the delta is against what was last sent in the session.
    play.client(fetch(16, *HOT, correlation=6)).to_broker(asks(16, [HOT[1]], (SESSION_ID, 2), correlation=6))
    play.broker(fetch_response(16, session_id=SESSION_ID, correlation_id=6)).to_client(
        full(16, HOT, correlation_id=6)
    )


# --- case 74 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "told"), [(4, 6), (5, 6), (6, 56), (7, 56)])
def test_storage_errors_in_a_session(version: int, told: int) -> None:
    """Case 74, trap 4: clients of Fetch v4 and v5 get error 6 for a storage error (56) in the session."""
    play = Playbook().established(version, T)
    play.client(fetch(version, *T, correlation=4)).to_broker(
        asks(version, [], (SESSION_ID, 1), correlation=4)
    )
    play.broker(fetch_response(7, ("u", [entry(0, error=56)]), session_id=SESSION_ID, correlation_id=4))
    rest = [entry(index, 5, **({} if version >= 5 else NO_LOG_START)) for index in (0, 1)]
    play.to_client(fetch_response(version, ("t", rest), ("u", [entry(0, error=told)]), correlation_id=4))


def test_the_raised_request_to_the_byte() -> None:
    """Trap 4: a v4 request sent as v7 gains log_start_offset -1, session id, epoch, and an empty list of
    forgotten topics.
    """
    play = Playbook().knows()
    for number in (1, 2):
        passes(play, 4, T[:2], number)
    play.client(fetch(4, *T[:2], correlation=3))
    assert play.takes_broker().hex() == (
        "00000063"
        "0001" "0007" "00000003" "000163"
        "ffffffff" "000001f4" "00000001" "03200000" "00" "00000000" "00000000"
        "00000001" "000174" "00000002"
        "00000000" "0000000000000000" "ffffffffffffffff" "00100000"
        "00000001" "0000000000000000" "ffffffffffffffff" "00100000"
        "00000000"
    )  # fmt: skip


# --- what is counted ------------------------------------------------------------------------------


def test_fetches_are_counted_by_kind_on_both_sides() -> None:
    play = Playbook().established(16, T)
    for number in (1, 2):
        play.client(fetch(16, *HOT, correlation=9)).takes_broker()
        told = fetch_response(
            16, ("t", [entry(1, 9, records=b"12345")]), session_id=SESSION_ID, correlation_id=9
        )
        play.broker(told).takes_client()
        assert play.connection.session_epoch == 1 + number
    play.close().takes_broker()
    client, broker = play.connection.tally.client, play.connection.tally.broker
    kinds = (FetchKind.FULL, FetchKind.INCREMENTAL, FetchKind.SESSIONLESS, FetchKind.CLOSE)
    assert [client.fetches[kind] for kind in kinds] == [0, 0, 5, 0]
    assert [broker.fetches[kind] for kind in kinds] == [1, 2, 2, 1]
    assert (client.partitions_requested, broker.partitions_requested) == (15, 3 * 3 + 1)
    assert (client.partitions_answered, broker.partitions_answered) == (15, 9 + 2)
    assert (client.fetch_record_bytes, broker.fetch_record_bytes) == (10, 10)


def test_bytes_are_counted_as_whole_frames() -> None:
    play = Playbook().knows()
    sizes = {"client_out": 0, "client_in": 0, "broker_in": 0, "broker_out": 0}
    for number in range(1, 7):
        asked = fetch(16, *T, correlation=number)
        play.client(asked)
        sent = play.takes_broker()
        spoken = wire.decode_request(sent[4:])
        session_id = SESSION_ID if spoken.session_epoch >= 0 else 0
        told = (
            full(16, T, session_id=session_id, correlation_id=number)
            if spoken.session_epoch < 1
            else fetch_response(16, session_id=session_id, correlation_id=number)
        )
        play.broker(told)
        given = play.takes_client()
        for side, size in (
            ("client_in", asked),
            ("broker_out", sent),
            ("broker_in", told),
            ("client_out", given),
        ):
            sizes[side] += len(size)
    tally = play.connection.tally
    assert tally.client.fetch_request_bytes == sizes["client_in"]
    assert tally.client.fetch_response_bytes == sizes["client_out"]
    assert tally.broker.fetch_request_bytes == sizes["broker_out"]
    assert tally.broker.fetch_response_bytes == sizes["broker_in"]


# --- case 73 --------------------------------------------------------------------------------------


def test_two_clients_do_not_mix() -> None:
    """Case 73: one client loses its session and gets a new one, while another client continues its own."""
    sessions = SessionLimits(max_sessions=5)
    one = Playbook(sessions).established(16, T, session_id=71)
    two = Playbook(sessions).established(16, T, session_id=72)
    one.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (71, 1), correlation=4))
    two.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (72, 1), correlation=4))
    one.broker(fetch_response(16, error_code=70, correlation_id=4)).to_broker(
        asks(16, T, (0, 0), correlation=4)
    )
    two.broker(fetch_response(16, session_id=72, correlation_id=4)).to_client(full(16, T, correlation_id=4))
    one.broker(full(16, T, session_id=73, correlation_id=4)).to_client(full(16, T, correlation_id=4))
    one.client(fetch(16, *T, correlation=5)).to_broker(asks(16, [], (73, 1), correlation=5))
    two.client(fetch(16, *T, correlation=5)).to_broker(asks(16, [], (72, 2), correlation=5))


# --- what the next fetches need -------------------------------------------------------------------


def idle(play: Playbook, number: int, wants: list[Want]) -> None:
    """Play a fetch of the session that changes nothing, and brings nothing."""
    sent = asks(16, [], (SESSION_ID, number), correlation=number)
    told = fetch_response(16, session_id=SESSION_ID, correlation_id=number)
    turn(play, 16, wants, sent, told, full(16, wants, correlation_id=number), correlation=number)


def test_a_session_whose_list_rotates_is_steady() -> None:
    play = Playbook(core=Connection).established(16, ONE)
    fetches = play.connection.fetches
    assert fetches.steady() is not None  # the table has the order of the full fetch
    idle(play, 1, ONE)
    frame = fetch(16, *ONE, correlation=2)
    template = fetches.steady()
    assert template is not None
    assert template.surrounds(frame)
    play.client(frame)
    assert fetches.steady() is None  # it is outstanding


def test_a_session_of_two_topics_is_steady_without_a_template() -> None:
    play = Playbook(core=Connection).established(16, T)
    idle(play, 1, T)
    fetches = play.connection.fetches
    assert fetches.steady() is None
    assert steady_table(fetches, fetch(16, *T)) is fetches.session.table is not None
    assert steady_table(fetches, fetch(16, *T[:2])) is None
    assert steady_table(fetches, fetch(16, *T, isolation_level=1)) is None
    assert steady_table(fetches, fetch(16, *T, session=(1, 2))) is None
    assert steady_table(fetches, fetch(12, *T)) is None
    play.client(fetch(16, *T, correlation=2))
    assert steady_table(fetches, fetch(16, *T)) is None  # it is outstanding


def test_a_session_of_one_topic_is_not_steady_without_a_template() -> None:
    play = Playbook(core=Connection).established(16, ONE)
    assert steady_table(play.connection.fetches, fetch(16, *ONE)) is None


def steady_table(fetches: Fetches, frame: bytes) -> PartitionTable | None:
    request = parsed(frame)
    assert request.listing is not None
    return fetches.steady_table(request, request.listing)


@pytest.mark.parametrize("code", [3, 6])
def test_a_session_with_an_error_is_not_steady(code: int) -> None:
    play = Playbook(core=Connection).established(7, ONE)
    told = fetch_response(7, ("t", [entry(1, error=code)]), session_id=SESSION_ID, correlation_id=1)
    play.client(fetch(7, *ONE, correlation=1)).takes_broker()
    play.broker(told).takes_client()
    assert play.connection.fetches.session.has_session
    assert play.connection.fetches.steady() is None


def test_a_look_that_sends_no_check_only_sets_the_time_of_the_next_one() -> None:
    play = Playbook(core=Connection).established(16, [("t", index, 5) for index in range(3)])
    fetches = play.connection.fetches
    assert fetches.look_quietly(SUSPECT_SECONDS)
    assert fetches.check_at == 2 * SUSPECT_SECONDS
    before = fetches.check_at
    assert not fetches.look_quietly(CHECK_SECONDS)
    assert fetches.check_at == before
