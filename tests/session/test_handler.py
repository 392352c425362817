"""FetchSessionHandler does what the tables in `proxy/session/state.py` say (fetch-semantics 3.2).

The tests also cover cases 50 to 57. Responses with an error code also have entries (`NEWS`). The tests check
that these entries do not change the partition table: such an error only changes the next fetch.
"""

from typing import Any

import pytest

from proxy.protocol.fetch_request import MAX_EPOCH
from proxy.session.handler import UNSHARDED_ID
from proxy.session.state import Action, Loss
from tests.frames import entry, fetch_response, walked, wire_key
from tests.session.handling import NEWS, Kept, T, again, asked, established, give, high_watermark, state

# --- the response to a full fetch -------------------------------------------------------------------


def test_a_full_response_with_an_id_makes_a_session() -> None:
    handler = established()
    assert (*state(handler), handler.has_session) == (77, 1, True)
    assert repr(handler) == "<FetchSessionHandler 77 epoch=1 partitions=3>"
    assert [high_watermark(handler, *key) for key in T] == [5, 5, 5]


def test_a_full_response_without_an_id_and_each_next_fetch_asks_again() -> None:
    """Case 50: if a full response has no session id, each later fetch requests a session again."""
    handler = asked()
    elements = [("t", [entry(0), entry(1)]), ("u", [entry(0)])]
    for _ in range(3):
        assert give(handler, 16, *elements, session_id=0).action is Action.COMPLETE
        assert (*state(handler), handler.has_session) == (0, 0, False)
        assert handler.ask_full() == (0, 0)


@pytest.mark.parametrize("code", [70, 71, 106, -1, 5])
def test_a_full_fetch_that_fails_names_no_session_any_more(code: int) -> None:
    """Case 96: after a full fetch has failed, the next fetch has no session id.

    The broker may not have a shard for the old id.
    """
    handler = established()
    handler.epoch = 0
    assert handler.ask_full() == (77, 0)
    kept = Kept.of(handler)
    result = give(handler, 16, *NEWS, error_code=code, session_id=77)
    assert (result.action, result.reason) == (Action.RESEND_SESSIONLESS, f"error {code}")
    assert state(handler) == (0, 0)
    assert Kept.of(handler) == kept


def test_a_full_response_thrown_away_by_a_quota() -> None:
    """Case 55: a full response that a quota made empty (it is throttled) creates no session."""
    handler = asked()
    result = give(handler, 16, throttle_time_ms=100)
    assert (result.action, result.reason) == (Action.EMPTY, "")
    assert (*state(handler), handler.table, handler.has_session) == (0, 0, None, False)


@pytest.mark.parametrize(
    "elements",
    [
        pytest.param([("t", [entry(0), entry(1)])], id="one missing"),
        pytest.param([("t", [entry(0), entry(1), entry(2)]), ("u", [entry(0)])], id="one more"),
        pytest.param([("t", [entry(0), entry(1)]), ("v", [entry(0)])], id="a foreign topic"),
        pytest.param(
            [("t", [entry(0), entry(1)]), ("u", [entry(0)]), ("v", [entry(i) for i in range(9)])], id="run"
        ),
        pytest.param([], id="nothing, and no throttling"),
    ],
)
@pytest.mark.parametrize("version", [7, 12, 16])
def test_a_full_response_with_other_partitions(version: int, elements: Any) -> None:
    """Case 53, trap 24: if a full response has other partitions than the fetch, no session is created.

    The response is forwarded. The handler remembers the broker's session id only to have this session closed.
    """
    handler = asked(version)
    result = give(handler, version, *elements, session_id=77)
    assert (result.action, result.reason) == (Action.COMPLETE_NO_SESSION, "other partitions than asked for")
    assert (result.entries, result.rows) == ([], [])
    assert (*state(handler), handler.table, handler.has_session) == (77, 0, None, False)


