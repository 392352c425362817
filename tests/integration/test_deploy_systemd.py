"""The systemd units of docs/users/linux.md, in every mode. The sockets stay open when the gateway ends."""

import fcntl
import json
import os
import re
import shutil
import socket
import ssl
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from proxy.addresses import Address
from tests.integration.booted import Machine, absent
from tests.integration.bystander import until
from tests.integration.fetching import Fetcher, contents
from tests.integration.namespaces import (
    HOSTS,
    LACKING,
    MODES,
    PARTITIONS,
    TOPIC,
    Place,
    address_of,
    fetching,
    place,
)
from tests.integration.sidecar import USER, Sidecar, as_user
from tests.tools.test_deploy import DOCS, LENT, SETTINGS, SYSTEMD, UNITS, environment_file, unit
from tools.certificates import Authority
from tools.kafka.raw import API_VERSIONS, RawConnection
from tools.netns import Namespace

__all__ = ["place"]
pytestmark = pytest.mark.skipif(bool(LACKING), reason=LACKING)

TRANSPARENT: Final = {
    socket.AF_INET: (socket.SOL_IP, 19),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 75),
}
"""IP_TRANSPARENT and IPV6_TRANSPARENT, as set by `Transparent=yes` of a socket unit."""

HAND_OVER: Final = """
import os, sys
numbers = sys.argv[1].split(",")
for place, number in enumerate(map(int, numbers), 3):
    os.dup2(number, place)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(numbers))}
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""A Python script that starts a program as systemd does with socket activation."""


class Activated(Sidecar):
    """The unprivileged gateway with listening sockets that another process keeps open."""

    def __init__(self, place: Namespace, listeners: Sequence[socket.socket], *options: str) -> None:
        super().__init__(place, *options)
        # Above the places that they are put into, so that none is put over another.
        self._files = [fcntl.fcntl(sock, fcntl.F_DUPFD_CLOEXEC, 100) for sock in listeners]
        numbers = ",".join(map(str, self._files))
        self._command = [sys.executable, "-c", HAND_OVER, numbers, *self._command]

    def close(self) -> None:
        super().close()
        for number in self._files:
            os.close(number)


@contextmanager
def listening(
    place: Namespace, streams: Sequence[str], *, transparent: bool
) -> Iterator[list[socket.socket]]:
    """Listen on the addresses of these `ListenStream=` lines, as systemd does for a socket unit."""
    with ExitStack() as stack, place.inside():
        found = []
        for stream in streams:
            at = Address.parse(stream)
            family = socket.AF_INET6 if ":" in at.host else socket.AF_INET
            sock = stack.enter_context(socket.create_server((at.host, at.port), family=family))
            if transparent:
                sock.setsockopt(*TRANSPARENT[family], 1)
            found.append(sock)
        yield found


@pytest.mark.parametrize("family", HOSTS)
@pytest.mark.parametrize("mode", MODES)
def test_transparent_clients_wait_while_a_gateway_of_systemd_s_sockets_is_restarted(
    place: Place, mode: str, family: str
) -> None:
    drop_in = unit("transparent.conf")
    reset, *streams = drop_in["ListenStream"]
    assert (reset, drop_in["Transparent"]) == ("", ["yes"])
    with listening(place.near, streams, transparent=True) as listeners, place.rules(mode):
        gate = Activated(place.near, listeners, "--transparent", mode)
        with gate:
            with fetching(place.near, family) as before:
                expected = contents(before.hello().fetches())
                (link,) = gate.state()["connections"]
                assert link["session_id"] > 0
                assert link["broker_address"] == address_of(family)
            assert gate.stop() == 0
            with fetching(place.near, family) as waiting:
                gate.start()
                assert contents(waiting.hello().fetches()) == expected
                assert gate.state()["connections_accepted"] == 1


def test_a_socket_of_systemd_s_that_netfilter_can_t_lead_to_is_told_at_once(place: Place) -> None:
    with (
        listening(place.near, ["127.0.0.1:19092"], transparent=False) as listeners,
        pytest.raises(RuntimeError, match="exit code 2") as failed,
    ):
        Activated(place.near, listeners, "--transparent", "tproxy").__enter__()
    (line,) = str(failed.value).splitlines()[1:]
    assert "give systemd's socket Transparent=yes" in line


ON, OFF = 'sessions = "on"', 'sessions = "off"'
"""The lines of `fetchgate.toml` that a reload changes."""


