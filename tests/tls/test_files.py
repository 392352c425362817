"""Certificates are read again when their files change."""

import asyncio
from pathlib import Path

import pytest
from cryptography import x509
from structlog.testing import capture_logs

from proxy.server import registry, server
from proxy.server.gateway import Gateway
from tests.shell import (
    BOTH_LOOPS,
    WireGateway,
    client,
    gateway,
    run,
    stub_broker,
    stub_cluster,
    until,
)
from tests.tls.secured import Keys, serving
from tools.certificates import Pair


@pytest.fixture
def own(keys: Keys, tmp_path: Path) -> Pair:
    """Return a certificate and its key, in files that a test may change."""
    pair = Pair(tmp_path / "own.pem", tmp_path / "own.key")
    _put(keys.ca.sign("first"), pair)
    return pair


def _put(new: Pair, into: Pair) -> None:
    for source, target in ((new.key, into.key), (new.cert, into.cert)):
        aside = target.with_suffix(".new")
        aside.write_text(source.read_text())
        aside.replace(target)


def _shown(writer: asyncio.StreamWriter) -> str:
    """Return the common name of the certificate that a client received."""
    certificate = writer.get_extra_info("ssl_object").getpeercert()
    return str(dict(field[0] for field in certificate["subject"])["commonName"])


@BOTH_LOOPS
def test_a_new_certificate_is_for_new_connections(
    keys: Keys, own: Pair, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "TICK_SECONDS", 0.02)
    options = {"tls_cert": str(own.cert), "tls_key": str(own.key)}

    async def scene() -> None:
        with capture_logs() as lines:
            async with stub_broker() as broker, gateway(broker.address, WireGateway, **options) as gate:
                port = gate.listen.port
                async with client(port, keys.trust(), "localhost") as (reader, writer):
                    assert _shown(writer) == "first"
                    _put(keys.ca.sign("second"), own)
                    await until(lambda: lines)
                    async with client(port, keys.trust(), "localhost") as (_, other):
                        assert _shown(other) == "second"
                    writer.write(b"still here")
                    assert await reader.readexactly(10) == b"still here"
        assert [(line["event"], line["side"]) for line in lines] == [("certificates reloaded", "client")]

    run(scene(), plain=plain)


async def test_a_bad_new_file_changes_nothing_and_is_reported(keys: Keys, own: Pair) -> None:
    options = {"tls_cert": str(own.cert), "tls_key": str(own.key)}

    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway, **options) as gate,
    ):
        await until(lambda: gate.health().state == "ready")
        own.cert.write_text(keys.ca.sign("second").chain)  # its key has not come yet
        with capture_logs() as lines:
            gate.follow_files()
            gate.follow_files()
        reason = (
            f"--tls-cert {own.cert} and --tls-key {own.key}: the key does not belong to the certificate; "
            "the earlier certificates stay in use"
        )
        assert [(line["event"], line["reason"]) for line in lines] == [("certificates not reloaded", reason)]
        assert (gate.health().state, gate.health().reasons) == ("degraded", [reason])
        async with client(gate.listen.port, keys.trust(), "localhost") as (_, writer):
            assert _shown(writer) == "first"

        own.cert.unlink()
        gate.follow_files()
        (reason,) = gate.health().reasons
        assert reason.startswith(f"--tls-cert {own.cert}: No such file or directory; ")
        assert reason.endswith("; the earlier certificates stay in use")
        _put(keys.ca.sign("third"), own)
        gate.follow_files()
        assert gate.health().state == "ready"
        async with client(gate.listen.port, keys.trust(), "localhost") as (_, writer):
            assert _shown(writer) == "third"


async def test_a_certificate_that_has_expired_is_reported_until_it_is_renewed(keys: Keys, own: Pair) -> None:
    options = {"tls_cert": str(own.cert), "tls_key": str(own.key)}
    old = keys.ca.sign("old", days=(-0.9, -0.1))
    ended = x509.load_pem_x509_certificate(old.cert.read_bytes()).not_valid_after_utc
    reason = (
        f"--tls-cert {own.cert}: the certificate expired at {ended:%Y-%m-%d %H:%M} UTC; clients refuse it: "
        "renew it, or set this machine's clock"
    )

    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway, **options) as gate,
    ):
        await until(lambda: gate.health().state == "ready")
        _put(old, own)
        with capture_logs() as lines:
            gate.follow_files()
            gate.follow_files()
        assert [line["reason"] for line in lines if "reason" in line] == [reason]
        assert (gate.health().state, gate.health().reasons) == ("degraded", [reason])
        _put(keys.ca.sign("renewed"), own)
        gate.follow_files()
        assert (gate.health().state, gate.health().reasons) == ("ready", [])


async def test_a_gateway_that_starts_with_an_expired_certificate_says_so(keys: Keys) -> None:
    old = keys.ca.sign("old", days=(-0.9, -0.1))
    options = {"tls_cert": str(old.cert), "tls_key": str(old.key)}

    with capture_logs() as lines:
        async with stub_broker() as broker, gateway(broker.address, WireGateway, **options) as gate:
            (reason,) = gate.status().problems
    assert f"--tls-cert {old.cert}: the certificate expired at " in reason
    assert [line["reason"] for line in lines if "reason" in line] == [reason]


@pytest.mark.usefixtures("_quick")
async def test_a_new_ca_is_for_new_connections_to_brokers(keys: Keys, tmp_path: Path) -> None:
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(keys.other.file.read_text())

    async with (
        stub_broker(tls=serving(keys.good)) as broker,
        gateway(broker.address, WireGateway, **keys.to_broker(broker_tls_ca=str(trusted))) as gate,
    ):
        async with client(gate.listen.port) as (reader, _):
            assert await reader.read() == b""
        trusted.write_text(keys.ca.file.read_text())
        gate.follow_files()
        async with client(gate.listen.port) as (reader, writer):
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"


async def test_a_new_ca_is_for_asking_the_cluster_too(
    keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "REFRESH_SECONDS", 0.02)
    monkeypatch.setattr(registry, "RETRY_SECONDS", (0.02, 0.05))
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(keys.other.file.read_text())

    async with (
        stub_cluster((1, "localhost", 0), tls=serving(keys.good)) as cluster,
        gateway(f"localhost:{cluster.port}", Gateway, **keys.to_broker(broker_tls_ca=str(trusted))) as gate,
    ):
        await until(lambda: "not from a CA known here" in gate.monitor.reach.of(None))
        trusted.write_text(keys.ca.file.read_text())
        gate.follow_files()
        await until(lambda: gate.monitor.reach.answered)
