"""Tests of what is known of brokers that are unreachable."""

from proxy.telemetry.status import UnreachableBrokers


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
