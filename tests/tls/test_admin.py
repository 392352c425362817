"""Tests of TLS at the admin endpoint."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.__main__ import main
from proxy.addresses import Address
from proxy.dashboard import asking
from proxy.net.listen import Binding
from proxy.telemetry.access import admin_tls
from proxy.telemetry.admin import MAX_CONNECTIONS, AdminEndpoint
from proxy.text.options import ConfigError
from tests.shell import BOTH_LOOPS, WAIT_SECONDS, client, config, gateway, run, stub_broker, until
from tests.tls.secured import Keys
from tools.certificates import Pair


@asynccontextmanager
async def endpoint(pair: Pair) -> AsyncIterator[tuple[int, AdminEndpoint]]:
    options = {"bootstrap": "k:1", "admin": ":0", "admin_cert": str(pair.cert), "admin_key": str(pair.key)}
    async with stub_broker() as broker, gateway(broker.address) as gate:
        sockets = Binding().bind(Address("127.0.0.1", 0))
        admin = AdminEndpoint(gate, tls=admin_tls(config(**options)))
        admin.start(sockets)
        try:
            yield sockets[0].getsockname()[1], admin
        finally:
            admin.close()
            await until(lambda: not admin._open)


async def _livez(port: int, trust: ssl.SSLContext) -> bytes:
    async with client(port, trust, "localhost") as (reader, writer):
        writer.write(b"GET /livez HTTP/1.1\r\n\r\n")
        return await reader.read()


@BOTH_LOOPS
def test_it_speaks_tls_and_nothing_else(keys: Keys, plain: bool) -> None:
    async def scene() -> None:
        with capture_logs() as lines:
            async with endpoint(keys.good) as (port, _):
                assert (await _livez(port, keys.trust())).endswith(b"alive\n")
                for _ in range(2):
                    async with client(port) as (reader, writer):
                        writer.write(b"GET /livez HTTP/1.1\r\n\r\n")
                        assert b"alive" not in await reader.read()
                assert (await _livez(port, keys.trust())).endswith(b"alive\n")
        (line,) = [line for line in lines if line["log_level"] == "warning"]
        assert (line["event"], line["reason"]) == (
            "TLS handshake at the admin endpoint failed",
            "http request",
        )

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_peers_that_shake_no_hands_do_not_keep_out_a_probe(keys: Keys, plain: bool) -> None:
    async def scene() -> None:
        async with endpoint(keys.good) as (port, admin):
            streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CONNECTIONS)]
            await until(lambda: len(admin._open) == MAX_CONNECTIONS)
            assert (await _livez(port, keys.trust())).endswith(b"alive\n")
            assert await streams[0][0].read() == b"", "who came first made room"
            assert len(admin._open) <= MAX_CONNECTIONS
            for _, writer in streams:
                writer.close()

    run(scene(), plain=plain)


async def test_a_renewed_certificate_needs_no_restart(keys: Keys, tmp_path: Path) -> None:
    pair = Pair(tmp_path / "own.pem", tmp_path / "own.key")
    pair.cert.write_text(keys.stranger.chain)
    pair.key.write_text(keys.stranger.private)

    async with endpoint(pair) as (port, _):
        with pytest.raises(ssl.SSLCertVerificationError):
            await _livez(port, keys.trust())
        pair.key.write_text(keys.good.private)
        pair.cert.write_text(keys.good.chain)
        assert (await _livez(port, keys.trust())).endswith(b"alive\n")
        with capture_logs() as lines:
            pair.cert.write_text("nothing")
            assert (await _livez(port, keys.trust())).endswith(b"alive\n")
        assert [line["side"] for line in lines if line["event"] == "certificates not reloaded"] == ["admin"]


def test_files_that_can_not_be_used_are_told(keys: Keys) -> None:
    options = {"bootstrap": "k:1", "admin": ":0", "admin_cert": str(keys.good.cert)}
    with pytest.raises(ConfigError, match=r"--admin-cert .* and --admin-key .*: the key does not belong"):
        admin_tls(config(**options, admin_key=str(keys.stranger.key)))
    with pytest.raises(ConfigError, match="--admin-key /none: No such file"):
        admin_tls(config(**options, admin_key="/none"))


def _top(*arguments: str) -> asyncio.Future[int]:
    return asyncio.get_running_loop().run_in_executor(None, lambda: main(["top", "--once", *arguments]))


async def test_top_reads_it(
    keys: Keys, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "RESPONSE_SECONDS", WAIT_SECONDS)

    async with endpoint(keys.good) as (port, _):
        at = f"localhost:{port}"
        assert await _top("--admin", f"https://{at}", "--ca", str(keys.ca.file)) == 0
        assert capsys.readouterr().out.startswith("fetchgate ")
        assert await _top("--admin", f"https://{at}", "--ca", str(keys.other.file)) == 1
        assert "its certificate is not accepted (" in capsys.readouterr().err
        assert await _top("--admin", f"https://{at}") == 1
        assert "give its CA as --ca FILE" in capsys.readouterr().err
        assert await _top("--admin", at) == 1
        assert f"if it has --admin-cert, give --admin https://{at}" in capsys.readouterr().err


async def test_top_says_that_an_endpoint_has_no_tls(
    keys: Keys, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        asking, "RESPONSE_SECONDS", 0.2
    )  # a plain-text endpoint waits for the end of a request

    async with stub_broker() as broker, gateway(broker.address) as gate:
        sockets = Binding().bind(Address("127.0.0.1", 0))
        admin = AdminEndpoint(gate)
        admin.start(sockets)
        at = f"https://localhost:{sockets[0].getsockname()[1]}"
        assert await _top("--admin", at, "--ca", str(keys.ca.file)) == 1
        assert "if it has no --admin-cert, leave out https://" in capsys.readouterr().err
        admin.close()
