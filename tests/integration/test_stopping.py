"""The gateway stops, or its sessions are switched off, with real brokers, where sessions can be counted."""

import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from proxy.net.link import CLOSE_SECONDS
from proxy.server.server import TICK_SECONDS
from tests.integration.bystander import until
from tests.integration.fetching import FETCHES_TO_SESSION, Fetcher, contents
from tests.integration.producing import Producer
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin
from tools.kafka.ports import free_ports

TOPIC = "stopping"
PARTITIONS = 12
SESSION_ID_NOT_FOUND = 70
INVALID_SESSION_EPOCH = 71
Start = Callable[..., GatewayProcess]


@pytest.fixture(scope="module", autouse=True)
def topic(broker: Broker) -> None:
    with Admin(broker.address) as admin, closing(Producer(broker.host, broker.port)) as producer:
        admin.create_topic(TOPIC, partitions=PARTITIONS)
        producer.produce(TOPIC, 5, [b"five"])


def through(gateway: GatewayProcess, client_id: str = "client") -> Fetcher:
    return Fetcher(gateway.address, TOPIC, PARTITIONS, client_id=client_id).hello()


def links(gateway: GatewayProcess, client_id: str = "client") -> list[dict[str, Any]]:
    return [link for link in gateway.state()["connections"] if link["client_id"] == client_id]


def session_of(gateway: GatewayProcess, client_id: str = "client") -> int:
    (link,) = links(gateway, client_id)
    return int(link["session_id"])


def code_of(broker: Broker, session_id: int) -> int:
    """Fetch in a session with a wrong epoch. The error is 71 if the broker has the session, 70 if not."""
    with Fetcher(broker.address, TOPIC, 1) as other:
        return other.fetch(session_id=session_id, session_epoch=1_000_000).error_code


def test_sigterm_finishes_a_parked_fetch_and_closes_sessions_at_the_broker(
    broker: Broker, gateway: GatewayProcess
) -> None:
    with Fetcher(broker.address, TOPIC, PARTITIONS) as direct:
        expected = contents([direct.fetch()])
    with through(gateway) as client, through(gateway, "idle") as idle:
        assert contents(client.fetches()) == expected * FETCHES_TO_SESSION
        idle.fetches()
        held = [session_of(gateway), session_of(gateway, "idle")]
        assert [code_of(broker, number) for number in held] == [INVALID_SESSION_EPOCH] * 2
        client.send(max_wait_ms=2_000, min_bytes=1 << 20)
        until(lambda: links(gateway)[0]["client"]["fetches"]["sessionless"] == 5, "the fetch does not come")
        assert gateway.stop() == 0
        assert contents([client.receive()]) == expected
        assert client.socket.recv(1) == b""
        assert idle.socket.recv(1) == b""
    assert [code_of(broker, number) for number in held] == [SESSION_ID_NOT_FOUND] * 2
    assert "cut_off=0" in gateway.log()


@pytest.mark.slow
def test_a_client_that_shuts_down_writing_gets_what_is_parked_as_from_the_broker(
    broker: Broker, gateway: GatewayProcess
) -> None:
    """A client that has closed its writing half gets the response to its fetch, as directly from the broker.

    The fetch waits for longer than the gateway's time limit for closing a session.
    """
    seconds = CLOSE_SECONDS + 3
    with Fetcher(broker.address, TOPIC, PARTITIONS).hello() as direct, through(gateway) as client:
        assert contents(client.fetches()) == contents(direct.fetches())
        session = session_of(gateway)
        began = time.monotonic()
        for each in (direct, client):
            each.send(max_wait_ms=int(seconds * 1000), min_bytes=1 << 20)
            each.send()
            each.socket.shutdown(socket.SHUT_WR)
        expected = contents([direct.receive(), direct.receive()])
        assert direct.socket.recv(1) == b""
        assert contents([client.receive(), client.receive()]) == expected
        assert client.socket.recv(1) == b""
        assert seconds - 1 < time.monotonic() - began < seconds + 5
    assert code_of(broker, session) == SESSION_ID_NOT_FOUND


@pytest.mark.slow
def test_a_client_that_shuts_down_writing_and_resets_is_gone(broker: Broker, gateway: GatewayProcess) -> None:
    client = through(gateway)
    client.fetches()
    session = session_of(gateway)
    client.send(max_wait_ms=50_000, min_bytes=1 << 20)
    client.socket.shutdown(socket.SHUT_WR)
    time.sleep(1)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    began = time.monotonic()
    until(lambda: not gateway.state()["connections_open"], "the connection stays")
    assert time.monotonic() - began < CLOSE_SECONDS + TICK_SECONDS + 15  # not as long as the fetch may wait
    assert code_of(broker, session) in {INVALID_SESSION_EPOCH, SESSION_ID_NOT_FOUND}  # it closes in its turn


def test_sigterm_does_not_wait_longer_than_it_was_told(broker: Broker, start_gateway: Start) -> None:
    gateway = start_gateway(broker.address, "--drain-timeout", "1")
    with through(gateway) as client:
        client.fetches()
        client.send(max_wait_ms=60_000, min_bytes=1 << 20)
        began = time.monotonic()
        assert gateway.stop() == 0
    assert time.monotonic() - began < 30


