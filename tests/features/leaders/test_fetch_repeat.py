"""Which fetches are sent again to a new leader, and what the client gets of its answer."""

from typing import Final

import pytest

from proxy.core.asking.repeat import MAX_BYTES
from proxy.core.events import NotFollowed
from tests.features.leaders.following import NEW, NONE, OLD, OURS, TOPIC, Two, fresh
from tests.frames import Want, entry, fetch, fetch_response, framed

RECORDS: Final = b"r" * 70


@pytest.mark.parametrize("version", [16, 18])
def test_a_client_with_kip_951_gets_the_error_as_it_came(version: int) -> None:
    two = Two(version)
    two.fails((TOPIC, 0, 40)).old.to_client(two.refusal((TOPIC, 0)))
    assert two.counted() == ({}, {})


@pytest.mark.parametrize("version", [4, 8])
def test_an_older_broker_may_not_know_the_question(version: int) -> None:
    two = Two(version)
    two.fails((TOPIC, 0)).old.to_client(two.refusal((TOPIC, 0)))
    assert two.counted() == ({}, {NotFollowed.VERSION: 1})


def test_other_entries_of_the_response_stay_as_they_are() -> None:
    two = Two(12)
    asked = two.fetch((TOPIC, 0), (TOPIC, 1), (TOPIC, 2))
    two.old.client(asked).to_broker(asked)
    first, last = entry(0, 9, records=RECORDS), entry(2, error=3)
    two.old.broker(fetch_response(12, (TOPIC, [first, entry(1, error=6), last]), correlation_id=5))
    two.asks_leaders().leaders({1: (NEW, 5)})
    # What the client has got does not wait.
    two.new.to_broker(two.repeated((TOPIC, 1), max_wait_ms=0))
    data = entry(1, 77, records=b"s" * 300)
    two.new.broker(fetch_response(12, (TOPIC, [data]), correlation_id=OURS))
    two.old.to_client(fetch_response(12, (TOPIC, [first, data, last]), correlation_id=5))
    assert two.counted() == ({"fetch": 1}, {})


@pytest.mark.parametrize("error", [1, 3, 6, 9, 74, 75, 76, 78, 100])
def test_no_error_of_the_new_leader_reaches_the_client(error: int) -> None:
    """If the new leader answers with an error, the client gets the old leader's error instead.

    The client would react to an error of the new leader: after OFFSET_OUT_OF_RANGE it would reset its offset.
    """
    two = Two()
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 0)))
    told = fetch_response(11, (TOPIC, [entry(0, error=error)]), correlation_id=OURS)
    two.new.broker(told).nothing()
    two.refused(NotFollowed.REFUSED)


@pytest.mark.parametrize(
    "told",
    [
        fetch_response(11, (TOPIC, [entry(0, 5, preferred_read_replica=3)]), correlation_id=OURS),
        fetch_response(11, (TOPIC, [entry(1, 5)]), correlation_id=OURS),
        fetch_response(11, correlation_id=OURS, error_code=70),
        framed(OURS.to_bytes(4) + b"\0" * 3),
    ],
)
def test_what_else_the_new_leader_says_does_not_reach_it_either(told: bytes) -> None:
    two = Two()
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 0))).broker(told).nothing()
    two.refused(NotFollowed.REFUSED)


@pytest.mark.parametrize("chunk", [5000, 1 << 30])
def test_a_large_response_is_not_held(chunk: int) -> None:
    two = Two()
    asked = two.fetch((TOPIC, 0), (TOPIC, 1))
    two.old.client(asked).to_broker(asked)
    data = [entry(0, 9, records=bytes(MAX_BYTES)), entry(1, error=6)]
    told = fetch_response(11, (TOPIC, data), correlation_id=5)
    two.old.broker(told, chunk=chunk).to_client(told)
    assert two.counted() == ({}, {NotFollowed.TOO_LARGE: 1})


def test_a_response_gets_no_larger_than_the_client_allows() -> None:
    """KIP-74: only a response whose first batch alone is longer may exceed max_bytes."""
    two = Two()
    asked = two.fetch((TOPIC, 0), (TOPIC, 1), max_bytes=100)
    two.old.client(asked).to_broker(asked)
    told = fetch_response(11, (TOPIC, [entry(0, 9, records=RECORDS), entry(1, error=6)]), correlation_id=5)
    two.old.broker(told)
    two.asks_leaders().leaders({1: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 1), max_wait_ms=0, max_bytes=30))
    two.new.broker(fetch_response(11, (TOPIC, [entry(1, 9, records=RECORDS)]), correlation_id=OURS))
    two.old.to_client(told)
    assert two.counted() == ({}, {NotFollowed.NO_ROOM: 1})


def test_a_fetch_that_went_through_the_session_is_followed() -> None:
    two = Two(11)
    wants: list[Want] = [(TOPIC, index) for index in range(20)]
    two.old = fresh(two.siblings, OLD)
    two.old.established(11, wants)
    asked = fetch(11, *wants, correlation=5, values=NONE)
    two.old.client(asked).takes_broker()
    two.old.broker(fetch_response(11, (TOPIC, [entry(3, error=6)]), correlation_id=5, session_id=77))
    two.asks_leaders().leaders({3: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 3)))
    two.new.broker(fetch_response(11, (TOPIC, [entry(3, 8)]), correlation_id=OURS))
    given = [entry(index, 8 if index == 3 else 5) for index in range(20)]
    two.old.to_client(fetch_response(11, (TOPIC, given), correlation_id=5))
    # The broker repeats an error in each response of the session: the client's fetch is repeated each time.
    asked = fetch(11, *wants, correlation=5, values=NONE)
    two.old.client(asked).takes_broker()
    two.old.broker(fetch_response(11, (TOPIC, [entry(3, error=6)]), correlation_id=5, session_id=77))
    two.new.to_broker(two.repeated((TOPIC, 3)))


def test_an_incremental_fetch_of_the_clients_own_session_is_not_followed() -> None:
    two = Two()
    asked = two.fetch(session=(77, 3))
    two.old.client(asked).to_broker(asked)
    told = fetch_response(11, (TOPIC, [entry(0, error=6)]), correlation_id=5, session_id=77)
    two.old.broker(told).to_client(told)
    assert two.counted() == ({}, {NotFollowed.NOT_LISTED: 1})


def test_a_partition_that_a_broker_names_twice_does_not_tear_the_response() -> None:
    two = Two()
    asked = two.fetch((TOPIC, 0), (TOPIC, 1))
    two.old.client(asked).to_broker(asked)
    data = [entry(0, error=6), entry(1, error=6), entry(0, error=6)]
    two.old.broker(fetch_response(11, (TOPIC, data), correlation_id=5))
    two.asks_leaders().leaders({0: (NEW, 5), 1: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 0), (TOPIC, 1)))
    first, second = entry(0, 3, records=RECORDS), entry(1, 4)
    two.new.broker(fetch_response(11, (TOPIC, [first, second]), correlation_id=OURS))
    two.old.to_client(fetch_response(11, (TOPIC, [data[0], second, first]), correlation_id=5))
