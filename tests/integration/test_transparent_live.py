"""Transparent mode with netfilter: clients do not know the gateway, and no bytes are rewritten.

As with a sidecar, client and gateway share a network namespace, and brokers are in another. The rules come
from tools/deploy/transparent.sh, the command lines from docs/users/linux.md. The tests make all namespaces.
"""

import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.clients.runner import KAFKA_PYTHON, Run, assert_same_records
from tests.integration.bystander import until
from tests.integration.fetching import Fetcher, contents
from tests.integration.namespaces import (
    BROKER_PORT,
    BUSY,
    FETCHES,
    HOSTS,
    LACKING,
    LAST_PORT,
    MODES,
    ONE_ANSWER,
    PARTITIONS,
    PORT,
    SLOW_HOST,
    SLOW_PORT,
    TOPIC,
    Place,
    address_of,
    counted,
    fetches,
    fetching,
    payloads,
    place,
    produce,
    quiet,
)
from tests.integration.sidecar import READ_ONLY, USER, Shipped, Sidecar, Written, as_user, confined
from tests.tools.test_deploy import GATEWAYS, environment_of, pod_of, rendered
from tools.certificates import Authority
from tools.kafka.admin import Admin
from tools.netns import Namespace, veth
from tools.netns.lossy import LossyLink
from tools.netns.rules import SCRIPT

__all__ = ["place"]  # a fixture
pytestmark = pytest.mark.skipif(bool(LACKING), reason=LACKING)

DEPLOY: Final = Path(__file__).parents[2] / "tools" / "deploy"
SSL_REQUEST: Final = bytes.fromhex("0000000804d2162f")
"""The first bytes of PostgreSQL clients: a length too small for any Kafka request."""
CAP_NET_RAW: Final = 1 << 13
"""The bit of this capability in /proc/PID/status."""
LINK_RECORDS: Final = int(os.environ.get("TRANSPARENT_LINK_RECORDS", "300"))
"""The number of records over the lossy link. `make soak` uses more."""


@pytest.mark.parametrize("family", HOSTS)
@pytest.mark.parametrize("mode", MODES)
def test_a_client_is_given_sessions_without_knowing_it_and_the_wire_shows_it(
    place: Place, mode: str, family: str
) -> None:
    with place.plain_tcp():
        for round_ in place.rounds():
            with place.sidecar(mode) as sidecar, place.rules(mode):
                with place.consumer(address_of(family)) as through:
                    read_to_the_end(place, sidecar, through, family)
                quiet(sidecar)
                client, round_.counted = counted(sidecar, "client"), counted(sidecar, "broker")
                inner = payloads(place.inner.read())
                round_.crossed = wire = payloads(place.wire.read())
                # What a client says last may come to a closed door, and so may what it is answered.
                round_.last = last = ONE_ANSWER * sidecar.state()["connections_accepted"]
                assert sidecar.state()["state"] == "ready", sidecar.state()["reasons"]
                assert sidecar.stop() == 0
    assert 0 <= inner[0] - client[0] <= last, (inner, client)
    assert 0 <= client[1] - inner[1] <= last, (inner, client)
    assert sum(wire) < 0.3 * sum(inner), (wire, inner)
    with place.consumer(address_of(family)) as direct:
        direct.wait_records(len(through.of("record")))
        direct.stop()
    assert_same_records(direct, through)
    assert through.errors() == direct.errors() == []


def read_to_the_end(place: Place, sidecar: Sidecar, through: Run, family: str) -> None:
    """Check that a client reads all present and later records, and that the gateway uses a session for it."""
    until(lambda: fetches(sidecar) >= FETCHES, "no fetches")
    produce(place, [b"later"])
    until(lambda: fetches(sidecar) >= 2 * FETCHES, "no more fetches")
    linked = [each for each in sidecar.state()["connections"] if each["session_id"]]
    assert [each["broker_address"] for each in linked] == [address_of(family)]
    with place.far.inside(), Admin(f"127.0.0.1:{BROKER_PORT}") as admin:
        ends = admin.offsets(TOPIC)
    through.wait_ends({(TOPIC, partition): offset for partition, offset in ends.items()})
    through.stop()