def test_a_full_response_tells_which_entries_are_more_than_an_image() -> None:
    handler = asked()
    told = [entry(0, 9, records=b"abc"), entry(1, error=6)]
    result = give(handler, 16, ("t", told), ("u", [entry(0, 7)]), session_id=77)
    assert [(one.key, one.partition) for one in result.entries] == [
        (wire_key(16, "t"), 0),
        (wire_key(16, "t"), 1),
    ]
    assert result.rows == [0, 1]
    assert high_watermark(handler, "t", 0) == 9
    assert handler.table is not None
    assert handler.table.known[:3].tolist() == [True, False, True]
    assert handler.table.refused[:3].tolist() == [0, 6, 0]


# --- the response to an incremental fetch -----------------------------------------------------------


def test_an_incremental_response_advances_the_epoch_and_fills_in() -> None:
    handler = established()
    again(handler)
    result = give(handler, 16, ("t", [entry(1, 6, records=b"r")]), session_id=77)
    assert (result.action, result.reason) == (Action.EXPAND, "")
    assert [(one.key, one.partition) for one in result.entries] == [(wire_key(16, "t"), 1)]
    assert result.rows == [1]
    assert state(handler) == (77, 2)
    assert [high_watermark(handler, *key) for key in T] == [5, 6, 5]


def test_a_response_with_nothing_in_it() -> None:
    handler = established()
    again(handler)
    assert give(handler, 16, session_id=77).action is Action.EXPAND
    assert state(handler) == (77, 2)


@pytest.mark.parametrize("answered_id", [77, 78, 1])
def test_the_id_is_kept_as_it_was(answered_id: int) -> None:
    """Section 3.2: the session id in an incremental response is not compared with the session's id.

    Java's client does not compare it either.
    """
    handler = established()
    again(handler)
    give(handler, 16, session_id=answered_id)
    assert state(handler) == (77, 2)


def test_epochs_begin_with_one_and_go_round() -> None:
    """Case 17: the first epoch of a session is 1. After 2^31-1, the next epoch is 1 again."""
    handler = established()
    assert handler.pair == (77, 1)
    handler.epoch = MAX_EPOCH
    again(handler)
    assert give(handler, 16, session_id=77).action is Action.EXPAND
    assert state(handler) == (77, 1)


def test_an_incremental_response_without_an_id() -> None:
    """Case 54, trap 10: if an incremental response has the session id 0, the broker's session is gone.

    The fetch is then repeated in full. Otherwise the client would miss changes that were not reported.
    """
    handler = established()
    again(handler)
    result = give(handler, 16, ("t", [entry(0, 8)]), session_id=0)
    assert (result.action, state(handler), result.loss) == (Action.RESEND_FULL, (0, 0), Loss.NO_ID)
    assert high_watermark(handler, "t", 0) == 8


@pytest.mark.parametrize(
    "elements", [[("v", [entry(0)])], [("t", [entry(2)])], [("t", [entry(i) for i in range(9)])]]
)
def test_a_partition_outside_the_session(elements: Any) -> None:
    """Case 54, trap 24: if a response has a partition outside the session, the fetch is repeated in full.

    So the client never gets an entry that it did not request.
    """
    handler = established()
    again(handler)
    result = give(handler, 16, *elements, session_id=77)
    assert (result.action, result.reason) == (Action.RESEND_FULL, "a partition outside the session")
    assert state(handler) == (77, 0)


def test_a_session_that_is_not_found_is_asked_for_anew() -> None:
    """Case 52: after error 70 (the session is not found), the next fetch requests a new session."""
    handler = established()
    again(handler)
    kept = Kept.of(handler)
    result = give(handler, 16, *NEWS, error_code=70)
    assert (result.action, result.reason) == (Action.RESEND_FULL, "error 70")
    assert state(handler) == (0, 0)
    assert Kept.of(handler) == kept


@pytest.mark.parametrize("code", [71, 106])
def test_a_wrong_epoch_or_ids_that_come_and_go(code: int) -> None:
    """Case 52: after error 71 or 106, the next fetch is full, and has the id of the old session."""
    handler = established()
    again(handler)
    kept = Kept.of(handler)
    assert give(handler, 16, *NEWS, error_code=code).action is Action.RESEND_FULL
    assert state(handler) == (77, 0)
    assert Kept.of(handler) == kept


