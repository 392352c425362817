"""A gateway's memory stays within the limits in docs/users/run.md, all parts at theirs."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import pytest

from proxy.core.budget import REQUESTS_PART
from tests.core.test_remembered import CONNECTION_BYTES
from tests.frames import Want, fetch
from tools.bench.flood import remembered
from tools.bench.processes import HOST, BenchGateway
from tools.kafka import Broker
from tools.kafka.raw import RawConnection

pytestmark = pytest.mark.integration

CLIENTS: Final = 40
SPARE: Final = 12_000_000
"""The size in bytes of freed memory that the allocator is allowed to keep."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker("4.3.0") as broker:
        yield broker


def split(data: bytes) -> Iterator[bytes]:
    while data:
        end = 4 + int.from_bytes(data[:4])
        yield data[:end]
        data = data[end:]


def grown(broker: Broker, requests: list[bytes], *options: str) -> int:
    """Return the number of bytes by which the gateway's process grows for idle clients.

    Each client sends `requests`, receives the responses, and stays connected.
    """
    with BenchGateway(broker.address, *options) as gateway, ExitStack() as stack:
        gateway.ready()
        before = 0
        for number in range(CLIENTS + 1):
            client = stack.enter_context(RawConnection(HOST, gateway.port, timeout=60))
            for asked in requests:
                client.socket.sendall(asked)
                client.receive()
            if not number:  # what the first one brings is for all
                before = gateway.meter.resident
        return gateway.meter.resident - before


def test_idle_clients_whose_requests_had_large_headers(broker: Broker) -> None:
    """Idle clients need little memory, even after 7 requests with large headers (200 kB each)."""
    assert grown(broker, [*split(remembered())]) < CLIENTS * CONNECTION_BYTES + SPARE


def test_partitions_of_fetches(broker: Broker) -> None:
    """A fetch with 30,000 partitions needs limited memory, which is released after its response.

    The partitions of one client took 3 MB, with or without a session.
    """
    wants: list[Want] = [("t", number) for number in range(30_000)]
    asked = [fetch(12, *wants, correlation=number, max_wait_ms=1) for number in (1, 2)]
    most = (32 << 20) // REQUESTS_PART
    assert grown(broker, asked, "--max-inflight-bytes", "32MiB") < most + CLIENTS * CONNECTION_BYTES + SPARE