def test_a_client_with_sessions_of_its_own_passes(place: Place) -> None:
    with place.sidecar("redirect") as sidecar, place.rules("redirect"):
        with place.consumer(address_of("IPv4"), KAFKA_PYTHON) as through:
            until(lambda: fetches(sidecar) >= FETCHES, "no fetches")
            assert sidecar.metric("fetchgate_fetches_total", side="broker", kind="incremental") > 0
            through.wait_records(BUSY * 100)
            through.stop()
        quiet(sidecar)
        assert counted(sidecar, "client") == counted(sidecar, "broker")


@contextmanager
def echo(
    place: Namespace, host: str, wrap: ssl.SSLContext | None = None, greeting: bytes = b""
) -> Iterator[None]:
    """Serve one connection: send a greeting, then echo everything."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with place.inside():
        server = socket.create_server((host, LAST_PORT), family=family)

    def serve() -> None:
        accepted, _ = server.accept()
        with accepted, wrap.wrap_socket(accepted, server_side=True) if wrap else accepted as stream:
            stream.sendall(greeting)
            while data := stream.recv(65_536):
                stream.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with server:
        yield
        thread.join(30)
    assert not thread.is_alive()


def connect(place: Namespace, host: str, port: int = LAST_PORT) -> socket.socket:
    with place.inside():
        return socket.create_connection((host, port), timeout=30)


@pytest.mark.parametrize("family", HOSTS)
@pytest.mark.parametrize("mode", MODES)
def test_what_is_not_kafka_passes_and_is_counted(
    place: Place, mode: str, family: str, tmp_path: Path
) -> None:
    host = HOSTS[family]
    authority = Authority(tmp_path)
    pair = authority.sign("broker", host)
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(pair.cert, pair.key)
    trusting = ssl.create_default_context(cafile=str(authority.file))
    with place.sidecar(mode) as sidecar, place.rules(mode):
        with echo(place.far, host), connect(place.near, host) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert client.recv(100) == b"GET / HTTP/1.1\r\n\r\n"
        with (
            echo(place.far, host, served),
            trusting.wrap_socket(connect(place.near, host), server_hostname=host) as client,
        ):
            client.sendall(b"secret")
            assert client.recv(100) == b"secret"
        with echo(place.far, host, greeting=b"220 hi\r\n"), connect(place.near, host) as client:
            assert client.recv(100) == b"220 hi\r\n"
        with echo(place.far, host), connect(place.near, host) as client:
            client.sendall(SSL_REQUEST)
            assert client.recv(100) == SSL_REQUEST
            client.sendall(b"last")
            client.shutdown(socket.SHUT_WR)
            assert client.recv(100, socket.MSG_WAITALL) == b"last"
        quiet(sidecar)
        assert sidecar.metric("fetchgate_passthrough_total", reason="TLS") == 1
        assert sidecar.metric("fetchgate_passthrough_total", reason="not Kafka") == 3
        assert counted(sidecar, "client") == counted(sidecar, "broker")
        assert [
            f"[{host}]" in each["address"] or host in each["address"] for each in sidecar.state()["brokers"]
        ] == [True]


@pytest.mark.parametrize("family", HOSTS)
@pytest.mark.parametrize("mode", MODES)
def test_a_connection_that_comes_back_is_refused_and_said_once(place: Place, mode: str, family: str) -> None:
    with place.sidecar(mode) as sidecar:
        with place.rules(mode, user=USER + 1):
            for _ in range(3):
                with connect(place.near, HOSTS[family], PORT) as client:
                    assert client.recv(1) == b""
            quiet(sidecar)
            said = [line for line in sidecar.log().splitlines() if "connection back to it" in line]
            assert len(said) == 1, sidecar.log()
            assert "exclude the gateway's user" in said[0]
            assert sidecar.state()["state"] == "degraded"
            assert any("connection back to it" in reason for reason in sidecar.state()["reasons"])
            assert sidecar.log().count("unreachable") == 0
            assert sidecar.state()["connections_accepted"] == 6
        with place.rules(mode), fetching(place.near, family) as client:
            client.hello().fetches()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_who_comes_to_the_listener_itself_is_refused_and_told_why(place: Place, mode: str, host: str) -> None:
    with place.sidecar(mode) as sidecar:
        for _ in range(3):
            with connect(place.near, host, 19092) as client:
                assert client.recv(1) == b""
        said = [line for line in sidecar.log().splitlines() if "warning" in line]
        assert len(said) == 1, sidecar.log()
        # tproxy leaves the destination as it is: there a direct client is known by where it goes.
        directly = "a client connected to --listen directly" if mode == "tproxy" else "netfilter"
        assert directly in said[0]
        with place.rules(mode), connect(place.near, host, 19092) as client:
            assert client.recv(1) == b""


@pytest.mark.parametrize("family", HOSTS)
@pytest.mark.parametrize("mode", MODES)
def test_clients_are_refused_at_once_while_no_gateway_listens(place: Place, mode: str, family: str) -> None:
    with place.rules(mode), pytest.raises(ConnectionRefusedError):
        connect(place.near, HOSTS[family], PORT).close()


@pytest.mark.parametrize("family", HOSTS)
@pytest.mark.parametrize("mode", MODES)
def test_watched_rules_are_there_while_a_gateway_listens(place: Place, mode: str, family: str) -> None:
    """After a gateway is killed, clients connect to the broker directly.

    When the next gateway has started, its rules redirect the clients again.
    """
    ports = ("--ports", f"{PORT}-{LAST_PORT}", "--to", "19092", "--user", str(USER))
    with place.near.inside():
        watch = subprocess.Popen([SCRIPT, "watch", "--mode", mode, *ports], stdout=subprocess.PIPE, text=True)
    assert watch.stdout is not None
    try:
        for _ in range(2):
            with place.sidecar(mode) as sidecar:
                assert watch.stdout.readline().startswith("connections to ports")
                with fetching(place.near, family) as client:
                    expected = contents(client.hello().fetches())
                    assert sidecar.state()["connections_accepted"] == 1
                sidecar.kill()
                assert watch.stdout.readline().startswith("the rules were removed")
                with fetching(place.near, family) as client:
                    assert contents(client.hello().fetches()) == expected
        with place.sidecar(mode):
            assert watch.stdout.readline().startswith("connections to ports")
            watch.terminate()
            assert watch.wait(30) == 0
            assert place.near.run(SCRIPT, "show", check=False).returncode == 1
    finally:
        watch.kill()
        watch.wait()
        watch.stdout.close()
        place.near.run(SCRIPT, "down")


@pytest.mark.parametrize("mode", MODES)
def test_a_process_of_the_gateway_s_user_is_told_at_the_start_and_by_a_check(place: Place, mode: str) -> None:
    with ExitStack() as stack:
        for where in (place.near, place.far):
            with where.inside():
                client = subprocess.Popen([*as_user(USER), "sleep", "1000"])
            stack.callback(client.wait)
            stack.callback(client.kill)
            comm = Path(f"/proc/{client.pid}/comm")
            until(lambda comm=comm: comm.read_text() == "sleep\n", "no client")  # type: ignore[misc]  # bound here
            if where is place.near:
                named = f"also runs sleep ({client.pid}); the rules do not redirect their connections"
        with place.sidecar(mode) as sidecar:
            assert sidecar.log().count(named) == 1, sidecar.log()
            command = [*as_user(USER, ("net_raw",)), sys.executable, "-m", "proxy", "proxy", "--check"]
            options = ["--transparent", mode, "--listen", "127.0.0.1:19093", "--admin", "off"]
            assert named in place.near.run(*command, *options).stdout
    with place.sidecar(mode) as sidecar:
        assert "also runs" not in sidecar.log()


@pytest.mark.parametrize("mode", MODES)
def test_rules_leave_standing_connections_alone(place: Place, mode: str) -> None:
    with place.sidecar(mode) as sidecar, ExitStack() as stack:
        before = stack.enter_context(fetching(place.near, "IPv4")).hello()
        expected = contents(before.fetches())
        with place.rules(mode):
            assert contents(before.fetches()) == expected
            assert sidecar.state()["connections_accepted"] == 0
            during = stack.enter_context(fetching(place.near, "IPv4")).hello()
            assert contents(during.fetches()) == expected
            assert sidecar.state()["connections_accepted"] == 1
        assert contents(before.fetches()) == expected
        after = stack.enter_context(fetching(place.near, "IPv4")).hello()
        assert contents(after.fetches()) == expected
        assert sidecar.state()["connections_accepted"] == 1
        with pytest.raises(ConnectionError):  # as when a broker leaves; the client's next one goes direct
            during.fetches()


@pytest.mark.parametrize("mode", MODES)
def test_rules_laid_again_leave_connections_through_the_gateway_alone(place: Place, mode: str) -> None:
    up = [
        SCRIPT,
        "up",
        "--mode",
        mode,
        "--ports",
        f"{PORT}-{LAST_PORT}",
        "--to",
        "19092",
        "--user",
        str(USER),
    ]
    said = b"GET / HTTP/1.1\r\n\r\n"
    responses: list[bytes] = []
    ends = threading.Event()

    def talk(client: socket.socket) -> None:
        while not ends.is_set():
            client.sendall(said)
            responses.append(client.recv(len(said), socket.MSG_WAITALL))

    def wait() -> None:
        seen = len(responses)
        until(lambda: talking.done() or len(responses) > seen + 10, "no more responses")

    host = HOSTS["IPv4"]
    with place.sidecar(mode) as sidecar, place.rules(mode), ThreadPoolExecutor() as pool:
        with echo(place.far, host), connect(place.near, host) as client:
            talking = pool.submit(talk, client)
            wait()
            for _ in range(5):
                place.near.run(*up)
                wait()
            ends.set()
            talking.result()
        assert set(responses) == {said}
        assert sidecar.state()["connections_accepted"] == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_router_takes_what_is_forwarded_through_it(place: Place, mode: str) -> None:
    inner = [("10.81.0.2/24", "10.81.0.1/24"), ("fd81::2/64", "fd81::1/64")]
    with Namespace() as client, ExitStack() as stack:
        veth(client, place.near, "inner", inner)
        # With its namespace it would go some time later, and the next test makes another one.
        stack.callback(place.near.run, "ip", "link", "delete", "inner")
        client.run("ip", "route", "add", "default", "via", "10.81.0.1")
        client.run("ip", "-6", "route", "add", "default", "via", "fd81::1")
        place.near.run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
        place.far.run("ip", "route", "replace", "10.81.0.0/24", "via", "10.79.0.1")
        place.far.run("ip", "-6", "route", "replace", "fd81::/64", "via", "fd79::1")
        with place.sidecar(mode, "--listen", "0.0.0.0:19092") as sidecar, place.rules(mode):
            for family in HOSTS:
                with fetching(client, family) as fetcher:
                    fetcher.hello().fetches()
            assert sidecar.metric("fetchgate_fetches_total", side="broker", kind="full") == 2
            assert [each["address"] for each in sidecar.state()["brokers"]] == list(map(address_of, HOSTS))


@pytest.mark.parametrize("mode", MODES)
def test_a_slow_link_that_loses_packets(place: Place, mode: str) -> None:
    addresses = ("10.80.0.1/24", f"{SLOW_HOST}/24")
    slow = LossyLink(place.near, place.far, "slow", addresses, delay=0.02, loss=0.01, seed=1)
    with slow, place.sidecar(mode) as sidecar, place.rules(mode):
        with place.consumer(f"{SLOW_HOST}:{SLOW_PORT}") as through:
            before = len(through.of("record"))
            for number in range(LINK_RECORDS // 10):
                produce(place, [b"%d-%d" % (number, each) * 100 for each in range(10)])
            with place.far.inside(), Admin(f"127.0.0.1:{BROKER_PORT}") as admin:
                ends = admin.offsets(TOPIC)
            through.wait_ends({(TOPIC, partition): offset for partition, offset in ends.items()})
            assert before <= len(through.of("record"))
            until(lambda: fetches(sidecar) >= FETCHES and slow.lost, "nothing is lost", patience=120)
            through.stop()
        assert sidecar.metric("fetchgate_fetches_total", side="broker", kind="incremental") > 0
        assert sidecar.metric("fetchgate_fetch_session_errors_total", code="71") == 0
    with place.consumer(address_of("IPv4")) as direct:
        direct.wait_records(len(through.of("record")))
        direct.stop()
    assert_same_records(direct, through)
    assert through.errors() == []


def status_of(pid: int) -> dict[str, str]:
    """Return the kernel's status of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)


