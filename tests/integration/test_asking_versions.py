"""The gateway sends as few ApiVersions requests as possible to a live broker, and counts their bytes."""

from contextlib import ExitStack

import pytest

from tests.integration.fetching import Fetcher
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

pytestmark = pytest.mark.integration


def moved(gateway: GatewayProcess, side: str) -> int:
    """Return the number of all bytes that the gateway has received and sent on one side."""
    directions = ("in", "out")
    return sum(int(gateway.metric("fetchgate_bytes_total", side=side, direction=each)) for each in directions)


@pytest.mark.parametrize(("release", "version"), [("4.3.0", 4), ("4.3.0", 11), ("2.4.1", 11)])
def test_what_a_broker_is_asked(release: str, version: int) -> None:
    with Broker(release) as broker, Admin(broker.address) as admin:
        admin.create_topic("t", partitions=8)
        with GatewayProcess(broker.address) as gateway, ExitStack() as clients:
            address = f"{gateway.host}:{gateway.port + 1 + broker.node_id}"

            def connect() -> Fetcher:
                return clients.enter_context(Fetcher(address, "t", 8, version=version))

            for _ in range(20):
                connect().fetch(max_wait_ms=0)
            assert gateway.metric("fetchgate_probe_bytes_total") == 0
            assert moved(gateway, "broker") == moved(gateway, "client")

            first, second = connect(), connect()
            for _ in range(6):
                first.fetch(max_wait_ms=0)
            asked = gateway.metric("fetchgate_probe_bytes_total")
            assert 200 < asked < 1000
            for _ in range(6):
                second.fetch(max_wait_ms=0)
            assert gateway.metric("fetchgate_probe_bytes_total") == asked
            incremental = gateway.metric("fetchgate_fetches_total", side="broker", kind="incremental")
            assert incremental >= 4
            totals = gateway.state()["totals"]
            saved = moved(gateway, "client") - moved(gateway, "broker")
            assert totals["saved_bytes"] == saved
