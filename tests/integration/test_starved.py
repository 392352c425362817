"""Tests the entry of a partition that gets no records because of byte limits, on a live broker.

The test compares the entry of a direct fetch, the entry in a session, and the entry through the gateway.
"""

import uuid
from collections.abc import Iterator

import pytest

from tests.integration.lockstep import SansIO
from tests.integration.mirror import LIVE_PROPERTIES, Live
from tests.model.wire import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    decode_response,
    encode_request,
)
from tools.kafka import Broker

pytestmark = pytest.mark.integration

PARTITIONS = 12
BUSY = 4
"""The number of partitions with a batch. Their first batch may be too large for the byte limit."""
BATCH = 370
"""The size of a batch with one value of 300 bytes."""


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Broker("4.3.0", properties=LIVE_PROPERTIES) as broker, Live(broker) as live:
        yield live


def request(name: str, topic: Live, version: int, offset: int, isolation: int, **limits: int) -> FetchRequest:
    part = limits.get("partition", 1 << 20)
    entries = tuple(
        FetchPartition(partition=index, fetch_offset=offset if index < BUSY else 0, partition_max_bytes=part)
        for index in range(PARTITIONS)
    )
    key = {"topic_id": topic.topic_id(name)} if version >= 13 else {"topic": name}
    return FetchRequest(
        version=version,
        correlation_id=1,
        client_id="starved",
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=limits.get("response", 1 << 20),
        isolation_level=isolation,
        topics=(FetchTopic(**key, partitions=entries),),
    )


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("version", [4, 11, 12, 16])
@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"partition": 100}, id="by partition_max_bytes"),
        pytest.param({"response": BATCH + 10}, id="by max_bytes"),
        pytest.param({"response": BATCH}, id="with nothing left"),
    ],
)
def test_a_starved_entry(live: Live, version: int, isolation: int, limits: dict[str, int]) -> None:
    """Section 1.4: the entry of a partition whose first batch did not fit has null aborted transactions.

    The other entries have a list.
    """
    name = f"starved-{uuid.uuid4().hex[:8]}"
    live.create_topic(name, PARTITIONS)
    for index in range(BUSY):
        live.producer.produce(name, index, [bytes(300)])
    through = SansIO(live.broker.host, live.broker.port)

    def ask(asked: FetchRequest) -> FetchResponse:
        return decode_response(through.exchange(encode_request(asked)), version)

    try:
        for _ in range(4):
            ask(request(name, live, version, 1, isolation, **limits))
        assert through.connection.state.session_id
        asked = request(name, live, version, 0, isolation, **limits)
        direct = live.fetch(asked)
        got = ask(asked)
        assert through.connection.state.decided is None
        assert got == direct
    finally:
        through.close()