class Started(Sidecar):
    """The gateway, started by `fetchgate.socket` and `fetchgate.service` with systemd's socket activation."""

    def __init__(self, place: Namespace, bootstrap: str) -> None:
        super().__init__(place)
        os.chown(self.folder, USER, USER)
        (_, *arguments) = unit("fetchgate.service")["ExecStart"][0].split()
        self.switches = Path(shutil.copy(SETTINGS, self.folder))
        environment = environment_file()
        kept = environment["FETCHGATE_STATE"].replace("/var/lib/fetchgate", str(self.folder))
        environment |= {
            "FETCHGATE_BOOTSTRAP": bootstrap,
            "FETCHGATE_CONFIG": str(self.switches),
            "FETCHGATE_STATE": kept,
        }
        settings = [
            *(f"{name}={value}" for name, value in environment.items()),
            *(name for name in ("PATH", "PYTHONPATH") if name in os.environ),
        ]
        self._command = [
            "systemd-socket-activate",
            *(f"--listen={stream}" for stream in unit("fetchgate.socket")["ListenStream"]),
            *(f"--setenv={setting}" for setting in settings),
            *as_user(USER),
            *(sys.executable, "-m", "proxy", *arguments),
        ]


@pytest.mark.skipif(shutil.which("systemd-socket-activate") is None, reason="no systemd-socket-activate here")
def test_the_sockets_and_the_environment_of_the_units_make_a_gateway(place: Place) -> None:
    """The program that systemd starts gets sockets for each address of the units.

    If the gateway bound an address itself, it would fail, because the address is in use.
    """
    with Started(place.near, address_of("IPv4")) as gate:
        with place.near.inside(), Fetcher("127.0.0.1:19094", TOPIC, PARTITIONS) as client:
            client.hello().fetches()
            (link,) = gate.state()["connections"]
            assert link["session_id"] > 0
            assert gate.state()["state"] == "ready", gate.state()["reasons"]
            gate.switches.write_text(gate.switches.read_text().replace(ON, OFF))
            gate.reload()
            until(lambda: "applied=['sessions']" in gate.log(), "SIGHUP is not heard")
            assert not gate.state()["sessions"]["on"]
            client.fetch()
        state = gate.folder / "brokers.json"
        until(lambda: state.exists() and json.loads(state.read_text())["brokers"], "no state was written")
        assert gate.stop() == 0
        assert "warning" not in gate.log()


class Caller(threading.Thread):
    """A client that sends requests repeatedly, each time on a new connection."""

    def __init__(self, place: Namespace, port: int) -> None:
        super().__init__(daemon=True)
        self.answered = 0
        self.refused = 0
        self._place = place
        self._port = port
        self._ends = threading.Event()
        self.start()

    def run(self) -> None:
        with self._place.inside():
            while not self._ends.wait(0.01):
                try:
                    with RawConnection("127.0.0.1", self._port) as connection:
                        connection.call(API_VERSIONS, 0, b"")
                    self.answered += 1
                except ConnectionRefusedError:
                    self.refused += 1
                except (EOFError, ConnectionError):
                    pass  # it was served by the one that left

    def wait(self) -> None:
        """Wait for twenty more responses."""
        before = self.answered
        until(lambda: self.answered >= before + 20, "no more responses")

    def end(self) -> None:
        """Stop the caller, and wait until it has ended."""
        self._ends.set()
        self.join()


def has_session(client: Fetcher, admin: int = 9464) -> bool:
    """Return whether the gateway's connections have sessions, after the client has fetched."""
    with client:
        client.hello().fetches()
        with urllib.request.urlopen(f"http://127.0.0.1:{admin}/state", timeout=30) as response:
            links = json.load(response)["connections"]
            return bool(links) and all(link["session_id"] for link in links)


INSTALL, START, SEVERAL, TRANSPARENTLY, LEAVE = SYSTEMD
UNPACK: Final = 2
"""How many commands of the documentation run before the machine boots, because they need a package index."""
ENVIRONMENT: Final = "/etc/fetchgate/fetchgate.env"
SWITCHES: Final = environment_file()["FETCHGATE_CONFIG"]
JOURNAL: Final = "journalctl --unit fetchgate.service --output cat"


@pytest.fixture(scope="module")
def machine(place: Place) -> Iterator[Machine]:
    """A machine on which the commands of the documentation were run, with the broker's address set."""
    with Machine(place.near, INSTALL[:UNPACK]) as machine:
        for line in INSTALL[UNPACK:]:
            machine.run(line)
        machine.run(f"sed -i s/=kafka:9092/={address_of('IPv4')}/ {ENVIRONMENT}")
        yield machine


@pytest.mark.soak
@pytest.mark.skipif(bool(absent()), reason=absent())
def test_the_page_starts_a_service_whose_restarts_and_crashes_refuse_nobody(
    place: Place, machine: Machine
) -> None:
    for line in START:
        machine.run(line)
    with place.near.inside():
        until(lambda: has_session(Fetcher("127.0.0.1:19094", TOPIC, PARTITIONS)), "no sessions")
    caller = Caller(place.near, 19092)
    crash = "kill -KILL $(systemctl show -P MainPID fetchgate.service)"
    for line in (START[-1], START[-1], crash):
        machine.run(line)
        caller.wait()
    caller.end()
    assert caller.refused == 0
    assert "reloaded" in machine.run(JOURNAL).stdout
    assert machine.run("cat /var/lib/fetchgate/brokers.json").stdout


