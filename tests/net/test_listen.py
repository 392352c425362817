"""The gateway opens its listening sockets itself, or gets them from systemd."""

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.addresses import Address
from proxy.net.listen import Binding, OwnListenerError, inherited
from tools.kafka.ports import free_ports


@pytest.fixture
def base() -> int:
    """Return a free port."""
    return free_ports()


@pytest.fixture
def kept() -> Iterator[ExitStack]:
    """Yield a stack. It closes the sockets at the end of the test."""
    with ExitStack() as stack:
        yield stack


def _bind(kept: ExitStack, binding: Binding, address: Address) -> list[socket.socket]:
    return [kept.enter_context(closing(sock)) for sock in binding.bind(address)]


def _listening(kept: ExitStack, port: int, host: str = "127.0.0.1") -> socket.socket:
    """Open a listening socket, as systemd would do before it starts a service."""
    sock = kept.enter_context(closing(socket.create_server((host, port))))
    assert sock.getblocking()
    return sock


def test_every_address_of_a_name_is_bound(base: int) -> None:
    sockets = Binding().bind(Address("localhost", base))
    try:
        expected = {info[4][0] for info in socket.getaddrinfo("localhost", base, type=socket.SOCK_STREAM)}
        assert {sock.getsockname()[0] for sock in sockets} <= expected
        assert "127.0.0.1" in {sock.getsockname()[0] for sock in sockets}
    finally:
        for sock in sockets:
            sock.close()


def _versions(sockets: list[socket.socket]) -> set[tuple[str, int]]:
    return {sock.getsockname()[:2] for sock in sockets}


@pytest.mark.parametrize("port", [0, None], ids=["any port", "a port"])
def test_all_addresses_of_ipv6_are_those_of_ipv4_as_well(
    base: int, kept: ExitStack, port: int | None
) -> None:
    sockets = _bind(kept, Binding(), Address("::", base if port is None else port))
    at = sockets[0].getsockname()[1]
    assert _versions(sockets) == {("::", at), ("0.0.0.0", at)}
    for host in ("127.0.0.1", "::1"):
        kept.enter_context(closing(socket.create_connection((host, at))))


def test_all_addresses_of_ipv4_are_no_others(base: int, kept: ExitStack) -> None:
    assert _versions(_bind(kept, Binding(), Address("0.0.0.0", base))) == {("0.0.0.0", base)}


def test_where_somebody_else_has_ipv4_nothing_is_bound(base: int, kept: ExitStack) -> None:
    _listening(kept, base)
    with pytest.raises(OSError, match="Address already in use"):
        Binding().bind(Address("::", base))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("::1", base))


@pytest.mark.parametrize("both", [True, False])
def test_a_socket_of_systemd_may_take_both_ip_versions(base: int, kept: ExitStack, *, both: bool) -> None:
    ours = socket.create_server(("::", base), family=socket.AF_INET6, dualstack_ipv6=both)
    binding = Binding(inherited=[kept.enter_context(closing(ours))])
    versions = _versions(_bind(kept, binding, Address("::", base)))
    assert versions == ({("::", base)} if both else {("::", base), ("0.0.0.0", base)})


def test_an_address_of_another_machine_is_refused(base: int) -> None:
    with pytest.raises(OSError, match="Cannot assign requested address"):
        Binding().bind(Address("192.0.2.1", base))


def test_an_address_is_bound_once_unless_both_share_it(base: int, kept: ExitStack) -> None:
    at = Address("127.0.0.1", base)
    _bind(kept, Binding(shares=True), at)
    _bind(kept, Binding(shares=True), at)
    with pytest.raises(OSError, match="Address already in use"):
        Binding().bind(at)


def test_who_does_not_share_keeps_out_who_would(base: int, kept: ExitStack) -> None:
    at = Address("127.0.0.1", base)
    _bind(kept, Binding(), at)
    with pytest.raises(OSError, match="Address already in use"):
        Binding(shares=True).bind(at)


