"""Clients that the gateway can't accept or serve at once wait until it can."""

import socket

import pytest
from structlog.testing import capture_logs

from proxy.server import acceptor
from tests.shell import BOTH_LOOPS, client, gateway, run, stub_broker


@BOTH_LOOPS
def test_clients_wait_while_no_descriptor_is_left(plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """While no file descriptor is left, clients wait. The server of an event loop would close them at
    once.
    """
    monkeypatch.setattr(acceptor, "ACCEPT_AGAIN_SECONDS", 0.01)

    async def scene() -> None:
        async with stub_broker() as broker, gateway(broker.address) as gate:
            accept, failures = socket.socket.accept, [OSError(24, "Too many open files")] * 2

            def none_left(sock: socket.socket) -> object:
                if failures:
                    raise failures.pop()
                return accept(sock)

            with monkeypatch.context() as patched, capture_logs() as lines:
                patched.setattr(socket.socket, "accept", none_left)
                async with client(gate.listen.port) as (reader, writer):
                    writer.write(b"x")
                    assert await reader.readexactly(1) == b"x"
            assert not failures
            assert [line["event"] for line in lines] == ["no file descriptor is left for more clients"]
            assert gate.status().problems

    run(scene(), plain=plain)
