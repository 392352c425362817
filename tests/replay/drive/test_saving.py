"""What `drive` says about a gateway's saving: the gateway's counters, compared with direct requests."""

import asyncio

import pytest

from proxy.addresses import Address
from replay.drive.saving import GatewayCounters, measured, read_counters, scrape
from replay.drive.tally import DriveTotals
from replay.drive.wire import TargetError

EXPOSITION = """\
# HELP fetchgate_fetch_request_bytes_total Bytes.
# TYPE fetchgate_fetch_request_bytes_total counter
fetchgate_fetch_request_bytes_total{side="client"} 1000.0
fetchgate_fetch_request_bytes_total{side="broker"} 100.0
# TYPE fetchgate_fetch_response_bytes_total counter
fetchgate_fetch_response_bytes_total{side="client"} 2000.0
fetchgate_fetch_response_bytes_total{side="broker"} 200.0
# TYPE fetchgate_fetch_record_bytes_total counter
fetchgate_fetch_record_bytes_total{side="client"} 20.0
fetchgate_fetch_record_bytes_total{side="broker"} 30.0
"""
REMEDY = "--against reads the counters of the gateway's admin endpoint: give its address with --admin"
COUNTERS = GatewayCounters(
    client_request=1000, client_response=2000, broker_request=100, broker_response=200, broker_records=30
)


def tally(sent: int, received: int) -> DriveTotals:
    counted = DriveTotals()
    counted.sent(1, sent)
    counted.answered(1, received, 0.1)
    counted.sent(3, 99_999)
    return counted


def test_counters_are_read_by_side() -> None:
    assert read_counters(EXPOSITION) == COUNTERS


def test_what_is_no_gateway_has_none() -> None:
    with pytest.raises(ValueError, match="no fetchgate_fetch_request_bytes_total in its metrics"):
        read_counters("# TYPE up gauge\nup 1\n")


def test_only_fetches_count_and_only_the_runs_own() -> None:
    before = GatewayCounters(client_request=10, client_response=10, broker_request=40, broker_response=50)

    saving = measured(COUNTERS - before, tally(990, 1990), tally(1000, 2000))

    assert (saving["gateway_request_bytes"], saving["gateway_response_bytes"]) == (60, 150)
    assert (saving["direct_request_bytes"], saving["direct_response_bytes"]) == (1000, 2000)
    assert (saving["saved_bytes"], saving["saved_ratio"]) == (2790, 0.93)
    assert not saving["other_clients"]


def test_other_clients_of_the_gateway_are_noticed() -> None:
    assert measured(COUNTERS, tally(999, 2000), tally(1, 1))["other_clients"]
    assert measured(COUNTERS, tally(1000, 2001), tally(1, 1))["other_clients"]


def test_nothing_saves_nothing() -> None:
    assert measured(GatewayCounters(), DriveTotals(), DriveTotals())["saved_ratio"] == 0.0


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "HTTP Error 404: Not Found"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nup 1\n",
            "no fetchgate_fetch_request_bytes_total in its metrics",
        ),
        (
            b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"a": 1}\n',
            "no fetchgate_fetch_request_bytes_total in its metrics",
        ),
        (b"\0\0\0\4\0\0\0\0", "does not respond as an admin endpoint does"),
    ],
)
async def test_what_is_no_admin_endpoint_is_reported(response: bytes, error: str) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        writer.close()

    async with await asyncio.start_server(client, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        with pytest.raises(TargetError) as raised:
            await scrape(Address(host, port))

    assert str(raised.value) == f"--admin {host}:{port}: {error}; {REMEDY}"


async def test_an_admin_endpoint_that_is_not_there_is_reported() -> None:
    with pytest.raises(TargetError, match=rf"^--admin 127\.0\.0\.1:1: Connection refused; {REMEDY}$"):
        await scrape(Address("127.0.0.1", 1))
