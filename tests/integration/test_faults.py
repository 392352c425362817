"""Clients that break the protocol, vanish, or do not read. Other clients notice nothing.

The log has one line for each such client.
"""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.integration.bystander import Scene, fill, scene, until
from tests.integration.faulty import reset
from tests.integration.fetching import FETCHES_TO_SESSION, Fetcher, contents
from tests.integration.producing import Producer
from tools.kafka import Broker
from tools.kafka.admin import Admin
from tools.kafka.raw import FETCH, PRODUCE, RawConnection, frame, request, string

TOPIC = "faults"
PARTITIONS = 10
LARGE = "faults-large"
LARGE_RECORD = 900_000
LARGE_RECORDS = 60


@pytest.fixture(scope="module")
def stage(broker: Broker) -> Iterator[Scene]:
    with Admin(broker.address) as admin, closing(Producer(broker.host, broker.port)) as producer:
        admin.create_topic(TOPIC, partitions=PARTITIONS)
        admin.create_topic(LARGE, partitions=4)
        producer.produce(TOPIC, 3, [b"three"])
    fill(broker.address, LARGE, LARGE_RECORDS, 4, LARGE_RECORD)
    with scene(broker, "faults-bystander") as stage:
        yield stage


def connect(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=30)


def read_to_end(peer: socket.socket) -> bytes:
    """Read until the other side closes, gracefully or by a reset."""
    received = b""
    try:
        while data := peer.recv(65_536):
            received += data
    except ConnectionResetError:
        pass
    return received