@pytest.mark.parametrize("line", GATEWAYS)
def test_a_gateway_of_the_page_s_has_no_right_but_its_mode_s(place: Place, line: str) -> None:
    """For the review (docs/users/security.md): which capabilities it has."""
    mode = line.rpartition(" ")[2]
    assert mode in MODES
    with Written(place.near, line) as sidecar, place.rules(mode), fetching(place.near, "IPv4") as client:
        client.hello().fetches()
        (link,) = sidecar.state()["connections"]
        assert link["session_id"] > 0
        facts = status_of(sidecar.pid)
        assert facts["Uid"].split() == facts["Gid"].split() == [str(USER)] * 4
        assert facts["Groups"].split() == []
        assert int(facts["CapPrm"], 16) == (CAP_NET_RAW if mode == "tproxy" else 0)


@pytest.mark.parametrize("mode", ["explicit", *MODES])
def test_the_sidecar_of_the_manifests_runs_with_what_they_give_it(place: Place, mode: str) -> None:
    container, *rules = pod_of(rendered(mode))["initContainers"]
    command = [*container.get("command", ["fetchgate"]), *container["args"]]
    environment = environment_of(container)
    if mode == "explicit":
        environment["FETCHGATE_BOOTSTRAP"] = address_of("IPv4")
    context = container["securityContext"]
    rights = [right.lower() for right in context["capabilities"].get("add", ())]
    with Shipped(place.near, command, environment, user=context["runAsUser"], rights=rights) as sidecar:
        for init in rules:
            added = [right.lower() for right in init["securityContext"]["capabilities"]["add"]]
            place.near.run(*READ_ONLY, *confined(0, added), SCRIPT, *init["args"])
        try:
            to = "127.0.0.1:19094" if mode == "explicit" else address_of("IPv4")
            with place.near.inside():
                client = Fetcher(to, TOPIC, PARTITIONS)
            with client:
                client.hello().fetches()
                (link,) = sidecar.state()["connections"]
                assert link["session_id"] > 0
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    with place.near.inside():
                        assert sidecar._status(container[probe]["httpGet"]["path"]) == 200
            _, *arguments = container["lifecycle"]["preStop"]["exec"]["command"]
            place.near.run(sys.executable, str(DEPLOY / "wait-idle.py"), *arguments)
            assert sidecar.state()["connections_open"] == 0
            assert status_of(sidecar.pid)["Uid"].split() == [str(USER)] * 4
            assert sidecar.stop() == 0
            assert "cut_off=0" in sidecar.log() or '"cut_off": 0' in sidecar.log()
        finally:
            place.near.run(SCRIPT, "down")