@pytest.mark.soak
@pytest.mark.skipif(bool(absent()), reason=absent())
def test_a_reload_applies_what_was_written_into_the_file(place: Place, machine: Machine) -> None:
    def switch(before: str, after: str) -> None:
        machine.run(f"sed -i 's/^{before}/{after}/' {SWITCHES}")
        machine.run(START[-2])

    def has_sessions() -> bool:
        with place.near.inside():
            return has_session(Fetcher("127.0.0.1:19094", TOPIC, PARTITIONS))

    first = machine.run("systemctl show -P MainPID fetchgate.service").stdout
    switch(ON, OFF)
    until(lambda: not has_sessions(), "the reload did not turn sessions off")
    switch(OFF, ON)
    until(has_sessions, "the reload did not turn sessions on")
    assert machine.run("systemctl show -P MainPID fetchgate.service").stdout == first


@pytest.mark.soak
@pytest.mark.skipif(bool(absent()), reason=absent())
def test_gateways_of_the_template_share_the_ports(place: Place, machine: Machine) -> None:
    for line in SEVERAL:
        machine.run(line)
    with place.near.inside():
        for admin in (9461, 9462):  # the kernel chooses the gateway of each connection
            until(
                lambda admin=admin: has_session(Fetcher("127.0.0.1:19094", TOPIC, PARTITIONS), admin),  # type: ignore[misc]  # bound here
                f"no sessions of the gateway with its admin endpoint at {admin}",
            )
    for number in (1, 2):
        assert machine.run(f"cat /var/lib/fetchgate/brokers-{number}.json").stdout
    machine.run("systemctl disable --now fetchgate@1.service fetchgate@2.service")
    machine.run(START[0])


@pytest.mark.soak
@pytest.mark.skipif(bool(absent()), reason=absent())
def test_a_key_that_only_root_may_read_is_lent_to_the_service(
    place: Place, machine: Machine, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("gateway", "127.0.0.1")
    for file, text in (("tls.pem", pair.chain), ("tls.key", pair.private)):
        machine.run(f"umask 077 && cat > /etc/fetchgate/{file} <<'END'\n{text}\nEND")
    service = LENT.sub("", (UNITS / "fetchgate.service").read_text())
    machine.run(f"cat > /etc/systemd/system/fetchgate.service <<'END'\n{service}\nEND")
    machine.run(f"systemctl daemon-reload && {START[-1]}")
    trusting = ssl.create_default_context(cafile=str(authority.file))
    with (
        place.near.inside(),
        socket.create_connection(("127.0.0.1", 19092), timeout=30) as plain,
        trusting.wrap_socket(plain, server_hostname="127.0.0.1") as client,
    ):
        assert client.version() == "TLSv1.3"
    machine.run(f"{INSTALL[-1]} && systemctl daemon-reload && {START[-1]}")


@pytest.mark.soak
@pytest.mark.skipif(bool(absent()), reason=absent())
def test_a_mistake_in_the_options_refuses_clients_until_it_is_mended(place: Place, machine: Machine) -> None:
    machine.run(f"sed -i 's/^drain_timeout = 30/drain_timeout = \"x\"/' {SWITCHES}")
    assert machine.run("systemctl restart fetchgate.service", check=False).returncode == 1
    caller = Caller(place.near, 19092)
    until(lambda: caller.refused, "clients wait for a gateway that can't start")
    caller.end()
    assert f"drain_timeout in {SWITCHES}: 'x' is not a time" in machine.run(JOURNAL).stdout
    machine.run(f"sed -i 's/^drain_timeout = .*/drain_timeout = 30/' {SWITCHES}")
    (again,) = re.findall(r"`(systemctl start [^`]*)`", DOCS)
    machine.run(again)
    caller = Caller(place.near, 19092)
    caller.wait()
    caller.end()


@pytest.mark.soak
@pytest.mark.skipif(bool(absent()), reason=absent())
def test_the_page_makes_it_transparent_and_takes_it_out(place: Place, machine: Machine) -> None:
    machine.run(f"sed -i s/^FETCHGATE_BOOTSTRAP=.*/FETCHGATE_TRANSPARENT=redirect/ {ENVIRONMENT}")
    machine.run(f"sed -i /^FETCHGATE_STATE=/d {ENVIRONMENT}")
    for line in TRANSPARENTLY:
        machine.run(line)
    for mode in MODES:
        drop_in = "/etc/systemd/system/fetchgate.socket.d/transparent.conf"
        machine.run(f"sed -i s/redirect/{mode}/ {ENVIRONMENT} {drop_in}")
        machine.run("systemctl daemon-reload && systemctl restart fetchgate.socket")
        assert mode in machine.run(TRANSPARENTLY[-1]).stdout
        for family in HOSTS:
            with place.near.inside():
                assert has_session(fetching(place.near, family))
    for line in LEAVE:
        machine.run(line)
    assert place.near.run("nft", "list", "table", "inet", "fetchgate", check=False).returncode == 1
    with place.near.inside(), pytest.raises(ConnectionRefusedError):
        RawConnection("127.0.0.1", 19092)
