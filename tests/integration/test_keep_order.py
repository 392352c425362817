"""The partitions that get records under a response limit, on a live broker: directly and through the gateway,
with and without --keep-order.

Trap 25a.
"""

import random
from collections.abc import Iterator
from typing import Final, Protocol

import pytest

from proxy.core.events import FetchKind
from tests.integration.lockstep import SansIO
from tests.integration.mirror import Live
from tests.integration.test_lockstep import Process
from tests.model.wire import FetchPartition, FetchRequest, FetchTopic, decode_response, encode_request
from tools.gateway import GatewayProcess
from tools.kafka import Broker

pytestmark = pytest.mark.integration

PARTITIONS: Final = 4
FETCHES: Final = 60
RESTED: Final = 20.0


class Through(Protocol):
    def exchange(self, request: bytes) -> bytes:
        """Send one request and return its response."""


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Broker() as broker, Live(broker) as connected:
        yield connected


def differing(live: Live, through: Through, topic: str, version: int, seed: int) -> int:
    """Return in how many of `FETCHES` fetches the gateway's response differs from a direct fetch.

    A response differs if other partitions got records.
    """
    chance = random.Random(seed)
    live.create_topic(topic, PARTITIONS)
    key = {"topic": topic} if version < 13 else {"topic_id": live.topic_id(topic)}
    offsets = dict.fromkeys(range(PARTITIONS), 0)
    found = 0
    for number in range(FETCHES):
        for _ in range(chance.choice([0, 0, 1, 3])):
            values = [chance.randbytes(chance.choice([20, 400]))]
            live.producer.produce(topic, chance.randrange(PARTITIONS), values)
        parts = tuple(
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
            for index, offset in offsets.items()
        )
        request = FetchRequest(
            version=version,
            correlation_id=number,
            max_wait_ms=0,
            max_bytes=chance.choice([300, 600, 600, 100_000]),
            topics=(FetchTopic(**key, partitions=parts),),
        )
        if isinstance(through, SansIO):
            through._now += RESTED  # a rest is over
        got = decode_response(through.exchange(encode_request(request)), version).topics[0].partitions
        direct = live.fetch(request).topics[0].partitions
        found += {data.partition_index: data.records for data in got} != {
            data.partition_index: data.records for data in direct
        }
        for data in direct:
            offsets[data.partition_index] += whole_batches(data.records or b"")
    return found


def whole_batches(records: bytes) -> int:
    """Return the number of complete batches in `records`."""
    count = 0
    while len(records) >= 12 and len(records) >= 12 + int.from_bytes(records[8:12]):
        records = records[12 + int.from_bytes(records[8:12]) :]
        count += 1
    return count


@pytest.mark.parametrize("version", [7, 11, 16, 18])
def test_who_is_served_first(live: Live, version: int) -> None:
    """Without `keep_order`, a response through a session has records of other partitions than a direct fetch.

    With `keep_order` there is no difference.
    """
    incremental = {}
    for keep_order in (False, True):
        through = SansIO(live.broker.host, live.broker.port)
        through.sessions.reload(keep_order=keep_order)
        through.exchange(bytes.fromhex("0012 0000 00000000 0001 63"))
        found = differing(live, through, f"v{version}-{keep_order}".lower(), version, seed=version)
        assert (found == 0) is keep_order
        incremental[keep_order] = through.connection.tally.broker.fetches[FetchKind.INCREMENTAL]
        through.close()
    assert min(incremental.values()) > 5


def test_the_running_gateway_keeps_the_order(live: Live) -> None:
    with GatewayProcess(live.broker.address, "--keep-order", "on") as gateway:
        through = Process(gateway.host, gateway.port)
        through.exchange(bytes.fromhex("0012 0000 00000000 0001 63"))
        assert differing(live, through, "process", 11, seed=3) == 0
        assert gateway.metric("fetchgate_passthrough_total", reason="keep order") > 0
        through.close()