@pytest.mark.parametrize("code", [-1, 2, 42])
def test_another_error_asks_without_a_session(code: int) -> None:
    """Case 52, trap 11: after any other error, the fetch is repeated without a session.

    The client gets the response to this repeated fetch.
    """
    handler = established()
    again(handler)
    kept = Kept.of(handler)
    assert give(handler, 16, *NEWS, error_code=code, session_id=77).action is Action.RESEND_SESSIONLESS
    assert state(handler) == (77, 0)
    assert Kept.of(handler) == kept


@pytest.mark.parametrize(("session_id", "kept_id"), [(UNSHARDED_ID - 1, UNSHARDED_ID - 1), (UNSHARDED_ID, 0)])
def test_an_id_that_is_in_no_shard(session_id: int, kept_id: int) -> None:
    """Case 96: after an error, a session id outside the ranges of all shards is not used again."""
    handler = established(session_id=session_id)
    again(handler)
    give(handler, 16, error_code=-1, session_id=session_id)
    assert state(handler) == (kept_id, 0)


@pytest.mark.parametrize(("answered_id", "after"), [(77, (77, 2)), (0, (77, 0))])
def test_an_incremental_response_thrown_away_by_a_quota(answered_id: int, after: tuple[int, int]) -> None:
    """An incremental response is forwarded if a quota made it empty (it is throttled).

    If such a response has the session id 0, it may hide a session error. Then the next fetch is full, and has
    the id of the session that may still exist.
    """
    handler = established()
    again(handler)
    kept = Kept.of(handler)
    result = give(handler, 16, session_id=answered_id, throttle_time_ms=100)
    assert (result.action, result.entries) == (Action.EMPTY, [])
    assert state(handler) == after
    assert Kept.of(handler) == kept


def test_brokers_of_1_1_throw_no_read_away() -> None:
    """A throttled, empty response of a 1.1 broker means that nothing is new."""
    handler = established(7)
    again(handler, 7)
    walk = walked(fetch_response(7, session_id=77, throttle_time_ms=100), 7)
    assert handler.handle(walk, empties=False).action is Action.EXPAND
    assert state(handler) == (77, 2)


def test_throttled_with_entries_is_an_ordinary_response() -> None:
    """A throttled response with entries is processed normally. Brokers of 1.1 delay responses instead of
    emptying them.
    """
    handler = established(7)
    again(handler, 7)
    result = give(handler, 7, ("t", [entry(0, 8)]), session_id=77, throttle_time_ms=100)
    assert (result.action, state(handler)) == (Action.EXPAND, (77, 2))
    assert high_watermark(handler, "t", 0, 7) == 8


def test_added_while_throttled_is_not_filled_in() -> None:
    """Case 27: a partition is added, but the broker's first response is throttled and empty.

    The broker reports the partition in the next response. Until then the gateway does not know the
    partition's state, so it adds no entry for the partition.
    """
    handler = established()
    again(handler, 16, *T, ("u", 1))
    assert give(handler, 16, session_id=77, throttle_time_ms=100).action is Action.EMPTY
    again(handler, 16, *T, ("u", 1))
    result = give(handler, 16, ("u", [entry(1, 3)]), session_id=77)
    assert (result.action, high_watermark(handler, "u", 1)) == (Action.EXPAND, 3)


def test_a_partition_that_the_broker_has_not_described_is_not_invented() -> None:
    handler = established()
    again(handler, 16, *T, ("u", 1))
    result = give(handler, 16, ("t", [entry(0, 6)]), session_id=77)
    assert (result.action, result.reason) == (
        Action.RESEND_FULL,
        "a partition that the broker has not described",
    )
    assert state(handler) == (77, 0)