def test_a_socket_that_listens_already_is_taken_by_its_address(base: int, kept: ExitStack) -> None:
    ours = _listening(kept, base)
    binding = Binding(inherited=[ours])
    (sock,) = _bind(kept, binding, Address("127.0.0.1", base))
    assert sock.getsockname() == ours.getsockname()
    assert not sock.getblocking()
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    sock.close()
    with socket.create_connection(("127.0.0.1", base)):
        ours.accept()[0].close()  # closing the copy left it open
    _bind(kept, binding, Address("127.0.0.1", base))


def test_sockets_of_other_addresses_are_left_alone(base: int, kept: ExitStack) -> None:
    binding = Binding(inherited=[_listening(kept, base, "127.0.0.2")])
    (sock,) = _bind(kept, binding, Address("127.0.0.1", base))
    assert sock.getsockname() == ("127.0.0.1", base)


@pytest.mark.parametrize("handed_over", [False, True])
def test_one_gateway_listens_at_an_address_once(base: int, kept: ExitStack, handed_over: bool) -> None:
    """A gateway refuses to listen at an address where another gateway listens.

    It refuses even if SO_REUSEPORT or a socket from systemd would allow two listeners.
    """
    at = Address("127.0.0.1", base)
    sockets = [_listening(kept, base)] if handed_over else []
    binding = Binding(shares=True, inherited=sockets)
    alone = replace(binding, shares=False)  # as the admin endpoint has it
    (sock,) = _bind(kept, binding, at)
    for again in (binding, alone):
        with pytest.raises(OwnListenerError, match="Address already in use") as caught:
            again.bind(at)
        assert caught.value.errno == errno.EADDRINUSE
    sock.close()
    _bind(kept, alone, at)
    with pytest.raises(OwnListenerError):
        binding.bind(at)


def test_what_was_bound_is_let_go_when_a_name_leads_to_an_address_of_ours_as_well(
    base: int, kept: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    binding = Binding(shares=True)
    _bind(kept, binding, Address("127.0.0.2", base))
    both = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{each}", base)) for each in (1, 2)]
    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", lambda *_, **__: both)
        with pytest.raises(OwnListenerError):
            binding.bind(Address("two.example", base))
    _bind(kept, binding, Address("127.0.0.1", base))


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LISTEN_FDS": "1"},
        {"LISTEN_PID": "7", "LISTEN_FDS": "1"},
        {"LISTEN_PID": "8", "LISTEN_FDS": ""},
        {"LISTEN_PID": "8", "LISTEN_FDS": "-1"},
        {"LISTEN_PID": "8", "LISTEN_FDS": "9" * 12},
        {"LISTEN_PID": "8", "LISTEN_FDS": "9" * 5_000},
        {"LISTEN_PID": "8"},
    ],
)
def test_what_was_not_handed_over_to_us_is_not_touched(environ: dict[str, str]) -> None:
    assert inherited(environ, 8) == []


def test_what_systemd_hands_over_is_taken_and_what_is_no_listener_is_left(kept: ExitStack) -> None:
    """Of the files that systemd hands over, only listening sockets are used. The other files stay open.

    The test starts a separate process with files 3 to 6: a listening socket, a file, a datagram socket, and
    no file.
    """
    listener = _listening(kept, 0)
    datagram = kept.enter_context(closing(socket.socket(type=socket.SOCK_DGRAM)))
    with Path(os.devnull).open("rb") as file:
        numbers = (listener.fileno(), file.fileno(), datagram.fileno())
        script = f"""
import os
for place, number in enumerate([os.dup(each) for each in {numbers}], 3):
    os.dup2(number, place)
os.closerange(6, 100)
from proxy.net.listen import inherited
found = inherited({{"LISTEN_PID": "1", "LISTEN_FDS": "4"}}, 1)
print([sock.getsockname()[1] for sock in found], [sock.get_inheritable() for sock in found])
os.fstat(4), os.fstat(5)
"""
        done = subprocess.run(
            [sys.executable, "-c", script],
            pass_fds=numbers,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    assert (done.stdout, done.stderr) == (f"[{listener.getsockname()[1]}] [False]\n", "")
