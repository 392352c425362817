"""The sums over connections."""

from proxy.telemetry.status import WithBroker


def test_of_several_connections_the_oldest_request_counts() -> None:
    total = WithBroker(connections=1, oldest_seconds=2.0)
    total.add(WithBroker(connections=2, oldest_seconds=1.5))
    assert total == WithBroker(connections=3, oldest_seconds=2.0)