@pytest.mark.parametrize("version", [7, 11])
def test_an_error_while_it_lasts_and_the_recovery_after_it(version: int) -> None:
    """Case 24: as long as a partition has an error, every response contains it.

    After the recovery, one more response has the partition.
    """
    handler = established(version)
    for _ in range(3):
        again(handler, version)
        result = give(handler, version, ("t", [entry(1, error=6)]), session_id=77)
        assert (result.action, [one.error_code for one in result.entries]) == (Action.EXPAND, [6])
    again(handler, version)
    result = give(handler, version, ("t", [entry(1, 5)]), session_id=77)
    assert (result.action, result.entries, high_watermark(handler, "t", 1, version)) == (Action.EXPAND, [], 5)
    again(handler, version)
    assert give(handler, version, session_id=77).action is Action.EXPAND


def test_an_error_that_goes_silent_is_not_filled_in() -> None:
    """Trap 7: if an entry with error 76 or 35 is missing in the next response, it is not filled in.

    The fetch is repeated in full. The reason: up to release 3.9, a broker's session leaves these errors out,
    and the values from before the error are not valid any more.
    """
    handler = established()
    again(handler)
    give(handler, 16, ("t", [entry(0, error=76)]), session_id=77)
    again(handler)
    assert give(handler, 16, session_id=77).action is Action.RESEND_FULL


def test_a_watermark_of_an_error_is_not_remembered() -> None:
    """Trap 25: if an entry has an error, the session does not store the entry's high watermark."""
    handler = established()
    again(handler)
    give(handler, 16, ("t", [entry(0, error=1)]), session_id=77)
    assert high_watermark(handler, "t", 0) == 5
    assert handler.table is not None
    assert not handler.table.known[0]


# --- 3 and 103 in a session of ids ----------------------------------------------------------------


@pytest.mark.parametrize("code", [3, 103])
@pytest.mark.parametrize("version", [13, 16, 18])
def test_a_topic_gone_or_made_anew_is_had_again_in_full(version: int, code: int) -> None:
    """Trap 8: after error 3 or 103 in a session that uses topic ids, the fetch is repeated in full."""
    handler = established(version)
    again(handler, version)
    kept = Kept.of(handler)
    result = give(handler, version, ("t", [entry(1, error=code)]), session_id=77)
    assert (result.action, result.reason) == (
        Action.RESEND_FULL,
        f"topic deleted or created again (error {code})",
    )
    assert state(handler) == (77, 0)
    assert Kept.of(handler) == kept


@pytest.mark.parametrize("code", [3, 103])
def test_what_the_full_fetch_said_too_is_genuine(code: int) -> None:
    """Trap 8: if the full fetch gets the same error, the error is real, and fetches are not repeated again.

    The cause may be old Metadata, or a partition number that is too high.
    """
    handler = established()
    again(handler)
    give(handler, 16, ("t", [entry(1, error=code)]), session_id=77)
    assert handler.ask_full() == (77, 0)
    give(
        handler, 16, ("t", [entry(0, 5)]), ("u", [entry(0, 5)]), ("t", [entry(1, error=code)]), session_id=78
    )
    for _ in range(3):
        again(handler)
        result = give(handler, 16, ("t", [entry(1, error=code)]), session_id=78)
        assert (result.action, [one.error_code for one in result.entries]) == (Action.EXPAND, [code])
    assert state(handler) == (78, 4)


def test_an_error_that_was_mended_and_comes_back_is_new() -> None:
    """Trap 8: if an error goes away and comes back, another full fetch is sent.

    The gateway must not take the second error for the first one.
    """
    handler = asked()
    give(handler, 16, ("t", [entry(0, 5)]), ("u", [entry(0, 5)]), ("t", [entry(1, error=3)]), session_id=77)
    again(handler)
    assert give(handler, 16, ("t", [entry(1, 5)]), session_id=77).action is Action.EXPAND
    again(handler)
    assert give(handler, 16, ("t", [entry(1, error=3)]), session_id=77).action is Action.RESEND_FULL


@pytest.mark.parametrize("version", [7, 12])
def test_by_name_3_is_what_a_full_fetch_says(version: int) -> None:
    """Trap 9: with topic names, a full fetch would get error 3, too. So the client gets this error."""
    handler = established(version)
    again(handler, version)
    result = give(handler, version, ("t", [entry(1, error=3)]), session_id=77)
    assert (result.action, [one.error_code for one in result.entries]) == (Action.EXPAND, [3])
