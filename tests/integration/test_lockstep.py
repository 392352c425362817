"""Lock-step equivalence on live brokers, through the connection core and through a running gateway."""

import os
from collections.abc import Iterator

import pytest

from tests.examples import share
from tests.integration.lockstep import Lockstep, SansIO
from tests.integration.mirror import LIVE_PROPERTIES, Live
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.raw import RawConnection, frame

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]

RELEASES = ("4.4.0", "4.3.0", "3.9.1", "2.8.2", "2.4.1", "1.1.1", "1.0.2")
STEPS = int(os.environ.get("LOCKSTEP_STEPS", share(500)))
"""The number of steps on each broker. They are divided between the broker's Fetch versions."""


@pytest.fixture(scope="module", params=RELEASES)
def live(request: pytest.FixtureRequest) -> Iterator[Live]:
    with Broker(request.param, properties=LIVE_PROPERTIES) as broker, Live(broker) as connected:
        yield connected


def test_a_client_cannot_tell_at_any_version(live: Live) -> None:
    """At every version, a client gets the same responses from the gateway as from the broker.

    Trap 28: the session misses no changed partition, and no forgotten partition.
    """
    first, last = live.fetch_versions
    versions = range(first, last + 1)
    incremental = 0
    for version in versions:
        through = SansIO(live.broker.host, live.broker.port)
        walk = Lockstep(live, through, version, seed=version)

        counts = walk.run(-(-STEPS // len(versions)))

        through.close()
        assert counts.entries > counts.steps
        assert through.sessions.used == 0
        incremental += through.connection.tally.broker.fetches[1]
    assert incremental > STEPS // 8 or last < 7


class Process:
    """A running gateway."""

    def __init__(self, host: str, port: int) -> None:
        self._connection = RawConnection(host, port)

    def exchange(self, request: bytes) -> bytes:
        self._connection.socket.sendall(frame(request))
        return self._connection.receive()

    def close(self) -> None:
        self._connection.close()


def test_a_client_of_the_running_gateway_cannot_tell() -> None:
    with (
        Broker(properties=LIVE_PROPERTIES) as broker,
        Live(broker) as live,
        GatewayProcess(broker.address) as gateway,
    ):
        through = Process(gateway.host, gateway.port)
        for version in (11, 16):
            Lockstep(live, through, version, seed=100 + version).run(100)
        assert gateway.metric("fetchgate_fetches_total", side="broker", kind="incremental") > 50
        through.close()