GARBAGE = {
    "length -1": (b"\xff" * 64, "a request of -1 bytes"),
    "length 0": (bytes(64), "a request of 0 bytes"),
    "length too short for a header": (struct.pack(">i", 7) + b"\0" * 7, "a request of 7 bytes"),
    "one byte beyond the limit": (
        struct.pack(">i", 104_857_601) + b"\0" * 60,
        "a request of 104857601 bytes; max_request_bytes is 104857600",
    ),
    "longest length": (
        struct.pack(">i", 0x7FFFFFFF) + b"\0" * 60,
        "a request of 2147483647 bytes; max_request_bytes is 104857600",
    ),
    "TLS hello": (bytes.fromhex("1603010200010001fc0303") + b"\x55" * 60, "TLS on a plaintext listener"),
    "PROXY protocol v1": (b"PROXY TCP4 10.0.0.1 10.0.0.2 4000 9092\r\n", "the PROXY protocol v1, which"),
    "PROXY protocol v2": (
        bytes.fromhex("0d0a0d0a000d0a515549540a 2111000c 0a000001 0a000002 0fa0 2384"),
        "the PROXY protocol v2, which",
    ),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", 'HTTP on a port of Kafka ("GET / HT")'),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_ends_its_own_connection_and_is_said_once(stage: Scene, kind: str) -> None:
    data, reason = GARBAGE[kind]
    with stage.unharmed() as said, connect(stage.gateway.address) as peer:
        peer.sendall(data)
        assert read_to_end(peer) == b""
        until(lambda: reason in said(), said())
        assert said().count(reason) == 1
        assert said().count("connection fault") == 1


def test_garbage_after_good_requests_lets_their_responses_through(stage: Scene) -> None:
    with stage.unharmed() as said, Fetcher(stage.gateway.address, TOPIC, PARTITIONS) as client:
        client.hello().fetches()
        client.send()
        client.socket.sendall(b"\xff" * 64)
        rest = read_to_end(client.socket)
        until(lambda: "a request of -1 bytes" in said(), said())
    assert len(rest) in {0, 4 + int.from_bytes(rest[:4])}  # whole, or not at all


HOSTILE = {
    "topic count 2^31-1": struct.pack(">iiiibiii", -1, 0, 1, 1 << 20, 0, 0, -1, 0x7FFFFFFF),
    "topic count -2": struct.pack(">iiiibiii", -1, 0, 1, 1 << 20, 0, 0, -1, -2),
    "name longer than the frame": struct.pack(">iiiibiiih", -1, 0, 1, 1 << 20, 0, 0, -1, 1, 0x7FFF) + b"abc",
    "partition count 2^31-1": struct.pack(">iiiibiii", -1, 0, 1, 1 << 20, 0, 0, -1, 1)
    + string(TOPIC)
    + struct.pack(">i", 0x7FFFFFFF),
    "nothing": b"",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_counts_in_a_fetch_meet_the_broker_as_they_would_without_the_gateway(
    stage: Scene, kind: str
) -> None:
    data = frame(request(FETCH, 11, HOSTILE[kind], "hostile", 7))
    with connect(stage.broker.address) as peer:
        peer.sendall(data)
        direct = read_to_end(peer)
    assert direct == b""  # the broker closes
    with stage.unharmed(), connect(stage.gateway.address) as peer:
        peer.sendall(data)
        assert read_to_end(peer) == direct


def test_hostile_flexible_counts_meet_the_broker_too(stage: Scene) -> None:
    body = struct.pack(">iiiibii", -1, 0, 1, 1 << 20, 0, 0, -1) + b"\xff\xff\xff\xff\xff\x0f" * 3
    data = frame(request(FETCH, 12, body, "hostile", 7))
    with stage.unharmed(), connect(stage.gateway.address) as peer:
        peer.sendall(data)
        assert read_to_end(peer) == b""


def test_a_client_may_be_cut_at_any_byte_of_its_requests(stage: Scene) -> None:
    with Fetcher(stage.gateway.address, TOPIC, PARTITIONS) as client:
        hello = frame(request(18, 0, b"", "cut", 1))
        data = hello + b"".join(client.bytes_of(client.request()) for _ in range(2))
    with stage.unharmed():
        for count in range(1, len(data), 3):
            with connect(stage.gateway.address) as peer:
                peer.sendall(data[:count])
                if count % 2:
                    reset(peer)
        until(lambda: _connections(stage, "cut") == 0, "connections stay")


def test_a_client_may_leave_at_any_byte_of_a_response_of_its_session(stage: Scene) -> None:
    with Fetcher(stage.gateway.address, TOPIC, PARTITIONS) as client:
        client.hello().fetches()
        client.send()
        size = len(client.connection.receive())
    with stage.unharmed() as said:
        for count in range(0, size, 24):
            client = Fetcher(stage.gateway.address, TOPIC, PARTITIONS, client_id="leaves").hello()
            client.fetches()
            client.send()
            client.socket.recv(count, socket.MSG_WAITALL)
            reset(client.socket)
        until(lambda: _connections(stage, "leaves") == 0, "connections stay")
        until(lambda: stage.gateway.state()["sessions"]["held"] <= 1, "slots stay taken")
        of_clients = [line for line in said().splitlines() if "client_id=leaves " in line]
        made, closed = (sum(f"session {what}" in line for line in of_clients) for what in ("made", "closed"))
        assert made == closed > 0


def _connections(stage: Scene, client_id: str) -> int:
    return sum(link["client_id"] == client_id for link in stage.gateway.state()["connections"])


def test_a_client_that_stops_reading_is_held_back_with_bounded_memory(stage: Scene) -> None:
    with stage.unharmed():
        clients = [Fetcher(stage.gateway.address, LARGE, 4, client_id="sleeper").hello() for _ in range(4)]
        before = peak = stage.rss()
        for client in clients:
            for _ in range(20):
                client.send()  # 20 x 54 MB are due
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            peak = max(peak, stage.rss())
            time.sleep(0.05)
        for client in clients:
            client.close()
    assert peak - before < 64 << 20


def test_who_stopped_reading_may_go_on(stage: Scene) -> None:
    with Fetcher(stage.broker.address, LARGE, 4) as direct:
        expected = contents([direct.fetch()])
    with stage.unharmed(), Fetcher(stage.gateway.address, LARGE, 4) as client:
        client.hello()
        for _ in range(3):
            client.send()
        time.sleep(2)
        responses = [client.receive() for _ in range(3)]
    assert contents(responses) == expected * 3


def test_half_requests_wait_without_harm(stage: Scene) -> None:
    """Many clients send the beginning of a request, and then nothing more. Other clients notice nothing."""
    with stage.unharmed():
        peers = [connect(stage.gateway.address) for _ in range(100)]
        for peer in peers:
            peer.sendall(frame(request(FETCH, 11, b"\0" * 500, "half", 1))[:300])
        time.sleep(1)
        for peer in peers:
            peer.close()


def test_half_requests_are_let_go_when_their_clients_leave(stage: Scene) -> None:
    """The memory of incomplete requests is released when their clients leave.

    Four rounds send 60 MB each. The allocator may keep the memory of one round, but not of four.
    """
    with stage.unharmed():
        for _ in range(4):
            peers = [connect(stage.gateway.address) for _ in range(10)]
            for peer in peers:
                peer.sendall(
                    struct.pack(">ihhi", 8_000_000, FETCH, 11, 1) + string("half") + bytes(6_000_000)
                )
            for peer in peers:
                peer.close()
            until(lambda: _connections(stage, "half") == 0, "connections stay")
            time.sleep(0.2)


def test_a_long_fetch_that_comes_byte_by_byte_costs_no_more_than_its_size(stage: Scene) -> None:
    with stage.unharmed():
        peer = connect(stage.gateway.address)
        before = stage.rss()
        peer.sendall(struct.pack(">ihhi", 8_000_000, FETCH, 11, 1) + string("trickle"))
        used = stage.process.cpu_times()
        for _ in range(5_000):
            peer.sendall(b"\0")
        peer.sendall(bytes(4_000_000))
        time.sleep(1)
        assert stage.rss() - before < 64 << 20
        spent = stage.process.cpu_times()
        peer.close()
    assert spent.user + spent.system - used.user - used.system < 5


def test_a_large_produce_streams(stage: Scene) -> None:
    """A frame of 60 MB that the gateway does not parse is forwarded as it arrives, and is not buffered."""
    with stage.unharmed(growth=32 << 20):
        before = peak = stage.rss()
        with RawConnection("127.0.0.1", int(stage.gateway.address.rsplit(":")[1])) as client:
            header = (
                struct.pack(">hhih", PRODUCE, 3, 1, 1) + b"p" + string(None) + struct.pack(">hi", 1, 1000)
            )
            client.socket.sendall(struct.pack(">i", len(header) + 60_000_000) + header)
            for _ in range(60):
                client.socket.sendall(b"\xff" * 1_000_000)
                peak = max(peak, stage.rss())
            assert read_to_end(client.socket) == b""  # it is no produce: the broker closes
    assert peak - before < 32 << 20


def test_requests_of_a_client_that_never_reads_are_not_taken_without_end(stage: Scene) -> None:
    """Trap 14: the gateway stops reading from a client that does not read its responses.

    Otherwise the responses of 37 MB of small requests would fill the memory.
    """
    with stage.unharmed():
        peer = connect(stage.gateway.address)
        peer.settimeout(2)
        hello = frame(request(18, 0, b"", "flood", 1))
        before = stage.rss()
        data = hello * 1_600_000  # 37 MB, and for each request of 23 bytes 400 and more are due
        with pytest.raises(TimeoutError):
            peer.sendall(data)
        assert stage.rss() - before < 64 << 20
        peer.close()


def test_sessions_stand_again_after_all_of_it(stage: Scene) -> None:
    with Fetcher(stage.broker.address, TOPIC, PARTITIONS) as direct:
        expected = contents([direct.fetch()])
    with Fetcher(stage.gateway.address, TOPIC, PARTITIONS, client_id="after") as client:
        responses = client.hello().fetches(FETCHES_TO_SESSION + 2)
        (link,) = [link for link in stage.gateway.state()["connections"] if link["client_id"] == "after"]
    assert contents(responses) == expected * len(responses)
    assert link["session_id"] > 0
    assert link["broker"]["fetches"]["incremental"] >= 2
