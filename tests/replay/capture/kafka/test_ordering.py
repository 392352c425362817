"""Requests and responses are put into one order by their TCP ACK numbers.

Captures with two different clocks, and captures without the acknowledged bytes, are also tested.
"""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.capture.packets.tcp import FIN
from tests.replay.capture.packets_of import Row, read, row
from tests.replay.capture.talk import Talk, request, response

MS = 1_000_000
ROUNDS = 20


def talk(*, syn: bool = True) -> Talk:
    """Return a conversation in which each request follows the response to the one before. Packets are 1 ms
    apart.
    """
    said = Talk(syn=syn)
    for place in range(ROUNDS):
        said.client(request(12, 1, place)).broker(response(place))
    return said


def moved(rows: list[Row], nanoseconds: int, drift: float = 0) -> list[Row]:
    """Return rows as if they were captured with two clocks and then merged by time.

    The broker's clock is ahead by `nanoseconds`, and by more later if there is a drift.
    """
    late = [
        one if one.from_low else replace(one, time=one.time + nanoseconds + int(one.time * drift))
        for one in rows
    ]
    return sorted(late, key=lambda one: one.time)


def told(rows: list[Row]) -> tuple[list[Exchange], ConnectionEnd]:
    *exchanges, end = read(rows)
    assert isinstance(end, ConnectionEnd)
    return [one for one in exchanges if isinstance(one, Exchange)], end


def assert_complete(exchanges: list[Exchange]) -> None:
    found = [(one.correlation_id, one.request_bytes > 0, one.response_bytes > 0) for one in exchanges]
    assert found == [(place, True, True) for place in range(ROUNDS)]


@pytest.mark.parametrize("syn", [True, False])
@pytest.mark.parametrize("apart", [-100, -5, 5, 100])
def test_clocks_that_differ_are_told_and_times_are_by_the_clients(apart: int, syn: bool) -> None:
    clean, _ = told(talk(syn=syn).rows)
    exchanges, end = told(moved(talk(syn=syn).rows, apart * MS))
    assert_complete(exchanges)
    assert abs(end.clocks_apart - apart * MS) <= 1.1 * MS  # one way, and 100 ppm
    # 100 ppm of the time between two packets. Without a SYN the first response tells of clocks first.
    most = 1000 if syn else max(apart, 0) * MS
    for one, truth in zip(exchanges[1:], clean[1:], strict=True):
        assert 0 <= one.request_time - truth.request_time <= most
        assert 0 < one.response_time - one.request_time <= 2 * MS


def test_clocks_that_drift_are_followed() -> None:
    rows = [replace(one, time=one.time * 100) for one in talk().rows]  # 100 ms between any two packets
    exchanges, end = told(moved(rows, 0, 80e-6))
    assert_complete(exchanges)
    assert 0 <= end.clocks_apart <= 4000 * MS * 80e-6


@example(times=[2 * MS + 2, 2 * MS + 1, MS + 1] + [0] * (2 * ROUNDS - 1))  # a response is captured first
@given(times=st.lists(st.integers(0, 50 * MS), min_size=2 * ROUNDS + 2, max_size=2 * ROUNDS + 2))
def test_no_response_comes_before_its_request_whatever_the_times(times: list[int]) -> None:
    rows = [replace(one, time=one.time + late) for one, late in zip(talk().rows, times, strict=True)]
    exchanges, _ = told(sorted(rows, key=lambda one: one.time))
    assert_complete(exchanges)
    order = [time for one in exchanges for time in (one.request_time, one.response_time)]
    assert order == sorted(set(order))


def test_one_clock_is_not_corrected() -> None:
    _, end = told(talk().rows)
    assert end.clocks_apart == 0


@pytest.mark.parametrize("client_first", [True, False])
def test_each_direction_may_come_as_a_whole(client_first: bool) -> None:
    exchanges, end = told(sorted(talk().rows, key=lambda one: one.from_low != client_first))
    assert_complete(exchanges)
    assert end.clocks_apart == 0


@pytest.mark.parametrize("syn", [True, False])
def test_what_was_acknowledged_and_never_captured_holds_nothing_up_for_ever(syn: bool) -> None:
    rows = [one for one in talk(syn=syn).rows if one.from_low]
    exchanges, _ = told(rows)
    assert [(one.correlation_id, one.response_bytes) for one in exchanges] == [(n, 0) for n in range(ROUNDS)]


def test_acks_that_wrap_order_still() -> None:
    added = 0xFFFF_FFFF - 1100
    rows = [
        replace(one, sequence=one.sequence + added & 0xFFFF_FFFF, ack=one.ack + added & 0xFFFF_FFFF)
        if one.ack >= 0
        else replace(one, sequence=one.sequence + added & 0xFFFF_FFFF)
        for one in talk().rows
    ]
    assert_complete(told(moved(rows, 50 * MS))[0])


def test_acks_that_contradict_each_other_fall_back_on_times() -> None:
    rows = [replace(one, ack=one.ack + 10_000) if one.ack >= 0 else one for one in talk().rows]
    assert_complete(told(rows)[0])


def test_a_fin_is_after_what_it_acknowledges() -> None:
    said = talk()
    last = row(client=True, sequence=said.next[True], flags=FIN, time=said.time + MS, ack=said.next[False])
    exchanges, end = told(moved([*said.rows, last], 100 * MS))
    assert end.closed
    assert end.closed_time >= exchanges[-1].response_time


def test_the_client_is_who_sent_the_syn_without_an_ack() -> None:
    said = Talk().client(b"GET / HTTP/1.1").broker(b"HTTP/1.1 200 OK")
    assert told(moved(said.rows, -100 * MS))[1].client == "10.0.0.1:50000"
