"""A sidecar with the options of its manifest stays within its memory, whatever its clients do."""

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.frames import fetch
from tools.bench.bulk import drain, fill_at
from tools.bench.flood import parked, remembered
from tools.bench.processes import HOST, BenchGateway
from tools.kafka import Broker
from tools.kafka.admin import Admin
from tools.kafka.raw import RawConnection

pytestmark = [pytest.mark.integration, pytest.mark.soak]

MANIFEST: Final = Path(__file__).parents[2] / "tools" / "deploy" / "kubernetes" / "base" / "deployment.yaml"
TOPIC: Final = "large"
QUIET: Final = "quiet"
PARTITIONS: Final = 12
RECORDS: Final = 60_000
"""How many records of 1 KB the topic has. Each client asks for as many as 50 MiB may have."""
MOST: Final = 50 << 20
LISTED: Final = 5_000
"""The number of partitions that some clients list."""
PARKED: Final = 60
PATIENCE: Final = 90.0
"""The time limit for closing the parked clients, in seconds: 4 until they count, 30 more, ticks."""
SYSTEM_BYTES: Final = 300_000
"""What the system keeps for a client that does not read (docs/users/run.md)."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker("4.3.0") as broker:
        with Admin(broker.address) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
        fill_at(broker.address, TOPIC, RECORDS)
        yield broker


def sidecar() -> dict[str, Any]:
    pod = yaml.safe_load(MANIFEST.read_text())["spec"]["template"]["spec"]
    container: dict[str, Any] = pod["initContainers"][0]
    return container


def options() -> list[str]:
    """Return the options of the manifest that limit the memory."""
    limits = {each["name"]: each["value"] for each in sidecar()["env"] if "_MAX_" in each["name"]}
    return [
        word
        for name, value in limits.items()
        for word in (f"--{name.removeprefix('FETCHGATE_').lower().replace('_', '-')}", value)
    ]


def large() -> bytes:
    """Return some fetches of everything."""
    wants = [(TOPIC, number) for number in range(PARTITIONS)]
    values = {"partition_max_bytes": MOST}
    return b"".join(
        fetch(12, *wants, values=values, correlation=each, max_bytes=MOST, max_wait_ms=500)
        for each in range(4)
    )


def many() -> list[bytes]:
    """Return two fetches of many partitions."""
    wants = [("none", number) for number in range(LISTED)]
    return [fetch(12, *wants, correlation=each, max_wait_ms=1) for each in (1, 2)]


def frames(data: bytes) -> Iterator[bytes]:
    while data:
        end = 4 + int.from_bytes(data[:4])
        yield data[:end]
        data = data[end:]


@pytest.mark.parametrize(
    ("kind", "unread", "others"),
    [
        pytest.param("requests", 50, 30, id="clients of all kinds stay within what is requested"),
        pytest.param("limits", 140, 2, id="clients that do not read stay within the limit"),
    ],
)
def test_the_memory_of_the_manifest_is_enough(broker: Broker, kind: str, unread: int, others: int) -> None:
    """The process needs no more memory than the manifest says, and a client that reads gets its records.

    Meanwhile some clients do not read, and others have sent a part of a fetch, fetch many partitions, or have
    sent large headers.
    """
    left_out = unread * SYSTEM_BYTES if kind == "limits" else 0
    with BenchGateway(broker.address, *options(), node_id=broker.node_id) as gateway, ExitStack() as stack:
        gateway.ready()

        def client() -> RawConnection:
            return stack.enter_context(RawConnection(HOST, gateway.node_port, timeout=120))

        for _ in range(unread):
            client().socket.sendall(large())
        for _ in range(others):
            client().socket.sendall((1 << 20).to_bytes(4) + large()[4:50] + bytes(900_000))
            for asked in (many(), [*frames(remembered())]):
                asking = client()
                for each in asked:
                    asking.socket.sendall(each)
                    asking.receive()
        with drain(gateway.address, TOPIC, RECORDS) as load:
            assert load.ready().result()["records"] >= RECORDS
        memory = sidecar()["resources"][kind]["memory"]
        assert gateway.meter.peak + left_out <= int(memory.removesuffix("Mi")) << 20


@pytest.mark.skipif(shutil.which("ss") is None, reason="only ss tells what the system buffers")
def test_clients_whose_broker_does_not_read_are_closed(broker: Broker) -> None:
    """The worst clients that we know: a fetch that waits for ever, and behind it an upload that nobody reads.

    The system buffers megabytes of each, which count after four seconds without progress. Half a minute later
    the gateway has closed as many of them as necessary, and the process and its sockets are within what the
    manifest requests.
    """
    with Admin(broker.address) as admin:
        admin.create_topic(QUIET, partitions=1)
        upload = parked(admin.topic_id(QUIET).bytes)
    requested = int(sidecar()["resources"]["requests"]["memory"].removesuffix("Mi")) << 20

    def send(client: RawConnection) -> None:
        with suppress(OSError):  # the gateway closes it
            client.socket.sendall(upload)

    with (
        ThreadPoolExecutor(PARKED) as sending,  # the last one to end: it waits for all clients to be closed
        BenchGateway(broker.address, *options(), node_id=broker.node_id) as gateway,
        ExitStack() as stack,
    ):
        gateway.ready()
        clients = [
            stack.enter_context(RawConnection(HOST, gateway.node_port, timeout=2 * PATIENCE))
            for _ in range(PARKED)
        ]
        for client in clients:
            sending.submit(send, client)
        meter, until, most = gateway.meter, time.monotonic() + PATIENCE, 0
        while (used := meter.resident + (meter.buffered or 0)) > requested or most <= requested:
            most = max(most, used)
            assert time.monotonic() < until, f"{used >> 20} MiB, at most {most >> 20}"
            time.sleep(0.5)
