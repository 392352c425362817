"""Counts are kept after a connection closes, by broker and in total."""

import pytest

from proxy.core.events import FetchKind, SideTally, Tally, saved_bytes
from proxy.telemetry.totals import BROKER_BYTES, BROKER_FETCHES, CLIENT_BYTES, CLIENT_FETCHES, NodeId, Totals


def tally(factor: int = 1) -> Tally:
    def side(number: int) -> SideTally:
        return SideTally(
            bytes_in=number,
            bytes_out=number + 1,
            fetch_request_bytes=number + 2,
            fetch_response_bytes=number + 3,
            fetch_record_bytes=number + 4,
            fetches=[number + 5, number + 6, number + 7, number + 8],
            partitions_requested=number + 9,
            partitions_answered=number + 10,
        )

    counted = Tally(client=side(100 * factor), broker=side(1000 * factor), refusals=7, probe_bytes=5)
    counted.session_errors.update({70: 2})
    counted.passthrough.update({"one partition": 3})
    return counted


def test_all_of_it_is_added_up() -> None:
    total = tally(0)
    total.add(tally(1))
    total.add(tally(0))
    assert total.client.bytes_in == 100
    assert total.client.fetches == [115, 118, 121, 124]
    assert total.broker.partitions_answered == 1030
    assert (total.refusals, total.session_errors[70], total.passthrough["one partition"]) == (21, 6, 9)
    assert total.probe_bytes == 15


def test_what_is_saved_can_be_less_than_nothing() -> None:
    counted = Tally(
        client=SideTally(fetch_request_bytes=5, fetch_response_bytes=5),
        broker=SideTally(fetch_request_bytes=10, fetch_response_bytes=6),
    )
    assert saved_bytes(counted) == -6
    counted.probe_bytes = 4
    assert saved_bytes(counted) == -10


def test_brokers_are_told_apart_and_closed_connections_kept() -> None:
    totals = Totals()
    totals.closed(1, tally(1))
    totals.closed(None, tally(2))
    opened: list[tuple[NodeId, Tally]] = [(1, tally(3)), (2, tally(4))]

    by_broker = totals.by_broker(opened)

    assert {node_id: total.client.bytes_in for node_id, total in by_broker.items()} == {
        1: 400,
        None: 200,
        2: 400,
    }
    assert totals.closed_tallies[1] == tally(1), "what is open is not kept"


def test_a_sample_is_what_was_counted_since_the_last() -> None:
    totals = Totals()
    counted = tally()
    totals.sample(5.0, [(1, counted)])
    assert totals.history.seconds == []
    counted.add(tally())
    totals.sample(7.5, [(1, counted)])
    totals.closed(1, counted)
    totals.sample(9.5, [])
    assert totals.history.seconds == [2.5, 2.0]
    client, broker = tally().client, tally().broker
    size = client.fetch_request_bytes + client.fetch_response_bytes
    assert totals.history.column(CLIENT_BYTES) == [size, 0], "to close changes nothing"
    size = broker.fetch_request_bytes + broker.fetch_response_bytes + tally().probe_bytes
    assert totals.history.column(BROKER_BYTES) == [size, 0]
    for kind in FetchKind:
        assert totals.history.column(CLIENT_FETCHES + kind) == [client.fetches[kind], 0]
        assert totals.history.column(BROKER_FETCHES + kind) == [broker.fetches[kind], 0]


def test_how_long_a_broker_took_is_that_of_the_last_sample() -> None:
    totals = Totals()
    measured = totals.measured(1)
    assert totals.response_seconds(1) == (None, None)
    measured.others.append(100.0)
    totals.sample(0.0, [])
    assert totals.response_seconds(1) == (None, None)
    measured.others.extend((1.0, 2.0))
    measured.fetches.extend((0.5, 1, 1, 1, 1))
    totals.sample(2.0, [])
    assert totals.response_seconds(1) == (0.5, 1.5)
    assert totals.response_seconds(2) == (None, None)
    assert totals.all_measured()[1].broker_other.total == pytest.approx(103.0)


def test_what_was_saved_never_falls_as_a_counter() -> None:
    totals = Totals()

    def saved(*bytes_saved: int) -> dict[NodeId, int]:
        sides = [SideTally(fetch_request_bytes=max(each, 0)) for each in bytes_saved]
        costs = [SideTally(fetch_request_bytes=max(-each, 0)) for each in bytes_saved]
        return totals.saved({at: Tally(*both) for at, both in enumerate(zip(sides, costs, strict=True))})

    assert saved(-10, 5) == {0: 0, 1: 5}
    assert saved(20, 3) == {0: 20, 1: 5}
    assert saved(19) == {0: 20, 1: 5}, "the other one is not connected any more"
    assert saved(19, 9) == {0: 20, 1: 9}
