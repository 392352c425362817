"""Tests of the histograms of fetches: their sums equal the counters."""

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.histograms import PARTITIONS, Distribution, Measured
from tests.frames import fetch, fetch_response, framed
from tests.playbook import SESSION_ID, Playbook, T, asks, full, request, response


def measured_of(play: Playbook) -> Measured:
    play.measured.settle()
    return play.measured


def placed(distribution: Distribution) -> dict[float, int]:
    """Return the number of values in each non-empty bucket. The key is the bucket's upper bound."""
    return {b: n for b, n in zip((*distribution.bounds, inf), distribution.counts, strict=True) if n}


@given(st.lists(st.integers(0, 20_000)))
def test_a_value_is_in_the_first_bucket_that_holds_it(values: list[int]) -> None:
    distribution = Distribution(PARTITIONS)
    distribution.note(values)
    bounds = (*PARTITIONS, inf)
    for place, bound in enumerate(bounds):
        assert sum(distribution.counts[: place + 1]) == sum(value <= bound for value in values)
    assert distribution.total == sum(values)
    assert distribution.count == len(values)
    if values:
        assert distribution.mean == pytest.approx(np.mean(values))
        assert distribution.below(0.5) >= sorted(values)[(len(values) - 1) // 2]


def test_of_nothing_there_is_nothing() -> None:
    distribution = Distribution(PARTITIONS)
    distribution.note([])
    distribution.note([-1])
    assert (distribution.count, distribution.mean, distribution.below(0.99)) == (0, 0, 0)


def test_beyond_the_last_bound_there_is_none() -> None:
    distribution = Distribution((1.0,))
    distribution.note([5.0])
    assert distribution.below(0.5) == inf


def test_times_and_sizes_of_a_session() -> None:
    play = Playbook().established(16, T)
    play.now = 10.0
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    play.now = 10.3
    told, given_ = fetch_response(16, session_id=SESSION_ID, correlation_id=4), full(16, T, correlation_id=4)
    play.broker(told[:6]).nothing()
    play.now = 19.0
    play.broker(told[6:10]).nothing()
    play.broker(told[10:]).to_client(given_)

    measured = measured_of(play)

    assert placed(measured.broker_fetch) == {0.0005: 3, 10.0: 1}, "eight bytes make a response's beginning"
    assert measured.broker_fetch.total == pytest.approx(9.0)
    assert placed(measured.partitions_client) == {5: 4}
    assert placed(measured.partitions_broker) == {5: 3, 0: 1}
    assert measured.response_bytes_broker.count == measured.response_bytes_client.count == 4
    assert placed(measured.broker_other) == {0.0005: 1}, "ApiVersions"


@pytest.mark.parametrize("version", [4, 7, 12, 16])
def test_sizes_add_up_to_what_is_counted(version: int) -> None:
    play = Playbook().established(version, T)
    spoken = max(version, 7)
    for epoch, code in ((1, 0), (2, 70)):
        play.client(fetch(version, *T, correlation=4))
        play.to_broker(asks(version, [], (SESSION_ID, epoch), correlation=4))
        play.now += 0.2
        if not code:
            play.broker(fetch_response(spoken, session_id=SESSION_ID, correlation_id=4))
            play.to_client(full(version, T, correlation_id=4))
    play.broker(fetch_response(spoken, error_code=70, correlation_id=4))
    play.to_broker(asks(version, T, (0, 0), correlation=4))
    play.now += 0.05
    play.broker(full(spoken, T, correlation_id=4, session_id=9)).to_client(full(version, T, correlation_id=4))
    unread = request(1, 3, 5, bytes(20))
    play.exchange(unread, response(5, bytes(40)))
    assert play.close().takes_broker()
    play.broker(fetch_response(spoken, correlation_id=4)).nothing()

    measured, tally = measured_of(play), play.connection.tally

    assert measured.response_bytes_client.total == tally.client.fetch_response_bytes
    assert measured.response_bytes_broker.total == tally.broker.fetch_response_bytes
    assert measured.response_bytes_client.count == sum(tally.client.fetches)
    assert measured.partitions_client.total == tally.client.partitions_requested
    assert measured.partitions_broker.total == tally.broker.partitions_requested
    assert placed(measured.added_repeat) == {0.25: 1}, "the first of the two tries"


def test_a_close_is_the_gateways_own() -> None:
    play = Playbook().established(16, T).close()
    closing = play.takes_broker()
    correlation = int.from_bytes(closing[8:12])
    before = measured_of(play).response_bytes_client.count
    play.broker(fetch_response(16, correlation_id=correlation)).nothing()
    measured = measured_of(play)
    assert measured.response_bytes_client.count == before
    assert measured.response_bytes_broker.count == before + 1
    assert placed(measured.partitions_broker) == {5: 3, 0: 1}


def test_requests_that_wait_for_others_say_nothing_of_a_broker() -> None:
    play = Playbook().knows()
    for key in (11, 14, 78, 3):
        play.now += 5
        asked = request(key, 0, key)
        play.client(asked).to_broker(asked)
        play.now += 100.0
        play.broker(framed(response(key)[4:])).to_client(response(key))
    assert placed(measured_of(play).broker_other) == {0.0005: 1, inf: 1}, "ApiVersions and Metadata"


def test_a_long_request_is_timed_from_its_end() -> None:
    play = Playbook().knows()
    asked = request(9, 0, 1, bytes(100))
    play.client(asked[:50]).to_broker(asked[:50])
    play.now += 50
    play.client(asked[50:]).to_broker(asked[50:])
    play.now += 0.2
    play.broker(response(1)).to_client(response(1))
    assert placed(measured_of(play).broker_other) == {0.0005: 1, 0.25: 1}


def test_measurements_are_counted_by_themselves_in_the_end() -> None:
    play = Playbook().established(16, T)
    measured = play.measured
    measured.fetches.extend([0.0, 1, 1, 1, 1] * 1023)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    play.broker(fetch_response(16, session_id=SESSION_ID, correlation_id=4)).to_client(
        full(16, T, correlation_id=4)
    )
    assert measured.fetches == []
    measured.others.extend([0.0] * 1023)
    play.exchange(request(9, 0, 1), response(1))
    assert measured.others == []
    assert measured.broker_other.count == 1025


def test_brokers_add_up() -> None:
    one, other = Measured(), Measured()
    one.requests.append(0.1)
    other.requests.extend((0.2, 0.00001))
    other.responses.append(1.0)
    for measured in (one, other):
        measured.settle()
    one.add(other)
    assert (one.added_request.count, one.added_response.count) == (3, 1)
    assert one.added_request.total == pytest.approx(0.30001)
    assert repr(one.added_request) == "<Distribution of 3, mean 0.100003, 99 % up to 0.5>"
