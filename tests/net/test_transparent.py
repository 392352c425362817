"""Transparent mode without netfilter: options, listeners and destinations."""

import errno
import socket
import subprocess
import sys
from typing import Any

import pytest

from proxy.addresses import Address, BrokerPorts
from proxy.net.listen import Binding, is_own
from proxy.net.transparent import REDIRECT, TPROXY, listen, outbound_socket
from proxy.text.options import ConfigError
from tests.shell import config
from tools.kafka.ports import free_ports
from tools.netns import missing

IP_TRANSPARENT = 19
LACKING = missing("unshare", "ip")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("bootstrap", "kafka:9092", "clients connect to the brokers' own addresses"),
        ("advertise", "gate", "no address is rewritten"),
        ("broker_ports", "29100", "no broker has a listener of its own"),
        ("listen_ports", "19093-19192", "no broker has a listener of its own"),
        ("state", "/tmp/brokers.json", "no broker has a listener of its own"),
    ],
)
def test_what_belongs_to_listeners_of_brokers_has_no_place_in_transparent_mode(
    name: str, value: str, why: str
) -> None:
    flag = "--" + name.replace("_", "-")
    with pytest.raises(ConfigError) as caught:
        config(**{"transparent": "tproxy", name: value})
    assert str(caught.value) == f"{flag}: leave it out with --transparent: {why}"


def test_an_option_that_is_empty_is_none_in_transparent_mode() -> None:
    found = config(transparent="redirect", bootstrap="", advertise="", broker_ports="", state="")
    assert (found.bootstrap, found.advertise, found.broker_ports, found.state) == (
        (),
        "",
        BrokerPorts(),
        None,
    )


def test_there_are_two_transparent_modes() -> None:
    with pytest.raises(ConfigError, match="--transparent: 'nat' is not one of off, redirect, tproxy"):
        config(transparent="nat")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0", "::"])
def test_both_ip_versions_are_listened_for_at_one_port(host: str) -> None:
    if not is_own("::1"):
        pytest.skip("no IPv6 here")
    sockets = listen(Address(host, 0), REDIRECT, Binding())
    try:
        assert {sock.family for sock in sockets} == {socket.AF_INET, socket.AF_INET6}
        assert len({sock.getsockname()[1] for sock in sockets}) == 1
    finally:
        for sock in sockets:
            sock.close()


@pytest.mark.parametrize("shares", [False, True])
def test_a_port_that_somebody_else_has_in_one_ip_version_is_no_port(shares: bool) -> None:
    if not is_own("::1"):
        pytest.skip("no IPv6 here")
    with socket.create_server(("::1", free_ports()), family=socket.AF_INET6) as somebody:
        port = somebody.getsockname()[1]
        with pytest.raises(OSError, match=rf"Address already in use at \[::1\]:{port}"):
            listen(Address("127.0.0.1", port), REDIRECT, Binding(shares))
    socket.create_server(("127.0.0.1", port)).close()  # nothing of it is left


@pytest.mark.parametrize("missing", [errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT])
def test_an_ip_version_that_is_not_there_is_not_listened_for(
    monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    own = Binding._bound

    def only_ipv4(binding: Binding, family: int, *more: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(missing, "")
        return own(binding, family, *more)

    monkeypatch.setattr(Binding, "_bound", only_ipv4)
    (sock,) = listen(Address("127.0.0.1", 0), REDIRECT, Binding())
    sock.close()


def test_one_address_is_listened_at_alone() -> None:
    (sock,) = listen(Address("127.0.0.2", 0), REDIRECT, Binding())
    with sock:
        assert sock.getsockname()[0] == "127.0.0.2"


def test_a_way_to_a_broker_has_a_port_of_its_own_before_it_is_used() -> None:
    with (
        outbound_socket(Address("127.0.0.1", 9092)) as one,
        outbound_socket(Address("127.0.0.1", 9092)) as other,
    ):
        assert one.family == socket.AF_INET
        assert 0 < one.getsockname()[1] != other.getsockname()[1] > 0


def test_an_address_is_own_or_not() -> None:
    assert is_own("127.0.0.1")
    assert not is_own("192.0.2.1")
    assert not is_own("2001:db8::1")


@pytest.mark.skipif(bool(LACKING), reason=LACKING)
@pytest.mark.parametrize(
    ("host", "own"), [("192.0.2.1", True), ("192.0.2.2", False), ("198.51.100.1", False)]
)
def test_an_address_that_can_be_bound_need_not_be_own(host: str, own: bool) -> None:
    """With ip_nonlocal_bind, which load balancers set, the kernel binds any address."""
    asks = f"from proxy.net.listen import is_own; assert is_own({host!r}) is {own}"
    script = (
        "echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind && ip link set lo up"
        ' && ip address add 192.0.2.1/32 dev lo && exec $0 -c "$1"'
    )
    subprocess.run(["unshare", "--net", "sh", "-c", script, sys.executable, asks], check=True, timeout=60)


def test_the_right_that_tproxy_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("socket.socket.setsockopt", refuse)
    with pytest.raises(ConfigError, match="--transparent tproxy needs CAP_NET_RAW: "):
        listen(Address("127.0.0.1", 0), TPROXY, Binding())


@pytest.fixture
def unprivileged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the system refuse to make a socket transparent, as it does for a process without privileges."""
    own = socket.socket.setsockopt

    def refuse(sock: socket.socket, level: int, option: int, value: int) -> None:
        if (level, option) == (socket.SOL_IP, IP_TRANSPARENT):
            raise PermissionError(1, "Operation not permitted")
        own(sock, level, option, value)

    monkeypatch.setattr("socket.socket.setsockopt", refuse)


@pytest.mark.usefixtures("unprivileged")
def test_a_socket_of_systemd_that_clients_could_not_come_to_is_refused() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as ours,
        pytest.raises(ConfigError, match="give systemd's socket Transparent=yes"),
    ):
        listen(Address(*ours.getsockname()), TPROXY, Binding(inherited=[ours]))


@pytest.mark.usefixtures("unprivileged")
def test_a_transparent_socket_of_one_ip_version_is_not_taken_for_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not is_own("::1"):
        pytest.skip("no IPv6 here")
    own = socket.socket.setsockopt

    def refuse(sock: socket.socket, level: int, option: int, value: int) -> None:
        if level == socket.IPPROTO_IPV6 and option != socket.IPV6_V6ONLY:
            raise PermissionError(1, "Operation not permitted")
        own(sock, level, option, value)

    monkeypatch.setattr("socket.socket.setsockopt", refuse)
    with socket.create_server(("127.0.0.1", 0)) as ours:
        monkeypatch.setattr(
            "socket.socket.getsockopt",
            lambda _, level, option: (level, option) == (socket.SOL_IP, IP_TRANSPARENT),
        )
        with pytest.raises(ConfigError, match="give systemd's socket Transparent=yes"):
            listen(Address(*ours.getsockname()), TPROXY, Binding(inherited=[ours]))


@pytest.mark.usefixtures("unprivileged")
def test_a_transparent_socket_of_systemd_needs_no_right(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.2", 0)) as ours:
        monkeypatch.setattr(
            "socket.socket.getsockopt",
            lambda _, level, option: (level, option) == (socket.SOL_IP, IP_TRANSPARENT),
        )
        (sock,) = listen(Address(*ours.getsockname()), TPROXY, Binding(inherited=[ours]))
        with sock:
            assert sock.getsockname() == ours.getsockname()
