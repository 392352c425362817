"""Tests of what is known of brokers that are unreachable, and of the sums over connections."""

from proxy.telemetry.status import UnreachableBrokers, WithBroker


def test_the_latest_word_on_a_broker_counts() -> None:
    found = UnreachableBrokers()
    assert found.failed(1, "down", 10.0)
    assert not found.failed(1, "down", 11.0), "it is not new"
    assert found.failed(1, "timed out", 12.0)
    assert found.since == {1: 10.0}, "the first failure"
    assert found.reached(1, 13.0)
    assert (found.now(), found.since) == ({}, {})
    assert found.failed(1, "y", 14.0)
    assert found.failed(None, "x", 14.0)
    assert list(found.now()) == [None, 1], "the bootstrap first"
    assert found.forget(15.0) == [1]
    assert list(found.since) == [None]


def test_of_several_connections_the_oldest_request_counts() -> None:
    total = WithBroker(connections=1, oldest_seconds=2.0)
    total.add(WithBroker(connections=2, oldest_seconds=1.5))
    assert total == WithBroker(connections=3, oldest_seconds=2.0)