def test_a_second_sigterm_leaves_at_once(broker: Broker, gateway: GatewayProcess) -> None:
    with through(gateway) as client:
        client.fetches()
        client.send(max_wait_ms=60_000, min_bytes=1 << 20)
        gateway._started().terminate()
        until(lambda: "draining" in gateway.log(), "it does not drain")
        assert gateway.stop() == 0


def test_sighup_amid_a_drain_does_not_say_that_it_takes_another_time(
    broker: Broker, start_gateway: Start, tmp_path: Path
) -> None:
    file = tmp_path / "fetchgate.toml"
    file.write_text("drain_timeout = 600\n")
    gateway = start_gateway(broker.address, "--config", str(file))
    with through(gateway) as client:
        client.fetches()
        client.send(max_wait_ms=60_000, min_bytes=1 << 20)
        gateway._started().terminate()
        until(lambda: "draining" in gateway.log(), "it does not drain")
        file.write_text("drain_timeout = 1\n")
        gateway.reload()
        until(lambda: "reloaded" in gateway.log(), "it does not reload")
        assert "applied=[] needs_restart=['drain_timeout']" in gateway.log()
        assert gateway.stop() == 0


def test_sessions_off_is_a_plain_wire(broker: Broker, start_gateway: Start) -> None:
    gateway = start_gateway(broker.address, "--sessions", "off")
    with Fetcher(broker.address, TOPIC, PARTITIONS) as direct, through(gateway) as client:
        assert client.fetches(8) == direct.fetches(8)
        (link,) = links(gateway)
    client_side, broker_side = link["client"], link["broker"]
    for name in ("fetch_request_bytes", "fetch_response_bytes", "fetches"):
        assert client_side[name] == broker_side[name]
    assert gateway.metric("fetchgate_fetches_total", side="broker", kind="sessionless") == 8
    assert gateway.metric("fetchgate_fetch_sessions", side="broker") == 0


def test_sessions_can_be_off_for_one_client_id(broker: Broker, start_gateway: Start) -> None:
    gateway = start_gateway(broker.address, "--sessions-off-for", "plain,other")
    with through(gateway, "plain") as plain, through(gateway, "turned") as turned:
        assert contents(plain.fetches()) == contents(turned.fetches())
        assert session_of(gateway, "plain") == 0
        assert session_of(gateway, "turned") > 0


def test_sighup_switches_sessions_of_open_connections(
    broker: Broker, start_gateway: Start, tmp_path: Path
) -> None:
    file = tmp_path / "fetchgate.toml"
    file.write_text('sessions = "on"\n')
    gateway = start_gateway(broker.address, "--config", str(file))

    def reload(text: str) -> None:
        file.write_text(text)
        count = gateway.log().count("reloaded")
        gateway.reload()
        until(lambda: gateway.log().count("reloaded") > count, "it does not reload")

    with through(gateway) as client, through(gateway, "other") as other:
        expected = contents([client.fetch()])
        client.fetches()
        other.fetches()
        first = session_of(gateway)
        assert first > 0

        reload('sessions_off_for = ["client"]\n')
        assert contents(client.fetches() + other.fetches()) == expected * 2 * FETCHES_TO_SESSION
        assert session_of(gateway) == 0
        assert session_of(gateway, "other") > 0
        assert code_of(broker, first) == SESSION_ID_NOT_FOUND

        reload('sessions = "off"\n')
        assert contents(client.fetches() + other.fetches()) == expected * 2 * FETCHES_TO_SESSION
        assert session_of(gateway) == session_of(gateway, "other") == 0

        reload('sessions = "on"\n')
        assert contents(client.fetches(6) + other.fetches(6)) == expected * 12
        assert session_of(gateway) > 0
        assert session_of(gateway, "other") > 0


def test_a_file_that_broke_is_said_and_changes_nothing(
    broker: Broker, start_gateway: Start, tmp_path: Path
) -> None:
    file = tmp_path / "fetchgate.toml"
    file.write_text('sessions = "off"\n')
    gateway = start_gateway(broker.address, "--config", str(file))
    file.write_text("sessions = \n")
    gateway.reload()
    until(lambda: "not reloaded" in gateway.log(), "nothing was said")
    assert gateway.state()["sessions"]["on"] is False


def test_check_says_yes_to_a_live_broker_and_no_to_a_dead_one(broker: Broker) -> None:
    good = check(broker.address)
    assert (good.returncode, good.stderr) == (0, "")
    assert f"The bootstrap {broker.address} responded and named 1 broker.\n" in good.stdout
    bad = check(f"127.0.0.1:{free_ports()}")
    assert bad.returncode == 1
    assert len(bad.stderr.splitlines()) == 1


def check(bootstrap: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proxy", "proxy", "--bootstrap", bootstrap, "--check"]
    command += ["--listen", f"127.0.0.1:{free_ports(3)}", "--admin", "off"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_bootstrap_that_comes_later_is_found(start_gateway: Start) -> None:
    broker = Broker()
    gateway = start_gateway(broker.address, ready=False)
    assert gateway.state()["state"] == "starting"
    with broker:
        until(lambda: gateway.state()["state"] == "ready", "it does not become ready")
        assert gateway.log().count("bootstrap unreachable") == 1
